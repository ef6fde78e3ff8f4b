//! Guards: locks that are held.

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::callback::{Alone, Gate};
use super::code::Code;
use super::failure::{ENDED, ENDING, Failure, about};
use super::lock::{LockData, LockHandle};
use super::loss::{Reason, Watch};
use super::status::ModeCode;
use super::{Outcome, as_millis, call, handle, millis, out_arg, text};
use crate::LossWatch;
use crate::api::guard::LockGuard;
use crate::api::stores;
use crate::model::error::{Error, ErrorKind};
use crate::model::lock::Lock;
use crate::sys::drop_bound::{DropBound, DropBy};

/// A guard, which stays readable after it was released.
pub struct Guard {
    /// Locked for writing only to end the guard: a reader that finds it locked so may take the lock for not held any
    /// more. No I/O while it is locked.
    guard: RwLock<Option<Arc<LockGuard>>>,
    /// The same guard, for as long as any call still uses it.
    under_way: Weak<LockGuard>,
    /// One thread at a time ends the guard. No mutex: a callback of the call that ends it may try to end it, too.
    ending: Gate,
    /// The release found that the lock was not held any more.
    was_lost: AtomicBool,
    /// The handle was freed.
    is_freed: AtomicBool,
    granted: Lock,
    loss: LossWatch,
    watch: Arc<Watch>,
}

handle::object!(Guard = 4, GuardHandle, "guard");

/// A lock that is held: its own thread renews it. Free it with leasehold_guard_free, which releases it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardHandle {
    pub id: u64,
}

impl Guard {
    pub fn new(guard: LockGuard, watch: Arc<Watch>) -> Self {
        let (granted, loss) = (guard.info(), guard.loss());
        let guard = Arc::new(guard);
        let (under_way, guard, ending) = (Arc::downgrade(&guard), RwLock::new(Some(guard)), Gate::default());
        let (was_lost, is_freed) = (AtomicBool::new(false), AtomicBool::new(false));
        Guard { guard, under_way, ending, was_lost, is_freed, granted, loss, watch }
    }

    /// Returns what `ask` returns; `None` when the lock was released. It does not block. A callback may be called
    /// meanwhile, and may end the guard.
    fn ask<T>(&self, ask: impl FnOnce(&LockGuard) -> T) -> Option<T> {
        let held = self.guard.try_read().and_then(|guard| guard.clone())?;
        Some(ask(&held))
    }

    /// Makes this thread the only one that ends the guard, and says by when it must be done. If another thread is
    /// ending it, this waits for that thread, for at most as long as a drop may take. What this thread does then has
    /// only the rest of that time, and so has the drop of what goes with the guard, which may be the client.
    fn alone(&self, drop_bound: &mut DropBound) -> Result<(Alone<'_>, DropBy), Failure> {
        let by = self.under_way.upgrade().map(|held| held.drop_by()).ok_or_else(|| self.ended())?;
        drop_bound.begin(by);
        let alone = self.ending.alone(Some(by.instant())).ok_or_else(|| {
            // If the other call fails, the guard can be ended again.
            let is_under_way = !self.is_freed.load(Ordering::SeqCst) && by.remaining().is_zero();
            let under_way = || about(&self.granted, ErrorKind::Store, "another call is still about to end it");
            if is_under_way { under_way().retryable().into() } else { self.ended() }
        })?;
        Ok((alone, by))
    }

    fn release(&self) -> Outcome {
        let mut drop_bound = DropBound::default();
        let (_ending, by) = self.alone(&mut drop_bound)?;
        let held = self.guard.write().take().ok_or_else(|| self.ended())?;
        if let Err(error) = held.release_within(by.remaining()) {
            if error.kind() == ErrorKind::Lost {
                self.was_lost.store(true, Ordering::SeqCst);
                // A loss that was found before is still reported by its callback. A loss that only the store knew of is
                // reported by this error alone.
                if self.loss.get().is_none() {
                    self.watch.released();
                }
            } else if !self.is_freed.load(Ordering::SeqCst) {
                *self.guard.write() = Some(held);
            }
            return Err(error.into());
        }
        self.watch.released();
        Ok(())
    }

