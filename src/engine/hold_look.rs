//! What the watcher does for one hold: it declares what is due, and starts the heartbeat.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::heartbeat;
use super::hold::{Hold, Phase};
use super::watcher::START_RETRY;
use crate::engine::spec::OnWarning;
use crate::model::event::Event;
use crate::model::key::shown;
use crate::sys::clock::BootTime;
use crate::sys::log;
use crate::sys::pause::pause;

impl Hold {
    /// Starts the heartbeat if it is due at `now`; otherwise returns when to try that. A thread that can't be started
    /// is tried again until the deadline, like a request that fails, and the loss then says why.
    pub fn start_when_due(self: &Arc<Self>, now: BootTime) -> Option<BootTime> {
        pause!("watch.starts");
        let mut state = self.state.lock();
        let at = state.start_at.filter(|_| state.phase == Phase::Held)?;
        // After a suspend it is due at once.
        if now < at && self.beats.wishes.is_empty() {
            return Some(at);
        }
        match heartbeat::spawn(self.clone()) {
            Ok(thread) => {
                state.heartbeat = Some(thread);
                state.start_at = None;
                None
            }
            Err(error) => {
                let error = self.in_context(error);
                let left = self.remaining();
                let at = now + START_RETRY.min(left / 3).max(START_RETRY / 100);
                state.start_at = Some(at);
                state.last_error = Some(error.clone());
                drop(state);
                self.warn_of_heartbeat(left, &error);
                Some(at)
            }
        }
    }

    /// From this long from now on it is not held, and the watcher declares the loss, unless its end comes earlier.
    pub fn end_in(&self, time: Duration) {
        self.max_hold_end.fetch_min((self.setup.clock.now() + time).as_nanos(), Ordering::SeqCst);
        self.setup.watcher.look_now();
    }

    pub(super) fn ends_by_max_hold(&self) -> Option<BootTime> {
        let end = BootTime::from_nanos(self.max_hold_end.load(Ordering::SeqCst));
        Some(end).filter(|end| *end != BootTime::NEVER)
    }

    /// How long `max_hold` still lets it last, whatever is renewed; `None`: for ever.
    pub fn left_of_max_hold(&self) -> Option<Duration> {
        self.ends_by_max_hold().map(|end| end.since(self.setup.clock.now()))
    }

    /// When the watcher must first look at this hold.
    pub fn first_look(&self) -> BootTime {
        let state = self.state.lock();
        let max_hold = self.ends_by_max_hold();
        let warning = state.callbacks.warns_at(self.held_until());
        [max_hold, warning, state.start_at].into_iter().flatten().fold(self.held_until(), BootTime::min)
    }

    /// Called by the watcher: declares what is due at `now`, and returns when to look again.
    pub fn look(&self, now: BootTime) -> Option<BootTime> {
        pause!("watch.looks");
        let mut state = self.state.lock();
        if state.phase != Phase::Held {
            return None;
        }
        if state.shown_is_behind {
            self.show(&mut state);
        }
        let held_until = self.held_until();
        let max_hold = self.ends_by_max_hold();
        if now >= held_until || max_hold.is_some_and(|end| now >= end) {
            drop(state);
            pause!("watch.expires");
            self.expire();
            return None;
        }
        let warning = state.callbacks.warns_at(held_until);
        if warning.is_some_and(|at| now >= at) {
            // Without a failed heartbeat the next one is still under way: if it fails, the watcher looks at once.
            if state.last_error.is_some() {
                state.callbacks.has_warned = true;
                let on_warning = state.callbacks.on_warning.take();
                let left = held_until.since(now);
                self.tell_before_its_end(|key, fencing_token| Event::RenewalLate { key, fencing_token, left }, state);
                self.warn(held_until, left, on_warning);
            }
            return Some(max_hold.map_or(held_until, |end| end.min(held_until)));
        }
        [Some(held_until), max_hold, warning].into_iter().flatten().min()
    }

    fn warn(&self, until: BootTime, left: Duration, on_warning: Option<OnWarning>) {
        let key = &*shown(&self.grant.lock.key);
        if let Some(on_warning) = on_warning {
            // The callback may have to wait for a thread: it works out anew how much time is left.
            let clock = self.setup.clock.clone();
            self.setup.watcher.run("warning callback", Box::new(move || on_warning(until.since(clock.now()))));
        }
        log::warn!(target: "leasehold::guard", key:?, left_ms = left.as_millis() as u64;
            "heartbeats of lock {key:?} fail; it will be lost in {:.1} s", left.as_secs_f64());
    }
}
