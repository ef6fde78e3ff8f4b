//! One client's connection: one request after the other, each with its mode.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::message::{Message, Peer, STARTUP, Wire};
use super::{Answer, Inner, KEPT, Mode, Proxy, Request, reset_on_close};

impl Proxy {
    /// Moves the `Date` header of every answer, in addition to the rules.
    pub fn shift_dates(&self, seconds: i64) {
        self.inner.lock().date_shift = seconds;
    }

    /// From now on refuses requests that are signed with a time which is minutes off that of the answers.
    pub fn check_signing_times(&self) {
        self.inner.lock().checks_signing = true;
    }

    /// By how much every `Date` is moved.
    pub fn dates_shift(&self) -> i64 {
        self.inner.lock().date_shift
    }

    /// The same, only on the connections that are open now, as if they were to one host of the service.
    pub fn shift_dates_of_open(&self, seconds: i64) {
        let mut state = self.inner.lock();
        state.shifted = state.open.keys().map(|connection| (*connection, seconds)).collect();
    }

    /// The same, only on the connection that is made next.
    pub fn shift_dates_of_next(&self, seconds: i64) {
        let mut state = self.inner.lock();
        state.shifted = HashMap::from([(state.sockets + 1, seconds)]);
    }
}

pub fn serve(inner: &Arc<Inner>, id: u64, client: Arc<TcpStream>) -> io::Result<()> {
    serve_as(Wire::Http, inner, id, client)
}

pub fn serve_mongodb(inner: &Arc<Inner>, id: u64, client: Arc<TcpStream>) -> io::Result<()> {
    serve_as(Wire::Mongodb, inner, id, client)
}

pub fn serve_postgres(inner: &Arc<Inner>, id: u64, client: Arc<TcpStream>) -> io::Result<()> {
    serve_as(Wire::Postgres { tells: false }, inner, id, client)
}

pub fn serve_telling_postgres(inner: &Arc<Inner>, id: u64, client: Arc<TcpStream>) -> io::Result<()> {
    serve_as(Wire::Postgres { tells: true }, inner, id, client)
}

fn serve_as(wire: Wire, inner: &Arc<Inner>, id: u64, client: Arc<TcpStream>) -> io::Result<()> {
    let mut client = Peer::new(client, wire);
    let mut server = Server { inner, wire, client: Some(id), peer: None };
    let mut is_mute = false;
    loop {
        if matches!(wire, Wire::Postgres { tells: true }) && !is_mute {
            server.pass_told(&mut client)?;
        }
        let Some(request) = client.request()? else { return Ok(()) };
        if request.only_prepares {
            inner.lock().prepares += 1;
            let answer = server.pass(&request)?;
            if !is_mute {
                client.write(&answer)?;
            }
            continue;
        }
        let (number, mode, mut shift) = inner.arrived(&request, id);
        let mut answer = None;
        match mode {
            Mode::Pass => answer = Some(server.ask(&request, number)?),
            Mode::ShiftDate(seconds) => {
                answer = Some(server.ask(&request, number)?);
                shift += seconds;
            }
            Mode::Relay(seconds, header) => {
                let mut relayed = server.ask(&request, number)?;
                relayed.set_header(header);
                answer = Some(relayed);
                shift += seconds;
            }
            Mode::Delay(time) => {
                if !inner.wait(id, time) {
                    return Ok(());
                }
                answer = Some(server.ask(&request, number)?);
            }
            Mode::Skewed => answer = Some(Message::skewed()),
            Mode::Say(status, text) => answer = Some(Message::said(wire, &request, status, text)),
            Mode::HoleToServer => return client.swallow(),
            Mode::HoleToClient => {
                server.ask(&request, number)?;
                is_mute = true;
            }
            Mode::CutBefore => return Ok(()),
            Mode::CutAfter => return server.ask(&request, number).map(drop),
            Mode::ResetBefore => return reset_on_close(&client.stream),
            Mode::ResetAfter => {
                server.ask(&request, number)?;
                return reset_on_close(&client.stream);
            }
            Mode::DropAnswer => drop(server.ask(&request, number)?),
            Mode::Late(time) => deliver_late(inner, wire, request, number, time),
            Mode::CutLate(time) => {
                deliver_late(inner, wire, request, number, time);
                return Ok(());
            }
            Mode::Held => hold(inner, wire, request, number),
            Mode::CutHeld => {
                hold(inner, wire, request, number);
                return Ok(());
            }
            Mode::After(sql) => {
                server.pass(&Message::sql(sql))?;
                answer = Some(server.ask(&request, number)?);
            }
            Mode::Twice(which) => {
                let (first, second) = (server.ask(&request, number)?, server.ask(&request, number)?);
                answer = Some(if which == Answer::First { first } else { second });
            }
        }
        if let Some(mut answer) = answer
            && !is_mute
        {
            if shift != 0 {
                answer.shift_date(shift);
            }
            client.write(&answer)?;
            if answer.is_last {
                return Ok(());
            }
        }
    }
}

