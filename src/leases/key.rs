//! The rows of leases: their keys begin with a character that no lock's key may hold.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::options::check_text;

/// Neither namespaces nor names may hold it, so that no two pairs share a row.
const MARK: char = '\u{1}';
/// Of the whole key, as for locks.
const MAX_KEY: usize = 1024;

/// The key of the row of a lease.
pub(crate) fn of(namespace: &str, name: &str) -> Result<String> {
    let mut key = prefix(namespace)?;
    check_text("name", name)?;
    key.push_str(name);
    if key.len() > MAX_KEY {
        let right = format!("together with the namespace at most {} bytes long ({} given)", MAX_KEY - 2, key.len() - 2);
        return Err(Error::invalid("name", name.chars().take(40).collect::<String>(), &right));
    }
    Ok(key)
}

/// With what the keys of a namespace begin.
pub(crate) fn prefix(namespace: &str) -> Result<String> {
    check_text("namespace", namespace)?;
    Ok(format!("{MARK}{namespace}{MARK}"))
}

/// Namespace and name, if it is the row of a lease.
pub(crate) fn parts(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(MARK)?.split_once(MARK)
}

/// A key as people shall read it: `lock "a"` or `lease "namespace/name"`.
pub(crate) fn shown(key: &str) -> Cow<'_, str> {
    match parts(key) {
        Some((namespace, name)) => format!("{namespace}/{name}").into(),
        None => key.into(),
    }
}
