//! The C library: its header, its programs as users compile them, and what tools report about them.
#![cfg(unix)]

mod header;
mod install;
mod library;
#[cfg(all(feature = "postgres", target_os = "linux"))]
mod on_postgres;
mod programs;
#[path = "../support/room.rs"]
mod room;
#[path = "../support/servers/mod.rs"]
mod servers;
mod tools;
mod wrappers;
