//! What a caller wants, and what it gets.

use std::time::{Duration, Instant};

use crate::engine::options::Terms;
use crate::lease::{Ask, GrantId, Holder, Labels, Mode, StoreTime};
use crate::model::waiting::Waiting;
use crate::store::{Attempt, Seen};
use crate::sys::cancel::CancelToken;
use crate::sys::clock::BootTime;

/// A lock that was granted and not yet put into a guard.
pub struct Granted {
    /// The acquisition.
    pub attempt: Attempt,
    /// The entry in the store.
    pub holder: Holder,
    /// The store's now when it answered.
    pub now: StoreTime,
    /// Until when the holder may count itself as such.
    pub held_until: BootTime,
    /// The hand-overs inside this process that led here.
    pub chain: Chain,
}

/// How often in a row, and since when, a lock was handed over without being free for others.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub times: u32,
    pub since: BootTime,
}

/// Runs on the caller's thread whenever a wait goes on.
pub type OnWait = Box<dyn FnMut(&Waiting) + Send>;

/// The lock that a caller wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub key: String,
    pub mode: Mode,
    pub lock_id: Option<String>,
    pub labels: Labels,
    pub max_holders: Option<u32>,
    pub replace_same_owner: bool,
    pub terms: Terms,
}

impl Wanted {
    /// An acquisition of it that was not sent yet.
    pub fn attempt(&self, grant: GrantId, lease: Duration, instead_of: Option<(GrantId, u64)>) -> Attempt {
        let ask = Ask {
            // A group of its own where the user names none.
            lock_id: self.lock_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            grant,
            mode: self.mode,
            labels: self.labels.clone(),
            lease,
            max_holders: self.max_holders,
            replace_same_owner: self.replace_same_owner,
            instead_of,
        };
        Attempt::new(&self.key, ask)
    }
}

/// What a caller wants, and what ends and tells its wait.
pub struct Want {
    pub wanted: Wanted,
    /// A transfer from this grant.
    pub instead_of: Option<(GrantId, u64)>,
    /// Asks nothing while others of this process wait for the lock.
    pub stands_back: bool,
    pub cancel: Option<CancelToken>,
    pub on_wait: Option<OnWait>,
}

/// How long to go on while others hold the lock.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Ask once.
    Once,
    /// Until then.
    Until(Instant),
    /// Without limit.
    Endless,
}

/// How a wait ended without an error.
pub enum Obtained {
    /// The lock is granted.
    Granted(Granted),
    /// Others hold it, or wait for it in this process, and the patience is over. Who was seen to
    /// hold it, if it came to a look.
    Refused(Option<Seen>),
}
