//! The messages about wrong arguments and about errors.

use std::fs;
#[cfg(target_os = "linux")]
use std::io::Read;
use std::time::Duration;

use crate::support::{Store, run};

/// Both suggestions work.
#[test]
fn what_is_advised_for_a_kill_after_that_is_too_long_is_taken() {
    let store = Store::new();
    let run = |lease: &str, time: &str| {
        run(&mut store.leasehold(&["run", "k", "--lease", lease, "--kill-after", time, "--", "true"]))
    };
    for (lease, time) in [("20s", "6s"), ("30m", "20m"), ("30s", "9.5s")] {
        let told = run(lease, time).stderr;
        let (_, told) = told.split_once("so make it ").expect(&told);
        let (shorter, told) = told.split_once(" or shorter, or the lease ").expect(told);
        let (longer, _) = told.split_once(" or longer").expect(told);
        for (lease, time) in [(lease, shorter), (longer, time)] {
            let ran = run(lease, time);
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{lease} {time}");
        }
    }
}

/// One of each kind of error, and of each argument that the library refuses.
#[test]
fn every_message_names_what_can_be_typed() {
    let store = Store::new();
    let client = store.client();
    let _held = client.request("held").lock_id("mine").lock().unwrap();
    client.leases("default").claim("claimed", "ann", Duration::from_secs(60)).unwrap();
    let missing = format!("sqlite:{}", store.path("missing").display());
    let empty = format!("sqlite:{}", store.path("empty").display());
    fs::write(store.path("empty"), "").unwrap();
    let cases: [(&[&str], i32, &str); 31] = [
        (&["run", "k", "--lease", "1ms", "--", "true"], 64, "--lease is 1ms"),
        (&["run", "k", "--lease", "10w", "--", "true"], 64, "of at most 30 days"),
        (&["run", "k", "--owner", "", "--", "true"], 64, "--owner is \"\""),
        (&["run", "k", "--comment", "a\nb", "--", "true"], 64, "--comment is \"a\\nb\""),
        (&["status", "--prefix", "a\nb"], 64, "--prefix is \"a\\nb\""),
        (&["status", "--lock-id", ""], 64, "the lock id is \"\""),
        (&["renew", ""], 64, "the lock id is \"\""),
        (&["renew", "mine", "--lease", "1ms"], 64, "--lease is 1ms"),
        (&["release", "", "--force", "--yes"], 64, "key is \"\""),
        (&["lease", "claim", "", "b"], 64, "name is \"\""),
        (&["lease", "claim", "a", "b", "--for", "1ms"], 64, "--for is 1ms"),
        (&["lease", "unpin", "a", ""], 64, "the pin is \"\""),
        (&["renew", "unknown"], 76, "no lock with the lock id"),
        (&["release", "held", "--lock-id", "other"], 75, "others hold it"),
        (&["run", "held", "--try", "--", "true"], 75, ": others hold it\n"),
        (&["run", "held", "--wait", "3s", "--", "true"], 75, ": not obtained in time\n"),
        (&["release", "held"], 64, "give --from FILE"),
        (&["release"], 64, "a KEY with --lock-id or --force"),
        (&["run", "k", "--", "echo a; echo b"], 127, "need sh -c"),
        (&["run", "k", "--", "cd", "/"], 127, "need sh -c"),
        (&["run", "k", "--", "VAR=1", "env"], 127, "need sh -c"),
        (&["--store", "sqlite:a%00b", "run", "k", "--", "true"], 78, "a path has no NUL"),
        (&["run", "held", "held", "--", "true"], 64, "this key is given twice"),
        (&["elect", "--id", "", "e", "--", "true"], 64, "a value is required for '--id"),
        (&["--store", "sqlite:/tmp/~/x.db", "run", "k", "--", "true"], 78, "nobody replaces the ~ here"),
        (&["lease", "claim", "claimed", "bob"], 75, "held by \"ann\""),
        (&["lease", "revoke", "nothing", "bob"], 75, "nobody holds it"),
        (&["--store", "sqlite:x?made=1", "status"], 78, "made"),
        (&["--store", &missing, "status"], 78, "make it by `leasehold init`"),
        (&["--store", &empty, "status"], 78, "`leasehold init` makes it"),
        (&["run", "k", "--max-hold", "100ms", "--", "sleep", "1000"], 76, "as --max-hold allows"),
    ];
    for (args, code, message) in cases {
        let ran = run(&mut store.leasehold(args));
        assert!(ran.code == Some(code) && ran.stderr.contains(message), "{args:?}: {ran:?}");
        let folder = store.folder.path().display().to_string();
        // An option of a URL is written with an underscore.
        let said = ran.stderr.replace(&folder, "").replace("unsafe_fs", "");
        assert!(!said.contains("----"), "{args:?}: {said}");
        for rust in ["()", "_", "::", "lease_", "Duration"] {
            assert!(!said.contains(rust), "{args:?} names {rust:?}: {said}");
        }
    }
}

/// However long ago the waiter last looked at the holder.
#[test]
fn a_wait_that_is_over_tells_what_is_left_of_the_lease_by_then() {
    let store = Store::new();
    let (lease, wait) = (Duration::from_secs(40), Duration::from_secs(3));
    let _lock = store.client().request("k").lease(lease).acquire().unwrap();
    let told = |json: &[&str]| {
        let ran = run(store.leasehold(&["run", "--wait", "3s", "k"]).args(json).args(["--", "true"]));
        assert_eq!(ran.code, Some(75), "{}", ran.stderr);
        ran.stderr
    };
    let (text, json) = (told(&[]), told(&["--json"]));
    let left = text.split_once("leased for ").and_then(|(_, left)| left.split_once(" s more")).expect(&text).0;
    assert!(left.parse::<u64>().unwrap() <= (lease - wait).as_secs(), "{text}");
    let json: serde_json::Value = serde_json::from_str(&json).expect(&json);
    let left = json["error"]["holders"][0]["remaining_ms"].as_u64().unwrap();
    assert!(u128::from(left) <= (lease - 2 * wait).as_millis(), "{json}");
}

