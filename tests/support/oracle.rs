//! The outside oracle of exclusion: it knows nothing of locks, only of files that the kernel creates
//! exclusively.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

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

    /// Runs `inside` in the section; false when somebody else was in it.
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
        // One write: it is appended as a whole.
        log.write_all(format!("{token}\n").as_bytes()).expect("a line of the oracle's log");
        inside();
        std::fs::remove_file(&self.held).expect("the end of the section");
        true
    }

    /// Whether anybody ever met somebody else inside.
    pub fn saw_overlap(&self) -> bool {
        self.overlap.exists()
    }

    /// The tokens in the order in which the section was entered.
    pub fn tokens(&self) -> Vec<u64> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().map(|line| line.parse().expect("a token")).collect()
    }
}

/// Each is greater than the one before.
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
    /// A write with this token: refused below the highest that was seen.
    pub fn write(&mut self, token: u64) -> bool {
        let accepted = token >= self.0;
        self.0 = self.0.max(token);
        accepted
    }
}

/// The outside oracle of leaders, one per process: they write down when they say that they lead, by a clock that all
/// processes share. Unlike a critical section it bears a leader that is stopped or killed at any point.
#[derive(Debug)]
pub struct Claims(File);

impl Claims {
    pub fn new(folder: &Path) -> Claims {
        let file = folder.join(format!("{}.claims", std::process::id()));
        Claims(OpenOptions::new().append(true).create(true).open(file).expect("a file for claims"))
    }

    /// Asks whether this process leads, and writes down that it said so between these two times.
    pub fn claim(&mut self, token: u64, leads: impl FnOnce() -> bool) -> bool {
        let before = now();
        let leads = leads();
        let after = now();
        if leads {
            // One write: a killed process leaves no half line.
            self.0.write_all(format!("{token} {before} {after}\n").as_bytes()).expect("a line of claims");
        }
        leads
    }
}

/// Nanoseconds since the boot of this host.
fn now() -> u128 {
    let now = nix::time::ClockId::CLOCK_BOOTTIME.now().expect("the clock that counts suspend");
    std::time::Duration::from(now).as_nanos()
}

/// The tokens of all who claimed to lead, in their order. Nobody may claim it who began to ask after a later term
/// had been claimed.
#[track_caller]
pub fn assert_one_leader_at_a_time(folder: &Path) -> Vec<u64> {
    struct Term {
        process: PathBuf,
        last_asked: u128,
        first_claimed: u128,
    }
    let mut terms: BTreeMap<u64, Term> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder of claims") {
        let process = entry.expect("a file").path();
        if process.extension().is_none_or(|end| end != "claims") {
            continue;
        }
        for line in std::fs::read_to_string(&process).expect("claims").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [token, before, after] = words[..] else { panic!("{line}") };
            let (before, after) = (before.parse().expect("a time"), after.parse().expect("a time"));
            let term = terms.entry(token.parse().expect("a token")).or_insert_with(|| Term {
                process: process.clone(),
                last_asked: before,
                first_claimed: after,
            });
            assert_eq!(term.process, process, "two processes have the token {token}");
            term.last_asked = term.last_asked.max(before);
            term.first_claimed = term.first_claimed.min(after);
        }
    }
    let mut last: Option<(&u64, &Term)> = None;
    for (token, term) in &terms {
        if let Some((old, before)) = last {
            let late = before.last_asked.saturating_sub(term.first_claimed);
            assert_eq!(late, 0, "the leader with token {old} said so {late} ns after {token} had led");
        }
        // A leader that was paused may have claimed last of all.
        if last.is_none_or(|(_, before)| before.last_asked < term.last_asked) {
            last = Some((token, term));
        }
    }
    terms.into_keys().collect()
}
