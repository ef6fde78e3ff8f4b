//! From settings to a client of the SDK, on the driver's thread.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use google_cloud_spanner::builder::{SpannerBuilder, SpannerBuilderExt};
use google_cloud_spanner::channel_pool::StaticChannelPoolConfig;
use google_cloud_spanner::client::{DatabaseClient, Spanner as Client};

use super::error::SpannerError;
use crate::backend::cause::Cause;
use crate::error::Result;

/// The emulator's two ports are 9010 for gRPC and 9020 for REST; others are as far apart.
const REST_ABOVE_GRPC: u16 = 10;

/// What `Spanner::open` needs to know.
#[derive(Clone)]
pub struct SpannerOptions {
    /// `projects/P/instances/I/databases/D`.
    pub database: String,
    /// The table.
    pub table: String,
    /// How long the nodes of spindle that share the table may go without a heartbeat.
    pub spindle_duration: Duration,
    /// Endpoint and credentials.
    pub settings: Settings,
    /// For tests: where REST is served, when it is not where the SDK looks.
    pub admin_endpoint: Option<String>,
}

/// Where endpoint and credentials come from.
#[derive(Clone)]
pub enum Settings {
    /// The environment and what the machine says.
    Environment,
    /// What the user made.
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
    /// The options of this table, the rest by default.
    pub fn new(database: impl Into<String>, table: impl Into<String>, settings: Settings) -> Self {
        SpannerOptions {
            database: database.into(),
            table: table.into(),
            spindle_duration: Duration::from_secs(20),
            settings,
            admin_endpoint: None,
        }
    }

    pub(super) fn label(&self) -> String {
        format!("spanner:{}?table={}", self.database, self.table)
    }

    /// Refuses what the service would, before anything is sent. The table's name stands in statements.
    pub fn validate(&self) -> Result<()> {
        Ok(self.check()?)
    }

    fn check(&self) -> Result<(), SpannerError> {
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
            return Err(SpannerError::Config(format!(
                "the database is {:?}, but must be like projects/P/instances/I/databases/D, each name of 2 to 64 \
                 letters, digits, '-', '_', '.' or ':'",
                self.database
            )));
        }
        let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // Its index has a longer name, of at most 128.
        let is_table = self.table.starts_with(is_first) && self.table.chars().all(is_word) && self.table.len() <= 120;
        if !is_table {
            return Err(SpannerError::Config(format!(
                "the table name {:?} must have 1 to 120 letters, digits or '_', and not begin with a digit",
                self.table
            )));
        }
        if self.spindle_duration > Duration::from_secs(24 * 3600) {
            return Err(SpannerError::Config(format!(
                "spindle_duration is {:?}, but must be at most a day",
                self.spindle_duration
            )));
        }
        Ok(())
    }
}

/// The SDK's objects, which never leave the driver's thread.
pub(super) struct Handles {
    pub client: Client,
    pub database: DatabaseClient,
    /// Where REST is served, when it is not where the SDK looks.
    pub admin_endpoint: Option<String>,
    /// The emulator can do no more: found out when it says so.
    pub one_at_a_time: Cell<bool>,
    /// Whose turn it is then.
    pub turn: tokio::sync::Mutex<()>,
}

/// Makes the client and its session.
pub(super) async fn handles(options: SpannerOptions) -> Result<Handles> {
    let builder = match options.settings {
        Settings::Given(builder) => *builder,
        // One connection carries a hundred requests at a time.
        Settings::Environment => Client::builder().with_channel_pool(StaticChannelPoolConfig::new(1)),
    };
    let made = builder.build().await.map_err(|error| {
        let cause = Cause::of(&error);
        if error.is_default_credentials() {
            SpannerError::NoCredentials { cause }
        } else {
            SpannerError::Config(format!("no client of Spanner can be made: {cause}"))
        }
    });
    let client = made?;
    let session = client.database_client(&options.database).build().await;
    let database =
        session.map_err(|error| SpannerError::classify(&error, false, &options.database, &options.table).1)?;
    Ok(Handles {
        client,
        database,
        admin_endpoint: options.admin_endpoint.or_else(emulator_rest),
        one_at_a_time: Cell::new(false),
        turn: tokio::sync::Mutex::default(),
    })
}

/// Where the emulator that the environment names serves REST.
fn emulator_rest() -> Option<String> {
    let host = std::env::var("SPANNER_EMULATOR_HOST").ok()?;
    let host = host.rsplit("//").next()?.trim_end_matches('/');
    let (name, port) = host.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.checked_add(REST_ABOVE_GRPC)?;
    Some(format!("http://{name}:{port}"))
}
