//! A replica set of three members whose primary steps down, is killed, or is stopped and goes on again.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::contract::{attempt, renewal};
use crate::support::mongodb::Rows;
use crate::support::stores::soon;
use crate::support::wait::wait_until;
use leasehold::internals::lease::{Holder, Lease, Mode};
use leasehold::internals::store::mongodb::Mongodb;
use leasehold::internals::store::{Acquired, Attempt, Backend, Consistency, Purpose, Released, Renewed, Schema, Which};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::mongodb::driver::bson::doc;
use leasehold::mongodb::driver::options::ClientOptions;
use leasehold::mongodb::driver::sync::Client;
use leasehold::{LockClient, LockGuard};

/// Longer than an election: the default lease on this store.
const LEASE: Duration = Duration::from_secs(30);
/// How long an election may take on a busy machine.
const LONG: Duration = Duration::from_secs(60);

struct At {
    cluster: Cluster,
    rows: String,
}

impl At {
    fn start() -> Option<At> {
        let cluster = Cluster::start()?;
        let at = At { cluster, rows: "locks".to_owned() };
        // The first primary may not remain the primary.
        crate::network::sent(|| at.open().schema(Schema::Create, &Deadline::after(LONG)));
        Some(at)
    }

    fn options(&self, uri: &str) -> leasehold::internals::store::mongodb::MongodbOptions {
        Rows::options_named(&self.rows, uri)
    }

    fn open(&self) -> Mongodb {
        super::open(self.options(&self.cluster.uri()))
    }

    fn client(&self) -> LockClient {
        let options = ClientOptions::parse(self.cluster.uri()).run().unwrap();
        let builder = || leasehold::mongodb::builder_with(options.clone(), "leasehold", &self.rows);
        crate::network::sent(|| builder().lease(LEASE).request_timeout(LONG).connect())
    }

    fn step_down(&self) {
        // On a busy machine the member may no longer be the primary when the command arrives.
        wait_until("it steps down", || {
            let primary = Client::with_uri_str(self.cluster.uri_of(self.cluster.primary())).unwrap();
            primary.database("admin").run_command(doc! { "replSetStepDown": 10, "force": true }).run().is_ok()
        });
    }
}

