//! Whether a grant holds, asserted inside a user's own transaction.

use google_cloud_spanner::Error as SdkError;
use google_cloud_spanner::statement::Statement;

use super::Spanner;
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::fence::Standing;

/// What the service says when the lock is lost.
const LOST: &str = "leasehold: lock lost";

/// A query that fails unless the grant holds. Heartbeats write none of the columns that it reads of an exclusive
/// holder; a missing row must not pass.
pub(crate) fn assertion(standing: Standing<'_>) -> Result<Statement> {
    let lock = standing.lock;
    let Some(store) = standing.store::<Spanner>() else {
        return Err(standing.error(ErrorKind::InvalidInput, "this lock is in no table of Cloud Spanner"));
    };
    let condition = match lock.mode {
        Mode::Exclusive => "writer = @grant AND grant_id = @grant",
        // A node that takes the row over changes the writer, and leaves the holders as they are.
        Mode::Shared => {
            "writer = grant_id AND EXISTS (SELECT 1 FROM UNNEST(JSON_QUERY_ARRAY(holders)) AS holder \
             WHERE JSON_VALUE(holder, '$.grant_id') = @grant)"
        }
    };
    let table = &store.target.table;
    let sql = format!(
        "SELECT IF((SELECT COUNT(*) FROM `{table}` WHERE name = @name AND {condition}) = 1, 1, ERROR('{LOST}')) AS held"
    );
    Ok(Statement::builder(sql).add_param("name", &lock.key).add_param("grant", lock.grant.as_str()).build())
}

/// An error of the SDK as ours: the loss, or with the SDK's own as its source.
pub(crate) fn in_context(failed: SdkError, standing: Standing<'_>) -> Error {
    let is_lost = failed.status().is_some_and(|status| status.message.contains(LOST));
    if is_lost {
        return standing.error(ErrorKind::Lost, "it is not held any more; the transaction was not committed");
    }
    standing.error(ErrorKind::Store, "the transaction failed").caused_by(failed)
}
