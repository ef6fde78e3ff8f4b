//! The table: made, checked, refused.

use leasehold::dynamodb::aws_config::Region;
use leasehold::internals::store::{Consistency, Schema};
use leasehold::{ErrorKind, LockClient};

use crate::dynamodb::sdk::types::{AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType};
use crate::dynamodb::*;
use crate::network::{all_were_met, sent};
use crate::support::dynamodb::{Table, config_at};
use crate::support::harness::{PATIENCE, within};
use crate::support::proxy::{Mode as Network, Proxy, Rule};
use crate::support::stores::unique;

fn make(raw: &Raw, keys: &[(&str, KeyType, ScalarAttributeType)]) {
    let mut request = raw.client.create_table().table_name(&raw.table).billing_mode(BillingMode::PayPerRequest);
    for (name, kind, of) in keys {
        let key = KeySchemaElement::builder().attribute_name(*name).key_type(kind.clone()).build().unwrap();
        let of = AttributeDefinition::builder().attribute_name(*name).attribute_type(of.clone()).build().unwrap();
        request = request.key_schema(key).attribute_definitions(of);
    }
    raw.runtime.block_on(request.send()).unwrap();
}

fn connect(table: &Table) -> leasehold::Result<LockClient> {
    patient(config(), &table.0).connect()
}

fn is_protected(raw: &Raw) -> Option<bool> {
    let request = raw.client.describe_table().table_name(&raw.table);
    raw.runtime.block_on(request.send()).unwrap().table.unwrap().deletion_protection_enabled
}

#[test]
fn a_table_is_protected_from_deletion_where_that_is_wanted() {
    let table = needs_server!(Table(unique()));
    let raw = Raw::new(&table);
    let plain = connect(&table).unwrap();
    assert!(!plain.schema().unwrap().contains("--deletion-protection"));
    let wanted = leasehold::dynamodb::Table::new(&table.0).deletion_protection(true);
    let client = patient(config(), wanted.clone()).connect().unwrap();
    assert!(client.schema().unwrap().contains("--deletion-protection-enabled"));
    assert!(client.create_schema().unwrap().contains("the table was made"));
    assert_eq!(is_protected(&raw), Some(true), "made so");
    let delete = raw.client.delete_table().table_name(&table.0);
    assert!(raw.runtime.block_on(delete.send()).is_err(), "the service refuses");
    // A client that does not ask for the protection does not remove it.
    assert!(plain.create_schema().unwrap().contains("the table is there, with the key"));
    assert_eq!(is_protected(&raw), Some(true));

    let other = Table::fresh();
    let raw = Raw::new(&other);
    assert_ne!(is_protected(&raw), Some(true));
    let wanted = leasehold::dynamodb::Table::new(&other.0).deletion_protection(true);
    let said = patient(config(), wanted).connect().unwrap().create_schema().unwrap();
    assert!(said.contains("the table is there, and is protected now"), "{said}");
    assert_eq!(is_protected(&raw), Some(true), "a table that was there");
}

