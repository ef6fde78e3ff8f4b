//! Signals to leasehold, and its end by a signal.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::support::{Running, Store, is_gone, run, state};
use crate::wait::wait_until;

/// Prints the signals that it gets, until TERM. It waits only briefly: a signal right before a wait does not end the
/// wait.
const TELLS: &str = "for s in INT HUP QUIT USR1 USR2 WINCH; do trap \"echo $s\" $s; done
trap 'echo TERM; exit 7' TERM; echo ready; while :; do sleep 0.05; done";

#[test]
fn signals_are_passed_on() {
    let store = Store::new();
    let mut running = Running::ready(&mut store.reading(&[], TELLS));
    for signal in ["INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "TERM"] {
        running.signal(format!("SIG{signal}").parse().unwrap());
        running.expect(signal);
    }
    assert_eq!(running.end().code, Some(7));
}

#[test]
fn signals_reach_grandchildren() {
    let store = Store::new();
    let deep = "trap \"echo deep; exit\" TERM; echo ready; while :; do sleep 0.05; done";
    let script = format!("exec 3<&0; trap : TERM; sh -c '{deep}' <&3 & wait; wait");
    let mut running = Running::ready(&mut store.reading(&[], &script));
    running.signal(Signal::SIGTERM);
    running.expect("deep");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn what_was_ignored_stays_ignored() {
    let store = Store::new();
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_leasehold")).args(["run", "k", "--", "sh", "-c"]);
    command.args(["echo ready; kill -HUP $$; read go; echo went on"]).env("LEASEHOLD_STORE", &store.url);
    let mut running = Running::ready(command.stdin(std::process::Stdio::piped()));
    running.signal(Signal::SIGHUP);
    running.tell("go");
    running.expect("went on");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let store = Store::new();
    let guard = store.client().lock("k").unwrap();
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129), (Signal::SIGQUIT, 131)]
    {
        let command = &mut store.script(&["-vv"], "echo never");
        let mut waiting = Running::start(command);
        // Its handlers are installed before it asks for the lock the first time.
        wait_until("it waits", || waiting.threads().iter().any(|name| name.starts_with("leasehold-wait")));
        waiting.signal(signal);
        assert_eq!(waiting.status().code(), Some(code));
        let ran = waiting.end();
        assert_eq!(ran.stdout, "");
    }
    assert_eq!(store.client().get("k").unwrap().unwrap().holders().len(), 1);
    drop(guard);
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

#[test]
fn a_killed_leasehold_takes_its_command_along() {
    let store = Store::new();
    let mut running =
        Running::start(&mut store.leasehold(&["run", "k", "--", "sh", "-c", "echo ready; exec sleep 1000"]));
    running.expect("ready");
    running.signal(Signal::SIGKILL);
    // The command had the other end of the pipe.
    running.output_ends();
    assert!(!store.client().get("k").unwrap().unwrap().is_free(), "nobody released it: it ends with its lease");
}

#[test]
fn a_killed_leasehold_takes_along_what_its_command_started() {
    let store = Store::new();
    // Also where a whole service gets TERM, and only what ignores it stays.
    let script = "trap '' TERM; sh -c 'echo ready; exec sleep 1000' & wait";
    let mut running = Running::ready(&mut store.script(&[], script));
    let keeper = keeper_of(&running);
    wait_until("it is at its work", || blocks_signals(keeper));
    kill(keeper, Signal::SIGTERM).unwrap();
    running.signal(Signal::SIGKILL);
    running.output_ends();
}

#[test]
fn a_stopped_leasehold_ends_its_command_before_another_is_let_in() {
    let store = Store::new();
    let script = "echo $$; while :; do sleep 0.01; done";
    crate::lateness::measure();
    let mut running = Running::start(&mut store.script(&["--lease", "10s", "--kill-after", "0s"], script));
    let pid = running.line();
    running.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    let _rival = store.client().lock("k").unwrap();
    // Half a second lies between the two, which a busy machine may use up.
    is_gone(&pid, stopped);
    running.signal(Signal::SIGCONT);
    assert_eq!(running.end().code, Some(76));
}

