//! `hold`: a lock that is held for another process.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use leasehold::LockStatus;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Running, Store, ended_before, full_pipe, lines_of, run};
use crate::wait::wait_until;

/// A process for which the lock is held.
fn process(script: &str) -> Running {
    let mut command = Command::new("sh");
    Running::ready(command.args(["-c", script]).stdin(Stdio::piped()))
}

/// Ends with 3 at TERM. Until then it prints each line that it reads, and `usr1` at USR1.
const EARS: &str =
    "trap 'echo term; exit 3' TERM; trap 'echo usr1' USR1; echo ready; while :; do read line && echo $line; done";
/// Does not end at TERM.
const DEAF: &str = "trap '' TERM; echo ready; read never";

fn hold(store: &Store, process: &Running, options: &[&str]) -> Running {
    let mut command = store.leasehold(&["hold", "k", "--pid", &process.child.id().to_string()]);
    Running::start(command.args(options))
}

fn is_free(store: &Store) -> bool {
    store.client().get("k").unwrap().is_none_or(|key| key.is_free())
}

#[test]
fn a_lock_is_held_until_a_process_ends() {
    let store = Store::new();
    let mut script = process(EARS);
    let mut holds = hold(&store, &script, &["--lease", "12s", "--owner", "ann", "--comment", "why"]);
    let lock: Value = serde_json::from_str(&holds.line()).unwrap();
    // The output ends, so that its reader can go on.
    holds.output_ends();
    let holder = store.client().get("k").unwrap().unwrap().holders()[0].clone();
    assert_eq!((&lock["owner"], holder.comment()), (&"ann".into(), Some("why")));
    assert_eq!(lock["fencing_token"], holder.fencing_token());
    let renewed = || store.client().get("k").unwrap().unwrap().holders()[0].renewed();
    wait_until("it is renewed", || renewed().is_some());
    script.signal(Signal::SIGKILL);
    script.status();
    let ran = holds.end();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(is_free(&store));
}

#[test]
fn a_lock_is_held_until_a_pipe_is_closed() {
    let store = Store::new();
    let mut holds = Running::start(store.leasehold(&["hold", "k", "--fd", "0"]).stdin(Stdio::piped()));
    holds.line();
    // The content that arrives on the descriptor means nothing.
    (0..100).for_each(|_| holds.tell(&"x".repeat(1000)));
    wait_until("it is held", || !is_free(&store));
    assert!(holds.child.try_wait().unwrap().is_none());
    let ran = holds.end();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(is_free(&store));
}

/// As in the help text.
#[test]
fn a_script_holds_a_lock_to_its_end() {
    let store = Store::new();
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = |take: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{take}\necho ready; read go; exit 5")]).current_dir(store.folder.path());
        command.env("LEASEHOLD_STORE", &store.url).stdin(Stdio::piped());
        Running::start(&mut command)
    };
    let by_process = format!("lock=$({binary} hold k --wait 0 --pid $$ &)\ntest \"$lock\" || exit 1");
    let by_pipe = format!(
        "rm -f pipe; mkfifo pipe; exec 9<> pipe\nlock=$({binary} hold k --wait 0 --fd 0 < pipe 9>&- &)\ntest \"$lock\" || exit 1\nexec 9> pipe"
    );
    for take in [by_process.as_str(), &by_pipe] {
        for ends_by in [None, Some(Signal::SIGKILL)] {
            let mut holds = script(take);
            holds.expect("ready");
            assert!(!is_free(&store));
            assert_eq!(script(&by_process).end().code, Some(1));
            match ends_by {
                Some(signal) => holds.signal(signal),
                None => holds.tell("go"),
            }
            assert_eq!(holds.status().code(), ends_by.is_none().then_some(5));
            wait_until("it is released", || is_free(&store));
        }
    }
}

/// The same script is told of a loss when it writes to the pipe.
#[test]
fn a_pipe_breaks_with_the_loss() {
    let store = Store::new();
    let script = "mkfifo pipe; exec 9<> pipe; lock=$($0 hold k --wait 0 --lease 9s --kill-after 0 --fd 0 < pipe 9>&- &); test \"$lock\" || exit 1
        exec 9> pipe; trap '' PIPE; printf . >&9 && echo held; while printf . >&9; do sleep 0.05; done; exit 3";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).current_dir(store.folder.path());
    let mut holds = Running::start(command.env("LEASEHOLD_STORE", &store.url));
    holds.expect("held");
    store.client().force_release("k").unwrap();
    assert_eq!(holds.status().code(), Some(3));
}

