//! The callbacks, on one thread of their own, so that they come in order and each "won" is followed by its "lost".

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, never};
use parking_lot::Mutex;

use super::leader::Leader;
use super::leadership::TermEnd;
use crate::model::error::Result;
use crate::model::loss::Loss;
use crate::sys::aside::{MOST_IN_PAIRS, MOST_WAITING};
use crate::sys::deadline::is_ready_by;
use crate::sys::log;
use crate::sys::observing::contained;
use crate::sys::process::ProcessId;
use crate::sys::thread::{Thread, keeping_a_lock};

type OnWon = Box<dyn FnMut(u64) + Send>;
type OnLost = Box<dyn FnMut(u64, &TermEnd) + Send>;
type OnLeader = Box<dyn FnMut(&Leader) + Send>;

/// The callbacks that the user has set.
#[derive(Default)]
pub(super) struct Callbacks {
    pub won: Option<OnWon>,
    pub lost: Option<OnLost>,
    pub leader: Option<OnLeader>,
}

enum Message {
    /// A term with this token began; the channel reports its loss.
    Won(u64, Receiver<Loss>),
    /// The term ended; ignored if its loss was already reported.
    Over(u64, TermEnd),
    Leader(Leader),
    /// Dropped once everything before it was reported.
    Flush(Sender<Infallible>),
}

/// See the module.
pub(super) struct Dispatcher {
    // `None` once the thread has taken them.
    callbacks: Arc<Mutex<Option<Callbacks>>>,
    is_wanted: bool,
    messages: Sender<Message>,
    inbox: Mutex<Option<Receiver<Message>>>,
    thread: Mutex<Option<Thread>>,
    /// The tokens of the terms of which nothing is reported.
    left_out: Mutex<BTreeSet<u64>>,
    has_warned: AtomicBool,
}

impl Dispatcher {
    pub fn new(callbacks: Callbacks) -> Self {
        let is_wanted = callbacks.won.is_some() || callbacks.lost.is_some() || callbacks.leader.is_some();
        let (messages, inbox) = crossbeam_channel::unbounded();
        let (callbacks, inbox) = (Arc::new(Mutex::new(Some(callbacks))), Mutex::new(Some(inbox)));
        let (thread, left_out, has_warned) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Dispatcher { callbacks, is_wanted, messages, inbox, thread, left_out, has_warned }
    }

    /// Starts the thread if there are callbacks. After this value is dropped the thread reports what is left, and ends.
    pub fn start(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if self.is_wanted && thread.is_none() {
            let (callbacks, inbox) = (self.callbacks.clone(), self.inbox.lock().clone());
            *thread = Some(Thread::spawn_for_user("leasehold-told", move || {
                let callbacks = callbacks.lock().take();
                if let (Some(callbacks), Some(inbox)) = (callbacks, inbox) {
                    run(callbacks, inbox);
                }
            })?);
            // From now on the thread has the only receiver.
            self.inbox.lock().take();
        }
        Ok(())
    }

    /// Reports a win. If a callback hangs and `MOST_IN_PAIRS` messages wait, the whole term is left out: its win and
    /// its end.
    pub fn won(&self, token: u64, loss: Receiver<Loss>) {
        if self.messages.len() < MOST_IN_PAIRS {
            return self.tell(Message::Won(token, loss));
        }
        self.left_out.lock().insert(token);
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            keeping_a_lock(
                || log::warn!(target: "leasehold::election", "a callback of an election hangs: it misses some terms"),
            );
        }
    }

    pub fn over(&self, token: u64, end: TermEnd) {
        if !self.left_out.lock().remove(&token) {
            self.tell(Message::Over(token, end));
        }
    }

    /// Reports a leader. False if it is left out, because a callback hangs and `MOST_WAITING` messages wait.
    pub fn leader(&self, leader: Leader) -> bool {
        let has_room = self.messages.len() < MOST_WAITING;
        if has_room {
            self.tell(Message::Leader(leader));
        }
        has_room
    }

    fn tell(&self, message: Message) {
        if self.is_wanted {
            let _ = self.messages.send(message);
        }
    }

    /// Waits until everything is reported, at most until `by`. Called by a callback, it does not wait.
    pub fn flush(&self, by: Instant) {
        if self.thread.lock().as_ref().is_some_and(|thread| !thread.is_here()) {
            let (told, all_told) = crossbeam_channel::bounded(0);
            self.tell(Message::Flush(told));
            is_ready_by(&all_told, by);
        }
    }
}

