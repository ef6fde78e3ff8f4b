//! How late this machine is, measured beside each bound by a thread that only sleeps.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::harness::millis;

const TICK: Duration = millis(5);
/// More than the ticks of any call.
const KEPT: usize = 20_000;
/// What a call may take beside its bound where nothing is late: threads that start and end, a disk.
const WORK: Duration = millis(250);
/// That many threads may have a part in a call, one after the other, each as late as the latest tick.
const HOPS: u32 = 5;

/// When each tick came, and how much later than asked.
type Ticks = Mutex<VecDeque<(Instant, Duration)>>;

/// From now on it is measured.
pub fn measure() -> &'static Ticks {
    static TICKS: OnceLock<Ticks> = OnceLock::new();
    TICKS.get_or_init(|| {
        std::thread::Builder::new().name("lateness".to_owned()).spawn(tick).expect("a thread");
        Mutex::default()
    })
}

fn tick() {
    let ticks = measure();
    loop {
        let asleep = Instant::now();
        std::thread::sleep(TICK);
        let mut ticks = ticks.lock().unwrap_or_else(PoisonError::into_inner);
        if ticks.len() == KEPT {
            ticks.pop_front();
        }
        ticks.push_back((Instant::now(), asleep.elapsed().saturating_sub(TICK)));
    }
}

/// What this machine may have added to a call that began then and ends now.
pub fn slack(since: Instant) -> Duration {
    let ticks = measure().lock().unwrap_or_else(PoisonError::into_inner);
    let during = ticks.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late);
    // The tick that should have come by now.
    let due = ticks.back().map_or(Duration::ZERO, |(last, _)| last.elapsed().saturating_sub(TICK));
    WORK + HOPS * during.chain([due]).max().unwrap_or_default()
}
