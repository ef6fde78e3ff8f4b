//! What an election's handle, its thread and its leaderships share.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::callbacks::{Callbacks, Dispatcher};
use super::health::Health;
use super::leader::Leader;
use super::leadership::{Leadership, Term, TermEnd};
use super::serve::{self, Work};
use super::standing::{Kind, LeftBehind, Standing};
use crate::api::client::LockClient;
use crate::api::request::LockRequest;
use crate::engine::family::EndsFirst;
use crate::engine::spec::Patience;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::loss::Loss;
use crate::model::waiting::Waiting;
use crate::sys::cancel::CancelToken;
use crate::sys::deadline::{Deadline, far_from, is_ready_by};
use crate::sys::log;
use crate::sys::thread::{Thread, begin_to_keep_a_lock, here, keeping_a_lock};

/// See the module.
pub(super) struct Shared {
    pub node: Node,
    pub news: News,
    pub now: Now,
}

/// The node and its options. Never changes.
pub(super) struct Node {
    pub client: LockClient,
    pub name: String,
    pub id: String,
    pub lease: Duration,
    pub max_hold: Option<Duration>,
    pub stand_again: bool,
    /// Each of them ends every campaign.
    pub cancels: Vec<CancelToken>,
    pub health: Option<Health>,
}

/// What is reported to the user.
pub(super) struct News {
    pub dispatcher: Dispatcher,
    pub terms: AtomicU64,
    pub rounds: AtomicU64,
    /// The highest token of a leader that was reported.
    seen: AtomicU64,
}

impl News {
    pub fn new(callbacks: Callbacks) -> Self {
        let [terms, rounds, seen] = [const { AtomicU64::new(0) }; 3];
        News { dispatcher: Dispatcher::new(callbacks), terms, rounds, seen }
    }
}

/// What is going on now.
#[derive(Default)]
pub(super) struct Now {
    term: Mutex<Weak<Term>>,
    standing: Mutex<Option<Arc<Standing>>>,
    /// The closure of an earlier term that did not end in time.
    pub left_behind: Mutex<Option<LeftBehind>>,
}

/// What a stop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    All,
    /// All but a leadership that `campaign` returned.
    ButCampaigns,
}

/// What the caller that asks for the end does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It waits, and gets the outcome.
    Waits,
    Leaves,
}

/// Lives as long as the campaign.
pub(super) struct Stands {
    pub shared: Arc<Shared>,
    pub standing: Arc<Standing>,
    running: Option<Sender<Infallible>>,
}

impl Drop for Stands {
    fn drop(&mut self) {
        // The user's code may have forked: in the child both mutexes below may be locked for ever.
        if self.shared.check_open_here().is_err() {
            std::mem::forget(self.running.take());
            return;
        }
        // Threads are known by an address (see `here`), which a later thread may get.
        self.standing.crew.lock().retain(|thread| *thread != here());
        self.shared.now.standing.lock().take();
    }
}

impl Shared {
    /// An error in a forked child. A closed client is fine.
    pub fn check_open_here(&self) -> Result<()> {
        let family = &self.node.client.family;
        if family.is_own_process() { Ok(()) } else { family.check_open() }
    }

    /// How long resigning may take.
    pub fn bound(&self) -> Duration {
        self.node.client.family.options.drop_timeout
    }

    /// The request for the leader's lock.
    pub fn request(&self) -> LockRequest {
        let mut request = self.node.client.request(&self.node.name).owner(&self.node.id).lease(self.node.lease);
        request.spec.lock.expects_to_wait = true;
        match self.node.max_hold {
            Some(max_hold) => request.max_hold(max_hold),
            None => request,
        }
    }

    /// The last term that this node has won, if somebody still uses it.
    pub fn term(&self) -> Option<Arc<Term>> {
        // In a forked child the mutex may be locked for ever: by a thread of the parent that does not exist here.
        if self.node.client.family.is_own_process() { self.now.term.lock().upgrade() } else { None }
    }

