//! How late this machine is: a thread that only sleeps measures it while a test checks a bound.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use leasehold::LockClient;

use super::wait::wait_until;

const TICK: Duration = Duration::from_millis(5);
/// More than the number of ticks in any call.
const KEPT: usize = 20_000;
/// What a call may take in addition to its bound where nothing is late: for threads that start and end, and the disk.
pub const WORK: Duration = Duration::from_millis(250);
/// At most this many threads may have a part in a call, one after the other, each as late as the latest tick.
const HOPS: u32 = 5;

/// When each tick came, and how much later than planned.
type Ticks = Mutex<VecDeque<(Instant, Duration)>>;

/// Starts the measurement, if it does not run yet.
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

/// Waits until this count has not changed for far longer than the activity would need, and returns it: for activity
/// that ends by itself, without an event that says so.
#[track_caller]
pub fn at_rest(what: &str, count: impl Fn() -> usize) -> usize {
    measure();
    let mut last = (count(), Instant::now());
    wait_until(what, || {
        let now = count();
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > slack(last.1)
    });
    last.0
}

/// How much this machine may have added to a call that began at `since` and ends now.
pub fn slack(since: Instant) -> Duration {
    let ticks = measure().lock().unwrap_or_else(PoisonError::into_inner);
    let during = ticks.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late);
    // How late the tick that should have come by now is.
    let due = ticks.back().map_or(Duration::ZERO, |(last, _)| last.elapsed().saturating_sub(TICK));
    WORK + HOPS * during.chain([due]).max().unwrap_or_default()
}

/// The factor for many calls that end at the same time: all their threads want a processor then, for one call after the
/// other, and the measuring thread waits in that line only once.
pub const AMONG_MANY: u32 = 2;

/// Runs `call`, which must end within `bound` plus the slack since it began.
#[track_caller]
pub fn within<T>(what: &str, bound: Duration, slack: impl FnOnce(Instant) -> Duration, call: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = call();
    let (took, slack) = (started.elapsed(), slack(started));
    assert!(took <= bound + slack, "{what} took {took:?}, but its bound is {bound:?} (and {slack:?} for this machine)");
    value
}

/// At most this many requests may have a part in a call of a server's client, each as slow as the slowest measured one.
const REQUESTS: u32 = 4;
/// The pause between two rounds of requests. If the server stops during it, up to this much of the stop is not
/// measured.
const REST: Duration = Duration::from_millis(100);

/// When each request began, and how long its answer took, if it came.
type Answers = Mutex<Vec<(Instant, Option<Duration>)>>;

/// How slow a server is: a separate thread writes and reads one row all the time. It ends when this value is dropped.
pub struct Slowness {
    answers: Arc<Answers>,
    _over: mpsc::Sender<()>,
}

impl Slowness {
    pub fn of(client: LockClient) -> Slowness {
        const LEASE: Duration = Duration::from_secs(600);
        const KEY: &str = "how slow";
        let answers = Arc::<Answers>::default();
        let (seen, (over, goes_on)) = (answers.clone(), mpsc::channel());
        std::thread::spawn(move || {
            let mut held = None;
            while goes_on.recv_timeout(REST) == Err(mpsc::RecvTimeoutError::Timeout) {
                held = timed(&answers, || match held {
                    // The lock still exists if a heartbeat was not answered.
                    Some(lock) => Some(client.heartbeat(&lock, LEASE).unwrap_or(lock)),
                    None => client.request(KEY).lease(LEASE).acquire().ok(),
                });
                // A look, as a waiter does it. On Spanner's emulator it may take longer than a write: its clock runs
                // ahead.
                let _ = timed(&answers, || client.get(KEY));
            }
        });
        Slowness { answers: seen, _over: over }
    }

    /// How much the server may have added to a call that began at `since` and ends now.
    pub fn slack(&self, since: Instant) -> Duration {
        let answers = self.answers.lock().unwrap();
        let took = answers.iter().map(|(began, took)| (*began, took.unwrap_or_else(|| began.elapsed())));
        let during = took.filter(|(began, took)| *began + *took >= since).map(|(_, took)| took);
        REST + REQUESTS * during.max().unwrap_or_default()
    }
}

fn timed<T>(answers: &Answers, request: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    answers.lock().unwrap().push((began, None));
    let answer = request();
    answers.lock().unwrap().last_mut().unwrap().1 = Some(began.elapsed());
    answer
}
