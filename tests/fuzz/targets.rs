//! Functions that must return for any bytes. They get them from libFuzzer (see Cargo.toml), and from the tests, which
//! replay the corpus and change it at random.

use std::time::Duration;

use leasehold::internals::lease::{Ask, GrantId, Labels, Lease, LockRecord, Mode, StoreTime, Wanted, transition};

/// A store URL, which is parsed but not opened.
pub fn urls(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let shown = format!("{:?}", leasehold::LockClient::builder(text));
    assert!(!shown.contains("hunter2"), "a password is shown: {shown}");
    // The part before the last @ may be a password, however malformed the URL is.
    let Some((scheme, rest)) = text.split_once(':') else { return };
    let (before, behind) = rest.rsplit_once('@').unwrap_or_default();
    let is_secret = before.contains("hunter2") && !behind.contains("hunter2");
    if ["mongodb", "mongodb+srv", "postgres", "postgresql"].contains(&scheme)
        && is_secret
        && let Err(error) = leasehold::internals::store::check_url(text)
    {
        let said = format!("{error} {error:?}");
        assert!(!said.contains("hunter2"), "a password is told: {said}");
    }
}

/// A serialized `Lock`: what was read is written in the same way.
#[cfg(feature = "serde")]
pub fn lock_json(bytes: &[u8]) {
    let Ok(lock) = serde_json::from_slice::<leasehold::Lock>(bytes) else { return };
    let text = serde_json::to_string(&lock).expect("it can be written");
    let again: leasehold::Lock = serde_json::from_str(&text).expect("it can be read again");
    assert_eq!(serde_json::to_string(&again).expect("it can be written"), text);
    let _ = (format!("{lock:?}"), lock.created(), lock.leased_until());
}

/// Whatever a row contains, the pure rules have an answer, and a grant's token is higher than all before it.
fn rules(record: &LockRecord) {
    let now = StoreTime::from_nanos(1_790_000_000_000_000_000);
    let times = transition::Times::without_grace(now, 1_790_000_000_000_000);
    let labels = Labels { owner: "o".to_owned(), host: None, comment: None };
    let mut ask = Ask::exclusive(GrantId::from_text("mine"), "id".to_owned(), labels, Duration::from_secs(20));
    for mode in [Mode::Exclusive, Mode::Shared] {
        ask.mode = mode;
        let step = transition::acquire(record, &ask, &times);
        if let Some(next) = step.record {
            assert!(next.token > record.token || record.token == u64::MAX, "{} after {}", next.token, record.token);
        }
    }
    let grants = record.holders().map(|(_, holder)| holder.grant.clone()).chain([ask.grant]);
    for grant in grants {
        for lease in [Lease::For(Duration::from_secs(20)), Lease::Forever] {
            let _ = transition::renew(record, &grant, transition::Renewal::heartbeat(lease), &times);
        }
        let _ = transition::release(record, &grant, &times);
        let _ = transition::give_up(record, &grant, &times);
    }
    let _ = (transition::purge(record, now, times.stamp), record.check_format());
    let _ = transition::free_in(record, &Wanted { mode: Mode::Shared, max_holders: Some(1), ..Wanted::EXCLUSIVE }, now);
}

/// The columns of a row as a JSON list; a value that is neither a text nor a whole number becomes a BLOB.
#[cfg(feature = "sqlite")]
pub fn sqlite_row(bytes: &[u8]) {
    use leasehold::sqlite::rusqlite::{Connection, params_from_iter, types::Value};

    thread_local! {
        static CONN: Connection = Connection::open_in_memory().expect("memory");
    }
    let Ok(serde_json::Value::Array(columns)) = serde_json::from_slice(bytes) else { return };
    let value = |value: Option<&serde_json::Value>| match value {
        None | Some(serde_json::Value::Null) => Value::Null,
        Some(serde_json::Value::String(text)) => Value::Text(text.clone()),
        Some(serde_json::Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Integer(number),
            (None, number) => Value::Real(number.unwrap_or_default()),
        },
        Some(serde_json::Value::Array(bytes)) => {
            Value::Blob(bytes.iter().map(|byte| byte.as_u64().unwrap_or_default() as u8).collect())
        }
        Some(other) => Value::Blob(other.to_string().into_bytes()),
    };
    let places: Vec<String> = (1..=17).map(|place| format!("?{place}")).collect();
    CONN.with(|conn| {
        let mut select = conn.prepare_cached(&format!("SELECT {}", places.join(", "))).expect("a statement");
        let columns = (0..17).map(|at| value(columns.get(at)));
        let row = |row: &leasehold::sqlite::rusqlite::Row<'_>| Ok(leasehold::internals::store::sqlite::decoded(row));
        let decoded = select.query_row(params_from_iter(columns), row).expect("a row");
        decoded.iter().for_each(rules);
    });
}

/// An item in JSON, as the service writes it.
#[cfg(feature = "dynamodb")]
pub fn dynamodb_row(bytes: &[u8]) {
    use std::collections::HashMap;

    use leasehold::dynamodb::aws_sdk_dynamodb::types::AttributeValue;
    use serde_json::Value as Json;

    fn value(json: &Json) -> AttributeValue {
        let Some((kind, of)) = json.as_object().and_then(|object| object.iter().next()) else {
            return AttributeValue::Null(true);
        };
        let list = || of.as_array().into_iter().flatten();
        let text = || of.as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "S" => AttributeValue::S(text()),
            "N" => AttributeValue::N(text()),
            "SS" => AttributeValue::Ss(list().filter_map(Json::as_str).map(str::to_owned).collect()),
            "M" => AttributeValue::M(map(of)),
            "BOOL" => AttributeValue::Bool(of.as_bool().unwrap_or_default()),
            "L" => AttributeValue::L(list().map(value).collect()),
            _ => AttributeValue::Null(true),
        }
    }
    fn map(json: &Json) -> HashMap<String, AttributeValue> {
        json.as_object().into_iter().flatten().map(|(name, json)| (name.clone(), value(json))).collect()
    }
    let Ok(item) = serde_json::from_slice(bytes) else { return };
    leasehold::internals::store::dynamodb::decoded(map(&item)).iter().for_each(rules);
}

/// A document in extended JSON.
#[cfg(feature = "mongodb")]
pub fn mongodb_row(bytes: &[u8]) {
    use leasehold::mongodb::driver::bson::{Bson, Document};

    let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    let Ok(Bson::Document(document)) = Bson::try_from(json) else { return };
    let document: Document = document;
    leasehold::internals::store::mongodb::decoded(&document).iter().for_each(rules);
}

/// The columns of an answer in order: see `made_up` in `src/store/postgres/row.rs`.
#[cfg(feature = "postgres")]
pub fn postgres_row(bytes: &[u8]) {
    let Ok(columns) = serde_json::from_slice(bytes) else { return };
    leasehold::internals::store::postgres::decoded(&columns).iter().for_each(rules);
}

/// The columns of a row by name; times are in nanoseconds since 1970.
#[cfg(feature = "spanner")]
pub fn spanner_row(bytes: &[u8]) {
    let Ok(columns) = serde_json::from_slice(bytes) else { return };
    leasehold::internals::store::spanner::decoded(&columns).iter().for_each(rules);
}
