//! What others do on the same server: open transactions, standbys that are gone, hosts that are silent, other settings.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Acquired, Attempt, Purpose, Released, Renewed};
use leasehold::internals::sys::deadline::Deadline;

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{granted, refused, release, renewal, renewed};
use crate::support::harness::PATIENCE;
use crate::support::lateness::at_rest;
use crate::support::nobody::silent;
use crate::support::postgres::{Rows, block_on, config, connect, opened, sql_at, told_of, unless_late};
use crate::support::servers::{postgres, postgres_server};
use crate::support::wait::wait_until;

/// After this time the call is abandoned.
const SHORT: Duration = Duration::from_secs(3);
/// The time of a call that must wait for nobody: longer than a server on a busy machine stalls, and shorter than the
/// server lets a statement wait for a row.
const LESS: Duration = Duration::from_secs(8);

#[test]
fn a_refusal_locks_nothing_and_waits_for_nobody() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    granted(&store, &mut exclusive(&store, "k"));
    granted(&store, &mut shared(&store, "shared"));
    let row = "SELECT ctid, xmax, xmin FROM {T} ORDER BY key";
    let before = rows.sql(row);
    for key in ["k", "shared"] {
        refused(&store, &mut exclusive(&store, key));
    }
    assert_eq!(rows.sql(row), before, "a refusal leaves the row as it is");
    block_on(async {
        let client = connect(&config()).await;
        client.batch_execute(&format!("BEGIN; SELECT FROM {} FOR KEY SHARE", rows.0)).await.unwrap();
        let mut b = exclusive(&store, "k");
        let answer = store.acquire(&mut b, &Deadline::after(LESS)).unwrap();
        assert!(matches!(answer, Acquired::Refused(_)), "{answer:?}");
    });
}

#[test]
fn a_host_that_is_silent_hides_no_other() {
    needs_server!();
    let rows = Rows::fresh();
    let server = postgres::host(&postgres_server().unwrap()).unwrap();
    let silent = silent();
    let store = opened(rows.options_at(&format!("{},{server}", silent.local_addr().unwrap())));
    granted(&store, &mut exclusive(&store, "k"));
    // The same if each call has less time than a host may take.
    let end =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%{T}%' AND pid <> pg_backend_pid()";
    rows.sql(end);
    wait_until("it is found again", || {
        store.acquire(&mut exclusive(&store, "k"), &Deadline::after(Duration::from_millis(700))).is_ok()
    });
}

#[test]
fn an_answer_that_says_the_connection_broke_settles_nothing() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for code in ["08006", "08007", "40003", "57P01", "57P02"] {
        rows.sql(&format!(
            "CREATE OR REPLACE FUNCTION {{T}}_f() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '{code}'; END $$; \
             DROP TRIGGER IF EXISTS f ON {{T}}; \
             CREATE TRIGGER f AFTER INSERT ON {{T}} FOR EACH ROW EXECUTE FUNCTION {{T}}_f()"
        ));
        let answer = unless_late(|| store.acquire(&mut exclusive(&store, "k"), &soon()));
        assert!(matches!(answer, Ok(Acquired::Unknown(_))), "{code}: {answer:?}");
    }
    rows.sql("DROP FUNCTION {T}_f() CASCADE");
}

/// A server can have too little of other things than disk space.
#[test]
fn a_limit_of_the_servers_settings_is_not_told_as_a_full_disk() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    for (code, says) in [("53400", "a limit in the server's settings"), ("53100", "make room on its disk")] {
        rows.sql(&format!(
            "CREATE OR REPLACE FUNCTION {{T}}_f() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '{code}'; END $$; \
             DROP TRIGGER IF EXISTS f ON {{T}}; \
             CREATE TRIGGER f AFTER INSERT ON {{T}} FOR EACH ROW EXECUTE FUNCTION {{T}}_f()"
        ));
        let error = store.acquire(&mut exclusive(&store, "k"), &soon()).unwrap_err();
        assert!(text(&error).contains(says) && error.is_retryable(), "{code}: {error}");
    }
    rows.sql("DROP FUNCTION {T}_f() CASCADE");
}

