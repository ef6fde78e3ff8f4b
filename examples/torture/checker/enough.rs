//! Whether a run has shown enough that its silence means anything.

use std::collections::BTreeSet;

use super::model::Run;
use super::rules::{RULES, Verdict};

/// What must be there.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    /// So many places for workers; those that the histories name are known without it.
    pub slots: usize,
    /// The workers had so long, in nanoseconds; `None`: as long as the histories go.
    pub time: Option<u64>,
}

/// From when on each rule must have met something.
const LONG: u64 = 60_000_000_000;
/// No key may have a limit of holders, no process may fork.
const OPTIONAL: [&str; 2] = ["limit", "fork"];

/// What a run lacks, for people; it proves nothing while there is any.
pub fn missing(run: &Run, verdict: &Verdict, least: Least) -> Vec<String> {
    let mut missing = Vec::new();
    if run.terms.lease == 0 {
        missing.push("no history names the terms of the run: is it the folder of one?".to_owned());
    }
    if run.holds.is_empty() {
        missing.push("nothing was granted".to_owned());
    }
    let mut idle: BTreeSet<String> = (0..least.slots).map(|number| format!("w{number}")).collect();
    idle.extend(run.processes.iter().filter_map(|process| slot(&process.name)));
    for hold in &run.holds {
        slot(&run.processes[hold.process].name).iter().for_each(|slot| {
            idle.remove(slot);
        });
    }
    missing.extend(idle.iter().map(|slot| format!("nothing was granted to any process of {slot}")));
    let first = run.asks.iter().map(|ask| ask.call).min().unwrap_or(run.over);
    if least.time.unwrap_or(run.over.saturating_sub(first)) >= LONG {
        let has_judged = |rule: &str| verdict.judged.get(rule).is_some_and(|count| *count > 0);
        let needed = RULES.iter().filter(|(rule, _)| !OPTIONAL.contains(rule));
        let idle = needed.filter(|(rule, _)| !has_judged(rule));
        missing.extend(idle.map(|(rule, _)| format!("the rule {rule} had nothing to judge that no fault explains")));
    }
    missing
}

/// The place of a worker, whose processes are `w0.0`, `w0.1` and so on.
fn slot(process: &str) -> Option<String> {
    let (slot, incarnation) = process.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(slot.strip_prefix('w')?) && is_number(incarnation)).then(|| slot.to_owned())
}
