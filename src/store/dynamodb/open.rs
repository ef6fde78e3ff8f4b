//! Makes a client of the SDK from settings, on the driver's thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{Builder, IdentityCache, Region, SharedInterceptor, StalledStreamProtectionConfig};
use aws_types::service_config::ServiceConfigKey;

use super::connections::Owned;
use super::credentials::{Ended, Loaded};
use super::error::{DynamodbError, Own};
use super::estimate::{Estimate, ServiceTime};
use super::row;
use super::target::{SortKey, Target};
use super::{Dynamodb, mixed, most_shared};
use crate::model::error::Result;
use crate::store::fleet::Fleet;
use crate::store::url::{StoreUrl, check_endpoint, config};
use crate::store::{Bounds, Opener, StoreInfo};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;
use crate::sys::driver::Driver;

/// One answer gives the time to a second at best. If the time is less exact than this, another answer is worth its
/// request.
const GOOD_ENOUGH: Duration = Duration::from_millis(1_050);

const MAX_GRACE: Duration = Duration::from_secs(60);

/// What `Dynamodb::open` needs to know.
#[derive(Clone)]
pub struct DynamodbOptions {
    /// The table.
    pub table: String,
    /// Its partition key, a string.
    pub partition_key: String,
    /// Its sort key, if it has one, and the value that all rows of this store have in it.
    pub sort_key: Option<SortKey>,
    /// How long after its end a lease is respected.
    pub grace: Duration,
    /// Whose processes use the table.
    pub fleet: Fleet,
    /// What `create_schema` protects the table from.
    pub protection: Protection,
    /// Region, endpoint and credentials.
    pub settings: Settings,
    /// For tests: an estimate that two clients share.
    pub estimate: Option<Arc<Estimate>>,
    /// For tests: interceptors that see each request and answer.
    pub interceptors: Vec<SharedInterceptor>,
}

/// What [`Schema::Create`](crate::store::Schema::Create) turns on for the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// The service refuses to delete the table.
    pub deletion: bool,
    /// The service keeps what it needs to restore the table as it was at any moment of the last weeks.
    pub recovery: bool,
}

/// Where region, endpoint and credentials come from.
#[derive(Clone)]
pub enum Settings {
    /// The environment, profiles and what the machine reports, except for the values given here.
    Environment {
        /// The region.
        region: Option<String>,
        /// An endpoint other than the region's.
        endpoint: Option<String>,
    },
    /// The user's configuration. Only its settings are used; the connections are our own.
    Given(Box<SdkConfig>),
}

impl fmt::Debug for DynamodbOptions {
    /// Without the settings, which hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamodbOptions")
            .field("table", &self.table)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

impl DynamodbOptions {
    /// The options for this table, with defaults for the rest.
    pub fn new(table: impl Into<String>, settings: Settings) -> Self {
        DynamodbOptions {
            table: table.into(),
            partition_key: "key".to_owned(),
            sort_key: None,
            grace: Dynamodb::GRACE,
            fleet: Fleet::Own,
            protection: Protection::default(),
            settings,
            estimate: None,
            interceptors: Vec::new(),
        }
    }

    /// The same for this fleet, with at least the grace that it needs.
    pub fn of(mut self, fleet: Fleet) -> Self {
        self.fleet = fleet;
        self.grace = if fleet.is_mixed() { self.grace.max(mixed::GRACE) } else { self.grace };
        self
    }

    /// From a URL like `dynamodb://TABLE?region=eu-central-1`.
    pub(in crate::store) fn from_url(url: &str) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        url.only(&[
            "region",
            "endpoint",
            "grace",
            "fleet",
            "partition_key",
            "sort_key",
            "deletion_protection",
            "point_in_time_recovery",
        ])?;
        url.no_user("the AWS SDK")?;
        let Some(table) = url.path.strip_prefix("//").filter(|table| !table.is_empty()) else {
            return Err(config("dynamodb: needs the name of a table, like dynamodb://locks?region=eu-central-1"));
        };
        let text = |name| url.option(name).map(str::to_owned);
        for name in ["region", "endpoint"] {
            if url.option(name).is_some_and(str::is_empty) {
                return Err(config(&format!("the option {name} is empty; leave it out or give it a value")));
            }
        }
        if let Some(endpoint) = url.option("endpoint") {
            check_endpoint("the option endpoint", "http://localhost:8000", endpoint)?;
        }
        let settings = Settings::Environment { region: text("region"), endpoint: text("endpoint") };
        let mut options = DynamodbOptions::new(table, settings);
        options.partition_key = text("partition_key").unwrap_or(options.partition_key);
        if let Some(text) = url.option("sort_key") {
            let Some((name, value)) = text.split_once(':') else {
                return Err(config(&format!("sort_key is {text:?}, but must be NAME:VALUE, like sk:lock")));
            };
            options.sort_key = Some(SortKey { name: name.to_owned(), value: value.to_owned() });
        }
        options = options.of(Fleet::of_url(&url, mixed::LIBRARY)?);
        options.grace = url.duration("grace")?.unwrap_or(options.grace);
        let (deletion, recovery) = (url.flag("deletion_protection")?, url.flag("point_in_time_recovery")?);
        options.protection = Protection { deletion, recovery };
        Ok(options)
    }

