//! Which statements may wait for which: a few connections serve all.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::Consistency;
use crate::store::row_turns::{RowTurn, RowTurns};

/// How many connections callers that want a lock may use. There may be a thousand of them, and the open transaction of
/// a rival can make each wait. Heartbeats and releases have as many of their own.
pub(super) const CONNECTIONS: usize = 4;
/// How many statements of holders may wait long for a row.
const WAITING: usize = 2;
/// How many more may do so if they are heartbeats of shared holders.
const SHARING: usize = 1;
/// How many more may briefly try whether their row is free while [`WAITING`] others wait for theirs.
const TRYING: usize = 1;
/// How many reads of callers may have a turn. There may be a thousand of them, but they wait for nobody.
const READING: usize = 2;
/// A statement that has waited this long for a turn to wait tries briefly instead.
const SOON: Duration = Duration::from_millis(100);

/// Whose statement it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// A caller that wants a lock.
    Wanting,
    /// A caller that looks at locks, held by whomever. Reads leave two turns to heartbeats.
    Reading,
    /// A holder, and everything that is in no other lane.
    Holding,
    /// The same, for statements that may wait long for a row: releases, hand-overs and swaps wait for fenced
    /// transactions. They never take all turns of heartbeats.
    Waiting,
    /// A shared holder's heartbeat, which waits for transactions that assert its own key. All statements that may wait
    /// long leave a turn to heartbeats that wait for nobody. Only a brief try and reads may take it, which are soon
    /// over.
    Sharing,
}

impl Lane {
    /// That of a read.
    pub(super) fn of(consistency: Consistency) -> Lane {
        match consistency {
            Consistency::Strong => Lane::Reading,
            Consistency::Holders => Lane::Holding,
            Consistency::Eventual => Lane::Wanting,
        }
    }
}

pub(super) struct Turns {
    wanting: Semaphore,
    reading: Semaphore,
    holding: Semaphore,
    waiting: Semaphore,
    sharing: Semaphore,
    trying: Semaphore,
    rows: RowTurns,
}

/// A turn, which ends with this value.
pub(super) struct Turn<'a> {
    _few: Option<SemaphorePermit<'a>>,
    _turn: Option<SemaphorePermit<'a>>,
}

/// A turn for a statement that may wait for a row.
pub(super) enum Soon<'a> {
    /// It may wait for as long as it takes.
    Long(Turn<'a>),
    /// All turns to wait are taken: this is for a statement that does not wait long for its row.
    Brief(Turn<'a>),
}

enum Either<T> {
    One(T),
    Other(T),
}

impl Turns {
    pub fn new() -> Self {
        Turns {
            wanting: Semaphore::new(CONNECTIONS),
            reading: Semaphore::new(READING),
            holding: Semaphore::new(CONNECTIONS),
            waiting: Semaphore::new(WAITING),
            sharing: Semaphore::new(SHARING),
            trying: Semaphore::new(TRYING),
            rows: RowTurns::default(),
        }
    }

    /// The turn for statements that may wait for the row of this key. There is one at a time: otherwise all the others,
    /// for example those of the guards of one shared key in one process, would wait behind it, each with a connection.
    /// For callers that want the lock there are two: most of them are refused at once, and some turns are left to
    /// callers that want another lock.
    pub async fn of_row(&self, key: &str, lane: Lane) -> RowTurn<'_> {
        let wants = lane == Lane::Wanting;
        self.rows.of(key, wants, if wants { CONNECTIONS / 2 } else { 1 }).await
    }

    /// A turn in that lane.
    pub async fn of(&self, lane: Lane) -> Turn<'_> {
        let few = self.few(lane).await;
        self.then(if lane == Lane::Wanting { &self.wanting } else { &self.holding }, few).await
    }

    /// How many turns are taken.
    pub fn taken(&self) -> usize {
        2 * CONNECTIONS - self.wanting.available_permits() - self.holding.available_permits()
    }

    /// The permit that bounds how many statements of that lane read, or wait for a row.
    async fn few(&self, lane: Lane) -> Option<SemaphorePermit<'_>> {
        match lane {
            Lane::Wanting | Lane::Holding => None,
            Lane::Reading => self.reading.acquire().await.ok(),
            Lane::Waiting => self.waiting.acquire().await.ok(),
            Lane::Sharing => match either(self.waiting.acquire(), self.sharing.acquire()).await {
                Either::One(turn) | Either::Other(turn) => turn.ok(),
            },
        }
    }

    /// A turn in that lane for a statement that may wait for a row. Statements that have one may wait for somebody's
    /// transaction until their time is over. That is no reason for others to wait whose rows are free.
    pub async fn soon(&self, lane: Lane) -> Soon<'_> {
        if let Ok(few) = tokio::time::timeout(SOON, self.few(lane)).await {
            return Soon::Long(self.then(&self.holding, few).await);
        }
        match either(self.few(lane), async { self.trying.acquire().await.ok() }).await {
            Either::One(few) => Soon::Long(self.then(&self.holding, few).await),
            Either::Other(few) => Soon::Brief(self.then(&self.holding, few).await),
        }
    }

    async fn then<'a>(&self, turns: &'a Semaphore, few: Option<SemaphorePermit<'a>>) -> Turn<'a> {
        Turn { _few: few, _turn: turns.acquire().await.ok() }
    }
}