/// As with a session elsewhere that listens, and is idle in a transaction for days.
#[test]
fn a_full_queue_of_notifications_stops_no_release() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    rows.sql(
        "CREATE FUNCTION {T}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_query() LIKE '%pg_notify%' THEN RAISE EXCEPTION 'full' USING ERRCODE = '54000'; END IF; \
         RETURN NULL; END $$; \
         CREATE TRIGGER f AFTER UPDATE ON {T} FOR EACH ROW EXECUTE FUNCTION {T}_f()",
    );
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&store, "k", mode);
        granted(&store, &mut a);
        release(&store, &mut a);
        assert_eq!(holders(&store, "k"), []);
    }
    rows.sql("DROP FUNCTION {T}_f() CASCADE");
}

#[test]
fn shared_locks_that_wait_starve_no_other_heartbeat() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut all: Vec<_> = (0..6).map(|_| shared(&store, "s")).collect();
    all.iter_mut().for_each(|a| drop(granted(&store, a)));
    let mut e = exclusive(&store, "e");
    granted(&store, &mut e);
    let lease = Lease::For(Duration::from_secs(60));
    block_on(async {
        let client = connect(&config()).await;
        client.batch_execute(&format!("BEGIN; SELECT FROM {} WHERE key = 's' FOR SHARE", rows.0)).await.unwrap();
        std::thread::scope(|scope| {
            for a in &mut all {
                let store = &store;
                scope.spawn(move || drop(store.renew(a, renewal(lease), &soon())));
            }
            let waits =
                "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%{T}%' AND wait_event_type = 'Lock'";
            wait_until("one waits", || rows.one(waits).as_deref() == Some("t"));
            for _ in 0..3 {
                let answer = unless_late(|| store.renew(&mut e, renewal(lease), &Deadline::after(LESS)));
                assert!(matches!(answer, Ok(Renewed::Until { .. })), "{answer:?}");
            }
            drop(client);
        });
    });
}

/// As many guards of one key as there are turns that may wait would otherwise take all of these turns.
#[test]
fn shared_locks_of_one_key_that_wait_hold_up_no_other_key() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let mut all: Vec<_> = (0..6).map(|_| shared(&store, "s")).collect();
    all.iter_mut().for_each(|a| drop(granted(&store, a)));
    let (mut last, mut t, mut e) = (shared(&store, "s"), shared(&store, "t"), exclusive(&store, "e"));
    [&mut last, &mut t, &mut e].into_iter().for_each(|a| drop(granted(&store, a)));
    let renewal = renewal(Lease::For(Duration::from_secs(60)));
    block_on(async {
        let client = connect(&config()).await;
        client.batch_execute(&format!("BEGIN; SELECT FROM {} WHERE key = 's' FOR SHARE", rows.0)).await.unwrap();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let is_free = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let renews = |a| {
                let (store, is_free) = (&store, &is_free);
                // The server ends each of these after a while. A renewal that begins once the row is free must succeed.
                scope.spawn(move || {
                    let (a, began): (&mut Attempt, _) = (a, Instant::now());
                    loop {
                        let is_last = is_free.load(SeqCst) || began.elapsed() > 4 * PATIENCE;
                        let answer = store.renew(a, renewal, &soon());
                        if is_last || matches!(answer, Ok(Renewed::Until { .. })) {
                            return answer;
                        }
                    }
                })
            };
            let in_line: Vec<_> = all.iter_mut().map(renews).collect();
            let waiting =
                || rows.sql("SELECT FROM pg_stat_activity WHERE query LIKE '%{T}%' AND wait_event_type = 'Lock'").len();
            wait_until("one waits", || waiting() > 0);
            at_rest("no more of them wait", waiting);
            // The server ends statements that wait for a row only later than this.
            let renewed = unless_late(|| store.renew(&mut t, renewal, &Deadline::after(LESS)));
            let released = unless_late(|| store.release(&mut e, Purpose::Release, &Deadline::after(LESS)));
            // If it learns late that nothing was sent, the outcome is unknown. On a machine that stalled the error says
            // that there was no time at all.
            let says =
                |error: &leasehold::Error| text(error).contains("an earlier statement of this client for this row");
            let mut answers = Vec::new();
            let is_refused = (0..5).any(|_| {
                answers.push(store.renew(&mut last, renewal, &Deadline::after(SHORT)));
                answers.last().is_some_and(|answer| answer.as_ref().is_err_and(says))
            });
            rows.sql(&format!("SELECT pg_terminate_backend({pid})"));
            is_free.store(true, SeqCst);
            assert!(matches!(renewed, Ok(Renewed::Until { .. })), "{renewed:?}");
            assert!(matches!(released, Ok(Released::Done)), "{released:?}");
            assert!(is_refused, "what was not sent: {answers:?}");
            let ended = in_line.into_iter().map(|asks| asks.join().unwrap());
            // On a slow machine the server ends some of them, and their errors say so.
            let renewed = ended.filter(|answer| matches!(answer, Ok(Renewed::Until { .. }))).count();
            assert!(renewed > 0, "nobody goes on once the row is free");
        });
    });
    // None of the abandoned statements is in the way.
    renewed_anew(&store, &mut last, Duration::from_secs(60));
}

