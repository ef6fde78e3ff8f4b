//! Whether a grant holds, as a condition inside a user's own transaction.

use aws_sdk_dynamodb::types::ReturnValuesOnConditionCheckFailure;
use aws_sdk_dynamodb::types::{CancellationReason, ConditionCheck};

use super::Dynamodb;
use super::expr::{Expr, Update, number, text};
use super::row::DecodedRow;
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::lock::LockStatus;
use crate::store::fence::Standing;

/// Why a transaction with a [`ConditionCheck`](crate::api::stores::dynamodb::ConditionCheck) was not applied, as far as the check
/// shows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Canceled {
    /// The lock is not held any more: an error of kind `Lost` that says who holds it.
    Lost(Error),
    /// Another write was under way on the lock's row, or the service limits the rate of requests to it. Try again.
    Conflict,
    /// If the reason's code is `None`, another part of the transaction was refused. With any other code this part was
    /// refused, before the service checked whether the lock is held.
    Other,
}

/// The check on the row of the grant.
pub fn condition_check(standing: Standing<'_>) -> Result<ConditionCheck> {
    let (store, lock) = (store_of(standing)?, standing.lock);
    let condition = match lock.mode {
        Mode::Exclusive => "#grantId = :grant AND #fence = :token",
        Mode::Shared => "#shared.#grant.#token = :token",
    };
    let expr = Expr::new(&lock.key, condition, Update::default())
        .name("#grant", lock.grant.as_str())
        .value(":grant", text(lock.grant.as_str()))
        .value(":token", number(lock.token));
    let key = &store.target.partition_key;
    ConditionCheck::builder()
        .table_name(&store.target.table)
        .set_key(Some(store.target.place(&lock.key)))
        .set_expression_attribute_names(Some(expr.names(key)))
        .set_expression_attribute_values(Some(expr.values()))
        .condition_expression(expr.condition)
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        // It never fails: everything that it requires is set.
        .map_err(|error| Error::new(ErrorKind::InvalidInput, "the check can't be built").caused_by(error))
}

/// What this reason of a cancelled transaction says about the check.
pub fn read_reason(standing: Standing<'_>, reason: &CancellationReason) -> Result<Canceled> {
    let (store, lock) = (store_of(standing)?, standing.lock);
    Ok(match reason.code() {
        Some("ConditionalCheckFailed") => {
            let found = DecodedRow::new(&lock.key, reason.item().cloned()).ok();
            let moment = store.moment().map_err(|error| standing.in_context(error))?;
            let holders = found.map(|found| LockStatus::live(&found.seen(&moment))).unwrap_or_default();
            let error = standing.error(ErrorKind::Lost, "it is not held any more; the transaction was not applied");
            Canceled::Lost(error.with_holders(holders))
        }
        Some("TransactionConflict" | "ThrottlingError" | "ProvisionedThroughputExceeded") => Canceled::Conflict,
        _ => Canceled::Other,
    })
}

fn store_of(standing: Standing<'_>) -> Result<&Dynamodb> {
    standing.store().ok_or_else(|| standing.error(ErrorKind::InvalidInput, "this lock is in no DynamoDB table"))
}
