//! Histories of a lock that was never there: clean ones of any size, for the checker's own tests.

use super::history::{Asked, End, Fate, Form, Line, Mode};

/// A millisecond.
const MS: u64 = 1_000_000;

/// Writes what happens to one key, one event after the other.
#[derive(Debug)]
pub struct Key {
    pub name: String,
    pub now: u64,
    pub token: u64,
    next_id: u64,
}

impl Key {
    pub fn new(name: &str, first_id: u64) -> Key {
        Key { name: name.to_owned(), now: 1_000 * MS, token: 1_000_000, next_id: first_id }
    }

    pub fn tick(&mut self) -> u64 {
        self.now += MS;
        self.now
    }

    /// Asks, and returns the id of the call.
    pub fn ask(&mut self, to: &mut Vec<Line>, mode: Mode, limit: u32, wait: Option<u64>) -> u64 {
        self.next_id += 1;
        let asked =
            Asked { form: Form::Guard, mode, keys: vec![self.name.clone()], all: false, limit, wait, instead_of: None };
        to.push(Line::Ask { at: self.tick(), id: self.next_id, asked });
        self.next_id
    }

    /// Grants what was asked for, with the next token, and looks at it.
    pub fn grant(&mut self, to: &mut Vec<Line>, id: u64, left: u64) {
        self.token += 1;
        to.push(Line::Granted { at: self.tick(), id, token: self.token, key: self.name.clone() });
        let from = self.tick();
        to.push(Line::Look { from, to: from + 1_000, id, left });
    }

    pub fn release(&mut self, to: &mut Vec<Line>, id: u64) {
        to.push(Line::Ending { at: self.tick(), id, how: End::Release });
        to.push(Line::Ended { at: self.tick(), id, answer: "ok".to_owned() });
    }
}

/// A clean history of at least `operations` over `keys` keys and four workers: grants alone and together, refusals,
/// writes to the resource.
pub fn clean(operations: usize, keys: usize) -> Vec<(String, Vec<Line>)> {
    let mut workers = vec![Vec::new(); 4];
    let (mut resource, mut done) = (Vec::new(), 0);
    let mut all: Vec<Key> = (0..keys).map(|n| Key::new(&format!("k{n}"), n as u64 * 1_000_000_000)).collect();
    let lease = 3_000 * MS;
    while done < operations {
        for (at, key) in all.iter_mut().enumerate() {
            let (one, other) = ((done + at) % 4, (done + at + 1) % 4);
            let held = key.ask(&mut workers[one], Mode::Exclusive, 0, None);
            key.grant(&mut workers[one], held, lease);
            let refused = key.ask(&mut workers[other], Mode::Exclusive, 0, Some(0));
            workers[other].push(Line::Refused { at: key.tick(), id: refused });
            let (from, token) = (key.tick(), key.token);
            resource.push(Line::Accepted { at: from, key: key.name.clone(), token });
            workers[one].push(Line::Write { from, to: key.tick(), id: held, token, accepted: true });
            key.release(&mut workers[one], held);
            let readers = [one, other].map(|reader| {
                let id = key.ask(&mut workers[reader], Mode::Shared, 2, None);
                key.grant(&mut workers[reader], id, lease);
                (reader, id)
            });
            readers.into_iter().for_each(|(reader, id)| key.release(&mut workers[reader], id));
            // Each call counts: those that ask, those that write, those that release.
            done += 8;
        }
    }
    let slack = 1_000 * MS;
    let terms = Line::Terms { lease, timeout: slack, grace: 0, slack, settle: slack, fate: Fate::Own };
    let mut files: Vec<(String, Vec<Line>)> = vec![("parent".to_owned(), vec![terms])];
    files.extend(workers.into_iter().enumerate().map(|(n, lines)| (format!("w{n}"), lines)));
    files.push(("resource".to_owned(), resource));
    files
}
