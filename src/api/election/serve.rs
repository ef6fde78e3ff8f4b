//! The thread of `run` and `lead`: it campaigns, serves one term after the other, and resigns.

use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, bounded, never, select, select_biased, tick};
use parking_lot::Mutex;

use super::leadership::{Leadership, Term, TermEnd};
use super::shared::{Shared, Stands};
use super::standing::{LeftBehind, WorkEnd};
use crate::engine::spec::Patience;
use crate::lease::backoff;
use crate::model::error::{ErrorKind, Result};
use crate::model::loss::LossReason;
use crate::sys::cancel::CancelToken;
use crate::sys::caught::caught;
use crate::sys::deadline::{Deadline, far_from, is_ready_by};
use crate::sys::log;
use crate::sys::process::ProcessId;
use crate::sys::thread::{Thread, begin_to_keep_a_lock, here};

/// The closure of `lead`.
pub(super) type Work = Box<dyn FnMut(&Leadership) -> Result<(), String> + Send>;

/// How many health checks, and rounds of a leader, there are in a lease.
const ROUNDS: u32 = 3;
/// A node that could not campaign tries again after at most this time, however long its lease is.
const LONGEST_OUT: Duration = Duration::from_secs(10);

/// Why a term must end.
enum Over {
    /// The lock was lost.
    Lost,
    /// Somebody asked for the end, or has ended it already.
    Asked,
    Unhealthy,
    /// The health check did not return within a lease.
    HealthHangs,
    Done(WorkEnd),
}

/// Campaigns until it is stopped.
pub(super) fn run(stands: &Stands, work: Option<Work>) {
    let (shared, standing) = (&stands.shared, &stands.standing);
    standing.crew.lock().push(here());
    let work = work.map(|work| Arc::new(Mutex::new(work)));
    loop {
        let pause = match caught(|| term(stands, work.as_ref())) {
            Some(Ok(_)) if !shared.node.stand_again => return,
            // A node that resigned pauses for as long as the longest pause of nodes that have waited for long, so that
            // one of them can win.
            Some(Ok(true)) => backoff::poll_delay(&shared.node.client.family.options.poll, Duration::MAX, None, 1.0),
            Some(Ok(false)) => Duration::ZERO,
            Some(Err(error)) if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Closed) => return,
            Some(Err(error)) => {
                log::warn!(target: "leasehold::election", name:? = shared.node.name;
                    "this node could not campaign for {:?} and tries again: {}", shared.node.name, error.with_causes());
                out_for(shared)
            }
            None => {
                log::error!(target: "leasehold::election", name:? = shared.node.name; "a term ended by a panic");
                out_for(shared)
            }
        };
        if !shared.pausing(&standing.stop).wait_for(pause) {
            return;
        }
    }
}

/// How long a node pauses after it could not campaign, or was not healthy.
fn out_for(shared: &Shared) -> Duration {
    (shared.node.lease / ROUNDS).min(LONGEST_OUT)
}

