//! What `read`, `swap` and `schema` must do, and by when every call must return.

use std::time::{Duration, Instant};

use leasehold::internals::lease::{Lease, LockRecord};
use leasehold::internals::store::{Consistency, Purpose, Schema, Swapped, Which};
use leasehold::internals::sys::deadline::Deadline;

use crate::support::contract::*;
use crate::support::harness::within;
use crate::support::stores::{Store, soon};

fn keys(records: &[LockRecord]) -> Vec<&str> {
    records.iter().map(|record| record.key.as_str()).collect()
}

pub fn a_missing_row_is_read_with_the_time(store: &Store) {
    let at = (store.open)();
    let seen = at.get("k");
    assert_eq!(seen.record, LockRecord::missing("k"));
    assert!(seen.times.now.as_nanos() > 0 && seen.times.stamp > 0);
    assert_eq!(at.all(&Which::Prefix(String::new())), [], "reading makes no row");
    assert_eq!(at.all(&Which::LockId("id".to_owned())), []);
}

pub fn the_time_of_the_answers_goes_on(store: &Store) {
    let at = (store.open)();
    let before = at.get("k").times.now;
    let second =
        at.second.read(&Which::Key("k".to_owned()), None, Consistency::Eventual, &soon()).unwrap().records[0].times.now;
    assert!(second >= before, "both clients have one clock");
    // Where a test makes rows older instead, the store's own clock is not moved, and only runs on by itself.
    let passed = Duration::from_millis(if at.age.is_some() { 100 } else { 7_000 });
    at.advance(passed + at.slack);
    let started = Instant::now();
    while at.get("k").times.now.since(second) < passed {
        assert!(at.age.is_some() && started.elapsed() < Duration::from_secs(20), "the time stands still");
    }
    granted(&*at.store, &mut exclusive(&at, "k"));
    let seen = refused(&*at.second, &mut exclusive(&at, "k"));
    assert!(seen.times.now >= second && seen.times.now <= at.get("k").times.now);
}

pub fn a_prefix_is_bytes_and_no_pattern(store: &Store) {
    let at = (store.open)();
    for key in ["a", "a_b", "a%b", "axb", "A", "ab", "b", "a*", "\u{1}lease", "aé", "a\u{10ffff}"] {
        granted(&*at.store, &mut exclusive(&at, key));
    }
    let found = |prefix: &str| keys(&at.all(&Which::Prefix(prefix.to_owned()))).join(" ");
    assert_eq!(found("a_"), "a_b");
    assert_eq!(found("a%"), "a%b");
    assert_eq!(found("a*"), "a*");
    assert_eq!(found("A"), "A");
    assert_eq!(found("a"), "a a%b a* a_b ab axb aé a\u{10ffff}");
    assert_eq!(found("a\u{10ffff}"), "a\u{10ffff}");
    assert_eq!(found("\u{1}"), "\u{1}lease");
    assert_eq!(found("x"), "");
}

pub fn pages_have_every_record_once(store: &Store) {
    let at = (store.open)();
    let mut names: Vec<String> = (0..250).map(|i| format!("p/{i}")).collect();
    for name in &names {
        let mut attempt = exclusive(&at, name);
        attempt.ask.lock_id = "group".to_owned();
        granted(&*at.store, &mut attempt);
    }
    names.sort();
    for which in [Which::Prefix("p/".to_owned()), Which::LockId("group".to_owned())] {
        assert_eq!(keys(&at.all(&which)), names, "{which:?}");
        let first = at.page(&which, None);
        assert!(first.records.len() < names.len() && first.next.is_some(), "not all at once");
    }
    // The last row is also the end of a page.
    assert_eq!(at.all(&Which::Prefix("p/1".to_owned())).len(), 111);
    let first = at.page(&Which::Prefix("p/".to_owned()), None);
    let is_there = |name: &String| first.records.iter().any(|seen| seen.record.key == *name);
    for name in names.iter().filter(|name| !is_there(name)) {
        let seen = at.get(name);
        at.store.swap(&seen, None, &soon()).unwrap();
    }
    assert_eq!(at.all(&Which::Prefix("p/".to_owned())).len(), first.records.len());
}

pub fn a_lock_id_finds_every_holder(store: &Store) {
    let at = (store.open)();
    for (key, mode) in [("x", 'x'), ("s", 's'), ("free", 'x'), ("expired", 's')] {
        let mut attempt = if mode == 'x' { exclusive(&at, key) } else { shared(&at, key) };
        attempt.ask.lock_id = "it's".to_owned();
        granted(&*at.store, &mut attempt);
        match key {
            "free" => drop(release(&*at.store, &mut attempt)),
            "expired" => at.expire(),
            _ => {}
        }
    }
    granted(&*at.store, &mut shared(&at, "s"));
    granted(&*at.store, &mut exclusive(&at, "other"));
    let mut found = at.all(&Which::LockId("it's".to_owned()));
    // `s` was granted to another holder after the first one had expired.
    found.retain(|record| record.key != "s");
    assert_eq!(keys(&found), ["expired", "x"], "expired ones, too");
    assert_eq!(at.all(&Which::LockId("it".to_owned())), [], "the whole lock id, not its beginning");
}