fn run(mut callbacks: Callbacks, inbox: Receiver<Message>) {
    let process = ProcessId::current();
    let mut term: Option<(u64, Receiver<Loss>)> = None;
    // A node may win again before it is known how its last term ended. Messages since that second win wait here.
    let mut later = VecDeque::new();
    let nothing = never();
    loop {
        // Only a win waits here for the end of the open term. Other messages do not, because that end may be one of
        // them.
        let next = match later.front() {
            Some(Message::Won(..)) if term.is_some() => None,
            _ => later.pop_front(),
        };
        let loss = term.as_ref().map_or(&nothing, |(_, loss)| loss);
        let message = match next {
            Some(message) => message,
            None if is_lost_next(&inbox, loss) => match (loss.try_recv(), &mut term) {
                (Ok(loss), Some((token, _))) => Message::Over(*token, TermEnd::Lost(loss)),
                // A release disconnects the channel, and sends a message of its own that says why.
                (Err(TryRecvError::Disconnected), Some((_, loss))) => {
                    *loss = never();
                    continue;
                }
                _ => continue,
            },
            None => match (inbox.try_recv(), &term) {
                (Ok(message @ Message::Over(token, _)), Some((open, _))) if token == *open => message,
                (Ok(message), Some(_)) if matches!(message, Message::Won(..)) || !later.is_empty() => {
                    later.push_back(message);
                    continue;
                }
                (Ok(message), _) => message,
                (Err(TryRecvError::Empty), _) => continue,
                (Err(TryRecvError::Disconnected), _) => return,
            },
        };
        match message {
            Message::Won(token, loss) => {
                term = Some((token, loss));
                callbacks.won.iter_mut().for_each(|won| contained("won callback", || won(token)));
            }
            Message::Over(token, end) => {
                if term.take_if(|(current, _)| *current == token).is_some() {
                    callbacks.lost.iter_mut().for_each(|lost| contained("lost callback", || lost(token, &end)));
                }
            }
            Message::Leader(leader) => {
                callbacks.leader.iter_mut().for_each(|seen| contained("leader callback", || seen(&leader)));
            }
            Message::Flush(told) => drop(told),
        }
        // A callback may have forked: in the child nothing is reported.
        if !process.is_current() {
            return std::mem::forget((callbacks, inbox, term, later));
        }
    }
}

