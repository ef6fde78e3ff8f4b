//! What the rules say about the processes themselves: their forked children, and what they leave behind.

use super::history::Form;
use super::model::{Ask, Hold, Run};
use super::rules::Verdict;

pub(super) fn forks(run: &Run, verdict: &mut Verdict) {
    for (at, process, held) in &run.forks {
        if verdict.finds("fork", *held, false) {
            let text = format!("a forked child of {} holds the lock of its parent", run.processes[*process].name);
            verdict.accuse("fork", None, *at, text);
        }
    }
    for (at, process) in &run.crashed {
        verdict.judged("fork");
        let name = &run.processes[*process].name;
        let text = format!("a forked child of {name} crashed in a look at the lock of its parent");
        verdict.accuse("fork", None, *at, text);
    }
    for (from, to, process) in &run.hung {
        if verdict.finds("fork", true, run.is_troubled(*process, *from, *to)) {
            let name = &run.processes[*process].name;
            let text = format!("a forked child of {name} hung in a look at the lock of its parent");
            verdict.accuse("fork", None, *to, text);
        }
    }
}

/// A process that was killed has written nothing, and is not judged. A worker waits for what ends by itself, for longer
/// than any fault lasts: nothing excuses what remains.
pub(super) fn left(run: &Run, verdict: &mut Verdict) {
    for closed in &run.closed {
        let (threads, descriptors) = (closed.threads, closed.descriptors);
        if verdict.finds("left", threads > 0 || descriptors > 0, false) {
            let name = &run.processes[closed.process].name;
            let text =
                format!("{name} has {threads} threads and {descriptors} descriptors of a client that was closed");
            verdict.accuse("left", None, closed.at, text);
        }
    }
    for row in &run.kept {
        let key = run.keys.iter().position(|key| *key == row.key);
        let (holds, asks) = of_key(run, key);
        // Each grant removes the holders that are over.
        let last = holds.iter().map(|hold| hold.call).max().unwrap_or(0);
        let most = holds.iter().filter(|hold| run.stands_until(hold) >= last).count()
            + asks.iter().filter(|ask| run.unanswered_until(ask) >= last).count();
        let more = usize::try_from(row.holders).unwrap_or(usize::MAX).saturating_sub(most);
        let are_copies = key.is_some_and(|key| run.copied[key].has(more, last, u64::MAX));
        if verdict.finds("left", more > 0 && !are_copies, false) {
            let text = format!("the row has {} holders, but {most} at most stood behind its last grant", row.holders);
            verdict.accuse("left", key, row.at, text);
        }
    }
    for row in &run.left {
        let key = run.keys.iter().position(|key| *key == row.key);
        let (holds, asks) = of_key(run, key);
        let ends = holds.iter().map(|hold| run.stands_until(hold));
        let copies = key.and_then(|key| run.copied[key].met(0, u64::MAX));
        let over = ends.chain(asks.iter().map(|ask| run.unanswered_until(ask))).chain(copies).max().unwrap_or(0);
        if verdict.finds("left", row.holders > 0, row.at <= over) {
            let text = format!("{} holders stand in the row behind a purge, all of them dead or gone", row.holders);
            verdict.accuse("left", key, row.at, text);
        }
    }
}

/// The locks of a key that were granted or may have been.
fn of_key(run: &Run, key: Option<usize>) -> (Vec<&Hold>, Vec<&Ask>) {
    let Some(key) = key else { return (Vec::new(), Vec::new()) };
    let holds = run.holds.iter().filter(|hold| hold.key == key && hold.form != Form::Name);
    let asks = run.asks.iter().filter(|ask| ask.keys.contains(&key) && !run.may_have_held(ask, key).is_empty());
    (holds.collect(), asks.collect())
}
