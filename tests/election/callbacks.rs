//! What callbacks report: each term's start and end, even in a storm of losses, and how the term ended.

use std::sync::mpsc::RecvTimeoutError;

use leasehold::Event;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::pause::Stop;
use leasehold::testing::MemoryStore;

use crate::support::alone::alone;
use crate::*;

const NODES: usize = 3;
const LOSSES: usize = 40;

#[test]
fn callbacks_are_balanced_under_a_storm_of_losses() {
    on_every_store(|store| {
        let mut nodes = Vec::new();
        for number in 0..NODES {
            // A server on a busy machine may not answer within such short timeouts.
            let mut connected = None;
            wait_until("it connects", || {
                let (client, faults) = store.faulty();
                let client = client.drop_timeout(ms(200)).request_timeout(ms(500)).connect();
                connected = client.ok().map(|client| (client, faults));
                connected.is_some()
            });
            let (client, faults) = connected.unwrap();
            let (election, tells) = node(&client, &number.to_string());
            let election = election.build().unwrap();
            election.lead(|leadership| drop(leadership.loss().wait())).unwrap();
            nodes.push((election, tells, faults));
        }
        let operator = store.client();
        for round in 0..LOSSES {
            wait_until("one of them leads", || nodes.iter().any(|(election, ..)| election.is_leader()));
            for (_, _, faults) in &nodes {
                let faulty = [Fault::FailBefore, Fault::ApplyThenFail, Fault::Twice, Fault::HangBefore];
                faults.next(Call::Renew, faulty[round % 4].clone());
                faults.next(Call::Acquire, faulty[round % 3].clone());
                faults.next(Call::Release, faulty[(round + 1) % 3].clone());
            }
            match round % 3 {
                // Every node's lease ends at the same time.
                0 => store.outlast(MINUTE),
                // An operator takes the lock away.
                1 => {
                    if let Some(holder) = operator.get("job").unwrap().and_then(|key| key.holders().first().cloned()) {
                        let _ = operator.unlock(holder.lock_id()).unwrap();
                    }
                    store.advance(SECOND);
                }
                // The leading node is stopped, and begins again.
                _ => {
                    let leads = nodes.iter().find(|(election, ..)| election.is_leader());
                    if let Some((election, ..)) = leads {
                        let _ = election.stop();
                        // A release that hangs may take longer than the bound of the stop.
                        wait_until("it has ended", || !election.is_standing());
                        election.lead(|leadership| drop(leadership.loss().wait())).unwrap();
                    }
                }
            }
        }
        let mut all = Vec::new();
        for (election, tells, faults) in nodes {
            faults.heal();
            let terms = election.terms();
            drop(election);
            // Includes what callbacks still report when the drop stops waiting.
            let all_told = std::iter::from_fn(|| match tells.recv_timeout(LONG) {
                Err(RecvTimeoutError::Timeout) => panic!("its callbacks are not let go of"),
                told => told.ok(),
            });
            let told: Vec<Told> = all_told.filter(|told| !matches!(told, Told::Leader(..))).collect();
            for pair in told.chunks(2) {
                match pair {
                    [Told::Won(won), Told::Lost(lost, _)] if won == lost => all.push(*won),
                    other => panic!("not balanced: {other:?}"),
                }
            }
            assert!(told.len() as u64 / 2 >= terms, "{terms} terms, but {told:?}");
        }
        assert!(all.len() > LOSSES / 2, "it was no storm: {} terms", all.len());
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "two terms with one token");
        println!("{count} terms");
    });
}

/// The call that ends the term may come before the watcher's look, as when the process was stopped for longer than the
/// lease.
#[test]
fn a_term_whose_lease_ran_out_is_lost_whoever_ends_it() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let client = client.connect().unwrap();
        faults.always(Call::Renew, Fault::FailBefore);
        for round in 0..10 {
            let (election, tells) = node(&client, "a");
            let election = election.build().unwrap();
            let leadership = election.campaign().unwrap();
            let token = won(&tells);
            store.outlast(MINUTE);
            match round % 3 {
                0 => drop(leadership),
                1 => drop(leadership.resign()),
                _ => drop(election.stop()),
            }
            let (ended, end) = lost(&tells);
            assert!(ended == token && end.contains("expired"), "{end}");
        }
    });
}

/// The terms that began and ended.
#[derive(Default)]
struct Terms(leasehold::Mutex<Vec<(&'static str, u64)>>);

impl leasehold::Observer for Terms {
    fn event(&self, event: &Event<'_>) {
        self.0.lock().push(match event {
            Event::TermBegan { fencing_token, .. } => ("began", *fencing_token),
            Event::TermEnded { fencing_token, .. } => ("ended", *fencing_token),
            _ => return,
        });
    }
}

/// The caller keeps the lost leadership, and campaigns before the loss was reported.
#[test]
fn a_term_that_is_lost_is_told_before_the_next_one_of_a_campaign() {
    alone("callbacks::a_term_that_is_lost_is_told_before_the_next_one_of_a_campaign", || {
        let (store, terms) = (MemoryStore::new(), Arc::new(Terms::default()));
        let client = store.builder().lease(MINUTE).observer(terms.clone()).connect().unwrap();
        let election = client.election("job").build().unwrap();
        let first = election.campaign().unwrap();
        let mut stop = Stop::at("loss.declared");
        store.advance(2 * MINUTE);
        wait_until("its loss is declared", || stop.is_reached());
        let second = election.campaign().unwrap();
        stop.let_go();
        let [first, second] = [&first, &second].map(|leadership| leadership.fencing_token());
        wait_until("all is told", || terms.0.lock().len() >= 3);
        assert_eq!(*terms.0.lock(), [("began", first), ("ended", first), ("began", second)]);
    });
}
