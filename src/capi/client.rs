//! Clients: connecting and closing.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::callback::Callback;
use super::code::Code;
use super::event::{EventFn, Events, OnEvent};
use super::loss::Watch;
use super::{Outcome, call, handle, millis, out_arg, text_arg, version};
use crate::api::client::LockClient;
use crate::model::error::Result;

/// Options of a client. Can be used for several.
pub struct Builder(Mutex<Options>);
handle::object!(Builder = 1, BuilderHandle, "builder");

/// Options of a client. Free it with leasehold_builder_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuilderHandle {
    pub id: u64,
}

/// The way to every lock of one store.
pub struct Client {
    pub api: LockClient,
    /// The watches of this client's guards. Some of the guards are gone already.
    watches: Mutex<Vec<Weak<Watch>>>,
    events: Option<Arc<Events>>,
}

impl Client {
    pub fn new(api: LockClient, events: Option<Arc<Events>>) -> Self {
        Client { api, watches: Mutex::default(), events }
    }

    /// Adds a watch, which closing the client ends.
    pub fn watch(&self, watch: &Arc<Watch>) {
        let mut watches = self.watches.lock();
        if watches.len() == watches.capacity() {
            watches.retain(|watch| watch.strong_count() > 0);
        }
        watches.push(Arc::downgrade(watch));
    }

    fn close(&self) -> Outcome {
        let closed = self.api.close();
        let watches = std::mem::take(&mut *self.watches.lock());
        watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.released());
        self.events.iter().for_each(|events| events.end());
        Ok(closed?)
    }
}
handle::object!(Client = 2, ClientHandle, "client");

/// The way to every lock of one store; any number of threads may use it. Free it with leasehold_client_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientHandle {
    pub id: u64,
}

/// One field for each option.
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
    must_exist: bool,
    create_schema: bool,
    on_event: Option<Callback<EventFn>>,
}

impl Options {
    fn connect(&self, events: Option<Arc<Events>>) -> Result<LockClient> {
        let mut builder = LockClient::builder(self.url.as_str());
        if let Some(events) = events {
            builder = builder.own_observer(events);
        }
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
        builder.must_exist(self.must_exist).create_schema(self.create_schema).connect()
    }
}

fn set(builder: BuilderHandle, set: impl FnOnce(&mut Options)) -> Outcome {
    set(&mut handle::get::<Builder>(builder)?.0.lock());
    Ok(())
}

/// Makes a builder, which holds options for a client of the store that `url` names, like "sqlite:locks.db". The URL is
/// copied, and checked by leasehold_builder_connect.
/// \param version LEASEHOLD_VERSION_NUMBER: LEASEHOLD_CODE_CONFIG when the library does not fit this header.
/// \param url `url_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param builder Gets the builder.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_builder_new(
    version: u32,
    url: *const c_char,
    url_len: usize,
    builder: *mut BuilderHandle,
) -> Code {
    call(|| {
        version::check(version)?;
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
            must_exist: false,
            create_schema: false,
            on_event: None,
        };
        builder.write(handle::insert(Builder(Mutex::new(options)))?)
    })
}

/// What others see as the holder of its locks, for people to read: 1 to 1,024 bytes. Defaults to host:pid.
/// \param owner `owner_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
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

/// How long before the end of its lease a holder already counts the lock as lost, in milliseconds: less than the lease
/// minus the heartbeat, and at least 100 on DynamoDB and 1 on MongoDB (1,000 with fleet=mixed). Defaults to a tenth of
/// the lease, or to that minimum if it is larger.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_margin(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.margin = Some(millis(ms))))
}

/// How long a waiter pauses between two looks at a lock, in milliseconds: a random time between the two numbers. After
/// a minute of waiting both numbers double, and after ten minutes once more. Where the store reports releases (SQLite,
/// memory, MongoDB, PostgreSQL) the waiter looks at each report. Because a report may be lost, it also looks after a
/// hundred times such a pause, which does not double. Defaults to 150 and 350.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_poll(builder: BuilderHandle, from_ms: u64, to_ms: u64) -> Code {
    call(|| set(builder, |options| options.poll = Some((millis(from_ms), millis(to_ms)))))
}

/// How long one request to the store may take, and how long in all a call may take that waits for no other holder, in
/// milliseconds. Defaults to 5,000. A request gets half of the time that its call has left, but at least two seconds,
/// so set twice the time that the slowest answer takes.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_request_timeout(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.request_timeout = Some(millis(ms))))
}

/// How long freeing a guard that is still held, or closing the client, may take, in milliseconds. Defaults to 5,000.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_drop_timeout(builder: BuilderHandle, ms: u64) -> Code {
    call(|| set(builder, |options| options.drop_timeout = Some(millis(ms))))
}

/// Connects only to a store that exists: a missing SQLite file, table or collection is an error and is not made, and
/// an SQLite file that this user may only read can be opened. Defaults to making a missing SQLite file.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_must_exist(builder: BuilderHandle) -> Code {
    call(|| set(builder, |options| options.must_exist = true))
}

/// Connecting makes the tables and indexes that are missing, as leasehold_client_create_schema does. It may take as
/// long as that function, but there is no client yet that could be closed to end it. Without this option, connecting to
/// a table that is missing succeeds, and its first lock fails. It can't be combined with
/// leasehold_builder_set_must_exist. Defaults to making nothing but a missing SQLite file.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_set_create_schema(builder: BuilderHandle) -> Code {
    call(|| set(builder, |options| options.create_schema = true))
}

