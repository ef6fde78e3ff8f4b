//! A table that processes of dynamodb-lock-go also use: the rows of both, what is refused, and what is reported.

use leasehold::internals::store::fleet::Fleet;
use leasehold::{ErrorKind, LockClient};

use crate::dynamodb::mixed::{World, of};
use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::*;
use crate::mixed::cells::{S, are_in_time};
use crate::support::dynamodb::{Table, config, config_at};
use crate::support::go::Unavailable;
use crate::support::go::dynamodb::Go;
use crate::support::proxy::Proxy;
use crate::support::{logs, stores::unique};

const HOUR: Duration = Duration::from_secs(3600);

/// The rebuilt client, with its clock set to that of the real one, writes the recorded rows exactly.
#[test]
fn the_rebuilt_client_writes_what_was_recorded() {
    let world = needs_server!(World::new());
    let (go, lease) = (&world.go, Duration::from_secs(20));
    let golden: serde_json::Value = serde_json::from_str(include_str!("../../golden/dynamodb-lock-go.json")).unwrap();
    let mut steps = golden["steps"].as_array().unwrap().iter();
    let mut next = || {
        let items = steps.next().unwrap()["items"].as_array().unwrap();
        let mut rows = world.raw.all();
        rows.retain(|row| row["key"].as_s().unwrap() != "\u{1}time");
        rows.sort_by_key(|row| row["key"].as_s().unwrap() == "ours");
        let json = |row: std::collections::HashMap<String, AttributeValue>| {
            let attributes =
                row.into_iter().map(|(name, value)| (name, serde_json::json!({ "S": value.as_s().unwrap() })));
            serde_json::Value::Object(attributes.collect())
        };
        let rows: Vec<serde_json::Value> = rows.into_iter().map(json).collect();
        assert_eq!(rows, *items);
    };
    let day = "2026-11-21T01:47:";
    let shows = |seconds: &[&str]| {
        let times: Vec<String> = seconds.iter().map(|s| format!("{day}{s}Z")).collect();
        go.shows(&times.iter().map(String::as_str).collect::<Vec<_>>());
    };
    shows(&["35.61499108", "35.61499172", "35.7"]);
    let lock = go.acquire("nightly", "worker-1", lease).unwrap();
    next();
    shows(&["36.107472393", "36.107475223"]);
    let lock = go.heartbeat(&lock, lease).unwrap();
    next();
    go.release(&lock).unwrap();
    next();
    let whole = "2030-01-02T03:04:05Z";
    shows(&["36.973253484", "36.98"]);
    go.acquire_until("whole", "worker-2", whole.parse().unwrap(), whole.to_owned()).unwrap();
    next();
    world.ours.lock("ours").unwrap().release().unwrap();
    shows(&["37.390677511", "37.390677881", "37.4"]);
    go.acquire("ours", "x", lease).unwrap();
    next();
}

#[test]
fn a_row_of_ours_has_an_owner_of_its_own_and_a_time_to_live() {
    let world = needs_server!(World::new());
    let names = |key: &str| {
        let mut names: Vec<String> = world.raw.get(key).into_keys().collect();
        names.sort();
        names.join(" ")
    };
    let seconds = |value: &AttributeValue| -> i64 {
        match value {
            AttributeValue::N(number) => number.parse().unwrap(),
            AttributeValue::S(text) => text.parse::<jiff::Timestamp>().unwrap().as_second(),
            other => panic!("{other:?}"),
        }
    };
    let check = || {
        // Read only once: a heartbeat may write the row meanwhile.
        let row = world.raw.get("k");
        let digits = &row["grantId"].as_s().unwrap()[..8];
        assert_eq!(row["owner"].as_s().unwrap(), &format!("billing#{digits}"));
        let ttl = seconds(&row["ttl"]);
        assert_eq!(ttl - seconds(&row["leasedUntil"]), 2 * 24 * 3600);
        ttl
    };
    let guard = world.ours.request("k").owner("billing").lock().unwrap();
    let before = check();
    assert_eq!(names("k"), "createdAt fence format grantId host key kind leasedUntil lockId owner ttl version");
    world.pass(Duration::from_secs(30));
    guard.ensure_held_for(LEASE / 2).unwrap();
    assert!(check() >= before + 28);
    // By its lock id, which writes the whole row; and after an adopt.
    world.ours.renew(guard.lock_id(), 2 * LEASE).unwrap();
    check();
    let adopted = world.ours.request("k").owner("billing").adopt(guard.into_lock()).unwrap();
    check();
    adopted.release().unwrap();
    assert_eq!(names("k"), "createdAt fence format givenUp key kind leasedUntil version");
    // Over a row of theirs in another time zone, which has to be parsed.
    let until = world.go.now() + jiff::SignedDuration::from_secs(20);
    let text = until.display_with_offset(jiff::tz::offset(-8)).to_string();
    world.go.acquire_until("k", "x", until, text).unwrap();
    assert!(world.ours.try_lock("k").unwrap().is_none());
    world.pass(Duration::from_secs(27));
    let _guard = world.ours.request("k").owner("billing").lock().unwrap();
    check();
}

