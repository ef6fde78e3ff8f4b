//! A network that fails: what it can do between this store and its server, and what only this store does then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::internals::store::{Purpose, Released, Schema};
use leasehold::internals::sys::clock::Clock;

use crate::mongodb::*;
use crate::network::{Behind, Kind, LATE, MODES, Meanwhile, in_time};
use crate::support::bench::builder_over;
use crate::support::contract::{granted, release};
use crate::support::mongodb::{Rows, host};
use crate::support::proxy::{Mode as Network, Proxy, Rule};

fn behind() -> Behind<Rows> {
    let rows = Rows::fresh();
    let proxy = Proxy::mongodb(&host(&crate::support::servers::mongod().unwrap()));
    let uri = format!("mongodb://{}/?directConnection=true&serverMonitoringMode=poll", proxy.addr());
    let store = open(rows.options_at(&uri));
    store.schema(Schema::Check, &soon()).unwrap();
    let kind = Kind {
        write: "findAndModify",
        driver_repeats: true,
        // The session of a given-up acquire stops its late copies.
        remembers_who_gave_up: false,
        ends: &[Purpose::Release, Purpose::GiveUp],
        late: Network::Late(2 * LATE),
        given_up: &[(Network::Late(LATE), &MODES, Meanwhile::Nothing), (Network::Late(LATE), &MODES, Meanwhile::Held)],
    };
    Behind { proxy, store: Box::new(store), beside: Box::new(rows.open()), kind, room: rows }
}

crate::network::steps!(behind);

/// What would happen without that session. If nothing came back here, the test of the session would prove nothing.
#[test]
fn what_is_given_up_in_another_session_comes_back() {
    let at = needs_server!(behind());
    assert!((0..3).any(|nth| comes_back(&at, nth)), "it came before it was given up each time");
}

/// Returns `false` if a machine that stalled was too late to give it up before it arrived.
fn comes_back(at: &Behind<Rows>, nth: u32) -> bool {
    const VERY_LATE: Duration = Duration::from_millis(7_500);
    let key = format!("negative control {nth}");
    let mut a = exclusive(&*at.store, &key);
    at.fault(Network::Late(VERY_LATE));
    let began = Instant::now();
    at.unanswered(&mut a);
    let released = sent(|| at.store.release(&mut a.without_native(), Purpose::GiveUp, &soon()));
    if began.elapsed() >= VERY_LATE {
        return false;
    }
    assert!(matches!(released, Released::Free), "{released:?}");
    at.wait_for_late(&key);
    assert_eq!(at.holders(&key).len(), 1);
    true
}

/// A holder's time may lie ahead of the server's, as with mongo-lock, whose hosts write their own. Then a second copy
/// names that time, and replaces nobody else.
#[test]
fn a_late_second_copy_replaces_no_later_grant_of_the_same_owner() {
    let at = needs_server!(behind());
    in_time(|times| {
        let mut holds = exclusive(&*at.beside, &format!("ahead {times}"));
        granted(&*at.beside, &mut holds);
        at.room.grant_ahead(&holds.key);
        let [mut a, mut b] = [(); 2].map(|()| {
            let mut replaces = exclusive(&*at.store, &holds.key);
            (replaces.ask.labels, replaces.ask.replace_same_owner) = (holds.ask.labels.clone(), true);
            replaces
        });
        let began = Instant::now();
        at.proxy.add(Rule::next(1, Network::Late(times * LATE)).on("findAndModify").on(&a.key).after(1));
        at.unanswered(&mut a);
        let newer = at.settled(&mut b);
        if began.elapsed() >= times * LATE {
            return false;
        }
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [newer]);
        true
    });
}

/// The driver repeats an acquire under one number, and the server does not remember the number if it refused the
/// acquire.
#[test]
fn a_copy_of_an_acquire_whose_repeat_was_refused_is_granted_to_nobody() {
    let Behind { proxy, store, beside, room: _room, .. } = needs_server!(behind());
    let client = builder_over(Arc::from(store), Clock::system()).connect().unwrap();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let key = mode.to_string();
        let mut held = exclusive(&*beside, &key);
        granted(&*beside, &mut held);
        proxy.add(Rule::next(1, Network::CutHeld).on("findAndModify").on(&key));
        let request = client.request(&key);
        let request = if mode == Mode::Shared { request.shared() } else { request };
        assert!(request.try_lock().unwrap().is_none());
        assert!(proxy.clear().is_empty());
        release(&*beside, &mut held);
        assert_eq!(proxy.deliver(), 1, "{mode}");
        assert_eq!(holders(&*beside, &key), [], "{mode}");
    }
}

/// The driver looks up host names on a thread of its runtime. If no thread can be started, that must not end any of the
/// tasks that make its connections.
#[cfg(target_os = "linux")]
#[test]
fn connections_that_break_while_no_thread_can_be_started_are_made_again() {
    use leasehold::internals::store::{Acquired, Consistency};
    use leasehold::internals::sys::deadline::Deadline;
    use leasehold::mongodb::driver::event::EventHandler;
    use leasehold::mongodb::driver::event::sdam::SdamEvent;

    use crate::support::harness::PATIENCE;
    use crate::support::{alone::alone, threads, wait::wait_until};

    alone("mongodb::faults::connections_that_break_while_no_thread_can_be_started_are_made_again", || {
        let rows = needs_server!(Rows::fresh());
        let at = host(&crate::support::servers::mongod().unwrap()).replace("127.0.0.1", "localhost");
        let port: u16 = at.rsplit_once(':').map_or(27_017, |(_, port)| port.parse().unwrap());
        let (tell, told) = crossbeam_channel::unbounded();
        let store = open(rows.options_with(|options| {
            options.hosts = vec![at.parse().unwrap()];
            options.direct_connection = Some(true);
            options.sdam_event_handler = Some(EventHandler::callback(move |event| drop(tell.send(event))));
        }));
        // The runtime ends a look-up thread that had nothing to do for ten seconds.
        let opened = Instant::now();
        wait_until("those are over", || opened.elapsed() > Duration::from_secs(15));
        threads::no_new_threads();
        told.try_iter().for_each(drop);
        cut(port);
        let comes = |is_it: fn(&SdamEvent) -> bool| {
            while !is_it(&told.recv_timeout(PATIENCE).unwrap()) {}
        };
        comes(|event| matches!(event, SdamEvent::ServerHeartbeatFailed(_)));
        comes(|event| matches!(event, SdamEvent::ServerHeartbeatStarted(_)));
        // This call shows that the thread on which the driver goes on is free.
        let brief = Deadline::after(Duration::from_millis(300));
        drop(store.read(&Which::Key("k".to_owned()), None, Consistency::Strong, &brief));
        threads::threads_again();
        let mut a = exclusive(&store, "k");
        wait_until("it locks again", || {
            a.sends += 1;
            matches!(store.acquire(&mut a, &soon()), Ok(Acquired::Granted { .. }))
        });
    });
}

/// Ends all connections of this process to that port. A proxy would need a new thread for each new connection.
#[cfg(target_os = "linux")]
fn cut(port: u16) {
    use nix::sys::socket::{Shutdown, SockaddrIn, getpeername, shutdown};

    for socket in 0..1024 {
        if getpeername::<SockaddrIn>(socket).is_ok_and(|peer| peer.port() == port) {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}
