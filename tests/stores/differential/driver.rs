//! Draws operations, runs them on a store and on the pure rules, and compares.
//!
//! The model takes its times from the store: a grant and a renewal leave in the stored record when they were decided,
//! and what wrote nothing was decided between the reads before and after it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::internals::lease::{
    AcquireAnswer, Ask, End, GrantId, Holder, Kind, Labels, Lease, LockRecord, Mode, ReleaseAnswer, RenewAnswer,
    StoreTime, Times, transition,
};
use leasehold::internals::store::{Acquired, Attempt, Purpose, Released, Renewal, Renewed, Seen, Swapped, Which};

use crate::support::stores::{Opened, Store, fresh, soon};

const KEYS: [&str; 4] = ["a", "a_b", "A", "é/%"];
const LEASES: [u64; 4] = [150, 1_000, 5_000, 60_000];
/// If a swap or a transfer gives up the grants that it removes, and the row has more given-up grants than this, a floor
/// under the coming tokens replaces them.
const CROWD: usize = 8;

fn gives_up_for(before: &LockRecord, next: &mut LockRecord, gone: impl IntoIterator<Item = GrantId>) {
    next.given_up.extend(gone);
    // One swap may add more than one at once.
    if next.given_up.len() > CROWD + 1 && next.given_up != before.given_up {
        next.given_up.clear();
    }
}

/// The holders whose lock is taken away, live or not.
fn removed(before: &LockRecord, next: &LockRecord) -> Vec<Holder> {
    before.holders().map(|(_, old)| old).filter(|old| next.standing(&old.grant).is_none()).cloned().collect()
}

/// The live holders whose lock is taken away.
fn gone(before: &LockRecord, next: &LockRecord, now: StoreTime) -> Vec<Holder> {
    let live = before.live(now).map(|(_, holder)| holder).filter(|_| before.kind == Kind::Lock);
    live.filter(|holder| next.standing(&holder.grant).is_none()).cloned().collect()
}

pub struct Driver {
    at: Opened,
    remembers_who_gave_up: bool,
    gives_up_by_writing: bool,
    only_ends_age: bool,
    swaps_give_up: bool,
    adoptions_give_up: bool,
    /// When all rows were deleted.
    wiped: Instant,
    rng: fastrand::Rng,
    grace: Duration,
    /// What the store must hold, by the rules.
    model: BTreeMap<String, LockRecord>,
    /// The highest token ever seen, even if its row was deleted since.
    highest: BTreeMap<String, u64>,
    attempts: Vec<(String, Ask)>,
    /// Records that were read some time ago, with what the model held then.
    old: Vec<(Seen, LockRecord)>,
    done: BTreeMap<&'static str, usize>,
}

