//! Sends one statement: on the driver's thread, over one of a few connections, within its deadline; and reports what
//! became of it.
//!
//! A connection carries one statement at a time. If the caller leaves its statement, the connection is closed, so that
//! nothing queues behind it.

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

/// How many statements that their callers have left are cancelled at a time.
const CANCELS: usize = 8;
/// How long making a connection may take.
const CONNECTION: Duration = Duration::from_secs(3);
/// The time between two tries to connect to a server that is waking up.
const AGAIN: Duration = Duration::from_millis(200);
/// A network that brings no answer for this long may be dead.
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
    /// The idle connections, and since when each is idle.
    idle: RefCell<Vec<(Instant, Connected)>>,
    pub making: super::making::Making,
    pub waking: super::wakeup::Waking,
}

/// What is known of the servers.
#[derive(Default)]
struct Known {
    /// There was a connection once.
    has_worked: Cell<bool>,
    /// The host to try first: the one that worked last, or the one after a host that did not answer.
    first: Cell<usize>,
    /// A host did not answer once.
    was_silent: Cell<bool>,
    /// A host refused this client once, for good.
    was_refused: Cell<bool>,
    /// When the server last answered anything.
    heard: Cell<Option<Instant>>,
    /// Of the statements that were left since the server last answered, each sent soon after the one before was left:
    /// when the first was sent, and when the last was left.
    unheard: Cell<Option<(Instant, Instant)>>,
    /// The log has said that notifications can't be sent.
    said_full: Cell<bool>,
}

/// How far a statement came, for a caller whose time is over.
#[derive(Debug, Default)]
pub(super) struct Went {
    /// It may have left this host.
    sent: AtomicBool,
    /// The error that names what it waits for, if that is not a connection.
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
                // A server that stood still, or is only waking up, may be ready for the next try.
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

    /// Makes a connection. `asked` is set to the host that is being tried, and `hear` is called for each notification.
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
            // The last host gets all the time that the others have left: it may be the primary, and only slow.
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
            connected.goes_direct();
        }
        Ok((connected, server))
    }

    /// The host that the next connection tries first.
    pub fn first_host(&self) -> usize {
        self.known.first.get()
    }

    /// This host does not answer, or the caller that waits for it has no more time: the next connection tries another
    /// host first.
    pub fn turn_from(&self, host: usize) {
        if self.known.first.get() == host {
            self.known.first.set((host + 1) % self.hosts.len());
        }
    }

    /// Notes that the server has answered.
    fn hears(&self) {
        self.known.heard.set(Some(Instant::now()));
        self.known.unheard.set(None);
    }

    /// Puts a connection among the idle ones.
    pub fn keep(&self, connected: Connected) {
        rest(&mut self.idle.borrow_mut(), connected, Instant::now());
    }

    pub fn spare(&self) -> Option<Connected> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|(_, connected)| !connected.client.is_closed());
        idle.pop().map(|(_, connected)| connected)
    }

    /// Runs one statement. `went` notes it as sent before it can leave.
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
                    // The statement did nothing.
                    went.sent.store(false, Ordering::SeqCst);
                }
                drop(brief);
                // Gives the turn of the row back during the next wait: heartbeats of the same key may find their row
                // free.
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
        // The limit also applies to the one lock of the cluster that a commit with a notification takes. Without
        // notifications, waiters poll, as they do behind a pooler anyway.
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

    /// Runs `sql` with the values of `statement`.
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
        // Nothing was written: the queue of notifications is full, since some session that listens does not read them.
        // So the statement is sent without its notification.
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
        // The server is not the primary any more, or ends its sessions: a new connection may find the server that is
        // the primary now.
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

/// A try to connect to a host. If the host does not answer, or the caller has no more time, the next connection tries
/// another host first.
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

/// A statement under way. If its caller leaves it, its connection is closed, and it is cancelled unless a pooler was
/// noticed: a server would not notice that the connection is closed while the statement waits for a row, and the wait
/// for a standby has no end. If the server has answered nothing since this statement, or those left before it, were
/// sent, and that is [`QUIET`] ago, the idle connections are closed as well: the network may be dead.
struct Asking<'a> {
    owned: &'a Owned,
    connected: Option<Connected>,
    sent: Instant,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let Some(connected) = self.connected.take() else { return };
        if self.owned.known.heard.get() < Some(self.sent) {
            // Each heartbeat of a short lease has less time than that, so those that follow soon after each other count
            // together. What was left long before says nothing about now.
            let unheard = self.owned.known.unheard.get().filter(|(_, last)| self.sent.duration_since(*last) < QUIET);
            let since = unheard.map_or(self.sent, |(since, _)| since.min(self.sent));
            self.owned.known.unheard.set(Some((since, Instant::now())));
            if since.elapsed() >= QUIET {
                self.owned.idle.borrow_mut().clear();
            }
        }
        // A pooler that was noticed, also without being named in the options (PgBouncer), finds the statement to cancel
        // by this connection, which is gone then. And if it is not gone, PgBouncer 1.18 ends with a fatal error, since
        // the driver does not wait for the end of the cancelling connection. pgagroal, if the options name no pooler,
        // is not noticed: it shows the server's own process, which may serve another client when the cancel comes.
        if !connected.is_direct.get() {
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

    /// Does a write whose answer is the row as it is afterwards. There may be no row.
    pub(super) fn write(
        &self,
        by: &Deadline,
        lane: Lane,
        key: &str,
        statement: Statement,
    ) -> Result<Wrote<Option<Found>>, PostgresError> {
        let (asked, sent) = (key.to_owned(), Instant::now());
        // If the row was written and can't be read, the answer must not be that nothing was written.
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

    /// The time after which a copy of a statement that is sent now does nothing. For a heartbeat that is the deadline
    /// of its caller, if that is earlier: the holder may be gone then.
    pub(super) fn not_after(&self, lane: Lane, by: &Deadline) -> Micros {
        let is_heartbeat = matches!(lane, Lane::Holding | Lane::Sharing);
        let by = if is_heartbeat { by.clone().within(LATE) } else { Deadline::after(LATE) };
        Micros::of(self.clocked.not_after(&by))
    }
}
