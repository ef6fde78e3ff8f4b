//! Wakes waiters when a row has changed. A thread looks whether the file has changed: when the system reports a write
//! to it, or otherwise from time to time.
//!
//! `PRAGMA data_version` on a connection of its own changes with every commit of another connection. That does not say
//! which row has changed, and every heartbeat is a commit. So the thread reads the rows again that somebody waits for,
//! and reports the keys that may be free now or sooner than before. It ends when nothing is watched.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::conn::{self, Conn};
use super::error::SqliteError;
use super::own_locks::Header;
use super::row::Row;
use super::{Sqlite, Target, Which};
use crate::lease::{Holder, LockRecord, transition};
use crate::model::error::{Error, Result};
use crate::store::transactional::Durability;
use crate::sys::clock::thread_time;
use crate::sys::deadline::Deadline;
use crate::sys::drop_bound::drop_by;
use crate::sys::log;
use crate::sys::thread::{Thread, begin_to_keep_a_lock};

mod notice;

use notice::{Bell, LULL, Notice};

/// The time between two looks while writes come without a pause. If writes are not noticed, this time is doubled with
/// each look that shows nothing new, up to [`LULL`].
const PAUSE: Duration = Duration::from_millis(5);
/// At most 1 / `SHARE` of a processor's time goes into looking, however many rows are watched, unless that needs a
/// pause longer than [`LONGEST_PAUSE`].
const SHARE: u32 = 20;
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The time between two looks if writes are noticed and none comes. Also between two checks of the file's place, since
/// most changes of that are noticed, too.
const IDLE: Duration = Duration::from_secs(1);
/// The time from the write of a commit that needs no sync until the commit can be seen.
const COMMIT: Duration = Duration::from_millis(1);
/// Looks go on for at least this long after a write, because there may be another commit next to the one that was seen.
const CLOSE: Duration = Duration::from_millis(20);
/// The same while no commit has been seen, because its sync may take long. Also the upper limit if syncs take long.
const SYNC: Duration = Duration::from_secs(1);
/// How long the time that a commit took is remembered.
const LATELY: Duration = Duration::from_secs(60);
/// How long the store's end waits for the thread.
const END: Duration = Duration::from_secs(1);

const LOOK: &str = "look whether the database has changed";

/// The watching of one client.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// `None`: the thread must end, or there is none.
    shared: Arc<Mutex<Option<Watched>>>,
    thread: Mutex<Option<Thread>>,
    /// How many eyes there have been so far; it numbers them.
    eyes: AtomicU64,
}

/// What is watched, and where to report it.
#[derive(Debug)]
struct Watched {
    /// Each row as it was seen last.
    rows: HashMap<String, LockRecord>,
    to: Sender<String>,
    /// Ends the thread's sleep.
    bell: Bell,
    /// The number of the eye that looks.
    eye: u64,
}

/// The thread's view of the file.
struct Eye {
    /// An earlier eye whose thread was not waited for must end, and not go on with what is watched now.
    number: u64,
    target: Target,
    conn: Conn,
    /// The version and the header that were seen last. While the header is the same, nobody has committed.
    version: i64,
    header: Option<Header>,
    notice: Notice,
    shared: Arc<Mutex<Option<Watched>>>,
}

/// How long looks go on after a write was noticed: its commit may still come, or another one.
#[derive(Debug, Default)]
struct Awaited {
    /// When the last write was noticed, and whether a commit was seen since looks began to go on.
    written: Option<(Instant, bool)>,
    /// The longest time lately from a commit's last write until the commit was seen, and when that was.
    longest: Option<(Duration, Instant)>,
}

impl Awaited {
    fn write(&mut self, now: Instant) {
        self.written = Some((now, self.written.is_some_and(|(_, seen)| seen)));
    }

    fn look(&mut self, is_changed: bool, now: Instant) {
        let Some((at, seen)) = &mut self.written else { return };
        let since = now.saturating_duration_since(*at);
        let is_old = |(longest, then)| longest <= since || now.saturating_duration_since(then) > LATELY;
        if is_changed && self.longest.is_none_or(is_old) {
            self.longest = Some((since.min(SYNC), now));
        }
        *seen |= is_changed;
        let longest = self.longest.map_or(Duration::ZERO, |(longest, _)| longest);
        let most = if *seen { (longest * 2).clamp(CLOSE, SYNC) } else { SYNC };
        if since >= most {
            self.written = None;
        }
    }
}

/// A number for the state of the file that a connection sees. It changes with every commit of another connection.
fn version(conn: &Connection, path: &Path) -> Result<i64, SqliteError> {
    let ask = || conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0));
    ask().map_err(|source| SqliteError::Engine { path: path.to_owned(), doing: LOOK, source })
}

