//! From a store URL to a store: the only file that names every backend.

use std::sync::Arc;
use std::time::Duration;

use super::DEFAULT_LEASE;
#[cfg(feature = "dynamodb")]
use super::url::duration;
#[cfg(any(feature = "sqlite", feature = "dynamodb"))]
use super::url::flag;
use super::url::{StoreUrl, config, near};
use crate::model::error::Result;
use crate::store::Backend;
#[cfg(feature = "dynamodb")]
use crate::store::dynamodb::{Dynamodb, DynamodbOptions, Settings};
use crate::store::memory::Memory;
#[cfg(feature = "mongodb")]
use crate::store::mongodb::{Mongodb, MongodbOptions};
#[cfg(feature = "spanner")]
use crate::store::spanner::{Spanner, SpannerOptions};
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{Sqlite, SqliteOptions};
use crate::sys::clock::Clock;
use crate::sys::deadline::Deadline;

/// A store that is not opened yet.
pub(crate) struct Opener {
    /// The shortest lease that makes sense there.
    pub min_lease: Duration,
    /// The smallest margin.
    pub min_margin: Duration,
    /// The lease of a client that sets none.
    pub default_lease: Duration,
    /// Opens it, creating what it can do without unless it must exist.
    pub open: Open,
}

type Open = Box<dyn FnOnce(Arc<Clock>, &Deadline, bool) -> Result<Arc<dyn Backend>> + Send + Sync>;

/// The store that `url` names. Nothing is opened yet.
pub(crate) fn opener(url: &str) -> Result<Opener> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(config("the store URL has no scheme; write one like sqlite:locks.db"));
    };
    match scheme {
        #[cfg(feature = "dynamodb")]
        "dynamodb" => dynamodb(StoreUrl::parse("dynamodb", rest)?),
        #[cfg(not(feature = "dynamodb"))]
        "dynamodb" => Err(not_built("dynamodb")),
        #[cfg(feature = "mongodb")]
        "mongodb" | "mongodb+srv" => mongodb_collection(MongodbOptions::from_url(url)),
        #[cfg(not(feature = "mongodb"))]
        "mongodb" | "mongodb+srv" => Err(not_built("mongodb")),
        "memory" => memory(StoreUrl::parse("memory", rest)?),
        #[cfg(feature = "spanner")]
        "spanner" => spanner_table(SpannerOptions::from_url(StoreUrl::parse("spanner", rest)?)?),
        #[cfg(not(feature = "spanner"))]
        "spanner" => Err(not_built("spanner")),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite(StoreUrl::parse("sqlite", rest)?),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(not_built("sqlite")),
        // Only the scheme is shown: the rest may hold a password.
        other => {
            let hint = near(other, &["sqlite", "memory", "dynamodb", "mongodb", "mongodb+srv", "spanner"]);
            let known = "it knows sqlite:, memory:, dynamodb:, mongodb: and spanner:";
            Err(config(&format!("{other:?} is no store that this version knows{hint}; {known}")))
        }
    }
}

fn memory(url: StoreUrl) -> Result<Opener> {
    url.only(&[])?;
    let name = url.path.into_owned();
    Ok(Opener {
        min_lease: Memory::MIN_LEASE,
        min_margin: Duration::ZERO,
        default_lease: DEFAULT_LEASE,
        open: Box::new(move |clock, _, _| Ok(Arc::new(Memory::open(&name, clock)))),
    })
}

#[cfg(feature = "sqlite")]
fn sqlite(url: StoreUrl) -> Result<Opener> {
    url.only(&["mode", "unsafe_fs"])?;
    if url.path == ":memory:" {
        return Err(config("sqlite::memory: would be another store for each connection; use memory: instead"));
    }
    // `sqlite:///a/b` is how other tools write an absolute path.
    let path = match url.path.strip_prefix("//") {
        Some(path) if !path.starts_with('/') => {
            return Err(config(&format!("sqlite:// names a host, which SQLite has none of; write sqlite:{path}")));
        }
        Some(path) => path,
        None => &url.path,
    };
    if path.is_empty() {
        return Err(config("sqlite: needs the path of a file, like sqlite:locks.db"));
    }
    Ok(sqlite_file(SqliteOptions {
        path: path.into(),
        mode: url.option("mode").map(file_mode).transpose()?,
        unsafe_fs: url.option("unsafe_fs").map(|value| flag("unsafe_fs", value)).transpose()?.unwrap_or(false),
        clock_identity: None,
    }))
}

