//! Three clients, four keys, a network, and the invariants that must hold at any time.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::internals::lease::{
    AcquireAnswer, Ask, End, GrantId, Labels, Lease, LockRecord, Mode, RenewAnswer, Times, transition,
};
use proptest::sample::Index;

use crate::support::asks::{at, grant};
use crate::support::steps::{Answer, Request, apply, check_written};

/// The clients' estimates of the store's time differ by at most this.
const GRACE: i64 = 4;
/// The limit of shared holders in every request for the key of this index.
const LIMITS: [Option<u32>; 4] = [None, Some(1), Some(2), Some(3)];
/// The first two clients have the same owner.
const OWNERS: [&str; 3] = ["one", "one", "two"];

#[derive(Clone, Debug)]
pub enum Op {
    Acquire { client: usize, key: usize, mode: Mode, lease: u64, group: bool, replace: bool, from: From },
    Renew { attempt: Index, lease: Lease, may_end_endless: bool },
    Release(Index),
    GiveUp(Index),
    Deliver { newest: bool, request: Index, again: bool, answered: bool },
    Tick(i64),
    SkewStoreClock { client: usize, offset: i64 },
    SetWallClock(i64),
    Purge { key: usize, older_than: i64 },
    DeleteRow(usize),
}

/// The grant that an acquisition is a transfer of.
#[derive(Clone, Debug)]
pub enum From {
    Nobody,
    /// Any earlier attempt, with its token if it is known.
    Attempt(Index),
    /// The current holder of the key.
    Standing(Index),
}

struct Attempt {
    client: usize,
    key: usize,
    ask: Ask,
    sent: i64,
    /// The true time until which the client holds the lock, as far as it knows.
    held_until: Option<i64>,
    /// The client released it or gave it up, or knows that it is lost: it does not hold it again.
    over: bool,
    /// A renewal once asked to end an endless lease; a late copy of that request can shorten it again.
    shortened: bool,
    token: u64,
}

struct Message {
    attempt: usize,
    request: Request,
    sent: i64,
}

struct Key {
    record: LockRecord,
    /// The highest token ever granted, over all rows that this key has had.
    highest: u64,
    /// Every attempt that was given up at the store.
    given_up: BTreeSet<GrantId>,
    /// The least stamp since a row was deleted: above all earlier tokens, because time has moved on.
    least_stamp: u64,
}

pub struct World {
    pub grace: i64,
    clock: i64,
    skew: [i64; 3],
    wall: i64,
    keys: Vec<Key>,
    attempts: Vec<Attempt>,
    network: Vec<Message>,
}

impl World {
    pub fn new() -> Self {
        let key = |i| Key {
            record: LockRecord::missing(format!("k{i}")),
            highest: 0,
            given_up: BTreeSet::new(),
            least_stamp: 0,
        };
        let keys = (0..LIMITS.len()).map(key).collect();
        World { grace: GRACE, clock: 0, skew: [0; 3], wall: 0, keys, attempts: Vec::new(), network: Vec::new() }
    }

    pub fn run(&mut self, op: &Op) {
        match op {
            Op::Acquire { .. } => self.send_acquire(op),
            Op::Renew { attempt, lease, may_end_endless } => {
                if let Some(i) = self.pick(attempt) {
                    let attempt = &mut self.attempts[i];
                    attempt.shortened |= *may_end_endless;
                    // A client that asks for an end does not count on a later one, whether it gets an answer or not.
                    if let (Lease::For(lease), true) = (lease, *may_end_endless) {
                        let end = self.clock + i64::try_from(lease.as_millis()).unwrap();
                        attempt.held_until = attempt.held_until.map(|held| held.min(end));
                    }
                    let grant = attempt.ask.grant.clone();
                    self.send(i, Request::Renew { grant, lease: *lease, may_end_endless: *may_end_endless });
                }
            }
            Op::Release(attempt) => self.send_end(attempt, Request::Release),
            Op::GiveUp(attempt) => self.send_end(attempt, Request::GiveUp),
            Op::Deliver { newest, request, again, answered } => self.deliver(*newest, request, *again, *answered),
            Op::Tick(by) => self.clock += by,
            Op::SkewStoreClock { client, offset } => self.skew[*client] = *offset,
            Op::SetWallClock(to) => self.wall = *to,
            Op::Purge { key, older_than } => self.purge(*key, *older_than),
            Op::DeleteRow(key) => self.delete(*key),
        }
        self.check();
    }

