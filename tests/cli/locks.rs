//! The commands that look after locks.

use std::time::Duration;

use leasehold::{ErrorKind, Filter};
use serde_json::Value;

use crate::support::{Ran, Running, Store, run};
use crate::wait::wait_until;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[track_caller]
fn ok(ran: Ran) -> String {
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    ran.stdout
}

#[track_caller]
fn json(ran: Ran) -> Value {
    let text = ok(ran);
    assert_eq!(text.lines().count(), 1);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Live and expired locks of several owners.
fn some_locks(store: &Store) {
    let client = store.client();
    let short = client.request("t/expired").owner("bob").lock_id("g").lease(SECOND).acquire();
    client.request("t/live").owner("ann").lock_id("g").comment("why").lease(10 * MINUTE).acquire().unwrap();
    client.request("u/shared").shared().owner("ann").lease(100 * SECOND).acquire().unwrap();
    client.request("u/endless").owner("\u{202e}eve").lease_forever().acquire().unwrap();
    // Waits for the end of the first lease.
    let guard = client.request("t/expired").owner("bob").lock_id("g").lease(SECOND).lock().unwrap();
    let lock = guard.into_lock();
    while !client.get("t/expired").unwrap().unwrap().is_free() {
        std::thread::yield_now();
    }
    drop((short, lock));
}

#[test]
fn status_tells_live_and_expired_apart() {
    let store = Store::new();
    drop(store.client());
    assert_eq!(ok(run(&mut store.leasehold(&["status"]))), "no locks\n");
    assert_eq!(ok(run(&mut store.leasehold(&["status", "k"]))), "\"k\" is free\n");
    some_locks(&store);
    let text = ok(run(&mut store.leasehold(&["status"])));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "STATE", "MODE", "OWNER", "SINCE", "LEASE", "TOKEN", "COMMENT"]);
    let [expired, endless, shared, live] = &lines[1..] else { panic!("{text}") };
    assert_eq!(expired[..4], ["t/expired", "expired", "exclusive", "bob"]);
    let ended = text.lines().nth(1).unwrap().split_once(" s ago  ended ");
    assert!(ended.is_some_and(|(_, ended)| ended.contains(" s ago")), "{text}");
    // A character that would reverse the line is shown escaped.
    assert_eq!(endless[..4], ["u/endless", "live", "exclusive", "\\u{202e}eve"]);
    assert!(text.lines().nth(2).unwrap().contains("no end"), "{text}");
    assert_eq!(shared[..4], ["u/shared", "live", "shared", "ann"]);
    assert_eq!((live[1], live.last()), ("live", Some(&"why")));
    assert!(text.contains("9 min ") && !text.contains('\x1b'), "{text}");
}

/// A dashboard runs on without anybody to restart it.
#[test]
#[cfg(target_os = "linux")]
fn a_watch_outlasts_trouble() {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{F_WRLCK, SEEK_SET, flock};
    let store = Store::new();
    drop(store.client());
    let mut watch = Running::start(&mut store.leasehold(&["status", "--watch"]));
    watch.expect("no locks");
    let index = std::fs::File::options().read(true).write(true).open(store.path("locks.db-shm")).unwrap();
    // The lock bytes of SQLite's readers, each of which takes one.
    let places = flock { l_type: F_WRLCK as _, l_whence: SEEK_SET as _, l_start: 123, l_len: 5, l_pid: 0 };
    wait_until("nobody reads", || fcntl(&index, FcntlArg::F_OFD_SETLK(&places)).is_ok());
    watch.says("leasehold: sqlite:");
    drop(index);
    let _guard = store.client().request("k").owner("ann").lock().unwrap();
    while !watch.line().contains("ann") {}
}