/// Sets a function that is called with each event of the clients and `user`, for metrics: on the thread on which the
/// event happens or on another thread of the library's, on several threads at once, and while a call of the program's
/// is under way. It should return at once, may call every function of this header, and must return: no exception,
/// longjmp() or pthread_exit(). A function that takes long holds up what its thread does: a call, or the renewal of one
/// lock, which is lost if the function takes longer than its lease. It holds up no renewal of another guard, no loss
/// callback and no loss descriptor.
///
/// leasehold_client_close first reports to the function the events that still wait for it; those that a slow function
/// leaves after 5 seconds are dropped. Then it waits until other threads have left the function. After that the
/// function is not called any more, and `user` can be freed. There is one exception: inside a callback,
/// leasehold_client_close does not wait for a thread that itself waits for that callback, like one that closes the
/// client, too. Then close once more from outside before you free `user`. A client that is freed without a close may
/// call the function for as long as the process lives. A client that could not be made does not call it any more. NULL
/// for none, which is the default.
/// \param on_event Any thread may call it with `user` until the clients are closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_builder_set_on_event(
    builder: BuilderHandle,
    on_event: OnEvent,
    user: *mut c_void,
) -> Code {
    call(|| set(builder, |options| options.on_event = on_event.map(|function| Callback { function, user })))
}

/// Opens the store and checks that it can be used: LEASEHOLD_CODE_CONFIG when the URL or what it names is wrong,
/// LEASEHOLD_CODE_INVALID_INPUT when an option of the builder is. Waits for the store for at most the request timeout,
/// or longer if leasehold_builder_set_create_schema has to make something. The builder stays yours and can be used
/// again.
/// \param client Gets the client.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_builder_connect(builder: BuilderHandle, client: *mut ClientHandle) -> Code {
    call(|| {
        let client = out_arg!(client);
        let options = handle::get::<Builder>(builder)?.0.lock().clone();
        let events = options.on_event.map(Events::new);
        let connected = options.connect(events.clone()).inspect_err(|_| events.iter().for_each(|events| events.end()));
        client.write(handle::insert(Client::new(connected?, events))?)
    })
}

/// Frees the builder. Clients that it made are not affected.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_builder_free(builder: BuilderHandle) -> Code {
    call(|| handle::remove::<Builder>(builder).map(drop))
}

/// Connects to the store that `url` names, like "sqlite:locks.db", with default options. The same as a
/// builder with no option set: see leasehold_builder_connect.
/// \param version LEASEHOLD_VERSION_NUMBER: LEASEHOLD_CODE_CONFIG when the library does not fit this header.
/// \param url `url_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param client Gets the client.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_connect(
    version: u32,
    url: *const c_char,
    url_len: usize,
    client: *mut ClientHandle,
) -> Code {
    call(|| {
        version::check(version)?;
        let url = text_arg!(url, url_len);
        let client = out_arg!(client);
        client.write(handle::insert(Client::new(LockClient::connect(url)?, None))?)
    })
}

/// leasehold_client_connect with the URL in the environment variable LEASEHOLD_STORE; LEASEHOLD_CODE_CONFIG when it is
/// not set.
/// \param version LEASEHOLD_VERSION_NUMBER: LEASEHOLD_CODE_CONFIG when the library does not fit this header.
/// \param client Gets the client.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_client_from_env(version: u32, client: *mut ClientHandle) -> Code {
    call(|| {
        version::check(version)?;
        let client = out_arg!(client);
        client.write(handle::insert(Client::new(LockClient::from_env()?, None))?)
    })
}

/// Ends everything: calls that wait return LEASEHOLD_CODE_CLOSED, every guard of this client is released, elections
/// stop, and its threads end, except those of a server's driver, which end with the last handle. Takes at most about
/// the drop timeout. Call it before exit(), which releases nothing; a handler of atexit() may call it. Data that a
/// callback has left in a thread of the client, like thread_local variables, may be destroyed a little later. Handles
/// still have to be freed. Closing again retries only what has failed.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_close(client: ClientHandle) -> Code {
    call(|| handle::get::<Client>(client)?.close())
}

/// Frees the handle, and does not close the client while guards, requests, elections, leases, keepers or calls under
/// way still use it. The last of them that is freed closes it, within the drop timeout.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_client_free(client: ClientHandle) -> Code {
    call(|| handle::remove::<Client>(client).map(drop))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::event::EventInfo;
    use super::*;
    use crate::{Event, Observer};

    static EVENTS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn counts(_: *const EventInfo, _: *mut c_void) {
        EVENTS.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_client_that_was_closed_tells_no_event() {
        let events = Events::new(Callback { function: counts as EventFn, user: std::ptr::null_mut() });
        let Ok(api) = LockClient::connect("memory:") else { panic!("no client") };
        let client = Client::new(api, Some(events.clone()));
        for told in [1, 1] {
            events.event(&Event::WaitBegan { key: "k" });
            assert_eq!(EVENTS.load(Ordering::SeqCst), told);
            assert!(client.close().is_ok());
        }
    }

    #[test]
    fn what_watched_guards_that_are_gone_is_not_kept() {
        let Ok(api) = LockClient::connect("memory:") else { panic!("no client") };
        let (client, kept) = (Client::new(api, None), Watch::new(None));
        client.watch(&kept);
        (0..10_000).for_each(|_| client.watch(&Watch::new(None)));
        let watches = client.watches.lock();
        assert!(watches.len() < 64 && watches.iter().any(|watch| watch.strong_count() > 0), "{}", watches.len());
    }
}
