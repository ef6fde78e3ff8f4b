//! The SQLite store and its file: opening, permissions, busy writers, other boots, damage.

mod boots;
mod busy;
#[cfg(target_os = "linux")]
mod descriptors;
mod extended;
#[cfg(unix)]
mod forks;
mod full;
#[cfg(target_os = "linux")]
mod moved;
#[cfg(unix)]
mod neighbours;
mod opening;
mod rows;
mod support;
#[cfg(feature = "serde")]
mod upgrade;
#[cfg(target_os = "linux")]
mod wakeups;
