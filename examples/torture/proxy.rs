//! The proxy between a worker and its server, which makes the faults of a network.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::Mutex;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use crate::checker::history::Line;
use crate::clock::now;
use crate::wire::{Requests, Wire, Write as Doubled, head_of, numbers_writes, with_wrong_date};

/// How many requests of one process wait to be sent once more at most.
const DOUBLED: usize = 64;
/// How long an answer that nobody waits for may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every chunk comes this much later.
    Delay(Duration),
    /// Connections are reset before what they ask is passed on.
    Reset,
    /// Nothing comes through, and at the end of it the connection is reset: what was asked is lost, or was done and
    /// not answered.
    BlackHole,
    /// What is asked is passed on, and the connection is reset instead of an answer.
    Cut,
    /// One request comes this much later, on its own connection alone: behind others that were sent after it.
    Late(Duration),
    /// An answer comes this much later, and after it nothing for the second duration: a client that counts its lease
    /// from the answer instead of the request believes too long that it holds the lock.
    Stale(Duration, Duration),
    /// A write is passed on, and comes once more this much later, over a connection of its own.
    Twice(Duration),
    /// Over one connection come answers whose `Date` is off by this many seconds: see [`Dates`].
    Date(i64),
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Fault::Delay(_) => "delay",
            Fault::Reset => "reset",
            Fault::BlackHole => "black-hole",
            Fault::Cut => "cut",
            Fault::Late(_) => "late",
            Fault::Stale(..) => "stale",
            Fault::Twice(_) => TWICE,
            Fault::Date(_) => DATE,
        }
    }

    /// A random fault of this kind, which is a name in `--faults`, and how long it lasts.
    pub fn of(kind: &str, random: &mut fastrand::Rng, lease: Duration) -> (Fault, Duration) {
        let of = |from: f64, to: f64, random: &mut fastrand::Rng| lease.mul_f64(from + (to - from) * random.f64());
        match kind {
            // The copy comes while the first request still matters, or much later.
            TWICE if random.u32(..3) == 0 => (Fault::Twice(of(0.0, 0.2, random)), of(0.3, 1.0, random)),
            TWICE => (Fault::Twice(of(0.2, 3.0, random)), of(0.3, 1.0, random)),
            DATE => {
                let seconds = random.i64(2..=300);
                (Fault::Date(if random.bool() { seconds } else { -seconds }), of(1.0, 3.0, random))
            }
            _ => match random.u32(..6) {
                0 => (Fault::Delay(of(0.02, 0.2, random)), of(0.3, 1.0, random)),
                1 => (Fault::Reset, of(0.1, 0.6, random)),
                2 => (Fault::BlackHole, of(0.3, 1.5, random)),
                3 => (Fault::Cut, of(0.1, 0.6, random)),
                4 => (Fault::Stale(of(0.25, 0.45, random), of(0.8, 1.4, random)), lease),
                _ => (Fault::Late(of(0.4, 1.2, random)), lease),
            },
        }
    }
}

/// The names of these two faults in `--faults`.
pub const TWICE: &str = "twice";
pub const DATE: &str = "date";

/// Writes a line of the parent's history, such as a fault that met a request.
pub type Told = Arc<dyn Fn(Line) + Send + Sync>;

/// Which connection may answer with a wrong `Date`, as a host of the service with a wrong clock would. Between two such
/// connections the process must have read the right time, and the first connection of a process is never wrong.
#[derive(Debug, Default)]
struct Dates {
    /// How many connections there were.
    connections: u64,
    /// The first one of this process.
    first: u64,
    /// The last connection that was wrong; before there is one, the last connection of the process before this one.
    before: u64,
    /// The process has read a right date over a connection that is newer than `before`.
    is_sure: bool,
    /// The connection that is wrong now.
    wrong: Option<u64>,
}

struct Connection {
    number: u64,
    /// A request was passed on, and the connection must be reset instead of an answer.
    cut: AtomicBool,
    /// An answer with a right date was passed on: the client has read it when it sends the next request.
    is_right: AtomicBool,
}

struct State {
    server: String,
    /// The server's protocol, if the proxy must understand it; `run` is what the names of this run contain.
    wire: Option<Wire>,
    run: String,
    process: Mutex<String>,
    fault: Mutex<Option<(Fault, Instant)>>,
    dates: Mutex<Dates>,
    /// The server said that writes to it are numbered: then it recognizes copies, and a write without a number is the
    /// client's fault.
    numbers: AtomicBool,
    /// How many requests wait to be sent once more.
    doubled: AtomicUsize,
    told: Told,
}

