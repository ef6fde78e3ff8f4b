//! The service's time, as its answers tell it.
//!
//! Each answer's `Date` header is the service's time at some moment between sending and receiving, cut to the
//! second. So (service's time - our boot-time clock) lies between `Date - received` and `Date + 1 s - sent`;
//! what many answers allow is their intersection. Every time that is stored or compared is taken from its
//! middle. When the intersection is empty a clock was moved, or the two drifted apart: it begins anew.

use std::time::Duration;

use parking_lot::Mutex;

use crate::lease::{StoreTime, Times};
use crate::rt::clock::BootTime;

/// A `Date` is cut to the second.
const RESOLUTION: i64 = 1_000_000_000;
/// What an answer's way may add to the second, for the interval to be good enough.
const SLACK: Duration = Duration::from_millis(100);
/// Only what was never held or was released ended before this: 1970-01-02.
const ONLY_RELEASED: StoreTime = StoreTime::from_nanos(86_400 * 1_000_000_000);

/// See the module.
#[derive(Debug, Default)]
pub struct Estimate(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The least and the most that the service's time may be ahead of the boot-time clock, in nanoseconds.
    ahead: Option<(i64, i64)>,
    /// The latest time that was told while it was known well: a narrower interval may have its middle earlier, and
    /// time never goes back, only slower. With when that was.
    told: Option<(i64, BootTime)>,
}

impl Estimate {
    /// Learns from an answer with this `Date`, in seconds since 1970.
    pub fn learn(&self, date: i64, sent: BootTime, received: BootTime) {
        let date = date.saturating_mul(1_000_000_000);
        let told = (date.saturating_sub(nanos(received)), date.saturating_add(RESOLUTION).saturating_sub(nanos(sent)));
        let mut known = self.0.lock();
        known.ahead = Some(match known.ahead {
            Some((low, high)) if told.0.max(low) <= told.1.min(high) => (told.0.max(low), told.1.min(high)),
            Some(_) => {
                known.told = None;
                told
            }
            None => told,
        });
    }

    /// The service's time at `at`; `None` before the first answer.
    pub fn moment(&self, at: BootTime, grace: Duration) -> Option<Moment> {
        let mut known = self.0.lock();
        let (low, high) = known.ahead?;
        let width = high.saturating_sub(low);
        let middle = nanos(at).saturating_add(low).saturating_add(width / 2);
        let width = Duration::from_nanos(u64::try_from(width).unwrap_or(0));
        let moment = |now| Moment { now: StoreTime::from_nanos(now), width, grace };
        if !moment(middle).is_known() {
            // It may be far off: nothing shall cling to it.
            return Some(moment(middle));
        }
        let least = known.told.map_or(middle, |(told, when)| {
            let half = i64::try_from(at.since(when).as_nanos() / 2).unwrap_or(i64::MAX);
            told.saturating_add(half.max(1))
        });
        let now = middle.max(least);
        // No time is counted twice, also where a thread comes late with its `at`.
        known.told = Some((now, known.told.map_or(at, |(_, when)| when.max(at))));
        Some(moment(now))
    }
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
    grace: Duration,
}

impl Moment {
    /// As late as it may be for a holder, who trusts it the less the wider it is: what the grace does not
    /// cover is taken off its own lease.
    pub fn late(&self) -> StoreTime {
        self.now.plus(self.width.saturating_sub(self.grace) / 2)
    }

    /// What the rules decide by. While too little is known nobody is taken over.
    pub fn times(&self) -> Times {
        let cut = if self.is_known() { self.now.minus(self.grace) } else { ONLY_RELEASED };
        Times { now: self.now, cut, stamp: self.stamp() }
    }

    fn is_known(&self) -> bool {
        self.width <= self.grace + SLACK
    }

    /// The time in microseconds, from which tokens are made.
    pub fn stamp(&self) -> u64 {
        u64::try_from(self.now.as_nanos() / 1_000).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);

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
        assert_eq!(moment(&estimate, 2_000), (102_000, 40));
        // A slow answer says nothing new.
        estimate.learn(103, boot(1_100), boot(9_000));
        assert_eq!(moment(&estimate, 3_000), (103_000, 40));
    }

    #[test]
    fn it_begins_anew_when_nothing_fits() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(490), boot(510));
        moment(&estimate, 500);
        estimate.learn(70, boot(490), boot(510));
        assert_eq!(moment(&estimate, 500), (70_500, 1_020));
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
    fn too_wide_nobody_is_taken_over_and_a_holder_trusts_less() {
        let estimate = Estimate::default();
        estimate.learn(100, boot(0), boot(2_000));
        let wide = estimate.moment(boot(2_000), GRACE).unwrap();
        assert_eq!(wide.width, Duration::from_secs(3));
        assert_eq!(wide.times().cut, ONLY_RELEASED);
        assert_eq!(wide.late().since(wide.now), GRACE);
        estimate.learn(102, boot(2_000), boot(2_050));
        let fine = estimate.moment(boot(2_050), GRACE).unwrap();
        assert_eq!(fine.times().cut, fine.now.minus(GRACE));
        assert!(fine.late().since(fine.now) <= Duration::from_millis(25));
    }
}
