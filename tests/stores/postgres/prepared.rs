//! What the session keeps prepared: when, what that saves, and what happens if the server no longer has it.

use std::sync::Mutex;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Released, Schema};

use crate::postgres::*;
use crate::support::alone::alone;
use crate::support::contract::{LEASE, granted, refused, release, renewal, renewed};
use crate::support::postgres::{Rows, opened};
use crate::support::proxy::{Mode as Network, Proxy, Rule};
use crate::support::servers::{postgres, postgres_server};
use crate::support::wait::wait_until;

/// A store behind a proxy that sees what is sent.
fn watched() -> (Proxy, Postgres, Rows) {
    let rows = Rows::fresh();
    let proxy = Proxy::postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
    let store = opened(rows.options_at(&proxy.addr().to_string()));
    (proxy, store, rows)
}

/// Whether the last statement was sent only by its name.
fn was_named(proxy: &Proxy) -> bool {
    proxy.requests().last().unwrap().body.starts_with('B')
}

/// Acquire, refused acquire, renewal, release: whether each was sent by its name, and how many requests all took.
fn steps(proxy: &Proxy, store: &Postgres) -> ([bool; 4], u64) {
    let before = proxy.count();
    let mut named = Vec::new();
    let mut a = exclusive(store, "k");
    granted(store, &mut a);
    named.push(was_named(proxy));
    refused(store, &mut exclusive(store, "k"));
    named.push(was_named(proxy));
    renewed(store, &mut a, renewal(Lease::For(2 * LEASE)));
    named.push(was_named(proxy));
    release(store, &mut a);
    named.push(was_named(proxy));
    (named.try_into().unwrap(), proxy.count() - before)
}

#[test]
fn what_is_asked_again_and_again_is_prepared_once() {
    needs_server!();
    let (proxy, store, _rows) = watched();
    // A program that takes a lock once pays for no preparation.
    assert_eq!(steps(&proxy, &store), ([false; 4], 4));
    // The refused acquire was the second use of its statement.
    assert!(proxy.prepares() <= 1);
    warm(&store);
    let prepares = proxy.prepares();
    assert_eq!(prepares, 3, "acquire, renew, release");
    for _ in 0..3 {
        assert_eq!(steps(&proxy, &store), ([true; 4], 4));
    }
    assert_eq!(proxy.prepares(), prepares);
}

/// The statement was planned when the table was small, and is not planned again when the table has grown.
#[test]
fn what_is_prepared_reads_no_whole_table() {
    needs_server!();
    let rows = Rows::fresh();
    let store = rows.open();
    warm(&store);
    // From now on the server knows that there is one page, and reading all of it would cost less than the index.
    rows.sql("ANALYZE {T}");
    let count = |what: &str| {
        let counts = format!("SELECT {what} FROM pg_stat_user_tables WHERE relname = '{{T}}'");
        rows.one(&counts).unwrap().parse::<i64>().unwrap()
    };
    for _ in 0..3 {
        warm(&store);
    }
    // The session reports its statistics when it ends.
    drop(store);
    wait_until("the statistics come", || count("n_tup_upd") >= 11 + 3 * 12);
    // Making the indexes takes some scans.
    let scans = count("seq_scan");
    assert!(scans < 10, "{scans} scans of the table");
}

/// A newer version adds columns while older ones run, or somebody changes a type.
#[test]
fn a_table_that_is_changed_fails_no_step() {
    needs_server!();
    let (proxy, store, rows) = watched();
    warm(&store);
    for (change, requests) in [
        ("ALTER TABLE {T} ADD COLUMN newer text NOT NULL DEFAULT 'x'", 4),
        ("ALTER TABLE {T} DROP COLUMN newer", 4),
        // The answer has another type: each of the three statements is sent once more at its first use.
        ("ALTER TABLE {T} ALTER COLUMN owner TYPE varchar(100)", 7),
    ] {
        assert_eq!(steps(&proxy, &store).0, [true; 4], "{change}");
        rows.sql(change);
        let (_, took) = steps(&proxy, &store);
        assert_eq!(took, requests, "{change}");
        warm(&store);
    }
    assert_eq!(steps(&proxy, &store), ([true; 4], 4), "prepared anew");
    rows.sql("DROP TABLE {T}");
    store.schema(Schema::Create, &soon()).unwrap();
    steps(&proxy, &store);
}

