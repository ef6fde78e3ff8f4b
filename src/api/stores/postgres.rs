//! What only the PostgreSQL store has.
//!
//! One table holds the locks. [`create_schema`](crate::LockClient::create_schema) makes it, or adds what it lacks;
//! [`schema`](crate::LockClient::schema) prints the DDL. The server's clock decides, and the token of a grant is its time
//! in microseconds, or one more than the last.
//!
//! # The URL
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?table=leasehold`, or `postgresql:`; several hosts with commas between them,
//! of which the one that is the primary is used; a Unix socket as `postgres://%2Frun%2Fpostgresql/DATABASE`. The other
//! options are libpq's: `application_name`, `connect_timeout`, `keepalives` and their like, `options`, `user`, `password`,
//! `dbname`, `host`, `hostaddr`, `port`, `channel_binding`, `load_balance_hosts`, `tcp_user_timeout`. `sslmode` may be
//! `disable` or `prefer`, and **both are without TLS in this version**; anything else is refused. Environment variables
//! (`PGPASSWORD`, ..), password files and services are not read.
//!
//! `table` may name a schema, too: `app.leasehold`. Servers of versions 13 to 17 will do; 15 is tested.
//!
//! # Rights
//! `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the table, `USAGE` on its schema, and `CONNECT` to the database, for all
//! but `create_schema`, which needs `CREATE` on the schema. Whoever only looks (`get`, `list`) needs `SELECT`.
//!
//! # Cost
//! | step | statements |
//! |---|---|
//! | exclusive: acquire, also refused or repeated; renew; release; transfer | 1 |
//! | shared: each of them | 2, and 2 more for each that another was faster |
//! | give up what was granted; what was not | 1; 3 |
//! | read a key; a page of 200 rows | 1 |
//!
//! A client has one connection while nothing else is needed, and never more than nine: four for those who want a lock,
//! four for heartbeats, releases and the rest, and one that listens while somebody waits.
//!
//! # Durability
//! A grant and a renewal are on the server's disk, and on a synchronous standby, before they are answered, whatever
//! `synchronous_commit` says by default. The release of a lease with an end does not wait for that. After the failover to an asynchronous
//! standby a grant of the last moment may be missing: two may then believe that they hold the lock. Tokens rise by time,
//! so the later holder has the higher one where the servers' clocks differ by less than what was lost.
//!
//! # A pooler
//! No statement is prepared and nothing is kept in a session but time limits and `LISTEN`. That a pooler in transaction
//! mode will do was not tried.

use std::future::Future;

pub use tokio_postgres;
use tokio_postgres::{Config, Transaction};

use crate::api::builder::ClientBuilder;
use crate::api::fence::Fenced;
use crate::model::error::Result;
use crate::store::postgres::PostgresOptions;
use crate::store::postgres::fence::{Assertion, judged};
use crate::sys::clock::Clock;

/// A client of the locks in this table, `leasehold` or with its schema `app.leasehold`, with the hosts and credentials of
/// `config`. Its connections are our own.
///
/// # Example
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let mut config = leasehold::postgres::tokio_postgres::Config::new();
/// config.host("localhost").user("app").password("secret").dbname("app");
/// let client = leasehold::postgres::builder(config, "leasehold").connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(config: Config, table: impl Into<String>) -> ClientBuilder {
    let opener = PostgresOptions::new(config, table).and_then(PostgresOptions::opener);
    ClientBuilder::with_opener(opener, Clock::system())
}

/// Lets a user's own transaction in the same database be committed only while a lock or lease is held.
pub trait AssertIn: Fenced {
    /// Asserts in `transaction`. From then on a rival's takeover waits for its end; the guard's own heartbeats go on (those
    /// of a shared lock wait, too, so a transaction under one must be shorter than what is left of its lease). A release
    /// waits: drop the guard after the commit.
    ///
    /// Do not call it in a savepoint that may be rolled back: the assertion goes with it.
    ///
    /// # Errors
    /// `Lost` when it is not held any more: **do not commit**. `Store` with the driver's own as its source, retryable where
    /// a serializable transaction must begin again; `Schema` where the table lacks an index; `InvalidInput` for a lock of another store or of another database's
    /// table; `Closed` in a forked child.
    fn assert_in(&self, transaction: &Transaction<'_>) -> impl Future<Output = Result<()>>;
}

impl<T: Fenced> AssertIn for T {
    async fn assert_in(&self, transaction: &Transaction<'_>) -> Result<()> {
        let standing = self.standing()?;
        judged(Assertion::of(standing)?.run(transaction).await, standing)
    }
}