/// As in `| true` with `set -o pipefail`: the reader has seen enough, but the exit code still counts.
#[test]
fn the_code_of_a_status_is_told_where_nobody_reads_it() {
    let store = Store::new();
    let client = store.client();
    let codes = || {
        [&[][..], &["--json"]].map(|more| {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut status = store.leasehold(&["status", "k", "--exit-code"]);
            Running::start_to(writer.into(), status.args(more)).end().code
        })
    };
    assert_eq!(codes(), [Some(1); 2], "free, and no row");
    let guard = client.lock("k").unwrap();
    assert_eq!(codes(), [Some(0); 2]);
    guard.release().unwrap();
    assert_eq!(codes(), [Some(1); 2], "free");
}

#[test]
fn status_finds_by_every_filter() {
    let store = Store::new();
    some_locks(&store);
    let cases: [(&[&str], &[&str]); 12] = [
        (&[], &["t/expired", "u/endless", "u/shared", "t/live"]),
        (&["t/live"], &["t/live"]),
        (&["--prefix", "t/"], &["t/expired", "t/live"]),
        (&["--owner", "ann"], &["u/shared", "t/live"]),
        (&["--lock-id", "g"], &["t/expired", "t/live"]),
        (&["--older-than", "1h"], &[]),
        (&["--newer-than", "1h", "--shared"], &["u/shared"]),
        (&["--left-below", "2m"], &["t/expired", "u/shared"]),
        (&["--left-at-least", "2m"], &["t/live"]),
        (&["--exclusive", "--live"], &["u/endless", "t/live"]),
        (&["--expired"], &["t/expired"]),
        (&["--shared", "--expired"], &[]),
    ];
    for (filter, expected) in cases {
        let found = json(run(store.leasehold(&["status", "--json"]).args(filter)));
        let keys: Vec<&str> = found.as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap()).collect();
        assert_eq!(keys, expected, "{filter:?}");
    }
    // A held lock is not called free where another filter leaves it out.
    for (filter, said) in [
        (&["t/live", "--owner", "bob"][..], "no such lock was found\n"),
        (&["t/live", "--expired"], "no such lock was found\n"),
        (&["--owner", "nobody"], "no such lock was found\n"),
        (&["t/never"], "\"t/never\" is free\n"),
    ] {
        assert_eq!(ok(run(store.leasehold(&["status"]).args(filter))), said, "{filter:?}");
    }
    let live = &json(run(&mut store.leasehold(&["status", "t/live", "--json"])))[0];
    assert_eq!((&live["lock_id"], &live["comment"], &live["expired"]), (&"g".into(), &"why".into(), &false.into()));
    assert!(live["remaining_ms"].as_u64().unwrap() > 500_000 && live["leased_until"].is_string(), "{live}");
}

#[test]
fn a_lock_is_released_by_its_lock_id() {
    let store = Store::new();
    let client = store.client();
    client.request("k").lock_id("mine").lease(MINUTE).acquire().unwrap();
    let ran = run(&mut store.leasehold(&["release", "k"]));
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
    let ran = run(&mut store.leasehold(&["release", "k", "--lock-id", "other"]));
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(ran.stderr.contains("held by \""), "{}", ran.stderr);
    // With the lock id in the environment, as in a command of `run`.
    let text = ok(run(store.leasehold(&["release", "k"]).env("LEASEHOLD_LOCK_ID", "mine")));
    assert!(text.starts_with("released \"k\": "), "{text}");
    assert_eq!(ok(run(&mut store.leasehold(&["release", "k", "--lock-id", "mine"]))), "\"k\" is free\n");
    // By force from any holder, also in a command of `run`; but not together with an explicit lock id.
    client.request("k").lock_id("other").lease(MINUTE).acquire().unwrap();
    let args = ["release", "k", "--force", "--yes"];
    let text = ok(run(store.leasehold(&args).env("LEASEHOLD_LOCK_ID", "mine")));
    assert!(text.starts_with("released \"k\": "), "{text}");
    assert_eq!(run(store.leasehold(&args).args(["--lock-id", "mine"])).code, Some(64));
}

