//! A gRPC proxy that numbers the requests and injects network faults into single ones. It speaks HTTP/2 to both sides
//! and changes nothing in what it lets through.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use parking_lot::{Condvar, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A wait that takes longer than this means that the test or the library is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not reach the server, and the connection ends.
    CutBefore,
    /// The server has answered, but the client gets the connection's end instead.
    CutAfter,
    /// It does not reach the server, and the client waits.
    Lost,
    /// The server has answered, but the client waits on.
    AnswerLost,
    /// It reaches the server this much later; the client sees the connection's end at once.
    CutLate(Duration),
    /// It reaches the server this much later, and the client gets no answer: it waits on.
    Late(Duration),
    /// It reaches the server when [`Grpc::deliver`] is called, and the client gets no answer: it waits on.
    Held,
    /// It reaches the server this much later, and the answer reaches the client as much later.
    Slow(Duration),
    /// It does not reach the server, and the client gets this status, which is made here.
    Refused(u8),
    /// The server has answered, but the client gets this status.
    DoneThenRefused(u8),
    /// It does not reach the server, and the client is told that a row that it updates does not exist any more.
    RowIsMissing,
    /// It does not reach the server, and the client is told to send the commit once more, with another token.
    Unfinished,
}

/// A request that has reached the proxy.
#[derive(Clone, Debug)]
pub struct Call {
    /// The last part of its path: `Commit`.
    pub method: String,
    /// The server has answered it, no matter how late.
    pub answered: bool,
    /// If a read-write transaction begins with this request: whether the rows that it reads are locked.
    pub locks: Option<bool>,
}

/// All its connections end when it is dropped.
pub struct Grpc {
    /// `127.0.0.1:PORT`
    pub host: String,
    inner: Arc<Inner>,
    _runtime: Option<tokio::runtime::Runtime>,
}

struct Inner {
    upstream: String,
    state: Mutex<State>,
    changed: Condvar,
    /// Increased to end all open connections.
    cuts: watch::Sender<u64>,
    /// Up to which number the [held](Fault::Held) requests may go on.
    may_go: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// The method, how many of its requests pass before, and the fault.
    rules: VecDeque<(String, usize, Fault)>,
    /// How many requests were [held](Fault::Held), and how many of those the server has answered.
    held: usize,
    delivered: usize,
}

impl Grpc {
    pub fn new(upstream: &str) -> Grpc {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let inner = Arc::new(Inner {
            upstream: upstream.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            cuts: watch::Sender::new(0),
            may_go: watch::Sender::new(0),
        });
        let own = inner.clone();
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move {
                    let mut cuts = own.cuts.subscribe();
                    tokio::select! {
                        _ = serve(own, client) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Grpc { host, inner, _runtime: Some(runtime) }
    }

    /// Injects the fault into the request of this method (any: "") that comes after `after` others.
    pub fn fault(&self, method: &str, after: usize, fault: Fault) {
        self.inner.state.lock().rules.push_back((method.to_owned(), after, fault));
    }

    /// Forgets the faults that no request has met yet; returns how many there were.
    #[must_use = "a fault that nothing has met proves nothing"]
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.inner.state.lock().rules).len()
    }

    /// Lets the [held](Fault::Held) requests reach the server, and waits for its answers; returns how many there were.
    #[track_caller]
    pub fn deliver(&self) -> usize {
        let until = Instant::now() + PATIENCE;
        let mut state = self.inner.state.lock();
        let count = state.held - self.inner.may_go.send_replace(state.held);
        while state.delivered < state.held {
            assert!(Instant::now() < until, "{} of {} were answered", state.delivered, state.held);
            self.inner.changed.wait_until(&mut state, until);
        }
        count
    }

    /// Forgets the requests so far.
    pub fn restart(&self) {
        self.inner.state.lock().calls.clear();
    }

    /// The methods of the requests so far.
    pub fn methods(&self) -> Vec<String> {
        self.inner.state.lock().calls.iter().map(|call| call.method.clone()).collect()
    }

