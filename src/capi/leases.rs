//! Leases that names hold.

use std::ffi::c_char;

use super::cancel::{Cancel, CancelHandle};
use super::client::{Client, ClientHandle};
use super::code::Code;
use super::list::{List, ListHandle};
use super::{call, handle, millis, out_arg, text_arg};
use crate::CancelToken;
use crate::api::leases::Leases;

/// The leases of a namespace.
pub struct LeasesData(pub(super) Leases);
handle::object!(LeasesData = 13, LeasesHandle, "namespace of leases");

/// The leases of a namespace: somebody claims a name for a holder, anyone may extend it for that holder, and it ends
/// only when somebody expires it after its time, or revokes it. So it lasts over restarts, and no guard renews it. Free
/// it with leasehold_leases_free, which ends no lease.
///
/// Only the text `holder` identifies the holder: put something unique in it if two processes, or two lives of one, could
/// use the same. Otherwise a process that was stopped, and goes on, shares, extends or revokes the lease of a successor;
/// it can compare the token with that of its claim before it calls leasehold_leases_keep or leasehold_leases_revoke.
///
/// A call that finds the lease in another state than it needs returns LEASEHOLD_CODE_INVALID_LEASE, which is normal:
/// leasehold_error_holders gives the lease as it was found.
///
/// In a list of leases the name is LEASEHOLD_TEXT_KEY and the holder LEASEHOLD_TEXT_OWNER; there are no other texts.
/// Its times are those of the claim, of the last extension, and of its end, from when on (on DynamoDB a grace later) it
/// can be expired. A list of pins has the same two texts, with the entity instead of the holder, and no numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasesHandle {
    pub id: u64,
}

/// Makes a handle for the leases of a namespace. Nothing is sent to the store; later calls fail if the namespace is not
/// valid.
/// \param namespace_ `namespace_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param leases Gets the namespace.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_new(
    client: ClientHandle,
    namespace_: *const c_char,
    namespace_len: usize,
    leases: *mut LeasesHandle,
) -> Code {
    call(|| {
        let (namespace, leases) = (text_arg!(namespace_, namespace_len), out_arg!(leases));
        let of = handle::get::<Client>(client)?.api.leases(namespace);
        leases.write(handle::insert(LeasesData(of))?)
    })
}

/// Claims the lease for a holder, for at least `ms` milliseconds: from 1,000 (SQLite and memory: 100) to 30 days.
/// LEASEHOLD_CODE_INVALID_LEASE when somebody holds it, even if that is the same holder, and even if the lease's time is
/// over. After LEASEHOLD_CODE_AMBIGUOUS or LEASEHOLD_CODE_STORE the lease may be claimed, at once or a moment later:
/// leasehold_leases_extend succeeds once it is; after leasehold_leases_revoke it cannot be any more.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param token Gets the fencing token of the claim.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_claim(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    holder: *const c_char,
    holder_len: usize,
    ms: u64,
    token: *mut u64,
) -> Code {
    call(|| {
        let (name, holder, token) = (text_arg!(name, name_len), text_arg!(holder, holder_len), out_arg!(token));
        token.write(handle::get::<LeasesData>(leases)?.0.claim(name, holder, millis(ms))?.fencing_token())
    })
}

/// Makes the lease of a holder last for `ms` milliseconds from now on; never shortens it. Its time may be over, as long
/// as nobody has expired it. LEASEHOLD_CODE_INVALID_LEASE when nobody or another holds it. After
/// LEASEHOLD_CODE_AMBIGUOUS or LEASEHOLD_CODE_STORE it may have been extended. The bounds of `ms` are those of a claim.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_extend(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    holder: *const c_char,
    holder_len: usize,
    ms: u64,
) -> Code {
    call(|| {
        let (name, holder) = (text_arg!(name, name_len), text_arg!(holder, holder_len));
        handle::get::<LeasesData>(leases)?.0.extend(name, holder, millis(ms))?;
        Ok(())
    })
}