#[test]
fn who_leaves_a_statement_ends_no_connection_that_works() {
    needs_server!();
    // A machine that stalled meanwhile proves nothing: the call was abandoned before anybody looked.
    let is_proven = |times: u32| leaves_within(times * SHORT);
    assert!([1, 2, 2, 2].into_iter().any(is_proven), "it never waited long enough to be looked at");
}

/// Returns `false` if the call was abandoned before all was seen.
fn leaves_within(time: Duration) -> bool {
    let rows = Rows::fresh();
    let store = rows.open();
    let (mut e, mut k) = (exclusive(&store, "e"), exclusive(&store, "k"));
    granted(&store, &mut e);
    granted(&store, &mut k);
    release(&store, &mut k);
    block_on(async {
        let client = connect(&config()).await;
        client.batch_execute(&format!("BEGIN; SELECT FROM {} WHERE key = 'k' FOR UPDATE", rows.0)).await.unwrap();
        std::thread::scope(|scope| {
            let leaves = scope.spawn(|| store.acquire(&mut exclusive(&store, "k"), &Deadline::after(time)));
            let ours = "FROM pg_stat_activity WHERE query LIKE 'WITH w%{T}%' AND pid <> pg_backend_pid()";
            let waits = format!("SELECT pid {ours} AND wait_event_type = 'Lock'");
            wait_until("it waits", || leaves.is_finished() || rows.sql(&waits).len() == 1);
            renewed_anew(&store, &mut e, Duration::from_secs(60));
            let works = rows.sql(&format!("SELECT pid {ours} AND state = 'idle'"));
            if leaves.is_finished() {
                return false;
            }
            assert_eq!(works.len(), 1);
            let answer = leaves.join().unwrap();
            assert!(matches!(answer, Ok(Acquired::Unknown(_))), "{answer:?}");
            wait_until("it is cancelled", || rows.sql(&waits).is_empty());
            // Its session may take a moment to end.
            wait_until("the one that works is left", || rows.sql(&format!("SELECT pid {ours}")) == works);
            drop(client);
            true
        })
    })
}

