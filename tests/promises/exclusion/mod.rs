//! At most one holder has a key, or several that share it: among threads, processes, and while the server goes away.

mod processes;
mod restarts;
mod sharing;
mod threads;