/// Ends the lease after its time. LEASEHOLD_CODE_INVALID_LEASE when nobody holds it, its time is not over, or somebody
/// pins it.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_expire(leases: LeasesHandle, name: *const c_char, name_len: usize) -> Code {
    call(|| {
        let name = text_arg!(name, name_len);
        Ok(handle::get::<LeasesData>(leases)?.0.expire(name)?)
    })
}

/// Ends the lease of a holder before its time, even if somebody pins it. LEASEHOLD_CODE_INVALID_LEASE when nobody or
/// another holds it; if nobody does, the row is still written, so that an earlier claim that was not answered cannot take
/// effect afterwards.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param holder `holder_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_revoke(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    holder: *const c_char,
    holder_len: usize,
) -> Code {
    call(|| {
        let (name, holder) = (text_arg!(name, name_len), text_arg!(holder, holder_len));
        Ok(handle::get::<LeasesData>(leases)?.0.revoke(name, holder)?)
    })
}

/// The lease of a name, as a list of one entry; an empty list when nobody holds it.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_get(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (name, list) = (text_arg!(name, name_len), out_arg!(list));
        let found = handle::get::<LeasesData>(leases)?.0.get(name)?;
        list.write(handle::insert(List::of_leases(found))?)
    })
}

/// Lists every lease of the namespace that somebody holds, also those whose time is over, by name.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_list(leases: LeasesHandle, list: *mut ListHandle) -> Code {
    call(|| {
        let list = out_arg!(list);
        list.write(handle::insert(List::of_leases(handle::get::<LeasesData>(leases)?.0.list()?))?)
    })
}

/// Keeps the name from being expired until leasehold_leases_unpin, on behalf of an entity. Several may pin it, and a
/// pin outlasts the claim. Pinning again changes nothing, but still writes the row, so that an earlier
/// leasehold_leases_unpin that was not answered cannot take effect afterwards.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param entity `entity_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_pin(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    entity: *const c_char,
    entity_len: usize,
) -> Code {
    call(|| {
        let (name, entity) = (text_arg!(name, name_len), text_arg!(entity, entity_len));
        Ok(handle::get::<LeasesData>(leases)?.0.pin(name, entity)?)
    })
}

/// Takes back what leasehold_leases_pin did. LEASEHOLD_CODE_OK also when there is nothing to take back; the row is still
/// written, so that an earlier leasehold_leases_pin that was not answered cannot take effect afterwards.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param entity `entity_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_unpin(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    entity: *const c_char,
    entity_len: usize,
) -> Code {
    call(|| {
        let (name, entity) = (text_arg!(name, name_len), text_arg!(entity, entity_len));
        Ok(handle::get::<LeasesData>(leases)?.0.unpin(name, entity)?)
    })
}

/// Lists who pins the name, whether it is held or not.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_pinned_by(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (name, list) = (text_arg!(name, name_len), out_arg!(list));
        let pins = handle::get::<LeasesData>(leases)?.0.pinned_by(name)?;
        list.write(handle::insert(List::of_pins(name, pins))?)
    })
}

/// Waits, without limit, until the time of the lease is over, or nobody holds it. It does not expire the lease.
/// LEASEHOLD_CODE_CANCELLED once leasehold_cancel_fire was called for `cancel`, which may be {0}.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leases_wait_until_expired(
    leases: LeasesHandle,
    name: *const c_char,
    name_len: usize,
    cancel: CancelHandle,
) -> Code {
    call(|| {
        let name = text_arg!(name, name_len);
        let token = match cancel == CancelHandle::default() {
            true => CancelToken::new(),
            false => handle::get::<Cancel>(cancel)?.0.clone(),
        };
        Ok(handle::get::<LeasesData>(leases)?.0.wait_until_expired(name, &token)?)
    })
}

/// Frees the handle of the namespace. Its leases stay as they are.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_leases_free(leases: LeasesHandle) -> Code {
    call(|| handle::remove::<LeasesData>(leases).map(drop))
}
