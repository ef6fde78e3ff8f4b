//! The DynamoDB store's requests done by hand: the same conditions and values, through a client with the same settings
//! on a hidden runtime of its own, which a blocking program needs.

use std::collections::HashMap;

use leasehold::dynamodb::aws_config::{BehaviorVersion, Region, SdkConfig};
use leasehold::dynamodb::aws_sdk_dynamodb::Client;
use leasehold::dynamodb::aws_sdk_dynamodb::config::retry::RetryConfig;
use leasehold::dynamodb::aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use leasehold::dynamodb::aws_sdk_dynamodb::config::{
    Builder, Credentials, SharedCredentialsProvider, StalledStreamProtectionConfig,
};
use leasehold::dynamodb::aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use leasehold::internals::sys::driver::Driver;
use leasehold::{ClientBuilder, LockClient};

use super::data::dynamodb::Items;
use super::hidden::{hidden, soon};
use super::proxy::{Mode, Proxy, Rule};
use super::servers::dynamodb_local;
use super::store::{Call, Raw, Stalling, Store};

pub const SCHEME: &str = "dynamodb://";
const GRANT: &str = "0d0a2f2c-3a69-4f3e-8d0f-5f1c8d3c2b1a";
const OTHER: &str = "7c1d5f0e-95d2-4e0b-a5a3-2f0f6f8a9b3c";
const PAST: &str = "1970-01-01T00:00:00.000000000Z";
const NOW: &str = "2026-11-21T08:00:00.123456789Z";
const END: &str = "9999-11-21T08:00:20.123456789Z";

pub fn store() -> Option<Store> {
    let endpoint = dynamodb_local()?;
    let table = format!("bench-{:016x}", fastrand::u64(..));
    let url = format!("{SCHEME}{table}?endpoint={endpoint}");
    let client = builder(&url).connect().expect("the server");
    client.create_schema().expect("a table");
    let raw = RawDynamodb::new(&endpoint, &table);
    let stalling = move || {
        let proxy = Proxy::http(&endpoint);
        let url = format!("{SCHEME}{table}?endpoint={}", proxy.url());
        let stall = move |time| proxy.add(Rule::next(1, Mode::Delay(time)).on("UpdateItem"));
        Stalling { url, stall: Box::new(stall) }
    };
    Some(Store {
        name: "dynamodb",
        url,
        raw: Some(Box::new(raw)),
        peers: Vec::new(),
        shared: true,
        grace: std::time::Duration::from_secs(1),
        stalling: Some(Box::new(stalling)),
    })
}

