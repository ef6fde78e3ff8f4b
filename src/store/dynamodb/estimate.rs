//! The service's time, by its answers.
//!
//! Each answer's `Date` header is the service's time at some moment between sending and receiving, cut to the
//! second. So (service's time - our boot-time clock) lies between `Date - received` and `Date + 1 s - sent`;
//! what many answers allow is their intersection, which widens with its age, since clocks drift. Every time that is
//! stored or compared is taken from its middle. When the intersection is empty a clock was moved, or one answer is
//! wrong: the new answer counts and is in doubt, until one agrees with it or with what was known before. What comes over the
//! same connection, from the same host, would say the same again: new connections are made, and what goes over the old ones
//! settles nothing in its favour.

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
/// An answer that is no older than this is as good as a new one.
const FRESH: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub struct Estimate(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    ahead: Option<Ahead>,
    /// What was known before an answer contradicted it.
    before: Option<Ahead>,
    /// Over which connections that answer came: what comes over them, or older ones, does not confirm it.
    doubted_over: u64,
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

    fn width(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.high.saturating_sub(self.low)).unwrap_or(0))
    }

    /// The middle of what the service's time may be at `at`.
    fn middle(self, at: BootTime) -> i64 {
        nanos(at).saturating_add(self.low).saturating_add(self.high.saturating_sub(self.low) / 2)
    }
}

