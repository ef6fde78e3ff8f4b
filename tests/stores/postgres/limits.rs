//! A server that refuses connections, ends sessions that are idle or at work, has a full disk, or whose clock is set.

use std::path::Path;
use std::time::Duration;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Acquired, Renewed};
use leasehold::postgres::tokio_postgres::{Client, Config, NoTls};
use leasehold::{ErrorKind, LockClient};

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{granted, lost, refused, release, renewal, renewed};
use crate::support::faketime;
use crate::support::harness::{PATIENCE, patient};
use crate::support::own::Own;
use crate::support::postgres::{block_on, comes_soon, connect, connected, opened, sql_at, unless_late};
use crate::support::room::room;
use crate::support::servers::{Server, postgres};
use crate::support::small_disk::{fill, on_a_small_disk};
use crate::support::wait::wait_until;

const LEASE: Duration = Duration::from_secs(600);

/// Five connections for users. For superusers there are more than the sessions that may still be ending on a busy
/// machine.
static FEW: Server = Server {
    start: |_, port, data| {
        let few = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=25"];
        postgres::with(port, data, &[&few[..], &["superuser_reserved_connections=20"]].concat())
    },
    ..postgres::OWN
};

fn sql(server: &Own, sql: &str) -> Vec<Vec<Option<String>>> {
    sql_at(&server.url().parse().unwrap(), sql)
}

fn client(url: &str) -> LockClient {
    // What a drop could not release while the server stalled, nobody would get during the test.
    connected(|| LockClient::builder(url).lease(LEASE).drop_timeout(PATIENCE))
}

fn store(url: &str) -> Postgres {
    opened(PostgresOptions::new(url.parse().unwrap(), "leasehold").unwrap())
}

/// A server with a table of locks that the role `app` may use.
fn with_app(kind: &'static Server) -> Option<(Own, String)> {
    let server = Own::start(kind)?;
    client(&server.url()).create_schema().unwrap();
    sql(&server, "CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold TO app");
    let url = server.url().replace("leasehold@", "app@");
    Some((server, url))
}

/// Opens connections until the server refuses one.
async fn take_all(config: &Config) -> Vec<Client> {
    let mut all = Vec::new();
    while let Ok((client, connection)) = config.connect(NoTls).await {
        tokio::spawn(connection);
        all.push(client);
        assert!(all.len() < 100, "there is no limit");
    }
    all
}

#[test]
fn a_server_without_a_connection_left_costs_no_lock_and_no_wait() {
    let Some((server, url)) = with_app(&FEW) else { return };
    for limit in ["-1", "2"] {
        let sessions = "SELECT FROM pg_stat_activity WHERE usename = 'app'";
        wait_until("those before have ended", || sql(&server, sessions).is_empty());
        sql(&server, &format!("ALTER ROLE app CONNECTION LIMIT {limit}"));
        let (ours, other) = (client(&url), client(&server.url()));
        let held = ours.request("held").acquire().unwrap();
        let their = other.lock("their").unwrap();
        block_on(async {
            let (mut others, mut more) = (Vec::new(), Vec::new());
            // A session that was about to end may have left its place since the last refusal.
            let error = loop {
                others.extend(take_all(&url.parse().unwrap()).await);
                match unless_late(|| LockClient::connect(&url)) {
                    Err(error) => break error,
                    Ok(client) => more.push(client),
                }
                assert!(more.len() < 20, "there is no limit");
            };
            assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
            assert!(text(&error).contains("no connection left"), "{error:?}");
            // On a busy machine the last look may be cut off.
            let short = ours.try_lock_for("their", Duration::from_secs(3));
            assert!(short.as_ref().map_or_else(|error| error.is_retryable(), Option::is_none), "{short:?}");
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| ours.lock("their").unwrap());
                // The waiter may be using the only connection at that moment.
                wait_until("it is renewed", || match ours.heartbeat(&held, LEASE) {
                    Ok(renewed) => renewed.fencing_token() == held.fencing_token(),
                    Err(error) => {
                        assert!(error.is_retryable(), "{error:?}");
                        false
                    }
                });
                their.release().unwrap();
                drop(waits.join().unwrap());
            });
            assert!(other.try_lock("held").unwrap().is_none());
            drop((others, more));
        });
        wait_until("it is released", || ours.release(&held).is_ok());
        wait_until("there is room", || LockClient::connect(&url).is_ok());
    }
}

