//! What the histories of all processes show together.

use std::collections::HashMap;

use super::history::{Asked, End, Fate, Form, Line, Mode};
use super::points::Point;
use super::reader::Reader;
use super::windows::Windows;

/// The name of the file with the lines about all processes.
const PARENT: &str = "parent";

/// One grant, as far as its holder knew of it.
#[derive(Clone, Debug)]
pub struct Hold {
    pub process: usize,
    /// The id of the call that gave it, and its own id, by which it is ended.
    pub calls: [u64; 2],
    pub key: usize,
    pub form: Form,
    pub mode: Mode,
    pub limit: u32,
    /// One of several that were wanted together.
    pub is_part: bool,
    pub token: u64,
    /// When it was asked for.
    pub call: u64,
    /// When its holder knew of it.
    pub ret: u64,
    /// When its holder surely counted itself as holding.
    pub beliefs: Vec<(u64, u64)>,
    /// When it reported first that it is not held any more.
    pub gone: Option<u64>,
    /// When it reported that it is held, after it had reported that it is not.
    pub revived: Option<u64>,
    pub lost: Option<(u64, String)>,
    pub ending: Option<(u64, End)>,
    pub ended: Option<(u64, String)>,
    /// Each call to end it, and when it was answered.
    pub end_calls: Vec<(u64, End, Option<u64>)>,
    /// By what it reported: until when its grant surely lasts, whatever its holder does.
    pub granted_until: u64,
    /// Another call wanted to take its place by its token: from when on, and by when that call surely had it or gave
    /// up.
    pub replaced: Option<(u64, u64)>,
    /// When the first call that took its place was answered.
    pub heir: Option<u64>,
}

/// How a request for a hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Granted,
    Refused,
    /// With the kind of its error.
    Failed(String),
    /// The process ended before it was answered.
    Open,
}

/// A request for a hold.
#[derive(Clone, Debug)]
pub struct Ask {
    pub process: usize,
    pub id: u64,
    pub asked: Asked,
    pub keys: Vec<usize>,
    pub call: u64,
    pub ret: Option<u64>,
    pub outcome: Outcome,
    /// Why it failed, for people.
    pub why: String,
    /// The hold whose place it wanted to take.
    pub old: Option<usize>,
    /// A key that it got.
    pub got: Option<usize>,
}

/// A write to the resource.
#[derive(Clone, Debug)]
pub struct Write {
    pub hold: usize,
    pub from: u64,
    pub to: u64,
    pub token: u64,
    pub accepted: bool,
}

/// What the resource saw.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: u64,
    pub key: String,
    pub token: u64,
    /// The write was refused, because this token was seen before.
    pub highest: Option<u64>,
}

/// What happened to a process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub name: String,
    pub dead: Option<u64>,
    pub stops: Vec<(u64, u64)>,
    pub points: Vec<Point>,
    /// Its own threads were late.
    pub late: Vec<(u64, u64)>,
    pub nets: Vec<(u64, u64, String)>,
    /// How much its wall clock was off, each time that it was set.
    pub walls: Vec<(u64, i64)>,
    /// By how much the dates of its answers were off.
    pub dates: Vec<(u64, i64)>,
    /// By how much it saw its wall clock jump.
    pub jumps: Vec<(u64, i64)>,
    /// Stops and lateness only.
    pub held_up: Windows,
    /// Stops, lateness, and faults of the network and the server, with the time that it takes to recover.
    pub troubles: Windows,
    /// The same, and stops of one of its threads: then a request may be under way for longer than the process waits for
    /// it.
    pub(super) delays: Windows,
    /// When it held or asked for something.
    pub busy: Windows,
    /// Its requests to the store that failed or were answered late.
    pub requests: Vec<(u64, u64, String)>,
}

/// A write that came to the server twice.
#[derive(Clone, Debug)]
pub struct Copy {
    pub process: usize,
    pub key: String,
    pub asked: u64,
    pub from: u64,
    pub to: u64,
    pub known_again: bool,
    pub answered: bool,
}

/// What a process still had when its client was closed.
#[derive(Clone, Debug)]
pub struct Closed {
    pub process: usize,
    pub at: u64,
    pub threads: u64,
    pub descriptors: u64,
}

/// How many holders the row of a key has when all is over.
#[derive(Clone, Debug)]
pub struct Row {
    pub at: u64,
    pub key: String,
    pub holders: u64,
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    pub lease: u64,
    /// The timeout of one request to the store, and of a whole call that does not wait.
    pub timeout: u64,
    /// The store's grace after the end of a lease.
    pub grace: u64,
    /// By how much the machine may delay anything.
    pub slack: u64,
    /// How long a client may need to recover after a fault of the network.
    pub settle: u64,
    pub fate: Fate,
}