impl Estimate {
    /// Learns from an answer with this `Date`, in seconds since 1970, over a connection of its own; whether it contradicts
    /// what was known.
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
            known.ahead = Some(answer);
            return false;
        };
        let ahead = last.aged(received);
        let before = known.before.map(|before| before.aged(received)).filter(|before| before.fits(answer));
        let was_doubted = known.before.take();
        if was_doubted.is_some() && before.is_none() && ahead.fits(answer) && over <= known.doubted_over {
            known.before = was_doubted;
            return false;
        }
        known.ahead = Some(match before {
            // It says nothing of which of the two was wrong, while they contradict each other.
            Some(before) if ahead.fits(answer) => {
                let (before, ahead) = (before.and(answer), ahead.and(answer));
                known.before = Some(before).filter(|before| !before.fits(ahead));
                ahead
            }
            None if ahead.fits(answer) => ahead.and(answer),
            // The answer between them was wrong.
            Some(before) => before.and(answer),
            None => {
                // Of several that contradict each other the first was known.
                known.before = was_doubted.or(Some(ahead));
                known.doubted_over = over;
                answer
            }
        });
        if !ahead.fits(answer) {
            known.given = None;
        }
        before.is_none() && !ahead.fits(answer)
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
        let moment =
            |now| Moment { now: StoreTime::from_nanos(now), width: ahead.width(), at, age, ahead, before, grace };
        let middle = ahead.middle(at);
        if before.is_some() || ahead.width() > grace.own.min(Dynamodb::GRACE) + SLACK {
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
    pub fn is_doubted(&self) -> bool {
        self.before.is_some()
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
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GRACE: Grace = Grace { own: SECOND, of_all: SECOND };

    fn boot(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    fn moment(estimate: &Estimate, at: u64) -> (i64, u128) {
        let moment = estimate.moment(boot(at), GRACE).unwrap();
        (moment.now.as_nanos() / 1_000_000, moment.width.as_millis())
    }

    #[test]
    fn each_answer_narrows_it() {
        let estimate = Estimate::default();
        assert!(estimate.moment(boot(0), GRACE).is_none());
        // The service is 100 s ahead: at boot time 500 its clock says 100.5.
        estimate.learn(100, boot(490), boot(510));
        assert_eq!(moment(&estimate, 500), (100_500, 1_020));
        estimate.learn(100, boot(980), boot(990));
        estimate.learn(101, boot(1_010), boot(1_020));
        assert_eq!(moment(&estimate, 1_020), (101_020, 40));
        // A slow answer says nothing new.
        estimate.learn(103, boot(1_100), boot(9_000));
        assert_eq!(moment(&estimate, 9_000), (109_000, 47));
    }

    #[test]
    fn it_widens_with_its_age() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(490), boot(510));
        let days = 4 * 86_400_000;
        let idle = estimate.moment(boot(510 + days), GRACE).unwrap();
        assert_eq!(idle.width.as_millis(), 1_020 + u128::from(days) / 1_000);
        let is_old = |moment: &Moment| moment.is_wider(SECOND, Duration::ZERO);
        let wait = SECOND + (idle.width - SECOND - SLACK) / 2;
        assert!(is_old(&idle) && idle.times().expired_before == idle.now.minus(wait));
        assert!(!is_old(&estimate.moment(boot(60_000), GRACE).unwrap()));
        // A clock that was 50 ppm fast is no contradiction, and one answer is enough.
        estimate.learn(100 + days as i64 / 1_000 - 17, boot(490 + days), boot(510 + days));
        let known = estimate.moment(boot(510 + days), GRACE).unwrap();
        assert!(!known.is_doubted() && !is_old(&known) && known.width.as_millis() == 1_020, "{known:?}");
    }

    #[test]
    fn it_widens_by_what_its_clock_is_corrected_by() {
        let estimate = Estimate::default();
        estimate.slewed(77_000_000_000);
        estimate.learn(100, boot(500), boot(500));
        let width = || estimate.moment(boot(500), GRACE).unwrap().width;
        // What it was before nobody asks.
        assert_eq!(width(), SECOND);
        estimate.slewed(77_900_000_000);
        assert_eq!(width(), SECOND + 2 * Duration::from_millis(900));
        // Back again: the answer may have come at any time.
        estimate.slewed(77_800_000_000);
        assert_eq!(width(), SECOND + 2 * SECOND);
        estimate.learn(100, boot(500), boot(500));
        assert_eq!(width(), SECOND);
        let corrected = Estimate::default();
        corrected.learn_corrected(100, boot(500), boot(500), -100_000_000, 1);
        let known = corrected.moment(boot(500), GRACE).unwrap();
        assert_eq!(known.width, SECOND + 2 * SLACK);
    }

    #[test]
    fn one_that_is_wide_binds_no_later_time_however_long_the_grace() {
        let estimate = Estimate::default();
        let grace = Grace { own: 5 * SECOND, of_all: 5 * SECOND };
        estimate.learn(100, boot(490), boot(510));
        let hour = 3_600_000;
        let idle = estimate.moment(boot(500 + hour), grace).unwrap();
        assert!(idle.width > 4 * SECOND && idle.times().expired_before == idle.now.minus(5 * SECOND));
        // Its clock was 500 ppm fast.
        estimate.learn(100 + 3_600 - 2, boot(490 + hour), boot(510 + hour));
        let known = estimate.moment(boot(510 + hour), grace).unwrap();
        assert!(known.width < SECOND && idle.now.since(known.now) > SECOND, "{known:?}");
    }

    #[test]
    fn one_wrong_answer_is_doubted_and_then_forgotten() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(490), boot(510));
        let used = estimate.moment(boot(510), GRACE).unwrap();
        estimate.learn(3_700, boot(490), boot(510));
        let doubted = estimate.moment(boot(510), GRACE).unwrap();
        assert!(doubted.contradicts(&used) && doubted.is_doubted());
        assert_eq!(doubted.times().expired_before, ONLY_RELEASED);
        estimate.learn(100, boot(490), boot(510));
        let settled = estimate.moment(boot(510), GRACE).unwrap();
        assert!(!settled.contradicts(&used) && !settled.is_doubted());
        assert_eq!(moment(&estimate, 510).0, 100_510);
    }

    #[test]
    fn an_answer_that_fits_both_settles_no_doubt() {
        let (estimate, hour) = (Estimate::default(), 3_600_000);
        estimate.learn(100, boot(490), boot(510));
        estimate.learn(3_700, boot(490), boot(510));
        // It took an hour.
        estimate.learn(3_700, boot(490), boot(510 + hour));
        let doubted = estimate.moment(boot(510 + hour), GRACE).unwrap();
        assert!(doubted.is_doubted() && doubted.times().expired_before == ONLY_RELEASED, "{doubted:?}");
        estimate.learn(3_700, boot(490 + hour), boot(510 + hour));
        assert!(!estimate.moment(boot(510 + hour), GRACE).unwrap().is_doubted());
    }

    /// Else no answer would ever end the doubt, and nobody be taken over.
    #[test]
    fn a_doubt_ends_where_what_is_left_of_both_agrees() {
        let estimate = Estimate::default();
        // The service is 100 s ahead, which is known to 20 ms.
        for (date, at) in [(100, 990), (101, 1_010)] {
            estimate.learn(date, boot(at), boot(at));
        }
        // One of its hosts is 150 ms more, and the next answer fits that by what is allowed for the way alone.
        estimate.learn(102, boot(1_860), boot(1_860));
        assert!(estimate.moment(boot(1_860), GRACE).unwrap().is_doubted());
        estimate.learn(101, boot(1_910), boot(1_910));
        assert!(!estimate.moment(boot(1_910), GRACE).unwrap().is_doubted());
    }

    #[test]
    fn it_begins_anew_when_nothing_fits() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(490), boot(510));
        moment(&estimate, 500);
        assert!(estimate.learn(70, boot(490), boot(510)));
        assert_eq!(moment(&estimate, 500), (70_500, 1_020));
        let doubted = estimate.moment(boot(500), GRACE).unwrap();
        assert_eq!(doubted.upper_bound().as_nanos(), 100_510_000_000, "a holder trusts neither");
        // One agrees that was on its way before, maybe from the same host.
        assert!(!estimate.learn(70, boot(490), boot(520)));
        assert!(estimate.moment(boot(520), GRACE).unwrap().is_doubted());
        // The next one agrees.
        estimate.learn(70, boot(520), boot(530));
        assert!(!estimate.moment(boot(530), GRACE).unwrap().is_doubted());
        // Of three times the one that was known is not forgotten, and to return to it is no contradiction.
        assert!(estimate.learn(20, boot(540), boot(550)) && estimate.learn(40, boot(560), boot(570)));
        assert!(!estimate.learn(70, boot(580), boot(590)));
        assert!(!estimate.moment(boot(590), GRACE).unwrap().is_doubted());
    }

    #[test]
    fn it_never_tells_an_earlier_time() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(490), boot(510));
        assert_eq!(moment(&estimate, 600).0, 100_600);
        // It was not 101 yet: the middle is 54 ms earlier than was thought.
        estimate.learn(100, boot(599), boot(600));
        assert_eq!(moment(&estimate, 600).0, 100_600);
        assert_eq!(moment(&estimate, 640).0, 100_620);
        assert_eq!(moment(&estimate, 1_600).0, 101_545);
    }

    #[test]
    fn too_wide_a_takeover_waits_for_longer_and_a_holder_trusts_less() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(0), boot(2_000));
        let wide = estimate.moment(boot(2_000), GRACE).unwrap();
        assert_eq!(wide.width, Duration::from_secs(3));
        assert_eq!(wide.times().expired_before, wide.now.minus(SECOND + (2 * SECOND - SLACK) / 2));
        assert_eq!(wide.upper_bound().since(wide.now), SECOND);
        estimate.learn(102, boot(2_000), boot(2_050));
        let fine = estimate.moment(boot(2_050), GRACE).unwrap();
        assert_eq!(fine.times().expired_before, fine.now.minus(SECOND));
        assert!(fine.upper_bound().since(fine.now) <= Duration::from_millis(25));
    }

    #[test]
    fn a_takeover_comes_before_the_holders_end_by_no_more_than_the_least_margin_covers() {
        let true_now = 120_000_000_000;
        let lease = 10_000_000_000;
        // Where in its second the service is, for the holder and for the rival.
        let seconds = (0..1_000).step_by(111);
        // How long the answer took, and for how long the host's clock has run wrong since, and was corrected.
        let known = |phase: i64, way: i64, is_late: bool, (idle, drift, slew): (i64, i64, i64), grace: Grace| {
            let estimate = Estimate::default();
            let (sent, received) = (20_000 - way, 20_000);
            // Said as it was sent, or as it was received.
            let said_at = if is_late { received } else { sent };
            let date = (said_at + 100_000 + phase).div_euclid(1_000);
            estimate.slewed(0);
            estimate.learn(date, boot(sent as u64), boot(received as u64));
            estimate.slewed(slew * 1_000_000);
            let moment = estimate.moment(boot((received + idle) as u64), grace).unwrap();
            (moment, true_now + (phase + idle + drift) * 1_000_000)
        };
        let drifts = [(0, 0), (60_000, 30), (60_000, -30), (3_600_000, 1_800), (3_600_000, -1_800)];
        let [drifts, slews] = [drifts.map(|(idle, drift)| (idle, drift, 0)).to_vec(), vec![(11_000, 900, 900)]];
        let clocks = [drifts, slews].concat();
        let all_by = |grace: Grace| -> Vec<(Moment, i64)> {
            seconds
                .clone()
                .flat_map(|phase| [0, 20, 100, 400, 3_000].map(|way| (phase, way)))
                .flat_map(|(phase, way)| [false, true].map(|is_late| (phase, way, is_late)))
                .flat_map(|(phase, way, is_late)| clocks.iter().map(move |clock| (phase, way, is_late, *clock)))
                .map(|(phase, way, is_late, clock)| known(phase, way, is_late, clock, grace))
                .collect()
        };
        let slack = i64::try_from(SLACK.as_nanos()).unwrap();
        for own in [0, 100, 500, 950, 1_000, 5_000].map(Duration::from_millis) {
            let (all, mut worst) = (all_by(Grace { own, of_all: own.min(SECOND) }), i64::MIN);
            for (holder, now) in &all {
                let end = holder.now.as_nanos() + lease;
                // Counted from this moment, on a clock that runs as the service's.
                let held_for = end - holder.upper_bound().as_nanos();
                for (rival, rivals_now) in &all {
                    // How far the end that the rival takes over is behind the service's time.
                    let behind = rivals_now - rival.times().expired_before.as_nanos();
                    let taken_over_after = end + behind - now;
                    worst = worst.max(held_for - taken_over_after);
                }
            }
            assert!(worst <= slack / 2, "{own:?}: {worst}");
            let is_close = own > SECOND || worst > slack / 2 - 5_000_000;
            assert!(is_close, "a margin of nothing leads to two holders: {own:?}: {worst}");
        }
    }
}
