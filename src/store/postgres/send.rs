//! One statement at a time: on the driver's thread, over one of a few connections, within its deadline, and what became
//! of it.
//!
//! Each goes alone on its connection. A statement that its caller has left goes with its connection, so that nothing queues
//! behind it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_postgres::{Config, Error as DriverError, Row as Answer};

use super::error::{Own, PostgresError, Stage};
use super::open::{self, Table};
use super::read::only;
use super::row::{Found, LATE, Micros};
pub(super) use super::session::Connected;
use super::session::rest;
pub(super) use super::statements::Statement;
use super::statements::{BRIEF, BRIEFLY_SHARING, briefly, patiently, untold};
use super::tls::Tls;
pub(super) use super::turns::Lane;
use super::turns::{Soon, Turns};
use super::{Postgres, direct};
use crate::store::failure::{Cause, Fate, Left};
use crate::sys::deadline::{Deadline, far_from};
use crate::sys::log;

/// How many statements that were left are cancelled at a time.
const CANCELS: usize = 8;
/// How long making a connection may take.
const CONNECTION: Duration = Duration::from_secs(3);
/// The time between two tries of a server that wakes up.
const AGAIN: Duration = Duration::from_millis(200);
/// A network that says nothing for so long may be dead.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// What lives on the driver's thread.
pub(super) struct Owned {
    /// One for each host.
    hosts: Vec<Config>,
    known: Known,
    tls: Tls,
    table: Table,
    pub turns: Turns,
    pooled: bool,
    cancels: Arc<Semaphore>,
    /// Since when each is.
    idle: RefCell<Vec<(Instant, Connected)>>,
    pub making: super::making::Making,
    pub waking: super::wakeup::Waking,
}

/// What is known of the servers.
#[derive(Default)]
struct Known {
    /// There was a connection once.
    has_worked: Cell<bool>,
    /// The host to begin with: the one that worked last, or the one after that which said nothing.
    first: Cell<usize>,
    /// One said nothing once.
    was_silent: Cell<bool>,
    /// One refused its caller for good.
    was_refused: Cell<bool>,
    /// When the server last answered anything.
    heard: Cell<Option<Instant>>,
    /// The first and the last statement that were left, one soon after the other, since it answered.
    unheard: Cell<Option<(Instant, Instant)>>,
    /// It was said that notifications can't be told.
    said_full: Cell<bool>,
}

/// How far a statement came, for a caller whose time is over.
#[derive(Debug, Default)]
pub(super) struct Went {
    /// It may have left.
    sent: AtomicBool,
    /// What it waits for, where that is no connection.
    held_up: Mutex<Option<PostgresError>>,
}

/// How a write went.
#[derive(Debug)]
pub(super) enum Wrote<T> {
    /// The server did it, or decided not to.
    Answered(T),
    /// Somebody else wrote the row at the same time.
    Duplicate,
    /// It may or may not be written.
    Unknown(PostgresError),
}

