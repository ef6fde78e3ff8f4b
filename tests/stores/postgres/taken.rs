//! A lock that is taken away while its holder lives: a late copy of the holder's acquire is granted to nobody.

use leasehold::LockClient;
use leasehold::internals::lease::{Holder, LockRecord};
use leasehold::internals::store::{Acquired, Attempt, Swapped};

use crate::postgres::*;
use crate::support::contract::{granted, lost, raised, release};
use crate::support::postgres::{Rows, connected};
use crate::support::wait::wait_until;

/// Writes what `edit` makes of the record.
fn edit(store: &Postgres, key: &str, edit: impl FnOnce(&mut LockRecord)) {
    let seen = get(store, key);
    let mut record = raised(&seen.record);
    edit(&mut record);
    let swapped = store.swap(&seen, Some(&record), &soon()).unwrap();
    assert!(matches!(swapped, Swapped::Done), "{swapped:?}");
}

fn free(store: &Postgres, key: &str) {
    edit(store, key, |record| (record.exclusive, record.shared) = (None, Vec::new()));
}

/// As a minimum hold keeps its place.
fn keep(store: &Postgres, a: &Attempt, _: &Holder) {
    let other = exclusive(store, &a.key).ask.grant;
    edit(store, &a.key, |record| match &mut record.exclusive {
        Some(holder) => holder.grant = other,
        None => record.shared[0].grant = other,
    });
    free(store, &a.key);
}

fn force(store: &Postgres, a: &Attempt, _: &Holder) {
    free(store, &a.key);
}

fn adopt(store: &Postgres, a: &Attempt, old: &Holder) {
    let mut b = instead_of(store, &a.key, a.ask.mode, old);
    b.ask.lock_id = old.lock_id.clone();
    granted(store, &mut b);
    release(store, &mut b);
}

fn replace(store: &Postgres, a: &Attempt, old: &Holder) {
    let mut b = exclusive(store, &a.key);
    (b.ask.replace_same_owner, b.ask.labels) = (true, old.labels.clone());
    granted(store, &mut b);
    release(store, &mut b);
}

#[test]
fn a_copy_of_what_was_taken_away_is_not_granted() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    type Way = fn(&Postgres, &Attempt, &Holder);
    let ways: [(&str, Way); 4] = [("keep", keep), ("force", force), ("adopt", adopt), ("replace", replace)];
    for (name, way) in ways {
        for mode in [Mode::Exclusive, Mode::Shared] {
            if (name, mode) == ("replace", Mode::Shared) {
                continue;
            }
            let mut a = attempt(&store, &format!("{name} {mode}"), mode);
            let old = granted(&store, &mut a);
            way(&store, &a, &old);
            // The same statement once more.
            let answer = store.acquire(&mut a, &soon()).unwrap();
            assert!(matches!(answer, Acquired::Refused(_)), "{name} {mode}: {answer:?}");
            assert_eq!(holders(&store, &a.key), [], "{name} {mode}");
            lost(&store, &mut a);
            // Everybody else may get the lock.
            granted(&store, &mut exclusive(&store, &a.key));
        }
    }
}

/// A lease may be shorter than a copy is late.
#[test]
fn a_copy_of_what_expired_before_or_after_it_was_adopted_is_not_granted() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for mode in [Mode::Exclusive, Mode::Shared] {
        for expires_first in [true, false] {
            let mut a = attempt(&store, &format!("{mode} {expires_first}"), mode);
            a.ask.lease = Postgres::MIN_LEASE;
            let old = granted(&store, &mut a);
            let is_over = || {
                let seen = get(&store, &a.key);
                seen.record.live(seen.times.now).next().is_none()
            };
            if expires_first {
                wait_until("its lease ends", is_over);
            }
            let mut b = instead_of(&store, &a.key, mode, &old);
            (b.ask.lock_id, b.ask.lease) = (old.lock_id.clone(), Postgres::MIN_LEASE);
            granted(&store, &mut b);
            wait_until("the adopted one ends", is_over);
            let answer = store.acquire(&mut a, &soon()).unwrap();
            assert!(matches!(answer, Acquired::Refused(_)), "{}: {answer:?}", a.key);
            // Everybody else may get the lock.
            granted(&store, &mut attempt(&store, &a.key, mode));
        }
    }
}

/// Otherwise its holder, which was stopped meanwhile, would make a fenced write after a rival has had the lock.
#[test]
fn a_copy_of_what_expired_is_not_granted_once_another_has_had_it() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for (mode, rival) in [(Mode::Exclusive, Mode::Exclusive), (Mode::Exclusive, Mode::Shared)] {
        let mut a = attempt(&store, &format!("{mode} {rival}"), mode);
        a.ask.lease = Postgres::MIN_LEASE;
        granted(&store, &mut a);
        wait_until("its lease ends", || {
            let seen = get(&store, &a.key);
            seen.record.live(seen.times.now).next().is_none()
        });
        let mut b = attempt(&store, &a.key, rival);
        granted(&store, &mut b);
        release(&store, &mut b);
        let answer = store.acquire(&mut a, &soon()).unwrap();
        assert!(matches!(answer, Acquired::Refused(_)), "{}: {answer:?}", a.key);
    }
}

/// As when every client that takes the lock dies.
#[test]
fn those_who_expired_are_forgotten_once_no_copy_can_come() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    let count = || rows.one("SELECT (SELECT count(*) FROM jsonb_object_keys(given_up))::text FROM {T}").unwrap();
    for remembered in ["1", "2", "1"] {
        rows.sql("UPDATE {T} SET until = clock_timestamp()");
        if remembered == "1" {
            rows.sql("UPDATE {T} SET given_up = (SELECT jsonb_object_agg(key, 1) FROM jsonb_each(given_up))");
        }
        granted(&store, &mut exclusive(&store, "k"));
        assert_eq!(count(), remembered);
    }
}

/// There may be thousands of these a second, and each acquire was sent only once.
#[test]
fn a_lock_that_goes_down_the_line_leaves_no_trace() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut a = exclusive(&store, "k");
    let mut old = granted(&store, &mut a);
    for _ in 0..3 {
        let mut next = instead_of(&store, "k", Mode::Exclusive, &old);
        next.ask.lock_id = old.lock_id.clone();
        next.replaces_sent_once = true;
        old = granted(&store, &mut next);
    }
    assert_eq!(rows.one("SELECT given_up::text FROM {T}"), None);
}

#[test]
fn a_guard_that_goes_down_the_line_leaves_no_trace() {
    needs_server!();
    let rows = Rows::fresh();
    let client = connected(|| LockClient::builder(rows.url()));
    let held = client.lock("k").unwrap();
    std::thread::scope(|scope| {
        let (told, waits) = std::sync::mpsc::channel();
        let client = &client;
        let next = scope.spawn(move || {
            let request = client.request("k");
            request.on_wait(move |_| told.send(()).unwrap_or_default()).lock().unwrap().release().unwrap();
        });
        waits.recv().unwrap();
        held.release().unwrap();
        next.join().unwrap();
    });
    assert_eq!(rows.one("SELECT given_up::text FROM {T}"), None);
}
