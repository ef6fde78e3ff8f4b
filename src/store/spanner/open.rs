//! From settings to a client of the SDK, on the driver's thread.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use google_cloud_spanner::builder::{SpannerBuilder, SpannerBuilderExt};
use google_cloud_spanner::channel_pool::StaticChannelPoolConfig;
use google_cloud_spanner::client::{DatabaseClient, Spanner as Client};
use tokio::sync::Notify;

use super::error::{Own, SpannerError, Stage};
use super::{Spanner, mixed};
use crate::model::error::Result;
use crate::store::failure::Cause;
use crate::store::fleet::Fleet;
use crate::store::url::{StoreUrl, check_endpoint, config};
use crate::store::{Bounds, Opener};
use crate::sys::log;

/// The emulator serves gRPC on port 9010 and REST on port 9020. Other pairs of ports are assumed to have the same
/// distance.
const REST_ABOVE_GRPC: u16 = 10;

/// The environment variable for the endpoint of the REST API, which makes tables, where that is not the default of the
/// SDK.
pub const ADMIN_ENDPOINT: &str = "LEASEHOLD_SPANNER_ADMIN_ENDPOINT";
/// The error for `fleet=mixed` without `spindle_duration`: nothing in the table says what duration the nodes have.
const NO_DURATION: &str = "fleet=mixed needs the option spindle_duration=.., like 10s: the least of the durations that \
     the nodes of spindle have, which is the lease of all locks then";
const ADMIN_EXAMPLE: &str = "http://localhost:9020";

/// A new connection is made when requests are under way and nothing has come from the service for this long. This is
/// less than the shortest time that a try of a call has, so that the next try uses the new connection.
const SILENCE: Duration = Duration::from_millis(1500);
/// How long making a connection may take.
const RENEWING: Duration = Duration::from_secs(10);
/// The longest pause between two new connections, however often a new one was of no use before.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What `Spanner::open` needs to know.
#[derive(Clone)]
pub struct SpannerOptions {
    /// `projects/P/instances/I/databases/D`.
    pub database: String,
    /// The table.
    pub table: String,
    /// How long the nodes of spindle that share the table may go without a heartbeat.
    pub spindle_duration: Duration,
    /// Whose processes use the table.
    pub fleet: Fleet,
    /// Endpoint and credentials.
    pub settings: Settings,
    /// The endpoint of the REST API, if it is neither what the environment says nor the default of the SDK.
    pub admin_endpoint: Option<String>,
}

/// Where endpoint and credentials come from.
#[derive(Clone)]
pub enum Settings {
    /// From the environment and the machine, where the SDK looks by default.
    Environment,
    /// A builder that the user made.
    Given(Box<SpannerBuilder>),
}

impl fmt::Debug for SpannerOptions {
    /// Without the settings, which hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerOptions")
            .field("database", &self.database)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl SpannerOptions {
    /// From a URL like `spanner:projects/P/instances/I/databases/D?table=locks`.
    pub(in crate::store) fn from_url(url: &str) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        url.only(&["table", "fleet", "spindle_duration", "admin_endpoint"])?;
        url.no_user("Google's client")?;
        let Some(table) = url.option("table").filter(|table| !table.is_empty()) else {
            let right = "spanner:projects/P/instances/I/databases/D?table=locks";
            return Err(config(&format!("spanner: needs the name of a table, like {right}")));
        };
        let mut options = SpannerOptions::new(url.path.as_ref(), table, Settings::Environment);
        options.admin_endpoint = url.option("admin_endpoint").map(str::to_owned);
        options.of(Fleet::of_url(&url, mixed::LIBRARY)?, url.duration("spindle_duration")?)
    }

    /// The options for this table, with defaults for everything else.
    pub fn new(database: impl Into<String>, table: impl Into<String>, settings: Settings) -> Self {
        SpannerOptions {
            database: database.into(),
            table: table.into(),
            spindle_duration: Duration::from_secs(20),
            fleet: Fleet::Own,
            settings,
            admin_endpoint: None,
        }
    }

    /// The same options for this fleet. `spindle_duration`: the duration of its nodes of spindle, required where the
    /// fleet is mixed.
    pub fn of(self, fleet: Fleet, spindle_duration: Option<Duration>) -> Result<Self> {
        if fleet.is_mixed() && spindle_duration.is_none() {
            return Err(config(NO_DURATION));
        }
        Ok(SpannerOptions { fleet, spindle_duration: spindle_duration.unwrap_or(self.spindle_duration), ..self })
    }

    /// The store in this table.
    pub(crate) fn opener(self) -> Result<Opener> {
        self.validate()?;
        Ok(Opener::new(self.bounds(), |_, _, by| Spanner::open(self, by)))
    }

