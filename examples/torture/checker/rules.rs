//! The rules. Each accuses with a sentence and a time, so that a picture can be drawn around that time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::history::{End, Form, Mode};
use super::model::{Ask, Hold, Outcome, Run};
use super::points::Point;
use super::windows::Windows;
use super::{answers, deleted, losses, processes, waits};

/// What each rule demands.
pub const RULES: [(&str, &str); 10] = [
    (
        "overlap",
        "no two exclusive holds of a key, nor an exclusive and a shared one, at the same time; one heir to each; none beyond a lease after its row was deleted",
    ),
    ("tokens", "the tokens of a key rise in the order of its grants, strictly; each grant is one that was asked for"),
    ("limit", "never more shared holders than a request allowed"),
    ("refusal", "whoever was refused met a hold that stood or could stand, or waited to its end"),
    ("resource", "the resource accepted no token below one that it had seen, and refused no holder"),
    ("blocked", "nobody waits for a key that nobody can hold, nor behind those of its process that came later"),
    ("late", "no call outlives its deadline"),
    ("loss", "no guard is lost, and no call fails, without a fault that explains it"),
    ("fork", "a forked child never holds a lock of its parent"),
    ("left", "no closed client leaves a thread or a descriptor, no row an expired holder behind a grant or a purge"),
];
/// How many violations of one rule are kept: more say nothing new.
const MOST: usize = 100;
/// Something that no lock may do.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub key: Option<usize>,
    pub at: u64,
    pub text: String,
}

/// What the checker says.
#[derive(Debug, Default)]
pub struct Verdict {
    pub violations: Vec<Violation>,
    /// How many there are of each rule, also of those that are not listed.
    pub counts: BTreeMap<&'static str, usize>,
    /// Grants, refusals, failures, looks at the resource: what each rule has judged, and would have accused if it was
    /// wrong.
    pub judged: BTreeMap<&'static str, usize>,
    /// What was right, but if it had been wrong, a fault would have excused it.
    pub blind: BTreeMap<&'static str, usize>,
    /// What would be a violation if no fault excused it.
    pub excused: BTreeMap<&'static str, usize>,
}

impl Verdict {
    pub(super) fn judged(&mut self, rule: &'static str) {
        *self.judged.entry(rule).or_default() += 1;
    }

    /// Judges one more case by this rule. Returns whether it must be accused: if it is wrong, and no fault explains it.
    pub(super) fn finds(&mut self, rule: &'static str, is_wrong: bool, is_troubled: bool) -> bool {
        let counts = match (is_troubled, is_wrong) {
            (true, true) => &mut self.excused,
            (true, false) => &mut self.blind,
            (false, _) => &mut self.judged,
        };
        *counts.entry(rule).or_default() += 1;
        is_wrong && !is_troubled
    }

    pub(super) fn accuse(&mut self, rule: &'static str, key: Option<usize>, at: u64, text: String) {
        let count = self.counts.entry(rule).or_default();
        *count += 1;
        if *count <= MOST {
            self.violations.push(Violation { rule, key, at, text });
        }
    }
}

/// Judges a run by all rules.
pub fn check(run: &Run) -> Verdict {
    let mut verdict = Verdict::default();
    let mut holds = vec![Vec::new(); run.keys.len()];
    run.holds.iter().for_each(|hold| holds[hold.key].push(hold));
    let mut asks = vec![Vec::new(); run.keys.len()];
    for ask in &run.asks {
        ask.keys.iter().for_each(|key| asks[*key].push(ask));
    }
    let (mut ways, mut taken) = (Vec::with_capacity(run.keys.len()), Vec::with_capacity(run.keys.len()));
    for (key, (mut holds, asks)) in holds.into_iter().zip(&asks).enumerate() {
        holds.sort_by_key(|hold| hold.call);
        overlaps(run, &holds, &mut verdict);
        tokens(run, &holds, &mut verdict);
        limits(run, &holds, &mut verdict);
        ways.push(in_the_way(run, key, &holds, asks));
        taken.push(waits::taken(run, key, &holds, asks));
        waits::of_one(run, key, &taken[key], asks, &mut verdict);
        waits::in_line(run, key, &holds, asks, &mut verdict);
    }
    waits::of_all(run, &taken, &mut verdict);
    answers::adoptions(run, &mut verdict);
    answers::other_than_asked(run, &mut verdict);
    deleted::believed(run, &mut verdict);
    refusals(run, &ways, &asks, &mut verdict);
    resource(run, &mut verdict);
    late(run, &mut verdict);
    losses::losses(run, &mut verdict);
    processes::forks(run, &mut verdict);
    processes::left(run, &mut verdict);
    verdict.violations.sort_by_key(|violation| violation.at);
    verdict
}

