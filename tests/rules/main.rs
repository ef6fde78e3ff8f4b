//! The pure rules: what each step answers and stores, and what random and exhaustive histories of steps keep.

mod claims;
mod lease;
mod looking;
mod properties;
mod search;
#[path = "../support/mod.rs"]
mod support;
mod times;
