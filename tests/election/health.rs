//! What makes a leader resign: its health check, and `max_hold`.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crossbeam_channel::bounded;

use crate::*;

/// Does not run out on a busy machine: each leader here resigns. A check that hangs is noticed within twice this time.
const LEASE: Duration = Duration::from_secs(8);

const WELL: u8 = 0;
const ILL: u8 = 1;
const HANGS: u8 = 2;
const PANICS: u8 = 3;

#[test]
fn a_node_that_is_not_healthy_resigns_and_does_not_stand() {
    on_every_store(|store| {
        let state = Arc::new(AtomicU8::new(ILL));
        let (asked, (cure, cured)) = (state.clone(), crossbeam_channel::unbounded::<()>());
        let checks = Arc::new(AtomicUsize::new(0));
        let count = checks.clone();
        let check = move || {
            count.fetch_add(1, Ordering::SeqCst);
            match asked.load(Ordering::SeqCst) {
                WELL => true,
                HANGS => cured.recv().is_ok(),
                PANICS => panic!("a check that panics says no"),
                _ => false,
            }
        };
        let (a, tells) = node(&store.eager(), "a");
        let a = a.lease(LEASE).health_check(check).build().unwrap();
        a.run().unwrap();
        // By then the first answer was taken into account.
        wait_until("it is asked again", || checks.load(Ordering::SeqCst) > 1);
        assert_eq!((a.terms(), a.iterations()), (0, 0), "it stands while it is ill");
        let mut last = 0;
        for ill in [ILL, HANGS, PANICS] {
            state.store(WELL, Ordering::SeqCst);
            let token = won(&tells);
            assert!(token > last);
            last = token;
            state.store(ill, Ordering::SeqCst);
            let why = if ill == HANGS { "the health check hangs" } else { "the node is not healthy" };
            assert_eq!(lost(&tells), (token, format!("resigned, as {why}")));
            // It is not a loss, so others can have the lock at once.
            let rival = store.client();
            wait_until("the leader's lock is free", || rival.try_lock("job").unwrap().is_some());
            assert!(!a.is_leader() && a.terms() == u64::from(ill));
            if ill == HANGS {
                // Before the hanging check returns, so that the next one says that the node is healthy.
                state.store(WELL, Ordering::SeqCst);
                cure.send(()).unwrap();
            }
        }
    });
}

#[test]
fn a_leadership_from_campaign_is_resigned_by_the_health_check_too() {
    on_every_store(|store| {
        let state = Arc::new(AtomicU8::new(WELL));
        let asked = state.clone();
        let (a, tells) = node(&store.eager(), "a");
        let a = a.lease(LEASE).health_check(move || asked.load(Ordering::SeqCst) == WELL).build().unwrap();
        let leadership = a.campaign().unwrap();
        state.store(ILL, Ordering::SeqCst);
        assert!(leadership.loss().wait_timeout(LONG).is_none() && !leadership.is_leader());
        assert_eq!(
            (won(&tells), lost(&tells).1.as_str()),
            (leadership.fencing_token(), "resigned, as the node is not healthy")
        );
        let rival = store.client();
        wait_until("the leader's lock is free", || rival.try_lock("job").unwrap().is_some());
        assert_eq!(leadership.resign().unwrap_err().kind(), leasehold::ErrorKind::Lost);
    });
}

#[test]
fn a_leader_that_is_not_renewed_any_more_gives_others_their_turn() {
    on_every_store(|store| {
        // After its term it lets others go first for as long as its own poll may take: longer than any server here is
        // silent.
        let (a, a_tells) = node(&store.builder().poll(ms(1)..=MINUTE).connect().unwrap(), "a");
        let (b, b_tells) = node(&store.client(), "b");
        let a = a.max_hold(MINUTE / 2).build().unwrap();
        let b = b.build().unwrap();
        a.run().unwrap();
        let token = won(&a_tells);
        b.run().unwrap();
        assert_eq!(next(&b_tells), Told::Leader("a".into(), token));
        store.advance(MINUTE / 2);
        let (old, end) = lost(&a_tells);
        assert!(old == token && end.starts_with("lost: held for as long as max_hold allows"), "{end}");
        assert!(won(&b_tells) > token, "it goes first");
        assert_eq!(b.leader().unwrap().unwrap().id(), "b");
    });
}

#[test]
fn a_closure_hears_that_its_node_is_ill() {
    on_every_store(|store| {
        let state = Arc::new(AtomicU8::new(WELL));
        let asked = state.clone();
        let (a, tells) = node(&store.eager(), "a");
        let a = a.lease(LEASE).health_check(move || asked.load(Ordering::SeqCst) == WELL).build().unwrap();
        let (told, hears) = bounded(1);
        a.lead(move |leadership| told.send(leadership.loss().wait().is_none()).unwrap()).unwrap();
        let token = won(&tells);
        state.store(ILL, Ordering::SeqCst);
        assert!(hears.recv_timeout(LONG).unwrap());
        assert_eq!(lost(&tells).0, token);
    });
}

#[test]
fn a_leadership_from_campaign_is_resigned_when_the_health_check_hangs() {
    on_every_store(|store| {
        let state = Arc::new(AtomicU8::new(WELL));
        let (asked, (cure, cured)) = (state.clone(), bounded::<()>(0));
        let (a, tells) = node(&store.eager(), "a");
        let check = move || asked.load(Ordering::SeqCst) == WELL || cured.recv().is_ok();
        let a = a.lease(LEASE).health_check(check).build().unwrap();
        let leadership = a.campaign().unwrap();
        state.store(HANGS, Ordering::SeqCst);
        assert!(leadership.loss().wait_timeout(LONG).is_none() && !leadership.is_leader());
        assert_eq!(
            (won(&tells), lost(&tells).1.as_str()),
            (leadership.fencing_token(), "resigned, as the health check hangs")
        );
        drop(cure);
    });
}

#[test]
fn a_campaign_waits_until_its_node_is_fit_to_lead() {
    on_every_store(|store| {
        let mut asked = 0;
        let check = move || {
            asked += 1;
            asked > 2
        };
        let a = store.eager().election("job").lease(LEASE).health_check(check).build().unwrap();
        assert!(a.campaign().unwrap().is_leader());
    });
}
