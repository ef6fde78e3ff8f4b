//! The errors of this store, and the one place that decides what an answer of the server means.

use tokio_postgres::Error as DriverError;
use tokio_postgres::error::{DbError, SqlState};

use crate::model::error::ErrorKind;
use crate::store::failure::{self, Cause, Failure, Fate, Words};

/// What went wrong with the database.
pub(super) type PostgresError = Failure<Own>;

/// The errors that only PostgreSQL has.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Own {
    #[error("the database does not exist; correct the URL, or create it")]
    NoDatabase,

    #[error("there is no table {table}; create_schema() makes it, or correct the option table=..")]
    NoTable { table: String },

    #[error(
        "the schema of the table {table} does not exist; make it by CREATE SCHEMA, or correct the option table=.. or the \
         user's search_path"
    )]
    NoSchema { table: String },

    #[error(
        "the table {table} refuses what leasehold writes: take off the column, the constraint or the trigger that does so, \
         which leasehold did not make"
    )]
    Refuses { table: String },

    #[error("the table {table} lacks a column or its schema; create_schema() adds what is missing")]
    Columns { table: String },

    #[error("access is denied; the user needs SELECT on the table {table} (to lock also INSERT, UPDATE and DELETE)")]
    Denied { table: String },

    #[error("{0}")]
    MayNotMake(String),

    #[error(
        "the server does not let this user in: it needs CONNECT on the database, and the right to set what options= of the \
         URL sets"
    )]
    MayNotConnect,

    #[error("the server does not accept what options= of the URL sets for the session; correct it")]
    Settings,

    #[error(
        "the server takes no connection now: it starts or stops, its database allows none, or it took too long to begin a \
         session"
    )]
    NotNow,

    #[error(
        "the server does not allow writes: it is a standby, or sessions of this user are read-only; connect to the primary"
    )]
    ReadOnly,

    #[error(
        "the server ended the statement before it was done: it waited too long for the row, or was in conflict with others"
    )]
    Ended,

    #[error("another transaction has the row locked, or the table, or the queue of notifications; nothing was written")]
    Locked,

    /// It is not known that somebody else has the row locked: perhaps the server does not answer.
    #[error("an earlier statement of this client for this row is not done yet; nothing was written")]
    Behind,

    #[error("the server has no space or memory left; nothing was written; make room on its disk")]
    Full,

    #[error("a limit in the server's settings is reached, as of its temporary files; nothing was written")]
    Limit,

    #[error(
        "the server is short of transaction ids, and takes no write until it is vacuumed; end what keeps its old rows: a session, \
         a prepared transaction or a replication slot"
    )]
    Exhausted,

    #[error(
        "the server has no connection left: max_connections, or the CONNECTION LIMIT of the role or the database, is reached; \
         raise it, or end sessions: a client needs up to nine"
    )]
    NoConnection,

    #[error("the server wants a password, and the URL has none: say it there; PGPASSWORD and ~/.pgpass are not read")]
    NoPassword,

    #[error("{0}")]
    Tls(String),

    /// What keeps a client out for now, and may pass: the client has connected before, or another of its hosts works as
    /// a standby.
    #[error("{0}")]
    ForNow(String),

    #[error("the database can't store or give out a character of a text; its encoding should be UTF8")]
    Encoding,
}

impl failure::Own for Own {
    const WORDS: Words = Words {
        server: "server",
        sdk: "tokio-postgres",
        row: "row",
        write: "statement",
        not_sent: "there was no connection in the time that this call had; check that the server runs",
        unreachable: "no connection can be made; check that the server runs, its address and the network",
        check: "check that the server runs",
        credentials: "the server does not accept the user or its password",
    };

    fn kind(&self) -> (ErrorKind, bool) {
        match self {
            Own::NoDatabase | Own::Settings | Own::Tls(_) => (ErrorKind::Config, false),
            Own::NoTable { .. } | Own::NoSchema { .. } | Own::Columns { .. } | Own::Refuses { .. } => {
                (ErrorKind::Schema, false)
            }
            Own::Denied { .. } | Own::MayNotMake(_) | Own::MayNotConnect | Own::NoPassword => {
                (ErrorKind::Permission, false)
            }
            Own::ReadOnly
            | Own::NotNow
            | Own::Ended
            | Own::Locked
            | Own::Behind
            | Own::Full
            | Own::Limit
            | Own::Exhausted
            | Own::NoConnection
            | Own::ForNow(_) => (ErrorKind::Store, true),
            Own::Encoding => (ErrorKind::InvalidInput, false),
        }
    }
}

/// How far a request was when an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The connection for it was being made.
    Connecting,
    /// The statement may have left this host.
    Sent,
}

