//! What one verb does for one thing, and what is said without being asked for.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Running, Store, lines_of, run};
use crate::wait::wait_until;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_group_is_renewed_and_released_by_the_verbs_for_one_lock() {
    let store = Store::new();
    let client = store.client();
    let hold = || {
        for key in ["a", "b"] {
            client.request(key).lock_id("mine").lease(MINUTE).acquire().unwrap();
        }
    };
    let said = |args: &[&str], code: i32| {
        let ran = run(&mut store.leasehold(args));
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        ran.stdout
    };
    // The old forms stay.
    for (renew, release) in [
        (["renew", "--group", "mine"], vec!["release", "--group", "mine"]),
        (["renew", "mine", "-q"], vec!["unlock", "mine"]),
    ] {
        hold();
        assert_eq!(said(&renew, 0).matches("renewed \"").count(), 2);
        assert_eq!(said(&release, 0).matches("released \"").count(), 2);
        assert_eq!(said(&release, 0), "no lock with the lock id \"mine\" is held\n");
        said(&renew, 76);
    }
    for args in
        [&["release", "a", "--group", "mine"][..], &["release"], &["renew"], &["renew", "mine", "--group", "mine"]]
    {
        said(args, 64);
    }
    said(&["release", "--group", "mine", "--force"], 64);
    said(&["release", "--group", ""], 64);
}

#[test]
fn status_tells_by_its_exit_code_whether_a_lock_is_held() {
    let store = Store::new();
    let client = store.client();
    let code = |args: &[&str]| run(store.leasehold(&["status", "--exit-code"]).args(args)).code;
    assert_eq!((code(&["k"]), code(&[]), code(&["k", "--json"])), (Some(1), Some(1), Some(1)));
    let guard = client.lock("k").unwrap();
    assert_eq!((code(&["k"]), code(&[]), code(&["k", "--json"])), (Some(0), Some(0), Some(0)));
    assert_eq!((code(&["other"]), code(&["--owner", "nobody"])), (Some(1), Some(1)));
    guard.release().unwrap();
    client.request("k").lease(Duration::from_millis(100)).acquire().unwrap();
    wait_until("it has expired", || code(&["k"]) == Some(1));
    assert_eq!(run(&mut store.leasehold(&["status", "k"])).code, Some(0), "only who asks for it gets it");
    assert_eq!(code(&["--watch"]), Some(64));
}

#[test]
fn status_is_shown_again_after_the_time_that_is_asked_for() {
    let store = Store::new();
    drop(store.client());
    let began = Instant::now();
    let mut watch = Running::start(&mut store.leasehold(&["status", "--watch=300ms"]));
    (0..4).for_each(|_| watch.expect("no locks"));
    assert!(began.elapsed() >= Duration::from_millis(900));
    // The key is not taken for a time.
    let mut other = Running::start(&mut store.leasehold(&["status", "--watch", "k"]));
    (0..2).for_each(|_| other.expect("\"k\" is free"));
    assert_eq!(run(&mut store.leasehold(&["status", "--watch=0s"])).code, Some(64));
}