/// All that the histories show.
#[derive(Debug, Default)]
pub struct Run {
    pub terms: Terms,
    pub keys: Vec<String>,
    pub processes: Vec<Process>,
    pub asks: Vec<Ask>,
    pub holds: Vec<Hold>,
    pub writes: Vec<Write>,
    pub seen: Vec<Seen>,
    /// A forked child, with the answer to whether it holds the lock of its parent.
    pub forks: Vec<(u64, usize, bool)>,
    /// Forked children that gave no answer in this time.
    pub hung: Vec<(u64, u64, usize)>,
    pub crashed: Vec<(u64, usize)>,
    pub closed: Vec<Closed>,
    /// The rows when the workers had ended, and (`left`) after a purge when all their leases were over.
    pub kept: Vec<Row>,
    pub left: Vec<Row>,
    pub over: u64,
    /// Faults of the server or of the disk.
    pub servers: Vec<(u64, u64, String)>,
    /// When a row was deleted, and of which key.
    pub deleted: Vec<(u64, u64, String)>,
    pub deletions: Vec<Vec<(u64, u64)>>,
    pub copies: Vec<Copy>,
    /// For each key: when it may be held although nobody knows of it, because a copy of a request was granted.
    pub copied: Vec<Windows>,
    /// Times when the machine was late. If one process can hold up the others, also the times when any process was
    /// stopped.
    pub troubles: Windows,
    /// The latest time in any line.
    pub end: u64,
}

/// The number of each name.
#[derive(Default)]
pub(super) struct Names(HashMap<String, usize>);

impl Names {
    pub(super) fn of(&mut self, name: &str, new: impl FnOnce()) -> usize {
        if let Some(at) = self.0.get(name) {
            return *at;
        }
        new();
        self.0.insert(name.to_owned(), self.0.len());
        self.0.len() - 1
    }
}

impl Run {
    /// From the events of each file, by the name of its process.
    pub fn new(files: Vec<(String, Vec<Line>)>) -> Result<Run, String> {
        let (mut run, mut keys, mut processes) = (Run::default(), Names::default(), Names::default());
        let mut late = Vec::new();
        for (name, lines) in files {
            let process = run.process(&mut processes, &name);
            let mut reader = Reader::new(process);
            for line in lines {
                match line {
                    Line::Terms { lease, timeout, grace, slack, settle, fate } => {
                        run.terms = Terms { lease, timeout, grace, slack, settle, fate };
                    }
                    Line::Stopped { from, to, process } => {
                        let process = run.process(&mut processes, &process);
                        run.processes[process].stops.push((from, to));
                    }
                    Line::Dead { at, process } => {
                        let process = run.process(&mut processes, &process);
                        run.processes[process].dead = Some(at);
                    }
                    Line::Net { from, to, process, kind } => {
                        let process = run.process(&mut processes, &process);
                        run.processes[process].nets.push((from, to, kind));
                    }
                    Line::Twice { asked, from, to, process, key, known_again, answered } => {
                        let process = run.process(&mut processes, &process);
                        run.copies.push(Copy { process, key, asked, from, to, known_again, answered });
                    }
                    Line::Date { at, process, seconds } => {
                        let process = run.process(&mut processes, &process);
                        run.processes[process].dates.push((at, seconds));
                    }
                    Line::Server { from, to, kind } => run.servers.push((from, to, kind)),
                    Line::Deleted { from, to, key } => run.deleted.push((from, to, key)),
                    Line::Late { from, to } if name == PARENT => late.push((from, to)),
                    Line::Late { from, to } => run.processes[process].late.push((from, to)),
                    Line::Wall { at, process, seconds } => {
                        let process = run.process(&mut processes, &process);
                        run.processes[process].walls.push((at, seconds));
                    }
                    Line::Kept { at, key, holders } => run.kept.push(Row { at, key, holders }),
                    Line::Left { at, key, holders } => run.left.push(Row { at, key, holders }),
                    Line::Over { at } => run.over = at,
                    Line::Accepted { at, key, token } => run.seen.push(Seen { at, key, token, highest: None }),
                    Line::Outdated { at, key, token, highest } => {
                        run.seen.push(Seen { at, key, token, highest: Some(highest) });
                    }
                    line => reader.read(&mut run, &mut keys, line).map_err(|why| format!("{name}: {why}"))?,
                }
            }
        }
        if run.over == 0 {
            run.over = run.end;
        }
        run.relate(late);
        Ok(run)
    }

