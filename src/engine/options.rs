//! The numbers of a client and of a request: defaults, bounds, validation.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use crate::lease::{End, Labels, Lease, MAX_ACQUIRE_LEASE, StoreTime};
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::check_text;
use crate::store::fleet::Limits;
use crate::store::{self, Bounds};
use crate::sys::clock::BootTime;
use crate::sys::log;
use crate::sys::observing::Observing;

const MAX_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);
const MIN_POLL: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The options of a client, which apply where a request does not set its own.
#[derive(Clone, Debug)]
pub(crate) struct ClientOptions {
    pub owner: Option<String>,
    pub lease: Duration,
    pub heartbeat: Option<Duration>,
    pub margin: Option<Duration>,
    /// The bounds of the store.
    pub bounds: Bounds,
    pub poll: RangeInclusive<Duration>,
    pub request_timeout: Duration,
    pub drop_timeout: Duration,
    pub observing: Observing,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            owner: None,
            lease: store::DEFAULT_LEASE,
            heartbeat: None,
            margin: None,
            bounds: Bounds::of(Duration::ZERO),
            poll: Duration::from_millis(150)..=Duration::from_millis(350),
            request_timeout: Duration::from_secs(5),
            drop_timeout: Duration::from_secs(5),
            observing: Observing::default(),
        }
    }
}

impl ClientOptions {
    /// Checks everything that does not depend on a request, once, at connect.
    pub fn validate(&self) -> Result<()> {
        if let Some(owner) = &self.owner {
            check_text("owner", owner)?;
        }
        self.terms(None, None)?;
        let (low, high) = (*self.poll.start(), *self.poll.end());
        if low < MIN_POLL || high < low {
            return Err(Error::invalid("poll", &self.poll, "a range that rises, from 1 ms on"));
        }
        positive("request_timeout", self.request_timeout)?;
        positive("drop_timeout", self.drop_timeout)
    }

    /// Warns of a heartbeat that was probably meant in seconds and given in milliseconds.
    pub fn warn_of_unit(&self) {
        let lease = self.lease;
        if let Some(heartbeat) = self.heartbeat.filter(|heartbeat| *heartbeat < SECOND.min(lease / 2000)) {
            log::warn!(target: "leasehold::client",
                "each lock is renewed every {heartbeat:?}, though its lease is {lease:?}: is the unit of `heartbeat` right?");
        }
    }

    /// The checked lease of a lock that is held as data: no heartbeat of this client renews it.
    pub fn lease_of_data(&self, lease: Duration) -> Result<Lease> {
        check_duration("lease", lease, self.bounds.min_lease, "")?;
        let lease = Lease::For(lease);
        self.bounds.limits.map_or(Ok(lease), |limits| limits.check_lease(lease).map(|()| lease))
    }

    /// The terms for keeping the lease of a name: the defaults, but the client's margin where that is larger, up to
    /// half of the duration. A larger margin is for servers whose clocks differ, and so for these leases, too.
    pub fn terms_of_named_lease(&self, duration: Duration) -> Terms {
        let own = Terms::by_default(duration);
        Terms { margin: self.margin.map_or(own.margin, |margin| margin.min(duration / 2).max(own.margin)), ..own }
    }

