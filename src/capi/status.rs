//! The numbers and texts of a holder, of a listing or of a lock as data.

use std::time::{Duration, SystemTime};

use super::as_millis;
use super::code::Code;
use super::failure::Failure;
use crate::Mode;

/// How a lock is held.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeCode {
    /// Nobody else holds the key.
    Exclusive = 0,
    /// Others may hold the key in shared mode, nobody in exclusive mode.
    Shared = 1,
}

impl From<Mode> for ModeCode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => ModeCode::Exclusive,
            Mode::Shared => ModeCode::Shared,
        }
    }
}

/// The value for a lease without end.
pub const UNENDING: Duration = Duration::MAX;

/// The numbers of a holder. Times are in milliseconds since 1970, by this host's wall clock. Later versions may add
/// numbers at its end: the caller passes the sizeof of its own version and gets the numbers of that version, with 0 for
/// those that the library does not know.
#[repr(C)]
pub struct Status {
    /// The fencing token of the holder's grant.
    pub token: u64,
    /// When the lock was granted.
    pub created_ms: u64,
    /// When the lock was last renewed; 0 when it never was.
    pub renewed_ms: u64,
    /// When the lease ends; UINT64_MAX when it has no end.
    pub leased_until_ms: u64,
    /// What was left of the lease when this was read: 0 when it had ended, UINT64_MAX when it has no end.
    pub remaining_ms: u64,
    /// How the lock is held.
    pub mode: ModeCode,
    /// Always 0. Padding is named so that no bytes of the library's memory get into it.
    pub reserved: u32,
}

/// The size of the first version of [`Status`]. No caller has a smaller one.
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
            reserved: 0,
        }
    }
}

/// The texts of a lock.
#[repr(i32)]
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// The name of the lock.
    Key = 0,
    /// The group that the lock belongs to. Anyone who knows this id can renew and release the whole group.
    LockId = 1,
    /// The holder's name, for people to read.
    Owner = 2,
    /// The host of the holder.
    Host = 3,
    /// The holder's note, for people to read.
    Comment = 4,
}

/// The text with this number.
pub fn pick<'a>(
    text: i32,
    key: &'a str,
    lock_id: Option<&'a str>,
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
        LOCK_ID => lock_id,
        OWNER => Some(owner),
        HOST => host,
        COMMENT => comment,
        _ => {
            return Err(Failure::new(Code::InvalidInput, format!("text is {text}, but must be one of leasehold_text")));
        }
    };
    found.ok_or_else(|| Failure::new(Code::NotFound, "the holder has no such text"))
}
