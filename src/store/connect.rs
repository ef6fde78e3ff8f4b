//! From a store URL to a store: the only file that names every store, one line for each in [`STORES`].

use super::Opener;
use super::memory::Memory;
use super::url::{config, near};
use crate::model::error::Result;

type Read = fn(&str) -> Result<Opener>;

/// The function that reads the URLs of the store with these options; `None` if the store's feature is off.
macro_rules! store {
    ($feature:literal, $options:ty) => {{
        #[cfg(feature = $feature)]
        let read: Option<Read> = Some(|url| <$options>::from_url(url)?.opener());
        #[cfg(not(feature = $feature))]
        let read: Option<Read> = None;
        read
    }};
}

/// The schemes of store URLs, and the function that reads such a URL.
const STORES: &[(&str, Option<Read>)] = &[
    ("memory", Some(Memory::opener)),
    ("sqlite", store!("sqlite", super::sqlite::SqliteOptions)),
    ("dynamodb", store!("dynamodb", super::dynamodb::DynamodbOptions)),
    ("mongodb", store!("mongodb", super::mongodb::MongodbOptions)),
    ("mongodb+srv", store!("mongodb", super::mongodb::MongodbOptions)),
    ("postgres", store!("postgres", super::postgres::PostgresOptions)),
    ("postgresql", store!("postgres", super::postgres::PostgresOptions)),
    ("spanner", store!("spanner", super::spanner::SpannerOptions)),
];

/// The store that `url` names. Nothing is opened yet.
pub(crate) fn opener(url: &str) -> Result<Opener> {
    // A URL that was read from a file may end with a newline, and with it would name another store.
    if url.trim() != url || url.contains(char::is_control) {
        let right = "where it is meant, write it as %20 or %0A";
        return Err(config(&format!("the store URL has white space around it or a control character in it; {right}")));
    }
    // A text that is not a scheme is not shown: it may hold a password.
    let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
    let Some((scheme, _)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
        return Err(config("the store URL has no scheme; write one like sqlite:locks.db"));
    };
    match STORES.iter().find(|(known, _)| *known == scheme) {
        Some((_, Some(read))) => read(url),
        Some((scheme, None)) => {
            let feature = scheme.trim_end_matches("+srv").trim_end_matches("ql");
            let in_c = if cfg!(feature = "capi") {
                format!(" (the C library: make FEATURES={feature})")
            } else {
                String::new()
            };
            let message =
                format!("this build has no {scheme}: store; turn on the feature `{feature}` of leasehold{in_c}");
            Err(config(&message))
        }
        // Only the scheme is shown: the rest may hold a password.
        None => {
            let schemes: Vec<&str> = STORES.iter().map(|(scheme, _)| *scheme).collect();
            let (hint, known) = (near(scheme, &schemes), schemes.join(":, "));
            Err(config(&format!("{scheme:?} is no store that this version knows{hint}; it knows {known}:")))
        }
    }
}