    /// Ends the guard of a handle that was freed.
    fn end(&self) {
        self.is_freed.store(true, Ordering::SeqCst);
        // The wait for a release that is under way on another thread is part of the time that a drop may take.
        let Some(by) = self.under_way.upgrade().map(|held| held.quiet_drop_by()) else { return };
        let mut drop_bound = DropBound::default();
        drop_bound.begin(by);
        // Left again before the caller waits for a callback, which may be about to release the guard, too. If another
        // call is inside and can't be waited for, like the call whose callback this is, that call ends the guard.
        if let Some(_ending) = self.ending.alone(Some(by.instant())) {
            let held = self.guard.write().take();
            // Not left to a drop: another call may use the guard just now, and would then be the one to release it.
            held.iter().for_each(|held| held.end_quietly());
        }
    }

    /// The error of the Rust API, unless the holder's own client released the lock: then nothing is in danger, and the
    /// guard has just ended.
    fn in_danger(&self, error: Error) -> Failure {
        if error.kind() == ErrorKind::Lost && self.loss.has_ended() { self.ended() } else { error.into() }
    }

    /// Returns what `ask` returns; an error that says so if the guard has ended.
    fn checked<T>(&self, ask: impl FnOnce(&LockGuard) -> Result<T, Error>) -> Result<T, Failure> {
        self.ask(ask).ok_or_else(|| self.ended())?.map_err(|error| self.in_danger(error))
    }

    /// The assertion of the lock as a statement with its parameters.
    pub(super) fn assertion(&self) -> Result<[String; 3], Failure> {
        self.checked(stores::statement)
    }

    /// The error that says why nothing can be done with the guard any more.
    fn ended(&self) -> Failure {
        let (kind, how) = match self.loss.get() {
            Some(loss) => (ErrorKind::Lost, format!("lost: {loss}")),
            None if self.was_lost.load(Ordering::SeqCst) => (ErrorKind::Lost, "it was not held any more".to_owned()),
            None if self.ask(|held| !held.is_over()) == Some(true) => (ErrorKind::Closed, ENDING.to_owned()),
            None => (ErrorKind::Closed, ENDED.to_owned()),
        };
        about(&self.granted, kind, how).into()
    }
}

/// Writes whether the lock is held. It becomes false before the lease can end, or at the end of the time that
/// leasehold_request_set_max_hold allows, and then stays false. So while it is true, nobody else is granted the
/// lock, unless somebody takes it away on purpose, as by leasehold_client_force_release. It does not ask the store and
/// does not wait. A call that fails, like one after a fork, writes false, too.
/// \param held Gets the answer; false when the call fails.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_is_held(guard: GuardHandle, held: *mut bool) -> Code {
    call(|| {
        let held = out_arg!(held).or(false);
        held.write(handle::get::<Guard>(guard)?.ask(LockGuard::is_held).unwrap_or(false))
    })
}

/// leasehold_guard_is_held as a code: LEASEHOLD_CODE_OK while the lock is held, LEASEHOLD_CODE_LOST when it was lost,
/// LEASEHOLD_CODE_CLOSED after it was released, handed over, or its client closed. Call it right before each step that
/// must not overlap with another holder's.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guard_ensure_held(guard: GuardHandle) -> Code {
    call(|| handle::get::<Guard>(guard)?.checked(LockGuard::ensure_held))
}

/// Makes sure that the lock is held for at least `ms` milliseconds from now on: renews it if less is left, which waits
/// for the store. Codes as of leasehold_guard_ensure_held; LEASEHOLD_CODE_INVALID_INPUT when `ms` is more than a
/// renewal gives, or than leasehold_request_set_max_hold leaves, LEASEHOLD_CODE_STORE when the renewal was not
/// answered.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guard_ensure_held_for(guard: GuardHandle, ms: u64) -> Code {
    call(|| handle::get::<Guard>(guard)?.checked(|held| held.ensure_held_for(millis(ms))))
}

