//! The clock that counts suspend, and the wall clock, which is only for tokens and for signatures to DynamoDB.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

/// A point on the boot-time clock of this host: it goes on while the machine is suspended and no
/// clock step moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

impl BootTime {
    /// Later than every point that is reached.
    pub const NEVER: BootTime = BootTime(u64::MAX);
    /// Earlier than every point.
    pub const PAST: BootTime = BootTime(0);

    /// The point `nanos` after the host's boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        BootTime(nanos)
    }

    /// Nanoseconds since the host's boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not, `Duration::MAX` for never.
    pub fn since(self, earlier: BootTime) -> Duration {
        if self == BootTime::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootTime {
    type Output = BootTime;
    fn add(self, by: Duration) -> BootTime {
        BootTime(self.0.saturating_add(by.as_nanos().try_into().unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for BootTime {
    type Output = BootTime;
    fn sub(self, by: Duration) -> BootTime {
        if self == BootTime::NEVER {
            return self;
        }
        BootTime(self.0.saturating_sub(by.as_nanos().try_into().unwrap_or(u64::MAX)))
    }
}

/// Tests let at most this much time pass, about 146 years: half of what a `StoreTime` can count, so that a lease that is
/// granted then still has an end.
const MOST_ADVANCED: u64 = u64::MAX / 4;

/// The clocks of this host. Tests move them; nothing else does.
#[derive(Debug, Default)]
pub struct Clock {
    boot_offset: AtomicU64,
    wall_offset: AtomicI64,
    slew_offset: AtomicI64,
    on_jump: Mutex<Vec<Weak<Sender<()>>>>,
}

impl Clock {
    /// The clocks of the system.
    pub fn system() -> Arc<Clock> {
        Arc::default()
    }

    /// Now, counting suspend.
    pub fn now(&self) -> BootTime {
        BootTime(boot_nanos()) + Duration::from_nanos(self.boot_offset.load(Ordering::SeqCst))
    }

    /// The wall clock in microseconds since 1970. Tokens are made from it, and requests to DynamoDB are signed by it
    /// until the service's time is known. Nothing is decided by it.
    pub fn wall_micros(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX);
        u64::try_from(micros.saturating_add(self.wall_offset.load(Ordering::SeqCst))).unwrap_or(0)
    }

    /// By how many nanoseconds corrections have moved the boot-time clock so far. They move it a little with each tick:
    /// `chronyd` lets it run up to a twelfth too fast or too slow meanwhile. `None`: the measurement was interrupted,
    /// and says nothing.
    #[cfg(feature = "dynamodb")]
    pub fn slew(&self) -> Option<i64> {
        // Tried once more, since it is hardly ever interrupted twice.
        let slew = slew_nanos().or_else(slew_nanos)?;
        Some(slew.saturating_add(self.slew_offset.load(Ordering::SeqCst)))
    }

    /// Lets `slew` report this many nanoseconds more than the system's clocks say.
    pub fn set_slew_offset(&self, nanos: i64) {
        self.slew_offset.store(nanos, Ordering::SeqCst);
    }

    /// Lets `by` pass at once, as a suspend would, and wakes the watchers. All calls together let `MOST_ADVANCED` pass.
    pub fn advance(&self, by: Duration) {
        let nanos = by.as_nanos().try_into().unwrap_or(u64::MAX);
        let _ = self.boot_offset.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |passed| {
            Some(passed.saturating_add(nanos).min(MOST_ADVANCED))
        });
        for jump in self.on_jump.lock().iter().filter_map(Weak::upgrade) {
            // A full channel holds a message already.
            let _ = jump.try_send(());
        }
    }

    /// From now on the time is what a clock reports that a sandbox forbids.
    pub fn forbid(&self) {
        self.boot_offset.store(u64::MAX, Ordering::SeqCst);
    }

    /// Sets the wall clock off by this many microseconds.
    pub fn set_wall_offset(&self, micros: i64) {
        self.wall_offset.store(micros, Ordering::SeqCst);
    }

    /// Reports each [`advance`](Clock::advance) from now on.
    pub fn jumps(&self) -> Jumps {
        let (jump, jumps) = crossbeam_channel::bounded(1);
        let jump = Arc::new(jump);
        let mut on_jump = self.on_jump.lock();
        if on_jump.len() == on_jump.capacity() {
            on_jump.retain(|jump| jump.strong_count() > 0);
        }
        on_jump.push(Arc::downgrade(&jump));
        Jumps { _jump: jump, jumps }
    }
}

/// Gets a message after a jump of the clock, for as long as it lives.
#[derive(Debug)]
pub struct Jumps {
    _jump: Arc<Sender<()>>,
    jumps: Receiver<()>,
}

impl Jumps {
    /// Ready after a jump. The field is private: a `move` closure takes only those fields that it names, so it would
    /// leave the sender behind, and when that is dropped the messages end.
    pub fn receiver(&self) -> &Receiver<()> {
        &self.jumps
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_nanos() -> u64 {
    nanos_of(nix::time::ClockId::CLOCK_BOOTTIME)
}

/// Neither of these two clocks counts suspend, and `CLOCK_MONOTONIC_RAW` is the one that nobody corrects.
#[cfg(all(feature = "dynamodb", any(target_os = "linux", target_os = "android")))]
fn slew_nanos() -> Option<i64> {
    const AT_ONCE: u64 = 100_000;
    let raw = || nanos_of(nix::time::ClockId::CLOCK_MONOTONIC_RAW);
    let (before, corrected, after) = (raw(), nanos_of(nix::time::ClockId::CLOCK_MONOTONIC), raw());
    (after.saturating_sub(before) < AT_ONCE).then(|| corrected.wrapping_sub(before).cast_signed())
}

/// Elsewhere nobody corrects the clock that is used.
#[cfg(all(feature = "dynamodb", not(any(target_os = "linux", target_os = "android"))))]
fn slew_nanos() -> Option<i64> {
    Some(0)
}

/// `CLOCK_MONOTONIC_RAW` counts sleep on macOS, and clock adjustments do not reach it.
#[cfg(target_vendor = "apple")]
fn boot_nanos() -> u64 {
    nanos_of(nix::time::ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW))
}

/// How long this thread has run on a processor so far. On Windows it is the time that has passed. If a sandbox forbids
/// the clock, it never changes.
#[cfg(feature = "sqlite")]
pub fn thread_time() -> Duration {
    #[cfg(unix)]
    let nanos = nanos_of(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    #[cfg(not(unix))]
    let nanos = boot_nanos();
    Duration::from_nanos(nanos)
}

#[cfg(unix)]
fn nanos_of(clock: nix::time::ClockId) -> u64 {
    // These clocks exist wherever this compiles. If a sandbox forbids one, everything that this process holds counts as
    // over.
    let now = clock.now().map_or(Duration::MAX, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android", target_vendor = "apple"))))]
compile_error!("leasehold knows no clock of this system that goes on while the machine is suspended");

/// On Windows `Instant` counts suspend.
#[cfg(not(unix))]
fn boot_nanos() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let nanos = START.get_or_init(Instant::now).elapsed().as_nanos();
    u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(1)
}
