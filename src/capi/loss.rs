//! How C learns of a loss: by a callback, and by a file descriptor for event loops.

use std::ffi::{c_char, c_void};
#[cfg(unix)]
use std::io::Read;
#[cfg(unix)]
use std::os::fd::AsRawFd;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::as_millis;
use super::callback::{Callback, Gate};
use crate::model::loss::{Loss, LossReason};

/// How a lock was lost. The numbers never change; later versions may add some.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lock is not lost.
    None = 0,
    /// Somebody else has been granted the lock meanwhile.
    TakenOver = 1,
    /// The lease came to its end without a renewal.
    Expired = 2,
    /// An operator or another process released the lock.
    ReleasedByOther = 3,
    /// The lock was held for as long as leasehold_request_set_max_hold allows.
    MaxHold = 4,
    /// The lock's row is gone, alone or with its file, its collection or all rows; or the log next to an SQLite file
    /// was removed or replaced. If the whole table is gone, heartbeats fail until the lease is over, and the reason is
    /// LEASEHOLD_REASON_EXPIRED.
    Gone = 5,
    /// The heartbeat thread died.
    HeartbeatDied = 6,
}

impl Reason {
    /// As a number and as a text for people.
    pub(super) fn told(loss: Option<&Loss>) -> (Reason, String) {
        loss.map_or((Reason::None, String::new()), |loss| (Reason::from(&loss.reason), loss.to_string()))
    }
}

impl From<&LossReason> for Reason {
    fn from(reason: &LossReason) -> Self {
        match reason {
            LossReason::TakenOver { .. } => Reason::TakenOver,
            LossReason::Expired { .. } => Reason::Expired,
            LossReason::ReleasedByOther => Reason::ReleasedByOther,
            LossReason::MaxHold => Reason::MaxHold,
            LossReason::Gone => Reason::Gone,
            LossReason::HeartbeatDied => Reason::HeartbeatDied,
        }
    }
}

/// A lock that was held and is not any more. Its texts end in a NUL that their length leaves out, and are only there
/// during the callback.
#[repr(C)]
pub struct LossInfo {
    /// The size of this struct as the library has it: later versions may add fields at its end.
    pub size: usize,
    /// The fencing token that is out of date now.
    pub token: u64,
    /// How long the lock had been held, in milliseconds.
    pub held_for_ms: u64,
    /// The name of the lock.
    pub key: *const c_char,
    pub key_len: usize,
    /// How it was lost, for people.
    pub text: *const c_char,
    pub text_len: usize,
    /// How it was lost.
    pub reason: Reason,
    /// Always 0. Padding is named so that a later field can't take its place unnoticed.
    pub reserved: u32,
}

/// Called with the loss and the `user` pointer that was given.
pub type OnLoss = Option<unsafe extern "C" fn(loss: *const LossInfo, user: *mut c_void)>;

/// Called with the milliseconds that are left until the loss and the `user` pointer that was given.
pub type OnWarning = Option<unsafe extern "C" fn(left_ms: u64, user: *mut c_void)>;

pub type WarnFn = unsafe extern "C" fn(left_ms: u64, user: *mut c_void);

pub type LossFn = unsafe extern "C" fn(loss: *const LossInfo, user: *mut c_void);

/// Calls the callback with the loss.
///
/// # Safety
/// The callback may still be called.
unsafe fn tell(callback: Callback<LossFn>, loss: &Loss) {
    let ended = |text: String| (text.len(), text + "\0");
    let (key_len, key) = ended(loss.key.clone());
    let (text_len, text) = ended(loss.to_string());
    let info = LossInfo {
        size: size_of::<LossInfo>(),
        token: loss.fencing_token,
        held_for_ms: as_millis(loss.held_for),
        key: key.as_ptr().cast(),
        key_len,
        text: text.as_ptr().cast(),
        text_len,
        reason: Reason::from(&loss.reason),
        reserved: 0,
    };
    // SAFETY: passed on; the texts live until it returns.
    unsafe { (callback.function)(&info, callback.user) }
}

/// What a guard reports its loss to: the callbacks and the descriptors.
pub struct Watch {
    warning: Option<Callback<WarnFn>>,
    gate: Gate,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Taken out when it is called: of several locks, the first one that is lost calls it.
    callback: Option<Callback<LossFn>>,
    /// Our ends of the descriptors that were given out.
    #[cfg(unix)]
    ends: Vec<UnixStream>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Neither lost nor released.
    Held,
    Lost,
    /// Released or freed: no loss is reported any more.
    Released,
}