    pub fn is_standing(&self) -> bool {
        let is_own_process = self.node.client.family.is_own_process();
        is_own_process && (self.now.standing.lock().is_some() || self.term().is_some_and(|term| term.is_leader()))
    }

    /// Begins a campaign, unless there is one already.
    fn begin(self: &Arc<Self>, kind: Kind) -> Result<Stands> {
        self.node.client.family.check_open()?;
        let started =
            self.news.dispatcher.start().and_then(|()| self.node.health.as_ref().map_or(Ok(()), Health::start));
        started.map_err(|error| self.in_context(error))?;
        let mut current = self.now.standing.lock();
        if current.is_some() || self.term().is_some_and(|term| term.is_leader()) {
            let message = "this election already campaigns or leads; a second node needs an election of its own";
            return Err(self.node.client.error(ErrorKind::AlreadyHeld, &self.node.name, message));
        }
        let (running, over) = crossbeam_channel::bounded(0);
        let standing = Arc::new(Standing::new(kind, &self.node.cancels, over));
        *current = Some(standing.clone());
        drop(current);
        // The earlier term may have been lost without a report of its end. It is reported now, because the next term
        // takes its place.
        if let Some(lost) = self.term() {
            lost.end(TermEnd::Resigned);
        }
        Ok(Stands { shared: self.clone(), standing, running: Some(running) })
    }

    /// Starts a thread that campaigns, with the closure of `lead`.
    pub fn start(self: &Arc<Self>, work: Option<Work>) -> Result<()> {
        let stands = self.begin(Kind::Run)?;
        let run = move || {
            begin_to_keep_a_lock();
            serve::run(&stands, work);
        };
        Thread::spawn_for_user("leasehold-elect", run).map(drop).map_err(|error| self.in_context(error))
    }

    fn in_context(&self, error: Error) -> Error {
        self.node.client.family.in_context(error.with_key(&self.node.name))
    }

    pub fn campaign(self: &Arc<Self>, patience: Patience) -> Result<Leadership> {
        let stands = self.begin(Kind::Campaign)?;
        stands.standing.crew.lock().push(here());
        let stop = &stands.standing.stop;
        let leadership = self.win(&stands.standing, patience)?;
        // A stop either finds the term, or has cancelled the token by now.
        if stop.is_cancelled() {
            leadership.abandon();
            return Err(self.cancelled());
        }
        if self.node.health.is_some() {
            let (shared, term) = (self.clone(), leadership.term.clone());
            let keep = move || {
                begin_to_keep_a_lock();
                serve::keep_healthy(&shared, &term);
            };
            Thread::spawn_for_user("leasehold-elect", keep).map_err(|error| {
                leadership.abandon();
                self.in_context(error)
            })?;
        }
        Ok(leadership)
    }

