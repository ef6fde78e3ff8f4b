//! How an acquire can be late, on each store.
#![allow(unused_imports)] // Each build has its own stores.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::{Acquired, Attempt, Backend};
use leasehold::internals::sys::deadline::Deadline;

use super::{Sides, Way};
#[cfg(feature = "spanner")]
use crate::support::grpc::{Fault as Transport, Grpc};
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
use crate::support::proxy::{Mode as Network, Proxy, Rule};
use crate::support::stores::{Store, soon};

/// How long a call waits for its answer: longer than its request takes to leave, even on a busy machine.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
struct Patience(Cell<Duration>);

#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
impl Patience {
    const LEAST: Duration = Duration::from_millis(100);

    fn new() -> Patience {
        Patience(Cell::new(Patience::LEAST))
    }

    /// Makes the next call, which returns whether its request left. That decides how long the one after it waits.
    fn tries(&self, call: impl FnOnce(Deadline) -> bool) -> bool {
        let time = self.0.get();
        let has_left = call(Deadline::after(time));
        let next = if has_left { time * 9 / 10 } else { time * 2 };
        self.0.set(next.clamp(Patience::LEAST, 100 * Patience::LEAST));
        has_left
    }
}

pub fn of(store: &Store) -> Sides {
    match store.module {
        "memory" => memory(store),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite(),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => dynamodb(),
        #[cfg(feature = "mongodb")]
        "mongodb" => mongodb(),
        #[cfg(feature = "postgres")]
        "postgres" => postgres(),
        #[cfg(feature = "spanner")]
        "spanner" => spanner(),
        other => panic!("how a request comes late on {other}"),
    }
}

/// Whether the request may be under way. It must not be answered.
fn is_under_way(answer: leasehold::Result<Acquired>) -> bool {
    match answer {
        Ok(Acquired::Unknown(_)) => true,
        // A busy machine had no time to send it.
        Err(error) if error.is_retryable() => false,
        other => panic!("it is answered: {other:?}"),
    }
}

impl Way for FaultPlan {
    fn hold(&self, store: &dyn Backend, attempt: &mut Attempt) -> bool {
        self.next(Call::Acquire, Fault::Late);
        is_under_way(store.acquire(attempt, &Deadline::at(Instant::now())))
    }

    fn deliver(&self) -> usize {
        FaultPlan::deliver(self).len()
    }
}

fn memory(store: &Store) -> Sides {
    let (opened, plan) = ((store.open)(), FaultPlan::default());
    let first = Arc::new(Faulty::new(opened.store.clone(), plan.clone()));
    Sides { first, rival: opened.second.clone(), way: Box::new(plan), _room: Box::new(opened) }
}

/// A proxy holds the requests.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
struct Proxied {
    proxy: Proxy,
    /// The text in every acquire that writes.
    write: &'static str,
    /// If `None`, the client sees the connection end instead.
    waits: Option<Patience>,
}

#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres"))]
impl Way for Proxied {
    fn hold(&self, store: &dyn Backend, attempt: &mut Attempt) -> bool {
        let mut ask = |network, by: Deadline| {
            // No other request of this attempt contains its lock id.
            self.proxy.add(Rule::next(1, network).on(self.write).on(&attempt.ask.lock_id));
            let is_under_way = is_under_way(store.acquire(attempt, &by));
            let unmet = self.proxy.clear();
            assert!(unmet.is_empty() || !is_under_way || !self.is_sure(), "what may be under way met no {unmet:?}");
            is_under_way
        };
        match &self.waits {
            Some(patience) => patience.tries(|by| ask(Network::Held, by)),
            None => ask(Network::CutHeld, soon()),
        }
    }

    fn is_sure(&self) -> bool {
        self.waits.is_none()
    }

    fn deliver(&self) -> usize {
        self.proxy.deliver() as usize
    }
}

#[cfg(feature = "dynamodb")]
fn dynamodb() -> Sides {
    use leasehold::internals::store::dynamodb::{Dynamodb, DynamodbOptions, Settings};
    use leasehold::internals::sys::clock::Clock;

    use crate::support::dynamodb::{Table, config_at, options};
    let (table, clock) = (Table::fresh(), Clock::system());
    let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
    let settings = Settings::Given(Box::new(config_at(&proxy.url())));
    let open = |options| Dynamodb::open(options, clock.clone(), &soon()).unwrap();
    let first = open(DynamodbOptions { settings, ..options(&table.0, &clock) });
    let rival = open(options(&table.0, &clock));
    let way = Proxied { proxy, write: "UpdateItem", waits: None };
    Sides { first: Arc::new(first), rival: Arc::new(rival), way: Box::new(way), _room: Box::new(table) }
}

