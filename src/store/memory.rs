//! A store inside the process, for doctests and unit tests.
//!
//! Atomic: one mutex around read, pure transition and write. Clock: this host's boot-time clock.
//! No call is ever unanswered. A write wakes the waiters, under the same mutex.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::transactional::{self, Durability, Transacted, Transactional};
use super::url::StoreUrl;
use super::{
    Acquired, Attempt, Backend, Bounds, Consistency, Opener, Page, Purpose, Released, Renewal, Renewed, Schema, Seen,
    StoreInfo, Swapped, Which,
};
use crate::lease::{Ask, End, GrantId, Labels, LockRecord, Step, StoreTime, Times, transition};
use crate::model::error::{Error, ErrorKind, Result};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;
use crate::sys::process::{ForkMutex, InUse, ProcessId};

/// How many records a page holds.
const PAGE: usize = 100;
/// How many given-up grant ids are remembered for one key. Only tests make copies of a request that arrive later.
const MOST_GIVEN_UP: usize = 64;

/// What the clients of one store share.
#[derive(Debug, Default)]
struct Records {
    by_key: BTreeMap<String, LockRecord>,
    /// By key: the grant ids that were given up, the oldest first.
    gave_up: BTreeMap<String, VecDeque<GrantId>>,
    /// By client: the keys that it watches, and where to report them.
    watching: BTreeMap<u64, (BTreeSet<String>, Sender<String>)>,
}

impl Records {
    fn get(&self, key: &str) -> LockRecord {
        self.by_key.get(key).cloned().unwrap_or_else(|| LockRecord::missing(key))
    }

    /// Stores the record, or removes it, and wakes the waiters if the change may free the key.
    fn put(&mut self, key: &str, mut new: Option<LockRecord>) {
        self.forget(key, new.as_mut());
        let old = match new.clone() {
            Some(new) => self.by_key.insert(key.to_owned(), new),
            None => self.by_key.remove(key),
        };
        let missing = || LockRecord::missing(key);
        if transition::frees(&old.unwrap_or_else(missing), &new.unwrap_or_else(missing)) {
            let sent = |to: &Sender<String>| to.send(key.to_owned()).is_ok();
            self.watching.retain(|_, (keys, to)| !keys.contains(key) || sent(to));
        }
    }
}

impl Records {
    /// Forgets the oldest given-up grant ids of the key, beyond [`MOST_GIVEN_UP`].
    fn forget(&mut self, key: &str, new: Option<&mut LockRecord>) {
        let Some(new) = new.filter(|new| !new.given_up.is_empty()) else {
            self.gave_up.remove(key);
            return;
        };
        let order = self.gave_up.entry(key.to_owned()).or_default();
        let known = self.by_key.get(key).map(|old| &old.given_up);
        let is_new = |grant: &&GrantId| known.is_none_or(|known| !known.contains(*grant));
        order.extend(new.given_up.iter().filter(is_new).cloned());
        let surplus = order.len().saturating_sub(MOST_GIVEN_UP);
        for oldest in order.drain(..surplus) {
            new.given_up.remove(&oldest);
        }
    }
}

/// By name. A store ends with its last client.
type Named = BTreeMap<String, Weak<Mutex<Records>>>;

/// The named stores of this process. It uses the first of these places that no thread of a parent process had locked at
/// a fork. What a parent left there is dropped, because its mutexes may be locked for ever.
static NAMED: [ForkMutex<Option<(ProcessId, Named)>>; 4] = [const { ForkMutex::new(None) }; 4];

/// See the module.
#[derive(Debug)]
pub struct Memory {
    info: StoreInfo,
    clock: Arc<Clock>,
    records: Arc<Mutex<Records>>,
    /// Which of the store's clients this is.
    number: u64,
}

impl Memory {
    /// The shortest lease.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);

    /// From a URL like `memory:NAME`.
    pub(super) fn opener(url: &str) -> Result<Opener> {
        let url = StoreUrl::parse(url)?;
        url.only(&[])?;
        let name = url.path.into_owned();
        Ok(Opener::new(Bounds::of(Memory::MIN_LEASE), move |clock, _, by| {
            let records = shared(&name, by).map_err(|in_use| match in_use {
                InUse::ForNow => {
                    Error::new(ErrorKind::Store, "other threads connect just now; repeat the call").retryable()
                }
                InUse::ForEver => Error::new(
                    ErrorKind::Config,
                    "this process was forked, again and again, while a thread connected to a store in memory: begin a \
                     program anew by exec",
                ),
            });
            Ok(Memory::over(&name, records?, clock))
        }))
    }