impl Owned {
    /// Makes the first connection, for which there is `limit`: the request timeout.
    pub async fn new(
        hosts: Vec<Config>,
        tls: Tls,
        table: Table,
        pooled: bool,
        limit: Duration,
    ) -> Result<(Owned, open::Server), PostgresError> {
        let owned = Owned {
            hosts,
            known: Known::default(),
            tls,
            table,
            turns: Turns::new(),
            pooled,
            cancels: Arc::new(Semaphore::new(CANCELS)),
            idle: RefCell::default(),
            making: super::making::Making::default(),
            waking: super::wakeup::Waking::default(),
        };
        let until = far_from(Instant::now(), limit - limit / 20);
        let (mut failed, known) = (None, &owned.known);
        let (first, server) = loop {
            let left = until.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, owned.connect(&Cell::default(), |_| {})).await {
                Ok(Ok(made)) => break made,
                // One that stood still, or only wakes up, may be ready for the next one.
                Ok(Err((_, error))) if known.was_silent.get() && !known.was_refused.get() => {
                    failed = Some(error);
                    tokio::time::sleep(AGAIN).await;
                }
                Ok(Err((_, error))) => return Err(error),
                Err(_) => return Err(failed.unwrap_or_else(|| PostgresError::unmade(limit))),
            }
        };
        owned.keep(first);
        Ok((owned, server))
    }

    /// Makes a connection. `asked` is the host that it waits for, and `hear` is called for each notification.
    pub async fn connect(
        &self,
        asked: &Cell<Option<usize>>,
        hear: impl Fn(&str) + 'static,
    ) -> Result<(Connected, open::Server), (Fate, PostgresError)> {
        let (first, hear) = (self.known.first.get(), Rc::new(hear));
        let share = CONNECTION / u32::try_from(self.hosts.len()).unwrap_or(u32::MAX).max(1);
        let mut failed = None;
        let until = Instant::now() + CONNECTION;
        for at in 0..self.hosts.len() {
            // One that is only slow, as the primary may be, gets all that the others leave, once it is the last.
            let is_last = at + 1 == self.hosts.len();
            let share = if is_last { until.saturating_duration_since(Instant::now()) } else { share };
            let host = (first + at) % self.hosts.len();
            let mut trying = Trying { owned: self, host, is_over: false };
            asked.set(Some(host));
            let hear = hear.clone();
            let made = tokio::time::timeout(share, self.make(&self.hosts[host], move |told| hear(told))).await;
            trying.is_over = made.is_ok();
            let error = match made {
                Ok(Ok(made)) => {
                    self.known.first.set(host);
                    self.known.has_worked.set(true);
                    self.hears();
                    return Ok(made);
                }
                Ok(Err(error)) if self.known.has_worked.get() => PostgresError::for_now(error),
                Ok(Err(error)) => {
                    self.known.was_refused.set(self.known.was_refused.get() || !error.1.may_pass());
                    error
                }
                Err(_) => {
                    self.known.was_silent.set(true);
                    (Fate::NotDone, PostgresError::unmade(share))
                }
            };
            failed = Some(match failed {
                None => error,
                Some(before) => PostgresError::of_hosts(before, error),
            });
        }
        Err(failed.unwrap_or((Fate::NotDone, PostgresError::NotSent)))
    }

    async fn make(
        &self,
        host: &Config,
        hear: impl Fn(&str) + 'static,
    ) -> Result<(Connected, open::Server), (Fate, PostgresError)> {
        let failed = |error| PostgresError::classify(&error, Stage::Connecting, &self.table.name);
        let (client, connection) = self.tls.connect(host).await.map_err(|error| {
            let of_tls = self.tls.classify(&error, host, &open::addresses(host));
            of_tls.unwrap_or_else(|| failed(error))
        })?;
        let process = if self.pooled { None } else { direct::process(&client).await };
        let connected = Connected::new(client, connection, hear);
        let said =
            connected.client.simple_query(&open::session(&self.table, self.pooled, process)).await.map_err(failed)?;
        let server = open::Server::of(&said).map_err(|error| (Fate::Refused, error))?;
        if server.is_direct {
            connected.keeps_statements();
        }
        Ok((connected, server))
    }

    /// The host that a connection begins with now.
    pub fn first_host(&self) -> usize {
        self.known.first.get()
    }

    /// This host says nothing, or who waits for it has no more time: the next connection begins with another one.
    pub fn turn_from(&self, host: usize) {
        if self.known.first.get() == host {
            self.known.first.set((host + 1) % self.hosts.len());
        }
    }

    /// The server has answered.
    fn hears(&self) {
        self.known.heard.set(Some(Instant::now()));
        self.known.unheard.set(None);
    }

    /// Puts it to those that are idle.
    pub fn keep(&self, connected: Connected) {
        rest(&mut self.idle.borrow_mut(), connected, Instant::now());
    }

    pub fn spare(&self) -> Option<Connected> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|(_, connected)| !connected.client.is_closed());
        idle.pop().map(|(_, connected)| connected)
    }

    /// Does one statement. It is noted as sent before it may leave.
    pub async fn ask(
        self: &Rc<Self>,
        lane: Lane,
        statement: &Statement,
        went: &Went,
    ) -> Result<Vec<Answer>, (Fate, PostgresError)> {
        let may_wait = matches!(lane, Lane::Waiting | Lane::Sharing);
        let key = statement.row.as_deref().filter(|_| may_wait || lane == Lane::Wanting);
        let mut row = None;
        if let Some(key) = key {
            *went.held_up.lock() = Some(PostgresError::Own(Own::Behind, None));
            row = Some(self.turns.of_row(key, lane).await);
            *went.held_up.lock() = None;
        }
        let soon = if may_wait { Some(self.turns.soon(lane).await) } else { None };
        let _turn = match soon {
            None => self.turns.of(lane).await,
            Some(Soon::Long(long)) => long,
            Some(Soon::Brief(brief)) => {
                let millis = if lane == Lane::Sharing { BRIEFLY_SHARING } else { BRIEF };
                if let Some(briefly) = briefly(&statement.sql, millis) {
                    match self.ask_now(&briefly, statement, &went.sent).await {
                        Err((_, locked @ PostgresError::Own(Own::Locked, _))) => *went.held_up.lock() = Some(locked),
                        answer => return answer,
                    }
                    // Nothing was done.
                    went.sent.store(false, Ordering::SeqCst);
                }
                drop(brief);
                // Until there is a turn, heartbeats of the same key may find their row free.
                drop(row.take());
                let turn = self.turns.of(lane).await;
                if let Some(key) = key {
                    row = Some(self.turns.of_row(key, lane).await);
                }
                turn
            }
        };
        let _row = row;
        let patient = key.filter(|_| lane == Lane::Sharing).map(|_| patiently(&statement.sql));
        let answer = self.ask_now(patient.as_deref().unwrap_or(&statement.sql), statement, &went.sent).await;
        // The limit bounds the one lock of the cluster, too, that a commit takes which tells. Waiters poll here anyway.
        if self.pooled
            && lane == Lane::Waiting
            && matches!(answer, Err((_, PostgresError::Own(Own::Locked, _))))
            && let Some(untold) = untold(&statement.sql)
        {
            went.sent.store(false, Ordering::SeqCst);
            return self.ask_now(&untold, statement, &went.sent).await;
        }
        answer
    }

    /// Does this, with the values of that statement.
    async fn ask_now(
        self: &Rc<Self>,
        sql: &str,
        statement: &Statement,
        sent: &AtomicBool,
    ) -> Result<Vec<Answer>, (Fate, PostgresError)> {
        let connected = self.connection().await?;
        let values: Vec<_> = statement.values.iter().map(|(value, kind)| (&**value as _, kind.clone())).collect();
        sent.store(true, Ordering::SeqCst);
        let mut asking = Asking { owned: self, connected: Some(connected), sent: Instant::now() };
        let Some(connected) = &asking.connected else { return Err((Fate::NotDone, PostgresError::NotSent)) };
        connected.unreplicated.set(false);
        let lasting = Some(&statement.sql).filter(|lasting| statement.lasts && std::ptr::eq::<str>(sql, &***lasting));
        let mut answer = connected.query(sql, lasting, &values).await;
        // Nothing was written, since a session elsewhere that listens does not read what it is told.
        if let Err(error) = &answer
            && PostgresError::is_untellable(error)
            && let Some(untold) = untold(sql)
        {
            if !self.known.said_full.replace(true) {
                log::warn!(target: "leasehold::postgres", table:% = self.table.name; "waiters are not told: {}", Cause::of(error));
            }
            answer = connected.client.query_typed(&untold, &values).await;
        }
        let unreplicated = connected.unreplicated.take();
        if let Some(connected) = asking.connected.take().filter(|connected| !connected.client.is_closed()) {
            self.hears();
            self.keep(connected);
        }
        // It is the primary no more: a new connection may find the one that is.
        if let Err(error) = &answer
            && error.code().is_some_and(|code| code.code() == "25006" || code.code().starts_with("57P0"))
        {
            self.idle.borrow_mut().clear();
            self.making.end();
            self.waking.end();
        }
        match answer {
            Ok(_) if unreplicated => Err((Fate::Unknown, PostgresError::unreplicated())),
            Ok(rows) => Ok(rows),
            Err(error) => Err(self.classify(&error)),
        }
    }

    pub fn classify(&self, error: &DriverError) -> (Fate, PostgresError) {
        PostgresError::classify(error, Stage::Sent, &self.table.name)
    }
}

