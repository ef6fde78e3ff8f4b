//! What a transaction of either PostgreSQL client promises, in addition to what every store does.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use leasehold::postgres::tokio_postgres::{self, error::SqlState};
use leasehold::postgres::{AssertIn, Assertion};
use leasehold::{ErrorKind, LockClient};

use crate::fenced::cases::{expired, lost};
use crate::fenced::data::Data;
use crate::fenced::data::postgres::{Session, Texts, Transaction};
use crate::fenced::{LONG, Open, Store};
use crate::support::postgres::{config, sql_at};
use crate::support::wait::wait_until;

fn locks<S: Store>(open: &Open<S>) -> &str {
    open.url.split_once("table=").unwrap().1
}

/// Waits until one statement waits for a row of the locks.
fn one_waits<S: Store>(open: &Open<S>) {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{}\"%'",
        locks(open)
    );
    wait_until("it waits for the row", || sql_at(&config(), &waiting)[0][0].as_deref() == Some("1"));
}

/// What the docs say of both clients: heartbeats go on, and a rival that would take the lock waits for the commit.
pub fn a_rival_waits_for_the_commit_and_heartbeats_do_not<S: Store<Data = Texts>>(open: &Open<S>) {
    let (client, rival) = (open.client(LONG), open.client(LONG));
    let lock = client.request("a").acquire().unwrap();
    let mut user = open.data.session();
    thread::scope(|scope| {
        let taken = user.transact(|transaction| {
            transaction.assert(&client.fence(&lock))?;
            client.heartbeat(&lock, LONG)?;
            let taken = scope.spawn(|| rival.force_release("a"));
            one_waits(open);
            client.heartbeat(&lock, LONG)?;
            assert!(!taken.is_finished(), "it went by the assertion");
            Ok(taken)
        });
        taken.unwrap().join().unwrap().unwrap();
    });
    let mut asserted = |held: &dyn Fn(&mut Transaction<'_, '_>) -> Result<(), leasehold::Error>| {
        user.transact(|transaction| Ok(held(transaction))).unwrap()
    };
    lost(asserted(&|transaction| transaction.assert(&client.fence(&lock))));
    // Without the table's index the assertion would keep nobody out.
    let next = rival.lock("a").unwrap();
    sql_at(&config(), &format!("DROP INDEX {}_grant_id", locks(open)));
    let error = asserted(&|transaction| transaction.assert(&next)).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("create_schema"), "{error}");
}

