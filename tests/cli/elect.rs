//! `elect`: the command runs on the node that leads.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::support::{PATIENCE, Running, Store, children, full_pipe, pid, state, tell_signal, wait_until_reaped};
use crate::wait::wait_until;

fn node(store: &Store, name: &str, script: &str) -> Command {
    node_with(store, "6s", name, script)
}

fn node_with(store: &Store, lease: &str, name: &str, script: &str) -> Command {
    let mut command =
        store.leasehold(&["elect", "-v", "boss", "--lease", lease, "--kill-after", "0s", "--owner", name]);
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped());
    command
}

/// Prints that it leads, and reads until it is ended.
const LEADS: &str = "echo $LEASEHOLD_OWNER leads; while :; do read never; done";

#[test]
fn one_leads_and_another_takes_over_when_it_ends() {
    let store = Store::new();
    let mut first = Running::start(&mut node(&store, "ann", LEADS));
    first.expect("ann leads");
    let mut second = Running::start(&mut node(&store, "bob", LEADS));
    assert_eq!(store.client().get("boss").unwrap().unwrap().holders()[0].owner(), "ann");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end().code, Some(143));
    second.expect("bob leads");
    second.signal(Signal::SIGKILL);
    second.output_ends();
    // Waits until its lease runs out.
    let mut third = Running::start(&mut node(&store, "eve", LEADS));
    third.expect("eve leads");
    third.signal(Signal::SIGINT);
    assert_eq!(third.end().code, Some(130));
}

#[test]
fn who_is_deposed_stands_again() {
    let store = Store::new();
    let script = "echo $LEASEHOLD_TOKEN; while :; do read never; done";
    // A heartbeat notices it, even one that comes late.
    let mut running = Running::start(&mut node_with(&store, "12s", "ann", script));
    let first: u64 = running.line().parse().unwrap();
    store.client().force_release("boss").unwrap();
    let second: u64 = running.line().parse().unwrap();
    assert!(second > first);
    running.signal(Signal::SIGTERM);
    let ran = running.end();
    assert_eq!(ran.code, Some(143));
    assert!(ran.stderr.contains("was lost: released by another"), "{}", ran.stderr);
    assert!(store.client().get("boss").unwrap().unwrap().is_free());
}

/// A waiter that the store wakes could not ask before a former leader that asks again at once.
#[test]
fn after_max_hold_the_others_go_first() {
    let store = Store::new();
    let script = "echo $LEASEHOLD_OWNER leads; while :; do sleep 0.05; done";
    let term = |name| {
        let mut command =
            store.leasehold(&["elect", "boss", "--max-hold", "1s", "--lease", "60s", "--kill-after", "0s"]);
        command.args(["--owner", name, "--", "sh", "-c", script]);
        command
    };
    let mut first = Running::start(&mut term("ann"));
    first.expect("ann leads");
    let mut second = Running::start(&mut term("bob"));
    second.expect("bob leads");
    first.expect("ann leads");
}

#[test]
fn a_command_that_ends_resigns() {
    let store = Store::new();
    let running = Running::start(&mut node(&store, "ann", "exit 4"));
    assert_eq!(running.end().code, Some(4));
    assert!(store.client().get("boss").unwrap().unwrap().is_free());
}

#[test]
fn a_signal_ends_whoever_does_not_lead() {
    let store = Store::new();
    let _leader = store.client().lock("boss").unwrap();
    let mut running = Running::start(&mut node(&store, "ann", LEADS));
    running.says("refused: \"boss\"");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
}

/// As after `systemctl reload` on each node.
#[test]
fn a_hangup_ends_no_node_that_waits() {
    let store = Store::new();
    let leader = store.client().lock("boss").unwrap();
    let mut running = Running::start(&mut node(&store, "ann", LEADS));
    running.says("refused: \"boss\"");
    running.signal(Signal::SIGHUP);
    running.says("SIGHUP");
    drop(leader);
    running.expect("ann leads");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
}