/// A host that is asked for a connection. Where it says nothing, or its caller has no more time, the next begins with
/// another one.
struct Trying<'a> {
    owned: &'a Owned,
    host: usize,
    is_over: bool,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.owned.turn_from(self.host);
        }
    }
}

/// A statement under way. Where its caller leaves it, it is cancelled and its connection ends: the server would not
/// notice that while it waits for a row, and for a standby it waits without end. The idle ones end, too, if the server has
/// answered nobody since it or those before it were sent, and that for long: the network may be dead.
struct Asking<'a> {
    owned: &'a Owned,
    connected: Option<Connected>,
    sent: Instant,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let Some(connected) = self.connected.take() else { return };
        if self.owned.known.heard.get() < Some(self.sent) {
            // The heartbeats of a short lease have less time each. What was left long before says nothing of now.
            let unheard = self.owned.known.unheard.get().filter(|(_, last)| self.sent.duration_since(*last) < QUIET);
            let since = unheard.map_or(self.sent, |(since, _)| since.min(self.sent));
            self.owned.known.unheard.set(Some((since, Instant::now())));
            if since.elapsed() >= QUIET {
                self.owned.idle.borrow_mut().clear();
            }
        }
        // A pooler finds what is to be cancelled by this connection, which is gone then. And where it is not, PgBouncer 1.18
        // ends with a fatal error, since the driver does not wait for the end of the cancelling connection.
        if self.owned.pooled {
            return;
        }
        let Ok(turn) = self.owned.cancels.clone().try_acquire_owned() else { return };
        let (cancel, tls) = (connected.client.cancel_token(), self.owned.tls.clone());
        tokio::task::spawn_local(async move {
            let _turn = turn;
            let _ = tokio::time::timeout(CONNECTION, tls.cancel(&cancel)).await;
        });
    }
}

