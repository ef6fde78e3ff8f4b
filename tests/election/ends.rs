//! How a node's standing ends (it campaigns or leads): by stop, close and fork, in callbacks and in async tasks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::bounded;
use leasehold::ErrorKind;
use leasehold::internals::store::fault::{Call, Fault};
use leasehold::internals::sys::pause::Stop;
use leasehold::testing::MemoryStore;

use crate::support::alone::alone;
use crate::*;

#[test]
fn stop_ends_a_campaign_that_waits_and_takes_away_what_it_gave() {
    on_every_store(|store| {
        let client = store.client();
        let election = client.election("job").build().unwrap();
        let rival = store.client();
        let held = rival.lock("job").unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| election.campaign().unwrap_err());
            wait_until("it campaigns", || election.iterations() > 1);
            election.stop().unwrap();
            let error = waiting.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        });
        drop(held);
        let leadership = election.campaign().unwrap();
        election.stop().unwrap();
        assert!(!leadership.is_leader() && !election.is_leader());
        assert!(rival.try_lock("job").unwrap().is_some(), "it resigned");
        assert_eq!(leadership.resign().unwrap_err().kind(), ErrorKind::Lost);
    });
}

/// Counts the terms that ended as lost.
#[derive(Default)]
struct Losses(AtomicUsize);