#[test]
fn a_lock_is_taken_from_its_holder_by_force() {
    let store = Store::new();
    drop(store.client());
    assert_eq!(ok(run(&mut store.leasehold(&["release", "k", "--force"]))), "\"k\" is free\n");
    let script = "trap 'exit 3' TERM; echo ready; while :; do read never; done";
    let running = Running::ready(&mut store.reading(&["--lease", "9s", "--kill-after", "0s"], script));
    let ran = run(&mut store.leasehold(&["release", "k", "--force"]));
    assert_eq!(ran.code, Some(64), "there is nobody to ask");
    assert!(ran.stderr.contains("--yes"), "{}", ran.stderr);
    // A question is not JSON; and on a terminal this would ask.
    let ran = run(&mut store.leasehold(&["release", "free", "--force", "--json"]));
    assert_eq!((ran.code, ran.stderr.contains("give --yes")), (Some(64), true), "{}", ran.stderr);
    let freed = json(run(&mut store.leasehold(&["release", "k", "--force", "--yes", "--json"])));
    assert_eq!(freed[0]["key"], "k");
    assert_eq!(running.end().code, Some(76));
}

#[test]
fn groups_are_renewed_and_unlocked() {
    let store = Store::new();
    let client = store.client();
    for key in ["a", "b"] {
        client.request(key).lock_id("g").lease(MINUTE).acquire().unwrap();
    }
    let renewed = json(run(&mut store.leasehold(&["renew", "g", "--lease", "10m", "--json"])));
    assert_eq!(renewed.as_array().unwrap().len(), 2);
    assert!(client.get("a").unwrap().unwrap().holders()[0].remaining().unwrap() > 9 * MINUTE);
    let text = ok(run(&mut store.leasehold(&["unlock", "g"])));
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(ok(run(&mut store.leasehold(&["unlock", "g"]))), "no lock with the lock id \"g\" is held\n");
    let ran = run(&mut store.leasehold(&["renew", "g"]));
    assert_eq!(ran.code, Some(76), "{}", ran.stderr);
    assert!(ran.stderr.contains("no lock with the lock id \"g\" is held"), "{}", ran.stderr);
}

#[test]
fn a_purge_shows_what_it_would_do_and_does_it() {
    let store = Store::new();
    some_locks(&store);
    let text = ok(run(&mut store.leasehold(&["purge", "--dry-run", "--older-than", "1h"])));
    assert_eq!(text, "locks would be freed: 0, unused rows would be deleted: 0\n");
    let text = ok(run(&mut store.leasehold(&["purge", "--dry-run"])));
    assert!(text.starts_with("would be freed: \"t/expired\": \"bob\""), "{text}");
    let purged = json(run(&mut store.leasehold(&["purge", "--json"])));
    assert_eq!((&purged["freed"][0]["key"], &purged["dry_run"]), (&"t/expired".into(), &false.into()));
    assert_eq!(store.client().list(&Filter::new().expired()).unwrap().len(), 0);
}

/// Makes this many expired locks, whose names are in order. One of them is damaged.
fn many_expired_locks(store: &Store, count: u32) {
    store.client().request("k00000").lease(SECOND).acquire().unwrap();
    let db = store.db();
    let names = |what| format!("SELECT {what} FROM pragma_table_info('locks') WHERE name <> 'key'");
    let columns: String = db.query_row(&names("group_concat(name)"), [], |row| row.get(0)).unwrap();
    let copies = format!(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})
         INSERT INTO locks (key, {columns}) SELECT CAST(printf('k%05d', n) AS BLOB), {columns} FROM n, locks
         WHERE key = CAST('k00000' AS BLOB);
         UPDATE locks SET kind = 'loan' WHERE key = CAST('k00007' AS BLOB)"
    );
    db.execute_batch(&copies).unwrap();
    let client = store.client();
    wait_until("they expire", || client.get("k00000").unwrap().unwrap().is_free());
}

