//! The outside oracle of exclusion: it knows nothing of locks, only of files that the kernel creates
//! exclusively.

use std::fs::OpenOptions;
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
