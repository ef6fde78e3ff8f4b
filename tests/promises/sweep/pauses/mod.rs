//! A complete sweep of the moments at which a thread of the library may be stopped: each mark of the sources
//! (`src/sys/pause.rs`) x each event that may happen meanwhile x each store. The thread is stopped at the mark, the
//! event happens, and the thread goes on. At no time may two clients believe that they hold the key, nothing may hang,
//! and nothing may be left.
//!
//! Memory and SQLite always; the servers where `LEASEHOLD_TEST_LONG` is set.

mod scenes;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold::internals::store::Backend;
use leasehold::internals::store::fault::{FaultPlan, Faulty};
use leasehold::internals::sys::pause::Stop;
use leasehold::{CancelToken, Filter, Lock, LockClient, LockGuard, Result};
use parking_lot::Mutex;

use crate::support::alone::alone_for;
use crate::support::harness::{PATIENCE, millis, within};
use crate::support::stores::{Opened, Store, for_each_store, on};
use crate::support::threads::none_soon;
use scenes::{Scene, all};

/// No heartbeat is due while a case lasts, and an acquire sets this lease at once, without a renewal.
const LEASE: Duration = Duration::from_secs(60);
/// A bound that nothing should reach.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = millis(300);
/// How long all marks may take if each case makes a table on a server, which may be as slow as Spanner's emulator.
const A_SERVER: Duration = Duration::from_secs(3_600);
/// How often in a row another thread may have done the work for which a thread should come to its mark.
const TRIES: usize = 20;
/// Fewer marks would make the sweep worthless.
const LEAST_MARKS: usize = 36;

/// What happens while a thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    LeaseEnds,
    /// The lease ends, and a rival is granted the key.
    TakenOver,
    /// A `close` has begun and waits for the thread.
    Closed,
    /// A `close` has reached its bound without the thread.
    ClosedInTime,
    /// Guard and client are dropped.
    Dropped,
    Cancelled,
}

/// What an actor has when it ends.
pub enum Got {
    Guard(LockGuard),
    Lock(Box<Lock>),
    Nothing,
}

impl Got {
    fn of(answer: Result<Option<LockGuard>>) -> Got {
        answer.ok().flatten().map_or(Got::Nothing, Got::Guard)
    }

    fn won(answer: Result<LockGuard>) -> Got {
        answer.map_or(Got::Nothing, Got::Guard)
    }
}

/// A store, a client one of whose threads is stopped, and all others that take part.
pub struct Room {
    pub opened: Opened,
    pub plan: FaultPlan,
    /// `None` after it was dropped.
    pub client: Mutex<Option<LockClient>>,
    pub cancel: CancelToken,
    /// A lock that was handed over as data.
    pub lock: Mutex<Option<Lock>>,
    others: LockClient,
    is_closed: AtomicBool,
    is_told: bool,
    /// Whether closes and drops have hardly any time.
    pub is_hurried: bool,
    /// What the client's user or its waiter holds.
    hand: Arc<Mutex<Vec<LockGuard>>>,
    /// What other clients hold from the start.
    theirs: Mutex<Vec<LockGuard>>,
    rival: Mutex<Option<LockGuard>>,
    waiter: Mutex<Option<JoinHandle<()>>>,
}

impl Room {
    fn new(store: &Store, bound: Duration) -> Room {
        let opened = (store.open)();
        let plan = FaultPlan::default();
        let faulty: Arc<dyn Backend> = Arc::new(Faulty::new(opened.store.clone(), plan.clone()));
        let over = |store: Arc<dyn Backend>| leasehold::internals::builder_over(store, opened.clock.clone());
        let client = over(faulty).lease(LEASE).poll(millis(5)..=millis(20)).owner("one");
        let client = client.request_timeout(LONG).drop_timeout(bound).connect().expect("a client");
        let others = over(opened.second.clone()).lease(LEASE).poll(millis(5)..=millis(20));
        let others = others.request_timeout(LONG).drop_timeout(LONG);
        Room {
            plan,
            client: Mutex::new(Some(client)),
            cancel: CancelToken::new(),
            lock: Mutex::default(),
            others: others.connect().expect("others"),
            is_closed: AtomicBool::new(false),
            is_told: store.tells,
            is_hurried: bound < LONG,
            hand: Arc::default(),
            theirs: Mutex::default(),
            rival: Mutex::default(),
            waiter: Mutex::default(),
            opened,
        }
    }