impl PostgresError {
    /// What an error of the driver means.
    pub fn classify(error: &DriverError, stage: Stage, table: &str) -> (Fate, Self) {
        let Some(answer) = error.as_db_error() else {
            let cause = Cause::of(error);
            return match stage {
                Stage::Connecting if cause.says("does not allow writes") => refused(Own::ReadOnly, cause),
                Stage::Connecting if cause.says("password missing") => for_good(Own::NoPassword, cause),
                // The authentication failed in the protocol of passwords.
                Stage::Connecting
                    if ["invalid configuration", "authentication error"].iter().any(|said| cause.says(said)) =>
                {
                    (Fate::Refused, PostgresError::Credentials { cause })
                }
                Stage::Connecting => (Fate::NotDone, PostgresError::Unreachable { cause }),
                Stage::Sent => (Fate::Unknown, PostgresError::Unanswered { cause: Some(cause) }),
            };
        };
        // Without the details of the error, which show rows, and so grant ids.
        let cause = Cause::from(format!("{} ({})", answer.message(), answer.code().code()));
        // The session ends with this error, perhaps after the commit. Or a proxy says this about its own connection to
        // the server.
        let is_open = ["08", "40003", "57P0"].iter().any(|class| answer.code().code().starts_with(class));
        if stage == Stage::Sent && (is_open || is_fatal(answer)) {
            return (Fate::Unknown, PostgresError::Unanswered { cause: Some(cause) });
        }
        let (code, table) = (answer.code(), table.to_owned());
        let own = match *code {
            // A serialization failure, too: the row was written after the snapshot of a transaction whose isolation
            // level is not ours.
            SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::UNIQUE_VIOLATION
            | SqlState::DUPLICATE_TABLE
            | SqlState::DUPLICATE_OBJECT
            | SqlState::DUPLICATE_COLUMN => {
                return (Fate::Duplicate, PostgresError::Own(Own::Ended, Some(cause)));
            }
            SqlState::INVALID_CATALOG_NAME => Own::NoDatabase,
            SqlState::UNDEFINED_TABLE => Own::NoTable { table },
            SqlState::INVALID_SCHEMA_NAME => Own::NoSchema { table },
            SqlState::UNDEFINED_COLUMN | SqlState::INVALID_COLUMN_REFERENCE => Own::Columns { table },
            SqlState::INSUFFICIENT_PRIVILEGE if stage == Stage::Sent => Own::Denied { table },
            SqlState::INSUFFICIENT_PRIVILEGE => return for_good(Own::MayNotConnect, cause),
            // Not a conflict: the table does not allow the statement, for example if it publishes updates without a
            // replica identity.
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE if stage == Stage::Sent => {
                return (Fate::Refused, PostgresError::Other { cause });
            }
            SqlState::CANT_CHANGE_RUNTIME_PARAM if stage == Stage::Connecting => return for_good(Own::Settings, cause),
            SqlState::READ_ONLY_SQL_TRANSACTION => Own::ReadOnly,
            SqlState::LOCK_NOT_AVAILABLE => Own::Locked,
            SqlState::UNTRANSLATABLE_CHARACTER | SqlState::CHARACTER_NOT_IN_REPERTOIRE => Own::Encoding,
            SqlState::TOO_MANY_CONNECTIONS => Own::NoConnection,
            SqlState::CONFIGURATION_LIMIT_EXCEEDED => Own::Limit,
            _ if is_exhausted(answer) => Own::Exhausted,
            _ => match code.code().get(..2).unwrap_or_default() {
                "28" if stage == Stage::Connecting => return (Fate::Refused, PostgresError::Credentials { cause }),
                "22" | "42" if stage == Stage::Connecting => return for_good(Own::Settings, cause),
                // By a constraint, the check of a view, or an error of a trigger.
                "23" | "44" | "P0" if stage == Stage::Sent => Own::Refuses { table },
                // Out of resources.
                "53" => Own::Full,
                "40" | "55" | "57" if stage == Stage::Connecting => Own::NotNow,
                // In conflict, cancelled, or the server stops or starts.
                "40" | "55" | "57" => Own::Ended,
                "08" => return (Fate::NotDone, PostgresError::Unreachable { cause }),
                _ => return (Fate::Refused, PostgresError::Other { cause }),
            },
        };
        refused(own, cause)
    }

    /// Whether the error may be that the queue of notifications is full.
    pub fn is_untellable(error: &DriverError) -> bool {
        error
            .as_db_error()
            .is_some_and(|answer| *answer.code() == SqlState::PROGRAM_LIMIT_EXCEEDED && !is_exhausted(answer))
    }

