//! Leader election: of all nodes that stand for a name, one leads at a time.

mod builder;
mod callbacks;
mod health;
mod leader;
mod leadership;
mod serve;
mod shared;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::model::error::{ErrorKind, Result};
use crate::sys::deadline::far_from;
use crate::sys::drop_bound::{DropBound, DropBy};
use crate::sys::log;

pub use builder::ElectionBuilder;
pub use leader::Leader;
pub use leadership::{Leadership, TermEnd};

use shared::{Ends, Shared};

/// A node's part in an election, made by [`LockClient::election`](crate::LockClient::election).
///
/// A leadership is an exclusive lock whose key is the election's name. So [`LockClient::get`] shows who leads, its
/// fencing token numbers the terms, and a plain lock of the same name stands in the way like a leader. Give
/// elections names that no plain lock has.
///
/// One of three calls stands for it, one at a time:
/// - [`run`](Election::run): a thread stands until it is stopped. [`is_leader`](Election::is_leader) and the
///   callbacks tell the rest of the program.
/// - [`lead`](Election::lead): the same, and runs a closure in each term.
/// - [`campaign`](Election::campaign): blocks until this node leads.
///
/// As with any lease, a leader can be stopped between its last look at `is_leader` and its next write. Let what it
/// writes to refuse a [fencing token](Election::fencing_token) below the highest it has seen.
///
/// Dropping it is a quiet [`stop`](Election::stop) of `run` and `lead`. A [`Leadership`] that
/// [`campaign`](Election::campaign) gave stays with whoever has it.
///
/// # Example
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let client = leasehold::LockClient::connect("memory:")?;
/// let (told, tells) = mpsc::channel();
/// let election = client
///     .election("scheduler")
///     .id("node-1")
///     .lease(Duration::from_secs(10))
///     .on_won(move |token| drop(told.send(token)))
///     .build()?;
/// election.run()?;
/// let token = tells.recv().expect("it stands alone, so it wins");
/// assert!(election.is_leader());
/// assert_eq!(election.leader()?.expect("somebody leads").fencing_token(), token);
/// election.stop()?; // resigns: the next node takes over at once
/// assert!(!election.is_leader() && election.leader()?.is_none());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [`LockClient::get`]: crate::LockClient::get
#[must_use = "dropping it ends its standing"]
pub struct Election {
    shared: Arc<Shared>,
    /// What the client may leave to do has the same bound as the end of the standing.
    drop_bound: DropBound,
}

impl Election {
    fn new(shared: Arc<Shared>) -> Self {
        Election { shared, drop_bound: DropBound::default() }
    }

    /// The name of the election, which is the key of its lock.
    pub fn name(&self) -> &str {
        &self.shared.node.name
    }

    /// By what name others see this node when it leads.
    pub fn id(&self) -> &str {
        &self.shared.node.id
    }

    /// For how long a leader leads without a heartbeat: this long after a leader died another can win.
    pub fn lease(&self) -> Duration {
        self.shared.node.lease
    }

    /// Starts a thread that stands at once, and again after each term, until [`stop`](Election::stop).
    ///
    /// Trouble with the store does not end it: it logs a warning and stands again.
    ///
    /// # Errors
    /// `AlreadyHeld` while this election stands or leads already; `Closed`; `Store` when no thread can be started.
    pub fn run(&self) -> Result<()> {
        self.shared.start(None)
    }

