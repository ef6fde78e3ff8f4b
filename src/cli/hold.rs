//! A command that runs while a lock is held.

use std::time::{Duration, Instant};
use std::{fmt, io};

use crossbeam_channel::{Receiver, after, at, never, select, tick};
use leasehold::{Error, ErrorKind, Loss};
use nix::sys::signal::Signal;

use crate::args::Ask;
use crate::clock::since_boot;
use crate::failure::{Outcome, code};
use crate::held::Held;
use crate::job::Job;
use crate::on_loss::OnLoss;
use crate::show::say;
use crate::signals::{ENDING, PASSED_ON};
use crate::words::words;

/// How long after it stopped itself this process goes on all the same: nobody is there who could continue it.
const STOPPED: Duration = Duration::from_millis(200);
/// Looks for what the command left behind, where nobody tells that it ended.
const LEFT_BEHIND: Duration = Duration::from_millis(100);
/// What a release gets at least, for a store that answers again.
const LAST_TRY: Duration = Duration::from_millis(500);
/// The library's watcher tells a loss within a second.
const TOLD: Duration = Duration::from_secs(2);

/// How a hold ended.
pub enum End {
    /// The command ended with this code, and the lock was held all the while.
    Command(u8),
    /// The lock was lost. The signal by which this process was told to end, if it was.
    Lost(Option<Signal>),
}

/// A command that runs while a lock is held.
pub struct Holding<'a> {
    ask: &'a Ask,
    locks: Held,
    job: Job,
    /// Until when it is held at the least, since boot.
    held_until: Duration,
    lost: Option<Loss>,
    told_to_end: Option<Signal>,
    /// When KILL is due, since boot, and the timer for it.
    kill: Option<(Duration, Receiver<Instant>)>,
    resume_at: Receiver<Instant>,
}

/// Whether a signal stops a process.
fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)
}

impl<'a> Holding<'a> {
    pub fn new(ask: &'a Ask, locks: Held, job: Job) -> Holding<'a> {
        // A hold that is never seen as held leaves no time for TERM.
        let held_until = Duration::ZERO;
        Holding { ask, locks, job, held_until, lost: None, told_to_end: None, kill: None, resume_at: never() }
    }

    /// Until nothing of the command is left.
    pub fn go_on(&mut self, signals: &Receiver<Signal>) {
        let mut losses = self.locks.losses();
        let looks = tick(self.ask.lease / 20);
        loop {
            if self.job.look() {
                self.resume_at = at(Instant::now() + STOPPED);
            }
            if self.job.is_gone() {
                return;
            }
            if self.lost.is_none()
                && let Some(loss) = self.locks.lost()
            {
                self.lose(loss);
            }
            self.arm();
            let kill_at = self.kill.as_ref().map_or_else(never, |(_, timer)| timer.clone());
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
                recv(kill_at) -> _ => self.job.signal(Signal::SIGKILL),
                recv(looks) -> _ => {}
                recv(self.resume_at) -> _ => if self.job.is_stopped() && !self.is_halted() {
                    self.resume();
                },
                recv(left_behind) -> _ => {}
            }
        }
    }

    /// Has the group killed a little later than this process would do it, should it stand still.
    fn arm(&mut self) {
        if self.locks.is_held() {
            self.held_until = self.locks.held_until();
        }
        let is_ended_by_loss = self.ask.on_loss == OnLoss::Kill && !self.job.is_frozen();
        let by_loss = is_ended_by_loss.then(|| self.held_until.saturating_add(self.ask.kill_after()));
        let decided = self.kill.as_ref().map(|(at, _)| *at);
        let kill_at = by_loss.into_iter().chain(decided).min();
        self.job.kill_at(kill_at.map(|at| at.saturating_add(self.ask.after_kill() / 2)));
    }

    fn pass_on(&mut self, signal: Signal) {
        self.job.signal(signal);
        if !ENDING.contains(&signal) {
            return;
        }
        self.told_to_end = self.told_to_end.or(Some(signal));
        if signal == Signal::SIGTERM
            && let Some(kill_after) = self.ask.kill_after_term()
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
        let by = since_boot().saturating_add(time);
        if self.kill.as_ref().is_none_or(|(before, _)| by < *before) {
            self.kill = Some((by, after(time)));
            self.arm();
        }
    }

    /// Whether the loss was to stop the command: then only somebody else continues it.
    fn is_halted(&self) -> bool {
        self.lost.is_some() && matches!(self.ask.on_loss, OnLoss::Signal(signal) if is_stop(signal))
    }

    /// This process was stopped, and so was the command. It goes on only if the lock is still held.
    fn resume(&mut self) {
        self.resume_at = never();
        if self.locks.is_held() || self.lost.is_some() {
            return self.job.go_on();
        }
        if let Some(loss) = self.locks.wait_for_loss(TOLD) {
            self.lose(loss);
        }
    }

