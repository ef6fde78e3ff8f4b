//! What heartbeats leave behind, on a server whose autovacuum looks often.

use std::time::Duration;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::Schema;
use leasehold::internals::store::postgres::PostgresOptions;

use crate::postgres::*;
use crate::support::contract::{granted, renewal, renewed};
use crate::support::own::Own;
use crate::support::postgres::{block_on, connect, opened, sql_at};
use crate::support::servers::{Server, postgres};
use crate::support::wait::wait_until;

const VACUUMED: Server = Server {
    start: |_, port, data| {
        let at = ["listen_addresses=127.0.0.1", "unix_socket_directories="];
        // An ANALYZE has a snapshot, too, for which dead rows are kept.
        postgres::with(
            port,
            data,
            &[&at[..], &["autovacuum_naptime=1s", "autovacuum_analyze_threshold=1000000"]].concat(),
        )
    },
    ..postgres::SERVER
};
/// Locks that nobody holds: with so many rows, a vacuum that waits for a share of them to be dead would not come.
const IDLE: i64 = 20_000;
const HELD: usize = 100;
const ROUNDS: usize = 30;
const RENEWALS: i64 = (HELD * ROUNDS) as i64;

struct Table {
    server: Own,
    held: Vec<Attempt>,
}

impl Table {
    fn numbers(&self, sql: &str) -> Vec<i64> {
        let rows = sql_at(&self.server.url().parse().unwrap(), sql);
        rows[0].iter().map(|number| number.as_deref().unwrap().parse().unwrap()).collect()
    }

    /// How many pages the table has, and how many its indexes have.
    fn pages(&self) -> [i64; 2] {
        let sizes = "SELECT pg_relation_size('leasehold') / 8192, pg_indexes_size('leasehold') / 8192";
        self.numbers(sizes).try_into().unwrap()
    }

    /// How many rows a vacuum would remove, as far as the server knows.
    fn dead(&self) -> i64 {
        self.numbers("SELECT n_dead_tup FROM pg_stat_user_tables")[0]
    }

    fn store(&self) -> Postgres {
        opened(PostgresOptions::new(self.server.url().parse().unwrap(), "leasehold").unwrap())
    }

    /// Renews each lock `ROUNDS` times. Returns how many of these updates left the indexes alone.
    fn renew(&mut self) -> i64 {
        let updates = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables";
        let (store, before) = (self.store(), self.numbers(updates));
        for _ in 0..ROUNDS {
            for a in &mut self.held {
                renewed(&store, a, renewal(Lease::For(Duration::from_secs(600))));
            }
        }
        // Sessions report their statistics when they end.
        drop(store);
        wait_until("the statistics come", || self.numbers(updates)[0] == before[0] + RENEWALS);
        self.numbers(updates)[1] - before[1]
    }
}

/// This also holds after a session that has had a transaction open for a whole day.
#[test]
fn heartbeats_leave_the_table_and_its_indexes_as_large_as_they_are() {
    let Some(server) = Own::start(&VACUUMED) else { return };
    let mut table = Table { server, held: Vec::new() };
    let store = table.store();
    store.schema(Schema::Create, &soon()).unwrap();
    table.held = (0..HELD).map(|n| exclusive(&store, &format!("held {n}"))).collect();
    table.held.iter_mut().for_each(|a| drop(granted(&store, a)));
    drop(store);
    let config = table.server.url().parse().unwrap();
    sql_at(
        &config,
        &format!(
            "INSERT INTO leasehold (key, kind, fence, version, format) \
             SELECT 'idle ' || n, 'lock', 1, 1, '1.0' FROM generate_series(1, {IDLE}) AS n"
        ),
    );
    let fresh = table.pages();
    let hot = table.renew();
    let renewed = table.pages();
    println!("{fresh:?} pages, after {RENEWALS} renewals {renewed:?}, {hot} of them HOT");
    assert!(hot * 100 >= RENEWALS * 95, "{hot} of {RENEWALS} left the indexes alone");
    assert_eq!(renewed, fresh, "pages of the table and of its indexes");

    let (hot, swollen) = block_on(async {
        let theirs = connect(&config).await;
        theirs.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM leasehold LIMIT 1").await.unwrap();
        let hot = table.renew();
        let swollen = table.pages();
        theirs.batch_execute("COMMIT").await.unwrap();
        (hot, swollen)
    });
    println!("under an old snapshot {swollen:?}, {hot} of {RENEWALS} HOT");
    // Until then, each vacuum left the dead rows to the next one.
    wait_until("they are vacuumed", || table.dead() < 100);
    for _ in 0..3 {
        let hot = table.renew();
        println!("after it {:?}, {hot} of {RENEWALS} HOT", table.pages());
        assert!(hot * 100 >= RENEWALS * 95, "{hot} of {RENEWALS} left the indexes alone");
    }
    let [last, swollen] = [table.pages(), swollen];
    assert!(last.iter().zip(swollen).all(|(last, swollen)| *last <= swollen), "{last:?} pages, then {swollen:?}");
}
