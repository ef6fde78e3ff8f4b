//! A leasehold that runs in the command of another one.

use crate::support::{Running, Store, leasehold, lines_after, run};

const OWN: &str = env!("CARGO_BIN_EXE_leasehold");

#[test]
fn the_inner_one_has_the_store_of_the_outer_one() {
    let store = Store::new();
    // Also from another folder, and with characters that must be escaped in the path of a URL.
    std::fs::create_dir(store.path("a %?b")).unwrap();
    let script = "cd / && \"$0\" run --try k -- true; echo $?; \"$0\" run --try other -- echo in";
    for url in ["sqlite:locks.db", "sqlite:x%20y.db?mode=0660", &store.url] {
        let mut outer = leasehold(&["run", "k", "--store", url, "--", "sh", "-c", script, OWN]);
        let ran = run(outer.current_dir(store.path("a %?b")));
        assert_eq!(ran.stdout, "75\nin\n", "{url}: {}", ran.stderr);
    }
    let ran = run(&mut store.script(&[], "echo $LEASEHOLD_STORE"));
    assert_eq!(ran.stdout.trim(), store.url);
    // The default file in the state folder.
    let script = "XDG_STATE_HOME=/no/such exec \"$0\" status k";
    let ran = run(store.script(&[], script).env_remove("LEASEHOLD_STORE").arg(OWN));
    assert!(ran.stdout.contains("live"), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn where_the_store_was_not_passed_on_the_inner_one_says_so() {
    for args in [&["run", "k", "--", "true"][..], &["status"], &["purge"]] {
        let ran = run(leasehold(args).env("LEASEHOLD_STORE_WITHHELD", "1"));
        assert_eq!(ran.code, Some(78), "{}", ran.stderr);
        assert!(ran.stderr.contains("may have a password") && ran.stderr.contains("--store"), "{}", ran.stderr);
    }
    let store = Store::new();
    let ran = run(store.leasehold(&["run", "k", "--", "true"]).env("LEASEHOLD_STORE_WITHHELD", "1"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

/// A relative path would mean another file in another folder.
#[test]
fn a_file_in_a_folder_whose_name_is_no_text_is_not_passed_on() {
    use std::os::unix::ffi::OsStrExt;
    let store = Store::new();
    let folder = store.path(".").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&folder).unwrap();
    let script = "echo \"$LEASEHOLD_STORE\"; cd / && \"$0\" run k -- true; echo $?";
    let mut outer = leasehold(&["run", "k", "--store", "sqlite:l.db", "--", "sh", "-c", script, OWN]);
    let ran = run(outer.current_dir(&folder));
    assert_eq!(ran.stdout, "\n78\n", "{}", ran.stderr);
    assert!(ran.stderr.contains("whose name is no UTF-8"), "{}", ran.stderr);
}

/// A control character can't be in a URL unescaped.
#[test]
fn a_file_in_a_folder_with_a_control_character_is_passed_on() {
    let store = Store::new();
    let folder = store.path("a\tb %\u{85}");
    std::fs::create_dir(&folder).unwrap();
    let script = "cd / && \"$0\" run --wait 0s k -- true; echo $?";
    let mut outer = leasehold(&["run", "k", "--store", "sqlite:l.db", "--", "sh", "-c", script, OWN]);
    let ran = run(outer.current_dir(&folder));
    assert_eq!(ran.stdout, "75\n", "it has another store: {}", ran.stderr);
}

#[test]
fn an_inner_one_that_waits_for_its_outer_one_says_so() {
    let store = Store::new();
    let times_told = |wait: u32| {
        let script = format!("\"$0\" run --wait {wait}s k -- true; echo $?; \"$0\" run --quiet --wait 1s k -- true");
        let ran = run(store.leasehold(&["run", "k", "--", "sh", "-c", &script]).arg(OWN));
        assert_eq!(ran.stdout, "75\n");
        let told = "\"k\" is held by the leasehold around this one, which waits for it";
        ran.stderr.matches(told).count()
    };
    // Where a busy machine used up the wait before the start, leasehold asked once and did not wait.
    assert_eq!([1, 4, 16].into_iter().map(times_told).find(|times| *times > 0), Some(1));
}

/// As when scripts call each other: the key may be held not only by the innermost leasehold around this one.
#[test]
fn one_that_waits_for_the_outermost_one_says_so() {
    let store = Store::new();
    // Where a busy machine used up the wait before the start, leasehold asked once and did not wait.
    let told = [1, 4, 16].into_iter().any(|wait| {
        let script = format!("\"$0\" run j -- \"$0\" run i -- \"$0\" run --wait {wait}s k -- true");
        let ran = run(store.leasehold(&["run", "k", "--", "sh", "-c", &script]).arg(OWN));
        assert_eq!(ran.code, Some(75), "{}", ran.stderr);
        ran.stderr.contains("\"k\" is held by the leasehold around this one, which waits for it")
    });
    assert!(told);
}

/// The inner leasehold can't end what it has started when it gets KILL itself.
#[test]
fn what_an_inner_one_runs_is_ended_with_the_outer_one() {
    let store = Store::new();
    let fifo = store.fifo();
    let deep =
        "exec >$FIFO; trap '' TERM; sh -c 'while :; do sleep 0.05; done' & echo ready; while :; do sleep 0.05; done";
    let options =
        ["run", "k", "--lease", "12s", "--kill-after", "1s", "--", OWN, "run", "inner", "--", "sh", "-c", deep];
    let running = Running::start(store.leasehold(&options).env("FIFO", &fifo));
    let output = lines_after("ready", &fifo);
    store.client().force_release("k").unwrap();
    output.end();
    assert_eq!(running.end().code, Some(76));
}
