//! To read: one key by `GetItem`; by prefix or lock id a `Scan`, since there is no index.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;

use super::error::DynamodbError;
use super::expr::{Item, text, tokens};
use super::item;
use super::{Dynamodb, Found, NOBODYS};
use crate::backend::{Page, Seen, Which};
use crate::lease::LockRecord;
use crate::rt::deadline::Deadline;

/// How many records a page holds.
const PAGE: usize = 100;

/// The rest of a scan, for its next page: the service has no order, so a scan is always a whole one.
#[derive(Debug)]
pub(super) struct Rest {
    which: Which,
    /// The last key of the page before.
    after: String,
    strong: bool,
    seen: Vec<Seen>,
}

impl Dynamodb {
    pub(super) fn read_page(
        &self,
        which: &Which,
        from: Option<String>,
        strong: bool,
        by: &Deadline,
    ) -> Result<Page, DynamodbError> {
        if let Which::Key(key) = which {
            let row = self.get_item(key, strong, by)?;
            let found = Found::new(key, row)?;
            let moment = if strong { self.sure_moment(Duration::ZERO, by)? } else { self.moment()? };
            return Ok(Page { records: vec![found.seen(&moment)], next: None });
        }
        let mut seen = match from.as_ref().and_then(|from| self.rest_after(which, from, strong)) {
            Some(rest) => rest,
            None => self.scan(which, from.as_deref(), strong, by)?,
        };
        let rest = seen.split_off(seen.len().min(PAGE));
        let next = (!rest.is_empty()).then(|| seen.last().map(|last| last.record.key.clone())).flatten();
        if let Some(after) = &next {
            *self.rest.lock() = Some(Rest { which: which.clone(), after: after.clone(), strong, seen: rest });
        }
        Ok(Page { records: seen, next })
    }

    /// The row of a key for a decision.
    pub(super) fn look(&self, key: &str, by: &Deadline) -> Result<Found, DynamodbError> {
        Found::new(key, self.get_item(key, true, by)?)
    }

    pub(super) fn get_item(&self, key: &str, strong: bool, by: &Deadline) -> Result<Option<Item>, DynamodbError> {
        let key = AttributeValue::S(key.to_owned());
        let answer = self.send(by, move |client, stamp, place| async move {
            let request =
                client.get_item().table_name(&place.table).key(&place.partition_key, key).consistent_read(strong);
            let answer = request.customize().interceptor(stamp.clone()).send().await;
            place.classify(answer, &stamp).map(|answer| answer.item)
        });
        answer.map_err(|(_, error)| error.of_read())
    }

    fn rest_after(&self, which: &Which, from: &str, strong: bool) -> Option<Vec<Seen>> {
        let is_it = |rest: &mut Rest| rest.which == *which && rest.after == from && rest.strong == strong;
        self.rest.lock().take_if(is_it).map(|rest| rest.seen)
    }

    /// Every record that matches and comes after `from`, in the order of the keys.
    fn scan(&self, which: &Which, from: Option<&str>, strong: bool, by: &Deadline) -> Result<Vec<Seen>, DynamodbError> {
        let (mut start, mut all) = (None, Vec::new());
        loop {
            let (items, next) = self.scan_part(which, start, strong, by)?;
            for row in items {
                let key = row.get(&self.place.partition_key).and_then(|key| key.as_s().ok()).cloned();
                let Some(key) = key.filter(|key| from.is_none_or(|from| key.as_str() > from)) else { continue };
                match Found::new(&key, Some(row)) {
                    Ok(found) if matches(which, &found.record) => all.push(found.seen(&self.moment()?)),
                    Ok(_) => {}
                    Err(error) if matches!(which, Which::LockId(_)) => {
                        log::warn!(target: "leasehold::dynamodb", key:?; "a damaged row is passed over: {error}");
                    }
                    Err(error) => return Err(error),
                }
            }
            start = next;
            if start.is_none() {
                break;
            }
        }
        all.sort_by(|a, b| a.record.key.cmp(&b.record.key));
        Ok(all)
    }

    fn scan_part(
        &self,
        which: &Which,
        start: Option<Item>,
        strong: bool,
        by: &Deadline,
    ) -> Result<(Vec<Item>, Option<Item>), DynamodbError> {
        let filter = match which {
            Which::Prefix(prefix) if prefix.is_empty() => None,
            Which::Prefix(prefix) => Some(("begins_with(#key, :prefix)", vec![(":prefix", text(prefix))])),
            Which::LockId(id) => Some((
                "#leasedUntil > :past AND (#lockId = :lock OR attribute_exists(#shared))",
                vec![(":past", text(item::PAST)), (":lock", text(id))],
            )),
            Which::Key(key) => Some(("#key = :key", vec![(":key", text(key))])),
        };
        let answer = self.send(by, move |client, stamp, place| async move {
            let mut request =
                client.scan().table_name(&place.table).consistent_read(strong).set_exclusive_start_key(start);
            if let Some((filter, values)) = filter {
                request = request.filter_expression(filter);
                for name in tokens(filter, '#') {
                    let attribute = if name == "#key" { &place.partition_key } else { name.trim_start_matches('#') };
                    request = request.expression_attribute_names(name, attribute);
                }
                for (name, value) in values {
                    request = request.expression_attribute_values(name, value);
                }
            }
            let answer = request.customize().interceptor(stamp.clone()).send().await;
            place.classify(answer, &stamp).map(|page| (page.items.unwrap_or_default(), page.last_evaluated_key))
        });
        answer.map_err(|(_, error)| error.of_read())
    }
}

fn matches(which: &Which, record: &LockRecord) -> bool {
    record.key != NOBODYS
        && match which {
            Which::Key(key) => record.key == *key,
            Which::Prefix(prefix) => record.key.starts_with(prefix.as_str()),
            Which::LockId(id) => record.holders().any(|(_, holder)| holder.lock_id == *id),
        }
}
