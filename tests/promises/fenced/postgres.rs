//! On PostgreSQL.

use std::any::Any;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use leasehold::internals::store::postgres::fence::run_within;
use leasehold::postgres::tokio_postgres::{self, Client, Transaction};
use leasehold::postgres::{AssertIn, run_fenced};
use leasehold::{ClientBuilder, ErrorKind, LockClient};

use crate::fenced::cases::{expired, lost};
use crate::fenced::data::Data;
use crate::fenced::data::postgres::Texts;
use crate::fenced::{LONG, Open, Store};
use crate::support::postgres::{Rows, config, sql_at};
use crate::support::servers::postgres_server;
use crate::support::wait::wait_until;

pub struct Kind;

impl Store for Kind {
    type Data = Texts;
    const NAME: &str = "postgres";

    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        postgres_server()?;
        let rows = Rows::fresh();
        Some((rows.url(), Box::new(Room(rows))))
    }

    fn builder(url: &str) -> ClientBuilder {
        LockClient::builder(url)
    }

    fn data(url: &str) -> Texts {
        let (_, table) = url.split_once("table=").unwrap();
        Texts::new(config(), &texts(table))
    }
}

fn texts(table: &str) -> String {
    format!("{table}_texts")
}

struct Room(Rows);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.sql("DROP TABLE IF EXISTS {T}_texts");
    }
}

crate::fenced::suite!(Kind);

/// What the docs say of both: heartbeats go on, and who would take the lock waits for the commit.
#[test]
fn a_rival_waits_for_the_commit_and_heartbeats_do_not() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (client, rival) = (open.client(LONG), open.client(LONG));
    let lock = client.request("a").acquire().unwrap();
    let mut user = open.data.wait(open.data.client());
    let transaction = open.data.wait(user.transaction()).unwrap();
    open.data.wait(client.fence(&lock).assert_in(&transaction)).unwrap();
    client.heartbeat(&lock, LONG).unwrap();
    let (_, table) = open.url.split_once("table=").unwrap();
    let waiting =
        format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{table}\"%'");
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| rival.force_release("a"));
        wait_until("it waits for the row", || sql_at(&config(), &waiting)[0][0].as_deref() == Some("1"));
        client.heartbeat(&lock, LONG).unwrap();
        assert!(!taken.is_finished(), "it went by the assertion");
        open.data.wait(transaction.commit()).unwrap();
        taken.join().unwrap().unwrap();
    });
    let transaction = open.data.wait(user.transaction()).unwrap();
    lost(open.data.wait(client.fence(&lock).assert_in(&transaction)));
    drop(transaction);
    // Without its index the assertion would keep nobody out.
    let next = rival.lock("a").unwrap();
    sql_at(&config(), &format!("DROP INDEX {table}_grant_id"));
    let transaction = open.data.wait(user.transaction()).unwrap();
    let error = open.data.wait(next.assert_in(&transaction)).unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("create_schema"), "{error}");
}

/// With this isolation level in all its transactions.
fn session(open: &Open<Kind>, level: &str) -> Client {
    open.data.wait(async {
        let client = open.data.client().await;
        let set = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}");
        client.batch_execute(&set).await.unwrap();
        client
    })
}

fn table(open: &Open<Kind>) -> String {
    let (_, table) = open.url.split_once("table=").unwrap();
    texts(table)
}

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Whichever level it has: a rival's grant is committed after its snapshot and before the assertion.
#[test]
fn a_rival_that_comes_in_between_is_found() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let (client, rival) = (open.client(LONG), open.client(LONG));
    for level in LEVELS {
        let lock = &expired(&client, &[level.to_owned()])[0];
        let insert = format!("INSERT INTO {} (id, text) VALUES ($1, 'late')", table(&open));
        let (mut tries, mut next) = (0, None);
        let mut user = session(&open, level);
        lost(open.data.wait(run_fenced(&client.fence(lock), &mut user, async |transaction| {
            tries += 1;
            transaction.execute(&insert, &[&level]).await?;
            next.get_or_insert_with(|| rival.lock(level).unwrap());
            Ok(())
        })));
        assert_eq!((tries, open.data.text(level)), (1, None), "{level}");
        // Its session is as good as it was.
        open.data.wait(run_fenced(&next.unwrap(), &mut user, async |_| Ok(()))).unwrap();
    }
}