    pub(super) fn bounds(&self) -> Bounds {
        let (bounds, duration) = (Bounds::of(Spanner::MIN_LEASE), self.spindle_duration);
        match self.fleet {
            Fleet::Own => bounds,
            Fleet::Mixed => Bounds { default_lease: duration, limits: Some(mixed::limits(duration)), ..bounds },
        }
    }

    pub(super) fn label(&self) -> String {
        format!("spanner:{}?table={}", self.database, self.table)
    }

    /// Refuses what the service would refuse, before anything is sent. The table's name becomes a part of SQL
    /// statements.
    pub fn validate(&self) -> Result<()> {
        let is_named = |name: &str| {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            (2..=64).contains(&name.len()) && name.chars().all(is_legal)
        };
        let parts: Vec<&str> = self.database.split('/').collect();
        let is_path = match parts[..] {
            ["projects", project, "instances", instance, "databases", database] => {
                [project, instance, database].into_iter().all(is_named)
            }
            _ => false,
        };
        if !is_path {
            return Err(config(&format!(
                "the database is {:?}, but must be like projects/P/instances/I/databases/D, each name of 2 to 64 \
                 letters, digits, '-', '_', '.' or ':'",
                self.database
            )));
        }
        let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // The name of the index is longer, and may have at most 128 characters.
        let is_table = self.table.starts_with(is_first) && self.table.chars().all(is_word) && self.table.len() <= 120;
        if !is_table {
            return Err(config(&format!(
                "the table name {:?} must have 1 to 120 letters, digits or '_', and not begin with a digit",
                self.table
            )));
        }
        if let Some(endpoint) = &self.admin_endpoint {
            check_endpoint("the option admin_endpoint", ADMIN_EXAMPLE, endpoint)?;
        }
        if self.fleet.is_mixed() && self.spindle_duration < Spanner::MIN_LEASE {
            let (given, least) = (self.spindle_duration, Spanner::MIN_LEASE);
            return Err(config(&format!(
                "spindle_duration is {given:?}, but must be at least {least:?} with fleet=mixed"
            )));
        }
        if self.spindle_duration > Duration::from_secs(24 * 3600) {
            return Err(config(&format!("spindle_duration is {:?}, but must be at most a day", self.spindle_duration)));
        }
        Ok(())
    }
}

/// The SDK's objects, which never leave the driver's thread.
pub(super) struct Handles {
    live: RefCell<Rc<Live>>,
    options: SpannerOptions,
    /// The endpoint of the REST API, if it is not the default of the SDK.
    pub admin_endpoint: Option<String>,
    /// Until when transactions run one at a time, as the emulator requires. That the service is the emulator is known
    /// once it says so.
    pub one_at_a_time: Cell<Instant>,
    /// Held by the transaction that runs during that time.
    pub turn: tokio::sync::Mutex<()>,
    /// Since when requests are under way and none was answered.
    silent_since: Cell<Option<Instant>>,
    is_renewing: Cell<bool>,
    renewed: Notify,
    /// Until when no new connection is made because of silence or a refused token, and how long that pause is.
    pause: Cell<(Instant, Duration)>,
}

/// A client with its connection and its session.
pub(super) struct Live {
    pub client: Client,
    pub database: DatabaseClient,
}

/// Makes the client and its session.
pub(super) async fn handles(options: SpannerOptions) -> Result<Handles> {
    let admin_endpoint = match (&options.admin_endpoint, std::env::var(ADMIN_ENDPOINT)) {
        (Some(endpoint), _) => Some(endpoint.clone()),
        (None, Ok(endpoint)) => {
            check_endpoint(&format!("the environment variable {ADMIN_ENDPOINT}"), ADMIN_EXAMPLE, &endpoint)?;
            Some(endpoint)
        }
        (None, Err(_)) => emulator_rest(),
    };
    Ok(Handles {
        live: RefCell::new(Rc::new(live(&options).await?)),
        options,
        admin_endpoint,
        one_at_a_time: Cell::new(Instant::now()),
        turn: tokio::sync::Mutex::default(),
        silent_since: Cell::new(None),
        is_renewing: Cell::new(false),
        renewed: Notify::new(),
        pause: Cell::new((Instant::now(), SILENCE)),
    })
}