/// With an older time to live, the service would delete a live lock.
#[test]
fn a_client_without_the_option_leaves_no_time_to_live_behind() {
    let world = needs_server!(World::new());
    let own = of(&world.table, &world.clock, Fleet::Own);
    let mixed = &world.ours;
    let days = Duration::from_secs(5 * 24 * 3600);
    let ttl = |key: &str| world.raw.get(key).remove("ttl");
    let lock = mixed.request("renewed").acquire().unwrap();
    assert!(ttl("renewed").is_some());
    own.heartbeat(&lock, days).unwrap();
    assert_eq!(ttl("renewed"), None);
    mixed.heartbeat(&lock, days + LEASE).unwrap();
    assert!(ttl("renewed").is_some());
    let released = mixed.request("released").acquire().unwrap();
    own.release(&released).unwrap();
    assert_eq!(ttl("released"), None);
    // A group of shared holders of a client without the option, renewed by one with it: each end of the row has its own
    // time to live.
    let ask = || own.request("shared").shared().lease(LEASE);
    let (one, other) = (ask().lock_id("one").acquire().unwrap(), ask().lock_id("other").acquire().unwrap());
    let ends_after = || {
        let row = world.raw.get("shared");
        let end: jiff::Timestamp = row["leasedUntil"].as_s().unwrap().parse().unwrap();
        row["ttl"].as_n().unwrap().parse::<i64>().unwrap() - end.as_second()
    };
    mixed.renew("one", 2 * LEASE).unwrap();
    assert_eq!(ends_after(), 2 * 24 * 3600);
    mixed.heartbeat(&other, 3 * LEASE).unwrap();
    assert_eq!(ends_after(), 2 * 24 * 3600);
    // This is not the latest end, so the row keeps its time to live.
    own.heartbeat(&one, 2 * LEASE).unwrap();
    assert_eq!(ends_after(), 2 * 24 * 3600);
    mixed.release(&other).unwrap();
    assert_eq!(ends_after(), 2 * 24 * 3600);
    own.heartbeat(&one, days).unwrap();
    assert_eq!(ttl("shared"), None);
    mixed.renew("one", days + LEASE).unwrap();
    let third = ask().lock_id("third").lease(5 * days).acquire().unwrap();
    assert_eq!(ttl("shared"), None);
    mixed.heartbeat(&third, 5 * days + LEASE).unwrap();
    own.release(&third).unwrap();
    assert_eq!(ttl("shared"), None);
}

/// What is unknown of the service's time must take no more of the grace than elsewhere: the rest is for the clocks of
/// their hosts.
#[test]
fn who_was_idle_asks_for_the_time_first() {
    needs_server!();
    let (table, clock) = (Table::fresh(), Clock::system());
    let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
    let first_request = |fleet: Fleet| {
        let settings = Settings::Given(Box::new(config_at(&proxy.url())));
        // Known to within a second, however the answers came.
        let known = knowing(&table, &clock, Duration::ZERO);
        let options = DynamodbOptions { settings, grace: Duration::from_secs(5), ..known };
        let store = open(options.of(fleet), &clock);
        granted(&store, &mut exclusive(&unique()));
        // The uncertainty grows by three tenths of a second, and the note of the grace is read again only after ten
        // minutes.
        clock.advance(Duration::from_secs(300));
        let before = proxy.requests().len();
        // The answer does not matter: no answer tells the time here.
        let _ = store.acquire(&mut exclusive(&unique()), &soon());
        proxy.requests()[before].target.clone()
    };
    assert_eq!([Fleet::Mixed, Fleet::Own].map(first_request), ["GetItem", "UpdateItem"]);
}

