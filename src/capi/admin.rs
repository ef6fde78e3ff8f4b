//! For operators: free locks of others, and find out what is wrong with a store.

use std::ffi::c_char;

use super::client::{Client, ClientHandle};
use super::code::Code;
use super::list::{List, ListHandle};
use super::{call, handle, out_arg, text, text_arg};
use crate::Diagnosis;
use crate::model::error::{Error, Result};

/// Frees a key, whoever holds it, and lists who held it. That breaks the promise that was given to the holder: it
/// learns of its loss at its next heartbeat, and until then only the fencing token protects the resource.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_force_release(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (key, list) = (text_arg!(key, key_len), out_arg!(list));
        let freed = handle::get::<Client>(client)?.api.force_release(key)?;
        list.write(handle::insert(List::of_locks(freed))?)
    })
}

/// Frees one key of a group, and lists who held it: what leasehold_client_unlock_group does to all of them.
/// LEASEHOLD_CODE_HELD when only others hold the key.
/// \param key `key_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param lock_id `lock_id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param list Gets the list.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_unlock_key(
    client: ClientHandle,
    key: *const c_char,
    key_len: usize,
    lock_id: *const c_char,
    lock_id_len: usize,
    list: *mut ListHandle,
) -> Code {
    call(|| {
        let (key, lock_id, list) = (text_arg!(key, key_len), text_arg!(lock_id, lock_id_len), out_arg!(list));
        let freed = handle::get::<Client>(client)?.api.unlock_key(key, lock_id)?;
        list.write(handle::insert(List::of_locks(freed))?)
    })
}

/// Finds out whether the store can be reached, whether its schema is right, how far its clock is off, how long a round
/// trip takes, and what this client may do there: it writes a row of its own, and deletes it again. Takes at most twice
/// the request timeout. The text has one line for each result, also for what is wrong. Each call asks the store anew,
/// so give room for about 4,096 bytes instead of asking for the length first.
/// \param well Gets whether nothing is wrong; false when the call fails.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_diagnose(
    client: ClientHandle,
    well: *mut bool,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let well = out_arg!(well).or(false);
        let diagnosis = handle::get::<Client>(client)?.api.diagnose()?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(&told(&diagnosis), buffer, capacity, len) }?;
        well.write(diagnosis.is_well())
    })
}

fn told(found: &Diagnosis) -> String {
    fn said<T>(answer: &Result<T, Error>, ok: impl FnOnce(&T) -> String) -> String {
        answer.as_ref().map_or_else(|error| format!("failed: {}", error.with_causes()), ok)
    }
    let off = found.clock_difference_ms.map_or("unknown".to_owned(), |ms| format!("{ms} ms"));
    let mut lines = vec![
        format!("store: {}", found.store),
        format!("clock: {}", found.clock),
        format!("clock, less this host's: {off}"),
        format!("grace: {:?}", found.grace),
        format!("schema: {}", said(&found.schema, String::clone)),
        format!("round trip: {}", said(&found.round_trip, |time| format!("{time:?}"))),
    ];
    let right = |right: &crate::api::admin::doctor::Right| {
        format!("{}: {}", right.what, said(&right.outcome, |()| "allowed".to_owned()))
    };
    lines.extend(found.rights.iter().map(right));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
    use crate::store::memory::Memory;
    use crate::sys::clock::Clock;

    /// C can get the cause from nowhere else.
    #[test]
    fn what_is_wrong_is_told_with_its_cause() {
        let (faults, clock) = (FaultPlan::default(), Clock::system());
        faults.always(Call::Acquire, Fault::Refuse);
        let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults);
        let client = ClientBuilder::over(Arc::new(store), clock).connect().expect("a client");
        let text = told(&client.diagnose().expect("an answer"));
        assert!(text.contains("permission denied"), "{text}");
    }
}
