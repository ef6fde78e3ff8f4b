//! The grace that the clients of a table agree on, and what a holder may rely on.

use leasehold::internals::store::{Renewed, Schema};
use leasehold::{ErrorKind, Filter, LockClient};

use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::table::MAKING;
use crate::dynamodb::time::{blocking, idle, note, sent};
use crate::dynamodb::*;
use crate::support::bench::builder_over;
use crate::support::dynamodb::{Table, config_at, options};
use crate::support::proxy::{Mode as Network, Request, Rule};
use crate::support::wait::wait_until;

fn with_grace(table: &Table, grace: u64) -> leasehold::Result<LockClient> {
    let table = leasehold::dynamodb::Table::new(&table.0).grace(Duration::from_millis(grace));
    patient(crate::support::dynamodb::config(), table).connect()
}

#[test]
fn who_connects_to_wait_for_less_than_others_is_refused() {
    let table = needs_server!(Table::fresh());
    let refused = |grace: u64, right: &str| {
        let error = with_grace(&table, grace).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(right), "{error}");
    };
    // The table was made with the default.
    refused(500, "grace=1000ms");
    // A read is no reason to wait for longer.
    assert!(with_grace(&table, 60_000).unwrap().list(&Filter::new()).unwrap().is_empty());
    let client = with_grace(&table, 3_000).unwrap();
    with_grace(&table, 1_000).unwrap();
    client.request("k").acquire().unwrap();
    refused(1_000, "grace=3000ms");
    with_grace(&table, 3_000).unwrap();
    // The row of the note is not a lock.
    assert_eq!(client.list(&Filter::new()).unwrap().len(), 1);
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 0);
    refused(1_000, "grace=3000ms");
}

/// A store with this grace, and its clock.
fn waiting(table: &Table, grace: Duration) -> (Dynamodb, Arc<Clock>) {
    let clock = Clock::system();
    (open(DynamodbOptions { grace, ..options(&table.0, &clock) }, &clock), clock)
}

#[test]
fn who_runs_already_waits_for_as_long_as_others_do() {
    needs_server!();
    // A client whose estimate is good for minutes reads the note again, too.
    for own in [1, 5].map(Duration::from_secs) {
        let table = Table::fresh();
        let (store, clock) = waiting(&table, own);
        granted(&store, &mut exclusive("once"));
        granted(&waiting(&table, Duration::from_secs(30)).0, &mut exclusive("noted"));
        clock.advance(Duration::from_secs(601));
        granted(&store, &mut exclusive("k"));
        clock.advance(LEASE + Duration::from_secs(10));
        assert_eq!(refused(&store, &mut exclusive("k")).live().count(), 1);
        clock.advance(Duration::from_secs(25));
        granted(&store, &mut exclusive("k"));
    }
}

#[test]
fn who_only_purges_waits_for_as_long_as_others_do_too() {
    let table = needs_server!(Table::fresh());
    let (store, clock) = waiting(&table, Dynamodb::GRACE);
    let client = builder_over(Arc::new(store), clock.clone()).connect().unwrap();
    client.request("k").lease(Duration::from_secs(591)).acquire().unwrap();
    with_grace(&table, 30_000).unwrap().lock("noted").unwrap().release().unwrap();
    clock.advance(Duration::from_secs(601));
    assert!(client.purge(Duration::ZERO).unwrap().freed.is_empty());
    clock.advance(Duration::from_secs(25));
    assert_eq!(client.purge(Duration::ZERO).unwrap().freed.len(), 1);
}

#[test]
fn who_was_there_before_the_table_looks_before_its_first_lock() {
    needs_server!();
    let table = Table(crate::support::stores::unique());
    let (early, clock) = waiting(&table, Duration::from_millis(500));
    let (other, _) = waiting(&table, Duration::from_secs(30));
    other.schema(Schema::Create, &soon()).unwrap();
    granted(&early, &mut exclusive("k"));
    clock.advance(LEASE + Duration::from_secs(10));
    assert_eq!(refused(&early, &mut exclusive("k")).live().count(), 1);
}