/// A session whose transactions all have this isolation level.
fn session<S: Store<Data = Texts>>(open: &Open<S>, level: &str) -> Session {
    let mut session = open.data.session();
    session.batch(&format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")).unwrap();
    session
}

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// On every isolation level: a rival's grant is committed after the transaction's snapshot and before the assertion.
pub fn a_rival_that_comes_in_between_is_found<S: Store<Data = Texts>>(open: &Open<S>) {
    let (client, rival) = (open.client(LONG), open.client(LONG));
    for level in LEVELS {
        let lock = &expired(&client, &[level.to_owned()])[0];
        let insert = format!("INSERT INTO {} (id, text) VALUES ($1, 'late')", open.data.table);
        let (mut tries, mut next) = (0, None);
        let mut user = session(open, level);
        lost(user.run_fenced(&client.fence(lock), |transaction| {
            tries += 1;
            transaction.query(&insert, &[&level])?;
            next.get_or_insert_with(|| rival.lock(level).unwrap());
            Ok(())
        }));
        assert_eq!((tries, open.data.text(level)), (1, None), "{level}");
        // The session must remain usable.
        user.run_fenced(&next.unwrap(), |_| Ok(())).unwrap();
    }
}

/// A row that another client wrote since the snapshot, then a deadlock, and heartbeats in the middle of each try.
pub fn what_is_in_conflict_is_begun_again_while_heartbeats_go_on<S: Store<Data = Texts>>(open: &Open<S>) {
    let client = open.client(LONG);
    let (select, update) = (
        format!("SELECT text FROM {} WHERE id = 'a'", open.data.table),
        format!("UPDATE {} SET text = text || '+' WHERE id = 'a'", open.data.table),
    );
    for level in LEVELS {
        open.data.write_bare("a", level, &mut || {});
        let lock = client.request("a").acquire().unwrap();
        let mut tries = 0;
        let text = session(open, level).run_fenced(&client.fence(&lock), |transaction| {
            tries += 1;
            let rows = transaction.query(&select, &[])?;
            // A heartbeat is no conflict, neither before an assertion nor after.
            client.heartbeat(&lock, LONG)?;
            if tries == 1 {
                sql_at(&config(), &update);
            }
            transaction.query(&update, &[])?;
            if tries < 4 {
                raises(transaction, if tries % 2 == 0 { "40001" } else { "40P01" })?;
            }
            client.heartbeat(&lock, LONG)?;
            Ok(rows[0].get::<_, String>(0))
        });
        assert_eq!((text.unwrap(), tries), (format!("{level}+"), 4));
        assert_eq!(open.data.text("a"), Some(format!("{level}++")), "each that was begun again left nothing");
        client.release(&lock).unwrap();
    }
}

/// A shared lock's heartbeats write what is asserted: one after the snapshot makes the assertion fail, but only once.
pub fn heartbeats_of_a_shared_lock_wait_for_what_is_begun_again<S: Store<Data = Texts>>(open: &Open<S>) {
    let client = open.client(LONG);
    let lock = client.request("s").shared().acquire().unwrap();
    let mut tries = 0;
    thread::scope(|scope| {
        let beats = session(open, "REPEATABLE READ").run_fenced(&client.fence(&lock), |transaction| {
            tries += 1;
            transaction.batch("SELECT 1")?;
            let beats = scope.spawn(|| client.heartbeat(&lock, LONG));
            match tries {
                1 => wait_until("nothing is asserted yet", || beats.is_finished()),
                _ => one_waits(open),
            }
            Ok(beats)
        });
        beats.unwrap().join().unwrap().unwrap();
    });
    assert_eq!(tries, 2);
}

/// If `work` ignores an error, the server rolls the transaction back at the commit, without an error.
pub fn a_transaction_that_failed_in_the_middle_is_never_said_to_be_committed<S: Store<Data = Texts>>(open: &Open<S>) {
    let client = open.client(LONG);
    let insert = format!("INSERT INTO {} (id, text) VALUES ($1, 'new')", open.data.table);
    for conflicts in [0, 1, 2] {
        let guard = client.lock("a").unwrap();
        let (id, mut tries) = (format!("{conflicts}"), 0);
        let done = open.data.session().run_fenced(&guard, |transaction| {
            tries += 1;
            transaction.query(&insert, &[&id])?;
            if tries <= conflicts {
                raises(transaction, "40001")?;
            }
            // The row exists already, so this fails.
            let _ = transaction.query(&insert, &[&id]);
            Ok(())
        });
        let error = done.unwrap_err();
        assert!(error.kind() == ErrorKind::Store && !error.is_retryable(), "{conflicts}: {error}");
        assert_eq!((open.data.text(&id), tries), (None, conflicts + 1));
    }
}

/// The pause between two tries is a statement, too, but not one of the user's.
pub fn a_limit_of_the_session_ends_no_pause_with_an_error<S: Store<Data = Texts>>(open: &Open<S>) {
    let guard = open.client(LONG).lock("a").unwrap();
    let goes_through = |_| {
        let mut user = open.data.session();
        // Shorter than each of the last pauses.
        user.batch("SET statement_timeout = '450ms'").unwrap();
        let mut tries = 0;
        let done = user.run_fenced(&guard, |transaction| {
            tries += 1;
            // These statements are not under test, and the machine may be slow.
            transaction.batch("SET LOCAL statement_timeout = 0")?;
            if tries < 9 {
                raises(transaction, "40001")?;
            }
            Ok(())
        });
        println!("{tries}: {done:?}");
        done.is_ok() && tries == 9
    };
    // Now and then another statement may take that long.
    assert!((0..5).any(goes_through));
}

/// A user who cancels a query by hand wants all of it to end, and not to begin again.
pub fn a_users_own_cancel_ends_the_pause_and_the_work<S: Store<Data = Texts>>(open: &Open<S>) {
    let guard = open.client(LONG).lock("a").unwrap();
    let mut user = open.data.session();
    let pid: i32 = user.query("SELECT pg_backend_pid()", &[]).unwrap()[0].get(0);
    let cancel = format!(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
         WHERE pid = {pid} AND state = 'active' AND query LIKE 'SELECT pg_catalog.pg_sleep%'"
    );
    let is_over = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                sql_at(&config(), &cancel);
            }
        });
        let conflicts = |transaction: &mut Transaction<'_, '_>| Ok(raises(transaction, "40001")?);
        let done = user.run_within(&guard.assertion().unwrap(), 2 * LONG, conflicts);
        is_over.store(true, SeqCst);
        done
    });
    let error = done.unwrap_err();
    let source = error.source().unwrap().downcast_ref::<tokio_postgres::Error>().unwrap();
    assert_eq!(source.code(), Some(&SqlState::QUERY_CANCELED), "{error}");
    assert!(!error.is_retryable());
}

