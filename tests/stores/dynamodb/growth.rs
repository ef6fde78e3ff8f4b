//! The size of a row is bounded, whichever calls are made and however often.

use std::collections::HashMap;

use leasehold::internals::store::{Consistency, Purpose, Released, Renewed};
use leasehold::{LockClient, SameOwner};

use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::*;
use crate::support::dynamodb::Table;
use crate::support::logs;
use crate::support::proxy::{Mode as Network, Rule};
use crate::support::stores::soon;
use crate::support::wait::wait_until;

/// A row with a few holders and no given-up grants has about 700 bytes.
const MOST: usize = 2_000;
/// How often each call is made: if each left a grant id of 36 bytes, that would be 2,160.
const ROUNDS: usize = 60;
const LATE: Duration = Duration::from_secs(3);

/// The size as the service counts it: names and values.
fn size(item: &HashMap<String, AttributeValue>) -> usize {
    let of = |value: &AttributeValue| match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.len(),
        AttributeValue::Ss(all) => all.iter().map(String::len).sum(),
        AttributeValue::M(map) => size(map),
        other => panic!("{other:?}"),
    };
    item.iter().map(|(name, value)| name.len() + of(value)).sum()
}

/// One call or two, on this key.
type Calls = fn(&LockClient, &str);

fn ends(client: &LockClient, key: &str, end: impl Fn(&LockClient, &str)) {
    client.request(key).lock_id(format!("of {key}")).acquire().unwrap();
    end(client, key);
}

const CALLS: [(&str, Calls); 12] = [
    ("lock", |client, key| client.lock(key).unwrap().release().unwrap()),
    ("lock_shared", |client, key| {
        let _first = client.lock_shared(key).unwrap();
        drop(client.lock_shared(key).unwrap());
    }),
    ("acquire, release", |client, key| {
        let lock = client.request(key).acquire().unwrap();
        client.release(&client.heartbeat(&lock, LEASE).unwrap()).unwrap();
    }),
    ("acquire, unlock", |client, key| {
        ends(client, key, |client, key| drop(client.unlock(&format!("of {key}")).unwrap()))
    }),
    ("acquire, unlock_key", |client, key| {
        ends(client, key, |client, key| drop(client.unlock_key(key, &format!("of {key}")).unwrap()));
    }),
    ("acquire, force_release", |client, key| ends(client, key, |client, key| drop(client.force_release(key).unwrap()))),
    ("shared, force_release", |client, key| {
        for _ in 0..2 {
            client.request(key).shared().acquire().unwrap();
        }
        client.force_release(key).unwrap();
    }),
    ("same owner", |client, key| {
        client.request(key).owner("one").same_owner(SameOwner::Replace).acquire().unwrap();
    }),
    ("adopt", chain),
    ("claim, revoke", |client, key| {
        let leases = client.leases("growth");
        leases.claim(key, "me", LEASE).unwrap();
        leases.extend(key, "me", LEASE * 2).unwrap();
        leases.revoke(key, "me").unwrap();
    }),
    ("pin, unpin", |client, key| {
        let leases = client.leases("growth");
        leases.pin(key, "me").unwrap();
        leases.unpin(key, "me").unwrap();
    }),
    ("renew", |client, key| {
        let lock = client.request(key).acquire().unwrap();
        client.renew(lock.lock_id(), LEASE).unwrap();
        client.unlock(lock.lock_id()).unwrap();
    }),
];

/// Handed over several times without a heartbeat in between.
fn chain(client: &LockClient, key: &str) {
    let mut lock = client.request(key).acquire().unwrap();
    for _ in 0..3 {
        lock = client.adopt(lock).unwrap().into_lock();
    }
    client.unlock_key(key, lock.lock_id()).unwrap();
}

