//! Leases: unanswered calls, and writes that arrive late.

use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::{Consistency, Swapped, Which};
use leasehold::{Error, ErrorKind, Leases};

use crate::api::leases::{HOUR, found, leases};
use crate::api::{LONG, MINUTE, confirms, connected, on_every_store, wait_until};
use crate::support::bench::builder_over;
use crate::support::between::{Between, When};
use crate::support::stores::soon;

/// A purge deletes the row, for example: the next row counts its changes anew.
#[test]
fn a_pin_that_was_decided_before_its_row_was_deleted_replaces_none_that_came_after_it() {
    on_every_store(|store| {
        let (rows, others) = (store.store.clone(), leases(store));
        let between = Between::new(store.store.clone());
        let ours = builder_over(Arc::new(between.clone()), store.clock.clone()).connect().unwrap().leases("space");
        others.pin("app", "first").unwrap();
        between.next(When::BeforeSwap, move || {
            others.unpin("app", "first").unwrap();
            let which = Which::Key("\u{1}space\u{1}app".to_owned());
            let row = rows.read(&which, None, Consistency::Strong, &soon()).unwrap().records.remove(0);
            assert!(row.record.exists() && matches!(rows.swap(&row, None, &soon()), Ok(Swapped::Done)));
            others.pin("app", "theirs").unwrap();
        });
        ours.pin("app", "ours").unwrap();
        assert_eq!(ours.pinned_by("app").unwrap(), ["ours", "theirs"].map(str::to_owned).into());
    });
}

/// A swap that was not answered arrives after the client looked for its effect, and makes the next swap fail.
#[test]
fn what_a_claim_answers_is_what_stands_in_the_store() {
    on_every_store(|store| {
        let (between, faults) = (Between::new(store.store.clone()), FaultPlan::default());
        between.hold_back();
        faults.next(Call::Swap, Fault::ApplyThenFail);
        faults.next(Call::Swap, Fault::ApplyThenFail);
        let faulty = Arc::new(Faulty::new(Arc::new(between.clone()), faults));
        let leases = builder_over(faulty, store.clock.clone()).connect().unwrap().leases("space");
        let claimed = leases.claim("app", "unit/0", MINUTE).unwrap();
        assert_eq!(between.swapped().len(), 2 + confirms(store));
        let stands = leases.get("app").unwrap().unwrap();
        assert_eq!(claimed.fencing_token(), stands.fencing_token());
    });
}

/// The error kind `Closed` alone would say that nothing was asked for.
#[test]
fn what_a_close_cuts_off_may_be_done_and_says_so() {
    on_every_store(|store| {
        let faults = FaultPlan::default();
        let faulty = Arc::new(Faulty::new(store.store.clone(), faults.clone()));
        let client = builder_over(faulty, store.clock.clone()).request_timeout(LONG).connect().unwrap();
        let held = client.request("k").lease(HOUR).acquire().unwrap();
        let (leases, others) = (client.leases("space"), store.client().leases("space"));
        faults.always(Call::Swap, Fault::ApplyThenHang);
        std::thread::scope(|scope| {
            let claims = scope.spawn(|| leases.claim("app", "unit/0", MINUTE).map(drop));
            wait_until("it is asked for", || faults.count(Call::Swap) > 0);
            wait_until("it stands", || others.get("app").unwrap().is_some());
            faults.always(Call::Release, Fault::ApplyThenHang);
            let releases = scope.spawn(|| client.release(&held));
            wait_until("it is released", || store.record("k").exclusive.is_none());
            client.close().unwrap();
            for call in [claims, releases] {
                let error = call.join().unwrap().unwrap_err();
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Ambiguous, false), "{error}");
            }
        });
    });
}

/// A caller that got no answer may do the opposite next, and relies on the answer to that.
#[test]
fn what_was_not_answered_never_arrives_behind_its_opposite() {
    type Does = fn(&Leases) -> Result<(), Error>;
    let pin: Does = |leases| leases.pin("app", "upgrade");
    let unpin: Does = |leases| leases.unpin("app", "upgrade");
    let claim: Does = |leases| leases.claim("app", "unit/0", HOUR).map(drop);
    let revoke: Does = |leases| leases.revoke("app", "unit/0");
    let extend: Does = |leases| leases.extend("app", "unit/0", MINUTE).map(drop);
    let nothing: Does = |_| Ok(());
    let claim_and_revoke: Does = |leases| {
        leases.claim("app", "unit/0", HOUR)?;
        leases.revoke("app", "unit/0")
    };
    let is_free: Does = |leases| if found(leases.revoke("app", "unit/0")).is_none() { Ok(()) } else { panic!("held") };
    // Name, what was done long before, the call that gets no answer, and the opposite call that is relied on.
    let cases = [
        ("pin", pin, unpin, pin),
        ("unpin", nothing, pin, unpin),
        ("revoke of a new name", nothing, claim, is_free),
        ("revoke", claim_and_revoke, claim, is_free),
        ("extend", claim, revoke, extend),
    ];
    on_every_store(|store| {
        for (what, before, lost, relied_on) in cases {
            let space = format!("space of {what}");
            let (between, faults) = (Between::new(store.store.clone()), FaultPlan::default());
            let faulty = Arc::new(Faulty::new(Arc::new(between.clone()), faults.clone()));
            let builder = || builder_over(faulty.clone(), store.clock.clone()).request_timeout(Duration::from_secs(2));
            let later = Between::new(store.second.clone());
            let calm = builder_over(Arc::new(later.clone()), store.clock.clone()).connect().unwrap().leases(&space);
            let client = connected(builder);
            before(&calm).unwrap();
            let written = later.swapped().len();
            between.hold_back();
            faults.next(Call::Swap, Fault::ApplyThenFail);
            faults.always(Call::Swap, Fault::LostBefore);
            // On a busy machine the time of a call may be over before it has written anything.
            let mut errors = (0..20).map(|_| lost(&client.leases(&space)).unwrap_err());
            let error = errors.find(|_| faults.count(Call::Swap) > 0).expect("it comes to write");
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "{what}");
            relied_on(&calm).unwrap();
            assert_eq!(store.client().purge(Duration::ZERO).unwrap().deleted, 0, "{what}");
            // On Spanner only the commit can still be under way, and it has no effect once its row was written again.
            if store.store.info().label.starts_with("spanner") {
                assert_eq!(later.swapped().len(), written + 1, "{what}");
                continue;
            }
            let stood = (calm.get("app").unwrap().is_some(), calm.pinned_by("app").unwrap());
            assert!(!between.deliver(), "{what}");
            assert_eq!((calm.get("app").unwrap().is_some(), calm.pinned_by("app").unwrap()), stood, "{what}");
        }
    });
}
