//! PgBouncer between the clients and the server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Acquired, Purpose, Released, Renewed, Schema};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::postgres::tokio_postgres::Config;
use leasehold::{ErrorKind, LockClient};

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{give_up, granted, refused, release, renewal, renewed};
use crate::support::harness::sent;
use crate::support::own::Own;
use crate::support::postgres::{
    Rows, block_on, config, connect, connected, opened, sql_at, standbys, told_of, unless_late, unless_unmade,
};
use crate::support::room::room;
use crate::support::servers::{Server, postgres};
use crate::support::wait::wait_until;

/// The time of a heartbeat here: longer than a server on a busy machine stalls. A statement without a limit of its own
/// may wait for a row for ten seconds, then the server ends it.
const SHORT: Duration = Duration::from_secs(8);

static POOLER: Server = Server {
    name: "pgbouncer",
    env: "LEASEHOLD_TEST_PGBOUNCER_URL",
    install: "PgBouncer (on Debian: pgbouncer)",
    fetch: |_| program().map(drop).ok_or_else(|| "there is no pgbouncer in the PATH or /usr/sbin".to_owned()),
    start: |_, port, data| {
        let mut sh = Command::new("sh");
        sh.args(["-c", RUN, "run"]).arg(program().unwrap_or_default()).arg(port.to_string()).arg(data);
        sh
    },
    ..postgres::SERVER
};

/// Runs as another user than root, which PgBouncer refuses to be. `settings` has what differs from the rest.
const RUN: &str = r#"
set -e
program=$1 port=$2 data=$3
as=
if [ "$(id -u)" = 0 ]; then
  as="setpriv --reuid postgres --regid postgres --init-groups --pdeathsig KILL"
  chown -R postgres "$data"
fi
cat >"$data/ini" <<END
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = trust
auth_file = $data/users
logfile = $data/log
$(cat "$data/settings")
END
echo '"leasehold" ""' >"$data/users"
exec $as "$program" -q "$data/ini"
"#;

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.map(|place| place.join("pgbouncer")).find(|program| program.is_file())
}

/// A server, and a pooler in front of it in this mode.
struct Pooled {
    server: Own,
    pooler: Own,
}

impl Pooled {
    fn start(mode: &str) -> Option<Pooled> {
        Pooled::with(mode, "")
    }

    fn with(mode: &str, more: &str) -> Option<Pooled> {
        let server = Own::start(&postgres::OWN)?;
        connected(|| LockClient::builder(server.url())).create_schema().unwrap();
        let at = postgres::host(&server.url()).unwrap();
        let (host, port) = at.rsplit_once(':').unwrap();
        let data = room().unwrap();
        let settings =
            format!("pool_mode = {mode}\n{more}\n[databases]\npostgres = host={host} port={port} dbname=postgres");
        std::fs::write(Path::new(data.path()).join("settings"), settings).unwrap();
        Some(Pooled { server, pooler: Own::start_in(&POOLER, data)? })
    }

    /// A store whose URL names the pooler's mode, or not.
    fn store(&self, is_named: bool) -> Postgres {
        let options = PostgresOptions::new(self.pooler.url().parse().unwrap(), "public.leasehold").unwrap();
        opened(if is_named { options.pooled().unwrap() } else { options })
    }

    /// The same, with a row of the key `k`, which is free; and the server behind the pooler.
    fn store_with_row(&self, is_named: bool) -> (Postgres, Config) {
        let store = self.store(is_named);
        let mut a = exclusive(&store, "k");
        granted(&store, &mut a);
        release(&store, &mut a);
        (store, self.server.url().parse().unwrap())
    }

    /// What another program of the same pool finds.
    fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&self.pooler.url().parse().unwrap(), sql)
    }
}

/// How many statements wait for a row.
fn waiting(server: &Config) -> usize {
    sql_at(server, "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").len()
}

/// Whether the store says that it wakes waiters.
fn tells(store: &Postgres) -> bool {
    let (to, _told) = crossbeam_channel::unbounded();
    unless_late(|| store.wake(&["k".to_owned()], to.clone(), &soon())).unwrap()
}

