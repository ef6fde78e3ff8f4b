//! Answers that contradict what was asked for.

use std::collections::{BTreeMap, HashMap};

use super::history::Mode;
use super::model::{Ask, Hold, Outcome, Run};
use super::rules::{Verdict, named};

/// An adoption takes the place of a grant that stands: not of one that was released, nor of one that another has
/// followed, nor a second time, however long afterwards.
pub(super) fn adoptions(run: &Run, verdict: &mut Verdict) {
    let mut granted = vec![Vec::new(); run.keys.len()];
    run.holds.iter().for_each(|hold| granted[hold.key].push(hold));
    granted.iter_mut().for_each(|holds| holds.sort_by_key(|hold| hold.token));
    let mut heirs: BTreeMap<usize, &Ask> = BTreeMap::new();
    for ask in run.asks.iter().filter(|ask| ask.outcome == Outcome::Granted) {
        let Some(number) = ask.old else { continue };
        let (old, name) = (&run.holds[number], &run.processes[ask.process].name);
        let first = heirs.insert(number, ask);
        let why = if let Some(first) = first {
            format!("{} had adopted it", run.processes[first.process].name)
        } else if run.released(old).is_some_and(|at| at < ask.call) {
            "it was released".to_owned()
        } else if let Some(other) = between(&granted[old.key], old, ask) {
            format!("{} had it meanwhile", named(run, other))
        } else {
            continue;
        };
        let text = format!("{name} adopted {}, but {why}", named(run, old));
        verdict.accuse("overlap", Some(old.key), ask.ret.unwrap_or(run.end), text);
    }
}

/// Who was granted the key between a hold and its heir, and can't have had it together with them.
fn between<'a>(granted: &[&'a Hold], old: &Hold, heir: &Ask) -> Option<&'a Hold> {
    let after = granted.partition_point(|hold| hold.token <= old.token);
    let until = granted[after..]
        .iter()
        .take_while(|hold| [hold.process as u64, hold.calls[0]] != [heir.process as u64, heir.id]);
    until.copied().find(|hold| hold.mode != Mode::Shared || old.mode != Mode::Shared)
}

/// Grants of something else than was asked for, and refusals that no call of this kind may give.
pub(super) fn other_than_asked(run: &Run, verdict: &mut Verdict) {
    let mut got: HashMap<(usize, u64), Vec<&Hold>> = HashMap::new();
    for hold in &run.holds {
        got.entry((hold.process, hold.calls[0])).or_default().push(hold);
    }
    for ask in &run.asks {
        let (name, at) = (&run.processes[ask.process].name, ask.ret.unwrap_or(run.end));
        let mut accuse = |rule, text| verdict.accuse(rule, ask.keys.first().copied(), at, text);
        let got = got.get(&(ask.process, ask.id)).map_or(&[][..], Vec::as_slice);
        if let Some(other) = got.iter().find(|hold| !ask.keys.contains(&hold.key)) {
            accuse("tokens", format!("{name} did not ask for {}", named(run, other)));
        }
        // It looks at them once it has written down all of them.
        let has_all = || ask.keys.iter().all(|key| got.iter().any(|hold| hold.key == *key));
        if ask.asked.all && got.iter().any(|hold| !hold.beliefs.is_empty()) && !has_all() {
            accuse("tokens", format!("{name} asked for {} keys, and got {}", ask.keys.len(), got.len()));
        }
        if let Some(token) = ask.asked.instead_of.filter(|_| ask.old.is_none()) {
            accuse("tokens", format!("{name} was left a lock with the token {token}, which nobody was granted"));
        }
        if ask.outcome == Outcome::Refused && ask.asked.instead_of.is_some() {
            accuse("refusal", format!("{name} was refused an adoption, which may only be told that the lock is lost"));
        } else if ask.outcome == Outcome::Refused && ask.asked.wait.is_none() {
            accuse("refusal", format!("{name} was refused, but waits without a limit"));
        }
    }
}
