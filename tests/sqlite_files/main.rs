//! The SQLite store and its file: opening, permissions, busy writers, other boots, damage.

mod boots;
mod busy;
mod full;
mod moved;
mod opening;
mod rows;
mod support;
