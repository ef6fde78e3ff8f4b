//! Bad input is refused before anything is opened or written, and the error names the field, the
//! value and what would be right.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::testing::MemoryStore;
use leasehold::{ClientBuilder, Error, ErrorKind, LockClient, LockGuard, LockRequest, SameOwner};

use crate::support::alone::alone;
use crate::support::logs;
use crate::support::wait::wait_until;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Checks the kind of the error, and that the words are in the text that a user sees.
#[track_caller]
fn refused<T>(answer: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let Err(error) = answer else { panic!("it was accepted") };
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

/// Makes a request, which must be refused, on a store that must see no request.
#[track_caller]
fn request_refused(request: impl Fn(LockRequest) -> LockRequest, key: &str, words: &[&str]) {
    let clock = Clock::system();
    let faults = FaultPlan::default();
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let client = builder_over(Arc::new(store), clock).connect().unwrap();
    let end = |request: LockRequest| request.lock().map(LockGuard::into_lock);
    refused(end(request(client.request(key))), ErrorKind::InvalidInput, words);
    refused(request(client.request(key)).try_lock(), ErrorKind::InvalidInput, words);
    refused(request(client.request(key)).acquire(), ErrorKind::InvalidInput, words);
    assert!(faults.calls().is_empty(), "something was sent: {:?}", faults.calls());
}

#[test]
fn keys() {
    let long = "k".repeat(1025);
    for (key, word) in [
        ("", "0 given"),
        (long.as_str(), "1025 given"),
        (long.as_str(), "kkk…\""),
        ("a\nb", "\"a\\nb\""),
        ("\u{1}k", "control"),
    ] {
        request_refused(|request| request, key, &["key", word, "must be"]);
    }
    let client = LockClient::connect("memory:").unwrap();
    refused(client.get(""), ErrorKind::InvalidInput, &["key"]);
    assert!(client.try_lock(&"k".repeat(1024)).unwrap().is_some());
    assert!(client.try_lock("ключ 🔑 / ' \" \\ % _ $").unwrap().is_some());
}

#[test]
fn texts() {
    let long = "x".repeat(1025);
    request_refused(|request| request.owner(""), "k", &["lock \"k\"", "owner", "1 to 1024 bytes"]);
    request_refused(|request| request.comment("a\tb"), "k", &["comment", "control characters"]);
    request_refused(|request| request.lock_id(long.clone()), "k", &["lock_id", "1025 given"]);
    refused(builder().owner("\u{7f}").connect(), ErrorKind::InvalidInput, &["owner", "control"]);
}

#[test]
fn leases() {
    request_refused(|request| request.lease(Duration::ZERO), "k", &["lease", "0ns", "100ms", "30 days"]);
    request_refused(|request| request.lease(Duration::from_millis(99)), "k", &["lease", "99ms"]);
    request_refused(|request| request.lease(31 * DAY), "k", &["lease", "lease_forever()"]);
    request_refused(|request| request.lease(Duration::MAX), "k", &["lease"]);
    request_refused(|request| request.lease_until(SystemTime::UNIX_EPOCH), "k", &["lease_until", "still to come"]);
    let far = SystemTime::now() + 31 * DAY;
    request_refused(|request| request.lease_until(far), "k", &["lease", "30 days"]);
    let client = LockClient::connect("memory:").unwrap();
    let lock = client.request("k").acquire().unwrap();
    refused(client.heartbeat(&lock, Duration::ZERO), ErrorKind::InvalidInput, &["\"k\"", "lease", "0ns"]);
    // These can't have `lease_forever`, so their errors must not offer it.
    let election = |lease| client.election("e").lease(lease).build().map(drop);
    for (refused, least) in [
        (client.heartbeat(&lock, 31 * DAY).map(drop), "100ms"),
        (client.renew("id", 31 * DAY).map(drop), "100ms"),
        (builder().lease(31 * DAY).connect().map(drop), "100ms"),
        (election(31 * DAY), "1s"),
        (election(Duration::from_millis(999)), "1s"),
    ] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(&format!("from {least} on this store to 30 days")), "{text}");
        assert!(!text.contains("lease_forever"), "{text}");
    }
}