/// The keeper kills the command while leasehold stands still, and the store would still accept a release. The lease is
/// so long that it is not lost before leasehold stands still.
#[test]
fn what_was_killed_by_the_keeper_is_a_loss() {
    let is_killed = || {
        let store = Store::new();
        let script = "echo $$; while :; do sleep 0.1; done";
        let mut running = Running::start(&mut store.script(&["--lease", "12s", "--kill-after", "0s"], script));
        let pid = running.line();
        running.signal(Signal::SIGSTOP);
        wait_until("it is killed", || state(&pid) == "Z");
        running.signal(Signal::SIGCONT);
        let ran = running.end();
        assert_eq!(ran.code, Some(76), "{}", ran.stderr);
        assert!(ran.stderr.contains("was lost"), "{}", ran.stderr);
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(is_killed);
        }
    });
}

#[test]
fn nothing_is_left_behind_for_a_command_that_ended() {
    let store = Store::new();
    let mut running = Running::start(&mut store.reading(&[], "echo ready; read go"));
    running.expect("ready");
    let keeper = running.children().into_iter().find(|pid| title(pid).contains("__keep")).expect("its keeper");
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
    wait_until("the keeper ends", || !title(&keeper).contains("__keep"));
}

fn title(pid: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

#[test]
fn the_command_has_the_signal_masks_of_any_other() {
    let store = Store::new();
    // Started without a shell, which might change the masks.
    let args = ["-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let plain = run(Command::new("grep").args(args));
    assert_eq!(run(store.leasehold(&["run", "k", "--", "grep"]).args(args)).stdout, plain.stdout);
}

/// As a program does that reads its signals from a descriptor, and starts other programs without unblocking them.
#[test]
#[cfg(target_os = "linux")]
fn signals_that_were_blocked_are_told_leasehold_and_stay_so_for_the_command() {
    let store = Store::new();
    let _guard = store.client().lock("k").unwrap();
    let blocked: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect();
    // Only in this thread.
    blocked.thread_block().unwrap();
    let mut waits = Running::start(&mut store.leasehold(&["run", "k", "-vv", "--", "true"]));
    let args = ["^SigBlk", "/proc/self/status"];
    let plain = run(Command::new("grep").args(args)).stdout;
    let inner = run(store.leasehold(&["run", "free", "--", "grep"]).args(args)).stdout;
    blocked.thread_unblock().unwrap();
    waits.says("refused: \"k\"");
    waits.signal(Signal::SIGTERM);
    assert_eq!(waits.end().code, Some(143));
    assert_eq!(inner, plain);
    assert!(!plain.ends_with("0000\n"), "{plain}");
}

/// As systemd does: a program that Rust starts gets the system's default, whatever leasehold itself has.
#[test]
fn a_command_that_is_to_ignore_pipe_does_so_itself() {
    let store = Store::new();
    for (command, code) in [("kill -PIPE $$; exit 7", 141), ("trap '' PIPE; exec sh -c 'kill -PIPE $$; exit 7'", 7)] {
        let leasehold = store.script(&[], command);
        let mut ignores = Command::new("sh");
        ignores.args(["-c", "trap '' PIPE; exec \"$@\"", "sh"]).arg(leasehold.get_program()).args(leasehold.get_args());
        let ran = run(ignores.env("LEASEHOLD_STORE", &store.url));
        assert_eq!(ran.code, Some(code), "{command}: {}", ran.stderr);
    }
}

#[test]
fn the_lock_is_kept_until_all_of_the_group_is_gone() {
    let store = Store::new();
    // The shell has ended and was waited for, but what it started still runs.
    let stays = "while kill -0 $0 2>/dev/null; do sleep 0.01; done; echo ready; read go; exit 9";
    let script = format!("exec 3<&0; sh -c '{stays}' $$ <&3 3<&- & exit 5");
    let mut running = Running::ready(&mut store.reading(&[], &script));
    assert!(store.client().try_lock_for("k", Duration::from_secs(1)).unwrap().is_none());
    running.tell("go");
    assert_eq!(running.end().code, Some(5), "the command's own code");
    assert!(store.client().try_lock("k").unwrap().is_some());
}

#[test]
fn a_stopped_command_is_ended_by_term() {
    let store = Store::new();
    let mut running = Running::start(&mut store.script(&[], "echo $$; kill -STOP $$; echo never"));
    let pid = running.line();
    wait_until("it stopped", || state(&pid) == "T");
    running.signal(Signal::SIGTERM);
    let ran = running.end();
    assert_eq!((ran.code, ran.stdout.contains("never")), (Some(143), false));
    assert!(store.client().try_lock("k").unwrap().is_some());
}

/// The system reports a stop only to the parent of the stopped process.
#[test]
fn what_stands_still_beside_the_command_keeps_no_lock_after_a_term() {
    let store = Store::new();
    let mut running = Running::start(&mut store.script(&[], "sleep 1000 & kill -STOP $!; echo $!; wait"));
    let beside = running.line();
    wait_until("it stopped", || state(&beside) == "T");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
    assert!(store.client().try_lock("k").unwrap().is_some());
}

#[test]
fn kill_follows_term_if_that_is_asked_for() {
    let store = Store::new();
    let script = "trap 'echo term' TERM; echo ready; while :; do read never; done";
    let mut running = Running::ready(&mut store.reading(&["--kill-after", "9s"], script));
    running.signal(Signal::SIGTERM);
    running.expect("term");
    assert_eq!(running.end().code, Some(137));
    // Zero applies only to a loss.
    let mut running = Running::ready(&mut store.reading(&["--kill-after", "0s"], TELLS));
    running.signal(Signal::SIGTERM);
    running.expect("TERM");
    assert_eq!(running.end().code, Some(7));
}

#[test]
fn a_command_that_is_stopped_by_the_loss_stays_so() {
    let store = Store::new();
    for signal in ["STOP", "TSTP"] {
        let script = "trap 'echo continued' CONT; echo $$; while :; do read never; done";
        let on_loss = format!("signal:{signal}");
        let mut running = Running::start(&mut store.reading(&["--lease", "6s", "--on-loss", &on_loss], script));
        let pid = running.line();
        // On a busy machine it may have lost the lock by itself meanwhile; it does the same then.
        store.client().force_release("k").unwrap();
        running.says(&format!("the command gets SIG{signal}"));
        wait_until("it stopped", || state(&pid) == "T");
        // Signals that are passed on now are delivered when the command goes on.
        running.signal(Signal::SIGUSR1);
        running.signal(Signal::SIGTERM);
        let ran = running.end();
        assert_eq!(ran.code, Some(76));
        assert!(!ran.stdout.contains("continued"), "{}", ran.stdout);
    }
}

fn blocks_signals(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (Signal::SIGTERM as u32 - 1) != 0
}

fn keeper_of(running: &Running) -> Pid {
    let keeper = running.children().into_iter().find(|pid| title(pid).contains("__keep")).expect("its keeper");
    Pid::from_raw(keeper.parse().unwrap())
}

#[test]
fn a_keeper_that_somebody_stopped_is_dismissed_all_the_same() {
    let store = Store::new();
    let mut running = Running::start(&mut store.reading(&[], "echo ready; read go"));
    running.expect("ready");
    let keeper = keeper_of(&running);
    kill(keeper, Signal::SIGSTOP).unwrap();
    wait_until("it stands still", || state(&keeper.to_string()) == "T");
    // Its pipe takes no more messages; the last one has a number that now belongs to another group.
    let mut stranger = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    let mut pipe = std::fs::File::options()
        .write(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(format!("/proc/{keeper}/fd/0"))
        .unwrap();
    while pipe.write(format!("{} -\n", stranger.id()).as_bytes()).is_ok() {}
    drop(pipe);
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
    wait_until("the keeper is gone", || !title(&keeper.to_string()).contains("__keep"));
    assert_eq!(stranger.try_wait().unwrap(), None, "it killed a stranger");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_keeper_that_somebody_ended_is_replaced() {
    let store = Store::new();
    let mut running = Running::start(&mut store.reading(&["--lease", "18s"], "echo ready; read go"));
    running.expect("ready");
    let first = keeper_of(&running);
    kill(first, Signal::SIGKILL).unwrap();
    wait_until("another one", || {
        running.children().iter().any(|pid| *pid != first.to_string() && title(pid).contains("__keep"))
    });
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
}

/// leasehold is stopped at the moment when it starts the command: nothing of the command may run next to the next
/// holder.
#[test]
fn what_was_started_by_one_that_stands_still_ends_with_the_lease() {
    let stopped = || {
        let store = Store::new();
        let options = ["--lease", "1s", "--kill-after", "0s"];
        let mut running = Running::start(&mut store.script(&options, "while :; do sleep 0.1; done"));
        let mut children = Vec::new();
        wait_spinning("both are started", || {
            children = running.children();
            children.len() == 2 || running.child.try_wait().unwrap().is_some()
        });
        // Its keeper, and the process that becomes the command. On a busy machine the lock may be lost before that.
        let [_, _] = children[..] else { return None };
        running.signal(Signal::SIGSTOP);
        let command = children.into_iter().find(|pid| !title(pid).contains("__keep"))?;
        Some((store, running, command))
    };
    let stopped: Vec<_> = (0..60).filter_map(|_| stopped()).take(6).collect();
    assert_eq!(stopped.len(), 6, "it does not start its command");
    for (store, running, command) in stopped {
        wait_until("the lease is over", || store.client().get("k").unwrap().unwrap().is_free());
        let at_work = || !["Z", ""].contains(&state(&command).as_str()) && !title(&command).contains("__exec");
        wait_until("the command does not run", || !at_work());
        running.signal(Signal::SIGCONT);
        assert_eq!(running.end().code, Some(76));
    }
}

fn wait_spinning(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "{what}");
    }
}

/// A shell had started a process before it became leasehold by `exec`.
#[test]
fn what_was_started_before_keeps_nothing_from_being_waited_for() {
    let store = Store::new();
    let leasehold = store.script(&[], "read go; (setsid sh -c 'echo $$' &); read go");
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 1000 & echo $!; exec \"$@\"", "sh"]).stdin(Stdio::piped());
    shell.arg(leasehold.get_program()).args(leasehold.get_args());
    shell.envs(leasehold.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(&mut shell);
    let before = running.line();
    kill(Pid::from_raw(before.parse().unwrap()), Signal::SIGKILL).unwrap();
    wait_until("it ends", || state(&before) != "S");
    running.tell("go");
    let pid = running.line();
    wait_until("both are waited for", || state(&pid).is_empty() && state(&before).is_empty());
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_keeper_that_ended_keeps_nothing_from_being_waited_for() {
    let store = Store::new();
    let script = "echo ready; read go; (setsid sh -c 'echo $$' &); read go";
    let mut running = Running::ready(&mut store.reading(&["--lease", "18s", "--on-loss", "ignore"], script));
    kill(keeper_of(&running), Signal::SIGKILL).unwrap();
    running.tell("go");
    let pid = running.line();
    wait_until("it is waited for", || state(&pid).is_empty());
    wait_until("another keeper", || running.children().iter().any(|pid| title(pid).contains("__keep")));
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
}

/// A process that left the group becomes a child of leasehold's when its parent ends.
#[test]
fn nothing_stays_that_ended_outside_of_the_group() {
    let store = Store::new();
    let script = "(setsid sh -c 'echo $$' &); read go";
    let mut running = Running::start(&mut store.reading(&[], script));
    let pid = running.line();
    wait_until("it is waited for", || state(&pid).is_empty());
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
}

/// As in a container, where process 1 gets only the signals for which it has a handler.
#[test]
#[cfg(target_os = "linux")]
fn process_1_that_only_looks_ends_by_a_signal() {
    let store = Store::new();
    let mut guard = Some(store.client().lock("k").unwrap());
    let (term, int, hup) = (Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP);
    let each = [("env", &[term][..], 143), ("env", &[int], 130), ("env", &[hup], 129), ("nohup", &[hup, term], 143)];
    for (starts, signals, code) in each {
        let looks = store.leasehold(&["status", "k", "--watch=1h"]);
        let mut command = Command::new(starts);
        command.args(["unshare", "--pid", "--fork", "--kill-child"]).arg(looks.get_program()).args(looks.get_args());
        let mut running = Running::start(command.env("LEASEHOLD_STORE", &store.url));
        let children = format!("/proc/{0}/task/{0}/children", running.child.id());
        let children = || std::fs::read_to_string(&children).unwrap_or_default();
        // Only root may make a namespace of processes, and not everywhere.
        wait_until("it runs, or not", || !children().is_empty() || running.child.try_wait().unwrap().is_some());
        let Ok(looks) = children().trim().parse() else {
            return crate::servers::skip("no namespace of processes can be made here");
        };
        assert!(running.line().starts_with("KEY"));
        for signal in signals {
            kill(Pid::from_raw(looks), *signal).unwrap();
            if signals.len() > 1 && guard.take().is_some() {
                // It continues to watch.
                running.line();
            }
        }
        assert_eq!(running.end().code, Some(code), "{signals:?} to {starts}");
    }
}

/// As where no more processes can be started.
#[test]
#[cfg(target_os = "linux")]
fn a_keeper_that_cannot_be_had_is_told_once() {
    let store = Store::new();
    let mut running = Running::ready(&mut store.reading(&["--lease", "18s"], "echo ready; read go"));
    let id = running.child.id().to_string();
    let files = |limit: &str| {
        let limit = format!("--nofile={limit}");
        assert!(Command::new("prlimit").args(["--pid", &id, &limit]).status().unwrap().success());
    };
    files("3:");
    kill(keeper_of(&running), Signal::SIGKILL).unwrap();
    running.says("no process can be started");
    files("1000:");
    wait_until("another one", || running.children().iter().any(|pid| title(pid).contains("__keep")));
    running.tell("go");
    let ran = running.end();
    assert_eq!((ran.code, ran.stderr.matches("no process can be started").count()), (Some(0), 1), "{}", ran.stderr);
}

/// Servers get these signals for other purposes, and the system discards them where there is no shell.
#[test]
#[cfg(target_os = "linux")]
fn what_asks_for_a_stop_does_nothing_to_a_service() {
    let store = Store::new();
    let leasehold = store.script(&[], "trap 'echo told' TSTP; echo ready; until read line; do :; done; echo $line");
    let mut command = Command::new("setsid");
    command.arg(leasehold.get_program()).args(leasehold.get_args()).env("LEASEHOLD_STORE", &store.url);
    let mut running = Running::ready(command.stdin(Stdio::piped()));
    let waits = |signal: Signal| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.child.id())).unwrap();
        let waiting = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(waiting.trim(), 16).unwrap() >> (signal as u32 - 1) & 1 == 1
    };
    for signal in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU] {
        kill(Pid::from_raw(running.child.id().try_into().unwrap()), signal).unwrap();
        wait_until("it is seen", || !waits(signal));
    }
    running.tell("go");
    running.expect("go");
    assert_eq!(running.end().code, Some(0));
}
