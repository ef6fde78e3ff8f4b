//! Two clients with an estimate each, services whose time is wrong, and hosts whose clock is.

use std::collections::HashMap;
use std::time::Instant;

use leasehold::internals::store::{Consistency, Renewed};
use leasehold::{ErrorKind, Filter, LockClient};

use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::*;
use crate::network::all_were_met;
use crate::support::alone::alone;
use crate::support::bench::builder_over;
use crate::support::dynamodb::Table;
use crate::support::lateness::{self, Slowness, slack};
use crate::support::logs;
use crate::support::proxy::{self, Rule};
use crate::support::wait::wait_until;

pub(super) fn blocking(table: &Table, options: impl FnOnce(&mut DynamodbOptions)) -> LockClient {
    let clock = Clock::system();
    let mut all = crate::dynamodb::options(&table.0, &clock);
    options(&mut all);
    builder_over(Arc::new(open(all, &clock)), clock).connect().unwrap()
}

#[test]
fn a_takeover_waits_for_the_grace_and_not_longer_by_much() {
    let table = needs_server!(Table::fresh());
    let (a, b) = (blocking(&table, |_| {}), blocking(&table, |_| {}));
    let lease = Duration::from_secs(1);
    lateness::measure();
    let server = Slowness::of(blocking(&table, |_| {}));
    let started = Instant::now();
    let held = a.request("k").lease(lease).acquire().unwrap();
    let guard = b.request("k").wait(Duration::from_secs(20)).lock().unwrap();
    let took = started.elapsed();
    assert!(guard.fencing_token() > held.fencing_token());
    // Each of the two estimates may be wrong by up to half a second.
    let bound = lease + Duration::from_millis(2_700) + slack(started) + server.slack(started);
    assert!(took >= lease && took < bound, "{took:?}, not {bound:?}");
}

/// A store that reaches the server through this proxy, which moves the `Date` of the answers.
fn by_way_of(proxy: &Proxy, table: &Table) -> DynamodbOptions {
    let settings = Settings::Given(Box::new(config_at(&proxy.url())));
    DynamodbOptions::new(&table.0, settings)
}

#[test]
fn the_services_clock_decides_and_the_hosts_wall_clock_nothing() {
    let at = needs_server!(Behind::new());
    // The service tells these two a time that is an hour ahead of this host's wall clock.
    at.proxy.shift_dates(3_600);
    let connect = || patient(config_at(&at.proxy.url()), &at.table.0).connect().unwrap();
    let (a, b) = (connect(), connect());
    let held = a.lock("k").unwrap();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!(held.fencing_token() > wall + 3_500_000_000, "the token is made from the service's time");
    assert!(b.try_lock("k").unwrap().is_none());
    assert!(held.is_held());
}

#[test]
fn a_step_of_the_services_clock_is_followed() {
    let at = needs_server!(Behind::new());
    let clock = Clock::system();
    let store = open(by_way_of(&at.proxy, &at.table), &clock);
    let (began, before) = (Instant::now(), get(&store, "k").times.now);
    at.proxy.shift_dates(-600);
    let after = get(&store, "k").times.now;
    let back = before.since(after) + began.elapsed();
    assert!(back > Duration::from_secs(595) && back < Duration::from_secs(605) + began.elapsed(), "{back:?}");
}

/// The note of the grace, as an operator writes it by hand.
pub(super) fn note(raw: &Raw, micros: u64) {
    raw.put(HashMap::from([
        ("key".to_owned(), AttributeValue::S("\u{1}time".to_owned())),
        ("graceMicros".to_owned(), AttributeValue::N(micros.to_string())),
    ]));
}

