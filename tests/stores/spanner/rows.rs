//! The rows: ours as they are documented, and those of spindle.

use std::collections::BTreeMap;

use leasehold::ErrorKind;
use leasehold::internals::store::{Consistency, Purpose, Released, Renewed};

use crate::spanner::*;
use crate::support::spanner::{Database, Raw, TABLE, sdk};
use sdk::mutation::Mutation;
use sdk::statement::Statement;
use sdk::value::{Kind, Value};

/// The columns that are not null.
fn row(raw: &Raw, key: &str) -> BTreeMap<String, Value> {
    let sql = format!("SELECT * FROM {TABLE} WHERE name = @name");
    let mut rows = raw.query(Statement::builder(sql).add_param("name", key).build());
    let row = rows.pop().unwrap_or_default();
    row.into_iter().filter(|(_, value)| value.kind() != Kind::Null).collect()
}

fn names(raw: &Raw, key: &str) -> String {
    row(raw, key).into_keys().collect::<Vec<_>>().join(" ")
}

/// Writes a row as spindle does, with its four columns.
fn spindles(raw: &Raw, key: &str, at: Option<&str>, writer: Option<&str>) {
    let row = Mutation::new_insert_or_update_builder(TABLE).set("name").to(key);
    raw.write(row.set("heartbeat").to(at).set("token").to(at).set("writer").to(writer).build());
}

fn ago(seconds: i64) -> String {
    (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)).to_string()
}

#[test]
fn what_is_written_is_what_is_documented() {
    needs_server!();
    let database = Database::fresh();
    let (raw, store) = (database.raw(), database.open());
    let mut a = exclusive("k");
    let held = granted(&store, &mut a);
    assert_eq!(names(&raw, "k"), "format grant_id heartbeat kind lease_ms lock_id name owner token writer");
    let written = row(&raw, "k");
    let text = |column: &str| written[column].as_str().unwrap();
    assert_eq!((text("writer"), text("grant_id")), (a.grant().as_str(), a.grant().as_str()));
    assert_eq!((text("lease_ms"), text("heartbeat")), ("60000", text("token")));
    let token: jiff::Timestamp = text("token").parse().unwrap();
    assert_eq!(u64::try_from(token.as_microsecond()).unwrap(), held.token, "the token is the commit's timestamp");

    store.renew(&mut a, RENEWAL, &soon()).unwrap();
    let renewed = row(&raw, "k");
    assert!(renewed["heartbeat"] != renewed["token"] && renewed["token"] == written["token"]);

    // The writer stays, because a released row of spindle has one.
    store.release(&mut a, Purpose::Release, &soon()).unwrap();
    assert_eq!(names(&raw, "k"), "format kind lease_ms name token writer");

    let mut b = shared("s");
    granted(&store, &mut b);
    let latest = granted(&store, &mut shared("s"));
    assert_eq!(names(&raw, "s"), "format grant_id heartbeat holders kind lease_ms lock_id name token writer");
    let written = row(&raw, "s");
    assert_eq!(written["writer"].as_str().unwrap(), latest.grant.as_str());
    let holders: serde_json::Value = serde_json::from_str(written["holders"].as_str().unwrap()).unwrap();
    let first = holders[0].as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>();
    let mut entry =
        ["comment", "created", "grant_id", "host", "lock_id", "owner", "renewed", "token", "until"].to_vec();
    entry.sort();
    assert_eq!((holders.as_array().unwrap().len(), first), (2, entry));

    store.release(&mut exclusive("g"), Purpose::GiveUp, &soon()).unwrap();
    assert_eq!(names(&raw, "g"), "format given_up kind name token");
}

#[test]
fn the_recorded_rows_of_spindle_are_read() {
    needs_server!();
    let database = Database::fresh();
    let (raw, store) = (database.raw(), database.open());
    let golden: serde_json::Value = serde_json::from_str(include_str!("../../golden/spindle.json")).unwrap();
    let mut read = 0;
    for step in golden["steps"].as_array().unwrap() {
        for row in step["rows"].as_array().unwrap() {
            let text = |column: &str| row[column].as_str();
            let key = text("name").unwrap();
            let written = Mutation::new_insert_or_update_builder(TABLE).set("name").to(key);
            let written = written.set("heartbeat").to(text("heartbeat")).set("token").to(text("token"));
            raw.write(written.set("writer").to(text("writer")).build());
            let seen = get(&store, key);
            assert!(seen.record.exists());
            let holder = seen.record.holders().next().map(|(_, holder)| holder.clone());
            assert_eq!(holder.as_ref().map(|holder| holder.labels.owner.as_str()), text("writer"));
            let token = text("token").map_or(0, |token| token.parse::<jiff::Timestamp>().unwrap().as_microsecond());
            assert_eq!(seen.record.token, u64::try_from(token).unwrap());
            // All of these were over long ago, and the rows for which the nodes compete belong to nobody.
            let taken = granted(&store, &mut exclusive(key));
            assert!(taken.token > seen.record.token);
            store.release(&mut exclusive(key), Purpose::Release, &soon()).unwrap();
            read += 1;
        }
    }
    assert_eq!(read, 5);
}