#[test]
fn numbers_of_a_client() {
    let secs = Duration::from_secs;
    let bad: [(ClientBuilder, &[&str]); 9] = [
        (builder().lease(Duration::from_millis(1)), &["lease", "1ms", "100ms"]),
        (builder().lease(secs(10)).heartbeat(secs(6)), &["heartbeat", "6s", "half the lease (5s)"]),
        (builder().heartbeat(Duration::ZERO), &["heartbeat", "0ns", "above zero"]),
        (builder().lease(secs(10)).margin(secs(8)), &["margin", "8s", "below"]),
        (builder().margin(Duration::MAX), &["margin"]),
        (builder().poll(Duration::ZERO..=secs(1)), &["poll", "1 ms"]),
        (builder().poll(secs(2)..=secs(1)), &["poll", "rises"]),
        (builder().request_timeout(Duration::ZERO), &["request_timeout", "above zero"]),
        (builder().drop_timeout(Duration::ZERO), &["drop_timeout", "above zero"]),
    ];
    for (builder, words) in bad {
        refused(builder.connect(), ErrorKind::InvalidInput, words);
    }
    // The lease of a request is also checked against the client's heartbeat.
    let client = builder().lease(secs(20)).heartbeat(secs(5)).connect().unwrap();
    refused(client.request("k").lease(secs(8)).lock(), ErrorKind::InvalidInput, &["heartbeat", "5s", "4s"]);
}

/// Milliseconds where seconds were meant: a lock that is held would be written 200 times a second.
#[test]
fn a_heartbeat_in_a_wrong_unit_is_warned_of() {
    alone("errors::input::a_heartbeat_in_a_wrong_unit_is_warned_of", || {
        logs::keep();
        let connect =
            |heartbeat| drop(builder().lease(Duration::from_secs(20)).heartbeat(heartbeat).connect().unwrap());
        connect(Duration::from_millis(10));
        assert_eq!(logs::take("leasehold::client"), [""; 0]);
        connect(Duration::from_millis(5));
        let said = logs::take("leasehold::client");
        assert!(said.len() == 1 && said[0].contains("every 5ms") && said[0].contains("lease is 20s"), "{said:?}");
    });
}

/// The client's heartbeat and margin suit its own leases, and the request named none for this lock.
#[test]
fn numbers_of_a_client_keep_no_lock_without_end_out() {
    let secs = Duration::from_secs;
    for builder in [builder().lease(secs(300)).heartbeat(secs(100)), builder().lease(secs(300)).margin(secs(45))] {
        let client = builder.connect().unwrap();
        let guard = client.request("k").lease_forever().lock().unwrap();
        let guard = client.adopt(guard.into_lock()).unwrap();
        assert_eq!(guard.remaining(), Duration::MAX);
        guard.release().unwrap();
    }
    // If another client gives the lock an end, this client's margin applies to it.
    let store = MemoryStore::new();
    let client = store.builder().lease(secs(300)).margin(secs(45)).connect().unwrap();
    let guard = client.request("k").lease_forever().lock().unwrap();
    store.client().heartbeat(&guard.info(), secs(60)).unwrap();
    store.advance(secs(1));
    wait_until("it knows of its end", || guard.remaining() < Duration::MAX);
    assert!(guard.remaining() <= secs(15), "{:?}", guard.remaining());
    // They refuse no lock that ends soon either.
    let client = builder().lease(secs(300)).heartbeat(secs(100)).connect().unwrap();
    drop(client.request("k").lease_until(SystemTime::now() + secs(60)).lock().unwrap());
}

#[test]
fn the_bounds_themselves_are_accepted() {
    let (secs, ms) = (Duration::from_secs, Duration::from_millis);
    let client = builder().owner("o".repeat(1024)).lease(ms(100)).poll(ms(1)..=ms(1)).connect().unwrap();
    client.request("k").lease(30 * DAY).acquire().unwrap();
    builder().lease(secs(10)).heartbeat(secs(5)).connect().unwrap();
    let margin = |margin| builder().lease(secs(10)).heartbeat(secs(5)).margin(margin).connect();
    margin(secs(5) - ms(1)).unwrap();
    refused(margin(secs(5)), ErrorKind::InvalidInput, &["margin", "5s"]);
    // The margin applies from the first lease on, however long that lease is.
    let client = builder().lease(secs(60)).margin(secs(20)).connect().unwrap();
    assert!(client.lock("k").unwrap().remaining() <= secs(40));
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_says_nothing_is_named_after_host_and_process() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let lock = builder().connect().unwrap().request("k").acquire().unwrap();
    assert_eq!(lock.host(), Some(host.trim_end()));
    assert_eq!(lock.owner(), format!("{}:{}", host.trim_end(), std::process::id()));
}

