//! The parts of a store URL, which each store reads in its own way.

use std::borrow::Cow;
#[cfg(any(feature = "dynamodb", feature = "spanner"))]
use std::time::Duration;

use crate::model::error::{Error, ErrorKind, Result};

/// A URL in its parts, decoded.
pub(super) struct StoreUrl<'a> {
    scheme: &'a str,
    pub path: Cow<'a, str>,
    options: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> StoreUrl<'a> {
    pub fn parse(url: &'a str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options: Vec<(Cow<str>, Cow<str>)> = Vec::new();
        let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
        if names.any(|name| name.contains('@')) {
            // The name is not shown: it may be a part of a password.
            let right = "before the options write ? as %3F";
            return Err(config(&format!("no option of {scheme}: has an @ in its name; {right}")));
        }
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
    pub fn only(&self, known: &[&str]) -> Result<()> {
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

    /// Refuses a URL with a user and password, without showing them: credentials are found the way `sdk` finds them.
    #[cfg(any(feature = "dynamodb", feature = "spanner"))]
    pub fn no_user(&self, sdk: &str) -> Result<()> {
        if !self.path.contains('@') {
            return Ok(());
        }
        let scheme = self.scheme;
        Err(config(&format!("a {scheme}: URL has no user and password; credentials are found as {sdk} finds them")))
    }

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_ref())
    }

    #[cfg(any(feature = "dynamodb", feature = "spanner"))]
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.option(name) else { return Ok(None) };
        let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|d| Duration::try_from(d).ok());
        let wrong = || config(&format!("the option {name} is {text:?}, but must be a duration like 1s or 500ms"));
        parsed.ok_or_else(wrong).map(Some)
    }

    /// A switch, which is off if the option is not given.
    pub fn flag(&self, name: &str) -> Result<bool> {
        match self.option(name) {
            Some("1" | "true") => Ok(true),
            None | Some("0" | "false") => Ok(false),
            Some(text) => Err(config(&format!("the option {name} is {text:?}, but must be 0 or 1"))),
        }
    }
}

/// Splits a URL that a driver reads into the part before the query and the options, not decoded. Refuses a URL in which
/// a part of a password would be taken for a host or for an option, and then shown; for the same reason, refuses an
/// option without `=`.
pub(super) fn split_query<'a>(url: &'a str, starts: [&str; 2]) -> Result<(&'a str, Vec<(&'a str, &'a str)>)> {
    let scheme = starts[0].trim_end_matches('/');
    let wrong = |right: &str| Err(config(&format!("the {scheme} URL is wrong: {right}")));
    if !starts.iter().any(|start| url.starts_with(start)) {
        return wrong(&format!("it must begin with {}", starts.join(" or ")));
    }
    let (rest, query) = url.split_once('?').unwrap_or((url, ""));
    if rest.matches('@').count() > 1 || query.contains('@') {
        return wrong("in a user name or password write ? as %3F and @ as %40, elsewhere @ as %40");
    }
    let options = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('='));
    match options.collect() {
        Some(options) => Ok((rest, options)),
        None => wrong("an option has no =; in a value write & as %26"),
    }
}

/// Refuses an endpoint that is not an http or https URL, or that has an `@`. It is not shown: it may hold a password.
pub(super) fn check_endpoint(what: &str, example: &str, endpoint: &str) -> Result<()> {
    let scheme = endpoint.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_http = matches!(scheme.as_deref(), Some("http" | "https"));
    if is_http && !endpoint.contains('@') {
        return Ok(());
    }
    Err(config(&format!("{what} must be like {example}, without credentials in it")))
}

/// `%` and two hex digits are a byte; any other `%` stands for itself.
pub(super) fn decode(text: &str) -> Result<Cow<'_, str>> {
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
pub(super) fn near(name: &str, known: &[&str]) -> String {
    let close: Vec<String> =
        known.iter().filter(|known| distance(name, known) <= 2).map(|known| format!("{known:?}")).collect();
    if close.is_empty() { String::new() } else { format!(" (did you mean {}?)", close.join(" or ")) }
}

/// How many letters must be put in, left out or replaced (Levenshtein).
pub(super) fn distance(a: &str, b: &str) -> usize {
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

pub(super) fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message)
}
