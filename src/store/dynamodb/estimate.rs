//! The service's time, by its answers.
//!
//! Each answer's `Date` header is the service's time at some moment between sending and receiving, cut to the
//! second. So (service's time - our boot-time clock) lies between `Date - received` and `Date + 1 s - sent`;
//! what many answers allow is their intersection, which widens with its age, since clocks drift. Every time that is
//! stored or compared is taken from its middle. When the intersection is empty a clock was moved, or one answer is
//! wrong: the new answer counts and is in doubt, until one agrees with it or with what was known before. What comes over the
//! same connection, from the same host, would say the same again: new connections are made, and what goes over the old ones
//! settles nothing in its favour. Where nothing contradicts a wrong answer, since it is the first one, or what was known
//! leaves much room, it is unconfirmed, until one over a later connection agrees.

use std::time::Duration;

use parking_lot::Mutex;

use super::Dynamodb;
use crate::lease::{StoreTime, Times};
use crate::sys::clock::BootTime;

/// A `Date` is cut to the second.
const RESOLUTION: i64 = 1_000_000_000;
/// What an answer's way may add to the second, for the interval to be good enough for the grace alone.
pub(super) const SLACK: Duration = Duration::from_millis(100);
/// Only what was never held or was released ended before this: 1970-01-02.
const ONLY_RELEASED: StoreTime = StoreTime::from_nanos(86_400 * 1_000_000_000);

/// A clock drifts by at most one part in this many (500 ppm), but for what [`Estimate::slewed`] sees.
const DRIFT: u128 = 2_000;
/// What a clock was corrected by since it was last looked at counts from here on, in nanoseconds.
const SLEWED: i64 = 1_000_000;
/// What is known less well than this, by a slow answer, drift or corrections, leaves room for a wrong answer: one that
/// narrows it by more than `ROOM` is unconfirmed.
const LOOSE: Duration = Duration::from_millis(1_600);
const ROOM: Duration = Duration::from_millis(500);
/// An answer that is no older than this is as good as a new one.
const FRESH: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub struct Estimate(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// See [`Estimate::of_several`].
    is_of_several: bool,
    ahead: Option<Ahead>,
    /// What was known before an answer contradicted it.
    before: Option<Ahead>,
    /// The number of the client over whose connections that answer came: what comes over them, or older ones, does not
    /// confirm it.
    doubted_over: u64,
    /// The connections over which alone it was told, until an answer over later ones agrees; in doubt those of `before`.
    unconfirmed: Option<u64>,
    /// The latest time that was given out while it was known well, and when that was: a narrower interval may have its
    /// middle earlier, but time must not go back, only run slower.
    given: Option<(i64, BootTime)>,
    /// By how much this host's clock had been corrected when that was last counted.
    slew: Option<i64>,
}

/// The least and the most that the service's time may be ahead of the boot-time clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    low: i64,
    high: i64,
    /// When it was so.
    at: BootTime,
}

impl Ahead {
    /// What is left of it later, at `at`.
    fn aged(self, at: BootTime) -> Ahead {
        let drift = i64::try_from(at.since(self.at).as_nanos() / DRIFT).unwrap_or(i64::MAX);
        Ahead { low: self.low.saturating_sub(drift), high: self.high.saturating_add(drift), at: at.max(self.at) }
    }

    /// Whether both may be true; the clocks of the service's hosts differ a little, too.
    fn fits(self, other: Ahead) -> bool {
        let slack = i64::try_from(SLACK.as_nanos()).unwrap_or(i64::MAX);
        self.low.max(other.low).saturating_sub(slack) <= self.high.min(other.high)
    }

    /// What a new answer leaves of it.
    fn and(self, answer: Ahead) -> Ahead {
        let both = Ahead { low: self.low.max(answer.low), high: self.high.min(answer.high), ..answer };
        if both.low <= both.high { both } else { answer }
    }

    /// What one of the two allows, where one of them may be wrong.
    fn or(self, answer: Ahead) -> Ahead {
        Ahead { low: self.low.min(answer.low), high: self.high.max(answer.high), ..answer }
    }

    fn width(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.high.saturating_sub(self.low)).unwrap_or(0))
    }

    /// The middle of what the service's time may be at `at`.
    fn middle(self, at: BootTime) -> i64 {
        nanos(at).saturating_add(self.low).saturating_add(self.high.saturating_sub(self.low) / 2)
    }
}

impl Estimate {
    /// For tests: one that several clients share. Any answer may confirm another: whoever got one may ask nothing more, and
    /// then the others would wait for ever for one over later connections of its.
    pub fn of_several() -> Self {
        Estimate(Mutex::new(Known { is_of_several: true, ..Known::default() }))
    }

