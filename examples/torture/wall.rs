//! Wall clocks that are off, and that jump.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::checker::history::Line;
use crate::clock::now;

/// How many seconds a clock is off at most.
const MOST: i64 = 300;
/// The same for about half of the jumps, so that these are about as long as a lease.
const NEAR: i64 = 3;
const TICK: Duration = Duration::from_millis(10);
/// A clock that moves by more milliseconds than this has jumped, and was not only corrected by a fraction of a second.
const JUMP: i64 = 500;
/// A look at two clocks that takes more nanoseconds than this shows nothing.
const LOOK: u64 = 50_000_000;

/// The library that `faketime` loads.
pub fn library() -> Option<String> {
    let told = Command::new("faketime").args(["-m", "-f", "+0s", "env"]).output().ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    told.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=")).map(str::to_owned)
}

/// Removes what the library leaves in shared memory when a process is killed: it makes the next process with that id
/// fail.
pub fn clean_up(process: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}_{process}"));
    }
}

/// The wall clock of one worker.
pub struct Wall {
    /// The worker reads from it, at each look at the clock, how much the clock is off.
    file: PathBuf,
    next: Instant,
    /// How many more jumps follow closely.
    burst: u32,
    random: fastrand::Rng,
}

impl Wall {
    /// Gives one to a worker that is about to be started; also returns how much it is off at first.
    pub fn set(
        command: &mut Command,
        library: &str,
        dir: &Path,
        name: &str,
        mut random: fastrand::Rng,
    ) -> Result<(Wall, i64), String> {
        let file = dir.join(format!("{name}.wall"));
        // The clocks that can't be set on a host stay as they are.
        command.env("LD_PRELOAD", library).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        // `FAKETIME` would come before the file; and with a cache the file would be read only every ten seconds.
        command.env_remove("FAKETIME").env("FAKETIME_NO_CACHE", "1").env("FAKETIME_TIMESTAMP_FILE", &file);
        let seconds = random.i64(-MOST..=MOST);
        let wall = Wall { file, next: Instant::now(), burst: 0, random };
        wall.put(seconds)?;
        Ok((wall, seconds))
    }

    /// Jumps if it is time to; returns how much the clock is off then.
    pub fn jump(&mut self, lease: Duration) -> Result<Option<i64>, String> {
        if Instant::now() < self.next {
            return Ok(None);
        }
        if self.burst > 0 {
            self.burst -= 1;
            self.next = Instant::now() + TICK * self.random.u32(1..=6);
        } else {
            self.next = Instant::now() + lease.mul_f64(0.3 + 2.0 * self.random.f64());
            self.burst = if self.random.u32(..4) == 0 { self.random.u32(3..=12) } else { 0 };
        }
        let most = if self.random.bool() { MOST } else { NEAR };
        let seconds = self.random.i64(-most..=most);
        self.put(seconds)?;
        Ok(Some(seconds))
    }

    fn put(&self, seconds: i64) -> Result<(), String> {
        let part = self.file.with_extension("part");
        // By the rename the whole number is there at once: half a number would be another one.
        let put = fs::write(&part, format!("{seconds:+}\n")).and_then(|()| fs::rename(&part, &self.file));
        put.map_err(|error| format!("{}: {error}", self.file.display()))
    }
}

/// Reports each jump of this process's wall clock from now on.
pub fn notice_jumps(told: impl Fn(Line) + Send + 'static) {
    std::thread::spawn(move || {
        let mut known = ahead();
        loop {
            std::thread::sleep(TICK);
            let ahead = ahead();
            let by = ahead - known;
            if by.abs() > JUMP {
                told(Line::Jumped { at: now(), seconds: (by + by.signum() * 500) / 1_000 });
            }
            known = ahead;
        }
    });
}

/// How many milliseconds the wall clock is ahead of the boot clock.
fn ahead() -> i64 {
    loop {
        let before = now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        // A process that was stopped between the two readings would see a jump where there was none.
        if now() - before < LOOK {
            return i64::try_from(wall).unwrap_or(i64::MAX) - i64::try_from(before / 1_000_000).unwrap_or(i64::MAX);
        }
    }
}
