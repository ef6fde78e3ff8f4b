//! The command `leasehold`, with real children.
#![cfg(unix)]

#[allow(dead_code)] // Its processes end by themselves.
#[path = "../support/faketime.rs"]
mod faketime;
#[allow(dead_code)] // These tests measure only the machine, not a server.
#[path = "../support/lateness.rs"]
mod lateness;
#[path = "../support/nobody.rs"]
mod nobody;
#[path = "../support/room.rs"]
mod room;
#[path = "../support/servers/mod.rs"]
mod servers;

mod chatter;
mod elect;
mod exits;
mod groups;
mod health;
mod hold;
mod lacks;
mod locks;
mod loss;
mod messages;
mod nested;
mod on_loss;
mod periods;
mod pipeline;
mod processes;
mod readme;
mod recipes;
mod rights;
mod secrets;
mod shared;
mod signals;
mod snapshots;
mod steps;
mod stops;
mod support;
mod terminal;
mod verbs;
#[path = "../support/wait.rs"]
mod wait;
