//! `run`: a command while a lock is held.

use std::ffi::OsString;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crossbeam_channel::{after, never, select};
use leasehold::{CancelToken, ErrorKind};

use crate::args::{Elect, Global, Run};
use crate::asked::{Ask, Patience};
use crate::beside::Environment;
use crate::failure::{Failure, HELD, NOT_DUE, NOT_IN_TIME, Outcome, code};
use crate::give_back::TOLD;
use crate::health::Checks;
use crate::held::{Held, Wanted};
use crate::hold::{End, Holding};
use crate::job::Job;
use crate::killing::Killing;
use crate::processes::{INHERITED, children};
use crate::session::Session;
use crate::signals::{Hangup, Interrupts};
use crate::terminal::Terminal;
use crate::wait::by_signal;
use crate::warnings::tell;
use crate::{stops, store};

/// How long others may go first after a term that did not end by a loss: longer than the pause of a waiter.
const OTHERS_FIRST: Duration = Duration::from_secs(2);

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
    can_be_told(&wanted.keys)?;
    let session = start(global, &args.ask, wanted.until, Hangup::Ends)?;
    let held = match session.wait(wanted) {
        Err(failure) => return refused(failure, global, &args.patience, args.every.is_some()),
        Ok(held) => held,
    };
    if args.every.is_some() {
        // A store that cannot keep a minimum hold must be found out before the work is done. This minimum has passed
        // already, so the call only checks that.
        held.stand(Duration::from_nanos(1), &CancelToken::new(), None)?;
    }
    let work = Work { ask: &args.ask, checks: &args.checks, command: &args.command, every: args.every };
    match hold(&session, global, &work, held)? {
        End::Command(code) => Ok(code),
        End::Lost(_, lost) | End::Deposed(_, lost) => Err(Failure::Lost(lost)),
        End::Unhealthy(_) => Err(Failure::unhealthy()),
    }
}

/// Whether all of these keys fit into the command's environment. The system would refuse them only once they are held.
fn can_be_told(keys: &[String]) -> Outcome<()> {
    // Each with the end of line between two; a token has up to 20 digits.
    let keys_take = keys.iter().map(|key| key.len() + 1).sum::<usize>();
    for (name, are, take, right) in [
        ("LEASEHOLD_KEY", "are", keys_take, "give fewer or shorter ones"),
        ("LEASEHOLD_TOKEN", "may be", keys.len() * 21, "give fewer"),
    ] {
        // Linux takes 128 KiB for each text, with its name and its end.
        let (length, most) = (take.saturating_sub(1), (128 << 10) - name.len() - 2);
        if cfg!(target_os = "linux") && length > most {
            return Err(Failure::usage(format!(
                "the {} keys {are} too long for {name}, which names them all to the command: they take up to {length} \
                 bytes there, and Linux allows at most {most}; {right}",
                keys.len()
            )));
        }
    }
    Ok(())
}

/// When a wait that begins now is over.
pub fn until(wait: Option<Duration>) -> Option<Instant> {
    wait.and_then(|wait| Instant::now().checked_add(wait))
}

/// What a wait that ended without the lock means.
pub fn refused(failure: Failure, global: &Global, patience: &Patience, is_periodic: bool) -> Outcome {
    let error = match failure {
        Failure::Library(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::AlreadyHeld) => error,
        other => return Err(other),
    };
    // If nobody holds the lock, the command may be due: the store was too slow, or the wait was for another key.
    let is_not_due = is_periodic && !error.holders().is_empty();
    let usual = if is_not_due { code::NOT_DUE } else { code::CONFLICT };
    let code = patience.conflict_exit_code.filter(|_| is_not_due || !is_periodic).unwrap_or(usual);
    let what = match patience.wait() {
        // No message, because cron would send a mail with it.
        _ if global.quiet && code == 0 => return Ok(0),
        _ if is_not_due => NOT_DUE,
        Some(Duration::ZERO) => HELD,
        _ => NOT_IN_TIME,
    };
    Err(Failure::Refused(code, what, error))
}

/// `elect`: a leadership is a lock whose key is the election's name.
pub fn elect(global: &Global, args: &Elect) -> Outcome {
    let mut ask = args.ask.clone();
    ask.labels.owner = args.id.clone().or(ask.labels.owner);
    let mut until_then = until(args.patience.wait());
    let session = start(global, &ask, until_then, Hangup::reloads(!global.quiet))?;
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
        let work = Work { ask: &ask, checks: &args.checks, command: &args.command, every: None };
        match hold(&session, global, &work, held)? {
            End::Command(code) => return Ok(code),
            End::Lost(Some(signal), _) | End::Deposed(Some(signal), _) | End::Unhealthy(Some(signal)) => {
                return Err(by_signal(signal));
            }
            End::Lost(None, _) => {}
            // As the library's election does when a leader resigns by itself.
            End::Deposed(None, _) | End::Unhealthy(None) => let_others_go_first(&session.interrupts)?,
        }
        until_then = until(args.patience.wait());
    }
}

