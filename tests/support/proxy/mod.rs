//! A TCP proxy that injects network faults, in front of any server. [`Proxy::http`], [`Proxy::mongodb`] and
//! [`Proxy::postgres`] know where a request of their protocol ends, so they can fault single requests, chosen by their
//! text. [`Proxy::raw`] knows only bytes and their direction.
#![allow(dead_code)] // Each test binary uses its own part of it.

mod http;
mod message;
mod raw;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A wait that takes longer than this means that the test or the library is broken.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many requests are remembered.
const KEPT: usize = 10_000;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// It reaches the server this much later, and the client waits for the answer.
    Delay(Duration),
    /// Neither this request nor anything after it on this connection reaches the server; the client waits.
    HoleToServer,
    /// It reaches the server, but from now on nothing reaches the client on this connection.
    HoleToClient,
    /// It does not reach the server, and the connection ends.
    CutBefore,
    /// The server has answered, but the client gets the connection's end instead.
    CutAfter,
    /// As `CutBefore`, with a TCP reset.
    ResetBefore,
    /// As `CutAfter`, with a TCP reset.
    ResetAfter,
    /// The server has answered, but the client waits on. The connection serves the next request.
    DropAnswer,
    /// It reaches the server this much later, and the client gets no answer: it waits on.
    Late(Duration),
    /// As `Late`, but the client sees the connection's end at once.
    CutLate(Duration),
    /// It reaches the server when [`Proxy::deliver`] is called, and the client gets no answer: it waits on.
    Held,
    /// As `Held`, but the client sees the connection's end at once.
    CutHeld,
    /// It reaches the server twice, one after the other; the client gets this answer.
    Twice(Answer),
    /// The answer's `Date` header is moved by this many seconds.
    ShiftDate(i64),
    /// As `ShiftDate`, and the answer gets this header, replacing one of the same name: as from a proxy that writes
    /// both.
    Relay(i64, &'static str),
    /// The server runs this statement first, as if a pooler had sent it. Only for [`Proxy::postgres`].
    After(&'static str),
    /// It does not reach the server; the client gets the answer of AWS to a signature with a wrong time.
    Skewed,
    /// It does not reach the server; the client gets this status and JSON, as from a service in trouble. With
    /// [`Proxy::mongodb`] these are the code of an error and its message.
    Say(u16, &'static str),
}

/// See [`Mode::Twice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    First,
    Second,
}

/// What happens to the bytes of one direction; see [`Proxy::flow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    #[default]
    Pass,
    /// They arrive this much later.
    Delay(Duration),
    /// They wait in the network, as TCP does when packets are lost, and go on with the next `Pass`.
    Hold,
}

/// Which requests get a mode. A proxy uses the first of its rules that fits, in the order in which they were added.
#[derive(Debug, Clone)]
pub struct Rule {
    mode: Mode,
    texts: Vec<String>,
    skip: u64,
    count: u64,
    left: u64,
}

impl Rule {
    /// Every request.
    pub fn always(mode: Mode) -> Rule {
        Rule::next(u64::MAX, mode)
    }

    /// The next `count` requests.
    pub fn next(count: u64, mode: Mode) -> Rule {
        Rule { mode, texts: Vec::new(), skip: 0, count, left: count }
    }

    /// Only requests that have this text, like the name of an operation, in their head or body. If called twice, both
    /// texts.
    pub fn on(mut self, text: &str) -> Rule {
        self.texts.push(text.to_owned());
        self
    }

    /// Lets this many requests that would fit pass first.
    pub fn after(mut self, count: u64) -> Rule {
        self.skip = count;
        self
    }

    /// Whether requests that it waits for did not come. A rule for every request is met by any single one.
    fn is_unmet(&self) -> bool {
        if self.count == u64::MAX { self.left == self.count } else { self.left > 0 }
    }

    /// Whether it applies to this request; counts down.
    fn takes(&mut self, request: &Request) -> bool {
        if self.left == 0 || !self.texts.iter().all(|text| request.has(text)) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.left -= 1;
        true
    }
}

/// A request that has reached the proxy.
#[derive(Debug, Clone)]
pub struct Request {
    /// The `X-Amz-Target` without its version, or the first line.
    pub target: String,
    pub head: String,
    pub body: String,
    /// How often it was sent to the server.
    pub sent: u32,
    /// How often the server has answered it.
    pub answered: u32,
    number: u64,
}

impl Request {
    pub fn has(&self, text: &str) -> bool {
        self.head.contains(text) || self.body.contains(text)
    }
}

/// All its connections and threads end when it is dropped.
pub struct Proxy {
    addr: SocketAddr,
    inner: Arc<Inner>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// For HTTP/1.1, in front of `host:port` or `http://host:port`.
    pub fn http(upstream: &str) -> Proxy {
        Proxy::start(upstream, http::serve)
    }