impl leasehold::Observer for Losses {
    fn event(&self, event: &leasehold::Event<'_>) {
        if let leasehold::Event::TermEnded { end: "lost", .. } = event {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn the_loss_of_what_a_campaign_gave_is_told_before_that_is_dropped() {
    on_every_store(|store| {
        let losses = Arc::new(Losses::default());
        let client = store.builder().observer(losses.clone()).connect().unwrap();
        let election = client.election("job").max_hold(ms(1)).build().unwrap();
        for terms in 1..3 {
            let leadership = election.campaign().unwrap();
            wait_until("its end is told", || losses.0.load(Ordering::SeqCst) == terms);
            assert!(!leadership.is_leader());
            drop(leadership);
        }
        client.close().unwrap();
        assert_eq!(losses.0.load(Ordering::SeqCst), 2, "each is told once");
    });
}

/// Cancels the token as soon as a lock is granted.
struct CancelsTheGranted(leasehold::CancelToken);

impl leasehold::Observer for CancelsTheGranted {
    fn event(&self, event: &leasehold::Event<'_>) {
        if let leasehold::Event::Granted { .. } = event {
            self.0.cancel();
        }
    }
}

#[test]
fn a_campaign_that_is_cancelled_as_it_wins_waits_for_no_release() {
    let store = crate::support::harness::Store::memory();
    let cancel = leasehold::CancelToken::new();
    let builder = store.builder().request_timeout(SECOND).drop_timeout(LONG);
    let client = builder.observer(Arc::new(CancelsTheGranted(cancel.clone()))).connect().unwrap();
    let election = client.election("job").cancel(&cancel).build().unwrap();
    store.plan.always(Call::Release, Fault::HangBefore);
    let campaign = || election.campaign_for(MINUTE).unwrap_err();
    let error = crate::support::harness::within("the campaign", LONG / 2, campaign);
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    store.plan.heal();
    wait_until("it is given up behind it", || store.is_vacant("job"));
}

/// `stop` returns the error, but a token has no caller to return it to.
#[cfg(target_os = "linux")]
#[test]
fn a_resignation_that_fails_after_a_token_is_logged() {
    struct Counts(AtomicUsize);

    static LOG: Counts = Counts(AtomicUsize::new(0));

    impl log::Log for Counts {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            let says = record.args().to_string().contains("could not resign");
            self.0.fetch_add(usize::from(says), Ordering::SeqCst);
        }

        fn flush(&self) {}
    }

    alone("ends::a_resignation_that_fails_after_a_token_is_logged", || {
        log::set_logger(&LOG).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let client = LockClient::builder("memory:").drop_timeout(ms(200)).connect().unwrap();
        for by_token in [false, true] {
            let cancel = leasehold::CancelToken::new();
            let election = client.election(if by_token { "one" } else { "other" }).cancel(&cancel).build().unwrap();
            let ((begun, begins), (release, let_go)) = (bounded(1), bounded::<()>(0));
            election
                .lead(move |_| {
                    begun.send(()).unwrap();
                    let _ = let_go.recv();
                })
                .unwrap();
            begins.recv_timeout(LONG).unwrap();
            if by_token {
                cancel.cancel();
            } else {
                assert_eq!(election.stop().unwrap_err().kind(), ErrorKind::TimedOut);
            }
            election.wait();
            crate::support::logs::wait_until_written();
            assert_eq!(LOG.0.load(Ordering::SeqCst), usize::from(by_token));
            drop(release);
        }
    });
}

/// All nodes of a program can share one token. Its cancellation does not end a leadership that `campaign` has returned.
#[test]
fn a_token_ends_every_standing_now_and_later() {
    on_every_store(|store| {
        let (client, cancel) = (store.client(), leasehold::CancelToken::new());
        let elect = |name| client.election(name).cancel(&leasehold::CancelToken::new()).cancel(&cancel);
        let (given, waits) = (elect("given").build().unwrap(), elect("given").build().unwrap());
        let (leads, tells) = node(&client, "leads");
        let leads = leads.cancel(&cancel).build().unwrap();
        let leadership = given.campaign().unwrap();
        let (ended, ends) = bounded(1);
        leads
            .lead(move |leadership| {
                leadership.loss().wait();
                ended.send(leadership.guard().is_held()).unwrap();
            })
            .unwrap();
        let token = won(&tells);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waits.campaign().unwrap_err());
            wait_until("it campaigns", || waits.iterations() > 0);
            cancel.cancel();
            let error = waiting.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        });
        leads.wait();
        assert!(ends.try_recv().unwrap(), "released before the closure has ended");
        assert_eq!(lost(&tells), (token, "resigned".to_owned()));
        assert!(store.client().try_lock("job").unwrap().is_some(), "not released after the closure");
        assert!(leadership.is_leader(), "it took away what campaign gave");
        leads.run().unwrap();
        leads.wait();
        assert_eq!((leads.terms(), leads.stop().is_ok()), (1, true));
        assert_eq!(waits.campaign().unwrap_err().kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_closed_client_ends_every_standing_and_joins_the_closure_first() {
    on_every_store(|store| {
        let client = store.client();
        let (leads, l_tells) = node(&client, "leads");
        let leads = leads.build().unwrap();
        let follows = client.election("job").build().unwrap();
        let (campaigns, c_tells) = node(&client, "campaigns");
        let given = campaigns.build().unwrap();
        let (begun, begins) = bounded(1);
        let (ended, ends) = bounded(1);
        leads
            .lead(move |leadership| {
                begun.send(()).unwrap();
                leadership.loss().wait();
                ended.send(leadership.guard().is_held()).unwrap();
            })
            .unwrap();
        begins.recv_timeout(LONG).unwrap();
        won(&l_tells);
        follows.run().unwrap();
        let other = client.election("other").build().unwrap();
        let leadership = other.campaign().unwrap();
        client.close().unwrap();
        assert!(ends.recv_timeout(LONG).unwrap(), "it was released while the closure still ran");
        assert_eq!(lost(&l_tells).1, "resigned");
        assert!(!leadership.is_leader() && !other.is_leader());
        for election in [&leads, &follows, &given, &other] {
            election.wait();
            assert!(!election.is_standing());
            for error in [election.run().unwrap_err(), election.campaign().unwrap_err(), election.leader().unwrap_err()]
            {
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            }
            election.stop().unwrap();
        }
        assert!(c_tells.try_recv().is_err(), "it never stood");
        assert_eq!(client.election("job").build().unwrap_err().kind(), ErrorKind::Closed);
        let rival = store.client();
        assert!(rival.try_lock("job").unwrap().is_some() && rival.try_lock("other").unwrap().is_some());
        assert_eq!(leadership.resign().unwrap_err().kind(), ErrorKind::Lost);
    });
}

/// The new thread may get the same address as the thread that led, which has ended by then.
#[test]
fn a_stop_by_a_new_thread_is_none_by_the_closure() {
    on_every_store(|store| {
        let client = store.builder().drop_timeout(ms(100)).observer(Arc::<Losses>::default()).connect().unwrap();
        let election = client.election("job").build().unwrap();
        let ((begun, begins), (release, let_go)) = (bounded(1), bounded::<()>(0));
        let lead = election.lead(move |_| {
            begun.send(()).unwrap();
            let _ = let_go.recv();
        });
        lead.unwrap();
        begins.recv_timeout(LONG).unwrap();
        election.stop().unwrap_err();
        wait_until("it stands no more", || !election.is_standing());
        for _ in 0..10 {
            let stopped = std::thread::scope(|scope| scope.spawn(|| election.stop()).join().unwrap());
            assert_eq!(stopped.unwrap_err().kind(), ErrorKind::TimedOut, "its closure works");
        }
        drop(release);
    });
}

/// Its thread was about to begin when the time of the close was over.
#[test]
fn no_closure_begins_once_a_close_has_released_its_lock() {
    alone("ends::no_closure_begins_once_a_close_has_released_its_lock", || {
        let store = MemoryStore::new();
        let client = store.builder().drop_timeout(ms(200)).connect().unwrap();
        let election = client.election("job").build().unwrap();
        let (begun, begins) = bounded(1);
        let mut stop = Stop::at("hold.started");
        election.lead(move |_| begun.send(()).unwrap()).unwrap();
        wait_until("it has won", || stop.is_reached());
        // It may say that the election did not end in time.
        let _ = client.close();
        let rival = store.client().lock("job").unwrap();
        stop.let_go();
        wait_until("it stands no more", || !election.is_standing());
        assert!(begins.recv().is_err(), "its closure began");
        assert!(rival.is_held());
    });
}

#[test]
fn a_close_does_not_wait_for_ever_for_a_closure() {
    on_every_store(|store| assert!((0..5).any(|_| a_close_releases_the_rest(store)), "a close releases nothing else"));
}

/// False if this machine stopped for so long that no time was left to send the release.
fn a_close_releases_the_rest(store: &Opened) -> bool {
    let client = store.builder().drop_timeout(SECOND).connect().unwrap();
    let election = client.election("job").build().unwrap();
    let ((begun, begins), (release, let_go)) = (bounded(1), bounded::<()>(0));
    election
        .lead(move |_| {
            begun.send(()).unwrap();
            let _ = let_go.recv();
        })
        .unwrap();
    begins.recv_timeout(LONG).unwrap();
    let other = client.lock("other").unwrap();
    let _ = crate::support::harness::within("the close", SECOND, || client.close());
    let (rival, closed, mut is_free) = (store.client(), Instant::now(), false);
    // The close may end before this guard knows that it was released.
    wait_until("the close reaches it", || !other.is_held());
    // The release may have been waited for in vain. A lease that ends by itself would look the same, but lasts longer.
    wait_until("it is released, or left to its lease", || {
        is_free = rival.try_lock("other").unwrap().is_some();
        is_free || closed.elapsed() > LONG / 2
    });
    assert!(rival.try_lock("job").unwrap().is_none(), "released while the closure runs");
    drop(release);
    crate::support::harness::within("the drop", SECOND, || drop(election));
    store.outlast(MINUTE);
    is_free
}

#[test]
fn callbacks_may_end_the_election_and_panic() {
    on_every_store(|store| {
        let client = store.client();
        let slot = Arc::new(leasehold::Mutex::new(None::<leasehold::Election>));
        let (own, (told, tells)) = (slot.clone(), bounded(1));
        let election = client
            .election("job")
            .on_won(|_| panic!("a callback that panics harms nobody"))
            .on_leader(move |_| {
                let election = own.lock().take().expect("it is there before it runs");
                election.stop().unwrap();
                drop(election);
                told.send(()).unwrap();
            })
            .build()
            .unwrap();
        let mut place = slot.lock();
        election.run().unwrap();
        *place = Some(election);
        drop(place);
        tells.recv_timeout(LONG).expect("it stopped itself");
        assert!(client.try_lock("job").unwrap().is_some());
    });
}

#[test]
fn trouble_with_the_store_does_not_end_the_standing() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let election = client.connect().unwrap().election("job").lease(6 * SECOND).build().unwrap();
        // The store refuses, then it does not answer, then there is a bug.
        faults.next(Call::Acquire, Fault::Refuse);
        faults.next(Call::Acquire, Fault::FailBefore);
        faults.next(Call::Acquire, Fault::Panic);
        election.run().unwrap();
        wait_until("it leads", || election.is_leader());
        assert_eq!(faults.count(Call::Acquire), 4);
        assert_eq!(election.terms(), 1);
        // A caller of `campaign` gets the error.
        drop(election);
        let (client, faults) = store.faulty();
        faults.next(Call::Acquire, Fault::Refuse);
        let error = client.connect().unwrap().election("job").build().unwrap().campaign().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission);
    });
}

