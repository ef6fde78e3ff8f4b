//! Limits how many statements wait for one row. An open transaction can make each of them wait for long. Without a
//! limit, all the statements of this process for that row would wait, each with a connection of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Semaphore;

/// Used on the driver's thread only.
#[derive(Default)]
pub(super) struct RowTurns(RefCell<HashMap<Row, Rc<Semaphore>>>);

/// A key, and whether the turns are for statements that want its lock.
type Row = (String, bool);

/// A turn, or the wait for one. It ends when this value is dropped.
pub(super) struct RowTurn<'a> {
    turns: &'a RowTurns,
    of: Row,
    row: Rc<Semaphore>,
    has: bool,
}

impl Drop for RowTurn<'_> {
    fn drop(&mut self) {
        if self.has {
            self.row.add_permits(1);
        }
        // The two are this one and the one in the map: nobody else has or awaits a turn.
        if Rc::strong_count(&self.row) == 2 {
            self.turns.0.borrow_mut().remove(&self.of);
        }
    }
}

impl RowTurns {
    /// Waits for one of the `most` turns of this key. `wants`: the statement wants the key's lock.
    pub async fn of(&self, key: &str, wants: bool, most: usize) -> RowTurn<'_> {
        let of = (key.to_owned(), wants);
        let row = self.0.borrow_mut().entry(of.clone()).or_insert_with(|| Rc::new(Semaphore::new(most))).clone();
        let mut turn = RowTurn { turns: self, of, row, has: false };
        if let Ok(permit) = turn.row.acquire().await {
            permit.forget();
        }
        turn.has = true;
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::task::Poll;

    use super::*;

    #[test]
    fn one_at_a_time_waits_for_a_row_and_nothing_is_kept_of_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let turns = RowTurns::default();
            let of = |key: &'static str| turns.of(key, false, 1);
            let first = of("k").await;
            drop((of("another").await, turns.of("k", true, 1).await));
            let (mut second, mut third) = (Box::pin(of("k")), Box::pin(of("k")));
            for waits in [&mut second, &mut third] {
                assert!(poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await);
            }
            drop(second);
            drop(first);
            drop(third.await);
            assert!(turns.0.borrow().is_empty());
        });
    }
}
