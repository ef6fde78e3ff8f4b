//! `run`: a command while a lock is held.

use std::cell::Cell;
use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, at, never, select};
use leasehold::{Error, ErrorKind, LockClient, LockGuard, LockRequest, Loss};
use nix::sys::signal::Signal;
use nix::unistd::getpid;

use crate::args::{Ask, Elect, Global, OnLoss, Run};
use crate::exec::prepared;
use crate::failure::{Failure, Outcome, code};
use crate::job::Job;
use crate::show::{is_stderr_a_terminal, say};
use crate::signals::{self, ENDING, PASSED_ON, spare_us_ttou};
use crate::store::{self, Missing};
use crate::terminal::Terminal;
use crate::wait::{Shows, connect, wait};
use crate::words::{ours, words};

/// How long after it stopped itself this process goes on all the same: nobody is there who could continue it.
const STOPPED: Duration = Duration::from_millis(200);
/// Looks for what the command left behind, where nobody tells that it ended.
const LEFT_BEHIND: Duration = Duration::from_millis(100);
/// What a release gets at least, for a store that answers again.
const LAST_TRY: Duration = Duration::from_millis(500);
/// The library's watcher tells a loss within a second.
const TOLD: Duration = Duration::from_secs(2);

pub fn run(global: &Global, args: &Run) -> Outcome {
    let wait = args.wait.or(args.once.then_some(Duration::ZERO));
    let until = wait.and_then(|wait| Instant::now().checked_add(wait));
    let session = Session::start(global, &args.ask, args.on_loss, until)?;
    let mut request = session.request(args.key.get());
    if args.shared {
        request = request.shared();
    }
    if let Some(n) = args.max_holders {
        request = request.max_holders(n);
    }
    if let Some(until) = until {
        request = request.wait_until(until);
    }
    let guard = match session.wait(request) {
        Err(Failure::Library(error)) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::AlreadyHeld) => {
            // Not worth a mail of cron's.
            let is_silent = global.quiet && args.conflict_exit_code == 0;
            return if is_silent { Ok(0) } else { Err(Failure::Conflict(args.conflict_exit_code, error)) };
        }
        outcome => outcome?,
    };
    match session.hold(&args.command, guard)? {
        End::Command(code) => Ok(code),
        End::Lost(_) => Err(Failure::Silent(code::LOST)),
    }
}

/// `elect`: a leadership is a lock whose key is the election's name.
pub fn elect(global: &Global, args: &Elect) -> Outcome {
    let session = Session::start(global, &args.ask, OnLoss::Kill, None)?;
    loop {
        let guard = session.wait(session.request(args.name.get()))?;
        match session.hold(&args.command, guard)? {
            End::Command(code) => return Ok(code),
            End::Lost(Some(signal)) => return Err(Failure::Silent(code::SIGNAL + signal as u8)),
            End::Lost(None) => {}
        }
    }
}

/// How a hold ended.
enum End {
    /// The command ended with this code, and the lock was held all the while.
    Command(u8),
    /// The lock was lost. The signal by which this process was told to end, if it was.
    Lost(Option<Signal>),
}

