//! How many requests each step takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::internals::store::{Backend, Consistency, Purpose, Released, Renewed, Swapped, Which};
use leasehold::internals::sys::clock::Clock;

use crate::dynamodb::sdk::config::interceptors::BeforeTransmitInterceptorContextRef;
use crate::dynamodb::sdk::config::{ConfigBag, Intercept, RuntimeComponents, SharedInterceptor};
use crate::dynamodb::sdk::error::BoxError;
use crate::dynamodb::*;
use crate::support::dynamodb::{Table, options};
use crate::support::stores::soon;

#[derive(Clone, Debug, Default)]
struct Counter(Arc<AtomicUsize>);

impl Intercept for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Counted {
    store: Dynamodb,
    clock: Arc<Clock>,
    counter: Counter,
}

impl Counted {
    /// For a client that knows the time: otherwise slow answers would make it ask for the time as well.
    fn new() -> Counted {
        Counted::by(|table, clock| knowing(table, clock, Duration::ZERO))
    }

    /// For a client that learns the time.
    fn learning() -> Counted {
        Counted::by(|table, clock| options(&table.0, clock))
    }

    fn by(options: impl FnOnce(&Table, &Arc<Clock>) -> DynamodbOptions) -> Counted {
        let (table, clock, counter) = (Table::fresh(), Clock::system(), Counter::default());
        let mut options = options(&table, &clock);
        options.interceptors.push(SharedInterceptor::new(counter.clone()));
        Counted { store: open(options, &clock), clock, counter }
    }

    /// Runs `step`, which must take this many requests.
    #[track_caller]
    fn takes<T>(&self, requests: usize, what: &str, step: impl FnOnce(&Dynamodb) -> T) -> T {
        let (answer, sent) = self.sent(step);
        println!("{what}: {sent}");
        assert_eq!(sent, requests, "{what}");
        answer
    }

    /// How many requests `step` takes.
    fn sent<T>(&self, step: impl FnOnce(&Dynamodb) -> T) -> (T, usize) {
        self.counter.0.store(0, Ordering::SeqCst);
        let answer = step(&self.store);
        (answer, self.counter.0.load(Ordering::SeqCst))
    }
}

#[test]
fn connecting_takes_one_read() {
    let counted = needs_server!(Counted::learning());
    let sent = counted.counter.0.load(Ordering::SeqCst);
    assert!((1..=2).contains(&sent), "{sent}: one more where the first answer took long");
}

/// An answer from some seconds ago is as good as a new one, except for what this host's clock was corrected by since.
#[test]
fn where_the_hosts_clock_is_being_corrected_the_time_is_asked_for_again() {
    needs_server!();
    // A slow answer tells the time so badly that the client asks once more.
    let is_so = (0..10).any(|_| {
        let at = Counted::learning();
        granted(&at.store, &mut exclusive("a"));
        let sent = ["b", "c", "d"].map(|key| {
            at.clock.advance(Duration::from_secs(12));
            if key == "c" {
                at.clock.set_slew_offset(1_000_000_000);
            }
            at.sent(|store| granted(store, &mut exclusive(key))).1
        });
        println!("{sent:?}");
        sent == [1, 2, 1]
    });
    assert!(is_so);
}

#[test]
fn exclusive_steps() {
    let at = needs_server!(Counted::new());
    let by = soon();
    let mut a = exclusive("k");
    at.takes(1, "acquire a missing row", |store| granted(store, &mut a));
    at.takes(1, "refused", |store| refused(store, &mut exclusive("k")));
    at.takes(1, "acquire repeated", |store| granted(store, &mut a));
    let renewed = at.takes(1, "renew", |store| store.renew(&mut a, renewal(2 * LEASE), &by).unwrap());
    assert!(matches!(renewed, Renewed::Until { .. }));
    let renewed = at.takes(1, "renew, delayed", |store| store.renew(&mut a, renewal(LEASE), &by).unwrap());
    assert!(matches!(renewed, Renewed::Until { .. }));
    let old = get(&at.store, "k").record.exclusive.unwrap();
    let mut b = exclusive("k");
    b.ask.instead_of = Some((old.grant, old.token));
    at.takes(1, "transfer", |store| granted(store, &mut b));
    at.takes(1, "transfer repeated", |store| granted(store, &mut b));
    let lost = at.takes(1, "renew, lost", |store| store.renew(&mut a, renewal(LEASE), &by).unwrap());
    assert!(matches!(lost, Renewed::Lost(_)));
    let other = at.takes(1, "release, held by other", |store| store.release(&mut a, Purpose::Release, &by).unwrap());
    assert!(matches!(other, Released::HeldByOther(_)));
    assert!(matches!(at.takes(1, "release", |s| s.release(&mut b, Purpose::Release, &by).unwrap()), Released::Done));
    assert!(matches!(
        at.takes(1, "release again", |s| s.release(&mut b, Purpose::Release, &by).unwrap()),
        Released::Free
    ));
    let mut c = exclusive("k");
    at.takes(1, "acquire a released row", |store| granted(store, &mut c));
    assert!(matches!(
        at.takes(2, "give up, stands", |s| s.release(&mut c, Purpose::GiveUp, &by).unwrap()),
        Released::Done
    ));
    let free = at.takes(1, "give up", |store| store.release(&mut exclusive("k"), Purpose::GiveUp, &by).unwrap());
    assert!(matches!(free, Released::Free));
    let mut d = exclusive("k");
    granted(&at.store, &mut d);
    at.clock.advance(LEASE + Duration::from_secs(3));
    at.takes(1, "acquire an expired row", |store| granted(store, &mut exclusive("k")));
    let mut e = exclusive("k");
    e.ask.labels.owner = get(&at.store, "k").record.exclusive.unwrap().labels.owner;
    e.ask.replace_same_owner = true;
    at.takes(1, "replace", |store| granted(store, &mut e));
}