/// Delivers it on a connection of its own, which no fault on the client's connection ends.
fn deliver_late(inner: &Arc<Inner>, wire: Wire, request: Message, number: u64, time: Duration) {
    inner.thread("late", move |inner| {
        if inner.wait_late(time) {
            // Nobody waits for the outcome.
            let _ = Server { inner, wire, client: None, peer: None }.ask(&request, number);
        }
    });
}

/// The same, when the test calls [`Proxy::deliver`].
fn hold(inner: &Arc<Inner>, wire: Wire, request: Message, number: u64) {
    let place = inner.hold();
    inner.thread("held", move |inner| {
        if inner.wait_held(place) && (Server { inner, wire, client: None, peer: None }).ask(&request, number).is_ok() {
            inner.lock().held.answered += 1;
            inner.changed.notify_all();
        }
    });
}

/// The connection to the server, which stays open from one request to the next.
struct Server<'a> {
    inner: &'a Inner,
    wire: Wire,
    client: Option<u64>,
    peer: Option<(u64, Peer)>,
}

impl Server<'_> {
    fn ask(&mut self, request: &Message, number: u64) -> io::Result<Message> {
        self.write(request)?;
        self.inner.note(number, |request| request.sent += 1);
        let answer = self.answer()?;
        self.inner.note(number, |request| request.answered += 1);
        Ok(answer)
    }

    /// The same for a message that does not count as a request.
    fn pass(&mut self, message: &Message) -> io::Result<Message> {
        self.write(message)?;
        self.answer()
    }

    /// Passes on the notifications of a listening session, until the client has something to say.
    fn pass_told(&mut self, client: &mut Peer) -> io::Result<()> {
        let Some((_, peer)) = &mut self.peer else { return Ok(()) };
        while let Some(told) = peer.told_before(client)? {
            client.write(&told)?;
        }
        Ok(())
    }

    fn write(&mut self, request: &Message) -> io::Result<()> {
        if self.peer.as_ref().is_some_and(|(_, peer)| has_ended(&peer.stream, self.wire)) {
            self.close();
        }
        if self.peer.is_none() {
            let (id, stream) = self.inner.connect(self.client)?;
            let mut peer = Peer::new(stream, self.wire);
            // The first message of a PostgreSQL session begins with its length. Another one needs a new session here
            // first.
            if matches!(self.wire, Wire::Postgres { .. }) && request.body.first() != Some(&0) {
                peer.write(&Message { body: STARTUP.to_vec(), ..Message::default() })?;
                peer.answer()?;
                peer.write(&Message { body: request.prepared.clone(), ..Message::default() })?;
            }
            self.peer = Some((id, peer));
        }
        let Some((_, peer)) = &mut self.peer else { unreachable!("it was just made") };
        peer.write(request)
    }

    fn answer(&mut self) -> io::Result<Message> {
        let Some((_, peer)) = &mut self.peer else { unreachable!("it was asked") };
        peer.answer()
    }

    fn close(&mut self) {
        if let Some((id, _)) = self.peer.take() {
            self.inner.forget(id);
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether the other side has ended this idle connection. A notification for a listening session does not count as an
/// end.
fn has_ended(stream: &TcpStream, wire: Wire) -> bool {
    let mut first = [0];
    let is_idle = match stream.set_nonblocking(true).and_then(|()| stream.peek(&mut first)) {
        Ok(count) => matches!(wire, Wire::Postgres { tells: true }) && count == 1 && first == *b"A",
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    !is_idle || stream.set_nonblocking(false).is_err()
}

impl Inner {
    /// Notes a request. Returns its number, its mode, and by how much the date of its answer moves.
    fn arrived(&self, message: &Message, connection: u64) -> (u64, Mode, i64) {
        let first = message.head.lines().next().unwrap_or_default();
        let target = message.header("x-amz-target").and_then(|target| target.split('.').next_back());
        let mut state = self.lock();
        state.count += 1;
        let request = Request {
            target: target.unwrap_or(first).to_owned(),
            head: message.head.clone(),
            body: String::from_utf8_lossy(&[&message.body[..], &message.prepared].concat()).into_owned(),
            sent: 0,
            answered: 0,
            number: state.count,
        };
        let rule = state.rules.iter_mut().find_map(|rule| rule.takes(&request).then_some(rule.mode));
        if state.kept.len() == KEPT {
            state.kept.pop_front();
        }
        state.kept.push_back(request);
        self.changed.notify_all();
        let of_connection = state.shifted.get(&connection).copied().unwrap_or_default();
        let shift = state.date_shift + of_connection;
        let is_skewed = state.checks_signing && message.is_skewed(shift);
        (state.count, if is_skewed { Mode::Skewed } else { rule.unwrap_or(Mode::Pass) }, shift)
    }

    fn note(&self, number: u64, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.lock().kept.iter_mut().rev().find(|request| request.number == number) {
            change(request);
        }
        self.changed.notify_all();
    }
}