#[test]
fn who_knows_the_time_badly_takes_over_all_the_same_and_holds_for_less() {
    let table = needs_server!(Table::fresh());
    let (store, clock) = client(&table);
    let mut a = exclusive("expired");
    granted(&store, &mut a);
    note(&Raw::new(&table), 100_000);
    // With such a small grace, one answer that is cut to a second and took 200 ms tells too little.
    let grace = Duration::from_millis(100);
    clock.advance(LEASE + Duration::from_secs(10));
    let unsure = open(DynamodbOptions { grace, ..knowing(&table, &clock, grace) }, &clock);
    // A client that asks only once would never learn more.
    assert_eq!(get(&unsure, "expired").live().count(), 0, "a purge frees him, too");
    granted(&unsure, &mut exclusive("expired"));
    match unsure.acquire(&mut exclusive("free"), &soon()).unwrap() {
        Acquired::Granted { holder, now, .. } => {
            assert!(now.since(holder.created) > Duration::from_millis(300), "it counts itself as lost earlier");
        }
        other => panic!("{other:?}"),
    }
}

const DAYS: u64 = 4 * 86_400;

/// A store behind the proxy that learned the service's time just now, and its clock.
pub(super) fn idle(at: &Behind) -> (Dynamodb, Arc<Clock>) {
    let clock = Clock::system();
    // The grace is so wide that no slow answer makes the client ask for the time again.
    let grace = Duration::from_secs(5);
    let estimate = Some(told_by_two(&clock, at.proxy.dates_shift(), Duration::ZERO));
    let store = open(DynamodbOptions { grace, estimate, ..by_way_of(&at.proxy, &at.table) }, &clock);
    // This grant notes the grace.
    granted(&store, &mut attempt("first", Mode::Shared));
    (store, clock)
}

/// The holder of `k`, whose store has just connected through the proxy.
pub(super) fn holding(at: &Behind) -> (Dynamodb, Attempt) {
    let store = idle(at).0;
    let mut held = exclusive("k");
    held.ask.lease = Duration::from_secs(20);
    granted(&store, &mut held);
    (store, held)
}

/// The answer of a step, and how many requests it sent through the proxy.
pub(super) fn sent<T>(at: &Behind, step: impl FnOnce() -> T) -> (T, u64) {
    let before = at.proxy.count();
    let answer = step();
    (answer, at.proxy.count() - before)
}

#[test]
fn who_was_idle_for_days_asks_for_the_time_before_it_takes_a_lock() {
    needs_server!();
    assert!((0..5).any(|_| asks_for_the_time_after_days()), "an answer took long each time");
}

/// Returns whether the answers came so soon that none of them asks for more.
fn asks_for_the_time_after_days() -> bool {
    let at = Behind::new();
    let (idle, clock) = idle(&at);
    granted(&idle, &mut exclusive("once"));
    // The clock is 50 ppm fast.
    at.proxy.shift_dates(DAYS as i64);
    clock.advance(Duration::from_secs(DAYS + 25));
    let (store, mut held) = holding(&at);
    let began = Instant::now();
    let (_, first) = sent(&at, || refused(&idle, &mut exclusive("k")));
    let (_, second) = sent(&at, || refused(&idle, &mut exclusive("k")));
    if (first, second) != (2, 1) && began.elapsed() > Duration::from_millis(500) {
        return false;
    }
    assert_eq!((first, second), (2, 1), "a read for the time, and the acquire; then the acquire alone");
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    true
}

#[test]
fn an_idle_client_whose_clock_is_slow_writes_no_end_in_the_past() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    let mut held = exclusive("held");
    granted(&idle, &mut held);
    at.proxy.shift_dates(DAYS as i64);
    clock.advance(Duration::from_secs(DAYS - 25));
    let (lease, began) = (Duration::from_secs(20), Instant::now());
    let (answer, requests) = sent(&at, || idle.renew(&mut held, renewal(lease), &soon()).unwrap());
    assert_eq!(requests, 3, "two hosts say the time, then the renewal");
    let Renewed::Until { until, now } = answer else { panic!("{answer:?}") };
    let (store, _) = self::idle(&at);
    let rivals = get(&store, "held");
    // Plus what has passed since, and with room for what the two may differ by.
    let left = until.left(rivals.times.now).unwrap() + began.elapsed();
    assert!(left > Duration::from_secs(17), "{left:?} of {lease:?} are left");
    assert!(until.left(now).unwrap() <= left + Duration::from_secs(1));
}

