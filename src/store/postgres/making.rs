//! Connections for those who find none idle. Each makes one of its own, but in a task beside it: who has no more time
//! leaves it to the next, who may have as little.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::AbortHandle;

use super::error::PostgresError;
use super::send::{Connected, Owned};
use super::turns::CONNECTIONS;
use crate::store::failure::Fate;

type Made = Result<Connected, (Fate, PostgresError)>;

/// The tasks that nobody waits for. Some have ended.
#[derive(Default)]
pub(super) struct Making(RefCell<Vec<AbortHandle>>);

impl Making {
    /// Ends so many that they, and those that are in use, are no more than there are turns. The oldest go on: they are the
    /// next to be made.
    pub fn leave_room(&self, in_use: usize) {
        let mut left = self.0.borrow_mut();
        left.retain(|task| !task.is_finished());
        let room = (2 * CONNECTIONS).saturating_sub(in_use).min(left.len());
        left.drain(room..).for_each(|newest| newest.abort());
    }
}

/// Somebody who waits for a connection.
struct Waits<'a> {
    owned: &'a Owned,
    made: oneshot::Receiver<Made>,
    task: AbortHandle,
    /// The host that is asked.
    asked: Rc<Cell<Option<usize>>>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        match self.made.try_recv() {
            // It came too late for its caller.
            Ok(Ok(connected)) => self.owned.keep(connected),
            Err(TryRecvError::Empty) => {
                self.owned.making.0.borrow_mut().push(self.task.clone());
                self.asked.get().into_iter().for_each(|host| self.owned.turn_from(host));
            }
            Ok(Err(_)) | Err(TryRecvError::Closed) => {}
        }
    }
}

impl Owned {
    /// A connection for one who has a turn.
    pub(super) async fn connection(self: &Rc<Self>) -> Made {
        if let Some(spare) = self.spare() {
            return Ok(spare);
        }
        self.making.leave_room(self.turns.taken());
        let ((done, made), asked) = (oneshot::channel(), Rc::<Cell<Option<usize>>>::default());
        let (owned, at) = (self.clone(), asked.clone());
        let making = async move {
            let made = owned.connect(&at, |_| {}).await.map(|(connected, _)| connected);
            if let Err(Ok(left)) = done.send(made) {
                owned.keep(left);
            }
        };
        let task = tokio::task::spawn_local(making).abort_handle();
        let mut waits = Waits { owned: self, made, task, asked };
        (&mut waits.made).await.unwrap_or(Err((Fate::NotDone, PostgresError::PanickedBefore)))
    }
}
