//! The keeper: a process next to the command that kills the command's group when leasehold can't do it any more,
//! because leasehold is gone, or stands still until the lease is nearly over. It does the same for the process of `hold
//! --pid`.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use crate::clock::since_boot;
use crate::exec::{Gate, not_ourselves, own_binary};
use crate::failure::{Failure, Outcome, code};
use crate::processes::send_signal;
use crate::warnings::tell;

/// With this first argument, leasehold is a keeper.
pub const NAME: &str = "__keep";

/// How often to look at the clock, because a timer does not count suspend.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause between two tries to start another keeper: each may wake us by the end of the process that failed to
/// become one.
const PAUSE: Duration = Duration::from_secs(1);
/// A change of the time by less than this is not sent: a stopped keeper reads nothing, and its pipe would fill up.
const LITTLE: Duration = Duration::from_millis(10);

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Group(Pid),
    /// The process whose handle the keeper got as its standard output. (Another process may get its number later.)
    Process,
}

/// How a line to the keeper names [`Target::Process`].
const PROCESS: &str = "process";

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Group(group) => group.fmt(f),
            Target::Process => f.write_str(PROCESS),
        }
    }
}

/// Leasehold's end of the keeper. If it is dropped without being [`dismissed`](Keeper::dismiss), the keeper kills.
pub struct Keeper {
    child: Child,
    pipe: File,
    /// What was sent to the keeper last.
    told: Option<Option<Duration>>,
    /// The keeper has ended, or does not listen.
    is_missing: bool,
    /// When leasehold last tried to start another one.
    tried: Option<Instant>,
    /// It was reported that no other keeper can be started.
    is_missed: bool,
}

impl Keeper {
    /// Starts a keeper in a group of its own: what ends leasehold's group, or the command's, must not end the keeper,
    /// too. `process`: a handle of the process that may be killed, if it is no group.
    pub fn start(process: Option<OwnedFd>) -> io::Result<Keeper> {
        let mut keeper = Command::new(own_binary());
        keeper.arg0("leasehold").arg(NAME).process_group(0);
        keeper.stdout(process.map_or_else(Stdio::null, Stdio::from));
        let mut child = keeper.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(not_ourselves)?;
        let pipe = OwnedFd::from(child.stdin.take().ok_or_else(|| io::Error::other("no pipe to the keeper"))?);
        // A keeper that somebody stopped must not hold us up.
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Keeper { child, pipe: File::from(pipe), told: None, is_missing: false, tried: None, is_missed: false })
    }

    /// Tells the keeper of a group that was started, and then opens the group's gate, unless the group may not begin
    /// any more, because we have stood still until here. From here on the keeper ends it in time.
    pub fn begin(
        &mut self,
        target: Target,
        kill_at: Option<Duration>,
        gate: Gate,
        may_begin: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        if !self.keep(target, kill_at) {
            return Err(io::Error::other("the process that would end it in time has ended"));
        }
        if !may_begin() {
            return Err(io::Error::other("its time was over before it began"));
        }
        gate.open();
        Ok(())
    }

    /// Has the target killed once this process is gone, and at this time since boot if nothing else is sent before.
    /// False: the keeper does not take the order.
    #[must_use]
    pub fn keep(&mut self, target: Target, kill_at: Option<Duration>) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        let is_same = match (self.told, kill_at) {
            (Some(Some(before)), Some(now)) => before.abs_diff(now) < LITTLE,
            (told, _) => told == Some(kill_at),
        };
        if is_same {
            return true;
        }
        let at = kill_at.map_or_else(|| "-".to_owned(), |at| at.as_millis().to_string());
        let is_told = self.pipe.write_all(format!("{target} {at}\n").as_bytes()).is_ok();
        self.told = is_told.then_some(kill_at);
        is_told
    }

    /// The same, also if somebody has stopped or ended the keeper: then another keeper does it, now or, if none can be
    /// started, after one of the next calls.
    pub fn keep_or_replace(
        &mut self,
        target: Target,
        kill_at: Option<Duration>,
        start: impl FnOnce() -> io::Result<Keeper>,
    ) {
        self.is_missing = !self.keep(target, kill_at);
        if !self.is_missing || self.tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
            return;
        }
        self.tried = Some(Instant::now());
        match start() {
            Ok(mut another) => {
                another.tried = self.tried;
                std::mem::replace(self, another).dismiss();
                self.is_missing = !self.keep(target, kill_at);
            }
            Err(why) if !std::mem::replace(&mut self.is_missed, true) => tell(&format!(
                "no process can be started that would kill it in time if leasehold stood still, which is tried again: {why}"
            )),
            Err(_) => {}
        }
    }

    /// Ready when it is time to try to start another keeper.
    pub fn timer(&self) -> Receiver<Instant> {
        self.tried.filter(|_| self.is_missing).map_or_else(never, |tried| at(tried + PAUSE))
    }

    pub fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().map(Pid::from_raw)
    }

    /// Called when the group is gone, so that another group may get its number. The keeper is killed: one that somebody
    /// has stopped would read an order to end only after it has killed the group.
    pub fn dismiss(mut self) {
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// The last order that the keeper got.
struct Order {
    target: Target,
    kill_at: Option<Duration>,
}

impl Order {
    fn read(line: &str) -> Option<Order> {
        let (target, kill_at) = line.split_once(' ')?;
        let kill_at = kill_at.parse().ok().map(Duration::from_millis);
        let target =
            if target == PROCESS { Target::Process } else { Target::Group(Pid::from_raw(target.parse().ok()?)) };
        Some(Order { target, kill_at })
    }

    fn kill(self) {
        match self.target {
            Target::Group(group) => drop(killpg(group, Signal::SIGKILL)),
            Target::Process => drop(send_signal(io::stdout(), Signal::SIGKILL)),
        }
    }
}

/// What the keeper does, until it is dismissed or leasehold is gone.
pub fn keep() -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Failure::Own(code::INTERNAL, error.to_string());
    // Somebody who ends all processes of a service means those that work, not the keeper.
    SigSet::all().thread_block().map_err(|error| failed(&error))?;
    let pipe = io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let (mut lines, mut order) = (BufReader::new(PipeReader::from(pipe)), None);
    while let Some(line) = next_line(&mut lines, &mut order) {
        order = Order::read(&line);
    }
    order.into_iter().for_each(Order::kill);
    Ok(0)
}

