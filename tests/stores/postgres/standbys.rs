//! What no standby has, although the server waits for one, stays unknown, whoever asks and however often.

use std::thread;
use std::time::Duration;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Renewed, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{ErrorKind, LockClient};

use super::restarts::{LEASE, Server};
use crate::postgres::*;
use crate::support::contract::{granted, refused, renewal};
use crate::support::harness::PATIENCE;
use crate::support::postgres::{connected, unless_late};
use crate::support::wait::wait_until;

/// Only a cancel ends the wait for a standby, and a client that finds its own grant also has to wait for the standby.
#[test]
fn a_grant_counts_once_the_standby_has_it_and_who_leaves_leaves_no_session() {
    let Some(server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    let store = server.store();
    server.standbys("nobody");
    let short = || Deadline::after(Duration::from_millis(700));
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, &format!("{mode}"), mode);
        for _ in 0..3 {
            let mut asks = || {
                a.sends += 1;
                store.acquire(&mut a, &short())
            };
            // The time may be over before anything was sent.
            let answer =
                (0..20).map(|_| asks()).find(|answer| !answer.as_ref().is_err_and(|error| error.is_retryable()));
            assert!(matches!(answer, Some(Ok(Acquired::Unknown(_)))), "{mode}: {answer:?}");
            wait_until("nobody waits for it any more", || {
                let active = "SELECT FROM pg_stat_activity WHERE application_name = 'leasehold' AND state = 'active'";
                server.sql(active).is_empty()
            });
        }
        // The store that gave up has no connection any more.
        assert_eq!(holders(&server.store(), &a.key).len(), 1);
    }
    server.standbys("");
    let store = server.store();
    for mode in [Mode::Exclusive, Mode::Shared] {
        refused(&store, &mut exclusive(&store, &format!("{mode}")));
    }
}

/// An operator cancels by hand what hangs: then the server answers as if all were well, but no standby has it. Behind a
/// pooler the session's own settings may suppress that warning.
#[test]
fn what_no_standby_has_since_its_wait_was_cancelled_is_not_known() {
    let Some(server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    server.sql("ALTER ROLE leasehold SET client_min_messages = error");
    for store in [server.store(), server.pooled()] {
        server.standbys("");
        server.sql("DELETE FROM leasehold");
        let mut held = exclusive(&store, "held");
        granted(&store, &mut held);
        server.standbys("nobody");
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut a = attempt(&store, &format!("{mode}"), mode);
            let answer = server.frees(|| unless_late(|| store.acquire(&mut a, &soon())));
            assert!(matches!(answer, Ok(Acquired::Unknown(_))), "{mode}: {answer:?}");
        }
        let answer = server.frees(|| store.renew(&mut held, renewal(Lease::For(2 * LEASE)), &soon()));
        assert!(!matches!(answer, Ok(Renewed::Until { .. })), "{answer:?}");
    }
}

/// The next try finds nothing to write.
#[test]
fn a_release_that_no_standby_has_is_not_known() {
    let Some(server) = Server::start() else { return };
    let brief = Duration::from_secs(3);
    let builder = || LockClient::builder(server.0.url()).lease(LEASE).request_timeout(brief).drop_timeout(brief);
    server.client().create_schema().unwrap();
    let client = connected(builder);
    let guards = [client.lock("exclusive").unwrap(), client.request("shared").shared().lock().unwrap()];
    let lock = server.client().request("data").acquire().unwrap();
    server.standbys("nobody");
    // A machine that stalled may report that there was no time to send it.
    for mut guard in guards {
        let key = guard.key().to_owned();
        let mut tries = 0;
        let error = loop {
            tries += 1;
            match guard.release() {
                Ok(()) => panic!("{key} is released"),
                Err(failed) if tries < 5 && failed.error().kind() == ErrorKind::Store => guard = failed.into_guard(),
                Err(failed) => break leasehold::Error::from(failed),
            }
        };
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{key}: {error}");
    }
    let mut errors = (0..5).map(|_| client.release(&lock).unwrap_err());
    let error = errors.find(|error| error.kind() != ErrorKind::Store);
    assert!(error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Ambiguous), "{error:?}");
    server.standbys("");
}

