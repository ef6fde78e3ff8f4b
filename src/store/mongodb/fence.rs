//! Whether a grant holds, asserted inside a user's own transaction.

use mongodb::bson::{Document, doc};
use mongodb::error::{
    Error as DriverError, ErrorKind as DriverKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
};
use mongodb::options::WriteConcern;
use mongodb::{Client, Collection};

use super::Mongodb;
use super::error::{MongodbError, Own};
use super::row::{object_id, token};
use super::send::majority;
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::fence::{NOT_SEEN, Standing};

/// The write concern of a commit, whatever the user's client says. With less, a server that is no longer the primary
/// would commit alone, and roll that back after a rival was granted the lock.
pub(crate) fn of_commit() -> WriteConcern {
    majority(None)
}

/// The write that asserts a grant, and the errors for when it matched nothing or would be outside a transaction.
pub(crate) struct Assertion {
    database: String,
    collection: String,
    pub(crate) filter: Document,
    lost: Error,
    outside: Error,
}

impl Assertion {
    pub(crate) fn of(standing: Standing<'_>) -> Result<Assertion> {
        let lock = standing.lock;
        let Some(store) = standing.store::<Mongodb>() else {
            return Err(standing.error(ErrorKind::InvalidInput, "this lock is in no MongoDB collection"));
        };
        let (Some(grant), Ok(token)) = (object_id(&lock.grant), token(lock.token)) else {
            return Err(standing.error(ErrorKind::InvalidInput, "the lock was granted by another kind of store"));
        };
        let filter = match lock.mode {
            Mode::Exclusive => {
                doc! { "resource": &lock.key, "exclusive._id": grant, "exclusive.token": token, "exclusive.acquired": true }
            }
            Mode::Shared => {
                doc! { "resource": &lock.key, "shared.locks": { "$elemMatch": { "_id": grant, "token": token } } }
            }
        };
        Ok(Assertion {
            database: store.database.clone(),
            collection: store.collection.clone(),
            filter,
            lost: standing.error(ErrorKind::Lost, NOT_SEEN),
            outside: standing.error(
                ErrorKind::InvalidInput,
                "the session is in no transaction, outside which an assertion protects nothing; call \
                 start_transaction() on it first",
            ),
        })
    }

    /// The update changes a value, since a takeover would conflict neither with a find nor with an update that changes
    /// nothing.
    pub(crate) fn update(&self) -> Vec<Document> {
        vec![doc! { "$set": { "asserts": { "$add": [{ "$ifNull": ["$asserts", 0_i64] }, 1_i64] } } }]
    }

    pub(crate) fn collection(&self, client: &Client) -> Collection<Document> {
        client.database(&self.database).collection(&self.collection)
    }

    pub(crate) fn sync_collection(&self, client: &mongodb::sync::Client) -> mongodb::sync::Collection<Document> {
        client.database(&self.database).collection(&self.collection)
    }

    /// Refuses a session that is in no transaction. `started`: what the driver said to starting another one there,
    /// which sends nothing.
    pub(crate) fn must_be_inside(&self, started: mongodb::error::Result<()>) -> mongodb::error::Result<()> {
        match started {
            Ok(()) => Err(DriverError::custom(self.outside.clone())),
            Err(error) if is_in_progress(&error) => Ok(()),
            // No transaction can be started in this session.
            Err(error) => Err(error),
        }
    }

    /// If nothing was matched, an error that the driver's own loop over transactions understands.
    pub(crate) fn judge(&self, matched: mongodb::error::Result<u64>) -> mongodb::error::Result<()> {
        match matched? {
            0 => Err(DriverError::custom(self.lost.clone())),
            _ => Ok(()),
        }
    }
}

/// Only this error of the driver's shows the state of a session.
fn is_in_progress(error: &DriverError) -> bool {
    matches!(error.kind.as_ref(), DriverKind::Transaction { message, .. } if message.contains("already in progress"))
}

/// An error of a whole transaction as ours. `is_asserted`: the last try got as far as the commit.
pub(crate) fn of_transaction(error: DriverError, is_asserted: bool, standing: Standing<'_>) -> Error {
    let is_refused = error.contains_label(TRANSIENT_TRANSACTION_ERROR);
    if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) || (is_asserted && !is_refused) {
        let message = "no answer settled whether the transaction was committed";
        return standing.error(ErrorKind::Ambiguous, message).caused_by(error);
    }
    in_context(error, standing)
}

/// An error of the driver as ours: the loss of the lock, if it carries that; otherwise one that has the driver's as its
/// source, unless that quotes the grant id.
pub(crate) fn in_context(error: DriverError, standing: Standing<'_>) -> Error {
    if let Some(lost) = error.get_custom::<Error>() {
        return lost.clone();
    }
    let is_transient = error.contains_label(TRANSIENT_TRANSACTION_ERROR);
    let message = match is_transient {
        true => "the transaction was in conflict; nothing of it was written, and it may be tried again as a whole",
        false => "the transaction failed",
    };
    let failed = if format!("{error:?}").contains(standing.lock.grant.as_str()) {
        // Mostly a denial, which quotes the whole command.
        let (_, known) = MongodbError::classify(&error, None);
        let failed = match known {
            MongodbError::Own(Own::Denied, _) => {
                standing.error(ErrorKind::Permission, "the server does not let the session's user assert it")
            }
            _ => standing.error(ErrorKind::Store, message),
        };
        known.cause().cloned().into_iter().fold(failed, Error::caused_by)
    } else {
        standing.error(ErrorKind::Store, message).caused_by(error)
    };
    if is_transient { failed.retryable() } else { failed }
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use mongodb::bson::from_document;
    use mongodb::error::CommandError;

    use super::*;
    use crate::api::client::LockClient;

    #[test]
    fn a_denial_shows_no_grant_id_and_one_of_the_users_own_work_all() {
        let client = LockClient::connect("memory:").expect("a client");
        let lock = client.request("k").acquire().expect("a lock");
        let standing = Standing { lock: &lock, backend: &*client.family.backend };
        let denial = |command: &str| {
            let text = format!("not authorized on d to execute command {{ update: {command} }}");
            let answer = doc! { "code": 13, "codeName": "Unauthorized", "errmsg": text };
            let answer: CommandError = from_document(answer).expect("an answer");
            in_context(DriverKind::Command(answer).into(), standing)
        };
        let grant = lock.grant.as_str();
        let error = denial(&format!("\"c\", updates: [ {{ q: {{ _id: ObjectId('{grant}') }} }} ]"));
        assert_eq!(error.kind(), ErrorKind::Permission);
        let cause = error.source().expect("a cause").to_string();
        assert!(cause.contains("not authorized on d") && !format!("{error:?} {cause}").contains(grant), "{cause}");
        let error = denial("\"reports\"");
        assert!(error.kind() == ErrorKind::Store && error.source().is_some_and(|source| source.is::<DriverError>()));
    }
}
