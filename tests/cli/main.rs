//! The command `leasehold`, with real children.
#![cfg(unix)]

#[path = "../common/servers/mod.rs"]
mod servers;

mod exits;
mod loss;
mod signals;
mod support;
mod terminal;
