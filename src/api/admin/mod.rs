//! For operators: listing and purging, ending by force, examining.

pub(crate) mod doctor;
pub(crate) mod force;
pub(crate) mod list;
pub(crate) mod purge;
pub(crate) mod writers;
