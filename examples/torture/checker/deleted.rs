//! Rows that somebody deleted. Then the store does not know any more who holds the key: another may be granted it
//! before its holder learns of that, by its next heartbeat. The tokens go on rising, and nothing else is explained.

use super::model::{Hold, Run};
use super::rules::{Verdict, named};

/// How long an answer may be on its way to a worker that nothing holds up.
const ANSWERED: u64 = 300_000_000;

impl Run {
    pub(super) fn deletions_of(&self, key: &str) -> Vec<(u64, u64)> {
        self.deleted.iter().filter(|(_, _, of)| of == key).map(|(from, to, _)| (*from, *to)).collect()
    }

    /// Whether the row of the key was deleted, from `from` to `to`.
    pub fn was_deleted(&self, key: usize, from: u64, to: u64) -> bool {
        self.deletions[key].iter().any(|(begun, ended)| *begun <= to && *ended >= from)
    }

    /// From when to when a hold may be believed of which the store knows nothing any more. A hold that is granted after
    /// the deletion has no such excuse.
    pub(super) fn deleted_under(&self, hold: &Hold) -> impl Iterator<Item = (u64, u64)> + use<'_> {
        let (process, call, ret, lease) = (hold.process, hold.call, hold.ret, self.terms.lease);
        // A call that began before may have had it then, however late it was answered on a busy machine.
        let told_late = move |to: u64| ret <= to + self.terms.slack || self.is_delayed(process, to, ret);
        let stood = move |to: u64| ret <= to + ANSWERED || (call <= to && told_late(to));
        self.deletions[hold.key].iter().filter(move |(_, to)| stood(*to)).map(move |(from, to)| (*from, to + lease))
    }
}

/// No renewal brings back what was deleted.
pub(super) fn believed(run: &Run, verdict: &mut Verdict) {
    for hold in &run.holds {
        for (_, to) in run.deletions[hold.key].iter().filter(|(from, _)| hold.ret <= *from) {
            let heard_by = to + run.terms.lease;
            let last = hold.beliefs.iter().filter(|(start, _)| start < to).map(|(_, end)| *end).max();
            if let Some(last) = last.filter(|last| *last > heard_by) {
                let after = (last - to) as f64 / 1e9;
                let text =
                    format!("{} believed to hold it until {after:.3} s after its row was deleted", named(run, hold));
                verdict.accuse("overlap", Some(hold.key), heard_by, text);
            }
        }
    }
}