#[test]
fn a_renewal_that_its_own_answer_contradicts_is_repeated() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    let mut held = exclusive("k");
    granted(&idle, &mut held);
    at.proxy.shift_dates(40);
    clock.advance(Duration::from_secs(10));
    assert!(matches!(idle.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Unknown(_)));
    let began = Instant::now();
    let answer = idle.renew(&mut held, renewal(LEASE), &soon()).unwrap();
    let Renewed::Until { until, .. } = answer else { panic!("{answer:?}") };
    let left = until.left(get(&self::idle(&at).0, "k").times.now).unwrap();
    let most = LEASE + Duration::from_secs(2);
    assert!(left + began.elapsed() > LEASE - Duration::from_secs(3) && left < most, "{left:?}");
}

#[test]
fn a_holder_counts_on_no_more_than_its_lease_whatever_time_it_is_told() {
    let at = needs_server!(Behind::new());
    let clock = Clock::system();
    let builder = builder_over(Arc::new(open(by_way_of(&at.proxy, &at.table), &clock)), clock);
    let client = builder.heartbeat(Duration::from_secs(1)).connect().unwrap();
    // So long that a busy machine does not use it up.
    let lease = Duration::from_secs(60);
    let guard = client.request("k").lease(lease).lock().unwrap();
    // A time that was told twice is believed: the current lease then seems to end in an hour.
    at.proxy.shift_dates(-3_600);
    // The renewal whose answer contradicts the time, its repeat, and the next one.
    let renewals =
        |all: &[proxy::Request]| all.iter().filter(|one| one.has("SET #leasedUntil") && one.answered > 0).count();
    at.proxy.wait_until("renewals", |all| renewals(all) >= 3);
    assert!(guard.remaining() <= lease, "{:?}", guard.remaining());
}

#[test]
fn the_date_of_a_proxy_is_not_the_services() {
    let at = needs_server!(Behind::new());
    let (idle, _) = idle(&at);
    let (store, mut held) = holding(&at);
    at.proxy.shift_dates(3_600);
    at.proxy.add(Rule::next(1, proxy::Mode::Say(503, "{}")));
    idle.read(&Which::Key("other".to_owned()), None, Consistency::Strong, &soon()).unwrap_err();
    at.proxy.shift_dates(0);
    let (_, requests) = sent(&at, || refused(&idle, &mut exclusive("k")));
    assert_eq!(requests, 1);
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
}

/// A proxy that passes on all that the service says except the time, as nginx does without a special setting.
#[test]
fn the_date_of_a_proxy_that_passes_on_all_else_is_not_the_services() {
    needs_server!();
    let at = Behind::new();
    let (idle, _) = idle(&at);
    let (store, mut held) = holding(&at);
    let names = ["Server: nginx", "server: nginx/1.24.0", "Server: openresty/1.25", "Server: Tengine", "Age: 3"];
    for name in names {
        let before = get(&idle, "other").times.now;
        // If it came twice from the service, it would be believed.
        at.proxy.add(Rule::next(2, proxy::Mode::Relay(3_600, name)));
        let after = [(); 2].map(|()| get(&idle, "other").times.now)[1];
        assert!(after.since(before) < Duration::from_secs(600), "{name}: {before:?}, then {after:?}");
        assert!(at.proxy.clear().is_empty());
        refused(&idle, &mut exclusive("k"));
    }
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    // If all answers come like this, the error says what would be right.
    let at = Behind::new();
    at.proxy.add(Rule::always(proxy::Mode::Relay(0, "Server: nginx")));
    let error = patient(config_at(&at.proxy.url()), &at.table.0).connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("proxy_pass_header"), "{error}");
}