/// The command writes to standard error, too, and must not get in between.
#[test]
#[cfg(target_os = "linux")]
fn a_line_is_written_at_once() {
    let store = Store::new();
    for args in [&["status"][..], &["--json", "status"]] {
        // A read from such a pipe returns exactly what one write gave.
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_DIRECT).unwrap();
        let mut command = store.leasehold(args);
        let mut child = command.stderr(write).spawn().unwrap();
        let mut said = [0; 4000];
        let length = fs::File::from(read).read(&mut said).unwrap();
        let _ = (child.kill(), child.wait());
        let said = String::from_utf8_lossy(&said[..length]).into_owned();
        assert!(said.contains("make it by `leasehold init`") && said.ends_with('\n'), "{said:?}");
    }
}

/// The words about the unreachable server are the same, whatever the reason.
#[test]
#[cfg(feature = "postgres")]
fn a_wait_for_the_store_says_why() {
    use crate::support::{Running, leasehold};
    let nobody = crate::nobody::Closed::new();
    let url = format!("postgres://leasehold@{}/d?table=t", nobody.address());
    let mut waits = Running::start(leasehold(&["run", "k", "--", "true"]).env("LEASEHOLD_STORE", url));
    waits.says("waiting for the store: ");
    waits.signal(nix::sys::signal::Signal::SIGTERM);
    let ran = waits.end();
    assert!(ran.code == Some(143) && ran.stderr.contains("refused"), "{ran:?}");
    assert_eq!(ran.stderr.matches("waiting for the store").count(), 1, "{}", ran.stderr);
}

#[test]
fn a_key_may_begin_with_a_hyphen() {
    let store = Store::new();
    for args in [&["run", "--key", "-k", "--", "true"][..], &["run", "--key=--help", "--", "true"]] {
        let ran = run(&mut store.leasehold(args));
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
    assert_eq!(store.client().get("-k").unwrap().unwrap().key(), "-k");
    let ran = run(&mut store.leasehold(&["elect", "--name=-n", "--", "true"]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for (args, tip) in [(["run", "-k", "--", "true"], "'--key=-k'"), (["elect", "-k", "--", "true"], "'--name=-k'")] {
        let ran = run(&mut store.leasehold(&args));
        assert!(ran.code == Some(64) && ran.stderr.contains(tip), "{}", ran.stderr);
        assert!(!ran.stderr.contains("-- -k"), "{}", ran.stderr);
    }
    let ran = run(&mut store.leasehold(&["status", "-k"]));
    assert!(ran.stderr.contains("'-- -k'"), "there it is right: {}", ran.stderr);
}

#[test]
fn what_is_wrong_with_the_arguments_or_the_command_is_json_too() {
    let store = Store::new();
    let no_right = store.path("no-right").display().to_string();
    std::fs::write(&no_right, "").unwrap();
    for (args, code) in [
        (&["--json", "run", "k", "--lease", "soon", "--", "true"][..], 64),
        (&["run", "--json"], 64),
        (&["run", "k", "--json", "--", "no-such-command"], 127),
        (&["run", "k", "--json", "--", &no_right], 126),
    ] {
        let ran = run(&mut store.leasehold(args));
        let told: serde_json::Value = serde_json::from_str(&ran.stderr).expect(&ran.stderr);
        assert_eq!((ran.code, &told["error"]["exit_code"]), (Some(code), &code.into()), "{args:?}");
        assert!(told["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    // Here `--json` belongs to the command.
    let ran = run(&mut store.leasehold(&["run", "k", "--lease", "soon", "--", "true", "--json"]));
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
}

/// A client that may write to the store must not control the terminal.
#[test]
#[cfg(feature = "sqlite")]
fn what_a_terminal_would_obey_is_not_in_what_the_store_says() {
    let store = Store::new();
    drop(store.client());
    let raises =
        "CREATE TRIGGER t BEFORE INSERT ON locks BEGIN SELECT RAISE(ABORT, 'no\u{1b}[2J\u{7}\u{9b}\u{202e}'); END";
    store.db().execute_batch(raises).unwrap();
    for args in [&["run", "k", "--", "true"][..], &["acquire", "k"], &["doctor"], &["doctor", "--json"]] {
        let ran = run(&mut store.leasehold(args));
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains("no\\u{1b}[2J") || said.contains("no\\\\u{1b}[2J"), "{args:?}: {said:?}");
        assert!(!said.contains(|c: char| c == '\u{202e}' || c.is_control() && c != '\n'), "{args:?}: {said:?}");
    }
}

#[test]
fn what_a_terminal_would_obey_is_not_in_a_message_about_arguments() {
    for name in ["a\u{202e}b", "a\u{1b}[2Jb", "a\u{7}b"] {
        let wrong = [vec![name], vec!["run", "k", "--lease", name], vec!["status", "k", name]];
        for args in wrong.into_iter().chain([vec!["run", "k", "--", name]]) {
            let ran = run(&mut Store::new().leasehold(&args));
            assert_ne!(ran.code, Some(0));
            let obeyed = |c: char| c == '\u{202e}' || (c.is_control() && c != '\n');
            assert!(!ran.stderr.contains(obeyed), "{args:?}: {:?}", ran.stderr);
            assert!(ran.stderr.contains("a\\u{202e}b") || !name.contains('\u{202e}'), "{args:?}: {:?}", ran.stderr);
        }
    }
}
