//! A network that fails: what it can do between this store and its server, and what only this store does then.

use std::time::{Duration, Instant};

use leasehold::internals::store::{Purpose, Released};

use crate::network::{Behind, Kind, LATE, MODES, Meanwhile, sent};
use crate::postgres::*;
use crate::support::contract::granted;
use crate::support::postgres::{Rows, opened};
use crate::support::proxy::{Mode as Network, Proxy};
use crate::support::servers::{postgres, postgres_server};
use crate::support::stores::unique;

/// Later than a statement may be by the server's clock.
const TOO_LATE: Duration = Duration::from_millis(10_500);

fn behind() -> Behind<Rows> {
    let rows = Rows::fresh();
    let proxy = Proxy::postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
    let store = opened(rows.options_at(&proxy.addr().to_string()));
    // Prepared statements meet the same faults. After a fault, statements on the new connection are not prepared.
    warm(&store);
    rows.sql("DELETE FROM {T}");
    let kind = Kind {
        write: "RETURNING",
        driver_repeats: false,
        remembers_who_gave_up: true,
        ends: &[Purpose::Release, Purpose::GiveUp],
        late: Network::Late(2 * LATE),
        given_up: &[
            (Network::Late(LATE), &MODES, Meanwhile::Nothing),
            // A shared acquire reads first, and then sends nothing.
            (Network::Late(LATE), &[Mode::Exclusive], Meanwhile::Held),
        ],
    };
    Behind { proxy, store: Box::new(store), beside: Box::new(rows.open()), kind, room: rows }
}

crate::network::steps!(behind);

/// What would happen if nobody remembered given-up grants. If nothing came back here, the test of that would prove
/// nothing.
#[test]
fn what_is_forgotten_comes_back() {
    needs_server!();
    let at = behind();
    // A copy that is ten seconds late has no effect anyway.
    let comes_back = |times: u32| comes_back(&at, times * LATE);
    assert!([2, 3, 3].into_iter().any(comes_back), "it came before it was forgotten each time");
}

/// Returns `false` if a machine that stalled was too late to forget it before it arrived.
fn comes_back(at: &Behind<Rows>, late: Duration) -> bool {
    let key = format!("negative control {late:?} {}", unique());
    let mut a = exclusive(&*at.store, &key);
    at.fault(Network::Late(late));
    let began = Instant::now();
    at.unanswered(&mut a);
    let released = sent(|| at.store.release(&mut a, Purpose::GiveUp, &soon()));
    at.room.sql("UPDATE {T} SET given_up = NULL");
    if began.elapsed() >= late {
        return false;
    }
    assert!(matches!(released, Released::Free), "{released:?}");
    at.wait_for_late(&key);
    assert_eq!(at.holders(&key).len(), 1);
    true
}

/// The network was slow, or the server's clock was set: the statement does nothing, and is repeated with the answer's
/// newer time.
#[test]
fn what_comes_too_late_and_is_waited_for_is_granted_all_the_same() {
    needs_server!();
    let at = behind();
    at.fault(Network::Delay(TOO_LATE));
    granted(&*at.store, &mut exclusive(&*at.store, "missing"));
}

/// Such a copy does nothing, even if nobody remembers the grant. Here the clock alone stops it.
#[test]
fn a_copy_that_is_too_late_by_the_servers_clock_does_nothing() {
    needs_server!();
    let at = behind();
    at.room.sql("INSERT INTO {T} (key, kind, fence, version, format) VALUES ('k', 'lock', 1, 1, '1.0')");
    let mut a = exclusive(&*at.store, "k");
    at.fault(Network::Late(TOO_LATE));
    at.unanswered(&mut a);
    at.wait_for_late("k");
    assert_eq!(at.holders("k"), []);
    assert_eq!(at.room.one("SELECT version FROM {T}").as_deref(), Some("1"), "it wrote something");
}
