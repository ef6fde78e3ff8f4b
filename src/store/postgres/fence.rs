//! Whether a grant holds, asserted inside a user's own transaction.

use serde_json::json;
use tokio_postgres::types::{ToSql, Type};

use super::Postgres;
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::fence::Standing;

/// A query that locks the row, and finds it only while the grant stands.
///
/// Of an exclusive holder it takes the weakest lock: key and grant id have a unique index, so to write another grant id
/// conflicts with that lock, and a heartbeat, which leaves them as they are, does not.
pub(crate) struct Assertion {
    sql: std::sync::Arc<str>,
    key: String,
    holder: String,
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
        Ok(Assertion { sql: sql.clone(), key: lock.key.clone(), holder })
    }

    /// `None`: the grant does not stand, `Some(false)`: it can't be kept. The row's lock ends with it, or with the savepoint that is rolled back.
    pub(crate) async fn run(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
    ) -> std::result::Result<Option<bool>, tokio_postgres::Error> {
        let key: &(dyn ToSql + Sync) = &self.key;
        let rows = transaction.query_typed(&self.sql, &[(key, Type::TEXT), (&self.holder, Type::TEXT)]).await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }
}

/// What the answer means.
pub(crate) fn judged(
    answer: std::result::Result<Option<bool>, tokio_postgres::Error>,
    standing: Standing<'_>,
) -> Result<()> {
    match answer {
        Ok(Some(true)) => Ok(()),
        Ok(Some(false)) => {
            let missing = "the table lacks the unique index on key and grant_id, without which nothing keeps rivals out; \
                           create_schema() adds it";
            Err(standing.error(ErrorKind::Schema, missing))
        }
        Ok(None) => {
            Err(standing.error(ErrorKind::Lost, "it is not held any more; the transaction must not be committed"))
        }
        Err(failed) => Err(in_context(failed, standing)),
    }
}

fn in_context(failed: tokio_postgres::Error, standing: Standing<'_>) -> Error {
    use tokio_postgres::error::SqlState;
    let is_conflict = matches!(
        failed.code(),
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::LOCK_NOT_AVAILABLE)
    );
    let error = standing.error(ErrorKind::Store, "the transaction failed").caused_by(failed);
    if is_conflict { error.retryable() } else { error }
}