/// Campaigns, and serves a whole term. Returns whether this node resigned although it could have gone on.
fn term(stands: &Stands, work: Option<&Arc<Mutex<Work>>>) -> Result<bool> {
    let (shared, standing) = (&stands.shared, &stands.standing);
    let leadership = Arc::new(shared.win(standing, Patience::Endless)?);
    let term = &leadership.term;
    let done = match work {
        Some(work) => work_on(stands, work.clone(), leadership.clone())?,
        None => never(),
    };
    let over = watch(shared, term, &standing.stop, &done);
    let is_done = matches!(over, Over::Done(_));
    term.end(match over {
        Over::Unhealthy => TermEnd::Unhealthy,
        Over::HealthHangs => TermEnd::HealthHangs,
        Over::Done(WorkEnd::Failed(why)) => TermEnd::Failed(why),
        Over::Done(WorkEnd::Panicked) => TermEnd::Panicked,
        Over::Lost | Over::Asked | Over::Done(WorkEnd::Done) => TermEnd::Resigned,
    });
    let has_ended = work.is_none() || is_done || wait_for_work(stands, term, &done);
    let by = far_from(Instant::now(), shared.bound());
    let by = if standing.stop.is_cancelled() { standing.ends(by).1 } else { by };
    let outcome = if has_ended {
        term.guard.release_within(by.saturating_duration_since(Instant::now()))
    } else {
        // The closure still uses what the lock protects, so no other node may lead before the lease is over.
        term.guard.leave(by.saturating_duration_since(Instant::now()));
        *shared.now.left_behind.lock() = Some(LeftBehind { done, standing: standing.clone() });
        Err(shared.late_closure())
    };
    // A closure that returns because of the loss may be seen before the loss: so the loss itself decides.
    let has_resigned = term.guard.loss().get().is_none_or(|loss| matches!(loss.reason, LossReason::MaxHold));
    if standing.stop.is_cancelled() {
        standing.outcome.lock().clone_from(&outcome);
    }
    if let Err(error) = outcome
        && error.kind() != ErrorKind::Lost
        && !standing.is_awaited.load(Ordering::SeqCst)
    {
        log::warn!(target: "leasehold::election", name:? = shared.node.name;
            "the leader of {:?} could not resign; its lease runs out: {}", shared.node.name, error.with_causes());
    }
    Ok(has_resigned)
}

/// Runs the closure on its own thread, which reports how it ended.
fn work_on(stands: &Stands, work: Arc<Mutex<Work>>, leadership: Arc<Leadership>) -> Result<Receiver<WorkEnd>> {
    let (tell, done) = bounded(1);
    let (standing, process) = (stands.standing.clone(), ProcessId::current());
    Thread::spawn_for_user("leasehold-lead", move || {
        let may_work = standing.may_work();
        let name = leadership.name().to_owned();
        let end = caught(|| if may_work { work.lock()(&leadership) } else { Ok(()) });
        // The closure may have forked: in the child the term has no owner.
        if !process.is_current() {
            std::mem::forget((leadership, work, tell, standing));
            return;
        }
        // A logger that hangs must not keep the term from ending.
        begin_to_keep_a_lock();
        let end = match end {
            Some(Ok(())) => WorkEnd::Done,
            Some(Err(why)) => {
                log::warn!(target: "leasehold::election", name:?; "the work of the leader of {name:?} failed: {why}");
                WorkEnd::Failed(why)
            }
            None => {
                log::error!(target: "leasehold::election", name:?; "the work of the leader of {name:?} panicked");
                WorkEnd::Panicked
            }
        };
        // They may own data of the user's. It must be dropped before a stop returns, and its drop may itself stop the
        // election: so this thread still counts as crew here.
        let _ = caught(|| drop((leadership, work)));
        standing.crew.lock().retain(|thread| *thread != here());
        let _ = tell.send(end);
    })?;
    Ok(done)
}

/// Waits for the closure; after a stop only for as long as the stop allows. A stop by the closure itself sets no limit.
/// Returns whether the closure ended.
fn wait_for_work(stands: &Stands, term: &Term, done: &Receiver<WorkEnd>) -> bool {
    let (standing, node) = (&stands.standing, &stands.shared.node);
    let has_time = || standing.is_stopped_inside.load(Ordering::SeqCst) && !standing.hurry.is_cancelled();
    let (mut late, mut was_held) = (after(node.lease), None);
    loop {
        let stop = if has_time() { &standing.hurry } else { &standing.stop };
        select! {
            recv(done) -> _ => return true,
            recv(stop.cancelled()) -> _ => if !has_time() { break },
            recv(late) -> _ => {
                // The guard's loss watch ended with the term, so it does not report a loss from now on.
                let is_held = term.guard.is_held();
                late = if is_held { after(node.lease) } else { never() };
                if was_held.replace(is_held) == Some(is_held) {
                    continue;
                }
                let others = match is_held {
                    true => "until it ends no other node leads",
                    false => "another node may lead already",
                };
                log::warn!(target: "leasehold::election", name:? = node.name;
                    "the term of the leader of {:?} is over, but its work goes on: {others}", node.name);
            }
        }
    }
    let (patience, _) = stands.standing.ends(far_from(Instant::now(), stands.shared.bound()));
    is_ready_by(done, patience)
}

