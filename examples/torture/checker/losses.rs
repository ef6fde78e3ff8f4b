//! The rule of what is lost and what fails.

use std::collections::BTreeMap;

use super::history::{End, Fate, Form};
use super::model::{Ask, Outcome, Run};
use super::points::Point;
use super::rules::{Verdict, named};

/// How long a worker waits for the reason when its guard reports that it is not held any more.
const HEARD: u64 = 1_000_000_000;

/// What a request answers to one whose hold is over.
const LOST: [&str; 3] = ["lost", "held", "invalid_lease"];

pub(super) fn losses(run: &Run, verdict: &mut Verdict) {
    let before = run.terms.lease + run.terms.slack;
    // When a call first wanted to adopt each hold.
    let mut heirs: BTreeMap<usize, u64> = BTreeMap::new();
    for (old, call) in run.asks.iter().filter_map(|ask| Some((ask.old?, ask.call))) {
        heirs.entry(old).and_modify(|first| *first = call.min(*first)).or_insert(call);
    }
    for (number, hold) in run.holds.iter().enumerate() {
        // On DynamoDB a grant whose answer has a wrong date is given back to whom it replaced, even if that lease was over.
        let was_given_back = |at: u64| {
            let since = at.saturating_sub(run.terms.lease + run.terms.timeout + run.terms.slack);
            let is_near = |(date, _): &(u64, i64)| (since..=at).contains(date);
            let wanted_it = |process: usize| {
                let mut asks = run.asks.iter().filter(|ask| ask.process == process && ask.keys.contains(&hold.key));
                asks.any(|ask| ask.call <= at && ask.ret.is_none_or(|ret| ret >= since))
            };
            let mut others = (0..run.processes.len()).filter(|process| *process != hold.process);
            hold.form == Form::Data
                && others.any(|process| run.processes[process].dates.iter().any(is_near) && wanted_it(process))
        };
        if let Some(at) = hold.revived.filter(|at| verdict.finds("loss", true, was_given_back(*at))) {
            let text = format!("{} said that it is held after it had said that it is not", named(run, hold));
            verdict.accuse("loss", Some(hold.key), at, text);
        }
        let is_guard = hold.form == Form::Guard;
        // A single request may also fail by itself.
        let is_loss =
            |answer: &str| answer != "ok" && (is_guard || LOST.contains(&answer) || answer == "invalid_input");
        let answer = hold.ended.as_ref().filter(|(_, answer)| is_loss(answer)).cloned();
        let lost = hold.lost.clone().or(answer);
        let last = hold.ended.as_ref().map(|(at, _)| *at).or(run.processes[hold.process].dead);
        let is_lost = lost.is_some();
        let (at, reason) = lost.unwrap_or((last.unwrap_or(run.end), String::new()));
        // Nothing renews a lock as data, or the lease of a name, after its end, so then it may be lost.
        let is_over = !is_guard && at >= hold.granted_until && reason != "invalid_input";
        let is_wrong = is_lost && !is_over && hold.replaced.is_none_or(|(from, _)| at < from);
        // An adoption that failed may have happened all the same.
        let has_heir = heirs.get(&number).is_some_and(|call| *call <= at);
        // Stops of the library's own threads, of its own calls, or while it was asked for: other threads of its process
        // may have to hand it over then.
        let is_its_own = |point: &Point| {
            let was_asked_for = hold.call <= point.to + run.terms.slack && hold.ret >= point.from;
            point.calls.is_empty() || was_asked_for || hold.calls.iter().any(|call| point.calls.contains(call))
        };
        let was_stopped = |from: u64| run.was_stopped(hold.process, from, at, is_its_own);
        let (unheard, lately) = (at.saturating_sub(HEARD + run.terms.slack), at.saturating_sub(before));
        let is_excused = match reason.as_str() {
            "heartbeat_died" => false,
            // No other client can do that to it before its lease is over; by then its own process reports the loss, if
            // it runs.
            "taken_over" | "released_by_other" | "gone" if !has_heir => {
                let was_over = hold.gone.unwrap_or(at) >= hold.granted_until;
                was_over && (run.is_held_up(hold.process, lately, at) || was_stopped(lately))
            }
            "unknown" => run.is_held_up(hold.process, unheard, at) || was_stopped(unheard),
            _ => run.is_troubled(hold.process, lately, at) || was_stopped(lately),
        };
        // By its next heartbeat it learns that its row was deleted, or that others hold the key since then.
        let says_so =
            ["taken_over", "released_by_other", "gone"].contains(&reason.as_str()) || LOST.contains(&&*reason);
        let was_deleted = says_so && run.was_deleted(hold.key, lately.max(hold.call), at);
        if verdict.finds("loss", is_wrong, is_excused || was_deleted) {
            let text = format!("{} was lost ({reason}) without a fault", named(run, hold));
            verdict.accuse("loss", Some(hold.key), at, text);
        }
    }
    for ask in &run.asks {
        let Outcome::Failed(error) = &ask.outcome else { continue };
        let at = ask.ret.unwrap_or(run.end);
        let is_fine = match error.as_str() {
            // A call that was asked to stop.
            "cancelled" => at >= run.over,
            "timed_out" => ran_out(run, ask, at, true),
            "lost" => ask.asked.instead_of.is_some() && !stood_for_its_heir(run, ask, at),
            // A single request may find no gap if the store is crowded.
            "store" | "ambiguous" => ran_out(run, ask, at, run.terms.fate == Fate::Crowded),
            _ => false,
        };
        // For an adoption, what happened to the process that left the lock counts, too.
        let one_who_left = ask.old.map(|old| &run.holds[old]).filter(|_| error == "lost");
        // A call that wants all keys may lose the first while it waits for the others. A call that waits in line behind
        // another that has no answer fails with an error of the store.
        let holds_some = ask.asked.all && error == "lost";
        let in_its_line = |point: &Point| {
            let is_of_all = holds_some && point.calls.is_empty();
            is_of_all || point.calls.contains(&ask.id) || ask.keys.iter().any(|key| point.keys.contains(key))
        };
        let was_deleted = |key: &usize| run.was_deleted(*key, ask.call, at);
        // What was over long before it failed does not explain why; but an adoption may have lost its lock back then.
        let lately = if error == "lost" { 0 } else { at.saturating_sub(before + run.terms.timeout) };
        let since = ask.call.saturating_sub(before).max(lately);
        let is_troubled = run.is_troubled(ask.process, since, at)
            || run.was_stopped(ask.process, ask.call, at, in_its_line)
            || (holds_some && ask.keys.iter().any(was_deleted))
            || one_who_left.is_some_and(|old| run.was_deleted(old.key, old.call, at))
            || one_who_left.is_some_and(|old| run.is_troubled(old.process, old.call.saturating_sub(before), at));
        if verdict.finds("loss", !is_fine, is_troubled) {
            let (name, why) = (&run.processes[ask.process].name, &ask.why);
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            let text = format!("a call of {name} failed ({error}{why}) without a fault");
            verdict.accuse("loss", ask.keys.first().copied(), at, text);
        }
    }
}

/// Whether the call had all of its time, less what the store keeps for its answer: a wait that ends while its last
/// request is under way, or a single request, if `single` says that this may run out, too. A call that fails earlier
/// did not lack time.
fn ran_out(run: &Run, ask: &Ask, at: u64, single: bool) -> bool {
    let time = match ask.asked.wait {
        Some(0) if single => run.terms.timeout,
        Some(wait @ 1..) => wait,
        _ => return false,
    };
    at - ask.call >= time / 10 * 9
}

/// Whether the lock that was left for adoption surely existed until then, and only this one call wanted to adopt it.
fn stood_for_its_heir(run: &Run, ask: &Ask, at: u64) -> bool {
    let Some(old) = ask.old.map(|old| &run.holds[old]) else { return false };
    let was_left = old.ending.is_some_and(|(_, how)| how == End::Leave);
    let heirs = || run.asks.iter().filter(|other| other.old == ask.old).count();
    was_left && old.ended.as_ref().is_some_and(|(_, answer)| answer == "ok") && at < old.granted_until && heirs() == 1
}
