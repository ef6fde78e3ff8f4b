//! Guards of several locks that are held together.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::callback::Gate;
use super::code::Code;
use super::failure::{ENDED, Failure, about};
use super::loss::Watch;
use super::{as_millis, call, handle, millis, out_arg, text};
use crate::api::request_all::LockAllGuard;
use crate::model::error::{Error, ErrorKind};
use crate::model::lock::Lock;
use crate::sys::drop_bound::DropBound;

/// All of several locks. Their names and tokens stay readable after they were released.
pub struct Guards {
    /// Locked for writing only to end the guards. No I/O while it is locked.
    held: RwLock<Option<Arc<LockAllGuard>>>,
    /// One thread at a time ends them. No mutex: a callback of the call that ends them may try to end them, too.
    pub(super) ending: Gate,
    /// How long a drop may take.
    drop_timeout: Duration,
    granted: Vec<Lock>,
    watch: Arc<Watch>,
}

handle::object!(Guards = 12, GuardsHandle, "guard of several locks");

/// All of several locks, in the order of their keys: each is renewed by a thread of its own. Free it with
/// leasehold_guards_free, which releases them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardsHandle {
    pub id: u64,
}

impl Guards {
    pub fn new(held: LockAllGuard, watch: Arc<Watch>) -> Self {
        let granted = held.guards().iter().map(|guard| guard.info()).collect();
        let drop_timeout = held.guards().first().map_or(Duration::ZERO, |first| first.drop_by().remaining());
        Guards { held: RwLock::new(Some(Arc::new(held))), ending: Gate::default(), drop_timeout, granted, watch }
    }

    /// Returns what `ask` returns; `None` when the locks were released. It does not block. A callback may be called
    /// meanwhile, and may end the guards.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&LockAllGuard) -> T) -> Option<T> {
        let held = self.held.try_read().and_then(|held| held.clone())?;
        Some(ask(&held))
    }

    /// Takes the guards out to end them. The drop of what goes with them, which may be the client, has the same bound.
    fn take(&self, drop_bound: &mut DropBound) -> Option<Arc<LockAllGuard>> {
        let held = self.held.write().take();
        held.iter().flat_map(|held| held.guards().first()).for_each(|first| drop_bound.begin(first.quiet_drop_by()));
        held
    }

    fn at(&self, index: usize) -> Result<&Lock, Failure> {
        let none = || Failure::new(Code::NotFound, format!("index is {index}, but there are {}", self.granted.len()));
        self.granted.get(index).ok_or_else(none)
    }

    /// The error of the Rust API, unless the locks' own client released them: then nothing is in danger.
    fn in_danger(&self, error: Error) -> Failure {
        let is_over =
            |held: &LockAllGuard| held.lost().is_none() && held.guards().iter().any(|one| one.loss().has_ended());
        let is_released = error.kind() == ErrorKind::Lost && self.ask(is_over).unwrap_or(true);
        if is_released { self.ended() } else { error.into() }
    }

    pub(super) fn release(&self) -> Result<(), Failure> {
        let _ending = self.ending.alone_within(self.drop_timeout).ok_or_else(|| self.ended())?;
        let mut drop_bound = DropBound::default();
        let held = self.take(&mut drop_bound).ok_or_else(|| self.ended())?;
        let released = held.release_shared();
        // A loss that was found before is still reported by its callback.
        if held.lost().is_none() {
            self.watch.released();
        }
        Ok(released?)
    }

    fn ended(&self) -> Failure {
        let ended = |granted| about(granted, ErrorKind::Closed, ENDED).into();
        self.granted.first().map_or_else(|| Failure::new(Code::Closed, ENDED), ended)
    }
}

/// How many locks there are.
/// \param len Gets the number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guards_len(guards: GuardsHandle, len: *mut usize) -> Code {
    call(|| {
        let len = out_arg!(len);
        len.write(handle::get::<Guards>(guards)?.granted.len())
    })
}