    /// Lease, heartbeat and margin of one hold. `ends_at`: the fixed end of the lease, if it has one.
    pub fn terms(&self, lease: Option<Lease>, ends_at: Option<BootTime>) -> Result<Terms> {
        let Bounds { min_lease, min_margin, limits, .. } = self.bounds;
        // The client's own lease (`lease` is `None`) is never endless, so its error does not offer that.
        let or = if lease.is_some() { ", or lease_forever()" } else { "" };
        let field = if ends_at.is_some() { "lease_until" } else { "lease" };
        let lease = lease.unwrap_or(Lease::For(self.lease));
        limits.map_or(Ok(()), |limits| limits.check_lease(lease))?;
        let counted = match lease {
            Lease::For(d) => {
                check_duration(field, d, min_lease, or)?;
                d
            }
            // Only the acquire that precedes the endless lease uses these.
            Lease::Forever => MAX_ACQUIRE_LEASE,
        };
        let is_endless = lease == Lease::Forever;
        let mut heartbeat = self.heartbeat.unwrap_or(counted / 3);
        // A heartbeat of the client's that suits its own leases must not make a lease without end, or one that ends
        // soon, invalid.
        if is_endless || ends_at.is_some() {
            heartbeat = heartbeat.min(counted / 3);
        }
        // Where another library decides by a duration of its own, one heartbeat must be able to fail without harm.
        let (most, part) = match limits.and_then(|limits| limits.one_lease) {
            Some(_) => (counted / 3, "a third of"),
            None => (counted / 2, "half"),
        };
        if heartbeat.is_zero() || heartbeat > most {
            let right = format!("above zero and at most {part} the lease ({most:?})");
            return Err(Error::invalid("heartbeat", heartbeat, &right));
        }
        let margin = self.margin.unwrap_or((counted / 10).max(min_margin));
        // A lease without end has no length to compare with: the margin applies once the lease is given an end.
        if margin < min_margin || (!is_endless && margin >= counted - heartbeat) {
            let least = match min_margin.is_zero() {
                true => String::new(),
                false => format!("at least {min_margin:?} on this store, and "),
            };
            let right = format!("{least}below the lease less the heartbeat ({:?})", counted - heartbeat);
            return Err(Error::invalid("margin", margin, &right));
        }
        Ok(Terms { lease, heartbeat, margin, ends_at, at_least: Duration::ZERO })
    }
}

/// The numbers of one hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// What each renewal asks for.
    pub lease: Lease,
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// How long before the end of the lease the lock already counts as lost.
    pub margin: Duration,
    /// The lease is not renewed past this time.
    pub ends_at: Option<BootTime>,
    /// How long the grant must remain in the store at least, however the hold ends.
    pub at_least: Duration,
}

impl Terms {
    /// The defaults for this lease, not the terms of the client's locks.
    pub fn by_default(duration: Duration) -> Terms {
        let (lease, at_least) = (Lease::For(duration), Duration::ZERO);
        Terms { lease, heartbeat: duration / 3, margin: duration / 10, ends_at: None, at_least }
    }

    /// How long the lock counts as held after a renewal; `None`: without end.
    pub fn renewal_gives(&self) -> Option<Duration> {
        let (sent, now) = (BootTime::PAST, StoreTime::from_nanos(0));
        match self.lease.end(now) {
            End::Never => None,
            until => Some(self.held_until(self.lease, sent, until, now).since(sent)),
        }
    }

    /// How much time a renewal at `now` can give, at most.
    pub fn most_left(&self, now: BootTime) -> Duration {
        let until_end = self.ends_at.map_or(Duration::MAX, |end| (end - self.margin).since(now));
        self.renewal_gives().map_or(until_end, |held| held.min(until_end))
    }

    /// What a request at `now` may ask for.
    pub fn lease_at(&self, now: BootTime) -> Lease {
        match (self.lease, self.ends_at) {
            (Lease::For(d), Some(end)) => Lease::For(d.min(end.since(now))),
            (lease, _) => lease,
        }
    }

    /// The lease that the grant of a request at `now` must have before its caller gets it: at least the minimum hold.
    pub fn granted_lease_at(&self, now: BootTime) -> Lease {
        match self.lease_at(now) {
            Lease::For(d) => Lease::For(d.max(self.at_least)),
            Lease::Forever => Lease::Forever,
        }
    }

    /// What the first request asks for.
    pub fn first_lease_at(&self, now: BootTime) -> Duration {
        self.granted_lease_at(now).longest().min(MAX_ACQUIRE_LEASE)
    }

    /// Whether a lock that is requested at `now` can be held at all: a fixed end may be too close.
    pub fn leave_time_at(&self, now: BootTime) -> bool {
        // If so, the first lease, which may be shorter, is also longer than its own margin: see `first_margin`.
        match self.lease_at(now) {
            Lease::For(d) => d > self.margin,
            Lease::Forever => true,
        }
    }

