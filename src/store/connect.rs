//! From a store URL to a store: the only file that names every backend.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "mongodb")]
use ::mongodb as mongodb_driver;

use super::DEFAULT_LEASE;
use crate::model::error::{Error, ErrorKind, Result};
use crate::store::Backend;
#[cfg(feature = "dynamodb")]
use crate::store::dynamodb::{Dynamodb, DynamodbOptions, Settings};
use crate::store::memory::Memory;
#[cfg(feature = "mongodb")]
use crate::store::mongodb::{Mongodb, MongodbOptions, Settings as MongodbSettings};
#[cfg(feature = "spanner")]
use crate::store::spanner::{Settings as SpannerSettings, Spanner, SpannerOptions};
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
        "mongodb" | "mongodb+srv" => mongodb(url),
        #[cfg(not(feature = "mongodb"))]
        "mongodb" | "mongodb+srv" => Err(not_built("mongodb")),
        "memory" => memory(StoreUrl::parse("memory", rest)?),
        #[cfg(feature = "spanner")]
        "spanner" => spanner(StoreUrl::parse("spanner", rest)?),
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
        open: Box::new(move |clock, by, must_exist| {
            let open = if must_exist { Sqlite::open_existing } else { Sqlite::open };
            Ok(Arc::new(open(options, clock, by)?))
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

/// A URL of MongoDB's own form, which the driver reads, but for the option that is ours.
#[cfg(feature = "mongodb")]
fn mongodb(url: &str) -> Result<Opener> {
    let (rest, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut collection, mut theirs) = (None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("collection", _) if collection.is_some() => {
                return Err(config("the option \"collection\" of mongodb: is given twice"));
            }
            ("collection", value) => collection = Some(decode(value)?.into_owned()),
            (name, _) if distance(name, "collection") <= 2 => {
                return Err(config(&format!("mongodb: has no option {name:?} (did you mean \"collection\"?)")));
            }
            _ => theirs.push(pair),
        }
    }
    let url = if theirs.is_empty() { rest.to_owned() } else { format!("{rest}?{}", theirs.join("&")) };
    let parsed = mongodb_driver::options::ConnectionString::parse(&url).map_err(|error| {
        // The driver's words, unless they quote what may be a part of a password.
        let told = error.kind.to_string();
        let password = rest.rsplit_once('@').and_then(|(before, _)| before.split_once("//")?.1.split_once(':'));
        let mut parts = password.map_or("", |(_, password)| password).split(|c: char| !c.is_alphanumeric());
        let quotes = parts.any(|part| !part.is_empty() && told.contains(part));
        let told = if quotes { "the driver cannot read it".to_owned() } else { told };
        config(&format!("the mongodb: URL is wrong: {told}"))
    })?;
    mongodb_collection(MongodbOptions::new(MongodbSettings::Url(Box::new(parsed)), None, collection))
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

#[cfg(feature = "spanner")]
fn spanner(url: StoreUrl) -> Result<Opener> {
    url.only(&["table", "spindle_duration", "admin_endpoint"])?;
    let Some(table) = url.option("table").filter(|table| !table.is_empty()) else {
        let right = "spanner:projects/P/instances/I/databases/D?table=locks";
        return Err(config(&format!("spanner: needs the name of a table, like {right}")));
    };
    let mut options = SpannerOptions::new(url.path.as_ref(), table, SpannerSettings::Environment);
    options.admin_endpoint = url.option("admin_endpoint").map(str::to_owned);
    if let Some(duration_of_spindle) = url.option("spindle_duration") {
        options.spindle_duration = duration("spindle_duration", duration_of_spindle)?;
    }
    spanner_table(options)
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

#[cfg(any(feature = "dynamodb", feature = "spanner"))]
fn duration(name: &str, text: &str) -> Result<Duration> {
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|d| Duration::try_from(d).ok());
    let wrong = || config(&format!("the option {name} is {text:?}, but must be a duration like 1s or 500ms"));
    parsed.ok_or_else(wrong)
}

#[cfg(feature = "sqlite")]
fn file_mode(text: &str) -> Result<u32> {
    match u32::from_str_radix(text, 8) {
        // The owner has to read and write it.
        Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(config(&format!("the option mode is {text:?}, but must be an octal file mode like 0600 or 0660"))),
    }
}

#[cfg(any(feature = "sqlite", feature = "dynamodb"))]
fn flag(name: &str, text: &str) -> Result<bool> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(config(&format!("the option {name} is {text:?}, but must be 0 or 1"))),
    }
}

/// What stands behind the scheme, decoded.
struct StoreUrl<'a> {
    scheme: &'static str,
    path: Cow<'a, str>,
    options: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> StoreUrl<'a> {
    fn parse(scheme: &'static str, rest: &'a str) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options: Vec<(Cow<str>, Cow<str>)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if options.iter().any(|(seen, _)| *seen == name) {
                return Err(config(&format!("the option {name:?} of {scheme}: is given twice")));
            }
            options.push((name, value));
        }
        Ok(StoreUrl { scheme, path: decode(path)?, options })
    }

    /// Refuses options that are not among these.
    fn only(&self, known: &[&str]) -> Result<()> {
        match self.options.iter().find(|(name, _)| !known.contains(&name.as_ref())) {
            None => Ok(()),
            Some((name, _)) => {
                let hint = near(name, known);
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let scheme = self.scheme;
                Err(config(&format!("{scheme}: has no option {name:?}{hint}; its options: {known}")))
            }
        }
    }

    #[cfg(any(feature = "sqlite", feature = "dynamodb", feature = "spanner"))]
    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_ref())
    }
}

/// `%` and two hex digits are a byte; any other `%` stands for itself.
fn decode(text: &str) -> Result<Cow<'_, str>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let (byte, rest) = match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => (byte, &part[2..]),
            None => (b'%', part),
        };
        bytes.push(byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let decoded = String::from_utf8(bytes).map(Cow::Owned);
    decoded.map_err(|_| config("the store URL is not UTF-8 after its %-escapes are decoded"))
}

/// `, did you mean ..?` with the known names that are close.
fn near(name: &str, known: &[&str]) -> String {
    let close: Vec<String> =
        known.iter().filter(|known| distance(name, known) <= 2).map(|known| format!("{known:?}")).collect();
    if close.is_empty() { String::new() } else { format!(" (did you mean {}?)", close.join(" or ")) }
}

/// How many letters must be put in, left out or replaced (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(not(all(feature = "dynamodb", feature = "mongodb", feature = "spanner", feature = "sqlite")))]
fn not_built(store: &str) -> Error {
    let in_c = if cfg!(feature = "capi") { format!(" (the C library: make FEATURES={store})") } else { String::new() };
    config(&format!("this build has no {store}: store; turn on the feature `{store}` of leasehold{in_c}"))
}

fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message)
}
