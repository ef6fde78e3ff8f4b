//! The table, and how its rows are addressed: by the partition key alone, or by it and one value of a sort key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::KeyType;

use super::credentials::Ended;
use super::error::{self, DynamodbError};
use super::expr::{Item, text};
use super::send::{Answer, Stamp};
use crate::store::failure::Left;

/// The sort key of a table, a string, and the value that all rows of this store have in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The attribute.
    pub name: String,
    /// The value.
    pub value: String,
}

/// The table, with what errors need to know about it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub table: String,
    pub partition_key: String,
    pub sort_key: Option<SortKey>,
    /// Known once there is a client of the SDK.
    pub region: Option<String>,
    /// Known at the same time: the endpoint, if another than the region's was given.
    pub endpoint: Option<String>,
    /// Learns of credentials that the service no longer accepts.
    pub ended: Ended,
    /// Whether it was logged that the answers may come through a proxy that does not show itself.
    pub said_hidden: Arc<AtomicBool>,
    /// Whether it was logged that the answers no longer report the time.
    pub said_untold: Arc<AtomicBool>,
    has_sent: Arc<AtomicBool>,
    was_accepted: Arc<AtomicBool>,
}

impl Target {
    pub fn new(table: &str, partition_key: &str, sort_key: Option<SortKey>) -> Self {
        let (table, partition_key) = (table.to_owned(), partition_key.to_owned());
        let (region, endpoint, ended) = Default::default();
        let (said_hidden, said_untold, has_sent, was_accepted) = Default::default();
        Target {
            table,
            partition_key,
            sort_key,
            region,
            endpoint,
            ended,
            said_hidden,
            said_untold,
            has_sent,
            was_accepted,
        }
    }

    /// The name of the store in errors and in the data of locks. In another place, or with another sort key, the rows
    /// are different ones.
    pub fn label(&self) -> String {
        let endpoint = self.endpoint.as_deref().map(host).filter(|endpoint| !self.is_of_region(endpoint));
        // The sort key may have any characters, so it is the last part: `api::origin` parses them.
        let sort_key = self.sort_key.as_ref().map(|SortKey { name, value }| format!("{name}:{value}"));
        let parts =
            [("region", self.region.clone()), ("endpoint", endpoint.map(str::to_owned)), ("sort_key", sort_key)];
        let parts = parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        let parts: Vec<String> = parts.collect();
        let sign = if parts.is_empty() { "" } else { "?" };
        format!("dynamodb://{}{sign}{}", self.table, parts.join("&"))
    }

    /// Whether a host is one of AWS's own for the region: the usual one, the one for FIPS, of an account or in a VPC.
    /// All lead to the same table.
    fn is_of_region(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let of_aws = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".api.amazonwebservices.com.cn"];
        let names = of_aws.iter().find_map(|domain| host.strip_suffix(domain));
        names.zip(self.region.as_deref()).is_some_and(|(names, region)| names.split('.').any(|name| name == region))
    }

    /// The attributes of the table's key, each a string.
    pub fn schema(&self) -> impl Iterator<Item = (&str, KeyType)> {
        let sort_key = self.sort_key.iter().map(|sort_key| (sort_key.name.as_str(), KeyType::Range));
        std::iter::once((self.partition_key.as_str(), KeyType::Hash)).chain(sort_key)
    }

    /// The table's key as it must be.
    pub fn described(&self) -> String {
        let each: Vec<String> = self.schema().map(|(name, kind)| format!("{} {name} (S)", kind.as_str())).collect();
        each.join(", ")
    }

    /// The primary key of the row of a key.
    pub fn place(&self, key: &str) -> Item {
        let sort_key = self.sort_key.iter().map(|sort_key| (sort_key.name.clone(), text(&sort_key.value)));
        std::iter::once((self.partition_key.clone(), text(key))).chain(sort_key).collect()
    }

    /// The key of a row of this store. Rows with another value of the sort key belong to others.
    pub fn key_of(&self, row: &Item) -> Option<String> {
        let is_ours = |sort_key: &SortKey| string(row, &sort_key.name).is_some_and(|value| *value == sort_key.value);
        string(row, &self.partition_key).filter(|_| self.sort_key.as_ref().is_none_or(is_ours)).cloned()
    }

    /// Where a page of a scan ended, as a text. That may be at a row that belongs to others.
    pub fn end_of_page(&self, last: &Item) -> Option<String> {
        let key = string(last, &self.partition_key)?;
        match &self.sort_key {
            None => Some(key.clone()),
            Some(sort_key) => Some(format!("{}:{key}{}", key.len(), string(last, &sort_key.name)?)),
        }
    }

    /// The same place, to go on from there.
    pub fn start_of_page(&self, end: &str) -> Item {
        let both = || {
            let (len, both) = end.split_once(':')?;
            both.split_at_checked(len.parse().ok()?)
        };
        match self.sort_key.as_ref().zip(both()) {
            Some((sort_key, (key, value))) => {
                HashMap::from([(self.partition_key.clone(), text(key)), (sort_key.name.clone(), text(value))])
            }
            None => self.place(end),
        }
    }

    /// Whether a request of this client was ever sent.
    pub fn has_sent(&self) -> bool {
        self.has_sent.load(Ordering::SeqCst)
    }

    /// Whether the service ever did what this client asked: its credentials and its clock were right then.
    pub fn was_accepted(&self) -> bool {
        self.was_accepted.load(Ordering::SeqCst)
    }

    pub fn classify<T, E>(&self, result: Result<T, SdkError<E, HttpResponse>>, stamp: &Stamp) -> Answer<T>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        if stamp.left() == Left::Maybe {
            self.has_sent.store(true, Ordering::SeqCst);
        }
        match &result {
            Ok(_) => self.was_accepted.store(true, Ordering::SeqCst),
            Err(error) => match error::code(error) {
                Some("ExpiredTokenException" | "ExpiredToken") => self.ended.said_of(stamp.sent_at()),
                Some("UnrecognizedClientException") => self.ended.said_unknown(),
                _ => {}
            },
        }
        result.map_err(|error| DynamodbError::classify(&error, stamp.left(), self))
    }
}