/// As while a directory of users is down, or while a password is changed in two steps.
#[test]
fn who_was_let_in_before_goes_on_once_he_is_again() {
    let Some((server, url)) = with_app(&postgres::OWN) else { return };
    let (ours, other, store) = (client(&url), client(&server.url()), store(&url));
    let mut held = exclusive(&store, "held");
    granted(&store, &mut held);
    for (code, shuts, opens) in [
        ("(28000)", "ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN"),
        ("(42501)", "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC", "GRANT CONNECT ON DATABASE postgres TO PUBLIC"),
    ] {
        let their = other.lock("their").unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| ours.lock("their").map(drop));
            sql(&server, shuts);
            let mut refusal = None;
            wait_until("it is not let in", || {
                sql(&server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
                let renewed = store.renew(&mut held, renewal(Lease::For(LEASE)), &soon());
                refusal = renewed.err().filter(|error| text(error).contains(code));
                refusal.is_some()
            });
            sql(&server, opens);
            their.release().unwrap();
            let (refusal, waited) = (refusal.unwrap(), waits.join().unwrap());
            assert!(refusal.kind() == ErrorKind::Store && refusal.is_retryable(), "{refusal:?}");
            assert!(waited.is_ok(), "{waited:?}");
        });
        renewed_anew(&store, &mut held, LEASE);
    }
}

#[test]
fn the_roles_own_limits_end_no_session_of_ours() {
    let Some((server, url)) = with_app(&postgres::OWN) else { return };
    for limit in ["idle_session_timeout", "idle_in_transaction_session_timeout", "lock_timeout", "transaction_timeout"]
    {
        if !sql(&server, &format!("SELECT FROM pg_settings WHERE name = '{limit}'")).is_empty() {
            sql(&server, &format!("ALTER ROLE app SET {limit} = '200ms'"));
        }
    }
    assert!((0..5).any(|_| keeps_its_sessions(&server, &url)), "it does not listen");
}

/// Returns `false` if the store does not listen: after a second in which it did not hear itself, for example because
/// the server stalled, it polls for minutes.
fn keeps_its_sessions(server: &Own, url: &str) -> bool {
    let sessions = "SELECT FROM pg_stat_activity WHERE usename = 'app'";
    wait_until("those before have ended", || sql(server, sessions).is_empty());
    // A look that is abandoned while the server stalls for some seconds would also end its session.
    let ours = connected(|| patient(LockClient::builder(url)).lease(LEASE));
    let other = client(&server.url());
    let their = other.lock("k").unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ours.lock("k").unwrap());
        let pids = || {
            sql(
                server,
                "SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND application_name = 'leasehold' ORDER BY 1",
            )
        };
        let listens = "SELECT FROM pg_stat_activity WHERE usename = 'app' AND query LIKE '%unnest%'";
        let listens = comes_soon(|| !sql(server, listens).is_empty());
        if listens {
            let before = pids();
            // The server does end the idle sessions of other clients.
            block_on(async {
                let client = connect(&url.parse().unwrap()).await;
                let _ = client.batch_execute("BEGIN").await;
                let over = async {
                    while !client.is_closed() {
                        tokio::task::yield_now().await
                    }
                };
                tokio::time::timeout(Duration::from_secs(120), over).await.unwrap();
            });
            // One more session may have come.
            let after = pids();
            assert!(before.iter().all(|pid| after.contains(pid)), "{before:?}, and then {after:?}");
        }
        drop(their);
        drop(waits.join().unwrap());
        listens
    })
}

