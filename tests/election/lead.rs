//! The closure of `lead`, and what `campaign` returns.

use std::sync::Mutex;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::{ErrorKind, Leadership, LossReason};

use crate::support::harness::within;
use crate::*;

/// A closure that reports its start, runs until it is let go, and reports whether it still leads at its end.
fn work(begun: Sender<u64>, let_go: Receiver<()>, ended: Sender<bool>) -> impl FnMut(&Leadership) + Send + 'static {
    move |leadership| {
        begun.send(leadership.fencing_token()).unwrap();
        let _ = let_go.recv();
        let _ = ended.send(leadership.is_leader());
    }
}

#[test]
fn the_closure_is_cancelled_at_a_loss_and_the_node_does_not_stand_while_it_runs() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let (a, tells) = node(&client.connect().unwrap(), "a");
        let a = a.build().unwrap();
        let (begun, begins) = unbounded();
        let (release, let_go) = unbounded();
        let (told, losses) = unbounded();
        a.lead(move |leadership| {
            begun.send(leadership.fencing_token()).unwrap();
            told.send(leadership.loss().wait()).unwrap();
            assert!(!leadership.is_leader() && leadership.remaining().is_zero());
            let _ = let_go.recv();
        })
        .unwrap();
        let first = begins.recv_timeout(LONG).unwrap();
        assert_eq!(won(&tells), first);
        faults.always(Call::Renew, Fault::FailBefore);
        store.outlast(MINUTE);
        let loss = losses.recv_timeout(LONG).unwrap().expect("a loss");
        assert!(matches!(loss.reason, LossReason::Expired { .. }));
        assert_eq!(lost(&tells).0, first, "it is told while the closure still runs");
        faults.heal();
        // The node does not campaign now, so others can have the lock at any time.
        let (rival, before) = (store.client(), a.iterations());
        for _ in 0..20 {
            rival.try_lock("job").unwrap().expect("the node does not stand").release().unwrap();
        }
        assert_eq!((a.terms(), a.iterations()), (1, before));
        release.send(()).unwrap();
        let second = begins.recv_timeout(LONG).unwrap();
        assert!(second > first && a.is_leader() && a.terms() == 2);
        // The node resigns, which is not reported as a loss.
        drop(release);
        a.stop().unwrap();
        assert!(losses.recv_timeout(LONG).unwrap().is_none());
    });
}

#[test]
fn a_closure_that_returns_resigns_and_the_node_stands_again() {
    on_every_store(|store| {
        let (a, tells) = node(&store.client(), "a");
        let a = a.build().unwrap();
        let tokens = Arc::new(Mutex::new(Vec::new()));
        let seen = tokens.clone();
        a.lead(move |leadership| {
            let mut seen = seen.lock().unwrap();
            // One more term may be stopped as it begins.
            assert!(leadership.is_leader() && leadership.guard().is_held() || seen.len() >= 5);
            assert_eq!(leadership.name(), "job");
            seen.push(leadership.fencing_token());
        })
        .unwrap();
        let terms: Vec<u64> = (0..5)
            .map(|_| {
                let token = won(&tells);
                assert_eq!(lost(&tells), (token, "resigned".into()));
                token
            })
            .collect();
        a.stop().unwrap();
        let tokens = tokens.lock().unwrap();
        assert_eq!(tokens[..5], terms);
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        assert_eq!(a.terms(), tokens.len() as u64);
    });
}

#[test]
fn it_stands_only_once_when_told_so() {
    on_every_store(|store| {
        let a = store.client().election("job").stand_again(false).build().unwrap();
        a.lead(|_| {}).unwrap();
        a.wait();
        assert_eq!((a.terms(), a.is_standing()), (1, false));
        assert!(store.client().try_lock("job").unwrap().is_some(), "it resigned");
        // It can be started again.
        a.run().unwrap();
        wait_until("it leads", || a.is_leader());
        assert_eq!(a.terms(), 2);
    });
}

#[test]
fn a_panic_resigns_and_the_node_stands_again() {
    on_every_store(|store| {
        let (a, tells) = node(&store.client(), "a");
        let a = a.build().unwrap();
        let mut calls = 0;
        a.lead(move |leadership| {
            calls += 1;
            assert!(calls > 1, "the first time it panics");
            leadership.loss().wait();
        })
        .unwrap();
        let first = won(&tells);
        assert_eq!(lost(&tells), (first, "resigned, as the leader's closure panicked".into()));
        assert!(won(&tells) > first);
        a.stop().unwrap();
        assert_eq!(lost(&tells).1, "resigned");
    });
}