    /// Whether a transaction, whose isolation level is not ours, was in conflict with another one.
    pub fn is_serialization(&self) -> bool {
        matches!(self, PostgresError::Own(_, Some(cause)) if cause.says("(40001)"))
    }

    /// An error that keeps out a client that has connected before may pass: a directory of users may be down, or a
    /// password or a certificate may be changed in two steps.
    pub fn for_now((fate, error): (Fate, Self)) -> (Fate, Self) {
        if fate != Fate::Refused {
            return (fate, error);
        }
        let cause = error.cause().cloned();
        (Fate::NotDone, PostgresError::Own(Own::ForNow(error.to_string()), cause))
    }

    /// The error to report if two hosts can't be used. A host that is away may come back, whatever is wrong with the
    /// other one. But if one is a standby, that says less than what is wrong with the other one, which may be the
    /// primary.
    pub fn of_hosts(before: (Fate, Self), now: (Fate, Self)) -> (Fate, Self) {
        let is_read_only = |error: &Self| matches!(error, PostgresError::Own(Own::ReadOnly, _));
        // A fault of TLS may pass, since the standby works.
        let of_primary = |told: (Fate, Self)| match told.1 {
            PostgresError::Own(Own::Tls(_), _) => Self::for_now(told),
            _ => told,
        };
        match (&before, &now) {
            ((_, standby), _) if is_read_only(standby) => of_primary(now),
            (_, (_, standby)) if is_read_only(standby) => of_primary(before),
            ((Fate::NotDone, _), (Fate::Refused, _)) => before,
            _ => now,
        }
    }

    /// A connection that was not made in this time.
    pub fn unmade(time: std::time::Duration) -> Self {
        PostgresError::Unreachable { cause: Cause::from(format!("it was not made in {} ms", time.as_millis())) }
    }

    /// An answer came, but the commit is not safe on the standbys that it must be on.
    pub fn unreplicated() -> Self {
        let cause = Cause::from("the wait for the synchronous standby was cancelled".to_owned());
        PostgresError::Unanswered { cause: Some(cause) }
    }
}

fn refused(own: Own, cause: Cause) -> (Fate, PostgresError) {
    (Fate::NotDone, PostgresError::Own(own, Some(cause)))
}

fn for_good(own: Own, cause: Cause) -> (Fate, PostgresError) {
    (Fate::Refused, PostgresError::Own(own, Some(cause)))
}

/// Whether the server has no ids left for transactions. Other limits have the same code, and the text is in the
/// server's language: so the routine that wrote the error decides.
fn is_exhausted(answer: &DbError) -> bool {
    *answer.code() == SqlState::PROGRAM_LIMIT_EXCEEDED
        && answer.routine().is_some_and(|name| name.starts_with("GetNew"))
}

fn is_fatal(answer: &DbError) -> bool {
    use tokio_postgres::error::Severity;
    match answer.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => matches!(answer.severity(), "FATAL" | "PANIC"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby that works, and a primary whose certificate is wrong.
    #[test]
    fn what_is_wrong_with_the_primary_is_told_and_may_pass() {
        let cause = || Cause::from("canary".to_owned());
        let tls = || (Fate::Refused, PostgresError::Own(Own::Tls("its certificate".to_owned()), Some(cause())));
        let standby = || refused(Own::ReadOnly, cause());
        let away = || (Fate::NotDone, PostgresError::Unreachable { cause: cause() });
        let full = || refused(Own::NoConnection, cause());
        for (before, now, says) in [
            (standby(), tls(), "its certificate"),
            (tls(), standby(), "its certificate"),
            (away(), tls(), "no connection can be made"),
            (tls(), away(), "no connection can be made"),
            (standby(), away(), "no connection can be made"),
            (away(), standby(), "no connection can be made"),
            (standby(), full(), "no connection left"),
            (full(), standby(), "no connection left"),
        ] {
            let (fate, error) = PostgresError::of_hosts(before, now);
            assert!(error.to_string().contains(says), "{says}: {error}");
            assert_eq!((fate, crate::model::error::Error::from(error).is_retryable()), (Fate::NotDone, true), "{says}");
        }
        let wrong = || (Fate::Refused, PostgresError::Credentials { cause: cause() });
        for (before, now) in [(standby(), wrong()), (wrong(), standby())] {
            assert!(matches!(PostgresError::of_hosts(before, now), (Fate::Refused, PostgresError::Credentials { .. })));
        }
        let (fate, error) = PostgresError::of_hosts(tls(), tls());
        assert_eq!((fate, crate::model::error::Error::from(error).kind()), (Fate::Refused, ErrorKind::Config));
    }
}
