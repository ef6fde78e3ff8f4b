//! The transitions of a group: all holders of a record that have one lock id.

use std::time::Duration;

use super::record::{End, Holder, Kind, Lease, LockRecord, Mode};
use super::transition::{Renewal, Step, Times, renew};

/// A group is not renewed where one of its holders has less left: its lease may be over before the write.
pub const MIN_LEFT: Duration = Duration::from_secs(1);

/// The answer to [`renew_group`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupAnswer {
    /// The holders of the group as they are now.
    Renewed(Vec<(Mode, Holder)>),
    /// This holder has less than [`MIN_LEFT`] left.
    TooLate(Mode, Holder),
    /// The key has no holder of the group.
    NoneHeld,
}

/// The holders with this lock id, expired or not. Leases belong to no group.
pub fn members<'a>(record: &'a LockRecord, lock_id: &'a str) -> impl Iterator<Item = (Mode, &'a Holder)> {
    record.holders().filter(move |(_, h)| record.kind == Kind::Lock && h.lock_id == lock_id)
}

fn owned(record: &LockRecord, lock_id: &str) -> Vec<(Mode, Holder)> {
    members(record, lock_id).map(|(mode, h)| (mode, h.clone())).collect()
}

/// Extends every holder of the group, or none. No end moves backwards, and an endless lease stays endless.
pub fn renew_group(record: &LockRecord, lock_id: &str, lease: Lease, times: &Times) -> Step<GroupAnswer> {
    let least = End::At(times.now.plus(MIN_LEFT));
    if let Some((mode, late)) = members(record, lock_id).find(|(_, h)| h.until < least) {
        return Step::keep(GroupAnswer::TooLate(mode, late.clone()));
    }
    let mut next = record.clone();
    for (_, member) in members(record, lock_id) {
        let step = renew(&next, &member.grant, Renewal::heartbeat(lease), times);
        next = step.record.unwrap_or(next);
    }
    let renewed = owned(&next, lock_id);
    if renewed.is_empty() {
        return Step::keep(GroupAnswer::NoneHeld);
    }
    if next == *record {
        return Step::keep(GroupAnswer::Renewed(renewed));
    }
    next.version = record.version;
    Step::write(GroupAnswer::Renewed(renewed), next)
}

/// Removes every holder of the group, expired or not, and keeps the record with its token. Answers
/// with those that were removed.
pub fn release_group(record: &LockRecord, lock_id: &str) -> Step<Vec<(Mode, Holder)>> {
    without(record, owned(record, lock_id))
}

/// Removes every holder of a lock, as [`release_group`] does those of one group.
pub fn release_all(record: &LockRecord) -> Step<Vec<(Mode, Holder)>> {
    let all = record.holders().filter(|_| record.kind == Kind::Lock);
    without(record, all.map(|(mode, h)| (mode, h.clone())).collect())
}

fn without(record: &LockRecord, freed: Vec<(Mode, Holder)>) -> Step<Vec<(Mode, Holder)>> {
    if freed.is_empty() {
        return Step::keep(freed);
    }
    let mut next = record.clone();
    for (_, member) in &freed {
        // The whole holder is compared, since old entries of other libraries have no grant id.
        next.take_where(|h| h == member);
    }
    Step::write(freed, next)
}
