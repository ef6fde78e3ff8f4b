//! A command that runs while a lock is held.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never, select, tick};
use leasehold::{Loss, LossReason};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::asked::Ask;
use crate::beside::{Beside, Environment};
use crate::failure::{Lost, Outcome, code};
use crate::give_back::{Ending, TOLD, give_back};
use crate::health::{Checks, Health};
use crate::held::Held;
use crate::job::Job;
use crate::killing::Killing;
use crate::on_loss::{OUT_OF_REACH, OnLoss};
use crate::signals::{ENDING, PASSED_ON};
use crate::words::words;
use crate::{stops, warnings};

/// How often to look for a part of the command that asks for the terminal, which nothing reports.
const ASKED: Duration = Duration::from_secs(1);
/// How often to look for processes that the command left behind, where nothing reports their end.
const LEFT_BEHIND: Duration = Duration::from_millis(100);

/// How a hold ended.
pub enum End {
    /// The command ended with this code, and the lock was held all the while.
    Command(u8),
    /// The lock was lost. With the signal by which this process was told to end, if it was.
    Lost(Option<Signal>, Lost),
    /// The same, but this node must let others go first: the lock was held for as long as `--max-hold` allows, or the
    /// health check failed. With the signal, as above.
    Deposed(Option<Signal>, Lost),
    /// The health check failed, and the lock was held all the while. With the signal, as above.
    Unhealthy(Option<Signal>),
}

impl End {
    /// The lock was lost, with the signal as above.
    pub fn lost(told_to_end: Option<Signal>, lost: Lost) -> End {
        if lost.reason == Some(LossReason::MaxHold.name()) {
            return End::Deposed(told_to_end, lost);
        }
        End::Lost(told_to_end, lost)
    }
}

/// A command that runs while a lock is held.
pub struct Holding<'a> {
    ask: &'a Ask,
    locks: Held,
    job: Job,
    killing: Killing,
    environment: Environment,
    health: Option<Health<'a>>,
    is_unhealthy: bool,
    losses: Losses,
    told: Told,
    resume_at: Receiver<Instant>,
}

/// The keys that were lost.
#[derive(Default)]
struct Losses {
    first: Option<Loss>,
    /// The command of `--on-loss` that runs, and the key for which it runs.
    on_loss: Option<(Beside, String)>,
    /// The keys whose loss needs no further action: nothing is killed for them.
    seen_to: Vec<String>,
}

/// Whether this process was told to end.
#[derive(Default)]
struct Told {
    /// The signal, unless it was a hangup that the command has survived.
    to_end: Option<Signal>,
    /// The command got the signal, too, and may not have finished its work.
    is_cut_short: bool,
}

/// Whether a signal stops a process.
fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)
}

