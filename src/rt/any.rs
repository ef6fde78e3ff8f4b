//! How the first free one of several locks is obtained: the waits for its keys, taken in turns.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::family::Family;
use super::waiters::{Round, Wait};
use super::want::{Granted, Obtained, OnWait, Patience, Want, Wanted};
use crate::backend::Seen;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::backoff;

/// How a wait for several keys ended without an error.
pub enum AnyObtained {
    /// One of the locks is granted.
    Granted(Granted),
    /// Others hold all of them, and the patience is over.
    Refused(Vec<Seen>),
}

impl Want {
    /// The same for another key.
    pub fn for_key(&self, key: String, on_wait: Option<OnWait>) -> Want {
        Want {
            wanted: Wanted { key, ..self.wanted.clone() },
            instead_of: self.instead_of.clone(),
            stands_back: self.stands_back,
            cancel: self.cancel.clone(),
            on_wait,
        }
    }
}

/// Obtains the first of the locks that is free, or says who holds each of them. The keys are tried
/// in random order, unless `in_order`.
pub fn obtain_any(family: &Arc<Family>, wants: Vec<Want>, patience: Patience, in_order: bool) -> Result<AnyObtained> {
    let waits = wants.into_iter().map(|want| Wait::new(family, want, patience)).collect();
    let obtained = AnyWait { family, waits, patience, in_order }.run();
    obtained.map_err(|error| error.with_store(&family.backend.info().label))
}

struct AnyWait<'a> {
    family: &'a Arc<Family>,
    waits: Vec<Wait<'a>>,
    patience: Patience,
    in_order: bool,
}

impl AnyWait<'_> {
    fn run(&mut self) -> Result<AnyObtained> {
        let mut overall = self.overall();
        let mut first = true;
        loop {
            if !self.in_order {
                fastrand::shuffle(&mut self.waits);
            }
            if let Some(granted) = self.ask_each(&mut overall, first)? {
                return Ok(AnyObtained::Granted(granted));
            }
            first = false;
            if matches!(self.patience, Patience::Once) || !self.pause(&overall) {
                return self.ended();
            }
        }
    }

    fn overall(&self) -> Deadline {
        self.waits.first().map_or_else(|| self.family.request_deadline(), Wait::overall)
    }

    /// Asks for one key after the other: at `first` for all, then for those that look free.
    fn ask_each(&mut self, overall: &mut Deadline, first: bool) -> Result<Option<Granted>> {
        let mut own = 0;
        let all = self.waits.len();
        for at in 0..all {
            if overall.is_over() {
                break;
            }
            let wait = &mut self.waits[at];
            if !first && !wait.look(overall) {
                continue;
            }
            match ask(wait, self.patience, overall) {
                Ok(Some(granted)) => return Ok(Some(granted)),
                Ok(None) => {}
                // Another one may be free; but to wait for one's own locks only would be in vain.
                Err(error) if error.kind() == ErrorKind::AlreadyHeld => {
                    own += 1;
                    if first && own == all {
                        return Err(in_context(wait, error));
                    }
                }
                Err(error) => return Err(in_context(wait, error)),
            }
            if matches!(self.patience, Patience::Once) && !overall.is_over() {
                // Asking once asks once for each: the next key has all of the time.
                *overall = self.overall();
            }
        }
        Ok(None)
    }

    /// Waits until it is time to look at all keys again; false when the call's time is over.
    fn pause(&mut self, overall: &Deadline) -> bool {
        self.waits.iter_mut().for_each(Wait::tell);
        // What was just refused is not asked for again at once, however free it looks.
        let known = self.waits.iter().filter(|wait| wait.last_error.is_none());
        let soonest = known.filter_map(Wait::free_in).filter(|free| !free.is_zero()).min();
        let waited = self.waits.first().map_or(Duration::ZERO, |wait| wait.started.elapsed());
        overall.wait_for(backoff::poll_delay(&self.family.options.poll, waited, soonest, fastrand::f64()))
    }

    /// Why the call ended without a lock. It says that others hold them only where that is known of all.
    fn ended(&mut self) -> Result<AnyObtained> {
        let mut refused = Vec::new();
        for wait in &mut self.waits {
            match wait.ended() {
                Ok(Obtained::Refused(seen)) => refused.extend(seen),
                Ok(Obtained::Granted(granted)) => return Ok(AnyObtained::Granted(granted)),
                Err(error) => return Err(in_context(wait, error)),
            }
        }
        Ok(AnyObtained::Refused(refused))
    }
}

/// Asks for one key. Trouble ends that when the call goes on to wait, for the others may do better.
fn ask(wait: &mut Wait<'_>, patience: Patience, by: &Deadline) -> Result<Option<Granted>> {
    loop {
        match wait.round(by)? {
            Round::Done(Obtained::Granted(granted)) => return Ok(Some(granted)),
            Round::Trouble if matches!(patience, Patience::Once) && !by.is_over() => {}
            Round::Done(Obtained::Refused(_)) | Round::Refused | Round::Trouble => return Ok(None),
        }
    }
}

/// What ends the whole call is about no key.
fn in_context(wait: &Wait<'_>, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Cancelled | ErrorKind::Closed => error,
        _ => error.with_key(&wait.want.wanted.key),
    }
}
