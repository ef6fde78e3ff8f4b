//! Calls on an election from inside it: from the closure of `lead`, and from callbacks, observers and loggers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::bounded;
use leasehold::{CancelToken, ErrorKind};

#[cfg(target_os = "linux")]
use crate::support::alone::alone;
use crate::*;

/// How long a drop of the client may take.
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_closure_may_stop_the_election_itself() {
    on_every_store(|store| {
        let client = store.client();
        let a = Arc::new(client.election("job").build().unwrap());
        let (own, (told, tells)) = (Arc::downgrade(&a), bounded(1));
        let (stopped, was_leader) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (stops, leads) = (stopped.clone(), was_leader.clone());
        a.lead(move |leadership| {
            own.upgrade().unwrap().stop().unwrap();
            stops.store(true, Ordering::SeqCst);
            leadership.loss().wait();
            leads.store(leadership.is_leader(), Ordering::SeqCst);
            let _ = told.send(());
        })
        .unwrap();
        tells.recv_timeout(LONG).unwrap();
        a.wait();
        assert!(stopped.load(Ordering::SeqCst) && !was_leader.load(Ordering::SeqCst));
        assert_eq!((a.terms(), a.is_standing()), (1, false));
        assert!(client.try_lock("job").unwrap().is_some());
    });
}

/// However long its cleanup takes.
#[test]
fn a_closure_that_stops_the_election_may_take_its_time() {
    on_every_store(|store| assert!((0..5).any(|_| is_released_after_its_work(store)), "it is left to its lease"));
}

/// False if the store or this machine did not answer within the bound of the release, which begins when the work ends.
fn is_released_after_its_work(store: &Opened) -> bool {
    let client = store.builder().drop_timeout(SECOND).connect().unwrap();
    let a = Arc::new(client.election("job").build().unwrap());
    let (own, (ends, go_on)) = (Arc::downgrade(&a), bounded::<()>(0));
    let (told, tells) = bounded(1);
    a.lead(move |_| {
        own.upgrade().unwrap().stop().unwrap();
        told.send(Instant::now()).unwrap();
        let _ = go_on.recv();
    })
    .unwrap();
    let stopped = tells.recv_timeout(LONG).unwrap();
    wait_until("longer than a drop may take", || stopped.elapsed() > 2 * SECOND);
    let rival = store.client();
    assert!(rival.try_lock("job").unwrap().is_none(), "its work goes on");
    drop(ends);
    a.wait();
    let is_free = rival.try_lock("job").unwrap().is_some();
    // Prepares the next try, in case the lock was not released.
    store.outlast(MINUTE);
    is_free
}

/// Otherwise a callback that hangs would keep the leader from handing over.
#[test]
fn a_closure_that_stops_the_election_waits_for_no_callback() {
    on_every_store(|store| {
        let client = store.builder().drop_timeout(LONG).connect().unwrap();
        let (lets, hangs) = bounded::<()>(0);
        let election = client.election("job").on_won(move |_| assert!(hangs.recv().is_err()));
        let a = Arc::new(election.build().unwrap());
        let (own, (told, tells)) = (Arc::downgrade(&a), bounded(1));
        a.lead(move |_| {
            own.upgrade().unwrap().stop().unwrap();
            told.send(()).unwrap();
        })
        .unwrap();
        let stopped = tells.recv_timeout(LONG / 2);
        drop(lets);
        stopped.expect("it does not wait");
    });
}

/// The work that closes the client still uses what the lock protects.
#[test]
fn a_closure_that_closes_the_client_keeps_its_lock_until_its_lease_is_over() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.client());
        let a = client.election("job").build().unwrap();
        let ((ends, go_on), (told, tells)) = (bounded::<()>(0), bounded(1));
        a.lead(move |_| {
            told.send(client.close().is_ok()).unwrap();
            let _ = go_on.recv();
        })
        .unwrap();
        tells.recv_timeout(LONG).unwrap();
        assert!(rival.try_lock("job").unwrap().is_none(), "it works beside the next leader");
        drop(ends);
        a.wait();
        store.outlast(MINUTE);
        assert!(rival.try_lock("job").unwrap().is_some());
    });
}

