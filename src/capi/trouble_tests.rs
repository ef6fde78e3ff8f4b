//! Tests of what no program in C can bring about: a store that fails, and callbacks that take long at that moment.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::admin::leasehold_client_diagnose;
use super::callback::Callback;
use super::client::{Client, ClientHandle, leasehold_client_close, leasehold_client_free};
use super::client_lock::leasehold_client_try_lock;
use super::code::Code;
use super::election::{
    ElectionData, ElectionHandle, leasehold_election_free, leasehold_election_new, leasehold_election_run,
    leasehold_election_set_on_lost, leasehold_election_set_on_won,
};
use super::error::{leasehold_error_held_by_this_client, leasehold_error_is_retryable};
use super::event::{EventFn, EventInfo, EventKind, Events};
use super::failure;
use super::guard::{
    Guard, GuardHandle, leasehold_guard_ensure_held, leasehold_guard_free, leasehold_guard_into_lock,
    leasehold_guard_is_held, leasehold_guard_release,
};
use super::guards::{GuardsHandle, leasehold_guards_ensure_held, leasehold_guards_free};
use super::handle;
use super::list::leasehold_client_create_schema;
use super::lock::LockHandle;
use super::logging::{LogHandle, LogLevel, LogRecord, leasehold_log_free, leasehold_log_new};
use super::loss::{LossFn, LossInfo, Watch};
use super::request::{
    RequestHandle, leasehold_request_add_key, leasehold_request_free, leasehold_request_lock,
    leasehold_request_lock_all, leasehold_request_new, leasehold_request_new_all, leasehold_request_set_lease,
    leasehold_request_set_on_loss, leasehold_request_set_warn_before,
};
use crate::ClientBuilder;
use crate::model::loss::{Loss, LossReason};
use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
use crate::store::memory::Memory;
use crate::sys::aside::{Aside, MOST_WAITING};
use crate::sys::clock::Clock;

/// A bound that runs out during the test.
const BRIEF: Duration = Duration::from_millis(300);
/// One within which even a busy machine answers.
const LONG: Duration = Duration::from_secs(20);

/// The handle of a client whose requests may fail, and the plan of its faults.
fn client(drop_timeout: Duration) -> (ClientHandle, FaultPlan) {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let client = ClientBuilder::over(Arc::new(store), clock).request_timeout(LONG).drop_timeout(drop_timeout).connect();
    let client = client.ok().and_then(|client| handle::insert(Client::new(client, None)).ok());
    (client.expect("a client"), faults)
}

fn try_lock(client: ClientHandle, guard: &mut GuardHandle) -> Code {
    // SAFETY: a text, and a place that can be written to.
    unsafe { leasehold_client_try_lock(client, "k".as_ptr().cast(), 1, guard) }
}

fn is_held(guard: GuardHandle) -> bool {
    let mut held = false;
    // SAFETY: a place that can be written to.
    assert_eq!(unsafe { leasehold_guard_is_held(guard, &mut held) }, Code::Ok);
    held
}

#[test]
fn a_release_that_failed_can_be_called_again() {
    // One release runs out of it, and the next one must not.
    let (client, faults) = client(Duration::from_secs(3));
    let (mut guard, mut other) = (GuardHandle::default(), GuardHandle::default());
    assert_eq!(try_lock(client, &mut guard), Code::Ok);
    assert!(is_held(guard) && leasehold_guard_ensure_held(guard) == Code::Ok);
    faults.always(Call::Release, Fault::FailBefore);
    let failed = leasehold_guard_release(guard);
    assert!(failed == Code::Store && leasehold_error_is_retryable(), "{failed:?}");
    assert!(!is_held(guard), "who gave it up must not go on");
    assert_eq!(try_lock(client, &mut other), Code::Held);
    assert!(!leasehold_error_is_retryable());
    faults.heal();
    assert_eq!(leasehold_guard_release(guard), Code::Ok);
    assert_eq!(leasehold_guard_release(guard), Code::Closed);
    assert_eq!(try_lock(client, &mut other), Code::Ok);
    assert_eq!(try_lock(client, &mut GuardHandle::default()), Code::Held);
    assert!(leasehold_error_held_by_this_client());
    assert_eq!([guard, other].map(|guard| leasehold_guard_free(guard)), [Code::Ok; 2]);
    assert_eq!(leasehold_client_free(client), Code::Ok);
}