    /// For each read-write transaction that has begun so far: whether the rows that it reads are locked.
    pub fn locks(&self) -> Vec<bool> {
        self.inner.state.lock().calls.iter().filter_map(|call| call.locks).collect()
    }

    /// Waits until `cond` is true of the requests so far.
    #[track_caller]
    pub fn wait_until(&self, what: &str, cond: impl Fn(&[Call]) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut state = self.inner.state.lock();
        while !cond(&state.calls) {
            assert!(Instant::now() < until, "it never came to be: {what}; the requests: {:?}", state.calls);
            self.inner.changed.wait_until(&mut state, until);
        }
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        if let Some(runtime) = self._runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves one client's connection, with a connection of its own to the server.
async fn serve(inner: Arc<Inner>, client: TcpStream) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut client = h2::server::handshake(client).await.ok()?;
    let server = connect(&inner.upstream).await?;
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(Ok((request, respond))) = client.accept().await {
        // These tasks end with the connection, except those that deliver late.
        tasks.spawn(forward(inner.clone(), server.clone(), request, respond));
    }
    Some(())
}

async fn connect(upstream: &str) -> Option<h2::client::SendRequest<Bytes>> {
    let stream = TcpStream::connect(upstream).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let (server, connection) = h2::client::handshake(stream).await.ok()?;
    tokio::spawn(connection);
    Some(server)
}

/// A complete answer of the server.
struct Answer {
    head: Response<()>,
    body: Vec<Bytes>,
    trailers: Option<HeaderMap>,
}

async fn forward(
    inner: Arc<Inner>,
    server: h2::client::SendRequest<Bytes>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<()> {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(part) = stream.data().await {
        let part = part.ok()?;
        let _ = stream.flow_control().release_capacity(part.len());
        body.push(part);
    }
    let (number, fault) = inner.arrived(head.uri.path(), locks(&body.concat()));
    let request = Request::from_parts(head, ());
    match fault {
        None | Some(Fault::Slow(_)) => {
            if let Some(Fault::Slow(time)) = fault {
                tokio::time::sleep(time).await;
            }
            let answer = ask(server, request, body).await?;
            inner.answered(number);
            return reply(&mut respond, answer);
        }
        Some(Fault::CutBefore) => inner.cut(),
        Some(Fault::CutAfter) => {
            ask(server, request, body).await?;
            inner.answered(number);
            inner.cut();
        }
        Some(Fault::Lost) => {}
        Some(Fault::Refused(code)) => return refuse(&mut respond, code, "made by the proxy"),
        Some(Fault::DoneThenRefused(code)) => {
            ask(server, request, body).await?;
            inner.answered(number);
            return refuse(&mut respond, code, "made by the proxy");
        }
        Some(Fault::RowIsMissing) => {
            let as_the_service = "Row [k] in table locks is missing. Row cannot be updated.";
            return refuse(&mut respond, 5, as_the_service);
        }
        Some(Fault::Unfinished) => {
            // `CommitResponse`: only `precommit_token` (4), with its token (1) and number (2).
            const BODY: &[u8] = b"\0\0\0\0\x07\x22\x05\x0a\x01t\x10\x01";
            let head = Response::builder().header("content-type", "application/grpc").body(()).ok()?;
            let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from(0))]);
            return reply(&mut respond, Answer { head, body: vec![BODY.into()], trailers: Some(trailers) });
        }
        Some(Fault::AnswerLost) => {
            ask(server, request, body).await?;
            inner.answered(number);
        }
        Some(Fault::Held) => {
            let (own, place) = (inner.clone(), inner.hold());
            tokio::spawn(async move {
                drop(own.may_go.subscribe().wait_for(|may_go| *may_go >= place).await);
                ask(connect(&own.upstream).await?, request, body).await?;
                own.answered(number);
                own.state.lock().delivered += 1;
                own.changed.notify_all();
                Some(())
            });
        }
        Some(Fault::CutLate(time) | Fault::Late(time)) => {
            let own = inner.clone();
            // Sent on a connection of its own, which the cut does not end.
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                let server = connect(&own.upstream).await?;
                let _ = ask(server, request, body).await;
                own.answered(number);
                Some(())
            });
            if matches!(fault, Some(Fault::CutLate(_))) {
                inner.cut();
            }
        }
    }
    // The client waits until it gives up.
    std::future::poll_fn(|context| respond.poll_reset(context)).await.ok()?;
    Some(())
}