/// Waits until either has a message or is disconnected; returns whether it is the loss. It takes no message: if a
/// thread waits to take one, the sender calls `thread::current()`, which panics in a thread that is ending.
fn is_lost_next(inbox: &Receiver<Message>, loss: &Receiver<Loss>) -> bool {
    let mut select = Select::new();
    let (_, lost) = (select.recv(inbox), select.recv(loss));
    select.ready() == lost
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::sys::deadline::far_from;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_term_that_ends_before_the_end_of_the_last_one_is_known_stops_nothing() {
        let (told, tells) = channel();
        let (won, lost) = (told.clone(), told);
        let dispatcher = Dispatcher::new(Callbacks {
            won: Some(Box::new(move |token| won.send(("won", token)).unwrap_or_default())),
            lost: Some(Box::new(move |token, _| lost.send(("lost", token)).unwrap_or_default())),
            leader: None,
        });
        let expected = [("won", 1), ("lost", 1), ("won", 2), ("lost", 2), ("won", 3), ("lost", 3)];
        let (loss, losses) = crossbeam_channel::bounded(1);
        dispatcher.won(1, never());
        dispatcher.won(2, losses);
        dispatcher.over(2, TermEnd::Resigned);
        dispatcher.won(3, never());
        dispatcher.over(3, TermEnd::Resigned);
        // As by a thread that is delayed before it reports the end, while other threads go on.
        dispatcher.over(1, TermEnd::Resigned);
        // Released: no loss is reported.
        drop(loss);
        assert!(dispatcher.start().is_ok());
        let by = far_from(Instant::now(), LONG);
        dispatcher.flush(by);
        assert!(Instant::now() < by, "the flush had to be given up");
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn new_leaders_behind_a_callback_that_hangs_cost_only_so_much_memory() {
        let (told, tells) = channel();
        let (open, gate) = crossbeam_channel::bounded::<Infallible>(0);
        let seen = move |_: &Leader| {
            let _ = gate.recv();
            told.send(()).unwrap_or_default();
        };
        let dispatcher = Dispatcher::new(Callbacks { leader: Some(Box::new(seen)), ..Callbacks::default() });
        let lock = crate::LockClient::connect("memory:").and_then(|client| client.request("k").acquire()).unwrap();
        assert!(dispatcher.start().is_ok());
        for _ in 0..MOST_WAITING + 5 {
            dispatcher.leader(Leader::by(&lock));
        }
        drop(open);
        dispatcher.flush(far_from(Instant::now(), LONG));
        // The callback may have taken the first of them already.
        let count = tells.try_iter().count();
        assert!((MOST_WAITING..=MOST_WAITING + 1).contains(&count), "{count} were kept");
    }

    #[test]
    fn terms_behind_a_callback_that_hangs_are_left_out_as_a_whole() {
        let (told, tells) = channel();
        let (won, lost) = (told.clone(), told);
        let (open, gate) = crossbeam_channel::bounded::<Infallible>(0);
        let dispatcher = Dispatcher::new(Callbacks {
            won: Some(Box::new(move |token| {
                let _ = gate.recv();
                won.send((token, true)).unwrap_or_default();
            })),
            lost: Some(Box::new(move |token, _| lost.send((token, false)).unwrap_or_default())),
            leader: None,
        });
        assert!(dispatcher.start().is_ok());
        for token in 0..2 * MOST_IN_PAIRS as u64 {
            dispatcher.won(token, never());
            dispatcher.over(token, TermEnd::Resigned);
        }
        drop(open);
        dispatcher.flush(far_from(Instant::now(), LONG));
        dispatcher.won(u64::MAX, never());
        dispatcher.over(u64::MAX, TermEnd::Resigned);
        dispatcher.flush(far_from(Instant::now(), LONG));
        let told: Vec<_> = tells.try_iter().collect();
        assert!(told.len() <= MOST_IN_PAIRS + 6, "{} were kept", told.len());
        assert!(told.chunks(2).all(|pair| pair[0].0 == pair[1].0 && pair[0].1 && !pair[1].1), "pairs");
        assert_eq!(told.last(), Some(&(u64::MAX, false)), "and those after it are told");
    }

    #[test]
    fn one_callback_alone_is_told_and_waited_for() {
        for only_lost in [false, true] {
            let (told, tells) = channel();
            let (open, gate) = crossbeam_channel::bounded::<Infallible>(0);
            let tell = move |token| {
                let _ = gate.recv();
                told.send(token).unwrap_or_default();
            };
            let callbacks = match only_lost {
                true => Callbacks { lost: Some(Box::new(move |token, _| tell(token))), ..Callbacks::default() },
                false => Callbacks { won: Some(Box::new(tell)), ..Callbacks::default() },
            };
            let dispatcher = Dispatcher::new(callbacks);
            dispatcher.won(1, never());
            dispatcher.over(1, TermEnd::Resigned);
            assert!(dispatcher.start().is_ok() && dispatcher.start().is_ok(), "it is started once");
            let by = far_from(Instant::now(), Duration::from_millis(50));
            dispatcher.flush(by);
            assert!(Instant::now() >= by, "the callback had not ended");
            drop(open);
            dispatcher.flush(far_from(Instant::now(), LONG));
            assert_eq!(tells.try_iter().collect::<Vec<_>>(), [1]);
        }
    }
}
