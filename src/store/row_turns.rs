//! Whose statements may wait for one row: somebody's open transaction can make each wait for long, and all the others of
//! this process would wait behind it, each with a connection of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Semaphore;

/// On the driver's thread.
#[derive(Default)]
pub(super) struct RowTurns(RefCell<HashMap<Row, Rc<Semaphore>>>);

/// A key, and whether it is for those who want its lock.
type Row = (String, bool);

/// Ends with this value, or the wait for it does.
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
        // This one and that of the table: nobody else waits.
        if Rc::strong_count(&self.row) == 2 {
            self.turns.0.borrow_mut().remove(&self.of);
        }
    }
}

impl RowTurns {
    /// The turn of this key, of which there are so many.
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