#[test]
fn what_cannot_be_read_is_named_and_passed_over() {
    let store = Store::new();
    many_expired_locks(&store, 200);
    let damaged = |ran: &Ran| ran.code == Some(0) && ran.stderr.contains("warn: ") && ran.stderr.contains("k00007");
    let ran = run(&mut store.leasehold(&["status"]));
    assert!(damaged(&ran) && ran.stdout.lines().count() == 201, "{}", ran.stderr);
    let ran = run(&mut store.leasehold(&["purge", "--dry-run", "--json"]));
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(damaged(&ran) && told["freed"].as_array().unwrap().len() == 200, "{}", ran.stderr);
    let warning: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert!(warning["message"].as_str().unwrap().contains("k00007"), "{warning}");
    let ran = run(&mut store.leasehold(&["purge"]));
    assert!(damaged(&ran) && ran.stdout.ends_with("\nlocks freed: 200, unused rows deleted: 0\n"), "{}", ran.stderr);
    let ran = run(&mut store.leasehold(&["status", "--quiet"]));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("no locks\n", ""));
}

/// Nobody reads its output, so it stops in the middle of its work.
#[test]
fn a_purge_holds_one_page_and_holds_up_nobody() {
    let store = Store::new();
    many_expired_locks(&store, 3000);
    for json in [&[][..], &["--json"]] {
        let before = store.client().list(&Filter::new()).unwrap().len();
        let mut purge = store.leasehold(&["purge", "--quiet"]);
        let mut purge = purge.args(json).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut left = before;
        wait_until("it stands still", || {
            std::thread::sleep(2 * SECOND);
            let now = store.client().list(&Filter::new()).unwrap().len();
            let was = std::mem::replace(&mut left, now);
            now < before && now == was
        });
        assert!(left > 1000, "{left} of {before} are left: it keeps more than a page");
        assert_eq!(run(&mut store.script(&["--try"], "true")).code, Some(0));
        purge.kill().unwrap();
        purge.wait().unwrap();
    }
}

#[test]
fn init_makes_the_schema_and_says_it() {
    let store = Store::new();
    for (time, is) in [("first", "was made"), ("second", "is there")] {
        let text = ok(run(&mut store.leasehold(&["init"])));
        assert!(text.contains(&format!("the table `locks` {is}, format")), "the {time} time: {text}");
    }
    let text = ok(run(&mut store.leasehold(&["init", "--print"])));
    assert!(text.contains("CREATE TABLE IF NOT EXISTS locks"), "{text}");
}

/// A client that connects for something else gets this warning.
#[test]
#[cfg(feature = "postgres")]
fn init_warns_of_nothing_that_it_makes() {
    use crate::support::{leasehold, run_until_answered};
    let Some(shared) = crate::shared::postgres("init") else { return };
    let init = |args: &[&str]| run_until_answered(leasehold(&["init"]).args(args).env("LEASEHOLD_STORE", &shared.url));
    let warned = init(&["--print"]).stderr;
    assert!(warned.contains("there is no table"), "{warned}");
    assert!(ok(init(&[])).contains("it was made"));
}

#[test]
#[cfg(feature = "postgres")]
fn init_does_not_advise_itself_where_the_schema_is_missing() {
    use crate::support::{leasehold, run_until_answered};
    let Some(shared) = crate::shared::postgres("init") else { return };
    let url = shared.url.replace("table=init", "table=noschema.init");
    let ran = run_until_answered(&mut leasehold(&["--store", &url, "init"]));
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    assert!(ran.stderr.contains("does not exist; make it by CREATE SCHEMA"), "{}", ran.stderr);
    let ran = run_until_answered(leasehold(&["init"]).env("LEASEHOLD_STORE", &shared.url));
    assert!(ok(ran).starts_with("table init_"));
}