    /// Waits until this node is healthy, and then until it leads.
    pub fn win(self: &Arc<Self>, standing: &Standing, patience: Patience) -> Result<Leadership> {
        let stop = &standing.stop;
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let pausing = self.pausing(stop);
        let pausing = match patience {
            // A single try may take as long as one request, so the health check gets that long, too.
            Patience::Once => pausing.within(self.node.client.family.options.request_timeout),
            Patience::Until(until) => pausing.within(left(until)),
            Patience::Endless => pausing,
        };
        if !serve::wait_for_the_last(self, &pausing) || !serve::wait_for_health(self, &pausing) {
            self.node.client.family.check_open()?;
            if stop.is_cancelled() {
                return Err(self.cancelled());
            }
            let message = "the time was over before this node was fit to lead";
            return Err(self.node.client.error(ErrorKind::TimedOut, &self.node.name, message));
        }
        let shared = self.clone();
        let request = self.request().cancel(stop).on_wait(move |waiting| shared.waits(waiting));
        let request = match standing.kind {
            Kind::Run => request,
            // No thread of the election ends this term when its lock is lost, and its user may make no call.
            Kind::Campaign => {
                let shared = Arc::downgrade(self);
                request.on_loss(move |loss| shared.upgrade().into_iter().for_each(|shared| shared.lost(&loss)))
            }
        };
        let request = match patience {
            Patience::Once => request.wait(Duration::ZERO),
            // Not zero, nor `wait_until`: once the time is over these still try once, for as long as a request may take.
            Patience::Until(until) => request.wait(left(until).max(Duration::from_nanos(1))),
            Patience::Endless => request,
        };
        let guard = request.lock()?;
        self.news.rounds.fetch_add(1, Ordering::SeqCst);
        let (token, loss, leader) = (guard.fencing_token(), guard.loss().channel(), Leader::by(&guard.info()));
        let term = Arc::new(Term::new(guard, self.clone()));
        {
            // A stop first cancels the campaign and then looks for the term here. So either the cancelling is seen
            // here, or the stop finds the term, whose win was reported before.
            let mut place = self.now.term.lock();
            if standing.kind == Kind::Campaign && stop.is_cancelled() {
                drop(place);
                term.guard.abandon();
                return Err(self.cancelled());
            }
            *place = Arc::downgrade(&term);
            self.news.terms.fetch_add(1, Ordering::SeqCst);
            self.news.dispatcher.won(token, loss);
        }
        term.tell_begin();
        // The lock may have been lost before `on_loss` could find the term in its place.
        if let Some(loss) = term.guard.loss().get() {
            term.end(TermEnd::Lost(loss));
        }
        let leadership = Leadership::new(term);
        // A logger that hangs must not keep this from returning: the lock is renewed meanwhile, and nobody would know.
        keeping_a_lock(
            || log::info!(target: "leasehold::election", name:? = self.node.name, token; "this node leads {:?} with token {token}", self.node.name),
        );
        self.sees(leader);
        Ok(leadership)
    }

    /// Ends the term that this loss is of.
    fn lost(&self, loss: &Loss) {
        if let Some(term) = self.term().filter(|term| term.guard.fencing_token() == loss.fencing_token) {
            term.end(TermEnd::Lost(loss.clone()));
        }
    }

    /// The error of a campaign that was stopped: `Closed` if the client was closed.
    fn cancelled(&self) -> Error {
        let stopped = || self.node.client.error(ErrorKind::Cancelled, &self.node.name, "the election was stopped");
        self.node.client.family.check_open().err().unwrap_or_else(stopped)
    }

    /// A deadline for pauses that end early at a stop or the client's close.
    pub fn pausing(&self, stop: &CancelToken) -> Deadline {
        Deadline::after(Duration::MAX).or_cancel(stop).or_cancel(self.node.client.family.closing())
    }

    fn waits(&self, waiting: &Waiting) {
        self.news.rounds.fetch_add(1, Ordering::SeqCst);
        Leader::of(&waiting.holders).into_iter().for_each(|leader| self.sees(leader));
    }

    fn sees(&self, leader: Leader) {
        let (token, seen) = (leader.fencing_token(), &self.news.seen);
        // A leader that is left out does not raise `seen`, so it is reported when it is seen again.
        if seen.load(Ordering::SeqCst) < token && self.news.dispatcher.leader(leader) {
            seen.fetch_max(token, Ordering::SeqCst);
        }
    }

    /// Ends the campaign, and waits for the end.
    pub fn stop(&self, by: Instant, ends: Ends) -> Result<()> {
        let standing = self.ask(by, ends, Then::Waits);
        let outcome = match &standing {
            Some(standing) => {
                let is_late = standing.is_late(by);
                match standing.outcome.lock().clone() {
                    Ok(()) if is_late => Err(self.node.client.error(
                        ErrorKind::TimedOut,
                        &self.node.name,
                        "its thread did not end in time",
                    )),
                    // The error of a failed release comes before lateness: the thread tries once more, and may be late
                    // by that.
                    outcome => outcome,
                }
            }
            None => match self.term().filter(|_| ends == Ends::All) {
                Some(term) => term.guard.release_within(by.saturating_duration_since(Instant::now())),
                None => Ok(()),
            },
        };
        // The closure of an earlier term. A campaign that has begun since then waits for it, too.
        let behind = self.now.left_behind.lock().clone();
        let is_inside = standing.iter().chain(behind.iter().map(|behind| &behind.standing)).any(|one| one.is_crew());
        let still_runs = |behind: LeftBehind| !is_ready_by(&behind.done, by);
        let outcome = match outcome {
            Ok(()) if ends == Ends::All && !is_inside && behind.is_some_and(still_runs) => Err(self.late_closure()),
            outcome => outcome,
        };
        if !is_inside {
            self.news.dispatcher.flush(by);
        }
        outcome
    }

