//! Reads: one key by `GetItem`; by prefix or lock id by a `Scan`, since there is no index, with one page for each
//! request.

use aws_sdk_dynamodb::types::AttributeValue;

use super::error::DynamodbError;
use super::expr::{Item, text, tokens};
use super::row::{self, DecodedRow};
use super::{Dynamodb, NOBODYS};
use crate::store::{Consistency, Page, Which};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// A filter that the rows of a page match, and the values in it.
type Filter = (&'static str, Vec<(&'static str, AttributeValue)>);

/// How many rows a page looks at: a table with little throughput must return them within one request's timeout.
const PAGE: i32 = 200;

impl Dynamodb {
    pub(super) fn read_page(
        &self,
        which: &Which,
        from: Option<String>,
        consistency: Consistency,
        by: &Deadline,
    ) -> Result<Page, DynamodbError> {
        let of_keys = match which {
            Which::Key(key) => {
                let row = self.get_item(key, consistency, by)?;
                let found = DecodedRow::new(key, row)?;
                // A client that expires a lease of a name takes it over, too.
                if consistency.is_strong() {
                    self.look_again(by)?;
                }
                let moment = match consistency {
                    Consistency::Strong | Consistency::Holders => self.confirmed_moment(by)?,
                    // This is how a waiter looks.
                    Consistency::Eventual => self.confirmed(self.told(self.moment()?)?, by)?,
                };
                self.watch_fleet(&found, moment.now);
                return Ok(Page { records: vec![found.seen(&moment)], next: None });
            }
            Which::Prefix(prefix) if prefix.is_empty() => None,
            Which::Prefix(prefix) => Some(("begins_with(#key, :prefix)", vec![(":prefix", text(prefix))])),
            Which::LockId(id) => Some((
                "#leasedUntil > :past AND (#lockId = :lock OR attribute_exists(#shared))",
                vec![(":past", text(row::PAST)), (":lock", text(id))],
            )),
        };
        // A purge takes over the holders that it finds here.
        self.look_again(by)?;
        let (rows, next) = self.scan(of_keys, from, consistency, by)?;
        let moment = self.confirmed_moment(by)?;
        let mut records = Vec::new();
        for row in rows {
            let key = self.target.key_of(&row).filter(|_| row::is_lock(&row));
            let Some(key) = key else { continue };
            match DecodedRow::new(&key, Some(row)) {
                Ok(found) if key != NOBODYS && which.may_match(&found.record, |id| found.names(id)) => {
                    self.watch_fleet(&found, moment.now);
                    records.push(found.seen(&moment));
                }
                Ok(_) => {}
                Err(error) => {
                    log::warn!(target: "leasehold::dynamodb", key:?; "a damaged row is passed over: {error}");
                }
            }
        }
        Ok(Page { records, next })
    }

    /// The row of a key, read strongly for a decision.
    pub(super) fn look(&self, key: &str, by: &Deadline) -> Result<DecodedRow, DynamodbError> {
        DecodedRow::new(key, self.get_item(key, Consistency::Strong, by)?)
    }

    pub(super) fn get_item(
        &self,
        key: &str,
        consistency: Consistency,
        by: &Deadline,
    ) -> Result<Option<Item>, DynamodbError> {
        let key = self.target.place(key);
        let answer = self.send(by, move |client, stamp, target| async move {
            let request =
                client.get_item().table_name(&target.table).set_key(Some(key)).consistent_read(consistency.is_strong());
            let answer = request.customize().interceptor(stamp.clone()).send().await;
            target.classify(answer, &stamp).map(|answer| answer.item)
        });
        answer.map_err(|(_, error)| error.of_read())
    }

    /// The rows of one page, in the service's own order, and the last key that the scan looked at.
    fn scan(
        &self,
        of_keys: Option<Filter>,
        from: Option<String>,
        consistency: Consistency,
        by: &Deadline,
    ) -> Result<(Vec<Item>, Option<String>), DynamodbError> {
        let of_sort =
            self.target.sort_key.as_ref().map(|ours| ("#sortKey = :sortKey", vec![(":sortKey", text(&ours.value))]));
        let filters: Vec<_> = of_keys.into_iter().chain(of_sort).collect();
        let answer = self.send(by, move |client, stamp, target| async move {
            let mut request =
                client.scan().table_name(&target.table).consistent_read(consistency.is_strong()).limit(PAGE);
            if let Some(from) = from {
                request = request.set_exclusive_start_key(Some(target.start_of_page(&from)));
            }
            if !filters.is_empty() {
                let all: Vec<String> = filters.iter().map(|(filter, _)| format!("({filter})")).collect();
                request = request.filter_expression(all.join(" AND "));
            }
            for (filter, values) in filters {
                for name in tokens(filter, '#') {
                    let attribute = match (name, &target.sort_key) {
                        ("#key", _) => &target.partition_key,
                        ("#sortKey", Some(sort_key)) => &sort_key.name,
                        (other, _) => other.trim_start_matches('#'),
                    };
                    request = request.expression_attribute_names(name, attribute);
                }
                for (name, value) in values {
                    request = request.expression_attribute_values(name, value);
                }
            }
            let answer = request.customize().interceptor(stamp.clone()).send().await;
            target.classify(answer, &stamp).map(|page| {
                let next = page.last_evaluated_key.and_then(|row| target.end_of_page(&row));
                (page.items.unwrap_or_default(), next)
            })
        });
        answer.map_err(|(_, error)| error.of_read())
    }
}
