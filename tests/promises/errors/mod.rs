//! What a user is told: errors, the log, and what a logger may do.

mod input;
mod log_panics;
mod logging;
mod logs;
