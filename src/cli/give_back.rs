//! The end of a hold: its locks are released. What is wrong with that is said by nobody who waits for standard error.

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

/// What a release gets at least, for a store that answers again.
const LAST_TRY: Duration = Duration::from_millis(500);
/// Between two tries, each of which takes as long as a drop may.
const AGAIN: Duration = Duration::from_millis(200);
/// The library's watcher tells a loss within a second.
pub const TOLD: Duration = Duration::from_secs(2);

/// How a hold ended.
pub struct GivenBack {
    /// Before its end.
    pub was_lost: bool,
    /// The release was not answered.
    pub is_unanswered: bool,
    /// Since this signal to end nobody waits for that.
    pub told_to_end: Option<Signal>,
}

/// What is known of a hold that ends.
pub struct Ending<'a> {
    /// That the locks were lost was said already.
    pub is_told: bool,
    /// `None`: the release is sent and not waited for.
    pub lease_left: Option<Duration>,
    /// Unless they were lost they stand for so long.
    pub every: Option<Duration>,
    /// Whom they were held for, and what became of that.
    pub who_ended: &'a str,
    /// A signal to end is one not to wait for the store any more.
    pub signals: &'a Receiver<Signal>,
}

/// Releases the locks, and says what is wrong with that.
pub fn give_back(locks: Held, ending: &Ending<'_>) -> GivenBack {
    let Ending { is_told, lease_left, every, who_ended, signals } = *ending;
    let name = locks.name();
    // One that came when the end was not seen yet may be why: the work may be undone.
    let told_to_end = signals.try_iter().find(|signal| is_ending(*signal));
    // The keeper may have killed it before the loss was told.
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
    /// Its time was over meanwhile, and so not while its command ran.
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
    /// They stand until the command is due again, whatever became of the release.
    stands: bool,
    answer: Result<(), Unreleased>,
    is_unanswered: bool,
    told_to_end: Option<Signal>,
}

/// Releases the lock; after the end of the lease there is nothing to wait for any more. `told_to_end`: before this.
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
        // A run that has lost one is due again; the others would keep it out.
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
        locks.release(goes_on, |released| drop(done.send(stood.and(released.map_err(Unreleased::Failed)))));
    };
    let lease_left = lease_left.map(|left| if told_to_end.is_some() { LAST_TRY } else { left.max(LAST_TRY) });
    let mut over = after(lease_left.unwrap_or_default());
    let mut waits = Some(waits);
    if let Err(run) = start(run) {
        // Here, and each of it once: no signal is looked at meanwhile. Its answers are there then.
        (over, waits) = (never(), None);
        once.cancel();
        run();
    }
    let mut answers = Answers { told, over, is_over: false, signals, told_to_end, last_try: LAST_TRY };
    let (stood, answer) = (answers.next(), answers.next());
    let is_unanswered = matches!(&answer, Err(failed) if !failed.is_lost());
    drop(waits);
    // What was lost then is lost, whatever becomes of the rest.
    let (stands, answer) = match stood {
        Err(failed) if failed.is_lost() => (false, Err(failed)),
        stood => (stood.is_ok(), answer),
    };
    Release { stands, answer, is_unanswered, told_to_end: answers.told_to_end }
}

/// Runs this on a thread of its own; without one it is given back.
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

/// What the thread that releases has to say, until that is not waited for any more.
struct Answers<'a> {
    told: Receiver<Result<(), Unreleased>>,
    over: Receiver<Instant>,
    is_over: bool,
    signals: &'a Receiver<Signal>,
    told_to_end: Option<Signal>,
    /// How long it is waited for after a signal to end: the first one may have come twice, as to the group and to the
    /// process, when the answer is on its way.
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
            // A release of which nobody waits for the answer may still be under way.
            let patience = Duration::from_secs(if stands { 0 } else { 20 });
            assert_eq!(client.try_lock_for("k", patience).unwrap().is_none(), stands);
        }
    }

    /// Goes silent once it has said that a lock is lost; then its holder is told to end.
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

    /// Else the session would be closed, which hears of no signal.
    #[test]
    fn a_release_without_an_answer_is_known_as_that_where_another_lock_was_lost() {
        let is_known = || {
            let (store, (signal, signals)) = (Arc::new(MemoryStore::new()), unbounded());
            let client = store.builder().observer(Arc::new(GoesSilent(store.clone(), signal))).connect().unwrap();
            let locks = Held::All(client.lock_all(["a", "b"]).unwrap(), client);
            store.client().force_release("b").unwrap();
            let (lease_left, every) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(3600)));
            let ending = Ending { is_told: false, lease_left, every, who_ended: "it has ended", signals: &signals };
            let given_back = give_back(locks, &ending);
            given_back.was_lost && given_back.is_unanswered
        };
        // A machine that stands still may hear of the signal before the loss.
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
            // It stays open.
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
