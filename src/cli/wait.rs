//! The wait for a lock, on a thread of its own: the main thread listens to signals and draws the waiting line.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, select, tick, unbounded};
use leasehold::{CancelToken, LockGuard, LockRequest, LockStatus, Result, Waiting};
use nix::sys::signal::Signal;

use crate::failure::{Failure, Outcome, code};
use crate::show::{say, wait_line};
use crate::signals::ENDING;
use crate::words::{age, words};

/// What a wait may put on standard error.
#[derive(Clone, Copy)]
pub struct Shows {
    pub words: bool,
    /// Drawn over and over.
    pub line: bool,
}

/// The guard, or the code of the signal that ended the wait.
pub fn wait(request: LockRequest, signals: &Receiver<Signal>, shows: Shows) -> Outcome<LockGuard> {
    let cancel = CancelToken::new();
    let (told, waits) = unbounded();
    // The channel stays open when the request is over: a closed one is always ready.
    let _open = told.clone();
    let request = request.cancel(&cancel).on_wait(move |waiting| drop(told.send((Instant::now(), waiting.clone()))));
    let (done, outcome) = bounded(1);
    let waiter = thread::Builder::new().name("leasehold-wait".to_owned());
    waiter
        .spawn(move || drop(done.send(request.lock())))
        .map_err(|error| Failure::Own(code::INTERNAL, format!("no thread could be started: {error}")))?;
    let outer = std::env::var("LEASEHOLD_LOCK_ID").ok().filter(|_| shows.words);
    let mut display = Display { draws: shows.line, outer, seen: None };
    let seconds = tick(Duration::from_secs(1));
    let mut ended_by = None;
    let outcome: Result<LockGuard> = loop {
        select! {
            recv(outcome) -> outcome => match outcome {
                Ok(outcome) => break outcome,
                Err(_) => return Err(Failure::Own(code::INTERNAL, "the waiting thread ended early".to_owned())),
            },
            recv(waits) -> waiting => waiting.into_iter().for_each(|waiting| display.told(waiting)),
            recv(seconds) -> _ => display.draw(),
            recv(signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| ENDING.contains(signal)) {
                if ended_by.is_some() {
                    // Asked twice: no time to take back what may be under way.
                    display.end();
                    return Err(Failure::Silent(code::SIGNAL + signal as u8));
                }
                ended_by = Some(signal);
                cancel.cancel();
            },
        }
    };
    display.end();
    match ended_by {
        // A lock that was granted at this moment goes with its guard.
        Some(signal) => Err(Failure::Silent(code::SIGNAL + signal as u8)),
        None => Ok(outcome?),
    }
}

/// The line that tells who holds the lock, drawn each second.
struct Display {
    draws: bool,
    /// The lock id of the leasehold in whose command this one runs, until it was named.
    outer: Option<String>,
    seen: Option<Seen>,
}

struct Seen {
    waiting: Waiting,
    told: Instant,
    looked: Instant,
}

impl Display {
    fn told(&mut self, (told, mut waiting): (Instant, Waiting)) {
        let is_outer = |outer: &mut String| waiting.holders.iter().any(|holder| holder.lock_id() == *outer);
        if self.outer.take_if(is_outer).is_some() {
            let key = &waiting.key;
            say(&format!("{key:?} is held by the leasehold around this one, which waits for it: neither can go on"));
        }
        let before = self.seen.take();
        let is_first = before.is_none();
        let looked = match before {
            // Nobody has looked again: the holders are those of then.
            Some(before) if before.waiting.attempts == waiting.attempts => {
                waiting.holders = before.waiting.holders;
                before.looked
            }
            _ => told,
        };
        self.seen = Some(Seen { waiting, told, looked });
        if is_first {
            self.draw();
        }
    }

    fn draw(&self) {
        if let Some(seen) = self.seen.as_ref().filter(|_| self.draws) {
            wait_line(&line(seen));
        }
    }

    fn end(&self) {
        if self.draws {
            wait_line("");
        }
    }
}

/// What is most wanted comes first: the end of the line may be cut off.
fn line(Seen { waiting, told, looked }: &Seen) -> String {
    let holders = match (waiting.holders.as_slice(), &waiting.last_error) {
        (_, Some(error)) => format!("the store is in trouble: {error}"),
        ([], None) => "it looks free".to_owned(),
        ([one], None) => held_by(one, looked.elapsed()),
        ([one, rest @ ..], None) => format!("{} (and {} more)", held_by(one, looked.elapsed()), rest.len()),
    };
    let place = if waiting.place == 0 { String::new() } else { format!(", {} before us", waiting.place) };
    let waited = waiting.waited + told.elapsed();
    let until = waiting.until.map_or_else(String::new, |until| {
        format!(" of {}", whole(waited + until.saturating_duration_since(Instant::now())))
    });
    let waited = whole(waited);
    format!("leasehold: {holders}; waiting for {:?} for {waited}{until}{place}", waiting.key)
}

/// `looked`: how long ago that was.
fn held_by(status: &LockStatus, looked: Duration) -> String {
    let lease = match status.remaining().map(|left| left.saturating_sub(looked)) {
        None => ", without end".to_owned(),
        // It may have been renewed meanwhile.
        Some(Duration::ZERO) => String::new(),
        Some(left) => format!(", its lease ends in {} unless it is renewed", whole(left)),
    };
    format!("held by {:?} for {}{lease}", status.owner(), whole(age(status.created())))
}

/// In whole seconds, so that it does not flicker.
fn whole(d: Duration) -> String {
    words(Duration::from_secs((d + Duration::from_millis(500)).as_secs()))
}