/// As text, whole seconds and short fractions sort after longer texts of the same second, so they seem up to a second
/// later.
#[test]
fn ends_of_any_form_are_respected_for_the_grace() {
    needs_server!();
    assert!((0..5).any(|_| are_respected_for_the_grace()), "late each time");
}

/// Returns whether the locks were asked for in time.
fn are_respected_for_the_grace() -> bool {
    let world = World::new();
    let (began, second) = (Instant::now(), jiff::Timestamp::from_second(world.go.now().as_second()).unwrap());
    let forms: [(&str, i64, i8); 5] = [
        ("whole", 0, 0),
        ("short", 500_000_000, 0),
        ("nine", 123_456_789, 0),
        ("west", 250_000_000, -8),
        ("east", 0, 14),
    ];
    for (key, nanos, zone) in forms {
        let until = second + jiff::SignedDuration::new(60, i32::try_from(nanos).unwrap());
        let text =
            if zone == 0 { until.to_string() } else { until.display_with_offset(jiff::tz::offset(zone)).to_string() };
        world.go.acquire_until(key, "x", until, text).unwrap();
    }
    let mut passed = Duration::ZERO;
    for (after, is_free) in [(59, false), (62, false), (68, true)] {
        let since = Instant::now();
        // Real time passes as well.
        let more = Duration::from_secs(after).saturating_sub(passed + began.elapsed());
        world.pass(more);
        passed += more;
        let ask = |key: &str| world.ours.try_lock(key).unwrap().is_some();
        let had: Vec<(&str, bool)> = std::thread::scope(|scope| {
            let asking = forms.map(|(key, ..)| (key, scope.spawn(move || ask(key))));
            asking.into_iter().map(|(key, asking)| (key, asking.join().unwrap())).collect()
        });
        let are_right = had.iter().all(|(_, is_had)| *is_had == is_free);
        assert!(are_right || !is_free, "{had:?} after {after} s");
        if !are_in_time(are_right, since, S) {
            return false;
        }
    }
    true
}

#[test]
fn what_they_would_not_respect_is_refused_with_the_reason() {
    let world = needs_server!(World::new());
    let ours = &world.ours;
    let minute = Duration::from_secs(60);
    let refused = [
        (ours.lock_shared("k").map(drop), "one owner"),
        (ours.request("k").lease_forever().lock().map(drop), "time to live"),
        (ours.leases("names").claim("a", "b", minute).map(drop), "another table"),
    ];
    for (outcome, why) in refused {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains("fleet=mixed") && text.contains("dynamodb-lock-go") && text.contains(why), "{text}");
    }
    assert!(world.raw.get("k").is_empty());
}

#[test]
fn the_word_in_the_url_is_checked() {
    let refused = [
        ("fleet=both", "must be own"),
        ("fleet=", "must be own"),
        ("fleet=mixed&grace=1s", "at least 5s"),
        ("flet=mixed", "did you mean \"fleet\""),
    ];
    for (option, right) in refused {
        let error = LockClient::connect(&format!("dynamodb://locks?region=us-east-1&{option}")).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Config && text.contains(right), "{option}: {text}");
    }
}

/// All clients of a table share the row of the grace, and it keeps clients of the other kind out.
#[test]
fn clients_without_the_option_are_refused_by_the_tables_own_record() {
    let world = needs_server!(World::new());
    let before = of(&world.table, &world.clock, Fleet::Own);
    let held = world.ours.lock("k").unwrap();
    let connect = |grace: u64| {
        let table = leasehold::dynamodb::Table::new(&world.table.0).grace(Duration::from_secs(grace));
        patient(config(), table).connect()
    };
    let error = connect(1).unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("grace=5000ms"), "{error}");
    // A client that connected before reads the note within ten minutes, and from then on waits for as long as the
    // others.
    world.pass(Duration::from_secs(11 * 60));
    let is_refused = |key: &str| {
        let since = Instant::now();
        world.go.acquire(key, "worker-1", LEASE).unwrap();
        // More than its own grace, and a second less than theirs, even if its time is as wrong as it may be.
        world.pass(Duration::from_secs(62));
        are_in_time(before.try_lock(key).unwrap().is_none(), since, S)
    };
    assert!(["t1", "t2", "t3", "t4", "t5"].into_iter().any(is_refused), "late each time");
    drop(held);
    // With the same grace they exclude each other, and the other library respects them.
    let held = before.try_lock("k").unwrap().unwrap();
    assert!(world.ours.try_lock("k").unwrap().is_none() && world.go.acquire("k", "w", LEASE) == Err(Unavailable));
    held.release().unwrap();
    let shared = before.try_lock_shared("k").unwrap().unwrap();
    assert!(world.ours.try_lock("k").unwrap().is_none() && world.go.acquire("k", "w", LEASE) == Err(Unavailable));
    shared.release().unwrap();
    let held = world.ours.try_lock("k").unwrap().unwrap();
    assert!(before.try_lock("k").unwrap().is_none() && before.try_lock_shared("k").unwrap().is_none());
    drop(held);
}

