//! A primary with a standby that copies it: what a failover costs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Released, Schema};
use leasehold::{ErrorKind, LockClient};
use nix::sys::signal::Signal;

use crate::errors::text;
use crate::postgres::*;
use crate::support::own::Own;
use crate::support::postgres::{connected, opened, sql_at, unless_late};
use crate::support::room::room;
use crate::support::servers::{postgres, skip};
use crate::support::wait::wait_until;

/// Longer than a failover. What was not released during one is free again after this time.
const LEASE: Duration = Duration::from_secs(12);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

struct Pair {
    primary: Own,
    standby: Own,
}

fn sql(server: &Own, sql: &str) -> Vec<Vec<Option<String>>> {
    sql_at(&server.url().parse().unwrap(), sql)
}

fn client(url: &str) -> LockClient {
    connected(|| LockClient::builder(url).lease(LEASE))
}

impl Pair {
    /// Starts both, with a table of locks.
    fn start() -> Option<Pair> {
        if !postgres::has("pg_basebackup") {
            skip("there is no pg_basebackup, which makes a standby");
            return None;
        }
        let primary = Own::start(&postgres::OWN)?;
        client(&primary.url()).create_schema().unwrap();
        let data = room().unwrap();
        let (host, port) = address(&primary);
        let reached = format!("host={host} port={port} user=leasehold");
        std::fs::write(data.path().join("primary"), reached).unwrap();
        let pair = Pair { primary, standby: Own::start_in(&postgres::OWN, data)? };
        wait_until("it copies", || {
            !sql(&pair.primary, "SELECT FROM pg_stat_replication WHERE state = 'streaming'").is_empty()
        });
        Some(pair)
    }

    /// From now on no commit is answered before the standby has it.
    fn is_synchronous(&self) {
        self.waits_for("*", "sync");
    }