    /// The client, which no event has dropped yet: scenes begin with it.
    pub fn client(&self) -> LockClient {
        self.client.lock().clone().expect("the client is there")
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    pub fn has(&self, guard: LockGuard) {
        self.hand.lock().push(guard);
    }

    pub fn taken(&self) -> Option<LockGuard> {
        self.hand.lock().pop()
    }

    pub fn held_by_others(&self, keys: &[&str]) {
        let guards = keys.iter().map(|key| self.others.lock(key).expect("it is free"));
        self.theirs.lock().extend(guards);
    }

    /// Lets every lease end.
    pub fn outlast(&self) {
        self.opened.outlast(4 * LEASE);
    }

    /// From now on another call of this client waits for the key.
    fn begin_to_wait(self: &Room) {
        let (waits, is_waiting) = crossbeam_channel::bounded(1);
        let on_wait = move |_: &leasehold::Waiting| {
            // Only the first report matters.
            let _ = waits.try_send(());
        };
        let request = self.client().request("k").cancel(&self.cancel).wait(LONG).on_wait(on_wait);
        let hand = self.hand.clone();
        let waiter = std::thread::spawn(move || {
            if let Ok(guard) = request.lock() {
                hand.lock().push(guard);
            }
        });
        is_waiting.recv_timeout(PATIENCE).expect("it waits");
        *self.waiter.lock() = Some(waiter);
    }

    /// How many guards believe that they hold the key.
    fn believers(&self, got: &Got) -> usize {
        let (hand, rival) = (self.hand.lock(), self.rival.lock());
        let got = if let Got::Guard(guard) = got { Some(guard) } else { None };
        hand.iter().chain(&*rival).chain(got).filter(|guard| guard.key() == "k" && guard.is_held()).count()
    }
}

struct Case<'a> {
    store: &'a Store,
    scene: &'a Scene,
    point: &'static str,
    event: Event,
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} at {}, {:?}", self.store.module, self.scene.name, self.point, self.event)
    }
}