#[test]
fn a_token_that_is_ahead_takes_one_more() {
    let at = needs_server!(Counted::new());
    let seen = get(&at.store, "k");
    let mut ahead = seen.record.clone();
    ahead.token = seen.times.stamp + 3_600_000_000;
    let swapped = at.takes(1, "swap", |store| store.swap(&seen, Some(&ahead), &soon()).unwrap());
    assert!(matches!(swapped, Swapped::Done));
    let holder = at.takes(2, "acquire, token ahead", |store| granted(store, &mut exclusive("k")));
    assert_eq!(holder.token, ahead.token + 1);
}

#[test]
fn many_that_gave_up_take_one_more() {
    let at = needs_server!(Counted::new());
    let giving_up = |key: &'static str| {
        move |store: &Dynamodb| store.release(&mut exclusive(key), Purpose::GiveUp, &soon()).unwrap()
    };
    let is_soon_after = |key: &'static str| {
        let gives_up = giving_up(key);
        (0..9).for_each(|_| drop(at.takes(1, "give up", gives_up)));
        let began = Instant::now();
        at.takes(2, "give up, too many did", gives_up);
        assert_eq!(get(&at.store, key).record.given_up.len(), 0);
        let mut a = exclusive(key);
        let (held, requests) = at.sent(|store| granted(store, &mut a));
        // The floor under the tokens is some seconds ahead: a busy machine may be later than that.
        if began.elapsed() > Duration::from_secs(2) {
            return false;
        }
        assert_eq!(requests, 2, "acquire, soon after");
        at.takes(1, "release", |store| store.release(&mut a, Purpose::Release, &soon()).unwrap());
        at.clock.advance(Duration::from_secs(11));
        assert!(at.takes(1, "acquire, later", |store| granted(store, &mut exclusive(key))).token > held.token);
        true
    };
    assert!(["k", "k2", "k3", "k4", "k5"].into_iter().any(is_soon_after), "late each time");
}

#[test]
fn shared_steps() {
    let at = needs_server!(Counted::new());
    let by = soon();
    let (mut a, mut b) = (shared("k"), shared("k"));
    at.takes(1, "first shared holder", |store| granted(store, &mut a));
    at.takes(2, "joining", |store| granted(store, &mut b));
    at.takes(1, "shared repeated", |store| granted(store, &mut b));
    let mut full = shared("k");
    full.ask.max_holders = Some(2);
    at.takes(1, "shared refused, full", |store| refused(store, &mut full));
    at.takes(1, "refused by shared", |store| refused(store, &mut exclusive("k")));
    at.takes(1, "shared renew, the latest", |store| store.renew(&mut a, renewal(2 * LEASE), &by).unwrap());
    at.takes(2, "shared renew, another is later", |store| store.renew(&mut b, renewal(LEASE), &by).unwrap());
    assert!(matches!(
        at.takes(1, "shared release", |s| s.release(&mut b, Purpose::Release, &by).unwrap()),
        Released::Done
    ));
    let last = at.takes(2, "shared release, the latest", |store| store.release(&mut a, Purpose::Release, &by).unwrap());
    assert!(matches!(last, Released::Done));
    let mut c = shared("k");
    let old = granted(&at.store, &mut c);
    let mut d = shared("k");
    d.ask.instead_of = Some((old.grant, old.token));
    at.takes(2, "shared transfer", |store| granted(store, &mut d));
    assert!(matches!(
        at.takes(2, "give up shared, stands", |s| s.release(&mut d, Purpose::GiveUp, &by).unwrap()),
        Released::Done
    ));
}

#[test]
fn reading_and_swapping() {
    let at = needs_server!(Counted::new());
    granted(&at.store, &mut exclusive("k"));
    let seen = at.takes(1, "read a key", |store| get(store, "k"));
    at.takes(1, "scan", |store| {
        store.read(&Which::LockId("x".to_owned()), None, Consistency::Strong, &soon()).unwrap()
    });
    assert!(matches!(at.takes(1, "delete", |s| s.swap(&seen, None, &soon()).unwrap()), Swapped::Done));
}