fn let_others_go_first(interrupts: &Interrupts) -> Outcome<()> {
    let over = after(OTHERS_FIRST);
    loop {
        select! {
            recv(over) -> _ => return Ok(()),
            recv(interrupts.signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| interrupts.end_wait(*signal)) {
                return Err(by_signal(signal));
            },
        }
    }
}

fn start(global: &Global, ask: &Ask, until: Option<Instant>, hangup: Hangup) -> Outcome<Session> {
    // Before this process starts any children.
    *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = children().unwrap_or_default();
    let (of_all, ask) = (global.clone(), ask.clone());
    Session::start(global, move || store::holding(&of_all, &ask), until, hangup, || Ok(never()))
}

/// The command to run, and how.
struct Work<'a> {
    ask: &'a Ask,
    checks: &'a Checks,
    command: &'a [OsString],
    /// After the command has succeeded, the locks stay in the store until it is due again.
    every: Option<Duration>,
}

/// Runs the command while the locks are held, then releases them.
fn hold(session: &Session, global: &Global, work: &Work<'_>, held: Held) -> Outcome<End> {
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(|terminal| !terminal.on_demand && terminal.is_ours());
    stops::watch();
    let environment = Environment::of(global, &held)?;
    let cannot = |error: io::Error| {
        // A fault of the command itself is reported by the process that tries to become it.
        let message = format!("{:?} was not started: {error}", work.command.first().cloned().unwrap_or_default());
        Failure::Own(code::INTERNAL, message)
    };
    let prepared = environment.prepared(foreground, work.command).map_err(cannot)?;
    let kill_at = Killing::of(&held).by_keeper(work.ask, work.ask.on_loss.may_kill());
    let mut ended_by = None;
    let job = Job::start(prepared, terminal, kill_at, || {
        ended_by = session.interrupts.ended_wait();
        ended_by.is_none() && held.is_held()
    });
    if let Some(signal) = ended_by {
        return Err(by_signal(signal));
    }
    // This process may have stood still since the lock was granted.
    if let (Err(_), Err(lost)) = (&job, held.ensure_held()) {
        tell(&lost.to_string());
        return Ok(End::lost(None, held.if_lost(None, TOLD)));
    }
    let job = job.map_err(cannot)?;
    let mut holding = Holding::new(work.ask, work.checks, held, job, &environment);
    holding.go_on(&session.interrupts.signals);
    let (end, is_unanswered) = holding.end(work.every, &session.interrupts.signals)?;
    session.is_unanswered.set(is_unanswered);
    Ok(end)
}

#[cfg(test)]
mod tests {
    use leasehold::LockClient;

    use super::*;

    /// If the store was only too slow, or the wait was for another key, the work may be due.
    #[test]
    fn it_is_said_to_be_not_due_only_where_somebody_holds_it() {
        let client = LockClient::connect("memory:not-due").unwrap();
        let _held = client.lock("held").unwrap();
        let rival = LockClient::connect("memory:not-due").unwrap();
        // It tries once, however long that takes.
        let held = rival.request("held").wait(Duration::ZERO).lock().map(drop).unwrap_err();
        let unfit = rival.election("free").health_check(|| false).build().unwrap();
        let unknown = unfit.campaign_for(Duration::from_millis(1)).map(drop).unwrap_err();
        assert_eq!((held.holders().len(), unknown.holders().len(), unknown.kind()), (1, 0, ErrorKind::TimedOut));
        let global = Global { store: None, json: false, quiet: true, verbose: 0 };
        for (error, is_periodic, asked, right) in [
            (&held, true, None, Some(code::NOT_DUE)),
            (&held, true, Some(0), None),
            (&held, false, None, Some(code::CONFLICT)),
            (&unknown, true, None, Some(code::CONFLICT)),
            (&unknown, true, Some(0), Some(code::CONFLICT)),
            (&unknown, false, Some(0), None),
        ] {
            let patience = Patience { wait: None, once: false, conflict_exit_code: asked };
            let told = refused(Failure::Library(error.clone()), &global, &patience, is_periodic);
            assert_eq!(told.err().map(|failure| failure.code()), right, "{error} {is_periodic} {asked:?}");
        }
    }
}
