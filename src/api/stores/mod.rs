//! What each store offers to users by itself: a client with the user's own settings, and fenced transactions.

#[cfg(feature = "capi")]
use crate::api::fence::Fenced;
#[cfg(feature = "capi")]
use crate::model::error::{ErrorKind, Result};

/// Converts a text into the table of that name, with the defaults.
#[cfg(any(feature = "dynamodb", feature = "spanner"))]
macro_rules! named_by_text {
    ($named:ident: $($text:ty),+) => {$(
        impl From<$text> for $named {
            fn from(name: $text) -> Self {
                $named::new(name)
            }
        }
    )+};
}

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "spanner")]
pub mod spanner;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// The assertion as an SQL statement and its two parameters, for drivers that leasehold does not use: it returns one
/// row, whose first value is true, while the lock is held.
#[cfg(feature = "capi")]
pub(crate) fn statement(fenced: &impl Fenced) -> Result<[String; 3]> {
    let standing = fenced.standing()?;
    #[cfg(feature = "sqlite")]
    if let Some(statement) = crate::store::sqlite::fence::statement(standing) {
        return Ok(statement);
    }
    #[cfg(feature = "postgres")]
    if let Ok(assertion) = crate::store::postgres::fence::Assertion::of(standing) {
        let [key, holder] = assertion.params().map(str::to_owned);
        return Ok([assertion.sql().to_owned(), key, holder]);
    }
    Err(standing.error(ErrorKind::InvalidInput, "this lock is in no store that is asserted by an SQL statement"))
}