    /// Until when the lock counts as held, if the store answered at its `now` that the lease ends at `until`. It never
    /// counts for longer than was asked for: where the store's time has gone back, an end that was set before seems too
    /// far away.
    pub fn held_until(&self, asked: Lease, sent: BootTime, until: End, now: StoreTime) -> BootTime {
        let until = until.min(asked.end(now));
        self.at_most_until(held_until(sent, until, now, self.share(self.margin, until, now)))
    }

    /// The same for a new grant. It lasts at most for `lease`, less the margin, from `asked` on, when the first request
    /// that may have brought the grant was sent.
    pub fn first_held_until(
        &self,
        (asked, lease): (BootTime, Duration),
        sent: BootTime,
        until: End,
        now: StoreTime,
    ) -> BootTime {
        let of_ask = self.held_at_first(asked, Lease::For(lease).end(now), now);
        self.held_at_first(sent, until, now).min(of_ask)
    }

    fn held_at_first(&self, sent: BootTime, until: End, now: StoreTime) -> BootTime {
        let first = held_until(sent, until, now, self.share(self.first_margin(), until, now));
        match (self.lease, self.ends_at) {
            // Near a fixed end no longer lease follows the first one, so the margin of the lease that was asked for
            // applies.
            (Lease::For(d), Some(end)) if d > MAX_ACQUIRE_LEASE => first.min(end - self.margin),
            _ => self.at_most_until(first),
        }
    }

    /// Never past a fixed end: an acquire that is repeated asks for its whole lease again, which may end later.
    fn at_most_until(&self, held_until: BootTime) -> BootTime {
        self.ends_at.map_or(held_until, |end| held_until.min(end))
    }

    /// The margin is for clocks that run at other rates. So where more than one lease is left (a minimum hold), the
    /// margin grows with it, and its share stays the same.
    fn share(&self, margin: Duration, until: End, now: StoreTime) -> Duration {
        match (self.lease, until.left(now)) {
            (Lease::For(d), Some(left)) if left > d => margin.mul_f64(left.as_secs_f64() / d.as_secs_f64()),
            _ => margin,
        }
    }

    /// The margin of the first lease, which is shorter than the lease that follows it, if one follows.
    fn first_margin(&self) -> Duration {
        match self.lease {
            Lease::For(d) if d <= MAX_ACQUIRE_LEASE => self.margin,
            _ => self.margin.min(MAX_ACQUIRE_LEASE / 10),
        }
    }
}

/// The only place that computes until when a lock counts as held, on this host's clock: the rest of the lease as the
/// store gave it, counted from before the request was sent, less the margin.
fn held_until(sent: BootTime, until: End, now: StoreTime, margin: Duration) -> BootTime {
    until.left(now).map_or(BootTime::NEVER, |left| sent + left) - margin
}

/// How the lease of a request was given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AskedLease {
    For(Duration),
    Until(SystemTime),
    Forever,
}

impl AskedLease {
    /// The lease as a duration from `now`. A fixed end is turned into a duration here, once, by the local wall clock.
    pub fn counted_from(self, now: BootTime) -> Result<(Lease, Option<BootTime>)> {
        match self {
            AskedLease::For(d) => Ok((Lease::For(d), None)),
            AskedLease::Forever => Ok((Lease::Forever, None)),
            AskedLease::Until(at) => match at.duration_since(SystemTime::now()) {
                Ok(d) => Ok((Lease::For(d), Some(now + d))),
                Err(_) => {
                    let message = format!("lease_until is {}, but must be a time that is still to come", utc(at));
                    Err(Error::new(ErrorKind::InvalidInput, message))
                }
            },
        }
    }
}

/// A time as people write it, in whole seconds.
pub(crate) fn utc(at: SystemTime) -> String {
    let seconds = match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    };
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March end with the leap day.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

/// Checks the length of a lease.
pub(crate) fn check_duration(field: &str, d: Duration, least: Duration, or: &str) -> Result<()> {
    if d < least || d > MAX_LEASE {
        let right = format!("from {least:?} on this store to 30 days{or}");
        return Err(match d {
            Duration::MAX => Error::invalid(field, format_args!("for ever"), &right),
            d => Error::invalid(field, d, &right),
        });
    }
    Ok(())
}