    fn process(&mut self, names: &mut Names, name: &str) -> usize {
        names.of(name, || self.processes.push(Process { name: name.to_owned(), ..Process::default() }))
    }

    /// Works out what can only be known when everything was read.
    fn relate(&mut self, late: Vec<(u64, u64)>) {
        let terms = self.terms;
        let mut troubles: Vec<(u64, u64)> = late.iter().map(|(from, to)| (*from, to + terms.slack)).collect();
        for process in &mut self.processes {
            let stops = process.stops.iter().map(|(from, to)| (*from, to + terms.slack));
            let nets = process.nets.iter().chain(&self.servers).map(|(from, to, _)| (*from, to + terms.settle));
            if terms.fate != Fate::Own {
                troubles.extend(stops.clone());
            }
            let own = stops.chain(process.late.iter().map(|(from, to)| (*from, to + terms.slack)));
            process.held_up = Windows::new(own.clone().collect());
            let troubles = own.chain(nets);
            process.troubles = Windows::new(troubles.clone().collect());
            let points = process.points.iter().map(|point| (point.from, point.to + terms.slack));
            process.delays = Windows::new(troubles.chain(points).collect());
        }
        if terms.fate != Fate::Own {
            // A command that deletes a row has the store locked for that time.
            troubles.extend(self.deleted.iter().map(|(from, to, _)| (*from, to + terms.slack)));
        }
        self.troubles = Windows::new(troubles);
        let mut busy = vec![Vec::new(); self.processes.len()];
        for ask in &self.asks {
            busy[ask.process].push((ask.call, ask.ret.unwrap_or(self.end)));
        }
        self.copied = self.granted_to_nobody();
        self.find_keys_of_points();
        self.deletions = self.keys.iter().map(|key| self.deletions_of(key)).collect();
        let mut by_token = HashMap::new();
        for (at, hold) in self.holds.iter().enumerate() {
            by_token.insert((hold.key, hold.token), at);
            busy[hold.process].push((hold.ret, hold.ended.as_ref().map_or(self.end, |(at, _)| *at)));
        }
        for (process, busy) in self.processes.iter_mut().zip(busy) {
            process.busy = Windows::new(busy);
        }
        for ask in &mut self.asks {
            ask.old = ask.asked.instead_of.and_then(|token| by_token.get(&(ask.keys[0], token)).copied());
            if let Some(old) = ask.old.filter(|_| ask.outcome == Outcome::Granted || ask.is_unanswered()) {
                let until = ask.ret.or(self.processes[ask.process].dead).unwrap_or(self.end);
                let (from, to) = self.holds[old].replaced.unwrap_or((ask.call, until));
                self.holds[old].replaced = Some((from.min(ask.call), to.max(until)));
                if ask.outcome == Outcome::Granted {
                    let heir = self.holds[old].heir.unwrap_or(u64::MAX);
                    self.holds[old].heir = Some(until.min(heir));
                }
            }
        }
        for hold in &mut self.holds {
            // A lock that is handed over stays held until an heir has it, or its lease ends.
            let is_left = matches!(hold.ending, Some((_, End::Leave)));
            if let Some((at, _)) = hold.ending.filter(|_| !is_left) {
                hold.beliefs.retain(|(start, _)| *start < at);
                hold.beliefs.iter_mut().for_each(|(_, end)| *end = (*end).min(at));
            }
        }
    }

    /// A copy of a request that was refused may find the key free, and then holds it for a lease, because nobody waits
    /// for it any more. A copy of a request that was granted is recognized, and a request that does not ask for a hold
    /// gives none.
    fn granted_to_nobody(&self) -> Vec<Windows> {
        let mut asks: HashMap<(usize, &str), Vec<&Ask>> = HashMap::new();
        for (ask, key) in self.asks.iter().flat_map(|ask| ask.keys.iter().map(move |key| (ask, *key))) {
            asks.entry((ask.process, &self.keys[key])).or_default().push(ask);
        }
        let mut spans: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for copy in &self.copies {
            let was_refused = |ask: &&Ask| {
                let is_one = ask.outcome == Outcome::Granted && ask.keys.len() == 1;
                !is_one && ask.call <= copy.asked && ask.ret.unwrap_or(u64::MAX) >= copy.asked
            };
            let asks = asks.get(&(copy.process, copy.key.as_str()));
            if !copy.known_again || asks.is_some_and(|asks| asks.iter().any(was_refused)) {
                let until = copy.to + self.terms.lease + self.terms.grace + self.terms.slack;
                spans.entry(&copy.key).or_default().push((copy.from, until));
            }
        }
        self.keys.iter().map(|key| Windows::new(spans.remove(key.as_str()).unwrap_or_default())).collect()
    }

