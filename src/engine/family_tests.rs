//! A close at the same time as a grant, and what a family remembers of what it must end first.

use super::*;
use crate::engine::orders::{LEASE, spec};
use crate::engine::spec::Chain;
use crate::store::memory::Memory;
use crate::store::{Acquired, read_key};

struct Nothing;

impl EndsFirst for Nothing {
    fn ask_to_end(&self, _: Instant) {}
    fn wait_for_end(&self, _: Instant) {}
}

#[test]
fn a_grant_of_which_a_close_leaves_no_guard_is_freed_at_once() {
    let clock = Clock::system();
    let store = Arc::new(Memory::open("", clock.clone()));
    let family = Family::new(store.clone(), clock.clone(), ClientOptions::default());
    let (by, sent) = (Deadline::after(Duration::from_secs(60)), clock.now());
    let mut spec = spec();
    spec.terms.at_least = 2 * LEASE;
    let mut attempt = spec.attempt(store.info().grant_form.fresh(), 2 * LEASE);
    attempt.sends = 1;
    let Ok(Acquired::Granted { holder, now, .. }) = store.acquire(&mut attempt, &by) else { panic!("it is free") };
    let held_until = spec.terms.held_until(spec.terms.lease, sent, holder.until, now);
    let chain = Chain { times: 0, since: sent };
    let granted = Granted { attempt, holder, now, wall: std::time::SystemTime::now(), held_until, chain, noted: None };
    family.close(Duration::from_secs(60)).expect("nothing is held");
    let error = family.hold(granted, spec.terms, Callbacks::default(), &by).err().expect("it is closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(read_key(&*store, "k", &by).expect("an answer").record.exclusive.is_none());
}

#[test]
fn what_is_gone_is_not_remembered_to_be_ended_first() {
    let clock = Clock::system();
    let store = Arc::new(Memory::open("", clock.clone()));
    let family = Family::new(store, clock, ClientOptions::default());
    let stays: Arc<dyn EndsFirst> = Arc::new(Nothing);
    family.ends_first(Arc::downgrade(&stays));
    for _ in 0..100 {
        let goes: Arc<dyn EndsFirst> = Arc::new(Nothing);
        family.ends_first(Arc::downgrade(&goes));
    }
    let all = family.closing.ends_first.lock();
    assert!(all.len() <= 2, "{} are remembered", all.len());
    assert!(all.iter().any(|first| first.strong_count() > 0));
}
