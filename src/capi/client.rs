//! Clients: connecting and closing.

use std::ffi::c_char;
use std::time::Duration;

use parking_lot::Mutex;

use super::code::Code;
use super::{Outcome, call, handle, millis, out_arg, text_arg};
use crate::api::client::LockClient;
use crate::model::error::Result;

/// Options of a client. Can be used for several.
pub struct Builder(Mutex<Options>);
handle::object!(Builder = 1, "builder");

/// Options of a client. Free it with leasehold_builder_free.
pub type BuilderHandle = u64;

/// The way to every lock of one store.
pub struct Client(pub LockClient);
handle::object!(Client = 2, "client");

/// The way to every lock of one store; any number of threads may use it. Free it with leasehold_client_free.
pub type ClientHandle = u64;

#[derive(Clone)]
struct Options {
    url: String,
    owner: Option<String>,
    lease: Option<Duration>,
    heartbeat: Option<Duration>,
    margin: Option<Duration>,
    poll: Option<(Duration, Duration)>,
    request_timeout: Option<Duration>,
    drop_timeout: Option<Duration>,
}

impl Options {
    fn connect(&self) -> Result<LockClient> {
        let mut builder = LockClient::builder(self.url.as_str());
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner.as_str());
        }
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let Some(heartbeat) = self.heartbeat {
            builder = builder.heartbeat(heartbeat);
        }
        if let Some(margin) = self.margin {
            builder = builder.margin(margin);
        }
        if let Some((from, to)) = self.poll {
            builder = builder.poll(from..=to);
        }
        if let Some(timeout) = self.request_timeout {
            builder = builder.request_timeout(timeout);
        }
        if let Some(timeout) = self.drop_timeout {
            builder = builder.drop_timeout(timeout);
        }
        builder.connect()
    }
}

fn set(builder: BuilderHandle, set: impl FnOnce(&mut Options)) -> Outcome {
    set(&mut handle::get::<Builder>(builder)?.0.lock());
    Ok(())
}

/// Options for a client of the store that `url` names, like "sqlite:locks.db".
///
/// # Safety
/// `url` must have `url_len` readable bytes, and `builder` be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_builder_new(
    url: *const c_char,
    url_len: usize,
    builder: *mut BuilderHandle,
) -> Code {
    call(|| {
        let url = text_arg!(url, url_len).to_owned();
        let builder = out_arg!(builder);
        let (poll, request_timeout, drop_timeout) = (None, None, None);
        let options = Options {
            url,
            owner: None,
            lease: None,
            heartbeat: None,
            margin: None,
            poll,
            request_timeout,
            drop_timeout,
        };
        builder.write(handle::insert(Builder(Mutex::new(options)))?)
    })
}

/// Who holds its locks, for people: 1 to 1,024 bytes. Defaults to host:pid.
///
/// # Safety
/// `owner` must have `owner_len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_builder_set_owner(
    builder: BuilderHandle,
    owner: *const c_char,
    owner_len: usize,
) -> Code {
    call(|| {
        let owner = text_arg!(owner, owner_len).to_owned();
        set(builder, |options| options.owner = Some(owner))
    })
}

/// For how long a lock is held without a renewal, in milliseconds: 1,000 (SQLite and memory: 100) to 30 days.
/// Defaults to 20,000; on MongoDB to 30,000.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_lease(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.lease = Some(millis(ms))))
}

/// The time between two renewals in milliseconds, at most half the lease. Defaults to a third of the lease.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_heartbeat(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.heartbeat = Some(millis(ms))))
}

/// The end of a lease in which the holder counts itself as lost already, in milliseconds. Defaults to a tenth of the
/// lease.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_margin(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.margin = Some(millis(ms))))
}

/// How long a waiter waits between two looks at a lock, drawn at random, in milliseconds. Defaults to 150 to 350.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_poll(builder: BuilderHandle, from_ms: u64, to_ms: u64) -> Code {
    call(|| set(builder, |options| options.poll = Some((millis(from_ms), millis(to_ms)))))
}

/// How long one request to the store may take, in milliseconds. Defaults to 5,000.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_request_timeout(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.request_timeout = Some(millis(ms))))
}

/// How long freeing a guard that is still held, or closing the client, may take, in milliseconds. Defaults to 5,000.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_drop_timeout(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.drop_timeout = Some(millis(ms))))
}

/// Opens the store and checks it once. The builder can be used again.
///
/// # Safety
/// `client` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_builder_connect(builder: BuilderHandle, client: *mut ClientHandle) -> Code {
    call(|| {
        let client = out_arg!(client);
        let options = handle::get::<Builder>(builder)?.0.lock().clone();
        client.write(handle::insert(Client(options.connect()?))?)
    })
}

/// Frees the handle.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_free(builder: BuilderHandle) -> Code {
    call(|| handle::remove::<Builder>(builder).map(drop))
}

/// Connects to the store that `url` names, like "sqlite:locks.db", with default options, and checks it once.
///
/// # Safety
/// `url` must have `url_len` readable bytes, and `client` be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_connect(
    url: *const c_char,
    url_len: usize,
    client: *mut ClientHandle,
) -> Code {
    call(|| {
        let url = text_arg!(url, url_len);
        let client = out_arg!(client);
        client.write(handle::insert(Client(LockClient::connect(url)?))?)
    })
}

/// Connects to the store that the environment variable LEASEHOLD_STORE names.
///
/// # Safety
/// `client` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_client_from_env(client: *mut ClientHandle) -> Code {
    call(|| {
        let client = out_arg!(client);
        client.write(handle::insert(Client(LockClient::from_env()?))?)
    })
}

/// Ends everything: wakes waiters with LEASEHOLD_CODE_CLOSED, releases every guard of this client, and joins its
/// threads. Call it before exit(), which releases nothing. Handles still have to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_close(client: ClientHandle) -> Code {
    call(|| Ok(handle::get::<Client>(client)?.0.close()?))
}

/// Frees the handle. Guards, requests and calls under way keep what they need of the client.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_free(client: ClientHandle) -> Code {
    call(|| handle::remove::<Client>(client).map(drop))
}