    /// An opener for the store in this table.
    pub(crate) fn opener(self) -> Result<Opener> {
        self.validate()?;
        Ok(Opener::new(self.bounds(), |clock, _, by| Dynamodb::open(self, clock, by)))
    }

    fn bounds(&self) -> Bounds {
        let limits = self.fleet.is_mixed().then_some(mixed::LIMITS);
        Bounds { min_margin: Dynamodb::MIN_MARGIN, limits, ..Bounds::of(Dynamodb::MIN_LEASE) }
    }

    /// Refuses wrong options, also those that the service would refuse, before anything is sent.
    pub fn validate(&self) -> Result<()> {
        let is_named = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !(3..=255).contains(&self.table.len()) || !self.table.chars().all(is_named) {
            // The name is not shown: in a wrong URL it may contain credentials.
            return Err(config("the table name must have 3 to 255 letters, digits, '_', '-' or '.'"));
        }
        if self.partition_key.is_empty() || self.partition_key.len() > 255 {
            return Err(config(&format!("partition_key is {:?}, but must have 1 to 255 bytes", self.partition_key)));
        }
        if self.grace > MAX_GRACE {
            return Err(config(&format!("grace is {:?}, but must be at most a minute", self.grace)));
        }
        if self.fleet.is_mixed() && self.grace < mixed::GRACE {
            return Err(config(&format!(
                "grace is {:?}, but must be at least {:?} with fleet=mixed: for as long as that the clocks of {}'s hosts, \
                 by which it decides, may be off",
                self.grace,
                mixed::GRACE,
                mixed::LIBRARY
            )));
        }
        for (option, name) in [("partition_key", Some(&self.partition_key)), ("sort_key", self.sort_name())] {
            if let Some(name) = name.filter(|name| row::ATTRIBUTES.split(' ').any(|taken| taken == **name)) {
                return Err(config(&format!(
                    "{option} is {name:?}, the name of an attribute that leasehold writes; name the table's key another way"
                )));
            }
        }
        self.sort_key.as_ref().map_or(Ok(()), |sort_key| self.validate_sort_key(sort_key))
    }

    fn sort_name(&self) -> Option<&String> {
        self.sort_key.as_ref().map(|sort_key| &sort_key.name)
    }

    fn validate_sort_key(&self, SortKey { name, value }: &SortKey) -> Result<()> {
        if name.is_empty() || name.len() > 255 || *name == self.partition_key {
            let partition = &self.partition_key;
            let right = format!("must have 1 to 255 bytes and not be the partition key, {partition:?}");
            return Err(config(&format!("the name in sort_key is {name:?}, but {right}")));
        }
        if value.is_empty() || value.len() > 1_024 {
            let len = value.len();
            return Err(config(&format!("the value in sort_key has {len} bytes, but must have 1 to 1,024")));
        }
        if self.fleet.is_mixed() {
            return Err(config(&format!(
                "sort_key can't be used with fleet=mixed: the tables of {} have no sort key",
                mixed::LIBRARY
            )));
        }
        Ok(())
    }
}

impl Dynamodb {
    /// Connects and learns the service's time. The table may be missing.
    pub fn open(options: DynamodbOptions, clock: Arc<Clock>, by: &Deadline) -> Result<Dynamodb> {
        let target = Target::new(&options.table, &options.partition_key, options.sort_key.clone());
        let label = target.label();
        let store = Dynamodb::connect(options, target, clock, by).map_err(|error| error.with_store(&label))?;
        store.learn(by).map_err(|error| error.with_store(&store.info.label))?;
        Ok(store)
    }

