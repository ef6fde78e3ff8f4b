//! Whether a grant holds, asserted inside a user's own transaction.

use std::hash::{DefaultHasher, Hash, Hasher};

use google_cloud_gax::error::rpc::{Code, Status};
use google_cloud_spanner::Error as SdkError;
use google_cloud_spanner::statement::Statement;

use super::error::{Stage, refuses_rows};
use super::{Flight, Spanner};
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::{cut, shown};
use crate::model::lock::Lock;
use crate::store::failure::Fate;
use crate::store::fence::Standing;

/// The error text of the service when this lock is lost. It identifies the lock, since the user's work may assert
/// another one, too. It has only a hash of the grant id, since the user sees the text.
fn lost(lock: &Lock) -> String {
    let mut grant = DefaultHasher::new();
    lock.grant.as_str().hash(&mut grant);
    format!("leasehold: lock {:?} lost, token {} ({:016x})", cut(&shown(&lock.key)), lock.token, grant.finish())
}

/// A query that fails unless the grant holds. Of an exclusive holder it reads only columns that no heartbeat writes. It
/// must also fail if the row is missing.
pub(crate) fn assertion(standing: Standing<'_>) -> Result<Statement> {
    let lock = standing.lock;
    let Some(store) = standing.store::<Spanner>() else {
        return Err(standing.error(ErrorKind::InvalidInput, "this lock is in no table of Cloud Spanner"));
    };
    let condition = match lock.mode {
        Mode::Exclusive => "writer = @grant AND grant_id = @grant",
        // A node of spindle that takes the row over changes the writer, and leaves the holders as they are.
        Mode::Shared => {
            "writer = grant_id AND EXISTS (SELECT 1 FROM UNNEST(JSON_QUERY_ARRAY(holders)) AS holder \
             WHERE JSON_VALUE(holder, '$.grant_id') = @grant)"
        }
    };
    let table = &store.target.table;
    let sql = format!(
        "SELECT IF((SELECT COUNT(*) FROM `{table}` WHERE name = @name AND {condition}) = 1, 1, \
         ERROR(@lost)) AS held"
    );
    let statement = Statement::builder(sql).add_param("name", &lock.key).add_param("grant", lock.grant.as_str());
    Ok(statement.add_param("lost", lost(lock)).build())
}

/// Turns an error of the SDK into one of ours: a loss, or an error that has the SDK's as its source.
pub(crate) fn in_context(failed: SdkError, standing: Standing<'_>, flight: &Flight) -> Error {
    let stage = flight.stage();
    let is_lost = failed.status().is_some_and(|status| status.message.contains(&lost(standing.lock)));
    // After a repeated commit the service says this of a later try, and the first commit may have happened.
    if is_lost && stage != Stage::Repeating {
        return standing.error(ErrorKind::Lost, "it is not held any more; the transaction was not committed");
    }
    let error = match standing.store::<Spanner>() {
        Some(store) if may_be_committed(&failed, stage, store) => unsettled(standing),
        _ => standing.error(ErrorKind::Store, "the transaction failed"),
    };
    error.caused_by(failed)
}

pub(crate) fn unsettled(standing: Standing<'_>) -> Error {
    standing.error(ErrorKind::Ambiguous, "no answer settled whether the transaction was committed")
}

/// Whether an error at this stage leaves open whether the commit happened.
fn may_be_committed(failed: &SdkError, stage: Stage, store: &Spanner) -> bool {
    let is_settled = stage == Stage::Committing && failed.status().is_some_and(is_refused);
    !is_settled && store.target.classify_at(failed, stage).0 == Fate::Unknown
}

/// Whether a commit was refused by a constraint of the user's own table, or for a row that is missing there. An answer
/// that the transaction is gone settles nothing: it may be gone because it was committed.
fn is_refused(status: &Status) -> bool {
    let is_one = matches!(status.code, Code::NotFound | Code::FailedPrecondition | Code::OutOfRange);
    refuses_rows(status) || (is_one && !status.message.contains("ransaction"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_commit_is_refused_for_may_be_named_after_transactions() {
        let of = |code, message: &str| is_refused(&Status::default().set_code(code).set_message(message));
        for (code, message) in [
            (Code::FailedPrecondition, "Foreign key constraint `fk` is violated on table `transactions`."),
            (Code::FailedPrecondition, "Foreign key `transactions_account` constraint violation on table `a`."),
            (Code::OutOfRange, "Check constraint `transactions`.`positive` is violated for key (1)"),
            (Code::NotFound, "Row [1] in table transactions is missing. Row cannot be updated."),
            (Code::FailedPrecondition, "text must not be NULL in table transactions."),
            (Code::FailedPrecondition, "Cannot specify a null value for column: transactions.text"),
        ] {
            assert!(of(code, message), "{message}");
        }
        for (code, message) in [
            (Code::NotFound, "Transaction not found: 1"),
            (Code::FailedPrecondition, "This transaction has been invalidated by a later transaction in the session."),
            (Code::Unavailable, "Row cannot be updated"),
        ] {
            assert!(!of(code, message), "{message}");
        }
    }
}