#[test]
fn a_loss_ends_the_process() {
    let store = Store::new();
    let mut script = process(EARS);
    let mut holds = hold(&store, &script, &["--lease", "18s"]);
    holds.line();
    store.client().force_release("k").unwrap();
    script.expect("term");
    assert_eq!(script.status().code(), Some(3));
    let ran = holds.end();
    assert_eq!(ran.code, Some(76));
    let id = script.child.id();
    for said in ["released by another after", &format!("; process {id} gets TERM now, and KILL in ")] {
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn what_ignores_term_is_killed_before_the_lease_ends() {
    let store = Store::new();
    let mut script = process(DEAF);
    // A tenth of the lease lies between the end of the process and the end of the lease, enough for a busy machine.
    let mut holds = hold(&store, &script, &["--lease", "12s", "--kill-after", "1s"]);
    holds.line();
    // Heartbeats can't be written any more.
    let (db, end) = store.stuck_lease();
    assert_eq!(script.status().code(), None);
    ended_before(end);
    drop(db);
    assert_eq!(holds.end().code, Some(76));
}

/// The keeper kills it.
#[test]
fn the_process_is_killed_where_leasehold_cannot_renew_for_it() {
    for stops_by in [Signal::SIGKILL, Signal::SIGSTOP] {
        let store = Store::new();
        let mut script = process(EARS);
        let mut holds = hold(&store, &script, &["--lease", "6s", "--kill-after", "0s"]);
        holds.line();
        holds.signal(stops_by);
        assert_eq!(script.status().code(), None, "it is killed");
        if stops_by == Signal::SIGSTOP {
            holds.signal(Signal::SIGCONT);
            assert_eq!(holds.end().code, Some(76));
        }
    }
}

#[test]
fn the_process_may_be_told_or_left_alone() {
    let store = Store::new();
    for (on_loss, told) in [("signal:usr1", Some("usr1")), ("ignore", None)] {
        let mut script = process(EARS);
        let mut holds = hold(&store, &script, &["--lease", "6s", "--on-loss", on_loss]);
        holds.line();
        store.client().force_release("k").unwrap();
        assert_eq!(holds.status().code(), Some(76));
        told.into_iter().for_each(|line| script.expect(line));
        script.tell("lives");
        script.expect("lives");
        // Where a loss kills nobody, the end of leasehold kills nobody. The default lease is not lost before, which
        // would also signal the process.
        let mut holds = hold(&store, &script, &["--on-loss", on_loss]);
        holds.line();
        holds.signal(Signal::SIGKILL);
        holds.output_ends();
        holds.status();
        script.tell("lives");
        script.expect("lives");
        store.client().force_release("k").unwrap();
    }
}

#[test]
fn whoever_ends_it_gives_the_lock_back_and_harms_nobody() {
    let store = Store::new();
    let mut script = process(EARS);
    let mut holds = hold(&store, &script, &[]);
    holds.line();
    holds.signal(Signal::SIGTERM);
    assert_eq!(holds.end().code, Some(143));
    assert!(is_free(&store));
    script.tell("lives");
    script.expect("lives");
}

#[test]
fn a_pipe_is_closed_by_a_loss() {
    let store = Store::new();
    let mut holds = Running::start(store.leasehold(&["hold", "k", "--fd", "0", "--lease", "6s"]).stdin(Stdio::piped()));
    holds.line();
    store.client().force_release("k").unwrap();
    assert_eq!(holds.status().code(), Some(76));
    assert!(holds.stdin.as_mut().unwrap().write_all(b"x").is_err());
}

#[test]
fn nobody_waits_for_whom_is_gone() {
    let store = Store::new();
    let rival = store.client().lock("k").unwrap();
    let mut script = process(EARS);
    let mut waits = hold(&store, &script, &["-vv"]);
    waits.says("refused: \"k\"");
    script.signal(Signal::SIGKILL);
    script.status();
    let ran = waits.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(75), ""));
    let said = format!("process {} has ended, and the lock was not obtained before", script.child.id());
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    let mut waits = Running::start(store.leasehold(&["hold", "k", "--fd", "0", "-vv"]).stdin(Stdio::piped()));
    waits.says("refused: \"k\"");
    assert_eq!(waits.end().code, Some(75));
    assert!(rival.is_held());
}