    fn connect(options: DynamodbOptions, mut target: Target, clock: Arc<Clock>, by: &Deadline) -> Result<Dynamodb> {
        options.validate()?;
        let (grace, bounds, protection, fleet) = (options.grace, options.bounds(), options.protection, options.fleet);
        let estimate = options.estimate.clone().unwrap_or_default();
        let (ended, time) = (target.ended.clone(), ServiceTime { clock: clock.clone(), estimate: estimate.clone() });
        let driver = Driver::start(by, move || client(options, ended, time), DynamodbError::unconnected)?;
        let place = driver.run(by, |owned| async move { owned.place() });
        (target.region, target.endpoint) = place.map_err(DynamodbError::unconnected)?;
        let info = StoreInfo {
            grace,
            most_shared: Some(most_shared),
            beside: Some(mixed::LIBRARY),
            ..StoreInfo::new(target.label(), "DynamoDB's, by the Date of its answers", bounds)
        };
        let (noted, warned, watch) = Default::default();
        Ok(Dynamodb { info, target, protection, clock, estimate, noted, driver, fleet, warned, watch })
    }

    /// Learns the service's time, and the grace that the table notes.
    fn learn(&self, by: &Deadline) -> Result<()> {
        // Asks a second time if the first answer took long.
        for _ in 0..2 {
            self.read_accepted_time(by).map_err(|error| self.explained(error, by))?;
            self.check_grace()?;
            if self.moment()?.width <= GOOD_ENOUGH {
                break;
            }
        }
        Ok(())
    }

    /// Reads the time. The first request is signed by this host's wall clock, which may be minutes off, and the next one
    /// by the time from its answer. If it is that host of the service whose clock is wrong, the second answer says so,
    /// and if this host's is wrong as well, a third one has to agree.
    fn read_accepted_time(&self, by: &Deadline) -> Result<(), DynamodbError> {
        let mut read = self.read_time(by);
        for _ in 0..3 {
            let is_refused =
                matches!(read, Err(DynamodbError::Credentials { .. } | DynamodbError::Own(Own::NotAccepted, _)));
            if !is_refused {
                break;
            }
            read = self.read_time(by);
        }
        match read {
            Err(DynamodbError::Credentials { cause }) if self.moment().is_err() => {
                Err(DynamodbError::Own(Own::NotAcceptedUntold, Some(cause)))
            }
            read => read,
        }
    }
}

/// Makes the client. Loading the configuration may query the machine for its region.
async fn client(options: DynamodbOptions, ended: Ended, time: ServiceTime) -> Result<Owned> {
    let config = match options.settings {
        Settings::Given(config) => {
            let mut builder = config.into_builder();
            // Connections belong to the runtime that made them, and the user's runtime may be blocked while we wait.
            builder.set_http_client(None);
            builder.build()
        }
        Settings::Environment { region, endpoint } => {
            // Otherwise the retry mode from the environment applies, and the SDK panics on one that it does not know.
            // This is for loading credentials alone: a request to the table is not retried by the SDK.
            let retries = RetryConfig::standard();
            let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12()).retry_config(retries);
            if let Some(region) = region {
                loader = loader.region(Region::new(region));
            }
            if let Some(endpoint) = endpoint {
                loader = loader.endpoint_url(endpoint);
            }
            loader.load().await
        }
    };
    if config.region().is_none() {
        let message = "no region: add ?region=.. to the URL, or set AWS_REGION or a profile with a region";
        return Err(DynamodbError::Config(message.to_owned()).into());
    }
    let Some(credentials) = config.credentials_provider() else {
        let message = "the given SdkConfig has no credentials provider; make it by aws_config::load_defaults(..)";
        return Err(DynamodbError::Config(message.to_owned()).into());
    };
    let endpoint = endpoint(&config);
    if let Some(endpoint) = &endpoint {
        // The SDK's own error would show the whole endpoint.
        let what = "the endpoint (of AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL, a profile or the settings)";
        check_endpoint(what, "http://localhost:8000", endpoint)?;
    }
    let mut builder = Builder::from(&config)
        .credentials_provider(Loaded::from(credentials, ended, time.clone()))
        // The SDK's own correction would be lost with each client that is replaced, and add to ours.
        .disable_clock_skew_correction(true)
        .time_source(time)
        // The user's identity cache may be waiting for a load on the user's runtime.
        .identity_cache(IdentityCache::no_cache())
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    for interceptor in options.interceptors {
        builder = builder.interceptor(interceptor);
    }
    if config.behavior_version().is_none() {
        builder = builder.behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::v2026_01_12());
    }
    Ok(Owned::new(options.table, builder.build(), endpoint))
}

/// The endpoint, if it is another than the region's, determined as the SDK does.
fn endpoint(config: &SdkConfig) -> Option<String> {
    let of_service = || {
        let key = ServiceConfigKey::builder().service_id("DynamoDB").env("AWS_ENDPOINT_URL").profile("endpoint_url");
        config.service_config()?.load_config(key.build().ok()?)
    };
    let is_given = config.get_origin("endpoint_url").is_client_config();
    let own = if is_given { None } else { of_service() };
    own.or_else(|| config.endpoint_url().map(str::to_owned))
}
