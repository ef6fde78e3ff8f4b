//! Bad input and a server that is not there, as every store behind a network reports them: within the deadline, and
//! without secrets. The URLs and words of one store are in its own `errors`.
#![allow(dead_code)] // Each store uses only a part of it.

use std::error::Error as _;
use std::time::Duration;

use leasehold::{ClientBuilder, Error, ErrorKind, LockClient};

use crate::support::harness::{PATIENCE, connected, within};
use crate::support::nobody;

/// The error with all its causes, which must not contain a secret of a test.
pub fn text(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(" {source} {source:?}"));
        next = source.source();
    }
    assert!(!text.contains("canary"), "{text}");
    text
}

/// Asserts that these URLs are refused before anything is sent, in these words. Even if a wrong URL tears a canary
/// apart, its end is not shown.
pub fn are_refused<'a>(urls: impl IntoIterator<Item = (impl AsRef<str>, &'a str)>) {
    for (url, says) in urls {
        let url = url.as_ref();
        let error = LockClient::connect(url).unwrap_err();
        let text = text(&error);
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {text}");
        assert!(text.contains(says) && !text.contains("ary"), "{url}: {text}");
    }
}

/// Connects to `HOST` or `HOST:PORT` where there is no server, with each of these timeouts in seconds.
pub fn no_server_is_told(timeouts: &[u64], at: impl Fn(&str) -> ClientBuilder, check: impl Fn(&str, &Error)) {
    // Nothing listens; nothing answers; a server accepts and says nothing; no resolver knows the name.
    let (closed, mute, silent) = (nobody::Closed::new(), nobody::Mute::new(), nobody::silent());
    let silent = silent.local_addr().unwrap().to_string();
    for host in [&closed.address(), &mute.address(), &silent, nobody::NO_NAME] {
        for timeout in timeouts {
            let timeout = Duration::from_secs(*timeout);
            let builder = at(host).request_timeout(timeout);
            let error = within(host, timeout, || builder.connect()).unwrap_err();
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{host}: {}", text(&error));
            check(host, &error);
        }
    }
}

/// The host with its port, or with this one if it has none.
pub fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") }
}

pub fn works_inside_async_tasks(builder: impl Fn() -> ClientBuilder) {
    let work = || {
        let client = connected(|| builder().request_timeout(PATIENCE));
        let guard = client.lock("k").unwrap();
        assert!(guard.is_held());
        drop((guard, client));
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async { work() });
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    many.block_on(async { work() });
}