/// The hold as a text for people.
pub(super) fn named(run: &Run, hold: &Hold) -> String {
    let mode = if hold.mode == Mode::Shared { "shared" } else { "exclusive" };
    format!("{} ({mode}, token {})", run.processes[hold.process].name, hold.token)
}

pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// When it surely was held, by what its holder reported. A holder whose lock is adopted while it has the guard, or
/// whose row is deleted, may need a lease to learn of that: this time is left out.
fn beliefs<'a>(run: &Run, hold: &'a Hold) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let replaced = hold.replaced.map(|(from, to)| (from, to + run.terms.lease));
    let mut parts = hold.beliefs.clone();
    for (from, to) in run.deleted_under(hold).chain(replaced) {
        let cut = parts.into_iter().flat_map(|(start, end)| [(start, end.min(from)), (start.max(to), end)]);
        parts = cut.filter(|(start, end)| start < end).collect();
    }
    parts.into_iter()
}

fn overlaps(run: &Run, holds: &[&Hold], verdict: &mut Verdict) {
    let mut by_token: Vec<&Hold> = holds.to_vec();
    by_token.sort_by_key(|hold| Reverse(hold.token));
    // Each with the time when the first hold was answered that has a higher token and can't be held at the same time.
    let mut spans: Vec<(u64, u64, u64, &Hold)> = Vec::new();
    let (mut exclusive, mut shared) = (u64::MAX, u64::MAX);
    for same in by_token.chunk_by(|one, other| one.token == other.token) {
        for hold in same {
            let next = if hold.mode == Mode::Shared { exclusive } else { exclusive.min(shared) };
            spans.extend(beliefs(run, hold).map(|(start, end)| (start, end, next, *hold)));
        }
        for hold in same {
            let first = if hold.mode == Mode::Shared { &mut shared } else { &mut exclusive };
            *first = hold.ret.min(*first);
        }
    }
    spans.sort_by_key(|(start, ..)| *start);
    let mut held: Vec<(u64, &Hold)> = Vec::new();
    for (start, end, next, hold) in spans {
        verdict.judged("overlap");
        held.retain(|(end, _)| *end > start);
        let mut is_alone = true;
        for (until, other) in &held {
            let together = hold.mode == Mode::Shared && other.mode == Mode::Shared;
            if !together && other.token != hold.token {
                is_alone = false;
                let both = seconds(end.min(*until) - start);
                let text = format!("{} and {} held it together for {both:.3} s", named(run, other), named(run, hold));
                verdict.accuse("overlap", Some(hold.key), start, text);
            }
        }
        // A hold that was asked for after `next` has a wrong token: the rule `tokens` judges that.
        if is_alone && next < start && next >= hold.call {
            let after = seconds(start - next);
            let text = format!("{} held it {after:.3} s after another had it with a higher token", named(run, hold));
            verdict.accuse("overlap", Some(hold.key), start, text);
        }
        held.push((end, hold));
    }
}

fn tokens(run: &Run, holds: &[&Hold], verdict: &mut Verdict) {
    let mut answered: Vec<&Hold> = holds.to_vec();
    answered.sort_by_key(|hold| hold.ret);
    let mut answered = answered.into_iter().peekable();
    let mut highest: Option<&Hold> = None;
    for hold in holds {
        verdict.judged("tokens");
        while let Some(before) = answered.next_if(|before| before.ret < hold.call) {
            highest = Some(highest.filter(|highest| highest.token >= before.token).unwrap_or(before));
        }
        if let Some(before) = highest.filter(|before| before.token >= hold.token) {
            let text = format!("{} was granted after {} had been", named(run, hold), named(run, before));
            verdict.accuse("tokens", Some(hold.key), hold.ret, text);
        }
    }
    let mut by_token: Vec<&Hold> = holds.to_vec();
    by_token.sort_by_key(|hold| (hold.token, hold.ret));
    for pair in by_token.windows(2).filter(|pair| pair[0].token == pair[1].token) {
        let text = format!("{} and {} have one token", named(run, pair[0]), named(run, pair[1]));
        verdict.accuse("tokens", Some(pair[1].key), pair[1].ret, text);
    }
}

