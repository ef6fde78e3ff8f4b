//! When a wait for one of several locks reads them.

use super::*;
use crate::engine::options::ClientOptions;
use crate::engine::orders::{faulty, spec};

/// Longer than any step takes.
const SLACK: Duration = Duration::from_secs(60);

/// A call that waits in the line of each of these keys.
fn waiting<'a>(family: &'a Arc<Family>, keys: &[String]) -> AnyWait<'a> {
    let users_code = Arc::default();
    let wait = |key: &String| {
        let lock = LockSpec { key: key.clone(), ..spec() };
        let spec = WaitSpec { lock, stands_back: false, cancel: None, on_wait: None, on_wait_every: None };
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
