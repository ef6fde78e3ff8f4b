//! What a key may be, and the keys of leases, which begin with a character that no lock's key may hold.

use std::borrow::Cow;

use crate::model::error::{Error, Result};

/// No namespace and no name may contain it, so that no two pairs of them share a row.
const MARK: char = '\u{1}';
/// The most bytes of a text that is stored, and of a whole key.
const MAX_TEXT: usize = 1024;

/// Checks the name of a lock.
pub(crate) fn check_key(key: &str) -> Result<()> {
    check_text("key", key)
}

/// Checks a text that is stored: 1 to 1,024 bytes without control characters.
pub(crate) fn check_text(field: &str, text: &str) -> Result<()> {
    let shown = if field == "lock_id" { short(text) } else { cut(text) };
    if text.is_empty() || text.len() > MAX_TEXT {
        let right = format!("1 to {MAX_TEXT} bytes long ({} given)", text.len());
        return Err(Error::invalid(field, shown, &right));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(field, shown, "without control characters"));
    }
    Ok(())
}

/// The beginning of a text that may be long.
pub(crate) fn cut(text: &str) -> String {
    let mut shown: String = text.chars().take(40).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// The part of a lock id that people may read: anyone who knows all of it can renew and release its group.
pub(crate) fn short(lock_id: &str) -> String {
    lock_id.chars().take(8).collect()
}

/// The key of the row of a lease.
pub(crate) fn of(namespace: &str, name: &str) -> Result<String> {
    let mut key = prefix(namespace)?;
    check_text("name", name)?;
    key.push_str(name);
    if key.len() > MAX_TEXT {
        let right =
            format!("together with the namespace at most {} bytes long ({} given)", MAX_TEXT - 2, key.len() - 2);
        return Err(Error::invalid("name", cut(name), &right));
    }
    Ok(key)
}

/// How all keys of a namespace begin.
pub(crate) fn prefix(namespace: &str) -> Result<String> {
    check_text("namespace", namespace)?;
    Ok(format!("{MARK}{namespace}{MARK}"))
}

/// Namespace and name, if this is the key of a lease's row.
pub(crate) fn parts(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(MARK)?.split_once(MARK)
}

/// A key as people read it: `namespace/name` for a lease, the key itself for a lock.
pub(crate) fn shown(key: &str) -> Cow<'_, str> {
    match parts(key) {
        Some((namespace, name)) => format!("{namespace}/{name}").into(),
        None => key.into(),
    }
}
