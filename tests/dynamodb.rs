//! What only the DynamoDB store has to keep, on the real DynamoDB Local: requests, rows, time, errors, the table.

mod common;

#[path = "dynamodb/counts.rs"]
mod counts;
#[path = "dynamodb/errors.rs"]
mod errors;
#[path = "dynamodb/faults.rs"]
mod faults;
#[path = "dynamodb/fence.rs"]
mod fence;
#[path = "dynamodb/processes.rs"]
mod processes;
#[path = "dynamodb/rows.rs"]
mod rows;
#[path = "dynamodb/table.rs"]
mod table;
#[path = "dynamodb/time.rs"]
mod time;

use std::sync::Arc;
use std::time::Duration;

use leasehold::dynamodb::aws_sdk_dynamodb as sdk;
use leasehold::internals::backend::dynamodb::{Dynamodb, DynamodbOptions};
use leasehold::internals::backend::{Acquired, Attempt, Backend, GrantForm, Seen, Which};
use leasehold::internals::lease::{Ask, Holder, Labels, Mode};
use leasehold::internals::rt::clock::Clock;

use common::dynamodb::{Table, config, options};
use common::stores::soon;

/// A test that needs the server.
macro_rules! needs_server {
    () => {
        if $crate::common::servers::dynamodb_local().is_none() {
            return;
        }
    };
}
pub(crate) use needs_server;

/// The server's own client, as any other program would have one.
struct Raw {
    runtime: tokio::runtime::Runtime,
    client: sdk::Client,
    table: String,
}

impl Raw {
    fn new(table: &Table) -> Raw {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Raw { runtime, client: sdk::Client::new(&config()), table: table.0.clone() }
    }

    fn put(&self, item: std::collections::HashMap<String, sdk::types::AttributeValue>) {
        let request = self.client.put_item().table_name(&self.table).set_item(Some(item));
        self.runtime.block_on(request.send()).unwrap();
    }

    fn get(&self, key: &str) -> std::collections::HashMap<String, sdk::types::AttributeValue> {
        let key = sdk::types::AttributeValue::S(key.to_owned());
        let request = self.client.get_item().table_name(&self.table).key("key", key).consistent_read(true);
        self.runtime.block_on(request.send()).unwrap().item.unwrap_or_default()
    }
}

fn open(options: DynamodbOptions, clock: &Arc<Clock>) -> Dynamodb {
    Dynamodb::open(options, clock.clone(), &soon()).unwrap()
}

/// A store of its own clock and estimate on this table.
fn client(table: &Table) -> (Dynamodb, Arc<Clock>) {
    let clock = Clock::system();
    (open(options(&table.0, &clock), &clock), clock)
}

const LEASE: Duration = Duration::from_secs(60);

fn attempt(key: &str, mode: Mode) -> Attempt {
    let grant = GrantForm::Uuid.fresh();
    let ask = Ask {
        lock_id: format!("id {}", grant.as_str()),
        labels: Labels { owner: format!("owner {}", grant.as_str()), host: None, comment: None },
        grant,
        mode,
        lease: LEASE,
        max_holders: None,
        replace_same_owner: false,
        instead_of: None,
    };
    Attempt::new(key, ask)
}

fn exclusive(key: &str) -> Attempt {
    attempt(key, Mode::Exclusive)
}

fn shared(key: &str) -> Attempt {
    attempt(key, Mode::Shared)
}

fn granted(store: &Dynamodb, attempt: &mut Attempt) -> Holder {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Granted { holder, .. }) => holder,
        other => panic!("{:?} was not granted: {other:?}", attempt.key),
    }
}

fn refused(store: &Dynamodb, attempt: &mut Attempt) -> Seen {
    match store.acquire(attempt, &soon()) {
        Ok(Acquired::Refused(seen)) => seen,
        other => panic!("{:?} was not refused: {other:?}", attempt.key),
    }
}

fn get(store: &Dynamodb, key: &str) -> Seen {
    store.read(&Which::Key(key.to_owned()), None, true, &soon()).unwrap().records.remove(0)
}