impl<'a> Holding<'a> {
    /// `environment`: the environment of the command.
    pub fn new(ask: &'a Ask, checks: &'a Checks, locks: Held, job: Job, environment: &Environment) -> Holding<'a> {
        let environment = environment.with("LEASEHOLD_PID", job.group());
        Holding {
            ask,
            locks,
            killing: Killing::new(),
            health: checks.begin(environment.clone()),
            environment,
            job,
            is_unhealthy: false,
            losses: Losses::default(),
            told: Told::default(),
            resume_at: never(),
        }
    }

    /// Watches over the command until nothing of it is left.
    pub fn go_on(&mut self, signals: &Receiver<Signal>) {
        let mut losses = self.locks.losses();
        let looks = tick(self.ask.looks());
        let asked = if self.job.shares_terminal() { tick(ASKED) } else { never() };
        loop {
            let goes_on_after = self.look();
            self.resume_after(goes_on_after);
            if self.job.is_gone() {
                // A health check must not run at the same time as the next holder.
                self.health = None;
                return self.see_to_the_rest(signals);
            }
            if let Some(loss) = self.locks.lost(&self.losses.seen_to) {
                self.lose(loss);
            }
            self.look_beside();
            self.say_what_is_left();
            self.arm();
            let (asks, told) = (
                timer(self.health.as_ref(), Health::timer),
                timer(self.losses.on_loss.as_ref(), |(command, _)| command.timer()),
            );
            let (kill_at, keeper) = (self.killing.timer(), self.job.keeper_timer());
            let left_behind = if self.job.ended().is_some() { at(Instant::now() + LEFT_BEHIND) } else { never() };
            select! {
                recv(signals) -> signal => match signal {
                    Ok(Signal::SIGCONT) => {
                        self.job.continued();
                        self.resume();
                    }
                    Ok(stops::TOLD_AS) => {
                        let goes_on_after = self.job.stop(self.rest());
                        self.resume_after(goes_on_after);
                    }
                    Ok(signal) if PASSED_ON.contains(&signal) => self.pass_on(signal),
                    _ => {}
                },
                recv(losses) -> loss => match loss {
                    Ok(loss) => self.lose(loss),
                    Err(_) => losses = never(),
                },
                recv(kill_at) -> _ => {
                    self.job.signal(Signal::SIGKILL);
                }
                recv(looks) -> _ => {}
                recv(asks) -> _ => {}
                recv(told) -> _ => {}
                recv(keeper) -> _ => {}
                recv(self.resume_at) -> _ => if self.job.is_stopped() && !self.is_halted() {
                    self.resume();
                },
                recv(asked) -> _ => if !self.is_halted() && self.job.has_asked_unseen() {
                    self.resume();
                },
                recv(left_behind) -> _ => {}
            }
        }
    }

    /// Called once nothing of the command is left: runs the command of `--on-loss` for the locks that are lost already.
    fn see_to_the_rest(&mut self, signals: &Receiver<Signal>) {
        let has_command = self.losses.first.is_some() && matches!(self.ask.on_loss, OnLoss::Command(_));
        loop {
            if let Some((command, key)) = self.losses.on_loss.take() {
                let (outcome, told_to_end) = command.see_through(signals);
                command_failed(outcome, "");
                self.told.to_end = self.told.to_end.or(told_to_end);
                self.losses.seen_to.push(key);
            }
            match self.locks.lost(&self.losses.seen_to).filter(|_| has_command) {
                Some(loss) => self.lose(loss),
                None => return,
            }
        }
    }

    /// Has the keeper kill the group if this process stands still.
    fn arm(&mut self) {
        self.killing.look(&self.locks, &self.losses.seen_to);
        let is_all_seen_to = !self.locks.has_other_than(&self.losses.seen_to);
        let is_ended_by_loss = self.ask.on_loss.may_kill() && !is_all_seen_to;
        self.job.kill_at(self.killing.by_keeper(self.ask, is_ended_by_loss));
    }

    /// How long nothing has to be done to the command: for ever once all losses were dealt with.
    fn rest(&self) -> Duration {
        let is_over = !self.killing.has_begun() && !self.locks.has_other_than(&self.losses.seen_to);
        if is_over { Duration::MAX } else { self.killing.rest() }
    }

    fn pass_on(&mut self, signal: Signal) {
        let is_passed_on = self.job.pass_on(signal);
        if !ENDING.contains(&signal) {
            return;
        }
        if !is_passed_on {
            self.killing.is_in_vain = true;
            warnings::tell(&format!("{signal} is not passed on: the command {OUT_OF_REACH}"));
        }
        self.told.is_cut_short = true;
        self.told.to_end = self.told.to_end.filter(|before| *before != Signal::SIGHUP).or(Some(signal));
        match &mut self.health {
            health if signal == Signal::SIGTERM => *health = None,
            // Servers survive a hangup, and some survive the other signals: a server that hangs later must not keep the
            // lock, so its checks go on.
            health => health.iter_mut().for_each(Health::rest),
        }
        if signal == Signal::SIGTERM
            && let Some(kill_after) = self.ask.kill_after_term()
        {
            self.kill_within(kill_after);
        }
        // A stopped command gets the signal only when somebody continues it, and would keep the lock until then.
        if self.look().is_some() || self.job.is_stopped() {
            self.resume();
            if self.is_halted() {
                self.job.go_on();
            }
        } else if !self.is_halted() && self.may_go_on() {
            // The same applies to a part of the command that is stopped, which nothing reports to us.
            self.job.signal(Signal::SIGCONT);
        }
    }

    fn kill_within(&mut self, time: Duration) {
        self.killing.begin(time);
        self.arm();
    }

    /// Whether `--on-loss` has stopped the command: then only somebody else continues it.
    fn is_halted(&self) -> bool {
        self.losses.first.is_some() && matches!(self.ask.on_loss, OnLoss::Signal(signal) if is_stop(signal))
    }

    /// Continues the command after this time, unless somebody continues us before.
    fn resume_after(&mut self, time: Option<Duration>) {
        if let Some(time) = time {
            self.resume_at = at(Instant::now() + time);
        }
    }

    /// Whether the command may be continued: nothing of it may run at the same time as the next holder. (KILL needs no
    /// CONT.)
    fn may_go_on(&mut self) -> bool {
        // A heartbeat may have moved the end since the last look.
        self.killing.look(&self.locks, &self.losses.seen_to);
        let has_unseen = self.ask.on_loss.may_kill() && self.locks.has_other_than(&self.losses.seen_to);
        let is_late = has_unseen && self.killing.left(self.ask).is_zero();
        self.locks.is_held() || self.losses.first.is_some() && !is_late
    }

    /// This process was stopped, and so was the command. The command goes on only if it still may.
    fn resume(&mut self) {
        self.resume_at = never();
        if self.may_go_on() {
            return self.job.go_on();
        }
        if let Some(loss) = self.locks.wait_for_loss(TOLD) {
            self.lose(loss);
        }
    }

    fn lose(&mut self, loss: Loss) {
        let is_ended = self.losses.first.is_some()
            && match self.ask.on_loss {
                OnLoss::Kill => true,
                OnLoss::Command(_) => false,
                _ => self.killing.is_due(),
            };
        // The losses are dealt with one after the other.
        if is_ended || self.losses.on_loss.is_some() || self.losses.seen_to.contains(&loss.key) {
            return;
        }
        let end = match &self.ask.on_loss {
            OnLoss::Signal(_) | OnLoss::Ignore if self.losses.first.is_some() => "nothing more is done".to_owned(),
            OnLoss::Kill => self.end_command(),
            OnLoss::Command(command) => {
                let command = command.clone();
                self.see_to(&command, &loss)
            }
            &OnLoss::Signal(signal) => {
                let is_sent = self.job.signal(signal);
                if !is_stop(signal) {
                    self.job.go_on();
                }
                if is_sent { format!("the command gets {signal}") } else { format!("the command {OUT_OF_REACH}") }
            }
            OnLoss::Ignore => {
                self.job.go_on();
                "the command goes on".to_owned()
            }
        };
        // Without waiting, because signals must still be passed on.
        warnings::tell(&format!("the lock {:?} was lost: {loss}; {end}", loss.key));
        if !self.ask.on_loss.may_kill() {
            self.losses.seen_to.push(loss.key.clone());
        }
        self.losses.first.get_or_insert(loss);
    }

    /// Runs the command of `--on-loss`.
    fn see_to(&mut self, command: &str, loss: &Loss) -> String {
        let time = self.killing.left(self.ask);
        match Beside::for_loss(command, &self.environment, loss, time, self.ask) {
            Ok(beside) => {
                self.losses.on_loss = Some((beside, loss.key.clone()));
                if !self.job.is_gone() {
                    self.job.go_on();
                }
                format!("--on-loss has {} to see to that", words(time))
            }
            Err(why) => {
                self.losses.seen_to.push(loss.key.clone());
                format!("--on-loss cannot be run ({why}){}", self.kill())
            }
        }
    }

    /// Looks at what runs next to the command, the command of `--on-loss` and the health check, and acts on their
    /// results.
    fn look_beside(&mut self) {
        if let Some((command, key)) = &mut self.losses.on_loss
            && let Some(outcome) = command.look()
        {
            self.losses.seen_to.push(std::mem::take(key));
            self.losses.on_loss = None;
            if outcome.is_err() {
                let end = self.kill();
                command_failed(outcome, &end);
            }
        }
        if self.losses.first.is_some() {
            self.health = None;
        }
        let Some(health) = &mut self.health else { return };
        if self.job.is_stopped() {
            health.rest();
            return;
        }
        match health.look() {
            // The command goes on, so the hangup was not meant to end it.
            Some(Ok(())) => self.told.to_end = self.told.to_end.filter(|signal| *signal != Signal::SIGHUP),
            Some(Err(why)) => {
                (self.health, self.is_unhealthy) = (None, true);
                let (name, end) = (self.locks.name(), self.end_command());
                let then = if self.killing.is_in_vain { "to be given back" } else { "given back" };
                warnings::tell(&format!("{name} is {then}, since {why}; {end}"));
            }
            None => {}
        }
    }

    /// See [`Job::look`].
    fn look(&mut self) -> Option<Duration> {
        let check = self.health.as_ref().and_then(Health::running);
        let beside = check.into_iter().chain(self.losses.on_loss.as_ref().map(|(command, _)| command));
        let beside: Vec<Pid> = beside.flat_map(Beside::pids).collect();
        self.job.look(&beside, self.is_halted(), self.rest())
    }

    /// Sends KILL now, and returns what to report about that.
    fn kill(&mut self) -> String {
        self.kill_within(Duration::ZERO);
        match self.is_left() {
            true => format!("; the command {OUT_OF_REACH}"),
            false => ", so the command is killed".to_owned(),
        }
    }

    /// Whether the command cannot be ended. The caller reports that, so it is noted as reported.
    fn is_left(&mut self) -> bool {
        let is_left = self.job.is_out_of_reach();
        self.killing.is_in_vain |= is_left;
        is_left
    }

    /// Reports what KILL could not end: a part of the command may have more rights than the rest.
    fn say_what_is_left(&mut self) {
        if self.killing.is_due() && !self.killing.is_in_vain && self.is_left() {
            warnings::tell(&format!("what is left of the command {OUT_OF_REACH}"));
        }
    }

    /// Sends TERM, and KILL before anybody else can get the lock. Returns what to report about that.
    fn end_command(&mut self) -> String {
        let kill_after = if self.job.is_stopped() { Duration::ZERO } else { self.killing.left(self.ask) };
        self.job.signal(if kill_after.is_zero() { Signal::SIGKILL } else { Signal::SIGTERM });
        // Also if the signal did not reach the command: it may have fewer rights by then.
        self.kill_within(kill_after);
        match kill_after {
            _ if self.is_left() => format!("the command {OUT_OF_REACH}"),
            Duration::ZERO => "the command is killed".to_owned(),
            _ => format!("the command gets TERM now, and KILL in {} if it still runs", words(kill_after)),
        }
    }

    /// Called once nothing of the command is left: releases the lock. `every`: after a success the lock stays in the
    /// store for that long. Also returns whether the release was not answered.
    pub fn end(mut self, every: Option<Duration>, signals: &Receiver<Signal>) -> Outcome<(End, bool)> {
        self.arm();
        let lease_left = Some(self.killing.lease_left(self.ask));
        let Holding { locks, job, losses, told, is_unhealthy, .. } = self;
        let ended = job.ended().unwrap_or(code::INTERNAL);
        // A command that was told to end may not have finished its work, whatever its code says.
        let every = every.filter(|_| ended == 0 && !told.is_cut_short && !is_unhealthy);
        let (is_told, who_ended) = (losses.first.is_some(), "the command has ended");
        let lost = locks.if_lost(losses.first.as_ref(), TOLD);
        let given_back = give_back(locks, &Ending { is_told, lease_left, every, who_ended, signals });
        job.finish(|signal| is_told && self.ask.on_loss.may_send(signal));
        let told_to_end = told.to_end.or(given_back.told_to_end);
        let end = match given_back.was_lost {
            true if is_unhealthy => End::Deposed(told_to_end, lost),
            true => End::lost(told_to_end, lost),
            false if is_unhealthy => End::Unhealthy(told_to_end),
            false => End::Command(ended),
        };
        Ok((end, given_back.is_unanswered))
    }
}

fn timer<T>(of: Option<&T>, timer: impl FnOnce(&T) -> Receiver<Instant>) -> Receiver<Instant> {
    of.map_or_else(never, timer)
}

/// Reports a failure of the command of `--on-loss`.
pub fn command_failed(outcome: Result<(), String>, then: &str) {
    if let Err(why) = outcome {
        warnings::tell(&format!("the command of --on-loss failed: {why}{then}"));
    }
}

#[cfg(test)]
mod tests {
    use leasehold::testing::MemoryStore;

    use super::*;

    /// The command may end before the loss is reported.
    #[test]
    fn who_finds_the_end_of_max_hold_only_at_the_end_lets_others_go_first() {
        let minute = Duration::from_secs(60);
        // Longer than the lease and shorter.
        for (max_hold, is_deposed) in [(3 * minute, false), (minute / 4, true)] {
            let store = MemoryStore::new();
            let held = store.client().request("k").lease(minute).max_hold(max_hold).lock().map(Held::One).unwrap();
            store.advance(max_hold.min(minute));
            let end = End::lost(None, held.if_lost(None, TOLD));
            assert_eq!(matches!(end, End::Deposed(None, _)), is_deposed);
        }
    }
}
