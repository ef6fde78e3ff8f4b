//! The wait for the store and for a lock, on a thread of its own: the main thread listens to signals and draws the
//! waiting line.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{after, at, bounded, never, select, tick, unbounded};
use leasehold::{CancelToken, Error, LockClient, LockStatus, Result, Waiting};
use nix::sys::signal::Signal;

use crate::failure::{Failure, Outcome, chain, code};
use crate::held::{Held, Told, outer_lock_ids};
use crate::job::looks_again;
use crate::signals::{Gone, Interrupts, ended_by_key};
use crate::terminal::Terminal;
use crate::warnings::{draw, settle, tell};
use crate::words::{age, whole, words};

/// The pause after the first try to connect. It doubles up to the last one, and each is up to half as long again at
/// random, so that many processes that start together do not connect together.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What a wait may put on standard error.
#[derive(Clone, Copy)]
pub struct Shows {
    pub words: bool,
    /// The waiting line, which is drawn over and over.
    pub line: bool,
}

/// Connects. While the store is in trouble it tries again and again, but not after `until`. The first try may take as
/// long as it needs.
pub fn connect(
    connect: impl Fn() -> Outcome<LockClient> + Send + Sync + 'static,
    until: Option<Instant>,
    interrupts: &Interrupts,
    shows: Shows,
) -> Outcome<LockClient> {
    let outcome = connected(&Arc::new(connect), until, interrupts, shows);
    if shows.line {
        draw(String::new());
    }
    settle();
    outcome
}

fn connected(
    connect: &Arc<impl Fn() -> Outcome<LockClient> + Send + Sync + 'static>,
    until: Option<Instant>,
    interrupts: &Interrupts,
    shows: Shows,
) -> Outcome<LockClient> {
    let try_once = || {
        let (connect, (done, outcome)) = (connect.clone(), bounded(1));
        on_thread("leasehold-connect", move || drop(done.send(connect())))?;
        Ok::<_, Failure>(outcome)
    };
    let (started, seconds, mut pause) = (Instant::now(), tick(Duration::from_secs(1)), FIRST_PAUSE);
    let (mut outcome, mut again, mut over) = (try_once()?, never(), never());
    let mut trouble: Option<Error> = None;
    let mut said = String::new();
    loop {
        select! {
            recv(outcome) -> ended => match ended {
                Ok(Err(Failure::Library(error)))
                    if error.is_retryable() && until.is_none_or(|until| Instant::now() < until) =>
                {
                    let why = in_one_line(&error);
                    // Reported once, however often only causes, times and ports differ.
                    let kind_of = error.to_string().replace(|c: char| c.is_ascii_digit(), "");
                    if kind_of != said && shows.words {
                        tell(&format!("waiting for the store: {why}"));
                    }
                    said = kind_of;
                    trouble = Some(error);
                    (outcome, over) = (never(), until.map_or_else(never, at));
                    again = after(pause.mul_f64(1.0 + fastrand::f64() / 2.0));
                    pause = (2 * pause).min(LAST_PAUSE);
                }
                Ok(outcome) => return outcome,
                Err(_) => return Err(ended_early()),
            },
            recv(again) -> _ => (outcome, again) = (try_once()?, never()),
            recv(over) -> _ => return Err(trouble.map_or_else(ended_early, Failure::from)),
            recv(seconds) -> _ => if let Some(error) = trouble.as_ref().filter(|_| shows.line) {
                let of = until.map_or_else(String::new, |until| format!(" of {}", in_seconds(until - started)));
                let waited = in_seconds(started.elapsed());
                draw(format!("leasehold: waiting for the store for {waited}{of}: {}", in_one_line(error)));
            },
            recv(interrupts.signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| interrupts.end_wait(*signal)) {
                return Err(by_signal(signal));
            },
            recv(looks_again()) -> _ => {
                interrupts.end_wait(Signal::SIGCHLD);
            }
            recv(interrupts.gone) -> who => return Err(without_need(who.ok())),
        }
    }
}

/// The error with its causes, in one line: the server's text may have several.
fn in_one_line(error: &Error) -> String {
    chain(error).replace('\n', " ")
}

/// The failure if this signal has ended the wait.
pub fn by_signal(signal: Signal) -> Failure {
    if Terminal::open().is_some_and(|terminal| terminal.is_ours()) {
        ended_by_key(signal);
    }
    Failure::told_to_end(signal)
}

/// The failure if the lock is not needed any more, as `who` says.
fn without_need(who: Option<Gone>) -> Failure {
    let who = who.unwrap_or_else(|| "whoever it is for is gone".to_owned());
    Failure::Own(code::CONFLICT, format!("{who}, and the lock was not obtained before"))
}

pub fn on_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome<()> {
    let failed = |error| Failure::Own(code::INTERNAL, format!("no thread could be started: {error}"));
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(failed)
}