#[test]
fn who_did_not_expect_them_is_warned_once() {
    needs_server!();
    logs::keep();
    let (table, clock) = (Table::fresh(), Clock::system());
    let go = Go::new(&table, &clock);
    let key = unique;
    let (first, second, third, old) = (key(), key(), key(), key());
    for key in [&first, &second, &third] {
        go.acquire(key, "worker-1", LEASE).unwrap();
    }
    go.is_ahead_by(-2 * 3_600_000);
    go.acquire(&old, "worker-1", 3 * HOUR).unwrap();
    go.is_ahead_by(0);
    let ours = of(&table, &clock, Fleet::Own);
    assert!(ours.try_lock(&old).unwrap().is_none());
    assert_eq!(logs::kept(&old), [""; 0], "it was written two hours ago");
    assert!(ours.try_lock(&first).unwrap().is_none() && ours.try_lock(&second).unwrap().is_none());
    let warned = logs::kept(&first);
    assert!(warned.len() == 1 && warned[0].contains("fleet=mixed"), "{warned:?}");
    assert_eq!(logs::kept(&second), [""; 0], "once is enough");
    // Also by a look, and by a takeover that had seen nothing before.
    assert!(of(&table, &clock, Fleet::Own).get(&second).unwrap().is_some());
    assert_eq!(logs::kept(&second).len(), 1);
    clock.advance(LEASE + Duration::from_secs(3));
    let ours = of(&table, &clock, Fleet::Own);
    drop(ours.lock(&third).unwrap());
    assert_eq!(logs::kept(&third).len(), 1);
    // A client that only holds learns of it from the loss.
    for is_released in [false, true] {
        let (ours, key) = (of(&table, &clock, Fleet::Own), key());
        let held = ours.request(&key).owner("worker-1").acquire().unwrap();
        go.acquire(&key, "worker-1", LEASE).unwrap();
        if is_released {
            drop(ours.release(&held))
        } else {
            drop(ours.heartbeat(&held, LEASE))
        };
        assert_eq!(logs::kept(&key).len(), 1, "{is_released}");
    }
    // Older versions of theirs do not write when a lock was made.
    let aged = key();
    let mut row = Raw::new(&table).get(&second);
    row.remove("createdAt");
    row.insert("key".to_owned(), AttributeValue::S(aged.clone()));
    Raw::new(&table).put(row);
    assert!(of(&table, &clock, Fleet::Own).get(&aged).unwrap().is_some());
    assert_eq!(logs::kept(&aged).len(), 1);
    let mixed = of(&table, &clock, Fleet::Mixed);
    let last = key();
    go.acquire(&last, "worker-1", LEASE).unwrap();
    assert!(mixed.try_lock(&last).unwrap().is_none());
    assert_eq!(logs::kept(&last), [""; 0], "who expects them is not told");
}

#[test]
fn a_diagnosis_says_which_libraries_write_to_the_table() {
    let world = needs_server!(World::new());
    let written = || -> Vec<(&str, usize)> {
        let found = world.ours.diagnose().unwrap().writers.unwrap();
        assert!(found.iter().all(|writer| writer.last.elapsed().is_ok_and(|ago| ago < HOUR)));
        found.iter().map(|writer| (writer.library, writer.holders)).collect()
    };
    assert_eq!(written(), []);
    world.go.acquire("a", "worker-1", LEASE).unwrap();
    world.go.acquire("b", "worker-1", LEASE).unwrap();
    assert_eq!(written(), [("dynamodb-lock-go", 2)]);
    let _guard = world.ours.lock("c").unwrap();
    assert_eq!(written(), [("leasehold", 1), ("dynamodb-lock-go", 2)]);
}

