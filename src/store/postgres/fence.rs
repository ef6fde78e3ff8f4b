//! Whether a grant holds, asserted inside a user's own transaction.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error as DriverError, Row, Transaction};

use super::Postgres;
use super::error::{PostgresError, Stage};
use crate::lease::Mode;
use crate::lease::backoff::retry_delay;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::failure::Fate;
use crate::store::fence::{NOT_SEEN, Standing};
use crate::sys::random;

/// For how long a transaction that was in conflict is begun again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A pause on the server: the user's runtime may have no timer, and a cancel by the user would not end a pause on this
/// host.
const PAUSE: &str = "SELECT pg_catalog.pg_sleep($1)";
/// The session's limit for a statement, in seconds; 0 if there is none.
const LIMIT: &str =
    "SELECT extract(epoch FROM pg_catalog.current_setting('statement_timeout')::interval)::double precision";

/// An error of the user's own work.
pub(crate) type AnyError = Box<dyn StdError + Send + Sync>;

/// A query that locks the row of a lock, and finds it only while the grant holds: for a transaction of any driver.
///
/// For an exclusive holder it takes the weakest row lock. Key and grant id have a unique index, so a write of another
/// grant id conflicts with that lock. A heartbeat leaves both as they are, and does not.
#[must_use = "it asserts nothing by itself"]
pub struct Assertion {
    sql: Arc<str>,
    key: String,
    holder: String,
    store: String,
}

impl fmt::Debug for Assertion {
    /// Without the grant id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assertion").field("key", &self.key).field("store", &self.store).finish_non_exhaustive()
    }
}

impl Assertion {
    pub(crate) fn of(standing: Standing<'_>) -> Result<Assertion> {
        let lock = standing.lock;
        let Some(store) = standing.store::<Postgres>() else {
            return Err(standing.error(ErrorKind::InvalidInput, "this lock is in no table of PostgreSQL"));
        };
        let (sql, holder) = match lock.mode {
            Mode::Exclusive => (&store.statements.assert_exclusive, lock.grant.as_str().to_owned()),
            Mode::Shared => (&store.statements.assert_shared, json!([{ "grant_id": lock.grant.as_str() }]).to_string()),
        };
        let store = standing.backend.info().label.clone();
        Ok(Assertion { sql: sql.clone(), key: lock.key.clone(), holder, store })
    }

    /// The query, with two parameters. Its answer is at most one row of one column, a truth value.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The values of `$1` and `$2`, both texts. The second proves who holds the lock: keep it out of logs.
    pub fn params(&self) -> [&str; 2] {
        [&self.key, &self.holder]
    }

    /// What the answer says: the value of its row, or `None` where there was no row.
    ///
    /// # Errors
    /// `Lost` when it is not held any more: roll the transaction back. `Schema` where the table lacks the index without
    /// which nothing keeps rivals out.
    pub fn judge(&self, answer: Option<bool>) -> Result<()> {
        let (kind, message) = match answer {
            Some(true) => return Ok(()),
            Some(false) => (
                ErrorKind::Schema,
                "the table lacks the unique index on key and grant_id, without which nothing keeps rivals out; \
                 create_schema() adds it",
            ),
            None => (ErrorKind::Lost, NOT_SEEN),
        };
        Err(self.error(kind, message))
    }

    /// Asserts the grant. The lock of the row ends with the transaction, or with the savepoint that is rolled back.
    pub(crate) async fn run(&self, transaction: &Transaction<'_>) -> Result<()> {
        self.answered(transaction.query_typed(&self.sql, &self.typed()).await)
    }

    /// The same in a transaction of the blocking client.
    pub(crate) fn run_blocking(&self, transaction: &mut postgres::Transaction<'_>) -> Result<()> {
        self.answered(transaction.query_typed(&self.sql, &self.typed()))
    }

    fn typed(&self) -> [(&(dyn ToSql + Sync), Type); 2] {
        [(&self.key, Type::TEXT), (&self.holder, Type::TEXT)]
    }

    fn answered(&self, rows: std::result::Result<Vec<Row>, DriverError>) -> Result<()> {
        let answer = rows.and_then(|rows| rows.first().map(|row| row.try_get(0)).transpose());
        self.judge(answer.map_err(|failed| self.in_context(failed.into()))?)
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message).with_key(&self.key).with_store(&self.store)
    }

    /// Turns the error that ended a user's transaction into one of ours. An error of ours stays as it is.
    fn in_context(&self, failed: AnyError) -> Error {
        let conflict = conflict(&failed);
        let failed = match failed.downcast::<Error>() {
            Ok(ours) => return *ours,
            Err(failed) => failed,
        };
        match conflict {
            None => self.error(ErrorKind::Store, "the transaction failed").caused_by_any(failed),
            Some(_) => {
                let message =
                    "the transaction was in conflict; nothing of it was written, and it may be tried again as a whole";
                self.error(ErrorKind::Store, message).caused_by_any(failed).retryable()
            }
        }
    }

    /// A commit whose answer did not come may have happened.
    fn of_commit(&self, failed: DriverError) -> Error {
        match PostgresError::classify(&failed, Stage::Sent, "").0 {
            Fate::Unknown => {
                let message = "no answer settled whether the transaction was committed";
                self.error(ErrorKind::Ambiguous, message).caused_by(failed)
            }
            _ => self.in_context(failed.into()),
        }
    }
}