#[test]
fn the_doctor_says_what_is_wrong() {
    let store = Store::new();
    drop(store.client());
    let text = ok(run(&mut store.leasehold(&["doctor"])));
    assert_eq!(text.matches("allowed").count(), 6, "{text}");
    let well = json(run(&mut store.leasehold(&["doctor", "--json"])));
    assert_eq!((&well["well"], &well["reached"]), (&true.into(), &true.into()));
    assert!(store.client().list(&Filter::new()).unwrap().is_empty());

    // A program that holds the file's write lock stops all others.
    let db = store.stuck();
    let ran = run(&mut store.leasehold(&["doctor"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(69), ""), "{}", ran.stdout);
    let ran = run(&mut store.leasehold(&["doctor", "--json"]));
    let told: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((ran.code, &told["error"]["exit_code"]), (Some(69), &69.into()), "{ran:?}");
    drop(db);

    let ran = run(store.leasehold(&["doctor"]).env("LEASEHOLD_STORE", "sqlite:/no/such/folder/locks.db"));
    assert!(ran.code == Some(78) || ran.code == Some(69), "{ran:?}");
    assert!(ran.stdout.ends_with("reached             NO\nusable              NO\n"), "{ran:?}");
    assert!(ran.stdout.contains("/no/such/folder") && ran.stderr.contains("/no/such/folder"), "{ran:?}");
    // The same where nobody reads its output.
    let mut asks = store.leasehold(&["doctor"]);
    let (reader, writer) = nix::unistd::pipe().unwrap();
    drop(reader);
    let asks = asks.env("LEASEHOLD_STORE", "sqlite:/no/such/folder/locks.db").stdout(writer);
    let code = asks.stderr(std::process::Stdio::null()).status().unwrap().code();
    assert!(code == Some(78) || code == Some(69), "{code:?}");
    let mut asks = store.leasehold(&["doctor", "--json"]);
    let ran = run(asks.env("LEASEHOLD_STORE", "sqlite:/no/such/folder/locks.db"));
    let said: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&said["well"], &said["reached"]), (&false.into(), &false.into()), "{ran:?}");

    let refused = "CREATE TRIGGER refused BEFORE INSERT ON locks BEGIN SELECT RAISE(ABORT, 'refused'); END";
    store.db().execute_batch(refused).unwrap();
    let ran = run(&mut store.leasehold(&["doctor"]));
    let not_tried = |line: &&str| line.get(20..) == Some("not tried, since no lock could be acquired");
    assert_eq!(ran.stdout.lines().filter(not_tried).count(), 3, "{ran:?}");
}

/// A table with other users' rows may be larger than what the doctor looks at.
#[test]
#[cfg(feature = "spanner")]
fn the_doctor_says_where_it_stopped_looking() {
    let Some(shared) = crate::shared::spanner("many") else { return };
    shared.init();
    let doctor = |args: &[&str]| {
        let mut command = crate::support::leasehold(&["doctor"]);
        let command = command.args(args).env("LEASEHOLD_STORE", &shared.url).envs(shared.env.clone());
        ok(crate::support::run_until_answered(command))
    };
    let table = shared.url.split_once("table=").unwrap().1;
    let database = shared.url.strip_prefix("spanner:").unwrap().split_once('?').unwrap().0;
    let (_, host) = shared.env.iter().find(|(name, _)| *name == "SPANNER_EMULATOR_HOST").unwrap();
    let post = |path: String, body: Value| -> Value {
        let (status, answer) = crate::servers::spanner::rest(host, "POST", &path, &body.to_string()).unwrap();
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    };
    let session = post(format!("/v1/{database}/sessions"), serde_json::json!({}));
    let rows: Vec<[String; 2]> = (0..501).map(|i| [format!("k{i}"), "gone".to_owned()]).collect();
    let insert = serde_json::json!({ "table": table, "columns": ["name", "writer"], "values": rows });
    let commit =
        serde_json::json!({ "singleUseTransaction": { "readWrite": {} }, "mutations": [{ "insert": insert }] });
    post(format!("/v1/{}:commit", session["name"].as_str().unwrap()), commit);
    let text = doctor(&[]);
    assert!(text.contains("\nwritten by          by the first 500 rows only: others"), "{text}");
    assert!(doctor(&["--json"]).contains("\"writers_cut_at\":500"));
}