/// A hold that has a lower token than a grant, and is still believed after it, existed when the grant was made.
fn limits(run: &Run, holds: &[&Hold], verdict: &mut Verdict) {
    let mut shared: Vec<&Hold> = holds.iter().copied().filter(|hold| hold.mode == Mode::Shared).collect();
    shared.sort_by_key(|hold| hold.token);
    // When the first of the holds with this token or a higher one was answered.
    let mut first = u64::MAX;
    let answers = shared.iter().rev().map(|hold| {
        first = first.min(hold.ret);
        first
    });
    let answers: Vec<u64> = answers.collect();
    let mut stood: Vec<(u64, u64)> = Vec::new();
    for (hold, first) in shared.into_iter().zip(answers.into_iter().rev()) {
        stood.retain(|(until, _)| *until >= first);
        if hold.limit > 0 {
            verdict.judged("limit");
            let is_other = |(until, token): &&(u64, u64)| *until >= hold.ret && *token < hold.token;
            let others = stood.iter().filter(is_other).count();
            if others >= hold.limit as usize {
                let text = format!("{} met {others} others, but allows {}", named(run, hold), hold.limit - 1);
                verdict.accuse("limit", Some(hold.key), hold.ret, text);
            }
        }
        stood.extend(beliefs(run, hold).map(|(_, end)| end).max().map(|until| (until, hold.token)));
    }
}

/// When others could not get one key, because it was held or may have been.
struct InTheWay {
    any: Windows,
    exclusive: Windows,
}

fn in_the_way(run: &Run, key: usize, holds: &[&Hold], asks: &[&Ask]) -> InTheWay {
    let mut by_token: Vec<&Hold> = holds.to_vec();
    by_token.sort_by_key(|hold| Reverse(hold.token));
    // A claim that is answered shows that all earlier leases of the name were over by then. Of claims that are under way
    // at once, one that was asked for earlier may be granted later: only their tokens tell.
    let mut claimed = u64::MAX;
    let mut spans: Vec<(Mode, u64, u64)> = Vec::new();
    for same in by_token.chunk_by(|one, other| one.token == other.token) {
        for hold in same {
            let until = if hold.form == Form::Name { claimed } else { u64::MAX };
            let stood = run.in_the_way(hold, run.stands_until(hold).min(until));
            spans.extend(stood.into_iter().map(|(from, to)| (hold.mode, from, to)));
        }
        let claims = same.iter().filter(|hold| hold.form == Form::Name);
        claimed = claims.map(|hold| hold.ret).fold(claimed, u64::min);
    }
    // If a lease of a name may have been claimed, too, only the next claim shows when it was over.
    let claimed_after = |to: u64| holds.iter().find(|hold| hold.call >= to).map_or(u64::MAX, |hold| hold.ret);
    let others = asks.iter().flat_map(|ask| {
        let until = |to| if ask.asked.form == Form::Name { claimed_after(to) } else { to };
        run.may_have_held(ask, key).into_iter().map(move |(from, to)| (ask.asked.mode, from, until(to)))
    });
    spans.extend(others);
    let of = |may: fn(Mode) -> bool| {
        Windows::new(spans.iter().filter(|(mode, _, _)| may(*mode)).map(|(_, from, to)| (*from, *to)).collect())
    };
    InTheWay { any: of(|_| true), exclusive: of(|mode| mode == Mode::Exclusive) }
}

fn refusals(run: &Run, ways: &[InTheWay], asks: &[Vec<&Ask>], verdict: &mut Verdict) {
    for ask in run.asks.iter().filter(|ask| ask.outcome == Outcome::Refused) {
        let (call, ret) = (ask.call, ask.ret.unwrap_or(run.end));
        let (wait, name) = (ask.asked.wait.unwrap_or(0), &run.processes[ask.process].name);
        if ret - call < wait {
            let text = format!("{name} waited for {:.3} s of {:.3} s", seconds(ret - call), seconds(wait));
            verdict.accuse("refusal", ask.keys.first().copied(), ret, text);
        }
        let is_for_readers = ask.asked.mode == Mode::Shared && ask.asked.limit == 0;
        // A call that wants all keys, or may hold the key by a request that was not answered, is itself one of those
        // that are in the way; but not for readers.
        let limit = ask.asked.limit as usize;
        let met = |key: &usize| {
            let least = 1 + usize::from(!is_for_readers && !run.may_have_held(ask, *key).is_empty());
            match (&ways[*key], ask.asked.mode, limit) {
                (way, Mode::Shared, 0) => way.exclusive.has(1, call, ret),
                // Without a writer, as many others as its limit allows.
                (way, Mode::Shared, limit) => {
                    way.exclusive.has(1, call, ret) || way.any.has_together(least + limit - 1, call, ret)
                }
                (way, Mode::Exclusive, _) => way.any.has(least, call, ret),
            }
        };
        // Others of the same process may wait in line before it.
        let in_line = |key: &usize| {
            asks[*key].iter().any(|other| {
                let waits = other.asked.wait != Some(0) && other.process == ask.process && !std::ptr::eq(*other, ask);
                waits && other.call <= ret && other.ret.unwrap_or(u64::MAX) >= call
            })
        };
        let is_free = |key: &usize| !met(key) && !in_line(key);
        let mut judge = |keys: &[usize], is_wrong: bool| {
            let met_a_copy = keys.iter().any(|key| run.copied[*key].meets(call, ret));
            if verdict.finds("refusal", is_wrong, met_a_copy || run.explains(ask.process, keys, (call, ret), |_| false))
            {
                let text = format!("{name} was refused, but nobody can have held it");
                verdict.accuse("refusal", keys.first().copied(), ret, text);
            }
        };
        if ask.asked.all {
            judge(&ask.keys, ask.keys.iter().all(is_free));
        } else {
            ask.keys.iter().for_each(|key| judge(std::slice::from_ref(key), is_free(key)));
        }
    }
}

