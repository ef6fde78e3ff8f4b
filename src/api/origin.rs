//! Whether the data of a lock is of the store that a client has. One store can go by several names: the paths of a file,
//! the hosts of a cluster. So only what is certainly another one is refused; else the store says whether the lock stands.

use crate::engine::family::Family;
use crate::model::error::{Error, Result};
use crate::model::lock::Lock;

/// Refuses a lock that another store has granted: what that one knows of it is not here.
pub(crate) fn check_origin(family: &Family, lock: &Lock) -> Result<()> {
    let here = &family.backend.info().label;
    match lock.store() {
        Some(origin) if is_another(origin, here) => {
            let right = format!("the one that granted the lock, {origin:?}");
            Err(family.in_context(Error::invalid("store", here, &right).with_key(lock.key())))
        }
        _ => Ok(()),
    }
}

/// What to say of a lock that does not stand here, if it was granted under another name.
pub(crate) fn told_origin(family: &Family, lock: &Lock) -> String {
    let origin = lock.store().filter(|origin| *origin != family.backend.info().label);
    origin.map(|origin| format!("; it was granted by {origin}")).unwrap_or_default()
}

fn is_another(origin: &str, here: &str) -> bool {
    // Of a cluster without its hosts: its database and collection.
    let last = |label: &str| label.rsplit_once('/').map(|(_, last)| last.to_owned());
    match (origin.split_once(':'), here.split_once(':')) {
        (Some(("sqlite", origin)), Some(("sqlite", here))) => origin != here && leads_elsewhere(origin, here),
        (Some(("mongodb", origin)), Some(("mongodb", here))) => last(origin) != last(here),
        // The names of tables have no case on Spanner.
        (Some(("spanner", origin)), Some(("spanner", here))) => !origin.eq_ignore_ascii_case(here),
        _ => origin != here,
    }
}

/// Whether both files are there, and are not the same. A path that leads nowhere may be one of another container.
#[cfg(unix)]
fn leads_elsewhere(origin: &str, here: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let file = |path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((file(origin), file(here)), (Ok(origin), Ok(here)) if origin != here)
}

#[cfg(not(unix))]
fn leads_elsewhere(origin: &str, here: &str) -> bool {
    let file = std::fs::canonicalize;
    matches!((file(origin), file(here)), (Ok(origin), Ok(here)) if origin != here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certainly_another_store_is_refused() {
        let same = [
            ("memory:a", "memory:a"),
            ("mongodb://a:27017,b:27017/app.locks", "mongodb://b:27017/app.locks"),
            (
                "spanner:projects/p/instances/i/databases/d?table=locks",
                "spanner:projects/p/instances/i/databases/d?table=Locks",
            ),
            ("sqlite:/no/such/file", "sqlite:/nor/this"),
        ];
        let others = [
            ("memory:a", "memory:b"),
            ("memory", "sqlite:/no/such/file"),
            ("dynamodb://locks", "dynamodb://others"),
            ("mongodb://a:27017/app.locks", "mongodb://a:27017/app.others"),
            ("mongodb://a:27017/app.locks", "mongodb://a:27017/other.locks"),
            (
                "spanner:projects/p/instances/i/databases/d?table=locks",
                "spanner:projects/p/instances/i/databases/e?table=locks",
            ),
        ];
        for (origin, here) in same {
            assert!(!is_another(origin, here), "{origin} {here}");
        }
        for (origin, here) in others {
            assert!(is_another(origin, here) && is_another(here, origin), "{origin} {here}");
        }
    }

    #[test]
    fn a_file_has_many_paths() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
        std::fs::write(&a, "").unwrap();
        std::fs::write(&b, "").unwrap();
        let label = |path: &std::path::Path| format!("sqlite:{}", path.display());
        let dotted = folder.path().join(".").join("a");
        assert!(is_another(&label(&a), &label(&b)));
        assert!(!is_another(&label(&a), &label(&dotted)));
        assert!(!is_another(&label(&c), &label(&b)), "it may be the path in another container");
    }
}