#[test]
fn the_closure_is_joined_before_the_lock_is_released() {
    on_every_store(|store| {
        let a = store.client().election("job").build().unwrap();
        let (begun, begins) = bounded(1);
        let (saw, sees) = bounded(1);
        let (release, let_go) = bounded::<()>(0);
        a.lead(move |leadership| {
            begun.send(()).unwrap();
            let loss = leadership.loss().wait();
            saw.send((loss.is_none(), leadership.is_leader(), leadership.guard().is_held())).unwrap();
            let _ = let_go.recv();
        })
        .unwrap();
        begins.recv_timeout(LONG).unwrap();
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| a.stop());
            assert_eq!(sees.recv_timeout(LONG).unwrap(), (true, false, true), "told, not leading, still held");
            assert!(!a.is_leader());
            let rival = store.client();
            assert!(rival.try_lock("job").unwrap().is_none(), "released while the closure runs");
            drop(release);
            stopping.join().unwrap().unwrap();
            assert!(rival.try_lock("job").unwrap().is_some(), "not released after the closure");
        });
    });
}

#[test]
fn a_drop_that_reaches_its_bound_leaves_the_lock_to_its_lease() {
    on_every_store(|store| {
        for by_stop in [false, true] {
            let client = store.builder().drop_timeout(SECOND).connect().unwrap();
            let a = client.election("job").build().unwrap();
            let ((begun, begins), (release, let_go), (ended, ends)) = (bounded(1), bounded::<()>(0), bounded(1));
            a.lead(work(begun, let_go, ended)).unwrap();
            let token = begins.recv_timeout(LONG).unwrap();
            let rival = store.client();
            let a = crate::support::harness::within("the end", SECOND, || {
                if !by_stop {
                    drop(a);
                    return None;
                }
                let error = a.stop().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                Some(a)
            });
            assert!(rival.try_lock("job").unwrap().is_none(), "released while the closure runs");
            if let Some(a) = &a {
                // On a busy machine its thread may take a moment longer.
                wait_until("it has resigned", || !a.is_standing());
                a.run().unwrap();
            }
            // The same where the election was dropped and can't be asked.
            wait_until("its lock is left to its lease", || client.held().is_empty());
            drop(release);
            assert!(!ends.recv_timeout(LONG).unwrap(), "it was told");
            if let Some(a) = a {
                // Once the closure is over the node campaigns again, and waits for its own old lease.
                wait_until("it campaigns again", || a.iterations() > 1);
                store.outlast(MINUTE);
                wait_until("it leads again", || a.is_leader());
                assert!(a.fencing_token().unwrap() > token);
                // A slow server may not answer within so short a bound; then this tries again.
                let mut stops = (0..5).map(|_| {
                    let stopped = a.stop();
                    wait_until("it has resigned", || !a.is_standing());
                    if stopped.is_err() {
                        a.run().unwrap();
                        wait_until("it leads once more", || a.is_leader());
                    }
                    stopped
                });
                assert!(stops.any(|stopped| stopped.is_ok()), "no stop is answered");
            } else {
                assert!(rival.try_lock("job").unwrap().is_none(), "the lease runs out, nothing else");
                store.outlast(MINUTE);
                assert!(rival.try_lock("job").unwrap().unwrap().fencing_token() > token);
            }
        }
    });
}

#[test]
fn campaign_blocks_until_elected_and_resigning_lets_the_next_in() {
    on_every_store(|store| {
        let (a, b) = (store.client().election("job").build().unwrap(), store.client().election("job").build().unwrap());
        let leadership = a.campaign().unwrap();
        assert!(leadership.is_leader() && a.is_leader() && a.is_standing());
        assert_eq!(a.fencing_token(), Some(leadership.fencing_token()));
        assert!(leadership.remaining() > MINUTE / 2);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| b.campaign().unwrap());
            wait_until("it campaigns", || b.iterations() > 1);
            assert!(!next.is_finished() && !b.is_leader() && b.is_standing());
            let (watch, token) = (leadership.loss(), leadership.fencing_token());
            leadership.resign().unwrap();
            assert!(watch.get().is_none() && !a.is_leader());
            assert!(next.join().unwrap().fencing_token() > token);
        });
        assert!(!b.is_leader() && b.leader().unwrap().is_none(), "the drop resigned");
    });
}

/// The node campaigns again before its callbacks have reported how the last term ended.
#[test]
fn each_lost_term_is_told_before_the_next_one() {
    on_every_store(|store| {
        let (a, tells) = node(&store.client(), "a");
        let a = a.build().unwrap();
        let terms: Vec<Leadership> = (0..8)
            .map(|_| {
                let leadership = a.campaign().unwrap();
                store.outlast(MINUTE);
                wait_until("the term is over", || !leadership.is_leader());
                leadership
            })
            .collect();
        for leadership in &terms {
            let token = leadership.fencing_token();
            assert_eq!(won(&tells), token);
            let (ended, how) = lost(&tells);
            assert!(ended == token && how.starts_with("lost: expired"), "{token}: {ended} {how}");
        }
    });
}

