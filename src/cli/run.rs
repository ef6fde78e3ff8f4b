//! `run`: a command while a lock is held.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use leasehold::{CancelToken, ErrorKind};
use nix::unistd::getpid;

use crate::args::{Elect, Global, Run};
use crate::asked::{Ask, Patience};
use crate::exec::prepared;
use crate::failure::{Failure, Outcome, code};
use crate::held::{Held, Wanted};
use crate::hold::{End, Holding};
use crate::job::Job;
use crate::session::Session;
use crate::show::say;
use crate::store::{self, Missing};
use crate::terminal::Terminal;

pub fn run(global: &Global, args: &Run) -> Outcome {
    let wait = args.patience.wait().or(args.every.is_some().then_some(Duration::ZERO));
    let wanted = Wanted {
        keys: args.keys.get(),
        labels: args.ask.labels.clone(),
        sharing: args.sharing.clone(),
        max_hold: args.ask.max_hold,
        at_least: args.hold_at_least,
        until: until(wait),
    };
    let session = start(global, &args.ask, wanted.until)?;
    let held = match session.wait(wanted) {
        Err(failure) => return refused(failure, global, &args.patience, args.every.is_some()),
        Ok(held) => held,
    };
    if args.every.is_some() {
        // Where the store has no place for it, that must not be found out when the work is done. So short a time has passed
        // already, and only is checked.
        held.stand(Duration::from_nanos(1), &CancelToken::new(), None)?;
    }
    match hold(&session, global, &args.ask, &args.command, held, args.every)? {
        End::Command(code) => Ok(code),
        End::Lost(_) => Err(Failure::Silent(code::LOST)),
    }
}

/// When a wait that begins now is over.
pub fn until(wait: Option<Duration>) -> Option<Instant> {
    wait.and_then(|wait| Instant::now().checked_add(wait))
}

/// A wait that ended without the lock.
pub fn refused(failure: Failure, global: &Global, patience: &Patience, is_periodic: bool) -> Outcome {
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
    ask.labels.owner = args.id.clone().or(ask.labels.owner);
    let mut until_then = until(args.patience.wait());
    let session = start(global, &ask, until_then)?;
    loop {
        let wanted = Wanted {
            keys: vec![args.name.get().to_owned()],
            labels: ask.labels.clone(),
            max_hold: ask.max_hold,
            until: until_then,
            ..Wanted::default()
        };
        let held = match session.wait(wanted) {
            Err(failure) => return refused(failure, global, &args.patience, false),
            Ok(held) => held,
        };
        match hold(&session, global, &ask, &args.command, held, None)? {
            End::Command(code) => return Ok(code),
            End::Lost(Some(signal)) => return Err(Failure::Silent(code::SIGNAL + signal as u8)),
            End::Lost(None) => until_then = until(args.patience.wait()),
        }
    }
}

fn start(global: &Global, ask: &Ask, until: Option<Instant>) -> Outcome<Session> {
    let (of_all, ask) = (global.clone(), ask.clone());
    Session::start(global, move || store::holding(&of_all, &ask), until, never())
}

/// Runs the command while the locks are held, then releases them. Once it succeeded they stand until it is due again.
fn hold(
    session: &Session,
    global: &Global,
    ask: &Ask,
    command: &[OsString],
    held: Held,
    every: Option<Duration>,
) -> Outcome<End> {
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
    let mut prepared = prepared(getpid(), foreground, global.json, command);
    prepared.envs(held.environment());
    let (name, value) = store::passed_on(store::url(global, Missing::Made)?);
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
    let mut holding = Holding::new(ask, held, job);
    holding.go_on(&session.interrupts.signals);
    let (end, is_unanswered) = holding.end(every, &session.interrupts.signals)?;
    session.is_unanswered.set(is_unanswered);
    Ok(end)
}