/// See the module. Each worker has its own, so that the worker that a fault meets is known.
#[derive(Clone)]
pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

impl Proxy {
    /// Serves for as long as this process lives. Without a `wire` no request comes twice, and no date is wrong.
    pub fn start(server: &str, wire: Option<Wire>, run: &str, told: Told) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State {
            server: server.to_owned(),
            wire,
            run: run.to_owned(),
            process: Mutex::default(),
            fault: Mutex::default(),
            dates: Mutex::default(),
            numbers: AtomicBool::new(false),
            doubled: AtomicUsize::new(0),
            told,
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&shared.server) else { continue };
                let _ = client.set_nodelay(true).and_then(|()| upstream.set_nodelay(true));
                let both = client.try_clone().and_then(|client| Ok((client, upstream.try_clone()?)));
                let Ok((client_too, upstream_too)) = both else { continue };
                let (asking, answering) = (shared.clone(), shared.clone());
                let connection = Arc::new(shared.connection());
                let same = connection.clone();
                std::thread::spawn(move || asking.requests(client, upstream, &connection));
                std::thread::spawn(move || answering.answers(upstream_too, client_too, &same));
            }
        });
        Ok(Proxy { port, state })
    }

    /// Sets the process whose requests come through this proxy from now on.
    pub fn belongs_to(&self, process: &str) {
        process.clone_into(&mut self.state.process.lock());
        *self.state.fault.lock() = None;
        let mut dates = self.state.dates.lock();
        let before = dates.connections;
        *dates = Dates { connections: before, first: before + 1, before, ..Dates::default() };
    }

    pub fn disturb(&self, fault: Fault, time: Duration) {
        *self.state.fault.lock() = Some((fault, Instant::now() + time));
        self.state.dates.lock().wrong = None;
    }
}

/// Ends it so that the other side sees a reset.
fn reset(stream: &TcpStream) {
    let _ = setsockopt(stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 });
    let _ = stream.shutdown(Shutdown::Both);
}

impl State {
    /// The current fault, and how long it still lasts.
    fn fault(&self) -> Option<(Fault, Duration)> {
        let (fault, until) = (*self.fault.lock())?;
        let left = until.checked_duration_since(Instant::now())?;
        Some((fault, left))
    }

    /// A fault has met something, and its effect ends in `time`.
    fn hit(&self, fault: Fault, time: Duration) {
        let (from, process) = (now(), self.process.lock().clone());
        let to = from + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        (self.told)(Line::Net { from, to, process, kind: fault.name().to_owned() });
    }

    fn connection(&self) -> Connection {
        let mut dates = self.dates.lock();
        dates.connections += 1;
        Connection { number: dates.connections, cut: AtomicBool::new(false), is_right: AtomicBool::new(false) }
    }

    /// By how many seconds the date of an answer over this connection must be off.
    fn date_is_off(&self, connection: &Connection) -> Option<i64> {
        let Some((Fault::Date(seconds), _)) = self.fault() else { return None };
        let (mut dates, number) = (self.dates.lock(), connection.number);
        if dates.wrong.is_none() && dates.is_sure && number > dates.before && number != dates.first {
            *dates = Dates { before: number, is_sure: false, wrong: Some(number), ..*dates };
        }
        (dates.wrong == Some(number)).then_some(seconds)
    }

    /// The client sends a request, so it has read the answer before.
    fn asks(&self, connection: &Connection) {
        if connection.is_right.load(Ordering::SeqCst) {
            let mut dates = self.dates.lock();
            dates.is_sure |= connection.number > dates.before;
        }
    }

    /// The answer, with a wrong date if it must have one.
    fn dated(&self, connection: &Connection, answer: Vec<u8>) -> Vec<u8> {
        let wrong = self.date_is_off(connection).and_then(|off| Some((off, with_wrong_date(&answer, off)?)));
        let Some((seconds, wrong)) = wrong else {
            connection.is_right.store(true, Ordering::SeqCst);
            return answer;
        };
        connection.is_right.store(false, Ordering::SeqCst);
        (self.told)(Line::Date { at: now(), process: self.process.lock().clone(), seconds });
        wrong
    }

