//! Which libraries' processes use a store, and what a client may not ask for if those of a Go library use it, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::url::{StoreUrl, config};
use crate::lease::{Lease, Mode, StoreTime};
use crate::model::error::{Error, ErrorKind, Result};

/// What a Go library wrote is no reason to warn if it is older than this.
const RECENT: Duration = Duration::from_secs(3600);

/// Which libraries' processes use the table or collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fleet {
    /// Only processes of this library.
    #[default]
    Own,
    /// Processes of a Go library, too.
    Mixed,
}

impl Fleet {
    /// The fleet that the option `fleet` of the URL names.
    pub(super) fn of_url(url: &StoreUrl<'_>, library: &str) -> Result<Fleet> {
        Fleet::parse(url.option("fleet"), library)
    }

    /// The fleet that this value of the option names; without a value, [`Own`](Fleet::Own).
    pub(super) fn parse(option: Option<&str>, library: &str) -> Result<Fleet> {
        match option {
            None | Some("own") => Ok(Fleet::Own),
            Some("mixed") => Ok(Fleet::Mixed),
            Some(other) => Err(config(&format!(
                "the option fleet is {other:?}, but must be own, where only processes of leasehold lock, or mixed, where \
                 those of {library} do, too"
            ))),
        }
    }

    /// Whether processes of another library write there, too.
    pub fn is_mixed(self) -> bool {
        self == Fleet::Mixed
    }
}

/// Whether the warning that a Go library uses the store was logged.
#[derive(Debug, Default)]
pub(super) struct Watch(AtomicBool);

impl Watch {
    /// Whether to warn that the library uses the store, which wrote at these times; never twice.
    pub(super) fn finds(&self, fleet: Fleet, now: StoreTime, mut theirs: impl Iterator<Item = StoreTime>) -> bool {
        let is_recent = |at| now.since(at) < RECENT;
        !fleet.is_mixed() && theirs.any(is_recent) && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// What a client may not ask for, because the Go library that uses the same store would not respect it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The name of the Go library.
    pub library: &'static str,
    /// Why there are no shared holders.
    pub no_shared: Option<&'static str>,
    /// Why there is no lock without end.
    pub no_endless: Option<&'static str>,
    /// Why there are no leases that a name holds.
    pub no_names: Option<&'static str>,
    /// The only lease there is, and why.
    pub one_lease: Option<(Duration, &'static str)>,
    /// Whether a lock's row is never deleted, because the Go library would not make it again.
    pub keeps_rows: bool,
    /// The characters that no key may have, and why.
    pub not_in_key: Option<(&'static [char], &'static str)>,
}

impl Limits {
    pub(crate) fn check_mode(&self, mode: Mode) -> Result<()> {
        let why = self.no_shared.filter(|_| mode == Mode::Shared);
        why.map_or(Ok(()), |why| self.refuse("a shared lock", why))
    }

    pub(crate) fn check_lease(&self, lease: Lease) -> Result<()> {
        match (lease, self.no_endless, self.one_lease) {
            (Lease::Forever, Some(why), _) => self.refuse("a lock without an end", why),
            (Lease::For(lease), _, Some((one, why))) if lease != one => {
                self.refuse(&format!("a lease of {lease:?}, other than {one:?}"), why)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_key(&self, key: &str) -> Result<()> {
        match self.not_in_key.filter(|(not, _)| key.contains(*not)) {
            Some((not, why)) => {
                let not: Vec<String> = not.iter().map(char::to_string).collect();
                self.refuse(&format!("a key with {}", not.join(" or ")), why)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn check_names(&self) -> Result<()> {
        self.no_names.map_or(Ok(()), |why| self.refuse("a lease that a name holds", why))
    }

    fn refuse(&self, what: &str, why: &str) -> Result<()> {
        let message = format!("fleet=mixed, for {} beside leasehold, has no place for {what}: {why}", self.library);
        Err(Error::new(ErrorKind::InvalidInput, message))
    }
}
