//! Whose clock a stored time belongs to, and what a time of another clock means here.
//!
//! A time is only comparable on the clock that it was taken from: this boot of this kernel, moved by the offset of the
//! time namespace. So every holder is stored with the identity of its clock. A holder of another clock (an earlier
//! boot, a container with a shifted clock or a boot id of its own) is live for its whole lease from the moment when it
//! was first *sighted* on our clock, unless it has renewed since. That end is never earlier than its real end, since
//! the sighting comes after its last renewal.
//!
//! A minute after the sighting is enough if an earlier boot is proven and the wall clock says, too, that the lease is
//! over. A boot id proves nothing: a container can have its own, and two boots can have the same one if there is
//! nothing random to draw it from so early, or if a virtual machine begins from a snapshot. But all processes run on
//! one kernel. So a clock with the same offset is either of that kernel, and then it is our clock, or of an earlier
//! boot. A holder that was written at a time still to come is of an earlier boot, because on our clock nobody can have
//! written then yet.
//!
//! Outside Linux there is no way to get an identity without unsafe code, and on Linux none if `/proc` is hidden: then
//! each process draws one. That is safe by the same rule, only slower: another process takes over a lease's length
//! after it first saw the holder, not at the lease's end.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;

use super::file;
use crate::lease::{End, Holder, StoreTime};
use crate::sys::process::ProcessId;
use crate::sys::random;

/// The wait after the sighting that is enough if a lease of an earlier boot is over by the wall clock.
const SURELY_OVER: Duration = Duration::from_secs(60);

/// The identity of this process's boot-time clock. It is read anew each time, because a child of a fork can be in
/// another time namespace. An error if no more files may be opened for now: a drawn identity would make others wait
/// longer.
pub(super) fn clock_identity() -> io::Result<String> {
    match of_this_boot() {
        Err(error) if file::is_exhausted(&error) => Err(error),
        asked => Ok(asked.ok().flatten().unwrap_or_else(drawn)),
    }
}

/// The boot's id and the clock's offset in its time namespace. Not the number of the namespace: a later namespace can
/// get the same number, with another offset.
#[cfg(target_os = "linux")]
fn of_this_boot() -> io::Result<Option<String>> {
    use std::fs;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let offset = match fs::read_link("/proc/self/ns/time") {
        Ok(own) if own.as_os_str() == INITIAL => Some(UNMOVED.to_owned()),
        // The file has the offsets of the children's namespace, so that must be our own, too.
        Ok(own) if fs::read_link("/proc/self/ns/time_for_children")? == own => {
            offset(&fs::read_to_string("/proc/self/timens_offsets")?)
        }
        // A kernel before 5.6 has no time namespaces. It may be built without any other kind, too, so only the folder
        // is checked.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::symlink_metadata("/proc/self/ns")?;
            Some(UNMOVED.to_owned())
        }
        _ => None,
    };
    Ok(offset.map(|offset| format!("{}:{offset}", boot.trim())))
}

/// The time namespace of the host, whose number is fixed.
#[cfg(target_os = "linux")]
const INITIAL: &str = "time:[4026531834]";
/// Its offset.
#[cfg(target_os = "linux")]
const UNMOVED: &str = "0.0";

/// The boot-time clock's line in `timens_offsets`: seconds and nanoseconds.
#[cfg(target_os = "linux")]
fn offset(offsets: &str) -> Option<String> {
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    offsets.lines().map(fields).find_map(|fields| match fields.as_slice() {
        [name, seconds, nanos] if name == "boottime" => Some(format!("{seconds}.{nanos}")),
        _ => None,
    })
}

#[cfg(not(target_os = "linux"))]
fn of_this_boot() -> io::Result<Option<String>> {
    Ok(None)
}

/// How an identity begins that a process has drawn for itself.
const DRAWN: &str = "process:";

/// Whether only one process has this identity.
pub(super) fn is_drawn(identity: &str) -> bool {
    identity.starts_with(DRAWN)
}

/// The identity that this process has drawn for itself.
fn drawn() -> String {
    static OURS: Mutex<Option<(ProcessId, String)>> = Mutex::new(None);
    let new = || format!("{DRAWN}{}", random::uuid());
    // In a forked child the mutex may be held for ever. Two identities for one clock are safe, only slower.
    let Some(mut drawn) = OURS.try_lock() else { return new() };
    match &*drawn {
        Some((process, identity)) if process.is_current() => identity.clone(),
        _ => drawn.insert((ProcessId::current(), new())).1.clone(),
    }
}

/// The times of a call, and the clock that they are of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    /// The identity of our clock.
    pub(super) clock: &'a str,
    /// Now on it.
    pub(super) now: StoreTime,
    /// The wall clock in microseconds.
    pub(super) wall: u64,
}

