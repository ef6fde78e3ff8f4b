//! What several test targets share; each uses a part of it.
#![allow(dead_code)]

pub mod asks;
pub mod bench;
pub mod between;
pub mod calls;
#[cfg(all(feature = "mongodb", target_os = "linux"))]
pub mod cluster;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "spanner")]
pub mod grpc;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(unix)]
pub mod nobody;
#[cfg(all(feature = "mongodb", target_os = "linux"))]
pub mod own;
pub mod proxy;
pub mod seed;
pub mod servers;
#[cfg(feature = "spanner")]
pub mod spanner;
pub mod steps;
pub mod stores;
pub mod urls;