#[test]
fn rows_of_spindle_are_respected_while_they_live() {
    needs_server!();
    let database = Database::fresh();
    let raw = database.raw();
    let mut options = database.options();
    // So long that a busy machine does not use up what is left of it.
    options.spindle_duration = Duration::from_secs(60);
    let store = Spanner::open(options, &soon()).unwrap();
    spindles(&raw, "live", Some(&ago(25)), Some("node-a"));
    let before = row(&raw, "live");
    for attempt in [&mut exclusive("live"), &mut shared("live")] {
        let seen = refused(&store, attempt);
        assert_eq!(seen.live().next().unwrap().1.labels.owner, "node-a");
    }
    assert!(matches!(
        store.release(&mut exclusive("live"), Purpose::Release, &soon()).unwrap(),
        Released::HeldByOther(_)
    ));
    assert_eq!(row(&raw, "live"), before);
    // A second more than a lock may be without a heartbeat.
    spindles(&raw, "over", Some(&ago(70)), Some("node-a"));
    spindles(&raw, "released", None, Some("node-a"));
    for key in ["over", "released"] {
        let held = granted(&store, &mut exclusive(key));
        assert_eq!(get(&store, key).record.exclusive, Some(held));
    }
}

#[test]
fn a_row_that_spindle_took_over_is_lost() {
    needs_server!();
    let database = Database::fresh();
    let (raw, store) = (database.raw(), database.open());
    let (mut a, mut b) = (exclusive("x"), shared("s"));
    granted(&store, &mut a);
    granted(&store, &mut b);
    for held in [&mut a, &mut b] {
        spindles(&raw, &held.key, Some(&ago(0)), Some("node-b"));
        let lost = store.renew(held, RENEWAL, &soon()).unwrap();
        assert!(matches!(lost, Renewed::Lost(_)), "{lost:?}");
        assert!(matches!(store.release(held, Purpose::Release, &soon()).unwrap(), Released::HeldByOther(_)));
        assert!(matches!(store.release(held, Purpose::GiveUp, &soon()).unwrap(), Released::HeldByOther(_)));
        let seen = refused(&store, &mut exclusive(&held.key));
        assert_eq!(seen.live().next().unwrap().1.labels.owner, "node-b");
    }
}

