//! The rows of version 0.1.0, and what an upgrade of the operating system changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::internals::store::{Backend, Schema};
use serde_json::Value as Json;

use crate::postgres::*;
use crate::support::postgres::Rows;
use crate::upgrade::rows::{Restored, Table};

impl Table for Rows {
    const STORE: &'static str = "postgres";
    const FORM: &'static str = "as PostgreSQL's to_json() writes them";

    fn open(&self) -> Arc<dyn Backend> {
        Arc::new(self.open())
    }

    fn rows(&self) -> Vec<Json> {
        let rows = self.sql("SET timezone = 'UTC'; SELECT to_json(t) FROM {T} AS t ORDER BY key");
        rows.iter().map(|row| serde_json::from_str(row[0].as_deref().unwrap()).unwrap()).collect()
    }

    /// Given-up grants are remembered for half a minute, so their time is set to just now.
    fn put(&self, row: &Json) {
        let mut row = row.clone();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let later = u64::try_from((now + Duration::from_secs(3600)).as_micros()).unwrap();
        row["given_up"].as_object_mut().into_iter().flatten().for_each(|(_, until)| *until = later.into());
        let row = row.to_string().replace('\'', "''");
        self.sql(&format!("INSERT INTO {{T}} SELECT * FROM json_populate_record(NULL::{{T}}, '{row}')"));
    }
}

#[test]
fn what_0_1_0_stored_is_read_and_written() {
    needs_server!();
    let rows = Rows::fresh();
    let Some(restored) = Restored::of(&rows) else { return };
    restored.goes_on();
}

/// Otherwise an index may miss rows after it, and a lock id finds none of its locks.
#[test]
fn no_index_has_an_order_that_an_upgrade_of_the_operating_system_changes() {
    needs_server!();
    let rows = Rows::fresh();
    let collations = "SELECT a.attname, c.collname FROM pg_index AS i \
                      JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::smallint[]) \
                      JOIN pg_collation AS c ON c.oid = a.attcollation WHERE i.indrelid = '{T}'::regclass \
                      GROUP BY 1, 2 ORDER BY 1";
    let of_c = ["grant_id", "key", "lock_id"].map(|name| vec![Some(name.to_owned()), Some("C".to_owned())]);
    assert_eq!(rows.sql(collations), of_c);
    let said = || rows.open().schema(Schema::Check, &soon()).unwrap();
    assert!(!said().contains("REINDEX"), "{}", said());
    // A table that was made with the database's own collation goes on, and that is reported.
    rows.sql(
        "ALTER TABLE {T} ALTER lock_id TYPE text COLLATE \"default\", ALTER grant_id TYPE text COLLATE \"default\"",
    );
    assert!(said().contains("\"lock_id\" has the collation \"default\""), "{}", said());
    let store = rows.open();
    let holder = granted(&store, &mut exclusive(&store, "k"));
    let found = store.read(&Which::LockId(holder.lock_id.clone()), None, Consistency::Strong, &soon());
    assert_eq!(found.unwrap().records.len(), 1);
}
