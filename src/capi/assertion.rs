//! A lock asserted in a transaction of the user's own, by a statement for any driver.

use std::ffi::c_char;

use super::code::Code;
use super::failure::Failure;
use super::guard::{Guard, GuardHandle};
use super::{call, handle, text};

/// The parts of an assertion.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum Assertion {
    /// The statement.
    Sql = 0,
    /// What to bind to its first parameter: a text.
    First = 1,
    /// What to bind to its second parameter: a text. It proves who holds the lock: keep it out of logs.
    Second = 2,
}

/// A part of the statement by which a transaction of your own asserts that the lock is held; `part` is one of
/// leasehold_assertion. For a lock in PostgreSQL or SQLite, by any driver, in a transaction of the database that has
/// the locks; LEASEHOLD_CODE_INVALID_INPUT for one of another store.
///
/// Run it before the commit, and fetch its answer: one row with a true value while the lock is held. From then on
/// nobody else is granted the lock before the transaction ends, unless you roll back to a savepoint that is older than
/// the statement. No row: the lock is not held any more; roll back. An error, or a false value: roll back as well.
///
/// PostgreSQL: the parameters are $1 and $2. A false value means that the table lacks an index, which
/// leasehold_client_create_schema adds. The heartbeats of all holders of a shared lock wait until the transaction ends,
/// so keep it shorter than what is left of their leases.
///
/// SQLite, 3.38 or newer: the parameters are ?1 and ?2. The lock file must be the connection's main database. Every
/// heartbeat of the file waits until the transaction ends, so keep it short. Unlike the library's own calls, the
/// statement cannot tell whether the connection's file and log are still those at the path: open the connection anew
/// after a restore. An SQLite of your own in this process harms the locks (see the top): let another process run the
/// statement, or build this library with the system's SQLite and use that one: see the page `c` of the guide. An SQLite
/// before 3.51.3 may lack the fix of a rare loss of commits, by which a lock gets two holders
/// (https://sqlite.org/wal.html#walresetbug).
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_guard_assertion(
    guard: GuardHandle,
    part: i32,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    const SQL: i32 = Assertion::Sql as i32;
    const FIRST: i32 = Assertion::First as i32;
    const SECOND: i32 = Assertion::Second as i32;
    call(|| {
        let guard = handle::get::<Guard>(guard)?;
        let [sql, first, second] = guard.assertion()?;
        let wanted = match part {
            SQL => sql,
            FIRST => first,
            SECOND => second,
            _ => {
                let message = format!("part is {part}, but must be one of leasehold_assertion");
                return Err(Failure::new(Code::InvalidInput, message));
            }
        };
        // SAFETY: passed on from the caller.
        unsafe { text::write(&wanted, buffer, capacity, len) }
    })
}
