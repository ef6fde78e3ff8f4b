//! Whose clock a stored time belongs to, and what a time of another clock means here.
//!
//! A time is only comparable on the clock that it was taken from: this boot of this kernel, and in
//! it this time namespace. So every holder is stored with the identity of its clock. A holder of
//! another clock (an earlier boot, a container with a shifted clock) is live for its whole lease
//! from the moment when it was first *sighted* on our clock and has not renewed since. That is never
//! earlier than its real end, since the sighting comes after its last renewal. Where the
//! wall clock says that the lease is over, too, a minute is enough.
//!
//! Outside Linux there is no identity to be had without unsafe code: each process draws one. That is
//! safe by the same rule, only slower: another process takes over a lease's length after it first saw
//! the holder, not at the lease's end.

use std::sync::OnceLock;
use std::time::Duration;

use crate::lease::{End, Holder, StoreTime};

/// Long enough where the wall clock agrees that a lease of an earlier boot is over.
const SURELY_OVER: Duration = Duration::from_secs(60);

/// The identity of this process's boot-time clock.
pub(super) fn clock_identity() -> &'static str {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    IDENTITY.get_or_init(|| of_this_boot().unwrap_or_else(|| format!("process:{}", uuid::Uuid::new_v4())))
}

#[cfg(target_os = "linux")]
fn of_this_boot() -> Option<String> {
    use std::fs;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = match fs::read_link("/proc/self/ns/time") {
        Ok(link) => link.to_str()?.to_owned(),
        // A kernel before 5.6 has no time namespaces, only the other ones.
        Err(_) if fs::symlink_metadata("/proc/self/ns/uts").is_ok() => "time".to_owned(),
        Err(_) => return None,
    };
    Some(format!("{}:{namespace}", boot.trim()))
}

#[cfg(not(target_os = "linux"))]
fn of_this_boot() -> Option<String> {
    None
}

/// The times of a call, and whose they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    /// The identity of our clock.
    pub(super) clock: &'a str,
    /// Now on it.
    pub(super) now: StoreTime,
    /// The wall clock in microseconds.
    pub(super) wall: u64,
}

/// What the times of a holder of another clock mean on ours, `sighted` being when it was first seen here
/// as it is.
///
/// `created` and `renewed` are told by the wall clock and are for people only.
pub(super) fn translate(holder: &Holder, sighted: StoreTime, here: Here<'_>) -> Holder {
    let age = Duration::from_micros(here.wall.saturating_sub(holder.token));
    let created = here.now.minus(age);
    let renewed = holder.renewed.map(|at| created.plus(at.since(holder.created)).min(here.now));
    let until = match holder.until {
        End::Never => End::Never,
        End::At(end) => End::At(end_here(holder, end, sighted, here)),
    };
    Holder { created, renewed, until, ..holder.clone() }
}

fn end_here(holder: &Holder, end: StoreTime, sighted: StoreTime, here: Here<'_>) -> StoreTime {
    let lease = end.since(holder.renewed.unwrap_or(holder.created).max(holder.created));
    // The token was taken from the wall clock when the holder was created, or is later.
    let wall_end = holder.token.saturating_add(micros(end.since(holder.created)));
    let wall_left = Duration::from_micros(wall_end.saturating_sub(here.wall));
    let surely_over = sighted.plus(SURELY_OVER).max(here.now.plus(wall_left));
    sighted.plus(lease).min(surely_over)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{GrantId, Labels};

    const SECOND: i64 = 1_000_000_000;

    fn at(seconds: i64) -> StoreTime {
        StoreTime::from_nanos(seconds * SECOND)
    }

    /// Created at 5,000 s of its clock, when the wall clock was at 1,000 s.
    fn holder(renewed: Option<i64>, until: i64) -> Holder {
        Holder {
            grant: GrantId::from_text("g"),
            lock_id: "l".to_owned(),
            labels: Labels { owner: "o".to_owned(), host: None, comment: None },
            token: 1_000_000_000,
            created: at(5000),
            renewed: renewed.map(at),
            until: End::At(at(until)),
        }
    }

    fn end(holder: &Holder, sighted: i64, now: i64, wall: u64) -> End {
        let here = Here { clock: "b", now: at(now), wall: wall * 1_000_000 };
        translate(holder, at(sighted), here).until
    }

    #[test]
    fn a_whole_lease_counts_from_the_sighting() {
        assert_eq!(end(&holder(None, 5020), 10, 12, 1001), End::At(at(30)));
        // Renewed at 5,100 for 20 s.
        assert_eq!(end(&holder(Some(5100), 5120), 10, 12, 9999), End::At(at(30)));
    }

    #[test]
    fn a_minute_is_enough_only_when_the_wall_clock_agrees() {
        let eight_hours = holder(None, 5000 + 8 * 3600);
        let over = 1000 + 8 * 3600;
        assert_eq!(end(&eight_hours, 10, 12, over), End::At(at(70)));
        // 100 s before its end by the wall clock: then, and not after a minute.
        assert_eq!(end(&eight_hours, 10, 12, over - 100), End::At(at(112)));
        // A wall clock that stands in 1970: the whole lease.
        assert_eq!(end(&eight_hours, 10, 12, 0), End::At(at(10 + 8 * 3600)));
    }

    #[test]
    fn the_ages_are_told_by_the_wall_clock() {
        let here = Here { clock: "b", now: at(50), wall: 1_130_000_000 };
        let seen = translate(&holder(Some(5100), 5120), at(40), here);
        assert_eq!((seen.created, seen.renewed), (at(50 - 130), Some(at(50 - 30))));
        let clock_set_back = Here { wall: 5, ..here };
        assert_eq!(translate(&holder(Some(5100), 5120), at(40), clock_set_back).renewed, Some(at(50)));
    }

    #[test]
    fn endless_stays_endless() {
        let endless = Holder { until: End::Never, ..holder(None, 0) };
        assert_eq!(end(&endless, 10, 99_999, 99_999), End::Never);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_identity_names_boot_and_namespace() {
        let (boot, namespace) = clock_identity().split_once(':').unwrap();
        assert_eq!(boot.len(), 36);
        assert!(namespace.starts_with("time"), "{namespace}");
    }
}
