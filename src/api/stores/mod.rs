//! The faces of the stores: settings of the user's own, and fenced transactions.

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