/// As when nginx is deployed again without the setting that passes the time on.
#[test]
fn when_no_answer_tells_the_time_any_more_that_is_said() {
    alone("dynamodb::time::when_no_answer_tells_the_time_any_more_that_is_said", || {
        logs::keep();
        let at = needs_server!(Behind::new());
        let clock = Clock::system();
        let store = open(by_way_of(&at.proxy, &at.table), &clock);
        let mut held = exclusive("held");
        granted(&store, &mut held);
        granted(&store, &mut exclusive("expired"));
        at.proxy.add(Rule::always(proxy::Mode::Relay(0, "Server: nginx")));
        // By then the time may be wrong by more than a second, however well it was known.
        let passed = 1_300;
        clock.advance(Duration::from_secs(passed));
        let look = |consistency| store.read(&Which::Key("expired".to_owned()), None, consistency, &soon());
        // Otherwise a takeover would wait for longer and longer. A waiter polls.
        let acquired = store.acquire(&mut exclusive("expired"), &soon()).map(drop);
        for error in [acquired, look(Consistency::Eventual).map(drop)].map(Result::unwrap_err) {
            assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
            assert!(error.to_string().contains("proxy_pass_header"), "{error}");
        }
        // A current holder can go on, and a lock that has been over for long is seen to be over.
        assert_eq!(look(Consistency::Strong).unwrap().records[0].live().count(), 0);
        let renewed = store.renew(&mut held, renewal(Duration::from_secs(5)), &soon()).unwrap();
        assert!(matches!(renewed, Renewed::Until { .. }), "{renewed:?}");
        // Later too little is left of a lease: the loss has a reason, and before it the heartbeats fail.
        let hours = 12 * 3_600;
        clock.advance(Duration::from_secs(hours));
        match store.renew(&mut held, renewal(Duration::from_secs(20)), &soon()).unwrap() {
            Renewed::Unknown(error) => assert!(error.to_string().contains("proxy_pass_header"), "{error}"),
            other => panic!("{other:?}"),
        }
        let warned = logs::take("leasehold::dynamodb");
        assert_eq!(warned.iter().filter(|said| said.contains("proxy_pass_header")).count(), 1, "{warned:?}");
        at.proxy.shift_dates((passed + hours) as i64);
        all_were_met(&at.proxy);
        // A slow answer tells little about the time.
        wait_until("it is taken over", || {
            matches!(store.acquire(&mut exclusive("expired"), &soon()), Ok(Acquired::Granted { .. }))
        });
    });
}

/// It may be over, by as much as the time is uncertain.
#[test]
fn when_no_answer_tells_the_time_any_more_no_lease_is_said_to_run() {
    let at = needs_server!(Behind::new());
    let clock = Clock::system();
    let store = Arc::new(open(by_way_of(&at.proxy, &at.table), &clock));
    let leases = builder_over(store, clock.clone()).connect().unwrap().leases("ns");
    let day = 86_400;
    for (name, days) in [("over", 1), ("running", 2)] {
        leases.claim(name, "holder", Duration::from_secs(days * day)).unwrap();
    }
    at.proxy.add(Rule::always(proxy::Mode::Relay(0, "Server: nginx")));
    clock.advance(Duration::from_secs(day));
    let error = leases.expire("over").unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("proxy_pass_header"), "{error}");
    assert_eq!(leases.expire("running").unwrap_err().kind(), ErrorKind::InvalidLease);
    at.proxy.shift_dates(day as i64);
    all_were_met(&at.proxy);
    wait_until("it is expired", || leases.expire("over").is_ok());
}

/// The proxy may pass the date on or write its own: nothing shows which.
#[test]
fn a_proxy_that_hides_the_server_is_warned_of_once() {
    alone("dynamodb::time::a_proxy_that_hides_the_server_is_warned_of_once", || {
        logs::keep();
        let at = needs_server!(Behind::new());
        let warned = || logs::take("leasehold::dynamodb").iter().filter(|said| said.contains("Server")).count();
        assert_eq!(warned(), 0, "the server says its name");
        at.proxy.add(Rule::always(proxy::Mode::Relay(0, "Server:")));
        let (store, _) = idle(&at);
        get(&store, "k");
        assert_eq!(warned(), 1);
    });
}

