//! Whether a grant holds, asserted inside a user's own transaction.

use google_cloud_gax::error::rpc::Code;
use google_cloud_spanner::Error as SdkError;
use google_cloud_spanner::statement::Statement;

use super::Spanner;
use super::error::Stage;
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::failure::Fate;
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

/// An error of the SDK as ours: the loss, or with the SDK's own as its source. `commits`: the commit was sent.
pub(crate) fn in_context(failed: SdkError, standing: Standing<'_>, commits: bool) -> Error {
    let is_lost = failed.status().is_some_and(|status| status.message.contains(LOST));
    if is_lost {
        return standing.error(ErrorKind::Lost, "it is not held any more; the transaction was not committed");
    }
    let (kind, message) = match standing.store::<Spanner>() {
        Some(store) if commits && may_be_committed(&failed, store) => {
            (ErrorKind::Ambiguous, "no answer settled whether the transaction was committed")
        }
        _ => (ErrorKind::Store, "the transaction failed"),
    };
    standing.error(kind, message).caused_by(failed)
}

/// Whether this answer to a commit leaves open what became of it.
fn may_be_committed(failed: &SdkError, store: &Spanner) -> bool {
    // By a constraint of the user's own table, or for a row that is missing there. That the transaction is gone settles
    // nothing: it may be gone because it was committed.
    let is_refused = failed.status().is_some_and(|status| {
        let is_one = matches!(status.code, Code::NotFound | Code::FailedPrecondition | Code::OutOfRange);
        is_one && !status.message.contains("ransaction")
    });
    !is_refused && store.target.classify_at(failed, Stage::Committing).0 == Fate::Unknown
}
