//! A session that stalls, as all sessions do when their server stalls: requests wait in its socket for longer than
//! their sender did.

use std::time::{Duration, Instant};

use leasehold::internals::lease::Lease;
use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Backend, Renewed, Schema};
use leasehold::internals::sys::deadline::Deadline;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::postgres::*;
use crate::support::lateness::{measure, slack};
use crate::support::own::Own;
use crate::support::postgres::{Rows, opened, sql_at, unless_late};
use crate::support::proxy::{Flow, Proxy};
use crate::support::servers::{postgres, postgres_server};
use crate::support::wait::wait_until;

const LEASE: Duration = Duration::from_secs(600);
/// How long the holder waits.
const SHORT: Duration = Duration::from_secs(3);

/// The holder has given up, so the renewal would keep the key locked for one more lease.
#[test]
fn a_renewal_that_was_given_up_prolongs_nothing() {
    let Some(server) = Own::start(&postgres::OWN) else { return };
    let config = server.url().parse().unwrap();
    for is_pooled in [false, true] {
        let named = "SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold'";
        let sessions =
            || -> Vec<String> { sql_at(&config, named).into_iter().map(|row| row[0].clone().unwrap()).collect() };
        // The sessions of the store before end by themselves, which may also happen between a look and a signal.
        wait_until("those before have ended", || sessions().is_empty());
        let options = PostgresOptions::new(server.url().parse().unwrap(), "public.leasehold").unwrap();
        let store = opened(if is_pooled { options.pooled().unwrap() } else { options });
        store.schema(Schema::Create, &soon()).unwrap();
        let mut a = exclusive(&store, &format!("pooled: {is_pooled}"));
        granted_anew(&store, &mut a);
        let select = format!("SELECT until FROM leasehold WHERE key = '{}'", a.key);
        let end = || sql_at(&config, &select);
        let before = end();
        let stopped = sessions();
        let signal = |signal| stopped.iter().for_each(|pid| kill(Pid::from_raw(pid.parse().unwrap()), signal).unwrap());
        signal(Signal::SIGSTOP);
        let stands = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
        wait_until("they stand still", || stopped.iter().all(stands));
        let answer = store.renew(&mut a, renewal(Lease::For(LEASE)), &Deadline::after(SHORT));
        assert!(matches!(answer, Ok(Renewed::Unknown(_))), "{answer:?}");
        signal(Signal::SIGCONT);
        wait_until("they did what was sent and ended", || sessions().iter().all(|pid| !stopped.contains(pid)));
        assert_eq!(end(), before, "pooled: {is_pooled}");
        // While a caller waits for the answer, a renewal is never too late, and neither is one of a lock as data.
        renewed_anew(&store, &mut a, LEASE);
        assert_ne!(end(), before, "pooled: {is_pooled}");
    }
}

#[test]
fn a_late_answer_makes_no_renewal_too_late() {
    needs_server!();
    let rows = Rows::fresh();
    let proxy = Proxy::raw(&postgres::host(&postgres_server().unwrap()).unwrap());
    let store = opened(rows.options_at(&proxy.addr().to_string()));
    crate::network::a_late_answer_makes_no_renewal_too_late(&store, &proxy, 2 * SHORT);
}

/// Otherwise the listener would be taken for one behind a pooler, and all waiters would poll for ten minutes.
#[test]
fn a_listener_that_stands_still_for_a_moment_is_told_again() {
    let Some(server) = Own::start(&postgres::OWN) else { return };
    let config = server.url().parse().unwrap();
    let proxy = Proxy::raw(&postgres::host(&server.url()).unwrap());
    let url = format!("postgres://leasehold@{}/postgres", proxy.addr());
    let store = opened(PostgresOptions::new(url.parse().unwrap(), "public.leasehold").unwrap());
    store.schema(Schema::Create, &soon()).unwrap();
    let wake = |keys: &[String]| {
        let (to, _told) = crossbeam_channel::unbounded();
        unless_late(|| store.wake(keys, to.clone(), &soon())).unwrap()
    };
    let told = || {
        let heard = proxy.heard().concat();
        heard.windows(9).filter(|bytes| bytes == b"pg_notify").count()
    };
    let pid = || {
        let listens = sql_at(&config, "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
        Some(Pid::from_raw(listens.first()?[0].clone()?.parse().unwrap()))
    };
    measure();
    // A machine that is slower than the network proves nothing.
    for _ in 0..10 {
        let before = told();
        proxy.flow(Flow::Delay(Duration::from_millis(200)), Flow::Pass);
        let is_proven = std::thread::scope(|scope| {
            let wakes = scope.spawn(|| wake(&["k".to_owned()]));
            // The session shows this only until it has heard itself, which may be over before anybody looks.
            let mut listens = None;
            wait_until("it listens, or has begun to", || {
                listens = pid();
                listens.is_some() || wakes.is_finished()
            });
            let Some(listens) = listens.filter(|pid| kill(*pid, Signal::SIGSTOP).is_ok()) else {
                wakes.join().unwrap();
                return false;
            };
            wait_until("it is told again, or not at all", || told() > before + 1 || wakes.is_finished());
            // The session ends if its store has left it.
            let _ = kill(listens, Signal::SIGCONT);
            let (again, since) = (told() > before + 1, Instant::now());
            let tells = wakes.join().unwrap();
            // A listener that stalled for as long as it waits proves nothing either.
            assert!(tells || (again && slack(since) > Duration::from_millis(500)), "it says that it tells nothing");
            again && tells
        });
        if is_proven {
            return;
        }
        proxy.flow(Flow::Pass, Flow::Pass);
        assert!(wake(&[]));
        wait_until("nobody listens", || pid().is_none());
    }
    panic!("it was never stopped before it was told");
}