#[test]
fn no_call_makes_a_row_grow() {
    let table = needs_server!(Table::fresh());
    std::thread::scope(|scope| {
        for (what, calls) in CALLS {
            let table = &table;
            scope.spawn(move || {
                let client = patient(config(), &table.0).lease(LEASE).connect().unwrap();
                (0..ROUNDS).for_each(|_| calls(&client, what));
            });
        }
    });
    let rows = Raw::new(&table).all();
    assert!(rows.len() >= CALLS.len(), "{rows:?}");
    let too_large: Vec<(usize, &AttributeValue)> =
        rows.iter().map(|row| (size(row), &row["key"])).filter(|(size, _)| *size > MOST).collect();
    assert!(too_large.is_empty(), "{too_large:?}");
}

/// No public call does this by itself: it takes answers that never arrive.
#[test]
fn what_is_given_up_makes_no_row_grow() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let (mut stands, mut reader) = (exclusive("held"), shared("shared"));
    let held = granted(&store, &mut stands);
    granted(&store, &mut reader);
    for _ in 0..70 {
        for key in ["free", "held", "shared"] {
            store.release(&mut exclusive(key), Purpose::GiveUp, &soon()).unwrap();
        }
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut twice = attempt(&format!("twice {mode}"), mode);
            granted(&store, &mut twice);
            twice.sends = 2;
            assert!(matches!(store.release(&mut twice, Purpose::Release, &soon()).unwrap(), Released::Done));
        }
        let mut standing = shared("shared");
        granted(&store, &mut standing);
        assert!(matches!(store.release(&mut standing, Purpose::GiveUp, &soon()).unwrap(), Released::Done));
    }
    for key in ["free", "held", "shared", "twice exclusive", "twice shared"] {
        let row = raw.get(key);
        assert!(size(&row) < MOST, "{key}: {} {row:?}", size(&row));
    }
    assert_eq!(get(&store, "held").record.exclusive, Some(held), "nothing of it moved");
    assert!(matches!(store.release(&mut stands, Purpose::Release, &soon()).unwrap(), Released::Done));
    granted(&store, &mut exclusive("held"));
}

/// dynamodb-lock-go does so when it releases a lock that it took over.
#[test]
fn tokens_rise_again_soon_after_a_floor_although_another_deletes_the_row() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, clock)) = (Raw::new(&table), client(&table));
    (0..10).for_each(|_| drop(store.release(&mut exclusive("k"), Purpose::GiveUp, &soon()).unwrap()));
    let mut first = exclusive("k");
    let token = granted(&store, &mut first).token;
    store.release(&mut first, Purpose::Release, &soon()).unwrap();
    raw.delete("k");
    clock.advance(Duration::from_secs(4));
    assert!(granted(&store, &mut exclusive("k")).token > token);
}

#[test]
fn many_that_are_released_at_once_make_no_row_grow() {
    let table = needs_server!(Table::fresh());
    let (raw, client) = (Raw::new(&table), patient(config(), &table.0).connect().unwrap());
    for _ in 0..12 {
        client.request("k").shared().acquire().unwrap();
    }
    assert_eq!(client.force_release("k").unwrap().len(), 12);
    assert!(size(&raw.get("k")) < 400, "{:?}", raw.get("k"));
    client.lock("k").unwrap().release().unwrap();
}

#[test]
fn a_group_is_not_lost_by_a_time_in_doubt() {
    let at = needs_server!(Behind::new());
    let (store, clock) = telling(&at);
    let client = crate::support::bench::builder_over(Arc::new(store), clock).connect().unwrap();
    let lock = client.request("k").acquire().unwrap();
    at.proxy.add(Rule::next(1, Network::ShiftDate(3_600)).on("DynamoDB_20120810.Scan"));
    assert_eq!(client.renew(lock.lock_id(), LEASE).unwrap().len(), 1);
    let until = at.holders("k")[0].until;
    assert!(until.left(get(&at.beside, "k").times.now).unwrap() < LEASE + Duration::from_secs(3), "{until:?}");
}