fn raises(transaction: &mut Transaction<'_, '_>, code: &str) -> Result<(), tokio_postgres::Error> {
    transaction.batch(&format!("DO $$ BEGIN RAISE EXCEPTION 'canary' USING ERRCODE = '{code}'; END $$"))
}

pub fn conflicts_without_end_are_told_at_the_limit_and_all_else_at_once<S: Store<Data = Texts>>(open: &Open<S>) {
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut user = open.data.session();
    let mut fails = |limit: Duration, code: &str| {
        let mut tries = 0;
        let work = |transaction: &mut Transaction<'_, '_>| {
            tries += 1;
            Ok(raises(transaction, code)?)
        };
        let error = user.run_within(&guard.assertion().unwrap(), limit, work).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Store, Some("a")), "{error}");
        assert!(error.source().unwrap().is::<tokio_postgres::Error>(), "{error:?}");
        (error.is_retryable(), tries)
    };
    // On a busy machine the first try may take all of a short limit.
    let is_repeated = (0..6).any(|doublings| {
        let (retryable, tries) = fails(Duration::from_millis(300 << doublings), "40001");
        assert!(retryable);
        tries > 1
    });
    assert!(is_repeated, "tried once each time");
    assert_eq!(fails(Duration::ZERO, "40P01"), (true, 1));
    // The first one can be repeated by hand, because the user's own limit ended that wait.
    assert_eq!(fails(LONG, "55P03"), (true, 1));
    assert_eq!(fails(LONG, "23505"), (false, 1));
    // An error that does not come from the server.
    let error = user.run_fenced(&guard, |_| Err::<(), _>("mine".into())).unwrap_err();
    assert_eq!((error.kind(), error.source().unwrap().to_string()), (ErrorKind::Store, "mine".to_owned()));
    let other = client.lock("b").unwrap();
    client.force_release("b").unwrap();
    let error = lost(user.run_fenced(&guard, |transaction| Ok(transaction.assert(&other)?)));
    assert_eq!(error.key(), Some("b"));
    assert!(guard.is_held());
}

/// The transaction may have been committed.
pub fn a_commit_without_an_answer_is_told_as_such<S: Store<Data = Texts>>(open: &Open<S>) {
    let guard = open.client(LONG).lock("a").unwrap();
    let table = &open.data.table;
    // A deferred trigger runs as part of the commit.
    let trigger = format!(
        "CREATE FUNCTION {table}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER f AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION {table}_f()"
    );
    sql_at(&config(), &trigger);
    let insert = format!("INSERT INTO {table} (id, text) VALUES ('x', 'x')");
    let error = open.data.session().run_fenced(&guard, |transaction| Ok(transaction.batch(&insert)?)).unwrap_err();
    sql_at(&config(), &format!("DROP FUNCTION {table}_f() CASCADE"));
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error:?}");
}

/// As another driver would run it: the driver asks the server for the types of the parameters.
pub fn the_assertion_is_a_statement_for_every_driver<S: Store<Data = Texts>>(open: &Open<S>) {
    let client = open.client(LONG);
    let mut user = open.data.session();
    let mut asserted = |assertion: Assertion| {
        let [key, holder] = assertion.params();
        let rows = user.transact(|transaction| Ok(transaction.query(assertion.sql(), &[&key, &holder])?)).unwrap();
        assert!(!format!("{assertion:?}").contains(holder), "it shows the grant id");
        assertion.judge(rows.first().map(|row| row.get(0)))
    };
    for shared in [false, true] {
        let request = client.request("k");
        let guard = if shared { request.shared().lock() } else { request.lock() }.unwrap();
        asserted(guard.assertion().unwrap()).unwrap();
        client.force_release("k").unwrap();
        lost(asserted(guard.assertion().unwrap()));
    }
    let elsewhere = LockClient::connect("memory:").unwrap().lock("k").unwrap();
    assert_eq!(elsewhere.assertion().unwrap_err().kind(), ErrorKind::InvalidInput);
}
