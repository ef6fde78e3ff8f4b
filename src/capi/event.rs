//! Events: what a client does, for metrics.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::as_millis;
use super::callback::{Aside, Callback, Gate};
use super::code::Code;
use crate::model::error::Error;
use crate::model::event::{Event, Observer, Operation, WaitEnd};
use crate::sys::observing::weight;

/// What happened. The numbers never change; later versions may add some.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A request to the store was answered, failed or ran out of time; `ms` is how long it took.
    Request = 1,
    /// A write was sent, and no answer says whether it happened. It is repeated or given up.
    Unknown = 2,
    /// A hold begins: a lock was granted; `ms` is how long the call had waited. It ends by exactly one of
    /// LEASEHOLD_EVENT_KIND_RELEASED, _LOST, _HANDED_OVER and _LEFT.
    Granted = 3,
    /// Others hold the lock.
    Refused = 4,
    /// A call begins to wait; it ends by exactly one LEASEHOLD_EVENT_KIND_WAIT_ENDED.
    WaitBegan = 5,
    /// A wait is over, after `ms`; `code` says how: LEASEHOLD_CODE_OK when the lock was granted, _TIMED_OUT,
    /// _CANCELLED, _CLOSED, _HELD when another of several keys was granted instead; after any other failure the code
    /// that the waiting call returns.
    WaitEnded = 6,
    /// A wait goes on; it has lasted `ms` so far.
    Waited = 7,
    /// A lease was extended; `ms` was left before.
    Renewed = 8,
    /// Renewals fail, and only `ms` is left: see leasehold_request_set_warn_before.
    RenewalLate = 9,
    /// A lock was lost, after `ms`; `text` says how.
    Lost = 10,
    /// A guard released its lock, after `ms`.
    Released = 11,
    /// A guard handed its lock over as data, after `ms`.
    HandedOver = 12,
    /// A guard ended after `ms`, and no release was answered: the store may keep the lock until its lease ends.
    Left = 13,
    /// A lock that was data was released.
    ReleasedData = 14,
}

/// Something that a client did. Its texts end in a NUL that their length leaves out, and are only there during the
/// callback. A field that the kind does not mention is 0 or empty.
#[repr(C)]
pub struct EventInfo {
    /// The size of this struct as the library has it: later versions may add fields at its end.
    pub size: usize,
    /// The name of the lock; empty when the event is about none.
    pub key: *const c_char,
    pub key_len: usize,
    /// The request that was sent, like "acquire"; else empty.
    pub operation: *const c_char,
    pub operation_len: usize,
    /// What went wrong, or how the lock was lost, for people; else empty.
    pub text: *const c_char,
    pub text_len: usize,
    /// The fencing token of the grant, also for kinds that do not mention it; 0 when the event is about none.
    pub token: u64,
    /// A time in milliseconds; the kind says which.
    pub ms: u64,
    /// What happened.
    pub kind: EventKind,
    /// For a request, an unknown write, or a wait that is over: LEASEHOLD_CODE_OK, or why it failed.
    pub code: Code,
}

/// Called with the event and the `user` pointer that was given.
pub type OnEvent = Option<unsafe extern "C" fn(event: *const EventInfo, user: *mut c_void)>;

pub type EventFn = unsafe extern "C" fn(event: *const EventInfo, user: *mut c_void);

/// Passes events on until the client is closed.
pub struct Events {
    callback: Callback<EventFn>,
    gate: Arc<Gate>,
    aside: Aside,
    /// One thread at a time ends the events.
    ending: Gate,
}

impl Events {
    pub fn new(callback: Callback<EventFn>) -> Arc<Self> {
        Arc::new(Events { callback, gate: Arc::default(), aside: Aside::default(), ending: Gate::default() })
    }

    /// Reports the events that still wait. After that none is reported any more, and no other thread is inside the
    /// callback.
    pub fn end(&self) {
        // A callback may call this, too. If the thread that ends the events has called it, that thread does the rest.
        // Other threads wait for that thread, but not from inside a callback, because that thread waits for them.
        let by = self.gate.is_inside().then(Instant::now);
        if let Some(_ending) = self.ending.alone(by) {
            self.aside.tell_rest();
            self.gate.close();
        }
    }
}

/// The fields that the kind of an event has.
#[derive(Default)]
struct Parts {
    key: String,
    operation: &'static str,
    text: String,
    token: u64,
    time: Duration,
    code: Option<Code>,
}

