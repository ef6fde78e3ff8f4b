//! What every store promises about a transaction that asserts a lock.

use std::error::Error as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Lock, LockClient};

use crate::fenced::data::Data;
use crate::fenced::{LONG, Open, SHORT, Store};
use crate::support::harness::{connected, millis};
use crate::support::wait::wait_until;

#[track_caller]
pub fn lost(answer: Result<impl std::fmt::Debug, Error>) -> Error {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}: {:?}", error.source());
    assert!(error.key().is_some() && error.store().is_some() && !error.is_retryable());
    error
}

/// Locks whose leases have ended, and that nobody has taken since.
pub fn expired(client: &LockClient, keys: &[String]) -> Vec<Lock> {
    let locks = keys.iter().map(|key| client.request(key).lease(SHORT).acquire().unwrap()).collect();
    for key in keys {
        wait_until("the lease ends", || client.get(key).unwrap().unwrap().is_free());
    }
    locks
}

pub fn what_is_held_is_written_and_what_is_lost_is_not<S: Store>(open: &Open<S>) {
    let (client, data) = (open.client(LONG), &open.data);
    let guard = client.lock("a").unwrap();
    data.write(&guard, "a", "held").unwrap();
    data.write(&client.fence(&guard.info()), "a", "held as data").unwrap();
    assert_eq!(data.text("a").as_deref(), Some("held as data"));
    let next = client.adopt(guard.info()).unwrap();
    lost(data.write(&guard, "a", "late"));
    lost(data.write(&client.fence(&guard.info()), "a", "late"));
    data.write(&next, "a", "adopted").unwrap();
    let released = next.info();
    next.release().unwrap();
    lost(data.write(&client.fence(&released), "a", "late"));
    assert_eq!(data.text("a").as_deref(), Some("adopted"));
}