/// Checks a minimum hold.
pub(crate) fn check_at_least(d: Duration, terms: &Terms, limits: Option<Limits>) -> Result<()> {
    if d.is_zero() || d > MAX_LEASE {
        return Err(Error::invalid("hold_at_least", d, "above zero and at most 30 days"));
    }
    if terms.ends_at.is_some() {
        return Err(Error::invalid(
            "hold_at_least",
            d,
            "left out where lease_until ends the lease at a time of its own",
        ));
    }
    if terms.lease == Lease::Forever {
        let right =
            "left out of a lock without end (lease_forever), which would stand for ever where its release fails";
        return Err(Error::invalid("hold_at_least", d, right));
    }
    let Some(limits) = limits else { return Ok(()) };
    let no_place = |error| Error::new(ErrorKind::InvalidInput, format!("hold_at_least is {d:?}, but {error}"));
    limits.check_lease(Lease::For(d)).map_err(no_place)
}

fn positive(field: &str, d: Duration) -> Result<()> {
    if d.is_zero() {
        return Err(Error::invalid(field, d, "above zero"));
    }
    Ok(())
}

/// The default owner: `host:pid`.
pub(crate) fn default_labels(pid: u32) -> Labels {
    let host = host_name();
    let owner = format!("{}:{pid}", host.as_deref().unwrap_or("localhost"));
    Labels { host, ..Labels::of(owner) }
}

#[cfg(unix)]
fn host_name() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    check_text("host", &name).ok().map(|()| name)
}