/// Makes the lock stay in the store for at least `ms` milliseconds, counted from its grant, however the hold ends: see
/// leasehold_request_set_hold_at_least. The time can be made longer, not shorter. Sends a renewal. Codes as of
/// leasehold_guard_ensure_held; LEASEHOLD_CODE_STORE when the renewal was not answered: the lock is still held, and
/// this function can be called again.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guard_hold_at_least(guard: GuardHandle, ms: u64) -> Code {
    call(|| handle::get::<Guard>(guard)?.checked(|held| held.hold_at_least(millis(ms))))
}

/// How many milliseconds the lock stays held if no further renewal succeeds, and no more than
/// leasehold_request_set_max_hold allows: 0 when it is not held, UINT64_MAX when its lease has no end.
/// \param ms Gets the milliseconds.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_remaining(guard: GuardHandle, ms: *mut u64) -> Code {
    call(|| {
        let ms = out_arg!(ms);
        ms.write(handle::get::<Guard>(guard)?.ask(LockGuard::remaining).map_or(0, as_millis))
    })
}

/// The fencing token: greater than that of every earlier grant of the key, and the same for as long as the guard lives.
/// Pass it to the resource that the lock protects, which should refuse a token below the highest it has seen. That
/// keeps an earlier holder out only once this token is stored there: store it before you read. It fits into an int64_t.
/// \param token Gets the fencing token.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_token(guard: GuardHandle, token: *mut u64) -> Code {
    call(|| {
        let token = out_arg!(token);
        token.write(handle::get::<Guard>(guard)?.granted.fencing_token())
    })
}

/// How the lock is held: exclusive or shared.
/// \param mode Gets the mode.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_mode(guard: GuardHandle, mode: *mut ModeCode) -> Code {
    call(|| {
        let mode = out_arg!(mode);
        mode.write(handle::get::<Guard>(guard)?.granted.mode().into())
    })
}

/// The name of the lock.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_key(
    guard: GuardHandle,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let guard = handle::get::<Guard>(guard)?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(guard.granted.key(), buffer, capacity, len) }
    })
}

/// The group that the lock belongs to.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_lock_id(
    guard: GuardHandle,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let guard = handle::get::<Guard>(guard)?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(guard.granted.lock_id(), buffer, capacity, len) }
    })
}

/// A copy of the lock as data; the guard goes on. Free it with leasehold_lock_free.
/// \param lock Gets the data.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_info(guard: GuardHandle, lock: *mut LockHandle) -> Code {
    call(|| {
        let lock = out_arg!(lock);
        let guard = handle::get::<Guard>(guard)?;
        let info = guard.ask(LockGuard::info).unwrap_or_else(|| guard.granted.clone());
        lock.write(handle::insert(LockData::new(info))?)
    })
}

/// How the lock was lost, as a number and as a text for people; LEASEHOLD_REASON_NONE and an empty text when it was not
/// lost.
/// \param reason Gets the reason.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_loss(
    guard: GuardHandle,
    reason: *mut Reason,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let reason = out_arg!(reason);
        let loss = handle::get::<Guard>(guard)?.loss.get();
        let (why, said) = Reason::told(loss.as_ref());
        // SAFETY: passed on from the caller.
        unsafe { text::write(&said, buffer, capacity, len) }?;
        reason.write(why)
    })
}

/// Waits until the lock is lost, which is LEASEHOLD_CODE_OK. LEASEHOLD_CODE_TIMED_OUT when that did not happen within
/// `ms` milliseconds, LEASEHOLD_CODE_CLOSED once its release or hand-over has begun, even if that then fails, or once
/// its client is closed. The guard may be freed meanwhile.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guard_wait_loss(guard: GuardHandle, ms: u64) -> Code {
    call(|| {
        // This reference keeps no lock held: freeing the guard meanwhile takes the inner guard out and ends it.
        let guard = handle::get::<Guard>(guard)?;
        wait_loss(&guard.loss, &guard.granted, ms, || drop(guard.ask(LockGuard::ensure_held)))
    })
}

/// See `leasehold_guard_wait_loss`. `ensure_held` calls that of the guard, if it still exists.
pub fn wait_loss(loss: &LossWatch, granted: &Lock, ms: u64, ensure_held: impl FnOnce()) -> Outcome {
    if loss.wait_timeout(millis(ms)).is_some() {
        return Ok(());
    }
    // After a suspend or a SIGSTOP the wait may be over before the watcher has looked at the clock. This looks itself.
    ensure_held();
    if loss.get().is_some() {
        return Ok(());
    }
    let (kind, how) = match loss.has_ended() {
        true => (ErrorKind::Closed, "it was released or handed over, or its client was closed; or that has begun"),
        false => (ErrorKind::TimedOut, "the lock was not lost within the wait"),
    };
    Err(about(granted, kind, how).into())
}