/// What another one wrote since the snapshot, then a deadlock; and heartbeats in the middle of each try.
#[test]
fn what_is_in_conflict_is_begun_again_while_heartbeats_go_on() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let (select, update) = (
        format!("SELECT text FROM {} WHERE id = 'a'", table(&open)),
        format!("UPDATE {} SET text = text || '+' WHERE id = 'a'", table(&open)),
    );
    for level in LEVELS {
        open.data.write_bare("a", level, &mut || {});
        let lock = client.request("a").acquire().unwrap();
        let mut user = session(&open, level);
        let mut tries = 0;
        let text = open.data.wait(run_fenced(&client.fence(&lock), &mut user, async |transaction| {
            tries += 1;
            let row = transaction.query_one(&select, &[]).await?;
            // No conflict in itself, before an assertion or after.
            client.heartbeat(&lock, LONG)?;
            if tries == 1 {
                let other = open.data.client().await;
                other.execute(&update, &[]).await.unwrap();
            }
            transaction.execute(&update, &[]).await?;
            if tries < 4 {
                raises(transaction, if tries % 2 == 0 { "40001" } else { "40P01" }).await?;
            }
            client.heartbeat(&lock, LONG)?;
            Ok(row.get::<_, String>(0))
        }));
        assert_eq!((text.unwrap(), tries), (format!("{level}+"), 4));
        assert_eq!(open.data.text("a"), Some(format!("{level}++")), "each that was begun again left nothing");
        client.release(&lock).unwrap();
    }
}

/// What `work` passes over leaves a transaction that the server rolls back when it is committed, without an error.
#[test]
fn a_transaction_that_failed_in_the_middle_is_never_said_to_be_committed() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let insert = format!("INSERT INTO {} (id, text) VALUES ($1, 'new')", table(&open));
    for conflicts in [0, 1, 2] {
        let guard = client.lock("a").unwrap();
        let (id, mut tries) = (format!("{conflicts}"), 0);
        let mut user = open.data.wait(open.data.client());
        let done = open.data.wait(run_fenced(&guard, &mut user, async |transaction| {
            tries += 1;
            transaction.execute(&insert, &[&id]).await?;
            if tries <= conflicts {
                raises(transaction, "40001").await?;
            }
            // One that is there.
            let _ = transaction.execute(&insert, &[&id]).await;
            Ok(())
        }));
        let error = done.unwrap_err();
        assert!(error.kind() == ErrorKind::Store && !error.is_retryable(), "{conflicts}: {error}");
        assert_eq!((open.data.text(&id), tries), (None, conflicts + 1));
    }
}

/// The pause between two tries is a statement, too, but none of the user's.
#[test]
fn a_limit_of_the_session_ends_no_pause_with_an_error() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut user = open.data.wait(open.data.client());
    let mut tries = 0;
    let done = open.data.wait(async {
        user.batch_execute("SET statement_timeout = '300ms'").await.unwrap();
        run_fenced(&guard, &mut user, async |transaction| {
            tries += 1;
            // The machine may be slow, and these are not what is asked about.
            transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
            if tries < 9 {
                raises(transaction, "40001").await?;
            }
            Ok(())
        })
        .await
    });
    assert!(done.is_ok() && tries == 9, "{tries}: {done:?}");
}

/// Who cancels a query by hand wants all of it to end, and not to begin again.
#[test]
fn a_users_own_cancel_ends_the_pause_and_the_work() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut user = open.data.wait(open.data.client());
    let pid: i32 = open.data.wait(user.query_one("SELECT pg_backend_pid()", &[])).unwrap().get(0);
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
        let conflicts = async |transaction: &Transaction<'_>| {
            raises(transaction, "40001").await?;
            Ok(())
        };
        let assertion = guard.assertion().unwrap();
        let done = open.data.wait(run_within(&assertion, 2 * LONG, &mut user, conflicts));
        is_over.store(true, SeqCst);
        done
    });
    let error = done.unwrap_err();
    let source = error.source().unwrap().downcast_ref::<tokio_postgres::Error>().unwrap();
    assert_eq!(source.code(), Some(&tokio_postgres::error::SqlState::QUERY_CANCELED), "{error}");
    assert!(!error.is_retryable());
}