#[test]
fn columns_that_are_not_known_stay() {
    needs_server!();
    let database = Database::fresh();
    database.ddl(&format!("ALTER TABLE {TABLE} ADD COLUMN later BOOL"));
    let (raw, store) = (database.raw(), database.open());
    let mut a = exclusive("k");
    granted(&store, &mut a);
    raw.write(Mutation::new_update_builder(TABLE).set("name").to("k").set("later").to(true).build());
    store.release(&mut a, Purpose::Release, &soon()).unwrap();
    granted(&store, &mut shared("k"));
    let seen = get(&store, "k");
    store.swap(&seen, Some(&seen.record), &soon()).unwrap();
    assert_eq!(row(&raw, "k")["later"].as_bool(), Some(true));
    let holders = || row(&raw, "k")["holders"].as_str().unwrap().to_owned();
    let later = holders().replacen("[{", r#"[{"later":7,"#, 1);
    raw.write(Mutation::new_update_builder(TABLE).set("name").to("k").set("holders").to(&later).build());
    granted(&store, &mut shared("k"));
    assert!(holders().contains(r#""later":7"#), "in an entry of another holder");
}

#[test]
fn a_damaged_row_is_an_error_that_names_it() {
    needs_server!();
    let database = Database::fresh();
    let (raw, store) = (database.raw(), database.open());
    let (mut a, mut b) = (exclusive("k"), shared("s"));
    granted(&store, &mut a);
    granted(&store, &mut b);
    let update = |key: &str| Mutation::new_update_builder(TABLE).set("name").to(key.to_owned());
    raw.write(update("k").set("kind").to("loan").build());
    raw.write(update("s").set("holders").to("{\"a\": 1}").build());
    for (attempt, says) in [(&mut a, "loan"), (&mut b, "holders")] {
        let before = row(&raw, &attempt.key);
        let error = store.acquire(attempt, &soon()).unwrap_err();
        assert_eq!(error.kind(), leasehold::ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(row(&raw, &attempt.key), before);
    }
    // A damaged row of another group does not stop a call for this group.
    granted(&store, &mut exclusive("z"));
    let group = Which::LockId(get(&store, "z").record.exclusive.unwrap().lock_id);
    assert_eq!(store.read(&group, None, Consistency::Strong, &soon()).unwrap().records.len(), 1);
}

#[test]
fn a_row_of_a_newer_form_is_told_as_that() {
    needs_server!();
    let database = Database::fresh();
    let raw = database.raw();
    crate::newer::its_version_is_told(database.open(), |key| {
        let newer = Mutation::new_update_builder(TABLE).set("name").to(key);
        raw.write(newer.set("format").to("2.0").set("kind").to("loan").build());
    });
}

/// Spindle writes rows with only a name while its nodes compete.
#[test]
fn listings_and_purges_pass_over_what_is_damaged_or_no_lock() {
    needs_server!();
    let database = Database::fresh();
    database.ddl(&format!("ALTER TABLE {TABLE} ADD COLUMN total INT64"));
    let (raw, store) = (database.raw(), database.open());
    granted(&store, &mut exclusive("a damaged"));
    granted(&store, &mut exclusive("held"));
    let damaged = Mutation::new_update_builder(TABLE).set("name").to("a damaged");
    raw.write(damaged.set("kind").to("loan").build());
    let other = Mutation::new_insert_or_update_builder(TABLE).set("name").to("an invoice");
    raw.write(other.set("total").to(5_i64).build());
    spindles(&raw, "contended", None, None);
    // Such a row may be deleted.
    spindles(&raw, "free", None, Some("node-a"));
    let clock = leasehold::internals::sys::clock::Clock::system();
    let client = crate::support::bench::builder_over(std::sync::Arc::new(store), clock).connect().unwrap();
    let found = client.list(&leasehold::Filter::new()).unwrap();
    assert_eq!(found.iter().map(|status| status.key()).collect::<Vec<_>>(), ["held"]);
    assert_eq!(client.purge_preview(Duration::ZERO).unwrap().deleted, 1);
    assert_eq!(client.purge(Duration::ZERO).unwrap().deleted, 1);
    for key in ["a damaged", "an invoice", "contended", "held"] {
        assert!(!row(&raw, key).is_empty(), "{key} was deleted");
    }
    assert!(row(&raw, "free").is_empty());
}

/// The values of these columns are the user's, so an existing row must not be written as a whole.
#[test]
fn who_has_a_lock_keeps_it_while_a_column_of_the_users_must_get_a_value() {
    needs_server!();
    let database = Database::fresh();
    database.ddl(&format!("ALTER TABLE {TABLE} ADD COLUMN team STRING(MAX)"));
    let (raw, store) = (database.raw(), database.open());
    let mut mine = exclusive("k");
    granted(&store, &mut mine);
    raw.write(Mutation::new_update_builder(TABLE).set("name").to("k").set("team").to("red").build());
    database.ddl(&format!("ALTER TABLE {TABLE} ALTER COLUMN team STRING(MAX) NOT NULL"));
    assert!(matches!(store.renew(&mut mine, RENEWAL, &soon()), Ok(Renewed::Until { .. })));
    assert!(matches!(store.release(&mut mine, Purpose::Release, &soon()), Ok(Released::Done)));
    assert_eq!(row(&raw, "k")["team"].as_str(), Some("red"));
}

/// What a read by lock id goes through.
fn indexed(raw: &Raw) -> Vec<String> {
    let hints = "FORCE_INDEX=locks_lock_id, spanner_emulator.disable_query_null_filtered_index_check=true";
    let sql = format!("SELECT name FROM {TABLE}@{{{hints}}} WHERE lock_id IS NOT NULL ORDER BY name");
    let rows = raw.query(Statement::builder(sql).build());
    rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_index_of_lock_ids_holds_the_rows_of_holders_and_reads_by_lock_id_go_by_it() {
    needs_server!();
    let database = Database::fresh();
    let (raw, store) = (database.raw(), database.open());
    let by_id = |holder: &Holder| -> leasehold::Result<Vec<String>> {
        let page = store.read(&Which::LockId(holder.lock_id.clone()), None, Consistency::Strong, &soon())?;
        Ok(page.records.into_iter().map(|seen| seen.record.key).collect())
    };
    let alone = granted(&store, &mut exclusive("alone"));
    let (mut first, mut second) = (shared("together"), shared("together"));
    let together = [granted(&store, &mut first), granted(&store, &mut second)];
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut left = attempt(&format!("left {mode}"), mode);
        granted(&store, &mut left);
        store.release(&mut left, Purpose::Release, &soon()).unwrap();
    }
    store.release(&mut exclusive("given up"), Purpose::GiveUp, &soon()).unwrap();

    assert_eq!(indexed(&raw), ["alone", "together"]);
    assert_eq!(by_id(&alone).unwrap(), ["alone"]);
    assert!(together.iter().all(|holder| by_id(holder).unwrap() == ["together"]));
    store.release(&mut first, Purpose::Release, &soon()).unwrap();
    store.renew(&mut second, RENEWAL, &soon()).unwrap();
    assert_eq!(by_id(&together[0]).unwrap(), Vec::<String>::new());
    assert_eq!(by_id(&together[1]).unwrap(), ["together"]);

    // As builds before the first release left the row.
    let without = Mutation::new_update_builder(TABLE).set("name").to("together");
    raw.write(without.set("lock_id").to(None::<String>).build());
    assert_eq!(by_id(&together[1]).unwrap(), Vec::<String>::new());
    store.renew(&mut second, RENEWAL, &soon()).unwrap();
    assert_eq!(by_id(&together[1]).unwrap(), ["together"]);

    database.ddl("DROP INDEX locks_lock_id");
    let error = by_id(&alone).unwrap_err();
    assert!(error.kind() == leasehold::ErrorKind::Schema && error.to_string().contains("index"), "{error:?}");
    let error = store.schema(leasehold::internals::store::Schema::Check, &soon()).unwrap_err();
    assert!(error.to_string().contains("no index locks_lock_id; create_schema()"), "{error}");
}

/// However many keys other clients hold shared: each of them may be in the group.
#[test]
fn a_page_of_a_group_looks_at_so_many_rows() {
    needs_server!();
    let database = Database::fresh();
    let store = database.open();
    let raw = database.raw();
    let (mut other, mut mine) = (shared("other"), shared("z"));
    mine.ask.lock_id = "mine".to_owned();
    granted(&store, &mut other);
    granted(&store, &mut mine);
    let columns = "lock_id, writer, grant_id, holders, heartbeat, token, format";
    let many = format!(
        "INSERT INTO {TABLE} (name, {columns}) SELECT CONCAT('o', CAST(1000 + n AS STRING)), {columns} \
         FROM {TABLE}, UNNEST(GENERATE_ARRAY(1, 1000)) AS n WHERE name = 'other'"
    );
    raw.update(Statement::builder(many).build());
    let group = Which::LockId("mine".to_owned());
    let page = |from| store.read(&group, from, Consistency::Strong, &soon()).unwrap();
    let first = page(None);
    assert!(first.records.is_empty() && first.next.is_some(), "{first:?}");
    let last = page(first.next);
    assert!(last.records.len() == 1 && last.next.is_none(), "{last:?}");
}

/// A holder that can't be read must not be changed by another's heartbeat, nor replaced by a grant.
#[test]
fn damaged_holders_stay_as_they_are() {
    needs_server!();
    let database = Database::fresh();
    let (raw, store) = (database.raw(), database.open());
    let set = |key: &str, holders: &serde_json::Value| {
        let row = Mutation::new_update_builder(TABLE).set("name").to(key).set("holders").to(holders.to_string());
        raw.write(row.build());
    };
    let [mut one, mut alone] = [shared("shared"), exclusive("alone")];
    granted(&store, &mut one);
    granted(&store, &mut shared("shared"));
    granted(&store, &mut alone);
    let text = row(&raw, "shared")["holders"].as_str().unwrap().to_owned();
    let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
    let [mut endless, mut nameless] = [whole.clone(), whole.clone()];
    endless[1].as_object_mut().unwrap().remove("until");
    nameless[1]["host"] = serde_json::json!(5);
    for damaged in [&endless, &nameless] {
        set("shared", damaged);
        let before = row(&raw, "shared");
        let error = store.renew(&mut one, RENEWAL, &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert_eq!(row(&raw, "shared"), before);
    }
    set("shared", &whole);
    store.renew(&mut one, RENEWAL, &soon()).unwrap();
    // Only the holder in the row itself holds it, and an empty list does not say otherwise.
    set("alone", &serde_json::json!([]));
    assert_eq!(store.acquire(&mut exclusive("alone"), &soon()).unwrap_err().kind(), ErrorKind::Schema);
}