#[test]
fn whoever_campaigns_may_say_for_how_long_and_what_a_loss_does() {
    let store = Store::new();
    let elect = |options: &[&str], script: &str| {
        let mut command = store.leasehold(&["elect", "boss", "--lease", "3s", "--kill-after", "0s"]);
        command.args(options).args(["--", "sh", "-c", script]).stdin(std::process::Stdio::piped());
        command
    };
    let mut leads = Running::start(&mut elect(
        &["--id", "ann", "--on-loss", "signal:USR1"],
        "trap 'echo usr1; exit 3' USR1; echo $LEASEHOLD_OWNER; while :; do read never; done",
    ));
    leads.expect("ann");
    for (options, code) in [(&["--try"][..], 75), (&["-w", "300ms", "-E", "9"], 9), (&["-n", "-E", "0", "--quiet"], 0)]
    {
        let ran = run(&mut elect(options, "echo never"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("held by \"ann\""), code != 0, "{}", ran.stderr);
    }
    store.client().force_release("boss").unwrap();
    leads.expect("usr1");
    leads.expect("ann");
    leads.signal(Signal::SIGTERM);
    assert_eq!(leads.end().code, Some(143));
    assert_eq!(run(&mut elect(&["--id", "ann", "--owner", "bob"], "true")).code, Some(64));
}

#[test]
fn a_command_may_need_all_of_several_locks() {
    let store = Store::new();
    let client = store.client();
    let run_with = |keys: &[&str], options: &[&str], script: &str| {
        let mut command = store.leasehold(&["run"]);
        command.args(keys).args(options).args(["--", "sh", "-c", script]).stdin(std::process::Stdio::piped());
        command
    };
    let script = "echo \"$LEASEHOLD_KEY\"; echo \"$LEASEHOLD_TOKEN\"; echo $LEASEHOLD_LOCK_ID; read go";
    let mut running = Running::start(&mut run_with(&["c", "a", "--key", "-b"], &["--comment", "why"], script));
    let keys = ["-b", "a", "c"];
    keys.iter().for_each(|key| running.expect(key));
    let statuses = keys.map(|key| client.get(key).unwrap().unwrap().holders()[0].clone());
    statuses.iter().for_each(|status| running.expect(&status.fencing_token().to_string()));
    running.expect(statuses[0].lock_id());
    assert!(statuses.iter().all(|status| status.comment() == Some("why") && status.lock_id() == statuses[0].lock_id()));
    // Another one needs one of them: it keeps none.
    let ran = run(&mut run_with(&["a", "free"], &["--try"], "echo never"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(75), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("lock \"a\""), "{}", ran.stderr);
    assert!(client.get("free").unwrap().is_none_or(|key| key.is_free()));
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
    assert!(keys.iter().all(|key| client.get(key).unwrap().unwrap().is_free()), "all were released");
    // The loss of one is a loss of all.
    let trap = "trap 'echo term; exit 3' TERM; echo ready; while :; do read never; done";
    let mut running = Running::ready(&mut run_with(&["a", "b"], &["--lease", "3s", "--kill-after", "0s"], trap));
    client.force_release("b").unwrap();
    running.output_ends();
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("the lock \"b\" was lost: released by another"), "{}", ran.stderr);
    assert!(client.get("a").unwrap().unwrap().is_free());
    // Two that name them in another order never wait for each other.
    let both: Vec<_> = [["x", "y"], ["y", "x"]]
        .map(|keys| (0..4).map(move |_| keys))
        .into_iter()
        .flatten()
        .map(|keys| Running::start(&mut run_with(&keys, &["--wait", "50s"], "true")))
        .collect();
    both.into_iter().for_each(|running| assert_eq!(running.end().code, Some(0)));
    // All stand for their least time, and for their period.
    for (keys, option, code) in [(["p", "q"], "--hold-at-least", 75), (["r", "s"], "--every", 79)] {
        assert_eq!(run(&mut run_with(&keys, &[option, "1h"], "true")).code, Some(0));
        for key in keys {
            let option = if code == 79 { option } else { "--comment" };
            assert_eq!(run(&mut run_with(&[key], &["--wait", "0", option, "1h"], "echo never")).code, Some(code));
        }
    }
    assert_eq!(run(&mut run_with(&["a", "a"], &[], "echo never")).code, Some(64));
    assert_eq!(run(&mut run_with(&[], &[], "echo never")).code, Some(64));
}

#[test]
#[cfg(feature = "sqlite")]
fn the_librarys_warnings_are_shown_unless_quiet_is_wanted() {
    for (options, warns) in [(&[][..], true), (&["--quiet"], false)] {
        let store = Store::new();
        let mut running =
            Running::start(&mut store.reading(&[&["--lease", "6s"], options].concat(), "echo ready; read go"));
        running.expect("ready");
        let db = store.stuck();
        if warns {
            running.says("warn: \"k\": a heartbeat of lock \"k\" failed and is repeated");
        }
        running.output_ends();
        drop(db);
        let ran = running.end();
        assert_eq!(ran.code, Some(76));
        // Its loss is said once, by the command.
        assert_eq!(ran.stderr.matches("was lost: ").count(), 1, "{}", ran.stderr);
        assert!(!ran.stderr.contains("warn: \"k\": lock \"k\" lost"), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("warn: "), warns, "{}", ran.stderr);
    }
}

/// The events of `-v` are told by heartbeats, too.
#[test]
fn an_event_that_nobody_reads_costs_no_lock() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "head -c 1000000 /dev/zero >&2 & echo ready; read go; kill $!; echo $go";
    let mut command = store.reading(&["-v", "--lease", "6s"], script);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(writer).spawn().unwrap();
    drop(command);
    let output = lines_of(child.stdout.take().unwrap());
    output.expect("ready");
    let client = store.client();
    let held = || client.get("k").unwrap().filter(|key| !key.is_free());
    let ends = || held().expect("it is held").holders()[0].leased_until().expect("it ends");
    for _ in 0..3 {
        // A time is read from two clocks, and so is not the same each time.
        let renewed = ends() + Duration::from_secs(1);
        wait_until("it is renewed", || ends() > renewed);
    }
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"on\n").unwrap();
    output.expect("on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(reader);
}

/// A heartbeat that failed warns, and nobody takes that.
#[test]
#[cfg(feature = "sqlite")]
fn a_warning_that_nobody_reads_costs_no_lock() {
    let store = Store::new();
    let (reader, full, _) = crate::support::full_pipe();
    let mut command = store.reading(&["--lease", "18s"], "echo ready; read go; echo $go");
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(full).spawn().unwrap();
    let output = lines_of(child.stdout.take().unwrap());
    output.expect("ready");
    let client = store.client();
    let renewed = || client.get("k").unwrap().unwrap().holders()[0].renewed();
    let db = store.stuck();
    // The first heartbeat is due after 6.6 s at the latest, and gives up after 2.7 s; the loss comes after 14 s.
    let began = Instant::now();
    wait_until("a heartbeat has failed", || began.elapsed() > Duration::from_millis(9600));
    drop(db);
    wait_until("it is renewed", || renewed().is_some());
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"went on\n").unwrap();
    output.expect("went on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop((command, reader));
}
