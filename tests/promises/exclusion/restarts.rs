//! A server that is killed or shut down, and started again, while its locks are held and waited for.
#![cfg(all(target_os = "linux", feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::harness::{Folder, connected, millis, sent};
use crate::support::oracle::{Oracle, assert_rising};
use crate::support::own::Own;
use crate::support::servers;
use crate::support::stores::is_wanted;
use crate::support::wait::wait_until;
use leasehold::{ClientBuilder, ErrorKind, LockClient, LockGuard, LossReason};
use nix::sys::signal::Signal;

/// Longer than a server takes to start on a busy machine.
const LEASE: Duration = Duration::from_secs(90);
/// So frequent that heartbeats are due while the server is away, and soon after.
const BEAT: Duration = millis(500);
/// Shorter than any start of a server.
const SHORT: Duration = millis(1000);

/// A server and its clients.
struct At {
    own: Own,
    /// The signal for a shutdown that does not wait for clients.
    end: Signal,
    builder: Box<dyn Fn() -> ClientBuilder + Sync>,
}

impl At {
    /// A client with this lease and frequent heartbeats.
    fn client(&self, lease: Duration) -> LockClient {
        let builder = || (self.builder)().lease(lease).heartbeat(BEAT.min(lease / 3));
        connected(|| builder().drop_timeout(LEASE).request_timeout(LEASE / 4))
    }
}

/// Stops the other threads when dropped, also after a failure: otherwise they would go on for ever.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Takes and releases the lock again and again, with this pause. A call that was answered too late is repeated.
fn exclude(client: &LockClient, oracle: &Oracle, pause: Duration, rounds: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let guard = match client.try_lock_for("busy", millis(1000)) {
            Ok(Some(guard)) => guard,
            Ok(None) => continue,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                continue;
            }
        };
        if guard.is_held() {
            assert!(oracle.section(guard.fencing_token(), std::thread::yield_now), "two hold it");
        }
        guard.release().expect("a release, once it is answered");
        rounds.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(pause);
    }
}

/// Every grant remains, every waiter goes on waiting, and nobody is let in next to a holder.
fn locks_live_through_a_restart(at: &mut At, signal: Signal) {
    let (client, rival, folder) = (at.client(LEASE), at.client(LEASE), Folder::new());
    let held = client.lock("held").expect("a lock");
    let readers = [&client, &rival].map(|client| client.lock_shared("read").expect("a lock"));
    // Nobody renews these.
    let kept: Vec<_> = (0..5).map(|i| client.request(&format!("kept {i}")).acquire().expect("a lock")).collect();
    let (oracle, stop) = (Oracle::new(folder.path(), "busy"), AtomicBool::new(false));
    let (rounds, busy): ([AtomicUsize; 2], _) = (Default::default(), [(); 2].map(|()| at.client(LEASE)));
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        let waiting =
            scope.spawn(|| rival.try_lock_for("held", 3 * LEASE).expect("an answer").expect("it is released"));
        // The one without a pause always has a request under way when the server goes. Two of that kind would only
        // double the load.
        for ((client, rounds), pause) in busy.iter().zip(&rounds).zip([Duration::ZERO, millis(20)]) {
            let (oracle, stop) = (&oracle, &stop);
            scope.spawn(move || exclude(client, oracle, pause, rounds, stop));
        }
        let go_on = |more: usize| {
            let before = rounds.each_ref().map(|rounds| rounds.load(Ordering::SeqCst));
            wait_until("both go on", || {
                rounds.iter().zip(before).all(|(now, before)| now.load(Ordering::SeqCst) > before + more)
            });
        };
        go_on(2);
        let renewed = held.info().renewed();
        at.own.end(signal);
        at.own.start_again();
        go_on(2);
        wait_until("a heartbeat is answered again", || held.info().renewed() != renewed);
        assert!(held.is_held() && readers.iter().all(|guard| guard.is_held()) && !waiting.is_finished());
        held.ensure_held_for(LEASE / 2).expect("it is held");
        // A call behind a waiter gets that waiter's trouble, until the waiter has asked the server that is back.
        assert!(sent(|| rival.try_lock_shared("held")).is_none());
        assert!(rival.try_lock("read").expect("an answer").is_none());
        for lock in &kept {
            let status = rival.get(lock.key()).expect("a look").expect("a row");
            assert_eq!(status.holders()[0].fencing_token(), lock.fencing_token(), "what was granted");
            assert!(rival.try_lock(lock.key()).expect("an answer").is_none());
            client.release(lock).expect("a release");
        }
        let token = held.fencing_token();
        held.release().expect("a release");
        let next = waiting.join().expect("no panic");
        assert!(next.is_held() && next.fencing_token() > token);
        let read = readers.each_ref().map(|guard| guard.fencing_token());
        readers.into_iter().for_each(|guard| guard.release().expect("a release"));
        assert!(client.lock("read").expect("a lock").fencing_token() > read[0].max(read[1]));
    });
    assert!(!oracle.saw_overlap());
    assert_rising(&oracle.tokens());
}

/// Asserts, by asking the store, that the releases of other guards left this one alone.
fn stands(guard: &LockGuard) {
    let renewed = guard.info().renewed();
    wait_until("it is renewed", || {
        let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
        guard.info().renewed() != renewed
    });
}