fn parts(event: &Event<'_>) -> Option<(EventKind, Parts)> {
    let about = |key: &str, time: Duration| Parts { key: key.to_owned(), time, ..Parts::default() };
    let of = |key: &str, token: u64, time: Duration| Parts { token, ..about(key, time) };
    let name = Operation::name;
    Some(match *event {
        Event::Request { operation, key, took, error } => {
            let (text, code) =
                (error.map(Error::with_causes).unwrap_or_default(), error.map(|error| error.kind().into()));
            let about = about(key.unwrap_or_default(), took);
            (EventKind::Request, Parts { operation: name(operation), text, code, ..about })
        }
        Event::Unknown { operation, key, error } => {
            let (text, code) = (error.with_causes(), Some(error.kind().into()));
            (EventKind::Unknown, Parts { operation: name(operation), text, code, ..about(key, Duration::ZERO) })
        }
        Event::Granted { key, fencing_token, waited } => (EventKind::Granted, of(key, fencing_token, waited)),
        Event::Refused { key, .. } => (EventKind::Refused, about(key, Duration::ZERO)),
        Event::WaitBegan { key } => (EventKind::WaitBegan, about(key, Duration::ZERO)),
        Event::WaitEnded { key, waited, end } => {
            let code = Some(match end {
                WaitEnd::Granted => Code::Ok,
                WaitEnd::OtherGranted => Code::Held,
                WaitEnd::TimedOut => Code::TimedOut,
                WaitEnd::Cancelled => Code::Cancelled,
                WaitEnd::Closed => Code::Closed,
                WaitEnd::Failed(kind) => kind.into(),
            });
            (EventKind::WaitEnded, Parts { code, ..about(key, waited) })
        }
        Event::Waited { key, waited } => (EventKind::Waited, about(key, waited)),
        Event::Renewed { key, fencing_token, left } => (EventKind::Renewed, of(key, fencing_token, left)),
        Event::RenewalLate { key, fencing_token, left } => (EventKind::RenewalLate, of(key, fencing_token, left)),
        Event::Lost { loss } => {
            let (text, token) = (loss.to_string(), loss.fencing_token);
            (EventKind::Lost, Parts { text, token, ..about(&loss.key, loss.held_for) })
        }
        Event::Released { key, fencing_token, held_for } => (EventKind::Released, of(key, fencing_token, held_for)),
        Event::HandedOver { key, fencing_token, held_for } => (EventKind::HandedOver, of(key, fencing_token, held_for)),
        Event::Left { key, fencing_token, held_for } => (EventKind::Left, of(key, fencing_token, held_for)),
        Event::ReleasedData { key, fencing_token } => (EventKind::ReleasedData, of(key, fencing_token, Duration::ZERO)),
        // For those C has the callbacks of an election.
        Event::TermBegan { .. } | Event::TermEnded { .. } => return None,
    })
}

impl Observer for Events {
    fn event(&self, event: &Event<'_>) {
        let Some((kind, parts)) = parts(event) else { return };
        let (callback, gate) = (self.callback, self.gate.clone());
        // SAFETY: the program promised that it may be called until the client is closed, which closes the gate.
        self.aside.tell_of(event.key(), weight(event), move || {
            gate.pass(|| unsafe { tell(callback, kind, parts) });
        });
    }
}

