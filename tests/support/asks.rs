//! Short ways to write asks, times and records.

use std::time::Duration;

use leasehold::internals::lease::{
    AcquireAnswer, Ask, GrantId, Holder, Labels, LockRecord, Mode, StoreTime, Times, transition,
};

/// How long the leases of [`ask`] last.
pub const LEASE: Duration = Duration::from_millis(100);

pub fn at(ms: i64) -> StoreTime {
    StoreTime::from_nanos(ms * 1_000_000)
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The times at `now` of a store without grace, whose wall clock does not move.
pub fn now(now: i64) -> Times {
    Times::without_grace(at(now), 0)
}

/// The times at `now` of a store with this grace.
pub fn graced(now: i64, grace: i64) -> Times {
    Times { expired_before: at(now - grace), ..Times::without_grace(at(now), 0) }
}

pub fn grant(name: &str) -> GrantId {
    GrantId::from_text(name)
}

/// What `name` asks for: grant, lock id and owner are made from it.
pub fn ask(name: &str, mode: Mode) -> Ask {
    let labels = Labels::of(format!("owner of {name}"));
    Ask { mode, ..Ask::exclusive(grant(name), format!("id of {name}"), labels, LEASE) }
}

pub fn exclusive(name: &str) -> Ask {
    ask(name, Mode::Exclusive)
}

pub fn shared(name: &str) -> Ask {
    ask(name, Mode::Shared)
}

pub fn shared_of(name: &str, max_holders: u32) -> Ask {
    Ask { max_holders: Some(max_holders), ..shared(name) }
}

/// The transfer from `old` to `name`.
pub fn instead(name: &str, old: &Holder) -> Ask {
    Ask { instead_of: Some((old.grant.clone(), old.token)), ..exclusive(name) }
}

/// The record and the holder after an acquisition that must be granted.
pub fn granted(record: &LockRecord, ask: &Ask, times: &Times) -> (LockRecord, Holder) {
    let step = transition::acquire(record, ask, times);
    match (step.answer, step.record) {
        (AcquireAnswer::Granted { holder, repeated: false }, Some(record)) => (record, holder),
        other => panic!("{ask:?} was not granted on {record:?}: {other:?}"),
    }
}

/// The record after all of these were granted at time 0.
pub fn held(asks: &[Ask]) -> LockRecord {
    asks.iter().fold(LockRecord::missing("k"), |record, ask| granted(&record, ask, &now(0)).0)
}
