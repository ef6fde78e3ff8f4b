//! The lines of waiters in this process, one for each key: first in, first out. Only the head of a line asks the store;
//! a guard that is released transfers its lock to the head.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use crate::engine::spec::{Granted, LockSpec, Noted};
use crate::lease::Mode;
use crate::model::error::{Error, ErrorKind};
use crate::model::lock::LockStatus;
use crate::store::Attempt;
use crate::sys::deadline::Deadline;
use crate::sys::pause::pause;

/// A store that takes longer to answer counts as failing.
pub const SILENT: Duration = Duration::from_secs(1);
/// A waiter counts as hanging in the user's code if that code runs for longer.
pub const HANGS: Duration = Duration::from_secs(3);

/// The lines of one client family, by key.
pub struct Queues {
    lines: Mutex<HashMap<String, VecDeque<Arc<Place>>>>,
    /// Acquisitions that have no guard yet.
    noted: Mutex<Vec<Weak<Noted>>>,
    ended: Sender<()>,
    ends: Receiver<()>,
}

impl Default for Queues {
    fn default() -> Self {
        let (ended, ends) = crossbeam_channel::bounded(1);
        Queues { lines: Mutex::default(), noted: Mutex::default(), ended, ends }
    }
}

/// One waiter's place in a line.
struct Place {
    spec: LockSpec,
    turn: Mutex<PlaceState>,
    nudge: (Sender<()>, Receiver<()>),
    /// The waiter before it left with the lock: there is no need to look at once.
    is_held: AtomicBool,
    /// Until then it is other processes' turn.
    stands_back: Mutex<Option<Instant>>,
    /// Since when its request is under way.
    asked_at: Mutex<Option<Instant>>,
    users_code: Arc<UsersCode>,
    /// When the wait is over.
    by: Deadline,
    /// The error of the last requests, while the store fails.
    trouble: Mutex<Option<Error>>,
    /// Who holds the lock, as it saw last.
    holders: Mutex<Option<Vec<LockStatus>>>,
}

/// Whether a call that waits is inside code of its user's, such as a callback: then it can't take its turn, and is
/// passed over once that takes long. A call that waits for several keys has one of these for all of its lines.
#[derive(Default)]
pub struct UsersCode {
    /// Since when it runs.
    since: Mutex<Option<Instant>>,
    /// How many locks are being handed over to the call, or were and wait to be taken. No hand-over begins while the
    /// user's code runs, which may hang, or close the client: nobody would renew the lock.
    handed: AtomicUsize,
    /// How many of these wait to be taken.
    given: AtomicUsize,
    nudges: Mutex<Vec<Sender<()>>>,
}

impl UsersCode {
    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.since.lock().is_some()
    }

    /// Whether a release hands over to the call, or has done so.
    pub fn is_handed(&self) -> bool {
        self.handed.load(Ordering::SeqCst) > 0
    }

    /// Whether a lock was handed over to the call and waits to be taken.
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::SeqCst) > 0
    }

    /// Notes since when it runs; `None`: it has returned.
    pub fn runs(&self, since: Option<Instant>) {
        // First `since` is replaced, then `hangs` is asked: a thread that took this waiter for a hanging one did so
        // before that, so `hangs` is true, too.
        let before = std::mem::replace(&mut *self.since.lock(), since);
        if hangs(before) {
            // Nudges meanwhile went to a waiter behind it, which may not be first any more.
            self.nudges.lock().iter().for_each(nudge);
        }
    }
}

/// The state of a waiter.
enum PlaceState {
    /// It waits: a release may reserve it.
    Waiting,
    /// It asks the store itself.
    Asking,
    /// A release is handing over to it.
    Reserved,
    /// The lock was handed over.
    Given(Box<Granted>),
    /// It left the line.
    Gone,
}

/// A waiter's place in its line. When it leaves, the next one gets the turn.
pub struct Ticket {
    queues: Arc<Queues>,
    place: Arc<Place>,
}

impl Queues {
    /// How many wait for `key`, without those that hang in code of their users.
    pub fn len(&self, key: &str) -> usize {
        let lines = self.lines.lock();
        lines.get(key).into_iter().flatten().filter(|place| !place.hangs()).count()
    }