#[test]
fn what_cannot_be_watched_is_wrong_usage() {
    let store = Store::new();
    let (script, held) = (process(EARS), process(EARS));
    let mut gone = process(EARS);
    gone.signal(Signal::SIGKILL);
    gone.status();
    let (gone, id) = (gone.child.id().to_string(), script.child.id().to_string());
    drop(held);
    for (args, why) in [
        (&["hold", "k"][..], "--pid"),
        (&["hold", "k", "--pid", &id, "--fd", "0"], "cannot be used with"),
        (&["hold", "k", "--pid", "0"], "--pid"),
        (&["hold", "k", "--pid", "1"], "process 1 cannot be ended"),
        (&["hold", "k", "--pid", &gone], "there is no process"),
        (&["hold", "k", "--fd", "77"], "descriptor 77 is not open"),
        (&["hold", "k", "--fd", "0"], "descriptor 0 is no pipe"),
        (&["hold", "k", "--fd", "1"], "descriptor 1 can be written to"),
        (&["hold", "--pid", &id], "KEY"),
    ] {
        let ran = run(&mut store.leasehold(args));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(64), ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{args:?}: {}", ran.stderr);
    }
    // A descriptor would never be closed if leasehold had its writing end itself.
    let script = format!(
        "mkfifo pipe; {} hold k --fd 3 1<>pipe 3<pipe; echo $?; {0} hold k --fd 0 --on-loss signal:USR1 < /dev/null; echo $?",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(store.folder.path()).env("LEASEHOLD_STORE", &store.url);
    let ran = run(&mut command);
    assert_eq!(ran.stdout, "64\n64\n", "{}", ran.stderr);
    for why in ["has the writing end, too, as descriptor 1; close it with 1>&-", "--on-loss signal:.. needs a process"]
    {
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}

/// As behind a log collector that is stuck, or on a terminal that is stopped.
#[test]
fn a_lock_that_nobody_reads_is_renewed_and_given_back_all_the_same() {
    let store = Store::new();
    for signal in [Some(Signal::SIGTERM), None] {
        let (_reader, stdout, _) = full_pipe();
        let mut script = process(EARS);
        let mut command = store.leasehold(&["hold", "k", "--pid", &script.child.id().to_string()]);
        let mut holds = Running::start_to(stdout, &mut command);
        wait_until("it is printed", || holds.threads().iter().any(|name| name.starts_with("leasehold-print")));
        match signal {
            Some(signal) => holds.signal(signal),
            None => script.signal(Signal::SIGKILL),
        }
        if signal.is_none() {
            script.status();
        }
        assert_eq!(holds.status().code(), Some(signal.map_or(0, |signal| 128 + signal as i32)));
        assert!(is_free(&store));
    }
    // The line may be read at any time, and then the process works under the lock: so it must be renewed until then.
    let (mut reader, stdout, full) = full_pipe();
    let mut script = process(EARS);
    let mut command = store.leasehold(&["hold", "k", "--pid", &script.child.id().to_string()]);
    // As little as possible is kept back from the lease, so that late heartbeats still renew it.
    let mut holds = Running::start_to(stdout, command.args(["--lease", "10s", "--kill-after", "0s"]));
    let renewed_for = || {
        let holder = store.client().get("k").unwrap()?.holders().first()?.clone();
        holder.renewed()?.duration_since(holder.created()).ok()
    };
    wait_until("it is renewed", || renewed_for().is_some_and(|long| long > Duration::from_secs(11)));
    script.tell("lives");
    script.expect("lives");
    reader.read_exact(&mut vec![0; full]).unwrap();
    let mut lock = String::new();
    reader.read_to_string(&mut lock).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&lock).unwrap()["key"], "k");
    script.signal(Signal::SIGKILL);
    script.status();
    assert_eq!(holds.status().code(), Some(0));
}

