//! A late copy of an acquire: its client has given it up, and meanwhile a rival has or had the lock. The copy has no
//! effect, and the rival's hold goes on. There are few keys, so that their rows remember several given-up grants.
//!
//! `LEASEHOLD_TEST_LONG` makes it 10,000 copies on each store; `LEASEHOLD_TEST_SEED` repeats a run.

mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::internals::lease::{GrantId, Holder, Lease, Mode};
use leasehold::internals::store::{Acquired, Attempt, Backend, Purpose, Released, Renewed};

use crate::support::calls::{LEASE, renewal};
use crate::support::direct::{attempt, get};
use crate::support::harness::sent;
use crate::support::seed::seed;
use crate::support::stores::{Store, for_each_store, on, soon};
use crate::support::wait::wait_until;

/// How many threads there are, each with a store of its own: most of the time is spent on the way to a server.
const LANES: usize = 4;
const LONG: usize = 10_000;
const KEYS: [&str; 3] = ["a", "b", "c"];
/// How many copies of a lane are under way at once, at most.
const UNDER_WAY: usize = 4;

macro_rules! nothing_comes_of_a_late_copy {
    ($store:ident) => {
        #[test]
        fn $store() {
            on(stringify!($store), nothing_comes_of_a_late_copy);
        }
    };
}
for_each_store!(nothing_comes_of_a_late_copy);

/// How many copies come in each run: as many as take some seconds.
fn copies(store: &Store) -> usize {
    if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() {
        return LONG;
    }
    match store.module {
        "spanner" => 24,
        "mongodb" => 100,
        _ => 200,
    }
}

fn nothing_comes_of_a_late_copy(store: &Store) {
    let (copies, first) = (copies(store), seed());
    if store.module != "sqlite" {
        assert!((0..20).any(|nth| comes_unless_given_up(store, nth)), "late copies are not late copies");
    }
    let (begun, seen) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for lane in 0..LANES as u64 {
            scope.spawn(move || {
                let mut lane = Lane::new(store, first.wrapping_add(lane));
                while seen.load(Ordering::Relaxed) < copies {
                    assert!(begun.fetch_add(1, Ordering::Relaxed) < 4 * copies, "most requests never left");
                    seen.fetch_add(lane.round(), Ordering::Relaxed);
                }
            });
        }
    });
    let (seen, begun) = (seen.load(Ordering::Relaxed), begun.load(Ordering::Relaxed));
    println!("{}: {seen} late copies in {begun} rounds", store.module);
}

/// Otherwise nothing that is seen here would be due to the give-up. A busy machine may not send the copy in time.
fn comes_unless_given_up(store: &Store, nth: usize) -> bool {
    let sides = ways::of(store);
    let mut late = attempt(&*sides.first, &format!("control {nth}"), Mode::Exclusive);
    let came = sides.way.hold(&*sides.first, &mut late) && sides.way.deliver() == 1;
    came && get(&*sides.rival, &late.key).record.standing(late.grant()).is_some()
}

/// The store, as the client that gives up uses it, and as its rival does.
struct Sides {
    first: Arc<dyn Backend>,
    rival: Arc<dyn Backend>,
    way: Box<dyn Way>,
    /// What must live as long as the test.
    _room: Box<dyn std::any::Any>,
}

/// The way of the first client's acquires to the store.
trait Way {
    /// Sends an acquire that gets no answer, because it is held on its way. Returns `false` if the store reports that
    /// nothing was sent.
    fn hold(&self, store: &dyn Backend, attempt: &mut Attempt) -> bool;

    /// Whether `hold` guarantees that the request is held: a busy machine may send it only when nothing is held any
    /// more.
    fn is_sure(&self) -> bool {
        true
    }

    /// Delivers what is held, and waits until the store is done with it. Returns how many requests that were.
    fn deliver(&self) -> usize;
}

/// What happens to the key after the give-up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    RivalHolds,
    RivalLeaves,
    /// The client that gave up takes the lock after all, by another acquire.
    FirstHolds,
}

const MEANWHILE: [Meanwhile; 6] = [
    Meanwhile::Nothing,
    Meanwhile::RivalHolds,
    Meanwhile::RivalHolds,
    Meanwhile::RivalLeaves,
    Meanwhile::RivalLeaves,
    Meanwhile::FirstHolds,
];

struct Lane {
    sides: Sides,
    rng: fastrand::Rng,
    under_way: Vec<GrantId>,
    /// The last token that was granted, by key.
    highest: BTreeMap<&'static str, u64>,
}

impl Lane {
    fn new(store: &Store, seed: u64) -> Lane {
        let (sides, rng) = (ways::of(store), fastrand::Rng::with_seed(seed));
        Lane { sides, rng, under_way: Vec::new(), highest: BTreeMap::new() }
    }