/// The driver repeats what was cut off, so the client must not see what happens to a request that is held.
#[cfg(feature = "mongodb")]
fn mongodb() -> Sides {
    use leasehold::internals::store::mongodb::Mongodb;

    use crate::support::harness::sent;
    use crate::support::mongodb::{Rows, host};
    let rows = Rows::fresh();
    let proxy = Proxy::mongodb(&host(&crate::support::servers::mongod().unwrap()));
    let uri = format!("mongodb://{}/?directConnection=true&serverMonitoringMode=poll", proxy.addr());
    let first = sent(|| Mongodb::open(rows.options_at(&uri), &soon()));
    let way = Proxied { proxy, write: "findAndModify", waits: Some(Patience::new()) };
    Sides { first: Arc::new(first), rival: Arc::new(rows.open()), way: Box::new(way), _room: Box::new(rows) }
}

#[cfg(feature = "postgres")]
fn postgres() -> Sides {
    use crate::support::postgres::{Rows, opened};
    use crate::support::servers::{postgres, postgres_server};
    let rows = Rows::fresh();
    let proxy = Proxy::postgres(&postgres::host(&postgres_server().unwrap()).unwrap());
    let first = opened(rows.options_at(&proxy.addr().to_string()));
    let way = Proxied { proxy, write: "RETURNING", waits: None };
    Sides { first: Arc::new(first), rival: Arc::new(rows.open()), way: Box::new(way), _room: Box::new(rows) }
}

#[cfg(feature = "spanner")]
impl Way for (Grpc, Patience) {
    fn hold(&self, store: &dyn Backend, attempt: &mut Attempt) -> bool {
        let (grpc, patience) = self;
        grpc.fault("Commit", 0, Transport::Held);
        let is_under_way = patience.tries(|by| is_under_way(store.acquire(attempt, &by)));
        // A fault for a request that was not sent in time has met nothing.
        let _ = grpc.clear();
        is_under_way
    }

    fn is_sure(&self) -> bool {
        false
    }

    fn deliver(&self) -> usize {
        self.0.deliver()
    }
}

#[cfg(feature = "spanner")]
fn spanner() -> Sides {
    use leasehold::internals::store::spanner::Spanner;

    use crate::support::spanner::Database;
    let database = Database::fresh();
    let grpc = Grpc::new(&database.host);
    let first = Spanner::open(database.options_at(&grpc.host), &soon()).unwrap();
    Sides {
        first: Arc::new(first),
        rival: Arc::new(database.open()),
        way: Box::new((grpc, Patience::new())),
        _room: Box::new(database),
    }
}

/// Nothing can be on its way to a file: a call that waits for another's transaction ends in the thread that made it.
#[cfg(feature = "sqlite")]
struct Busy {
    writer: rusqlite::Connection,
    ended: Cell<usize>,
}

#[cfg(feature = "sqlite")]
impl Way for Busy {
    fn hold(&self, store: &dyn Backend, attempt: &mut Attempt) -> bool {
        self.writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        let is_under_way = is_under_way(store.acquire(attempt, &Deadline::after(Duration::from_millis(10))));
        self.writer.execute_batch("COMMIT").unwrap();
        assert!(!is_under_way, "it says that it wrote nothing");
        self.ended.set(self.ended.get() + 1);
        true
    }

    fn deliver(&self) -> usize {
        self.ended.take()
    }
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Sides {
    use leasehold::internals::store::sqlite::{Sqlite, SqliteOptions};
    use leasehold::internals::sys::clock::Clock;

    use crate::support::harness::Folder;
    let folder = Folder::new();
    let options = SqliteOptions { path: folder.file(), mode: None, unsafe_fs: false, clock_identity: None };
    let open = || Sqlite::open(options.clone(), Clock::system(), &soon()).unwrap();
    let (first, rival) = (Arc::new(open()), Arc::new(open()));
    let way = Busy { writer: rusqlite::Connection::open(folder.file()).unwrap(), ended: Cell::new(0) };
    Sides { first, rival, way: Box::new(way), _room: Box::new(folder) }
}
