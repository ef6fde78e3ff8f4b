//! Makes connections for callers that find none idle. Each caller begins one of its own, but in a separate task: a
//! caller that has no more time leaves it to the next caller, which may have as little time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::AbortHandle;

use super::error::PostgresError;
use super::send::{Connected, Owned, QUIET};
use super::turns::CONNECTIONS;
use crate::store::failure::Fate;

type Made = Result<Connected, (Fate, PostgresError)>;

/// The connections that no caller waits for, in the order in which they were left. Some are made already.
#[derive(Default)]
pub(super) struct Making(RefCell<Vec<Begun>>);

/// A connection that is being made.
struct Begun {
    made: oneshot::Receiver<Made>,
    task: AbortHandle,
    since: Instant,
    /// The host that is being tried.
    asked: Rc<Cell<Option<usize>>>,
}

/// A caller that waits for a connection until it is made. If this is dropped before, others get the connection.
struct Waits<'a>(&'a Owned, Option<Begun>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Some(begun) = self.1.take() else { return };
        if let Some(host) = begun.asked.get()
            && !begun.task.is_finished()
        {
            self.0.turn_from(host);
        }
        self.0.making.0.borrow_mut().push(begun);
    }
}

impl Owned {
    /// A connection for a caller that has a turn.
    pub(super) async fn connection(self: &Rc<Self>) -> Made {
        self.collect();
        if let Some(spare) = self.spare() {
            return Ok(spare);
        }
        let begun = self.adopted().unwrap_or_else(|| self.begin());
        self.wait_for(begun).await
    }

    /// There are no more connections than turns. If the others have all of those, the caller adopts one that was left,
    /// unless all of these may be stuck: then the first of them is ended.
    fn adopted(&self) -> Option<Begun> {
        let mut left = self.making.0.borrow_mut();
        if left.len() + self.turns.taken() <= 2 * CONNECTIONS {
            return None;
        }
        let first = self.first_host();
        let may_come =
            |begun: &Begun| begun.since.elapsed() < QUIET && begun.asked.get().is_none_or(|host| host == first);
        let at = left.iter().position(may_come);
        if at.is_none() {
            left.remove(0).task.abort();
        }
        at.map(|at| left.remove(at))
    }

    async fn wait_for(&self, begun: Begun) -> Made {
        let mut waits = Waits(self, Some(begun));
        let Some(begun) = &mut waits.1 else { return Err((Fate::NotDone, PostgresError::NotSent)) };
        let made = (&mut begun.made).await;
        waits.1 = None;
        made.unwrap_or(Err((Fate::NotDone, PostgresError::PanickedBefore)))
    }

    fn begin(self: &Rc<Self>) -> Begun {
        let ((done, made), asked) = (oneshot::channel(), Rc::<Cell<Option<usize>>>::default());
        let (owned, at) = (self.clone(), asked.clone());
        let making = async move {
            let made = owned.connect(&at, |_| {}).await.map(|(connected, _)| connected);
            let _ = done.send(made);
        };
        Begun { made, task: tokio::task::spawn_local(making).abort_handle(), since: Instant::now(), asked }
    }

    /// Puts the connections that are made among the idle ones.
    fn collect(&self) {
        let is_left = |begun: &mut Begun| match begun.made.try_recv() {
            Err(TryRecvError::Empty) => true,
            Ok(Ok(connected)) => {
                self.keep(connected);
                false
            }
            Ok(Err(_)) | Err(TryRecvError::Closed) => false,
        };
        self.making.0.borrow_mut().retain_mut(is_left);
    }
}

impl Making {
    /// Ends all of them: they may go to a server that is not the primary any more.
    pub fn end(&self) {
        self.0.take().iter().for_each(|begun| begun.task.abort());
    }
}