async fn live(options: &SpannerOptions) -> Result<Live, SpannerError> {
    let builder = match &options.settings {
        Settings::Given(builder) => (**builder).clone(),
        // One connection carries a hundred requests at a time.
        Settings::Environment => Client::builder().with_channel_pool(StaticChannelPoolConfig::new(1)),
    };
    let made = builder.build().await.map_err(|error| {
        let cause = Cause::of(&error);
        if error.is_default_credentials() {
            SpannerError::Own(Own::NoCredentials, Some(cause))
        } else {
            SpannerError::Config(format!("no client of Spanner can be made: {cause}"))
        }
    });
    let client = made?;
    let session = client.database_client(&options.database).build().await;
    let failed = |error| SpannerError::classify(&error, Stage::Reading, false, &options.database, &options.table).1;
    let database = session.map_err(failed)?;
    Ok(Live { client, database })
}

impl Handles {
    /// The connection and session for requests that begin now and have `limit` left. While a new connection is being
    /// made, this waits for it, but at most half of `limit`.
    pub async fn live(&self, limit: Duration) -> Rc<Live> {
        let renewed = self.renewed.notified();
        if self.is_renewing.get() {
            let _ = tokio::time::timeout(limit / 2, renewed).await;
        }
        self.live.borrow().clone()
    }

    /// Waits up to `limit` for the request `asks`. `heard`: what its outcome shows about the service.
    ///
    /// The SDK never checks whether its connection still carries anything. If a router has forgotten the connection, it
    /// is silent until the kernel gives it up, after a quarter of an hour; here it is replaced much earlier. The SDK
    /// also makes no new session when the service does not know the old one any more, as after a month in which the
    /// host was suspended. And it renews a token by a clock that stands still during a suspend, not when the service
    /// says that the token has ended.
    pub async fn within<T>(
        self: &Rc<Self>,
        limit: Duration,
        asks: impl Future<Output = T>,
        heard: impl FnOnce(&T) -> Heard,
    ) -> Option<T> {
        let asked = Instant::now();
        self.silent_since.set(self.silent_since.get().or(Some(asked)));
        let answer = tokio::time::timeout(limit, asks).await.ok();
        match answer.as_ref().map_or(Heard::Nothing, heard) {
            Heard::Answer => {
                self.silent_since.set(None);
                // The service is not slow any more: a silence from now on is the connection's fault.
                if asked.elapsed() < SILENCE {
                    self.pause.set((Instant::now(), SILENCE));
                }
            }
            Heard::NoSession => self.renew(),
            Heard::NotAccepted => {
                self.silent_since.set(None);
                // Not more often than the pause allows: the keys of the credentials may have been revoked for good.
                if Instant::now() >= self.pause.get().0 {
                    self.put_off();
                    self.renew();
                }
            }
            Heard::Nothing if self.is_silent() && Instant::now() >= self.pause.get().0 => self.renew(),
            Heard::Nothing => {}
        }
        answer
    }

    fn is_silent(&self) -> bool {
        self.silent_since.get().is_some_and(|since| since.elapsed() >= SILENCE)
    }

    /// Doubles the pause before the next new connection, up to the longest one: if the service itself is slow, a new
    /// connection is of no use.
    fn put_off(&self) {
        let next = (self.pause.get().1 * 2).min(LONGEST_PAUSE);
        self.pause.set((Instant::now() + next, next));
    }

    /// Makes a new connection in a task of its own, one at a time, while requests go on. If that fails, the old
    /// connection stays in use.
    fn renew(self: &Rc<Self>) {
        if self.is_renewing.replace(true) {
            return;
        }
        let renewing = Renewing(self.clone());
        tokio::task::spawn_local(async move {
            let own = &renewing.0;
            if let Ok(Ok(live)) = tokio::time::timeout(RENEWING, live(&own.options)).await {
                own.live.replace(Rc::new(live));
                own.silent_since.set(None);
                own.put_off();
                log::debug!(target: "leasehold::spanner", table:? = own.options.table;
                    "nothing came from the service any more, or it forgot the session or the token; connected anew");
            }
        });
    }
}

/// What the outcome of a request shows about the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It answered, even if with a refusal.
    Answer,
    /// No answer came from it.
    Nothing,
    /// It does not know the session.
    NoSession,
    /// It does not accept the token, or not any more.
    NotAccepted,
}

/// Exists while a new connection is being made. Its drop ends that state, however the connecting ended, and wakes the
/// requests that wait.
struct Renewing(Rc<Handles>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.is_renewing.set(false);
        self.0.renewed.notify_waiters();
    }
}

/// The REST endpoint of the emulator that the environment names.
fn emulator_rest() -> Option<String> {
    let host = std::env::var("SPANNER_EMULATOR_HOST").ok()?;
    let host = host.rsplit("//").next()?.trim_end_matches('/');
    let (name, port) = host.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.checked_add(REST_ABOVE_GRPC)?;
    Some(format!("http://{name}:{port}"))
}
