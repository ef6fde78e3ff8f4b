//! The documents of version 0.1.0.

use std::sync::Arc;

use leasehold::internals::store::Backend;
use leasehold::mongodb::driver::bson::{Bson, doc};
use leasehold::mongodb::run_fenced;
use leasehold::{LockClient, LockGuard};
use serde_json::Value as Json;

use crate::mongodb::needs_server;
use crate::support::mongodb::{Rows, server};
use crate::upgrade::rows::{Restored, Table};

impl Table for Rows {
    const STORE: &'static str = "mongodb";
    const FORM: &'static str = "canonical extended JSON";

    fn open(&self) -> Arc<dyn Backend> {
        Arc::new(self.open())
    }

    fn rows(&self) -> Vec<Json> {
        let found = self.raw().find(doc! {}).sort(doc! { "resource": 1 }).run().unwrap();
        found.map(|document| Bson::Document(document.unwrap()).into_canonical_extjson()).collect()
    }

    fn put(&self, row: &Json) {
        let Bson::Document(document) = Bson::try_from(row.clone()).unwrap() else { panic!("no document: {row}") };
        self.raw().insert_one(document).run().unwrap();
    }

    /// A user's transaction asserted a holder.
    fn fill(&self, client: &LockClient) {
        let guard = client.lock("asserted").unwrap();
        assert_in_a_transaction(&guard);
        guard.release().unwrap();
    }
}

fn assert_in_a_transaction(guard: &LockGuard) {
    run_fenced(guard, &mut server().start_session().run().unwrap(), |_| Ok(())).unwrap();
}

#[test]
fn what_0_1_0_stored_is_read_and_written() {
    let rows = needs_server!(Rows::fresh());
    let Some(restored) = Restored::of(&rows) else { return };
    let asserts = || rows.row("asserted").unwrap().get_i64("asserts").unwrap();
    let before = asserts();
    let guard = restored.client.try_lock("asserted").unwrap().expect("nobody holds it");
    assert_in_a_transaction(&guard);
    assert!(before > 0 && asserts() > before, "{before}");
    guard.release().unwrap();
    restored.goes_on();
}
