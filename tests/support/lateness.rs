//! How late this machine is, measured beside each bound by a thread that only sleeps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use leasehold::LockClient;

use super::wait::wait_until;

const TICK: Duration = Duration::from_millis(5);
/// More than the ticks of any call.
const KEPT: usize = 20_000;
/// What a call may take beside its bound where nothing is late: threads that start and end, a disk.
pub const WORK: Duration = Duration::from_millis(250);
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

/// Waits until this count has stayed the same for far longer than what goes on would need, and returns it: for what
/// ends by itself, and has no event that says so.
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

/// What this machine may have added to a call that began then and ends now.
pub fn slack(since: Instant) -> Duration {
    let ticks = measure().lock().unwrap_or_else(PoisonError::into_inner);
    let during = ticks.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late);
    // The tick that should have come by now.
    let due = ticks.back().map_or(Duration::ZERO, |(last, _)| last.elapsed().saturating_sub(TICK));
    WORK + HOPS * during.chain([due]).max().unwrap_or_default()
}

/// Many calls that end at the same time: all their threads want a processor then, in one call after the other, and the thread
/// that measures stands in that line only once.
pub const AMONG_MANY: u32 = 2;

/// Runs `call`, which must be over within `bound`, and the slack since it began.
#[track_caller]
pub fn within<T>(what: &str, bound: Duration, slack: impl FnOnce(Instant) -> Duration, call: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = call();
    let (took, slack) = (started.elapsed(), slack(started));
    assert!(took <= bound + slack, "{what} took {took:?}, but its bound is {bound:?} (and {slack:?} for this machine)");
    value
}

/// So many requests may have a part in a call of a server's client, each as slow as the slowest that was measured.
const REQUESTS: u32 = 4;
/// The pause between two rounds of requests: of a stop of the server that begins in it, so much is not measured.
const REST: Duration = Duration::from_millis(100);

/// When each request began, and how long its answer took, once it came.
type Answers = Mutex<Vec<(Instant, Option<Duration>)>>;

/// How slow a server is: a thread of its own writes and reads one row all the time. Ends with this value.
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
                    // It stands also where one was not answered.
                    Some(lock) => Some(client.heartbeat(&lock, LEASE).unwrap_or(lock)),
                    None => client.request(KEY).lease(LEASE).acquire().ok(),
                });
                // As a waiter does. On Spanner's emulator it may take longer than a write: its clock runs ahead.
                let _ = timed(&answers, || client.get(KEY));
            }
        });
        Slowness { answers: seen, _over: over }
    }

    /// What the server may have added to a call that began then and ends now.
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