/// Each of the two has inherited the writing end of the other's pipe.
#[test]
fn two_that_hold_for_one_script_end_with_it() {
    let store = Store::new();
    let script = format!(
        "mkfifo p8 p9; exec 8<>p8 9<>p9; a=$({0} hold a --fd 0 <p8 &); b=$({0} hold b --fd 7 7<p9 &)
        test \"$a\" && test \"$b\" && echo ready; read go",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(store.folder.path()).env("LEASEHOLD_STORE", &store.url);
    let mut script = Running::ready(command.stdin(Stdio::piped()));
    let free = || ["a", "b"].map(|key| store.client().get(key).unwrap().is_none_or(|key| key.is_free()));
    assert_eq!(free(), [false, false]);
    script.tell("go");
    // The processes that hold for it have its standard error, so this waits for them, too.
    assert_eq!(script.end().code, Some(0));
    assert_eq!(free(), [true, true]);
}

/// The loss is reported in time, also where the store does not answer.
#[test]
fn a_pipe_is_closed_by_a_loss_before_the_lease_ends() {
    let store = Store::new();
    let mut command = store.leasehold(&["hold", "k", "--fd", "0", "--lease", "18s"]);
    let mut holds = Running::start(command.stdin(Stdio::piped()));
    holds.line();
    let (_db, end) = store.stuck_lease();
    assert_eq!(holds.status().code(), Some(76));
    ended_before(end);
}

/// A process that the command of `--on-loss` leaves behind does not keep the pipe open either.
#[test]
fn a_pipe_is_closed_by_a_loss_whatever_its_command_leaves_behind() {
    let store = Store::new();
    let hold = "exec \"$0\" hold k --fd 9 --max-hold 5s --on-loss 'cmd:sleep 20 >/dev/null 2>&1 &' 9<&0 </dev/null";
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let mut command = Command::new("sh");
    command.args(["-c", hold, binary]).env("LEASEHOLD_STORE", &store.url).stdin(Stdio::piped());
    let mut holds = Running::start(&mut command);
    holds.line();
    assert_eq!(holds.status().code(), Some(76));
    let written = holds.stdin.as_mut().unwrap().write_all(b"goes on");
    assert_eq!(written.map_err(|error| error.kind()), Err(std::io::ErrorKind::BrokenPipe));
}

/// Output that nobody reads does not delay this either, with as little time left as possible.
#[test]
fn a_pipe_is_closed_by_a_loss_though_nobody_reads_standard_error() {
    // Repeated with a longer lease if a busy machine lost the lock before the store was stuck.
    for option in ["-v", "--json"] {
        let in_time = |lease| closes_its_pipe_in_time(lease, option);
        assert!(["3s", "6s", "12s", "24s"].into_iter().any(in_time), "none was held for long enough");
    }
}

fn closes_its_pipe_in_time(lease: &str, option: &str) -> bool {
    let store = Store::new();
    let (_reader, full, _) = full_pipe();
    let began = Instant::now();
    crate::lateness::measure();
    let mut command = store.leasehold(&["hold", "k", "--fd", "0", "--lease", lease, "--kill-after", "0s", option]);
    command.args(["--wait", "10s"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    drop(command);
    let client = store.client();
    wait_until("it was granted", || client.get("k").unwrap().is_some());
    let _db = store.stuck();
    let key = client.get("k").unwrap().unwrap();
    // leasehold's end closes the other end of this pipe. `wait` would close this end, so the pipe is taken out first.
    let _pipe = child.stdin.take();
    let code = child.wait().unwrap().code();
    if [Some(69), Some(75)].contains(&code) {
        // It learned of its grant too late to hold it, and could get no other one.
        return false;
    }
    assert_eq!(code, Some(76));
    let Some(end) = key.holders().first().and_then(LockStatus::leased_until) else { return false };
    let late = SystemTime::now().duration_since(end).unwrap_or_default();
    let slack = crate::lateness::slack(began);
    assert!(late < slack, "it went on for {late:?}, and {slack:?} may be the machine's");
    true
}

/// The release fails, and nobody reads the message about it.
#[test]
fn a_standard_error_that_nobody_reads_does_not_keep_hold_from_ending() {
    let store = Store::new();
    let (_reader, full, _) = full_pipe();
    let mut script = process(EARS);
    let mut command = store.leasehold(&["hold", "k", "--pid", &script.child.id().to_string(), "--lease", "6s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    drop(command);
    lines_of(child.stdout.take().unwrap()).line();
    let _db = store.stuck();
    script.signal(Signal::SIGKILL);
    script.status();
    let mut ended = None;
    wait_until("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert!([Some(0), Some(76)].contains(&ended.unwrap().code()), "{ended:?}");
}
