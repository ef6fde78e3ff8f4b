//! How many statements each step takes, and each wait; and how often it is reported that waiters poll.

use std::time::Duration;

use leasehold::internals::lease::{End, Lease};
use leasehold::internals::store::{Consistency, Purpose, Renewal, Swapped};

use crate::postgres::*;
use crate::support::alone::alone;
use crate::support::contract::{LEASE, acquired, granted, raised, refused, renewal, renewed};
use crate::support::logs;
use crate::support::postgres::{Rows, connected, opened, unless_late};
use crate::support::proxy::Proxy;
use crate::support::servers::{postgres, postgres_server};

struct Counted {
    proxy: Proxy,
    store: Postgres,
    _rows: Rows,
}

impl Counted {
    fn new() -> Counted {
        let rows = Rows::fresh();
        let proxy = Proxy::postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
        let store = opened(rows.options_at(&proxy.addr().to_string()));
        Counted { proxy, store, _rows: rows }
    }

    /// Runs `step`, which must send this many statements, each in one message, and open no connection.
    #[track_caller]
    fn sends<T>(&self, statements: u64, what: &str, step: impl FnOnce(&Postgres) -> T) -> T {
        let before = self.proxy.count();
        let answer = step(&self.store);
        assert_eq!(self.proxy.count() - before, statements, "{what}");
        answer
    }
}

#[test]
fn an_exclusive_holder_costs_one_statement_a_step() {
    needs_server!();
    let at = Counted::new();
    let (mut a, mut b) = (exclusive(&at.store, "k"), exclusive(&at.store, "k"));
    let old = at.sends(1, "a missing key", |store| granted(store, &mut a));
    assert!(at.sends(2, "a repeat", |store| acquired(store, &mut a)).1);
    at.sends(1, "refused", |store| refused(store, &mut b));
    at.sends(1, "renew", |store| renewed(store, &mut a, renewal(Lease::For(2 * LEASE))));
    let may_end = |lease| Renewal { may_end_endless: true, ..renewal(lease) };
    at.sends(1, "renew by hand", |store| renewed(store, &mut a, may_end(Lease::For(3 * LEASE))));
    at.sends(1, "to no end", |store| renewed(store, &mut a, may_end(Lease::Forever)));
    at.sends(1, "a heartbeat of it", |store| renewed(store, &mut a, renewal(Lease::Forever)));
    // This may wake waiters.
    let end = at.sends(3, "from no end", |store| renewed(store, &mut a, may_end(Lease::For(2 * LEASE))));
    assert!(matches!(end, End::At(_)), "{end:?}");
    let mut next = instead_of(&at.store, "k", Mode::Exclusive, &old);
    next.replaces_sent_once = true;
    at.sends(1, "transfer", |store| granted(store, &mut next));
    at.sends(1, "lost", |store| store.renew(&mut a, renewal(Lease::For(LEASE)), &soon()).unwrap());
    // Another try may have ended the grant, and the standby may not have that yet.
    at.sends(2, "not its own", |store| store.release(&mut a, Purpose::Release, &soon()).unwrap());
    at.sends(1, "release", |store| store.release(&mut next, Purpose::Release, &soon()).unwrap());
    at.sends(1, "a free key", |store| granted(store, &mut b));
    at.sends(1, "give up what was granted", |store| store.release(&mut b, Purpose::GiveUp, &soon()).unwrap());
    at.sends(4, "give up what was not", |store| store.release(&mut a, Purpose::GiveUp, &soon()).unwrap());
    at.sends(1, "read", |store| get(store, "k"));
    let page =
        |store: &Postgres| store.read(&Which::Prefix(String::new()), None, Consistency::Strong, &soon()).unwrap();
    assert_eq!(at.sends(1, "a page", page).records.len(), 1);
    let seen = get(&at.store, "k");
    let swapped = at.sends(1, "swap", |store| store.swap(&seen, Some(&raised(&seen.record)), &soon()).unwrap());
    assert!(matches!(swapped, Swapped::Done));
}

#[test]
fn shared_holders_cost_two() {
    needs_server!();
    let at = Counted::new();
    let (mut a, mut b) = (shared(&at.store, "k"), shared(&at.store, "k"));
    at.sends(2, "the first", |store| granted(store, &mut a));
    at.sends(2, "one more", |store| granted(store, &mut b));
    at.sends(2, "renew", |store| renewed(store, &mut b, renewal(Lease::For(2 * LEASE))));
    // This statement can't tell a free key from one with shared holders.
    at.sends(1, "an exclusive one is refused", |store| refused(store, &mut exclusive(store, "k")));
    at.sends(2, "release", |store| store.release(&mut a, Purpose::Release, &soon()).unwrap());
}

/// The waiter sends less than one query a second and does not poll, because the server wakes it.
#[test]
fn who_waits_asks_less_than_once_a_second() {
    needs_server!();
    let rows = Rows::fresh();
    let holder = connected(|| leasehold::LockClient::builder(rows.url()));
    let _held = holder.lock("k").unwrap();
    let asks = || {
        let proxy = Proxy::telling_postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
        let url = format!("postgres://leasehold@{}/postgres?table={}", proxy.addr(), rows.0);
        let waiter = connected(|| leasehold::LockClient::builder(&url));
        let before = proxy.count();
        assert!(waiter.try_lock_for("k", Duration::from_secs(10)).unwrap().is_none());
        proxy.count() - before
    };
    // If the server stalled when a waiter began to listen, that waiter polls for minutes. The statements that begin the
    // listening count.
    let mut counts = std::iter::repeat_with(asks).take(5);
    assert!(counts.any(|count| count < 10), "ten requests or more in ten seconds, each time");
}

/// As through a proxy that passes on nothing unasked.
#[test]
fn that_nobody_is_told_is_said_once() {
    needs_server!();
    alone("postgres::counts::that_nobody_is_told_is_said_once", || {
        logs::keep();
        let at = Counted::new();
        let (to, _told) = crossbeam_channel::unbounded();
        for _ in 0..2 {
            let tells = unless_late(|| at.store.wake(&["k".to_owned()], to.clone(), &soon())).unwrap();
            assert!(!tells, "it tells");
        }
        let said = logs::take("leasehold::postgres");
        assert!(said.len() == 1 && said[0].contains("waiters poll"), "{said:?}");
    });
}