#[test]
fn leases_are_claimed_extended_and_ended() {
    let store = Store::new();
    drop(store.client());
    let lease = |args: &[&str]| run(store.leasehold(&["lease"]).args(args));
    assert_eq!(ok(lease(&["list"])), "no leases in the namespace \"default\"\n");
    let text = ok(lease(&["claim", "app", "app/0", "--for", "1h"]));
    assert!(text.starts_with("claimed: \"app\" for \"app/0\", at least until "), "{text}");
    let ran = lease(&["claim", "app", "app/1"]);
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(ran.stderr.contains("\n  held by \"app/0\" (token ") && ran.stderr.contains(" since 20"), "{}", ran.stderr);
    let ran = lease(&["expire", "app"]);
    assert_eq!(ran.code, Some(75), "its time is not over: {}", ran.stderr);
    let leases = store.client().leases("default");
    leases.revoke("app", "app/0").unwrap();
    ok(lease(&["claim", "app", "app/0", "--for", "100ms"]));
    leases.wait_until_expired("app", &leasehold::CancelToken::new()).unwrap();
    let listed = json(lease(&["list", "--json"]));
    assert_eq!((&listed[0]["holder"], &listed[0]["expired"]), (&"app/0".into(), &true.into()));
    let extended = json(lease(&["extend", "app", "app/0", "--for", "1h", "--json"]));
    assert!(extended["remaining_ms"].as_u64().unwrap() > 3_000_000, "{extended}");
    let text = ok(lease(&["list"]));
    assert!(text.contains("app   app/0   runs"), "{text}");
    assert_eq!(lease(&["revoke", "app", "app/1"]).code, Some(75));
    assert_eq!(ok(lease(&["revoke", "app", "app/0"])), "revoked: \"app\"\n");
    assert_eq!(leases.expire("app").unwrap_err().kind(), ErrorKind::InvalidLease);
    // A name that nobody holds is already as wanted, so the command can be repeated.
    assert_eq!(ok(lease(&["expire", "app"])), "\"app\" is free in the namespace \"default\"\n");
    let told = json(lease(&["expire", "app", "--json"]));
    let of = (&told["name"], &told["namespace"], &told["ended"]);
    assert_eq!(of, (&"app".into(), &"default".into(), &Value::Null));
    assert_eq!(lease(&["revoke", "app", "app/0"]).code, Some(75), "whoever names a holder means one");
    ok(lease(&["claim", "app", "b", "--namespace", "other", "--for", "100ms"]));
    let other = store.client().leases("other");
    other.wait_until_expired("app", &leasehold::CancelToken::new()).unwrap();
    assert_eq!(ok(lease(&["expire", "app", "--namespace", "other"])), "expired: \"app\"\n");
    assert!(other.list().unwrap().is_empty());
    // The JSON output also names the holder.
    ok(lease(&["claim", "app", "b", "--namespace", "other", "--for", "1h"]));
    let ran = lease(&["claim", "app", "c", "--namespace", "other", "--json"]);
    let told: Value = serde_json::from_str(&ran.stderr).unwrap();
    let held = &told["error"]["lease"];
    assert_eq!((ran.code, &held["holder"], &held["expired"]), (Some(75), &"b".into(), &false.into()), "{told}");
    assert!(held["expires"].is_string() && told["error"]["kind"] == "InvalidLease", "{told}");
}

#[test]
fn a_purge_goes_on_where_nobody_takes_what_it_says() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let closed = || std::io::pipe().unwrap().1;
    let outputs: [(std::process::Stdio, i32); 2] = [(full().into(), 74), (closed().into(), 0)];
    for (output, code) in outputs {
        let store = Store::new();
        many_expired_locks(&store, 3000);
        let mut purge = store.leasehold(&["purge", "--quiet"]);
        let status = purge.stdout(output).stderr(std::process::Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code));
        // Only the damaged one is left, which a list leaves out.
        let left = store.client().list(&Filter::new()).unwrap();
        assert!(left.is_empty(), "{} are left", left.len());
    }
}