/// What the first of them gives.
async fn either<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> Either<T> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let first = poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Pending => other.as_mut().poll(context).map(Either::Other),
        Poll::Ready(turn) => Poll::Ready(Either::One(turn)),
    });
    first.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_either_of_two_turns_has_the_first_that_is_free() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (one, other) = (Semaphore::new(1), Semaphore::new(1));
            let either = || either(one.acquire(), other.acquire());
            for free in [&one, &other] {
                let (taken, last) = (either().await, either().await);
                assert!(matches!((&taken, &last), (Either::One(Ok(_)), Either::Other(Ok(_)))));
                assert_eq!(one.available_permits() + other.available_permits(), 0);
                let mut waits = pin!(either());
                assert!(poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await);
                // It does not matter which of the two is given back.
                drop(if std::ptr::eq(free, &one) { taken } else { last });
                let (Either::One(turn) | Either::Other(turn)) = waits.await;
                assert!(turn.is_ok());
            }
            assert_eq!(one.available_permits() + other.available_permits(), 2, "nobody who left has a turn");
        });
    }

    #[test]
    fn one_tries_while_others_wait_and_heartbeats_have_a_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let turns = Turns::new();
            let soon = || turns.soon(Lane::Waiting);
            let (one, two) = (soon().await, soon().await);
            assert!(matches!((&one, &two), (Soon::Long(_), Soon::Long(_))));
            let third = soon().await;
            assert!(matches!(third, Soon::Brief(_)));
            let mut fourth = pin!(soon());
            assert!(tokio::time::timeout(10 * SOON, &mut fourth).await.is_err(), "one at a time tries");
            let left = CONNECTIONS - WAITING - TRYING;
            assert_eq!(turns.holding.available_permits(), left, "what is left for heartbeats");
            drop(third);
            assert!(matches!(fourth.await, Soon::Brief(_)));
            drop(one);
            assert!(matches!(soon().await, Soon::Long(_)));
            // A shared holder's heartbeat has one turn more to wait, and tries as well.
            let _one = soon().await;
            let sharing = || turns.soon(Lane::Sharing);
            let long = sharing().await;
            assert!(matches!(long, Soon::Long(_)));
            drop((two, _one, long));
        });
    }

    /// A thousand callers may look at locks at a time, each statement for as long as the network takes.
    #[test]
    fn reads_leave_turns_to_heartbeats() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let turns = Turns::new();
            let reading = || turns.of(Lane::of(Consistency::Strong));
            let mut reads: Vec<_> = (0..4).map(|_| Box::pin(reading())).collect();
            let mut under_way = Vec::new();
            for read in &mut reads {
                under_way.extend(tokio::time::timeout(SOON, read).await);
            }
            // Also for a holder that must read first.
            let at_once = tokio::time::timeout(SOON, turns.of(Lane::of(Consistency::Holders))).await;
            assert!(at_once.is_ok(), "a heartbeat waits for reads");
            assert_eq!(under_way.len(), READING);
        });
    }
}