/// The name of one of the locks, counted from 0; LEASEHOLD_CODE_NOT_FOUND for an index after the last.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guards_key(
    guards: GuardsHandle,
    index: usize,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let guards = handle::get::<Guards>(guards)?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(guards.at(index)?.key(), buffer, capacity, len) }
    })
}

/// The fencing token of one of the locks, for what that key protects. See leasehold_guard_token.
/// \param token Gets the fencing token.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guards_token(guards: GuardsHandle, index: usize, token: *mut u64) -> Code {
    call(|| {
        let token = out_arg!(token);
        token.write(handle::get::<Guards>(guards)?.at(index)?.fencing_token())
    })
}

/// The group that all of them belong to.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guards_lock_id(
    guards: GuardsHandle,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let guards = handle::get::<Guards>(guards)?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(guards.at(0)?.lock_id(), buffer, capacity, len) }
    })
}

/// Writes whether all of them are held. See leasehold_guard_is_held.
/// \param held Gets the answer; false when the call fails.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guards_is_held(guards: GuardsHandle, held: *mut bool) -> Code {
    call(|| {
        let held = out_arg!(held).or(false);
        held.write(handle::get::<Guards>(guards)?.ask(LockAllGuard::is_held).unwrap_or(false))
    })
}

/// leasehold_guards_is_held as a code: LEASEHOLD_CODE_OK while all of them are held, LEASEHOLD_CODE_LOST when one was
/// lost, LEASEHOLD_CODE_CLOSED after they were released, or their client closed. The error names the key.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guards_ensure_held(guards: GuardsHandle) -> Code {
    call(|| {
        let guards = handle::get::<Guards>(guards)?;
        let said = guards.ask(LockAllGuard::ensure_held).ok_or_else(|| guards.ended())?;
        said.map_err(|error| guards.in_danger(error))
    })
}

/// leasehold_guard_hold_at_least for all of them, one after the other; after a failure it can be called again. Locks
/// that come before the one that failed keep their time: leasehold_client_unlock_key, called before the release, frees
/// them.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guards_hold_at_least(guards: GuardsHandle, ms: u64) -> Code {
    call(|| {
        let guards = handle::get::<Guards>(guards)?;
        let stand = |held: &LockAllGuard| held.guards().iter().try_for_each(|one| one.hold_at_least(millis(ms)));
        guards.ask(stand).ok_or_else(|| guards.ended())?.map_err(|error| guards.in_danger(error))
    })
}

/// How many milliseconds all of them stay held if no further renewal succeeds, and no more than
/// leasehold_request_set_max_hold allows: 0 when one is not held.
/// \param ms Gets the milliseconds.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guards_remaining(guards: GuardsHandle, ms: *mut u64) -> Code {
    call(|| {
        let ms = out_arg!(ms);
        ms.write(handle::get::<Guards>(guards)?.ask(LockAllGuard::remaining).map_or(0, as_millis))
    })
}

/// Releases all of them, within the client's drop timeout together. LEASEHOLD_CODE_LOST when one was not held any more,
/// LEASEHOLD_CODE_CLOSED when they were released already, or while another thread is still releasing them. If one can't
/// be released, the others are released all the same, and the library goes on trying with that one in the background:
/// this function can't be called again. The guard stays yours to free.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_guards_release(guards: GuardsHandle) -> Code {
    call(|| handle::get::<Guards>(guards)?.release())
}

/// Frees the guard, and releases what is still held, within the client's drop timeout. If the loss callback is running
/// on another thread, this waits until it has returned: see leasehold_guard_free.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_guards_free(guards: GuardsHandle) -> Code {
    call(|| {
        let guards = handle::remove::<Guards>(guards)?;
        {
            // Left again before this waits for a callback below, which may be about to release them, too.
            let _ending = guards.ending.alone_within(guards.drop_timeout);
            let mut drop_bound = DropBound::default();
            if let Some(held) = guards.take(&mut drop_bound) {
                // Not left to a drop: another call may use them just now, and would then be the one to release them.
                let _ = held.release_shared();
            }
        }
        guards.watch.freed();
        Ok(())
    })
}
