//! A user's own transactions that assert a guard, concurrently with the guard's heartbeats: how many must be started
//! again, and whether the guard stays held.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockClient;

use super::data::Data;
use super::store::{Store, builder};
use super::table::{Samples, Table};

const HEARTBEAT: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(3);
/// How long the user works in the middle of a transaction, between reading and writing, and the goal, if there is one.
const WORK: [(Duration, &str); 2] =
    [(Duration::from_millis(10), "; goal: under 5 %, none lost"), (Duration::from_millis(500), "; goal: none lost")];

pub fn measure(store: &Store, seconds: u64, table: &mut Table) {
    // Connecting creates the SQLite file.
    let client = builder(&store.url).lease(LEASE).heartbeat(HEARTBEAT).connect().expect("the store");
    match store.name {
        #[cfg(feature = "sqlite")]
        "sqlite" => beside_heartbeats(&client, store.name, &super::raw_sqlite::data(&store.url), seconds, table),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => beside_heartbeats(&client, store.name, &super::raw_dynamodb::data(&store.url), seconds, table),
        #[cfg(feature = "mongodb")]
        "mongodb" => beside_heartbeats(&client, store.name, &super::raw_mongodb::data(&store.url), seconds, table),
        #[cfg(feature = "postgres")]
        "postgres" => beside_heartbeats(&client, store.name, &super::raw_postgres::data(&store.url), seconds, table),
        #[cfg(feature = "spanner")]
        "spanner" => beside_heartbeats(&client, store.name, &super::raw_spanner::data(&store.url), seconds, table),
        // A user has no data in the memory store.
        _ => {}
    }
}

#[cfg_attr(
    not(any(
        feature = "dynamodb",
        feature = "mongodb",
        feature = "postgres",
        feature = "spanner",
        feature = "sqlite"
    )),
    allow(dead_code)
)]
fn beside_heartbeats(client: &LockClient, store: &str, data: &impl Data, seconds: u64, table: &mut Table) {
    for (work, goal) in WORK {
        let mut guard = client.lock("fenced").expect("nobody holds it");
        let (mut took, mut again, mut lost) = (Samples::default(), 0, 0);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(seconds) {
            let begun = Instant::now();
            let text = format!("{}", took.0.len());
            match data.transact(Some(&guard), "fenced", &text, &mut || thread::sleep(work)) {
                Ok(times) => again += u32::from(times > 1),
                Err(_) if !guard.is_held() => {
                    lost += 1;
                    guard = client.lock("fenced").expect("nobody holds it");
                }
                Err(error) => panic!("a transaction failed: {error:?}"),
            }
            took.push(begun.elapsed());
        }
        lost += u32::from(!guard.is_held());
        let count = took.0.len();
        let share = f64::from(again) / count as f64 * 100.0;
        let what = format!("transaction with {} ms of work", work.as_millis());
        let beside = format!("{share:.1} % begun again ({again} of {count}), {lost} guards lost{goal}");
        table.alone(store, &what, &took, beside);
    }
}
