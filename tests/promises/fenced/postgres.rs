//! On PostgreSQL, with its async client and the blocking one.

use std::any::Any;

use leasehold::postgres::run_fenced;
use leasehold::postgres::tokio_postgres::Transaction;
use leasehold::{ClientBuilder, LockClient};

use crate::fenced::data::postgres::{Session, Texts};
use crate::fenced::{LONG, Open, Store};
use crate::support::postgres::{Rows, config};
use crate::support::servers::postgres_server;

pub struct Kind<const BLOCKING: bool>;

impl<const BLOCKING: bool> Store for Kind<BLOCKING> {
    type Data = Texts;
    const NAME: &str = "postgres";

    /// The URL also tells other processes which of the two clients to use.
    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        postgres_server()?;
        let rows = Rows::fresh();
        let url = rows.url();
        let url = if BLOCKING { url.replacen("postgres:", "postgresql:", 1) } else { url };
        Some((url, Box::new(Room(rows))))
    }

    fn builder(url: &str) -> ClientBuilder {
        LockClient::builder(url)
    }

    fn data(url: &str) -> Texts {
        let (_, table) = url.split_once("table=").unwrap();
        Texts::new(config(), &format!("{table}_texts"), url.starts_with("postgresql:"))
    }
}

struct Room(Rows);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.sql("DROP TABLE IF EXISTS {T}_texts");
    }
}

macro_rules! of_client {
    ($kind:ty) => {
        crate::fenced::suite!($kind);
        crate::fenced::suite! {
            $kind:
            postgres_cases::a_rival_waits_for_the_commit_and_heartbeats_do_not,
            postgres_cases::a_rival_that_comes_in_between_is_found,
            postgres_cases::what_is_in_conflict_is_begun_again_while_heartbeats_go_on,
            postgres_cases::heartbeats_of_a_shared_lock_wait_for_what_is_begun_again,
            postgres_cases::a_transaction_that_failed_in_the_middle_is_never_said_to_be_committed,
            postgres_cases::a_limit_of_the_session_ends_no_pause_with_an_error,
            postgres_cases::a_users_own_cancel_ends_the_pause_and_the_work,
            postgres_cases::conflicts_without_end_are_told_at_the_limit_and_all_else_at_once,
            postgres_cases::a_commit_without_an_answer_is_told_as_such,
            postgres_cases::the_assertion_is_a_statement_for_every_driver,
        }
    };
}

of_client!(Kind<false>);

mod blocking {
    of_client!(super::Kind<true>);
}

/// The task of a user may move from thread to thread.
#[test]
fn its_future_can_be_sent() {
    let Some(open) = Open::<Kind<false>>::fresh() else { return };
    let guard = open.client(LONG).lock("a").unwrap();
    let Session::Async(runtime, mut user) = open.data.session() else { unreachable!() };
    let sql = "SELECT 1".to_owned();
    let task = async move {
        let work = async move |transaction: &Transaction<'_>| {
            transaction.batch_execute(&sql).await?;
            Ok(7)
        };
        run_fenced(&guard, &mut user, work).await
    };
    assert_eq!(runtime.block_on(runtime.spawn(task)).unwrap().unwrap(), 7);
}
