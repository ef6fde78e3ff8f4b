//! Each call that writes, under each fault: it fails before or after the write, hangs, is late or arrives twice.

use std::time::{Duration, Instant};

use leasehold::internals::lease::{End, Lease};
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::{Acquired, Backend as _, Purpose, Released, Renewed};
use leasehold::internals::sys::deadline::Deadline;
use leasehold::{ErrorKind, Result};

use crate::support::bench::builder_over;
use crate::support::contract::*;
use crate::support::harness::connected;
use crate::support::lateness::{Slowness, measure, slack};
use crate::support::stores::{Opened, Store};

const PATIENCE: Duration = Duration::from_millis(150);
/// How much longer than its deadline a call that hangs may take.
const HANG: Duration = Duration::from_secs(5);

fn faults() -> [Fault; 5] {
    [
        Fault::FailBefore,
        Fault::ApplyThenFail,
        Fault::ApplyThenHang,
        Fault::Delay(Duration::from_millis(20)),
        Fault::Twice,
    ]
}

/// A fault, and how slow the store is meanwhile, where that matters.
struct Case {
    fault: Fault,
    server: Option<Slowness>,
    /// A store of its own, in which the slowness is measured, so that nothing under test is in the way.
    _beside: Option<Opened>,
}

impl Case {
    fn new(store: &Store, fault: Fault) -> Case {
        if !matches!(fault, Fault::ApplyThenHang) {
            return Case { fault, server: None, _beside: None };
        }
        measure();
        let beside = (store.open)();
        let client = connected(|| builder_over(beside.store.clone(), beside.clock.clone()));
        Case { fault, server: Some(Slowness::of(client)), _beside: Some(beside) }
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.fault, f)
    }
}

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Answered,
    Unknown,
    Failed,
}

/// Makes the call, which meets this fault, and checks that it ended as it should.
fn suffer<T>(case: &Case, call: impl FnOnce(&Deadline) -> Result<T>, is_unknown: fn(&T) -> Option<ErrorKind>) -> Came {
    let (started, fault) = (Instant::now(), &case.fault);
    // A store that syncs its files takes its time. Only a call that hangs should use all of it.
    let patience = if matches!(fault, Fault::ApplyThenHang) { PATIENCE } else { Duration::from_secs(30) };
    let came = match call(&Deadline::after(patience)) {
        Ok(answer) => match is_unknown(&answer) {
            None => Came::Answered,
            Some(kind) => {
                assert_eq!(kind, ErrorKind::Ambiguous);
                Came::Unknown
            }
        },
        Err(error) => {
            assert!(error.is_retryable() && error.kind() == ErrorKind::Store, "{error:?}");
            Came::Failed
        }
    };
    let right = match fault {
        Fault::FailBefore => Came::Failed,
        Fault::ApplyThenFail | Fault::ApplyThenHang => Came::Unknown,
        _ => Came::Answered,
    };
    assert_eq!(came, right, "{fault:?}");
    if let Some(server) = &case.server {
        // The store carries out the write before it hangs, which takes a while if a server stalls.
        let (took, bound) = (started.elapsed(), PATIENCE + HANG + slack(started) + server.slack(started));
        assert!(took >= PATIENCE && took < bound, "{took:?}, not {bound:?}");
    }
    came
}

/// The kind of the error, if the answer is `Unknown`.
macro_rules! is_unknown {
    ($answer:ident) => {
        |answer: &$answer| match answer {
            $answer::Unknown(error) => Some(error.kind()),
            _ => None,
        }
    };
}

/// Runs `test` on an empty store for each fault, which the next call of this kind meets.
fn under_each_fault(store: &Store, call: Call, test: impl Fn(&Opened, &Faulty, &Case)) {
    for fault in faults() {
        let (at, case) = ((store.open)(), Case::new(store, fault.clone()));
        let plan = FaultPlan::default();
        plan.next(call, fault);
        test(&at, &Faulty::new(at.store.clone(), plan), &case);
    }
}

pub fn an_acquire_survives_every_fault(store: &Store) {
    under_each_fault(store, Call::Acquire, |at, faulty, fault| {
        let mut a = exclusive(at, "k");
        let came = suffer(fault, |by| faulty.acquire(&mut a, by), is_unknown!(Acquired));
        assert_eq!(at.record("k").exists(), came != Came::Failed, "{fault:?}: an error wrote nothing");
        let before = at.record("k");
        let (holder, repeated) = acquired(faulty, &mut a);
        assert_eq!(repeated, came != Came::Failed, "{fault:?}: the repeat finds itself");
        if repeated {
            assert_eq!(at.record("k"), before, "{fault:?}: the repeat changes nothing");
        }
        assert_eq!(at.holders("k"), std::slice::from_ref(&holder), "{fault:?}: one holder");
        assert_eq!(at.record("k").token, holder.token, "{fault:?}: one grant");
        refused(&*at.second, &mut exclusive(at, "k"));
    });
}

