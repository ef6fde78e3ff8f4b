//! A request for the lock that arrives after its caller has left: it is given up, so nothing comes of it, neither on a
//! free key nor while another holds it.

use std::time::Duration;

use leasehold::{ClientBuilder, ErrorKind, LockClient, Mode};

use crate::support::harness::{PATIENCE, millis};
use crate::support::proxy::{self, Proxy, Rule};
use crate::support::wait::wait_until;

/// All the time that the caller has, for one request.
const SHORT: Duration = millis(1500);
const LATE: Duration = millis(4000);
/// What would be granted late would stand for a minute.
const LEASE: Duration = Duration::from_secs(600);

/// A store whose next acquisition comes late.
struct Net {
    /// By way of the network that is late.
    behind: ClientBuilder,
    beside: ClientBuilder,
    late: Late,
}

/// What is late.
struct Late {
    proxy: Proxy,
    /// Such a request has it in it.
    write: &'static str,
}

impl Late {
    fn is_sent(&self) -> bool {
        self.proxy.requests().iter().any(|one| one.has(self.write))
    }

    /// Waits until the server has answered everything.
    fn arrived(&self) {
        self.proxy.wait_until("the late one is answered", |all| {
            let mut writes = all.iter().filter(|one| one.has(self.write)).peekable();
            writes.peek().is_some() && writes.all(|one| one.answered > 0)
        });
        assert!(self.proxy.clear().is_empty());
    }
}

/// What happens to the key meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    Held,
    /// Held and released.
    Left,
}

fn what_was_given_up_is_never_granted(net: Net, mode: Mode, meanwhile: Meanwhile) {
    let what = format!("{mode}, {meanwhile:?}");
    let connect = |builder: ClientBuilder| builder.lease(LEASE).request_timeout(PATIENCE).connect().expect("a client");
    let (rival, client) = (connect(net.beside), connect(net.behind));
    let ask = || {
        let request = client.request("k").wait(SHORT);
        if mode == Mode::Shared { request.shared() } else { request }.lock().expect_err("it is late")
    };
    // On a busy machine nothing may have left yet when the time is over.
    let sent = (0..10).map(|_| ask()).find(|error| {
        assert!(
            error.kind() != ErrorKind::Store || !net.late.is_sent(),
            "{what}: it was sent, and nobody knows: {error}"
        );
        error.kind() != ErrorKind::Store
    });
    let error = sent.expect("it is sent");
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{what}: {error}");
    let held = (meanwhile != Meanwhile::Nothing).then(|| rival.lock("k").expect("nobody holds it"));
    let held = held.filter(|_| meanwhile == Meanwhile::Held);
    net.late.arrived();
    let stands = || {
        // Where giving up writes nothing, a missing row stays so.
        let status = rival.get("k").expect("a look");
        status
            .iter()
            .flat_map(|status| status.holders())
            .map(leasehold::LockStatus::fencing_token)
            .collect::<Vec<u64>>()
    };
    let right: Vec<u64> = held.iter().map(leasehold::LockGuard::fencing_token).collect();
    wait_until("only who is there stands", || stands() == right);
    assert_eq!(rival.try_lock("k").expect("an answer").is_some(), held.is_none(), "{what}");
}

fn on(net: impl Fn() -> Net + Sync) {
    std::thread::scope(|scope| {
        for mode in [Mode::Exclusive, Mode::Shared] {
            for meanwhile in [Meanwhile::Nothing, Meanwhile::Held, Meanwhile::Left] {
                let net = &net;
                scope.spawn(move || what_was_given_up_is_never_granted(net(), mode, meanwhile));
            }
        }
    });
}

/// Of the writes that have this text, the next one is late.
fn late(proxy: Proxy, write: &'static str, behind: ClientBuilder, beside: ClientBuilder) -> Net {
    proxy.add(Rule::next(1, proxy::Mode::Late(LATE)).on(write));
    Net { behind, beside, late: Late { proxy, write } }
}

#[cfg(feature = "dynamodb")]
#[test]
fn what_was_given_up_is_never_granted_on_dynamodb() {
    use crate::support::dynamodb::{Table, config, config_at};
    let Some(endpoint) = crate::support::servers::dynamodb_local() else { return };
    on(|| {
        let (table, proxy) = (Table::fresh().0, Proxy::http(&endpoint));
        let behind = leasehold::dynamodb::builder(config_at(&proxy.url()), table.as_str());
        late(proxy, "UpdateItem", behind, leasehold::dynamodb::builder(config(), table.as_str()))
    });
}

#[cfg(feature = "mongodb")]
#[test]
fn what_was_given_up_is_never_granted_on_mongodb() {
    use crate::support::mongodb::{Rows, host, with_database};
    let Some(server) = crate::support::servers::mongod() else { return };
    let rows: Vec<Rows> = (0..6).map(|_| Rows::fresh()).collect();
    let names = std::sync::Mutex::new(rows.iter().map(|rows| rows.0.clone()).collect::<Vec<String>>());
    on(|| {
        let (name, proxy) = (names.lock().unwrap().pop().expect("a name for each"), Proxy::mongodb(&host(&server)));
        let options = format!("directConnection=true&serverMonitoringMode=poll&collection={name}");
        let at = |host: &str| LockClient::builder(with_database(&format!("mongodb://{host}"), &options));
        let (behind, beside) = (at(&proxy.addr().to_string()), at(&host(&server)));
        late(proxy, "findAndModify", behind, beside)
    });
}

#[cfg(feature = "postgres")]
#[test]
fn what_was_given_up_is_never_granted_on_postgres() {
    use crate::support::postgres::Rows;
    use crate::support::servers::{postgres, postgres_server};
    let Some(host) = postgres_server().and_then(|server| postgres::host(&server)) else { return };
    let rows: Vec<Rows> = (0..6).map(|_| Rows::fresh()).collect();
    let names = std::sync::Mutex::new(rows.iter().map(|rows| rows.0.clone()).collect::<Vec<String>>());
    on(|| {
        let name = names.lock().unwrap().pop().expect("a name for each");
        let proxy = crate::support::proxy::Proxy::postgres(&host);
        let at = |host: &str| LockClient::builder(format!("postgres://leasehold@{host}/postgres?table={name}"));
        let (behind, beside) = (at(&proxy.addr().to_string()), at(&host));
        late(proxy, "INSERT INTO", behind, beside)
    });
}
