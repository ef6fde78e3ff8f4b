//! An acquire that arrives after its caller has left: it was given up, so it must have no effect, neither on a free key
//! nor while another holder has it.
#![allow(dead_code)] // Each build has its own stores.

use std::time::Duration;

use leasehold::{ClientBuilder, Error, ErrorKind, LockRequest, Mode};

use crate::remote::Remote;
#[cfg(feature = "spanner")]
use crate::support::grpc::{Fault, Grpc};
use crate::support::harness::{PATIENCE, connected, millis};
use crate::support::proxy::{self, Proxy, Rule};
use crate::support::wait::wait_until;

/// All the time that the caller has, which one request may use up.
const SHORT: Duration = millis(1000);
const LATE: Duration = millis(4000);
/// A late grant would last for a minute.
const LEASE: Duration = Duration::from_secs(600);

/// The network in front of a client, on which its first acquire arrives late.
trait Late {
    /// The kind of error with which a call ends if its acquire is late.
    const ENDS: ErrorKind;

    /// What the client connects to.
    fn host(&self) -> String;

    /// Makes this request until its acquire was sent and given up, and returns the error.
    fn given_up(&self, request: impl Fn() -> LockRequest) -> Error;

    /// Returns once the late acquire has arrived and the server has answered it.
    fn arrived(&self);
}

/// The late request is the one that contains this text.
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
        // On a busy machine the time may be over before anything was sent.
        let mut asks = (0..10).map(|_| request().wait(SHORT).lock().expect_err("it is late"));
        let sent = asks.find(|error| {
            assert!(error.kind() != ErrorKind::Store || !self.is_sent(), "it was sent, and nobody knows: {error}");
            error.kind() != ErrorKind::Store
        });
        sent.expect("it is sent")
    }

    /// By then all other requests are answered, too.
    fn arrived(&self) {
        self.proxy.wait_until("the late one is answered", |all| {
            let mut writes = all.iter().filter(|one| one.has(self.write)).peekable();
            writes.peek().is_some() && writes.all(|one| one.answered > 0)
        });
        assert!(self.proxy.clear().is_empty());
    }
}

/// Here the commit is late.
#[cfg(feature = "spanner")]
impl Late for Grpc {
    const ENDS: ErrorKind = ErrorKind::Cancelled;

    fn host(&self) -> String {
        self.host.clone()
    }

    /// The call is cancelled once the commit was sent: near the end of its wait it would ask once more, and the
    /// emulator would end the commit's transaction for that.
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
        // A rival's write would also stop the commit, so this waits until it is given up.
        self.wait_until("it is given up", |calls| calls.iter().any(|call| call.method == "Commit" && call.answered));
        error
    }

    fn arrived(&self) {
        assert_eq!(self.deliver(), 1, "the commit of the acquisition");
    }
}

/// What happens to the key before the late request arrives.
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
        // If giving up writes nothing, a missing row stays missing.
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

/// Each case has a store of its own: on Spanner's emulator another transaction at the same time would stop the late
/// one.
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
    // The proxy can't handle a server that sends unasked.
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