/// The store in an SQLite file.
#[cfg(feature = "sqlite")]
pub(crate) fn sqlite_file(options: SqliteOptions) -> Opener {
    Opener {
        min_lease: Sqlite::MIN_LEASE,
        min_margin: Duration::ZERO,
        default_lease: DEFAULT_LEASE,
        open: Box::new(move |clock, by, must_exist| match must_exist {
            true => Sqlite::open_existing(options, clock, by),
            false => Ok(Arc::new(Sqlite::open(options, clock, by)?)),
        }),
    }
}

#[cfg(feature = "dynamodb")]
fn dynamodb(url: StoreUrl) -> Result<Opener> {
    url.only(&["region", "endpoint", "grace", "partition_key", "deletion_protection", "point_in_time_recovery"])?;
    let Some(table) = url.path.strip_prefix("//").filter(|table| !table.is_empty()) else {
        return Err(config("dynamodb: needs the name of a table, like dynamodb://locks?region=eu-central-1"));
    };
    let text = |name| url.option(name).map(str::to_owned);
    for name in ["region", "endpoint"] {
        if url.option(name).is_some_and(str::is_empty) {
            return Err(config(&format!("the option {name} is empty; leave it out or give it a value")));
        }
    }
    if let Some(endpoint) = url.option("endpoint") {
        let is_http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
        // What is wrong is not shown: it may hold a password.
        if !is_http || endpoint.contains('@') {
            let right = "must be like http://localhost:8000, without credentials in it";
            return Err(config(&format!("the option endpoint {right}")));
        }
    }
    let settings = Settings::Environment { region: text("region"), endpoint: text("endpoint") };
    let mut options = DynamodbOptions::new(table, settings);
    if let Some(key) = text("partition_key") {
        options.partition_key = key;
    }
    if let Some(grace) = url.option("grace") {
        options.grace = duration("grace", grace)?;
    }
    for (name, wanted) in [
        ("deletion_protection", &mut options.protection.deletion),
        ("point_in_time_recovery", &mut options.protection.recovery),
    ] {
        *wanted = url.option(name).map(|value| flag(name, value)).transpose()?.unwrap_or(false);
    }
    dynamodb_table(options)
}

/// The store in a DynamoDB table.
#[cfg(feature = "dynamodb")]
pub(crate) fn dynamodb_table(options: DynamodbOptions) -> Result<Opener> {
    options.validate()?;
    Ok(Opener {
        min_lease: Dynamodb::MIN_LEASE,
        min_margin: Dynamodb::MIN_MARGIN,
        default_lease: DEFAULT_LEASE,
        open: Box::new(move |clock, by, _| Ok(Arc::new(Dynamodb::open(options, clock, by)?))),
    })
}

/// The store in a MongoDB collection.
#[cfg(feature = "mongodb")]
pub(crate) fn mongodb_collection(options: Result<MongodbOptions>) -> Result<Opener> {
    let options = options?;
    Ok(Opener {
        min_lease: Mongodb::MIN_LEASE,
        min_margin: Duration::ZERO,
        default_lease: Mongodb::DEFAULT_LEASE,
        open: Box::new(move |_, by, _| Ok(Arc::new(Mongodb::open(options, by)?))),
    })
}

/// The store in a table of Cloud Spanner.
#[cfg(feature = "spanner")]
pub(crate) fn spanner_table(options: SpannerOptions) -> Result<Opener> {
    options.validate()?;
    Ok(Opener {
        min_lease: Spanner::MIN_LEASE,
        min_margin: Duration::ZERO,
        default_lease: DEFAULT_LEASE,
        open: Box::new(move |clock, by, _| Ok(Arc::new(Spanner::open(options, clock, by)?))),
    })
}

#[cfg(feature = "sqlite")]
fn file_mode(text: &str) -> Result<u32> {
    match u32::from_str_radix(text, 8) {
        // The owner has to read and write it.
        Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(config(&format!("the option mode is {text:?}, but must be an octal file mode like 0600 or 0660"))),
    }
}

#[cfg(not(all(feature = "dynamodb", feature = "mongodb", feature = "spanner", feature = "sqlite")))]
fn not_built(store: &str) -> crate::model::error::Error {
    let in_c = if cfg!(feature = "capi") { format!(" (the C library: make FEATURES={store})") } else { String::new() };
    config(&format!("this build has no {store}: store; turn on the feature `{store}` of leasehold{in_c}"))
}
