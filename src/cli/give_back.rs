//! The end of a hold: its locks are released. What goes wrong is reported without waiting for standard error.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, after, bounded, never, select};
use leasehold::{CancelToken, Error, ErrorKind, Loss, LossReason};
use nix::sys::signal::Signal;

use crate::failure::chain;
use crate::held::Held;
use crate::signals::is_ending;
use crate::warnings::tell;
use crate::words::words;

/// The least time for a release, in case the store answers again.
const LAST_TRY: Duration = Duration::from_millis(500);
/// The pause between two tries, each of which may take as long as a drop.
const AGAIN: Duration = Duration::from_millis(200);
/// How long to wait for the report of a loss. The library's watcher makes it within a second.
pub const TOLD: Duration = Duration::from_secs(2);

/// How a hold ended.
pub struct GivenBack {
    /// A lock was lost before the end of the hold.
    pub was_lost: bool,
    /// The release was not answered.
    pub is_unanswered: bool,
    /// The signal to end that came, after which the answer is waited for only for a moment.
    pub told_to_end: Option<Signal>,
}

/// What is known of a hold that ends.
pub struct Ending<'a> {
    /// The loss of the locks was reported already.
    pub is_told: bool,
    /// What is left of the lease. `None`: the release is sent and not waited for.
    pub lease_left: Option<Duration>,
    /// Unless the locks were lost, they must stay in the store for this time, counted from the grant.
    pub every: Option<Duration>,
    /// What the locks were held for, and how that ended, for messages.
    pub who_ended: &'a str,
    /// After a signal to end the store is waited for only for a moment.
    pub signals: &'a Receiver<Signal>,
}

/// Releases the locks, and reports what goes wrong.
pub fn give_back(locks: Held, ending: &Ending<'_>) -> GivenBack {
    let Ending { is_told, lease_left, every, who_ended, signals } = *ending;
    let name = locks.name();
    // A signal that came before the end was seen may have caused that end: then the work may not be done.
    let told_to_end = signals.try_iter().find(|signal| is_ending(*signal));
    // The keeper may have killed the command before the loss was reported.
    let was_lost = is_told || locks.lost(&[]).is_some() || !locks.is_held();
    if was_lost && !is_told {
        let loss = locks.lost(&[]).or_else(|| locks.wait_for_loss(TOLD));
        let (name, why) = match loss {
            Some(loss) => (format!("the lock {:?}", loss.key), loss.to_string()),
            None => (name.clone(), "expired".to_owned()),
        };
        tell(&format!("{name} was lost: {why}; {who_ended}"));
    }
    let every = every.filter(|_| !was_lost && told_to_end.is_none());
    let release = release(locks, lease_left, every, signals, told_to_end);
    let Release { stands, answer: released, is_unanswered, told_to_end } = release;
    let was_lost = match released {
        _ if was_lost => true,
        Ok(()) => false,
        Err(failed) if failed.is_lost() => {
            tell(&failed.to_string());
            true
        }
        Err(why) => {
            let what = match every {
                Some(every) if stands => {
                    format!("could not be released, but will stand for at least {} from the grant", words(every))
                }
                Some(_) => "may be free before the command is due again, so it may run again in this period".to_owned(),
                None => "could not be released and ends with its lease".to_owned(),
            };
            tell(&format!("{name} {what}: {why}"));
            false
        }
    };
    GivenBack { was_lost, is_unanswered, told_to_end }
}

/// Why it is not known that the lock was released.
#[derive(Clone)]
enum Unreleased {
    Failed(Error),
    /// The lease or the maximum hold ended during the release, and so not while the command ran.
    IsOver(Error),
    NoAnswer,
}

impl Unreleased {
    fn is_lost(&self) -> bool {
        matches!(self, Unreleased::Failed(error) if error.kind() == ErrorKind::Lost)
    }
}

impl fmt::Display for Unreleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreleased::Failed(error) | Unreleased::IsOver(error) => f.write_str(&chain(error)),
            Unreleased::NoAnswer => f.write_str("the store does not answer"),
        }
    }
}

