//! How C hears of a loss: a callback, and a file descriptor for event loops.

use std::ffi::{c_char, c_void};
#[cfg(unix)]
use std::io::{Read, Write};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

use super::as_millis;
use crate::model::loss::{Loss, LossReason};

/// How a lock was lost. The numbers never change; later versions may add some.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is not lost.
    None = 0,
    /// Somebody else was granted the lock since.
    TakenOver = 1,
    /// The lease came to its end without a renewal.
    Expired = 2,
    /// An operator or another process released it.
    ReleasedByOther = 3,
    /// It was held for as long as leasehold_request_set_max_hold allows.
    MaxHold = 4,
    /// The row, table or file is gone.
    Gone = 5,
    /// The heartbeat thread died.
    HeartbeatDied = 6,
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
    /// The fencing token that is out of date now.
    pub token: u64,
    /// How long it had been held, in milliseconds.
    pub held_for_ms: u64,
    /// The name of the lock.
    pub key: *const c_char,
    pub key_len: usize,
    /// How it was lost, for people.
    pub text: *const c_char,
    pub text_len: usize,
    /// How it was lost.
    pub reason: Reason,
}

/// Called with the loss and what was given along.
pub type OnLoss = Option<unsafe extern "C" fn(loss: *const LossInfo, user: *mut c_void)>;

/// A function of C's, and what it wants to be called with.
#[derive(Clone, Copy)]
pub struct Callback {
    function: unsafe extern "C" fn(loss: *const LossInfo, user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: whoever made it promised that any thread may call it.
unsafe impl Send for Callback {}
// SAFETY: nothing can be done with a shared one but to copy it.
unsafe impl Sync for Callback {}

impl Callback {
    /// # Safety
    /// Any thread may call `function` with `user` until each guard that got the callback is freed.
    pub unsafe fn new(
        function: unsafe extern "C" fn(loss: *const LossInfo, user: *mut c_void),
        user: *mut c_void,
    ) -> Self {
        Callback { function, user }
    }

    fn call(self, loss: &Loss) {
        let ended = |text: String| (text.len(), text + "\0");
        let (key_len, key) = ended(loss.key.clone());
        let (text_len, text) = ended(loss.to_string());
        let info = LossInfo {
            token: loss.fencing_token,
            held_for_ms: as_millis(loss.held_for),
            key: key.as_ptr().cast(),
            key_len,
            text: text.as_ptr().cast(),
            text_len,
            reason: Reason::from(&loss.reason),
        };
        // SAFETY: whoever made the callback promised that it may be called until the guard is freed, and freeing waits
        // for it; the texts live until it returns.
        unsafe { (self.function)(&info, self.user) }
    }
}

/// What of a guard hears of its loss.
pub struct Watch {
    callback: Option<Callback>,
    state: Mutex<State>,
    called: Condvar,
}

struct State {
    phase: Phase,
    /// The other ends of the descriptors that were given out.
    #[cfg(unix)]
    ends: Vec<UnixStream>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Neither lost nor freed.
    Waiting,
    /// The callback runs on this thread.
    Calling(ThreadId),
    Lost,
    /// Released or freed: nothing is called any more.
    Over,
}

impl Watch {
    pub fn new(callback: Option<Callback>) -> Arc<Self> {
        let state = State {
            phase: Phase::Waiting,
            #[cfg(unix)]
            ends: Vec::new(),
        };
        Arc::new(Watch { callback, state: Mutex::new(state), called: Condvar::new() })
    }

    /// Tells the loss. Runs on a thread of its own.
    pub fn lost(&self, loss: &Loss) {
        let mut state = self.state.lock();
        if state.phase != Phase::Waiting {
            return;
        }
        state.phase = Phase::Lost;
        #[cfg(unix)]
        finish(&mut state.ends, true);
        let Some(callback) = self.callback else { return };
        state.phase = Phase::Calling(std::thread::current().id());
        drop(state);
        callback.call(loss);
        self.state.lock().phase = Phase::Lost;
        self.called.notify_all();
    }

    /// Nothing is told any more; with `wait`, a callback that runs on another thread is over.
    pub fn end(&self, wait: bool) {
        let mut state = self.state.lock();
        if state.phase == Phase::Waiting {
            state.phase = Phase::Over;
        }
        #[cfg(unix)]
        finish(&mut state.ends, false);
        let other = |phase| matches!(phase, Phase::Calling(thread) if thread != std::thread::current().id());
        while wait && other(state.phase) {
            self.called.wait(&mut state);
        }
    }

    /// A file descriptor of the caller's own.
    #[cfg(unix)]
    pub fn descriptor(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        let (end, descriptor) = UnixStream::pair()?;
        end.set_nonblocking(true)?;
        let mut state = self.state.lock();
        // The caller may ask for one after the other, and close them.
        state.ends.retain(|end| !is_closed(end));
        state.ends.push(end);
        if state.phase != Phase::Waiting {
            let is_lost = state.phase != Phase::Over;
            finish(&mut state.ends, is_lost);
        }
        Ok(descriptor.into())
    }
}

/// Tells the other ends, and that nothing follows.
#[cfg(unix)]
fn finish(ends: &mut Vec<UnixStream>, is_lost: bool) {
    for mut end in ends.drain(..) {
        if is_lost {
            // An empty socket takes a byte; one whose other end is closed answers with an error, and without a signal.
            let _ = end.write_all(b"!");
        }
        // To close it would not do: a forked child may have a copy.
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
}

/// Whether nobody has the other end any more.
#[cfg(unix)]
fn is_closed(mut end: &UnixStream) -> bool {
    matches!(end.read(&mut [0; 64]), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        // SAFETY: `talking` outlives the scope below.
        let watch = Watch::new(Some(unsafe { Callback::new(talk, user) }));
        std::thread::scope(|scope| {
            scope.spawn(|| watch.lost(&loss()));
            assert_eq!(enters.recv(), Ok(()));
            let (ended, ends) = bounded::<()>(1);
            scope.spawn(|| {
                watch.end(true);
                drop(ended);
            });
            let waited = ends.recv_timeout(Duration::from_millis(200));
            assert_eq!(waited, Err(crossbeam_channel::RecvTimeoutError::Timeout), "it did not wait");
            assert!(leaves.send(()).is_ok());
            assert!(ends.recv().is_err());
        });
        // It tells once, and nothing after the end.
        watch.lost(&loss());
        assert!(enters.is_empty());
        // SAFETY: as above.
        let ended = Watch::new(Some(unsafe { Callback::new(talk, user) }));
        ended.end(true);
        ended.lost(&loss());
        assert!(enters.is_empty());
    }
}
