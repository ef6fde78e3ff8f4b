//! Keeping out a holder that comes too late.
//!
//! A lease ends by time, so a holder can be stopped before its write and go on when another holds the lock. Only the
//! resource that is written to can refuse that write. There are two ways.
//!
//! # In the database that holds the locks
//! Your own transaction asserts the lock, and commits only if nobody else was granted it, and nobody released it, by
//! the commit. The modules of the stores offer this; that of Cloud Spanner as `async` only, like its client:
#![cfg_attr(
    feature = "sqlite",
    doc = "- SQLite: [`AssertIn`](crate::api::stores::sqlite::AssertIn) for `rusqlite::Transaction`."
)]
#![cfg_attr(
    feature = "dynamodb",
    doc = "- DynamoDB: [`ConditionCheck`](crate::api::stores::dynamodb::ConditionCheck) for `TransactWriteItems`."
)]
#![cfg_attr(
    feature = "mongodb",
    doc = "- MongoDB: [`AssertIn`](crate::api::stores::mongodb::AssertIn) for sessions, and [`run_fenced`](crate::api::stores::mongodb::run_fenced), which repeats."
)]
#![cfg_attr(
    feature = "postgres",
    doc = "- PostgreSQL: [`AssertIn`](crate::api::stores::postgres::blocking::AssertIn) and [`run_fenced`](crate::api::stores::postgres::blocking::run_fenced), which repeats, for the crate `postgres`; [the same](crate::api::stores::postgres::AssertIn) for the async driver, and as a statement for all others."
)]
#![cfg_attr(
    feature = "spanner",
    doc = "- Cloud Spanner: [`AssertIn`](crate::api::stores::spanner::AssertIn) for a `ReadWriteTransaction`, and [`run_fenced`](crate::api::stores::spanner::run_fenced)."
)]
//!
//! What can be asserted: see [`Fenced`]. The examples `fenced_write` (SQLite), `fenced_dynamodb`, `fenced_mongodb`,
//! `fenced_postgres` and `fenced_spanner` stop a holder past its lease, let a rival write, and show that the late write
//! is refused.
//!
//! A guard's heartbeat writes the row that is asserted, so the heartbeat and the transaction can conflict. The lock is
//! not lost by that: one of the two waits, or is repeated. A transaction of 10 ms hardly ever conflicts with a
//! heartbeat that is sent each second. A transaction of half a second must begin again about every other time on
//! MongoDB, and on SQLite if it reads before it writes, unless it begins as an immediate one. The bench `stores`
//! measures it (`--only fenced`).
//!
//! # Anywhere else
//! Together with the data store the highest [fencing token](crate::LockGuard::fencing_token) that was seen, and let
//! each write require that the stored token is not greater than its own. The token is a number of microseconds that
//! fits into an `i64`. This is for exclusive locks only: each shared holder has a token of its own, and the highest one
//! would keep out all others.
//!
//! | where | what is stored with the data | the write, with the guard's token as `t` |
//! |---|---|---|
//! | SQL, a row that is there | `token BIGINT NOT NULL DEFAULT 0` | `UPDATE report SET text = :text, token = :t WHERE id = :id AND token <= :t`: one row changed, or too late |
//! | SQL, a row that may be missing | the same | `INSERT INTO report (id, text, token) VALUES (:id, :text, :t) ON CONFLICT (id) DO UPDATE SET text = excluded.text, token = excluded.token WHERE report.token <= excluded.token`: one row changed, or too late |
//! | DynamoDB | a number `token` | `SET #text = :text, #token = :t` with the condition `attribute_not_exists(#token) OR #token <= :t` |
//! | MongoDB | a long `token` | `updateOne({_id: id, $or: [{token: {$exists: false}}, {token: {$lte: t}}]}, {$set: {text: .., token: t}})`: one matched, or too late. With `upsert: true` where it may be missing: a duplicate key is tried once more, and then too late |
//! | Cloud Spanner, a row that is there | `token INT64` | `UPDATE report SET text = @text, token = @t WHERE id = @id AND (token IS NULL OR token <= @t)`: one row changed, or too late |
//! | a file or an object | the token in its name or metadata | write only under the condition of the version that was read with a token that is not higher |
//!
//! Equal tokens mean the same holder, which may write again. (MySQL counts no change where all values are as before,
//! unless the client sets `CLIENT_FOUND_ROWS`.)
//!
//! Each of these refuses a late write only once the new holder has written. So a holder that reads before it writes
//! stores its token first, by `UPDATE report SET token = :t WHERE id = :id AND token <= :t` or the like, with the same
//! test for a missing token as the write. It begins only if that changed one row, and may repeat it: from then on
//! earlier holders are refused. Without it an earlier one could still write after the new one has read, and the new one
//! would overwrite that unseen.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::sqlite::rusqlite::{Connection, params};
//!
//! let db = Connection::open_in_memory()?;
//! db.execute_batch(
//!     "CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT, token BIGINT NOT NULL DEFAULT 0)",
//! )?;
//! let write = |text: &str, token: u64| -> Result<bool, Box<dyn std::error::Error>> {
//!     let sql = "INSERT INTO report (id, text, token) VALUES (1, ?1, ?2) ON CONFLICT (id) DO UPDATE \
//!                SET text = excluded.text, token = excluded.token WHERE report.token <= excluded.token";
//!     Ok(db.execute(sql, params![text, i64::try_from(token)?])? == 1)
//! };
//! let show = |token: u64| -> Result<bool, Box<dyn std::error::Error>> {
//!     let sql = "INSERT INTO report (id, token) VALUES (1, ?1) ON CONFLICT (id) DO UPDATE \
//!                SET token = excluded.token WHERE report.token <= excluded.token";
//!     Ok(db.execute(sql, [i64::try_from(token)?])? == 1)
//! };
//! let client = leasehold::LockClient::connect("memory:")?;
//! let old = client.lock("report")?.fencing_token(); // released at the end of the line
//! let guard = client.lock("report")?;
//! assert!(show(guard.fencing_token())?); // before it reads
//! assert!(show(guard.fencing_token())?); // once more, as where no answer came
//! assert!(!write("late", old)?);
//! assert!(write("new", guard.fencing_token())?);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```