impl Postgres {
    /// Does one statement, and reads its rows with `read` on the driver's thread. The error says whether it may have
    /// happened.
    pub(super) fn send<T: Send + 'static>(
        &self,
        by: &Deadline,
        lane: Lane,
        statement: Statement,
        read: impl Fn(&Answer) -> T + Send + 'static,
    ) -> Result<Vec<T>, (Fate, PostgresError)> {
        if by.is_over() {
            return Err((Fate::NotDone, PostgresError::NotSent));
        }
        let started = Instant::now();
        let went = Arc::<Went>::default();
        let theirs = went.clone();
        let (stopped, is_gone) = match self.driver.run_heard(by, move |owned| async move {
            let rows = owned.ask(lane, &statement, &theirs).await;
            rows.map(|rows| rows.iter().map(read).collect())
        }) {
            Ok(answer) => return answer,
            Err(stopped) => stopped,
        };
        let left = if is_gone && !went.sent.load(Ordering::SeqCst) { Left::No } else { Left::Maybe };
        Err(match (PostgresError::stopped(stopped, left, started.elapsed()), went.held_up.lock().take()) {
            ((fate, PostgresError::NotSent), Some(held_up)) => (fate, held_up),
            (stopped, _) => stopped,
        })
    }

    /// Does one statement that writes nothing.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        by: &Deadline,
        lane: Lane,
        statement: Statement,
        read: impl Fn(&Answer) -> T + Send + 'static,
    ) -> Result<Vec<T>, PostgresError> {
        self.send(by, lane, statement, read).map_err(|(_, error)| error.of_read())
    }

    /// Does a write whose answer is the row as it is afterwards. There may be none.
    pub(super) fn write(
        &self,
        by: &Deadline,
        lane: Lane,
        key: &str,
        statement: Statement,
    ) -> Result<Wrote<Option<Found>>, PostgresError> {
        let (asked, sent) = (key.to_owned(), Instant::now());
        // What was written and can't be read is not called undone.
        let read = move |answer: &Answer| {
            let written = answer.try_get::<_, bool>(0).unwrap_or(false);
            (written, Found::read(answer, Some(&asked)).map_err(|(_, wrong)| wrong))
        };
        let rows = match self.send(by, lane, statement.writing(key), read) {
            Ok(rows) => rows,
            Err((Fate::Unknown, error)) => return Ok(Wrote::Unknown(error)),
            Err((Fate::Duplicate, _)) => return Ok(Wrote::Duplicate),
            Err((_, error)) => return Err(error),
        };
        let written = rows.iter().any(|(written, _)| *written);
        let found = match only(rows).and_then(|row| row.map(|(_, row)| row).transpose()) {
            Ok(found) => found,
            Err(wrong) if written => return Ok(Wrote::Unknown(PostgresError::Damaged(wrong))),
            Err(wrong) => return Err(PostgresError::Damaged(wrong)),
        };
        found.iter().for_each(|found| self.clocked.note(found.now.time(), sent));
        Ok(Wrote::Answered(found))
    }

    /// The moment after which a copy of a statement that is sent now does nothing. Of a heartbeat, whose holder may be gone
    /// by then, when nobody waits for it any more.
    pub(super) fn not_after(&self, lane: Lane, by: &Deadline) -> Micros {
        let is_heartbeat = matches!(lane, Lane::Holding | Lane::Sharing);
        let by = if is_heartbeat { by.clone().within(LATE) } else { Deadline::after(LATE) };
        Micros::of(self.clocked.not_after(&by))
    }
}
