//! A process that uses the locks, by the public API alone, and writes down what it sees.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use leasehold::{CancelToken, Error, ErrorKind, Event, LockClient, LockGuard, Observer};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::checker::history::{Asked, End, Form, Line, Mode};
use crate::clock::{measure_lateness, nanos, now};
use crate::group;
use crate::holding;
use crate::left;
use crate::options::Options;
use crate::points::{self, POINTS};
use crate::resource::Resource;
use crate::wall;

/// The exit code of a worker that leaves with its locks, as the parent expects it.
pub const ABANDONED: i32 = 42;
/// The exit code of a worker that could not connect: the parent starts another one.
pub const NOT_CONNECTED: i32 = 43;
/// How long it tries to connect.
const CONNECT: Duration = Duration::from_secs(40);
/// The parent wants the end, or is gone.
static STOP: AtomicBool = AtomicBool::new(false);

/// The file of the history. There is none before the worker is connected.
type History = Arc<OnceLock<File>>;

/// What all threads of a worker share.
pub struct Worker {
    pub options: Options,
    pub client: LockClient,
    pub dir: PathBuf,
    pub name: String,
    history: History,
    next_id: AtomicU64,
    pub cancel: CancelToken,
    pub resource: Arc<Resource>,
}

/// One hold that was granted.
pub struct Held {
    pub id: u64,
    pub key: String,
    pub mode: Mode,
}

/// One write for each line, so that threads do not mix their lines, and what is written outlives this process.
fn write(history: &OnceLock<File>, line: &Line) {
    let Some(mut file) = history.get() else { return };
    let wrote = file.write_all(format!("{line}\n").as_bytes());
    wrote.expect("the history can be written");
}

/// Writes down the requests to the store that failed or were answered late, and no others: they show that a fault of
/// the server had an effect.
struct Requests {
    history: History,
    late: Duration,
}

impl Observer for Requests {
    fn event(&self, event: &Event<'_>) {
        let Event::Request { operation, took, error, .. } = event else { return };
        let why = match error {
            // The store answered, for example that others hold the lock: nothing was wrong.
            Some(error) if !is_trouble(error.kind()) => return,
            Some(error) => format!("{} {}", operation.name(), on_one_line(error)),
            None if *took > self.late => "late".to_owned(),
            None => return,
        };
        let to = now();
        write(&self.history, &Line::Request { from: to.saturating_sub(nanos(*took)), to, why });
    }
}

fn is_trouble(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Store | ErrorKind::Ambiguous | ErrorKind::TimedOut)
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn on_one_line(error: &Error) -> String {
    chain(error).split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Worker {
    pub fn write(&self, line: &Line) {
        points::follow(line);
        write(&self.history, line);
    }

    pub fn is_over(&self) -> bool {
        STOP.load(Ordering::SeqCst)
    }

    pub fn lease(&self) -> Duration {
        self.options.lease
    }

    /// Whether this hold is one of the few with which the whole process ends. A process with many threads ends as often
    /// as one with a single thread; otherwise most waits would be for what dead processes have left.
    pub fn leaves(&self, random: &mut fastrand::Rng) -> bool {
        self.options.kills() && random.usize(..self.options.threads) == 0
    }

    pub fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::SeqCst)
    }

    /// Writes that a hold is asked for.
    pub fn ask(&self, asked: Asked) -> u64 {
        let id = self.id();
        self.write(&Line::Ask { at: now(), id, asked });
        id
    }

    pub fn granted(&self, id: u64, mode: Mode, key: &str, token: u64) -> Held {
        self.write(&Line::Granted { at: now(), id, token, key: key.to_owned() });
        Held { id, key: key.to_owned(), mode }
    }

    pub fn refused(&self, id: u64) {
        self.write(&Line::Refused { at: now(), id });
    }

    pub fn failed(&self, id: u64, error: &Error) {
        let (at, kind) = (now(), error.kind().name().to_owned());
        match error.kind() {
            ErrorKind::Held => self.refused(id),
            // Without holders: the store was too slow to be read.
            ErrorKind::TimedOut if !error.holders().is_empty() => self.refused(id),
            _ => self.write(&Line::Failed { at, id, error: kind, why: on_one_line(error) }),
        }
    }

    /// Writes down what a guard reports; returns whether it is held.
    pub fn look(&self, id: u64, guard: &LockGuard) -> bool {
        self.look_at(&[id], || guard.remaining(), || [guard.is_held(), guard.ensure_held().is_ok()])
    }

    /// The same for each of these holds, by its three answers to one question.
    pub fn look_at(&self, ids: &[u64], left: impl Fn() -> Duration, held: impl Fn() -> [bool; 2]) -> bool {
        let (from, mut reported) = (now(), left());
        let is_left = !reported.is_zero();
        if held().contains(&!is_left) {
            // A heartbeat may have been answered between the two, or its time may be over.
            reported = left();
            if is_left != reported.is_zero() {
                // They must agree, since nothing brings a lock back: the checker accuses this.
                for id in ids {
                    self.looked(from, *id, Duration::ZERO);
                }
                reported = Duration::from_nanos(1);
            }
        }
        for id in ids {
            self.looked(from, *id, reported);
        }
        !reported.is_zero()
    }

    pub fn looked(&self, from: u64, id: u64, left: Duration) -> bool {
        let left = nanos(left);
        self.write(&Line::Look { from, to: now(), id, left });
        left > 0
    }

    /// Ends a hold by this call, and writes down both.
    pub fn end(&self, id: u64, how: End, call: impl FnOnce() -> Result<(), Error>) {
        self.write(&Line::Ending { at: now(), id, how });
        let answer = match call() {
            Ok(()) => "ok",
            Err(error) => error.kind().name(),
        };
        self.write(&Line::Ended { at: now(), id, answer: answer.to_owned() });
    }

    /// Writes down the loss that a guard reports.
    pub fn tell_loss(&self, id: u64, guard: &LockGuard) {
        let loss = guard.loss().wait_timeout(Duration::from_secs(1));
        let reason = loss.map_or("unknown", |loss| loss.reason.name());
        self.write(&Line::Lost { at: now(), id, reason: reason.to_owned() });
        // What is lost stays lost: a heartbeat that is on its way just now must not bring it back.
        for _ in 0..4 {
            std::thread::sleep(self.lease() / 20);
            self.look(id, guard);
        }
    }
}