impl Case<'_> {
    /// Returns whether a thread came to the mark.
    fn run(&self) -> bool {
        let room = Room::new(self.store, if self.event == Event::ClosedInTime { SHORT } else { LONG });
        let room = Arc::new(room);
        (self.scene.prepare)(&room);
        let tokens = self.tokens(&room);
        let mut stop = Stop::at(self.point);
        let act = self.scene.act;
        let actor = std::thread::spawn({
            let room = room.clone();
            move || act(&room)
        });
        self.free(&room, &stop);
        self.comes("a thread comes there", || stop.is_reached() || self.needs_nobody(&stop, &actor));
        if !stop.is_reached() {
            drop((stop, actor.join().expect("no panic")));
            self.waiter_ends(&room);
            drop(room);
            none_soon();
            return false;
        }
        let ending = self.happens(&room, &stop);
        assert!(room.believers(&Got::Nothing) <= 1, "{self}: two hold it while it is stopped");
        let turns = |stop: &Stop| stop.count("wait.sleeps") + stop.count("any.sleeps");
        let before = turns(&stop);
        // With this event the thread sees next that the lock is lost. Otherwise a library thread may have nothing to do
        // for long.
        let is_lost = [Event::LeaseEnds, Event::TakenOver].contains(&self.event);
        let has_more = !self.point.starts_with("wake.") && (is_lost || !self.scene.is_of_library);
        stop.step();
        self.comes("the thread goes on", || !has_more || stop.has_gone_on());
        assert!(room.believers(&Got::Nothing) <= 1, "{self}: two hold it a step later");
        stop.let_go();
        // A waiter has looked again.
        let goes_on = || actor.is_finished() || (self.scene.is_freed && turns(&stop) > before);
        self.comes("it goes on", goes_on);
        assert!(room.believers(&Got::Nothing) <= 1, "{self}: two hold it afterwards");
        let mut actor = Some(actor);
        let mut got = Got::Nothing;
        if actor.as_ref().is_some_and(JoinHandle::is_finished) {
            got = actor.take().expect("the actor").join().expect("no panic");
            assert!(room.believers(&got) <= 1, "{self}: two hold it in the end");
        }
        if let Some(rival) = room.rival.lock().take() {
            assert!(rival.is_held(), "{self}: the rival lost it");
            let stands = room.others.get("k").expect("a look").is_some_and(|status| {
                status.holders().iter().any(|holder| holder.fencing_token() == rival.fencing_token())
            });
            assert!(stands, "{self}: somebody ended the rival's lock");
            rival.release().unwrap_or_else(|error| panic!("{self}: somebody ended the rival's lock: {error}"));
        }
        // What others held from the start may have ended meanwhile.
        room.theirs.lock().drain(..).for_each(|guard| drop(guard.release()));
        if let Some(actor) = actor {
            self.comes("it ends", || actor.is_finished());
            got = actor.join().expect("no panic");
        }
        if let Some(ending) = ending {
            self.comes("what happened meanwhile ends", || ending.is_finished());
            ending.join().expect("no panic");
        }
        if self.event == Event::ClosedInTime {
            // The thread that releases it may get its turn only after the bound.
            self.comes("a closed client holds nothing", || room.believers(&got) == 0);
        }
        let is_closed = [Event::Closed, Event::ClosedInTime].contains(&self.event);
        assert!(!is_closed || room.believers(&got) == 0, "{self}: it is held by a closed client");
        self.is_right(&room, got);
        self.waiter_ends(&room);
        self.nothing_is_left(&room, tokens);
        drop(stop);
        drop(room);
        none_soon();
        true
    }

    /// Whether nothing is left for which a thread would come to the mark.
    fn needs_nobody(&self, stop: &Stop, actor: &JoinHandle<Got>) -> bool {
        match self.point {
            // A waiter that looks just as the key is freed is not woken.
            "wake.told" => actor.is_finished(),
            // The watcher read the clock just before it was moved, and then started a heartbeat, which found the loss.
            "watch.expires" => stop.count("loss.declared") > 0,
            // Nothing is handed over to a waiter that is just reporting that it waits.
            point if point.starts_with("hand.") => actor.is_finished(),
            _ => false,
        }
    }

    /// Asserts that the actor's lock is valid, unless its lease is over.
    fn is_right(&self, room: &Room, got: Got) {
        let Got::Lock(lock) = got else { return };
        let adopted = room.others.adopt(*lock);
        match self.event {
            Event::TakenOver => assert!(adopted.is_err(), "{self}: it was adopted although a rival had it"),
            // Nothing ended this lock.
            Event::Cancelled | Event::Dropped => drop(adopted.unwrap_or_else(|error| panic!("{self}: {error}"))),
            Event::LeaseEnds | Event::Closed | Event::ClosedInTime => {}
        }
    }

    #[track_caller]
    fn comes(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "{self}: not within {:?}: {what}", PATIENCE);
            std::thread::sleep(millis(1));
        }
    }

    /// Others free the key once the actor waits for it, unless the actor is stopped before that.
    fn free(&self, room: &Room, stop: &Stop) {
        if !self.scene.is_freed {
            return;
        }
        let looked = || stop.count("wait.looked") + stop.count("any.sleeps") > 0;
        let is_watched = || !room.is_told || stop.count("wake.watches") > 0;
        self.comes("it waits", || stop.is_reached() || (looked() && is_watched()));
        if !stop.is_reached() {
            room.theirs.lock().drain(..).for_each(|guard| guard.release().expect("a release"));
        }
    }

    fn happens(&self, room: &Arc<Room>, stop: &Stop) -> Option<JoinHandle<()>> {
        match self.event {
            Event::LeaseEnds => room.outlast(),
            Event::TakenOver => {
                room.outlast();
                // A waiter of the client may be faster.
                *room.rival.lock() = room.others.try_lock("k").expect("an answer");
                let may_be_faster = self.scene.has_waiter() || self.scene.is_freed;
                let is_held = room.rival.lock().is_some() || may_be_faster;
                assert!(is_held, "{self}: its lease is over, and nobody gets it");
            }
            Event::Cancelled => {
                room.cancel.cancel();
                self.waiter_goes(room, stop);
            }
            Event::Closed => {
                let client = room.client.lock().clone()?;
                let begun = stop.count("close.begun");
                let closing = std::thread::spawn(move || client.close().expect("it closes"));
                self.comes("the close begins", || stop.count("close.begun") > begun);
                self.waiter_goes(room, stop);
                return Some(closing);
            }
            Event::ClosedInTime => {
                let client = room.client.lock().clone()?;
                // The error says what the close could not release.
                let _ = within(&format!("{self}: a close"), SHORT, || client.close());
                room.is_closed.store(true, Ordering::SeqCst);
            }
            Event::Dropped => {
                let (client, hand) = (room.client.lock().take(), room.hand.clone());
                let begun = stop.count("drop.begun");
                let has_guard = !hand.lock().is_empty();
                let dropping = std::thread::spawn(move || {
                    let guards = std::mem::take(&mut *hand.lock());
                    drop((guards, client));
                });
                self.comes("the drop begins", || {
                    !has_guard || stop.count("drop.begun") > begun || dropping.is_finished()
                });
                return Some(dropping);
            }
        }
        None
    }

    /// Waits until the waiter has gone, unless it is the thread that is stopped.
    fn waiter_goes(&self, room: &Room, stop: &Stop) {
        if let Some(waiter) = &*room.waiter.lock() {
            let is_stopped = stop.thread() == Some(waiter.thread().id());
            self.comes("the waiter goes", || is_stopped || waiter.is_finished());
        }
    }

    fn waiter_ends(&self, room: &Room) {
        let guards = std::mem::take(&mut *room.hand.lock());
        drop(guards);
        if let Some(waiter) = room.waiter.lock().take() {
            self.comes("the waiter ends", || waiter.is_finished());
            waiter.join().expect("no panic");
        }
        let guards = std::mem::take(&mut *room.hand.lock());
        drop(guards);
    }

    /// The highest token of each key.
    fn tokens(&self, room: &Room) -> [u64; 2] {
        ["k", "k2"].map(|key| room.others.get(key).expect("a look").map_or(0, |status| status.fencing_token()))
    }

    fn nothing_is_left(&self, room: &Room, before: [u64; 2]) {
        room.plan.heal();
        let client = room.client.lock().take();
        if let Some(client) = client {
            let closed = client.close();
            assert!(closed.is_ok() || room.is_closed(), "{self}: {closed:?}");
        }
        // What a call obtained after the bound of a close ends with its lease, and so does a lock that is data.
        let ends_by_itself = self.scene.leaves || self.event == Event::ClosedInTime;
        if ends_by_itself {
            room.outlast();
        }
        let live = || {
            let locks = room.others.list(&Filter::new()).expect("a list");
            locks.into_iter().filter(|lock| !lock.is_expired()).map(|lock| lock.to_string()).collect::<Vec<_>>()
        };
        self.comes(&format!("nothing is left: {:?}", live()), || live().is_empty());
        for (key, token) in ["k", "k2"].into_iter().zip(before) {
            let guard = room.others.try_lock(key).expect("an answer");
            let guard = guard.unwrap_or_else(|| panic!("{self}: {key} is still held"));
            assert!(guard.fencing_token() > token, "{self}: {} after {token}", guard.fencing_token());
            guard.release().expect("a release");
        }
        room.others.close().expect("they close");
    }
}