/// The row has no room for all their grant ids: they are stopped because later tokens are above theirs.
#[test]
fn of_many_that_gave_up_none_is_granted_however_late_it_comes() {
    let at = needs_server!(Behind::new());
    let key = |mode: Mode, first: Mode| format!("{mode} after {first}");
    let all = [Mode::Exclusive, Mode::Shared].map(|mode| [Mode::Exclusive, Mode::Shared].map(|first| (mode, first)));
    for (mode, first) in all.into_iter().flatten() {
        let key = key(mode, first);
        let mut holder = attempt(&key, first);
        granted(&at.beside, &mut holder);
        for _ in 0..20 {
            at.proxy.add(Rule::next(1, Network::CutLate(LATE)).on("UpdateItem"));
            let mut late = attempt(&key, mode);
            late.sends = 1;
            match at.store.acquire(&mut late, &soon()).unwrap() {
                Acquired::Unknown(_) => {}
                other => panic!("{key}: {other:?}"),
            }
            assert!(!matches!(at.store.release(&mut late, Purpose::GiveUp, &soon()).unwrap(), Released::Unknown(_)));
        }
        at.beside.release(&mut holder, Purpose::Release, &soon()).unwrap();
        assert!(at.record(&key).given_up.len() < 12, "{key}");
    }
    at.proxy.wait_until("late requests are delivered", |all| {
        all.iter().filter(|one| one.has("UpdateItem")).all(|one| one.answered > 0)
    });
    for (mode, first) in all.into_iter().flatten() {
        let key = key(mode, first);
        assert_eq!(at.holders(&key), [], "{key}");
        granted(&at.beside, &mut attempt(&key, mode));
    }
}

/// A store that believes the time that comes through the proxy.
fn telling(at: &Behind) -> (Dynamodb, Arc<Clock>) {
    let (clock, settings) = (Clock::system(), Settings::Given(Box::new(config_at(&at.proxy.url()))));
    (open(DynamodbOptions::new(&at.table.0, settings), &clock), clock)
}

#[test]
fn a_floor_that_is_made_while_the_time_is_in_doubt_stops_them_too() {
    let at = needs_server!(Behind::new());
    let (store, _) = telling(&at);
    let gives_up = |key: &str| store.release(&mut exclusive(key), Purpose::GiveUp, &soon()).unwrap();
    (0..9).for_each(|_| drop(gives_up("k")));
    let before = get(&at.beside, "k").times.stamp;
    // This shifts the answer that shows that the row is full.
    at.proxy.add(Rule::next(1, Network::ShiftDate(-3_600)).on("UpdateItem"));
    gives_up("k");
    let row = Raw::new(&at.table).get("k");
    let number = |row: &HashMap<_, AttributeValue>, name: &str| row[name].as_n().unwrap().parse::<u64>().unwrap();
    assert!(number(&row, "floor") > before, "{row:?}");
    at.proxy.add(Rule::next(1, Network::ShiftDate(-3_600)).on("GetItem"));
    store.read(&Which::Key("k".to_owned()), None, Consistency::Eventual, &soon()).unwrap();
    gives_up("k");
    assert!(number(&Raw::new(&at.table).get("k"), "givenUpAt") >= before, "{row:?}");
}

#[test]
fn a_purge_deletes_nothing_while_the_time_is_in_doubt() {
    let at = needs_server!(Behind::new());
    let (store, clock) = telling(&at);
    let client = crate::support::bench::builder_over(Arc::new(store), clock).connect().unwrap();
    client.lock("k").unwrap().release().unwrap();
    at.proxy.add(Rule::next(1, Network::ShiftDate(31 * 86_400)).on("DynamoDB_20120810.Scan"));
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 0);
    assert!(at.record("k").token > 0);
}

/// The late copy expects a missing row, as the first pin found it.
#[test]
fn a_late_copy_of_a_pin_does_not_bring_it_back_after_a_purge() {
    let at = needs_server!(Behind::new());
    let (store, clock) = telling(&at);
    let client = crate::support::bench::builder_over(Arc::new(store), clock).connect().unwrap();
    let leases = client.leases("growth");
    at.proxy.add(Rule::next(1, Network::CutLate(LATE)).on("UpdateItem"));
    leases.pin("app", "me").unwrap();
    leases.unpin("app", "me").unwrap();
    client.purge(Duration::ZERO).unwrap();
    at.proxy.wait_until("the late copy is delivered", |all| {
        all.iter().filter(|one| one.has("UpdateItem")).all(|one| one.answered > 0)
    });
    assert!(leases.pinned_by("app").unwrap().is_empty());
}

