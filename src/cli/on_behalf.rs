//! `hold`: a lock that is held for another process.

use std::fs::File;
use std::io;
use std::time::Duration;

use crossbeam_channel::{Receiver, never, select, tick};
use leasehold::Loss;
use nix::sys::signal::Signal;
use nix::unistd::dup2_stdout;

use crate::args::{Global, Hold};
use crate::asked::Ask;
use crate::beside::{Beside, Environment};
use crate::failure::{Failure, Lost, Outcome};
use crate::give_back::{Ending, TOLD, give_back};
use crate::held::{Held, Wanted};
use crate::hold::command_failed;
use crate::keeper::{Keeper, Target};
use crate::killing::Killing;
use crate::on_loss::{OUT_OF_REACH, OnLoss};
use crate::run::{refused, until};
use crate::session::{Session, internal};
use crate::signals::{ENDING, Hangup, Interrupts};
use crate::steps::{can_be_printed, start_printing, was_printed};
use crate::store;
use crate::wait::by_signal;
use crate::warnings;
use crate::watched::{Watched, close_inherited};
use crate::words::words;

pub fn hold(global: &Global, args: &Hold) -> Outcome {
    // Before this process opens anything itself.
    close_inherited(args.for_whom.fd);
    can_be_printed()?;
    let watched = Watched::open(&args.for_whom, &args.ask.on_loss)?;
    let wanted = Wanted {
        keys: vec![args.key.get().to_owned()],
        labels: args.ask.labels.clone(),
        sharing: args.sharing.clone(),
        max_hold: args.ask.max_hold,
        until: until(args.patience.wait()),
        ..Wanted::default()
    };
    let (of_all, ask) = (global.clone(), args.ask.clone());
    let holding = move || store::holding(&of_all, &ask);
    let session = Session::start(global, holding, wanted.until, Hangup::Ends, || watched.gone())?;
    let locks = match session.wait(wanted) {
        Err(failure) => return refused(failure, global, &args.patience, false),
        Ok(locks) => locks,
    };
    let mut holding = Holding::start(&args.ask, global, locks, watched)?;
    let end = holding.hand_out().and_then(|handed_out| holding.go_on(&session.interrupts, handed_out));
    let (lost, is_unanswered) = holding.end(&session.interrupts, &end);
    session.is_unanswered.set(is_unanswered);
    match (end?, lost) {
        (_, Some(lost)) => Err(Failure::Lost(lost)),
        (Some(signal), None) => Err(by_signal(signal)),
        (None, None) => Ok(0),
    }
}

/// A lock that is being printed.
struct HandingOut {
    printed: Receiver<io::Result<()>>,
    /// What standard output is replaced with afterwards.
    null: File,
}

/// A lock that is held, and for whom.
struct Holding<'a> {
    ask: &'a Ask,
    locks: Held,
    watched: Watched,
    environment: Environment,
    /// Kills the process when we cannot, if a loss must end the process.
    keeper: Option<Keeper>,
    killing: Killing,
    /// KILL was sent.
    is_killed: bool,
    lost: Option<Loss>,
    /// The command of `--on-loss`.
    on_loss: Option<Beside>,
}

impl<'a> Holding<'a> {
    fn start(ask: &'a Ask, global: &Global, locks: Held, watched: Watched) -> Outcome<Holding<'a>> {
        let keeper = match watched.process().filter(|_| ask.on_loss.may_kill()) {
            Some(process) => Some(Keeper::start(Some(process)).map_err(internal)?),
            None => None,
        };
        let environment = Environment::of(global, &locks)?;
        let environment = watched.pid().iter().fold(environment, |all, pid| all.with("LEASEHOLD_PID", pid));
        let (killing, lost, on_loss) = (Killing::new(), None, None);
        let is_killed = false;
        let mut holding = Holding { ask, locks, watched, environment, keeper, killing, is_killed, lost, on_loss };
        holding.arm();
        Ok(holding)
    }

    /// Begins to print the lock, without waiting for that.
    fn hand_out(&self) -> Outcome<HandingOut> {
        // First everything that may fail, because a lock that was printed must not be taken back.
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|error| internal(format!("/dev/null cannot be opened: {error}")))?;
        self.locks.ensure_held()?;
        let printed = self.locks.info().as_ref().map_or_else(|| Ok(never()), start_printing)?;
        Ok(HandingOut { printed, null })
    }