impl Driver {
    pub fn new(store: &Store, seed: u64) -> Self {
        let at = (store.open)();
        Driver {
            grace: at.store.info().grace,
            at,
            remembers_who_gave_up: store.remembers_who_gave_up,
            gives_up_by_writing: store.gives_up_by_writing,
            only_ends_age: store.only_ends_age,
            swaps_give_up: store.swaps_give_up,
            adoptions_give_up: store.adoptions_give_up,
            wiped: Instant::now(),
            rng: fastrand::Rng::with_seed(seed),
            model: BTreeMap::new(),
            highest: BTreeMap::new(),
            attempts: Vec::new(),
            old: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// How often each kind of answer came: a run that never had some answer proves nothing about it.
    pub fn done(&self) -> &BTreeMap<&'static str, usize> {
        &self.done
    }

    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// More rows than fit on a page.
    pub fn fill_pages(&mut self) {
        for i in 0..130 {
            let ask = self.ask();
            self.acquire(&format!("page/{i}"), ask);
        }
        self.read(&Which::Prefix("page/".to_owned()));
    }

    pub fn step(&mut self) {
        // Such a store forgets given-up grants after half a minute, but the model never does.
        if self.adoptions_give_up && self.wiped.elapsed() > Duration::from_secs(5) {
            for key in std::mem::take(&mut self.model).into_keys() {
                let seen = self.at.get(&key);
                let swapped = self.at.store.swap(&seen, None, &soon()).unwrap();
                assert!(matches!(swapped, Swapped::Done), "{swapped:?}");
            }
            self.old.clear();
            self.wiped = Instant::now();
        }
        let key = KEYS[self.rng.usize(..KEYS.len())];
        match self.rng.u32(..100) {
            0..30 => {
                let ask = self.ask_for(key);
                self.acquire(key, ask);
            }
            30..36 => self.with_attempt(|driver, key, ask| driver.acquire(key, ask.clone())),
            36..58 => self.with_attempt(Driver::renew),
            58..68 => self.with_attempt(|driver, key, ask| driver.release(key, ask, Purpose::Release)),
            68..73 => self.with_attempt(|driver, key, ask| driver.release(key, ask, Purpose::GiveUp)),
            73..85 => self.swap(key),
            85..88 => self.read_some(key),
            88..90 => {
                // A step of the wall clock: tokens rise all the same.
                let micros = self.rng.i64(-3_000_000..3_000_000);
                self.at.clock.set_wall_offset(micros);
            }
            _ => {
                let by = Duration::from_millis(self.rng.u64(..3_000));
                self.at.advance(by);
                self.age(by);
            }
        }
    }

    /// Where time passes by making rows older, the model's copies are made older, too.
    fn age(&mut self, by: Duration) {
        if self.at.age.is_none() {
            return;
        }
        for record in self.model.values_mut() {
            for holder in record.exclusive.iter_mut().chain(&mut record.shared) {
                if !self.only_ends_age {
                    holder.created = holder.created.minus(by);
                    holder.renewed = holder.renewed.map(|at| at.minus(by));
                }
                if let End::At(at) = holder.until {
                    holder.until = End::At(at.minus(by));
                }
            }
        }
        // No row is any more as it was read.
        self.old.clear();
    }

    fn ask(&mut self) -> Ask {
        let grant = fresh(&*self.at.store);
        let lock_id =
            if self.rng.u32(..4) == 0 { format!("group {}", self.rng.u32(..3)) } else { grant.as_str().into() };
        let comment = self.rng.bool().then(|| "it's \"mine\" \\ ü".to_owned());
        let host = self.rng.bool().then(|| "host".to_owned());
        Ask {
            grant,
            mode: if self.rng.bool() { Mode::Exclusive } else { Mode::Shared },
            lock_id,
            labels: Labels { host, comment, ..Labels::of(format!("owner {}", self.rng.u32(..3))) },
            lease: Duration::from_millis(LEASES[self.rng.usize(..LEASES.len())]),
            max_holders: self.rng.bool().then(|| self.rng.u32(1..4)),
            replace_same_owner: self.rng.u32(..4) == 0,
            instead_of: None,
        }
    }

    /// Now and then this asks for a transfer from a current holder, with the right token or another one.
    fn ask_for(&mut self, key: &str) -> Ask {
        let mut ask = self.ask();
        let standing: Vec<(GrantId, u64)> =
            self.record(key).holders().map(|(_, h)| (h.grant.clone(), h.token)).collect();
        if !standing.is_empty() && self.rng.u32(..4) == 0 {
            let (grant, token) = standing[self.rng.usize(..standing.len())].clone();
            let off = u64::from(self.rng.u32(..5) == 0);
            ask.instead_of = Some((grant, token + off));
        }
        ask
    }

    fn with_attempt(&mut self, run: fn(&mut Self, &str, &Ask)) {
        // Mostly one of the latest: the others are long gone.
        let near = self.attempts.len().min(if self.rng.bool() { 6 } else { 60 });
        if near > 0 {
            let (key, ask) = self.attempts[self.attempts.len() - 1 - self.rng.usize(..near)].clone();
            run(self, &key, &ask);
        }
    }

    fn record(&self, key: &str) -> LockRecord {
        self.model.get(key).cloned().unwrap_or_else(|| LockRecord::missing(key))
    }

    fn times(&self, now: StoreTime, stamp: u64) -> Times {
        Times { expired_before: now.minus(self.grace), ..Times::without_grace(now, stamp) }
    }

    /// Applies the rule at each of these times, and takes the first step whose answer `fits` that of the store.
    fn model<A: std::fmt::Debug>(
        &mut self,
        key: &str,
        at: &[Times],
        what: &str,
        rule: impl Fn(&LockRecord, &Times) -> transition::Step<A>,
        fits: impl Fn(&A) -> bool,
    ) {
        let before = self.record(key);
        let steps: Vec<_> = at.iter().map(|times| rule(&before, times)).collect();
        let Some(step) = steps.iter().find(|step| fits(&step.answer)) else {
            panic!("the store says {what}, the rules say {steps:?} on {before:?}");
        };
        if let Some(record) = &step.record {
            self.model.insert(key.to_owned(), record.clone());
        }
    }

    fn acquire(&mut self, key: &str, ask: Ask) {
        let before = self.at.get(key);
        let passes_on = self.rng.bool();
        let mut attempt = Attempt { replaces_sent_once: passes_on, ..Attempt::new(key, ask.clone()) };
        let answer = self.at.store.acquire(&mut attempt, &soon()).unwrap();
        let after = self.at.get(key);
        let mut at =
            vec![self.times(before.times.now, before.times.stamp), self.times(after.times.now, before.times.stamp)];
        let what = format!("{answer:?}");
        let gives_up = ask.instead_of.as_ref().filter(|_| self.swaps_give_up).map(|(old, _)| old.clone());
        let (stopped, adoptions) = (&after.record.given_up, self.adoptions_give_up);
        let rule = |record: &LockRecord, times: &Times| {
            let mut step = transition::acquire(record, &ask, times);
            if let Some(next) = step.record.as_mut().filter(|_| adoptions) {
                let is_passed_on =
                    |old: &Holder| passes_on && ask.instead_of.as_ref().is_some_and(|(grant, _)| *grant == old.grant);
                let gone = removed(record, next).into_iter();
                let gone = gone.filter(|old| !is_passed_on(old) || stopped.contains(&old.grant));
                next.given_up.extend(gone.map(|old| old.grant));
            }
            if let (Some(next), Some(gives_up)) = (&mut step.record, &gives_up) {
                gives_up_for(record, next, [gives_up.clone()]);
            }
            step
        };
        match answer {
            Acquired::Granted { holder, repeated, now } => {
                assert!(before.times.now <= now && now <= after.times.now, "the answer's now is between the reads");
                if !repeated {
                    assert!(before.times.now <= holder.created && holder.created <= now);
                    if !before.record.exists() && self.highest.contains_key(key) {
                        self.count("granted over a deleted row");
                    }
                    self.check_token(&before, &after, &holder);
                    at = vec![self.times(holder.created, holder.token)];
                }
                let right = AcquireAnswer::Granted { holder, repeated };
                self.model(key, &at, &what, rule, |answer| *answer == right);
                self.count(if repeated { "repeated" } else { "granted" });
            }
            Acquired::Refused(seen) => {
                self.model(key, &at, &what, rule, |answer| matches!(answer, AcquireAnswer::Refused(_)));
                self.check_record(&seen);
                self.count("refused");
            }
            Acquired::Unknown(error) => panic!("unanswered: {error:?}"),
        }
        if !self.attempts.iter().any(|(_, known)| known.grant == ask.grant) {
            self.attempts.push((key.to_owned(), ask));
        }
        self.check_record(&after);
    }

    /// The token must be one more than the stored one, or the store's time.
    fn check_token(&mut self, before: &Seen, after: &Seen, holder: &Holder) {
        let key = &before.record.key;
        let (token, stored) = (holder.token, before.record.token);
        assert!(token > stored, "token {token} after {stored}");
        // If many gave up, there may be a floor above all tokens that they asked for. The row also notes when the last
        // one gave up, and the record has the later of the two, so the floor is not known to the microsecond.
        let with_floor = before.times.stamp..=before.record.gave_up_at + 1;
        let fits = token == stored + 1
            || (before.times.stamp..=after.times.stamp).contains(&token)
            || with_floor.contains(&token);
        assert!(fits, "{token}: no rule makes it: {before:?} then {after:?}");
        assert!(token >= before.times.stamp, "token {token} is behind the store's time {}", before.times.stamp);
        let highest = self.highest.entry(key.clone()).or_default();
        // After a deleted row, tokens rise as far as the clock did.
        assert!(token > *highest || before.times.stamp <= *highest, "token {token} after {highest}");
        *highest = token.max(*highest);
    }

    fn renew(&mut self, key: &str, ask: &Ask) {
        let lease = match self.rng.u32(..8) {
            0 => Lease::Forever,
            _ => Lease::For(Duration::from_millis(LEASES[self.rng.usize(..LEASES.len())])),
        };
        let renewal = Renewal { lease, may_end_endless: self.rng.u32(..3) == 0 };
        let before = self.at.get(key);
        let answer = self.at.store.renew(&mut Attempt::new(key, ask.clone()), renewal, &soon()).unwrap();
        let after = self.at.get(key);
        let mut at =
            vec![self.times(before.times.now, before.times.stamp), self.times(after.times.now, before.times.stamp)];
        let what = format!("{answer:?}");
        let rule = |record: &LockRecord, times: &Times| transition::renew(record, &ask.grant, renewal, times);
        match answer {
            Renewed::Until { until, now } => {
                assert!(before.times.now <= now && now <= after.times.now);
                let of = |seen: &Seen| seen.record.standing(&ask.grant).and_then(|(_, h)| h.renewed);
                if let Some(decided) = of(&after).filter(|_| of(&after) != of(&before)) {
                    assert!(before.times.now <= decided && decided <= now);
                    at = vec![self.times(decided, before.times.stamp)];
                }
                self.model(key, &at, &what, rule, |answer| *answer == RenewAnswer::Until(until));
                self.count(if until == End::Never { "renewed for ever" } else { "renewed" });
            }
            Renewed::Lost(seen) => {
                self.model(key, &at, &what, rule, |answer| *answer == RenewAnswer::Lost);
                self.check_record(&seen);
                self.count("lost");
            }
            Renewed::Unknown(error) => panic!("unanswered: {error:?}"),
        }
        self.check_record(&after);
    }

    fn release(&mut self, key: &str, ask: &Ask, purpose: Purpose) {
        let before = self.at.get(key);
        let answer = self.at.store.release(&mut Attempt::new(key, ask.clone()), purpose, &soon()).unwrap();
        let after = self.at.get(key);
        let at = [self.times(before.times.now, before.times.stamp), self.times(after.times.now, before.times.stamp)];
        let what = format!("{answer:?}");
        let right = match &answer {
            Released::Done => ReleaseAnswer::Released,
            Released::Free => ReleaseAnswer::Free,
            Released::HeldByOther(_) => ReleaseAnswer::HeldByOther,
            Released::Unknown(error) => panic!("unanswered: {error:?}"),
        };
        let (known, gives_up) = (self.record(key), purpose == Purpose::GiveUp);
        let writes = self.remembers_who_gave_up || self.gives_up_by_writing;
        let how = if gives_up && writes { transition::give_up } else { transition::release };
        let crowded = self.swaps_give_up && gives_up && known.given_up.len() > CROWD;
        self.model(key, &at, &what, |record, times| how(record, &ask.grant, times), |answer| *answer == right);
        if let Some(record) = self.model.get_mut(key).filter(|_| crowded) {
            record.given_up.clear();
        }
        if let Some(record) = self.model.get_mut(key).filter(|_| !self.remembers_who_gave_up) {
            record.given_up.clear();
            // If the store makes a row for it, the row gets a token, as that of any lock does.
            record.token = if before.record.exists() { record.token } else { after.record.token };
        }
        // A store may note once more a grant that was given up already, where the rules write nothing: it counts as
        // another row.
        if after.record.version > before.record.version && self.record(key) == known {
            self.model.entry(key.to_owned()).and_modify(|record| record.version += 1);
        }
        if let Released::HeldByOther(seen) = &answer {
            self.check_record(seen);
        }
        self.count(match right {
            ReleaseAnswer::Released => "released",
            ReleaseAnswer::Free => "free",
            ReleaseAnswer::HeldByOther => "held by other",
        });
        self.check_record(&after);
    }

    fn swap(&mut self, key: &str) {
        if self.rng.u32(..4) == 0 {
            let seen = self.at.get(key);
            self.old.push((seen, self.record(key)));
        }
        let is_late = self.rng.u32(..4) == 0 && !self.old.is_empty();
        let (seen, known) = if is_late {
            self.old.swap_remove(self.rng.usize(..self.old.len()))
        } else {
            (self.at.get(key), self.record(key))
        };
        let key = known.key.clone();
        let (now, stamp) = (seen.times.now, seen.times.stamp);
        let mut next = known.clone();
        next.version += 1;
        let new = match self.rng.u32(..7) {
            // As by an operator, who deletes without asking the purge: only the tokens must survive that.
            6 if known.holders().all(|(_, h)| !h.until.is_after(now)) => None,
            0 => match transition::purge(&known, now.minus(self.grace), stamp) {
                transition::Step { answer, .. } if answer.delete => None,
                transition::Step { record: Some(record), .. } => Some(record),
                _ => Some(next),
            },
            // A forced release.
            1 => {
                (next.exclusive, next.shared) = (None, Vec::new());
                Some(next)
            }
            2 => {
                next.kind = if next.kind == Kind::Lock && self.rng.u32(..3) == 0 { Kind::Lease } else { Kind::Lock };
                Some(next)
            }
            3 => {
                next.pins.insert(format!("pin {}", self.rng.u32(..3)));
                Some(next)
            }
            4 => {
                next.pins.clear();
                Some(next)
            }
            // A grant, whose token comes from the stamp that was read.
            _ => {
                let ask = Ask { instead_of: None, ..self.ask() };
                let step = transition::acquire(&known, &ask, &self.times(now, stamp));
                step.record.or(Some(next))
            }
        };
        let new = new.map(|record| LockRecord { version: seen.record.version + 1, ..record });
        let unchanged = self.record(&key) == known;
        // If a store compares version and token, a row that was made anew can look like the old one to it.
        let before = self.at.record(&key);
        if !unchanged && (before.version, before.token) == (seen.record.version, seen.record.token) {
            return;
        }
        let swap = |seen: &Seen| self.at.store.swap(seen, new.as_ref(), &soon()).unwrap();
        let mut swapped = swap(&seen);
        // DynamoDB deletes nothing by a time that the last answer contradicts, for example after the machine's clock
        // was set.
        for _ in 0..if new.is_none() && unchanged { 5 } else { 0 } {
            swapped = if matches!(swapped, Swapped::Changed) { swap(&self.at.get(&key)) } else { break };
        }
        match (swapped, unchanged) {
            (Swapped::Done, true) => match new {
                Some(mut record) => {
                    let grant = |old: Holder| old.grant;
                    if self.swaps_give_up {
                        let gone = gone(&known, &record, now).into_iter().map(grant);
                        gives_up_for(&known, &mut record, gone);
                    } else if self.adoptions_give_up {
                        let gone = removed(&known, &record).into_iter().filter(|_| known.kind == Kind::Lock);
                        record.given_up.extend(gone.map(grant));
                    }
                    let highest = self.highest.entry(key.clone()).or_default();
                    *highest = record.token.max(*highest);
                    let version = known.version + 1;
                    self.model.insert(key.clone(), LockRecord { version, ..record });
                    self.count("swapped");
                }
                None => {
                    self.model.remove(&key);
                    self.count("deleted");
                }
            },
            (Swapped::Changed, false) => self.count("changed"),
            (swapped, _) => {
                panic!("{swapped:?} of {seen:?}, unchanged: {unchanged}, the model has {:?}", self.record(&key))
            }
        }
        let after = self.at.get(&key);
        self.check_record(&after);
    }

    fn read_some(&mut self, key: &str) {
        let which = match self.rng.u32(..4) {
            0 => Which::Prefix(["", "a", "page/1", "é", "%", "nothing"][self.rng.usize(..6)].to_owned()),
            1 => Which::LockId(format!("group {}", self.rng.u32(..4))),
            2 if !self.attempts.is_empty() => Which::LockId(self.rng.choice(&self.attempts).unwrap().1.lock_id.clone()),
            _ => Which::Key(key.to_owned()),
        };
        self.read(&which);
    }

    fn read(&mut self, which: &Which) {
        let found: Vec<LockRecord> = self.at.all(which).into_iter().filter(LockRecord::exists).collect();
        let matches = |record: &&LockRecord| match which {
            Which::Key(key) => record.key == *key,
            Which::Prefix(prefix) => record.key.starts_with(prefix.as_str()),
            Which::LockId(id) => record.holders().any(|(_, h)| h.lock_id == *id),
        };
        let right: Vec<LockRecord> = self.model.values().filter(matches).map(|r| self.comparable(r)).collect();
        let found: Vec<LockRecord> = found.iter().map(|record| self.comparable(record)).collect();
        assert_eq!(found, right, "{which:?}");
        self.count(if found.len() > 100 { "read pages" } else { "read" });
    }

    fn comparable(&self, record: &LockRecord) -> LockRecord {
        let mut record = LockRecord { version: 0, gave_up_at: 0, ..record.clone() };
        if !self.remembers_who_gave_up {
            record.given_up.clear();
        }
        record
    }

    fn check_record(&self, seen: &Seen) {
        let right = self.record(&seen.record.key);
        assert_eq!(self.comparable(&seen.record), self.comparable(&right));
        assert_eq!(seen.record.exists(), right.exists(), "{right:?}");
    }
}
