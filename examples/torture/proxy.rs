//! What stands between a worker and its server, and makes the faults of a network.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::Mutex;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};

use crate::checker::history::Line;
use crate::clock::now;

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
    /// An answer comes this much later, and after it nothing for so long: who counts from the answer and not from what
    /// was asked believes too long.
    Stale(Duration, Duration),
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
        }
    }
}

/// Told of each fault that met a request.
pub type Told = Arc<dyn Fn(Line) + Send + Sync>;

struct State {
    process: Mutex<String>,
    fault: Mutex<Option<(Fault, Instant)>>,
    told: Told,
}

/// See the module. One for each worker, so that each fault is known to be one of its own.
#[derive(Clone)]
pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

impl Proxy {
    /// Serves for as long as this process lives.
    pub fn start(server: &str, told: Told) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State { process: Mutex::default(), fault: Mutex::default(), told });
        let (server, shared) = (server.to_owned(), state.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                let _ = client.set_nodelay(true).and_then(|()| upstream.set_nodelay(true));
                let both = client.try_clone().and_then(|client| Ok((client, upstream.try_clone()?)));
                let Ok((client_too, upstream_too)) = both else { continue };
                let (asking, answering) = (shared.clone(), shared.clone());
                let cut = Arc::new(AtomicBool::new(false));
                let cut_too = cut.clone();
                std::thread::spawn(move || asking.requests(client, upstream, &cut));
                std::thread::spawn(move || answering.answers(upstream_too, client_too, &cut_too));
            }
        });
        Ok(Proxy { port, state })
    }

    /// Whose requests come through it.
    pub fn belongs_to(&self, process: &str) {
        process.clone_into(&mut self.state.process.lock());
        *self.state.fault.lock() = None;
    }

    pub fn disturb(&self, fault: Fault, time: Duration) {
        *self.state.fault.lock() = Some((fault, Instant::now() + time));
    }
}

/// Ends it so that the other side sees a reset.
fn reset(stream: &TcpStream) {
    let _ = setsockopt(stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 });
    let _ = stream.shutdown(Shutdown::Both);
}

impl State {
    /// What stands now, and for how long.
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

    fn requests(&self, mut client: TcpStream, mut server: TcpStream, cut: &AtomicBool) {
        let mut chunk = [0; 65536];
        while let Ok(length @ 1..) = client.read(&mut chunk) {
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
                Some((Fault::Cut, _)) => cut.store(true, Ordering::SeqCst),
                Some((Fault::Stale(..), _)) => {}
                Some((fault @ Fault::Late(by), _)) => {
                    // One is enough: what follows overtakes it.
                    *self.fault.lock() = None;
                    self.hit(fault, by);
                    std::thread::sleep(by);
                }
            }
            if server.write_all(&chunk[..length]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    }

    fn answers(&self, mut server: TcpStream, mut client: TcpStream, cut: &AtomicBool) {
        let mut chunk = [0; 65536];
        while let Ok(length @ 1..) = server.read(&mut chunk) {
            match self.fault() {
                _ if cut.load(Ordering::SeqCst) => {
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
            if client.write_all(&chunk[..length]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}