    pub fn late_closure(&self) -> Error {
        let message = "the closure did not end in time; the lock is not released but ends with its lease";
        self.node.client.error(ErrorKind::TimedOut, &self.node.name, message)
    }

    /// Asks for the end without waiting for it: of the campaign, or else of the leadership that `campaign` returned.
    fn ask(&self, by: Instant, ends: Ends, then: Then) -> Option<Arc<Standing>> {
        let standing = self.now.standing.lock().clone();
        if let Some(standing) = &standing {
            if standing.is_crew() {
                standing.is_stopped_inside.store(true, Ordering::SeqCst);
            } else {
                standing.is_awaited.fetch_or(then == Then::Waits, Ordering::SeqCst);
                standing.ends(by);
                standing.hurry.cancel();
            }
            standing.stop.cancel();
        }
        let standing = standing.filter(|standing| standing.kind == Kind::Run);
        if standing.is_none()
            && ends == Ends::All
            && let Some(term) = self.term()
        {
            term.end(TermEnd::Resigned);
        }
        standing
    }

    /// Waits for the end of `run` or `lead`. Called by a closure of an earlier term it does not wait, because the
    /// current campaign waits for that closure.
    pub fn wait(&self) {
        let is_behind = || self.now.left_behind.lock().as_ref().is_some_and(|behind| behind.standing.is_crew());
        if self.node.client.family.is_own_process() && !is_behind() {
            let standing = self.now.standing.lock().clone().filter(|standing| standing.kind == Kind::Run);
            let _ = standing.map(|standing| standing.is_late(far_from(Instant::now(), Duration::MAX)));
        }
    }
}

impl EndsFirst for Shared {
    fn ask_to_end(&self, by: Instant) {
        self.ask(by, Ends::All, Then::Leaves);
    }

    fn wait_for_end(&self, by: Instant) {
        let standing = self.now.standing.lock().clone();
        if let Some(standing) = standing
            // The closure still uses what the lock protects, so the close, which releases all guards next, must not
            // release this one. The close may be called by the closure itself (`is_crew`).
            && (standing.is_crew() || standing.is_late(by))
            && standing.works()
            && let Some(term) = self.term()
        {
            term.guard.leave(Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::sys::aside::MOST_WAITING;

    #[test]
    fn a_new_leader_that_was_left_out_is_told_when_it_is_seen_again() {
        let (told, tells) = channel();
        let (open, gate) = crossbeam_channel::bounded::<Infallible>(0);
        let client = LockClient::connect("memory:").unwrap();
        let election = client.election("job").on_leader(move |leader| {
            let _ = gate.recv();
            told.send(leader.fencing_token()).unwrap_or_default();
        });
        let election = election.build().unwrap();
        let (shared, by) = (&election.shared, far_from(Instant::now(), Duration::from_secs(60)));
        shared.news.dispatcher.start().unwrap();
        let mut lock = client.request("other").acquire().unwrap();
        let last = MOST_WAITING as u64 + 5;
        for token in 1..=last {
            lock.token = token;
            shared.sees(Leader::by(&lock));
        }
        drop(open);
        shared.news.dispatcher.flush(by);
        shared.sees(Leader::by(&lock));
        shared.news.dispatcher.flush(by);
        assert_eq!(tells.try_iter().last(), Some(last));
    }
}
