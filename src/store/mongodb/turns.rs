//! Which requests may wait for which others, because a few connections serve all.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::row_turns::{RowTurn, RowTurns};

/// How many connections there are, if the settings do not say. They are opened as they are needed: while a user's
/// transaction has changed the document of a lock, each heartbeat of that lock waits and occupies one.
pub(super) const CONNECTIONS: u32 = 32;
/// How many of them are for acquires and waiters' looks, if the settings do not say how many there are; otherwise three
/// fifths.
const WANTING: u64 = 6;

/// Bounds how many connections acquires and waiters' looks may use. There may be a thousand of these, and heartbeats,
/// releases and the change stream must not queue for a connection behind them.
pub(super) struct Turns {
    most: usize,
    wanting: Semaphore,
    rows: RowTurns,
}

/// The turn ends when this value is dropped.
pub(super) struct Turn<'a> {
    _wanting: Option<SemaphorePermit<'a>>,
    _row: Option<RowTurn<'a>>,
}

impl Turns {
    /// For the number of connections in the settings; 0 means no limit.
    pub fn of(connections: Option<u32>) -> Turns {
        let most = match connections {
            None => WANTING,
            Some(0) => u64::MAX,
            Some(connections) => (u64::from(connections) * 3 / 5).max(1),
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Turns { most, wanting: Semaphore::new(most), rows: RowTurns::default() }
    }

    /// A turn for an acquire of this key. Most of these are refused at once. Half of the turns are left for other keys.
    pub async fn want(&self, key: &str) -> Turn<'_> {
        let row = self.rows.of(key, true, self.most.div_ceil(2)).await;
        Turn { _row: Some(row), ..self.look().await }
    }

    /// A turn to look whether a lock is free.
    pub async fn look(&self) -> Turn<'_> {
        Turn { _wanting: self.wanting.acquire().await.ok(), _row: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_connections_are_left_for_heartbeats() {
        let of = |connections| Turns::of(connections).wanting.available_permits();
        assert_eq!((of(None), of(Some(10)), of(Some(3)), of(Some(1))), (6, 6, 1, 1));
        // No limit.
        assert_eq!(of(Some(0)), Semaphore::MAX_PERMITS);
        assert!(of(Some(u32::MAX)) > 1_000_000);
    }
}