/// Calls the callback with the event.
///
/// # Safety
/// The callback may still be called.
unsafe fn tell(callback: Callback<EventFn>, kind: EventKind, parts: Parts) {
    let Parts { key, operation, text, token, time, code } = parts;
    let [key, operation, text] = [key, operation.to_owned(), text].map(|text| text + "\0");
    let info = EventInfo {
        size: size_of::<EventInfo>(),
        key: key.as_ptr().cast(),
        key_len: key.len() - 1,
        operation: operation.as_ptr().cast(),
        operation_len: operation.len() - 1,
        text: text.as_ptr().cast(),
        text_len: text.len() - 1,
        token,
        ms: as_millis(time),
        kind,
        code: code.unwrap_or(Code::Ok),
    };
    // SAFETY: passed on; the texts live until it returns.
    unsafe { (callback.function)(&info, callback.user) };
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::super::wait_until;
    use super::*;
    use crate::model::error::{Error, ErrorKind};
    use crate::sys::thread::begin_to_keep_time;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_wait_ends_with_the_code_that_the_call_returns() {
        let error = |kind| Error::new(kind, "as a test");
        for kind in [
            ErrorKind::AlreadyHeld,
            ErrorKind::TimedOut,
            ErrorKind::Cancelled,
            ErrorKind::Closed,
            ErrorKind::Permission,
            ErrorKind::Schema,
            ErrorKind::Store,
            ErrorKind::Ambiguous,
            ErrorKind::ClockSkew,
        ] {
            let event = Event::WaitEnded { key: "k", waited: Duration::ZERO, end: WaitEnd::by(&error(kind)) };
            assert_eq!(parts(&event).and_then(|(_, parts)| parts.code), Some(Code::from(kind)));
        }
    }

    struct Ends {
        events: OnceLock<Arc<Events>>,
        told: AtomicU32,
        entered: Sender<()>,
        leave: (Sender<()>, Receiver<()>),
    }

    unsafe extern "C" fn ends(_: *const EventInfo, user: *mut c_void) {
        // SAFETY: the test leaks it.
        let ends = unsafe { &*user.cast::<Ends>() };
        match ends.told.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let _ = ends.entered.send(());
                let _ = ends.leave.1.recv_timeout(LONG);
            }
            1 => ends.events.get().iter().for_each(|events| events.end()),
            _ => drop(ends.leave.0.send(())),
        }
    }

    /// No event may be left out, because each lock has one that says how its hold ended.
    #[test]
    fn a_callback_that_ends_the_events_leaves_none_out() {
        let (entered, enters) = bounded(1);
        let (events, told, leave) = (OnceLock::new(), AtomicU32::new(0), bounded(1));
        let user: &'static Ends = Box::leak(Box::new(Ends { events, told, entered, leave }));
        let callback = Callback { function: ends as EventFn, user: (&raw const *user).cast_mut().cast() };
        let events = user.events.get_or_init(|| Events::new(callback));
        let watcher = std::thread::spawn(|| {
            begin_to_keep_time();
            ["a", "b", "c"].iter().for_each(|key| events.event(&Event::WaitBegan { key }));
        });
        assert!(watcher.join().is_ok() && enters.recv_timeout(LONG).is_ok());
        events.end();
        assert_eq!(user.told.load(Ordering::SeqCst), 3);
        events.event(&Event::WaitBegan { key: "too late" });
        assert_eq!(user.told.load(Ordering::SeqCst), 3);
    }

    struct Ordered {
        told: parking_lot::Mutex<Vec<EventKind>>,
        entered: Sender<()>,
        leave: Receiver<()>,
    }

    unsafe extern "C" fn notes(event: *const EventInfo, user: *mut c_void) {
        // SAFETY: the test leaks it, and the event is there during the call.
        let (ordered, event) = unsafe { (&*user.cast::<Ordered>(), &*event) };
        if event.kind == EventKind::WaitBegan {
            let _ = ordered.entered.send(());
            let _ = ordered.leave.recv_timeout(LONG);
        } else {
            ordered.told.lock().push(event.kind);
        }
    }

    /// Otherwise a program that keeps a state for each key would take a lock that it holds for lost.
    #[test]
    fn the_end_of_a_hold_is_told_before_the_next_one_of_its_key() {
        let ((entered, enters), (go_on, leave)) = (bounded(1), bounded(0));
        let ordered: &'static Ordered = Box::leak(Box::new(Ordered { told: Default::default(), entered, leave }));
        let callback = Callback { function: notes as EventFn, user: (&raw const *ordered).cast_mut().cast() };
        let events = Events::new(callback);
        let for_watcher = events.clone();
        let watcher = std::thread::spawn(move || {
            begin_to_keep_time();
            for_watcher.event(&Event::WaitBegan { key: "slow" });
            for_watcher.event(&Event::Released { key: "k", fencing_token: 1, held_for: LONG });
        });
        assert!(watcher.join().is_ok() && enters.recv_timeout(LONG).is_ok());
        events.event(&Event::Granted { key: "k", fencing_token: 2, waited: LONG });
        events.event(&Event::Granted { key: "l", fencing_token: 3, waited: LONG });
        assert_eq!(*ordered.told.lock(), [EventKind::Granted], "nobody waits for a slow one");
        drop(go_on);
        wait_until(|| ordered.told.lock().len() == 3);
        assert_eq!(*ordered.told.lock(), [EventKind::Granted, EventKind::Released, EventKind::Granted]);
    }

    /// Two threads end the events at the same time; this is what they wait for.
    struct Both {
        events: OnceLock<Arc<Events>>,
        entered: Sender<()>,
        go: (Sender<()>, Receiver<()>),
        has_left: AtomicBool,
    }

    unsafe extern "C" fn ends_beside(event: *const EventInfo, user: *mut c_void) {
        // SAFETY: the test leaks it, and the event is there during the call.
        let (both, key) = unsafe { (&*user.cast::<Both>(), std::ffi::CStr::from_ptr((*event).key)) };
        if key.to_bytes() == b"a" {
            let _ = both.entered.send(());
            let _ = both.go.1.recv();
            both.events.get().expect("it is made").end();
            // Long enough for the other thread to return, if it does not wait.
            std::thread::sleep(Duration::from_millis(300));
            both.has_left.store(true, Ordering::SeqCst);
        } else {
            let _ = both.go.0.send(());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// After that end the callback's data may be freed.
    #[test]
    fn who_ends_the_events_from_outside_waits_for_a_callback_that_ends_them() {
        let (entered, enters) = bounded(1);
        let both = Both { events: OnceLock::new(), entered, go: bounded(1), has_left: AtomicBool::new(false) };
        let user: &'static Both = Box::leak(Box::new(both));
        let callback = Callback { function: ends_beside as EventFn, user: (&raw const *user).cast_mut().cast() };
        let events = user.events.get_or_init(|| Events::new(callback));
        let watcher = std::thread::spawn(|| {
            begin_to_keep_time();
            ["a", "b"].iter().for_each(|key| events.event(&Event::WaitBegan { key }));
        });
        assert!(watcher.join().is_ok() && enters.recv_timeout(LONG).is_ok());
        events.end();
        assert!(user.has_left.load(Ordering::SeqCst), "a callback still runs");
    }

    #[cfg(feature = "_internals")]
    struct Hangs {
        entered: Sender<()>,
        leave: Receiver<()>,
    }

    #[cfg(feature = "_internals")]
    unsafe extern "C" fn hangs_at_a_release(event: *const EventInfo, user: *mut c_void) {
        // SAFETY: the test leaks it, and the event is there during the call.
        let (hangs, operation) = unsafe { (&*user.cast::<Hangs>(), std::ffi::CStr::from_ptr((*event).operation)) };
        if operation.to_bytes() == b"release" {
            let _ = hangs.entered.send(());
            let _ = hangs.leave.recv_timeout(LONG);
        }
    }

    /// The program that hangs in the callback may itself wait for a lock that must be given up.
    #[cfg(feature = "_internals")]
    #[test]
    fn a_callback_that_hangs_does_not_keep_what_nobody_holds_from_being_given_up() {
        use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
        use crate::store::memory::Memory;
        use crate::sys::clock::Clock;

        let ((entered, enters), (leaves, leave)) = (bounded(9), bounded::<()>(0));
        let user: &'static Hangs = Box::leak(Box::new(Hangs { entered, leave }));
        let callback = Callback { function: hangs_at_a_release as EventFn, user: (&raw const *user).cast_mut().cast() };
        let (clock, faults) = (Clock::system(), FaultPlan::default());
        let memory: Arc<Memory> = Arc::new(Memory::open("", clock.clone()));
        let faulty = Faulty::new(memory.clone(), faults.clone());
        let builder = crate::ClientBuilder::over(Arc::new(faulty), clock.clone()).own_observer(Events::new(callback));
        let Ok(client) = builder.request_timeout(LONG / 40).connect() else { panic!("no client") };
        let Ok(other) = crate::ClientBuilder::over(memory, clock).connect() else { panic!("no client") };
        for key in ["a", "b"] {
            faults.next(Call::Acquire, Fault::ApplyThenHang);
            assert!(client.try_lock(key).is_err_and(|error| error.kind() == ErrorKind::Ambiguous));
        }
        assert!(enters.recv_timeout(LONG).is_ok(), "nothing is given up");
        for key in ["a", "b"] {
            assert!(other.request(key).wait(LONG / 4).lock().is_ok(), "{key:?} is not given up");
        }
        drop(leaves);
    }
}
