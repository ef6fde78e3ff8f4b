//! Whether a run has shown enough that its silence means anything.

use std::collections::BTreeSet;

use super::model::Run;
use super::rules::{RULES, Verdict};

/// What a run must have.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    /// How many slots for workers there are; those that the histories name are known without this.
    pub slots: usize,
    /// How long the workers worked, in nanoseconds; `None`: as long as the histories go.
    pub time: Option<u64>,
}

/// In a run that is at least this long, each rule must have judged something.
const LONG: u64 = 60_000_000_000;
/// In some runs no key has a limit of holders, or no process forks.
const OPTIONAL: [&str; 2] = ["limit", "fork"];

/// What a run lacks, as texts for people; a run that lacks anything proves nothing.
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

/// The slot of a worker, whose processes are `w0.0`, `w0.1` and so on.
fn slot(process: &str) -> Option<String> {
    let (slot, incarnation) = process.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(slot.strip_prefix('w')?) && is_number(incarnation)).then(|| slot.to_owned())
}