impl Watch {
    #[cfg(test)]
    pub fn new(callback: Option<Callback<LossFn>>) -> Arc<Self> {
        Watch::of(callback, None)
    }

    /// With a function that is called at the loss, and one that is called before it.
    pub fn of(callback: Option<Callback<LossFn>>, warning: Option<Callback<WarnFn>>) -> Arc<Self> {
        let state = State {
            phase: Phase::Held,
            callback,
            #[cfg(unix)]
            ends: Vec::new(),
        };
        Arc::new(Watch { warning, gate: Gate::default(), state: Mutex::new(state) })
    }

    /// Makes the descriptors report the loss. It does not block.
    pub fn found(&self) {
        self.settle(Phase::Lost);
    }

    /// Reports the loss to the callback, too. Runs on a thread of its own.
    pub fn lost(&self, loss: &Loss) {
        self.found();
        let callback = {
            let mut state = self.state.lock();
            if state.phase == Phase::Lost { state.callback.take() } else { None }
        };
        if let Some(callback) = callback {
            // SAFETY: the program that set it promised that it may be called until the guard is freed; freeing closes
            // the gate.
            self.gate.pass(|| unsafe { tell(callback, loss) });
        }
    }

    /// Reports that renewals fail. Runs on a thread of its own.
    pub fn warns(&self, left: Duration) {
        let Some(Callback { function, user }) = self.warning else { return };
        self.gate.pass(|| {
            if self.state.lock().phase == Phase::Held {
                // SAFETY: as for a loss.
                unsafe { function(as_millis(left), user) }
            }
        });
    }

    /// After this no loss is reported any more, not even one that was found and whose callback still waits for a
    /// thread.
    pub fn released(&self) {
        self.settle(Phase::Released);
        self.state.lock().callback = None;
    }

    /// After this no loss is reported any more, and the callback does not run on another thread.
    pub fn freed(&self) {
        self.released();
        self.gate.close();
    }

    /// Notes how the hold ended, unless that was noted before, and tells the descriptors.
    fn settle(&self, phase: Phase) {
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            state.phase = phase;
        }
        #[cfg(unix)]
        state.finish();
    }

    /// A file descriptor of the caller's own.
    #[cfg(unix)]
    pub fn descriptor(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        let (end, descriptor) = UnixStream::pair()?;
        end.set_nonblocking(true)?;
        #[cfg(target_vendor = "apple")]
        without_signals(&end)?;
        let mut state = self.state.lock();
        // The caller may get any number of descriptors, one after the other, and close them.
        state.ends.retain(|end| !is_closed(end));
        state.ends.push(end);
        if state.phase != Phase::Held {
            state.finish();
        }
        Ok(descriptor.into())
    }
}