impl Sqlite {
    /// [`Backend::wake`](super::Backend::wake)
    pub(super) fn wake_keys(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool> {
        if keys.is_empty() {
            self.watch.end(by.instant());
            return Ok(true);
        }
        let mut thread = self.watch.thread.lock();
        let shared = &self.watch.shared;
        let known: Option<HashSet<String>> = shared.lock().as_ref().map(|w| w.rows.keys().cloned().collect());
        // The eye's version is taken before the rows are read: a change in between is then seen twice, and not missed.
        let eye = match known {
            Some(_) => None,
            None => Some(self.eye(by).map_err(|error| self.target.explained(error))?),
        };
        let known = known.unwrap_or_default();
        let mut fresh = HashMap::new();
        for key in keys.iter().filter(|key| !known.contains(*key)) {
            let page = self.read_page(&Which::Key(key.clone()), None, by)?;
            fresh.extend(page.records.into_iter().map(|seen| (key.clone(), seen.record)));
        }
        let keys: HashSet<&String> = keys.iter().collect();
        let mut watched = shared.lock();
        match (&mut *watched, eye) {
            (Some(watched), _) => {
                watched.rows.retain(|key, _| keys.contains(key));
                for (key, row) in fresh {
                    watched.rows.entry(key).or_insert(row);
                }
                watched.to = to;
            }
            (None, Some(eye)) => {
                // The last thread ended by itself, so nobody saw what changed since.
                if thread.is_some() {
                    keys.iter().for_each(|key| drop(to.send((*key).clone())));
                }
                let (bell, number) = (eye.notice.bell(), eye.number);
                let run = move || {
                    begin_to_keep_a_lock();
                    eye.run();
                };
                *thread = Some(Thread::spawn("leasehold-file", run)?);
                *watched = Some(Watched { rows: fresh, to, bell, eye: number });
            }
            (None, None) => {
                // If the watching ended because the file is gone, the next call says so.
                let (path, source) = (self.target.path.clone(), io::Error::other("the watching has just ended"));
                return Err(SqliteError::File { path, doing: LOOK, source }.into());
            }
        }
        Ok(true)
    }

    fn eye(&self, by: &Deadline) -> Result<Eye, SqliteError> {
        self.target.check()?;
        let mut conn = conn::open(&self.target.path, self.target.file, Durability::Process, by)?;
        conn.protect(&self.target.path, by)?;
        // Checked again, because only now the connection has opened the file.
        self.target.check()?;
        let version = conn::busy_retried(&self.target.path, by, LOOK, || version(&conn, &self.target.path))?;
        let doing = "watch the file";
        let path = &self.target.path;
        let notice = Notice::new(path).map_err(|source| SqliteError::File { path: path.clone(), doing, source })?;
        let number = self.watch.eyes.fetch_add(1, Ordering::SeqCst);
        let (target, shared) = (self.target.clone(), self.watch.shared.clone());
        Ok(Eye { number, target, conn, version, header: None, notice, shared })
    }
}

impl Eye {
    fn run(mut self) {
        let (mut rest, mut lull) = (Duration::ZERO, PAUSE);
        let mut place_at = Instant::now() + IDLE;
        let mut awaited = Awaited::default();
        // A write may have been noticed before this thread ran, and nobody may have seen its commit yet.
        awaited.write(Instant::now());
        let mut begins = true;
        loop {
            if awaited.written.is_some() || !self.notice.is_watching() {
                self.notice.wait(pause(rest, if awaited.written.is_some() && !begins { PAUSE } else { lull }));
                // A commit makes several writes; the last ones may be noticed after it was seen.
                if self.notice.take_writes() {
                    begins = false;
                    awaited.write(Instant::now());
                }
            } else if self.notice.wait_for_write(IDLE) {
                begins = false;
                awaited.write(Instant::now());
                // The notice may also mean that a file was removed.
                place_at = Instant::now();
                self.notice.wait(COMMIT);
            }
            if self.shared.lock().as_ref().is_none_or(|watched| watched.eye != self.number) {
                return;
            }
            let now = Instant::now();
            let also_place = now >= place_at;
            if also_place {
                place_at = now + IDLE;
            }
            let (looked, earned) = timed(|| {
                let is_there = if also_place { self.target.check() } else { Ok(()) };
                is_there.and_then(|()| self.look())
            });
            rest = earned;
            match looked {
                Err(SqliteError::Engine { source, .. }) if SqliteError::is_busy(&source) => {}
                Err(error) => {
                    // Dropped before the log call, because the logger may hang, and waiters sleep long while they
                    // expect to be woken.
                    drop(self.shared.lock().take_if(|watched| watched.eye == self.number));
                    log::debug!(target: "leasehold::sqlite", "waiters are not woken any more: {}", Error::from(error));
                    return;
                }
                Ok(is_changed) => {
                    lull = if is_changed { PAUSE } else { (lull * 2).min(LULL) };
                    awaited.look(is_changed, Instant::now());
                }
            }
        }
    }

