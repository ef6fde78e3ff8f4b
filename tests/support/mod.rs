//! What several test targets share; each uses only a part of it.
#![allow(dead_code)]

#[cfg(unix)]
pub mod alone;
pub mod asks;
#[cfg(any(feature = "mongodb", feature = "postgres"))]
pub mod authority;
pub mod bench;
pub mod between;
pub mod calls;
#[cfg(all(any(feature = "mongodb", feature = "postgres"), target_os = "linux"))]
pub mod cluster;
pub mod contract;
pub mod direct;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(target_os = "linux")]
pub mod faketime;
pub mod go;
#[cfg(feature = "spanner")]
pub mod grpc;
pub mod harness;
pub mod lateness;
pub mod logs;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(unix)]
pub mod nobody;
#[cfg(target_os = "linux")]
pub mod oracle;
#[cfg(all(any(feature = "mongodb", feature = "postgres"), target_os = "linux"))]
pub mod own;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(target_os = "linux")]
pub mod process;
pub mod proxy;
pub mod regressions;
#[cfg(target_os = "linux")]
pub mod roamer;
pub mod room;
#[path = "../../src/engine/seed.rs"]
pub mod seed;
pub mod servers;
#[cfg(unix)]
pub mod small_disk;
#[cfg(feature = "spanner")]
pub mod spanner;
pub mod steps;
pub mod stores;
#[cfg(target_os = "linux")]
pub mod threads;
pub mod urls;
pub mod wait;
#[cfg(target_os = "linux")]
pub mod worker;
