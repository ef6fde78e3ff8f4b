//! What is left behind: by a client that was closed, and in the store when all is over.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold::{Error, Filter, LockClient};

use crate::checker::history::Line;
use crate::clock::now;
use crate::options::Options;
use crate::proxy::Told;
use crate::run::PROBE;
use crate::worker::chain;

/// What ends by itself within this time and two leases does not count as left behind.
const SOON: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(20);
/// Between two looks at the store.
const PAUSE: Duration = Duration::from_millis(300);
/// The worker's own descriptor, in addition to those that it had before: its history.
const OWN: usize = 1;
/// A pair of descriptors for signals: tokio, which runs the clients of servers, makes it once for a process and never
/// closes it.
const OF_TOKIO: usize = 2;

/// How many descriptors this process has open, without the two that it keeps of a SQLite file that others use: closing
/// those would end locks that SQLite may have on it.
pub fn descriptors(options: &Options) -> usize {
    let list = fs::read_dir("/proc/self/fd").expect("the descriptors of this process").flatten();
    let open: Vec<_> = list.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    let of_file = options.sqlite_file().and_then(|file| fs::canonicalize(file).ok()).map_or(0, |file| {
        let index = PathBuf::from(format!("{}-shm", file.display()));
        open.iter().filter(|path| **path == file || **path == index).count()
    });
    open.len() - of_file.min(2)
}

/// How many threads of the library this process has.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads of this process").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("leasehold-")).count()
}

/// What a closed client has left behind, if `before` descriptors were open before it connected.
pub fn by_client(before: usize, options: &Options) -> Line {
    let until = Instant::now() + options.lease * 2 + SOON;
    let fine = before + OWN + if options.kind().is_local() { 0 } else { OF_TOKIO };
    // The kernel's lists may miss some entries while another one ends, so the lists must be clean twice.
    let mut clean = 0;
    loop {
        let (threads, descriptors) = (threads(), descriptors(options).saturating_sub(fine));
        clean = if threads + descriptors == 0 { clean + 1 } else { 0 };
        if clean == 2 || Instant::now() >= until {
            return Line::Closed { at: now(), threads: threads as u64, descriptors: descriptors as u64 };
        }
        std::thread::sleep(TICK);
    }
}

/// Writes down how many holders are in the rows of this run, and which of them are still there after `longest`,
/// although what has expired is purged.
pub fn look_at_rows(client: &LockClient, options: &Options, told: &Told, longest: Duration) -> Result<(), String> {
    let until = Instant::now() + longest;
    let rows = |by: &dyn Fn() -> Result<(), Error>| {
        loop {
            match by().and_then(|()| holders(client, options)) {
                Ok(rows) => return Ok(rows),
                // A server may need a while after the last fault.
                Err(error) if Instant::now() > until => return Err(chain(&error)),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    };
    let at = now();
    for (key, holders) in rows(&|| Ok(()))? {
        told(Line::Kept { at, key, holders });
    }
    loop {
        let at = now();
        let left = rows(&|| client.purge(Duration::ZERO).map(drop))?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            left.into_iter().for_each(|(key, holders)| told(Line::Left { at, key, holders }));
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// How many holders each key of the workers has; without the keys that have none.
fn holders(client: &LockClient, options: &Options) -> Result<BTreeMap<String, u64>, Error> {
    let mut rows = BTreeMap::new();
    // The probe's keys have a lease of their own, and are not in the histories.
    let probe = options.key(PROBE);
    for status in client.list(&Filter::new().key_prefix(options.key("")))? {
        if !status.key().starts_with(&probe) {
            *rows.entry(status.key().to_owned()).or_default() += 1;
        }
    }
    Ok(rows)
}