#[test]
fn one_election_stands_once() {
    on_every_store(|store| {
        let a = store.client().election("job").build().unwrap();
        let refused = |error: leasehold::Error| {
            assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{error}");
            assert_eq!(error.key(), Some("job"));
        };
        let leadership = a.campaign().unwrap();
        refused(a.campaign().unwrap_err());
        refused(a.run().unwrap_err());
        drop(leadership);
        a.run().unwrap();
        refused(a.run().unwrap_err());
        refused(a.lead(|_| {}).unwrap_err());
        refused(a.campaign().unwrap_err());
        a.stop().unwrap();
        drop(a.campaign().unwrap());
    });
}

#[test]
fn a_leadership_outlives_the_handle_that_it_came_from() {
    on_every_store(|store| {
        let client = store.client();
        let leadership = client.election("job").build().unwrap().campaign().unwrap();
        assert!(leadership.is_leader());
        assert!(client.try_lock("job").unwrap().is_none());
        leadership.resign().unwrap();
        assert!(client.try_lock("job").unwrap().is_some());
    });
}

#[test]
fn a_resignation_that_is_not_answered_says_so_and_is_tried_again() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let client = client.drop_timeout(SECOND).connect().unwrap();
        let leadership = client.election("job").build().unwrap().campaign().unwrap();
        faults.always(Call::Release, Fault::FailBefore);
        let error = leadership.resign().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        faults.heal();
        let rival = store.client();
        wait_until("the leader's lock is free", || rival.try_lock("job").unwrap().is_some());
        // A leadership that is lost already can't be resigned.
        let leadership = client.election("job").build().unwrap().campaign().unwrap();
        store.outlast(MINUTE);
        leadership.loss().wait_timeout(LONG).expect("a loss");
        assert_eq!(leadership.resign().unwrap_err().kind(), ErrorKind::Lost);
    });
}

#[test]
fn work_that_fails_resigns_and_says_why() {
    on_every_store(|store| {
        let (a, tells) = node(&store.client(), "a");
        let a = a.stand_again(false).build().unwrap();
        a.try_lead(|leadership| if leadership.is_leader() { Err("no disk") } else { Ok(()) }).unwrap();
        let token = won(&tells);
        assert_eq!(lost(&tells), (token, "resigned, as the leader's work failed: no disk".into()));
        a.wait();
        assert!(store.client().try_lock("job").unwrap().is_some());
    });
}

/// The error of a campaign whose time runs out. If the store is silent by then, the error reports that instead: then
/// this tries again with more time.
fn campaigns_in_vain(node: &leasehold::Election, limit: Duration) -> leasehold::Error {
    let limits = std::iter::successors(Some(limit), |limit| Some(2 * *limit)).take(6);
    let mut errors = limits.map(|limit| node.campaign_for(limit).unwrap_err());
    let is_silent = |error: &leasehold::Error| matches!(error.kind(), ErrorKind::Store | ErrorKind::Ambiguous);
    errors.find(|error| !is_silent(error)).expect("an answer")
}