/// A client, and what this process is told, while it waits and holds.
struct Session<'a> {
    ask: &'a Ask,
    url: String,
    on_loss: OnLoss,
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
    fn start(global: &Global, ask: &'a Ask, on_loss: OnLoss, until: Option<Instant>) -> Outcome<Session<'a>> {
        // Before any thread is started, which inherits it.
        spare_us_ttou().map_err(internal)?;
        let url = store::url(global, Missing::Made)?;
        let signals = signals::watch().map_err(internal)?;
        let shows = Shows { words: !global.quiet, line: !global.quiet && !global.json && is_stderr_a_terminal() };
        let wanted = (global.clone(), ask.clone());
        let client = connect(move || store::holding(&wanted.0, &wanted.1, on_loss), until, &signals, shows)?;
        Ok(Session { ask, url, on_loss, shows, json: global.json, is_unanswered: Cell::new(false), client, signals })
    }

    fn request(&self, key: &str) -> LockRequest {
        let mut request = self.client.request(key);
        if let Some(comment) = &self.ask.comment {
            request = request.comment(comment);
        }
        if let Some(d) = self.ask.max_hold {
            request = request.max_hold(d);
        }
        request
    }

    fn wait(&self, request: LockRequest) -> Outcome<LockGuard> {
        wait(request, &self.signals, self.shows)
    }

    /// Runs the command while `guard` holds, then releases it.
    fn hold(&self, command: &[OsString], guard: LockGuard) -> Outcome<End> {
        let terminal = Terminal::open();
        let foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
        let mut prepared = prepared(getpid(), foreground, self.json, command);
        prepared.env("LEASEHOLD_KEY", guard.key());
        prepared.env("LEASEHOLD_TOKEN", guard.fencing_token().to_string());
        prepared.env("LEASEHOLD_LOCK_ID", guard.lock_id());
        prepared.env("LEASEHOLD_OWNER", guard.info().owner());
        let (name, value) = store::passed_on(self.url.clone());
        prepared.env_remove("LEASEHOLD_STORE").env_remove(store::WITHHELD).env(name, value);
        let job = Job::start(prepared, terminal).map_err(|error| {
            let message = format!("{:?} cannot be started: {error}", command.first().cloned().unwrap_or_default());
            Failure::Own(code::CANNOT_RUN, message)
        })?;
        let mut holding = Holding {
            kill_after: self.ask.kill_after(),
            after_kill: self.ask.after_kill(),
            kill_after_term: self.ask.kill_after_term(),
            on_loss: self.on_loss,
            guard,
            job,
            lost: None,
            told_to_end: None,
            kill_by: None,
            kill_at: never(),
            resume_at: never(),
        };
        holding.go_on(&self.signals);
        let (end, is_unanswered) = holding.end()?;
        self.is_unanswered.set(is_unanswered);
        Ok(end)
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::Own(code::INTERNAL, error.to_string())
}

/// A command that runs while a lock is held.
struct Holding {
    kill_after: Duration,
    after_kill: Duration,
    kill_after_term: Option<Duration>,
    on_loss: OnLoss,
    guard: LockGuard,
    job: Job,
    lost: Option<Loss>,
    told_to_end: Option<Signal>,
    /// When `kill_at` comes.
    kill_by: Option<Instant>,
    kill_at: Receiver<Instant>,
    resume_at: Receiver<Instant>,
}

/// Whether a signal stops a process.
fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)
}

