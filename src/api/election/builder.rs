//! The options of an election.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Election;
use super::callbacks::Callbacks;
use super::health::Health;
use super::leader::Leader;
use super::leadership::TermEnd;
use super::shared::{News, Node, Now, Shared};
use crate::api::client::LockClient;
use crate::engine::options::check_duration;
use crate::model::error::{Error, Result};
use crate::model::key::check_text;
use crate::sys::cancel::CancelToken;
use crate::sys::observing::Contained;

/// The shortest lease of a leader.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// Options of an election, made by [`LockClient::election`].
///
/// # Example
/// ```
/// let client = leasehold::LockClient::connect("memory:")?;
/// let election = client
///     .election("scheduler")
///     .id("node-1")
///     .health_check(|| true) // whether this node is fit to lead
///     .on_won(|token| println!("leads with token {token}"))
///     .on_lost(|token, end| println!("term {token} is over: {end}"))
///     .on_leader(|leader| println!("{} leads", leader.id()))
///     .build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct ElectionBuilder {
    client: LockClient,
    name: String,
    id: Option<String>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    stand_again: bool,
    cancels: Vec<CancelToken>,
    // The mutexes are never locked: they make the builder `Sync` even if the closures are not.
    health: Option<Health>,
    callbacks: Mutex<Callbacks>,
}

impl LockClient {
    /// Leader election: of all nodes that campaign under `name`, at most one leads at a time. The name is the key of
    /// the leader's lock.
    pub fn election(&self, name: &str) -> ElectionBuilder {
        ElectionBuilder {
            client: self.clone(),
            name: name.to_owned(),
            id: None,
            lease: None,
            max_hold: None,
            stand_again: true,
            cancels: Vec::new(),
            health: None,
            callbacks: Mutex::default(),
        }
    }
}

impl ElectionBuilder {
    /// The name by which others see this node when it leads: 1 to 1,024 bytes. Defaults to the client's owner.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// How long a leader stays leader without a heartbeat, at least one second. After a leader died, another node can
    /// win once this time has passed. Defaults to the client's lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Ends each term after this time, so that other nodes get a turn. Defaults to no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Reports whether this node is healthy enough to lead. It is called on its own thread, before the node campaigns
    /// and every third of the lease while it leads. If it returns false, panics, or does not return within a lease, the
    /// node resigns; it campaigns again once the check returns true. A closure of [`lead`](Election::lead) must then
    /// return, which it can do when its [`loss`](super::Leadership::loss) reports the end of the term: while it runs,
    /// no other node leads. Defaults to always healthy.
    pub fn health_check(mut self, is_healthy: impl FnMut() -> bool + Send + 'static) -> Self {
        let mut check = Contained::new(is_healthy);
        self.health = Some(Health::new(Box::new(move || check.0.as_mut().is_some_and(|is_healthy| is_healthy()))));
        self
    }

    /// Whether the node campaigns again after each term, for [`run`](Election::run) and [`lead`](Election::lead).
    /// Defaults to true.
    pub fn stand_again(mut self, stand_again: bool) -> Self {
        self.stand_again = stand_again;
        self
    }

    /// A token that ends every campaign, current and later ones. [`campaign`](Election::campaign) then fails with an
    /// error of kind `Cancelled`; [`run`](Election::run) and [`lead`](Election::lead) end as by [`stop`](Election::stop),
    /// but cancelling does not wait for their end. A [`Leadership`](crate::Leadership) that `campaign` has returned is
    /// not affected. Can be set several times; each token works. Defaults to none.
    pub fn cancel(mut self, cancel: &CancelToken) -> Self {
        self.cancels.push(cancel.clone());
        self
    }

    /// Called with the fencing token when this node has won a term.
    ///
    /// All callbacks of an election run on one thread, one after the other, and each "won" is followed by one "lost"
    /// before the next "won". A panic in a callback is caught. Defaults to nothing.
    pub fn on_won(mut self, on_won: impl FnMut(u64) + Send + 'static) -> Self {
        let mut on_won = Contained::new(on_won);
        let on_won = move |token| on_won.0.iter_mut().for_each(|on_won| on_won(token));
        self.callbacks.get_mut().won = Some(Box::new(on_won));
        self
    }

    /// Called when a term that this node had won is over, with its fencing token and how it ended. Defaults to nothing.
    pub fn on_lost(mut self, on_lost: impl FnMut(u64, &TermEnd) + Send + 'static) -> Self {
        let mut on_lost = Contained::new(on_lost);
        let on_lost = move |token, end: &TermEnd| on_lost.0.iter_mut().for_each(|on_lost| on_lost(token, end));
        self.callbacks.get_mut().lost = Some(Box::new(on_lost));
        self
    }

    /// Called when this node sees a new leader, itself included, while it campaigns or leads. (Of several nodes of one
    /// client only the first in line checks who leads.) A leader is reported only if its token is higher than all that
    /// were reported before. A restored table or a standby with another clock may give a lower token: read
    /// [`Election::leader`] then. Defaults to nothing.
    pub fn on_leader(mut self, on_leader: impl FnMut(&Leader) + Send + 'static) -> Self {
        let mut on_leader = Contained::new(on_leader);
        let on_leader = move |leader: &Leader| on_leader.0.iter_mut().for_each(|on_leader| on_leader(leader));
        self.callbacks.get_mut().leader = Some(Box::new(on_leader));
        self
    }

    /// Checks the options. Nothing is sent yet, and no thread is started.
    ///
    /// # Errors
    /// `InvalidInput` for an argument out of bounds, `Closed` when the client is closed.
    pub fn build(self) -> Result<Election> {
        let family = self.client.family.clone();
        family.check_open()?;
        let lease = self.lease.unwrap_or(family.options.lease);
        let in_context = |error: Error| family.in_context(error);
        self.id
            .as_deref()
            .map_or(Ok(()), |id| check_text("the node's id", id))
            .map_err(|error| in_context(error.with_key(&self.name)))?;
        let least = family.backend.info().bounds.min_lease.max(MIN_LEASE);
        check_duration("lease", lease, least, " in an election")
            .map_err(|error| in_context(error.with_key(&self.name)))?;
        let node = Node {
            id: family.labels(self.id.clone()).owner,
            client: self.client,
            name: self.name,
            lease,
            max_hold: self.max_hold,
            stand_again: self.stand_again,
            cancels: self.cancels,
            health: self.health,
        };
        let shared = Shared { node, news: News::new(self.callbacks.into_inner()), now: Now::default() };
        shared.request().check().map_err(in_context)?;
        let shared = Arc::new(shared);
        family.ends_first(Arc::downgrade(&shared) as _);
        Ok(Election::new(shared))
    }
}

impl fmt::Debug for ElectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElectionBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