/// As a pooler may do without showing itself: what the session has lost was not run, and is sent once more.
#[test]
fn a_session_that_is_made_to_forget_fails_no_step_and_keeps_nothing_more() {
    needs_server!();
    for forget in ["DISCARD ALL", "DEALLOCATE ALL"] {
        let (proxy, store, _rows) = watched();
        warm(&store);
        assert_eq!(steps(&proxy, &store), ([true; 4], 4), "{forget}");
        proxy.add(Rule::next(1, Network::After(forget)));
        assert_eq!(steps(&proxy, &store), ([false; 4], 5), "{forget}");
        assert!(proxy.clear().is_empty());
        let prepares = proxy.prepares();
        warm(&store);
        assert_eq!(steps(&proxy, &store), ([false; 4], 4), "{forget}");
        assert_eq!(proxy.prepares(), prepares, "{forget}");
    }
}

/// What an unnoticed pooler does next: it gives out a session in which another client has prepared its own statements
/// under the same names, for a table of its own or the same one.
fn gives_anothers_session(proxy: &Proxy, own: &Rows, other: &Rows) {
    let prepares = format!(
        "DO $do$ DECLARE p record; BEGIN FOR p IN SELECT name, statement, \
         array_to_string(parameter_types::text[], ',') AS types FROM pg_prepared_statements LOOP \
         EXECUTE 'DEALLOCATE ' || p.name; EXECUTE 'PREPARE ' || p.name || '(' || p.types || ') AS ' || \
         replace(regexp_replace(p.statement, '= ''[0-9a-f-]{{36}}''', '= ''another'''), '{}', '{}'); \
         END LOOP; END $do$",
        own.0, other.0
    );
    proxy.add(Rule::next(1, Network::After(prepares.leak())));
}

/// A statement that would write there fails, and is sent as a whole.
#[test]
fn what_another_client_has_prepared_writes_nothing() {
    needs_server!();
    let (proxy, store, rows) = watched();
    warm(&store);
    assert_eq!(steps(&proxy, &store), ([true; 4], 4));
    gives_anothers_session(&proxy, &rows, &rows);
    assert_eq!(steps(&proxy, &store), ([false; 4], 5), "one is refused, and then nothing goes by its name");
    assert!(proxy.clear().is_empty());
}

/// In the other client's table, a key that is free here is taken, and a lock that is held here does not exist.
#[test]
fn what_another_client_has_prepared_for_another_table_answers_nothing() {
    needs_server!();
    // Prepares the statements for shared holders, which come and go.
    let warm_shared = |store: &Postgres| {
        for key in ["s", "t"].repeat(4) {
            let mut one = shared(store, key);
            granted(store, &mut one);
            release(store, &mut one);
        }
    };
    for step in ["acquire", "renew", "release", "share", "share a new key", "leave"] {
        let (proxy, store, rows) = watched();
        let theirs = Rows::fresh();
        warm(&store);
        warm_shared(&store);
        let other = || gives_anothers_session(&proxy, &rows, &theirs);
        let mut own = if step == "share" || step == "leave" { shared(&store, "k") } else { exclusive(&store, "k") };
        match step {
            "acquire" => {
                granted(&theirs.open(), &mut exclusive(&theirs.open(), "k"));
                other();
            }
            "share a new key" => {
                granted(&theirs.open(), &mut shared(&theirs.open(), "k"));
                own = shared(&store, "k");
                other();
            }
            _ => drop(granted(&store, &mut own)),
        }
        match step {
            "acquire" | "share a new key" => drop(granted(&store, &mut own)),
            "renew" => {
                other();
                renewed(&store, &mut own, renewal(Lease::For(2 * LEASE)));
            }
            "share" => {
                let mut second = shared(&store, "k");
                other();
                granted(&store, &mut second);
            }
            _ => {
                other();
                let released = release(&store, &mut own);
                assert!(matches!(released, Released::Done), "{step}: {released:?}");
            }
        }
        assert_eq!(
            holders(&store, "k").len(),
            match step {
                "share" => 2,
                "release" | "leave" => 0,
                _ => 1,
            },
            "{step}"
        );
        assert!(proxy.clear().is_empty(), "{step}");
    }
}

static LOGGED: Mutex<String> = Mutex::new(String::new());

struct All;

impl log::Log for All {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.lock().unwrap().push_str(&format!("{}: {}\n", record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// A client that knows the grant id can end the lock.
#[test]
fn the_drivers_log_shows_no_value() {
    needs_server!();
    alone("postgres::prepared::the_drivers_log_shows_no_value", || {
        let rows = Rows::fresh();
        let store = rows.open();
        warm(&store);
        log::set_logger(&All).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let mut a = exclusive(&store, "k");
        granted(&store, &mut a);
        log::set_max_level(log::LevelFilter::Off);
        let logged = LOGGED.lock().unwrap();
        assert!(logged.contains("executing statement"), "the driver logs nothing: {logged}");
        assert!(!logged.contains(a.grant().as_str()), "{logged}");
    });
}