async fn ask(server: h2::client::SendRequest<Bytes>, request: Request<()>, body: Vec<Bytes>) -> Option<Answer> {
    let mut server = server.ready().await.ok()?;
    let (response, mut up) = server.send_request(request, false).ok()?;
    for part in body {
        up.send_data(part, false).ok()?;
    }
    up.send_data(Bytes::new(), true).ok()?;
    let (head, mut stream) = response.await.ok()?.into_parts();
    let mut body = Vec::new();
    while let Some(part) = stream.data().await {
        let part = part.ok()?;
        let _ = stream.flow_control().release_capacity(part.len());
        body.push(part);
    }
    let trailers = stream.trailers().await.ok()?;
    Some(Answer { head: Response::from_parts(head, ()), body, trailers })
}

/// Looks in a request for the options of a serializable read-write transaction: in its part (field 1) first the lock
/// mode (1), then, if present, the transaction before (2); after that part the isolation level (6).
fn locks(body: &[u8]) -> Option<bool> {
    const LOCKING: u8 = 1;
    body.windows(4).enumerate().find_map(|(at, part)| match *part {
        [0x0a, length, 0x08, mode @ LOCKING..=2] => {
            let after = at + 2 + usize::from(length);
            (body.get(after..after + 2)? == [0x30, 1]).then_some(mode == LOCKING)
        }
        _ => None,
    })
}

fn refuse(respond: &mut SendResponse<Bytes>, code: u8, message: &str) -> Option<()> {
    let head = Response::builder().header("content-type", "application/grpc").header("grpc-status", u16::from(code));
    let head = head.header("grpc-message", message).body(()).ok()?;
    reply(respond, Answer { head, body: Vec::new(), trailers: None })
}

fn reply(respond: &mut SendResponse<Bytes>, answer: Answer) -> Option<()> {
    let is_head_only = answer.body.is_empty() && answer.trailers.is_none();
    let mut down: SendStream<Bytes> = respond.send_response(answer.head, is_head_only).ok()?;
    let parts = answer.body.len();
    for (i, part) in answer.body.into_iter().enumerate() {
        down.send_data(part, i + 1 == parts && answer.trailers.is_none()).ok()?;
    }
    if let Some(trailers) = answer.trailers {
        down.send_trailers(trailers).ok()?;
    }
    Some(())
}

impl Inner {
    fn arrived(&self, path: &str, locks: Option<bool>) -> (usize, Option<Fault>) {
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut state = self.state.lock();
        let mut fault = None;
        let mut at = 0;
        while at < state.rules.len() {
            let (of, left, what) = &mut state.rules[at];
            if !of.is_empty() && *of != method {
                at += 1;
                continue;
            }
            if *left == 0 && fault.is_none() {
                fault = Some(*what);
                let _ = state.rules.remove(at);
                continue;
            }
            *left = left.saturating_sub(1);
            at += 1;
        }
        state.calls.push(Call { method, answered: false, locks });
        self.changed.notify_all();
        (state.calls.len() - 1, fault)
    }

    fn answered(&self, number: usize) {
        // None if the requests were forgotten meanwhile.
        if let Some(call) = self.state.lock().calls.get_mut(number) {
            call.answered = true;
        }
        self.changed.notify_all();
    }

    /// Counts one more held request and returns its number.
    fn hold(&self) -> usize {
        let mut state = self.state.lock();
        state.held += 1;
        state.held
    }

    /// Ends all connections that are open.
    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}