/// The statement of a backend that is ended while it waits for a row.
#[test]
fn a_backend_that_is_ended_under_a_statement_settles_nothing_and_costs_no_lock() {
    let Some((server, url)) = with_app(&postgres::OWN) else { return };
    let store = store(&url);
    let (mut held, mut next) = (exclusive(&store, "held"), exclusive(&store, "next"));
    granted(&store, &mut held);
    granted(&store, &mut next);
    release(&store, &mut next);
    let mut next = exclusive(&store, "next");
    let end_it = || {
        let ended =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock'";
        wait_until("it is ended", || !sql(&server, ended).is_empty());
    };
    block_on(async {
        let locks = connect(&server.url().parse().unwrap()).await;
        locks.batch_execute("BEGIN; SELECT FROM leasehold FOR UPDATE").await.unwrap();
        std::thread::scope(|scope| {
            let renews = scope.spawn(|| store.renew(&mut held, renewal(Lease::For(LEASE)), &soon()));
            end_it();
            let answer = renews.join().unwrap();
            assert!(matches!(answer, Ok(Renewed::Unknown(_))), "{answer:?}");
            let wants = scope.spawn(|| unless_late(|| store.acquire(&mut next, &soon())));
            end_it();
            let answer = wants.join().unwrap();
            assert!(matches!(answer, Ok(Acquired::Unknown(_))), "{answer:?}");
            // A waiter goes on.
            let waiter = client(&url);
            let waits = scope.spawn(move || waiter.lock("next").unwrap().fencing_token());
            end_it();
            sql(&server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'");
            assert!(waits.join().unwrap() > 0);
        });
    });
    renewed_anew(&store, &mut held, LEASE);
    next.sends += 1;
    granted(&store, &mut next);
}

#[test]
fn a_full_disk_of_the_server_is_told_and_costs_no_lock() {
    on_a_small_disk("postgres::limits::a_full_disk_of_the_server_is_told_and_costs_no_lock", "120m", on_a_full_disk);
}

fn on_a_full_disk(place: &Path) {
    let Some(mut server) = Own::start_in(&postgres::OWN, tempfile::tempdir_in(place).unwrap()) else { return };
    client(&server.url()).create_schema().unwrap();
    let store = store(&server.url());
    let lease = renewal(Lease::For(LEASE));
    let mut held = exclusive(&store, "held");
    let token = granted(&store, &mut held).token;
    // The table has no room to grow.
    let filler = fill(place);
    let refusal = (0..500).find_map(|n| {
        let mut a = exclusive(&store, &format!("{n}"));
        a.ask.labels.comment = Some((0..1_500).map(|at| char::from(b'a' + (n * at % 23) as u8)).collect());
        match store.acquire(&mut a, &soon()) {
            Ok(Acquired::Granted { .. }) => None,
            other => Some((a.key, other.map(drop))),
        }
    });
    let (key, answer) = refusal.expect("the disk is not full");
    let error = answer.unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
    assert!(text(&error).contains("no space"), "{error:?}");
    assert_eq!(holders(&store, &key), []);
    renewed(&store, &mut held, lease);
    std::fs::remove_file(filler).unwrap();
    granted(&store, &mut exclusive(&store, &key));
    // The write-ahead log has no room: the server stops, and does not come back by itself.
    let filler = fill(place);
    let mut unanswered = 0;
    for _ in 0..10 {
        block_on(async {
            if let Ok((client, connection)) = server.url().parse::<Config>().unwrap().connect(NoTls).await {
                tokio::spawn(connection);
                let _ = client.batch_execute("SELECT pg_switch_wal()").await;
            }
        });
        match store.renew(&mut held, lease, &soon()) {
            Ok(Renewed::Until { .. }) => {}
            Ok(Renewed::Unknown(_)) => unanswered += 1,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                unanswered += 1;
            }
            Ok(other) => panic!("{other:?}"),
        }
        if unanswered == 2 {
            break;
        }
    }
    assert_eq!(unanswered, 2, "the disk is not full");
    std::fs::remove_file(filler).unwrap();
    server.start_again();
    wait_until("it is renewed", || matches!(store.renew(&mut held, lease, &soon()), Ok(Renewed::Until { .. })));
    assert_eq!(holders(&store, "held")[0].token, token);
    refused(&store, &mut exclusive(&store, "held"));
}

/// What `src/api/stores/postgres.rs` says under "Durability".
#[test]
fn a_clock_that_is_set_lets_no_token_fall_and_stops_no_step() {
    if !faketime::is_there() {
        return;
    }
    let data = room().unwrap();
    let clock = data.path().join("clock");
    // In one step, because the server reads the file all the time, and an empty file is no time.
    let set = |to: &str| {
        let new = clock.with_extension("new");
        std::fs::write(&new, to).unwrap();
        std::fs::rename(new, &clock).unwrap();
    };
    set("+0");
    let env = format!(
        "env LD_PRELOAD={} FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1 FAKETIME_TIMESTAMP_FILE={}",
        faketime::library(),
        clock.display()
    );
    std::fs::write(data.path().join("env"), env).unwrap();
    let Some(server) = Own::start_in(&postgres::OWN, data) else { return };
    client(&server.url()).create_schema().unwrap();
    let (store, second) = (store(&server.url()), store(&server.url()));
    let lease = renewal(Lease::For(LEASE));
    let (mut kept, mut taken) = (exclusive(&store, "kept"), exclusive(&store, "taken"));
    let token = granted(&store, &mut kept).token;
    let first = granted(&store, &mut taken).token;
    set("+3600");
    // This client knows a time that is an hour behind, and so is the limit that it sends for late copies.
    let mut new = exclusive(&store, "new");
    granted(&store, &mut new);
    renewed(&store, &mut kept, lease);
    refused(&second, &mut exclusive(&second, "kept"));
    let mut rival = exclusive(&second, "taken");
    let far = granted(&second, &mut rival).token;
    assert!(far > first);
    lost(&store, &mut taken);
    set("+0");
    renewed(&store, &mut kept, lease);
    refused(&second, &mut exclusive(&second, "kept"));
    assert_eq!(holders(&second, "kept")[0].token, token);
    // The lock of a holder that is gone remains an hour longer.
    refused(&store, &mut exclusive(&store, "taken"));
    release(&second, &mut rival);
    let mut last = exclusive(&store, "taken");
    assert!(granted(&store, &mut last).token > far, "tokens rise though the time fell");
    renewed(&store, &mut last, lease);
    release(&store, &mut new);
    let mut new = exclusive(&second, "new");
    granted(&second, &mut new);
    assert_eq!(client(&server.url()).list(&leasehold::Filter::default()).unwrap().len(), 3);
}
