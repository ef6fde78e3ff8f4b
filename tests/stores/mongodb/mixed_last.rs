//! A collection that clients of mongo-lock also use: in its last second, a lock of ours is not extended, because their
//! purger reads what is over and frees it later by its lock id.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::internals::lease::End;
use leasehold::internals::store::fleet::Fleet;
use leasehold::internals::store::mongodb::MongodbOptions;
use leasehold::internals::store::{Backend, Consistency, Swapped, Which};
use leasehold::internals::sys::clock::Clock;
use leasehold::mongodb::driver::bson::doc;
use leasehold::{ErrorKind, Lock, LockClient};

use super::mixed::{LEASE, World, client};
use crate::mixed::cells::S;
use crate::mongodb::*;
use crate::support::bench::builder_over;
use crate::support::mongodb::{Rows, server};
use crate::support::stores::soon;
use crate::support::wait::wait_until;

/// Their purger reads what is over, and frees it later by its id: a lock that was renewed meanwhile would be freed as
/// well.
#[test]
fn nothing_of_the_last_second_is_renewed() {
    needs_server!();
    for (key, is_shared) in [("x", false), ("s", true)] {
        assert!((0..5).any(|_| is_not_renewed(key, is_shared)), "the client itself freed it each time");
    }
}

/// Returns `false` if a busy machine took so long that the client itself may have freed what is over, as it does every
/// ten seconds.
fn is_not_renewed(key: &str, is_shared: bool) -> bool {
    let (world, began) = (World::new(), Instant::now());
    world.has_freed();
    let ask = || if is_shared { world.ours.request(key).shared() } else { world.ours.request(key) };
    let mine = ask().lock_id("job").acquire().unwrap();
    world.pass(LEASE - Duration::from_millis(800));
    let late = world.ours.heartbeat(&mine, LEASE).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost, "{late}");
    world.pass(S);
    let expired = world.go.expired();
    assert_eq!(world.ours.heartbeat(&mine, LEASE).unwrap_err().kind(), ErrorKind::Lost);
    let freed = world.go.free_all(&expired);
    if began.elapsed() >= 10 * S {
        return false;
    }
    assert_eq!((expired.len(), freed.len()), (1, 1));
    assert!(world.ours.try_lock(key).unwrap().is_some());
    true
}

/// The lock would keep its lock id, by which their purger frees what it read as over.
#[test]
fn nothing_of_the_last_second_is_handed_over() {
    let world = needs_server!(World::new());
    for (key, is_shared) in [("x", false), ("s", true)] {
        let ask = || if is_shared { world.ours.request(key).shared() } else { world.ours.request(key) };
        let adopt = |lock: &Lock| world.ours.request(key).adopt(lock.clone());
        let in_time = ask().lock_id("job").acquire().unwrap();
        world.pass(LEASE - 20 * S);
        let late = adopt(&in_time).unwrap().into_lock();
        world.pass(LEASE - Duration::from_millis(800));
        let error = adopt(&late).unwrap_err();
        assert!(error.kind() == ErrorKind::Lost && error.holders().is_empty(), "{error}");
        world.pass(S);
        assert_eq!(adopt(&late).unwrap_err().kind(), ErrorKind::Lost);
        // Without the option, holders have until they are taken over, or until a client with the option frees what is
        // over.
        let rows = Rows::fresh();
        let own = client(&rows, Fleet::Own);
        let over = own.request(key).acquire().unwrap();
        rows.age(LEASE + S);
        own.request(key).adopt(over).unwrap().release().unwrap();
    }
}

/// In its last second a lock is not handed over, but it is released.
#[test]
fn a_lock_in_its_last_second_is_released_also_where_somebody_waits() {
    let world = needs_server!(World::new());
    assert!((0..10).any(|_| is_released_in_its_last_second(&world)), "it was over each time");
}

/// Returns `false` if a busy machine used up what was left: then the waiter may have taken the lock over.
fn is_released_in_its_last_second(world: &World) -> bool {
    const LEFT: Duration = Duration::from_millis(800);
    let asked = Instant::now();
    let guard = world.ours.lock("x").unwrap();
    let granted = Instant::now();
    let (told, tells) = std::sync::mpsc::channel();
    let request = world.ours.request("x").on_wait(move |_| told.send(()).unwrap_or_default());
    let waiter = std::thread::spawn(move || request.lock().map(drop));
    tells.recv().unwrap();
    // Real time passes as well.
    let passed = granted.elapsed();
    world.pass((LEASE - LEFT).saturating_sub(passed));
    let released = guard.release();
    let in_time = asked.elapsed() < LEFT + passed;
    assert!(!in_time || released.is_ok(), "{released:?}");
    waiter.join().unwrap().unwrap();
    in_time
}