/// A stop from outside, or a cancellation, does not wait for longer than a drop.
#[test]
fn an_end_from_outside_hurries_a_closure_that_has_stopped_the_election_itself() {
    for cancels in [false, true] {
        let client = LockClient::builder("memory:").drop_timeout(SHORT).connect().unwrap();
        let cancel = CancelToken::new();
        let a = Arc::new(client.election("job").cancel(&cancel).build().unwrap());
        let (own, (ends, go_on), (told, tells)) = (Arc::downgrade(&a), bounded::<()>(0), bounded(1));
        a.lead(move |_| {
            own.upgrade().unwrap().stop().unwrap();
            told.send(()).unwrap();
            let _ = go_on.recv();
        })
        .unwrap();
        tells.recv_timeout(LONG).unwrap();
        if cancels {
            cancel.cancel();
        } else {
            assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut);
        }
        let (ended, end) = bounded(1);
        std::thread::spawn(move || {
            a.wait();
            ended.send(())
        });
        assert!(end.recv_timeout(LONG).is_ok(), "nothing bounds it");
        drop(ends);
    }
}

#[test]
fn a_closure_that_waits_for_the_election_does_not_wait_for_itself() {
    on_every_store(|store| {
        let a = Arc::new(store.client().election("job").stand_again(false).build().unwrap());
        let (own, (told, tells)) = (Arc::downgrade(&a), bounded(1));
        a.lead(move |_| {
            let election = own.upgrade().unwrap();
            election.wait();
            told.send(election.is_standing()).unwrap();
        })
        .unwrap();
        assert!(tells.recv_timeout(LONG).expect("it waits for itself"), "nothing is over yet");
        a.wait();
    });
}

/// The later run waits for the closure to end, so a wait by the closure would never end.
#[test]
fn a_closure_that_was_left_behind_does_not_wait_for_what_runs_since() {
    on_every_store(|store| {
        let client = store.builder().drop_timeout(SHORT).connect().unwrap();
        let a = Arc::new(client.election("job").build().unwrap());
        let (own, (begun, begins)) = (Arc::downgrade(&a), bounded(1));
        let ((let_go, waits), (told, tells)) = (bounded::<()>(0), bounded(1));
        a.lead(move |_| {
            begun.send(()).unwrap();
            let _ = waits.recv();
            own.upgrade().unwrap().wait();
            told.send(()).unwrap();
        })
        .unwrap();
        begins.recv_timeout(LONG).unwrap();
        assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut);
        // On a busy machine its thread may take a moment longer.
        wait_until("it stands no more", || !a.is_standing());
        a.run().unwrap();
        drop(let_go);
        tells.recv_timeout(LONG).expect("it waits for itself");
    });
}

/// What it owns may include a guard or a client.
#[test]
fn a_closure_has_not_ended_before_what_it_owns_is_gone() {
    struct Owned(crossbeam_channel::Sender<()>, crossbeam_channel::Receiver<()>);
    impl Drop for Owned {
        fn drop(&mut self) {
            let _ = (self.0.send(()), self.1.recv());
        }
    }
    let client = LockClient::builder("memory:").drop_timeout(SHORT).connect().unwrap();
    let a = client.election("job").build().unwrap();
    let ((begun, begins), (ends, go_on)) = (bounded(1), bounded::<()>(0));
    let ((drops, dropped), (lets, hangs)) = (bounded(1), bounded::<()>(0));
    let owned = Owned(drops, hangs);
    a.lead(move |_| {
        let _owned = &owned;
        begun.send(()).unwrap();
        let _ = go_on.recv();
    })
    .unwrap();
    begins.recv_timeout(LONG).unwrap();
    assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut);
    a.wait();
    drop(ends);
    dropped.recv_timeout(LONG).unwrap();
    let stopped = a.stop();
    drop(lets);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::TimedOut);
}