/// How the locks were released.
struct Release {
    /// The locks stay in the store until the command is due again, whatever happened to the release.
    stands: bool,
    answer: Result<(), Unreleased>,
    is_unanswered: bool,
    told_to_end: Option<Signal>,
}

/// Releases the locks; after the end of the lease there is nothing to wait for any more. `told_to_end`: by a signal
/// that came before this.
fn release(
    locks: Held,
    lease_left: Option<Duration>,
    every: Option<Duration>,
    signals: &Receiver<Signal>,
    told_to_end: Option<Signal>,
) -> Release {
    let (done, told) = bounded(2);
    let (waits, nobody_waits) = bounded::<Infallible>(0);
    let (name, is_waited_for) = (locks.name(), lease_left.is_some());
    let once = CancelToken::new();
    let is_once = once.clone();
    let run = move || {
        let stood = every.map_or(Ok(()), |every| locks.stand(every, &is_once, None));
        let is_over = |loss: Loss| matches!(loss.reason, LossReason::Expired { .. } | LossReason::MaxHold);
        let is_over = locks.lost(&[]).is_some_and(is_over);
        let stood = stood.map_err(if is_over { Unreleased::IsOver } else { Unreleased::Failed });
        let _ = done.send(stood.clone());
        // A run that has lost a lock is due again, but the locks that stay in the store would keep it out.
        if let Some(every) = every.filter(|_| stood.as_ref().is_err_and(Unreleased::is_lost)) {
            locks.free_what_stands(every, "one of them was lost");
        }
        let mut is_said = false;
        let goes_on = |why: &Error| {
            let is_waited_for = is_waited_for && nobody_waits.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout);
            if is_waited_for && !std::mem::replace(&mut is_said, true) {
                tell(&format!("{name} could not be released yet, which is tried until its lease ends: {why}"));
            }
            is_waited_for
        };
        locks.release(every.is_some(), goes_on, |released| {
            drop(done.send(stood.and(released.map_err(Unreleased::Failed))))
        });
    };
    let lease_left = lease_left.map(|left| if told_to_end.is_some() { LAST_TRY } else { left.max(LAST_TRY) });
    let mut over = after(lease_left.unwrap_or_default());
    let mut waits = Some(waits);
    if let Err(run) = start(run) {
        // There is no thread, so it runs here, and tries each step once, because no signal is looked at meanwhile.
        // Afterwards its answers are in the channel.
        (over, waits) = (never(), None);
        once.cancel();
        run();
    }
    let mut answers = Answers { told, over, is_over: false, signals, told_to_end, last_try: LAST_TRY };
    let (stood, answer) = (answers.next(), answers.next());
    let is_unanswered = matches!(&answer, Err(failed) if !failed.is_lost());
    drop(waits);
    // A loss before the release counts, whatever happens to the rest.
    let (stands, answer) = match stood {
        Err(failed) if failed.is_lost() => (false, Err(failed)),
        stood => (stood.is_ok(), answer),
    };
    Release { stands, answer, is_unanswered, told_to_end: answers.told_to_end }
}

/// Runs this on a thread of its own; if none can be started, returns it.
fn start<F: FnOnce() + Send + 'static>(run: F) -> Result<(), F> {
    let slot = Arc::new(Mutex::new(Some(run)));
    let take = |slot: &Mutex<Option<F>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = slot.clone();
    let thread = std::thread::Builder::new().name("leasehold-release".to_owned());
    match thread.spawn(move || take(&theirs).map_or((), |run| run())) {
        Ok(_) => Ok(()),
        Err(_) => take(&slot).map_or(Ok(()), Err),
    }
}

/// The answers of the thread that releases, until they are not waited for any more.
struct Answers<'a> {
    told: Receiver<Result<(), Unreleased>>,
    over: Receiver<Instant>,
    is_over: bool,
    signals: &'a Receiver<Signal>,
    told_to_end: Option<Signal>,
    /// How long to wait for an answer after a signal to end. The same signal may come twice, to the group and to the
    /// process, while the answer is on its way, so a second one does not end the wait earlier.
    last_try: Duration,
}

