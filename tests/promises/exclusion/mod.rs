//! At most one holds a key, or several who share it: among threads, processes, and while the server goes away.

mod processes;
mod restarts;
mod sharing;
mod threads;
