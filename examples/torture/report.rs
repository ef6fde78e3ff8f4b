//! What a run has shown: as text, as JSON, and a picture of the first violations.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::checker::history::{End, Form, Mode, lines};
use crate::checker::{Least, Outcome, RULES, Run, Verdict, check, missing};
use crate::clock::nanos;
use crate::linux::{BROKEN, CLEAN, VIOLATED, VOID};
use crate::options::{DELETED, FULL, Options};
use crate::picture;
use crate::points::POINTS;
use crate::proxy::{DATE, TWICE};

/// How many violations are drawn at most.
const PICTURES: usize = 3;
/// How many violations, and requests of a process, are listed at most.
const LISTED: usize = 20;

/// The fault of a wall clock that jumped while its worker held or asked for something.
const JUMP: &str = "wall jump";

type Counts = BTreeMap<String, usize>;

/// Reads all histories in the folder, judges them, and writes the reports there; returns the exit code.
pub fn report(dir: &Path, options: Option<&Options>, broken: &[String]) -> Result<i32, String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            files.push((name, lines(&text).map_err(|why| format!("{}: {why}", path.display()))?));
        }
    }
    // Always in the same order, whatever the order of the file system is.
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let run = Run::new(files)?;
    let started = Instant::now();
    let verdict = check(&run);
    let took = started.elapsed().as_secs_f64();
    let (operations, losses, faults) = (operations(&run), losses(&run), faults(&run));
    let total: usize = operations.iter().filter(|(name, _)| is_answered(name)).map(|(_, n)| n).sum();
    let least =
        Least { slots: options.map_or(0, |options| options.workers), time: options.map(|options| nanos(options.time)) };
    // Only the run itself knows these: a later check takes them from its report.
    let earlier = options.is_none().then(|| fs::read_to_string(dir.join("report.json")).ok()).flatten();
    let earlier: Value = earlier.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let told = |what: &str| earlier["run"][what].as_array().into_iter().flatten().filter_map(Value::as_str);
    let broken: Vec<String> = broken.iter().cloned().chain(told("broken").map(str::to_owned)).collect();
    let few: Vec<String> = match options {
        Some(options) => too_few(options, total, &faults),
        None => told("too_few").map(str::to_owned).collect(),
    };
    let mut void = missing(&run, &verdict, least);
    void.extend(few.iter().cloned());
    let is_broken = broken.iter().any(|why| !why.starts_with("MISSING"));
    let code = match (verdict.violations.is_empty(), is_broken, void.is_empty()) {
        (false, _, _) => VIOLATED,
        (_, true, _) => BROKEN,
        (_, _, false) => VOID,
        _ => CLEAN,
    };
    let text = text(&run, &verdict, &operations, &losses, &faults, total, took, &broken, &void);
    print!("{text}");
    let list = |(at, violation): (usize, &crate::checker::Violation)| {
        let key = violation.key.map(|key| run.keys[key].as_str());
        json!({ "number": at, "rule": violation.rule, "key": key, "at_ns": violation.at, "text": violation.text })
    };
    let json = json!({
        "seed": options.map(|options| options.seed),
        "operations": operations, "total": total, "losses": losses, "faults_that_hit": faults,
        "stopped_at": stopped_at(&run), "left_behind": left_behind(&run),
        "judged": verdict.judged, "not_to_be_judged": verdict.blind, "explained_by_faults": verdict.excused,
        "violations": verdict.counts, "void": void, "broken": broken,
        "run": json!({ "broken": broken, "too_few": few }),
        "listed": verdict.violations.iter().enumerate().map(list).collect::<Vec<_>>(),
    });
    let write = |name: &str, text: String| {
        fs::write(dir.join(name), text).map_err(|error| format!("{}: {error}", dir.join(name).display()))
    };
    write("report.txt", text)?;
    write("report.json", format!("{json:#}\n"))?;
    for (at, violation) in verdict.violations.iter().enumerate().take(PICTURES) {
        if let Some(svg) = picture::draw(&run, violation) {
            write(&format!("violation-{at}.svg"), svg)?;
        }
    }
    println!("histories and reports: {}", dir.display());
    Ok(code)
}

