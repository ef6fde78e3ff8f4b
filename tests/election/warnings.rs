//! Warnings in the log: only about what no caller learns otherwise.

use leasehold::ErrorKind;
use leasehold::internals::store::fault::{Call, Fault};

use crate::support::logs;
use crate::*;

/// Whether there is a warning with this text about the election of this name.
fn warned(of: &str, name: &str) -> bool {
    logs::kept(&format!("{name:?}")).iter().any(|line| line.contains(of))
}

/// A name that no other store's test has, because all share one log.
fn named(store: &Opened, what: &str) -> String {
    logs::keep();
    format!("{what} of {}", store.store.info().label)
}

#[test]
fn a_resignation_that_fails_is_warned_of_where_nobody_waits_for_it() {
    on_every_store(|store| {
        for by in ["stop", "closure", "close"] {
            let name = named(store, by);
            let (client, faults) = store.faulty();
            let client = client.drop_timeout(SECOND).connect().unwrap();
            let a = Arc::new(client.election(&name).build().unwrap());
            let (own, (stops, stopped)) = (Arc::downgrade(&a), crossbeam_channel::bounded(1));
            a.lead(move |leadership| {
                // A stop by the closure itself can't wait for the end of the closure.
                if stopped.recv().unwrap() {
                    own.upgrade().unwrap().stop().unwrap();
                }
                leadership.loss().wait();
            })
            .unwrap();
            wait_until("it leads", || a.is_leader());
            faults.always(Call::Release, Fault::FailBefore);
            stops.send(by == "closure").unwrap();
            match by {
                "stop" => {
                    a.stop().unwrap_err();
                    assert!(!warned("could not resign", &name), "its caller was told");
                }
                "closure" => wait_until("it is warned of", || warned("could not resign", &name)),
                _ => {
                    let _ = client.close();
                    wait_until("it is warned of", || warned("could not resign", &name));
                }
            }
        }
    });
}

/// A reader of the warning must know whether two nodes may work at the same time.
#[test]
fn work_that_goes_on_after_its_term_is_warned_of() {
    const MAY_LEAD: &str = "another node may lead already";
    let ways = [("lost", MAY_LEAD), ("closed", MAY_LEAD), ("stopped", "until it ends no other node leads")];
    on_every_store(|store| {
        for (way, told) in ways {
            let (name, client) = (named(store, way), store.eager());
            // The first warning comes a lease after the term's end. On a busy machine the lease must not run out until
            // then.
            let lease = if way == "stopped" { SECOND * 6 } else { SECOND * 3 };
            let election = client.election(&name).lease(lease).stand_again(false);
            let a = Arc::new(election.build().unwrap());
            let (own, of_work, (ends, go_on)) =
                (Arc::downgrade(&a), client.clone(), crossbeam_channel::bounded::<()>(0));
            a.lead(move |leadership| {
                match way {
                    "lost" => drop(leadership.loss().wait()),
                    // The guard reports no loss, but is not held any more either.
                    "closed" => drop(of_work.close()),
                    _ => own.upgrade().unwrap().stop().unwrap(),
                }
                let _ = go_on.recv();
            })
            .unwrap();
            wait_until("it leads", || a.terms() == 1);
            if way == "lost" {
                store.client().force_release(&name).unwrap();
            }
            wait_until("it is warned of", || warned(told, &name));
            if way == "stopped" {
                store.client().force_release(&name).unwrap();
                wait_until("it is warned of again", || warned(MAY_LEAD, &name));
            }
            drop(ends);
            a.wait();
        }
    });
}

/// The release times out a twentieth of its time before the stop, and then is tried again.
#[test]
fn a_stop_tells_of_a_store_that_does_not_answer_and_of_no_thread() {
    on_every_store(|store| {
        let told = |with_work, bound| {
            let (client, faults) = store.faulty();
            let client = client.drop_timeout(bound).connect().unwrap();
            let election = client.election("job").build().unwrap();
            if with_work {
                election.lead(|leadership| drop(leadership.loss().wait())).unwrap();
            } else {
                election.run().unwrap();
            }
            wait_until("it leads", || election.is_leader());
            faults.always(Call::Release, Fault::HangBefore);
            let error = election.stop().unwrap_err();
            faults.heal();
            let _ = client.close();
            store.outlast(MINUTE);
            error.kind()
        };
        for with_work in [false, true] {
            // A busy machine may take as long as the bound by itself.
            let mut kinds = [2, 4, 8, 16].into_iter().map(|bound| told(with_work, bound * SECOND));
            let in_time = kinds.find(|kind| *kind != ErrorKind::TimedOut);
            assert!(matches!(in_time, Some(ErrorKind::Ambiguous | ErrorKind::Store)), "{in_time:?}");
        }
    });
}

#[test]
fn a_stop_while_it_waits_is_no_trouble() {
    on_every_store(|store| {
        for by_close in [false, true] {
            let name = named(store, if by_close { "closed" } else { "stopped" });
            let _held = store.client().lock(&name).unwrap();
            let client = store.client();
            let a = client.election(&name).build().unwrap();
            a.run().unwrap();
            wait_until("it asks", || a.iterations() > 0);
            if by_close { client.close() } else { a.stop() }.unwrap();
            a.wait();
            assert!(!warned("could not campaign", &name));
        }
    });
}