    /// Learns from an answer with this `Date`, in seconds since 1970, over a connection of its own; whether another host is to
    /// say the time, too.
    pub fn learn(&self, date: i64, sent: BootTime, received: BootTime) -> bool {
        self.learn_corrected(date, sent, received, 0, sent.as_nanos())
    }

    /// The same where this host's clock was corrected by so many nanoseconds meanwhile. `over`: which connections it came
    /// over, those that are made later having a higher number.
    pub fn learn_corrected(&self, date: i64, sent: BootTime, received: BootTime, moved: i64, over: u64) -> bool {
        let (date, moved) = (date.saturating_mul(1_000_000_000), moved.saturating_abs());
        let answer = Ahead {
            low: date.saturating_sub(nanos(received)).saturating_sub(moved),
            high: date.saturating_add(RESOLUTION).saturating_sub(nanos(sent)).saturating_add(moved),
            at: received,
        };
        let mut known = self.0.lock();
        let Some(last) = known.ahead else {
            (known.ahead, known.unconfirmed) = (Some(answer), Some(over));
            return true;
        };
        let (ahead, before) = (last.aged(received), known.before.map(|before| before.aged(received)));
        let is_of_several = known.is_of_several;
        let is_later = |than: u64| is_of_several || over > than;
        let fits = ahead.fits(answer);
        if fits && before.is_some() && !is_later(known.doubted_over) {
            return false;
        }
        if !fits {
            known.given = None;
        }
        let fitting = before.filter(|before| before.fits(answer));
        // Where neither fits, the new answer counts, and of several that contradict each other the first was known.
        let Some(base) = Some(ahead).filter(|_| fits).or(fitting) else {
            (known.ahead, known.before) = (Some(answer), known.before.or(Some(ahead)));
            known.doubted_over = over;
            return true;
        };
        // One that says less must not confirm what is more exact than itself.
        let confirms = before.is_none() && known.unconfirmed.is_some_and(is_later);
        let is_loose = answer.width() > LOOSE;
        let joined = if confirms && is_loose { base.or(answer) } else { base.and(answer) };
        let narrows_by = |room: Duration| base.width() > LOOSE.max(joined.width() + room);
        // Over a slow link each answer narrows what the last two allow together, and would take new connections for that. So it
        // waits until drift has left more room than such an answer has itself.
        let is_too_little = is_loose && known.before.is_none() && !narrows_by(answer.width() + ROOM);
        let is_left = narrows_by(ROOM) && is_too_little;
        let is_narrower = narrows_by(ROOM) && !is_left;
        let new = if is_left { base } else { joined };
        // It says nothing of which of the two was wrong, while they contradict each other.
        known.before = fitting.filter(|_| fits).map(|before| before.and(answer)).filter(|before| !before.fits(new));
        known.ahead = Some(new);
        if is_narrower {
            known.unconfirmed = Some(over);
        } else if known.before.is_none() {
            known.unconfirmed.take_if(|alone| is_later(*alone));
        }
        is_narrower
    }

    /// This host's clock has been corrected by so many nanoseconds so far: what that moved it since the last answer may be
    /// off either way.
    pub fn slewed(&self, slew: i64) {
        let mut known = self.0.lock();
        let by = known.slew.map_or(0, |before| slew.saturating_sub(before).saturating_abs());
        if known.slew.is_some() && by < SLEWED {
            return;
        }
        let Known { ahead, before, slew: counted, .. } = &mut *known;
        *counted = Some(slew);
        for ahead in [ahead, before].into_iter().flatten() {
            (ahead.low, ahead.high) = (ahead.low.saturating_sub(by), ahead.high.saturating_add(by));
        }
    }

    /// The service's time at `at`; `None` before the first answer.
    pub fn moment(&self, at: BootTime, grace: Grace) -> Option<Moment> {
        let mut known = self.0.lock();
        let learned = known.ahead?;
        let (ahead, age) = (learned.aged(at), at.since(learned.at));
        let before = known.before.map(|before| before.aged(at));
        let (width, is_unconfirmed) = (ahead.width(), known.unconfirmed.is_some());
        let moment =
            |now| Moment { now: StoreTime::from_nanos(now), width, at, age, ahead, before, is_unconfirmed, grace };
        let middle = ahead.middle(at);
        if before.is_some() || is_unconfirmed || ahead.width() > grace.own.min(Dynamodb::GRACE) + SLACK {
            // It may be far off, so no later time is bound by it. A grace above the default is for the clocks of others.
            return Some(moment(middle));
        }
        let least = known.given.map_or(middle, |(given, when)| {
            let half = i64::try_from(at.since(when).as_nanos() / 2).unwrap_or(i64::MAX);
            given.saturating_add(half.max(1))
        });
        let now = middle.max(least);
        // No time is counted twice, also where a thread comes late with its `at`.
        known.given = Some((now, known.given.map_or(at, |(_, when)| when.max(at))));
        Some(moment(now))
    }
}

