//! When a wait for one of several locks reads them.

use super::*;
use crate::engine::options::ClientOptions;
use crate::engine::orders::{faulty, spec};
use crate::engine::spec::Chain;
use crate::lease::MAX_ACQUIRE_LEASE;
use crate::store::fault::Call;
use crate::store::{Acquired, Backend};
use crate::sys::clock::BootTime;

/// Longer than any step takes.
const SLACK: Duration = Duration::from_secs(60);

/// A call that waits in the line of each of these keys.
fn waiting<'a>(family: &'a Arc<Family>, keys: &[String]) -> AnyWait<'a> {
    let users_code = Arc::default();
    let wait = |key: &String| {
        let lock = LockSpec { key: key.clone(), ..spec() };
        let spec =
            WaitSpec { lock, stands_back: false, gets_guard: true, cancel: None, on_wait: None, on_wait_every: None };
        let mut wait = Wait::new(family, spec, Patience::Endless);
        wait.users_code = Arc::clone(&users_code);
        wait
    };
    let waits = keys.iter().map(wait).collect();
    let mut any = AnyWait { family, waits, patience: Patience::Endless, order: Order::AsGiven, told: 0 };
    any.enter(&Deadline::after(SLACK));
    any
}

/// Of a draw for each key the least would count.
#[test]
fn a_round_comes_after_one_pause_however_many_keys_there_are() {
    let (_store, clock, faulty, faults) = faulty();
    faults.never_wakes();
    let family = Family::new(faulty, clock, ClientOptions::default());
    let keys: Vec<_> = (0..20).map(|key| format!("k{key}")).collect();
    let mut any = waiting(&family, &keys);
    // The call is over, so it does not sleep until then.
    any.pause(&Deadline::at(Instant::now()), Begin::Wait);
    let looks: Vec<_> = any.waits.iter().map(|wait| wait.line.look_at).collect();
    assert!(looks[0].is_some() && looks.iter().all(|at| *at == looks[0]), "{looks:?}");
}

/// With many keys, or a slow store, its first lease would end before its turn.
#[test]
fn what_was_handed_over_is_taken_before_the_other_keys_are_read() {
    let (store, clock, faulty, faults) = faulty();
    let family = Family::new(faulty, clock, ClientOptions::default());
    let mut any = waiting(&family, &["a", "b"].map(str::to_owned));
    let lock = LockSpec { key: "b".to_owned(), ..spec() };
    let mut attempt = lock.attempt(store.info().grant_form.fresh(), MAX_ACQUIRE_LEASE);
    let by = Deadline::after(SLACK);
    let Ok(Acquired::Granted { holder, now, .. }) = store.acquire(&mut attempt, &by) else { panic!("it is free") };
    let chain = Chain { times: 0, since: BootTime::PAST };
    let wall = std::time::SystemTime::now();
    let handed = Granted { attempt, holder, now, wall, held_until: BootTime::NEVER, chain, noted: None };
    assert!(family.queues.reserve("b", |_| true).expect("it waits").give(handed).is_ok());
    any.waits.iter_mut().for_each(|wait| wait.line.look_at = Some(Instant::now()));
    let Ok(Some(taken)) = any.look_at_each(&by) else { panic!("it was handed over") };
    assert_eq!((taken.attempt.key.as_str(), faults.count(Call::Read)), ("b", 0));
    assert!(any.waits[0].line.look_at.is_some(), "it would be read next");
}