/// Moves the times of the row back by a year.
fn aged(raw: &Raw, key: &str) {
    let mut row = raw.get(key);
    for (name, value) in &mut row {
        if let ("fence" | "givenUpAt" | "floor" | "version", AttributeValue::N(number)) = (name.as_str(), value) {
            // Not every version is a time.
            *number = number.parse::<u64>().unwrap().saturating_sub(365 * 86_400_000_000).max(1).to_string();
        }
    }
    raw.put(row);
}

#[test]
fn what_nobody_used_for_a_month_is_deleted_whatever_it_holds() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let client = patient(config(), &table.0).lease(LEASE).connect().unwrap();
    let leases = client.leases("growth");
    for key in ["old", "new"] {
        granted(&store, &mut exclusive(&format!("expired {key}")));
        store.release(&mut exclusive(&format!("never held {key}")), Purpose::GiveUp, &soon()).unwrap();
        for _ in 0..20 {
            store.release(&mut exclusive(&format!("crowd {key}")), Purpose::GiveUp, &soon()).unwrap();
        }
        leases.claim(&format!("free {key}"), "me", LEASE).unwrap();
        leases.revoke(&format!("free {key}"), "me").unwrap();
        leases.claim(&format!("held {key}"), "me", Duration::from_millis(1_000)).unwrap();
        leases.pin(&format!("pinned {key}"), "me").unwrap();
        leases.pin(&format!("unpinned {key}"), "me").unwrap();
        leases.unpin(&format!("unpinned {key}"), "me").unwrap();
    }
    for row in raw.all() {
        let key = row["key"].as_s().unwrap();
        if key.ends_with("old") {
            aged(&raw, key);
            let mut row = raw.get(key);
            // A row without a token but with a later end would count as one of dynamodb-lock-go.
            if row.contains_key("fence") {
                row.insert("leasedUntil".to_owned(), AttributeValue::S("2026-01-01T00:00:00.000000000Z".to_owned()));
                raw.put(row);
            }
        }
    }
    // As older clients wrote it, which did not note when.
    let now = get(&store, "k").times.stamp;
    for (key, version) in [("gave up old", now - 365 * 86_400_000_000), ("gave up new", now)] {
        raw.put(HashMap::from([
            ("key".to_owned(), AttributeValue::S(key.to_owned())),
            ("leasedUntil".to_owned(), AttributeValue::S("1970-01-01T00:00:00.000000000Z".to_owned())),
            ("givenUp".to_owned(), AttributeValue::Ss(vec!["a".repeat(36)])),
            ("version".to_owned(), AttributeValue::N(version.to_string())),
        ]));
    }
    let purged = client.purge(Duration::from_secs(60)).unwrap();
    let mut left: Vec<String> = raw.all().iter().map(|row| row["key"].as_s().unwrap().clone()).collect();
    left.sort();
    let lease = |name: &str| format!("\u{1}growth\u{1}{name}");
    let mut right =
        ["free new", "held new", "held old", "pinned new", "pinned old", "unpinned new"].map(lease).to_vec();
    // Also the note of the grace.
    right.extend(["\u{1}time", "crowd new", "expired new", "gave up new", "never held new"].map(str::to_owned));
    assert_eq!((purged.deleted, left), (6, right));
    // A lease remains its holder's until somebody expires it.
    leases.expire("held old").unwrap();
}