    /// The store with this name, shared by all its clients in the process; without a name, a store of its own.
    pub fn open(name: &str, clock: Arc<Clock>) -> Self {
        Memory::over(name, shared(name, &Deadline::after(Duration::MAX)).unwrap_or_default(), clock)
    }

    /// The same store for another client.
    pub fn for_another(&self) -> Self {
        let (records, clock, info) = (self.records.clone(), self.clock.clone(), self.info.clone());
        Memory { info, clock, records, number: Memory::next_number() }
    }

    fn over(name: &str, records: Arc<Mutex<Records>>, clock: Arc<Clock>) -> Self {
        let label = if name.is_empty() { "memory".to_owned() } else { format!("memory:{name}") };
        let info = StoreInfo::new(label, "this host's boot-time clock", Bounds::of(Memory::MIN_LEASE));
        Memory { info, clock, records, number: Memory::next_number() }
    }

    fn next_number() -> u64 {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        CLIENTS.fetch_add(1, Ordering::Relaxed)
    }

    fn times(&self) -> Times {
        let now = StoreTime::from_nanos(i64::try_from(self.clock.now().as_nanos()).unwrap_or(i64::MAX));
        Times::without_grace(now, self.clock.wall_micros())
    }
}

/// What the clients of the store with this name share; an error if the names can't be locked in time.
fn shared(name: &str, by: &Deadline) -> Result<Arc<Mutex<Records>>, InUse> {
    if name.is_empty() {
        return Ok(Arc::default());
    }
    let mut places = NAMED.iter().map(|place| place.lock(by));
    let mut place = places.find(|place| !matches!(place, Err(InUse::ForEver))).unwrap_or(Err(InUse::ForEver))?;
    drop(place.take_if(|(process, _)| !process.is_current()));
    let (_, named) = place.get_or_insert_with(|| (ProcessId::current(), Named::new()));
    named.retain(|_, records| records.strong_count() > 0);
    let known = named.get(name).and_then(Weak::upgrade);
    Ok(known.unwrap_or_else(|| {
        let fresh = Arc::default();
        named.insert(name.to_owned(), Arc::downgrade(&fresh));
        fresh
    }))
}

/// For `leasehold::testing`.
impl Memory {
    /// Ends the running leases of all holders of the key now, except leases without an end. Returns how many it ended.
    pub fn expire(&self, key: &str) -> usize {
        let now = self.times().now;
        let mut records = self.records.lock();
        let (mut record, mut ended) = (records.get(key), 0);
        for holder in record.exclusive.iter_mut().chain(&mut record.shared) {
            if holder.until != End::Never && holder.until.is_after(now) {
                (holder.until, ended) = (End::At(now), ended + 1);
            }
        }
        if ended > 0 {
            record.version += 1;
            records.put(key, Some(record));
        }
        ended
    }

    /// Removes all holders of the key, as an operator does. Returns how many there were.
    pub fn end_holders(&self, key: &str) -> usize {
        let mut records = self.records.lock();
        let mut record = records.get(key);
        let ended = record.holders().count();
        if ended > 0 {
            record.version += 1;
            (record.exclusive, record.shared) = (None, Vec::new());
            records.put(key, Some(record));
        }
        ended
    }

    /// Grants the key to a stranger, whether it is held or not.
    pub fn take_over(&self, key: &str) {
        let mut records = self.records.lock();
        let mut record = records.get(key);
        (record.exclusive, record.shared) = (None, Vec::new());
        let (grant, labels) = (self.info.grant_form.fresh(), Labels::of("rival"));
        let ask = Ask::exclusive(grant, "rival".to_owned(), labels, Duration::from_secs(60));
        let taken = transition::acquire(&record, &ask, &self.times()).record;
        records.put(key, Some(taken.unwrap_or(record)));
    }
}

