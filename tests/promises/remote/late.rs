//! A request for the lock that arrives after its caller has left: it is given up, so nothing comes of it, neither on a
//! free key nor while another holds it.
#![allow(dead_code)] // Each build has its own stores.

use std::time::Duration;

use leasehold::{ClientBuilder, Error, ErrorKind, LockRequest, Mode};

use crate::remote::Remote;
#[cfg(feature = "spanner")]
use crate::support::grpc::{Fault, Grpc};
use crate::support::harness::{PATIENCE, connected, millis};
use crate::support::proxy::{self, Proxy, Rule};
use crate::support::wait::wait_until;

/// All the time that the caller has, which one request may take.
const SHORT: Duration = millis(1000);
const LATE: Duration = millis(4000);
/// What would be granted late would stand for a minute.
const LEASE: Duration = Duration::from_secs(600);

/// The network that a client is behind, on which its first acquisition comes late.
trait Late {
    /// How a call ends whose acquisition is late.
    const ENDS: ErrorKind;

    /// What the client connects to.
    fn host(&self) -> String;

    /// Makes this request until it was sent, and gives up; the error of that.
    fn given_up(&self, request: impl Fn() -> LockRequest) -> Error;

    /// Returns once the late one has arrived and the server has answered it.
    fn arrived(&self);
}

/// What is late has this text in it.
struct Proxied {
    proxy: Proxy,
    write: &'static str,
}

impl Proxied {
    fn new(proxy: Proxy, write: &'static str) -> Proxied {
        proxy.add(Rule::next(1, proxy::Mode::Late(LATE)).on(write));
        Proxied { proxy, write }
    }

    fn is_sent(&self) -> bool {
        self.proxy.requests().iter().any(|one| one.has(self.write))
    }
}

impl Late for Proxied {
    const ENDS: ErrorKind = ErrorKind::Ambiguous;

    fn host(&self) -> String {
        self.proxy.addr().to_string()
    }

    fn given_up(&self, request: impl Fn() -> LockRequest) -> Error {
        // On a busy machine nothing may have left yet when the time is over.
        let mut asks = (0..10).map(|_| request().wait(SHORT).lock().expect_err("it is late"));
        let sent = asks.find(|error| {
            assert!(error.kind() != ErrorKind::Store || !self.is_sent(), "it was sent, and nobody knows: {error}");
            error.kind() != ErrorKind::Store
        });
        sent.expect("it is sent")
    }

    /// Everything else is answered by then, too.
    fn arrived(&self) {
        self.proxy.wait_until("the late one is answered", |all| {
            let mut writes = all.iter().filter(|one| one.has(self.write)).peekable();
            writes.peek().is_some() && writes.all(|one| one.answered > 0)
        });
        assert!(self.proxy.clear().is_empty());
    }
}

/// A commit is late.
#[cfg(feature = "spanner")]
impl Late for Grpc {
    const ENDS: ErrorKind = ErrorKind::Cancelled;

    fn host(&self) -> String {
        self.host.clone()
    }

    /// Cancelled once the commit has left: near the end of its wait the call would ask once more, and for that the
    /// emulator ends the transaction of the commit.
    fn given_up(&self, request: impl Fn() -> LockRequest) -> Error {
        let cancel = leasehold::CancelToken::new();
        self.fault("Commit", 0, Fault::Held);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                self.wait_until("the commit is sent", |calls| calls.iter().any(|call| call.method == "Commit"));
                cancel.cancel();
            });
            request().wait(PATIENCE).cancel(&cancel).lock().expect_err("its commit is held")
        });
        // What a rival writes would stop the commit, too, so it is given up first.
        self.wait_until("it is given up", |calls| calls.iter().any(|call| call.method == "Commit" && call.answered));
        error
    }

    fn arrived(&self) {
        assert_eq!(self.deliver(), 1, "the commit of the acquisition");
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

fn what_was_given_up_is_never_granted<L: Late>(remote: &Remote, late: &L, mode: Mode, meanwhile: Meanwhile) {
    let what = format!("{mode}, {meanwhile:?}");
    let connect = |builder: &dyn Fn() -> ClientBuilder| connected(|| builder().lease(LEASE).request_timeout(PATIENCE));
    let (rival, client) = (connect(&|| remote.direct()), connect(&|| (remote.at)(&late.host())));
    let error = late.given_up(|| {
        let request = client.request("k");
        if mode == Mode::Shared { request.shared() } else { request }
    });
    assert_eq!(error.kind(), L::ENDS, "{what}: {error}");
    let held = (meanwhile != Meanwhile::Nothing).then(|| rival.lock("k").expect("nobody holds it"));
    let held = held.filter(|_| meanwhile == Meanwhile::Held);
    late.arrived();
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

/// On stores of their own: another transaction beside it would stop one that is late on Spanner's emulator.
fn on<L: Late + 'static>(remote: fn() -> Option<Remote>, late: fn(&str) -> L) {
    std::thread::scope(|scope| {
        for mode in [Mode::Exclusive, Mode::Shared] {
            for meanwhile in [Meanwhile::Nothing, Meanwhile::Held, Meanwhile::Left] {
                scope.spawn(move || {
                    let Some(remote) = remote() else { return };
                    let late = late(&remote.upstream);
                    what_was_given_up_is_never_granted(&remote, &late, mode, meanwhile);
                });
            }
        }
    });
}

#[cfg(feature = "dynamodb")]
#[test]
fn what_was_given_up_is_never_granted_on_dynamodb() {
    on(crate::remote::dynamodb, |upstream| Proxied::new(Proxy::http(upstream), "UpdateItem"));
}

#[cfg(feature = "mongodb")]
#[test]
fn what_was_given_up_is_never_granted_on_mongodb() {
    // The proxy knows no server that speaks unasked.
    let remote = || crate::remote::mongodb_with("directConnection=true&serverMonitoringMode=poll");
    on(remote, |upstream| Proxied::new(Proxy::mongodb(upstream), "findAndModify"));
}

#[cfg(feature = "postgres")]
#[test]
fn what_was_given_up_is_never_granted_on_postgres() {
    on(crate::remote::postgres, |upstream| Proxied::new(Proxy::postgres(upstream), "INSERT INTO"));
}

#[cfg(feature = "spanner")]
#[test]
fn what_was_given_up_is_never_granted_on_spanner() {
    on(crate::remote::spanner, Grpc::new);
}