    /// Watches until nobody needs the lock any more, until nothing is left to do for a lock that is lost, or until a
    /// signal tells us to end, which it returns.
    fn go_on(&mut self, interrupts: &Interrupts, mut handed_out: HandingOut) -> Outcome<Option<Signal>> {
        let mut losses = self.locks.losses();
        let looks = tick(self.ask.looks());
        loop {
            if self.lost.is_none()
                && let Some(loss) = self.locks.lost(&[])
            {
                self.lose(loss);
            }
            if let Some(outcome) = self.on_loss.as_mut().and_then(Beside::look) {
                self.on_loss = None;
                if outcome.is_err() {
                    let name = self.watched.name();
                    command_failed(outcome, &self.kill(&name));
                }
            }
            let is_done = self.on_loss.is_none() && !self.killing.has_begun();
            if self.lost.is_some() && is_done {
                return Ok(None);
            }
            self.arm();
            let kill_at = self.killing.timer();
            let keeper = self.keeper.as_ref().map_or_else(never, Keeper::timer);
            let told = self.on_loss.as_ref().map_or_else(never, Beside::timer);
            select! {
                recv(interrupts.signals) -> signal => match signal {
                    // A loss must be followed through up to KILL, also one that was not reported yet.
                    Ok(signal) if ENDING.contains(&signal) && (self.is_killed || self.locks.is_held()) => return Ok(Some(signal)),
                    _ => {}
                },
                recv(interrupts.gone) -> _ => return Ok(None),
                recv(handed_out.printed) -> answer => {
                    was_printed(answer)?;
                    // A program that reads the output to its end, like a shell, can go on then.
                    dup2_stdout(&handed_out.null).map_err(internal)?;
                    handed_out.printed = never();
                }
                recv(losses) -> loss => {
                    losses = never();
                    loss.into_iter().for_each(|loss| self.lose(loss));
                }
                recv(kill_at) -> _ => {
                    let name = self.watched.name();
                    if !self.send_kill() && !self.killing.is_in_vain {
                        warnings::tell(&self.in_vain(&name));
                    }
                }
                recv(looks) -> _ => {}
                recv(told) -> _ => {}
                recv(keeper) -> _ => {}
            }
        }
    }

    fn arm(&mut self) {
        self.killing.look(&self.locks, &[]);
        let kill_at = self.killing.by_keeper(self.ask, true);
        let Some(keeper) = &mut self.keeper else { return };
        // Without a handle a keeper could end nothing.
        let process = || self.watched.process().ok_or_else(|| io::Error::other("no handle of the process"));
        keeper.keep_or_replace(Target::Process, kill_at, || Keeper::start(Some(process()?)));
    }

    fn lose(&mut self, loss: Loss) {
        if self.lost.is_some() {
            return;
        }
        let name = self.watched.name();
        let end = match (&self.watched, &self.ask.on_loss) {
            (_, OnLoss::Command(command)) => self.see_to(command, &loss, &name),
            (Watched::Process(..), OnLoss::Kill) => self.end_process(&name),
            (Watched::Process(..), &OnLoss::Signal(signal)) => match self.watched.signal(signal) {
                true => format!("{name} gets {signal}"),
                false => self.in_vain(&name),
            },
            _ => format!("{name} is told nothing"),
        };
        // Without waiting: with a pipe, only the end of this process reports the loss.
        warnings::tell(&format!("the lock {:?} was lost: {loss}; {end}", loss.key));
        self.lost = Some(loss);
    }

    /// Runs the command of `--on-loss`.
    fn see_to(&mut self, command: &str, loss: &Loss, name: &str) -> String {
        let time = self.killing.left(self.ask);
        match Beside::for_loss(command, &self.environment, loss, time, self.ask) {
            Ok(beside) => {
                self.on_loss = Some(beside);
                format!("--on-loss has {} to see to that", words(time))
            }
            Err(why) => format!("--on-loss cannot be run ({why}){}", self.kill(name)),
        }
    }

    /// Kills the process, if it is one, and says so.
    fn kill(&mut self, name: &str) -> String {
        if self.watched.pid().is_none() {
            return String::new();
        }
        let end = self.kill_now(name);
        let so = if self.killing.is_in_vain { ";" } else { ", so" };
        format!("{so} {end}")
    }

    fn kill_now(&mut self, name: &str) -> String {
        self.killing.begin(Duration::ZERO);
        if self.send_kill() { format!("{name} is killed") } else { self.in_vain(name) }
    }

    fn send_kill(&mut self) -> bool {
        self.is_killed = true;
        self.watched.signal(Signal::SIGKILL)
    }

    /// Notes that the process has gained rights since it is watched, and returns what to report.
    fn in_vain(&mut self, name: &str) -> String {
        self.killing.is_in_vain = true;
        format!("{name} {OUT_OF_REACH}")
    }