/// What anybody may create in a schema of the user's search path decides nothing.
#[test]
fn the_users_search_path_is_not_used() {
    needs_server!();
    let rows = Rows::fresh();
    let name = rows.0.replace("t_", "u_");
    rows.sql(&format!(
        "CREATE ROLE {name} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON {{T}} TO {name}; CREATE SCHEMA {name}; \
         GRANT USAGE ON SCHEMA {name} TO {name}; ALTER ROLE {name} SET search_path = {name}, public; \
         CREATE FUNCTION {name}.f(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN RAISE 'mine'; END $$; \
         CREATE OPERATOR {name}.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = {name}.f)"
    ));
    let mut config = config();
    config.user(&name);
    let open = || unless_late(|| Postgres::open(PostgresOptions::new(config.clone(), &rows.0).unwrap(), &soon()));
    let outcome = open().map(|store| {
        let mut a = exclusive(&store, "k");
        let was = store.acquire(&mut a, &soon());
        refused(&rows.open(), &mut exclusive(&store, "k"));
        // A table that is created later, in a schema that comes first in the path, is another table.
        rows.sql(&format!(
            "CREATE TABLE {name}.{{T}} (LIKE public.{{T}} INCLUDING ALL); GRANT ALL ON {name}.{{T}} TO {name}"
        ));
        refused(&store, &mut exclusive(&store, "k"));
        was
    });
    sql_at(
        &crate::support::postgres::config(),
        &format!("DROP SCHEMA {name} CASCADE; DROP OWNED BY {name}; DROP ROLE {name}"),
    );
    assert!(matches!(outcome, Ok(Ok(Acquired::Granted { .. }))), "{outcome:?}");
}

#[test]
fn the_greatest_numbers_stop_no_step() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let greatest = "UPDATE {T} SET fence = 9223372036854775807, version = 9223372036854775807";
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    rows.sql(greatest);
    renewed(&store, &mut a, renewal(Lease::For(Duration::from_secs(60))));
    release(&store, &mut a);
    rows.sql(greatest);
    granted(&store, &mut exclusive(&store, "k"));
}

/// What was reported between the end of one listening and the next was heard by nobody.
#[test]
fn a_listening_that_ended_by_itself_tells_all_when_it_begins_anew() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    let sessions = "pg_stat_activity WHERE query LIKE '%{T}%' AND pid <> pg_backend_pid()";
    let is_told = || {
        let first = told_of(&store, "k");
        rows.sql(&format!("SELECT pg_terminate_backend(pid) FROM {sessions}"));
        while first.recv_timeout(PATIENCE).map_err(|error| assert!(error.is_disconnected())).is_ok() {}
        let (to, told) = crossbeam_channel::unbounded();
        // The listener may not hear a server that stalls in time: then it reports nothing, and says so.
        let tells = store.wake(&["k".to_owned()], to, &Deadline::after(PATIENCE)).is_ok_and(|tells| tells);
        tells.then(|| told.try_recv().ok())
    };
    assert_eq!((0..10).find_map(|_| is_told()), Some(Some("k".to_owned())));
}

/// One channel serves all tables of a database.
#[test]
fn the_same_key_of_another_table_wakes_nobody() {
    needs_server!();
    let (ours, theirs) = (Rows::fresh(), Rows::fresh());
    let (store, other) = (ours.open(), theirs.open());
    let told = told_of(&store, "k");
    for mode in [Mode::Exclusive, Mode::Shared] {
        for store in [&other, &store] {
            let mut a = attempt(store, "k", mode);
            granted(store, &mut a);
            release(store, &mut a);
        }
        // The reports come in the order of the commits.
        assert_eq!(told.recv_timeout(crate::support::harness::PATIENCE).as_deref(), Ok("k"));
    }
    // After this last report, no report of the other table may be left.
    let mut last = exclusive(&store, "k");
    granted(&store, &mut last);
    release(&store, &mut last);
    assert_eq!(told.recv_timeout(crate::support::harness::PATIENCE).as_deref(), Ok("k"));
    assert!(told.try_recv().is_err(), "the other table's word came, too");
}
