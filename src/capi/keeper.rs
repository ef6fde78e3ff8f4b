//! Keepers: the library extends a lease for C.

use std::ffi::c_char;

use super::code::Code;
use super::guard::wait_loss;
use super::leases::{LeasesData, LeasesHandle};
use super::loss::Reason;
use super::{as_millis, call, handle, millis, out_arg, text, text_arg};
use crate::api::leases::LeaseKeeper;
use crate::sys::drop_bound::DropBound;

/// A lease that the library extends.
pub struct KeeperData(pub(super) LeaseKeeper);
handle::object!(KeeperData = 15, KeeperHandle, "keeper of a lease");

/// A lease that a thread of the library extends. Free it with leasehold_keeper_free, which stops that and leaves the
/// lease as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeeperHandle {
    pub id: u64,
}

/// Extends the lease of a holder as leasehold_leases_extend does: now, and then again and again by a thread of the
/// library's, until the keeper is freed or its client closed. That does not end the lease: it ends when somebody
/// expires or revokes it.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param keeper Gets the keeper.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_keep(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    holder: *const c_char,
    holder_len: usize,
    ms: u64,
    keeper: *mut KeeperHandle,
) -> Code {
    call(|| {
        let (name, holder, keeper) = (text_arg!(name, name_len), text_arg!(holder, holder_len), out_arg!(keeper));
        let kept = handle::get::<LeasesData>(leases)?.0.keep(name, holder, millis(ms))?;
        keeper.write(handle::insert(KeeperData(kept))?)
    })
}

/// Writes whether the lease surely is the holder's. It becomes false before somebody could expire the lease, and then
/// stays false. That somebody has revoked the lease is found out by the next extension. It does not ask the store and
/// does not wait.
/// \param held Gets the answer; false when the call fails.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_keeper_is_held(keeper: KeeperHandle, held: *mut bool) -> Code {
    call(|| {
        let held = out_arg!(held).or(false);
        held.write(handle::get::<KeeperData>(keeper)?.0.is_held())
    })
}

/// leasehold_keeper_is_held as a code: LEASEHOLD_CODE_OK, LEASEHOLD_CODE_LOST, or LEASEHOLD_CODE_CLOSED after its
/// client was closed, which leaves the lease to its holder.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_keeper_ensure_held(keeper: KeeperHandle) -> Code {
    call(|| Ok(handle::get::<KeeperData>(keeper)?.0.ensure_held()?))
}

/// The fencing token of the claim.
/// \param token Gets the fencing token.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_keeper_token(keeper: KeeperHandle, token: *mut u64) -> Code {
    call(|| {
        let token = out_arg!(token);
        token.write(handle::get::<KeeperData>(keeper)?.0.fencing_token())
    })
}

/// How many milliseconds the lease stays the holder's if no further extension succeeds; 0 when it is not.
/// \param ms Gets the milliseconds.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_keeper_remaining(keeper: KeeperHandle, ms: *mut u64) -> Code {
    call(|| {
        let ms = out_arg!(ms);
        ms.write(as_millis(handle::get::<KeeperData>(keeper)?.0.remaining()))
    })
}

/// How the lease was lost, as a number and as a text for people; LEASEHOLD_REASON_NONE and an empty text when it was
/// not lost.
/// \param reason Gets the reason.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_keeper_loss(
    keeper: KeeperHandle,
    reason: *mut Reason,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let reason = out_arg!(reason);
        let loss = handle::get::<KeeperData>(keeper)?.0.loss().get();
        let (why, said) = Reason::told(loss.as_ref());
        // SAFETY: passed on from the caller.
        unsafe { text::write(&said, buffer, capacity, len) }?;
        reason.write(why)
    })
}

/// Waits until the lease is lost, which is LEASEHOLD_CODE_OK. LEASEHOLD_CODE_TIMED_OUT when that did not happen within
/// `ms` milliseconds, LEASEHOLD_CODE_CLOSED once the keeper was freed, or its client closed.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_keeper_wait_loss(keeper: KeeperHandle, ms: u64) -> Code {
    call(|| {
        // The keeper is not kept during the wait, so that freeing it ends the wait.
        let (loss, granted) = {
            let keeper = handle::get::<KeeperData>(keeper)?;
            (keeper.0.loss(), keeper.0.guard().info())
        };
        let ensure_held = || {
            let _ = handle::get::<KeeperData>(keeper).map(|keeper| keeper.0.guard().ensure_held());
        };
        wait_loss(&loss, &granted, ms, ensure_held)
    })
}

/// Stops extending the lease, which stays as it is, and frees the keeper.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_keeper_free(keeper: KeeperHandle) -> Code {
    call(|| {
        let mut drop_bound = DropBound::default();
        let keeper = handle::remove::<KeeperData>(keeper)?;
        // Ended here, not by a drop: another call may be inside it, and would then be the one to end it.
        drop_bound.begin(keeper.0.guard().quiet_drop_by());
        keeper.0.guard().end_quietly();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::LockClient;

    /// Another thread may be inside a call, and would otherwise end the keeper only when it leaves.
    #[test]
    fn a_keeper_that_was_freed_extends_no_more_though_another_call_is_inside() {
        let minute = Duration::from_secs(60);
        let leases = LockClient::connect("memory:").map(|client| client.leases("n")).unwrap();
        leases.claim("a", "h", minute).unwrap();
        let Ok(keeper) = handle::insert(KeeperData(leases.keep("a", "h", minute).unwrap())) else { panic!("a handle") };
        let Ok(inside) = handle::get::<KeeperData>(keeper) else { panic!("the keeper") };
        assert!(inside.0.is_held());
        assert_eq!(leasehold_keeper_free(keeper), Code::Ok);
        assert!(!inside.0.is_held());
        assert_eq!(leases.get("a").unwrap().unwrap().holder(), "h", "the lease stays");
    }
    #[test]
    fn a_keeper_of_a_closed_client_has_lost_nothing() {
        let minute = Duration::from_secs(60);
        let client = LockClient::connect("memory:").unwrap();
        let leases = client.leases("n");
        leases.claim("a", "h", minute).unwrap();
        let Ok(keeper) = handle::insert(KeeperData(leases.keep("a", "h", minute).unwrap())) else { panic!("a handle") };
        assert_eq!(leasehold_keeper_ensure_held(keeper), Code::Ok);
        client.close().unwrap();
        assert_eq!(leasehold_keeper_ensure_held(keeper), Code::Closed);
        assert_eq!(leasehold_keeper_wait_loss(keeper, 0), Code::Closed);
        assert_eq!(leasehold_keeper_free(keeper), Code::Ok);
    }
}