    /// How many that wait for `key` are in code of their users.
    #[cfg(feature = "_internals")]
    pub fn in_users_code(&self, key: &str) -> usize {
        let lines = self.lines.lock();
        lines.get(key).into_iter().flatten().filter(|place| place.users_code.is_running()).count()
    }

    /// Takes a place at the end of the line of this key, until `by`, for a call with this `users_code`.
    pub fn enter(self: &Arc<Self>, spec: LockSpec, users_code: &Arc<UsersCode>, by: &Deadline) -> Ticket {
        let nudge = crossbeam_channel::bounded(1);
        users_code.nudges.lock().push(nudge.0.clone());
        let place = Arc::new(Place {
            spec,
            turn: Mutex::new(PlaceState::Waiting),
            nudge,
            is_held: AtomicBool::new(false),
            stands_back: Mutex::default(),
            asked_at: Mutex::default(),
            users_code: users_code.clone(),
            by: by.clone(),
            trouble: Mutex::default(),
            holders: Mutex::default(),
        });
        let key = place.spec.key.clone();
        self.lines.lock().entry(key).or_default().push_back(place.clone());
        Ticket { queues: self.clone(), place }
    }

    /// Reserves the head of the line for a hand-over, if it waits and `fits`.
    pub fn reserve(&self, key: &str, fits: impl FnOnce(&LockSpec) -> bool) -> Option<Reservation> {
        let head = self.head(key)?;
        let mut turn = head.turn.lock();
        // Locked until the hand-over is counted in `handed`: no user's code may begin before that.
        let since = head.users_code.since.lock();
        // A waiter whose time is over would give the lock back, but its process may end before that.
        if !matches!(*turn, PlaceState::Waiting) || since.is_some() || head.by.is_over() || !fits(&head.spec) {
            return None;
        }
        head.set(&mut turn, PlaceState::Reserved);
        drop((since, turn));
        Some(Reservation(head))
    }

    /// Makes the head of the line look at once, since the lock may be free.
    pub fn nudge(&self, key: &str) {
        if let Some(head) = self.head(key) {
            head.is_held.store(false, Ordering::SeqCst);
            head.nudge();
        }
    }

    /// Keeps the head of the line from asking before `until`, even if it is woken, so that other processes get their
    /// turn.
    pub fn stand_back(&self, key: &str, until: Instant) {
        if let Some(head) = self.head(key) {
            *head.stands_back.lock() = Some(until);
        }
    }

    /// The error that the head of the line got from a failing store, for the waiters behind it, which do not ask.
    pub fn trouble(&self, key: &str) -> Option<Error> {
        let head = self.head(key)?;
        if let Some(error) = head.trouble.lock().clone() {
            return Some(error);
        }
        let silent = head.asked_at.lock().map(|at| at.elapsed()).filter(|silent| *silent >= SILENT)?;
        let message = format!("another call of this client has had no answer for {:.1} s", silent.as_secs_f64());
        Some(Error::new(ErrorKind::Store, message).retryable())
    }

    /// Who holds the lock, as the head of the line saw last, for the waiters behind it, which do not ask.
    pub fn holders(&self, key: &str) -> Option<Vec<LockStatus>> {
        self.head(key)?.holders.lock().clone()
    }

    /// Notes an acquisition that is about to be sent, for as long as the returned value lives.
    pub fn note(&self, attempt: &Attempt, gets_guard: bool) -> Arc<Noted> {
        let (key, lock_id, grant) = (attempt.key.clone(), attempt.ask.lock_id.clone(), attempt.ask.grant.clone());
        let noted = Arc::new(Noted { key, lock_id, grant, gets_guard, granted: OnceLock::new() });
        let mut all = self.noted.lock();
        all.retain(|noted| noted.strong_count() > 0);
        all.push(Arc::downgrade(&noted));
        noted
    }