/// As on a table that CloudFormation made, and that others use.
#[test]
fn create_schema_notes_no_smaller_grace_than_a_table_that_is_there_has() {
    needs_server!();
    let table = Table(crate::support::stores::unique());
    let (early, _) = waiting(&table, Duration::from_millis(500));
    waiting(&table, Dynamodb::GRACE).0.schema(Schema::Create, &soon()).unwrap();
    let raw = Raw::new(&table);
    raw.delete("\u{1}time");
    let error = early.schema(Schema::Create, &soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(raw.get("\u{1}time").is_empty(), "nothing is noted");
}

/// A table without a note. The service says once that the table is still being made.
struct Making {
    table: Table,
    proxy: Proxy,
    store: Dynamodb,
    clock: Arc<Clock>,
}

impl Making {
    fn new() -> Making {
        let table = Table(crate::support::stores::unique());
        let (clock, grace) = (Clock::system(), Duration::from_millis(500));
        let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
        let settings = Settings::Given(Box::new(config_at(&proxy.url())));
        let store = open(DynamodbOptions { settings, grace, ..options(&table.0, &clock) }, &clock);
        waiting(&table, grace).0.schema(Schema::Create, &soon()).unwrap();
        Raw::new(&table).delete("\u{1}time");
        proxy.add(Rule::next(1, Network::Say(200, MAKING)).on("DescribeTable"));
        Making { table, proxy, store, clock }
    }

    /// Makes the table, and runs `meanwhile` once that has looked for the note.
    fn create(&self, meanwhile: impl FnOnce()) -> leasehold::Result<String> {
        let looks = |all: &[Request]| all.iter().filter(|request| request.target == "GetItem").count();
        let before = looks(&self.proxy.requests());
        std::thread::scope(|scope| {
            let making = scope.spawn(|| self.store.schema(Schema::Create, &soon()));
            self.proxy.wait_until("it looks for the note", |all| looks(all) > before + 1);
            meanwhile();
            making.join().unwrap()
        })
    }
}

/// Several processes make the table, and the first one has not yet written its note.
#[test]
fn create_schema_waits_for_the_note_of_who_is_making_the_table() {
    needs_server!();
    let at = Making::new();
    let said = at.create(|| note(&Raw::new(&at.table), 500_000)).unwrap();
    assert!(said.contains("is there, with the key"), "{said}");
}

/// The first process is gone. Or it was this one, whose request was not answered: it can't know.
#[test]
fn create_schema_does_not_wait_for_long_for_a_note_that_nobody_writes() {
    needs_server!();
    let at = Making::new();
    let error = at.create(|| at.clock.advance(Duration::from_secs(31))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("write 500000 as the number graceMicros"), "{error}");
    assert!(Raw::new(&at.table).get("\u{1}time").is_empty(), "nothing is noted");
}

#[test]
fn in_a_table_without_a_note_the_default_counts() {
    let table = needs_server!(Table::fresh());
    let raw = Raw::new(&table);
    raw.delete("\u{1}time");
    assert!(with_grace(&table, 500).is_err());
    with_grace(&table, 1_000).unwrap().request("k").acquire().unwrap();
    note(&raw, 500_000);
    with_grace(&table, 500).unwrap();
}

#[test]
fn nobody_relies_on_more_than_others_of_the_table_respect() {
    let table = needs_server!(Table::fresh());
    note(&Raw::new(&table), 100_000);
    // Clients that connected with 100 ms wait for no longer until they read the note again.
    let knows_a_second = || {
        let clock = Clock::system();
        open(knowing(&table, &clock, Duration::ZERO), &clock)
    };
    let first = knows_a_second();
    let reserve = |store: &Dynamodb, key: &str| match store.acquire(&mut exclusive(key), &soon()).unwrap() {
        Acquired::Granted { holder, now, .. } => now.since(holder.created),
        other => panic!("{other:?}"),
    };
    // One answer tells the time to a second: half of what 100 ms do not cover is taken off the lease.
    let at_least = Duration::from_millis(350);
    assert!(reserve(&first, "a") > at_least, "the first that waits for more");
    assert!(reserve(&first, "b") > at_least);
    let second = knows_a_second();
    assert!(reserve(&second, "c") > at_least, "who finds the larger grace noted");
    // In a table with the default's note, a client relies on it.
    let other = Table::fresh();
    let relies = waiting(&other, Dynamodb::GRACE).0;
    // The time that an answer takes is also taken off, and on a busy machine some answers take long.
    let is_whole = |n: u8| reserve(&relies, &format!("{n}")) < Duration::from_millis(150);
    assert!((0..20).any(is_whole), "the lease is shorter than it may be");
}

/// A client makes the table with a small grace, and has not noted it yet.
#[test]
fn nobody_relies_on_more_than_it_was_told_itself() {
    needs_server!();
    let (table, clock) = (Table(crate::support::stores::unique()), Clock::system());
    let grace = Duration::from_millis(100);
    let early = open(DynamodbOptions { grace, ..knowing(&table, &clock, Duration::ZERO) }, &clock);
    waiting(&table, Dynamodb::GRACE).0.schema(Schema::Create, &soon()).unwrap();
    Raw::new(&table).delete("\u{1}time");
    match early.acquire(&mut exclusive("k"), &soon()).unwrap() {
        Acquired::Granted { holder, now, .. } => assert!(now.since(holder.created) > Duration::from_millis(350)),
        other => panic!("{other:?}"),
    }
}

/// The process that makes the table may be about to note a smaller one.
#[test]
fn who_relies_on_the_default_where_nothing_is_noted_notes_it() {
    needs_server!();
    let (table, clock) = (Table(crate::support::stores::unique()), Clock::system());
    waiting(&table, Dynamodb::GRACE).0.schema(Schema::Create, &soon()).unwrap();
    Raw::new(&table).delete("\u{1}time");
    let early = open(options(&table.0, &clock), &clock);
    granted(&early, &mut exclusive("k"));
    let error = with_grace(&table, 200).unwrap_err();
    assert!(error.to_string().contains("other clients of this table use 1s"), "{error}");
}

/// A client that has not read the note yet waits for as long as others may rely on.
#[test]
fn a_look_before_the_first_lock_ends_no_lease_early() {
    needs_server!();
    // A busy server may answer after the end of the lease, but not each time.
    assert!((0..5).any(|_| is_live_at_its_first_look()), "it ends early");
}

fn is_live_at_its_first_look() -> bool {
    let (table, clock) = (Table(crate::support::stores::unique()), Clock::system());
    let grace = Duration::from_millis(100);
    // In the middle of a second of the service, so that the client's time is right, which it does not know.
    wait_until("the second is half over", || (450..550).contains(&jiff::Timestamp::now().subsec_millisecond()));
    let early = open(DynamodbOptions { grace, ..knowing(&table, &clock, Duration::ZERO) }, &clock);
    let other = waiting(&table, Dynamodb::GRACE).0;
    other.schema(Schema::Create, &soon()).unwrap();
    granted(&other, &mut exclusive("k"));
    clock.advance(LEASE + Duration::from_millis(650));
    let consistency = leasehold::internals::store::Consistency::Strong;
    let page = early.read(&Which::Prefix(String::new()), None, consistency, &soon()).unwrap();
    page.records.iter().flat_map(|seen| seen.live()).count() == 1
}

#[test]
fn a_margin_that_the_error_of_the_time_could_use_up_is_refused() {
    let table = needs_server!(Table::fresh());
    let with = |margin| {
        let builder = patient(crate::support::dynamodb::config(), &table.0);
        builder.margin(Duration::from_millis(margin)).connect()
    };
    let error = with(99).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    for part in ["margin", "99ms", "100ms"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let client = with(100).unwrap();
    // The default margin, a tenth of the shortest lease, is enough. A busy machine may use up all of the lease.
    let is_held = || client.request("k").lease(Dynamodb::MIN_LEASE).lock().unwrap().release().is_ok();
    wait_until("it is held until its release", is_held);
    let (store, clock) = waiting(&table, Dynamodb::GRACE);
    let error = builder_over(Arc::new(store), clock).margin(Duration::ZERO).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn a_diagnosis_shows_the_grace_that_counts() {
    let table = needs_server!(Table::fresh());
    let client = blocking(&table, |_| {});
    assert_eq!(client.diagnose().unwrap().grace, Dynamodb::GRACE);
    with_grace(&table, 3_000).unwrap().request("k").acquire().unwrap();
    assert_eq!(client.diagnose().unwrap().grace, Duration::from_secs(3));
}

/// The lease of a name can't be expired during the grace either, although its time is over.
#[test]
fn what_is_in_its_grace_is_listed_as_live() {
    let table = needs_server!(Table::fresh());
    let (store, clock) = waiting(&table, Duration::from_secs(60));
    let client = builder_over(Arc::new(store), clock.clone()).connect().unwrap();
    client.request("k").lease(LEASE).acquire().unwrap();
    let names = client.leases("names");
    names.claim("name", "holder", LEASE).unwrap();
    let listed = || [Filter::new().live(), Filter::new().expired()].map(|which| client.list(&which).unwrap().len());
    clock.advance(LEASE + Duration::from_secs(10));
    assert_eq!(client.get("k").unwrap().unwrap().holders()[0].remaining(), Some(Duration::ZERO));
    assert_eq!(listed(), [1, 0]);
    assert_eq!(names.expire("name").unwrap_err().kind(), ErrorKind::InvalidLease);
    clock.advance(Duration::from_secs(60));
    assert_eq!(listed(), [0, 1]);
    names.expire("name").unwrap();
}

/// `DescribeTable` says nothing about the replicas of a global table of the old kind, but each of its items does.
#[test]
fn a_global_table_of_the_old_kind_is_refused() {
    let table = needs_server!(Table::fresh());
    let (raw, client) = (Raw::new(&table), with_grace(&table, 1_000).unwrap());
    client.lock("k").unwrap().release().unwrap();
    let mut note = raw.get("\u{1}time");
    note.insert("aws:rep:updateregion".to_owned(), AttributeValue::S("eu-west-1".to_owned()));
    raw.put(note);
    let error = with_grace(&table, 1_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("2017.11.29"), "{error}");
}

/// A rival may know the time better, and be ahead.
#[test]
fn a_minimum_hold_counts_from_when_its_grant_may_have_been_made_at_the_latest() {
    let table = needs_server!(Table::fresh());
    let clock = Clock::system();
    // As over a link whose answers take three seconds: the time is known to four seconds, of which the grace covers
    // one.
    let slow = knowing(&table, &clock, Duration::from_millis(1_500));
    let slow = builder_over(Arc::new(open(slow, &clock)), clock).connect().unwrap();
    let least = Duration::from_secs(30);
    let guard = slow.request("k").hold_at_least(least).lock().unwrap();
    let holder = || get(&client(&table).0, "k").record.exclusive.expect("a holder");
    let granted = holder().created;
    guard.release().unwrap();
    let kept = holder();
    assert!(kept.until.left(granted) >= Some(least + Duration::from_millis(1_400)), "{granted:?}, {kept:?}");
}

/// The row has a later end already. The answer that shows this has a wrong time, which the drift of hours leaves room
/// for.
#[test]
fn a_renewal_that_writes_nothing_does_not_count_by_its_own_answer() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    let (hours, lease) = (10 * 3_600, Duration::from_secs(600));
    let mut held = exclusive("k");
    held.ask.lease = Duration::from_secs(2 * hours);
    granted(&idle, &mut held);
    at.proxy.shift_dates(hours as i64);
    clock.advance(Duration::from_secs(hours));
    at.proxy.add(Rule::next(1, Network::ShiftDate(-14)));
    let began = Instant::now();
    let (answer, requests) = sent(&at, || idle.renew(&mut held, renewal(lease), &soon()).unwrap());
    assert_eq!(requests, 1, "no other host says the time first");
    let Renewed::Until { until, now } = answer else { panic!("{answer:?}") };
    let left = until.left(get(&self::idle(&at).0, "k").times.now).unwrap();
    assert!(until.left(now).unwrap() <= left + began.elapsed(), "{now:?}");
}
