//! No call outlives its deadline and no drop its bound while requests fail, are not answered or come too late: on every
//! store, with the fault switch in front of it.

use std::any::Any;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::bounds::{DROP, LONG, REQUEST, STALL};
use crate::support::bench::{Bench, Measured, builder_over, is_server};
use crate::support::harness::{PATIENCE, acquire_unanswered, connected, millis};
use crate::support::stores::{Store, unique};
use crate::support::wait::wait_until;
use leasehold::internals::in_users_code;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::{Filter, LockClient, LockGuard};

/// All faults that a store may show while it keeps its contract.
pub fn faults() -> [Fault; 5] {
    [Fault::FailBefore, Fault::ApplyThenHang, Fault::Delay(STALL), Fault::ApplyThenFail, Fault::HangBefore]
}

/// What the calls of a test have in common.
struct Setup {
    slack: Measured,
    /// A client whose requests meet no fault.
    rival: LockClient,
    bench: Bench,
    faults: Vec<Fault>,
}

impl Setup {
    fn on(store: &Store) -> Setup {
        let bench = Bench::on(store);
        // On a server only the first three: the request fails, it is not answered, or it comes too late.
        let faults = faults().into_iter().take(if is_server(&*bench.at.store) { 3 } else { 5 }).collect();
        Setup { slack: bench.at.measured(), rival: bench.rival(), bench, faults }
    }

    /// A client whose requests meet the faults of this plan.
    fn client(&self, plan: &FaultPlan) -> LockClient {
        let faulty = Arc::new(Faulty::new(self.bench.at.store.clone(), plan.clone()));
        connected(|| {
            let builder = builder_over(faulty.clone(), self.bench.clock.clone());
            builder.lease(LONG).request_timeout(REQUEST).drop_timeout(DROP)
        })
    }

    /// Runs `call` while all requests of this kind meet a fault, for each of the faults. These runs are concurrent,
    /// because they mostly wait.
    fn under_each_fault(&self, kind: Call, bound: Duration, call: impl Fn(&LockClient) + Sync) {
        self.prepared_under_each_fault(kind, bound, |_| (), |(), client| call(client));
    }

    /// The same with a value for `call`, made by `prepare`. Making it does not count towards the bound.
    fn prepared_under_each_fault<T>(
        &self,
        kind: Call,
        bound: Duration,
        prepare: impl Fn(&LockClient) -> T + Sync,
        call: impl Fn(T, &LockClient) + Sync,
    ) {
        std::thread::scope(|scope| {
            for fault in &self.faults {
                let (prepare, call) = (&prepare, &call);
                let body = move || {
                    let plan = FaultPlan::default();
                    let client = self.client(&plan);
                    // On a busy machine the time may be over before any such request could be sent.
                    let is_met = (0..10).any(|_| {
                        let (prepared, before) = (prepare(&client), plan.count(kind));
                        plan.always(kind, fault.clone());
                        self.slack.within_among_many(bound, || call(prepared, &client));
                        plan.heal();
                        plan.count(kind) > before
                    });
                    assert!(is_met, "no such call was made");
                    // The close may cut off a request that still hangs, and leaves that to the next close.
                    self.slack.within_among_many(DROP, || drop(client.close()));
                    wait_until("nothing is left to give up", || client.close().is_ok());
                };
                // The name of the thread appears in the message of a failure.
                let thread = std::thread::Builder::new().name(format!("{kind:?} with {fault:?}"));
                thread.spawn_scoped(scope, body).expect("a thread");
            }
        });
    }
}

pub fn no_acquire_outlives_its_deadline(store: &Store) {
    let setup = Setup::on(store);
    setup.under_each_fault(Call::Acquire, REQUEST, |client| drop(client.try_lock(&unique())));
    setup.under_each_fault(Call::Acquire, REQUEST, |client| drop(client.request(&unique()).acquire()));
    let wait = 2 * REQUEST;
    setup.under_each_fault(Call::Acquire, wait, |client| drop(client.try_lock_for(&unique(), wait)));
    setup.under_each_fault(Call::Acquire, wait, |client| drop(client.request(&unique()).wait(wait).lock()));
}

/// A lease of more than a minute is set by a renewal that belongs to the acquisition.
pub fn no_first_renewal_outlives_its_deadline(store: &Store) {
    Setup::on(store).under_each_fault(Call::Renew, REQUEST, |client| drop(client.try_lock(&unique())));
}

pub fn no_call_with_a_lock_as_data_outlives_its_deadline(store: &Store) {
    let setup = Setup::on(store);
    let lock = |_: &LockClient| setup.rival.request(&unique()).acquire().expect("a lock");
    setup.prepared_under_each_fault(Call::Renew, REQUEST, lock, |lock, client| drop(client.heartbeat(&lock, LONG)));
    setup.prepared_under_each_fault(Call::Release, REQUEST, lock, |lock, client| drop(client.release(&lock)));
    setup.prepared_under_each_fault(Call::Acquire, REQUEST, lock, |lock, client| drop(client.adopt(lock)));
}

fn granted(client: &LockClient) -> LockGuard {
    client.request(&unique()).lease(millis(20_000)).lock().expect("a lock")
}

pub fn no_release_and_no_drop_outlives_its_bound(store: &Store) {
    let setup = Setup::on(store);
    setup.prepared_under_each_fault(Call::Release, DROP, granted, |guard, _| drop(guard));
    setup.prepared_under_each_fault(Call::Release, DROP, granted, |guard, _| {
        // A failed release gives the guard back. Dropping that would release again, with another bound.
        if let Err(failed) = guard.release() {
            drop(failed.into_guard().into_lock());
        }
    });
    // The close and the drop of the guard that was still held have a bound and slack each. The bound around both is so
    // long that neither reaches it.
    setup.prepared_under_each_fault(Call::Release, PATIENCE, granted, |guard, client| {
        setup.slack.within_among_many(DROP, || drop(client.close()));
        setup.slack.within_among_many(DROP, || drop(guard));
    });
}

