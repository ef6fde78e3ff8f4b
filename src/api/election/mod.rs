//! Leader election: of all nodes that campaign under one name, at most one leads at a time.

mod builder;
mod callbacks;
mod health;
mod leader;
mod leadership;
mod serve;
mod shared;
mod standing;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::api::request::AskedWait;
use crate::engine::spec::Patience;
use crate::model::error::{ErrorKind, Result};
use crate::sys::caught::caught;
use crate::sys::deadline::far_from;
use crate::sys::drop_bound::{DropBound, DropBy};
use crate::sys::log;
use crate::sys::observing::Contained;

pub use builder::ElectionBuilder;
pub use leader::Leader;
pub use leadership::{Leadership, TermEnd};

use shared::{Ends, Shared};

/// A node's part in an election, made by [`LockClient::election`](crate::LockClient::election).
///
/// A leadership is an exclusive lock whose key is the election's name. So [`LockClient::get`] shows who leads, its
/// fencing token numbers the terms, and a plain lock of the same name keeps every node from leading. Give elections
/// names that no plain lock uses.
///
/// A node campaigns by one of three calls; only one of them can be under way at a time:
/// - [`run`](Election::run): a thread campaigns until it is stopped. The program checks
///   [`is_leader`](Election::is_leader) or uses callbacks.
/// - [`lead`](Election::lead): the same, and a closure is run in each term.
/// - [`campaign`](Election::campaign): blocks until this node leads.
///
/// As with any lease, a leader can be suspended between its last check of `is_leader` and its next write. The resource
/// that it writes to should refuse a [fencing token](Election::fencing_token) below the highest one it has seen.
///
/// Dropping the election [stops](Election::stop) `run` and `lead`, and reports no error. A [`Leadership`] that
/// [`campaign`](Election::campaign) returned is not affected. A closure, callback or health check that needs the
/// election must have a [`Weak`](std::sync::Weak) of it: an election that its own closure owns is never dropped, and
/// campaigns for ever.
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
/// let token = tells.recv().expect("no other node campaigns, so it wins");
/// assert!(election.is_leader());
/// assert_eq!(election.leader()?.expect("somebody leads").fencing_token(), token);
/// election.stop()?; // resigns: the next node need not wait for the lease
/// assert!(!election.is_leader() && election.leader()?.is_none());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Keep it in a variable: `client.election(name).build()?.run()?;` would drop it, and end its campaign, at once.
///
/// [`LockClient::get`]: crate::LockClient::get
#[must_use = "dropping it ends its campaign"]
pub struct Election {
    shared: Arc<Shared>,
    /// One bound for the whole drop: for ending the campaign and for what the client then has to clean up.
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

    /// The name by which others see this node when it leads.
    pub fn id(&self) -> &str {
        &self.shared.node.id
    }

    /// How long a leader stays leader without a heartbeat. After a leader died, another node can win once this time has
    /// passed.
    pub fn lease(&self) -> Duration {
        self.shared.node.lease
    }

    /// Starts a thread that campaigns now, and again after each term, until [`stop`](Election::stop).
    ///
    /// Errors of the store do not end it: it logs a warning and campaigns again.
    ///
    /// # Errors
    /// `AlreadyHeld` while this election already campaigns or leads; `Closed`; `Store` when no thread can be started.
    pub fn run(&self) -> Result<()> {
        self.shared.start(None)
    }

    /// Like [`run`](Election::run), with a closure that runs while this node leads.
    ///
    /// The closure is called once in each term, on its own thread. It must return soon after
    /// [`is_leader`](Leadership::is_leader) has become false; it can wait for that by [`loss`](Leadership::loss). While
    /// the closure still runs the node does not campaign again, and keeps its lock unless that was lost. If the closure
    /// returns or panics while this node leads, the node resigns, waits a moment so that others can win, and campaigns
    /// again, unless [`stand_again`](ElectionBuilder::stand_again) says otherwise.
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

    /// Like [`lead`](Election::lead), with a closure that can fail. After an error the node resigns, as whenever the
    /// closure returns; the error is logged, and passed to [`on_lost`](ElectionBuilder::on_lost) as [`TermEnd::Failed`].
    ///
    /// # Errors
    /// As [`run`](Election::run).
    pub fn try_lead<E: fmt::Display>(
        &self,
        work: impl FnMut(&Leadership) -> Result<(), E> + Send + 'static,
    ) -> Result<()> {
        let mut work = Contained::new(work);
        self.shared.start(Some(Box::new(move |leadership| match &mut work.0 {
            Some(work) => work(leadership).map_err(|why| why.to_string()),
            None => Ok(()),
        })))
    }

