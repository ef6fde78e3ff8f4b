//! Whether the data of a lock belongs to the store of a client. One store can have several names: the paths of a file
//! in two containers, the hosts of a cluster. So a lock is refused only if the names are those of another store and
//! this store does not hold the lock. Different hosts alone prove nothing about a cluster: a host has several names,
//! and there are tunnels and replicas. Nor do region and endpoint of a DynamoDB table: it has several endpoints and may
//! have replicas, and older data names neither. Nor does a path that leads to no file here: in another mount namespace
//! it may lead to this one's.

use crate::engine::family::Family;
use crate::model::error::{Error, ErrorKind, Result};
use crate::model::key::check_key;
use crate::model::lock::Lock;
use crate::store::read_held;
use crate::sys::deadline::Deadline;
use crate::sys::file::is_same_file;

/// Refuses a lock that another store has granted, since this store knows nothing of it.
pub(crate) fn check_origin(family: &Family, lock: &Lock, by: &Deadline) -> Result<()> {
    // This refuses the lease of a name, too, which ends by its own rules.
    check_key(&lock.key).map_err(|error| family.in_context(error))?;
    let here = &family.backend.info().label;
    let Some(origin) = lock.store().filter(|origin| is_another(origin, here)) else { return Ok(()) };
    let seen = family.repeated_until(by, |by| read_held(&*family.backend, &lock.key, by));
    if seen.map_err(|error| family.in_context(error.with_key(&lock.key)))?.record.standing(&lock.grant).is_some() {
        return Ok(());
    }
    let right = format!("the one that granted the lock, {origin:?}");
    Err(family.in_context(Error::invalid("store", here, &right).with_key(&lock.key)))
}

/// The end of a message about a lock that this store does not hold, if another store may hold it.
pub(crate) fn told_origin(family: &Family, lock: &Lock) -> String {
    let here = &family.backend.info().label;
    let origin = lock.store().filter(|origin| is_another(origin, here) || is_elsewhere(origin, here));
    origin.map(|origin| format!("; it was granted by {origin:?}")).unwrap_or_default()
}

/// An error for a lock that this store does not hold, if it may be held in another cluster whose database and table
/// have the same names, in a table of the same name elsewhere, or in a file that can't be looked at here: then the
/// caller must not learn that nobody holds it.
pub(crate) fn check_gone(family: &Family, lock: &Lock) -> Result<()> {
    let here = &family.backend.info().label;
    let Some(origin) = lock.store().filter(|origin| is_elsewhere(origin, here)) else { return Ok(()) };
    let [differs, both] = match origin.split_once(':') {
        Some(("dynamodb", _)) => ["is in another region or at another endpoint", "one table"],
        Some(("sqlite", _)) => ["is a path that leads to no file here", "one file"],
        _ => ["has none of the same hosts", "one server"],
    };
    let message = format!(
        "store: it does not stand here, but was granted by {origin:?}, which {differs}: release it there, \
         unless both are {both}"
    );
    Err(family.in_context(Error::new(ErrorKind::InvalidInput, message).with_key(&lock.key)))
}

/// Whether both are clusters, and no host of one is a host of the other; or both are tables of DynamoDB, and their
/// regions or endpoints are known and differ; or both are paths of SQLite, and it can't be looked whether they lead to
/// one file.
fn is_elsewhere(origin: &str, here: &str) -> bool {
    if let Some((origin, here)) = origin.strip_prefix("sqlite:").zip(here.strip_prefix("sqlite:")) {
        return origin != here && is_same_file(origin.as_ref(), here.as_ref()).is_none();
    }
    if let Some((origin, here)) = origin.strip_prefix("dynamodb:").zip(here.strip_prefix("dynamodb:")) {
        let [origin, here] = [origin, here].map(|label| table_parts(label)[1]);
        return !origin.is_empty() && !here.is_empty() && !origin.eq_ignore_ascii_case(here);
    }
    let both = cluster_parts(origin).zip(cluster_parts(here));
    both.is_some_and(|((origin, _), (here, _))| !origin.iter().any(|host| here.contains(host)))
}