async fn raises(transaction: &Transaction<'_>, code: &str) -> Result<(), tokio_postgres::Error> {
    let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'canary' USING ERRCODE = '{code}'; END $$");
    transaction.batch_execute(&raise).await
}

#[test]
fn conflicts_without_end_are_told_at_the_limit_and_all_else_at_once() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut user = open.data.wait(open.data.client());
    let mut tries = 0;
    let mut fails = |limit: Duration, code: &str| {
        tries = 0;
        let work = async |transaction: &Transaction<'_>| {
            tries += 1;
            raises(transaction, code).await?;
            Ok(())
        };
        let assertion = guard.assertion().unwrap();
        let error = open.data.wait(run_within(&assertion, limit, &mut user, work)).unwrap_err();
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
    // The first is retryable by hand: the user said how long to wait.
    assert_eq!(fails(LONG, "55P03"), (true, 1));
    assert_eq!(fails(LONG, "23505"), (false, 1));
    // What is no error of the server.
    let error = open.data.wait(run_fenced(&guard, &mut user, async |_| Err::<(), _>("mine".into()))).unwrap_err();
    assert_eq!((error.kind(), error.source().unwrap().to_string()), (ErrorKind::Store, "mine".to_owned()));
    let other = client.lock("b").unwrap();
    client.force_release("b").unwrap();
    let nested = async |transaction: &Transaction<'_>| Ok(other.assert_in(transaction).await?);
    let error = lost(open.data.wait(run_fenced(&guard, &mut user, nested)));
    assert_eq!(error.key(), Some("b"));
    assert!(guard.is_held());
}

/// It may have been committed.
#[test]
fn a_commit_without_an_answer_is_told_as_such() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let guard = client.lock("a").unwrap();
    let mut user = open.data.wait(open.data.client());
    let table = table(&open);
    // A deferred trigger is a part of the commit.
    let trigger = format!(
        "CREATE FUNCTION {table}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER f AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION {table}_f()"
    );
    sql_at(&config(), &trigger);
    let insert = format!("INSERT INTO {table} (id, text) VALUES ('x', 'x')");
    let work = async |transaction: &Transaction<'_>| Ok(transaction.batch_execute(&insert).await?);
    let error = open.data.wait(run_fenced(&guard, &mut user, work)).unwrap_err();
    sql_at(&config(), &format!("DROP FUNCTION {table}_f() CASCADE"));
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error:?}");
}

/// As another driver would do it: it asks the server for the types of the parameters.
#[test]
fn the_assertion_is_a_statement_for_every_driver() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let mut user = open.data.wait(open.data.client());
    let mut asserted = |held: &dyn Fn() -> leasehold::postgres::Assertion| {
        open.data.wait(async {
            let transaction = user.transaction().await.unwrap();
            let assertion = held();
            let [key, holder] = assertion.params();
            let row = transaction.query_opt(assertion.sql(), &[&key, &holder]).await.unwrap();
            assert!(!format!("{assertion:?}").contains(holder), "it shows the grant id");
            assertion.judge(row.map(|row| row.get(0)))
        })
    };
    for shared in [false, true] {
        let request = client.request("k");
        let guard = if shared { request.shared().lock() } else { request.lock() }.unwrap();
        asserted(&|| guard.assertion().unwrap()).unwrap();
        client.force_release("k").unwrap();
        lost(asserted(&|| guard.assertion().unwrap()));
    }
    let elsewhere = LockClient::connect("memory:").unwrap().lock("k").unwrap();
    assert_eq!(elsewhere.assertion().unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// In somebody's task, which may go from thread to thread.
#[test]
fn its_future_can_be_sent() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let guard = open.client(LONG).lock("a").unwrap();
    let mut user = open.data.wait(open.data.client());
    let task = async move {
        run_fenced(&guard, &mut user, async |transaction| {
            transaction.batch_execute("SELECT 1").await?;
            Ok(7)
        })
        .await
    };
    assert_eq!(open.data.wait(async { tokio::spawn(task).await.unwrap() }).unwrap(), 7);
}