pub fn a_lock_of_another_store_is_refused<S: Store>(open: &Open<S>) {
    let guard = LockClient::connect("memory:").unwrap().lock("a").unwrap();
    let error = open.data.write(&guard, "a", "elsewhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(open.data.text("a"), None);
}

pub fn shared_holders_can_be_asserted<S: Store>(open: &Open<S>) {
    let (client, data) = (open.client(LONG), &open.data);
    let (one, two) = (client.lock_shared("s").unwrap(), client.lock_shared("s").unwrap());
    data.write(&one, "s", "one").unwrap();
    data.write(&two, "s", "two").unwrap();
    let gone = two.info();
    two.release().unwrap();
    lost(data.write(&client.fence(&gone), "s", "late"));
    data.write(&one, "s", "one again").unwrap();
    let gone = one.info();
    one.release().unwrap();
    let _writer = client.lock("s").unwrap();
    lost(data.write(&client.fence(&gone), "s", "late"));
    assert_eq!(data.text("s").as_deref(), Some("one again"));
}

pub fn leases_can_be_asserted<S: Store>(open: &Open<S>) {
    let (client, data) = (open.client(LONG), &open.data);
    let leases = client.leases("space");
    let lease = leases.claim("app", "unit/0", LONG).unwrap();
    data.write(&leases.fence(&lease), "l", "claimed").unwrap();
    leases.extend("app", "unit/0", 2 * LONG).unwrap();
    data.write(&leases.fence(&lease), "l", "extended").unwrap();
    let keeper = leases.keep("app", "unit/0", 2 * LONG).unwrap();
    data.write(&keeper, "l", "kept").unwrap();
    leases.revoke("app", "unit/0").unwrap();
    lost(data.write(&leases.fence(&lease), "l", "late"));
    lost(data.write(&keeper, "l", "late"));
    leases.claim("app", "unit/0", LONG).unwrap();
    lost(data.write(&leases.fence(&lease), "l", "late, though the holder is the same"));
    assert_eq!(data.text("l").as_deref(), Some("kept"));
}

pub fn a_leadership_can_be_asserted<S: Store>(open: &Open<S>) {
    let (client, data) = (open.client(LONG), &open.data);
    let leadership = client.election("job").build().unwrap().campaign().unwrap();
    data.write(&leadership, "e", "led").unwrap();
    client.force_release("job").unwrap();
    let _next = client.lock("job").unwrap();
    lost(data.write(&leadership, "e", "late"));
    assert_eq!(data.text("e").as_deref(), Some("led"));
}

/// Nobody else can have written, so this write is right.
pub fn expired_and_not_taken_over_is_written_rightly<S: Store>(open: &Open<S>) {
    let (client, data) = (open.client(LONG), &open.data);
    let lock = &expired(&client, &["a".to_owned()])[0];
    data.write(&client.fence(lock), "a", "nobody else did").unwrap();
    let _rival = client.lock("a").unwrap();
    lost(data.write(&client.fence(lock), "a", "late"));
    assert_eq!(data.text("a").as_deref(), Some("nobody else did"));
}

/// A rival comes at some moment of a transaction whose holder's lease has ended: either the rival sees what was
/// written, or nothing is ever written.
pub fn whoever_comes_first_wins<S: Store>(open: &Open<S>) {
    const RACES: u64 = 12;
    let (client, data) = (open.client(LONG), &open.data);
    let keys: Vec<String> = (0..RACES).map(|race| format!("race {race}")).collect();
    let locks = expired(&client, &keys);
    // Nothing reports when the grace is over. Before that, the rivals would only come later.
    thread::sleep(S::GRACE);
    let race = |race: u64, key: &str, lock: &Lock| {
        let fence = client.fence(lock);
        // So the assertion under test is not the first one in this row.
        data.write(&fence, key, "before").unwrap();
        let takes_over = || {
            let guard = client.lock(key).unwrap();
            assert!(guard.fencing_token() > lock.fencing_token());
            (data.text(key), guard)
        };
        // The outcome is certain where the rival comes before everything or after everything.
        let (wrote, (seen, guard)) = match race {
            0 => {
                let rival = takes_over();
                (data.write(&fence, key, "late"), rival)
            }
            1 => (data.write(&fence, key, "late"), takes_over()),
            _ => thread::scope(|scope| {
                let (begun, begins) = mpsc::channel();
                let rival = scope.spawn(move || {
                    begins.recv().unwrap();
                    thread::sleep(millis(4 * race));
                    takes_over()
                });
                let wrote = data.transact(Some(&fence), key, "late", &mut || {
                    // When the transaction begins again, nobody listens to this any more.
                    let _ = begun.send(());
                    thread::sleep(millis(20));
                });
                (wrote.map(drop), rival.join().unwrap())
            }),
        };
        match &wrote {
            Ok(()) => assert_eq!(seen.as_deref(), Some("late"), "race {race}: the rival came after the commit"),
            Err(_) => {
                assert_eq!(seen.as_deref(), Some("before"), "race {race}: the rival came before it");
                assert_eq!(data.text(key), seen, "race {race}: nothing is written after it");
            }
        }
        guard.release().unwrap();
        wrote.map_err(|error| lost(Err::<(), _>(error))).is_ok()
    };
    let wrote: Vec<bool> = thread::scope(|scope| {
        let races: Vec<_> = (0..RACES).zip(&keys).zip(&locks).collect();
        let races: Vec<_> = races.into_iter().map(|((n, key), lock)| scope.spawn(move || race(n, key, lock))).collect();
        races.into_iter().map(|race| race.join().unwrap()).collect()
    });
    println!("{}: who was in time: {wrote:?}", S::NAME);
    assert_eq!(wrote[..2], [false, true]);
}

/// The guard's heartbeats, one each second, and its transactions collide: neither is lost, whichever has to be
/// repeated.
pub fn heartbeats_and_transactions_live_together<S: Store>(open: &Open<S>) {
    let client = connected(|| open.builder().lease(Duration::from_secs(15)).heartbeat(Duration::from_secs(1)));
    for (work, time) in [(10, millis(3_500)), (500, millis(3_000))] {
        let guard = client.lock("a").unwrap();
        let (mut count, mut again, started) = (0, 0, Instant::now());
        while started.elapsed() < time {
            let wait = &mut || thread::sleep(millis(work));
            again += open.data.transact(Some(&guard), "a", &format!("{work} {count}"), wait).unwrap() - 1;
            count += 1;
        }
        println!("{}: {count} transactions of {work} ms were begun {again} times more", S::NAME);
        assert_eq!(open.data.text("a"), Some(format!("{work} {}", count - 1)));
        let loss = guard.loss().wait_timeout(Duration::ZERO);
        assert!(loss.is_none(), "{loss:?}");
        guard.release().unwrap();
    }
}