/// Gives a file descriptor for poll(), epoll or kqueue. It becomes readable when the lock is lost, and also when the
/// guard is released or freed or its client closed, and stays readable: if the lock was lost, read() gives one byte and
/// then 0 for the end; otherwise it gives 0 at once. It is yours: close() it, before or after the guard. Each call
/// gives a new descriptor, with a byte of its own. LEASEHOLD_CODE_STORE when the process has no descriptor left. Not on
/// Windows.
/// \param descriptor Gets the descriptor.
#[cfg(unix)]
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_loss_descriptor(guard: GuardHandle, descriptor: *mut i32) -> Code {
    use std::os::fd::IntoRawFd;

    call(|| {
        let descriptor = out_arg!(descriptor);
        let guard = handle::get::<Guard>(guard)?;
        // Retryable, because there may be a free descriptor later.
        let not_made = |error: std::io::Error| {
            about(&guard.granted, ErrorKind::Store, "a descriptor can't be made").retryable().caused_by(error)
        };
        descriptor.write(guard.watch.descriptor().map_err(not_made)?.into_raw_fd())
    })
}

/// Stops renewing the lock and releases it, within the client's drop timeout. LEASEHOLD_CODE_LOST when the lock was not
/// held any more, LEASEHOLD_CODE_CLOSED when the guard was released already: both are final. LEASEHOLD_CODE_OK also
/// when closing the client has released it. After any other failure it can be called again. LEASEHOLD_CODE_STORE is
/// also returned while another thread is still ending the guard. The guard stays yours to free.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guard_release(guard: GuardHandle) -> Code {
    call(|| handle::get::<Guard>(guard)?.release())
}

/// Stops renewing the lock and gives it as data, without releasing it: a program that gets the data must adopt the lock
/// with leasehold_client_adopt before its lease ends. LEASEHOLD_CODE_LOST when the lock was not held any more,
/// LEASEHOLD_CODE_CLOSED when the guard was released already, LEASEHOLD_CODE_STORE while another thread is still ending
/// it. The guard stays yours to free, which then releases nothing.
/// \param lock Gets the data.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_into_lock(guard: GuardHandle, lock: *mut LockHandle) -> Code {
    call(|| {
        let lock = out_arg!(lock);
        let guard = handle::get::<Guard>(guard)?;
        let mut drop_bound = DropBound::default();
        let (_ending, by) = guard.alone(&mut drop_bound)?;
        // Closing the client has released it.
        if guard.loss.has_ended() {
            return Err(guard.ended());
        }
        // No other thread takes the inner guard out meanwhile, since this one is alone.
        let held = guard.guard.read().clone().ok_or_else(|| guard.ended())?;
        held.ensure_held()?;
        // The handle is made before the hand-over: if it could not be made afterwards, nobody could release the lock.
        let data = handle::insert(LockData::new(guard.granted.clone()))?;
        drop(guard.guard.write().take());
        handle::get::<LockData>(data)?.set(held.keep_as_data(by.remaining()));
        guard.watch.released();
        lock.write(data)
    })
}

/// Frees the guard, and releases the lock if it is still held, within the client's drop timeout; whether the release
/// succeeded is not reported. If the loss callback of this guard is running on another thread, this waits until it has
/// returned, however long that takes. So do not hold a mutex that the callback takes, nor an interpreter's global lock:
/// both would wait for ever. There is one exception: this does not wait for a callback that itself waits for the
/// callback in which this call is made, as when two callbacks free each other's guards. Then the callback's `user` is
/// in use until it returns. In a callback of the call that releases the guard, freeing leaves the release to that call.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_guard_free(guard: GuardHandle) -> Code {
    call(|| {
        let guard = handle::remove::<Guard>(guard)?;
        guard.end();
        guard.watch.freed();
        Ok(())
    })
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