/// `None`: leasehold is gone.
fn next_line(lines: &mut BufReader<PipeReader>, order: &mut Option<Order>) -> Option<String> {
    loop {
        let kill_at = order.as_ref().and_then(|order| order.kill_at);
        let left = kill_at.map(|at| at.saturating_sub(since_boot()).min(AGAIN));
        let millis = left.map(|left| u16::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u16::MAX));
        // The last look is after `kill_at`: if the keeper itself stood still, it reads only now what was sent in time.
        let is_said = |pipe: &PipeReader| {
            poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], millis).is_ok_and(|ready| ready > 0)
        };
        if !lines.buffer().is_empty() || is_said(lines.get_ref()) {
            return lines.lines().next()?.ok();
        }
        if left == Some(Duration::ZERO) {
            // After that another process may get the target's number.
            order.take().into_iter().for_each(Order::kill);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A keeper that takes its orders and does nothing.
    fn deaf(program: &str) -> Keeper {
        let child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs");
        let pipe = File::options().write(true).open("/dev/null").expect("it is there");
        Keeper { child, pipe, told: None, is_missing: false, tried: None, is_missed: false }
    }

    #[test]
    fn what_may_not_begin_stays_before_its_gate() {
        for (may_begin, told) in [(true, &b"."[..]), (false, b"")] {
            let ((mut waits, gate), mut keeper) = (Gate::closed().expect("a pipe"), deaf("cat"));
            let begun = keeper.begin(Target::Process, None, gate, || may_begin);
            let mut passed = Vec::new();
            waits.read_to_end(&mut passed).expect("its end");
            assert_eq!((begun.is_ok(), &passed[..]), (may_begin, told));
            keeper.dismiss();
        }
    }

    /// As after the keeper itself stood still.
    #[test]
    fn what_was_said_in_time_is_read_before_it_kills() {
        let (reads, mut says) = io::pipe().expect("a pipe");
        let (mut lines, told) = (BufReader::new(reads), ["process 1", "process -"]);
        says.write_all(format!("{}\n", told.join("\n")).as_bytes()).expect("somebody reads");
        // Standard output is no handle of a process, so this kills nothing.
        let mut order = Some(Order { target: Target::Process, kill_at: Some(Duration::ZERO) });
        for told in told {
            assert_eq!((next_line(&mut lines, &mut order).as_deref(), order.is_some()), (Some(told), true));
        }
        // The pipe's end may come late: a process that another test starts has the pipe, too, until it becomes its
        // program.
        drop(says);
        order = Some(Order { target: Target::Process, kill_at: None });
        assert_eq!((next_line(&mut lines, &mut order), order.is_some()), (None, true));
    }

    #[test]
    fn one_that_could_not_be_had_is_tried_for_again() {
        let mut keeper = deaf("true");
        keeper.child.wait().expect("its end");
        let mut tried = 0;
        for (is_at_once, is_had, tries) in
            [(false, false, 1), (true, true, 1), (false, false, 2), (false, true, 3), (false, true, 3)]
        {
            // However long ago the last call really was.
            keeper.tried = keeper.tried.filter(|_| is_at_once).map(|_| Instant::now() + 100 * PAUSE);
            keeper.keep_or_replace(Target::Process, None, || {
                tried += 1;
                if is_had { Ok(deaf("cat")) } else { Err(io::Error::other("no process")) }
            });
            assert_eq!((tried, keeper.is_missing), (tries, tries < 3));
        }
        keeper.dismiss();
    }
}