    fn pick(&self, index: &Index) -> Option<usize> {
        (!self.attempts.is_empty()).then(|| index.index(self.attempts.len()))
    }

    fn times(&self, client: usize, key: usize) -> Times {
        let now = self.clock + self.skew[client];
        let stamp = u64::try_from(self.clock + self.wall).unwrap_or(0);
        let stamp = stamp.max(self.keys[key].least_stamp);
        Times { expired_before: at(now - self.grace), ..Times::without_grace(at(now), stamp) }
    }

    fn send(&mut self, attempt: usize, request: Request) {
        self.network.push(Message { attempt, request, sent: self.clock });
    }

    fn send_acquire(&mut self, op: &Op) {
        let Op::Acquire { client, key, mode, lease, group, replace, from } = op else { return };
        let record = &self.keys[*key].record;
        let instead_of = match from {
            From::Nobody => None,
            From::Attempt(index) => {
                self.pick(index).map(|i| (self.attempts[i].ask.grant.clone(), self.attempts[i].token))
            }
            From::Standing(index) => {
                let standing: Vec<_> = record.holders().map(|(_, h)| (h.grant.clone(), h.token)).collect();
                (!standing.is_empty()).then(|| index.get(&standing).clone())
            }
        };
        let name = format!("{}", self.attempts.len());
        let grant = grant(&name);
        let lock_id = if *group { format!("group of {client}") } else { name };
        let ask = Ask {
            mode: *mode,
            max_holders: LIMITS[*key],
            replace_same_owner: *replace,
            instead_of,
            ..Ask::exclusive(grant, lock_id, Labels::of(OWNERS[*client]), Duration::from_millis(*lease))
        };
        self.attempts.push(Attempt {
            client: *client,
            key: *key,
            ask: ask.clone(),
            sent: self.clock,
            held_until: None,
            over: false,
            shortened: false,
            token: 0,
        });
        self.send(self.attempts.len() - 1, Request::Acquire(ask));
    }

    /// Sends a release or a give-up. The client stops holding before it sends.
    fn send_end(&mut self, index: &Index, how: fn(GrantId) -> Request) {
        let Some(i) = self.pick(index) else { return };
        let attempt = &mut self.attempts[i];
        attempt.held_until = None;
        attempt.over = true;
        let request = how(attempt.ask.grant.clone());
        self.send(i, request);
    }

    fn deliver(&mut self, newest: bool, index: &Index, again: bool, answered: bool) {
        if self.network.is_empty() {
            return;
        }
        let at = if newest { self.network.len() - 1 } else { index.index(self.network.len()) };
        let (i, sent, request) = {
            let message = &self.network[at];
            (message.attempt, message.sent, message.request.clone())
        };
        if !again {
            self.network.remove(at);
        }
        let (client, key) = (self.attempts[i].client, self.attempts[i].key);
        let times = self.times(client, key);
        let state = &mut self.keys[key];
        let (answer, written) = apply(&state.record, &request, &times);
        if let Answer::Acquired(AcquireAnswer::Granted { holder, repeated: false }) = &answer {
            assert!(holder.token > state.highest, "tokens rise over everything that happened to the key");
            state.highest = holder.token;
        }
        if let Request::GiveUp(grant) = &request {
            state.given_up.insert(grant.clone());
        }
        if let Some(record) = written {
            let before = std::mem::replace(&mut state.record, record);
            self.tell_replaced(key, &before, &request, &times);
        }
        if answered {
            self.hear(i, sent, &request, &answer);
        }
    }

    /// A takeover that was asked for: the old holder need not have expired.
    fn tell_replaced(&mut self, key: usize, before: &LockRecord, request: &Request, times: &Times) {
        let Request::Acquire(ask) = request else { return };
        let after = &self.keys[key].record;
        let gone = before.live(times.expired_before).filter(|(_, h)| after.standing(&h.grant).is_none());
        let gone: Vec<GrantId> = gone.map(|(_, h)| h.grant.clone()).collect();
        let ordered = |h: &GrantId| ask.replace_same_owner || ask.instead_of.as_ref().is_some_and(|(old, _)| old == h);
        let from = ask.instead_of.iter().map(|(old, _)| old.clone());
        for old in gone.into_iter().filter(ordered).chain(from) {
            for attempt in self.attempts.iter_mut().filter(|a| a.ask.grant == old) {
                attempt.held_until = None;
                attempt.over = true;
            }
        }
    }

