//! Until when a call may take, and what may end it earlier.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select};

use crate::lease::backoff;
use crate::sys::cancel::CancelToken;
use crate::sys::random;
use crate::sys::thread::lives;

/// How often a thread that ends looks whether what it waits for is there.
const LOOK: Duration = Duration::from_millis(1);

/// No try gets less time than this: a healthy store may take this long if a connection must be made first.
const LEAST_TRY: Duration = Duration::from_secs(2);

/// Until when a call may take. Every call to a store returns by then, whatever the network does.
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Instant,
    cancels: Vec<CancelToken>,
    /// Until when a call may wait for what the store has begun, and how long each of its requests may take.
    long: Option<(Instant, Duration)>,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The deadline is over.
    Over,
    /// The event came.
    Event,
    /// The limit has passed.
    Limit,
}

impl Deadline {
    /// Ends at `at`.
    pub fn at(at: Instant) -> Self {
        Deadline { at, cancels: Vec::new(), long: None }
    }

    /// Ends `after` from now.
    pub fn after(after: Duration) -> Self {
        Deadline::at(far_from(Instant::now(), after))
    }

    /// The same, but over as soon as `cancel` is cancelled.
    pub fn or_cancel(mut self, cancel: &CancelToken) -> Self {
        self.cancels.push(cancel.clone());
        self
    }

    /// The same, but over at the latest `after` from now.
    pub fn within(mut self, after: Duration) -> Self {
        self.at = self.at.min(far_from(Instant::now(), after));
        self
    }

    /// The deadline of one try that begins now, if tries are repeated until this deadline is over. It gets half of the
    /// time that is left: if no answer ever comes, as on a connection that a router forgot, the rest remains for the
    /// next try.
    pub fn of_try(&self) -> Self {
        self.clone().within((self.remaining() / 2).max(LEAST_TRY))
    }

    /// The same, but a call that the store has begun to serve may wait for `after` from now: see [`long`](Self::long).
    pub fn with_long(mut self, after: Duration) -> Self {
        self.long = Some((far_from(Instant::now(), after), self.remaining()));
        self
    }

    /// The deadline of work that takes a store long, like making a table. Each request of that work has a deadline of
    /// its own, by [`of_request`](Self::of_request), so that a store that does not answer is noticed as soon as by any
    /// call.
    pub fn long(&self) -> Deadline {
        Deadline { at: self.long.map_or(self.at, |(at, _)| at), ..self.clone() }
    }

    /// The deadline of a request that begins now.
    pub fn of_request(&self) -> Deadline {
        self.clone().within(self.long.map_or(Duration::MAX, |(_, each)| each))
    }

    /// When it ends if nothing is cancelled.
    pub fn instant(&self) -> Instant {
        self.at
    }

    /// What is left; zero when it is over.
    pub fn remaining(&self) -> Duration {
        if self.cancels.iter().any(CancelToken::is_cancelled) {
            return Duration::ZERO;
        }
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether no time is left.
    pub fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Whether this deadline cut off a request that had begun at `since`, less than `soon` ago: its failure then says
    /// nothing about the store.
    pub fn cut_off(&self, since: Instant, soon: Duration) -> bool {
        self.is_over() && since.elapsed() < soon
    }

    /// Waits until it is over, for whatever reason.
    pub fn wait(&self) {
        self.wait_for(Duration::MAX);
    }

    /// Waits before the next repeat of what has failed this many times in a row; whether time is left.
    pub fn wait_to_repeat(&self, failures: u32) -> bool {
        self.wait_for(backoff::retry_delay(failures, self.remaining(), random::fraction()))
    }

    /// Waits until it is over or `limit` has passed; whether time is left.
    pub fn wait_for(&self, limit: Duration) -> bool {
        self.wait_for_or(limit, &crossbeam_channel::never())
    }

    /// The same, but a message on `event`, which it takes, ends the wait, too.
    pub fn wait_for_or(&self, limit: Duration, event: &Receiver<()>) -> bool {
        self.wait_for_event(limit, event) != Waited::Over
    }

    /// The same; what ended the wait.
    pub fn wait_for_event(&self, limit: Duration, event: &Receiver<()>) -> Waited {
        self.wait_for_any(limit, std::iter::once(event));
        match event.try_recv() {
            _ if self.is_over() => Waited::Over,
            Ok(()) => Waited::Event,
            Err(_) => Waited::Limit,
        }
    }

    /// Waits until it is over, one of `events` is ready (it takes no message) or `limit` has passed; whether time is
    /// left.
    pub fn wait_for_any<'a, T: 'a>(&'a self, limit: Duration, events: impl Iterator<Item = &'a Receiver<T>>) -> bool {
        let until = self.at.min(far_from(Instant::now(), limit));
        let mut select = Select::new();
        events.for_each(|event| {
            select.recv(event);
        });
        self.also_wait(&mut select);
        ready_by(&mut select, until);
        !self.is_over()
    }

    /// Lets `select` become ready when this is cancelled.
    pub fn also_wait<'a>(&'a self, select: &mut Select<'a>) {
        for cancel in &self.cancels {
            select.recv(cancel.cancelled());
        }
    }
}

/// Waits until one of these is ready, or until `until`; whether one is. It works also while a thread ends, when no
/// channel can wake it.
pub fn ready_by(select: &mut Select<'_>, until: Instant) -> bool {
    if lives() {
        return select.ready_deadline(until).is_ok();
    }
    while select.try_ready().is_err() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(LOOK));
    }
    true
}

/// The same for one.
pub fn is_ready_by<T>(receiver: &Receiver<T>, until: Instant) -> bool {
    let mut select = Select::new();
    select.recv(receiver);
    ready_by(&mut select, until)
}

/// `after` from `now`, but at most a hundred years.
pub fn far_from(now: Instant, after: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    now.checked_add(after.min(CENTURY)).unwrap_or(now)
}