#[test]
fn what_the_store_refuses_is_told() {
    let (client, faults) = client(LONG);
    faults.next(Call::Schema, Fault::Refuse);
    assert_eq!(leasehold_client_create_schema(client), Code::Permission);
    let message = failure::message();
    assert!(message.ends_with("refused the request: permission denied"), "with its cause: {message}");
    assert_eq!(leasehold_client_create_schema(client), Code::Ok);
    let (mut well, mut text) = (true, [0; 2048]);
    faults.always(Call::Acquire, Fault::Refuse);
    // SAFETY: places that can be written to.
    let code =
        unsafe { leasehold_client_diagnose(client, &mut well, text.as_mut_ptr(), text.len(), std::ptr::null_mut()) };
    // SAFETY: it was written with a NUL at its end.
    let text = unsafe { std::ffi::CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    assert!(code == Code::Ok && !well && text.contains("acquire a lock: failed: "), "{code:?}: {text}");
    assert_eq!(leasehold_client_free(client), Code::Ok);
}

#[test]
fn what_an_operator_released_stays_lost() {
    let ((client, _), mut guard) = (client(LONG), GuardHandle::default());
    assert_eq!(try_lock(client, &mut guard), Code::Ok);
    assert!(handle::get::<Client>(client).is_ok_and(|client| client.api.force_release("k").is_ok()));
    for _ in 0..2 {
        assert_eq!(leasehold_guard_release(guard), Code::Lost);
        assert_eq!(leasehold_guard_ensure_held(guard), Code::Lost);
    }
    // There is nothing to hand over, and no handle for it is made.
    let mut lock = LockHandle::default();
    // SAFETY: a place that can be written to.
    assert_eq!(unsafe { leasehold_guard_into_lock(guard, &mut lock) }, Code::Lost);
    assert_eq!(lock, LockHandle::default());
    assert_eq!((leasehold_guard_free(guard), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}

#[test]
fn a_close_whose_release_fails_says_so() {
    let ((client, faults), mut guard) = (client(BRIEF), GuardHandle::default());
    assert_eq!(try_lock(client, &mut guard), Code::Ok);
    faults.always(Call::Release, Fault::FailBefore);
    assert_eq!(leasehold_client_close(client), Code::Store);
    // A close waits only for so long until all that is held knows it.
    let by = Instant::now() + LONG;
    while is_held(guard) && Instant::now() < by {
        std::thread::yield_now();
    }
    assert!(!is_held(guard));
    assert_eq!(leasehold_guard_ensure_held(guard), Code::Closed);
    assert!(failure::message().ends_with(failure::ENDING), "{}", failure::message());
    assert_eq!((leasehold_guard_free(guard), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}

#[test]
fn what_a_close_has_released_cannot_be_released_again() {
    let ((client, _), mut guard) = (client(LONG), GuardHandle::default());
    assert_eq!((try_lock(client, &mut guard), leasehold_client_close(client)), (Code::Ok, Code::Ok));
    assert_eq!(leasehold_guard_ensure_held(guard), Code::Closed);
    assert!(failure::message().ends_with(failure::ENDED), "{}", failure::message());
    assert_eq!((leasehold_guard_free(guard), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}

struct Talk {
    entered: Sender<()>,
    leave: Receiver<()>,
}

unsafe extern "C" fn talks(_: *const LossInfo, user: *mut c_void) {
    // SAFETY: the test leaks it.
    let talk = unsafe { &*user.cast::<Talk>() };
    let _ = talk.entered.send(());
    let _ = talk.leave.recv();
}

#[test]
fn freeing_a_guard_waits_for_its_callback() {
    let (client, _) = client(BRIEF);
    let Ok(held) = handle::get::<Client>(client).map(|client| client.api.lock("k")) else { panic!("no client") };
    let ((entered, enters), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let talk: &'static Talk = Box::leak(Box::new(Talk { entered, leave }));
    let watch = Watch::new(Some(Callback { function: talks as LossFn, user: (&raw const *talk).cast_mut().cast() }));
    let guard = held.ok().and_then(|held| handle::insert(Guard::new(held, watch.clone())).ok()).expect("a guard");
    let loss = Loss { reason: LossReason::Gone, key: "k".to_owned(), fencing_token: 1, held_for: Duration::ZERO };
    std::thread::spawn(move || watch.lost(&loss));
    assert_eq!(enters.recv(), Ok(()));
    let (freed, frees) = bounded(1);
    std::thread::spawn(move || freed.send(leasehold_guard_free(guard)));
    assert!(frees.recv_timeout(Duration::from_secs(1)).is_err(), "`user` may be freed while it is used");
    drop(leaves);
    assert_eq!(frees.recv(), Ok(Code::Ok));
    assert_eq!(leasehold_client_free(client), Code::Ok);
}

unsafe extern "C" fn wins(_: u64, user: *mut c_void) {
    // SAFETY: as above.
    unsafe { talks(std::ptr::null(), user) };
}

static LOST: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn loses(_: u64, _: *const c_char, _: usize, _: *mut c_void) {
    LOST.store(true, Ordering::SeqCst);
}

/// The callback takes longer than the drop timeout, and the next callback is due before it returns.
#[test]
fn no_callback_of_an_election_begins_once_it_is_freed() {
    let ((client, _), mut election) = (client(BRIEF), ElectionHandle::default());
    let ((entered, enters), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let talk: &'static Talk = Box::leak(Box::new(Talk { entered, leave }));
    let user = (&raw const *talk).cast_mut().cast();
    // SAFETY: a text, a place that can be written to, and functions that any thread may call.
    let set = unsafe {
        [
            leasehold_election_new(client, "job".as_ptr().cast(), 3, &mut election),
            leasehold_election_set_on_won(election, Some(wins), user),
            leasehold_election_set_on_lost(election, Some(loses), user),
        ]
    };
    assert_eq!((set, leasehold_election_run(election)), ([Code::Ok; 3], Code::Ok));
    assert_eq!(enters.recv(), Ok(()));
    let Ok(inside) = handle::get::<ElectionData>(election) else { panic!("no election") };
    let (freed, frees) = bounded(1);
    std::thread::spawn(move || freed.send(leasehold_election_free(election)));
    assert!(frees.recv_timeout(Duration::from_secs(1)).is_err(), "`user` may be freed while it is used");
    // Freeing must have closed the gate before the callback returns: otherwise the next callback may still be called.
    let by = std::time::Instant::now() + LONG;
    while !inside.is_closed() {
        assert!(std::time::Instant::now() < by, "it goes on calling");
        std::thread::yield_now();
    }
    drop((leaves, inside));
    assert_eq!(frees.recv(), Ok(Code::Ok));
    // The election's thread would call it at once.
    let late = std::time::Instant::now() + Duration::from_millis(300);
    while std::time::Instant::now() < late {
        assert!(!LOST.load(Ordering::SeqCst), "it was called after that");
        std::thread::yield_now();
    }
    assert_eq!(leasehold_client_free(client), Code::Ok);
}

static LEFT: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn warns(left_ms: u64, user: *mut c_void) {
    // SAFETY: as above.
    let talk = unsafe { &*user.cast::<Talk>() };
    LEFT.store(left_ms, Ordering::SeqCst);
    let _ = talk.entered.send(());
    let _ = talk.leave.recv();
}

/// Renewals fail, and the guard is freed while the callback of the warning runs.
#[test]
fn a_loss_that_may_come_is_told_before() {
    let ((client, faults), mut request, mut guard) = (client(BRIEF), RequestHandle::default(), GuardHandle::default());
    let ((entered, enters), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let talk: &'static Talk = Box::leak(Box::new(Talk { entered, leave }));
    // SAFETY: a text, places that can be written to, and a function that any thread may call.
    let set = unsafe {
        [
            leasehold_request_new(client, c"k".as_ptr(), usize::MAX, &mut request),
            leasehold_request_set_lease(request, 12_000),
            leasehold_request_set_warn_before(request, 6_000, Some(warns), (&raw const *talk).cast_mut().cast()),
            leasehold_request_lock(request, &mut guard),
        ]
    };
    assert_eq!(set, [Code::Ok; 4]);
    faults.always(Call::Renew, Fault::FailBefore);
    assert_eq!(enters.recv_timeout(LONG), Ok(()), "nobody was warned");
    assert!((1..=6_000).contains(&LEFT.load(Ordering::SeqCst)));
    let (freed, frees) = bounded(1);
    std::thread::spawn(move || freed.send(leasehold_guard_free(guard)));
    assert!(frees.recv_timeout(Duration::from_secs(1)).is_err(), "`user` may be freed while it is used");
    drop(leaves);
    assert_eq!(frees.recv(), Ok(Code::Ok));
    assert_eq!((leasehold_request_free(request), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}

/// Hangs on the thread that the message comes from, but not where another thread passes the message on.
unsafe extern "C" fn hangs_here(record: *const LogRecord, user: *mut c_void) {
    // SAFETY: the test leaks it, and the record is there during the call.
    let (talk, text) = unsafe { (&*user.cast::<Talk>(), std::ffi::CStr::from_ptr((*record).text)) };
    let is_here = std::thread::current().name() == Some("says that it is slow");
    if is_here && text.to_string_lossy().contains("is too slow") {
        let _ = talk.leave.recv();
    }
}

/// All places of the queue are taken, as when no thread could be started before.
#[test]
fn a_logger_that_hangs_does_not_keep_what_waits_from_being_told() {
    let ((entered, enters), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let talk: &'static Talk = Box::leak(Box::new(Talk { entered, leave }));
    let (mut log, user) = (LogHandle::default(), (&raw const *talk).cast_mut().cast());
    // SAFETY: a place that can be written to, and a function that any thread may call.
    let code = unsafe { leasehold_log_new(LogLevel::Warn as i32, Some(hangs_here), user, &mut log) };
    assert_eq!(code, Code::Ok);
    let (aside, (stays, stay), (hung, hangs)) = (Aside::default(), bounded::<()>(0), bounded(1));
    aside.leave(Box::new(move || {
        hung.send(()).unwrap_or_default();
        stay.recv().unwrap_or_default();
    }));
    assert_eq!(hangs.recv_timeout(LONG), Ok(()));
    aside.leave(Box::new(|| talk.entered.send(()).unwrap_or_default()));
    (1..MOST_WAITING).for_each(|_| aside.leave(Box::new(|| ())));
    // As if the thread that hangs were gone.
    aside.tell_all(Some(std::time::Instant::now()));
    let says = move || aside.leave(Box::new(|| ()));
    let says = std::thread::Builder::new().name("says that it is slow".to_owned()).spawn(says);
    let told = enters.recv_timeout(LONG);
    drop((leaves, stays));
    assert_eq!(told, Ok(()), "what waits is told by nobody");
    assert!(says.is_ok_and(|says| says.join().is_ok()));
    assert_eq!(leasehold_log_free(log), Code::Ok);
}

#[derive(Default)]
struct Losses(AtomicU64);

impl crate::Observer for Losses {
    fn event(&self, event: &crate::Event<'_>) {
        self.0.fetch_add(u64::from(matches!(event, crate::Event::Lost { .. })), Ordering::SeqCst);
    }
}

/// One of several locks is lost while the call waits for another, and is obtained again: only a later loss counts.
#[test]
fn a_loss_before_all_were_had_is_not_that_of_the_guard() {
    let (clock, losses) = (Clock::system(), Arc::new(Losses::default()));
    let builder = ClientBuilder::over(Arc::new(Memory::open("", clock.clone())), clock).observer(losses.clone());
    let builder = builder.lease(LONG).heartbeat(Duration::from_millis(100));
    let Ok(api) = builder.connect() else { panic!("no client") };
    let Ok(rival) = api.lock("b") else { panic!("no lock") };
    let Ok(client) = handle::insert(Client::new(api.clone(), None)) else { panic!("no handle") };
    let (mut request, mut guards) = (RequestHandle::default(), GuardsHandle::default());
    let ((entered, enters), (leaves, leave)) = (bounded(1), bounded::<()>(0));
    let talk: &'static Talk = Box::leak(Box::new(Talk { entered, leave }));
    // SAFETY: texts, a place that can be written to, and a function that any thread may call.
    let set = unsafe {
        [
            leasehold_request_new_all(client, &mut request),
            leasehold_request_add_key(request, c"a".as_ptr(), 1),
            leasehold_request_add_key(request, c"b".as_ptr(), 1),
            leasehold_request_set_on_loss(request, Some(talks), (&raw const *talk).cast_mut().cast()),
        ]
    };
    assert_eq!(set, [Code::Ok; 4]);
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !done() {
            assert!(began.elapsed() < LONG, "{what}");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        // SAFETY: a place that can be written to.
        let locks = scope.spawn(|| unsafe { leasehold_request_lock_all(request, &mut guards) });
        until("it takes the first", &|| api.held().iter().any(|lock| lock.key() == "a"));
        assert!(api.force_release("a").is_ok());
        until("the first is lost", &|| losses.0.load(Ordering::SeqCst) == 1);
        drop(rival);
        assert!(matches!(locks.join(), Ok(Code::Ok)));
    });
    assert!(leasehold_guards_ensure_held(guards) == Code::Ok && enters.is_empty());
    assert!(api.force_release("a").is_ok());
    assert_eq!(enters.recv_timeout(LONG), Ok(()), "the loss is not told");
    let (freed, frees) = bounded(1);
    std::thread::spawn(move || freed.send(leasehold_guards_free(guards)));
    assert!(frees.recv_timeout(Duration::from_secs(1)).is_err(), "`user` may be freed while it is used");
    drop(leaves);
    assert_eq!(frees.recv(), Ok(Code::Ok));
    assert_eq!((leasehold_request_free(request), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}

/// Ends the guard or the client of a lock on the thread of the heartbeat that finds it lost.
struct AtLoss {
    handle: AtomicU64,
    end: fn(u64) -> Code,
    ended: Sender<Code>,
}

unsafe extern "C" fn ends_at_loss(event: *const EventInfo, user: *mut c_void) {
    // SAFETY: the test leaks it, and the event is there during the call.
    let (at, event) = unsafe { (&*user.cast::<AtLoss>(), &*event) };
    if event.kind == EventKind::Lost {
        let _ = at.ended.send((at.end)(at.handle.load(Ordering::SeqCst)));
    }
}

static LEFT_BEHIND: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn hears_of_heartbeat(record: *const LogRecord, _: *mut c_void) {
    // SAFETY: the record is there during the call.
    let text = unsafe { std::ffi::CStr::from_ptr((*record).text) };
    LEFT_BEHIND.fetch_or(text.to_string_lossy().contains("lock \"ends itself\" that hangs"), Ordering::SeqCst);
}

#[test]
fn a_heartbeat_whose_event_ends_its_guard_or_client_does_not_wait_for_itself() {
    let mut log = LogHandle::default();
    // SAFETY: a place that can be written to, and a function that any thread may call.
    let code =
        unsafe { leasehold_log_new(LogLevel::Warn as i32, Some(hears_of_heartbeat), std::ptr::null_mut(), &mut log) };
    assert_eq!(code, Code::Ok);
    let frees: fn(u64) -> Code = |id| leasehold_guard_free(GuardHandle { id });
    let closes: fn(u64) -> Code = |id| leasehold_client_close(ClientHandle { id });
    for (end, is_of_client) in [(frees, false), (closes, true)] {
        let (ended, ends) = bounded(1);
        let at: &'static AtLoss = Box::leak(Box::new(AtLoss { handle: AtomicU64::new(0), end, ended }));
        let callback = Callback { function: ends_at_loss as EventFn, user: (&raw const *at).cast_mut().cast() };
        let (events, clock) = (Events::new(callback), Clock::system());
        let builder = ClientBuilder::over(Arc::new(Memory::open("", clock.clone())), clock);
        let builder = builder.own_observer(events.clone()).lease(Duration::from_secs(60));
        let builder = builder.heartbeat(Duration::from_millis(200)).drop_timeout(Duration::from_secs(3600));
        let Ok(api) = builder.connect() else { panic!("no client") };
        let Ok(client) = handle::insert(Client::new(api.clone(), Some(events))) else { panic!("no handle") };
        let Ok(held) = api.lock("ends itself") else { panic!("no lock") };
        let Ok(guard) = handle::insert(Guard::new(held, Watch::new(None))) else { panic!("no handle") };
        at.handle.store(if is_of_client { client.id } else { guard.id }, Ordering::SeqCst);
        assert!(api.force_release("ends itself").is_ok());
        assert_eq!(ends.recv_timeout(LONG), Ok(Code::Ok), "of the client: {is_of_client}");
        assert!(!is_of_client || leasehold_guard_free(guard) == Code::Ok);
        assert_eq!(leasehold_client_free(client), Code::Ok);
    }
    assert_eq!(leasehold_log_free(log), Code::Ok);
    assert!(!LEFT_BEHIND.load(Ordering::SeqCst), "it is taken for one that hangs");
}