fn too_few(options: &Options, total: usize, faults: &Counts) -> Vec<String> {
    let minutes = options.time.as_secs_f64() / 60.0;
    let least_ops = options.least_ops.unwrap_or((20.0 * options.workers as f64 * minutes) as usize);
    let least_faults = options.least_faults.unwrap_or((minutes / 2.0).ceil() as usize);
    let mut void = Vec::new();
    if total < least_ops {
        void.push(format!("{total} operations, but at least {least_ops} are needed"));
    }
    for fault in options.all_faults() {
        // For `wall` a clock that is only off does not count: it must have jumped.
        let is_one = |name: &str| if fault == "wall" { name == JUMP } else { name.split(' ').next() == Some(fault) };
        let hit: usize = faults.iter().filter(|(name, _)| is_one(name)).map(|(_, n)| n).sum();
        if hit < least_faults {
            void.push(format!("{hit} faults of the kind {fault} met anything, but at least {least_faults} are needed"));
        }
    }
    void
}

/// Whether operations of this name were answered: those that failed say nothing of the store.
fn is_answered(name: &str) -> bool {
    let answer = name.split_once(": ").map(|(_, answer)| answer);
    answer.is_some_and(|answer| ["granted", "refused", "ok", "accepted", "refused as late"].contains(&answer))
}

/// How often each call was made, and, with a colon in the name, how often it ended in which way.
fn operations(run: &Run) -> Counts {
    let mut counts = Counts::new();
    let mut count = |name: String| *counts.entry(name).or_default() += 1;
    for ask in &run.asks {
        let asked = &ask.asked;
        let form = match (asked.form, asked.instead_of, asked.keys.len()) {
            (Form::Name, _, _) => "claim",
            (Form::Data, _, _) => "acquire as data",
            (Form::Guard, Some(_), _) => "adopt",
            (Form::Guard, None, _) if asked.all => "lock all",
            (Form::Guard, None, 1) => match asked.wait {
                Some(0) => "try",
                Some(_) => "lock for a time",
                None => "lock",
            },
            _ => "lock any",
        };
        let name = if asked.mode == Mode::Shared { format!("{form}, shared") } else { form.to_owned() };
        let outcome = match &ask.outcome {
            Outcome::Granted => "granted".to_owned(),
            Outcome::Refused => "refused".to_owned(),
            Outcome::Failed(error) => error.clone(),
            Outcome::Open => "unanswered".to_owned(),
        };
        count(format!("{name}: {outcome}"));
        count(name);
    }
    for hold in &run.holds {
        let Some((_, how)) = hold.ending else { continue };
        let name = match how {
            End::Release => "release",
            End::Drop => "drop",
            End::Leave => "leave or hand over",
        };
        let answer = hold.ended.as_ref().map_or("unanswered", |(_, answer)| answer);
        count(format!("{name}: {answer}"));
        count(name.to_owned());
    }
    for write in &run.writes {
        count(format!("fenced write: {}", if write.accepted { "accepted" } else { "refused as late" }));
        count("fenced write".to_owned());
    }
    counts
}

fn losses(run: &Run) -> Counts {
    let mut counts = Counts::new();
    for (_, reason) in run.holds.iter().filter_map(|hold| hold.lost.as_ref()) {
        *counts.entry(reason.clone()).or_default() += 1;
    }
    counts
}

/// The faults that met something that was held or asked for.
fn faults(run: &Run) -> Counts {
    let mut counts = Counts::new();
    let mut count = |name: &str| *counts.entry(name.to_owned()).or_default() += 1;
    for (at, process) in run.processes.iter().enumerate() {
        process.stops.iter().filter(|(from, to)| process.busy.meets(*from, *to)).for_each(|_| count("stop"));
        process.points.iter().for_each(|_| count(POINTS));
        process.nets.iter().for_each(|(_, _, kind)| count(&format!("net {kind}")));
        process.dates.iter().for_each(|_| count(DATE));
        let is_open = |hold: &&crate::checker::Hold| hold.process == at && hold.ended.is_none();
        let asks = run.asks.iter().any(|ask| ask.process == at && ask.outcome == Outcome::Open);
        if process.dead.is_some() && (asks || run.holds.iter().any(|hold| is_open(&hold))) {
            count("kill");
        }
        let is_off = process.walls.first().is_some_and(|(_, seconds)| *seconds != 0);
        if is_off && run.holds.iter().any(|hold| hold.process == at) {
            count("wall off");
        }
        process.jumps.iter().filter(|(at, _)| process.busy.meets(*at, *at)).for_each(|_| count(JUMP));
    }
    let held = |key: usize| run.holds.iter().filter(move |hold| hold.key == key).flat_map(|hold| &hold.beliefs);
    for (key, deletions) in run.deletions.iter().enumerate() {
        let was_held = |(from, to): &&(u64, u64)| held(key).any(|(start, end)| start <= from && end >= to);
        deletions.iter().filter(was_held).for_each(|_| count(DELETED));
    }
    run.copies.iter().filter(|copy| copy.answered).for_each(|_| count(TWICE));
    run.forks.iter().for_each(|_| count("fork"));
    let is_busy = |from, to| run.processes.iter().any(|process| process.busy.meets(from, to));
    // The parent has seen that the disk was full, so no worker need have felt that.
    let has_met = |from, to, kind: &str| if kind == FULL { is_busy(from, to) } else { run.was_felt(from, to) };
    run.servers.iter().filter(|(from, to, kind)| has_met(*from, *to, kind)).for_each(|(_, _, kind)| count(kind));
    counts
}

