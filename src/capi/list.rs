//! Who holds what: listings, groups, housekeeping.

use std::ffi::c_char;

use super::client::{Client, ClientHandle};
use super::code::Code;
use super::failure::Failure;
use super::filter::{FilterData, FilterHandle};
use super::status::{STATUS_FIRST_SIZE, Status, UNENDING, pick};
use super::{call, handle, millis, out_arg, sized_out_arg, text, text_arg};
use crate::Mode;
use crate::api::filter::Filter;
use crate::model::error::ErrorKind;
use crate::model::lease_status::LeaseStatus;
use crate::model::lock::LockStatus;

/// Holders as they were when somebody looked.
pub struct List(Vec<Entry>);

/// Who holds something.
enum Entry {
    Lock(LockStatus),
    Lease(LeaseStatus),
    Pin { name: String, entity: String },
}

impl List {
    pub fn of_locks(locks: Vec<LockStatus>) -> List {
        List(locks.into_iter().map(Entry::Lock).collect())
    }

    pub fn of_leases(leases: impl IntoIterator<Item = LeaseStatus>) -> List {
        List(leases.into_iter().map(Entry::Lease).collect())
    }

    pub fn of_pins(name: &str, entities: impl IntoIterator<Item = String>) -> List {
        List(entities.into_iter().map(|entity| Entry::Pin { name: name.to_owned(), entity }).collect())
    }

    fn at(&self, index: usize) -> Result<&Entry, Failure> {
        let none = || Failure::new(Code::NotFound, format!("index is {index}, but the list has {}", self.0.len()));
        self.0.get(index).ok_or_else(none)
    }
}

impl Entry {
    fn status(&self) -> Result<Status, Failure> {
        Ok(match self {
            Entry::Lock(holder) => Status::new(
                holder.fencing_token(),
                holder.mode(),
                holder.created(),
                holder.renewed(),
                holder.leased_until(),
                holder.remaining().unwrap_or(UNENDING),
            ),
            Entry::Lease(lease) => Status::new(
                lease.fencing_token(),
                Mode::Exclusive,
                lease.claimed(),
                lease.extended(),
                Some(lease.expires()),
                lease.remaining(),
            ),
            Entry::Pin { .. } => return Err(Failure::new(Code::NotFound, "a pin has no numbers")),
        })
    }

    fn text(&self, text: i32) -> Result<&str, Failure> {
        match self {
            Entry::Lock(holder) => {
                let lock_id = Some(holder.lock_id());
                pick(text, holder.key(), lock_id, holder.owner(), holder.host(), holder.comment())
            }
            Entry::Lease(lease) => pick(text, lease.name(), None, lease.holder(), None, None),
            Entry::Pin { name, entity } => pick(text, name, None, entity, None, None),
        }
    }
}
handle::object!(List = 6, ListHandle, "list");

/// Holders as they were when somebody looked. Free it with leasehold_list_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListHandle {
    pub id: u64,
}

/// What the store knows of a key: the highest fencing token that was ever issued, and every holder in the record, the
/// expired ones included. LEASEHOLD_CODE_NOT_FOUND when nobody ever held it or its row was deleted. Use this to find
/// out who holds a lock, not to check a lock before you take it.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param token Gets the fencing token.
/// \param holders Gets the holders.
#[unsafe(no_mangle)]
#[must_use]
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
        let client = handle::get::<Client>(client)?;
        let none = || client.api.error(ErrorKind::InvalidInput, key, "nobody ever held it");
        let status = client.api.get(key)?.ok_or_else(|| Failure::with_code(none(), Code::NotFound))?;
        holders.write(handle::insert(List::of_locks(status.holders().to_vec()))?)?;
        token.write(status.fencing_token())
    })
}

