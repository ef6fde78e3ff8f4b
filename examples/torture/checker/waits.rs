//! The rule of those who wait.

use std::collections::{BTreeMap, HashSet};

use super::history::Mode;
use super::model::{Ask, Hold, Run};
use super::points::Point;
use super::rules::{Verdict, named, seconds};
use super::windows::{Span, Windows};

/// Its process and its id.
type Call = (usize, u64);

/// When a key was taken, or may have been.
pub(super) struct Taken {
    /// Sorted by their begin, as in `spans`, each with the call that had it.
    by: Vec<(Mode, Option<Call>, Span)>,
    spans: Windows,
}

impl Taken {
    /// By any call but this one, from `from` to `to`.
    fn by_others(&self, own: Call, from: u64, to: u64) -> impl Iterator<Item = Span> {
        let of = |at: usize| self.by[at];
        self.spans.range(from, to).map(of).filter(move |(_, by, _)| *by != Some(own)).map(|(_, _, span)| span)
    }

    /// When nobody could hold it in this mode together with so many others: zero for any number.
    fn gaps(&self, run: &Run, mode: Mode, limit: u32) -> Vec<Span> {
        let spans = if mode == Mode::Exclusive { self.spans.clone() } else { self.without_room(limit) };
        spans.gaps(0, run.over, run.terms.slack)
    }

    fn without_room(&self, limit: u32) -> Windows {
        let of = |such: Mode| self.by.iter().filter(move |(mode, _, _)| *mode == such).map(|(_, _, span)| *span);
        let full =
            if limit == 0 { Vec::new() } else { Windows::new(of(Mode::Shared).collect()).together(limit as usize) };
        Windows::new(of(Mode::Exclusive).chain(full).collect())
    }
}

/// A call may wait behind threads of its process that are stopped in calls for one of its keys, or because the library's
/// own thread is stopped and does not wake it; but not for any other thread that is stopped.
fn in_line_for(keys: &[usize]) -> impl Fn(&Point) -> bool + Copy + use<'_> {
    move |point| point.calls.is_empty() || keys.iter().any(|key| point.keys.contains(key))
}

pub(super) fn taken(run: &Run, key: usize, holds: &[&Hold], asks: &[&Ask]) -> Taken {
    let keys = [key];
    let in_its_line = in_line_for(&keys);
    let stood = holds.iter().flat_map(|hold| {
        let stopped = run.stopped_for(hold.process, hold.call, hold.ret, in_its_line);
        let by = (hold.mode, Some((hold.process, hold.calls[0])));
        run.taken(hold, stopped).into_iter().map(move |span| (by.0, by.1, span))
    });
    let others = asks.iter().flat_map(|ask| {
        let by = (ask.asked.mode, Some((ask.process, ask.id)));
        run.may_have_held(ask, key).into_iter().map(move |span| (by.0, by.1, span))
    });
    let copies = run.copied[key].spans().map(|span| (Mode::Exclusive, None, *span));
    let mut by: Vec<_> = stood.chain(others).chain(copies).collect();
    by.sort_by_key(|(_, _, span)| *span);
    let spans = Windows::new(by.iter().map(|(_, _, span)| *span).collect());
    Taken { by, spans }
}

/// When this call was over, if it waited: a process that died while it waited has waited until then.
fn waited_until(run: &Run, ask: &Ask) -> Option<u64> {
    ask.ret.or(run.processes[ask.process].dead).filter(|_| ask.asked.wait != Some(0))
}

/// Those who wait for one key, or for any of several.
pub(super) fn of_one(run: &Run, key: usize, taken: &Taken, asks: &[&Ask], verdict: &mut Verdict) {
    let mut gaps: BTreeMap<(bool, u32), Vec<Span>> = BTreeMap::new();
    let mut writers: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
    for ask in asks.iter().filter(|ask| ask.asked.mode == Mode::Exclusive) {
        let until = waited_until(run, ask);
        writers.entry(ask.process).or_default().extend(until.map(|until| (ask.call, until)));
    }
    let writers: BTreeMap<usize, Windows> = writers.into_iter().map(|(of, spans)| (of, Windows::new(spans))).collect();
    for ask in asks.iter().filter(|ask| !ask.asked.all) {
        let Some(ret) = waited_until(run, ask) else { continue };
        let (mode, limit) = (ask.asked.mode, ask.asked.limit);
        let is_shared = mode == Mode::Shared;
        let gaps = gaps.entry((is_shared, limit)).or_insert_with(|| taken.gaps(run, mode, limit));
        let first = gaps.partition_point(|(_, end)| *end <= ask.call);
        let gaps = gaps[first..].iter().take_while(|(start, _)| *start < ret);
        let free = gaps.map(|(start, end)| ((*start).max(ask.call), (*end).min(ret)));
        // A reader may stand in the line of its process behind writers who came before, and who wait for other readers.
        let before = writers
            .get(&ask.process)
            .filter(|_| is_shared)
            .map(|writers| Windows::new(writers.within(ask.call, ask.call + run.terms.slack).copied().collect()));
        let free: Vec<Span> = match before {
            Some(before) => free.flat_map(|(from, to)| before.gaps(from, to, run.terms.slack)).collect(),
            None => free.collect(),
        };
        judge(run, ask, ret, Some(key), &free, in_line_for(&[key]), verdict);
    }
}

