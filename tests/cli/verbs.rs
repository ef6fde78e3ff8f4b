//! What each verb does for one lock or lease.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Running, Store, run, run_until_named};
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
    // The old forms still work.
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
    client.request("k").lease(Duration::from_secs(1)).acquire().unwrap();
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
    // The key is not taken for a duration.
    let mut other = Running::start(&mut store.leasehold(&["status", "--watch", "k"]));
    (0..2).for_each(|_| other.expect("\"k\" is free"));
    assert_eq!(run(&mut store.leasehold(&["status", "--watch=0s"])).code, Some(64));
    // A duration is not taken for a key, which would be watched for ever although nobody has it.
    for (args, right) in [(["--watch", "5s"], "--watch=5s to"), (["5", "--watch"], "--watch=2s 5 to")] {
        let ran = run(store.leasehold(&["status"]).args(args));
        assert!(ran.code == Some(64) && ran.stderr.contains(right), "{args:?}: {}", ran.stderr);
    }
    let mut key = Running::start(&mut store.leasehold(&["status", "--watch=1h", "5s"]));
    key.expect("\"5s\" is free");
}

/// As after the end of the program that pinned it.
#[test]
fn a_pin_can_be_taken_back_by_an_operator() {
    let store = Store::new();
    let leases = store.client().leases("default");
    leases.claim("app", "app/0", Duration::from_millis(100)).unwrap();
    leases.pin("app", "gone").unwrap();
    leases.wait_until_expired("app", &leasehold::CancelToken::new()).unwrap();
    let said = |args: &[&str], code: i32| {
        let ran = run(store.leasehold(&["lease"]).args(args));
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        ran.stdout
    };
    assert_eq!(said(&["pin", "app", "me"], 0), "pinned: \"app\" by \"me\"; pinned by \"gone\", too\n");
    said(&["expire", "app"], 75);
    assert_eq!(said(&["unpin", "app", "me"], 0), "unpinned: \"app\" by \"me\"; still pinned by \"gone\"\n");
    assert_eq!(said(&["unpin", "app", "mistyped"], 0), "\"app\" is not pinned by \"mistyped\", but by \"gone\"\n");
    assert_eq!(
        said(&["unpin", "app", "me", "--json"], 0),
        "{\"name\":\"app\",\"namespace\":\"default\",\"pinned_by\":[\"gone\"]}\n"
    );
    let elsewhere = said(&["unpin", "app", "gone", "--namespace", "other"], 0);
    assert_eq!(elsewhere, "\"app\" is not pinned in the namespace \"other\"\n");
    said(&["expire", "app"], 75);
    assert_eq!(said(&["unpin", "app", "gone"], 0), "unpinned: \"app\" by \"gone\"\n");
    assert_eq!(said(&["unpin", "app", "gone"], 0), "\"app\" is not pinned in the namespace \"default\"\n");
    assert_eq!(
        said(&["pin", "app", "me", "--json"], 0),
        "{\"name\":\"app\",\"namespace\":\"default\",\"pinned_by\":[\"me\"]}\n"
    );
    said(&["unpin", "app", "me"], 0);
    assert_eq!(said(&["expire", "app"], 0), "expired: \"app\"\n");
}

#[test]
fn whoever_campaigns_may_say_for_how_long_and_what_a_loss_does() {
    let store = Store::new();
    let elect = |options: &[&str], script: &str| {
        let mut command = store.leasehold(&["elect", "boss", "--lease", "12s", "--kill-after", "0s"]);
        command.args(options).args(["--", "sh", "-c", script]).stdin(std::process::Stdio::piped());
        command
    };
    let mut leads = Running::start(&mut elect(
        &["--id", "ann", "--on-loss", "signal:USR1"],
        "trap 'echo usr1; exit 3' USR1; echo $LEASEHOLD_OWNER; while :; do read never; done",
    ));
    leads.expect("ann");
    let tries = |options: &[&str]| run(&mut elect(options, "echo never"));
    for (ran, code) in [
        (tries(&["--try"]), 75),
        (run_until_named(|wait| elect(&["-w", wait, "-E", "9"], "echo never")), 9),
        (tries(&["-n", "-E", "0", "--quiet"]), 0),
    ] {
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
    // Another command needs one of these keys, and keeps none.
    let ran = run(&mut run_with(&["a", "free"], &["--try"], "echo never"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(75), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("lock \"a\""), "{}", ran.stderr);
    assert!(client.get("free").unwrap().is_none_or(|key| key.is_free()));
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
    assert!(keys.iter().all(|key| client.get(key).unwrap().unwrap().is_free()), "all were released");
    // The loss of one lock is a loss of all.
    let trap = "trap 'echo term; exit 3' TERM; echo ready; while :; do read never; done";
    let mut running = Running::ready(&mut run_with(&["a", "b"], &["--lease", "12s", "--kill-after", "0s"], trap));
    client.force_release("b").unwrap();
    running.output_ends();
    let ran = running.end();
    assert_eq!(ran.code, Some(76));
    assert!(ran.stderr.contains("the lock \"b\" was lost: released by another"), "{}", ran.stderr);
    assert!(client.get("a").unwrap().unwrap().is_free());
    // Commands that name the keys in another order never wait for each other.
    let both: Vec<_> = [["x", "y"], ["y", "x"]]
        .map(|keys| (0..4).map(move |_| keys))
        .into_iter()
        .flatten()
        .map(|keys| Running::start(&mut run_with(&keys, &[], "true")))
        .collect();
    both.into_iter().for_each(|running| assert_eq!(running.end().code, Some(0)));
    // All locks last for their least time, and for their period.
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