/// DynamoDB Local has no backups, so the proxy answers in its place. It checks what the request asks for, and that a
/// service which can't do it yet is asked again.
#[test]
fn point_in_time_recovery_is_turned_on_where_that_is_wanted() {
    needs_server!();
    const NOT_YET: &str = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ContinuousBackupsUnavailableException","message":"Backups are being enabled for the table. Please retry later"}"#;
    const DONE: &str = r#"{"ContinuousBackupsDescription":{"ContinuousBackupsStatus":"ENABLED","PointInTimeRecoveryDescription":{"PointInTimeRecoveryStatus":"ENABLED"}}}"#;
    let (table, asks) = (Table(unique()), "UpdateContinuousBackups");
    let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
    let wanted = leasehold::dynamodb::Table::new(&table.0).point_in_time_recovery(true);
    let client = patient(config_at(&proxy.url()), wanted).connect().unwrap();
    assert!(client.schema().unwrap().contains("PointInTimeRecoveryEnabled=true"));
    proxy.add(Rule::next(2, Network::Say(400, NOT_YET)).on(asks));
    proxy.add(Rule::always(Network::Say(200, DONE)).on(asks));
    client.create_schema().unwrap();
    let asked: Vec<_> = proxy.requests().into_iter().filter(|request| request.target == asks).collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    let first = |target: &str| proxy.requests().iter().position(|request| request.target == target);
    let is_first = first("UpdateItem").is_some_and(|at| Some(at) < first(asks));
    assert!(is_first, "the grace is noted as soon as locks may be taken");
    for request in &asked {
        assert!(request.has(&format!("\"TableName\":\"{}\"", table.0)), "{request:?}");
        assert!(request.has("\"PointInTimeRecoveryEnabled\":true"), "{request:?}");
    }
    let made = proxy.requests().iter().filter(|request| request.target == "CreateTable").count();
    assert_eq!(made, 1);
    // A client that does not want it sends no request for it.
    connect(&table).unwrap().create_schema().unwrap();

    // If the service can't do it, the error says so, and the table exists.
    let wanted = leasehold::dynamodb::Table::new(&table.0).point_in_time_recovery(true);
    let error = patient(config(), wanted).connect().unwrap().create_schema().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, false), "{error}");
    assert!(connect(&table).unwrap().try_lock("k").unwrap().is_some());
}

/// With the region and the endpoint of this client. Each value is one word of the shell, whatever it contains.
#[test]
fn the_command_that_is_printed_can_be_pasted() {
    let table = needs_server!(Table(unique()));
    let endpoint = crate::support::servers::dynamodb_local().unwrap();
    let command = connect(&table).unwrap().schema().unwrap();
    let table_here = format!("create-table --table-name {} --region us-east-1 --endpoint-url {endpoint} ", table.0);
    assert!(command.contains(&table_here), "{command}");
    let key = "--attribute-definitions AttributeName=key,AttributeType=S --key-schema AttributeName=key,KeyType=HASH";
    assert!(command.ends_with(key), "{command}");

    let name = "it's $(touch run) `touch run` \"\\,KeyType=RANGE";
    let keyed = leasehold::dynamodb::Table::new(&table.0).partition_key(name).point_in_time_recovery(true);
    let command = patient(config(), keyed).connect().unwrap().schema().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // The words that the shell makes of the command, one per line.
    let script = format!("aws() {{ printf '%s\\n' \"$@\"; }}\n{command}");
    let said = std::process::Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    let words = String::from_utf8(said.stdout).unwrap();
    let values = |option: &str| -> Vec<&str> {
        let starts = words.lines().zip(words.lines().skip(1)).filter(|(word, _)| *word == option);
        starts.map(|(_, value)| value).collect()
    };
    assert_eq!(values("--region"), ["us-east-1"; 3], "{command}");
    assert_eq!(values("--endpoint-url"), [&*endpoint; 3], "{command}");
    for (option, other, value) in
        [("--attribute-definitions", "AttributeType", "S"), ("--key-schema", "KeyType", "HASH")]
    {
        let json: serde_json::Value = serde_json::from_str(values(option)[0]).expect(&command);
        assert_eq!(json, serde_json::json!([{ "AttributeName": name, other: value }]), "{command}");
    }
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "a part of it was run: {command}");
}

#[test]
fn a_missing_table_is_made_by_several_at_once() {
    let table = needs_server!(Table(unique()));
    let client = connect(&table).unwrap();
    let error = client.lock("k").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("create_schema") && error.to_string().contains(&table.0), "{error}");
    let said = std::thread::scope(|scope| {
        let makers = [(); 4].map(|()| scope.spawn(|| connect(&table).unwrap().create_schema().unwrap()));
        makers.map(|maker| maker.join().unwrap())
    });
    assert_eq!(said.iter().filter(|said| said.contains("the table was made")).count(), 1, "{said:?}");
    client.lock("k").unwrap().release().unwrap();
    client.create_schema().unwrap();
    assert!(client.schema().unwrap().contains("create-table"));
}

