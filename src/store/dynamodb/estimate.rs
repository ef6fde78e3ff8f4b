//! The service's time, estimated from its answers.
//!
//! Each answer's `Date` header is the service's time at some moment between sending and receiving, cut to the second.
//! So (service's time - our boot-time clock) lies between `Date - received` and `Date + 1 s - sent`. What many answers
//! allow is the intersection of these intervals, which widens with its age, since clocks drift. Every time that is
//! stored or compared is taken from its middle.
//!
//! When the intersection is empty, a clock was moved or one answer is wrong. Then the new answer counts, but it is in
//! doubt until a later answer agrees with it or with what was known before. An answer over the same connection comes
//! from the same host, which would report the same again. So new connections are made, and answers over the old ones do
//! not settle the doubt in favour of the new answer. A wrong answer contradicts nothing if it is the first one, or if
//! what was known leaves much room: such an answer is unconfirmed until one over a later connection agrees.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_types::sdk_config::TimeSource;
use parking_lot::Mutex;

use super::Dynamodb;
use crate::lease::{StoreTime, Times};
use crate::sys::clock::{BootTime, Clock};

/// A `Date` is cut to the second.
const RESOLUTION: i64 = 1_000_000_000;
/// How much the travel time of an answer may add to the second, if the grace alone is to cover the interval.
pub(super) const SLACK: Duration = Duration::from_millis(100);
/// 1970-01-02. Only locks that were never held or were released have an end before this.
const ONLY_RELEASED: StoreTime = StoreTime::from_nanos(86_400 * 1_000_000_000);

/// A clock drifts by at most one part in this many (500 ppm), not counting what [`Estimate::slewed`] sees.
const DRIFT: u128 = 2_000;
/// Corrections of the clock are counted once they add up to this many nanoseconds.
const SLEWED: i64 = 1_000_000;
/// An interval wider than this, because of a slow answer, drift or corrections, leaves room for a wrong answer: an
/// answer that narrows it by more than `ROOM` is unconfirmed.
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
    /// The number of the client over whose connections the contradicting answer came. Answers over these connections,
    /// or older ones, do not confirm it.
    doubted_over: u64,
    /// The client number of the only connections over which the time was reported, until an answer over later ones
    /// agrees. While the time is in doubt, this is about `before`.
    unconfirmed: Option<u64>,
    /// The latest time that was given out while the time was known well, and when that was. A narrower interval may
    /// have an earlier middle, but the time must not go back, only run slower.
    given: Option<(i64, BootTime)>,
    /// By how much this host's clock had been corrected when that was last counted.
    slew: Option<i64>,
}

/// The least and the most that the service's time may be ahead of the boot-time clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    low: i64,
    high: i64,
    /// When this interval was right.
    at: BootTime,
}

impl Ahead {
    /// The interval at the later moment `at`, widened by drift.
    fn aged(self, at: BootTime) -> Ahead {
        let drift = i64::try_from(at.since(self.at).as_nanos() / DRIFT).unwrap_or(i64::MAX);
        Ahead { low: self.low.saturating_sub(drift), high: self.high.saturating_add(drift), at: at.max(self.at) }
    }

    /// Whether both may be true; the clocks of the service's hosts differ a little, too.
    fn fits(self, other: Ahead) -> bool {
        let slack = i64::try_from(SLACK.as_nanos()).unwrap_or(i64::MAX);
        self.low.max(other.low).saturating_sub(slack) <= self.high.min(other.high)
    }

    /// What a new answer leaves of the interval.
    fn and(self, answer: Ahead) -> Ahead {
        let both = Ahead { low: self.low.max(answer.low), high: self.high.min(answer.high), ..answer };
        if both.low <= both.high { both } else { answer }
    }

    /// An interval that contains both, since one of them may be wrong.
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
    /// For tests: an estimate that several clients share. Any answer may confirm another one. Otherwise, if the client
    /// that got the first one sends no more requests, the others would wait for ever for an answer over its later
    /// connections.
    pub fn of_several() -> Self {
        Estimate(Mutex::new(Known { is_of_several: true, ..Known::default() }))
    }

    /// Learns from an answer with this `Date`, in seconds since 1970, over a connection of its own. Returns whether
    /// another host of the service must confirm the time.
    pub fn learn(&self, date: i64, sent: BootTime, received: BootTime) -> bool {
        self.learn_corrected(date, sent, received, 0, sent.as_nanos())
    }