    /// Whether the file has changed since the last look. Reports the keys whose rows did.
    fn look(&mut self) -> Result<bool, SqliteError> {
        let header = self.conn.header();
        if header.is_some() && header == self.header {
            return Ok(false);
        }
        let version = version(&self.conn, &self.target.path)?;
        if version == self.version {
            self.header = header;
            return Ok(false);
        }
        let keys: Vec<String> = match &*self.shared.lock() {
            Some(watched) if watched.eye == self.number => watched.rows.keys().cloned().collect(),
            _ => return Ok(false),
        };
        // Read without the mutex, because the store's end would wait for it.
        let mut read = Vec::with_capacity(keys.len());
        for key in keys {
            let now = match Row::read(&self.conn, &self.target.path, &key) {
                Ok((format, row)) => row.view(format, self.target.here(&self.target.times()?)).record,
                // A waiter for this key finds the damage by itself.
                Err(SqliteError::Damaged { .. }) => LockRecord::missing(&key),
                Err(error) => return Err(error),
            };
            read.push((key, now));
        }
        let mut watched = self.shared.lock();
        let mine = watched.as_mut().filter(|watched| watched.eye == self.number);
        let Some(Watched { rows, to, .. }) = mine else { return Ok(false) };
        for (key, now) in read {
            let Some(seen) = rows.get_mut(&key) else { continue };
            if transition::frees(seen, &now) || has_come_and_gone(seen, &now) {
                // If nobody receives any more, the next call ends the watching.
                let _ = to.send(key);
            }
            *seen = now;
        }
        // Set only now: if the file was busy before, the next look reads the rows again.
        (self.version, self.header) = (version, header);
        Ok(true)
    }
}

/// Looks, and returns how long to rest afterwards: `SHARE` times what the look had of a processor, and at least as long
/// as it took. Waiting for a processor is no reason to be much later, but others had to wait as long for a slow disk,
/// too.
fn timed<T>(look: impl FnOnce() -> T) -> (T, Duration) {
    let (began, before) = (Instant::now(), thread_time());
    let looked = look();
    let ran = thread_time().saturating_sub(before);
    (looked, ran.saturating_mul(SHARE).max(began.elapsed()))
}

/// The time until the next look: `rest`, but at least `least`, and at most [`LONGEST_PAUSE`].
fn pause(rest: Duration, least: Duration) -> Duration {
    rest.clamp(least, LONGEST_PAUSE)
}

/// Whether there may have been a holder between two looks that neither of them saw, but a waiter did. Or a holder may
/// have had a later end in between, as before a release that keeps a minimum hold.
fn has_come_and_gone(before: &LockRecord, now: &LockRecord) -> bool {
    let as_granted = |holder: &Holder| holder.token == now.token && holder.renewed.is_none();
    let newest_stands = now.exclusive.as_ref().is_some_and(as_granted);
    now.token != before.token && !newest_stands
}

impl Watch {
    /// Ends the thread, and waits for it until `by`.
    fn end(&self, by: Instant) {
        if let Some(watched) = self.shared.lock().take() {
            watched.bell.ring();
        }
        let thread = self.thread.try_lock_until(by).and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            thread.join_by(by);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end(drop_by(END));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{End, GrantId, Labels, StoreTime};
    use crate::store::sqlite::tests::{soon, store};

    #[test]
    #[cfg(unix)]
    fn a_share_of_the_time_is_looked_and_no_pause_is_long() {
        let ms = Duration::from_millis;
        let pause = |rest| pause(rest, PAUSE);
        assert_eq!(
            [ms(0), ms(20), ms(600_000), Duration::MAX].map(pause),
            [PAUSE, ms(20), LONGEST_PAUSE, LONGEST_PAUSE]
        );
        let busy = || {
            // A sandbox may refuse the clock.
            let (began, until) = (Instant::now(), thread_time() + ms(2));
            while thread_time() < until && began.elapsed() < ms(10_000) {}
        };
        assert!(timed(busy).1 >= ms(2) * SHARE);
    }

    /// As on a machine whose processors others use.
    #[test]
    #[cfg(unix)]
    fn for_a_look_that_stood_still_it_rests_no_twenty_times_as_long() {
        let stood = || timed(|| std::thread::sleep(Duration::from_millis(100))).1;
        assert!((0..5).any(|_| stood() < LONGEST_PAUSE));
    }

    /// The first of two commits may have been written earlier, and its sync may be over sooner.
    #[test]
    fn a_second_commit_is_awaited_for_as_long_as_syncs_take() {
        let (begun, ms) = (Instant::now(), Duration::from_millis);
        let mut awaited = Awaited::default();
        let mut look = |writes, changed, at| {
            if writes {
                awaited.write(begun + ms(at));
            }
            awaited.look(changed, begun + ms(at));
            awaited.written.is_some()
        };
        assert!(look(true, false, 0) && look(false, false, 999), "no commit was seen");
        assert!(!look(false, false, 1000), "none for a second");
        assert!(look(true, false, 2000) && look(false, true, 2004) && look(false, false, 2019), "a fast disk");
        assert!(!look(false, false, 2020));
        assert!(look(true, false, 3000) && look(false, true, 3100), "a slow one");
        assert!(look(true, false, 3105) && look(false, false, 3304), "another commit beside it");
        assert!(!look(false, false, 3305));
        // Heartbeats are not synced.
        for at in (10_000..63_000).step_by(100) {
            assert!(look(true, false, at) && look(false, true, at + 4));
        }
        assert!(look(true, true, 63_050) && look(false, false, 63_200) && !look(false, false, 63_260));
        assert!(look(true, true, 63_300) && !look(false, false, 63_320), "fast again");
    }

    #[test]
    fn a_holder_that_no_look_saw_is_noticed_by_its_token() {
        let at = |token, holder: Option<u64>| {
            let holder = holder.map(|token| Holder {
                grant: GrantId::from_text("g"),
                lock_id: "l".to_owned(),
                labels: Labels::of("o"),
                token,
                created: StoreTime::from_nanos(0),
                renewed: None,
                until: End::Never,
            });
            LockRecord { token, exclusive: holder, ..LockRecord::missing("k") }
        };
        assert!(!has_come_and_gone(&at(5, None), &at(5, None)), "nobody came");
        assert!(!has_come_and_gone(&at(5, None), &at(6, Some(6))), "it is still there");
        assert!(has_come_and_gone(&at(5, None), &at(6, None)));
        assert!(has_come_and_gone(&at(5, None), &at(7, Some(6))), "a shared one has come and gone");
        let mut kept = at(6, Some(6));
        kept.exclusive.as_mut().unwrap().renewed = Some(StoreTime::from_nanos(1));
        assert!(has_come_and_gone(&at(5, None), &kept), "its end may have moved back");
        assert!(!has_come_and_gone(&at(6, Some(6)), &kept), "a heartbeat");
    }

    #[test]
    fn a_watching_that_ends_while_more_is_asked_for_says_nothing_of_the_file() {
        let (folder, store) = store();
        let wake = |keys: &[&str]| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            store.wake_keys(&keys, crossbeam_channel::unbounded().0, &soon())
        };
        let try_once = || {
            wake(&["k"]).unwrap();
            std::thread::scope(|scope| {
                let reader = store.reader.lock();
                let more = scope.spawn(|| wake(&["k", "l"]));
                while !store.watch.thread.is_locked() && !more.is_finished() {
                    std::thread::yield_now();
                }
                // Ends the watching between the two moments when the call looks at it; or before both, and then the
                // call begins anew.
                if let Some(watched) = store.watch.shared.lock().take() {
                    watched.bell.ring();
                }
                drop(reader);
                more.join().unwrap().err()
            })
        };
        let error = (0..1000).find_map(|_| try_once()).expect("it never ended between the two");
        assert!(error.is_retryable() && !error.to_string().contains("removed"), "{error}");
        drop(store);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_watching_that_ended_by_itself_tells_all_when_it_begins_anew() {
        let (folder, store) = store();
        let wake = |keys: &[String]| {
            let (to, told) = crossbeam_channel::unbounded();
            assert!(store.wake_keys(keys, to, &soon()).unwrap());
            told
        };
        let keys = ["k".to_owned()];
        assert!(wake(&keys).is_empty());
        let ended = store.watch.shared.lock().take().unwrap();
        ended.bell.ring();
        assert_eq!(wake(&keys).try_recv().as_deref(), Ok("k"));
        // An empty set is an end.
        wake(&[]);
        assert!(wake(&keys).is_empty());
        drop(store);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// As when `end` did not wait for it any longer.
    #[test]
    fn an_eye_that_was_left_behind_ends_beside_a_new_one() {
        let (folder, store) = store();
        let old = store.eye(&soon()).unwrap();
        old.notice.bell().ring();
        let (to, _told) = crossbeam_channel::unbounded();
        assert!(store.wake_keys(&["k".to_owned()], to, &soon()).unwrap());
        let thread = Thread::spawn("old-eye", move || old.run()).unwrap();
        let has_ended = thread.wait_until(Instant::now() + Duration::from_secs(20));
        assert!(store.watch.shared.lock().is_some(), "the new one goes on");
        drop(store);
        assert!(has_ended);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