#[cfg(unix)]
impl State {
    /// Writes to the descriptors how the hold ended, and ends them.
    fn finish(&mut self) {
        for end in self.ends.drain(..) {
            if self.phase == Phase::Lost {
                write_byte(&end);
            }
            // Closing our end is not enough: a forked child may have a copy of it.
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Writes a byte, for which an empty socket always has room. If the other end is closed this gets an error, and not the
/// signal of a plain write, which would end the program.
#[cfg(unix)]
fn write_byte(end: &UnixStream) {
    use nix::sys::socket::{MsgFlags, send};

    #[cfg(not(target_vendor = "apple"))]
    let flags = MsgFlags::MSG_NOSIGNAL;
    #[cfg(target_vendor = "apple")]
    let flags = MsgFlags::empty();
    let _ = send(end.as_raw_fd(), b"!", flags);
}

/// On Apple's systems the signal is switched off by an option of the socket.
#[cfg(target_vendor = "apple")]
fn without_signals(end: &UnixStream) -> std::io::Result<()> {
    use nix::libc::{SO_NOSIGPIPE, SOL_SOCKET, c_int, setsockopt, socklen_t};

    let yes: c_int = 1;
    let (value, size) = ((&raw const yes).cast(), size_of::<c_int>() as socklen_t);
    // SAFETY: an open socket, and a number of that size.
    let answer = unsafe { setsockopt(end.as_raw_fd(), SOL_SOCKET, SO_NOSIGPIPE, value, size) };
    nix::errno::Errno::result(answer)?;
    Ok(())
}

/// Whether the other end is closed everywhere.
#[cfg(unix)]
fn is_closed(mut end: &UnixStream) -> bool {
    matches!(end.read(&mut [0; 64]), Ok(0))
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::*;

    struct Talk {
        entered: Sender<()>,
        leave: Receiver<()>,
    }

    unsafe extern "C" fn talk(_: *const LossInfo, user: *mut c_void) {
        // SAFETY: the test keeps it until the callback is over.
        let talk = unsafe { &*user.cast::<Talk>() };
        let _ = talk.entered.send(());
        let _ = talk.leave.recv();
    }

    fn loss() -> Loss {
        Loss { reason: LossReason::Gone, key: "k".to_owned(), fencing_token: 1, held_for: Duration::ZERO }
    }

    #[cfg(unix)]
    #[test]
    fn descriptors_that_were_closed_leave_nothing_behind() {
        let watch = Watch::new(None);
        let kept: Vec<_> = (0..3).map(|_| watch.descriptor()).collect();
        (0..100).for_each(|_| drop(watch.descriptor()));
        assert!(kept.iter().all(Result::is_ok) && watch.state.lock().ends.len() <= 4);
    }

    #[test]
    fn freeing_waits_for_a_callback_that_runs() {
        let (entered, enters) = bounded(1);
        let (leaves, leave) = bounded(1);
        let talking = Talk { entered, leave };
        let user = (&raw const talking).cast_mut().cast();
        let watch = Watch::new(Some(Callback { function: talk as LossFn, user }));
        std::thread::scope(|scope| {
            scope.spawn(|| watch.lost(&loss()));
            assert_eq!(enters.recv(), Ok(()));
            let (ended, ends) = bounded::<()>(1);
            scope.spawn(|| {
                watch.freed();
                drop(ended);
            });
            let waited = ends.recv_timeout(Duration::from_millis(200));
            assert_eq!(waited, Err(crossbeam_channel::RecvTimeoutError::Timeout), "it did not wait");
            assert!(leaves.send(()).is_ok());
            assert!(ends.recv().is_err());
        });
        // The loss is reported once, and none after the end.
        drop(leaves);
        watch.lost(&loss());
        assert!(enters.is_empty());
        for end in [Watch::freed, Watch::released] {
            let ended = Watch::new(Some(Callback { function: talk as LossFn, user }));
            end(&ended);
            ended.lost(&loss());
            assert!(enters.is_empty());
            // The loss was found before the end, but its callback begins too late.
            let found = Watch::new(Some(Callback { function: talk as LossFn, user }));
            found.found();
            end(&found);
            found.lost(&loss());
            assert!(enters.is_empty());
        }
    }

    /// What can be read from a descriptor, which must be at its end.
    #[cfg(unix)]
    fn said(watch: &Watch) -> Option<String> {
        let mut descriptor = UnixStream::from(watch.descriptor().ok()?);
        descriptor.set_nonblocking(true).ok()?;
        let mut said = String::new();
        descriptor.read_to_string(&mut said).ok().map(|_| said)
    }

    #[cfg(unix)]
    #[test]
    fn how_the_hold_ended_first_is_what_later_descriptors_say() {
        let (lost, released) = (Watch::new(None), Watch::new(None));
        lost.lost(&loss());
        lost.released();
        released.released();
        released.lost(&loss());
        for _ in 0..2 {
            assert_eq!((said(&lost).as_deref(), said(&released).as_deref()), (Some("!"), Some("")));
        }
    }

    /// While the lock is held there is nothing to read, however many descriptors were given out.
    #[cfg(unix)]
    #[test]
    fn a_descriptor_is_silent_while_the_lock_is_held() {
        let watch = Watch::new(None);
        let given: Vec<_> = (0..3).filter_map(|_| watch.descriptor().ok().map(UnixStream::from)).collect();
        let is_silent = |mut one: &UnixStream| {
            let nothing = one.set_nonblocking(true).map(|()| one.read(&mut [0; 8]).map_err(|error| error.kind()));
            matches!(nothing, Ok(Err(std::io::ErrorKind::WouldBlock)))
        };
        assert!(given.len() == 3 && given.iter().all(is_silent));
    }
}