#[test]
#[cfg(target_os = "linux")]
fn a_hangup_is_nothing_that_a_quiet_node_tells() {
    let store = Store::new();
    let leader = store.client().lock("boss").unwrap();
    let mut node =
        store.leasehold(&["elect", "--quiet", "boss", "--lease", "6s", "--kill-after", "0s", "--owner", "ann"]);
    let mut running = Running::start(node.args(["--", "sh", "-c", LEADS]).stdin(Stdio::piped()));
    // A node that gets the signal while it leads passes it on.
    tell_signal(&running.child, Signal::SIGHUP);
    drop(leader);
    running.expect("ann leads");
    running.signal(Signal::SIGTERM);
    let ran = running.end();
    // The node took the SIGHUP, not its command.
    assert_eq!(ran.code, Some(143), "{}", ran.stderr);
    assert!(!ran.stderr.contains("SIGHUP"), "{}", ran.stderr);
}

/// As when the leader is restarted while all nodes are told to reload.
#[test]
fn a_signal_between_the_grant_and_the_begin_of_the_command_is_one_of_the_wait() {
    for (signal, code) in [(Signal::SIGHUP, 7), (Signal::SIGUSR1, 7), (Signal::SIGTERM, 143)] {
        // On a busy machine the command may begin (after two seconds) before the signal comes.
        assert!((0..10).any(|_| is_one_of_the_wait(signal, code)), "{signal} always came to a command that had begun");
    }
}

/// False if the command had begun already, so that the outcome proves nothing.
fn is_one_of_the_wait(signal: Signal, code: i32) -> bool {
    let store = Store::new();
    let client = store.client();
    // Nobody reads what it reports of the grant, so the command begins two seconds later.
    let (reader, full, _) = full_pipe();
    let mut command = node(&store, "ann", "trap '' HUP USR1; echo leads; read never; exit 7");
    let mut child = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    wait_until("it is granted", || client.get("boss").unwrap().is_some_and(|boss| !boss.is_free()));
    tell_signal(&child, signal);
    // What it starts waits until it has looked at the signals of the wait.
    let is_before = children(&child).is_empty();
    drop(child.stdin.take());
    let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let ended = (child.wait().unwrap().code(), output.is_empty());
    assert!(!is_before || ended == (Some(code), code == 143), "{signal}: {ended:?}");
    drop((command, reader));
    is_before
}

/// The processes that it starts for the command wait until it has looked at the signals.
#[test]
fn a_signal_before_the_command_may_begin_is_none_of_the_command() {
    // Sent as soon as there is the first of them: on a busy machine the command may begin before it comes.
    let ended = |_| {
        let store = Store::new();
        let running = Running::start(&mut node(&store, "ann", "read never; exit 7"));
        let listed = format!("/proc/{0}/task/{0}/children", running.child.id());
        while std::fs::read_to_string(&listed).expect("its children").is_empty() {}
        tell_signal(&running.child, Signal::SIGUSR1);
        running.end().code
    };
    assert!((0..30).map(ended).any(|code| code == Some(7)), "it always came to the command");
}

/// Without its terminal nobody could end it any more.
#[test]
fn the_end_of_its_terminal_ends_a_node_that_waits() {
    let store = Store::new();
    let _leader = store.client().lock("boss").unwrap();
    // Close-on-exec: no process that is started meanwhile inherits this end, so a drop closes it at once.
    let keys = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let mut screen = File::options();
    screen.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
    let screen = screen.open(ptsname_r(&keys).unwrap()).unwrap();
    let node = node(&store, "ann", LEADS);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(node.get_program()).args(node.get_args()).env("LEASEHOLD_STORE", &store.url);
    let mut running = Running::start(command.stdin(screen));
    running.says("refused: \"boss\"");
    drop(keys);
    assert_eq!(running.end().code, Some(129));
}

/// A node of `ann`, which resigns once the file `sick` exists.
fn healthy(store: &Store, sick: &str) -> Running {
    let (sick, script) = (store.path(sick), LEADS);
    let check = format!("test ! -e {}", sick.display());
    let mut command = store.leasehold(&["elect", "boss", "--owner", "ann", "--lease", "10m", "--health-cmd", &check]);
    command.args(["--health-interval", "50ms", "--health-timeout", "60s", "--health-retries", "1"]);
    command.args(["--", "sh", "-c", script]);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    running.expect("ann leads");
    running
}