/// The call released nothing itself, so what is unknown of the standby's copy is no release of its own.
#[test]
fn a_release_of_what_others_have_is_not_called_done() {
    let Some(server) = Server::start() else { return };
    // A release must last until it was seen to wait.
    let client = connected(|| server.builder().request_timeout(PATIENCE));
    let other = server.client();
    client.create_schema().unwrap();
    let (guard, lock) = (client.lock("guard").unwrap(), client.request("data").acquire().unwrap());
    let taken = ["guard", "data"].map(|key| {
        other.force_release(key).unwrap();
        other.lock(key).unwrap()
    });
    let released = |release: &(dyn Fn() -> ErrorKind + Sync)| {
        server.standbys("nobody");
        thread::scope(|scope| {
            let kind = scope.spawn(release);
            let waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold' \
                         AND wait_event = 'SyncRep' AND query LIKE '%FOR KEY SHARE%'";
            wait_until("it waits for the standby", || !server.sql(waits).is_empty());
            server.standbys("");
            kind.join().unwrap()
        })
    };
    let guard = std::sync::Mutex::new(Some(guard));
    let guarded =
        || guard.lock().unwrap().take().unwrap().release().map_err(leasehold::Error::from).unwrap_err().kind();
    assert_eq!(released(&guarded), ErrorKind::Lost);
    assert_eq!(released(&|| client.release(&lock).unwrap_err().kind()), ErrorKind::Held);
    drop(taken);
}

/// A look finds it all the same.
#[test]
fn a_claim_or_a_renewal_of_a_group_that_no_standby_has_is_not_known() {
    let Some(server) = Server::start() else { return };
    let client = server.client();
    client.create_schema().unwrap();
    let lock = client.request("k").acquire().unwrap();
    server.standbys("nobody");
    let claimed = server.frees(|| client.leases("n").claim("job", "a", LEASE));
    assert!(claimed.is_err(), "{claimed:?}");
    let renewed = server.frees(|| client.renew(lock.lock_id(), 2 * LEASE));
    assert!(renewed.is_err(), "{renewed:?}");
    server.standbys("");
    assert!(client.leases("n").claim("job", "b", LEASE).is_err(), "what was claimed may stay");
}

/// A later renewal has nothing to write: it finds what the first one left.
#[test]
fn a_renewal_that_no_standby_has_is_not_known_by_a_later_one_either() {
    let Some(server) = Server::start() else { return };
    let client = server.client();
    client.create_schema().unwrap();
    let store = server.store();
    let mut shared = attempt(&store, "shared", Mode::Shared);
    granted(&store, &mut shared);
    let lock = client.request("k").acquire().unwrap();
    server.standbys("nobody");
    let mut renews = |lease| server.frees(|| store.renew(&mut shared, renewal(Lease::For(lease)), &soon()));
    for lease in [2 * LEASE, LEASE] {
        let answer = renews(lease);
        assert!(!matches!(answer, Ok(Renewed::Until { .. })), "{answer:?}");
        let renewed = server.frees(|| client.renew(lock.lock_id(), lease));
        assert!(renewed.is_err(), "{renewed:?}");
    }
    server.standbys("");
    assert!(matches!(renews(LEASE), Ok(Renewed::Until { .. })));
    client.renew(lock.lock_id(), LEASE).unwrap();
}

/// A caller that repeats it finds no holder.
#[test]
fn what_was_freed_is_not_known_until_a_standby_has_it() {
    let Some(server) = Server::start() else { return };
    let client = server.client();
    client.create_schema().unwrap();
    let request = |key| client.request(key).lease_forever();
    let locks = ["forced", "unlocked"].map(|key| request(key).acquire().unwrap());
    let shared = request("shared").shared();
    let (left, _stays) = (shared.acquire().unwrap(), request("shared").shared().acquire().unwrap());
    server.standbys("nobody");
    let frees = || {
        let [forced, unlocked] = [client.force_release("forced"), client.unlock_key("unlocked", locks[1].lock_id())];
        [forced, unlocked, client.unlock_key("shared", left.lock_id())]
    };
    for _ in 0..2 {
        let freed = server.frees(frees);
        let is_open = |freed: &leasehold::Result<_>| freed.as_ref().is_err_and(|error| error.kind() != ErrorKind::Held);
        assert!(freed.iter().all(is_open), "{freed:?}");
    }
    server.standbys("");
    let [forced, unlocked, shared] = frees();
    assert!(forced.unwrap().is_empty() && unlocked.unwrap().is_empty());
    assert_eq!(shared.unwrap_err().kind(), ErrorKind::Held, "others share it");
}

/// After a crash, a grant that was answered may be gone.
#[test]
fn a_server_that_a_crash_may_tear_is_told_of() {
    let Some(server) = Server::start() else { return };
    let store = server.store();
    store.schema(Schema::Create, &soon()).unwrap();
    let said = || unless_late(|| store.schema(Schema::Check, &soon())).unwrap();
    for (value, is_told) in [("off", true), ("on", false)] {
        server.sql(&format!("ALTER SYSTEM SET full_page_writes = {value}"));
        server.sql("SELECT pg_reload_conf()");
        wait_until("it is told, or is no more", || said().contains("full_page_writes") == is_told);
    }
}
