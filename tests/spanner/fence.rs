//! A transaction of the user's own is committed only while the lock is held.

use std::time::Duration;

use leasehold::fence::Fenced;
use leasehold::spanner::{AssertIn, run_fenced};
use leasehold::{Error, ErrorKind, LockClient};

use crate::common::spanner::sdk::statement::Statement;
use crate::common::spanner::{Database, Raw, TABLE, settings};
use crate::{LEASE, needs_server};

struct Data {
    raw: Raw,
    client: LockClient,
}

impl Data {
    fn new(lease: Duration) -> Data {
        let database = Database::fresh();
        database.ddl("CREATE TABLE texts (id INT64 NOT NULL, text STRING(MAX)) PRIMARY KEY (id)");
        let raw = database.raw();
        raw.update(Statement::builder("INSERT INTO texts (id, text) VALUES (1, '')").build());
        let builder = leasehold::spanner::builder(settings(&database.host), &database.path, TABLE);
        Data { raw, client: builder.lease(lease).connect().unwrap() }
    }

    fn write(&self, held: &impl Fenced, text: &str) -> Result<(), Error> {
        let update = Statement::builder("UPDATE texts SET text = @text WHERE id = 1").add_param("text", text).build();
        let work = async |transaction: crate::common::spanner::sdk::transaction::ReadWriteTransaction| {
            transaction.execute_update(update.clone()).await.map(drop)
        };
        self.raw.wait(run_fenced(held, &self.raw.client, work))
    }

    fn text(&self) -> String {
        let rows = self.raw.query(Statement::builder("SELECT text FROM texts").build());
        rows[0]["text"].as_str().unwrap().to_owned()
    }
}

#[track_caller]
fn lost(answer: Result<(), Error>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.key().is_some() && error.store().is_some());
}

#[test]
fn what_is_held_is_committed_and_what_is_lost_is_not() {
    needs_server!();
    let data = Data::new(LEASE);
    let guard = data.client.lock("a").unwrap();
    data.write(&guard, "held").unwrap();
    let next = data.client.adopt(guard.info()).unwrap();
    lost(data.write(&guard, "late"));
    data.write(&next, "adopted").unwrap();
    let released = next.info();
    next.release().unwrap();
    lost(data.write(&data.client.fence(&released), "late"));
    assert_eq!(data.text(), "adopted");
    let elsewhere = LockClient::connect("memory:").unwrap();
    let error = data.write(&elsewhere.lock("a").unwrap(), "late").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn shared_holders_and_leases_can_be_asserted() {
    needs_server!();
    let data = Data::new(LEASE);
    let (one, two) = (data.client.lock_shared("s").unwrap(), data.client.lock_shared("s").unwrap());
    data.write(&one, "one").unwrap();
    let gone = two.info();
    two.release().unwrap();
    lost(data.write(&data.client.fence(&gone), "late"));
    let leases = data.client.leases("space");
    let lease = leases.claim("app", "unit/0", LEASE).unwrap();
    data.write(&leases.fence(&lease), "claimed").unwrap();
    leases.extend("app", "unit/0", 2 * LEASE).unwrap();
    data.write(&leases.fence(&lease), "extended").unwrap();
    leases.revoke("app", "unit/0").unwrap();
    leases.claim("app", "unit/0", LEASE).unwrap();
    lost(data.write(&leases.fence(&lease), "late"));
    assert_eq!(data.text(), "extended");
}

#[test]
fn expired_and_not_taken_over_is_committed() {
    needs_server!();
    let data = Data::new(Duration::from_secs(1));
    let lock = data.client.request("a").acquire().unwrap();
    while !data.client.get("a").unwrap().unwrap().is_free() {
        std::thread::sleep(Duration::from_millis(20));
    }
    data.write(&data.client.fence(&lock), "nobody else did").unwrap();
    let _rival = data.client.lock("a").unwrap();
    lost(data.write(&data.client.fence(&lock), "late"));
    assert_eq!(data.text(), "nobody else did");
}

/// As the docs say: the error of the assertion has to leave the closure.
#[test]
fn the_assertion_alone_gives_the_services_own_error() {
    needs_server!();
    let data = Data::new(LEASE);
    let guard = data.client.lock("a").unwrap();
    let asserted = || {
        let runner = data.raw.client.read_write_transaction().build();
        let run = runner.run(async |transaction| guard.assert_in(&transaction).await);
        data.raw.wait(run).map(drop)
    };
    asserted().unwrap();
    let _next = data.client.adopt(guard.info()).unwrap();
    let error = asserted().unwrap_err();
    assert_eq!(error.status().map(|status| status.code.name()), Some("OUT_OF_RANGE"), "{error}");
}