/// What the times of a holder of another clock mean on ours. `sighted` is when our clock first saw the holder in its
/// present state.
///
/// `created` and `renewed` come from the wall clock and are for people only.
pub(super) fn translate(holder: &Holder, clock: &str, sighted: StoreTime, here: Here<'_>) -> Holder {
    let age = Duration::from_micros(here.wall.saturating_sub(holder.token));
    let created = here.now.minus(age);
    let renewed = holder.renewed.map(|at| created.plus(at.since(holder.created)).min(here.now));
    let until = match holder.until {
        End::Never => End::Never,
        End::At(end) => End::At(end_here(holder, clock, end, sighted, here)),
    };
    Holder { created, renewed, until, ..holder.clone() }
}

fn end_here(holder: &Holder, clock: &str, end: StoreTime, sighted: StoreTime, here: Here<'_>) -> StoreTime {
    let written = written(holder);
    let whole_lease = sighted.plus(end.since(written));
    if !is_of_an_earlier_boot(clock, written, sighted, here.clock) {
        return whole_lease;
    }
    // The token was taken from the wall clock when the holder was created, or is later.
    let wall_end = holder.token.saturating_add(micros(end.since(holder.created)));
    let wall_left = Duration::from_micros(wall_end.saturating_sub(here.wall));
    whole_lease.min(sighted.plus(SURELY_OVER).max(here.now.plus(wall_left)))
}

/// When the present lease of the holder began, on the holder's clock.
pub(super) fn written(holder: &Holder) -> StoreTime {
    holder.renewed.unwrap_or(holder.created).max(holder.created)
}

/// Whether it is proven that the holder is of a boot that is over; see the module.
fn is_of_an_earlier_boot(clock: &str, written: StoreTime, sighted: StoreTime, ours: &str) -> bool {
    let (Some((_, offset)), Some((_, our_offset))) = (clock.split_once(':'), ours.split_once(':')) else {
        return false;
    };
    offset == our_offset && written > sighted
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
            labels: Labels::of("o"),
            token: 1_000_000_000,
            created: at(5000),
            renewed: renewed.map(at),
            until: End::At(at(until)),
        }
    }

    fn end(holder: &Holder, sighted: i64, now: i64, wall: u64) -> End {
        let here = Here { clock: "b:0.0", now: at(now), wall: wall * 1_000_000 };
        translate(holder, "a:0.0", at(sighted), here).until
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
        // 100 s before its end by the wall clock: it ends then, and not after a minute.
        assert_eq!(end(&eight_hours, 10, 12, over - 100), End::At(at(112)));
        // A wall clock in 1970: the whole lease.
        assert_eq!(end(&eight_hours, 10, 12, 0), End::At(at(10 + 8 * 3600)));
    }

    #[test]
    fn only_what_was_written_at_a_time_to_come_is_of_an_earlier_boot() {
        let proven = |clock, written, ours| is_of_an_earlier_boot(clock, at(written), at(10), ours);
        for (clock, ours) in [("a:0.0", "b:0.0"), ("a:7.5", "b:7.5"), ("a:0.0", "a:0.0")] {
            assert!(proven(clock, 11, ours), "{clock} {ours}");
        }
        assert!(!proven("a:0.0", 10, "b:0.0"), "it may be of this kernel");
        assert!(!proven("a:1.0", 11, "b:0.0"), "its clock may be ahead");
        for (clock, ours) in [("a", "b"), ("process:a", "process:b"), ("a:0.0", "process:b")] {
            assert!(!proven(clock, 11, ours), "{clock} {ours}");
        }
        // It was written at a time that our clock had not reached at the sighting, but has by now: the proof stays
        // valid.
        let eight_hours = holder(None, 5000 + 8 * 3600);
        assert_eq!(end(&eight_hours, 10, 6000, 1000 + 8 * 3600), End::At(at(6000)));
        assert_eq!(end(&eight_hours, 5000, 5002, 1000 + 8 * 3600), End::At(at(5000 + 8 * 3600)));
    }

    #[test]
    fn the_ages_are_told_by_the_wall_clock() {
        let here = Here { clock: "b", now: at(50), wall: 1_130_000_000 };
        let seen = translate(&holder(Some(5100), 5120), "a", at(40), here);
        assert_eq!((seen.created, seen.renewed), (at(50 - 130), Some(at(50 - 30))));
        let clock_set_back = Here { wall: 5, ..here };
        assert_eq!(translate(&holder(Some(5100), 5120), "a", at(40), clock_set_back).renewed, Some(at(50)));
    }

    #[test]
    fn endless_stays_endless() {
        let endless = Holder { until: End::Never, ..holder(None, 0) };
        assert_eq!(end(&endless, 10, 99_999, 99_999), End::Never);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_identity_names_boot_and_offset() {
        let identity = clock_identity().unwrap();
        let (boot, moved) = identity.split_once(':').unwrap();
        assert_eq!(boot.len(), 36);
        assert!(moved.split_once('.').unwrap().0.parse::<i64>().is_ok(), "{identity}");
        assert_eq!(identity, clock_identity().unwrap());
        let offsets = "monotonic           1         2\nboottime         -30   5000000\n";
        assert_eq!(offset(offsets).as_deref(), Some("-30.5000000"));
        assert_eq!(offset("boottime\n"), None);
    }

    #[test]
    fn what_is_drawn_is_one_for_the_process() {
        assert_eq!(drawn(), drawn());
    }
}