    /// Blocks until this node leads. Dropping the leadership resigns.
    ///
    /// # Errors
    /// `AlreadyHeld` while this election already campaigns or leads; `Cancelled` when it was [stopped](Election::stop)
    /// or its [token](ElectionBuilder::cancel) was cancelled during the call; otherwise as
    /// [`LockRequest::lock`](crate::LockRequest::lock).
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
        self.shared.campaign(Patience::Endless)
    }

    /// Like [`campaign`](Election::campaign), but for at most `limit`; zero tries once. A
    /// [token](ElectionBuilder::cancel) can end it earlier.
    ///
    /// # Errors
    /// `TimedOut` when this node was not elected in time, with the current leader if the store was read by then;
    /// otherwise as [`campaign`](Election::campaign).
    pub fn campaign_for(&self, limit: Duration) -> Result<Leadership> {
        self.shared.campaign(AskedWait::patience(Some(AskedWait::For(limit))))
    }

    /// Whether this node leads. Does no I/O. No rival can win while it is true, also right after a suspend, with the
    /// exceptions of [`is_held`](crate::LockGuard::is_held).
    pub fn is_leader(&self) -> bool {
        self.fencing_token().is_some()
    }

    /// The fencing token of the term while this node leads. Does no I/O, like [`is_leader`](Election::is_leader).
    pub fn fencing_token(&self) -> Option<u64> {
        let term = self.shared.term()?;
        term.is_leader().then(|| term.guard.fencing_token())
    }

    /// Reads from the store who leads; this node need not campaign. `None` when nobody leads.
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

    /// How many rounds this node has made. While it waits, it makes one after each check of the election, and between
    /// two checks at least one per longest [poll](crate::ClientBuilder::poll), by default 350 ms. It makes one when it
    /// is elected. While it leads in [`run`](Election::run) or [`lead`](Election::lead), or with a
    /// [health check](ElectionBuilder::health_check), it makes one every third of the lease.
    pub fn iterations(&self) -> u64 {
        self.shared.news.rounds.load(Ordering::SeqCst)
    }

    /// Whether this node campaigns or leads: from the call of [`run`](Election::run), [`lead`](Election::lead) or
    /// [`campaign`](Election::campaign) until that is over.
    pub fn is_standing(&self) -> bool {
        self.shared.is_standing()
    }

    /// Waits for the end of [`run`](Election::run) or [`lead`](Election::lead): after [`stop`](Election::stop) or the
    /// client's `close`, or after one term if [`stand_again`](ElectionBuilder::stand_again) is false. Called by the
    /// closure itself, it returns at once.
    pub fn wait(&self) {
        self.shared.wait();
    }

    /// Ends the campaign, and resigns if this node leads, so that the next node need not
    /// [wait for the lease](crate::guide::tour#leader-election). The node can campaign again later.
    ///
    /// It waits for a closure of [`lead`](Election::lead), then releases the lock, and takes at most the client's
    /// `drop_timeout`. Called by the closure itself, it does not wait: the node resigns when the closure has returned.
    ///
    /// # Errors
    /// `TimedOut` when the closure did not end in time: the lock is then not released but ends with its lease; `Lost`
    /// when the term was already lost; otherwise the store's error for the release.
    pub fn stop(&self) -> Result<()> {
        self.shared.check_open_here()?;
        self.shared.stop(far_from(Instant::now(), self.shared.bound()), Ends::All)
    }
}

impl Election {
    /// By when a drop must have returned.
    pub(crate) fn drop_by(&self) -> DropBy {
        self.shared.node.client.family.drop_by()
    }

    /// What a drop does, for an owner that shares the election with others.
    pub(crate) fn end_quietly(&self) {
        if let Some(Err(error)) = caught(|| self.shared.stop(self.drop_by().instant(), Ends::ButCampaigns))
            && error.kind() != ErrorKind::Lost
        {
            log::warn!(target: "leasehold::election", name:? = self.shared.node.name;
                "the leader of {:?} could not resign; its lease runs out: {}", self.shared.node.name, error.with_causes());
        }
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        if !self.shared.node.client.family.is_own_process() {
            // In a forked child its threads do not exist, so it must not be dropped.
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
