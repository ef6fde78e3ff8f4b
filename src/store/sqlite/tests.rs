//! Tests of what only the inside of the store shows, such as how durably a call writes.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_channel::TryRecvError;

use super::error::SqliteError;
use super::row::Row;
use super::transact::Who;
use super::*;
use crate::lease::transition::{Least, keep_standing};
use crate::lease::{Ask, Labels, Lease, Mode};
use crate::model::error::{Error, ErrorKind};
use crate::store::transactional::Durability;
use crate::store::{Consistency, GrantForm, Purpose};

/// What `PRAGMA synchronous` answers.
const NORMAL: i64 = 1;
/// See [`NORMAL`].
const FULL: i64 = 2;

pub(super) fn store() -> (PathBuf, Sqlite) {
    let folder = std::env::temp_dir().join(format!("leasehold-unit-{}", crate::sys::random::uuid()));
    std::fs::create_dir(&folder).unwrap();
    let options = SqliteOptions::new(folder.join("locks.db"));
    (folder, Sqlite::open(options, Clock::system(), &soon()).unwrap())
}

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn attempt() -> Attempt {
    let ask = Ask::exclusive(GrantForm::Uuid.fresh(), "l".to_owned(), Labels::of("o"), Duration::from_secs(20));
    Attempt::new("k", ask)
}