/// A guard for whose lock another thread waits.
fn waited_for(client: &LockClient) -> LockGuard {
    let guard = granted(client);
    let (told, tells) = mpsc::channel();
    let request = client.request(guard.key()).on_wait(move |_| told.send(()).unwrap_or_default());
    let request = request.on_wait_every(PATIENCE);
    std::thread::spawn(move || request.lock().map(drop));
    tells.recv_timeout(PATIENCE).expect("it waits");
    // Before that, nothing is handed over to this waiter.
    wait_until("its callback has returned", || in_users_code(client, guard.key()) == 0);
    guard
}

/// The drop of a guard hands its lock over to the next waiter of this process.
pub fn no_hand_over_outlives_its_bound(store: &Store) {
    Setup::on(store).prepared_under_each_fault(Call::Acquire, DROP, waited_for, |guard, _| drop(guard));
}

/// The last handle drops the client, which still has something to give up.
pub fn the_last_drop_has_one_bound(store: &Store) {
    type Last = fn(&LockClient) -> Box<dyn Any>;
    let handles: [(&str, Last); 3] = [
        ("guard", |client| Box::new(client.lock(&unique()).expect("a lock"))),
        ("leadership", |client| {
            let election = client.election(&unique()).build().expect("an election");
            Box::new(election.campaign().expect("a term"))
        }),
        ("election", |client| {
            // The callback hangs, which takes all of the time.
            let (release, stuck) = mpsc::channel::<()>();
            let election = client.election(&unique()).on_won(move |_| stuck.recv().unwrap_or_default());
            let election = election.build().expect("an election");
            let _ = election.campaign().expect("a term").resign();
            Box::new((election, release))
        }),
    ];
    let setup = Setup::on(store);
    std::thread::scope(|scope| {
        for (what, handle) in handles {
            let setup = &setup;
            let body = move || {
                let plan = FaultPlan::default();
                let client = setup.client(&plan);
                let last = handle(&client);
                plan.always(Call::Release, Fault::HangBefore);
                acquire_unanswered(&plan, &client, &unique());
                drop(client);
                setup.slack.within_among_many(DROP, || drop(last));
            };
            std::thread::Builder::new().name(what.to_owned()).spawn_scoped(scope, body).expect("a thread");
        }
    });
}

/// Each purge that writes has a store of its own, because a purge takes whatever it finds.
pub fn no_look_and_no_purge_outlives_its_deadline(store: &Store) {
    let setup = Setup::on(store);
    setup.under_each_fault(Call::Read, REQUEST, |client| drop(client.get(&unique())));
    setup.under_each_fault(Call::Read, REQUEST, |client| drop(client.list(&Filter::new())));
    setup.under_each_fault(Call::Read, REQUEST, |client| drop(client.purge(Duration::ZERO)));
    std::thread::scope(|scope| {
        for fault in faults() {
            scope.spawn(move || {
                let setup = Setup { faults: vec![fault], ..Setup::on(store) };
                let expired = |_: &LockClient| {
                    let minute = Duration::from_secs(60);
                    setup.rival.request(&unique()).lease(minute).acquire().expect("a lock");
                    setup.bench.outlast(minute);
                };
                let purge = |(), client: &LockClient| drop(client.purge(Duration::ZERO));
                setup.prepared_under_each_fault(Call::Swap, REQUEST, expired, purge);
            });
        }
    });
}

pub fn no_call_on_several_locks_outlives_its_deadline(store: &Store) {
    let setup = Setup::on(store);
    // A new group of one each time, so what an earlier try left has no part in the bound.
    let held = |_: &LockClient| {
        let group = unique();
        setup.rival.request(&unique()).lock_id(&group).acquire().expect("a lock");
        group
    };
    for kind in [Call::Read, Call::Swap] {
        // One request for the group, then one for its only lock: each has the time of a request.
        setup.prepared_under_each_fault(kind, 2 * REQUEST, held, |group, client| drop(client.renew(&group, LONG)));
        setup.prepared_under_each_fault(kind, 2 * REQUEST, held, |group, client| drop(client.unlock(&group)));
    }
    let several = || [unique(), unique(), unique()];
    let wait = 2 * REQUEST;
    setup.under_each_fault(Call::Acquire, REQUEST, |client| drop(client.try_lock_any(several())));
    setup.under_each_fault(Call::Acquire, wait, |client| drop(client.request_any(several()).wait(wait).lock()));
    let taken =
        |_: &LockClient| several().map(|key| setup.rival.request(&key).acquire().expect("a lock").key().to_owned());
    setup.prepared_under_each_fault(Call::Read, wait, taken, |keys, client| {
        drop(client.request_any(keys).wait(wait).lock());
    });
}

/// As on a machine that stalls. Such a wait must not be treated as a call that tries once, which has the time of a
/// request.
#[test]
fn a_wait_that_is_over_before_anything_was_asked_has_no_time() {
    let bench = Bench::new();
    let client = bench.client();
    bench.faults.next(Call::Acquire, Fault::ApplyThenHang);
    let answer = client.try_lock_for("k", Duration::from_nanos(1));
    assert!(!matches!(answer, Ok(Some(_))), "it was asked for again after half of a request's time");
    bench.faults.next(Call::Acquire, Fault::ApplyThenHang);
    assert!(client.request("l").wait(Duration::from_nanos(1)).lock().is_err());
}
