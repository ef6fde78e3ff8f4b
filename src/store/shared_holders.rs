//! Shared holders as JSON, for stores that keep them in one column of a row: an array of objects with their times in
//! microseconds since 1970.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use crate::lease::{End, GrantId, Holder, Labels, StoreTime};

/// Encodes `holders`. `stored` is the array as it was read: fields of its entries that this version does not know are
/// kept, because a later minor version added them.
pub(super) fn encode(holders: &[Holder], stored: Option<&Json>) -> Json {
    let entries = stored.and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_object);
    let stored: HashMap<_, _> = entries.filter_map(|entry| Some((entry.get("grant_id")?.as_str()?, entry))).collect();
    let micros = |at: StoreTime| at.as_nanos().div_euclid(1_000);
    let entry = |holder: &Holder| {
        let until = match holder.until {
            // Rounded up: never less than was promised.
            End::At(until) => Some(micros(StoreTime::from_nanos(until.as_nanos().saturating_add(999)))),
            End::Never => None,
        };
        let ours = [
            ("grant_id", json!(holder.grant.as_str())),
            ("lock_id", json!(holder.lock_id)),
            ("owner", json!(holder.labels.owner)),
            ("host", json!(holder.labels.host)),
            ("comment", json!(holder.labels.comment)),
            ("token", json!(holder.token)),
            ("created", json!(micros(holder.created))),
            ("renewed", json!(holder.renewed.map(micros))),
            ("until", json!(until)),
        ];
        let mut entry = stored.get(holder.grant.as_str()).copied().cloned().unwrap_or_default();
        entry.extend(ours.map(|(name, value)| (name.to_owned(), value)));
        Json::Object(entry)
    };
    holders.iter().map(entry).collect()
}

/// `None` if this is not an array of valid holders. It is strict, because the next write of the row would store what a
/// lenient reader made of damaged data as if it were right.
pub(super) fn decode(holders: &Json) -> Option<Vec<Holder>> {
    holders.as_array()?.iter().map(holder).collect()
}

fn holder(entry: &Json) -> Option<Holder> {
    let entry: &Map<String, Json> = entry.as_object()?;
    // A value that is null or missing counts as absent. One that is present must have the right type.
    let there = |name: &str| entry.get(name).filter(|value| !value.is_null());
    let text = |name: &str| there(name).map_or(Some(None), |value| Some(Some(value.as_str()?.to_owned())));
    let at = |value: &Json| Some(StoreTime::from_nanos(value.as_i64()?.checked_mul(1_000)?));
    let time = |name: &str| there(name).map_or(Some(None), |value| at(value).map(Some));
    Some(Holder {
        grant: GrantId::from_text(text("grant_id")??),
        lock_id: text("lock_id")??,
        labels: Labels { owner: text("owner")??, host: text("host")?, comment: text("comment")? },
        token: entry.get("token")?.as_u64()?,
        created: time("created")??,
        renewed: time("renewed")?,
        // Null means a lease without end. If the field is missing, the end is not known, and the entry is not valid.
        until: match entry.get("until")? {
            Json::Null => End::Never,
            until => End::At(at(until)?),
        },
    })
}
