//! Requests that arrive after their sender gave them up.

use super::*;
use crate::support::proxy::Flow;

impl<Room> Behind<Room> {
    /// How late the next write is: the later, the more often it was too early for a busy machine. Always less than ten
    /// seconds, after which PostgreSQL would stop a late acquire by the time alone.
    fn late(&self, times: u32) -> (Network, Duration) {
        let most = 3 * LATE;
        match self.kind.late {
            Network::Late(time) => (Network::Late((times * time).min(most)), (times * time).min(most)),
            Network::CutLate(time) => (Network::CutLate((times * time).min(most)), (times * time).min(most)),
            other => panic!("{other:?}"),
        }
    }

    /// An acquire that gets no answer. Returns when it was sent, and when it arrives at the earliest.
    fn acquires_late(&self, attempt: &mut Attempt, times: u32) -> (Instant, Instant) {
        let (network, time) = self.late(times);
        self.fault(network);
        let mut began = Instant::now();
        let answer = sent(|| {
            began = Instant::now();
            self.store.acquire(attempt, &by_in(network))
        });
        assert!(matches!(answer, Acquired::Unknown(_)), "{}: {answer:?}", attempt.key);
        (began, began + time)
    }
}

/// Runs `step`, which returns whether it was done before the late request arrived, with ever later requests.
pub fn in_time(step: impl Fn(u32) -> bool) {
    assert!([1, 2, 4].into_iter().any(step), "it came first each time");
}

pub fn a_release_that_is_late_frees_nobody_else<R>(at: &Behind<R>) {
    in_time(|times| {
        let mut a = exclusive(&*at.store, &format!("late release {times}"));
        granted(&*at.store, &mut a);
        let (network, time) = at.late(times);
        at.fault(network);
        let mut began = Instant::now();
        let late = sent(|| {
            began = Instant::now();
            at.store.release(&mut a, Purpose::Release, &by_in(network))
        });
        assert!(matches!(late, Released::Unknown(_)), "{late:?}");
        let released = release(&*at.store, &mut a);
        if began.elapsed() >= time {
            return false;
        }
        assert!(matches!(released, Released::Done), "{released:?}");
        let next = granted(&*at.beside, &mut exclusive(&*at.beside, &a.key));
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [next]);
        true
    });
}

pub fn a_transfer_that_is_given_up_leaves_nothing_however_late_it_comes<R>(at: &Behind<R>) {
    in_time(|times| {
        let mut a = exclusive(&*at.store, &format!("passed on {times}"));
        let old = granted(&*at.store, &mut a);
        let mut b = instead_of(&*at.store, &a.key, Mode::Exclusive, &old);
        let (_, arrives) = at.acquires_late(&mut b, times);
        sent(|| at.store.release(&mut b, Purpose::GiveUp, &soon()));
        if Instant::now() >= arrives {
            return false;
        }
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [old], "the old one stands");
        assert!(matches!(release(&*at.store, &mut a), Released::Done));
        assert_eq!(at.holders(&a.key), []);
        true
    });
}

/// A call that replaces holders of its owner was granted the key by another attempt, before the first was given up.
pub fn a_late_copy_replaces_no_later_grant_of_the_same_owner<R>(at: &Behind<R>) {
    in_time(|times| {
        let mut a = exclusive(&*at.store, &format!("replaced {times}"));
        let mut b = exclusive(&*at.store, &a.key);
        b.ask.labels = a.ask.labels.clone();
        for attempt in [&mut a, &mut b] {
            attempt.ask.replace_same_owner = true;
        }
        let (began, arrives) = at.acquires_late(&mut a, times);
        // DynamoDB's clients know the time to half a second. Only calls with a lease below 2 s, or for one of several
        // keys, may make another attempt sooner.
        wait_until("it is old", || began.elapsed() >= Duration::from_secs(1));
        let newer = at.settled(&mut b);
        if Instant::now() >= arrives {
            return false;
        }
        at.wait_for_late(&a.key);
        assert_eq!(at.holders(&a.key), [newer]);
        true
    });
}

/// The host stalled, or the network is slow: what is known of the server's time is old, by as long as the answers of
/// `proxy`, which are `late` for a while.
pub fn a_late_answer_makes_no_renewal_too_late(store: &dyn Backend, proxy: &Proxy, late: Duration) {
    // How long the holder waits.
    const WAIT: Duration = Duration::from_secs(3);
    let is_extended = |mode: Mode, nth: u32| {
        let mut a = attempt(store, &format!("{mode} {nth}"), mode);
        proxy.flow(Flow::Pass, Flow::Delay(late));
        let before = granted(store, &mut a).until;
        proxy.flow(Flow::Pass, Flow::Pass);
        let began = Instant::now();
        match store.renew(&mut a, renewal(Lease::For(10 * LEASE)), &Deadline::after(WAIT)) {
            // The server stalled for all of that time.
            Ok(Renewed::Unknown(_)) | Err(_) if began.elapsed() >= WAIT => false,
            answer => {
                assert!(matches!(answer, Ok(Renewed::Until { until, .. }) if until > before), "{answer:?}");
                true
            }
        }
    };
    for mode in MODES {
        assert!((0..5).any(|nth| is_extended(mode, nth)), "no answer in time, each time");
    }
}