    /// One acquire that is given up, and what comes after it. Returns how many late copies came.
    fn round(&mut self) -> usize {
        let first = self.sides.first.clone();
        let key = *self.rng.choice(&KEYS).unwrap();
        let mode = if self.rng.u8(..4) == 0 { Mode::Shared } else { Mode::Exclusive };
        let mut twin = attempt(&*first, key, mode);
        twin.sends = 1;
        if !self.sides.way.hold(&*first, &mut twin) {
            return 0;
        }
        self.under_way.push(twin.grant().clone());
        if self.rng.u8(..4) == 0 {
            self.granted(&*first, &mut twin);
        }
        give_up(&*first, &mut twin);
        if !self.sides.way.is_sure() {
            self.came_before(key);
        }
        let meanwhile = *self.rng.choice(&MEANWHILE).unwrap();
        let is_first = meanwhile == Meanwhile::FirstHolds;
        let mut next = attempt(&*first, key, if self.rng.bool() { mode } else { Mode::Exclusive });
        let mut holder = (meanwhile != Meanwhile::Nothing).then(|| self.granted_to(is_first, &mut next));
        if meanwhile == Meanwhile::RivalLeaves {
            release(&*self.sides.rival, &mut next);
            holder = None;
        }
        let mut came = 0;
        if self.under_way.len() == UNDER_WAY || self.rng.bool() {
            came = self.sides.way.deliver();
            assert!(came <= self.under_way.len(), "{came} of {:?}", self.under_way);
            self.check(holder.as_ref().map(|holder| (key, holder)), meanwhile);
            self.under_way.clear();
        }
        if holder.is_some() {
            let store = if is_first { &*first } else { &*self.sides.rival };
            let renewed = sent(|| store.renew(&mut next, renewal(Lease::For(2 * LEASE)), &soon()));
            assert!(matches!(renewed, Renewed::Until { .. }), "{key}, {meanwhile:?}: {renewed:?}");
            release(store, &mut next);
        }
        came
    }

    /// A copy that was not held came before the give-up, and so may have used up a token.
    fn came_before(&mut self, key: &'static str) {
        let token = get(&*self.sides.rival, key).record.token;
        let highest = self.highest.entry(key).or_default();
        *highest = token.max(*highest);
    }

    fn granted_to(&mut self, is_first: bool, attempt: &mut Attempt) -> Holder {
        if is_first {
            let first = self.sides.first.clone();
            return self.granted(&*first, attempt);
        }
        let answer = sent(|| self.sides.rival.acquire(attempt, &soon()));
        self.rises(attempt, answer)
    }

    fn granted(&mut self, store: &dyn Backend, attempt: &mut Attempt) -> Holder {
        let answer = sent(|| {
            attempt.sends += 1;
            store.acquire(attempt, &soon())
        });
        self.rises(attempt, answer)
    }

    /// Asserts that the acquire is granted, and that its token is above all before.
    fn rises(&mut self, attempt: &Attempt, answer: Acquired) -> Holder {
        let Acquired::Granted { holder, .. } = answer else {
            panic!("{}: {answer:?}, with {:?} under way", attempt.key, self.under_way)
        };
        let key = KEYS.into_iter().find(|key| *key == attempt.key).unwrap();
        let highest = self.highest.entry(key).or_default();
        assert!(holder.token > *highest, "{key}: {} after {highest}", holder.token);
        *highest = holder.token;
        holder
    }

    /// Asserts that only the last grant is a holder, and that no token was used up.
    fn check(&self, standing: Option<(&str, &Holder)>, meanwhile: Meanwhile) {
        for key in KEYS {
            let record = get(&*self.sides.rival, key).record;
            let stands: Vec<&Holder> = record.holders().map(|(_, holder)| holder).collect();
            let right: Vec<&Holder> = standing.iter().filter(|(of, _)| *of == key).map(|(_, holder)| *holder).collect();
            assert_eq!(stands, right, "{key}, {meanwhile:?}, after {:?} came late", self.under_way);
            let highest = self.highest.get(key).copied().unwrap_or_default();
            assert_eq!(record.token, highest, "{key}, {meanwhile:?}, after {:?} came late", self.under_way);
        }
    }
}

fn give_up(store: &dyn Backend, attempt: &mut Attempt) {
    wait_until("it is given up", || {
        !matches!(sent(|| store.release(attempt, Purpose::GiveUp, &soon())), Released::Unknown(_))
    });
}

fn release(store: &dyn Backend, attempt: &mut Attempt) {
    let released = sent(|| store.release(attempt, Purpose::Release, &soon()));
    assert!(matches!(released, Released::Done), "{}: {released:?}", attempt.key);
}
