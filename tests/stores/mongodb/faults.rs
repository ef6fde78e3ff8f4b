//! A network that fails: how it is between this store and its server, and what only this one does then.

use leasehold::internals::store::{Purpose, Released, Schema};

use crate::mongodb::*;
use crate::network::{Behind, Kind, LATE, MODES, Meanwhile};
use crate::support::mongodb::{Rows, host};
use crate::support::proxy::{Mode as Network, Proxy};

fn behind() -> Behind<Rows> {
    let rows = Rows::fresh();
    let proxy = Proxy::mongodb(&host(&crate::support::servers::mongod().unwrap()));
    let uri = format!("mongodb://{}/?directConnection=true&serverMonitoringMode=poll", proxy.addr());
    let store = open(rows.options_at(&uri));
    store.schema(Schema::Check, &soon()).unwrap();
    let kind = Kind {
        write: "findAndModify",
        driver_repeats: true,
        // What was given up is stopped by its session.
        remembers_who_gave_up: false,
        ends: &[Purpose::Release, Purpose::GiveUp],
        late: Network::Late(2 * LATE),
        given_up: &[(Network::Late(LATE), &MODES, Meanwhile::Nothing), (Network::Late(LATE), &MODES, Meanwhile::Held)],
    };
    Behind { proxy, store: Box::new(store), beside: Box::new(rows.open()), kind, room: rows }
}

crate::network::steps!(behind);

/// What would happen without the session of what is given up. Else the test of it would prove nothing.
#[test]
fn what_is_given_up_in_another_session_comes_back() {
    let at = needs_server!(behind());
    let mut a = exclusive(&*at.store, "negative control");
    // Late enough that a busy machine gives it up before.
    at.fault(Network::Late(3 * LATE));
    at.unanswered(&mut a);
    let released = at.store.release(&mut a.without_native(), Purpose::GiveUp, &soon()).unwrap();
    assert!(matches!(released, Released::Free), "{released:?}");
    at.wait_for_late("negative control");
    assert_eq!(at.holders("negative control").len(), 1);
}