#[test]
fn one_wrong_date_of_the_service_is_asked_about_before_the_next_write() {
    let at = needs_server!(Behind::new());
    let (idle, _) = idle(&at);
    let (store, mut held) = holding(&at);
    at.proxy.add(Rule::next(1, proxy::Mode::ShiftDate(3_600)));
    idle.read(&Which::Key("other".to_owned()), None, Consistency::Eventual, &soon()).unwrap();
    let (_, requests) = sent(&at, || refused(&idle, &mut exclusive("k")));
    assert_eq!(requests, 2, "a read for the time, and the acquire");
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    // The wrong date may also be in the answer to a write: if the write was right, it stays.
    at.proxy.add(Rule::next(1, proxy::Mode::ShiftDate(3_600)));
    let mut free = exclusive("free");
    let (holder, requests) = sent(&at, || granted(&idle, &mut free));
    assert_eq!(requests, 3, "the acquire, then the time and the row");
    assert!(holder.until.left(get(&at.beside, "free").times.now).unwrap() <= LEASE + Duration::from_secs(1));
}

/// Each host of the service tells the time of its own clock: if that is wrong, all its answers agree.
#[test]
fn a_host_of_the_service_whose_clock_is_wrong_takes_nobodys_lock() {
    let at = needs_server!(Behind::new());
    let (idle, _) = idle(&at);
    let (store, mut held) = holding(&at);
    at.proxy.shift_dates_of_open(3_600);
    refused(&idle, &mut exclusive("k"));
    let mut renew = || store.renew(&mut held, renewal(LEASE), &soon()).unwrap();
    assert!(matches!(renew(), Renewed::Unknown(_)), "that host answers the holder, too");
    assert!(matches!(renew(), Renewed::Until { .. }));
    // Also if that host answers a grant.
    at.proxy.shift_dates_of_open(-3_600);
    let mut free = exclusive("free");
    let Acquired::Granted { holder, now, .. } = idle.acquire(&mut free, &soon()).unwrap() else { panic!("refused") };
    assert!(holder.until.left(now).unwrap() <= LEASE + Duration::from_secs(1));
}

/// On a client's first connection, nothing shows whether the host at the other end has the right time.
#[test]
fn a_clients_first_host_takes_nobodys_lock() {
    let at = needs_server!(Behind::new());
    let (store, mut held) = holding(&at);
    let connect = |seconds| {
        at.proxy.shift_dates_of_next(seconds);
        let clock = Clock::system();
        // The same as the holder's, which is noted.
        let grace = Duration::from_secs(5);
        (open(DynamodbOptions { grace, ..by_way_of(&at.proxy, &at.table) }, &clock), clock)
    };
    refused(&connect(3_600).0, &mut exclusive("k"));
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
    // Others respect what this client writes.
    let (behind, clock) = connect(-3_600);
    let behind = builder_over(Arc::new(behind), clock).connect().unwrap();
    let guard = behind.lock("free").unwrap();
    refused(&at.beside, &mut exclusive("free"));
    assert!(guard.is_held());
    // Nor does its end remain in the row for longer than asked, if this process died now.
    let (ahead, _) = connect(3_600);
    granted(&ahead, &mut exclusive("another"));
    let end = get(&at.beside, "another").record.exclusive.unwrap().until;
    assert!(end.left(get(&at.beside, "another").times.now).unwrap() < LEASE + Duration::from_secs(10), "{end:?}");
    // A transfer by this client ends nothing.
    let (behind, _) = connect(-3_600);
    let mut heir = exclusive("k");
    heir.ask.instead_of = Some((held.ask.grant.clone(), get(&at.beside, "k").record.token));
    let left = granted(&behind, &mut heir).until.left(get(&at.beside, "k").times.now).unwrap();
    assert!(left > Duration::ZERO, "{left:?}");
    // Otherwise each first acquire would cost one more request.
    let (right, _) = connect(0);
    let (_, requests) = sent(&at, || granted(&right, &mut exclusive("one more")));
    assert_eq!(requests, 1);
}

/// The new time is within the room that drift leaves, so it contradicts nothing.
#[test]
fn after_idle_days_one_host_takes_nobodys_lock() {
    let at = needs_server!(Behind::new());
    let (idle, clock) = idle(&at);
    at.proxy.shift_dates(DAYS as i64);
    clock.advance(Duration::from_secs(DAYS));
    let (store, mut held) = holding(&at);
    at.proxy.shift_dates_of_open(60);
    refused(&idle, &mut exclusive("k"));
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Unknown(_)));
    assert!(matches!(store.renew(&mut held, renewal(LEASE), &soon()).unwrap(), Renewed::Until { .. }));
}