#[test]
fn a_pool_of_transactions_serves_locks_without_wakes_and_keeps_nothing_of_ours() {
    let Some(pooled) = Pooled::start("transaction") else { return };
    let settings = "SELECT current_setting('search_path'), current_setting('statement_timeout'), \
                    current_setting('default_transaction_isolation'), array_length(array(SELECT pg_listening_channels()), 1)";
    let before = pooled.sql(settings);
    let (store, second) = (pooled.store(true), pooled.store(true));
    store.schema(Schema::Check, &soon()).unwrap();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, &format!("{mode}"), mode);
        let token = granted(&store, &mut a).token;
        refused(&second, &mut exclusive(&second, &a.key));
        renewed(&store, &mut a, renewal(Lease::For(Duration::from_secs(600))));
        release(&store, &mut a);
        let mut b = attempt(&second, &a.key, mode);
        give_up(&second, &mut b);
        refused(&second, &mut b);
        assert!(granted(&second, &mut attempt(&second, &a.key, mode)).token > token);
    }
    assert!(!tells(&store));
    let url = format!("{}?pooler=transaction&table=public.leasehold", pooled.pooler.url());
    let [holder, waiter] = [(); 2].map(|()| connected(|| LockClient::builder(&url)));
    let guard = holder.lock("k").unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("k").unwrap().fencing_token());
        let token = guard.fencing_token();
        drop(guard);
        assert!(waits.join().unwrap() > token);
    });
    assert_eq!(pooled.sql(settings), before);
    assert!(sql_at(&pooled.server.url().parse().unwrap(), "SELECT FROM leasehold").len() >= 3);
}

