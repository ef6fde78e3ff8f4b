//! What other lock libraries got wrong, by the number that each has in our list of such
//! behaviours; every test fails in a library that has the fault. What needs processes of its own
//! is in `processes.rs`, what needs the clock of a store in `conformance.rs`.

mod acquiring;
mod ending;
mod holding;

use crate::support::bench::{Bench, LONG, loss_of, wait_until};