/// The service's limit for a condition has no room for all of them.
#[test]
fn any_number_of_expired_shared_holders_lets_one_join() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let mut first = shared("k");
    granted(&store, &mut first);
    let mut row = raw.get("k");
    let AttributeValue::M(holders) = row.get_mut("shared").unwrap() else { panic!("no map") };
    let entry = holders[first.ask.grant.as_str()].clone();
    for i in 0..150 {
        let AttributeValue::M(mut old) = entry.clone() else { panic!("no entry") };
        let until = format!("2026-01-01T00:00:00.{i:09}Z");
        old.insert("leasedUntil".to_owned(), AttributeValue::S(until));
        old.insert("lockId".to_owned(), AttributeValue::S(format!("group {i}")));
        holders.insert(format!("{:036}", i), AttributeValue::M(old));
    }
    raw.put(row);
    let mut left = Vec::new();
    for _ in 0..4 {
        granted(&store, &mut shared("k"));
        left.push(get(&store, "k").record.shared.len());
    }
    assert_eq!(left, [102, 53, 4, 5], "fifty go with each that joins");
    assert!(get(&store, "k").record.standing(first.grant()).is_some());
}

/// A first heartbeat adds its time to the row.
#[test]
fn whoever_joins_leaves_room_for_everybodys_first_heartbeat() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let mut all = vec![shared("k")];
    granted(&store, &mut all[0]);
    let mut row = raw.get("k");
    let AttributeValue::M(holders) = row.get_mut("shared").unwrap() else { panic!("no map") };
    let AttributeValue::M(mut large) = holders[all[0].ask.grant.as_str()].clone() else { panic!("no entry") };
    // Twenty of these are about 4 KB less than what the service allows.
    large.insert("comment".to_owned(), AttributeValue::S("c".repeat(20_000)));
    for _ in 0..20 {
        let one = shared("k");
        holders.insert(one.ask.grant.as_str().to_owned(), AttributeValue::M(large.clone()));
        all.push(one);
    }
    raw.put(row);
    let refused = loop {
        let mut one = shared("k");
        match store.acquire(&mut one, &soon()) {
            Ok(Acquired::Granted { .. }) => all.push(one),
            other => break other.unwrap_err(),
        }
    };
    assert_eq!(refused.kind(), leasehold::ErrorKind::InvalidInput, "{refused}");
    assert!(refused.to_string().contains("400 KB"), "{refused}");
    assert!(all.len() > 21, "somebody joined");
    for one in &mut all {
        let renewed = store.renew(one, renewal(LEASE), &soon()).unwrap();
        assert!(matches!(renewed, Renewed::Until { .. }), "{renewed:?}");
    }
}

#[test]
fn a_row_that_grows_large_is_warned_of_once() {
    needs_server!();
    logs::keep();
    let table = Table::fresh();
    let (store, _) = client(&table);
    let key = table.0.as_str();
    let join = || {
        let mut one = shared(key);
        one.ask.labels.comment = Some("c".repeat(1_024));
        granted(&store, &mut one);
    };
    let warned = || logs::kept(key);
    (0..12).for_each(|_| join());
    assert_eq!(warned(), [""; 0]);
    (0..8).for_each(|_| join());
    let warned = warned();
    assert!(warned.len() == 1 && warned[0].contains("KB") && warned[0].contains("1,000 KB"), "{warned:?}");
}

#[test]
fn more_shared_holders_than_can_renew_are_refused() {
    let table = needs_server!(Table::fresh());
    let client = patient(config(), &table.0).connect().unwrap();
    let ask = |lease: u64, n| client.request("k").max_holders(n).lease(Duration::from_secs(lease));
    for (lease, most) in [(1, 36), (20, 163), (60, 282), (86_400, 1_400)] {
        let error = ask(lease, most + 1).try_lock().unwrap_err();
        let told = error.to_string();
        assert_eq!(error.kind(), leasehold::ErrorKind::InvalidInput, "{told}");
        for word in ["max_holders", &format!("at most {most} "), "1,000 KB", "256 bytes", "400 KB"] {
            assert!(told.contains(word), "{word}: {told}");
        }
        // A busy machine may use up a lease of one second.
        let release = || ask(lease, most).try_lock().unwrap().is_some_and(|guard| guard.release().is_ok());
        wait_until("it is allowed", release);
    }
    client.request("k").max_holders(1_400).lease_forever().acquire().unwrap();
}
