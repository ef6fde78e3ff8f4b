//! The faces of the stores: settings of the user's own, and fenced transactions.

/// A text names a table that differs in nothing from the defaults.
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
