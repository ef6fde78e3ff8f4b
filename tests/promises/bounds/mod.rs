//! Every call ends by its deadline and every drop within its bound, whatever the store does; no thread is left.

mod async_context;
mod calls;
mod forks;
mod lacks;
mod threads;
