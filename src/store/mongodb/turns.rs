//! Which requests may wait for which: a few connections serve all.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::row_turns::{RowTurn, RowTurns};

/// How many connections there are, if the settings do not say it. They are opened as they are needed: somebody's transaction
/// makes each heartbeat whose document it has wait with one of them.
pub(super) const CONNECTIONS: u32 = 32;
/// How many of them are for those who want a lock, where the settings do not say how many there are; else three fifths.
const WANTING: u64 = 6;

/// Bounds how many connections those who want a lock may use: there may be a thousand of them, and heartbeats, releases and
/// the change stream must not queue for a connection behind them.
pub(super) struct Turns {
    most: usize,
    wanting: Semaphore,
    rows: RowTurns,
}

/// Ends with this value.
pub(super) struct Turn<'a> {
    _wanting: Option<SemaphorePermit<'a>>,
    _row: Option<RowTurn<'a>>,
}

impl Turns {
    /// Of as many connections as the settings say; 0 is without limit.
    pub fn of(connections: Option<u32>) -> Turns {
        let most = match connections {
            None => WANTING,
            Some(0) => u64::MAX,
            Some(connections) => (u64::from(connections) * 3 / 5).max(1),
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Turns { most, wanting: Semaphore::new(most), rows: RowTurns::default() }
    }

    /// To want the lock of this key. Most of those who do are refused at once; half of the turns are left to who wants another.
    pub async fn want(&self, key: &str) -> Turn<'_> {
        let row = self.rows.of(key, true, self.most.div_ceil(2)).await;
        Turn { _row: Some(row), ..self.look().await }
    }

    /// To look whether a lock is free.
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
        // As many as it takes.
        assert_eq!(of(Some(0)), Semaphore::MAX_PERMITS);
        assert!(of(Some(u32::MAX)) > 1_000_000);
    }
}