/// The parts of a cluster's label: its hosts, and what comes after them: the database with the collection or table,
/// which may contain slashes and commas.
fn cluster_parts(label: &str) -> Option<(Vec<String>, &str)> {
    let (_, mut rest) = label.split_once("://").filter(|(scheme, _)| ["mongodb", "postgres"].contains(scheme))?;
    let mut hosts = Vec::new();
    loop {
        // The path of a socket has slashes: MongoDB's ends with .sock, and PostgreSQL's is followed by a port.
        let from = if rest.starts_with('/') { rest.find(".sock").or(rest.find(':'))? } else { 0 };
        let end = from + rest[from..].find([',', '/'])?;
        hosts.push(rest[..end].to_ascii_lowercase());
        let is_last = rest[end..].starts_with('/');
        rest = &rest[end + 1..];
        if is_last {
            return Some((hosts, rest));
        }
    }
}

/// The parts of a DynamoDB table's label: its name, its region with its endpoint, and its sort key.
fn table_parts(label: &str) -> [&str; 3] {
    let (table, options) = label.split_once('?').unwrap_or((label, ""));
    // The sort key comes last, and may contain any characters.
    let (place, sort_key) = options.split_at(options.find("sort_key=").unwrap_or(options.len()));
    [table, place.trim_end_matches('&'), sort_key]
}