    /// The same if this host's clock was corrected by `moved` nanoseconds between sending and receiving. `over`: the
    /// number of the client over whose connections the answer came; connections that are made later have a higher
    /// number.
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
        // If the answer fits neither, it counts. Of several that contradict each other, `before` keeps the one known
        // first.
        let Some(base) = Some(ahead).filter(|_| fits).or(fitting) else {
            (known.ahead, known.before) = (Some(answer), known.before.or(Some(ahead)));
            known.doubted_over = over;
            return true;
        };
        // A less exact answer must not confirm more than it says itself, so the result then contains both.
        let confirms = before.is_none() && known.unconfirmed.is_some_and(is_later);
        let is_loose = answer.width() > LOOSE;
        let joined = if confirms && is_loose { base.or(answer) } else { base.and(answer) };
        let narrows_by = |room: Duration| base.width() > LOOSE.max(joined.width() + room);
        // Over a slow link each answer narrows what the last two allow together, and would require new connections each
        // time. So such an answer is left out until drift has made more room than the answer's own width.
        let is_too_little = is_loose && known.before.is_none() && !narrows_by(answer.width() + ROOM);
        let is_left = narrows_by(ROOM) && is_too_little;
        let is_narrower = narrows_by(ROOM) && !is_left;
        let new = if is_left { base } else { joined };
        // An answer that fits both does not show which of them was wrong, while they contradict each other.
        known.before = fitting.filter(|_| fits).map(|before| before.and(answer)).filter(|before| !before.fits(new));
        known.ahead = Some(new);
        if is_narrower {
            known.unconfirmed = Some(over);
        } else if known.before.is_none() {
            known.unconfirmed.take_if(|alone| is_later(*alone));
        }
        is_narrower
    }

    /// Notes by how many nanoseconds this host's clock has been corrected in total. What the correction since the last
    /// answer changed may be wrong in either direction, so the interval widens by it on both sides.
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

    /// The service's time at `at` in microseconds since 1970, for what may be minutes off; `None` before the first
    /// answer. `wall`: this host's wall clock. It is seldom wrong together with a host of the service, so while answers
    /// contradict each other, the one that is nearer to it counts.
    pub fn roughly(&self, at: BootTime, wall: u64) -> Option<u64> {
        let known = self.0.lock();
        let each = [known.ahead, known.before].into_iter().flatten();
        each.map(|ahead| micros(StoreTime::from_nanos(ahead.middle(at)))).min_by_key(|time| time.abs_diff(wall))
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
            // This time may be far off, so later times need not be above it. A grace above the default is for the
            // clocks of others.
            return Some(moment(middle));
        }
        let least = known.given.map_or(middle, |(given, when)| {
            let half = i64::try_from(at.since(when).as_nanos() / 2).unwrap_or(i64::MAX);
            given.saturating_add(half.max(1))
        });
        let now = middle.max(least);
        // `when` does not go back, even if a thread comes late with its `at`: otherwise time would be counted twice.
        known.given = Some((now, known.given.map_or(at, |(_, when)| when.max(at))));
        Some(moment(now))
    }
}

/// The time by which requests are signed and credentials end, which the service accepts if it is no more than minutes
/// off: its own as soon as an answer has said it. Before that it is this host's wall clock.
#[derive(Clone, Debug)]
pub(super) struct ServiceTime {
    pub clock: Arc<Clock>,
    pub estimate: Arc<Estimate>,
}

impl TimeSource for ServiceTime {
    fn now(&self) -> SystemTime {
        let wall = self.clock.wall_micros();
        let micros = self.estimate.roughly(self.clock.now(), wall).unwrap_or(wall);
        SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
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

/// The service's time at one moment, and how exactly it is known.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The middle of what it may be.
    pub now: StoreTime,
    /// The width of the interval in which it lies.
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
    /// The middle, plus half of that part of the width which the grace of all others does not cover: for the part that
    /// it covers, the time may be later still. A holder counts its lease from here.
    ///
    /// The holder's time may be behind by half of its width w, and that of the client that takes over may be ahead by
    /// half of the sum of its grace g and `SLACK`: if its own width is more than that sum, it waits for longer. With
    /// what is taken off the lease here and the wait for g, the takeover comes at most
    /// `w / 2 + (g + SLACK) / 2 - max(0, (w - g) / 2) - g`, so half of `SLACK`, before the holder's own end without its
    /// margin. A margin is at least `SLACK`: the other half is for the clocks of the service's hosts.
    pub fn upper_bound(&self) -> StoreTime {
        let late = |now: StoreTime, width: Duration| now.plus(width.saturating_sub(self.grace.of_all) / 2);
        let before = |before: Ahead| late(StoreTime::from_nanos(before.middle(self.at)), before.width());
        self.before.map(before).into_iter().fold(late(self.now, self.width), StoreTime::max)
    }

    /// The times by which the rules decide. A takeover waits for the grace, and for longer if the time is known less
    /// exactly: it never comes earlier than a takeover by a client whose time is exact enough for the grace alone.
    /// While the time is in doubt or unconfirmed, nobody is taken over.
    pub fn times(&self) -> Times {
        let wait = self.grace.own + self.width.saturating_sub(self.grace.own + SLACK) / 2;
        let expired_before = if self.is_doubted() { ONLY_RELEASED } else { self.now.minus(wait) };
        Times { expired_before, ..Times::without_grace(self.now, self.stamp()) }
    }

    /// Whether a new answer could make the time more exact, and is worth a request: the width is more than `grace` with
    /// `SLACK`, and more than `most`.
    pub fn is_wider(&self, grace: Duration, most: Duration) -> bool {
        self.width > (grace + SLACK).max(most) && self.age > FRESH
    }

    /// Whether the answers since `used`, an earlier moment, show that it was wrong by more than its interval allows.
    pub fn contradicts(&self, used: &Moment) -> bool {
        !self.ahead.fits(used.ahead.aged(self.at))
    }

    /// Whether `used`, an earlier moment, was wrong and ahead.
    pub fn was_behind(&self, used: &Moment) -> bool {
        self.contradicts(used) && self.ahead.low < used.ahead.aged(self.at).low
    }

    /// Whether it assumes a later time than `other` does.
    pub fn is_ahead_of(&self, other: &Moment) -> bool {
        let at = self.at.max(other.at);
        self.ahead.aged(at).low > other.ahead.aged(at).low
    }

    /// Whether the last answer contradicts what was known before.
    pub fn is_contradicted(&self) -> bool {
        self.before.is_some()
    }

    /// Whether only one host of the service may have reported it.
    pub fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Whether it may be wrong by more than its interval allows.
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

    /// The latest stamp that is possible now, plus the grace and `ahead`: with `AHEAD` it is above every client's.
    pub fn late_stamp(&self, ahead: Duration) -> u64 {
        micros(self.upper_bound().plus(self.grace.own + ahead))
    }
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