fn ended_early() -> Failure {
    Failure::Own(code::INTERNAL, "the waiting thread ended early".to_owned())
}

/// Waits for the locks. Returns them, or what ended the wait.
pub fn wait(
    lock: impl FnOnce(&CancelToken, Option<Told>) -> Result<Held> + Send + 'static,
    interrupts: &Interrupts,
    shows: Shows,
) -> Outcome<Held> {
    let cancel = CancelToken::new();
    // The channel stays open when the request is over: a closed one is always ready.
    let (told, waits) = unbounded();
    let outer = if shows.words { outer_lock_ids() } else { Vec::new() };
    // Only if needed, because each report of the wait wakes two threads.
    let hears = (shows.line || !outer.is_empty()).then(|| told.clone());
    let (done, outcome) = bounded(1);
    let cancelled = cancel.clone();
    on_thread("leasehold-wait", move || drop(done.send(lock(&cancelled, hears))))?;
    let mut display = Display { draws: shows.line, outer, seen: None };
    let seconds = if shows.line { tick(Duration::from_secs(1)) } else { never() };
    let (mut ended_by, mut gone) = (None, interrupts.gone.clone());
    let outcome: Result<Held> = loop {
        select! {
            recv(outcome) -> outcome => match outcome {
                Ok(outcome) => break outcome,
                Err(_) => return Err(ended_early()),
            },
            recv(waits) -> waiting => waiting.into_iter().for_each(|waiting| display.told(waiting)),
            recv(seconds) -> _ => display.draw(),
            recv(interrupts.signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| interrupts.end_wait(*signal)) {
                if ended_by.is_some() {
                    // The second signal: there is no time to undo an acquisition that may be under way.
                    display.end();
                    return Err(by_signal(signal));
                }
                ended_by = Some(by_signal(signal));
                cancel.cancel();
            },
            recv(looks_again()) -> _ => {
                interrupts.end_wait(Signal::SIGCHLD);
            }
            recv(gone) -> who => {
                gone = never();
                ended_by.get_or_insert_with(|| without_need(who.ok()));
                cancel.cancel();
            }
        }
    };
    display.end();
    match ended_by {
        // A lock that was granted at this moment is released by the drop of its guard.
        Some(failure) => Err(failure),
        None => Ok(outcome?),
    }
}

/// The line that says who holds the lock, drawn each second.
struct Display {
    draws: bool,
    /// The lock ids of the leaseholds in whose commands this one runs; empty once one of them was reported as the
    /// holder.
    outer: Vec<String>,
    seen: Option<Seen>,
}

struct Seen {
    waiting: Waiting,
    told: Instant,
}

impl Display {
    fn told(&mut self, (told, waiting): (Instant, Waiting)) {
        let is_outer = |outer: &String| waiting.holders.iter().any(|holder| holder.lock_id() == *outer);
        if self.outer.iter().any(is_outer) {
            self.outer.clear();
            let key = &waiting.key;
            tell(&format!("{key:?} is held by the leasehold around this one, which waits for it: neither can go on"));
        }
        if self.seen.replace(Seen { waiting, told }).is_none() {
            self.draw();
        }
    }

    fn draw(&self) {
        if let Some(seen) = self.seen.as_ref().filter(|_| self.draws) {
            draw(line(seen));
        }
    }

    fn end(&self) {
        if self.draws {
            draw(String::new());
        }
        settle();
    }
}

/// The waiting line. The most useful part comes first, because the end of the line may be cut off.
fn line(Seen { waiting, told }: &Seen) -> String {
    let holders = match (waiting.holders.as_slice(), &waiting.last_error) {
        (_, Some(error)) => format!("the store is in trouble: {error}"),
        ([], None) => "it looks free".to_owned(),
        ([one], None) => held_by(one),
        ([one, rest @ ..], None) => format!("{} (and {} more)", held_by(one), rest.len()),
    };
    let place = if waiting.place == 0 { String::new() } else { format!(", {} before us", waiting.place) };
    let waited = waiting.waited + told.elapsed();
    let until = waiting.until.map_or_else(String::new, |until| {
        format!(" of {}", in_seconds(waited + until.saturating_duration_since(Instant::now())))
    });
    let waited = in_seconds(waited);
    format!("leasehold: {holders}; waiting for {:?} for {waited}{until}{place}", waiting.key)
}

fn held_by(status: &LockStatus) -> String {
    let lease = match status.remaining_now() {
        None => ", without end".to_owned(),
        // The lease may have been renewed meanwhile.
        Some(Duration::ZERO) => String::new(),
        Some(left) => format!(", leased for {} more", in_seconds(left)),
    };
    format!("held by {:?} for {}{lease}", status.owner(), in_seconds(age(status.created())))
}

/// In whole seconds, so that the line does not flicker.
fn in_seconds(d: Duration) -> String {
    words(whole(d))
}
