//! Calls over the whole table: they take as long as needed, one page at a time.

use std::collections::BTreeSet;

use leasehold::{Filter, LockClient};

use crate::dynamodb::sdk::config::interceptors::BeforeSerializationInterceptorContextMut;
use crate::dynamodb::sdk::config::{ConfigBag, Intercept, RuntimeComponents, SharedInterceptor};
use crate::dynamodb::sdk::error::BoxError;
use crate::dynamodb::sdk::operation::scan::ScanInput;
use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::*;
use crate::support::bench::builder_over;
use crate::support::logs;
use crate::support::proxy::{Mode as Network, Rule};

const ROWS: usize = 240;
/// The rows of a page.
const PAGE: i32 = 20;
/// Longer than a server on a busy machine stalls.
const TIMEOUT: Duration = Duration::from_secs(8);
/// The pages of one scan together take longer than one request may.
const EACH: Duration = Duration::from_millis(700);

/// Makes pages as small as the service's are for a table with larger rows.
#[derive(Debug)]
struct Short;

impl Intercept for Short {
    fn name(&self) -> &'static str {
        "short pages"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(scan) = context.input_mut().downcast_mut::<ScanInput>() {
            scan.limit = Some(PAGE);
        }
        Ok(())
    }
}

/// A client of a slow service with a table that is large for it.
fn at(proxy: &Proxy, table: &Table) -> LockClient {
    let clock = Clock::system();
    let settings = Settings::Given(Box::new(config_at(&proxy.url())));
    let mut options = DynamodbOptions { settings, ..options(&table.0, &clock) };
    options.interceptors.push(SharedInterceptor::new(Short));
    let store = Arc::new(open(options, &clock));
    builder_over(store, clock).request_timeout(TIMEOUT).lease(Duration::from_secs(60)).connect().unwrap()
}

/// Four rows of each group, a lease, two damaged rows, and many others.
fn fill(table: &Table) {
    let (raw, (store, _)) = (Raw::new(table), client(table));
    granted(&store, &mut exclusive("row"));
    let text = |text: &str| AttributeValue::S(text.to_owned());
    // None of them ends during the test.
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    let mut row = raw.get("row");
    row.insert("leasedUntil".to_owned(), text(&format!("{until:.9}")));
    let mut rows = vec![row.clone()];
    for i in 0..ROWS {
        let mut row = row.clone();
        let key = match i {
            0 => "\u{1}scans\u{1}lease".to_owned(),
            1 | 2 => format!("damaged {i}"),
            _ => format!("row {i}"),
        };
        row.insert("key".to_owned(), text(&key));
        row.insert("grantId".to_owned(), text(&format!("grant {i}")));
        row.insert("lockId".to_owned(), text(&format!("group {}", i / 4)));
        match i {
            0 => drop(row.insert("kind".to_owned(), text("lease"))),
            1 | 2 => drop(row.insert("fence".to_owned(), text("seven"))),
            _ => {}
        }
        rows.push(row);
    }
    raw.put_all(rows);
}

#[test]
fn a_large_table_takes_as_many_pages_as_it_needs() {
    needs_server!();
    logs::keep();
    let table = Table::fresh();
    fill(&table);
    let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
    let client = at(&proxy, &table);
    for scans in [7, 20] {
        let busy = r#"{"__type":"ProvisionedThroughputExceededException","message":"slower"}"#;
        proxy.add(Rule::next(1, Network::Say(400, busy)).on("Scan").after(scans));
    }
    proxy.add(Rule::always(Network::Delay(EACH)).on("Scan"));
    let started = Instant::now();
    let keys = |of: &[leasehold::LockStatus]| of.iter().map(|one| one.key().to_owned()).collect::<BTreeSet<_>>();
    // All at once: no call may take the pages of another.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut all = client.list(&Filter::new()).unwrap();
            // The calls below may unlock these before the last pages of this one arrive.
            all.retain(|one| one.lock_id() != "group 8");
            let others = (3..ROWS).filter(|i| i / 4 != 8).map(|i| format!("row {i}"));
            let right: BTreeSet<String> = others.chain(["row".to_owned()]).collect();
            assert_eq!((keys(&all), all.len()), (right, ROWS - 6));
            assert!(all.is_sorted_by(|a, b| a.fencing_token() >= b.fencing_token()));
        });
        scope.spawn(|| {
            let prefixed = client.list(&Filter::new().key_prefix("row 1")).unwrap();
            assert_eq!(prefixed.len(), 110);
        });
        scope.spawn(|| assert_eq!(client.renew("group 7", Duration::from_secs(48 * 3_600)).unwrap().len(), 4));
        scope.spawn(|| assert_eq!(client.unlock("group 8").unwrap().len(), 4));
        scope.spawn(|| assert_eq!(client.leases("scans").list().unwrap().len(), 1));
        scope.spawn(|| assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 0));
        scope.spawn(|| assert_eq!(client.purge_preview(Duration::ZERO).unwrap().freed, []));
    });
    assert!(started.elapsed() > TIMEOUT, "no request had to take that long: {:?}", started.elapsed());
    let scans = proxy.requests().iter().filter(|one| one.has("Scan")).count();
    let pages = (ROWS + 1).div_ceil(PAGE as usize);
    assert!((7 * pages..=7 * (pages + 1) + 2).contains(&scans), "{scans} requests for 7 times {pages} pages");
    for key in ["damaged 1", "damaged 2"] {
        let warned = logs::kept(key);
        assert!(warned.iter().any(|line| line.contains("fence")), "{key}: {warned:?}");
    }
}

/// A table that also has items that are no locks.
#[test]
fn what_is_no_lock_is_neither_listed_nor_purged() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let other = std::collections::HashMap::from([("key", "settings"), ("data", "precious")]);
    let other: std::collections::HashMap<_, _> =
        other.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    raw.put(other.clone());
    granted(&store, &mut exclusive("lock"));
    let client = patient(config(), &table.0).connect().unwrap();
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 0);
    assert_eq!(client.purge_preview(Duration::ZERO).unwrap().deleted, 0);
    assert_eq!(client.list(&Filter::new()).unwrap().len(), 1);
    let error = client.try_lock("settings").unwrap_err();
    assert!(error.to_string().contains("it is no lock"), "{error}");
    assert_eq!(raw.get("settings"), other);
}

#[test]
fn a_row_of_a_newer_format_is_left_out_of_a_purge_and_nothing_else_is() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, clock)) = (Raw::new(&table), client(&table));
    for key in ["a", "newer", "z"] {
        granted(&store, &mut exclusive(key));
    }
    let mut newer = raw.get("newer");
    newer.insert("format".to_owned(), AttributeValue::S("2.0".to_owned()));
    raw.put(newer.clone());
    clock.advance(LEASE + Duration::from_secs(10));
    let client = crate::support::bench::builder_over(Arc::new(store), clock).connect().unwrap();
    let keys = |purged: &leasehold::Purged| purged.freed.iter().map(|one| one.key().to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(&client.purge_preview(Duration::ZERO).unwrap()), ["a", "z"]);
    assert_eq!(client.list(&Filter::new()).unwrap().len(), 2);
    assert_eq!(keys(&client.purge(Duration::ZERO).unwrap()), ["a", "z"]);
    assert_eq!(raw.get("newer"), newer);
}

#[test]
fn a_row_of_a_newer_form_is_told_as_that() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    crate::newer::its_version_is_told(store, |key| {
        let mut newer = raw.get(key);
        for (name, value) in [("format", "2.0"), ("kind", "loan")] {
            newer.insert(name.to_owned(), AttributeValue::S(value.to_owned()));
        }
        raw.put(newer);
    });
}
