//! On PostgreSQL.

use std::any::Any;

use leasehold::postgres::AssertIn;
use leasehold::{ClientBuilder, ErrorKind, LockClient};

use crate::fenced::cases::lost;
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
