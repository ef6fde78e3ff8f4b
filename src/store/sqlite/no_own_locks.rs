//! For systems without locks of open file descriptions, or without them at such large offsets (glibc on 32 bits).
//! There, only a log that is gone is noticed.

use std::io;
use std::path::Path;

use super::{Header, Marked, Taken};
use crate::store::sqlite::file::FileId;

#[derive(Debug)]
pub struct OwnLocks;

impl OwnLocks {
    pub fn take(_path: &Path, _database: FileId, _mark: Option<&Mark>, _idle: &mut Idle) -> io::Result<Taken> {
        Ok(Taken::Locks(OwnLocks))
    }

    pub fn stand_beside(&self, _path: &Path) -> bool {
        false
    }

    pub fn see_the_writer(&self) -> bool {
        true
    }

    pub fn see_work(&self) -> bool {
        false
    }

    pub fn header(&self) -> Option<Header> {
        None
    }

    pub fn hurry(&self) -> Hurry {
        Hurry
    }

    pub fn see_hurry(&self) -> bool {
        false
    }

    pub fn len(&self) -> Option<u64> {
        None
    }

    pub fn reserve(&self, _size: u64, _most: u64) -> io::Result<()> {
        Ok(())
    }

    pub fn unlock(&self) {}

    pub fn give_up(self, _idle: &mut Idle) {}
}

#[derive(Debug)]
pub struct Hurry;

#[derive(Debug)]
pub struct Mark;

impl Mark {
    pub fn give_up(self, _idle: &mut Idle) {}
}

#[derive(Debug)]
pub struct Idle;

impl Idle {
    pub const fn new() -> Idle {
        Idle
    }

    pub fn is_elsewhere(&mut self, _path: &Path, _file: FileId) -> bool {
        false
    }

    pub fn mark(&mut self, _path: &Path, _file: FileId) -> io::Result<Marked> {
        Ok(Marked::As(None))
    }

    pub fn close(&mut self) {}
}