    /// Sets which standbys commits wait for, and waits until the primary counts this standby as `state`.
    fn waits_for(&self, names: &str, state: &str) {
        sql(&self.primary, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        sql(&self.primary, "SELECT pg_reload_conf()");
        let counts = format!(
            "SELECT FROM pg_stat_replication WHERE sync_state = '{state}' AND current_setting('synchronous_standby_names') = '{names}'"
        );
        wait_until("it is waited for, or not", || !sql(&self.primary, &counts).is_empty());
    }

    /// The URL of both, with the standby first.
    fn url(&self) -> String {
        let ((host, standby), (_, primary)) = (address(&self.standby), address(&self.primary));
        format!("postgres://leasehold@{host}:{standby},{host}:{primary}/postgres?target_session_attrs=read-write")
    }

    /// Cuts the network between the two.
    fn cut(&self) {
        sql(&self.standby, "ALTER SYSTEM SET primary_conninfo = ''");
        sql(&self.standby, "SELECT pg_reload_conf()");
        wait_until("it copies no more", || sql(&self.standby, "SELECT FROM pg_stat_wal_receiver").is_empty());
    }

    /// The primary's machine dies, and the standby is promoted.
    fn fail_over(&mut self) {
        self.primary.end(Signal::SIGKILL);
        sql(&self.standby, "SELECT pg_promote()");
    }
}

fn address(server: &Own) -> (String, String) {
    let at = postgres::host(&server.url()).unwrap();
    let (host, port) = at.rsplit_once(':').unwrap();
    (host.to_owned(), port.to_owned())
}

#[test]
fn no_grant_is_lost_with_a_synchronous_standby() {
    let Some(mut pair) = Pair::start() else { return };
    pair.is_synchronous();
    let url = pair.url();
    let holder = client(&url);
    let held = holder.request("held").lease(LONG).acquire().unwrap();
    let (last, count, stop) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let clients: Vec<LockClient> = (0..3).map(|_| client(&url)).collect();
    std::thread::scope(|scope| {
        let works = |client: &LockClient| {
            while !stop.load(SeqCst) {
                let guard = client.lock("k").unwrap();
                let token = guard.fencing_token();
                let before = last.swap(token, SeqCst);
                // A thread that stalled for a whole lease proves nothing.
                assert!(before < token || !guard.is_held(), "tokens rise: {before}, then {token}");
                std::thread::yield_now();
                let now = last.load(SeqCst);
                assert!(now == token || !guard.is_held(), "{now} came in beside {token}");
                count.fetch_add(1, SeqCst);
            }
        };
        let workers: Vec<_> = clients.iter().map(|client| scope.spawn(move || works(client))).collect();
        let some_more = || {
            let before = count.load(SeqCst);
            let is_over = || workers.iter().any(std::thread::ScopedJoinHandle::is_finished);
            wait_until("they work", || count.load(SeqCst) > before + 30 || is_over());
        };
        some_more();
        pair.cut();
        let late = holder.try_lock_for("late", Duration::from_secs(3));
        pair.fail_over();
        some_more();
        stop.store(true, SeqCst);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(late.as_ref().is_err_and(leasehold::Error::is_retryable), "the standby has not got it: {late:?}");
    });
    assert!(client(&url).try_lock("held").unwrap().is_none(), "it was lost");
    assert_eq!(unless_late(|| holder.heartbeat(&held, LONG)).unwrap().fencing_token(), held.fencing_token());
}

/// What `src/api/stores/postgres.rs` says under "Durability".
#[test]
fn an_asynchronous_standby_may_lack_a_grant_and_tokens_rise_all_the_same() {
    let Some(mut pair) = Pair::start() else { return };
    let url = pair.url();
    let holder = client(&url);
    let kept = holder.request("kept").lease(LONG).acquire().unwrap();
    let has_it = "SELECT FROM leasehold WHERE key = 'kept' AND grant_id IS NOT NULL";
    wait_until("it is copied", || !sql(&pair.standby, has_it).is_empty());
    pair.cut();
    let lost = holder.request("lost").lease(LONG).acquire().unwrap();
    pair.fail_over();
    let other = client(&url);
    let next = other.request("lost").lease(LONG).lock().unwrap();
    assert!(next.fencing_token() > lost.fencing_token());
    // The holder first has to connect to the other server.
    let error = unless_late(|| holder.heartbeat(&lost, LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(next.is_held() && other.try_lock("kept").unwrap().is_none());
    unless_late(|| holder.heartbeat(&kept, LONG)).unwrap();
}

/// A query at the standby may keep it from replaying for as long as `max_standby_streaming_delay` says.
#[test]
fn no_step_waits_until_the_standby_has_replayed_it() {
    let Some(pair) = Pair::start() else { return };
    sql(&pair.primary, "ALTER ROLE leasehold SET synchronous_commit = remote_apply");
    pair.is_synchronous();
    // Before a checkpoint the server notes that its commits have to wait.
    sql(&pair.primary, "CHECKPOINT");
    let options = PostgresOptions::new(pair.primary.url().parse().unwrap(), "public.leasehold").unwrap();
    let stores = [options.clone(), options.pooled().unwrap()].map(opened);
    sql(&pair.standby, "SELECT pg_wal_replay_pause()");
    for store in stores {
        sql(&pair.primary, "SET synchronous_commit = on; DROP INDEX leasehold_shared");
        let made = unless_late(|| store.schema(Schema::Create, &soon())).unwrap();
        assert!(made.contains("got what it lacked"), "{made}");
        warm(&store);
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut a = attempt(&store, &format!("{mode}"), mode);
            granted(&store, &mut a);
            renewed(&store, &mut a, renewal(Lease::For(LONG)));
            let released = release(&store, &mut a);
            assert!(matches!(released, Released::Done), "{mode}: {released:?}");
        }
    }
    let lacks = sql(&pair.standby, "SELECT pg_last_wal_replay_lsn() < pg_last_wal_receive_lsn()");
    assert_eq!(lacks[0][0].as_deref(), Some("t"), "the standby has replayed it all");
}

/// The address of a balancer that lets clients in like the primary, but passes their requests to the standby.
fn balances(standby: &Own) -> String {
    let (host, port) = address(standby);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut server = TcpStream::connect(format!("{host}:{port}")).unwrap();
            let (mut asks, mut asked) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut asks, &mut asked));
            std::thread::spawn(move || {
                let mut bytes = [0; 10_000];
                while let Ok(count @ 1..) = server.read(&mut bytes) {
                    // The answer to the question whether the server refuses writes.
                    let said = bytes[..count].windows(4).position(|four| four == b"\0\x02on");
                    if let Some(at) = said {
                        bytes[at + 2..at + 4].copy_from_slice(b"no");
                    }
                    if client.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    at
}

/// The standby's data may be old, and it has another clock.
#[test]
fn what_a_balancer_asks_a_standby_is_not_answered() {
    let Some(pair) = Pair::start() else { return };
    let url = format!("postgres://leasehold@{}/postgres", balances(&pair.standby));
    let store = opened(PostgresOptions::new(url.parse().unwrap(), "leasehold").unwrap());
    for which in [Which::Key("k".to_owned()), Which::Prefix(String::new()), Which::LockId("x".to_owned())] {
        let error = unless_late(|| store.read(&which, None, Consistency::Strong, &soon())).unwrap_err();
        assert!(error.is_retryable() && text(&error).contains("it is a standby"), "{which:?}: {error}");
    }
}

#[test]
fn a_standby_that_copies_is_refused_and_a_diagnosis_says_what_a_failover_costs() {
    let Some(pair) = Pair::start() else { return };
    let error = unless_late(|| LockClient::connect(&pair.standby.url())).unwrap_err();
    assert!(error.kind() == ErrorKind::Store && text(&error).contains("standby"), "{error}");
    let says = |part: &str| {
        let schema = client(&pair.url()).diagnose().unwrap().schema.unwrap();
        assert!(schema.contains(part), "{schema}");
    };
    says("none of them synchronously");
    pair.is_synchronous();
    says(
        "each grant is on 1 of them, not always the same: a failover loses none only to the one that has received most",
    );
    pair.waits_for("ANY 1 (walreceiver, another)", "quorum");
    says("each grant is on 1 of them, not always the same");
    pair.waits_for("FIRST 2 (walreceiver, another)", "sync");
    says("only 1 of the 2 that must confirm a grant copy this server: nothing is granted until they do");
    // As with anything else that reads the log, such as a backup or a subscriber.
    pair.waits_for("nobody", "async");
    says("only 0 of the 1 that must confirm a grant copy this server: nothing is granted until they do");
    pair.waits_for("walreceiver", "sync");
    says("a failover to any of them loses none");
    let alone = &pair.standby;
    sql(alone, "SELECT pg_promote()");
    let schema = client(&alone.url()).diagnose().unwrap().schema.unwrap();
    assert!(schema.contains("no standby copies"), "{schema}");
}
