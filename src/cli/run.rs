//! `run`: a command while a lock is held.

use std::cell::Cell;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use leasehold::{CancelToken, ErrorKind, LockClient};
use nix::sys::signal::Signal;
use nix::unistd::getpid;

use crate::args::{Ask, Elect, Global, Patience, Run};
use crate::exec::prepared;
use crate::failure::{Failure, Outcome, code};
use crate::held::{Held, Wanted};
use crate::hold::{End, Holding};
use crate::job::Job;
use crate::show::{is_stderr_a_terminal, say};
use crate::signals::{self, spare_us_ttou};
use crate::store::{self, Missing};
use crate::terminal::Terminal;
use crate::wait::{Shows, connect, wait};

pub fn run(global: &Global, args: &Run) -> Outcome {
    let wait = args.patience.wait().or(args.every.is_some().then_some(Duration::ZERO));
    let until = until(wait);
    let session = Session::start(global, &args.ask, until)?;
    let wanted =
        Wanted { shared: args.shared, max_holders: args.max_holders, at_least: args.hold_at_least, ..session.wanted() };
    let held = match session.wait(wanted, args.keys.get(), until) {
        Err(failure) => return refused(failure, global, &args.patience, args.every.is_some()),
        Ok(held) => held,
    };
    if args.every.is_some() {
        // Where the store has no place for it, that must not be found out when the work is done. So short a time has passed
        // already, and only is checked.
        held.stand(Duration::from_nanos(1))?;
    }
    match session.hold(&args.command, held, args.every)? {
        End::Command(code) => Ok(code),
        End::Lost(_) => Err(Failure::Silent(code::LOST)),
    }
}

/// When a wait that begins now is over.
fn until(wait: Option<Duration>) -> Option<Instant> {
    wait.and_then(|wait| Instant::now().checked_add(wait))
}

/// A wait that ended without the lock.
fn refused(failure: Failure, global: &Global, patience: &Patience, is_periodic: bool) -> Outcome {
    let error = match failure {
        Failure::Library(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::AlreadyHeld) => error,
        other => return Err(other),
    };
    let code = patience.conflict_exit_code.unwrap_or(if is_periodic { code::NOT_DUE } else { code::CONFLICT });
    match is_periodic {
        // Not worth a mail of cron's.
        _ if global.quiet && code == 0 => Ok(0),
        true => Err(Failure::NotDue(code, error)),
        false => Err(Failure::Conflict(code, error)),
    }
}

/// `elect`: a leadership is a lock whose key is the election's name.
pub fn elect(global: &Global, args: &Elect) -> Outcome {
    let mut ask = args.ask.clone();
    ask.owner = args.id.clone().or(ask.owner);
    let mut until_then = until(args.patience.wait());
    let session = Session::start(global, &ask, until_then)?;
    loop {
        let held = match session.wait(session.wanted(), vec![args.name.get().to_owned()], until_then) {
            Err(failure) => return refused(failure, global, &args.patience, false),
            Ok(held) => held,
        };
        match session.hold(&args.command, held, None)? {
            End::Command(code) => return Ok(code),
            End::Lost(Some(signal)) => return Err(Failure::Silent(code::SIGNAL + signal as u8)),
            End::Lost(None) => until_then = until(args.patience.wait()),
        }
    }
}

/// A client, and what this process is told, while it waits and holds.
struct Session<'a> {
    ask: &'a Ask,
    url: String,
    shows: Shows,
    json: bool,
    /// The last release was not answered, and nobody waits for it any more.
    is_unanswered: Cell<bool>,
    client: LockClient,
    signals: Receiver<Signal>,
}

impl Drop for Session<'_> {
    /// What is released in the background shall be done before this process ends.
    fn drop(&mut self) {
        if !self.is_unanswered.get() {
            let _ = self.client.close();
        }
    }
}

impl<'a> Session<'a> {
    /// `until`: when it is too late to connect.
    fn start(global: &Global, ask: &'a Ask, until: Option<Instant>) -> Outcome<Session<'a>> {
        // Before any thread is started, which inherits it.
        spare_us_ttou().map_err(internal)?;
        let url = store::url(global, Missing::Made)?;
        let signals = signals::watch().map_err(internal)?;
        let shows = Shows { words: !global.quiet, line: !global.quiet && !global.json && is_stderr_a_terminal() };
        let wanted = (global.clone(), ask.clone());
        let client = connect(move || store::holding(&wanted.0, &wanted.1), until, &signals, shows)?;
        Ok(Session { ask, url, shows, json: global.json, is_unanswered: Cell::new(false), client, signals })
    }

    fn wanted(&self) -> Wanted {
        Wanted { comment: self.ask.comment.clone(), max_hold: self.ask.max_hold, ..Wanted::default() }
    }

    fn wait(&self, wanted: Wanted, keys: Vec<String>, until: Option<Instant>) -> Outcome<Held> {
        // What was not answered before this wait says nothing of what it may leave behind.
        self.is_unanswered.set(false);
        let client = self.client.clone();
        let lock = move |cancel: &CancelToken, told| wanted.lock(&client, &keys, until, cancel, told);
        wait(lock, &self.signals, self.shows)
    }

    /// Runs the command while the locks are held, then releases them. Once it succeeded they stand until it is due again.
    fn hold(&self, command: &[OsString], held: Held, every: Option<Duration>) -> Outcome<End> {
        let terminal = Terminal::open();
        let foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
        let mut prepared = prepared(getpid(), foreground, self.json, command);
        prepared.envs(held.environment());
        let (name, value) = store::passed_on(self.url.clone());
        prepared.env_remove("LEASEHOLD_STORE").env_remove(store::WITHHELD).env(name, value);
        // This process may have stood still since the lock was granted.
        if let Err(error) = held.ensure_held() {
            say(&error.to_string());
            return Ok(End::Lost(None));
        }
        let job = Job::start(prepared, terminal).map_err(|error| {
            let message = format!("{:?} cannot be started: {error}", command.first().cloned().unwrap_or_default());
            Failure::Own(code::CANNOT_RUN, message)
        })?;
        let mut holding = Holding::new(self.ask, held, job);
        holding.go_on(&self.signals);
        let (end, is_unanswered) = holding.end(every)?;
        self.is_unanswered.set(is_unanswered);
        Ok(end)
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::Own(code::INTERNAL, error.to_string())
}