/// For how long after its end a lease is respected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// By this client.
    pub own: Duration,
    /// By every client of the table: a holder relies on no more.
    pub of_all: Duration,
}

fn micros(at: StoreTime) -> u64 {
    u64::try_from(at.as_nanos() / 1_000).unwrap_or(0)
}

fn nanos(at: BootTime) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

/// The service's time at one moment, and how far that is known.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The middle of what it may be.
    pub now: StoreTime,
    /// How much it may be.
    pub width: Duration,
    at: BootTime,
    /// How old the last answer is.
    age: Duration,
    ahead: Ahead,
    before: Option<Ahead>,
    is_unconfirmed: bool,
    grace: Grace,
}

impl Moment {
    /// As late as it may be. A holder takes off its own lease what of the width the grace of all others does not cover.
    ///
    /// The holder may be behind by half its width w, and the client that takes over ahead by half of its grace g and `SLACK`:
    /// for what its own width is more than these it waits for longer. What is taken off here and the wait for g leave the
    /// takeover at most `w / 2 + (g + SLACK) / 2 - max(0, (w - g) / 2) - g`, so half of `SLACK`, before the holder's own end
    /// without its margin. A margin is at least `SLACK`: the other half is for the clocks of the service's hosts.
    pub fn upper_bound(&self) -> StoreTime {
        let late = |now: StoreTime, width: Duration| now.plus(width.saturating_sub(self.grace.of_all) / 2);
        let before = |before: Ahead| late(StoreTime::from_nanos(before.middle(self.at)), before.width());
        self.before.map(before).into_iter().fold(late(self.now, self.width), StoreTime::max)
    }

    /// What the rules decide by. A takeover waits for the grace, and for longer the less is known of the time: no earlier
    /// than one by who knows it as well as it must be known for the grace alone. While it is in doubt, nobody is taken over.
    pub fn times(&self) -> Times {
        let wait = self.grace.own + self.width.saturating_sub(self.grace.own + SLACK) / 2;
        let expired_before = if self.is_doubted() { ONLY_RELEASED } else { self.now.minus(wait) };
        Times { expired_before, ..Times::without_grace(self.now, self.stamp()) }
    }

    /// Whether a new answer could make it more exact, which is worth a request where it may be off by more than `grace`,
    /// and than `most`.
    pub fn is_wider(&self, grace: Duration, most: Duration) -> bool {
        self.width > (grace + SLACK).max(most) && self.age > FRESH
    }

    /// Whether the answers since `used`, an earlier moment, say that it was wrong by more than was known.
    pub fn contradicts(&self, used: &Moment) -> bool {
        !self.ahead.fits(used.ahead.aged(self.at))
    }

    /// Whether `used`, an earlier moment, was wrong and ahead.
    pub fn was_behind(&self, used: &Moment) -> bool {
        self.contradicts(used) && self.ahead.low < used.ahead.aged(self.at).low
    }

    /// Whether it takes the time to be later than `other` does.
    pub fn is_ahead_of(&self, other: &Moment) -> bool {
        let at = self.at.max(other.at);
        self.ahead.aged(at).low > other.ahead.aged(at).low
    }

    /// Whether the last answer contradicts what was known before.
    pub fn is_contradicted(&self) -> bool {
        self.before.is_some()
    }

    /// Whether one host alone may have told it.
    pub fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Whether it may be wrong by more than is known.
    pub fn is_doubted(&self) -> bool {
        self.is_contradicted() || self.is_unconfirmed()
    }

    /// Whether the answers since `used`, an earlier moment, agree with it.
    pub fn confirms(&self, used: &Moment) -> bool {
        !self.contradicts(used) && (!self.is_unconfirmed || !used.is_unconfirmed)
    }

    /// The time in microseconds, from which tokens are made.
    pub fn stamp(&self) -> u64 {
        micros(self.now)
    }

    /// A stamp that is this far ahead of every client's.
    pub fn late_stamp(&self, ahead: Duration) -> u64 {
        micros(self.upper_bound().plus(self.grace.own + ahead))
    }
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