/// The name of a key, and how many may share it: any number (0) for an even key, two for an odd one.
pub fn key(options: &Options, number: usize) -> (String, u32) {
    (options.key(&number.to_string()), if number.is_multiple_of(2) { 0 } else { 2 })
}

fn connect(options: &Options, name: &str, history: &History) -> Result<LockClient, Error> {
    let started = Instant::now();
    loop {
        let requests = Requests { history: history.clone(), late: options.request_timeout() / 2 };
        let builder = LockClient::builder(options.store.clone()).owner(name).lease(options.lease);
        let builder = builder.observer(Arc::new(requests));
        let builder = builder.request_timeout(options.request_timeout()).drop_timeout(options.lease);
        let poll = if options.kind().is_local() { 5..=40 } else { 50..=150 };
        let poll = Duration::from_millis(*poll.start())..=Duration::from_millis(*poll.end());
        match builder.poll(poll).connect() {
            Ok(client) => return Ok(client),
            // A fault may hit the worker while it connects.
            Err(error) if STOP.load(Ordering::SeqCst) || error.kind() == ErrorKind::Config => return Err(error),
            Err(_) if started.elapsed() < CONNECT => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Works until its standard input ends.
pub fn run(options: Options, dir: &Path, name: &str) -> i32 {
    // A stopped process does not see the end of its input, and may have the store's file locked. So it is killed when
    // the parent ends.
    if let Err(error) = set_pdeathsig(Signal::SIGKILL) {
        eprintln!("torture: {name}: {error}");
        return NOT_CONNECTED;
    }
    if parent_id() != options.parent {
        return NOT_CONNECTED;
    }
    // Otherwise only the thread that panics would end, and nobody would see that before the run's end. The parent can
    // tell this abort from its own kills.
    let named = name.to_owned();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("torture: {named}: {info}");
        std::process::abort();
    }));
    let cancel = CancelToken::new();
    let over = cancel.clone();
    let input = std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        STOP.store(true, Ordering::SeqCst);
        over.cancel();
    });
    let history = History::default();
    let descriptors = left::descriptors(&options);
    let client = match connect(&options, name, &history) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("torture: {name}: {error}");
            return NOT_CONNECTED;
        }
    };
    let file = File::options().create(true).append(true).open(dir.join(format!("{name}.log")));
    history.get_or_init(|| file.expect("a file for the history"));
    let late = history.clone();
    measure_lateness(options.lease, move |line| write(&late, &line));
    if options.has("wall") {
        let jumped = history.clone();
        wall::notice_jumps(move |line| write(&jumped, &line));
    }
    if options.has(POINTS) {
        let stopped = history.clone();
        points::stop_threads(&options, options.seed ^ hash(name), move |line| write(&stopped, line));
    }
    let said = history.clone();
    let resource = Arc::new(Resource::connect(dir));
    let worker = Arc::new(Worker {
        client,
        dir: dir.to_owned(),
        name: name.to_owned(),
        history,
        next_id: AtomicU64::new(1),
        cancel,
        resource,
        options,
    });
    let threads: Vec<_> = (0..worker.options.threads)
        .map(|n| {
            let worker = worker.clone();
            let seed = worker.options.seed ^ hash(name) ^ (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            std::thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !worker.is_over() {
                    one(&worker, &mut random);
                }
            })
        })
        .collect();
    let _ = input.join();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    // It fails if a guard could not be released while the network was gone; the checker judges that by the guard's
    // hold.
    let _ = worker.client.close();
    let options = worker.options.clone();
    drop(worker);
    write(&said, &left::by_client(descriptors, &options));
    0
}

