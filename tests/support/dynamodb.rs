//! Tables on a DynamoDB whose time a test can move.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::dynamodb::aws_config::{BehaviorVersion, Region, SdkConfig};
use leasehold::dynamodb::aws_sdk_dynamodb as sdk;
use leasehold::internals::store::dynamodb::{Dynamodb, DynamodbOptions, Settings, SortKey};
use leasehold::internals::store::{Backend, Schema};
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::deadline::Deadline;
use sdk::config::interceptors::{BeforeDeserializationInterceptorContextMut, FinalizerInterceptorContextRef};
use sdk::config::retry::RetryConfig;
use sdk::config::{ConfigBag, Credentials, Intercept, RuntimeComponents, SharedCredentialsProvider, SharedInterceptor};
use sdk::error::BoxError;

use super::servers::dynamodb_local;
use super::stores::unique;

/// A new table.
pub struct Table(pub String);

/// The name of the sort key of `Table::sorted`, and a value in it.
pub fn sort_key(value: &str) -> SortKey {
    SortKey { name: "sorted by".to_owned(), value: value.to_owned() }
}

impl Table {
    pub fn fresh() -> Table {
        Table::with(None)
    }

    /// A table with a sort key.
    pub fn sorted() -> Table {
        Table::with(Some(sort_key("any")))
    }

    fn with(sort_key: Option<SortKey>) -> Table {
        let table = Table(unique());
        let by = Deadline::after(Duration::from_secs(30));
        let options = DynamodbOptions { sort_key, ..options(&table.0, &Clock::system()) };
        let store = Dynamodb::open(options, Clock::system(), &by).unwrap();
        store.schema(Schema::Create, &by).unwrap();
        table
    }
}

/// Settings for the server of the tests.
pub fn config() -> SdkConfig {
    config_at(&dynamodb_local().unwrap())
}

/// Settings for a server that accepts any credentials.
pub fn config_at(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("key", "secret-canary", None, None, "test");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

/// Options with which the service's time moves with `clock`.
pub fn options(table: &str, clock: &Arc<Clock>) -> DynamodbOptions {
    let mut options = DynamodbOptions::new(table, Settings::Given(Box::new(config())));
    options.interceptors.extend([shifted(clock), SharedInterceptor::new(AsksAgain)]);
    options
}

/// Asks DynamoDB Local again where it gave up, on a busy machine, waiting for a lock of its own, which the service has
/// not. It says so after ten seconds, and has done nothing then.
#[derive(Debug)]
struct AsksAgain;

impl Intercept for AsksAgain {
    fn name(&self) -> &'static str {
        "asks_again"
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = context.response().and_then(|answer| answer.body().bytes()).unwrap_or_default();
        if String::from_utf8_lossy(body).contains("too long waiting for a lock") {
            // For this operation only; what else the SDK repeats is the library's choice.
            let often = RetryConfig::standard().with_max_attempts(20).with_initial_backoff(Duration::from_millis(50));
            config.interceptor_state().store_put(often);
        }
        Ok(())
    }
}

/// Makes each answer's `Date` say the time of a service that is as far ahead as the clock was advanced. The
/// service itself has no other clock: what it stores and compares comes from its clients.
pub fn shifted(clock: &Arc<Clock>) -> SharedInterceptor {
    let (clock, system) = (clock.clone(), Clock::system());
    on_answer(move |context| {
        let ahead = clock.now().since(system.now());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        set_date(context, i64::try_from((now + ahead).as_secs())?)
    })
}

/// Calls `does` with each answer, before it is read.
pub fn on_answer<F>(does: F) -> SharedInterceptor
where
    F: Fn(&mut BeforeDeserializationInterceptorContextMut<'_>) -> Result<(), BoxError> + Send + Sync + 'static,
{
    SharedInterceptor::new(OnAnswer(does))
}

struct OnAnswer<F>(F);

impl<F> fmt::Debug for OnAnswer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnAnswer")
    }
}

impl<F> Intercept for OnAnswer<F>
where
    F: Fn(&mut BeforeDeserializationInterceptorContextMut<'_>) -> Result<(), BoxError> + Send + Sync,
{
    fn name(&self) -> &'static str {
        "on_answer"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        (self.0)(context)
    }
}

/// Makes each answer come without a `Date`.
pub fn dateless() -> SharedInterceptor {
    on_answer(|context| {
        context.response_mut().headers_mut().remove("date");
        Ok(())
    })
}

/// Makes an answer's `Date` this time, in seconds since 1970.
pub fn set_date(context: &mut BeforeDeserializationInterceptorContextMut<'_>, date: i64) -> Result<(), BoxError> {
    let date = jiff::Timestamp::from_second(date)?;
    let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&date)?;
    context.response_mut().headers_mut().insert("date", text);
    Ok(())
}