/// A stop has left the closure behind, so its own thread drops what it owns.
#[test]
fn what_a_closure_owns_may_stop_the_election_itself() {
    struct Owned(std::sync::Weak<leasehold::Election>, crossbeam_channel::Sender<leasehold::Result<()>>);
    impl Drop for Owned {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.upgrade().expect("the test has it").stop());
        }
    }
    let client = LockClient::builder("memory:").drop_timeout(SHORT).connect().unwrap();
    let a = Arc::new(client.election("job").build().unwrap());
    let ((begun, begins), (ends, go_on)) = (bounded(1), bounded::<()>(0));
    let (told, tells) = bounded(1);
    let owned = Owned(Arc::downgrade(&a), told);
    a.lead(move |_| {
        let _owned = &owned;
        begun.send(()).unwrap();
        let _ = go_on.recv();
    })
    .unwrap();
    begins.recv_timeout(LONG).unwrap();
    assert_eq!(a.stop().unwrap_err().kind(), ErrorKind::TimedOut);
    a.wait();
    drop(ends);
    tells.recv_timeout(LONG).unwrap().unwrap();
}

/// Runs this once when a call begins to wait, on the thread of that call.
#[derive(Default)]
struct AtWait(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl leasehold::Observer for AtWait {
    fn event(&self, event: &leasehold::Event<'_>) {
        if let leasehold::Event::WaitBegan { .. } = event
            && let Some(does) = { self.0.lock().unwrap().take() }
        {
            does();
        }
    }
}

#[test]
fn what_is_told_during_a_campaign_may_wait_for_its_election_and_close_its_client() {
    on_every_store(|store| {
        let at_wait = Arc::new(AtWait::default());
        let client = store.builder().drop_timeout(MINUTE).observer(at_wait.clone()).connect().unwrap();
        let a = Arc::new(client.election("job").build().unwrap());
        let rival = store.client();
        let _held = rival.lock("job").unwrap();
        let (own, (told, tells)) = (a.clone(), bounded(2));
        *at_wait.0.lock().unwrap() = Some(Box::new(move || {
            own.wait();
            told.send(()).unwrap();
            let _ = client.close();
            told.send(()).unwrap();
        }));
        let campaigns = std::thread::spawn(move || a.campaign().map(drop));
        tells.recv_timeout(LONG).expect("the wait waits for itself");
        tells.recv_timeout(LONG).expect("the close waits for itself");
        assert_eq!(campaigns.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn only_the_end_of_run_and_lead_is_waited_for() {
    on_every_store(|store| {
        let (client, rival) = (store.client(), store.client());
        let a = client.election("job").build().unwrap();
        let _held = rival.lock("job").unwrap();
        let (told, tells) = bounded(1);
        std::thread::scope(|scope| {
            let campaigns = scope.spawn(|| a.campaign().unwrap_err());
            wait_until("it campaigns", || a.iterations() > 0);
            scope.spawn(|| {
                a.wait();
                told.send(()).unwrap();
            });
            let waited = tells.recv_timeout(LONG);
            a.stop().unwrap();
            assert_eq!(campaigns.join().unwrap().kind(), ErrorKind::Cancelled);
            waited.expect("it waits for the campaign of another thread");
        });
    });
}

/// The call returns in the child, too, where no thread of the parent's answers.
#[cfg(target_os = "linux")]
#[test]
fn a_child_that_is_forked_in_a_callback_ends_as_that_returns() {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, alarm};

    crate::support::alone::alone("inside::a_child_that_is_forked_in_a_callback_ends_as_that_returns", || {
        for called in ["won", "lost", "leader", "check", "closure"] {
            let client = LockClient::builder("memory:").lease(MINUTE).drop_timeout(MINUTE).connect().unwrap();
            let (told, tells) = bounded(1);
            let mut told = Some(told);
            let mut forks: Box<dyn FnMut() + Send> = Box::new(move || {
                let Some(told) = told.take() else { return };
                match crate::support::process::fork() {
                    ForkResult::Parent { child } => told.send(child).unwrap(),
                    ForkResult::Child => {
                        // Ends the child even if it hangs.
                        alarm::set(60);
                        std::mem::forget(told);
                    }
                }
            });
            let (election, mut inside) = (client.election("job"), None);
            let election = match called {
                "won" => election.on_won(move |_| forks()),
                "lost" => election.on_lost(move |_, _| forks()),
                "leader" => election.on_leader(move |_| forks()),
                "check" => election.health_check(move || {
                    forks();
                    true
                }),
                _ => {
                    inside = Some(forks);
                    election
                }
            };
            let election = election.build().unwrap();
            election
                .lead(move |leadership| {
                    inside.iter_mut().for_each(|forks| forks());
                    drop(leadership.loss().wait());
                })
                .unwrap();
            wait_until("it leads", || election.is_leader());
            election.stop().unwrap();
            let child = tells.recv_timeout(LONG).unwrap();
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0), "in {called}");
        }
    });
}

/// A logger that ends the election between the grant and the return of `campaign`.
#[cfg(target_os = "linux")]
struct EndsIt(leasehold::Mutex<Option<Ending>>);

#[cfg(target_os = "linux")]
type Ending = Arc<(leasehold::Election, Box<dyn Fn(&leasehold::Election) + Send + Sync>)>;

#[cfg(target_os = "linux")]
static LOG: EndsIt = EndsIt(leasehold::Mutex::new(None));

#[cfg(target_os = "linux")]
impl log::Log for EndsIt {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let ending = self.0.lock().clone().filter(|ending| ending.0.terms() == 1);
        if let Some(ending) = ending
            && record.args().to_string().starts_with("this node leads")
        {
            (ending.1)(&ending.0);
        }
    }

    fn flush(&self) {}
}

/// A new election that was ended as it won, what came with it, and the error of its campaign. A campaign waits for the
/// logger only for some milliseconds: if this machine stops for longer, it wins.
#[cfg(target_os = "linux")]
fn ended_as_it_wins<T, End>(node: impl Fn() -> (leasehold::Election, T, End)) -> (Ending, T, ErrorKind)
where
    End: Fn(&leasehold::Election) + Send + Sync + 'static,
{
    log::set_logger(&LOG).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let ended = (0..20).find_map(|_| {
        let (election, more, end) = node();
        let ending: Ending = Arc::new((election, Box::new(end)));
        *LOG.0.lock() = Some(ending.clone());
        let error = ending.0.campaign().err()?;
        Some((ending, more, error.kind()))
    });
    ended.expect("each campaign returned before the logger was called")
}

/// The end of the term is reported nevertheless.
#[cfg(target_os = "linux")]
#[test]
fn a_campaign_that_is_stopped_as_it_wins_is_told_its_end() {
    alone("inside::a_campaign_that_is_stopped_as_it_wins_is_told_its_end", || {
        let (ending, tells, error) = ended_as_it_wins(|| {
            let (election, tells) = node(&LockClient::connect("memory:").unwrap(), "a");
            (election.build().unwrap(), tells, |election: &leasehold::Election| election.stop().unwrap())
        });
        assert_eq!(error, ErrorKind::Cancelled);
        let second = ending.0.campaign().unwrap();
        let first = won(&tells);
        assert_eq!(lost(&tells), (first, "resigned".to_owned()));
        assert_eq!(won(&tells), second.fencing_token());
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_campaign_whose_client_is_closed_as_it_wins_says_so() {
    alone("inside::a_campaign_whose_client_is_closed_as_it_wins_says_so", || {
        let (.., error) = ended_as_it_wins(|| {
            let client = LockClient::connect("memory:").unwrap();
            let election = client.election("job").build().unwrap();
            (election, (), move |_: &leasehold::Election| drop(client.close()))
        });
        assert_eq!(error, ErrorKind::Closed);
    });
}
