//! A request's condition and update, written as text, with the names and values that they use.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

/// A row as the service has it.
pub(super) type Item = HashMap<String, AttributeValue>;

/// The condition of every write: a row of a newer major version stays as it is.
pub(super) const READABLE: &str = "(attribute_not_exists(#format) OR begins_with(#format, :major))";

/// One `UpdateItem` (or, without an update, `DeleteItem`) on a key.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub key: String,
    pub condition: String,
    pub update: String,
    names: HashMap<String, String>,
    values: Item,
}

impl Expr {
    pub fn new(key: &str, condition: impl Into<String>, update: impl Into<String>) -> Self {
        let mut expr = Expr {
            key: key.to_owned(),
            condition: format!("{} AND {READABLE}", condition.into()),
            update: update.into(),
            names: HashMap::new(),
            values: HashMap::new(),
        };
        expr.values.insert(":major".to_owned(), text(format!("{}.", crate::lease::record::FORMAT_MAJOR)));
        expr
    }

    /// What `#name` stands for, where that is not its own text.
    pub fn name(mut self, name: &str, attribute: &str) -> Self {
        self.names.insert(name.to_owned(), attribute.to_owned());
        self
    }

    /// What `:name` stands for. It is sent if the texts use it.
    pub fn value(mut self, name: &str, value: AttributeValue) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// The text that `:name` stands for.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.as_s().ok().map(String::as_str)
    }

    pub fn maybe(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.value(name, value),
            None => self,
        }
    }

    /// The names that the texts use. The service refuses others.
    pub fn names(&self, partition_key: &str) -> HashMap<String, String> {
        self.used('#')
            .map(|used| {
                let attribute = self.names.get(used).cloned().unwrap_or_else(|| match used {
                    "#key" => partition_key.to_owned(),
                    other => other.trim_start_matches('#').to_owned(),
                });
                (used.to_owned(), attribute)
            })
            .collect()
    }

    /// The values that the texts use.
    pub fn values(&self) -> Item {
        self.used(':').filter_map(|used| Some((used.to_owned(), self.values.get(used)?.clone()))).collect()
    }

    fn used(&self, sign: char) -> impl Iterator<Item = &str> {
        tokens(&self.condition, sign).chain(tokens(&self.update, sign))
    }
}

/// The words of `text` that begin with `sign`.
pub(super) fn tokens(text: &str, sign: char) -> impl Iterator<Item = &str> {
    text.match_indices(sign).map(|(at, _)| {
        let rest = &text[at..];
        let end = rest[1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(rest.len(), |end| end + 1);
        &rest[..end]
    })
}

pub(super) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(super) fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub(super) fn set<T: Into<String>>(of: impl IntoIterator<Item = T>) -> AttributeValue {
    AttributeValue::Ss(of.into_iter().map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_used_is_sent() {
        let expr = Expr::new("k", "#shared.#grant.#end = :end", "SET #a = :a, #key=:b REMOVE #z")
            .name("#grant", "0-1")
            .value(":a", number(1))
            .value(":end", number(1))
            .value(":never", number(1));
        let mut names: Vec<_> = expr.names("pk").into_iter().collect();
        names.sort();
        let right = [("#a", "a"), ("#end", "end"), ("#format", "format"), ("#grant", "0-1"), ("#key", "pk")];
        assert_eq!(names[..5], right.map(|(a, b)| (a.to_owned(), b.to_owned())));
        let mut values: Vec<_> = expr.values().into_keys().collect();
        values.sort();
        assert_eq!(values, [":a", ":end", ":major"]);
    }
}