/// As the guide says: their release deletes the row, and with it the token that is above all those that copies of many
/// acquires may still ask for. Tokens then begin again at the time.
#[test]
fn over_a_row_that_they_deleted_tokens_may_fall_by_what_the_guide_says() {
    let world = needs_server!(World::new());
    let ask = || world.ours.request("k");
    let fall = |before: u64| {
        let theirs = world.go.acquire("k", "worker-1", LEASE).unwrap();
        world.go.release(&theirs).unwrap();
        let lock = ask().acquire().unwrap();
        world.ours.release(&lock).unwrap();
        i128::from(before) - i128::from(lock.fencing_token())
    };
    let mut lock = ask().acquire().unwrap();
    for _ in 0..9 {
        lock = ask().adopt(lock).unwrap().into_lock();
    }
    world.ours.release(&lock).unwrap();
    assert!(fall(lock.fencing_token()) < 0, "with few hand-overs it rises");
    // The tokens are ahead of the time for seven seconds, which a busy machine may need.
    let falls = |_| {
        let began = Instant::now();
        let mut lock = ask().acquire().unwrap();
        for _ in 0..10 {
            lock = ask().adopt(lock).unwrap().into_lock();
        }
        world.ours.release(&lock).unwrap();
        let next = ask().acquire().unwrap();
        world.ours.release(&next).unwrap();
        let fell = fall(next.fencing_token());
        assert!(fell <= 9_000_000 && (fell > 0 || began.elapsed() > Duration::from_secs(5)), "{fell} us");
        fell > 0
    };
    assert!((0..5).any(falls), "late each time");
}

/// Somebody may run a diagnosis before anything is decided, so it must not keep all other clients out.
#[test]
fn a_diagnosis_notes_no_grace() {
    needs_server!();
    let (table, clock) = (Table::fresh(), Clock::system());
    let before = Raw::new(&table).all();
    let diagnosis = of(&table, &clock, Fleet::Mixed).diagnose().unwrap();
    assert!(diagnosis.rights.iter().all(|right| right.outcome.is_ok()), "{diagnosis:?}");
    assert_eq!(Raw::new(&table).all(), before);
    drop(patient(config(), &table.0).connect().unwrap().lock("k").unwrap());
}

/// As text, this end is smaller than the present time.
#[test]
fn what_is_written_in_another_way_is_read_and_not_compared() {
    let world = needs_server!(World::new());
    let until = world.go.now() + jiff::SignedDuration::from_secs(600);
    let put = |key: &str, text: String| {
        world.go.acquire_until(key, "x", until, until.to_string()).unwrap();
        let mut row = world.raw.get(key);
        row.insert("leasedUntil".to_owned(), AttributeValue::S(text));
        world.raw.put(row);
    };
    put("blank", until.to_string().replace('T', " "));
    assert!(world.ours.try_lock("blank").unwrap().is_none());
    for (key, text) in [("far", "10000-01-01T00:00:00Z"), ("signed", "+99999-01-01T00:00:00Z")] {
        put(key, text.to_owned());
        let before = world.raw.get(key);
        assert_eq!(world.ours.try_lock(key).unwrap_err().kind(), ErrorKind::Schema);
        assert_eq!(world.raw.get(key), before);
    }
}

/// If their client is given no end, it writes the first time that Go knows.
#[test]
fn an_end_before_all_times_is_over() {
    let world = needs_server!(World::new());
    let text = "0001-01-01T00:00:00Z";
    let put = |key: &str| world.go.acquire_until(key, "worker-1", text.parse().unwrap(), text.to_owned()).unwrap();
    for key in ["a", "b"] {
        put(key);
        let status = world.ours.get(key).unwrap().unwrap();
        assert!(status.is_free(), "{status:?}");
    }
    let freed = world.ours.purge(Duration::ZERO).unwrap().freed;
    assert_eq!(freed.len(), 2);
    put("a");
    drop(world.ours.try_lock("a").unwrap().unwrap());
}