#[test]
fn limits_and_owners() {
    request_refused(|request| request.max_holders(0), "k", &["max_holders", "at least 1"]);
    request_refused(|request| request.same_owner(SameOwner::Replace), "k", &["same_owner", "explicit owner"]);
    request_refused(
        |request| request.shared().owner("me").same_owner(SameOwner::Replace),
        "k",
        &["same_owner", "exclusive"],
    );
    request_refused(|request| request.max_hold(Duration::ZERO), "k", &["max_hold", "above zero"]);
    request_refused(|request| request.warn_before(Duration::ZERO), "k", &["warn_before", "above zero"]);
    let client = builder().owner("me").connect().unwrap();
    assert!(client.request("k").same_owner(SameOwner::Replace).try_lock().unwrap().is_some());
    let lock = client.request("k").acquire().unwrap();
    refused(client.request("other").adopt(lock), ErrorKind::InvalidInput, &["key", "\"other\"", "\"k\""]);
}

#[test]
fn what_only_a_guard_does_is_refused_where_there_is_none() {
    type Set = fn(LockRequest) -> LockRequest;
    let client = builder().connect().unwrap();
    let asked: [(Set, &str); 4] = [
        (|request| request.hold_at_least(DAY), "hold_at_least"),
        (|request| request.max_hold(DAY), "max_hold"),
        (|request| request.warn_before(Duration::from_secs(1)).on_warning(|_| ()), "warn_before"),
        (|request| request.on_loss(|_| ()), "on_loss"),
    ];
    for (set, what) in asked {
        refused(set(client.request("k")).acquire(), ErrorKind::InvalidInput, &[what, "without a guard"]);
    }
    let of_any = client.request_any(["k"]).max_hold(DAY).acquire();
    refused(of_any, ErrorKind::InvalidInput, &["max_hold", "without a guard"]);
    assert!(client.get("k").unwrap().is_none(), "something was sent");
}

#[test]
fn store_urls() {
    let bad: [(&str, &[&str]); 15] = [
        ("", &["no scheme", "sqlite:locks.db"]),
        ("locks.db", &["no scheme"]),
        ("sqllite:locks.db", &["\"sqllite\"", "did you mean \"sqlite\""]),
        ("redis://localhost", &["\"redis\"", "sqlite:", "memory:"]),
        ("memory:a?size=3", &["memory:", "\"size\"", "none"]),
        ("postgres//me:canary@localhost:1", &["no scheme"]),
        ("sqlite:", &["path of a file"]),
        ("sqlite::memory:", &["memory:"]),
        ("sqlite://locks.db", &["write sqlite:locks.db"]),
        ("sqlite:/x/l.db?mod=0600", &["\"mod\"", "did you mean \"mode\"", "unsafe_fs"]),
        ("sqlite:/x/l.db?mode=0600&mode=0660", &["\"mode\"", "twice"]),
        ("sqlite:/x/%ff.db", &["UTF-8"]),
        // A URL that was read from a file may end so. Each of these would be another store, and lock nobody out.
        ("sqlite:/x/l.db\n", &["white space around it", "%0A"]),
        (" memory:x", &["white space around it"]),
        ("memory:a\tb", &["control character"]),
    ];
    for (url, words) in bad {
        refused(LockClient::connect(url), ErrorKind::Config, words);
    }
    for mode in ["", "rw", "0999", "0400", "0777", "1600"] {
        let url = format!("sqlite:/x/l.db?mode={mode}");
        refused(LockClient::connect(&url), ErrorKind::Config, &["mode", "0600"]);
    }
    refused(LockClient::connect("sqlite:/x/l.db?unsafe_fs=maybe"), ErrorKind::Config, &["unsafe_fs", "\"maybe\""]);
}

#[test]
fn a_hint_names_what_is_at_most_two_letters_away() {
    let hint = |scheme: &str| {
        let text = LockClient::connect(&format!("{scheme}:x")).unwrap_err().to_string();
        text.split_once("did you mean \"").map(|(_, rest)| rest.split('"').next().unwrap().to_owned())
    };
    for near in ["sqllite", "sqlit", "qlite", "xsqlite", "sqlite33", "lite", "sxlixe", "xxlite", "sqlixx", "qlitex"] {
        assert_eq!(hint(near).as_deref(), Some("sqlite"), "{near}");
    }
    for near in ["memroy", "yemory", "memo", "mmoryx", "xmemry"] {
        assert_eq!(hint(near).as_deref(), Some("memory"), "{near}");
    }
    for far in ["ite", "sqlite333", "xxxite", "sqlxxx", "sqlight", "xxqlite2", "mem", "emoryxx", "redis", "s", ""] {
        assert_eq!(hint(far), None, "{far}");
    }
}