impl Holding {
    /// Until nothing of the command is left.
    fn go_on(&mut self, signals: &Receiver<Signal>) {
        let watched = self.guard.loss().receiver();
        let mut losses = Receiver::clone(&watched);
        loop {
            if self.job.look() {
                self.resume_at = at(Instant::now() + STOPPED);
            }
            if self.job.is_gone() {
                return;
            }
            let left_behind = if self.job.ended().is_some() { at(Instant::now() + LEFT_BEHIND) } else { never() };
            select! {
                recv(signals) -> signal => match signal {
                    Ok(Signal::SIGCONT) => self.resume(),
                    Ok(signal) if PASSED_ON.contains(&signal) => self.pass_on(signal),
                    _ => {}
                },
                recv(losses) -> loss => {
                    losses = never();
                    loss.into_iter().for_each(|loss| self.lose(loss));
                }
                recv(self.kill_at) -> _ => self.job.signal(Signal::SIGKILL),
                recv(self.resume_at) -> _ => if self.job.is_stopped() && !self.is_halted() {
                    self.resume();
                },
                recv(left_behind) -> _ => {}
            }
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        self.job.signal(signal);
        if !ENDING.contains(&signal) {
            return;
        }
        self.told_to_end = self.told_to_end.or(Some(signal));
        if signal == Signal::SIGTERM
            && let Some(kill_after) = self.kill_after_term
        {
            self.kill_within(kill_after);
        }
        // A stopped command would take it only when somebody continues it, and keep the lock until then.
        if self.job.look() || self.job.is_stopped() {
            self.resume();
            if self.is_halted() {
                self.job.go_on();
            }
        }
    }

    /// KILL then, or earlier if that was decided before.
    fn kill_within(&mut self, time: Duration) {
        let by = Instant::now() + time;
        let by = self.kill_by.map_or(by, |before| before.min(by));
        self.kill_by = Some(by);
        self.kill_at = at(by);
    }

    /// Whether the loss was to stop the command: then only somebody else continues it.
    fn is_halted(&self) -> bool {
        self.lost.is_some() && matches!(self.on_loss, OnLoss::Signal(signal) if is_stop(signal))
    }

    /// This process was stopped, and so was the command. It goes on only if the lock is still held.
    fn resume(&mut self) {
        self.resume_at = never();
        if self.guard.is_held() || self.lost.is_some() {
            return self.job.go_on();
        }
        if let Some(loss) = self.guard.loss().wait_timeout(TOLD) {
            self.lose(loss);
        }
    }

    fn lose(&mut self, loss: Loss) {
        if self.lost.is_some() {
            return;
        }
        let end = match self.on_loss {
            OnLoss::Kill => self.end_command(),
            OnLoss::Signal(signal) => {
                self.job.signal(signal);
                if !is_stop(signal) {
                    self.job.go_on();
                }
                format!("the command gets {signal}")
            }
            OnLoss::Ignore => {
                self.job.go_on();
                "the command goes on".to_owned()
            }
        };
        say(&format!("the lock {:?} was lost: {}; {end}", loss.key, ours(&loss.to_string())));
        self.lost = Some(loss);
    }

    /// TERM, and KILL while nobody else can be in.
    fn end_command(&mut self) -> String {
        let end = self.guard.info().leased_until().and_then(|end| end.checked_sub(self.after_kill));
        // Nothing is left when we were stopped or suspended for longer than the lease.
        let left = end.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
        let kill_after = left.map_or(self.kill_after, |left| left.min(self.kill_after));
        if self.job.is_stopped() || kill_after.is_zero() {
            self.job.signal(Signal::SIGKILL);
            return "the command is killed".to_owned();
        }
        self.job.signal(Signal::SIGTERM);
        self.kill_within(kill_after);
        format!("the command is ended, by KILL in {}", words(kill_after))
    }

    /// Nothing of the command is left: the lock is released.
    /// True: the release was not answered.
    fn end(self) -> Outcome<(End, bool)> {
        let Holding { guard, job, lost, told_to_end, .. } = self;
        let ended = job.ended().unwrap_or(code::INTERNAL);
        let lost = lost.or_else(|| guard.loss().get());
        let key = guard.key().to_owned();
        let released = release(guard);
        job.finish();
        let is_unanswered = matches!(&released, Err(error) if !is_lost(error));
        let end = match (lost, released) {
            (Some(_), _) => End::Lost(told_to_end),
            (None, Ok(())) => End::Command(ended),
            (None, Err(Some(error))) if error.kind() == ErrorKind::Lost => {
                say(&error.to_string());
                End::Lost(told_to_end)
            }
            (None, Err(error)) => {
                let why = error.map_or_else(|| "the store does not answer".to_owned(), |error| error.to_string());
                say(&format!("the lock {key:?} could not be released and ends with its lease: {why}"));
                End::Command(ended)
            }
        };
        Ok((end, is_unanswered))
    }
}

fn is_lost(error: &Option<Error>) -> bool {
    error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Lost)
}

/// Releases the lock; after the end of the lease there is nothing to wait for any more.
fn release(guard: LockGuard) -> Result<(), Option<Error>> {
    let left = guard.info().leased_until().map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
    let (done, released) = crossbeam_channel::bounded(1);
    let thread = std::thread::Builder::new().name("leasehold-release".to_owned());
    let spawned = thread.spawn(move || {
        let released = guard.release().map_err(|failed| {
            let error = failed.error().clone();
            if error.kind() != ErrorKind::Lost {
                // Its drop would try for as long once more.
                std::mem::forget(failed);
            }
            Some(error)
        });
        let _ = done.send(released);
    });
    // Where no thread could be started the guard was dropped, and its drop released.
    if spawned.is_err() {
        return Ok(());
    }
    released.recv_timeout(left.unwrap_or(Duration::MAX).max(LAST_TRY)).unwrap_or(Err(None))
}
