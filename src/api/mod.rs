//! What users call.

pub(crate) mod admin;
pub(crate) mod builder;
pub(crate) mod client;
pub(crate) mod election;
pub mod fence;
pub(crate) mod filter;
pub(crate) mod groups;
pub(crate) mod guard;
pub(crate) mod leases;
#[cfg(feature = "metrics")]
pub mod metrics;
pub(crate) mod origin;
pub(crate) mod request;
pub(crate) mod request_all;
pub(crate) mod request_any;
pub(crate) mod setters;
pub(crate) mod sleep;
pub mod stores;
pub mod testing;
#[cfg(feature = "tracing")]
pub mod tracing;
pub(crate) mod update;
