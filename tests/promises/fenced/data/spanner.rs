//! A table in the database of the locks.

use std::sync::{Mutex, PoisonError};

use leasehold::Error;
use leasehold::fence::Fenced;
use leasehold::spanner::{google_cloud_spanner as sdk, run_fenced};
use sdk::builder::SpannerBuilder;
use sdk::client::DatabaseClient;
use sdk::statement::Statement;
use sdk::transaction::ReadWriteTransaction;
use tokio::runtime::Runtime;

use super::{Change, Data};

/// The statement that creates the table.
pub const SCHEMA: &str = "CREATE TABLE texts (id STRING(MAX) NOT NULL, text STRING(MAX)) PRIMARY KEY (id)";

pub struct Table {
    runtime: Runtime,
    /// A session of the emulator has only one transaction: a newer one ends those before it.
    alone: Mutex<()>,
    pub client: DatabaseClient,
}

impl Table {
    pub fn new(settings: SpannerBuilder, database: &str) -> Table {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let client = settings.build().await.unwrap();
            client.database_client(database).build().await.unwrap()
        });
        Table { runtime, alone: Mutex::default(), client }
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

fn select(key: &str) -> Statement {
    Statement::builder("SELECT text FROM texts WHERE id = @id").add_param("id", key).build()
}

impl Data for Table {
    fn change<F: Fenced>(&self, held: Option<&F>, change: Change<'_>) -> Result<u32, Error> {
        let Change { key, text, meanwhile } = change;
        let insert = "INSERT OR UPDATE INTO texts (id, text) VALUES (@id, @text)";
        let insert = Statement::builder(insert).add_param("id", key).add_param("text", text).build();
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let mut begun = 0;
        let mut work = async |transaction: ReadWriteTransaction| {
            begun += 1;
            let mut rows = transaction.execute_query(select(key)).await?;
            while rows.next().await.transpose()?.is_some() {}
            meanwhile();
            transaction.execute_update(insert.clone()).await.map(drop)
        };
        match held {
            Some(held) => self.wait(run_fenced(held, &self.client, work))?,
            None => {
                let runner = self.client.read_write_transaction().build();
                self.wait(runner.run(async |transaction| work(transaction).await)).unwrap();
            }
        }
        Ok(begun)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.wait(async {
            let mut rows = self.client.single_use().build().execute_query(select(key)).await.unwrap();
            let row = rows.next().await?.unwrap();
            Some(row.get(0).unwrap())
        })
    }
}