/// Repeats the call until it is answered, that is, until it gives neither an error nor `None`.
fn settled<T>(mut call: impl FnMut(&Deadline) -> leasehold::Result<Option<T>>) -> T {
    let started = Instant::now();
    loop {
        match call(&Deadline::after(Duration::from_secs(5))) {
            Ok(Some(answer)) => return answer,
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        assert!(started.elapsed() < LONG, "no answer for a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn acquired(store: &Mongodb, attempt: &mut Attempt) -> Option<Holder> {
    settled(|by| {
        attempt.sends += 1;
        Ok(match store.acquire(attempt, by)? {
            Acquired::Granted { holder, .. } => Some(Some(holder)),
            Acquired::Refused(_) => Some(None),
            Acquired::Unknown(_) => None,
        })
    })
}

fn released(store: &Mongodb, attempt: &mut Attempt) {
    settled(|by| {
        Ok(match store.release(attempt, Purpose::Release, by)? {
            Released::Unknown(_) => None,
            Released::HeldByOther(seen) => panic!("{seen:?}"),
            Released::Done | Released::Free => Some(()),
        })
    });
}

fn holders(store: &Mongodb, key: &str) -> Vec<Holder> {
    let which = Which::Key(key.to_owned());
    let page = settled(|by| store.read(&which, None, Consistency::Strong, by).map(Some));
    page.records[0].record.holders().map(|(_, holder)| holder.clone()).collect()
}

/// Stops the other threads when dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What an election must not change: guards stay held, grants remain, waiters wait and are served, and each call under
/// way ends with an answer. `disturb` takes the primary away, and returns when there is another one.
fn live_through(disturb: impl Fn(&mut At)) {
    for _ in 0..3 {
        let Some(mut at) = At::start() else { return };
        if lives_through(&mut at, &disturb) {
            return;
        }
    }
    panic!("each election took too long for the lease");
}

/// Returns whether the election was over in time: if two members stand for election at once, neither is elected, and
/// they begin again ten seconds later.
fn lives_through(at: &mut At, disturb: impl Fn(&mut At)) -> bool {
    let (client, rival, store) = (at.client(), at.client(), at.open());
    let began = Instant::now();
    let held: Vec<LockGuard> = (0..5).map(|i| client.lock(&format!("held {i}")).unwrap()).collect();
    let contended = client.lock("contended").unwrap();
    // Grants that were acknowledged, and that nobody renews.
    let kept: Vec<Holder> = (0..20)
        .map(|i| {
            let mut a = attempt(&store, &format!("kept {i}"), Mode::Exclusive);
            a.ask.lease = 6 * LEASE;
            // If the machine stalls for two seconds, another primary may be elected at any time.
            acquired(&store, &mut a).expect("nobody else asks for it")
        })
        .collect();
    let (stop, started) = (AtomicBool::new(false), Instant::now());
    let rounds: [AtomicU64; 2] = Default::default();
    let is_in_time = std::thread::scope(|scope| {
        // Dropped also when something below fails: otherwise the other threads would go on for ever.
        let _stopping = Stopping(&stop);
        let waiting = scope.spawn(|| rival.try_lock_for("contended", LONG).unwrap().expect("it is released"));
        // Acquires and releases go on all the time, and each is repeated until it is answered.
        let busy: Vec<_> = rounds
            .iter()
            .enumerate()
            .map(|(i, rounds)| {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    let mut last = 0;
                    while !stop.load(Ordering::SeqCst) {
                        let mut a = attempt(store, &format!("busy {i}"), Mode::Exclusive);
                        let held = acquired(store, &mut a).expect("nobody else asks for it");
                        assert!(held.token > last, "tokens rise over the election");
                        last = held.token;
                        released(store, &mut a);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let done = || rounds.each_ref().map(|rounds| rounds.load(Ordering::SeqCst));
        wait_until("each has done a round", || done().iter().all(|rounds| *rounds > 0));
        disturb(at);
        let before = done();
        println!("another primary after {:?}", started.elapsed());
        let after = Instant::now();
        // All clients go on.
        let mut again = attempt(&store, "after", Mode::Exclusive);
        assert!(acquired(&store, &mut again).is_some());
        println!("writable for a client {:?} later", after.elapsed());
        if began.elapsed() > LEASE * 3 / 4 {
            let _ = contended.release();
            return false;
        }
        for guard in &held {
            guard.ensure_held_for(LEASE / 2).unwrap();
        }
        contended.release().unwrap();
        let taken = waiting.join().unwrap();
        assert!(taken.is_held());
        // A round that began before the new primary came may end after it, but the next one did not begin before.
        wait_until("they go on", || std::iter::zip(done(), before).all(|(now, before)| now > before + 1));
        println!("{before:?} rounds, then {:?}", done());
        stop.store(true, Ordering::SeqCst);
        busy.into_iter().for_each(|busy| busy.join().unwrap());
        true
    });
    // This must hold however long the election took.
    for (i, kept) in kept.iter().enumerate() {
        assert_eq!(holders(&store, &format!("kept {i}")), std::slice::from_ref(kept), "an acknowledged grant");
    }
    if !is_in_time {
        return false;
    }
    assert!(held.iter().all(LockGuard::is_held), "a guard was lost");
    for (i, guard) in held.into_iter().enumerate() {
        let stands = holders(&store, &format!("held {i}"));
        assert_eq!((stands.len(), stands[0].token), (1, guard.fencing_token()));
        guard.release().unwrap();
    }
    true
}

/// A secondary may be far behind, and report a held lock as free.
#[test]
fn no_lock_is_read_of_a_member_that_is_no_primary() {
    let Some(at) = At::start() else { return };
    for _ in 0..3 {
        let primary = at.cluster.primary();
        let other = at.options(&at.cluster.uri_of((primary + 1) % 3));
        let by = Deadline::after(Duration::from_secs(5));
        let read = |store: Mongodb| store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by);
        // The read itself finds out whether the member is the primary.
        let answer = read(super::open(other));
        // An election in between may have made it the primary.
        if at.cluster.primary() == primary {
            assert!(answer.is_err(), "{answer:?}");
            return;
        }
    }
    panic!("an election each time");
}

#[test]
fn locks_live_through_a_step_down() {
    live_through(|at| {
        at.step_down();
        at.cluster.primary();
    });
}

#[test]
fn locks_live_through_a_primary_that_is_killed() {
    live_through(|at| {
        let primary = at.cluster.primary();
        at.cluster.kill(primary);
        at.cluster.primary();
    });
}

#[test]
fn locks_live_through_a_primary_that_is_stopped() {
    live_through(|at| {
        let primary = at.cluster.primary();
        at.cluster.stop(primary);
        at.cluster.primary();
    });
}

#[test]
fn a_stopped_primary_that_wakes_up_grants_nothing() {
    let Some(mut at) = At::start() else { return };
    let store = at.open();
    let mut a = attempt(&store, "k", Mode::Exclusive);
    a.ask.lease = Duration::from_secs(2);
    let first = acquired(&store, &mut a).expect("nobody else asks for it");
    let mut free = attempt(&store, "free", Mode::Exclusive);
    acquired(&store, &mut free).expect("nobody else asks for it");
    released(&store, &mut free);
    // These clients know only the primary, which may be replaced meanwhile on a busy machine.
    let of_primary = (0..5).find_map(|_| {
        let old = at.cluster.primary();
        let stuck: Vec<Mongodb> = (0..4).map(|_| super::open(at.options(&at.cluster.uri_of(old)))).collect();
        let is_primary = |store: &Mongodb| match store.schema(Schema::Check, &soon()) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                false
            }
        };
        stuck.iter().all(is_primary).then_some((old, stuck))
    });
    let (old, stuck) = of_primary.expect("one that stays the primary");
    at.cluster.stop(old);
    // Sent before the old primary goes on: it will find the requests in its sockets.
    let sent: Vec<_> = std::thread::scope(|scope| {
        let sending: Vec<_> = stuck
            .iter()
            .enumerate()
            .map(|(i, store)| {
                scope.spawn(move || {
                    let mut b = attempt(store, ["k", "free"][i % 2], Mode::Exclusive);
                    let answer = store.acquire(&mut b, &Deadline::after(Duration::from_millis(500)));
                    assert!(!matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
                    b
                })
            })
            .collect();
        sending.into_iter().map(|sending| sending.join().unwrap()).collect()
    });
    at.cluster.primary();
    // The other members grant the lock again, to another holder, as soon as the lease is over.
    let mut c = attempt(&store, "k", Mode::Exclusive);
    let by = Instant::now() + LONG;
    let second = loop {
        if let Some(held) = acquired(&store, &mut c) {
            break held;
        }
        assert!(Instant::now() < by, "it is never taken over");
    };
    assert!(second.token > first.token);
    let mut d = attempt(&store, "free", Mode::Exclusive);
    let third = acquired(&store, &mut d).unwrap_or_else(|| {
        let by = holders(&store, "free");
        let sent: Vec<_> = sent.iter().map(|b| &b.ask.lock_id).collect();
        panic!("held by {by:?}; released was {:?}, sent were {sent:?}", free.ask.lock_id)
    });
    at.cluster.go_on(old);
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        for (i, stuck) in stuck.iter().enumerate() {
            let mut b = attempt(stuck, ["k", "free"][i % 2], Mode::Exclusive);
            let answer = stuck.acquire(&mut b, &Deadline::after(Duration::from_millis(500)));
            assert!(!matches!(answer, Ok(Acquired::Granted { .. })), "a second holder: {answer:?}");
        }
    }
    assert_eq!((holders(&store, "k"), holders(&store, "free")), (vec![second], vec![third]));
    assert!(sent.iter().all(|b| !holders(&store, &b.key).iter().any(|h| h.grant == *b.grant())));
    // The first holder learns of its loss.
    let lost = settled(|by| {
        Ok(match store.renew(&mut a, renewal(Lease::For(LEASE)), by)? {
            Renewed::Unknown(_) => None,
            answer => Some(matches!(answer, Renewed::Lost(_))),
        })
    });
    assert!(lost);
}

#[test]
fn what_the_majority_does_not_have_is_no_answer() {
    let Some(mut at) = At::start() else { return };
    let store = at.open();
    let mut held = attempt(&store, "held", Mode::Exclusive);
    held.ask.lease = 6 * LEASE;
    let stands = acquired(&store, &mut held).expect("nobody else asks for it");
    let within = |time: u64| Deadline::after(Duration::from_millis(time));
    // Until it notices, the old primary still accepts writes: a busy machine may be too late for that.
    let written = (0..5).find_map(|_| {
        let primary = at.cluster.primary();
        let direct = super::open(at.options(&at.cluster.uri_of(primary)));
        // A member that was stopped in the round before may just have been elected instead.
        if let Err(error) = direct.schema(Schema::Check, &soon()) {
            assert!(error.is_retryable(), "{error:?}");
            return None;
        }
        let secondaries: Vec<usize> = (0..3).filter(|i| *i != primary).collect();
        secondaries.iter().for_each(|i| at.cluster.stop(*i));
        let mut a = attempt(&direct, "k", Mode::Exclusive);
        a.sends += 1;
        match direct.acquire(&mut a, &within(1_200)) {
            Ok(Acquired::Unknown(_)) => return Some((direct, secondaries, a)),
            Err(error) if error.is_retryable() => {}
            grant => panic!("{grant:?}"),
        }
        secondaries.iter().for_each(|i| at.cluster.go_on(*i));
        assert_eq!(holders(&store, "k"), [], "an error wrote nothing");
        None
    });
    let (direct, secondaries, a) = written.expect("a primary that has not noticed");
    // Nor may a look say that there is no such lock, because the write may survive.
    let look = direct.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &within(700));
    assert!(look.is_err(), "{look:?}");
    // An answer that writes nothing must not come either: what it saw may be undone.
    let refusal = direct.acquire(&mut attempt(&direct, "held", Mode::Exclusive), &within(700));
    assert!(!matches!(refusal, Ok(Acquired::Refused(_) | Acquired::Granted { .. })), "{refusal:?}");
    let renewal = direct.renew(&mut held.without_native(), renewal(Lease::For(6 * LEASE)), &within(700));
    assert!(!matches!(renewal, Ok(Renewed::Until { .. } | Renewed::Lost(_))), "{renewal:?}");
    secondaries.iter().for_each(|i| at.cluster.go_on(*i));
    at.cluster.primary();
    // The same attempt finds its own grant, or is granted the lock now.
    let mut again = a.without_native();
    let holder = acquired(&store, &mut again).unwrap();
    assert_eq!(holders(&store, "k"), [holder]);
    assert_eq!(holders(&store, "held")[0].token, stands.token);
}