fn is_another(origin: &str, here: &str) -> bool {
    let differ = || cluster_parts(origin).map(|(_, name)| name) != cluster_parts(here).map(|(_, name)| name);
    match (origin.split_once(':'), here.split_once(':')) {
        (Some(("mongodb", _)), Some(("mongodb", _))) | (Some(("postgres", _)), Some(("postgres", _))) => differ(),
        (Some(("dynamodb", origin)), Some(("dynamodb", here))) => {
            let ([table, _, sort_key], [other, _, others]) = (table_parts(origin), table_parts(here));
            (table, sort_key) != (other, others)
        }
        // The names of tables are case-insensitive on Spanner.
        (Some(("spanner", origin)), Some(("spanner", here))) => !origin.eq_ignore_ascii_case(here),
        // A file has as many paths as links lead to it, and other paths in other mount namespaces.
        (Some(("sqlite", origin)), Some(("sqlite", here))) => {
            origin != here && is_same_file(origin.as_ref(), here.as_ref()) == Some(false)
        }
        _ => origin != here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whether_it_is_another_store() {
        let same = [
            ("memory:a", "memory:a"),
            ("sqlite:/no/such/file", "sqlite:/nor/this"),
            ("dynamodb://locks", "dynamodb://locks?region=eu-west-1"),
            ("dynamodb://locks?region=eu-west-1", "dynamodb://locks?region=us-east-1&endpoint=h:8000"),
            ("dynamodb://locks?sort_key=a:b&c", "dynamodb://locks?region=eu-west-1&sort_key=a:b&c"),
            ("mongodb://a:27017,b:27017/app.locks", "mongodb://b:27017/app.locks"),
            ("mongodb://a:27017/app.a/b,c", "mongodb:///tmp/m.sock,a:27017/app.a/b,c"),
            ("postgres://a:5432/app.locks", "postgres://b:5432,a:5432/app.locks"),
            ("postgres:///run/a:1/app.locks", "postgres://b:5432/app.locks"),
            (
                "spanner:projects/p/instances/i/databases/d?table=locks",
                "spanner:projects/p/instances/i/databases/d?table=Locks",
            ),
        ];
        let others = [
            ("memory:a", "memory:b"),
            ("memory", "sqlite:/no/such/file"),
            ("dynamodb://locks", "dynamodb://others"),
            ("dynamodb://locks?region=eu-west-1", "dynamodb://others?region=eu-west-1"),
            ("dynamodb://locks?region=eu-west-1", "dynamodb://locks?region=eu-west-1&sort_key=a:b"),
            ("dynamodb://locks?sort_key=a:b", "dynamodb://locks?region=eu-west-1&sort_key=a:c"),
            ("mongodb://a:27017/app.locks", "mongodb://a:27017/app.others"),
            ("mongodb://a:27017/app.locks", "mongodb://a:27017/other.locks"),
            ("mongodb://a:27017/app.jobs/locks", "mongodb://a:27017/app.runs/locks"),
            ("postgres://a:5432/a/x.public.locks", "postgres://a:5432/b/x.public.locks"),
            ("postgres://a:5432/app.locks", "postgres://a:5432/app.others"),
            ("postgres://a:5432/app.locks", "postgres://a:5432/other.locks"),
            // A URL without a schema means the one that is searched first; once connected, the label names it.
            ("postgres://a:5432/app.locks", "postgres://a:5432/app.public.locks"),
            ("postgres://a:5432/app.locks", "mongodb://a:5432/app.locks"),
            (
                "spanner:projects/p/instances/i/databases/d?table=locks",
                "spanner:projects/p/instances/i/databases/e?table=locks",
            ),
        ];
        for (origin, here) in same {
            assert!(!is_another(origin, here) && !is_another(here, origin), "{origin} {here}");
        }
        for (origin, here) in others {
            assert!(is_another(origin, here) && is_another(here, origin), "{origin} {here}");
        }
    }

    #[test]
    fn places_are_told_apart_by_hosts_regions_endpoints_and_paths() {
        for (origin, here, others) in [
            ("postgres://a:1,b:1/app.locks", "postgres://B:1,c:1/app.locks", false),
            ("postgres://a:1/app.locks", "postgres://a:2/app.locks", true),
            ("postgres:///run/a:1/app.locks", "postgres:///run/a:1/app.locks", false),
            ("postgres:///run/a:1/app.locks", "postgres:///run/b:1/app.locks", true),
            ("mongodb://a:1/app.locks", "mongodb://b:1/app.locks", true),
            ("mongodb://a:1,b:1/app.jobs/locks", "mongodb://a:1/app.jobs/locks", false),
            ("mongodb:///tmp/a.sock/app.locks", "mongodb:///tmp/b.sock/app.locks", true),
            ("postgres://a:1/d,b:1/x.locks", "postgres://b:1/d,b:1/x.locks", true),
            ("mongodb://a.net/app.locks", "mongodb://b.net/app.locks", true),
            ("mongodb://a.net/app.locks", "mongodb://a.net/app.locks", false),
            ("mongodb://a:1,b:1/app.x:y", "mongodb://a:1/app.x:y", false),
            // Older data names no region.
            ("dynamodb://locks", "dynamodb://locks?region=eu-west-1&endpoint=h:8000", false),
            ("dynamodb://locks?sort_key=region=:x", "dynamodb://locks?region=a&sort_key=region=:x", false),
            ("dynamodb://locks?region=a&sort_key=s:b", "dynamodb://locks?region=A&sort_key=s:b", false),
            ("dynamodb://locks?region=a", "dynamodb://locks?region=b", true),
            ("dynamodb://locks?region=a&endpoint=h:1", "dynamodb://locks?region=a&endpoint=h:2", true),
            ("dynamodb://locks?region=a&endpoint=h:1", "dynamodb://locks?region=a", true),
            ("dynamodb://locks?region=a", "postgres://a:1/app.locks", false),
            ("sqlite:/no/such/file", "sqlite:/no/such/file", false),
            ("sqlite:/no/such/file", "sqlite:/nor/this", true),
            ("sqlite:/no/such/file", "memory", false),
            ("memory:a", "memory:b", false),
        ] {
            assert_eq!(is_elsewhere(origin, here), others, "{origin} {here}");
        }
    }
}