pub fn an_acquire_that_is_given_up_leaves_nothing(store: &Store) {
    under_each_fault(store, Call::Acquire, |at, faulty, fault| {
        let mut a = exclusive(at, "k");
        let came = suffer(fault, |by| faulty.acquire(&mut a, by), is_unknown!(Acquired));
        let released = give_up(faulty, &mut a);
        assert_eq!(matches!(released, Released::Done), came != Came::Failed, "{fault:?}: {released:?}");
        assert_eq!(at.holders("k"), []);
        let earlier = at.record("k").token;
        assert!(granted(&*at.second, &mut exclusive(at, "k")).token > earlier);
        if store.remembers_who_gave_up {
            refused(faulty, &mut a);
        }
    });
}

pub fn a_renewal_survives_every_fault(store: &Store) {
    under_each_fault(store, Call::Renew, |at, faulty, fault| {
        let mut a = exclusive(at, "k");
        let holder = granted(faulty, &mut a);
        let longer = renewal(Lease::For(2 * LEASE));
        let came = suffer(fault, |by| faulty.renew(&mut a, longer, by), is_unknown!(Renewed));
        let first = at.holders("k")[0].until;
        assert_eq!(first > holder.until, came != Came::Failed, "{fault:?}: an error wrote nothing");
        let end = renewed(faulty, &mut a, longer);
        assert!(end >= first && end > holder.until, "{fault:?}: the repeat extends");
        let after = at.holders("k");
        assert_eq!((after.len(), after[0].until, after[0].token), (1, end, holder.token), "{fault:?}");
        let endless = renewed(faulty, &mut a, renewal(Lease::Forever));
        assert_eq!(endless, End::Never);
    });
}

pub fn a_release_survives_every_fault(store: &Store) {
    under_each_fault(store, Call::Release, |at, faulty, fault| {
        let mut a = shared(at, "k");
        granted(faulty, &mut a);
        let other = granted(&*at.second, &mut shared(at, "k"));
        let came = suffer(fault, |by| faulty.release(&mut a, Purpose::Release, by), is_unknown!(Released));
        assert_eq!(at.holders("k").len(), if came == Came::Failed { 2 } else { 1 });
        let again = release(faulty, &mut a);
        match came {
            Came::Failed => assert!(matches!(again, Released::Done), "{fault:?}: {again:?}"),
            _ => assert!(matches!(again, Released::HeldByOther(_)), "{fault:?}: {again:?}"),
        }
        assert_eq!((at.holders("k"), at.record("k").token), (vec![other.clone()], other.token), "{fault:?}");
        lost(faulty, &mut a);
    });
}

pub fn a_transfer_survives_every_fault(store: &Store) {
    under_each_fault(store, Call::Acquire, |at, faulty, fault| {
        let mut a = exclusive(at, "k");
        let old = granted(&*at.store, &mut a);
        let mut b = instead_of(at, "k", &old);
        let came = suffer(fault, |by| faulty.acquire(&mut b, by), is_unknown!(Acquired));
        let standing = at.holders("k");
        assert_eq!(standing.len(), 1, "{fault:?}: never a gap, never two");
        assert_eq!(standing[0] == old, came == Came::Failed, "{fault:?}");
        let (new, repeated) = acquired(faulty, &mut b);
        assert_eq!(repeated, came != Came::Failed, "{fault:?}: the repeat finds itself");
        assert_eq!(at.holders("k"), std::slice::from_ref(&new));
        assert!(new.token > old.token && at.record("k").token == new.token, "{fault:?}: one grant");
        lost(&*at.second, &mut a);
    });
}

/// The new one is given up, then the old one is released.
pub fn a_transfer_that_is_given_up_leaves_nothing(store: &Store) {
    under_each_fault(store, Call::Acquire, |at, faulty, fault| {
        let mut a = exclusive(at, "k");
        let old = granted(&*at.store, &mut a);
        let mut b = instead_of(at, "k", &old);
        suffer(fault, |by| faulty.acquire(&mut b, by), is_unknown!(Acquired));
        give_up(faulty, &mut b);
        release(faulty, &mut a);
        assert_eq!(at.holders("k"), [], "{fault:?}");
        granted(&*at.second, &mut exclusive(at, "k"));
    });
}

pub fn giving_up_survives_every_fault(store: &Store) {
    under_each_fault(store, Call::Release, |at, faulty, fault| {
        let mut a = exclusive(at, "k");
        granted(faulty, &mut a);
        let came = suffer(fault, |by| faulty.release(&mut a, Purpose::GiveUp, by), is_unknown!(Released));
        assert_eq!(at.holders("k").len(), usize::from(came == Came::Failed), "{fault:?}");
        let again = give_up(faulty, &mut a);
        assert_eq!(matches!(again, Released::Done), came == Came::Failed, "{fault:?}: {again:?}");
        assert_eq!(at.holders("k"), [], "{fault:?}");
        if store.remembers_who_gave_up {
            refused(faulty, &mut a);
        }
        granted(&*at.second, &mut exclusive(at, "k"));
    });
}