    /// Sends the write once more, later. The copy counts if it is answered; it may have an effect if it was sent.
    fn double(self: &Arc<State>, write: Doubled, later: Duration, asked: u64, process: String) {
        if self.doubled.fetch_add(1, Ordering::SeqCst) >= DOUBLED {
            self.doubled.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let own = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(later);
            let (from, Doubled { bytes, key, known_again }) = (now(), write);
            let known_again = known_again || own.numbers.load(Ordering::SeqCst);
            if let Ok(answered) = own.ask_alone(&bytes) {
                (own.told)(Line::Twice { asked, from, to: now(), process, key, known_again, answered });
            }
            own.doubled.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Whether what was sent was answered. An error says that it was not sent.
    fn ask_alone(&self, request: &[u8]) -> std::io::Result<bool> {
        let mut server = TcpStream::connect(&self.server)?;
        server.set_read_timeout(Some(PATIENCE))?;
        server.write_all(request)?;
        Ok(matches!(server.read(&mut [0; 4096]), Ok(1..)))
    }

    fn requests(self: &Arc<State>, mut client: TcpStream, mut server: TcpStream, connection: &Connection) {
        let (mut chunk, mut requests) = ([0; 65536], self.wire.map(Requests::new));
        while let Ok(length @ 1..) = client.read(&mut chunk) {
            self.asks(connection);
            let writes = requests.as_mut().map(|requests| requests.writes_ended_by(&chunk[..length], &self.run));
            let mut twice = None;
            match self.fault() {
                None => {}
                Some((fault @ Fault::Delay(by), _)) => {
                    self.hit(fault, by);
                    std::thread::sleep(by);
                }
                Some((Fault::Reset, _)) => {
                    self.hit(Fault::Reset, Duration::ZERO);
                    reset(&client);
                    reset(&server);
                    return;
                }
                Some((Fault::BlackHole, left)) => {
                    self.hit(Fault::BlackHole, left);
                    std::thread::sleep(left);
                    reset(&client);
                    reset(&server);
                    return;
                }
                Some((Fault::Cut, _)) => connection.cut.store(true, Ordering::SeqCst),
                Some((Fault::Stale(..) | Fault::Date(_), _)) => {}
                Some((Fault::Twice(later), _)) => twice = Some(later),
                Some((fault @ Fault::Late(by), _)) => {
                    // One request is enough: the following ones overtake it.
                    *self.fault.lock() = None;
                    self.hit(fault, by);
                    std::thread::sleep(by);
                }
            }
            // Taken before the request is sent, because its answer may be written down at once.
            let (asked, process) = (now(), self.process.lock().clone());
            if server.write_all(&chunk[..length]).is_err() {
                break;
            }
            for (write, later) in writes.into_iter().flatten().zip(twice.into_iter().cycle()) {
                self.double(write, later, asked, process.clone());
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    }

    fn answers(&self, mut server: TcpStream, mut client: TcpStream, connection: &Connection) {
        let mut chunk = [0; 65536];
        while let Ok(length @ 1..) = server.read(&mut chunk) {
            match self.fault() {
                _ if connection.cut.load(Ordering::SeqCst) => {
                    self.hit(Fault::Cut, Duration::ZERO);
                    reset(&client);
                    reset(&server);
                    return;
                }
                Some((fault @ Fault::Delay(by), _)) => {
                    self.hit(fault, by);
                    std::thread::sleep(by);
                }
                Some((fault @ Fault::Stale(by, silent), _)) => {
                    *self.fault.lock() = Some((Fault::BlackHole, Instant::now() + by + silent));
                    self.hit(fault, by + silent);
                    std::thread::sleep(by);
                }
                Some((Fault::BlackHole, left)) => {
                    self.hit(Fault::BlackHole, left);
                    std::thread::sleep(left);
                    reset(&client);
                    reset(&server);
                    return;
                }
                _ => {}
            }
            let mut answer = chunk[..length].to_vec();
            if self.wire == Some(Wire::Mongodb) && numbers_writes(&answer) {
                self.numbers.store(true, Ordering::SeqCst);
            }
            if self.wire == Some(Wire::Dynamodb) && answer.starts_with(b"HTTP/1.1 ") {
                while head_of(&answer).is_none()
                    && let Ok(length @ 1..) = server.read(&mut chunk)
                {
                    answer.extend_from_slice(&chunk[..length]);
                }
                answer = self.dated(connection, answer);
            }
            if client.write_all(&answer).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}
