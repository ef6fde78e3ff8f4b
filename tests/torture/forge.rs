//! Writes histories by hand, for the checker to judge.

use std::collections::BTreeMap;

use crate::checker::history::{Asked, End, Fate, Form, Line, Mode, lines};
use crate::checker::{Run, Verdict, check};

pub const MS: u64 = 1_000_000;
pub const LEASE: u64 = 3_000;
pub const TIMEOUT: u64 = 1_500;
pub const GRACE: u64 = 500;
pub const SLACK: u64 = 1_000;

/// A history that is written by hand. All times are milliseconds.
pub struct Forged {
    pub files: BTreeMap<String, Vec<Line>>,
    next_id: u64,
}

/// One hold in a history: its process and its id.
#[derive(Clone, Copy)]
pub struct Held<'a>(pub &'a str, pub u64);

impl Forged {
    pub fn new() -> Forged {
        let millis = |ms| ms * MS;
        let (lease, grace, slack) = (millis(LEASE), millis(GRACE), millis(SLACK));
        let timeout = millis(TIMEOUT);
        let terms = Line::Terms { lease, timeout, grace, slack, settle: slack, fate: Fate::Own };
        Forged { files: BTreeMap::from([("parent".to_owned(), vec![terms])]), next_id: 0 }
    }

    /// From now on the store lets in one request at a time.
    pub fn is_crowded(&mut self) {
        for line in self.files.get_mut("parent").expect("the terms") {
            if let Line::Terms { fate, .. } = line {
                *fate = Fate::Crowded;
            }
        }
    }

    pub fn put(&mut self, process: &str, line: Line) {
        self.files.entry(process.to_owned()).or_default().push(line);
    }

    pub fn told(&mut self, line: Line) {
        self.put("parent", line);
    }

    pub fn ask<'a>(&mut self, process: &'a str, at: u64, asked: Asked) -> Held<'a> {
        self.next_id += 1;
        self.put(process, Line::Ask { at: at * MS, id: self.next_id, asked });
        Held(process, self.next_id)
    }

    /// A hold that is asked for at `at`, and granted and believed 10 ms later, for a lease from then on.
    pub fn grant<'a>(&mut self, process: &'a str, at: u64, token: u64, asked: Asked) -> Held<'a> {
        let held = self.ask(process, at, asked.clone());
        let granted = Line::Granted { at: (at + 10) * MS, id: held.1, token, key: asked.keys[0].clone() };
        self.put(process, granted);
        self.look(held, at + 10, LEASE);
        held
    }

    /// All of these keys, asked for at `at` and granted 10 ms later.
    pub fn grant_all<'a>(&mut self, process: &'a str, at: u64, token: u64, keys: &[&str]) -> Vec<Held<'a>> {
        let of = self.ask(process, at, all(keys)).1;
        let part = |key: &&str| {
            self.next_id += 1;
            let held = Held(process, self.next_id);
            let (at, key) = (at + 10, (*key).to_owned());
            self.put(process, Line::Part { at: at * MS, of, id: held.1, token, key });
            self.look(held, at, LEASE);
            held
        };
        keys.iter().map(part).collect()
    }

    pub fn fail(&mut self, held: Held, at: u64, error: &str) {
        let (error, why) = (error.to_owned(), "as it was said".to_owned());
        self.put(held.0, Line::Failed { at: at * MS, id: held.1, error, why });
    }

    pub fn look(&mut self, held: Held, at: u64, left: u64) {
        self.put(held.0, Line::Look { from: at * MS, to: at * MS, id: held.1, left: left * MS });
    }

    pub fn refuse(&mut self, process: &str, at: u64, until: u64, asked: Asked) {
        let asked = self.ask(process, at, asked);
        self.put(process, Line::Refused { at: until * MS, id: asked.1 });
    }

    pub fn end(&mut self, held: Held, at: u64, how: End, answer: &str) {
        self.put(held.0, Line::Ending { at: at * MS, id: held.1, how });
        self.put(held.0, Line::Ended { at: (at + 10) * MS, id: held.1, answer: answer.to_owned() });
    }

    pub fn release(&mut self, held: Held, at: u64) {
        self.end(held, at, End::Release, "ok");
    }

    pub fn dies(&mut self, process: &str, at: u64) {
        self.told(Line::Dead { at: at * MS, process: process.to_owned() });
    }

    pub fn judged(&self) -> Verdict {
        // Written as text and parsed again, as from files.
        let text = |lines_of: &Vec<Line>| lines_of.iter().map(|line| format!("{line}\n")).collect::<String>();
        let files = self.files.iter().map(|(name, of)| (name.clone(), lines(&text(of)).expect("a history")));
        check(&Run::new(files.collect()).expect("a history"))
    }

    #[track_caller]
    pub fn passes(&self) {
        let verdict = self.judged();
        assert!(verdict.violations.is_empty(), "{:#?}", verdict.violations);
    }

    /// The history is caught by this rule, once, and by no other rule.
    #[track_caller]
    pub fn is_caught(&self, rule: &str) {
        let verdict = self.judged();
        let found: Vec<(&str, usize)> = verdict.counts.iter().map(|(rule, count)| (*rule, *count)).collect();
        assert_eq!(found, [(rule, 1)], "{:#?}", verdict.violations);
    }
}

/// Asks for an exclusive lock, once, without waiting.
pub fn alone() -> Asked {
    let keys = vec!["job".to_owned()];
    Asked { form: Form::Guard, mode: Mode::Exclusive, keys, all: false, limit: 0, wait: Some(0), instead_of: None }
}

pub fn shared(limit: u32) -> Asked {
    Asked { mode: Mode::Shared, limit, ..alone() }
}

pub fn waits(wait: Option<u64>) -> Asked {
    Asked { wait: wait.map(|wait| wait * MS), ..alone() }
}

pub fn instead_of(token: u64) -> Asked {
    Asked { instead_of: Some(token), ..alone() }
}

pub fn all(keys: &[&str]) -> Asked {
    Asked { keys: keys.iter().map(|key| (*key).to_owned()).collect(), all: true, ..alone() }
}