/// The test server accepts any credentials.
fn config(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("key", "secret", None, None, "bench");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

/// The table and the endpoint, if the URL is one that this benchmark has made.
fn named(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix(SCHEME)?.split_once("?endpoint=")
}

/// A user's own items in the table of the locks.
pub fn data(url: &str) -> Items {
    let (table, endpoint) = named(url).expect("one of our URLs");
    Items::new(&config(endpoint), table)
}

/// A client for such a URL.
pub fn builder(url: &str) -> ClientBuilder {
    match named(url) {
        Some((table, endpoint)) => leasehold::dynamodb::builder(config(endpoint), table),
        None => LockClient::builder(url),
    }
}

struct RawDynamodb {
    driver: Driver<Client>,
    table: String,
    token: u64,
}

impl RawDynamodb {
    fn new(endpoint: &str, table: &str) -> Self {
        let config = Builder::from(&config(endpoint))
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .build();
        let driver = hidden(|| async { Ok(Client::from_conf(config)) });
        let mut raw = RawDynamodb { driver, table: table.to_owned(), token: 1_700_000_000_000_000 };
        // The lock that `Refused` tries to acquire.
        raw.acquire("raw-held", OTHER);
        raw
    }

    /// Returns whether the condition held.
    fn update(&self, key: &str, condition: &str, update: &str, values: &[(&str, AttributeValue)]) -> bool {
        let both = format!("{condition} {update}");
        let names = both.match_indices('#').map(|(at, _)| {
            let name: String = both[at + 1..].chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            (format!("#{name}"), name)
        });
        let names: HashMap<String, String> = names.collect();
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let (table, key) = (self.table.clone(), text(key));
        let (condition, update) = (condition.to_owned(), update.to_owned());
        let run = self.driver.run(&soon(), move |client| async move {
            let request = client
                .update_item()
                .table_name(table)
                .key("key", key)
                .condition_expression(condition)
                .update_expression(update)
                .set_expression_attribute_names(Some(names))
                .set_expression_attribute_values(Some(values))
                .return_values(ReturnValue::AllNew)
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
            request.send().await
        });
        match run.expect("an answer") {
            Ok(_) => true,
            Err(error) if error.as_service_error().is_some_and(|e| e.is_conditional_check_failed_exception()) => false,
            Err(error) => panic!("the raw request: {error:?}"),
        }
    }

    fn acquire(&mut self, key: &str, grant: &str) -> bool {
        self.token += 1;
        let token = AttributeValue::N(self.token.to_string());
        self.update(
            key,
            "(attribute_not_exists(#key) OR (#leasedUntil <= :cut AND (attribute_exists(#fence) OR \
             contains(#leasedUntil, :z)))) AND (attribute_not_exists(#fence) OR #fence < :t) \
             AND (attribute_not_exists(#format) OR begins_with(#format, :major)) \
             AND NOT contains(#givenUp, :grant) AND (attribute_not_exists(#kind) OR #kind <> :leaseKind)",
            "SET #grantId = :grant, #lockId = :lock, #kind = :kind, #format = if_not_exists(#format, :format), \
             #owner = :owner, #host = :host, #createdAt = :now, #leasedUntil = :end, #fence = :t, \
             #version = if_not_exists(#version, :t) + :one REMOVE #shared, #renewedAt, #ttl, #comment",
            &[
                (":cut", text(NOW)),
                (":z", text("Z")),
                (":t", token),
                (":major", text("1.")),
                (":grant", text(grant)),
                (":leaseKind", text("lease")),
                (":lock", text(grant)),
                (":kind", text("lock")),
                (":format", text("1.0")),
                (":owner", text("some-host:12345")),
                (":host", text("some-host")),
                (":now", text(NOW)),
                (":end", text(END)),
                (":one", AttributeValue::N("1".to_owned())),
            ],
        )
    }

    fn renew(&self) -> bool {
        self.update(
            "raw",
            "#grantId = :grant AND #leasedUntil <= :end \
             AND (attribute_not_exists(#format) OR begins_with(#format, :major))",
            "SET #leasedUntil = :end, #renewedAt = :now, #version = #version + :one",
            &[
                (":grant", text(GRANT)),
                (":end", text(END)),
                (":major", text("1.")),
                (":now", text(NOW)),
                (":one", AttributeValue::N("1".to_owned())),
            ],
        )
    }

    fn release(&self) -> bool {
        self.update(
            "raw",
            "#grantId = :grant AND (attribute_not_exists(#format) OR begins_with(#format, :major))",
            "SET #leasedUntil = :past, #version = #version + :one \
             REMOVE #grantId, #lockId, #owner, #host, #comment, #renewedAt",
            &[
                (":grant", text(GRANT)),
                (":past", text(PAST)),
                (":major", text("1.")),
                (":one", AttributeValue::N("1".to_owned())),
            ],
        )
    }
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

impl Raw for RawDynamodb {
    fn prepare(&mut self, _: Call) {}

    fn run(&mut self, call: Call) {
        let held = match call {
            Call::Acquire => self.acquire("raw", GRANT),
            Call::Renew => self.renew(),
            Call::Release => self.release(),
            Call::Refused => !self.acquire("raw-held", GRANT),
        };
        assert!(held, "the raw {call:?}");
    }
}