impl Transactional for Memory {
    fn transact<A>(
        &self,
        key: &str,
        _durability: Durability,
        _by: &Deadline,
        mut transition: impl FnMut(&LockRecord, &Times) -> Step<A>,
    ) -> Result<Transacted<A>> {
        let mut records = self.records.lock();
        let times = self.times();
        let record = records.get(key);
        record.check_format()?;
        let step = transition(&record, &times);
        if let Some(next) = &step.record {
            records.put(key, Some(next.clone()));
        }
        Ok(Transacted::Done(step.answer, seen(step.record.unwrap_or(record), times)))
    }
}

fn seen(record: LockRecord, times: Times) -> Seen {
    Seen::new(record, times, None)
}

impl Backend for Memory {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn schema(&self, _what: Schema, _by: &Deadline) -> Result<String> {
        Ok("memory needs no schema".to_owned())
    }

    fn acquire(&self, attempt: &mut Attempt, by: &Deadline) -> Result<Acquired> {
        transactional::acquire(self, attempt, by)
    }

    fn renew(&self, attempt: &mut Attempt, renewal: Renewal, by: &Deadline) -> Result<Renewed> {
        transactional::renew(self, attempt, renewal, by)
    }

    fn release(&self, attempt: &mut Attempt, purpose: Purpose, by: &Deadline) -> Result<Released> {
        transactional::release(self, attempt, purpose, by)
    }

    fn read(&self, which: &Which, from: Option<String>, _consistency: Consistency, _by: &Deadline) -> Result<Page> {
        let records = self.records.lock();
        let times = self.times();
        if let Which::Key(key) = which {
            return Ok(Page { records: vec![seen(records.get(key), times)], next: None });
        }
        let after = |record: &&LockRecord| from.as_ref().is_none_or(|from| record.key > *from);
        let mut found = records.by_key.values().filter(after).filter(|record| which.matches(record));
        let page: Vec<Seen> = found.by_ref().take(PAGE).map(|record| seen(record.clone(), times)).collect();
        let next = found.next().and(page.last()).map(|last| last.record.key.clone());
        Ok(Page { records: page, next })
    }

    fn swap(&self, seen: &Seen, new: Option<&LockRecord>, _by: &Deadline) -> Result<Swapped> {
        let key = &seen.record.key;
        let mut records = self.records.lock();
        let stands = records.get(key);
        stands.check_format()?;
        if stands.version != seen.record.version || stands.token != seen.record.token {
            return Ok(Swapped::Changed);
        }
        let mut new = new.cloned();
        if !stands.exists() {
            // A client that saw an earlier row of this key, deleted meanwhile, must not take this row for it.
            new.iter_mut().for_each(|new| new.version = new.version.max(self.times().stamp));
        }
        records.put(key, new);
        Ok(Swapped::Done)
    }

    fn wake(&self, keys: &[String], to: Sender<String>, _by: &Deadline) -> Result<bool> {
        let watching = &mut self.records.lock().watching;
        match keys.is_empty() {
            true => watching.remove(&self.number),
            false => watching.insert(self.number, (keys.iter().cloned().collect(), to)),
        };
        Ok(true)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.records.lock().watching.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::orders::{LEASE, spec};
    use crate::store::read_key;

    /// Otherwise a process that gives up again and again would need more memory each time.
    #[test]
    fn only_the_last_that_gave_up_are_remembered() {
        let store = Memory::open("", Clock::system());
        let by = Deadline::after(LEASE);
        let attempt = || spec().attempt(store.info.grant_form.fresh(), LEASE);
        let attempts: Vec<Attempt> = (0..3 * MOST_GIVEN_UP).map(|_| attempt()).collect();
        for attempt in &attempts {
            let _ = store.release(&mut attempt.without_native(), Purpose::GiveUp, &by).expect("an answer");
        }
        let records = || store.records.lock();
        assert_eq!(records().get("k").given_up.len(), MOST_GIVEN_UP);
        assert_eq!(records().gave_up["k"].len(), MOST_GIVEN_UP);
        for late in &attempts[attempts.len() - MOST_GIVEN_UP..] {
            let answer = store.acquire(&mut late.without_native(), &by).expect("an answer");
            assert!(matches!(answer, Acquired::Refused(_)), "a late copy of what was given up is granted");
        }
        // Nothing is left of a row that is purged.
        let seen = read_key(&store, "k", &by).expect("an answer");
        let _ = store.swap(&seen, None, &by).expect("an answer");
        assert!(records().gave_up.is_empty() && records().by_key.is_empty());
    }
}