    /// For MongoDB, in front of `host:port`. Its clients must not let the server send without being asked
    /// (`serverMonitoringMode=poll`), nor find another way to the server (`directConnection=true`).
    pub fn mongodb(upstream: &str) -> Proxy {
        Proxy::start(upstream, http::serve_mongodb)
    }

    /// For PostgreSQL, in front of `host:port`. What the server sends unasked arrives with its next answer.
    pub fn postgres(upstream: &str) -> Proxy {
        Proxy::start(upstream, http::serve_postgres)
    }

    /// The same, but a listening session gets its notifications at once.
    pub fn telling_postgres(upstream: &str) -> Proxy {
        Proxy::start(upstream, http::serve_telling_postgres)
    }

    /// For any protocol.
    pub fn raw(upstream: &str) -> Proxy {
        Proxy::start(upstream, raw::serve)
    }

    fn start(upstream: &str, serve: Serve) -> Proxy {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("its address");
        let inner = Arc::new(Inner { upstream, port: addr.port(), state: Mutex::default(), changed: Condvar::new() });
        let (own, name) = (inner.clone(), inner.name("accept"));
        let accept = move || {
            for client in listener.incoming() {
                let Ok(client) = client else { continue };
                if own.lock().stopped {
                    return;
                }
                own.thread("conn", move |inner| {
                    if let Ok((id, client)) = inner.register(client, None) {
                        // Whether it failed or not, this connection ends now.
                        let _ = serve(inner, id, client);
                        inner.forget(id);
                    }
                });
            }
        };
        let acceptor = std::thread::Builder::new().name(name).spawn(accept).expect("a thread");
        Proxy { addr, inner, acceptor: Some(acceptor) }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn add(&self, rule: Rule) {
        self.inner.lock().rules.push(rule);
    }

    /// Forgets all rules. What they have already done to a connection stays. Returns the rules for which some of their
    /// requests never came: a fault that nothing has met proves nothing.
    #[must_use = "a fault that nothing has met proves nothing"]
    pub fn clear(&self) -> Vec<Rule> {
        let rules = std::mem::take(&mut self.inner.lock().rules);
        rules.into_iter().filter(|rule| rule.is_unmet()).collect()
    }

    /// Sets the flow from now on, on all connections, new and old. Only for [`Proxy::raw`].
    pub fn flow(&self, to_server: Flow, to_client: Flow) {
        let mut state = self.inner.lock();
        (state.to_server, state.to_client) = (to_server, to_client);
        self.inner.changed.notify_all();
    }

    /// Connections that are open now carry nothing from now on, but stay open; new ones pass. Only for
    /// [`Proxy::raw`].
    pub fn silence_open(&self) {
        let mut state = self.inner.lock();
        state.silent = state.open.keys().copied().collect();
    }

    /// Ends all connections that are open now, also in the middle of a request.
    pub fn cut_all(&self) {
        self.end_all(|stream| stream.shutdown(Shutdown::Both));
    }

    /// As `cut_all`, with a TCP reset.
    pub fn reset_all(&self) {
        // Shutting down one half wakes the connection's thread, and the socket is closed when that thread ends.
        self.end_all(|stream| reset_on_close(stream).and_then(|()| stream.shutdown(Shutdown::Read)));
    }

    fn end_all(&self, end: impl Fn(&TcpStream) -> io::Result<()>) {
        let mut state = self.inner.lock();
        for (_, stream) in state.open.drain() {
            let _ = end(&stream);
        }
        self.inner.changed.notify_all();
    }

    /// How many requests have ever arrived.
    pub fn count(&self) -> u64 {
        self.inner.lock().count
    }

    /// How many requests, not in `count`, only prepared a statement or had one forgotten. They have no mode. Only for
    /// [`Proxy::postgres`].
    pub fn prepares(&self) -> u64 {
        self.inner.lock().prepares
    }

    /// The first bytes that each connection's client sent, the oldest connection first. Only for [`Proxy::raw`].
    pub fn heard(&self) -> Vec<Vec<u8>> {
        let mut heard: Vec<_> = self.inner.lock().heard.clone().into_iter().collect();
        heard.sort();
        heard.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// How many requests have ever been [held](Mode::Held).
    pub fn held(&self) -> u64 {
        self.inner.lock().held.came
    }

    /// Lets the [held](Mode::Held) requests reach the server, and waits for its answers; returns how many there were.
    #[track_caller]
    pub fn deliver(&self) -> u64 {
        let until = Instant::now() + PATIENCE;
        let mut state = self.inner.lock();
        let count = state.held.came - state.held.may_go;
        state.held.may_go = state.held.came;
        self.inner.changed.notify_all();
        while state.held.answered < state.held.may_go {
            assert!(Instant::now() < until, "what was held was not answered: {:?}", state.held);
            self.inner.changed.wait_until(&mut state, until);
        }
        count
    }

    /// The last requests, the oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.inner.lock().kept.iter().cloned().collect()
    }

    /// Waits until `cond` is true of the last requests, and returns them.
    #[track_caller]
    pub fn wait_until(&self, what: &str, cond: impl Fn(&[Request]) -> bool) -> Vec<Request> {
        let until = Instant::now() + PATIENCE;
        let mut state = self.inner.lock();
        loop {
            let requests = state.kept.make_contiguous();
            if cond(requests) {
                return requests.to_vec();
            }
            assert!(Instant::now() < until, "it never came to be: {what}; the requests: {requests:?}");
            self.inner.changed.wait_until(&mut state, until);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.inner.lock().stopped = true;
        self.cut_all();
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.addr);
        let mut ended = self.acceptor.take().into_iter().collect();
        let mut failed = 0;
        loop {
            failed += failures(ended);
            // The last threads may have started others.
            ended = std::mem::take(&mut self.inner.lock().threads);
            if ended.is_empty() {
                break;
            }
        }
        failed += self.inner.lock().failures;
        if !std::thread::panicking() {
            assert_eq!(failed, 0, "threads of the proxy panicked, see above");
        }
    }
}

/// Waits for these threads and returns how many of them panicked.
fn failures(threads: Vec<JoinHandle<()>>) -> usize {
    threads.into_iter().filter_map(|thread| thread.join().err()).count()
}

type Serve = fn(&Arc<Inner>, u64, Arc<TcpStream>) -> io::Result<()>;

struct Inner {
    upstream: String,
    port: u16,
    state: Mutex<State>,
    /// Anything in the state has changed.
    changed: Condvar,
}

/// How many [held](Mode::Held) requests came, up to which of them they may go on, and how many were answered.
#[derive(Debug, Default)]
struct Held {
    came: u64,
    may_go: u64,
    answered: u64,
}

#[derive(Default)]
struct State {
    stopped: bool,
    rules: Vec<Rule>,
    date_shift: i64,
    checks_signing: bool,
    shifted: HashMap<u64, i64>,
    to_server: Flow,
    to_client: Flow,
    count: u64,
    prepares: u64,
    held: Held,
    kept: VecDeque<Request>,
    heard: HashMap<u64, Vec<u8>>,
    /// The sockets, of both sides, by number.
    open: HashMap<u64, Arc<TcpStream>>,
    /// The sockets among them that nothing is sent to.
    silent: HashSet<u64>,
    sockets: u64,
    threads: Vec<JoinHandle<()>>,
    /// How many of the threads that have ended panicked.
    failures: usize,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The name of a thread: with the proxy's port, and not longer than the kernel keeps.
    fn name(&self, what: &str) -> String {
        format!("px-{}-{what}", self.port)
    }

