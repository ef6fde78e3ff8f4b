//! A request's condition, as text, and its update, with the names and values that they use.

use std::collections::HashMap;
use std::fmt;

use aws_sdk_dynamodb::types::AttributeValue;

/// A row as the service has it.
pub(super) type Item = HashMap<String, AttributeValue>;

/// A part of the condition of every write: a row of a newer major version stays as it is.
pub(super) const READABLE: &str = "(attribute_not_exists(#format) OR begins_with(#format, :major))";

/// What an `UpdateItem` does to each path. A path has one clause, the last that was given: the service refuses two.
#[derive(Clone, Debug, Default)]
pub(super) struct Update(Vec<(Clause, String, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    Set,
    Remove,
    /// Adds to a set.
    Add,
    /// Removes from a set.
    Delete,
}

impl Update {
    /// Sets each path to its value.
    pub fn setting(all: &[(&str, &str)]) -> Update {
        all.iter().fold(Update::default(), |update, (path, value)| update.set(*path, *value))
    }

    /// Also removes these paths.
    pub fn removing(self, all: &[&str]) -> Update {
        all.iter().fold(self, |update, path| update.remove(*path))
    }

    pub fn set(self, path: impl Into<String>, value: impl Into<String>) -> Update {
        self.with(Clause::Set, path.into(), value.into())
    }

    pub fn remove(self, path: impl Into<String>) -> Update {
        self.with(Clause::Remove, path.into(), String::new())
    }

    pub fn add(self, path: &str, values: &str) -> Update {
        self.with(Clause::Add, path.to_owned(), values.to_owned())
    }

    pub fn delete(self, path: &str, values: &str) -> Update {
        self.with(Clause::Delete, path.to_owned(), values.to_owned())
    }

    fn with(mut self, clause: Clause, path: String, value: String) -> Update {
        self.0.retain(|(_, old, _)| *old != path);
        self.0.push((clause, path, value));
        self
    }

    /// What a path is set to.
    pub fn value_of(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|(clause, set, _)| *clause == Clause::Set && set == path).map(|(.., value)| value.as_str())
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for (clause, word, sign) in [
            (Clause::Set, "SET", " = "),
            (Clause::Remove, "REMOVE", ""),
            (Clause::Add, "ADD", " "),
            (Clause::Delete, "DELETE", " "),
        ] {
            let of = self.0.iter().filter(|(of, ..)| *of == clause);
            let of: Vec<String> = of.map(|(_, path, value)| format!("{path}{sign}{value}")).collect();
            if !of.is_empty() {
                write!(f, "{before}{word} {}", of.join(", "))?;
                before = " ";
            }
        }
        Ok(())
    }
}

/// One `UpdateItem` (or, without an update, `DeleteItem`) on a key.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub key: String,
    pub condition: String,
    pub update: Update,
    names: HashMap<String, String>,
    values: Item,
}

impl Expr {
    pub fn new(key: &str, condition: impl Into<String>, update: Update) -> Self {
        let mut expr = Expr {
            key: key.to_owned(),
            condition: format!("{} AND {READABLE}", condition.into()),
            update,
            names: HashMap::new(),
            values: HashMap::new(),
        };
        expr.values.insert(":major".to_owned(), text(format!("{}.", crate::lease::record::FORMAT_MAJOR)));
        expr
    }

    /// Defines the attribute that `#name` means, if that is not `name` itself.
    pub fn name(mut self, name: &str, attribute: &str) -> Self {
        self.names.insert(name.to_owned(), attribute.to_owned());
        self
    }

    /// Defines the value that `:name` means. It is sent only if the condition or the update uses it.
    pub fn value(mut self, name: &str, value: AttributeValue) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// Sets the attribute `name`, or removes it.
    pub fn put(&mut self, name: &str, value: Option<AttributeValue>) {
        let (path, update) = (format!("#{name}"), std::mem::take(&mut self.update));
        self.update = match value {
            Some(value) => {
                self.values.insert(format!(":{name}"), value);
                update.set(path, format!(":{name}"))
            }
            None => update.remove(path),
        };
    }

    /// The text that `:name` means.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.as_s().ok().map(String::as_str)
    }

    pub fn maybe(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.value(name, value),
            None => self,
        }
    }

    /// The names that the condition and the update use. The service refuses unused ones.
    pub fn names(&self, partition_key: &str) -> HashMap<String, String> {
        let attribute = |used: String| {
            let attribute = self.names.get(&used).cloned().unwrap_or_else(|| match used.as_str() {
                "#key" => partition_key.to_owned(),
                other => other.trim_start_matches('#').to_owned(),
            });
            (used, attribute)
        };
        self.used('#').map(attribute).collect()
    }

    /// The values that the condition and the update use.
    pub fn values(&self) -> Item {
        self.used(':').filter_map(|used| self.values.get(&used).cloned().map(|value| (used, value))).collect()
    }

    fn used(&self, sign: char) -> impl Iterator<Item = String> {
        let texts = format!("{} {}", self.condition, self.update);
        let used: Vec<String> = tokens(&texts, sign).map(str::to_owned).collect();
        used.into_iter()
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
        let expr =
            Expr::new("k", "#shared.#grant.#end = :end", Update::setting(&[("#a", ":a"), ("#key", ":b")]).remove("#z"))
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

    #[test]
    fn a_path_has_the_clause_that_it_was_given_last() {
        let update = Update::setting(&[("#a", ":a"), ("#b", "#b + :one")]).removing(&["#c", "#d"]);
        assert_eq!(update.value_of("#b"), Some("#b + :one"));
        assert_eq!(update.to_string(), "SET #a = :a, #b = #b + :one REMOVE #c, #d");
        let update = update.remove("#a").set("#c", ":c").add("#e", ":e").delete("#d", ":d");
        assert_eq!(update.to_string(), "SET #b = #b + :one, #c = :c REMOVE #a ADD #e :e DELETE #d :d");
        let update = update.remove("#e").set("#d", ":d").delete("#b", ":b").add("#c", ":c");
        assert_eq!(update.to_string(), "SET #d = :d REMOVE #a, #e ADD #c :c DELETE #b :b");
        assert_eq!((update.value_of("#a"), Update::default().to_string()), (None, String::new()));
    }
}