/// A holder that could not renew for its whole lease has lost the lock before the server is back, and the waiter gets
/// it.
fn a_lease_ends_while_the_server_is_away(at: &mut At) {
    let (client, rival) = (at.client(SHORT), at.client(LEASE));
    let guard = client.lock("away").expect("a lock");
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| rival.try_lock_for("away", 3 * LEASE).expect("an answer").expect("its lease ends"));
        wait_until("it waits", || !rival.get("away").expect("a look").expect("a row").is_free());
        at.own.end(Signal::SIGKILL);
        let loss = guard.loss().wait_timeout(LEASE).expect("a loss");
        assert!(matches!(loss.reason, LossReason::Expired { .. }), "{loss:?}");
        at.own.start_again();
        let next = waiting.join().expect("no panic");
        assert!(!guard.is_held() && next.is_held() && next.fencing_token() > guard.fencing_token());
        assert_eq!(guard.release().expect_err("it is lost").error().kind(), ErrorKind::Lost);
        assert!(next.is_held());
        stands(&next);
    });
}

fn goes_on(at: Option<At>) {
    let Some(mut at) = at else { return };
    at.client(LEASE).create_schema().expect("a table");
    locks_live_through_a_restart(&mut at, Signal::SIGKILL);
    let end = at.end;
    locks_live_through_a_restart(&mut at, end);
    a_lease_ends_while_the_server_is_away(&mut at);
}

#[test]
fn locks_live_through_restarts_of_dynamodb() {
    goes_on(is_wanted("dynamodb").then(|| Own::start(&servers::dynamodb::ON_DISK)).flatten().map(|own| {
        let config = crate::support::dynamodb::config_at(&own.url());
        let builder = Box::new(move || leasehold::dynamodb::builder(config.clone(), "locks"));
        At { own, end: Signal::SIGTERM, builder }
    }));
}

#[test]
fn locks_live_through_restarts_of_mongod() {
    goes_on(is_wanted("mongodb").then(|| Own::start(&servers::mongod::SERVER)).flatten().map(|own| {
        let url = crate::support::mongodb::with_database(&own.url(), "collection=locks");
        At { own, end: Signal::SIGTERM, builder: Box::new(move || LockClient::builder(url.clone())) }
    }));
}

/// A server of its own, which waits for all that it writes to the disk.
#[test]
fn locks_live_through_restarts_of_postgres() {
    goes_on(is_wanted("postgres").then(|| Own::start(&servers::postgres::OWN)).flatten().map(|own| {
        let url = own.url();
        At { own, end: Signal::SIGINT, builder: Box::new(move || LockClient::builder(url.clone())) }
    }));
}

/// The emulator forgets everything, like a service whose database is restored from before the first lock.
#[test]
fn what_a_spanner_forgot_is_a_loss() {
    use crate::support::spanner::{Database, TABLE, settings};
    use leasehold::internals::store::{Backend, Schema};
    let Some(own) = is_wanted("spanner").then(|| Own::start(&servers::spanner::SERVER)).flatten() else { return };
    let make = |host: &str| {
        let create = "{\"createStatement\": \"CREATE DATABASE `locks`\"}";
        let path = servers::spanner::make_database(host, "tests", "restarted", "locks", create);
        let database = Database { host: host.to_owned(), path };
        database.open().schema(Schema::Create, &crate::support::stores::soon()).expect("a table");
        database
    };
    let Database { host, path } = make(&own.url());
    let builder = Box::new(move || leasehold::spanner::builder(settings(&host), &path, TABLE));
    let mut at = At { own, end: Signal::SIGTERM, builder };
    for (signal, is_waited_for) in [(Signal::SIGKILL, false), (at.end, true)] {
        let (client, rival) = (at.client(LEASE), at.client(LEASE));
        let (held, reader) = (client.lock("held").expect("a lock"), client.lock_shared("read").expect("a lock"));
        std::thread::scope(|scope| {
            let waiting = is_waited_for
                .then(|| scope.spawn(|| rival.try_lock_for("held", 3 * LEASE).map(|guard| guard.expect("it is lost"))));
            at.own.end(signal);
            at.own.start_again();
            make(&at.own.url());
            for guard in [&held, &reader] {
                let loss = guard.loss().wait_timeout(LEASE / 2).expect("a loss, long before its lease is over");
                println!("{} after {signal}, waited for: {is_waited_for}: {:?}", loss.key, loss.reason);
                assert!(matches!(loss.reason, LossReason::Gone | LossReason::TakenOver { .. }), "{loss:?}");
                assert!(!guard.is_held());
            }
            let next = waiting.map(|waiting| waiting.join().expect("no panic"));
            println!("the waiter: {next:?}");
            let next = match next {
                // A call that asked while there was no database got an error.
                None | Some(Err(_)) => rival.lock("held").expect("a lock"),
                Some(Ok(next)) => next,
            };
            assert!(next.is_held() && next.fencing_token() > held.fencing_token());
            assert!(rival.lock("read").expect("a lock").fencing_token() > reader.fencing_token());
            drop((held, reader));
            stands(&next);
        });
    }
}
