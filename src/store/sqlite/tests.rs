//! What only the inside shows: how safely a call writes.

use super::*;
use crate::lease::{Ask, Labels, Lease, Mode};
use crate::store::{Consistency, GrantForm, Purpose};

/// What `PRAGMA synchronous` answers.
const NORMAL: i64 = 1;
/// See [`NORMAL`].
const FULL: i64 = 2;

pub(super) fn store() -> (PathBuf, Sqlite) {
    let folder = std::env::temp_dir().join(format!("leasehold-unit-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&folder).unwrap();
    let options = SqliteOptions::new(folder.join("locks.db"));
    (folder, Sqlite::open(options, Clock::system(), &soon()).unwrap())
}

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn attempt() -> Attempt {
    let labels = Labels { owner: "o".to_owned(), host: None, comment: None };
    let ask = Ask {
        grant: GrantForm::Uuid.fresh(),
        mode: Mode::Exclusive,
        lock_id: "l".to_owned(),
        labels,
        lease: Duration::from_secs(20),
        max_holders: None,
        replace_same_owner: false,
        instead_of: None,
    };
    Attempt::new("k", ask)
}

#[test]
fn what_issues_a_token_is_synced_fully_and_the_rest_is_not() {
    let (folder, store) = store();
    // What the last commit was made with.
    let level = || -> i64 { store.writer.lock().query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap() };
    let (mut held, renewal) = (attempt(), Renewal::heartbeat(Lease::Forever));
    for _ in 0..2 {
        assert!(matches!(store.acquire(&mut held, &soon()), Ok(Acquired::Granted { .. })));
        assert_eq!(level(), FULL);
        for (token, synced) in [(0, NORMAL), (1, FULL)] {
            let page = store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &soon()).unwrap();
            let seen = &page.records[0];
            let mut raised = seen.record.clone();
            raised.version += 1;
            raised.token += token;
            assert!(matches!(store.swap(seen, Some(&raised), &soon()), Ok(Swapped::Done)));
            assert_eq!(level(), synced);
        }
        assert!(matches!(store.renew(&mut held, renewal, &soon()), Ok(Renewed::Until { .. })));
        assert_eq!(level(), NORMAL);
        assert!(matches!(store.acquire(&mut attempt(), &soon()), Ok(Acquired::Refused(_))));
        assert_eq!(level(), FULL);
        assert!(matches!(store.release(&mut held, Purpose::Release, &soon()), Ok(Released::Done)));
        assert_eq!(level(), NORMAL);
    }
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