#[test]
fn a_purge_after_a_pause_frees_what_is_over() {
    let at = needs_server!(Behind::new());
    let clock = Clock::system();
    let store = Arc::new(open(by_way_of(&at.proxy, &at.table), &clock));
    let client = builder_over(store, clock.clone()).connect().unwrap();
    client.request("over").lease(LEASE).acquire().unwrap();
    // Too short for the note of the grace to be read again.
    let pause = 595;
    at.proxy.shift_dates(pause);
    clock.advance(Duration::from_secs(pause as u64));
    assert_eq!(client.purge(Duration::ZERO).unwrap().freed.len(), 1);
}

/// Between two of its looks, drift makes the time uncertain each time.
#[test]
fn who_looks_seldom_takes_over_all_the_same() {
    let at = needs_server!(Behind::new());
    let clock = Clock::system();
    let store = open(by_way_of(&at.proxy, &at.table), &clock);
    granted(&store, &mut exclusive("over"));
    for look in 1..=3 {
        let hours = look * 3_600;
        at.proxy.shift_dates(hours);
        clock.advance(Duration::from_secs(3_600));
        // Two answers confirm the time, but a slow one tells so little that a third is needed.
        wait_until("it is seen to be over", || {
            let began = Instant::now();
            let seen = store.read(&Which::Key("over".to_owned()), None, Consistency::Eventual, &soon()).unwrap();
            let is_over = seen.records[0].live().count() == 0;
            assert!(is_over || began.elapsed() > Duration::from_millis(500), "{look}");
            is_over
        });
    }
}

/// After an adopt, the caller no longer has the lock as data.
#[test]
fn a_transfer_that_was_done_is_never_said_to_be_undone_where_its_doubt_is_not_settled() {
    let at = needs_server!(Behind::new());
    let (store, held) = holding(&at);
    let mut heir = exclusive("k");
    heir.ask.instead_of = Some((held.ask.grant.clone(), get(&store, "k").record.token));
    at.proxy.shift_dates_of_open(-3_600);
    at.proxy.add(Rule::always(proxy::Mode::CutBefore).on("GetItem"));
    let Acquired::Unknown(error) = store.acquire(&mut heir, &soon()).unwrap() else { panic!("it is in doubt") };
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(get(&at.beside, "k").record.standing(heir.grant()).is_some(), "it is done");
}

#[test]
fn in_the_grace_a_holder_is_held_for_everybody() {
    needs_server!();
    let (table, clock) = (Table::fresh(), Clock::system());
    let mut all = crate::dynamodb::options(&table.0, &clock);
    all.grace = Duration::from_secs(30);
    let client = builder_over(Arc::new(open(all, &clock)), clock.clone()).connect().unwrap();
    client.request("k").lease(LEASE).acquire().unwrap();
    let leases = client.leases("ns");
    leases.claim("name", "holder", LEASE).unwrap();
    clock.advance(LEASE + Duration::from_secs(10));
    let refused = client.request("k").acquire().unwrap_err();
    assert_eq!(refused.holders().len(), 1, "{refused}");
    let found = client.get("k").unwrap().unwrap();
    assert!(!found.is_free() && !found.holders()[0].is_expired(), "{found:?}");
    assert_eq!(found.holders()[0].remaining(), Some(Duration::ZERO));
    assert_eq!(client.list(&Filter::new().live()).unwrap().len(), 1);
    assert!(client.purge_preview(Duration::ZERO).unwrap().freed.is_empty());
    assert!(client.purge(Duration::ZERO).unwrap().freed.is_empty());
    assert!(!leases.get("name").unwrap().unwrap().is_expired());
    assert_eq!(leases.expire("name").unwrap_err().kind(), ErrorKind::InvalidLease);
    clock.advance(Duration::from_secs(25));
    assert!(client.get("k").unwrap().unwrap().is_free() && leases.get("name").unwrap().unwrap().is_expired());
    assert_eq!(client.purge(Duration::ZERO).unwrap().freed.len(), 1);
    leases.expire("name").unwrap();
}