#[test]
fn another_key_schema_is_refused_at_connect() {
    needs_server!();
    let (hash, range) = (KeyType::Hash, KeyType::Range);
    let cases = [
        vec![("key", hash.clone(), ScalarAttributeType::N)],
        vec![("id", hash.clone(), ScalarAttributeType::S)],
        vec![("key", hash, ScalarAttributeType::S), ("part", range, ScalarAttributeType::S)],
    ];
    for keys in cases {
        let table = Table(unique());
        make(&Raw::new(&table), &keys);
        let error = connect(&table).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{keys:?}: {error}");
        assert!(error.to_string().contains(&table.0), "{error}");
        assert!(error.to_string().contains("but must have HASH key (S)"), "{error}");
    }
}

/// DynamoDB Local has no replicas, so the proxy describes the table in its place.
#[test]
fn replicas_without_strong_consistency_are_refused() {
    needs_server!();
    macro_rules! described {
        ($more:literal) => {
            concat!(
                r#"{"Table":{"TableStatus":"ACTIVE","KeySchema":[{"AttributeName":"key","KeyType":"HASH"}],"#,
                r#""AttributeDefinitions":[{"AttributeName":"key","AttributeType":"S"}],"#,
                r#""Replicas":[{"RegionName":"eu-west-1","ReplicaStatus":"ACTIVE"}]"#,
                $more,
                "}}"
            )
        };
    }
    let at = Behind::new();
    let connect = || patient(config_at(&at.proxy.url()), &at.table.0).connect();
    for json in [described!(""), described!(r#","MultiRegionConsistency":"EVENTUAL""#)] {
        all_were_met(&at.proxy);
        at.proxy.add(Rule::always(Network::Say(200, json)).on("DescribeTable"));
        let error = connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("replicas") && error.to_string().contains(&at.table.0), "{error}");
    }
    all_were_met(&at.proxy);
    let strong = described!(r#","MultiRegionConsistency":"STRONG""#);
    at.proxy.add(Rule::always(Network::Say(200, strong)).on("DescribeTable"));
    drop(connect().unwrap().lock("k").unwrap());
}

#[test]
fn another_name_of_the_partition_key_is_used() {
    let table = needs_server!(Table(unique()));
    let keyed = leasehold::dynamodb::Table::new(&table.0).partition_key("lock name");
    let client = patient(config(), keyed).connect().unwrap();
    client.create_schema().unwrap();
    let guard = client.request("k").lock_id("group").lock().unwrap();
    assert!(client.try_lock("k").unwrap().is_none());
    assert_eq!(client.get("k").unwrap().unwrap().holders()[0].lock_id(), "group");
    guard.release().unwrap();
    let clock = Clock::system();
    let mut all = options(&table.0, &clock);
    all.partition_key = "lock name".to_owned();
    let store = open(all, &clock);
    assert_eq!(
        store.read(&Which::Prefix("k".to_owned()), None, Consistency::Strong, &soon()).unwrap().records.len(),
        1
    );
    store.schema(Schema::Check, &soon()).unwrap();
}

/// DynamoDB Local has separate tables for each region.
#[test]
fn a_lock_is_released_only_where_it_stands_not_in_a_table_of_the_same_name_elsewhere() {
    let table = needs_server!(Table::fresh());
    let here = connect(&table).unwrap();
    let region = config().into_builder().region(Region::new("eu-west-1")).build();
    let elsewhere = patient(region, &table.0).connect().unwrap();
    elsewhere.create_schema().unwrap();
    let lock = here.request("k").lease(LEASE).acquire().unwrap();
    let (released, lost) = (elsewhere.release(&lock).unwrap_err(), elsewhere.heartbeat(&lock, LEASE).unwrap_err());
    assert_eq!((released.kind(), lost.kind()), (ErrorKind::InvalidInput, ErrorKind::Lost), "{released}");
    for error in [released, lost] {
        let text = error.to_string();
        assert!(["us-east-1", "eu-west-1"].iter().all(|region| text.contains(&format!("?region={region}"))), "{text}");
    }
    here.release(&lock).unwrap();
    // One table at two endpoints.
    let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
    let client = patient(config_at(&proxy.url()), &table.0).connect().unwrap();
    let lock = here.request("k").lease(LEASE).acquire().unwrap();
    client.release(&lock).unwrap();
    assert_eq!(client.release(&lock).unwrap_err().kind(), ErrorKind::InvalidInput);
    here.release(&lock).unwrap();
}

/// A lock of a version that wrote only the table's name.
#[test]
#[cfg(feature = "serde")]
fn of_a_lock_that_names_the_table_alone_no_other_store_is_named() {
    let table = needs_server!(Table::fresh());
    let client = connect(&table).unwrap();
    let lock = client.request("k").lease(LEASE).acquire().unwrap();
    client.release(&lock).unwrap();
    let lost = |store: &str| {
        let mut json = serde_json::to_value(&lock).unwrap();
        json["store"] = store.into();
        client.heartbeat(&serde_json::from_value(json).unwrap(), LEASE).unwrap_err().to_string()
    };
    assert!(!lost(&format!("dynamodb://{}", table.0)).contains("granted by"));
    assert!(lost(&format!("dynamodb://{}?region=eu-west-1", table.0)).contains("granted by"));
}

#[test]
fn a_url_leads_to_it() {
    let table = needs_server!(Table::fresh());
    let endpoint = crate::support::servers::dynamodb_local().unwrap();
    // The environment of a test process can't be changed safely, so another process connects.
    let url = format!("dynamodb://{}?region=us-east-1&endpoint={endpoint}&grace=2s&deletion_protection=1", table.0);
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dynamodb::table::connects_to_the_url_of_the_environment"])
        .env("LEASEHOLD_TEST_URL", url)
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
}

#[test]
fn connects_to_the_url_of_the_environment() {
    // Runs only as the other process of `a_url_leads_to_it`.
    if std::env::var_os("LEASEHOLD_TEST_URL").is_none() {
        return;
    }
    let builder = LockClient::builder(std::env::var("LEASEHOLD_TEST_URL").unwrap());
    let client = builder.request_timeout(PATIENCE).connect().unwrap();
    assert!(client.schema().unwrap().contains("--deletion-protection-enabled"));
    let guard = client.lock("k").unwrap();
    assert!(guard.is_held());
    guard.release().unwrap();
}

/// What the service says of a table that is still being made. DynamoDB Local makes a table at once.
pub const MAKING: &str = r#"{"Table":{"TableStatus":"CREATING","KeySchema":[{"AttributeName":"key","KeyType":"HASH"}],"AttributeDefinitions":[{"AttributeName":"key","AttributeType":"S"}]}}"#;

#[test]
fn a_table_that_takes_longer_than_a_request_is_waited_for() {
    needs_server!();
    let is_waited_for = |times: u32| {
        let (table, looks) = (Table(unique()), u64::from(times) * 20);
        let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
        let timeout = Duration::from_secs(4) * times;
        let client = sent(|| patient(config_at(&proxy.url()), &table.0).request_timeout(timeout).connect());
        let of_connect = proxy.requests().len();
        // There is a look every 250 ms, and the first one sees that there is no table.
        proxy.add(Rule::next(looks, Network::Say(200, MAKING)).on("DescribeTable").after(1));
        if let Err(error) = client.create_schema() {
            // The server itself may have stalled for that long.
            assert!(error.is_retryable(), "{error}");
            return false;
        }
        let requests = proxy.requests().split_off(of_connect);
        let looked = requests.iter().filter(|request| request.target == "DescribeTable").count();
        assert_eq!(looked as u64, looks + 2, "one before it is made, the rest after");
        // If the server stops answering, that is noticed as soon as in any call.
        all_were_met(&proxy);
        proxy.add(Rule::always(Network::HoleToServer));
        let error = within("one that hangs", timeout, || client.create_schema()).unwrap_err();
        assert!(error.is_retryable(), "{error}");
        all_were_met(&proxy);
        true
    };
    assert!([1, 2, 4].into_iter().any(is_waited_for), "no answer of the server each time");
}
