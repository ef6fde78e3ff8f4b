//! A table in the database of the locks, for both clients of PostgreSQL.

use std::error::Error as StdError;
use std::time::Duration;

use leasehold::Error;
use leasehold::fence::Fenced;
use leasehold::internals::store::postgres::fence::{run_blocking_within, run_within};
use leasehold::postgres::blocking::{self, postgres};
use leasehold::postgres::tokio_postgres::types::ToSql;
use leasehold::postgres::tokio_postgres::{self, Config, NoTls, Row};
use leasehold::postgres::{AssertIn, Assertion, run_fenced};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};

use super::{Change, Data};

type DriverResult<T> = Result<T, tokio_postgres::Error>;
type WorkResult<T> = Result<T, Box<dyn StdError + Send + Sync>>;

pub struct Texts {
    runtime: Runtime,
    config: Config,
    is_blocking: bool,
    /// Sessions that can be reused: each transaction under way needs its own.
    idle: Mutex<Vec<Session>>,
    pub table: String,
}

impl Texts {
    /// Creates the table if it is missing. Only the caller may drop it.
    pub fn new(config: Config, table: &str, is_blocking: bool) -> Texts {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let texts = Texts { runtime, config, is_blocking, idle: Mutex::default(), table: table.to_owned() };
        let create = format!("CREATE TABLE IF NOT EXISTS {table} (id text PRIMARY KEY, text text)");
        let mut session = texts.session();
        // It fails if another connection creates the table at the same time, which is fine.
        let _ = session.batch(&create);
        texts.idle.lock().push(session);
        texts
    }

    pub fn session(&self) -> Session {
        if let Some(idle) = self.idle.lock().pop() {
            return idle;
        }
        if self.is_blocking {
            return Session::Blocking(postgres::Config::from(self.config.clone()).connect(NoTls).unwrap());
        }
        let (client, connection) = self.runtime.block_on(self.config.connect(NoTls)).unwrap();
        self.runtime.spawn(connection);
        Session::Async(self.runtime.handle().clone(), client)
    }
}

/// A connection of one of the clients.
pub enum Session {
    Async(Handle, tokio_postgres::Client),
    Blocking(postgres::Client),
}

impl Session {
    pub fn batch(&mut self, sql: &str) -> DriverResult<()> {
        match self {
            Session::Async(runtime, client) => runtime.block_on(client.batch_execute(sql)),
            Session::Blocking(client) => client.batch_execute(sql),
        }
    }

    pub fn query(&mut self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> DriverResult<Vec<Row>> {
        match self {
            Session::Async(runtime, client) => runtime.block_on(client.query(sql, params)),
            Session::Blocking(client) => client.query(sql, params),
        }
    }

    /// Runs `work` in a transaction, then commits it, and does nothing else.
    pub fn transact<T>(&mut self, work: impl FnOnce(&mut Transaction<'_, '_>) -> WorkResult<T>) -> WorkResult<T> {
        match self {
            Session::Async(runtime, client) => runtime.block_on(async {
                let transaction = client.transaction().await?;
                let done = work(&mut Transaction::Async(&transaction))?;
                transaction.commit().await?;
                Ok(done)
            }),
            Session::Blocking(client) => {
                let mut transaction = client.transaction()?;
                let done = work(&mut Transaction::Blocking(&mut transaction))?;
                transaction.commit()?;
                Ok(done)
            }
        }
    }

    pub fn run_fenced<T>(
        &mut self,
        fenced: &impl Fenced,
        mut work: impl FnMut(&mut Transaction<'_, '_>) -> WorkResult<T>,
    ) -> Result<T, Error> {
        match self {
            Session::Async(runtime, client) => runtime
                .block_on(run_fenced(fenced, client, async |transaction| work(&mut Transaction::Async(transaction)))),
            Session::Blocking(client) => {
                blocking::run_fenced(fenced, client, |transaction| work(&mut Transaction::Blocking(transaction)))
            }
        }
    }

    /// The same with another time limit than two minutes.
    pub fn run_within<T>(
        &mut self,
        assertion: &Assertion,
        limit: Duration,
        mut work: impl FnMut(&mut Transaction<'_, '_>) -> WorkResult<T>,
    ) -> Result<T, Error> {
        match self {
            Session::Async(runtime, client) => {
                let work =
                    async |transaction: &tokio_postgres::Transaction<'_>| work(&mut Transaction::Async(transaction));
                runtime.block_on(run_within(assertion, limit, client, work))
            }
            Session::Blocking(client) => run_blocking_within(assertion, limit, client, |transaction| {
                work(&mut Transaction::Blocking(transaction))
            }),
        }
    }
}

pub enum Transaction<'a, 'b> {
    Async(&'a tokio_postgres::Transaction<'b>),
    Blocking(&'a mut postgres::Transaction<'b>),
}

impl Transaction<'_, '_> {
    pub fn batch(&mut self, sql: &str) -> DriverResult<()> {
        match self {
            Transaction::Async(transaction) => waits(transaction.batch_execute(sql)),
            Transaction::Blocking(transaction) => transaction.batch_execute(sql),
        }
    }

    pub fn query(&mut self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> DriverResult<Vec<Row>> {
        match self {
            Transaction::Async(transaction) => waits(transaction.query(sql, params)),
            Transaction::Blocking(transaction) => transaction.query(sql, params),
        }
    }

    pub fn assert(&mut self, fenced: &impl Fenced) -> Result<(), Error> {
        match self {
            Transaction::Async(transaction) => waits(fenced.assert_in(transaction)),
            Transaction::Blocking(transaction) => blocking::AssertIn::assert_in(fenced, transaction),
        }
    }
}

/// Blocks on a future inside the task of a transaction, because `work` is a plain closure.
fn waits<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(future))
}

impl Data for Texts {
    fn change<F: Fenced>(&self, held: Option<&F>, change: Change<'_>) -> Result<u32, Error> {
        let Change { key, text, meanwhile } = change;
        let (select, insert) = (
            format!("SELECT text FROM {} WHERE id = $1", self.table),
            format!(
                "INSERT INTO {} (id, text) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET text = excluded.text",
                self.table
            ),
        );
        let mut session = self.session();
        let mut begun = 0;
        let work = |transaction: &mut Transaction<'_, '_>| {
            begun += 1;
            transaction.query(&select, &[&key])?;
            meanwhile();
            transaction.query(&insert, &[&key, &text])?;
            Ok(())
        };
        let done = match held {
            Some(held) => session.run_fenced(held, work),
            None => {
                session.transact(work).unwrap();
                Ok(())
            }
        };
        self.idle.lock().push(session);
        done.map(|()| begun)
    }

    fn text(&self, key: &str) -> Option<String> {
        let mut session = self.session();
        let rows = session.query(&format!("SELECT text FROM {} WHERE id = $1", self.table), &[&key]).unwrap();
        self.idle.lock().push(session);
        rows.first().map(|row| row.get(0))
    }
}