    /// The acquisitions that have no guard yet.
    pub fn noted(&self) -> Vec<Arc<Noted>> {
        self.noted.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The keys that somebody waits for.
    pub fn keys(&self) -> BTreeSet<String> {
        self.lines.lock().keys().cloned().collect()
    }

    /// Becomes ready when a line has ended.
    pub fn ends(&self) -> &Receiver<()> {
        &self.ends
    }

    /// The first in line, or the first behind those that hang in code of their users.
    fn head(&self, key: &str) -> Option<Arc<Place>> {
        let lines = self.lines.lock();
        let line = lines.get(key)?;
        line.iter().find(|place| !place.hangs()).or_else(|| line.front()).cloned()
    }
}

fn nudge(waiter: &Sender<()>) {
    // A full channel already contains one.
    let _ = waiter.try_send(());
}

/// Passes what a leaving waiter has found on to the next one, unless that one has found something itself.
fn pass_on<T>(from: &Mutex<Option<T>>, to: &Mutex<Option<T>>) {
    let found = from.lock().take();
    let mut next = to.lock();
    *next = next.take().or(found);
}

/// Whether code of a user's that began then has not returned for long.
fn hangs(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() >= HANGS)
}

impl PlaceState {
    fn is_handed(&self) -> bool {
        matches!(self, PlaceState::Reserved | PlaceState::Given(_))
    }
}

/// Counts one more or less if this has changed.
fn count(all: &AtomicUsize, before: bool, after: bool) {
    match (before, after) {
        (false, true) => drop(all.fetch_add(1, Ordering::SeqCst)),
        (true, false) => drop(all.fetch_sub(1, Ordering::SeqCst)),
        _ => {}
    }
}

impl Place {
    /// The only way to change its turn; returns what it was.
    fn set(&self, turn: &mut PlaceState, next: PlaceState) -> PlaceState {
        let before = std::mem::replace(turn, next);
        let is_given = |state: &PlaceState| matches!(state, PlaceState::Given(_));
        count(&self.users_code.handed, before.is_handed(), turn.is_handed());
        count(&self.users_code.given, is_given(&before), is_given(turn));
        before
    }

    /// Whether it can't take its turn, because its user's code has not returned for long.
    fn hangs(&self) -> bool {
        hangs(*self.users_code.since.lock())
    }

    fn nudge(&self) {
        nudge(&self.nudge.0);
    }
}

/// The head of a line that waits for a hand-over. Dropping it lets the waiter ask by itself again.
pub struct Reservation(Arc<Place>);

impl Reservation {
    /// What the waiter asks for.
    pub fn spec(&self) -> &LockSpec {
        &self.0.spec
    }

    /// Hands the lock over; gives it back when the waiter went away meanwhile.
    pub fn give(self, granted: Granted) -> Result<(), Box<Granted>> {
        let mut turn = self.0.turn.lock();
        if matches!(*turn, PlaceState::Gone) {
            return Err(Box::new(granted));
        }
        self.0.set(&mut turn, PlaceState::Given(Box::new(granted)));
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut turn = self.0.turn.lock();
            if matches!(*turn, PlaceState::Reserved) {
                self.0.set(&mut turn, PlaceState::Waiting);
            }
        }
        self.0.nudge();
    }
}

/// How a waiter leaves: with the lock, so that the next one must wait for it, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    WithLock,
    Without,
}

/// What a waiter at the head may do.
pub enum May {
    /// Ask the store.
    Ask,
    /// Nothing: a release is handing over to it and will nudge.
    Wait,
    /// Take what was handed over.
    Take(Box<Granted>),
}

impl Ticket {
    /// How many wait before this one, without those that hang in code of their users; zero: it is its turn.
    pub fn place(&self) -> usize {
        let lines = self.queues.lines.lock();
        let before = lines.get(&self.place.spec.key).into_iter().flatten();
        before.take_while(|place| !Arc::ptr_eq(place, &self.place)).filter(|place| !place.hangs()).count()
    }

    /// Whether its turn has come; unlike `place`, this does not count all that wait.
    pub fn is_first(&self) -> bool {
        let lines = self.queues.lines.lock();
        let mut before = lines.get(&self.place.spec.key).into_iter().flatten();
        before
            .find(|place| Arc::ptr_eq(place, &self.place) || !place.hangs())
            .is_none_or(|first| Arc::ptr_eq(first, &self.place))
    }