pub fn a_swap_is_written_if_nothing_changed(store: &Store) {
    let at = (store.open)();
    granted(&*at.store, &mut exclusive(&at, "k"));
    let seen = at.get("k");
    let mut freed = raised(&seen.record);
    freed.exclusive = None;
    assert!(matches!(at.second.swap(&seen, Some(&freed), &soon()), Ok(Swapped::Done)));
    let after = at.record("k");
    assert_eq!((after.holders().count(), after.token), (0, seen.record.token));
    assert!(matches!(at.store.swap(&seen, Some(&freed), &soon()), Ok(Swapped::Changed)), "not twice");
    assert!(matches!(at.store.swap(&seen, None, &soon()), Ok(Swapped::Changed)));
    assert!(matches!(at.store.swap(&at.get("k"), None, &soon()), Ok(Swapped::Done)));
    assert!(!at.record("k").exists());
}

pub fn a_swap_sees_every_change(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    let changed = |change: &mut dyn FnMut()| {
        let seen = at.get("k");
        change();
        let after = at.record("k");
        let swapped = at.store.swap(&seen, Some(&raised(&seen.record)), &soon());
        assert!(matches!(swapped, Ok(Swapped::Changed)), "{swapped:?}");
        assert_eq!(at.record("k"), after);
    };
    changed(&mut || {
        renewed(&*at.second, &mut a, renewal(Lease::For(2 * LEASE)));
    });
    changed(&mut || drop(release(&*at.second, &mut a)));
    changed(&mut || drop(granted(&*at.second, &mut shared(&at, "k"))));
    changed(&mut || drop(granted(&*at.second, &mut shared(&at, "k"))));
    changed(&mut || at.edit("k", |record| record.pins.extend(["pin".to_owned()])));
    changed(&mut || drop(at.store.swap(&at.get("k"), None, &soon())));
    // If it is made anew, it counts as another row.
    granted(&*at.store, &mut exclusive(&at, "k"));
    changed(&mut || {
        at.store.swap(&at.get("k"), None, &soon()).unwrap();
        granted(&*at.store, &mut exclusive(&at, "k"));
    });
}

pub fn a_swap_makes_a_row_once(store: &Store) {
    let at = (store.open)();
    let seen = at.get("k");
    assert!(matches!(at.store.swap(&seen, None, &soon()), Ok(Swapped::Done)), "nothing stays nothing");
    let mut pinned = raised(&seen.record);
    pinned.pins.insert("pin".to_owned());
    assert!(matches!(at.store.swap(&seen, Some(&pinned), &soon()), Ok(Swapped::Done)));
    assert!(matches!(at.second.swap(&seen, Some(&pinned), &soon()), Ok(Swapped::Changed)));
    assert!(matches!(at.second.swap(&seen, None, &soon()), Ok(Swapped::Changed)), "what came is not deleted");
    assert_eq!(at.record("k").pins, pinned.pins);
}

pub fn the_schema_can_be_made_again(store: &Store) {
    let at = (store.open)();
    let held = granted(&*at.store, &mut exclusive(&at, "k"));
    for what in [Schema::Describe, Schema::Create, Schema::Create, Schema::Check] {
        let text = at.store.schema(what, &soon()).unwrap();
        assert!(!text.is_empty(), "{what:?} says something");
    }
    assert_eq!(at.holders("k"), [held], "and nothing is lost");
    assert!(!at.store.info().label.is_empty());
}

/// Such a call may do its work or fail, but it must not wait.
pub fn a_call_whose_deadline_is_over_returns(store: &Store) {
    let at = (store.open)();
    let mut a = exclusive(&at, "k");
    granted(&*at.store, &mut a);
    let seen = at.get("k");
    let over = Deadline::after(Duration::ZERO);
    within("all of them", Duration::from_secs(2), || {
        let _ = at.store.acquire(&mut exclusive(&at, "k"), &over);
        let _ = at.store.renew(&mut a, renewal(Lease::For(LEASE)), &over);
        let _ = at.store.release(&mut a, Purpose::Release, &over);
        let _ = at.store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &over);
        let _ = at.store.swap(&seen, None, &over);
        let _ = at.store.schema(Schema::Check, &over);
    });
}
