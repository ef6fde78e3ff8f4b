//! The C library: its header, its programs as users compile them, and what tools find in them.
#![cfg(unix)]

mod header;
mod install;
mod library;
mod programs;
#[path = "../support/room.rs"]
mod room;
#[path = "../support/skip.rs"]
mod skip;
mod tools;
mod wrappers;