#[test]
fn a_campaign_with_a_limit_ends_with_who_leads() {
    on_every_store(|store| {
        let holder = store.client().lock("job").unwrap();
        let (a, _tells) = node(&store.client(), "a");
        let a = a.build().unwrap();
        for limit in [ms(0), ms(2_000)] {
            let error = campaigns_in_vain(&a, limit);
            assert_eq!((error.kind(), error.holders().len()), (ErrorKind::TimedOut, 1), "{error}");
            assert!(!a.is_standing());
        }
        drop(holder);
        assert!(a.campaign_for(LONG).unwrap().is_leader());
    });
    // A single attempt waits for its own health check for as long as for a request.
    let client = LockClient::builder("memory:").request_timeout(LONG).connect().unwrap();
    let election = client.election("job").health_check(|| true).build().unwrap();
    assert!(election.campaign_for(ms(0)).unwrap().is_leader());
    // This node is never fit to lead: its check says no, or never answers.
    let (_answer, answers) = bounded::<()>(0);
    let checks: [Box<dyn FnMut() -> bool + Send>; 2] = [Box::new(|| false), Box::new(move || answers.recv().is_ok())];
    for check in checks {
        let client = leasehold::LockClient::connect("memory:").unwrap();
        let election = client.election("job").health_check(check).build().unwrap();
        assert_eq!(election.campaign_for(ms(50)).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}

/// A single try may take as long as a request, but this is none.
#[test]
fn a_campaign_whose_limit_is_over_before_it_asks_does_not_outlast_it() {
    on_every_store(|store| {
        let (_answer, answers) = bounded::<()>(0);
        let (client, faults) = store.faulty();
        let client = client.connect().unwrap();
        let node = || client.election("job");
        for node in [node(), node().health_check(move || answers.recv().is_ok())] {
            let node = node.build().unwrap();
            faults.always(Call::Acquire, Fault::HangBefore);
            within("a campaign", SECOND, || node.campaign_for(Duration::from_nanos(1)).unwrap_err());
        }
    });
}

/// The thread that led drops the closure, and with it the election.
#[test]
fn a_closure_that_owns_its_election_does_not_wait_for_itself_either() {
    struct Owns {
        election: Arc<Mutex<Option<leasehold::Election>>>,
        _gone: Sender<()>,
    }
    on_every_store(|store| {
        let client = store.builder().drop_timeout(3 * LONG).connect().unwrap();
        let a = client.election("job").stand_again(false).build().unwrap();
        let place = Arc::new(Mutex::new(None));
        let (gone, goes) = bounded(0);
        let owns = Owns { election: place.clone(), _gone: gone };
        let mut filled = place.lock().unwrap();
        a.lead(move |_| {
            let owns = &owns;
            // Waits until the election is in its place.
            drop(owns.election.lock());
        })
        .unwrap();
        *filled = Some(a);
        drop(filled);
        drop(place);
        assert_eq!(goes.recv_timeout(LONG), Err(crossbeam_channel::RecvTimeoutError::Disconnected));
    });
}

#[test]
fn who_resigned_lets_others_go_first_and_who_lost_the_lock_does_not() {
    on_every_store(|store| {
        // So long that the test would not see the end of a wait for it.
        let poll = 10 * MINUTE;
        let (client, faults) = store.faulty();
        let a = client.poll(poll..=poll).connect().unwrap().election("job").build().unwrap();
        let ((begun, begins), mut terms) = (unbounded(), 0);
        a.lead(move |leadership| {
            terms += 1;
            begun.send(()).unwrap();
            if terms == 1 {
                leadership.loss().wait();
            }
        })
        .unwrap();
        begins.recv_timeout(LONG).unwrap();
        faults.always(Call::Renew, Fault::FailBefore);
        store.outlast(MINUTE);
        begins.recv_timeout(LONG).expect("it stands at once after a loss");
        let rival = store.client();
        wait_until("a rival gets it", || rival.try_lock("job").unwrap().is_some());
        for _ in 0..20 {
            rival.try_lock("job").unwrap().expect("it lets others go first").release().unwrap();
        }
        assert_eq!(a.terms(), 2);
        a.stop().unwrap();
    });
}

#[test]
fn a_node_does_not_stand_while_the_closure_of_its_last_term_runs() {
    on_every_store(|store| {
        let client = store.builder().drop_timeout(SECOND).connect().unwrap();
        let a = client.election("job").build().unwrap();
        let ((begun, begins), (release, let_go), (ended, ends)) = (unbounded(), bounded::<()>(0), unbounded());
        a.lead(work(begun, let_go, ended)).unwrap();
        begins.recv_timeout(LONG).unwrap();
        assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut);
        // On a busy machine its thread may take a moment longer.
        wait_until("it stands no more", || !a.is_standing());
        assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut, "nor does it end for a second one");
        // Its lock is free, but the closure still works with what the lock protects.
        store.outlast(MINUTE);
        let error = a.campaign_for(ms(100)).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.to_string().contains("fit to lead"), "{error}");
        a.run().unwrap();
        assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut, "nor while the node waits for it");
        // As above; otherwise it could not begin again.
        wait_until("it stands no more", || !a.is_standing());
        a.run().unwrap();
        let rival = store.client();
        for _ in 0..10 {
            rival.try_lock("job").unwrap().expect("it does not stand").release().unwrap();
        }
        assert_eq!(a.terms(), 1);
        drop(release);
        assert!(!ends.recv_timeout(LONG).unwrap());
        wait_until("it leads", || a.is_leader());
    });
}

#[test]
fn the_leader_is_shown_with_its_host() {
    on_every_store(|store| {
        let client = store.client();
        let (told, tells) = unbounded();
        let a = client.election("job").id("a").on_leader(move |leader: &Leader| drop(told.send(leader.clone())));
        let leadership = a.build().unwrap().campaign().unwrap();
        let info = leadership.guard().info();
        assert!(info.host().is_some_and(|host| !host.is_empty()));
        let seen = store.client().election("job").build().unwrap().leader().unwrap().unwrap();
        for leader in [tells.recv_timeout(LONG).unwrap(), seen] {
            let shown = (leader.id(), leader.host(), leader.fencing_token());
            assert_eq!(shown, ("a", info.host(), leadership.fencing_token()));
        }
    });
}