/// When a client is gone, the pooler ends its connection to the server, which a waiting statement does not notice. A
/// pooler that this driver asks to cancel the statement may crash.
#[test]
fn who_leaves_a_pool_of_transactions_leaves_no_statement_for_long_and_the_pooler_lives() {
    let Some(pooled) = Pooled::start("transaction") else { return };
    let (store, server) = pooled.store_with_row(true);
    block_on(async {
        let theirs = connect(&server).await;
        theirs.batch_execute("BEGIN; SELECT FROM leasehold FOR UPDATE").await.unwrap();
        let mut left = [(); 3].map(|()| exclusive(&store, "k"));
        for b in &mut left {
            let answer = store.acquire(b, &Deadline::after(Duration::from_millis(700)));
            assert!(!matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
        }
        wait_until("nothing waits for the row any more", || waiting(&server) == 0);
        theirs.batch_execute("COMMIT").await.unwrap();
        // If the pooler or the server stalled with such a statement, it waits for the row only from now on.
        left.iter_mut().for_each(|b| drop(sent(|| store.release(b, Purpose::GiveUp, &soon()))));
    });
    granted_anew(&store, &mut exclusive(&store, "k"));
}

/// A cancel would find nothing there, or end the pooler.
#[test]
fn who_leaves_a_pool_of_sessions_cancels_nothing() {
    let Some(pooled) = Pooled::start("session") else { return };
    let (store, server) = pooled.store_with_row(false);
    block_on(async {
        let theirs = connect(&server).await;
        theirs.batch_execute("BEGIN; SELECT FROM leasehold FOR UPDATE").await.unwrap();
        wait_until("what was left waits for the row", || {
            let answer = store.acquire(&mut exclusive(&store, "k"), &Deadline::after(Duration::from_millis(700)));
            assert!(!matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
            waiting(&server) > 0
        });
        // This needs another connection, which comes after one that cancels.
        granted_anew(&store, &mut exclusive(&store, "other"));
    });
    let log = || std::fs::read_to_string(pooled.pooler.data().join("log")).unwrap();
    wait_until("the pooler notes who left", || log().contains("closing because: client"));
    assert!(!log().contains("cancel"), "{}", log());
}

/// All clients share the sessions of the pool.
#[test]
fn those_who_wait_for_a_row_leave_a_session_of_the_pool_to_heartbeats() {
    let Some(pooled) = Pooled::with("transaction", "default_pool_size = 2") else { return };
    let (store, others) = (pooled.store(true), [pooled.store(true), pooled.store(true)]);
    let mut held = exclusive(&store, "held");
    granted(&store, &mut held);
    for key in ["free", "shared"] {
        let mut a = attempt(&store, key, if key == "free" { Mode::Exclusive } else { Mode::Shared });
        granted(&store, &mut a);
        if key == "free" {
            release(&store, &mut a);
        }
    }
    let server = pooled.server.url().parse().unwrap();
    let is_over = AtomicBool::new(false);
    block_on(async {
        let theirs = connect(&server).await;
        theirs.batch_execute("BEGIN; SELECT FROM leasehold WHERE key <> 'held' FOR UPDATE").await.unwrap();
        thread::scope(|scope| {
            for store in &others {
                let is_over = &is_over;
                for mode in [Mode::Exclusive, Mode::Exclusive, Mode::Shared] {
                    scope.spawn(move || {
                        let key = if mode == Mode::Shared { "shared" } else { "free" };
                        while !is_over.load(SeqCst) {
                            // The transaction that holds these rows ends when everything is over.
                            let _ = store.acquire(&mut attempt(store, key, mode), &soon());
                        }
                    });
                }
            }
            let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            wait_until("they wait", || !sql_at(&server, waits).is_empty());
            let lease = Lease::For(Duration::from_secs(600));
            let mut renews = || store.renew(&mut held, renewal(lease), &Deadline::after(SHORT));
            let renewals: Vec<_> = (0..5).map(|_| unless_unmade(&mut renews)).collect();
            is_over.store(true, SeqCst);
            drop(theirs);
            for renewed in renewals {
                assert!(matches!(renewed, Ok(Renewed::Until { .. })), "{renewed:?}");
            }
        });
    });
}

/// With this setting, of another program or of the role, each transaction sees the rows as they were when it began.
#[test]
fn in_a_pool_of_transactions_an_isolation_that_is_not_ours_fails_nobody() {
    needs_server!();
    let rows = Rows::fresh();
    let mut settings = config();
    settings.options("-c default_transaction_isolation=serializable");
    let options = PostgresOptions::new(settings, format!("public.{}", rows.0)).unwrap();
    let store = Arc::new(opened(options.pooled().unwrap()));
    granted(&*store, &mut shared(&*store, "k"));
    let waits = "SELECT FROM pg_stat_activity WHERE query LIKE '%{T}%' AND wait_event_type = 'Lock'";
    block_on(async {
        let theirs = connect(&config()).await;
        let mut proven = 0;
        for _ in 0..30 {
            let write = format!("BEGIN; UPDATE {} SET version = version + 1", rows.0);
            theirs.batch_execute(&write).await.unwrap();
            let store = store.clone();
            let joins = thread::spawn(move || store.acquire(&mut shared(&*store, "k"), &soon()));
            wait_until("it waits, or has waited", || joins.is_finished() || !rows.sql(waits).is_empty());
            theirs.batch_execute("COMMIT").await.unwrap();
            match joins.join().unwrap() {
                Ok(Acquired::Granted { .. }) => proven += 1,
                // The call waits only for a short time, in which this machine has to do all that.
                Err(error) if text(&error).contains("has the row locked") => {}
                other => panic!("{other:?}"),
            }
            if proven == 3 {
                break;
            }
        }
        assert!(proven > 0, "each time the row was locked for longer than it waits");
    });
}

/// If transactions assert the lock one after the other, the gaps are short, and a heartbeat that gave up at once would
/// meet none.
#[test]
fn in_a_pool_of_transactions_a_shared_heartbeat_waits_for_one_that_asserts_it() {
    needs_server!();
    let rows = Rows::fresh();
    let options = PostgresOptions::new(config(), format!("public.{}", rows.0)).unwrap();
    let store = Arc::new(opened(options.pooled().unwrap()));
    let held = Arc::new(Mutex::new(shared(&*store, "k")));
    granted(&*store, &mut held.lock().unwrap());
    let waits = "SELECT FROM pg_stat_activity WHERE query LIKE '%{T}%' AND wait_event_type = 'Lock' \
                 AND clock_timestamp() - query_start > interval '300 ms'";
    block_on(async {
        let theirs = connect(&config()).await;
        // The call waits only for a short time, in which this machine has to do all that.
        for tries in 1..=10 {
            theirs.batch_execute(&format!("BEGIN; SELECT FROM {} FOR SHARE", rows.0)).await.unwrap();
            let (store, held) = (store.clone(), held.clone());
            let lease = Lease::For(Duration::from_secs(600));
            let renews = thread::spawn(move || store.renew(&mut held.lock().unwrap(), renewal(lease), &soon()));
            wait_until("it waits, or has waited", || renews.is_finished() || !rows.sql(waits).is_empty());
            theirs.batch_execute("COMMIT").await.unwrap();
            match renews.join().unwrap() {
                Ok(Renewed::Until { .. }) => break,
                Err(error) if text(&error).contains("has the row locked") && tries < 10 => {}
                other => panic!("{tries}: {other:?}"),
            }
        }
    });
}

/// A commit that notifies has the one lock of all that do, until the standby has it.
#[test]
fn in_a_pool_of_transactions_a_release_waits_for_nobody_who_tells() {
    let Some(pooled) = Pooled::start("transaction") else { return };
    let (store, server) = (pooled.store(true), pooled.server.url().parse().unwrap());
    let mut held = exclusive(&store, "k");
    granted(&store, &mut held);
    standbys(&server, "nobody");
    let released = thread::scope(|scope| {
        // A commit that only notifies does not wait for the standby, so this one also writes.
        let tells = "SELECT pg_notify('other', ''), pg_logical_emit_message(true, '', '')";
        scope.spawn(|| sql_at(&server, tells));
        let waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait_until("it waits for the standby", || !sql_at(&server, waits).is_empty());
        let released = unless_late(|| store.release(&mut held, Purpose::Release, &soon()));
        standbys(&server, "");
        released
    });
    assert!(matches!(released, Ok(Released::Done)), "{released:?}");
}

/// One user can have different search paths: what another program sets remains in the session that it used.
#[test]
fn in_a_pool_of_transactions_the_table_is_not_what_somebodys_search_path_finds() {
    let Some(pooled) = Pooled::start("transaction") else { return };
    let url = |table: &str| format!("{}?pooler=transaction{table}", pooled.pooler.url());
    let connect = |table: &str| unless_late(|| LockClient::connect(&url(table)));
    pooled.sql("CREATE SCHEMA other; CREATE TABLE other.leasehold (LIKE public.leasehold INCLUDING ALL)");
    let (first, second) = (connect("&table=public.leasehold").unwrap(), connect("&table=public.leasehold").unwrap());
    let _guard = first.lock("k").unwrap();
    pooled.sql("SET search_path = other");
    assert!(second.try_lock("k").unwrap().is_none());
    for table in ["", "&table=leasehold"] {
        let error = connect(table).unwrap_err();
        let says = "pooler=transaction needs the table with its schema, like table=public.leasehold";
        assert!(error.kind() == ErrorKind::Config && text(&error).contains(says), "{error}");
    }
}

/// An idle pool shows this only if the report comes through another session.
#[test]
fn a_pool_of_transactions_that_the_url_does_not_name_is_noticed_and_one_of_sessions_tells() {
    let Some(pooled) = Pooled::start("transaction") else { return };
    assert!(!tells(&pooled.store(false)));
    // The request need not have long either. If its time is over before the server has answered, that says nothing.
    let (store, (to, _told)) = (pooled.store(false), crossbeam_channel::unbounded());
    let briefly = || store.wake(&["k".to_owned()], to.clone(), &Deadline::after(Duration::from_millis(1_900)));
    assert!(!sent(briefly));
    // Another program would find a prepared statement by its name.
    let kept = "SELECT count(*), current_setting('plan_cache_mode'), current_setting('enable_seqscan'), \
                current_setting('synchronous_commit') FROM pg_prepared_statements";
    let before = pooled.sql(kept);
    for store in [pooled.store(false), pooled.store(false), pooled.store(true)] {
        warm(&store);
        assert_eq!(pooled.sql(kept), before);
    }
    let Some(pooled) = Pooled::start("session") else { return };
    told_of(&pooled.store(false), "k");
    let error = LockClient::connect(&format!("{}?pooler=statement", pooled.pooler.url())).unwrap_err();
    assert!(text(&error).contains("pooler must be transaction"), "{error}");
}