/// How many threads were stopped at each mark of the library.
fn stopped_at(run: &Run) -> Counts {
    let mut counts = Counts::new();
    for point in run.processes.iter().flat_map(|process| &process.points) {
        *counts.entry(point.mark.clone()).or_default() += 1;
    }
    counts
}

/// What closed clients and the rows of the store still have.
fn left_behind(run: &Run) -> Counts {
    let sum = |counts: &mut dyn Iterator<Item = u64>| counts.sum::<u64>() as usize;
    let most = run.kept.iter().map(|row| row.holders).max().unwrap_or_default() as usize;
    let counts = [
        ("clients closed", run.closed.len()),
        ("threads", sum(&mut run.closed.iter().map(|closed| closed.threads))),
        ("descriptors", sum(&mut run.closed.iter().map(|closed| closed.descriptors))),
        ("holders in rows", sum(&mut run.kept.iter().map(|row| row.holders))),
        ("holders in one row at most", most),
        ("holders behind a purge", sum(&mut run.left.iter().map(|row| row.holders))),
    ];
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

#[allow(clippy::too_many_arguments)]
fn text(
    run: &Run,
    verdict: &Verdict,
    operations: &Counts,
    losses: &Counts,
    faults: &Counts,
    total: usize,
    took: f64,
    broken: &[String],
    void: &[String],
) -> String {
    let mut text = format!("{total} answered operations over {} keys, checked in {took:.1} s\n", run.keys.len());
    for (name, count) in operations {
        let indent = if name.contains(':') { "    " } else { "  " };
        text += &format!("{indent}{count:>8} {name}\n");
    }
    let (marks, left) = (&stopped_at(run), &left_behind(run));
    for (title, counts) in [
        ("losses", losses),
        ("faults that met something", faults),
        ("threads that were stopped", marks),
        ("left behind", left),
    ] {
        let list: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        text += &format!("{title}: {}\n", if list.is_empty() { "none".to_owned() } else { list.join(", ") });
    }
    for (rule, demand) in RULES {
        let of = |counts: &BTreeMap<&str, usize>| counts.get(rule).copied().unwrap_or_default();
        let (judged, blind, excused) = (of(&verdict.judged), of(&verdict.blind), of(&verdict.excused));
        let count = Some(of(&verdict.counts)).filter(|count| *count > 0);
        let count = count.map_or("ok".to_owned(), |count| count.to_string());
        let rest = format!("in faults: {blind} could not be, {excused} are explained by them");
        text += &format!("{count:>5} {rule}: {demand} ({judged} judged; {rest})\n");
    }
    for violation in verdict.violations.iter().take(LISTED) {
        let key = violation.key.map_or("", |key| &run.keys[key]);
        text += &format!("VIOLATION {} {key} at {}: {}\n", violation.rule, violation.at, violation.text);
        text += &requests_before(run, violation.at);
    }
    broken.iter().for_each(|why| text += &format!("BROKEN {why}\n"));
    void.iter().for_each(|why| text += &format!("VOID {why}\n"));
    text
}

/// The requests that failed or were late in the two leases before a violation, which help to explain it.
fn requests_before(run: &Run, at: u64) -> String {
    let mut text = String::new();
    for process in &run.processes {
        let are_near = |from: u64, to: u64| from <= at && to + 2 * run.terms.lease >= at;
        let near = process.requests.iter().filter(|(from, to, _)| are_near(*from, *to));
        for (from, to, why) in near.take(LISTED) {
            let [before, took] = [at - from, to - from].map(|nanos| nanos as f64 / 1e9);
            text += &format!("    a request of {}, {before:.3} s before, took {took:.3} s: {why}\n", process.name);
        }
    }
    text
}