    /// Whether anything happened that can slow down a process, from `from` to `to`.
    pub fn is_troubled(&self, process: usize, from: u64, to: u64) -> bool {
        self.processes[process].troubles.meets(from, to) || self.troubles.meets(from, to)
    }

    /// Whether the process, or the machine, did not get to run: no fault of the network or the server does that.
    pub fn is_held_up(&self, process: usize, from: u64, to: u64) -> bool {
        self.processes[process].held_up.meets(from, to) || self.troubles.meets(from, to)
    }

    /// The same, or one of its threads was stopped.
    pub fn is_delayed(&self, process: usize, from: u64, to: u64) -> bool {
        self.processes[process].delays.meets(from, to) || self.troubles.meets(from, to)
    }

    /// Whether a fault of the server met a request: one that failed or was late, of a process that had no fault of its
    /// own.
    pub fn was_felt(&self, from: u64, to: u64) -> bool {
        let until = to + self.terms.slack;
        let meets = |(begun, ended): (u64, u64)| begun <= until && ended >= from;
        self.processes.iter().any(|process| {
            let own = process.stops.iter().map(|(from, to)| (*from, to + self.terms.slack));
            let own = own.chain(process.points.iter().map(|point| (point.from, point.to + self.terms.slack)));
            let mut own = own.chain(process.nets.iter().map(|(from, to, _)| (*from, to + self.terms.slack)));
            process.requests.iter().any(|(from, to, _)| meets((*from, *to))) && !own.any(meets)
        })
    }

    /// Until when a grant can last whose last renewal was sent by `last`: a request may be on its way for as long as a
    /// fault lasts.
    pub fn lease_after(&self, process: usize, last: u64) -> u64 {
        let trouble = self.processes[process].delays.met(last.saturating_sub(self.terms.lease), last);
        trouble.unwrap_or(0).max(last) + self.terms.lease + self.terms.grace + self.terms.slack
    }

    /// When it surely was released.
    pub fn released(&self, hold: &Hold) -> Option<u64> {
        let (begun, how) = hold.ending?;
        let at = hold.ended.as_ref().filter(|(_, answer)| answer == "ok")?.0;
        let is_sure = match how {
            End::Release => true,
            End::Drop => hold.form != Form::Name && !self.is_delayed(hold.process, begun, at),
            End::Leave => false,
        };
        // A server may confirm a release before it is on disk: if it dies right after that, it may have the hold back.
        let stays = || !self.servers.iter().any(|(from, to, _)| *from <= at + self.terms.slack && *to >= at);
        (is_sure && stays()).then_some(at)
    }

    /// Until when others may be refused because of this hold.
    pub fn stands_until(&self, hold: &Hold) -> u64 {
        if let Some(at) = self.released(hold) {
            return at;
        }
        if hold.form == Form::Name {
            return u64::MAX;
        }
        let ended = hold.ended.as_ref().map(|(at, _)| *at);
        let dead = self.processes[hold.process].dead;
        let until = match (hold.ending, ended) {
            (Some((begun, End::Leave)), _) => self.lease_after(hold.process, begun),
            (Some(_), Some(at)) => self.lease_after(hold.process, at),
            (ending, _) => {
                let lost = hold.lost.as_ref().map(|(at, _)| *at).filter(|_| ending.is_none());
                lost.or(dead).map_or(u64::MAX, |at| self.lease_after(hold.process, at))
            }
        };
        // From then on its heir stands in its place.
        hold.heir.map_or(until, |heir| heir.min(until))
    }

    /// Until when a call can hold a key if nobody knows whether it was granted.
    pub fn unanswered_until(&self, ask: &Ask) -> u64 {
        let given_up = |at| {
            let trouble = self.processes[ask.process].delays.met(ask.call, at).unwrap_or(at);
            trouble.max(at) + self.terms.settle + self.terms.slack
        };
        match (ask.ret, self.processes[ask.process].dead) {
            (None, None) => u64::MAX,
            (None, Some(dead)) => self.lease_after(ask.process, dead),
            (Some(ret), dead) => match dead.filter(|dead| *dead < given_up(ret)) {
                Some(dead) => self.lease_after(ask.process, dead),
                None => given_up(ret),
            },
        }
    }
}

impl Ask {
    /// Whether it is unknown if it was granted.
    pub fn is_unanswered(&self) -> bool {
        match &self.outcome {
            Outcome::Open => true,
            Outcome::Failed(error) => error != "lost" && error != "invalid_input",
            _ => false,
        }
    }
}