/// Those who wait for all of several keys: some of them must be taken by others.
pub(super) fn of_all(run: &Run, taken: &[Taken], verdict: &mut Verdict) {
    for ask in run.asks.iter().filter(|ask| ask.asked.all) {
        let Some(ret) = waited_until(run, ask) else { continue };
        let own = (ask.process, ask.id);
        let spans = ask.keys.iter().flat_map(|key| taken[*key].by_others(own, ask.call, ret));
        let free = Windows::new(spans.collect()).gaps(ask.call, ret, run.terms.slack);
        judge(run, ask, ret, ask.keys.first().copied(), &free, in_line_for(&ask.keys), verdict);
    }
}

/// Judges a wait until `ret`, in which the key was free in all of these times.
fn judge(
    run: &Run,
    ask: &Ask,
    ret: u64,
    key: Option<usize>,
    free: &[Span],
    in_its_line: impl Fn(&Point) -> bool,
    verdict: &mut Verdict,
) {
    let is_in_vain = |(start, end): &&Span| end - start > run.terms.slack;
    let in_vain: Vec<&Span> = free.iter().filter(is_in_vain).collect();
    let is_excused = |span: &Span| run.explains(ask.process, &ask.keys, *span, &in_its_line);
    let is_troubled = match in_vain.is_empty() {
        true => is_excused(&(ask.call, ret)),
        false => in_vain.iter().all(|span| is_excused(span)),
    };
    if verdict.finds("blocked", !in_vain.is_empty(), is_troubled) {
        for (start, end) in in_vain.into_iter().filter(|span| !is_excused(span)) {
            let name = &run.processes[ask.process].name;
            let text = format!("{name} waited for {:.3} s while nothing was in its way", seconds(end - start));
            verdict.accuse("blocked", key, *start, text);
        }
    }
}

/// Those of one process who wait for one key alone get it in the order in which they came.
pub(super) fn in_line(run: &Run, key: usize, holds: &[&Hold], asks: &[&Ask], verdict: &mut Verdict) {
    let is_alone = |ask: &&&Ask| ask.asked.wait != Some(0) && ask.keys.len() == 1 && ask.asked.mode == Mode::Exclusive;
    let waits: HashSet<Call> = asks.iter().filter(is_alone).map(|ask| (ask.process, ask.id)).collect();
    let mut lines: BTreeMap<usize, Vec<&Hold>> = BTreeMap::new();
    // They are sorted by their calls.
    for hold in holds.iter().filter(|hold| waits.contains(&(hold.process, hold.calls[0]))) {
        lines.entry(hold.process).or_default().push(hold);
    }
    let keys = [key];
    let in_its_line = in_line_for(&keys);
    for (process, line) in lines {
        // The one that waited longest of those who surely came before.
        let (mut before, mut last): (_, Option<&Hold>) = (line.iter().peekable(), None);
        for hold in &line {
            while let Some(one) = before.next_if(|one| one.call + run.terms.slack < hold.call) {
                last = Some(last.filter(|last| last.ret >= one.ret).unwrap_or(one));
            }
            let Some(first) = last.filter(|last| last.ret >= hold.call) else { continue };
            let is_troubled = run.is_troubled(process, first.call, hold.ret)
                || !run.crowded_out(process, &keys, (first.call, hold.ret)).is_empty()
                || run.was_stopped(process, first.call, hold.ret, in_its_line);
            if verdict.finds("blocked", first.ret > hold.ret && first.token > hold.token, is_troubled) {
                let text = format!("{} was served after {}, who came later", named(run, first), named(run, hold));
                verdict.accuse("blocked", Some(key), hold.ret, text);
            }
        }
    }
}