/// Nobody renews the lock any more, and its lease is long.
#[test]
fn a_release_is_tried_for_as_long_as_the_lease() {
    let store = Store::new();
    let mut first = healthy(&store, "sick");
    let mut second = Running::start(&mut node(&store, "bob", LEADS));
    second.says("refused: \"boss\"");
    let stuck = store.stuck();
    File::create(store.path("sick")).unwrap();
    first.says("could not be released");
    drop(stuck);
    second.expect("bob leads");
}

#[test]
fn who_was_not_well_lets_others_go_first_also_after_a_loss() {
    let store = Store::new();
    let mut running = healthy(&store, "sick");
    // Its next heartbeat is minutes away.
    store.client().force_release("boss").unwrap();
    let begun = Instant::now();
    File::create(store.path("sick")).unwrap();
    running.expect("ann leads");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// What a companion process leaves behind becomes our child. It is in our process group, like a process of a library.
#[test]
#[cfg(target_os = "linux")]
fn what_a_companion_leaves_behind_is_no_zombie_for_good() {
    let store = Store::new();
    let script = "(while :; do (sleep 0.3 &); sleep 0.5; done) & exec \"$0\" run k -- sh -c 'echo ready; read end'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).env("LEASEHOLD_STORE", &store.url);
    let running = Running::ready(command.process_group(0).stdin(Stdio::piped()));
    let zombies = || running.children().into_iter().filter(|pid| state(pid) == "Z").collect::<Vec<_>>();
    let mut first = Vec::new();
    wait_until("some have ended", || {
        first = zombies();
        first.len() > 3
    });
    wait_until("they are reaped", || zombies().iter().all(|pid| !first.contains(pid)));
    killpg(pid(&running.child), Signal::SIGKILL).unwrap();
    running.end();
}

/// The system reports its end only once, when it is not yet known that nobody else waits for it.
#[test]
#[cfg(target_os = "linux")]
fn what_a_companion_leaves_behind_while_a_node_waits_is_no_zombie_for_good() {
    let store = Store::new();
    let fifo = store.fifo();
    let script = "(read go <$FIFO; (sh -c 'echo $$; exec sleep 0.3' &)) & exec \"$0\" elect -v boss --max-hold 1s \
                  --lease 60s --kill-after 0s -- sh -c 'echo leads; while :; do read never; done'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).env("LEASEHOLD_STORE", &store.url).env("FIFO", &fifo);
    let mut running = Running::start(command.process_group(0).stdin(Stdio::piped()));
    running.expect("leads");
    let _other = store.client().request("boss").wait(PATIENCE).lock().unwrap();
    running.says("is held by");
    std::fs::write(&fifo, "go\n").unwrap();
    // The node may have led more than once before the other client got the lock.
    let left = std::iter::repeat_with(|| running.line()).find(|line| line != "leads").unwrap();
    wait_until("it has ended", || state(&left) == "Z");
    wait_until_reaped(&left);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
}

/// What a term left behind outside its process group ends while another node leads, and must be reaped.
#[test]
#[cfg(target_os = "linux")]
fn who_waits_for_a_term_leaves_no_zombie() {
    let store = Store::new();
    let script = "(setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' &); while :; do read never; done";
    let mut term =
        store.leasehold(&["elect", "-v", "boss", "--max-hold", "1s", "--lease", "60s", "--kill-after", "0s"]);
    let mut running = Running::start(term.args(["--", "sh", "-c", script]).stdin(Stdio::piped()));
    let left = running.line();
    let _other = store.client().request("boss").wait(PATIENCE).lock().unwrap();
    running.says("is held by");
    kill(Pid::from_raw(left.parse().unwrap()), Signal::SIGKILL).unwrap();
    wait_until_reaped(&left);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
}