impl Answers<'_> {
    fn next(&mut self) -> Result<(), Unreleased> {
        while !self.is_over {
            select! {
                recv(self.told) -> answer => return answer.unwrap_or(Err(Unreleased::NoAnswer)),
                recv(self.over) -> _ => self.is_over = true,
                recv(self.signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| is_ending(*signal))
                    && self.told_to_end.is_none()
                {
                    (self.over, self.told_to_end) = (after(self.last_try), Some(signal));
                },
            }
        }
        Err(Unreleased::NoAnswer)
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Sender, unbounded};
    use leasehold::testing::MemoryStore;
    use leasehold::{Event, LockClient, Observer, Operation};

    use super::*;

    #[test]
    fn what_was_told_to_end_before_its_end_was_seen_is_due_again() {
        let client = LockClient::connect("memory:").unwrap();
        for (signals, stands) in [(&[Signal::SIGCHLD, Signal::SIGTERM][..], false), (&[Signal::SIGCHLD], true)] {
            let (told, came) = unbounded();
            signals.iter().for_each(|signal| told.send(*signal).unwrap());
            let (lease_left, every) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(3600)));
            let ending = Ending { is_told: false, lease_left, every, who_ended: "it has ended", signals: &came };
            let given_back = give_back(Held::One(client.lock("k").unwrap()), &ending);
            assert_eq!(given_back.told_to_end, (!stands).then_some(Signal::SIGTERM));
            // After a signal to end, the release may still be under way, because nobody waits for its answer.
            let patience = Duration::from_secs(if stands { 0 } else { 20 });
            assert_eq!(client.try_lock_for("k", patience).unwrap().is_none(), stands);
        }
    }

    /// Takes the store away once a lock is found lost, and sends the holder a signal to end once a read fails.
    struct GoesSilent(Arc<MemoryStore>, Sender<Signal>);

    impl Observer for GoesSilent {
        fn event(&self, event: &Event<'_>) {
            match event {
                Event::Lost { .. } => self.0.go_offline(),
                Event::Request { operation: Operation::Read, error: Some(_), .. } => {
                    let _ = self.1.send(Signal::SIGTERM);
                }
                _ => {}
            }
        }
    }

    /// Otherwise the end of the session would close the client and wait for that, whatever signal comes.
    #[test]
    fn a_release_without_an_answer_is_known_as_that_where_another_lock_was_lost() {
        let is_known = || {
            let (store, (signal, signals)) = (Arc::new(MemoryStore::new()), unbounded());
            let client = store.builder().observer(Arc::new(GoesSilent(store.clone(), signal))).connect().unwrap();
            let locks = Held::All(client.lock_all(["a", "b"]).unwrap(), client, None);
            store.client().force_release("b").unwrap();
            let (lease_left, every) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(3600)));
            let ending = Ending { is_told: false, lease_left, every, who_ended: "it has ended", signals: &signals };
            let given_back = give_back(locks, &ending);
            given_back.was_lost && given_back.is_unanswered
        };
        // If this machine stands still, the signal may be seen before the loss.
        assert!((0..3).any(|_| is_known()));
    }

    #[test]
    fn a_signal_leaves_a_release_a_moment_and_no_more() {
        let ((signal, signals), (done, told)) = (unbounded(), bounded(2));
        [Signal::SIGHUP, Signal::SIGTERM].into_iter().for_each(|ending| signal.send(ending).unwrap());
        let read = signals.clone();
        std::thread::spawn(move || {
            while !read.is_empty() {
                std::thread::yield_now();
            }
            done.send(Ok(())).unwrap();
            // The channel stays open.
            std::mem::forget(done);
        });
        let answers = |last_try| {
            let told = told.clone();
            Answers { told, over: never(), is_over: false, signals: &signals, told_to_end: None, last_try }
        };
        let mut patient = answers(Duration::from_secs(60));
        assert!(patient.next().is_ok());
        assert_eq!(patient.told_to_end, Some(Signal::SIGHUP));
        signal.send(Signal::SIGTERM).unwrap();
        let mut hurried = answers(Duration::ZERO);
        assert!(matches!([hurried.next(), hurried.next()], [Err(Unreleased::NoAnswer), Err(Unreleased::NoAnswer)]));
        assert_eq!(hurried.told_to_end, Some(Signal::SIGTERM));
    }
}
