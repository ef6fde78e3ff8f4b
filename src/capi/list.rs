//! Who holds what: listings, groups, housekeeping.

use std::ffi::c_char;
use std::time::{Duration, SystemTime};

use super::client::{Client, ClientHandle};
use super::code::Code;
use super::failure::Failure;
use super::filter::{FilterData, FilterHandle};
use super::lock::ModeCode;
use super::{as_millis, call, handle, millis, out_arg, sized_out_arg, text, text_arg};
use crate::Mode;
use crate::api::filter::Filter;
use crate::model::lock::LockStatus;

/// Holders as they were when somebody looked.
pub struct List(pub Vec<LockStatus>);

/// Holders as they were when somebody looked. Free it with leasehold_list_free.
pub type ListHandle = u64;

/// What stands for a lease without end.
pub const UNENDING: Duration = Duration::MAX;

/// The numbers of a holder. Times are in milliseconds since 1970, by this host's wall clock. Later versions may add
/// numbers at its end: whoever asks gives the sizeof of its own, gets as many of them, and 0 for those that the library
/// does not know.
#[repr(C)]
pub struct Status {
    /// The fencing token of its grant.
    pub token: u64,
    /// When it was granted.
    pub created_ms: u64,
    /// When it was last renewed; 0 when it never was.
    pub renewed_ms: u64,
    /// When the lease ends; UINT64_MAX when it has no end.
    pub leased_until_ms: u64,
    /// What was left of the lease when this was read: 0 when it had ended, UINT64_MAX when it has no end.
    pub remaining_ms: u64,
    /// How it is held.
    pub mode: ModeCode,
}

/// Nobody has a smaller one than its first version.
///
/// cbindgen:ignore
pub const STATUS_FIRST_SIZE: usize = 48;

impl Status {
    pub fn new(
        token: u64,
        mode: Mode,
        created: SystemTime,
        renewed: Option<SystemTime>,
        leased_until: Option<SystemTime>,
        remaining: Duration,
    ) -> Self {
        let unix = |at: SystemTime| as_millis(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        Status {
            token,
            created_ms: unix(created),
            renewed_ms: renewed.map_or(0, unix),
            leased_until_ms: leased_until.map_or(u64::MAX, unix),
            remaining_ms: as_millis(remaining),
            mode: mode.into(),
        }
    }
}

/// The texts of a lock.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// The name of the lock.
    Key = 0,
    /// The group that it belongs to. Whoever knows it can renew and release the whole group.
    LockId = 1,
    /// Who holds it, for people.
    Owner = 2,
    /// The host of the holder.
    Host = 3,
    /// What the holder wanted to say.
    Comment = 4,
}

/// The text with this number.
pub fn pick<'a>(
    text: i32,
    key: &'a str,
    lock_id: &'a str,
    owner: &'a str,
    host: Option<&'a str>,
    comment: Option<&'a str>,
) -> Result<&'a str, Failure> {
    const KEY: i32 = Text::Key as i32;
    const LOCK_ID: i32 = Text::LockId as i32;
    const OWNER: i32 = Text::Owner as i32;
    const HOST: i32 = Text::Host as i32;
    const COMMENT: i32 = Text::Comment as i32;
    let found = match text {
        KEY => Some(key),
        LOCK_ID => Some(lock_id),
        OWNER => Some(owner),
        HOST => host,
        COMMENT => comment,
        _ => {
            return Err(Failure::new(Code::InvalidInput, format!("text is {text}, but must be one of leasehold_text")));
        }
    };
    found.ok_or_else(|| Failure::new(Code::NotFound, "the holder has no such text"))
}

/// A time that C gave in milliseconds since 1970.
pub fn unix_time(ms: u64) -> Result<SystemTime, Failure> {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    at.ok_or_else(|| Failure::new(Code::InvalidInput, format!("unix_ms is {ms}, later than any clock goes")))
}

/// What the store knows of a key: the highest fencing token that was ever issued, and every holder in the record, the
/// expired ones included. LEASEHOLD_CODE_NOT_FOUND when nobody ever held it or its row was deleted. For finding out
/// who holds a lock, not for checking before taking it.
///
/// # Safety
/// `key` must have `key_len` readable bytes; `token` and `holders` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_get(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    token: *mut u64,
    holders: *mut ListHandle,
) -> Code {
    call(|| {
        let key = text_arg!(key, key_len);
        let (token, holders) = (out_arg!(token), out_arg!(holders));
        let none = || Failure::new(Code::NotFound, format!("nobody ever held the lock {key:?}"));
        let status = handle::get::<Client>(client)?.0.get(key)?.ok_or_else(none)?;
        holders.write(handle::insert(List(status.holders().to_vec()))?);
        token.write(status.fencing_token());
        Ok(())
    })
}

