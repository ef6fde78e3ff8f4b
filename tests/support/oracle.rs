//! An independent check of exclusion: it knows nothing of locks, only of files that the kernel creates
//! exclusively.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use leasehold::Mode;

/// One critical section, named like its key.
#[derive(Clone, Debug)]
pub struct Oracle {
    held: PathBuf,
    overlap: PathBuf,
    log: PathBuf,
}

impl Oracle {
    pub fn new(folder: &Path, key: &str) -> Oracle {
        let file = |end: &str| folder.join(format!("{key}.{end}"));
        Oracle { held: file("held"), overlap: file("overlap"), log: file("log") }
    }

    /// Runs `inside` in the section; returns false if somebody else was in it.
    pub fn section(&self, token: u64, inside: impl FnOnce()) -> bool {
        match OpenOptions::new().write(true).create_new(true).open(&self.held) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                std::fs::write(&self.overlap, "").expect("a note of the overlap");
                return false;
            }
            Err(error) => panic!("the oracle's file: {error}"),
        }
        let mut log = OpenOptions::new().append(true).create(true).open(&self.log).expect("the oracle's log");
        // A single write, so that the line is appended as a whole.
        log.write_all(format!("{token}\n").as_bytes()).expect("a line of the oracle's log");
        inside();
        std::fs::remove_file(&self.held).expect("the end of the section");
        true
    }

    /// Whether anybody was ever in the section at the same time as somebody else.
    pub fn saw_overlap(&self) -> bool {
        self.overlap.exists()
    }

    /// The tokens in the order in which the section was entered.
    pub fn tokens(&self) -> Vec<u64> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().map(|line| line.parse().expect("a token")).collect()
    }
}

/// Asserts that each token is greater than the one before.
#[track_caller]
pub fn assert_rising(tokens: &[u64]) {
    if let Some(at) = tokens.windows(2).position(|pair| pair[0] >= pair[1]) {
        panic!("token {} is followed by {}", tokens[at], tokens[at + 1]);
    }
}

/// A resource that checks fencing tokens, as the docs tell users to.
#[derive(Debug, Default)]
pub struct Resource(u64);

impl Resource {
    /// A write with this token: refused if the resource has seen a higher one.
    pub fn write(&mut self, token: u64) -> bool {
        let accepted = token >= self.0;
        self.0 = self.0.max(token);
        accepted
    }
}

/// An independent record of holders, one per process: each writes down when it believes that it holds a lock, by a
/// clock that all processes share. Unlike a critical section it tolerates a holder that is stopped or killed at any
/// point.
#[derive(Debug)]
pub struct Claims(File);

impl Claims {
    pub fn new(folder: &Path) -> Claims {
        let file = folder.join(format!("{}.claims", std::process::id()));
        Claims(OpenOptions::new().append(true).create(true).open(file).expect("a file for claims"))
    }

    /// Asks whether this process holds the lock; if so, writes down that it said so between these two times.
    pub fn claim(&mut self, mode: Mode, token: u64, holds: impl FnOnce() -> bool) -> bool {
        let before = now();
        let holds = holds();
        let after = now();
        if holds {
            // A single write. At the end of a page readers may see it in two parts, and a process killed there leaves
            // it cut.
            self.0.write_all(format!("{mode} {token} {before} {after}\n").as_bytes()).expect("a line of claims");
        }
        holds
    }
}

/// Nanoseconds since the boot of this host.
pub fn now() -> u128 {
    let now = nix::time::ClockId::CLOCK_BOOTTIME.now().expect("the clock that counts suspend");
    std::time::Duration::from(now).as_nanos()
}

/// What one holder claimed.
#[derive(Clone, Debug)]
pub struct Term {
    pub mode: Mode,
    process: PathBuf,
    pub first_claimed: u128,
    /// When it began to ask for the last time whether it holds the lock.
    pub last_asked: u128,
}

/// What was claimed so far, by token.
#[track_caller]
pub fn terms(folder: &Path) -> BTreeMap<u64, Term> {
    let mut terms: BTreeMap<u64, Term> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder of claims") {
        let process = entry.expect("a file").path();
        if process.extension().is_none_or(|end| end != "claims") {
            continue;
        }
        let claims = std::fs::read_to_string(&process).expect("claims");
        for line in claims.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [mode, token, before, after] = words[..] else { panic!("{line}") };
            let mode = [Mode::Exclusive, Mode::Shared].into_iter().find(|one| one.to_string() == mode).expect("a mode");
            let (before, after) = (before.parse().expect("a time"), after.parse().expect("a time"));
            let term = terms.entry(token.parse().expect("a token")).or_insert_with(|| Term {
                mode,
                process: process.clone(),
                last_asked: before,
                first_claimed: after,
            });
            assert_eq!(term.process, process, "two processes have the token {token}");
            term.last_asked = term.last_asked.max(before);
            term.first_claimed = term.first_claimed.min(after);
        }
    }
    terms
}

/// Asserts that no holder still claimed the lock by a question that it began after a later grant had been claimed,
/// unless both are shared. Returns all terms, by token.
#[track_caller]
pub fn assert_one_writer_or_readers(folder: &Path) -> BTreeMap<u64, Term> {
    let terms = terms(folder);
    // A holder that was paused may have claimed last of all. So these are the latest claims among the earlier tokens:
    // of an exclusive holder, and of any holder.
    let mut last_exclusive: Option<(&u64, &Term)> = None;
    let mut last = last_exclusive;
    for (token, term) in &terms {
        let beside = if term.mode == Mode::Shared { last_exclusive } else { last };
        if let Some((old, before)) = beside {
            let late = before.last_asked.saturating_sub(term.first_claimed);
            assert_eq!(late, 0, "the holder with token {old} said so {late} ns after {token} held it");
        }
        let is_later = |last: Option<(&u64, &Term)>| last.is_none_or(|(_, last)| last.last_asked < term.last_asked);
        if is_later(last) {
            last = Some((token, term));
        }
        if term.mode == Mode::Exclusive && is_later(last_exclusive) {
            last_exclusive = Some((token, term));
        }
    }
    terms
}
