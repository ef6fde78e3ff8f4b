//! A table in the database of the locks.

use std::error::Error as StdError;

use leasehold::Error;
use leasehold::fence::Fenced;
use leasehold::postgres::run_fenced;
use leasehold::postgres::tokio_postgres::{Client, Config, NoTls, Transaction};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use super::{Change, Data};

pub struct Texts {
    runtime: Runtime,
    config: Config,
    /// One for each transaction that is under way.
    idle: Mutex<Vec<Client>>,
    table: String,
}

impl Texts {
    /// Made if it is not there. Dropped by nobody but who calls for it.
    pub fn new(config: Config, table: &str) -> Texts {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let texts = Texts { runtime, config, idle: Mutex::default(), table: table.to_owned() };
        let create = format!("CREATE TABLE IF NOT EXISTS {table} (id text PRIMARY KEY, text text)");
        texts.wait(async {
            let client = texts.client().await;
            // Two at once would be one too many.
            let _ = client.batch_execute(&create).await;
            texts.idle.lock().await.push(client);
        });
        texts
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub async fn client(&self) -> Client {
        if let Some(idle) = self.idle.lock().await.pop() {
            return idle;
        }
        let (client, connection) = self.config.connect(NoTls).await.unwrap();
        self.runtime.spawn(connection);
        client
    }
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
        let mut client = self.wait(self.client());
        let mut begun = 0;
        let mut work = async |transaction: &Transaction<'_>| {
            begun += 1;
            transaction.query(&select, &[&key]).await?;
            meanwhile();
            transaction.execute(&insert, &[&key, &text]).await?;
            Ok(())
        };
        let done = self.wait(async {
            let Some(held) = held else {
                let transaction = client.transaction().await.unwrap();
                work(&transaction).await.map_err(|error: Box<dyn StdError + Send + Sync>| error).unwrap();
                transaction.commit().await.unwrap();
                return Ok(());
            };
            run_fenced(held, &mut client, work).await
        });
        self.wait(async { self.idle.lock().await.push(client) });
        done.map(|()| begun)
    }

    fn text(&self, key: &str) -> Option<String> {
        let select = format!("SELECT text FROM {} WHERE id = $1", self.table);
        self.wait(async {
            let client = self.client().await;
            let row = client.query_opt(&select, &[&key]).await.unwrap();
            self.idle.lock().await.push(client);
            row.map(|row| row.get(0))
        })
    }
}