fn resource(run: &Run, verdict: &mut Verdict) {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for seen in &run.seen {
        verdict.judged("resource");
        let key = run.keys.iter().position(|key| *key == seen.key);
        let known = highest.entry(&seen.key).or_default();
        let wrong = match seen.highest {
            None => seen.token < *known,
            Some(_) => seen.token >= *known,
        };
        if wrong {
            let did = if seen.highest.is_none() { "accepted" } else { "refused" };
            let text = format!("the resource {did} the token {} after it had seen {known}", seen.token);
            verdict.accuse("resource", key, seen.at, text);
        }
        *known = (*known).max(seen.token);
    }
    for write in &run.writes {
        let hold = &run.holds[write.hold];
        if write.token != hold.token {
            let text = format!("{} wrote with the token {}", named(run, hold), write.token);
            verdict.accuse("tokens", Some(hold.key), write.to, text);
        }
        if write.accepted {
            continue;
        }
        if beliefs(run, hold).any(|(start, end)| start < write.from && end > write.to) {
            let text = format!("{} held it all the time, and its write was refused as too late", named(run, hold));
            verdict.accuse("resource", Some(hold.key), write.to, text);
        }
    }
}

/// A call that does not wait has one timeout, as has one that is cancelled; a call that waits has its wait and one
/// timeout. A call that ends a hold has the lease for it, if that is longer. This is promised whatever the network, the server and other threads do, so
/// the only excuse is that the call's own thread, or the whole process, did not get to run.
fn late(run: &Run, verdict: &mut Verdict) {
    let terms = run.terms;
    let mut judge =
        |process: usize, id: u64, key: Option<usize>, what: &str, (call, ret): (u64, Option<u64>), bound: u64| {
            // A process that died in the call has waited until then.
            let ret = ret.or(run.processes[process].dead).unwrap_or(run.end);
            let due = call.saturating_add(bound).saturating_add(terms.slack);
            // If its thread, or the whole process, stood still, it may take longer by that time, and no more.
            let is_its = |point: &Point| point.calls.contains(&id);
            let is_troubled = match ret > due {
                true => ret <= due.saturating_add(run.stood_still_for(process, call, ret, is_its)),
                false => run.was_stopped(process, call, ret, is_its) || run.is_held_up(process, call, ret),
            };
            if verdict.finds("late", ret > due, is_troubled) {
                let (name, took) = (&run.processes[process].name, ret - call);
                let text =
                    format!("{what} by {name} took {:.3} s, but may take {:.3} s", seconds(took), seconds(bound));
                verdict.accuse("late", key, ret, text);
            }
        };
    for ask in &run.asks {
        let bound = match (ask.asked.all, ask.asked.wait.unwrap_or(0)) {
            // Each key has a timeout of its own, and the keys that it had are released before the answer.
            (true, 0) => ask.keys.len() as u64 * terms.timeout + terms.lease,
            (_, wait) => wait.saturating_add(terms.timeout),
        };
        // A call without a deadline is cancelled when the run is over.
        let (what, begun) = match ask.asked.wait {
            Some(_) => ("a request", ask.call),
            None if ask.ret.or(run.processes[ask.process].dead).is_some_and(|ret| ret < run.over) => continue,
            None => ("a request that was cancelled", ask.call.max(run.over)),
        };
        judge(ask.process, ask.id, ask.keys.first().copied(), what, (begun, ask.ret), bound);
    }
    for hold in &run.holds {
        for (begun, how, ended) in &hold.end_calls {
            let what = match how {
                End::Release => "a release",
                End::Drop => "a drop",
                End::Leave => "a hand-over",
            };
            let bound = terms.timeout.max(terms.lease);
            judge(hold.process, hold.calls[1], Some(hold.key), what, (*begun, *ended), bound);
        }
    }
}