#[cfg(not(unix))]
fn host_name() -> Option<String> {
    let name = std::env::var("COMPUTERNAME").ok()?;
    check_text("host", &name).ok().map(|()| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_and_margin_are_taken_up_to_their_bounds() {
        let options =
            ClientOptions { bounds: Bounds { min_margin: SECOND, ..Bounds::of(SECOND) }, ..ClientOptions::default() };
        let terms = |heartbeat: Duration, margin: Duration| {
            let options = ClientOptions { heartbeat: Some(heartbeat), margin: Some(margin), ..options.clone() };
            options.terms(Some(Lease::For(10 * SECOND)), None).is_ok()
        };
        let tick = Duration::from_nanos(1);
        assert!(terms(5 * SECOND, SECOND) && terms(tick, SECOND) && terms(3 * SECOND, 7 * SECOND - tick));
        assert!(!terms(5 * SECOND + tick, SECOND) && !terms(Duration::ZERO, SECOND));
        assert!(!terms(3 * SECOND, SECOND - tick) && !terms(3 * SECOND, 7 * SECOND));
        let of = |lease: Duration| options.terms(Some(Lease::For(lease)), None).unwrap().margin;
        assert_eq!((of(3 * SECOND), of(20 * SECOND)), (SECOND, 2 * SECOND));
    }

    #[test]
    fn a_lease_of_a_name_is_renewed_after_a_third_with_a_tenth_kept_back() {
        let terms = Terms::by_default(30 * SECOND);
        assert_eq!((terms.heartbeat, terms.margin), (10 * SECOND, 3 * SECOND));
        // The client's margin applies where it is larger, up to half of the lease.
        for (margin, right) in [(None, 3), (Some(1), 3), (Some(5), 5), (Some(40), 15)] {
            let options = ClientOptions { margin: margin.map(|margin| margin * SECOND), ..ClientOptions::default() };
            let terms = options.terms_of_named_lease(30 * SECOND);
            assert_eq!((terms.heartbeat, terms.margin), (10 * SECOND, right * SECOND), "{margin:?}");
        }
    }

    #[test]
    fn a_fixed_end_leaves_time_only_beyond_the_margin() {
        let now = BootTime::from_nanos(1);
        let leaves = |lease: Duration, margin: Duration, left: Duration| {
            let lease = Lease::For(lease);
            let (ends_at, at_least) = (Some(now + left), Duration::ZERO);
            Terms { lease, heartbeat: SECOND, margin, ends_at, at_least }.leave_time_at(now)
        };
        assert!(leaves(10 * SECOND, 2 * SECOND, 3 * SECOND) && !leaves(10 * SECOND, 2 * SECOND, 2 * SECOND));
        // The first lease of a longer one has a margin of its own.
        let hour = 3600 * SECOND;
        assert!(leaves(hour, 600 * SECOND, 601 * SECOND) && !leaves(hour, 600 * SECOND, 600 * SECOND));
        assert!(leaves(hour, SECOND, 2 * SECOND) && !leaves(hour, SECOND, SECOND));
    }

    #[test]
    fn a_fixed_end_bounds_what_a_late_answer_gives() {
        let (sent, now) = (BootTime::from_nanos(1), StoreTime::from_nanos(0));
        let (lease, at_least) = (Lease::For(60 * SECOND), Duration::ZERO);
        let terms = |ends_at| Terms { lease, heartbeat: SECOND, margin: SECOND, ends_at, at_least };
        let end = sent + 30 * SECOND;
        for until in [End::At(now.plus(60 * SECOND)), End::Never] {
            assert_eq!(terms(Some(end)).held_until(lease, sent, until, now), end);
            assert_eq!(terms(Some(end)).first_held_until((sent, 60 * SECOND), sent, until, now), end);
        }
        assert_eq!(terms(None).held_until(lease, sent, End::At(now.plus(90 * SECOND)), now), sent + 59 * SECOND);
        assert_eq!([terms(None), terms(Some(end))].map(|terms| terms.most_left(sent)), [59 * SECOND, 29 * SECOND]);
    }

    /// The store's `now` in an answer may differ from the time from which the end was counted.
    #[test]
    fn no_first_lease_is_longer_than_was_asked_for() {
        let (sent, now) = (BootTime::from_nanos(1), StoreTime::from_nanos(0));
        let terms = Terms {
            lease: Lease::For(20 * SECOND),
            heartbeat: SECOND,
            margin: SECOND,
            ends_at: None,
            at_least: Duration::ZERO,
        };
        let held = |left: u32| terms.first_held_until((sent, 20 * SECOND), sent, End::At(now.plus(left * SECOND)), now);
        assert_eq!([5, 20, 45].map(|left| held(left).since(sent)), [4, 19, 19].map(|held| held * SECOND));
    }

    /// No renewal follows the first lease here, so the first lease must keep the whole margin.
    #[test]
    fn a_fixed_end_that_is_near_keeps_the_margin_of_the_lease_that_was_asked_for() {
        let (sent, now) = (BootTime::from_nanos(1), StoreTime::from_nanos(0));
        let (lease, margin, at_least) = (Lease::For(600 * SECOND), 30 * SECOND, Duration::ZERO);
        let held = |left: Duration| {
            let terms = Terms { lease, heartbeat: SECOND, margin, ends_at: Some(sent + left), at_least };
            let until = terms.lease_at(sent).end(now);
            terms.first_held_until((sent, left), sent, until, now).since(sent)
        };
        assert_eq!([45, 60, 600].map(|left| held(left * SECOND)), [15, 30, 570].map(|held| held * SECOND));
    }

    #[test]
    fn a_time_is_written_as_the_calendar_has_it() {
        let (mut year, mut month, mut day) = (1900, 1, 1);
        // From 1900 on, which was no leap year, to 2420.
        for days in -25_567_i64..164_360 {
            let second = days * 86_400 + 3_661;
            let away = Duration::from_secs(second.unsigned_abs());
            let epoch = SystemTime::UNIX_EPOCH;
            let at = if second < 0 { epoch - away } else { epoch + away };
            assert_eq!(utc(at), format!("{year:04}-{month:02}-{day:02} 01:01:01 UTC"));
            let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + i32::from(is_leap_year),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (year, month, day) = match (month, day == last) {
                (12, true) => (year + 1, 1, 1),
                (_, true) => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }
}