    /// [`run`](Election::run), with a closure that works while this node leads.
    ///
    /// It is called once in each term, on a thread of its own. It has to end soon after
    /// [`is_leader`](Leadership::is_leader) has become false; [`loss`](Leadership::loss) lets it wait for that. The
    /// node does not stand again while the closure still runs, and keeps its lock until then, unless it was lost.
    /// When it returns, or panics, while this node leads, the node resigns, lets others go first for a moment, and
    /// stands again, unless [`stand_again`](ElectionBuilder::stand_again) says otherwise.
    ///
    /// # Errors
    /// As [`run`](Election::run).
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let election = client.election("report").stand_again(false).build()?;
    /// let (done, reports) = std::sync::mpsc::channel();
    /// election.lead(move |leadership| {
    ///     for _step in 0..3 {
    ///         if !leadership.is_leader() {
    ///             return;
    ///         }
    ///     }
    ///     let _ = done.send(leadership.fencing_token());
    /// })?;
    /// election.wait();
    /// assert_eq!(reports.iter().count(), 1);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lead(&self, mut work: impl FnMut(&Leadership) + Send + 'static) -> Result<()> {
        self.try_lead(move |leadership| {
            work(leadership);
            Ok::<(), Infallible>(())
        })
    }

    /// [`lead`](Election::lead), with work that may fail: then the node resigns as after any end of the work, the log
    /// has the error, and [`on_lost`](ElectionBuilder::on_lost) gets it as [`TermEnd::Failed`].
    ///
    /// # Errors
    /// As [`run`](Election::run).
    pub fn try_lead<E: fmt::Display>(
        &self,
        mut work: impl FnMut(&Leadership) -> Result<(), E> + Send + 'static,
    ) -> Result<()> {
        self.shared.start(Some(Box::new(move |leadership| work(leadership).map_err(|why| why.to_string()))))
    }

    /// Blocks until this node leads. Dropping the leadership resigns.
    ///
    /// # Errors
    /// `AlreadyHeld` while this election stands or leads already; `Cancelled` when it was
    /// [stopped](Election::stop) meanwhile, or its [token](ElectionBuilder::cancel) cancelled; else as [`LockRequest::lock`](crate::LockRequest::lock).
    ///
    /// # Example
    /// ```
    /// let client = leasehold::LockClient::connect("memory:")?;
    /// let election = client.election("migration").build()?;
    /// let leadership = election.campaign()?;
    /// assert!(leadership.is_leader());
    /// leadership.resign()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn campaign(&self) -> Result<Leadership> {
        self.shared.campaign(None)
    }

    /// [`campaign`](Election::campaign) for at most `limit`; zero asks once. A [token](ElectionBuilder::cancel) ends it
    /// earlier.
    ///
    /// # Errors
    /// `TimedOut` when this node was not elected in time, with who leads; else as [`campaign`](Election::campaign).
    pub fn campaign_for(&self, limit: Duration) -> Result<Leadership> {
        self.shared.campaign(Some(far_from(Instant::now(), limit)))
    }

    /// Whether this node leads. No I/O: it is false before a rival can win, also right after a suspend.
    pub fn is_leader(&self) -> bool {
        self.fencing_token().is_some()
    }

    /// The fencing token of the term while this node leads. No I/O, as [`is_leader`](Election::is_leader).
    pub fn fencing_token(&self) -> Option<u64> {
        let term = self.shared.term()?;
        term.is_leader().then(|| term.guard.fencing_token())
    }

    /// Who leads, by a read of the store; this node need not stand. `None` when nobody does.
    ///
    /// # Errors
    /// As [`LockClient::get`](crate::LockClient::get).
    pub fn leader(&self) -> Result<Option<Leader>> {
        let status = self.shared.node.client.get(&self.shared.node.name)?;
        Ok(status.and_then(|status| Leader::of(status.holders())))
    }

    /// How many terms this node has won.
    pub fn terms(&self) -> u64 {
        self.shared.news.terms.load(Ordering::SeqCst)
    }

    /// How many rounds this node has made: one for each look at the election while it waits, and, in
    /// [`run`](Election::run) and [`lead`](Election::lead), one each third of the lease while it leads.
    pub fn iterations(&self) -> u64 {
        self.shared.news.rounds.load(Ordering::SeqCst)
    }

    /// Whether it stands or leads: from [`run`](Election::run), [`lead`](Election::lead) or
    /// [`campaign`](Election::campaign) on until that is over.
    pub fn is_standing(&self) -> bool {
        self.shared.is_standing()
    }

    /// Waits until what [`run`](Election::run) or [`lead`](Election::lead) started is over: after
    /// [`stop`](Election::stop) or the client's `close`, or after one term without
    /// [`stand_again`](ElectionBuilder::stand_again). Called by the closure itself, it returns at once.
    pub fn wait(&self) {
        self.shared.wait();
    }

    /// Ends the standing, and resigns if this node leads, so that the next one takes over at once. It can stand
    /// again later.
    ///
    /// A closure of [`lead`](Election::lead) is waited for; then the lock is released. Takes at most the client's
    /// `drop_timeout`. Called by the closure itself, it does not wait: the node resigns when the closure has returned.
    ///
    /// # Errors
    /// `TimedOut` when the closure did not end in time: then the lock is not released but ends with its lease;
    /// `Lost` when the term was lost before; else what the store says to the release.
    pub fn stop(&self) -> Result<()> {
        self.shared.check_open_here()?;
        self.shared.stop(far_from(Instant::now(), self.shared.bound()), Ends::All)
    }
}

impl Election {
    /// Until when a drop may take.
    pub(crate) fn drop_by(&self) -> DropBy {
        self.shared.node.client.family.drop_by()
    }

    /// What a drop does, while others still have it.
    pub(crate) fn end_quietly(&self) {
        if let Err(error) = self.shared.stop(self.drop_by().instant(), Ends::ButCampaigns)
            && error.kind() != ErrorKind::Lost
        {
            log::warn!(target: "leasehold::election", name:? = self.shared.node.name;
                "the leader of {:?} could not resign; its lease runs out: {error}", self.shared.node.name);
        }
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        if !self.shared.node.client.family.is_own_process() {
            // Its threads do not exist here: it is never dropped.
            std::mem::forget(self.shared.clone());
            return;
        }
        self.drop_bound.begin(self.drop_by());
        self.end_quietly();
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.shared.node.name)
            .field("id", &self.shared.node.id)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
