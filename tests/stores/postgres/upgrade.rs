//! The rows of version 0.1.0.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::internals::store::Backend;
use serde_json::Value as Json;

use crate::postgres::needs_server;
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