/// Host and port of an endpoint, without the default port of its scheme. The rest may be secret.
fn host(endpoint: &str) -> &str {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let (place, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // A password may have a slash.
    if path.contains('@') {
        return "?";
    }
    let rest = place.rsplit_once('@').map_or(place, |(_, rest)| rest);
    let usual = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    rest.strip_suffix(usual).unwrap_or(rest)
}

fn string<'a>(row: &'a Item, name: &str) -> Option<&'a String> {
    row.get(name)?.as_s().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_name_says_where_it_is_and_nothing_secret() {
        let sort_key = SortKey { name: "sk".to_owned(), value: "a&b".to_owned() };
        let mut target = Target::new("locks", "key", None);
        assert_eq!(target.label(), "dynamodb://locks");
        target.region = Some("eu-west-1".to_owned());
        assert_eq!(target.label(), "dynamodb://locks?region=eu-west-1");
        target.sort_key = Some(sort_key);
        for (endpoint, shown) in [
            ("http://h:8000", "&endpoint=h:8000"),
            ("https://h:8000/x?y", "&endpoint=h:8000"),
            ("http://me:secret@h:8000/", "&endpoint=h:8000"),
            ("http://me:a/b@h:8000", "&endpoint=?"),
            ("https://h:443/", "&endpoint=h"),
            ("http://h:80", "&endpoint=h"),
            ("https://dynamodb.eu-west-1.amazonaws.com", ""),
            ("https://DynamoDB.eu-west-1.amazonaws.com.:443/", ""),
            ("https://dynamodb-fips.eu-west-1.amazonaws.com", ""),
            ("https://dynamodb.eu-west-1.api.aws", ""),
            ("https://123456789012.ddb.eu-west-1.amazonaws.com", ""),
            ("https://vpce-1-2.dynamodb.eu-west-1.vpce.amazonaws.com", ""),
            ("https://dynamodb.us-east-1.amazonaws.com", "&endpoint=dynamodb.us-east-1.amazonaws.com"),
            ("https://eu-west-1.example.com", "&endpoint=eu-west-1.example.com"),
        ] {
            target.endpoint = Some(endpoint.to_owned());
            let right = format!("dynamodb://locks?region=eu-west-1{shown}&sort_key=sk:a&b");
            assert_eq!(target.label(), right, "{endpoint}");
        }
    }

    #[test]
    fn a_page_goes_on_where_it_ended_also_at_a_row_of_somebody_else() {
        let sort_key = SortKey { name: "kind".to_owned(), value: "lock".to_owned() };
        let target = Target::new("t", "key", Some(sort_key));
        for (key, value) in [("k", "lock"), ("3:k:", "1:other"), ("\u{e4}\u{f6}", "")] {
            let row = HashMap::from([("key".to_owned(), text(key)), ("kind".to_owned(), text(value))]);
            let end = target.end_of_page(&row).unwrap_or_default();
            assert_eq!(target.start_of_page(&end), row, "{end:?}");
            assert_eq!(target.key_of(&row).is_some(), value == "lock");
        }
        let plain = Target::new("t", "key", None);
        let row = HashMap::from([("key".to_owned(), text("3:k"))]);
        assert_eq!(plain.end_of_page(&row).map(|end| plain.start_of_page(&end)), Some(row));
    }
}