/// On a disk whose commits take longer than a slice of a wait.
#[test]
fn who_holds_a_lock_has_the_connection_before_the_threads_that_want_one() {
    const BEATS: u32 = 60;
    let (folder, store) = store();
    let [turns, late] = [AtomicU32::new(0), AtomicU32::new(0)];
    // Dropped with the scope below, however it ends.
    let (goes_on, is_over) = crossbeam_channel::bounded::<()>(0);
    let turn = |who, work: &dyn Fn()| {
        let work = |_: &conn::Tx<'_>| {
            work();
            Ok(())
        };
        store.write(who, Durability::Process, &Deadline::after(Duration::from_secs(60)), work).unwrap();
    };
    std::thread::scope(|scope| {
        let _goes_on = goes_on;
        for _ in 0..16 {
            scope.spawn(|| {
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    turn(Who::Wants, &|| {
                        turns.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(conn::SLICE * 2);
                    });
                }
            });
        }
        for _ in 0..BEATS {
            let (before, by) = (turns.load(Ordering::SeqCst), soon());
            while turns.load(Ordering::SeqCst) == before {
                assert!(!by.is_over(), "no turn in 20 s");
            }
            let at = turns.load(Ordering::SeqCst);
            turn(Who::Holds, &|| {
                late.fetch_add(turns.load(Ordering::SeqCst) - at, Ordering::SeqCst);
            });
        }
    });
    // Other threads may have waited already when the heartbeat came, for less than a slice.
    let late = late.into_inner();
    assert!(late <= 2 * BEATS, "{late} turns of others while one of {BEATS} heartbeats waited");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_outlasts_its_process_is_synced_fully_and_the_rest_is_not() {
    let (folder, store) = store();
    // The settings with which the last commit was made.
    let setting =
        |name: &str| -> i64 { store.writer.lock().query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap() };
    let level = || setting("synchronous");
    assert_eq!(["fullfsync", "checkpoint_fullfsync"].map(setting), [1, 1], "macOS keeps it in the cache of the disk");
    let mut held = attempt();
    let minute = Duration::from_secs(60);
    for again in 0..2 {
        assert!(matches!(store.acquire(&mut held, &soon()), Ok(Acquired::Granted { .. })));
        assert_eq!(level(), FULL);
        for token in [0, 1] {
            let page = store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon()).unwrap();
            let seen = &page.records[0];
            let mut raised = seen.record.clone();
            raised.version += 1;
            raised.token += token;
            assert!(matches!(store.swap(seen, Some(&raised), &soon()), Ok(Swapped::Done)));
            assert_eq!(level(), FULL);
        }
        for (lease, synced) in [
            (Lease::For(minute), NORMAL),
            // A minimum hold, a lease of hours: others rely on it when the process is long gone.
            (Lease::For(minute + minute), FULL),
            (Lease::Forever, FULL),
            // If a power cut undid this renewal, the lock would never end.
            (Lease::For(minute), FULL),
            (Lease::For(minute), NORMAL),
            (Lease::Forever, FULL),
        ] {
            // This renewal may end a lock without end, and mostly finds one that has an end.
            let renewal = Renewal { lease, may_end_endless: true };
            assert!(matches!(store.renew(&mut held, renewal, &soon()), Ok(Renewed::Until { .. })));
            assert_eq!(level(), synced, "{lease:?}");
        }
        assert!(matches!(store.acquire(&mut attempt(), &soon()), Ok(Acquired::Refused(_))));
        assert_eq!(level(), FULL);
        let synced = if again == 0 { FULL } else { NORMAL };
        if synced == NORMAL {
            let renewal = Renewal { lease: Lease::For(minute), may_end_endless: true };
            assert!(matches!(store.renew(&mut held, renewal, &soon()), Ok(Renewed::Until { .. })));
        }
        // The lock data that is released may not know the lease that the lock has now.
        held.ask.lease = Duration::from_secs(20);
        assert!(matches!(store.release(&mut held, Purpose::Release, &soon()), Ok(Released::Done)));
        assert_eq!(level(), synced, "where a power cut takes it back nobody knows of the lock any more");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn who_made_the_table_says_so_also_after_a_call_that_ran_out_of_time() {
    let (folder, store) = store();
    let create = |by: Duration| store.schema(Schema::Create, &Deadline::after(by));
    assert!(create(Duration::from_secs(20)).unwrap().contains("was made"), "by connecting");
    store.writer.lock().execute_batch("DROP TABLE locks").unwrap();
    // The call creates the table, but can't read it before its time is over.
    let reader = store.reader.lock();
    assert!(create(Duration::from_secs(1)).is_err());
    drop(reader);
    assert!(super::schema::check_table(&store.reader.lock(), &store.target.path).unwrap(), "it was not made");
    assert!(store.schema(Schema::Check, &soon()).unwrap().contains("is there"), "a check makes nothing");
    assert!(create(Duration::from_secs(20)).unwrap().contains("was made"));
    assert!(create(Duration::from_secs(20)).unwrap().contains("is there"));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Here nobody writes, so the error must not name a writer.
#[test]
fn a_call_that_waits_for_another_one_of_its_client_tells_of_no_writer() {
    let (folder, store) = store();
    let reader = store.reader.lock();
    let by = Deadline::after(Duration::from_millis(50));
    let error = store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &by).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{error}");
    assert!(!error.to_string().contains("writing"), "{error}");
    drop(reader);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_error_tells_its_cause_once_and_no_grant_id() {
    let (folder, store) = store();
    let mut held = attempt();
    store.acquire(&mut held, &soon()).unwrap();
    store.writer.lock().execute_batch("DROP TABLE locks").unwrap();
    let error = store.renew(&mut held, Renewal::heartbeat(Lease::Forever), &soon()).unwrap_err();
    let cause = std::error::Error::source(&error).expect("no cause").to_string();
    assert!(cause.contains("no such table"), "{cause}");
    assert!(!error.to_string().contains(&cause));
    assert!(!format!("{error:?}{error}").contains(held.grant().as_str()));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_page_does_not_read_the_rows_before_it() {
    let (folder, store) = store();
    for n in 0..200 {
        let mut attempt = Attempt { key: format!("k{n:03}"), ..attempt() };
        assert!(matches!(store.acquire(&mut attempt, &soon()), Ok(Acquired::Granted { .. })));
    }
    let reader = store.reader.lock();
    let steps = |from: Option<&str>| {
        let (sql, bounds) = read::range("k", from);
        let mut statement = reader.prepare(&sql).unwrap();
        let mut rows = statement.query(rusqlite::params_from_iter(&bounds)).unwrap();
        let mut found = 0;
        while rows.next().unwrap().is_some() {
            found += 1;
        }
        drop(rows);
        (found, statement.get_status(rusqlite::StatementStatus::VmStep))
    };
    let (all, whole) = steps(None);
    let (after_the_last, nothing) = steps(Some("k199"));
    assert_eq!((all, after_the_last), (200, 0));
    assert!(nothing < whole / 10, "{nothing} steps for no row, {whole} for all");
    drop(reader);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Damaged rows of others are skipped, so that they do not stop a group from being renewed or unlocked.
#[test]
fn a_damaged_row_of_the_very_group_is_told() {
    let (folder, store) = store();
    assert!(matches!(store.acquire(&mut attempt(), &soon()), Ok(Acquired::Granted { .. })));
    store.writer.lock().execute_batch("UPDATE locks SET token = -1").unwrap();
    let read = |id: &str| store.read(&Which::LockId(id.to_owned()), None, Consistency::Strong, &soon());
    let error = read("l").expect_err("its token can't be");
    assert_eq!((error.kind(), error.key()), (ErrorKind::Schema, Some("k")), "{error}");
    assert!(read("other").unwrap().records.is_empty());
    store.writer.lock().execute_batch("DELETE FROM locks").unwrap();
    let shared = |attempt: Attempt| Attempt { ask: Ask { mode: Mode::Shared, ..attempt.ask.clone() }, ..attempt };
    assert!(matches!(store.acquire(&mut shared(attempt()), &soon()), Ok(Acquired::Granted { .. })));
    store.writer.lock().execute_batch("UPDATE locks SET token = -1").unwrap();
    assert_eq!(read("l").expect_err("its token can't be").kind(), ErrorKind::Schema);
    for other in ["other", "lock_id", &attempt().ask.labels.owner] {
        assert!(read(other).unwrap().records.is_empty(), "{other:?} is no lock id of it");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Two clocks that overwrote each other's sightings would both wait for ever for the holder of a third.
#[test]
fn a_clock_that_notes_what_it_saw_keeps_what_another_noted_since() {
    let (folder, holder) = store();
    let of = |clock: &str| {
        let file = folder.join("locks.db");
        let options = SqliteOptions { clock_identity: Some(clock.to_owned()), ..SqliteOptions::new(file) };
        Sqlite::open(options, Clock::system(), &soon()).unwrap()
    };
    let (b, c) = (of("b:0.0"), of("c:0.0"));
    assert!(matches!(holder.acquire(&mut attempt(), &soon()), Ok(Acquired::Granted { .. })));
    let noted = || -> String {
        let sql = "SELECT coalesce(sightings, '') FROM locks";
        holder.writer.lock().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    let (_, row) = Row::read(&c.reader.lock(), &c.target.path, "k").unwrap();
    assert!(matches!(b.acquire(&mut attempt(), &soon()), Ok(Acquired::Refused(_))));
    assert!(noted().contains("b:0.0"), "{}", noted());
    let times = c.target.times().unwrap();
    c.sight([&row].into_iter(), c.target.here(&times)).unwrap();
    assert!(noted().contains("b:0.0") && noted().contains("c:0.0"), "{}", noted());
    drop((holder, b, c));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_page_begins_behind_the_last_key_and_not_before_the_prefix() {
    for (from, above, lowest) in [(None, ">= ?1", "b"), (Some("a"), ">= ?1", "b"), (Some("b"), "> ?1", "b")] {
        let (sql, bounds) = read::range("b", from);
        assert!(sql.contains(above), "{sql}");
        assert_eq!(bounds, [lowest.as_bytes(), b"c"]);
    }
    assert_eq!(read::range("b", Some("bc")).1, [&b"bc"[..], b"c"]);
}

#[test]
fn each_failure_says_of_which_kind_it_is_and_what_to_do() {
    use rusqlite::ffi;
    use std::io::ErrorKind as Io;
    let path = || PathBuf::from("/some.db");
    let engine = |code| {
        let source = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        SqliteError::Engine { path: path(), doing: "read", source }
    };
    let file = |kind: Io| SqliteError::File { path: path(), doing: "open it", source: kind.into() };
    let denied = |kind: Io| SqliteError::Denied { path: path(), doing: "open it", source: kind.into() };
    let not_ours = "not as leasehold made it";
    let all = [
        // SQLITE_READONLY_DBMOVED
        (engine(1032), ErrorKind::Store, false, "was removed or replaced"),
        // SQLITE_IOERR_SHORT_READ
        (engine(522), ErrorKind::Store, false, "its log (-wal) is shorter than the index of the log (-shm) says"),
        (engine(ffi::SQLITE_READONLY), ErrorKind::Permission, false, "read-only for this user"),
        (engine(ffi::SQLITE_PERM), ErrorKind::Permission, false, "read-only for this user"),
        (engine(ffi::SQLITE_NOTADB), ErrorKind::Schema, false, "not an SQLite database"),
        (engine(ffi::SQLITE_CORRUPT), ErrorKind::Schema, false, "is damaged"),
        (engine(ffi::SQLITE_CONSTRAINT), ErrorKind::Schema, false, not_ours),
        (engine(ffi::SQLITE_ERROR), ErrorKind::Schema, false, not_ours),
        (engine(ffi::SQLITE_FULL), ErrorKind::Store, true, "the disk is full"),
        (engine(ffi::SQLITE_IOERR), ErrorKind::Store, true, "the disk failed or is full, or a file must not grow"),
        (engine(ffi::SQLITE_CANTOPEN), ErrorKind::Store, true, "a file could not be opened"),
        (engine(ffi::SQLITE_BUSY), ErrorKind::Store, true, "another process is writing"),
        (engine(ffi::SQLITE_LOCKED), ErrorKind::Store, true, "another process is writing"),
        (engine(ffi::SQLITE_PROTOCOL), ErrorKind::Store, true, "another process is writing"),
        (engine(ffi::SQLITE_NOMEM), ErrorKind::Store, true, "SQLite failed"),
        (file(Io::PermissionDenied), ErrorKind::Permission, false, "no permission"),
        (file(Io::ReadOnlyFilesystem), ErrorKind::Permission, false, "the file system is read-only"),
        (file(Io::NotFound), ErrorKind::Config, false, "there is no such path"),
        (file(Io::InvalidInput), ErrorKind::Config, false, "a path has no NUL"),
        (file(Io::StorageFull), ErrorKind::Store, true, "the disk is full"),
        (file(Io::Interrupted), ErrorKind::Store, true, "the system refused"),
        (denied(Io::PermissionDenied), ErrorKind::Permission, false, "no permission to open it"),
        (denied(Io::ReadOnlyFilesystem), ErrorKind::Permission, false, "is read-only, so nobody can open it"),
    ];
    for (error, kind, retryable, advice) in all {
        let error = Error::from(error);
        let text = error.to_string();
        assert!(text.contains(advice), "{text:?} does not say {advice:?}");
        assert_eq!((error.kind(), error.is_retryable()), (kind, retryable), "{text}");
        assert!(std::error::Error::source(&error).is_some(), "the cause of {text:?} is left out");
    }
}

/// As any release is: calls that want a lock let it go first.
#[test]
#[cfg(all(target_os = "linux", any(target_pointer_width = "64", target_env = "musl")))]
fn a_release_that_leaves_the_place_of_its_grant_is_in_a_hurry() {
    let (folder, store) = store();
    let path = folder.join("locks.db");
    let mut held = attempt();
    assert!(matches!(store.acquire(&mut held, &soon()), Ok(Acquired::Granted { .. })));
    let which = Which::Key("k".to_owned());
    let seen = store.read(&which, None, Consistency::Strong, &soon()).unwrap().records.pop().unwrap();
    let (granted, minute) = (seen.record.exclusive.as_ref().unwrap().created, Duration::from_secs(60));
    let least = Least { granted, time: minute, left: minute };
    let kept_as = GrantForm::Uuid.fresh();
    let kept = keep_standing(&seen.record, &held.ask.grant, &kept_as, least, &seen.times).record.unwrap();
    let file = file::FileId::of(&std::fs::metadata(&path).unwrap());
    let mut opened = register::Opened::new(&path, file, &soon()).unwrap();
    opened.protect(&path, &soon()).unwrap();
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let (store, kept) = (&store, &kept);
        let swap = scope.spawn(move || store.swap(&seen, Some(kept), &soon()));
        while !opened.is_in_a_hurry() && !swap.is_finished() {
            std::thread::yield_now();
        }
        writer.execute_batch("COMMIT").unwrap();
        let swapped = swap.join().unwrap();
        assert!(matches!(swapped, Ok(Swapped::Done)), "it was in no hurry: {swapped:?}");
    });
    drop((opened, writer, store));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_library_that_is_too_old_is_refused() {
    use super::open::check_version;
    assert!(check_version(3_037_000, "3.37.0").is_ok());
    let error = check_version(3_036_000, "3.36.0").expect_err("it lacks what is used");
    assert_eq!(error.kind(), crate::ErrorKind::Config);
    assert!(error.to_string().contains("3.36.0") && error.to_string().contains("PKG_CONFIG"), "{error}");
}

#[test]
fn a_library_that_may_lose_commits_is_known_by_its_number() {
    use super::open::may_lose_commits;
    for has_it in [3_037_000, 3_040_001, 3_044_005, 3_045_000, 3_050_006, 3_051_000, 3_051_002] {
        assert!(may_lose_commits(has_it), "{has_it}");
    }
    for is_mended in [3_044_006, 3_044_009, 3_050_007, 3_051_003, 3_052_000, 4_000_000, rusqlite::version_number()] {
        assert!(!may_lose_commits(is_mended), "{is_mended}");
    }
}