/// Decides for the loops over both clients whether a transaction is begun again, and for how long.
struct Tries<'a> {
    assertion: &'a Assertion,
    limit: Duration,
    begun: Instant,
    failures: u32,
}

impl<'a> Tries<'a> {
    fn new(assertion: &'a Assertion, limit: Duration) -> Self {
        Tries { assertion, limit, begun: Instant::now(), failures: 0 }
    }

    /// Whether to assert before the user's work. A heartbeat of a shared holder that comes during a transaction is in
    /// conflict with the snapshot of that. So from the second try on the assertion comes first, and the heartbeat
    /// waits.
    fn assert_first(&self) -> bool {
        self.failures > 0
    }

    /// How many seconds to pause before the next try. Without a pause, two transactions that are in each other's way
    /// would meet again.
    fn pause(&mut self, failed: AnyError) -> Result<f64> {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        if !matches!(conflict(&failed), Some(Conflict::BeginAgain)) || left.is_zero() {
            return Err(self.assertion.in_context(failed));
        }
        let pause = retry_delay(self.failures, left, random::fraction());
        self.failures += 1;
        Ok(pause.as_secs_f64())
    }

    /// Judges a pause that failed after `took`. The limit of the session may have cut the pause short: then the tries
    /// go on. Otherwise somebody cancelled it, which has the same code: a user that does so wants all of it to end.
    fn cut(
        &self,
        failed: DriverError,
        took: Duration,
        limit: std::result::Result<Vec<Row>, DriverError>,
    ) -> Result<()> {
        let limit = limit.ok().and_then(|rows| rows.first()?.try_get::<_, f64>(0).ok());
        let is_over = limit.is_some_and(|limit| limit > 0.0 && took.as_secs_f64() >= limit);
        let goes_on = is_over && failed.code() == Some(&SqlState::QUERY_CANCELED);
        if goes_on { Ok(()) } else { Err(self.assertion.in_context(failed.into())) }
    }
}

/// Runs `work` in a transaction and asserts the grant. Begins again, for at most `limit`, if the server says that it
/// was in conflict.
pub async fn run_within<T, W>(assertion: &Assertion, limit: Duration, client: &mut Client, mut work: W) -> Result<T>
where
    W: AsyncFnMut(&Transaction<'_>) -> std::result::Result<T, AnyError>,
{
    let mut tries = Tries::new(assertion, limit);
    loop {
        let failed = match once(&tries, client, &mut work).await {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let (pause, paused) = (tries.pause(failed)?, Instant::now());
        if let Err(failed) = client.query_typed(PAUSE, &[(&pause, Type::FLOAT8)]).await {
            let took = paused.elapsed();
            tries.cut(failed, took, client.query_typed(LIMIT, &[]).await)?;
        }
    }
}

async fn once<T>(
    tries: &Tries<'_>,
    client: &mut Client,
    work: &mut impl AsyncFnMut(&Transaction<'_>) -> std::result::Result<T, AnyError>,
) -> std::result::Result<T, AnyError> {
    // The transaction is rolled back if it is dropped.
    let transaction = client.transaction().await?;
    if tries.assert_first() {
        tries.assertion.run(&transaction).await?;
    }
    let done = work(&transaction).await?;
    // Also if it was asserted first: the commit of a transaction that failed in the middle is a rollback, and no error.
    tries.assertion.run(&transaction).await?;
    transaction.commit().await.map_err(|failed| tries.assertion.of_commit(failed))?;
    Ok(done)
}

/// [`run_within`] for the blocking client.
pub fn run_blocking_within<T>(
    assertion: &Assertion,
    limit: Duration,
    client: &mut postgres::Client,
    mut work: impl FnMut(&mut postgres::Transaction<'_>) -> std::result::Result<T, AnyError>,
) -> Result<T> {
    let mut tries = Tries::new(assertion, limit);
    loop {
        let failed = match once_blocking(&tries, client, &mut work) {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let (pause, paused) = (tries.pause(failed)?, Instant::now());
        if let Err(failed) = client.query_typed(PAUSE, &[(&pause, Type::FLOAT8)]) {
            let took = paused.elapsed();
            tries.cut(failed, took, client.query_typed(LIMIT, &[]))?;
        }
    }
}

fn once_blocking<T>(
    tries: &Tries<'_>,
    client: &mut postgres::Client,
    work: &mut impl FnMut(&mut postgres::Transaction<'_>) -> std::result::Result<T, AnyError>,
) -> std::result::Result<T, AnyError> {
    let mut transaction = client.transaction()?;
    if tries.assert_first() {
        tries.assertion.run_blocking(&mut transaction)?;
    }
    let done = work(&mut transaction)?;
    tries.assertion.run_blocking(&mut transaction)?;
    transaction.commit().map_err(|failed| tries.assertion.of_commit(failed))?;
    Ok(done)
}

/// What a transaction met.
enum Conflict {
    /// Nothing of it was written, and it may succeed if it is begun again as a whole.
    BeginAgain,
    /// Another transaction had a row locked for which the user did not want to wait.
    Locked,
}

fn conflict(failed: &AnyError) -> Option<Conflict> {
    let mut next: Option<&(dyn StdError + 'static)> = Some(&**failed);
    while let Some(error) = next {
        match error.downcast_ref::<DriverError>().and_then(DriverError::code) {
            Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                return Some(Conflict::BeginAgain);
            }
            Some(&SqlState::LOCK_NOT_AVAILABLE) => return Some(Conflict::Locked),
            _ => next = error.source(),
        }
    }
    None
}