/// The same number for the same name.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// One operation, at random.
fn one(worker: &Worker, random: &mut fastrand::Rng) {
    let number = random.usize(..worker.options.keys);
    let (name, limit) = key(&worker.options, number);
    match random.u32(..100) {
        0..18 => ask_guard(worker, random, &name, Mode::Exclusive, 0, Some(Duration::ZERO)),
        18..30 => ask_guard(worker, random, &name, Mode::Exclusive, 0, None),
        30..42 => {
            let wait = worker.lease().mul_f64(random.f64());
            ask_guard(worker, random, &name, Mode::Exclusive, 0, Some(wait));
        }
        42..66 => {
            let wait = match random.u32(..3) {
                0 => Some(Duration::ZERO),
                1 => Some(worker.lease().mul_f64(random.f64())),
                _ => None,
            };
            ask_guard(worker, random, &name, Mode::Shared, limit, wait);
        }
        66..71 => ask_any(worker, random),
        71..79 => group::ask(worker, random),
        79..85 => holding::data(worker, random, &name),
        85..90 => holding::lease_of_a_name(worker, random, number),
        90..98 => holding::adopt(worker, random),
        // Frees what has expired, whichever client held it.
        _ => drop(worker.client.purge(Duration::ZERO)),
    }
}

pub fn asked(form: Form, mode: Mode, key: &str, limit: u32, wait: Option<Duration>) -> Asked {
    let wait = wait.map(nanos);
    Asked { form, mode, keys: vec![key.to_owned()], all: false, limit, wait, instead_of: None }
}

fn ask_guard(worker: &Worker, random: &mut fastrand::Rng, key: &str, mode: Mode, limit: u32, wait: Option<Duration>) {
    let id = worker.ask(asked(Form::Guard, mode, key, limit, wait));
    let client = &worker.client;
    let answer = match (mode, limit, wait) {
        (Mode::Exclusive, _, Some(Duration::ZERO)) => client.try_lock(key),
        (Mode::Exclusive, _, Some(wait)) => client.try_lock_for(key, wait),
        (Mode::Exclusive, _, None) => client.request(key).cancel(&worker.cancel).lock().map(Some),
        (Mode::Shared, 0, Some(Duration::ZERO)) => client.try_lock_shared(key),
        (Mode::Shared, 0, Some(wait)) => client.try_lock_shared_for(key, wait),
        (Mode::Shared, 0, None) => client.request(key).shared().cancel(&worker.cancel).lock().map(Some),
        (Mode::Shared, limit, wait) => {
            let request = client.request(key).max_holders(limit).cancel(&worker.cancel);
            match wait {
                Some(Duration::ZERO) => request.try_lock(),
                Some(wait) => request.wait(wait).lock().map(Some),
                None => request.lock().map(Some),
            }
        }
    };
    holding::answered(worker, random, id, mode, answer);
}

fn ask_any(worker: &Worker, random: &mut fastrand::Rng) {
    let first = random.usize(..worker.options.keys);
    let options = &worker.options;
    let keys: Vec<String> = (0..options.keys.min(2)).map(|n| key(options, (first + n) % options.keys).0).collect();
    let wait = if random.bool() { Duration::ZERO } else { worker.lease().mul_f64(random.f64()) };
    let id = worker.ask(Asked { keys: keys.clone(), ..asked(Form::Guard, Mode::Exclusive, "", 0, Some(wait)) });
    let request = worker.client.request_any(&keys);
    let answer =
        if wait.is_zero() { request.try_lock() } else { request.wait(wait).cancel(&worker.cancel).lock().map(Some) };
    holding::answered(worker, random, id, Mode::Exclusive, answer);
}