/// A third of this lease would be twenty minutes.
#[test]
fn a_node_with_a_long_lease_campaigns_again_soon_after_an_error() {
    let store = crate::support::harness::Store::memory();
    let election = store.builder().connect().unwrap().election("job").lease(60 * MINUTE).build().unwrap();
    store.plan.next(Call::Acquire, Fault::Refuse);
    election.run().unwrap();
    wait_until("it leads", || election.is_leader());
}

#[test]
fn all_of_it_works_inside_an_async_task() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    on_every_store(|store| {
        let client = store.client();
        runtime.block_on(async {
            let (election, tells) = node(&client, "a");
            let election = election.build().unwrap();
            let leadership = election.campaign().unwrap();
            assert_eq!(won(&tells), leadership.fencing_token());
            drop(leadership);
            election.lead(|leadership| drop(leadership.loss().wait())).unwrap();
            assert_eq!(lost(&tells).1, "resigned");
            won(&tells);
            assert!(election.leader().unwrap().is_some());
            election.stop().unwrap();
            drop(election);
        });
    });
}

#[test]
fn a_name_that_no_lock_can_have_is_refused() {
    on_every_store(|store| {
        let client = store.client();
        for name in ["", "a\u{1}b", &"x".repeat(1025)] {
            let error = client.election(name).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        let error = client.election("job").max_hold(Duration::ZERO).build().unwrap_err();
        assert!(error.to_string().contains("max_hold is 0ns"), "{error}");
        let client = store.builder().heartbeat(Duration::from_secs(5)).connect().unwrap();
        let error = client.election("job").lease(SECOND).build().unwrap_err();
        assert!(error.to_string().contains("heartbeat is 5s"), "{error}");
    });
}

/// A plain lock of the same name excludes a leader, and is shown as one.
#[test]
fn an_election_is_a_lock_of_its_name() {
    on_every_store(|store| {
        let client = store.client();
        let guard = client.request("job").owner("a lock").lock().unwrap();
        let election = client.election("job").build().unwrap();
        assert_eq!(election.leader().unwrap().unwrap().id(), "a lock");
        election.run().unwrap();
        wait_until("it campaigns", || election.iterations() > 1);
        assert!(!election.is_leader());
        drop(guard);
        wait_until("it leads", || election.is_leader());
        assert!(client.try_lock("job").unwrap().is_none());
        election.stop().unwrap();
        // Shared holders are no leaders.
        let _shared = client.lock_shared("job").unwrap();
        assert_eq!(election.leader().unwrap(), None);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_left_when_it_is_over() {
    alone("ends::nothing_is_left_when_it_is_over", || {
        let store = crate::support::harness::Store::memory();
        let client = store.builder().connect().unwrap();
        let (election, tells) = node(&client, "a");
        let election = election.health_check(|| true).build().unwrap();
        election.lead(|leadership| drop(leadership.loss().wait())).unwrap();
        won(&tells);
        election.stop().unwrap();
        // The closure's thread has reported its end, but may not have ended yet.
        let leads = || crate::support::threads::ours().iter().any(|name| name.starts_with("leasehold-lead"));
        wait_until("the closure's thread has ended", || !leads());
        drop(election);
        let leadership = client.election("job").health_check(|| true).build().unwrap().campaign().unwrap();
        drop(leadership);
        client.close().unwrap();
        drop(client);
        crate::support::threads::none_soon();
    });
}

#[cfg(target_os = "linux")]
crate::support::harness::on_each_local! { alone: in_a_forked_child_all_of_it_is_dead,; }

#[cfg(target_os = "linux")]
fn in_a_forked_child_all_of_it_is_dead(store: crate::support::harness::Store) {
    // Longer than the child lives, so that a wait for a thread of the parent's would be noticed.
    let client = store.builder().request_timeout(60 * MINUTE).drop_timeout(60 * MINUTE).connect().unwrap();
    let (runs, tells) = node(&client, "runs");
    let runs = runs.health_check(|| true).build().unwrap();
    runs.lead(|leadership| drop(leadership.loss().wait())).unwrap();
    let token = won(&tells);
    let gives = client.election("other").build().unwrap();
    let (kept, given) = (gives.campaign().unwrap(), client.election("third").build().unwrap());
    let third = given.campaign().unwrap();
    match crate::support::process::fork() {
        nix::unistd::ForkResult::Child => {
            nix::unistd::alarm::set(30);
            let body = std::panic::AssertUnwindSafe(move || {
                let closed = |kind: ErrorKind| assert_eq!(kind, ErrorKind::Closed);
                assert!(!runs.is_leader() && !runs.is_standing() && !kept.is_leader());
                assert_eq!((runs.fencing_token(), kept.remaining()), (None, Duration::ZERO));
                closed(runs.run().unwrap_err().kind());
                closed(gives.campaign().unwrap_err().kind());
                closed(runs.leader().unwrap_err().kind());
                closed(runs.stop().unwrap_err().kind());
                closed(kept.resign().unwrap_err().kind());
                assert_eq!(runs.terms(), 1);
                assert!(third.loss().wait().is_none());
                runs.wait();
                let _ = format!("{runs:?} {third:?}");
                drop((runs, gives, given, third, client));
            });
            std::process::exit(i32::from(std::panic::catch_unwind(body).is_err()));
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)), "{}: {status:?}", store.name);
            assert!(runs.fencing_token() == Some(token) && kept.is_leader() && third.is_leader());
            runs.stop().unwrap();
            kept.resign().unwrap();
        }
    }
}