/// Every lock that fits the filter, newest first; 0 for all.
///
/// # Safety
/// `list` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_list(
    client: ClientHandle,
    filter: FilterHandle,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let list = out_arg!(list);
        let client = handle::get::<Client>(client)?;
        let filter = if filter == 0 { Filter::new() } else { handle::get::<FilterData>(filter)?.copy() };
        list.write(handle::insert(List(client.0.list(&filter)?))?);
        Ok(())
    })
}

/// Renews all locks of a group for so many milliseconds from now on, and lists them. LEASEHOLD_CODE_LOST when there is
/// none, or one of them has less than a second left.
///
/// # Safety
/// `lock_id` must have `lock_id_len` readable bytes, and `list` be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_renew_group(
    client: ClientHandle,
    lock_id: *const c_char,
    lock_id_len: usize,
    lease_ms: u64,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (lock_id, list) = (text_arg!(lock_id, lock_id_len), out_arg!(list));
        let renewed = handle::get::<Client>(client)?.0.renew(lock_id, millis(lease_ms))?;
        list.write(handle::insert(List(renewed))?);
        Ok(())
    })
}

/// Releases all locks of a group, newest first, and lists what was released.
///
/// # Safety
/// `lock_id` must have `lock_id_len` readable bytes, and `list` be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_unlock_group(
    client: ClientHandle,
    lock_id: *const c_char,
    lock_id_len: usize,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (lock_id, list) = (text_arg!(lock_id, lock_id_len), out_arg!(list));
        let released = handle::get::<Client>(client)?.0.unlock(lock_id)?;
        list.write(handle::insert(List(released))?);
        Ok(())
    })
}

/// Frees holders whose lease ended more than so many milliseconds ago, and lists them.
///
/// # Safety
/// `list` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_purge(
    client: ClientHandle,
    older_than_ms: u64,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let list = out_arg!(list);
        let purged = handle::get::<Client>(client)?.0.purge(millis(older_than_ms))?;
        list.write(handle::insert(List(purged.freed))?);
        Ok(())
    })
}

/// Makes what the store needs (tables, indexes) where it is missing.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_create_schema(client: ClientHandle) -> Code {
    call(|| {
        handle::get::<Client>(client)?.0.create_schema()?;
        Ok(())
    })
}

/// What leasehold_client_create_schema would do, for those who may not.
///
/// # Safety
/// `buffer` as for every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_schema(
    client: ClientHandle,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let schema = handle::get::<Client>(client)?.0.schema()?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(&schema, buffer, capacity, len) }
    })
}

/// How many holders the list has.
///
/// # Safety
/// `len` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_list_len(list: ListHandle, len: *mut usize) -> Code {
    call(|| {
        let len = out_arg!(len);
        len.write(handle::get::<List>(list)?.0.len());
        Ok(())
    })
}

/// The numbers of a holder, counted from 0; LEASEHOLD_CODE_NOT_FOUND behind the last. `status_size` is `sizeof *status`.
///
/// # Safety
/// `status_size` bytes at `status` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_list_status(
    list: ListHandle,
    index: usize,
    status: *mut Status,
    status_size: usize,
) -> Code {
    call(|| {
        let status = sized_out_arg!(status, status_size, STATUS_FIRST_SIZE);
        let list = handle::get::<List>(list)?;
        let holder = at(&list, index)?;
        status.write(Status::new(
            holder.fencing_token(),
            holder.mode(),
            holder.created(),
            holder.renewed(),
            holder.leased_until(),
            holder.remaining().unwrap_or(UNENDING),
        ));
        Ok(())
    })
}

/// A text of a holder; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
///
/// # Safety
/// `buffer` as for every text, see the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_list_text(
    list: ListHandle,
    index: usize,
    text: i32,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let list = handle::get::<List>(list)?;
        let holder = at(&list, index)?;
        let part = pick(text, holder.key(), holder.lock_id(), holder.owner(), holder.host(), holder.comment())?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(part, buffer, capacity, len) }
    })
}

/// Frees the list.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_list_free(list: ListHandle) -> Code {
    call(|| handle::remove::<List>(list).map(drop))
}

fn at(list: &List, index: usize) -> Result<&LockStatus, Failure> {
    let none = || Failure::new(Code::NotFound, format!("index is {index}, but the list has {}", list.0.len()));
    list.0.get(index).ok_or_else(none)
}
