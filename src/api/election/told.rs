//! Callbacks, on one thread of their own, so that they come in order and each "won" has its "lost".

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, never, select};
use parking_lot::Mutex;

use super::leader::Leader;
use super::leadership::TermEnd;
use crate::model::error::Result;
use crate::model::loss::Loss;
use crate::sys::observing::contained;
use crate::sys::thread::Thread;

type OnWon = Box<dyn FnMut(u64) + Send>;
type OnLost = Box<dyn FnMut(u64, &TermEnd) + Send>;
type OnLeader = Box<dyn FnMut(&Leader) + Send>;

/// What the user wants to be told.
#[derive(Default)]
pub(super) struct Callbacks {
    pub won: Option<OnWon>,
    pub lost: Option<OnLost>,
    pub leader: Option<OnLeader>,
}

enum Message {
    /// A term with this token began; the channel tells its loss.
    Won(u64, Receiver<Loss>),
    /// It ended, unless its loss was told already.
    Over(u64, TermEnd),
    Leader(Leader),
    /// Dropped when all that came before was told.
    Flush(Sender<Infallible>),
}

/// See the module.
pub(super) struct Teller {
    // `None` once the thread has them.
    callbacks: Arc<Mutex<Option<Callbacks>>>,
    is_wanted: bool,
    messages: Sender<Message>,
    inbox: Mutex<Option<Receiver<Message>>>,
    thread: Mutex<Option<Thread>>,
}

impl Teller {
    pub fn new(callbacks: Callbacks) -> Self {
        let is_wanted = callbacks.won.is_some() || callbacks.lost.is_some() || callbacks.leader.is_some();
        let (messages, inbox) = crossbeam_channel::unbounded();
        let (callbacks, inbox) = (Arc::new(Mutex::new(Some(callbacks))), Mutex::new(Some(inbox)));
        Teller { callbacks, is_wanted, messages, inbox, thread: Mutex::default() }
    }

    /// Starts its thread if anybody wants to be told; it ends with this value, when all is told.
    pub fn start(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if self.is_wanted && thread.is_none() {
            let (callbacks, inbox) = (self.callbacks.clone(), self.inbox.lock().clone());
            *thread = Some(Thread::spawn_for_user("leasehold-told", move || {
                let callbacks = callbacks.lock().take();
                if let (Some(callbacks), Some(inbox)) = (callbacks, inbox) {
                    run(callbacks, &inbox);
                }
            })?);
            // The thread has the only one left.
            self.inbox.lock().take();
        }
        Ok(())
    }

    pub fn won(&self, token: u64, loss: Receiver<Loss>) {
        self.tell(Message::Won(token, loss));
    }

    pub fn over(&self, token: u64, end: TermEnd) {
        self.tell(Message::Over(token, end));
    }

    pub fn leader(&self, leader: Leader) {
        self.tell(Message::Leader(leader));
    }

    fn tell(&self, message: Message) {
        if self.is_wanted {
            let _ = self.messages.send(message);
        }
    }

    /// Waits until all is told, or `by`. Called by a callback, it does not wait.
    pub fn flush(&self, by: Instant) {
        let me = std::thread::current().id();
        if self.thread.lock().as_ref().is_some_and(|thread| thread.id() != me) {
            let (told, all_told) = crossbeam_channel::bounded(0);
            self.tell(Message::Flush(told));
            let _ = all_told.recv_deadline(by);
        }
    }
}

fn run(mut callbacks: Callbacks, inbox: &Receiver<Message>) {
    let mut term: Option<(u64, Receiver<Loss>)> = None;
    // A node may win again before it is known how its last term ended: what was said since the second win.
    let mut later = VecDeque::new();
    let nothing = never();
    loop {
        let next = if term.is_none() { later.pop_front() } else { None };
        let loss = term.as_ref().map_or(&nothing, |(_, loss)| loss);
        let message = match next {
            Some(message) => message,
            None => select! {
                recv(inbox) -> message => match (message, &term) {
                    (Ok(message @ Message::Over(token, _)), Some((open, _))) if token == *open => message,
                    (Ok(message), Some(_)) if matches!(message, Message::Won(..)) || !later.is_empty() => {
                        later.push_back(message);
                        continue;
                    }
                    (Ok(message), _) => message,
                    (Err(_), _) => return,
                },
                // It is disconnected when the lock is released: who does that says why.
                recv(loss) -> loss => match (loss, &mut term) {
                    (Ok(loss), Some((token, _))) => Message::Over(*token, TermEnd::Lost(loss)),
                    (_, Some((_, loss))) => { *loss = never(); continue }
                    (_, None) => continue,
                },
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
    }
}
