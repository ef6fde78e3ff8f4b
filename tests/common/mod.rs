//! What several test targets share; each uses a part of it.
#![allow(dead_code)]

pub mod asks;
pub mod bench;
pub mod steps;
pub mod stores;
