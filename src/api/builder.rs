//! The options of a client.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::engine::family::Family;
use crate::engine::options::ClientOptions;
use crate::model::error::{Error, Result};
use crate::model::event::Observer;
use crate::store::connect::opener;
use crate::store::observed::Observed;
use crate::store::{self, Backend, Bounds, Missing, Opener, Schema};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

/// Options of a client, made by [`LockClient::builder`].
///
/// # Example
/// ```
/// use std::time::Duration;
///
/// let client = leasehold::LockClient::builder("memory:")
///     .owner("billing-7")
///     .lease(Duration::from_secs(30))
///     .connect()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    opener: Result<Opener>,
    clock: Arc<Clock>,
    options: ClientOptions,
    must_exist: bool,
    create_schema: bool,
}

impl ClientBuilder {
    pub(crate) fn new(url: String) -> Self {
        ClientBuilder::with_opener(opener(&url), Clock::system())
    }

    pub(crate) fn with_opener(opener: Result<Opener>, clock: Arc<Clock>) -> Self {
        let mut options = ClientOptions::default();
        if let Ok(opener) = &opener {
            (options.lease, options.bounds) = (opener.bounds.default_lease, opener.bounds);
        }
        ClientBuilder { opener, clock, options, must_exist: false, create_schema: false }
    }

    /// A client of a store that is open already.
    pub(crate) fn over(backend: Arc<dyn Backend>, clock: Arc<Clock>) -> Self {
        let bounds = backend.info().bounds;
        let one = bounds.limits.and_then(|limits| limits.one_lease);
        let default_lease = one.map_or(store::DEFAULT_LEASE, |(lease, _)| lease);
        let open = Box::new(move |_: Arc<Clock>, _: Missing, _: &Deadline| Ok(backend));
        ClientBuilder::with_opener(Ok(Opener { bounds: Bounds { default_lease, ..bounds }, open }), clock)
    }

    /// The holder's name in the locks of this client, for people to read: 1 to 1,024 bytes. Defaults to `host:pid`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.options.owner = Some(owner.into());
        self
    }

    /// How long a lock is held without a renewal: 1 s (SQLite and memory: 100 ms) to 30 days.
    /// Defaults to 20 s; on MongoDB to 30 s, which is longer than the election of another primary takes.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// The time between two renewals, at most half the lease; each is moved by up to 10 % at
    /// random. Defaults to a third of the lease. The log warns of one below a second and a 2,000th of the lease.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.options.heartbeat = Some(heartbeat);
        self
    }

    /// How long before the end of the lease the holder already treats the lock as lost. This covers clocks that run at
    /// different rates, and the time between a check of `is_held` and acting on it.
    /// Defaults to a tenth of the lease. It must be below the lease less the heartbeat, and at least 100 ms on
    /// DynamoDB, whose time is not known more precisely; on MongoDB at least 1 ms for the same reason, and at least 1 s
    /// with `fleet=mixed`. If another program gives an end to a lock that had none, the lock's guard may learn of that
    /// 35 s late. Such an end is at least a minute away, so for such a lock only 25 s of a larger margin are certain.
    /// The lease of a name has a margin of a tenth of that lease, or this margin where it is larger, up to half the
    /// lease.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.options.margin = Some(margin);
        self
    }

    /// How long a waiter pauses between two checks of a lock; each pause is drawn at random from this range. It also
    /// checks when the holder's lease can have ended. After a minute of waiting the range doubles, and after ten minutes
    /// once more. Where the store reports releases (SQLite, memory, MongoDB, PostgreSQL), a waiter checks at each
    /// report, and also, in case a report was lost, after a hundred times such a pause, which does not double. Defaults
    /// to 150 to 350 ms.
    pub fn poll(mut self, poll: RangeInclusive<Duration>) -> Self {
        self.options.poll = poll;
        self
    }

    /// Receives an event for everything that happens, for metrics. Each call adds one observer; the observers are
    /// called one after the other. An observer that owns its client keeps the client's threads and connections for
    /// ever: let it own only a [`Weak`](std::sync::Weak) to an `Arc` of the client. Defaults to none.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.options.observing = self.options.observing.and(observer);
        self
    }

    /// Sets the only observer, which itself makes sure that no lock waits for the user's code.
    #[cfg(feature = "capi")]
    pub(crate) fn own_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.options.observing = crate::sys::observing::Observing::by_own_aside(observer);
        self
    }

    /// How long one request to the store may take, and also, in all, a call that does not wait for other holders, like
    /// `try_lock` and `get`. Defaults to 5 s. Each request gets half of the time that its call has left, but at least
    /// two seconds, so that there is time to repeat one that got no answer. So set this to at least twice the
    /// time of the slowest answer.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// How long dropping a guard, or closing the client, may take. Defaults to 5 s.
    pub fn drop_timeout(mut self, timeout: Duration) -> Self {
        self.options.drop_timeout = timeout;
        self
    }

    /// Connects only to a store that exists, to look at it: a missing SQLite file, table or collection is an error and
    /// is not made, and an SQLite file that this user may only read can be opened. Defaults to false.
    pub fn must_exist(mut self, must_exist: bool) -> Self {
        self.must_exist = must_exist;
        self
    }

    /// While connecting, makes missing tables and indexes, as [`create_schema`](LockClient::create_schema) does. Without
    /// this, connecting to a missing table succeeds, and the first lock fails. Locking needs fewer rights than making a
    /// table, so in production make the table once, separately. Defaults to false.
    pub fn create_schema(mut self, create_schema: bool) -> Self {
        self.create_schema = create_schema;
        self
    }

    /// Opens the store and checks it once.
    ///
    /// # Errors
    /// `Config` for a URL that is wrong and `InvalidInput` for an option out of bounds, before
    /// anything is opened; otherwise the store's error.
    pub fn connect(self) -> Result<LockClient> {
        let ClientBuilder { opener, clock, mut options, must_exist, create_schema } = self;
        let open = opener?.open;
        options.validate()?;
        if must_exist && create_schema {
            return Err(Error::invalid("create_schema", create_schema, "false with must_exist"));
        }
        let by = Deadline::after(options.request_timeout);
        let missing = if must_exist { Missing::IsRefused } else { Missing::IsAllowed };
        let store = open(clock.clone(), missing, &by)?;
        options.observing = options.observing.in_this_process();
        let store = Arc::new(Observed::new(store, options.observing.clone()));
        // A missing table that is created next is no reason for a warning.
        if !create_schema {
            store.schema(Schema::Connect(missing), &by)?;
        }
        options.warn_of_unit();
        let client = LockClient::new(Family::new(store, clock, options));
        if create_schema {
            client.create_schema()?;
        }
        Ok(client)
    }
}

impl fmt::Debug for ClientBuilder {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