    /// The client counts its lease from before it sent the request.
    fn hear(&mut self, i: usize, sent: i64, request: &Request, answer: &Answer) {
        let attempt = &mut self.attempts[i];
        let until = |lease: &Lease| match lease {
            Lease::For(d) => sent + i64::try_from(d.as_millis()).unwrap(),
            Lease::Forever => i64::MAX,
        };
        match (answer, request) {
            (Answer::Acquired(AcquireAnswer::Granted { holder, .. }), _) => {
                attempt.token = holder.token;
                if !attempt.over && attempt.held_until.is_none() {
                    attempt.held_until = Some(attempt.sent + i64::try_from(attempt.ask.lease.as_millis()).unwrap());
                }
            }
            (Answer::Renewed(RenewAnswer::Until(end)), Request::Renew { lease, .. }) if !attempt.over => {
                if let Some(held) = &mut attempt.held_until {
                    let endless = *end == End::Never;
                    *held = (*held).max(if endless { i64::MAX } else { until(lease) });
                }
            }
            (Answer::Renewed(RenewAnswer::Lost), _) => {
                attempt.held_until = None;
                attempt.over = true;
            }
            _ => {}
        }
        if attempt.shortened {
            attempt.held_until = None;
        }
    }

    fn purge(&mut self, key: usize, older_than: i64) {
        let times = self.times(0, key);
        let before = &self.keys[key].record;
        let ended_before = times.expired_before.minus(Duration::from_millis(older_than as u64));
        // A row counts as idle if its last grant is twenty steps of the clock old.
        let step = transition::purge(before, ended_before, times.stamp.saturating_sub(20));
        for (_, freed) in &step.answer.freed {
            assert!(!freed.until.is_after(ended_before), "a purge frees nobody who may hold");
        }
        let Some(after) = step.record else { return };
        check_written(before, &after);
        assert_eq!(after.token, before.token);
        if step.answer.delete {
            assert!(after.holders().next().is_none(), "a row with holders stays");
            assert!(after.gave_up_at < times.stamp.saturating_sub(20), "somebody gave up lately");
            self.replace_by_missing(key);
            // No copy of a request is on its way for that long.
            let gone = std::mem::take(&mut self.keys[key].given_up);
            self.network.retain(|message| match &message.request {
                Request::Acquire(ask) => !gone.contains(&ask.grant),
                _ => true,
            });
        } else {
            self.keys[key].record = after;
        }
    }

    fn replace_by_missing(&mut self, key: usize) {
        let key = &mut self.keys[key];
        key.record = LockRecord::missing(key.record.key.clone());
        key.least_stamp = key.highest + 1;
    }

    /// Somebody deletes the row although it has holders: after that only the tokens are promised.
    fn delete(&mut self, key: usize) {
        self.replace_by_missing(key);
        self.keys[key].given_up.clear();
        for attempt in self.attempts.iter_mut().filter(|a| a.key == key) {
            attempt.held_until = None;
            attempt.over = true;
        }
    }

    fn check(&mut self) {
        // A guard past its local deadline is lost and stays lost.
        for attempt in &mut self.attempts {
            if attempt.held_until.is_some_and(|until| until <= self.clock) {
                attempt.held_until = None;
                attempt.over = true;
            }
        }
        for (i, key) in self.keys.iter().enumerate() {
            let record = &key.record;
            assert!(record.given_up.is_superset(&key.given_up), "the store forgot who gave up");
            assert!(record.holders().all(|(_, h)| !key.given_up.contains(&h.grant)), "a given-up attempt stands");
            let holds = |a: &&Attempt| a.key == i && a.held_until.is_some();
            let holding: Vec<&Attempt> = self.attempts.iter().filter(holds).collect();
            for attempt in &holding {
                assert!(
                    record.standing(&attempt.ask.grant).is_some(),
                    "{} holds and does not stand",
                    attempt.ask.grant.as_str()
                );
                let stored = record.standing(&attempt.ask.grant).unwrap().1.token;
                assert_eq!(stored, attempt.token, "one token for the whole hold");
            }
            if holding.iter().any(|a| a.ask.mode == Mode::Exclusive) {
                assert_eq!(holding.len(), 1, "two hold {}, one of them exclusively", record.key);
            }
            if let Some(limit) = LIMITS[i] {
                assert!(holding.len() <= limit as usize, "more than {limit} hold {}", record.key);
                assert!(record.live(at(self.clock)).count() <= limit as usize, "more than {limit} are live");
            }
        }
    }
}