    /// Sends TERM, and KILL before anybody else can get the lock. Returns what to report about that.
    fn end_process(&mut self, name: &str) -> String {
        let kill_after = self.killing.left(self.ask);
        if kill_after.is_zero() {
            return self.kill_now(name);
        }
        self.killing.begin(kill_after);
        if !self.watched.signal(Signal::SIGTERM) {
            return self.in_vain(name);
        }
        format!("{name} gets TERM now, and KILL in {} if it still runs", words(kill_after))
    }

    /// Releases the lock. Returns the loss, if it was lost, and whether the release was not answered.
    fn end(mut self, interrupts: &Interrupts, end: &Outcome<Option<Signal>>) -> (Option<Lost>, bool) {
        self.killing.look(&self.locks, &[]);
        let is_under_way = self.on_loss.take();
        is_under_way.into_iter().for_each(|command| command_failed(command.see_through(&interrupts.signals).0, ""));
        // The process that has the pipe learns of a loss only by the end of this process.
        let is_told_by_end = self.lost.is_some() && matches!(self.watched, Watched::Pipe(..));
        let lease_left = (!is_told_by_end).then(|| self.killing.lease_left(self.ask));
        if is_told_by_end {
            warnings::flush_within(self.ask.after_kill() / 4);
        }
        // From now on nothing is killed.
        self.keeper.take().into_iter().for_each(Keeper::dismiss);
        let (is_told, who_ended) = (self.lost.is_some(), &*who_ended(end, &self.watched.name()));
        let (signals, lost) = (&interrupts.signals, self.locks.if_lost(self.lost.as_ref(), TOLD));
        let given_back = give_back(self.locks, &Ending { is_told, lease_left, every: None, who_ended, signals });
        (given_back.was_lost.then_some(lost), given_back.is_unanswered || is_told_by_end)
    }
}

/// What ended the hold, for messages.
fn who_ended(end: &Outcome<Option<Signal>>, name: &str) -> String {
    match end {
        Ok(None) => format!("{name} is gone"),
        Ok(Some(signal)) => format!("leasehold was told to end by {signal}"),
        Err(_) => "nobody was given it".to_owned(),
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use clap::Parser;
    use crossbeam_channel::{bounded, unbounded};
    use leasehold::LockClient;

    use super::*;
    use crate::args::{self, Args};

    /// A process is reported as gone only if it is gone.
    #[test]
    fn a_loss_at_the_end_says_what_that_end_was() {
        assert_eq!(who_ended(&Ok(None), "process 7"), "process 7 is gone");
        for end in [Ok(Some(Signal::SIGTERM)), Err(Failure::Lost(Lost::default()))] {
            assert!(!who_ended(&end, "process 7").contains("process 7"));
        }
    }

    /// Like a process that waits for a disk: KILL is sent, but its end does not come.
    #[test]
    fn what_does_not_end_by_kill_is_left_alone_at_a_signal() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().to_string();
        let args = Args::try_parse_from(["leasehold", "hold", "k", "--pid", &pid, "--kill-after", "0s"]).unwrap();
        let args::Command::Hold(args) = args.command else { panic!("another command") };
        let client = LockClient::connect("memory:").unwrap();
        let guard = client.request("k").max_hold(Duration::from_millis(100)).lock().unwrap();
        let watched = Watched::open(&args.for_whom, &args.ask.on_loss).unwrap();
        let (keeper, killing, lost, on_loss) = (None, Killing::new(), None, None);
        let (ask, locks, environment) = (&args.ask, Held::One(guard), Environment::default());
        let is_killed = false;
        let mut holding = Holding { ask, locks, watched, environment, keeper, killing, is_killed, lost, on_loss };
        let ((signal, signals), (ends, gone), (ended, end)) = (unbounded(), bounded(1), bounded(1));
        let killed = thread::spawn(move || {
            child.wait().unwrap();
            signal.send(Signal::SIGTERM).unwrap();
            // The process's end is reported at last, if nothing else ends the hold.
            let _: Result<(), _> = end.recv_timeout(Duration::from_secs(20));
            let _ = ends.send("gone".to_owned());
        });
        let handed_out = HandingOut { printed: never(), null: File::open("/dev/null").unwrap() };
        assert_eq!(
            holding.go_on(&Interrupts { signals, gone, hangup: Hangup::Ends }, handed_out).unwrap(),
            Some(Signal::SIGTERM)
        );
        ended.send(()).unwrap();
        killed.join().unwrap();
    }
}