/// Waits until the term must end.
fn watch(shared: &Shared, term: &Term, stop: &CancelToken, done: &Receiver<WorkEnd>) -> Over {
    let (loss, rounds, nothing) = (term.guard.loss().receiver(), tick(shared.node.lease / ROUNDS), never());
    let health = shared.node.health.as_ref();
    let answers = health.map_or(&nothing, |health| health.answers());
    health.map(|health| health.ask());
    let mut asked = Instant::now();
    loop {
        // What ended the term is taken first: a health answer that is there then must remain for the next campaign.
        select_biased! {
            recv(loss) -> loss => return if loss.is_ok() { Over::Lost } else { Over::Asked },
            recv(stop.cancelled()) -> _ => return Over::Asked,
            recv(done) -> end => return Over::Done(end.unwrap_or(WorkEnd::Panicked)),
            recv(answers) -> answer => {
                health.iter().for_each(|health| health.answered());
                if answer == Ok(false) {
                    return Over::Unhealthy;
                }
            }
            recv(rounds) -> _ => {
                shared.news.rounds.fetch_add(1, Ordering::SeqCst);
                match health.map(|health| health.ask()) {
                    Some(true) => asked = Instant::now(),
                    Some(false) if asked.elapsed() >= shared.node.lease => return Over::HealthHangs,
                    _ => {}
                }
            }
        }
    }
}

/// For a leadership that `campaign` returned: resigns when the health check fails.
pub(super) fn keep_healthy(shared: &Shared, term: &Term) {
    term.end(match watch(shared, term, &CancelToken::new(), &never()) {
        Over::Unhealthy => TermEnd::Unhealthy,
        Over::HealthHangs => TermEnd::HealthHangs,
        _ => return,
    });
    term.guard.end_quietly();
}

/// Waits until this node is healthy; false when it is stopped before.
pub(super) fn wait_for_health(shared: &Shared, forever: &Deadline) -> bool {
    let Some(health) = &shared.node.health else { return true };
    health.forget();
    loop {
        health.ask();
        // It is asked once more after a while, because the thread of the last term may have taken the answer.
        if !forever.wait_for_any(out_for(shared), once(health.answers())) {
            return false;
        }
        match health.answers().try_recv().inspect(|_| health.answered()) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => continue,
        }
        if !forever.wait_for(out_for(shared)) {
            return false;
        }
    }
}

/// Waits for the closure of the last term, if it did not end in time; false when it is stopped before.
pub(super) fn wait_for_the_last(shared: &Shared, forever: &Deadline) -> bool {
    let Some(behind) = shared.now.left_behind.lock().clone() else { return true };
    let has_ended = forever.wait_for_any(Duration::MAX, once(&behind.done));
    if has_ended {
        shared.now.left_behind.lock().take();
    }
    has_ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockClient;

    #[test]
    fn a_term_that_is_over_takes_no_answer_of_the_next_campaign() {
        let client = LockClient::connect("memory:").unwrap();
        let election = client.election("job").health_check(|| true).build().unwrap();
        let (shared, health) = (&election.shared, election.shared.node.health.as_ref().unwrap());
        health.start().unwrap();
        let term = Term::new(client.lock("job").unwrap(), shared.clone());
        term.guard.end_quietly();
        let forever = shared.pausing(&CancelToken::new());
        health.ask();
        assert!(forever.wait_for_any(Duration::MAX, once(health.answers())));
        for _ in 0..100 {
            assert!(matches!(watch(shared, &term, &CancelToken::new(), &never()), Over::Asked));
            assert_eq!(health.answers().len(), 1);
        }
    }
}
