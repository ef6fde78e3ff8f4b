//! A file that nobody has open, for whoever may only read it.
//!
//! SQLite reads such a file only with a log and its index, which this user can't make, or as `immutable`: without any
//! lock, which is wrong as soon as somebody writes. Here that is noticed. Whoever opens the file makes a log before the
//! file is ever written to, and the last one to close it removes the log only while nobody else has a shared lock on
//! the file. To have that takes the right to read. So where there is no log after the reading, and was none before,
//! and the lock was held all the while, nobody has written. Else it is read anew, then through the others' log.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::error::SqliteError;
use super::file::Log;
use super::open::Place;
use super::own_locks::KeptAtRest;
use super::{Sqlite, SqliteOptions};
use crate::lease::LockRecord;
use crate::model::error::Result;
use crate::store::{
    Acquired, Attempt, Backend, Consistency, Missing, Page, Purpose, Released, Renewal, Renewed, Schema, Seen,
    StoreInfo, Swapped, Which,
};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

/// So often a file is looked at anew while others begin or end their work with it, and so long a pause is made.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Opens the file for each call, with the others' log or, if nobody has it open, without one.
#[derive(Debug)]
pub(super) struct Visitor {
    options: SqliteOptions,
    clock: Arc<Clock>,
    info: StoreInfo,
}

impl Visitor {
    /// An error if the file cannot be read now.
    pub(super) fn open(options: SqliteOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Visitor> {
        let info = visit(&options, &clock, by, |store| Ok(store.info.clone()))?;
        Ok(Visitor { options, clock, info })
    }

    /// For what writes, which is denied unless this user may do so by now.
    fn opened(&self, by: &Deadline) -> Result<Sqlite> {
        Ok(Sqlite::connect(self.options.clone(), self.clock.clone(), Missing::IsRefused, by)?)
    }

    fn visit<T>(&self, by: &Deadline, what: impl Fn(&Sqlite) -> Result<T>) -> Result<T> {
        visit(&self.options, &self.clock, by, what)
    }
}

fn visit<T>(
    options: &SqliteOptions,
    clock: &Arc<Clock>,
    by: &Deadline,
    what: impl Fn(&Sqlite) -> Result<T>,
) -> Result<T> {
    let mut tries = 0;
    loop {
        // With the others' log.
        let denied = match Sqlite::connect(options.clone(), clock.clone(), Missing::IsRefused, by) {
            Err(denied @ SqliteError::Denied { .. }) => denied,
            opened => return what(&opened?),
        };
        if let Some(answer) = at_rest(options, clock, by, &what)? {
            return Ok(answer);
        }
        tries += 1;
        if tries == TRIES || !by.wait_for(PAUSE) {
            return Err(denied.into());
        }
    }
}

/// `None`: somebody has the file open, or has opened it meanwhile, or it can't be read so.
fn at_rest<T>(
    options: &SqliteOptions,
    clock: &Arc<Clock>,
    by: &Deadline,
    what: impl Fn(&Sqlite) -> Result<T>,
) -> Result<Option<T>> {
    let place = Place::find(options, Missing::IsRefused, by)?;
    let looking = |source| SqliteError::looking(&place.path, source);
    let Ok(Some(_kept)) = KeptAtRest::take(&place.path, place.file, by) else { return Ok(None) };
    let Some(log) = Log::missing(&place.path).map_err(looking)? else { return Ok(None) };
    let store = Sqlite::connect_at_rest(options.clone(), clock.clone(), place.clone(), log, by);
    let answer = store.map_err(Into::into).and_then(|store| what(&store).map(|answer| (answer, store.target.check())));
    let is_undisturbed = Log::missing(&place.path).map_err(looking)?.is_some();
    match answer {
        _ if !is_undisturbed => Ok(None),
        Ok((_, Err(_moved))) => Ok(None),
        answer => answer.map(|(answer, _)| Some(answer)),
    }
}

impl Backend for Visitor {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, what: Schema, by: &Deadline) -> Result<String> {
        match what {
            Schema::Create => self.opened(by)?.schema(what, by),
            _ => self.visit(by, |store| store.schema(what, by)),
        }
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        self.opened(by)?.acquire(attempt, by)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        self.opened(by)?.renew(attempt, renewal, by)
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        self.opened(by)?.release(attempt, purpose, by)
    }

    fn read(&self, which: &Which, from: Option<String>, consistency: Consistency, by: &Deadline) -> Result<Page> {
        self.visit(by, |store| store.read(which, from.clone(), consistency, by))
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, by: &Deadline) -> Result<Swapped> {
        self.opened(by)?.swap(seen, new, by)
    }

    /// No connection stays open that could tell.
    fn wake(&self, _keys: &[String], _to: Sender<String>, _by: &Deadline) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::super::tests::{soon, store};
    use super::*;

    #[test]
    fn a_write_that_left_no_log_would_be_missed_and_so_leaves_one() {
        let (folder, made) = store();
        drop(made);
        let path = folder.join("locks.db");
        let options = SqliteOptions { path: path.clone(), mode: None, unsafe_fs: false, clock_identity: None };
        let look = |meanwhile: &dyn Fn()| {
            let read = |store: &Sqlite| {
                let page = store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon())?;
                meanwhile();
                Ok(page.records.len())
            };
            at_rest(&options, &Clock::system(), &soon(), read).unwrap()
        };
        let sql = |sql: &str| Connection::open(&path).unwrap().query_row(sql, [], |_| Ok(())).ok();
        let write = || assert!(sql("PRAGMA user_version = 1001").is_none());
        assert_eq!(look(&|| ()), Some(1));
        assert_eq!(look(&write), None, "it was opened, written to and closed meanwhile");
        assert!(!matches!(Log::missing(&path), Ok(Some(_))));
        assert_eq!(look(&|| ()), None, "as long as there is a log");
        // The last one to close it removes the log.
        write();
        assert_eq!(look(&|| ()), Some(1));
        sql("PRAGMA journal_mode = DELETE").unwrap();
        assert_eq!(look(&|| ()), None, "somebody may write to it without a log");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
