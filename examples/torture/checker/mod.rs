//! Judges a history of locks: whether what the workers saw can be the work of a lock that keeps its promises.
//!
//! It knows nothing of the library. Every rule accuses only if no order of the events could be innocent: a hold counts
//! from when its holder surely had it, and a request may have been granted at any moment of its call. Keys are
//! independent and tokens order the grants, so the whole check takes n log n.

mod answers;
mod deleted;
mod enough;
pub mod history;
mod losses;
mod model;
mod points;
mod processes;
mod reader;
mod rules;
mod synthetic;
mod text;
mod unanswered;
mod waits;
mod windows;

pub use enough::{Least, missing};
pub use model::{Hold, Outcome, Run};
pub use rules::{RULES, Verdict, Violation, check};
pub use synthetic::clean;