use std::fmt;

use crate::api::client::LockClient;
use crate::api::election::Leadership;
use crate::api::guard::LockGuard;
use crate::api::leases::{LeaseKeeper, Leases};
use crate::model::error::Result;
use crate::model::lease_status::LeaseStatus;
use crate::model::lock::Lock;
use crate::store::fence::Standing;

/// What can be asserted in a transaction: a [`LockGuard`], a [`Leadership`], a [`LeaseKeeper`], and a lock or a lease
/// as data by its [`Fence`].
///
/// It stands for as long as nobody else was granted it and nobody released it. So a lease that has run out still stands
/// if nobody took the lock since, because no rival can have written.
pub trait Fenced: sealed::Sealed {}

impl Fenced for LockGuard {}
impl Fenced for Leadership {}
impl Fenced for LeaseKeeper {}
impl Fenced for Fence<'_> {}

/// A lock or a lease as data, with the client that can assert it.
#[derive(Clone, Copy)]
#[must_use = "it asserts nothing by itself"]
pub struct Fence<'a> {
    client: &'a LockClient,
    lock: &'a Lock,
}

impl LockClient {
    /// A lock as data, to be asserted in a transaction: see [`fence`](crate::api::fence).
    pub fn fence<'a>(&'a self, lock: &'a Lock) -> Fence<'a> {
        Fence { client: self, lock }
    }
}

impl Leases {
    /// A lease as data, to be asserted in a transaction: see [`fence`](crate::api::fence).
    pub fn fence<'a>(&'a self, lease: &'a LeaseStatus) -> Fence<'a> {
        self.client().fence(&lease.lock)
    }
}

impl fmt::Debug for Fence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("lock", &self.lock).finish_non_exhaustive()
    }
}

pub(crate) mod sealed {
    use super::*;

    pub trait Sealed {
        /// The grant to be asserted. An error in a forked child, where no grant can be held, and for the [`Fence`] of
        /// a closed client.
        fn standing(&self) -> Result<Standing<'_>>;
    }

    impl Sealed for LockGuard {
        fn standing(&self) -> Result<Standing<'_>> {
            LockGuard::standing(self)
        }
    }

    impl Sealed for Leadership {
        fn standing(&self) -> Result<Standing<'_>> {
            self.guard().standing()
        }
    }

    impl Sealed for LeaseKeeper {
        fn standing(&self) -> Result<Standing<'_>> {
            self.guard().standing()
        }
    }

    impl Sealed for Fence<'_> {
        fn standing(&self) -> Result<Standing<'_>> {
            let family = &self.client.family;
            family.check_open()?;
            Ok(Standing { lock: self.lock, backend: &*family.backend })
        }
    }
}