/// The names of all marks in the sources.
fn marks() -> Vec<String> {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../src")];
    let mut marks = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the sources") {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                let names = code.filter_map(|line| line.split_once("pause!(\"")?.1.split_once('"'));
                marks.extend(names.map(|(name, _)| name.to_owned()));
            }
        }
    }
    marks
}

/// A mark that no scene reaches would not be swept.
#[test]
fn every_mark_of_the_sources_is_swept() {
    let marks = marks();
    let names: BTreeSet<&str> = marks.iter().map(String::as_str).collect();
    assert_eq!(names.len(), marks.len(), "two marks have one name: {marks:?}");
    assert!(names.len() >= LEAST_MARKS, "only {} marks", names.len());
    let scenes = all();
    let swept: BTreeSet<&str> =
        scenes.iter().flat_map(|scene| scene.points.iter().chain(scene.if_told)).copied().collect();
    assert_eq!(names, swept, "the marks of the sources, and those of the scenes");
}

fn at_every_mark(store: &Store, event: Event) {
    let (mut cases, mut wrong) = (0, Vec::new());
    let only = std::env::var("LEASEHOLD_TEST_MARK").ok();
    for scene in &all() {
        let told = scene.if_told.iter().filter(|_| store.tells);
        for point in scene.points.iter().chain(told).filter(|point| only.as_ref().is_none_or(|only| only == *point)) {
            let case = Case { store, scene, point, event };
            cases += 1;
            let comes = || assert!((0..TRIES).any(|_| case.run()), "{case}: nobody ever came there");
            if catch_unwind(AssertUnwindSafe(comes)).is_err() {
                wrong.push(case.to_string());
            }
        }
    }
    assert!(wrong.is_empty(), "wrong, for the reasons above: {wrong:#?}");
    println!("{}, {event:?}: {cases} cases", store.module);
}

macro_rules! sweep {
    ($store:ident) => {
        mod $store {
            sweep!(@ $store the_lease_ends LeaseEnds);
            sweep!(@ $store a_rival_takes_over TakenOver);
            sweep!(@ $store the_client_is_closed Closed);
            sweep!(@ $store a_close_ends_in_time ClosedInTime);
            sweep!(@ $store all_is_dropped Dropped);
            sweep!(@ $store the_wait_is_cancelled Cancelled);
        }
    };
    (@ $store:ident $test:ident $event:ident) => {
        #[test]
        fn $test() {
            super::alone_on(stringify!($store), stringify!($test), super::Event::$event);
        }
    };
}
for_each_store!(sweep);

fn alone_on(store: &str, test: &str, event: Event) {
    if super::is_swept(store) {
        let limit = if super::is_local(store) { PATIENCE * 20 } else { A_SERVER };
        alone_for(&format!("sweep::pauses::{store}::{test}"), limit, || on(store, |store| at_every_mark(store, event)));
    }
}