    /// Becomes ready when it is worth looking: the turn came, the lock may be free, or was handed over.
    pub fn nudged(&self) -> &Receiver<()> {
        &self.place.nudge.1
    }

    /// Notes since when its request is under way; `None`: it has ended.
    pub fn asks(&self, at: Option<Instant>) {
        *self.place.asked_at.lock() = at;
    }

    /// Sets the error that the waiters behind it see. They sent no write, so to them it is only that the store did not
    /// answer.
    pub fn is_in_trouble(&self, trouble: Option<Error>) {
        *self.place.trouble.lock() = trouble.map(Error::of_read);
    }

    /// Sets who holds the lock, for the waiters behind it.
    pub fn saw(&self, holders: Vec<LockStatus>) {
        *self.place.holders.lock() = Some(holders);
    }

    /// Whether the waiter may ask now; while it does, nobody hands over to it.
    pub fn may(&self) -> May {
        let mut turn = self.place.turn.lock();
        if matches!(*turn, PlaceState::Reserved) {
            return May::Wait;
        }
        match self.place.set(&mut turn, PlaceState::Asking) {
            PlaceState::Given(granted) => May::Take(granted),
            _ => May::Ask,
        }
    }

    /// Whether a release is handing over to the waiter, or has done so.
    pub fn is_handed(&self) -> bool {
        self.place.turn.lock().is_handed()
    }

    /// The waiter asked and goes on waiting.
    pub fn asked(&self) {
        let mut turn = self.place.turn.lock();
        if matches!(*turn, PlaceState::Asking) {
            self.place.set(&mut turn, PlaceState::Waiting);
        }
    }

    /// Whether the waiter before this one left the line with the lock. True only once.
    pub fn take_left_with_lock(&self) -> bool {
        self.place.is_held.swap(false, Ordering::SeqCst)
    }

    /// Until when it is other processes' turn.
    pub fn others_turn(&self) -> Option<Instant> {
        self.place.stands_back.lock().filter(|until| *until > Instant::now())
    }

    /// Leaves the line, with the lock if it was handed over meanwhile.
    pub fn leave(self, leaves: Leaves) -> Option<Box<Granted>> {
        self.go(leaves)
    }

    fn go(&self, leaves: Leaves) -> Option<Box<Granted>> {
        let key = &self.place.spec.key;
        let before = self.place.set(&mut self.place.turn.lock(), PlaceState::Gone);
        if matches!(before, PlaceState::Gone) {
            return None;
        }
        let mut was_first = false;
        {
            let mut lines = self.queues.lines.lock();
            if let Some(line) = lines.get_mut(key) {
                was_first = line.front().is_some_and(|place| Arc::ptr_eq(place, &self.place));
                line.retain(|place| !Arc::ptr_eq(place, &self.place));
                if line.is_empty() {
                    lines.remove(key);
                    // A full channel already contains one.
                    let _ = self.queues.ended.try_send(());
                }
            }
        }
        pause!("line.left");
        if let Some(head) = self.queues.head(key) {
            let share = [&head.spec, &self.place.spec].iter().all(|spec| spec.mode == Mode::Shared);
            let has_lock = leaves == Leaves::WithLock || matches!(before, PlaceState::Given(_));
            head.is_held.store(has_lock && !share, Ordering::SeqCst);
            if has_lock {
                // The holders that the new head saw when it asked, before it joined the line, do not hold the lock any
                // more.
                *head.holders.lock() = None;
            } else {
                // The new head has not asked yet: until it does, it knows what the one before it knew.
                pass_on(&self.place.trouble, &head.trouble);
                if was_first {
                    pass_on(&self.place.holders, &head.holders);
                }
            }
            head.nudge();
        }
        match before {
            PlaceState::Given(granted) => Some(granted),
            _ => None,
        }
    }
}

impl Drop for Ticket {
    /// For a waiter that did not call `leave`.
    fn drop(&mut self) {
        self.go(Leaves::Without);
    }
}

#[cfg(test)]
#[path = "queue_orders.rs"]
mod orders;
