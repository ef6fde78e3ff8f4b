//! Leader election, the same on every store, and among real processes.

#[path = "../support/mod.rs"]
mod support;

mod callbacks;
mod ends;
mod health;
mod inside;
mod lead;
#[cfg(target_os = "linux")]
mod processes;
mod spindle;
mod warnings;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::bench::{LONG, builder_over};
use crate::support::stores::{Opened, on_each};
use crate::support::wait::wait_until;
use leasehold::internals::store::Backend;
use leasehold::internals::store::fault::{FaultPlan, Faulty};
use leasehold::{ClientBuilder, ElectionBuilder, Leader, LockClient, TermEnd};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a node's callbacks reported.
#[derive(Debug, PartialEq)]
enum Told {
    Won(u64),
    Lost(u64, String),
    Leader(String, u64),
}

impl Opened {
    /// A client for one node, as in a process of its own.
    fn builder(&self) -> ClientBuilder {
        self.nodes(self.second.clone())
    }

    /// The bounds are long, so that even a closure whose thread gets no processor for seconds ends within the bound of
    /// a stop.
    fn nodes(&self, store: Arc<dyn Backend>) -> ClientBuilder {
        let builder = builder_over(store, self.clock.clone()).poll(ms(10)..=ms(50)).lease(MINUTE);
        builder.request_timeout(LONG).drop_timeout(LONG)
    }

    fn client(&self) -> LockClient {
        self.builder().connect().unwrap()
    }

    /// A client for a node whose term must last while the test waits for it: it renews so often that the lease survives
    /// a server that is silent for seconds.
    fn eager(&self) -> LockClient {
        self.builder().heartbeat(ms(250)).connect().unwrap()
    }

    /// A client for a node whose requests meet faults.
    fn faulty(&self) -> (ClientBuilder, FaultPlan) {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(self.store.clone(), faults.clone()));
        (self.nodes(faulty), faults)
    }
}

/// Runs a case on an empty store of each kind.
fn on_every_store(case: impl Fn(&Opened) + Sync) {
    on_each(|store| case(&(store.open)()));
}

/// A node whose callbacks send what they report.
fn node(client: &LockClient, id: &str) -> (ElectionBuilder, Receiver<Told>) {
    let (told, tells) = channel();
    let (won, lost, seen) = (told.clone(), told.clone(), told);
    let node = client
        .election("job")
        .id(id)
        .on_won(move |token| drop(won.send(Told::Won(token))))
        .on_lost(move |token, end: &TermEnd| drop(lost.send(Told::Lost(token, end.to_string()))))
        .on_leader(move |leader: &Leader| drop(seen.send(Told::Leader(leader.id().into(), leader.fencing_token()))));
    (node, tells)
}

/// The next report of a callback.
#[track_caller]
fn next(tells: &Receiver<Told>) -> Told {
    tells.recv_timeout(LONG).expect("it is told something")
}

/// The token of the next term that the node wins; reports about other leaders are skipped.
#[track_caller]
fn won(tells: &Receiver<Told>) -> u64 {
    loop {
        match next(tells) {
            Told::Won(token) => return token,
            Told::Leader(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// How the next term ends; reports about other leaders are skipped.
#[track_caller]
fn lost(tells: &Receiver<Told>) -> (u64, String) {
    loop {
        match next(tells) {
            Told::Lost(token, end) => return (token, end),
            Told::Leader(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The worker processes of this test binary start here.
#[cfg(target_os = "linux")]
#[test]
fn worker() {
    crate::support::worker::run();
}

#[test]
fn everything_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<leasehold::Election>();
    shared::<ElectionBuilder>();
    shared::<leasehold::Leadership>();
    shared::<Leader>();
    shared::<TermEnd>();
}