    fn lose(&mut self, loss: Loss) {
        if self.lost.is_some() {
            return;
        }
        let end = match self.ask.on_loss {
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
        say(&format!("the lock {:?} was lost: {}; {end}", loss.key, loss));
        self.lost = Some(loss);
    }

    /// TERM, and KILL while nobody else can be in.
    fn end_command(&mut self) -> String {
        // Nothing is left when we were stopped or suspended for longer than the lease.
        let left = self.held_until.saturating_add(self.ask.kill_after()).saturating_sub(since_boot());
        let kill_after = left.min(self.ask.kill_after());
        if self.job.is_stopped() || kill_after.is_zero() {
            self.job.signal(Signal::SIGKILL);
            return "the command is killed".to_owned();
        }
        self.job.signal(Signal::SIGTERM);
        self.kill_within(kill_after);
        format!("the command is ended, by KILL in {}", words(kill_after))
    }

    /// Nothing of the command is left: the lock is released. `every`: after a success it stands for so long.
    /// True: the release was not answered.
    pub fn end(mut self, every: Option<Duration>) -> Outcome<(End, bool)> {
        self.arm();
        let lease_left = (self.held_until.saturating_add(self.ask.lease / 3)).saturating_sub(since_boot());
        let Holding { locks, job, lost, told_to_end, .. } = self;
        let ended = job.ended().unwrap_or(code::INTERNAL);
        let name = locks.name();
        // The keeper may have killed the command before the loss was told.
        let was_lost = lost.is_some() || locks.lost().is_some() || !locks.is_held();
        if was_lost && lost.is_none() {
            let loss = locks.lost().or_else(|| locks.wait_for_loss(TOLD));
            let (name, why) = match loss {
                Some(loss) => (format!("the lock {:?}", loss.key), loss.to_string()),
                None => (name.clone(), "expired".to_owned()),
            };
            say(&format!("{name} was lost: {why}; the command has ended"));
        }
        // One that was told to end may have left its work undone, whatever its code says.
        let every = every.filter(|_| ended == 0 && !was_lost && told_to_end.is_none());
        let Release { stands, answer: released } = release(locks, lease_left, every);
        job.finish();
        let is_unanswered = matches!(&released, Err(failed) if !failed.is_lost());
        let end = match (was_lost, released) {
            (true, _) => End::Lost(told_to_end),
            (false, Ok(())) => End::Command(ended),
            (false, Err(failed)) if failed.is_lost() => {
                say(&failed.to_string());
                End::Lost(told_to_end)
            }
            (false, Err(why)) => {
                let what = match every {
                    Some(every) if stands => {
                        format!("could not be released, but will stand for at least {} from the grant", words(every))
                    }
                    Some(_) => {
                        "may be free before the command is due again, so it may run again in this period".to_owned()
                    }
                    None => "could not be released and ends with its lease".to_owned(),
                };
                say(&format!("{name} {what}: {why}"));
                End::Command(ended)
            }
        };
        Ok((end, is_unanswered))
    }
}

/// Why it is not known that the lock was released.
enum Unreleased {
    Failed(Error),
    NoAnswer,
    NoThread(io::Error),
}

impl Unreleased {
    fn is_lost(&self) -> bool {
        matches!(self, Unreleased::Failed(error) if error.kind() == ErrorKind::Lost)
    }
}

impl fmt::Display for Unreleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreleased::Failed(error) => error.fmt(f),
            Unreleased::NoAnswer => f.write_str("the store does not answer"),
            Unreleased::NoThread(error) => write!(f, "no thread could be started: {error}"),
        }
    }
}

/// How the locks were released.
struct Release {
    /// They stand until the command is due again, whatever became of the release.
    stands: bool,
    answer: Result<(), Unreleased>,
}

/// Releases the lock; after the end of the lease there is nothing to wait for any more.
fn release(locks: Held, lease_left: Duration, every: Option<Duration>) -> Release {
    let (done, told) = crossbeam_channel::bounded(2);
    let thread = std::thread::Builder::new().name("leasehold-release".to_owned());
    let spawned = thread.spawn(move || {
        let stood = every.map_or(Ok(()), |every| locks.stand(every));
        let _ = done.send(stood.clone());
        let _ = done.send(stood.and(locks.release()));
    });
    if let Err(error) = spawned {
        // The guard was dropped, and its drop released: only that it stands is missing.
        return Release { stands: false, answer: every.map_or(Ok(()), |_| Err(Unreleased::NoThread(error))) };
    }
    let by = Instant::now() + lease_left.max(LAST_TRY);
    let told = || told.recv_deadline(by).map_or(Err(Unreleased::NoAnswer), |told| told.map_err(Unreleased::Failed));
    Release { stands: told().is_ok(), answer: told() }
}
