//! What the histories of all processes tell together.

use std::collections::HashMap;

use super::history::{Asked, End, Fate, Form, Line, Mode};
use super::points::Point;
use super::reader::Reader;
use super::windows::Windows;

/// Whose file tells of all processes.
const PARENT: &str = "parent";

/// One grant, as far as its holder knew of it.
#[derive(Clone, Debug)]
pub struct Hold {
    pub process: usize,
    /// The id of the call that gave it, and its own, by which it is ended.
    pub calls: [u64; 2],
    pub key: usize,
    pub form: Form,
    pub mode: Mode,
    pub limit: u32,
    /// One of several that were wanted together.
    pub is_part: bool,
    pub token: u64,
    /// Asked for.
    pub call: u64,
    /// Known of.
    pub ret: u64,
    /// When its holder surely counted itself as such.
    pub beliefs: Vec<(u64, u64)>,
    /// It said that it is not held any more.
    pub gone: Option<u64>,
    /// It said that it is held, after it had said that it is not.
    pub revived: Option<u64>,
    pub lost: Option<(u64, String)>,
    pub ending: Option<(u64, End)>,
    pub ended: Option<(u64, String)>,
    /// Each call to end it, and when it was answered.
    pub end_calls: Vec<(u64, End, Option<u64>)>,
    /// What it said last: for how long its grant surely stands, whatever its holder does.
    pub granted_until: u64,
    /// Another was to take its place by its token: from when on, and when it surely had it or gave up.
    pub replaced: Option<(u64, u64)>,
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
    /// The hold whose place it was to take.
    pub old: Option<usize>,
}

/// A write to the resource.
#[derive(Clone, Debug)]
pub struct Write {
    pub hold: usize,
    pub from: u64,
    pub to: u64,
    pub accepted: bool,
}

/// What the resource saw.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: u64,
    pub key: String,
    pub token: u64,
    /// Refused, for this one was seen before.
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
    /// Stops and lateness alone.
    pub held_up: Windows,
    /// Stops, lateness, and faults of the network and the server, with the time that it takes to be well again.
    pub troubles: Windows,
    /// The same, and stops of one of its threads: when what it sends may be under way for longer than it waits.
    delays: Windows,
    /// It held or asked for something.
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
    /// Of one request to the store; also of a whole call that does not wait.
    pub timeout: u64,
    /// The store's own, after the end of a lease.
    pub grace: u64,
    /// What the machine may add to anything.
    pub slack: u64,
    /// What a client may need to be well again after a fault of the network.
    pub settle: u64,
    pub fate: Fate,
}