    /// Starts a thread that the proxy waits for when it ends.
    fn thread(self: &Arc<Inner>, what: &str, body: impl FnOnce(&Arc<Inner>) + Send + 'static) {
        let own = self.clone();
        let thread = std::thread::Builder::new().name(self.name(what)).spawn(move || body(&own)).expect("a thread");
        let mut state = self.lock();
        let (ended, running) = std::mem::take(&mut state.threads).into_iter().partition(JoinHandle::is_finished);
        state.threads = running;
        state.threads.push(thread);
        state.failures += failures(ended);
    }

    /// From now on `cut_all` ends this socket. An error if the socket `works_for` has been cut already.
    fn register(&self, stream: TcpStream, works_for: Option<u64>) -> io::Result<(u64, Arc<TcpStream>)> {
        stream.set_nodelay(true)?;
        let stream = Arc::new(stream);
        let mut state = self.lock();
        if state.stopped || works_for.is_some_and(|id| !state.open.contains_key(&id)) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.sockets += 1;
        let id = state.sockets;
        state.open.insert(id, stream.clone());
        Ok((id, stream))
    }

    fn forget(&self, id: u64) {
        self.lock().open.remove(&id);
    }

    fn connect(&self, works_for: Option<u64>) -> io::Result<(u64, Arc<TcpStream>)> {
        self.register(TcpStream::connect(&self.upstream)?, works_for)
    }

    /// Waits for this long. False as soon as this socket has been cut.
    fn wait(&self, id: u64, time: Duration) -> bool {
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, |state| state.open.contains_key(&id), time);
        state.open.contains_key(&id)
    }

    /// Counts one more held request and returns its number.
    fn hold(&self) -> u64 {
        let mut state = self.lock();
        state.held.came += 1;
        self.changed.notify_all();
        state.held.came
    }

    /// Waits until the held request of this number may go on. False as soon as the proxy ends.
    fn wait_held(&self, place: u64) -> bool {
        let mut state = self.lock();
        self.changed.wait_while(&mut state, |state| !state.stopped && state.held.may_go < place);
        !state.stopped
    }

    /// Waits for this long. False as soon as the proxy ends.
    fn wait_late(&self, time: Duration) -> bool {
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, |state| !state.stopped, time);
        !state.stopped
    }
}

/// The last close of this socket resets the connection.
fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(stream, sockopt::Linger, &linger).map_err(io::Error::from)
}
