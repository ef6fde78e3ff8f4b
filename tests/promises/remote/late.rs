//! A request for the lock that arrives after its caller has left: it is given up, so nothing comes of it, neither on a
//! free key nor while another holds it.

use std::time::Duration;

use leasehold::{ClientBuilder, ErrorKind, Mode};

use crate::remote::Remote;
use crate::support::harness::{PATIENCE, millis};
use crate::support::proxy::{self, Proxy, Rule};
use crate::support::wait::wait_until;

/// All the time that the caller has, which one request may take.
const SHORT: Duration = millis(1000);
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

/// On stores of their own. Of the writes behind such a proxy that have this text, the next one is late.
fn on(remote: fn() -> Option<Remote>, proxy: fn(&str) -> Proxy, write: &'static str) {
    std::thread::scope(|scope| {
        for mode in [Mode::Exclusive, Mode::Shared] {
            for meanwhile in [Meanwhile::Nothing, Meanwhile::Held, Meanwhile::Left] {
                scope.spawn(move || {
                    let Some(remote) = remote() else { return };
                    let proxy = proxy(&remote.upstream);
                    proxy.add(Rule::next(1, proxy::Mode::Late(LATE)).on(write));
                    let behind = (remote.at)(&proxy.addr().to_string());
                    let net = Net { behind, beside: remote.direct(), late: Late { proxy, write } };
                    what_was_given_up_is_never_granted(net, mode, meanwhile);
                });
            }
        }
    });
}

#[cfg(feature = "dynamodb")]
#[test]
fn what_was_given_up_is_never_granted_on_dynamodb() {
    on(crate::remote::dynamodb, Proxy::http, "UpdateItem");
}

#[cfg(feature = "mongodb")]
#[test]
fn what_was_given_up_is_never_granted_on_mongodb() {
    // The proxy knows no server that speaks unasked.
    let remote = || crate::remote::mongodb_with("directConnection=true&serverMonitoringMode=poll");
    on(remote, Proxy::mongodb, "findAndModify");
}

#[cfg(feature = "postgres")]
#[test]
fn what_was_given_up_is_never_granted_on_postgres() {
    on(crate::remote::postgres, Proxy::postgres, "INSERT INTO");
}