#[test]
fn a_bad_option_is_refused_before_a_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    assert!(LockClient::builder(&url).lease(Duration::ZERO).connect().is_err());
    assert!(!path.exists());
    LockClient::connect(&url).unwrap();
    assert!(path.exists());
}

#[test]
fn urls_lead_to_the_file_that_they_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    LockClient::connect(&format!("sqlite:{}", at("a%20b.db").display())).unwrap();
    LockClient::connect(&format!("sqlite://{}", at("absolute.db").display())).unwrap();
    leasehold::sqlite::builder(at("50%41?.db")).connect().unwrap();
    // A `%` that begins no escape is taken literally.
    LockClient::connect(&format!("sqlite:{}", at("%C3%a4%%4%zz%+1%ä%25").display())).unwrap();
    for name in ["a b.db", "absolute.db", "50%41?.db", "ä%%4%zz%+1%ä%"] {
        assert!(at(name).exists(), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn the_options_of_a_url_are_followed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for (n, (options, wanted)) in [
        ("mode=0660", 0o660),
        ("mode=606&unsafe_fs=0", 0o606),
        ("unsafe_fs=true&mode=0644", 0o644),
        ("unsafe_fs=1", 0o600),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(format!("{n}.db"));
        LockClient::connect(&format!("sqlite:{}?{options}", path.display())).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, wanted, "{options}");
    }
}

#[test]
fn an_error_names_key_and_store_once_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/locks.db");
    let error = LockClient::connect(&format!("sqlite:{}", missing.display())).unwrap_err();
    assert_eq!(
        (error.kind(), error.store()),
        (ErrorKind::Config, Some(format!("sqlite:{}", missing.display()).as_str()))
    );
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let client = LockClient::connect(&url).unwrap();
    let held = client.request("k").lock_id("canary-lock-id-with-a-secret").lock().unwrap();
    let error = client.request("k").wait(Duration::from_millis(1)).lock().unwrap_err();
    assert_eq!((error.key(), error.store()), (Some("k"), Some(url.as_str())));
    let text = error.to_string();
    assert!(text.starts_with(&format!("lock \"k\" on {url}: ")), "{text}");
    assert_eq!(text.matches("locks.db").count(), 1, "{text}");
    let nobodys = client.renew("canary-of-nobody-with-a-secret", DAY).unwrap_err();
    let all = format!("{error} {error:?} {held:?} {nobodys} {nobodys:?} {:?} {:?}", client, client.request("k"));
    assert!(!all.contains("with-a-secret"), "{all}");
    // Only the scheme of an unknown URL is shown: the rest may contain a password.
    let unknown = LockClient::builder("mango://me:canary@db/locks");
    assert!(!format!("{unknown:?}").contains("canary"));
    let error = unknown.connect().unwrap_err();
    assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
}

#[test]
fn the_environment_names_the_store() {
    // Only one test touches this variable, in processes of its own, and nothing else here reads it.
    let from_env = |value: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "errors::input::environment_child", "--nocapture"]).env("LEASEHOLD_TEST_CHILD", "1");
        match value {
            Some(value) => command.env("LEASEHOLD_STORE", value),
            None => command.env_remove("LEASEHOLD_STORE"),
        };
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(from_env(Some("memory:from-env")).contains("\"memory:from-env\""));
    let unset = from_env(None);
    assert!(unset.contains("Config") && unset.contains("LEASEHOLD_STORE is not set"), "{unset}");
}

/// The test above runs this in a process of its own.
#[test]
fn environment_child() {
    if std::env::var_os("LEASEHOLD_TEST_CHILD").is_some() {
        match LockClient::from_env() {
            Ok(client) => println!("connected: {client:?}"),
            Err(error) => println!("{:?}: {error}", error.kind()),
        }
    }
}

fn builder() -> ClientBuilder {
    LockClient::builder("memory:")
}

#[test]
fn an_error_does_not_show_a_lock_id() {
    let client = builder().connect().unwrap();
    // As read from a file: with a line end.
    for id in ["correct-horse-battery\n".to_owned(), "correct-horse-battery".repeat(100)] {
        let error = client.request("k").lock_id(id).try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(!format!("{error} {error:?}").contains("horse-battery"), "{error}");
    }
    assert!(client.get("").unwrap_err().store().is_some(), "the store is missing");
}