/// A group is renewed by a swap, which may come long after its look, for example while a user's transaction has the
/// document.
#[test]
fn nothing_of_the_last_second_is_renewed_by_its_lock_id() {
    let world = needs_server!(World::new());
    let store = open(MongodbOptions { fleet: Fleet::Mixed, ..world.rows.options() });
    let get = |key: &str| {
        let page = store.read(&Which::Key(key.to_owned()), None, Consistency::Strong, &soon()).unwrap();
        page.records.into_iter().next().unwrap()
    };
    for is_shared in [false, true] {
        let key = format!("shared {is_shared}");
        let ask = if is_shared { world.ours.request(&key).shared() } else { world.ours.request(&key) };
        ask.acquire().unwrap();
        for (left, right) in [(30_000, true), (900, false), (0, false)] {
            world.pass(LEASE - Duration::from_millis(left));
            let (renewed, seen) = sent(|| {
                let seen = get(&key);
                let (mut longer, later) = (seen.record.clone(), End::At(seen.times.now.plus(LEASE)));
                longer.exclusive.iter_mut().chain(&mut longer.shared).for_each(|holder| holder.until = later);
                match store.swap(&seen, Some(&longer), &soon())? {
                    // If a busy server had no time for the swap, it may still be done.
                    Swapped::Unknown(error) => Err(error),
                    renewed => Ok((renewed, seen)),
                }
            });
            let (mut shorter, mut gone) = (seen.record.clone(), seen.record.clone());
            assert_eq!(matches!(renewed, Swapped::Done), right, "{key} {left}: {renewed:?}");
            if !right {
                // Ending the lease or removing the holder is no renewal. On a busy machine it may have been over for
                // seconds.
                let earlier = End::At(seen.times.now.minus(LEASE / 2));
                shorter.exclusive.iter_mut().chain(&mut shorter.shared).for_each(|holder| holder.until = earlier);
                assert!(matches!(store.swap(&seen, Some(&shorter), &soon()).unwrap(), Swapped::Done));
                (gone.exclusive, gone.shared) = (None, Vec::new());
                assert!(matches!(store.swap(&get(&key), Some(&gone), &soon()).unwrap(), Swapped::Done));
                let ask = if is_shared { world.ours.request(&key).shared() } else { world.ours.request(&key) };
                ask.acquire().unwrap();
            }
        }
    }
}

/// A lock that counts as held must be one that can be renewed.
#[test]
fn the_margin_is_no_less_than_the_last_second() {
    let world = needs_server!(World::new());
    let builder = |options: MongodbOptions| {
        let store = open(options);
        // A tenth of this lease is less than a second.
        builder_over(Arc::new(store), Clock::system()).lease(9 * S)
    };
    let mixed = || builder(MongodbOptions { fleet: Fleet::Mixed, ..world.rows.options() });
    let guard = mixed().connect().unwrap().lock("k").unwrap();
    guard.ensure_held_for(S + S / 2).unwrap();
    assert_eq!(guard.ensure_held_for(8 * S + S / 10).unwrap_err().kind(), ErrorKind::InvalidInput);
    let less = S - Duration::from_millis(1);
    let error = mixed().margin(less).connect().unwrap_err();
    assert!(error.to_string().contains("at least 1s"), "{error}");
    assert!(LockClient::builder(format!("{}&fleet=mixed", world.rows.url())).margin(less).connect().is_err());
    builder(world.rows.options()).margin(less).connect().unwrap();
}

/// The server decides by the time at which a request begins, but the request may then wait for a user's transaction.
#[test]
fn nothing_is_extended_that_is_over_when_a_transaction_ends() {
    let world = needs_server!(World::new());
    let ours = &world.ours;
    for how in ["heartbeat", "adopt", "renew"] {
        for is_shared in [false, true] {
            let key = format!("{how} {is_shared}");
            let ask = || if is_shared { ours.request(&key).shared() } else { ours.request(&key) };
            let mine = ask().lock_id(&key).acquire().unwrap();
            world.pass(LEASE - 2 * S);
            let mut session = server().start_session().run().unwrap();
            session.start_transaction().run().unwrap();
            let touch = doc! { "$inc": { "asserts": 1 } };
            world.rows.raw().update_one(doc! { "resource": &key }, touch).session(&mut session).run().unwrap();
            let extended = std::thread::scope(|scope| {
                let extend = scope.spawn(|| match how {
                    "heartbeat" => ours.heartbeat(&mine, LEASE).map(drop),
                    "adopt" => ours.request(&key).adopt(mine.clone()).map(|guard| drop(guard.into_lock())),
                    _ => ours.renew(&key, LEASE).map(drop),
                });
                wait_until("their purger reads it", || world.go.expired().iter().any(|over| over.lock_id == key));
                session.commit_transaction().run().unwrap();
                extend.join().unwrap()
            });
            let late = extended.expect_err("their purger is about to free it");
            // A busy server may not even answer that.
            assert!(matches!(late.kind(), ErrorKind::Lost | ErrorKind::Ambiguous), "{key}: {late}");
        }
    }
}
