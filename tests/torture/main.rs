//! The torture command in short: its checker on forged histories, and a run on each store.
#![cfg(target_os = "linux")]

#[allow(dead_code, unused_imports)] // The command uses all of it.
#[path = "../../examples/torture/checker/mod.rs"]
mod checker;
#[allow(dead_code)] // The proxy reads it.
#[path = "../../examples/torture/clock.rs"]
mod clock;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
#[path = "../support/cluster.rs"]
mod cluster;
mod copies;
mod deleted;
mod enough;
mod explained;
mod faults;
mod fooled;
mod fooled_again;
mod forge;
mod forged;
mod left;
#[allow(dead_code)] // A build without stores runs nothing.
mod long;
mod network;
mod overtaken;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
#[path = "../support/own.rs"]
mod own;
mod points;
#[allow(dead_code)] // How slow a store may be.
#[path = "../../examples/torture/probe.rs"]
mod probe;
#[allow(dead_code)] // Its other faults are tried by runs.
#[path = "../../examples/torture/proxy.rs"]
mod proxy;
mod readers;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
mod restarts;
#[path = "../support/room.rs"]
mod room;
#[allow(dead_code)] // A build without stores runs nothing.
mod runs;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
#[path = "../support/servers/mod.rs"]
mod servers;
mod together;
mod wall;
// Otherwise the module `servers` contains it.
#[cfg(not(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner")))]
#[allow(dead_code)] // Only a store can lack what its test needs.
#[path = "../support/skip.rs"]
mod skip;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
#[path = "../support/wait.rs"]
mod wait;
#[path = "../../examples/torture/wire.rs"]
mod wire;