/// Lists every lock that fits the filter, newest first. `filter` may be {0}, for all locks.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_list(
    client: ClientHandle,
    filter: FilterHandle,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let list = out_arg!(list);
        let client = handle::get::<Client>(client)?;
        let filter =
            if filter == FilterHandle::default() { Filter::new() } else { handle::get::<FilterData>(filter)?.copy() };
        list.write(handle::insert(List::of_locks(client.api.list(&filter)?))?)
    })
}

/// Renews all locks of a group for this many milliseconds from now on, and lists them. LEASEHOLD_CODE_LOST when there
/// is none, or one of them has less than a second left.
/// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_renew_group(
    client: ClientHandle,
    lock_id: *const c_char,
    lock_id_len: usize,
    lease_ms: u64,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (lock_id, list) = (text_arg!(lock_id, lock_id_len), out_arg!(list));
        let renewed = handle::get::<Client>(client)?.api.renew(lock_id, millis(lease_ms))?;
        list.write(handle::insert(List::of_locks(renewed))?)
    })
}

/// Releases all locks of a group, newest first, and lists what was released.
/// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_unlock_group(
    client: ClientHandle,
    lock_id: *const c_char,
    lock_id_len: usize,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (lock_id, list) = (text_arg!(lock_id, lock_id_len), out_arg!(list));
        let released = handle::get::<Client>(client)?.api.unlock(lock_id)?;
        list.write(handle::insert(List::of_locks(released))?)
    })
}

/// Removes holders whose lease ended more than `older_than_ms` milliseconds ago, and lists them. It also deletes the
/// rows of free keys that were last granted 30 days ago, which are not listed.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_purge(
    client: ClientHandle,
    older_than_ms: u64,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let list = out_arg!(list);
        let purged = handle::get::<Client>(client)?.api.purge(millis(older_than_ms))?;
        list.write(handle::insert(List::of_locks(purged.freed))?)
    })
}

/// Lists the holders that leasehold_client_purge would remove now, and writes nothing.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_purge_preview(
    client: ClientHandle,
    older_than_ms: u64,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let list = out_arg!(list);
        let purged = handle::get::<Client>(client)?.api.purge_preview(millis(older_than_ms))?;
        list.write(handle::insert(List::of_locks(purged.freed))?)
    })
}

/// Creates the tables and indexes that the store needs, where they are missing. DynamoDB, MongoDB and Spanner may take
/// minutes: it waits for up to ten, or until the client is closed.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_client_create_schema(client: ClientHandle) -> Code {
    call(|| {
        handle::get::<Client>(client)?.api.create_schema()?;
        Ok(())
    })
}

/// What leasehold_client_create_schema would do, as a text for an administrator: for programs without the right to do
/// it.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_schema(
    client: ClientHandle,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let schema = handle::get::<Client>(client)?.api.schema()?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(&schema, buffer, capacity, len) }
    })
}

/// How many holders the list has.
/// \param len Gets the number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_list_len(list: ListHandle, len: *mut usize) -> Code {
    call(|| {
        let len = out_arg!(len);
        len.write(handle::get::<List>(list)?.0.len())
    })
}

/// The numbers of a holder. `index` counts from 0; LEASEHOLD_CODE_NOT_FOUND for one after the last, and for a pin.
/// `status_size` is `sizeof *status`.
/// \param status Gets the numbers; `status_size` bytes.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_list_status(
    list: ListHandle,
    index: usize,
    status: *mut Status,
    status_size: usize,
) -> Code {
    call(|| {
        let status = sized_out_arg!(status, status_size, STATUS_FIRST_SIZE);
        let list = handle::get::<List>(list)?;
        status.write(list.at(index)?.status()?)
    })
}

/// A text of a holder; `text` is one of leasehold_text. LEASEHOLD_CODE_NOT_FOUND when it has none.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
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
        let part = list.at(index)?.text(text)?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(part, buffer, capacity, len) }
    })
}

/// Frees the list. Texts that were copied out of it stay.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_list_free(list: ListHandle) -> Code {
    call(|| handle::remove::<List>(list).map(drop))
}