/// All of it.
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
    /// When the workers had ended, and after a purge behind all their leases.
    pub kept: Vec<Row>,
    pub left: Vec<Row>,
    pub over: u64,
    /// Faults of the server or of the disk.
    pub servers: Vec<(u64, u64, String)>,
    /// When the row of which key was deleted.
    pub deleted: Vec<(u64, u64, String)>,
    pub deletions: Vec<Vec<(u64, u64)>>,
    pub copies: Vec<Copy>,
    /// When each key may be held by nobody, of whose request a copy was granted.
    pub copied: Vec<Windows>,
    /// Times when the machine was late, and for a shared fate those when anybody was stopped.
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

    /// What can only be said when all is read.
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
            // Who deletes a row has the file for as long.
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
            let was_done = !matches!(&ask.outcome, Outcome::Failed(error) if error == "lost");
            if let Some(old) = ask.old.filter(|_| was_done) {
                let until = ask.ret.or(self.processes[ask.process].dead).unwrap_or(self.end);
                let (from, to) = self.holds[old].replaced.unwrap_or((ask.call, until));
                self.holds[old].replaced = Some((from.min(ask.call), to.max(until)));
            }
        }
        for hold in &mut self.holds {
            if let Some((at, _)) = hold.ending {
                hold.beliefs.retain(|(start, _)| *start < at);
                hold.beliefs.iter_mut().for_each(|(_, end)| *end = (*end).min(at));
            }
        }
    }

    /// A copy of what was refused may find the key free, and has it for a lease: who asked has gone. What was granted is
    /// known again, and what does not ask for a hold gives none.
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

    /// Whether it did not get to run, or the machine did not: no fault of the network or the server does that.
    pub fn is_held_up(&self, process: usize, from: u64, to: u64) -> bool {
        self.processes[process].held_up.meets(from, to) || self.troubles.meets(from, to)
    }

    /// The same, or one of its threads was stopped.
    pub fn is_delayed(&self, process: usize, from: u64, to: u64) -> bool {
        self.processes[process].delays.meets(from, to) || self.troubles.meets(from, to)
    }

    /// Whether a fault of the server met a request: one failed or was late, of a process that had no fault of its own.
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

    /// Until when a grant can stand that was last renewed by `last`: a request may be on its way for as long as a fault
    /// lasts.
    pub fn lease_after(&self, process: usize, last: u64) -> u64 {
        let trouble = self.processes[process].delays.met(last.saturating_sub(self.terms.lease), last);
        trouble.unwrap_or(0).max(last) + self.terms.lease + self.terms.grace + self.terms.slack
    }

    /// Until when others may be refused because of this hold.
    pub fn stands_until(&self, hold: &Hold) -> u64 {
        let ended = hold.ended.as_ref().map(|(at, answer)| (*at, answer == "ok"));
        let dead = self.processes[hold.process].dead;
        // A release is not waited for on a disk: a server that dies right behind it may have it back.
        let stays = |at| !self.servers.iter().any(|(from, to, _)| *from <= at + self.terms.slack && *to >= at);
        match (hold.ending, ended) {
            (Some((_, End::Release)), Some((at, true))) if stays(at) => at,
            _ if hold.form == Form::Name => u64::MAX,
            (Some((begun, End::Drop)), Some((at, true))) if stays(at) && !self.is_delayed(hold.process, begun, at) => {
                at
            }
            (Some((begun, End::Leave)), _) => self.lease_after(hold.process, begun),
            (Some(_), Some((at, _))) => self.lease_after(hold.process, at),
            (ending, _) => {
                let lost = hold.lost.as_ref().map(|(at, _)| *at).filter(|_| ending.is_none());
                lost.or(dead).map_or(u64::MAX, |at| self.lease_after(hold.process, at))
            }
        }
    }

    /// From when on a request can hold a key of which nobody knows whether it was granted: without a fault each time
    /// that it asked was answered, but for the last.
    pub fn unanswered_from(&self, ask: &Ask) -> u64 {
        if ask.asked.all {
            // It has those that come first while it asks for the others.
            return ask.call;
        }
        let end = ask.ret.or(self.processes[ask.process].dead).unwrap_or(self.end);
        if self.is_delayed(ask.process, ask.call, end) {
            ask.call
        } else {
            ask.call.max(end.saturating_sub(self.terms.slack))
        }
    }

    /// From when to when a request that did not get what it wanted may have held one of its keys.
    pub fn may_have_held(&self, ask: &Ask) -> Option<(u64, u64)> {
        if ask.is_unanswered() {
            return Some((self.unanswered_from(ask), self.unanswered_until(ask)));
        }
        // One whose request was not answered may have it until that is given up, also where the next answer, or the end of its
        // wait, was a refusal.
        if let Some(from) = self.unanswered_request(ask) {
            return Some((from, self.unanswered_until(ask)));
        }
        // Who wants all gives back those that it had when it does not get another: at once, or behind a wait's end.
        let given_back = || {
            let ret = ask.ret.unwrap_or(self.end);
            match (self.is_delayed(ask.process, ask.call, ret), ask.asked.wait) {
                (true, _) => self.unanswered_until(ask),
                (false, Some(0)) => ret,
                (false, _) => ret + self.terms.slack,
            }
        };
        (ask.asked.all && ask.outcome != Outcome::Granted).then(|| (ask.call, given_back()))
    }

    /// When the first request for one of its keys was sent that failed within the call of who was refused, or was answered
    /// right before its thread was stopped: then it may have been granted too late, and given up.
    fn unanswered_request(&self, ask: &Ask) -> Option<u64> {
        let ret = ask.ret.filter(|_| ask.outcome == Outcome::Refused && !ask.asked.all)?;
        let in_time =
            self.processes[ask.process].requests.iter().filter(|(from, to, _)| *from >= ask.call && *to <= ret);
        let is_of = |why: &str| {
            why.starts_with("acquire ") && ask.keys.iter().any(|key| why.contains(&format!("\"{}\"", self.keys[*key])))
        };
        let failed = in_time.filter(|(_, _, why)| is_of(why)).map(|(from, _, _)| *from);
        let points = self.processes[ask.process].points.iter().filter(|point| point.calls.contains(&ask.id));
        let stopped = points.map(|point| point.from.saturating_sub(self.terms.slack).max(ask.call));
        failed.chain(stopped).min()
    }

    /// Until when a request can hold a key of which nobody knows whether it was granted.
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
    /// Nobody knows whether it was granted.
    pub fn is_unanswered(&self) -> bool {
        match &self.outcome {
            Outcome::Open => true,
            Outcome::Failed(error) => error != "lost" && error != "invalid_input",
            _ => false,
        }
    }
}
