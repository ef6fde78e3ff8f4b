//! Distributed locks for programs that are not async: blocking, fenced, renewed by a thread, released on drop.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! # #[cfg(not(feature = "sqlite"))]
//! # let url = "memory:";
//! let client = leasehold::LockClient::connect(&url)?; // for example "sqlite:locks.db"
//! let guard = client.lock("nightly-report")?; // waits; renewed by a thread; released on drop
//! guard.ensure_held()?; // before each step: an error of kind `Lost` when the lock is gone
//! drop(guard);
//! // The same around a closure: what it returns comes back, and a loss meanwhile is an error.
//! let report = client.with_lock("nightly-report", |guard| guard.fencing_token())?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! **Name the guard.** `let _ = client.lock(k)?;` drops it, and so releases the lock, at once.
//!
//! # What is promised
//! 1. By the store's clock, at most one process holds a key exclusively, and nobody holds it shared at the same time.
//! 2. The [fencing tokens](LockGuard::fencing_token) of a key rise with every grant: after a release, an expiry, a purge, a
//!    restart.
//! 3. A lock that you were given is yours for at least the lease, and [`is_held`](LockGuard::is_held) turns false before
//!    anybody else can be given it, unless somebody takes the lock away by an order, such as
//!    [`force_release`](LockClient::force_release).
//! 4. Every call ends by its deadline, if it has one, and every drop returns within `drop_timeout`. No call panics.
//! 5. An error says what failed, with which key, on which store, and never shows a secret.
//!
//! [`guide::guarantees`] says what each promise rests on, which orders take a lock away, and what the exceptions are.
//!
//! What no lease can prevent: a holder that is stopped between its last look at [`is_held`](LockGuard::is_held) and its
//! next write may write late. Let the resource refuse a token below the highest it has seen; the README shows how.
//!
//! # Stores
//! | URL | what | feature |
//! |---|---|---|
//! | `sqlite:PATH` | a file that the processes of one host share; created if missing | `sqlite` (default) |
//! | `dynamodb://TABLE?region=..` | a DynamoDB table; region and credentials are found as the AWS SDK finds them | `dynamodb` |
//! | `mongodb://HOST,../DATABASE`, `mongodb+srv://..` | a MongoDB collection | `mongodb` |
//! | `postgres://USER@HOST,../DATABASE`, `postgresql://..` | a table of PostgreSQL; with TLS by `sslmode=verify-full` | `postgres` |
//! | `spanner:projects/P/instances/I/databases/D` | a table of Cloud Spanner; credentials are found as Google's client finds them, and `SPANNER_EMULATOR_HOST` names an emulator | `spanner` |
//! | `memory:NAME` | inside the process; clients with the same name share it until the last of them is gone, which empties it (to test restarts keep one, or use [`testing::MemoryStore`]); without a name each client has its own | always |
//!
//! The next table has the options that each URL takes after its `?`; an unknown option is refused. For settings of your
//! own, or a path with `%` or `?`, use the function `builder` of the store's module (`leasehold::dynamodb::builder`).
//! `mode=`, `unsafe_fs=`, `pooler=` and `admin_endpoint=` exist in URLs only.
//!
//! | store | options, with their defaults |
//! |---|---|
//! | SQLite | `mode=0600`, `unsafe_fs=0` |
//! | DynamoDB | `region=`, `endpoint=`, `grace=1s`, `fleet=own`, `partition_key=key`, `sort_key=NAME:VALUE`, `deletion_protection=0`, `point_in_time_recovery=0` |
//! | MongoDB | `collection=locks`, `fleet=own`, and those of MongoDB's own URLs |
//! | PostgreSQL | `table=leasehold`, `pooler=` unset, or `transaction`, and those of libpq, as far as tokio-postgres has them |
//! | Cloud Spanner | `table=`, which is required, `admin_endpoint=`, `spindle_duration=20s`, `fleet=own` |
//!
//! # Features
//! | feature | what |
//! |---|---|
//! | `sqlite` | the embedded store (default) |
//! | `dynamodb` | DynamoDB; brings the AWS SDK, which runs on one background thread |
//! | `mongodb` | MongoDB; brings its driver, which runs on one background thread, next to one that sleeps |
//! | `postgres` | PostgreSQL; brings tokio-postgres, which runs on one background thread |
//! | `spanner` | Cloud Spanner; brings Google's client, a preview, which runs on one background thread |
//! | `cli` | the command `leasehold`; of no use to the library |
//! | `metrics` | the module `metrics`: counters, gauges and histograms for the crate of that name |
//! | `tracing` | the module `tracing`: an event of the crate of that name for everything that happens |
//! | `serde` | `Serialize` and `Deserialize` for [`Lock`], so that it can travel between processes: as JSON, or in another format whose fields have names |
//! | `capi` | the C library, built by `cargo rustc --lib --features capi --crate-type cdylib`; its header is `src/capi/leasehold.h` |
//!
//! If you do not need SQLite, turn it off by `default-features = false`. A program can link only one version of
//! `libsqlite3-sys`, so cargo can't resolve the versions if another crate wants a different one than rusqlite: sqlx
//! does so with some of its features, even without its own SQLite.
//!
//! # Compilers, SQLite and TLS
//! The oldest supported Rust is 1.89; with `spanner` it is 1.91, with `dynamodb` 1.94.1, because their SDKs require
//! that. With an older compiler cargo names the package that requires a newer one. No older versions of these SDKs are
//! accepted than those that CI tests. CI tests Rust 1.89 with everything that needs no server's SDK.
//!
//! SQLite is compiled from C as part of the build. With `LIBSQLITE3_SYS_USE_PKG_CONFIG=1` in the environment of the
//! build, the system's SQLite is linked instead (its headers and `pkg-config` must be installed). rusqlite 0.41 needs
//! SQLite 3.44 for that; on an older system, like Debian 12, run `cargo update --package rusqlite --precise 0.39.0`:
//! then 3.37 is enough, which CI tests. This choice is not a feature of this crate, since features add up: any other
//! crate that asks rusqlite for the bundled SQLite would turn it back on. The system's SQLite should have the fix of a
//! [race](https://sqlite.org/wal.html#walresetbug) by which, rarely, a commit is lost and a lock has two holders:
//! 3.51.3 and later have it, and so do 3.50.7 and 3.44.6 with the later versions of those two lines. A distribution may
//! have put the fix into an older version, whose number does not show it. So a client warns, once per process, of every
//! number that may lack the fix.
//!
//! TLS is rustls with aws-lc for every server, so that a program has one TLS stack. What you can choose:
//!
//! | feature | another one | whose certificates are trusted |
//! |---|---|---|
//! | `dynamodb` | none: the HTTP client of an `SdkConfig` is not used, since it belongs to your runtime | the system's |
//! | `mongodb` | OpenSSL, by a dependency of your own on the driver: `mongodb = { version = "3", default-features = false, features = ["bson-2", "compat-3-3-0", "openssl-tls"] }` | Mozilla's, which are built in, with OpenSSL the system's; or those of `tlsCAFile=` |
//! | `postgres` | none | the system's, or those of `sslrootcert=` |
//! | `spanner` | a default provider that your program sets for rustls (`CryptoProvider::install_default`) before it connects | the system's |
//!
//! If your program also has rustls with ring, rustls can't choose between the two for your own connections, and panics:
//! call `CryptoProvider::install_default` first in `main`.
//!
//! If another part of your program turns on the feature `bson-3` of MongoDB's driver, `mongodb::driver::bson` is the
//! newer `bson`. The command builds as a static binary for musl: `.github/packaging` says how.
//!
//! # Logs and metrics
//! The library logs by the crate [`log`](https://docs.rs/log): nothing is seen until the program has a logger. The targets
//! are `leasehold::client`, `::guard`, `::heartbeat`, `::election`, `::watcher`, `::wake`, `::callback`, and one for each
//! store; [`guide::logs`] lists every event with its level and fields. The text itself names the lock, its holder and the
//! time left, for loggers that drop fields. `RUST_LOG=leasehold=warn` shows what went wrong, and nothing while all is
//! well. For metrics: [`Observer`], or the features `metrics` and `tracing`.
//!
//! # In async programs
//! Every call blocks its thread, and so does dropping a guard, for one release (at most `drop_timeout`). The library needs no
//! runtime, and leaves yours alone.
//!
//! - Call it through `spawn_blocking`, never in a task itself: a task that waits for a lock keeps a worker of the runtime
//!   from all other work; a current-thread runtime has no other worker, and the lock's holder may be one of its tasks.
//! - A guard may be kept across `.await`: its heartbeats have a thread of their own, which a busy runtime doesn't
//!   delay. Drop it by `spawn_blocking(move || drop(guard))`, or by a thread.
//! - The number of threads of `spawn_blocking` is limited (512 in tokio). If waiters of a lock occupy all of them, the
//!   task that holds the lock gets no thread to release it with, nor do tokio's file operations and name look-ups get
//!   one: nothing ends that state. Allow fewer waiters at a time than there are threads, by a semaphore of yours, or
//!   give each wait a limit.
//! - `on_loss`, `on_warning` and the callbacks of an election run on threads of the library, where no runtime is current: start
//!   tasks there by a `Handle` of yours. An [`Observer`] runs on the caller's thread or on one of the library.
//! - `timeout(d, spawn_blocking(..))` gives up the answer, not the wait: the thread goes on waiting, may be granted the
//!   lock, and keeps the program from ending. Give the wait the limit itself ([`try_lock_for`](LockClient::try_lock_for),
//!   or a request's [`wait`](LockRequest::wait) and [`with_lock`](LockRequest::with_lock)), or a [`CancelToken`] whose
//!   [`drop_guard`](CancelToken::drop_guard) lives in the task: when the task is dropped or times out, the wait ends.
//!
//! ```no_run
//! # mod tokio { // also where no feature brings it
//! #     pub mod task {
//! #         pub async fn spawn_blocking<T>(call: impl FnOnce() -> T) -> std::io::Result<T> { Ok(call()) }
//! #     }
//! # }
//! use leasehold::{CancelToken, LockClient, LockGuard};
//!
//! async fn lock(client: LockClient, key: String) -> leasehold::Result<LockGuard> {
//!     let cancel = CancelToken::new();
//!     let cancels = cancel.clone().drop_guard(); // when this future is dropped
//!     let lock = move || client.request(&key).cancel(&cancel).lock();
//!     let guard = tokio::task::spawn_blocking(lock).await.expect("no panic crosses the API");
//!     cancels.disarm();
//!     guard
//! }
//! ```
//!
//! # Coming from other libraries
//! | from | there | here |
//! |---|---|---|
//! | dynamodb-lock-go | `AcquireLock` | [`request(key).owner(..).lease(..)`](LockClient::request) or `.lease_until(..)`, `.same_owner(SameOwner::Replace)`, ended by [`.acquire()`](LockRequest::acquire). Ours refuses a second acquisition unless `Replace` is asked for |
//! | | `AcquireAnyLock` | [`lock_any`](LockClient::lock_any), [`try_lock_any`](LockClient::try_lock_any), [`request_any`](LockClient::request_any) ended by [`.acquire()`](LockAnyRequest::acquire). Ours tries in random order by default, theirs only where asked: [`.in_order()`](LockAnyRequest::in_order) |
//! | | `HeartbeatLock` | [`heartbeat`](LockClient::heartbeat) |
//! | | `StartBackgroundHeartbeats` | the [guard](LockGuard), its [`shared_info`](LockGuard::shared_info) (behind a mutex) and [`loss`](LockGuard::loss) |
//! | | `ReleaseLock` | [`release`](LockClient::release); kind `Held` where theirs is `UnavailableError` |
//! | | `GetCurrentLock` | [`get`](LockClient::get) |
//! | | hand-off by serializing | [`into_lock`](LockGuard::into_lock), [`adopt`](LockClient::adopt): a second adopt of the same data is refused |
//! | mongo-lock | `XLock`, `SLock` | [`lock`](LockClient::lock), [`lock_shared`](LockClient::lock_shared), [`.max_holders(n)`](LockRequest::max_holders), [`.lock_id(id)`](LockRequest::lock_id) |
//! | | `Unlock` | [`unlock`](LockClient::unlock) |
//! | | `Renew` | [`renew`](LockClient::renew); kind `Lost` where theirs is `ErrLockNotFound`. Ours never shortens, and keeps a lock without end as it is |
//! | | `Status` | [`list`](LockClient::list) with a [`Filter`]; always newest first |
//! | | locks without TTL | [`.lease_forever()`](LockRequest::lease_forever) |
//! | | `Purge` | [`purge`](LockClient::purge): frees only what has expired, not all of its group |
//! | | `CreateIndexes` | [`create_schema`](LockClient::create_schema) |
//! | spindle | `New` with id, duration, logger | [`client.election(name)`](LockClient::election) with [`.id(..)`](ElectionBuilder::id), [`.lease(..)`](ElectionBuilder::lease); the crate `log` |
//! | | `Run(ctx, done)` | [`run`](Election::run), or [`lead`](Election::lead) with the work itself; [`stop`](Election::stop) and [`wait`](Election::wait) where theirs has `ctx` and `done`. [`campaign`](Election::campaign) blocks |
//! | | `HasLock` | [`is_leader`](Election::is_leader), [`fencing_token`](Election::fencing_token): no I/O, where theirs reads the table. A node that does not campaign does not lead; [`is_standing`](Election::is_standing) says whether it campaigns |
//! | | `HasLock2`, `Leader` | [`leader`](Election::leader): id, token, since when; also from a node that does not campaign |
//! | | `Duration` | [`lease`](Election::lease): at least 1 s as theirs, by default the client's |
//! | | `Iterations` | [`iterations`](Election::iterations); won terms: [`terms`](Election::terms) |
//! | | `Client` | the [`LockClient`] that it was made from; clones are cheap |
//! | | leader callback with "1" and "0" | [`on_won`](ElectionBuilder::on_won), [`on_lost`](ElectionBuilder::on_lost): in turns; [`on_leader`](ElectionBuilder::on_leader) reports other leaders |
//! | | failover when the leader dies | the same; and without waiting for the lease when it resigns, which theirs never does |
//! | juju state/lease | `ClaimLease` | [`Leases::claim`] of [`client.leases(namespace)`](LockClient::leases): refused while there is a lease, even to its holder, and even an expired one; yours until at least the duration after the start of the call |
//! | | `ExtendLease` | [`Leases::extend`]: the same promise, never shortens, races are harmless |
//! | | `ExpireLease` | [`Leases::expire`]: only after its time by the store's clock; fails when free or pinned |
//! | | `RevokeLease` | [`Leases::revoke`] |
//! | | `Leases()` | [`Leases::list`], [`Leases::get`]: always from the store, times by the local clock |
//! | | `Refresh` | [`Leases::refresh`]; rarely needed, since nothing is kept |
//! | | `ErrInvalid` | kind [`InvalidLease`](ErrorKind::InvalidLease), which brings the [lease](Error::lease) as it is |
//! | | `PinLease`, `UnpinLease` | [`Leases::pin`], [`Leases::unpin`], [`Leases::pinned_by`] |
//! | | assert operations that gate other transactions | [`fence`]: a transaction of your own commits only while the lease, or a lock, stands |
//! | | one client per namespace and server, global time no faster than wall time | neither is assumed: any number of clients, and the store's clock decides |
//!
//! Which store, which lease, pitfalls, recipes, how to run a fleet: [`guide`]. Why it is built as it is: [`design`]. The command of the
//! feature `cli`: [`command`].

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]
// Only the C API, which is off by default, has unsafe code.
#![cfg_attr(not(feature = "capi"), forbid(unsafe_code))]
#![cfg_attr(feature = "capi", deny(unsafe_code))]

mod api;
#[cfg(feature = "capi")]
#[allow(unsafe_code)]
mod capi;
#[cfg_attr(not(feature = "_internals"), allow(dead_code))]
mod engine;
#[cfg_attr(not(feature = "_internals"), allow(dead_code, unused_imports))]
mod lease;
mod model;
// Only the tests use the whole contract of stores and the fault switch; a build with few stores uses even less of them.
#[cfg_attr(not(feature = "_internals"), allow(dead_code))]
mod store;
#[cfg_attr(not(feature = "_internals"), allow(dead_code))]
mod sys;

pub use api::admin::doctor::{Diagnosis, Right};
pub use api::admin::purge::PurgePages;
pub use api::admin::writers::Writer;
pub use api::builder::ClientBuilder;
pub use api::client::LockClient;
pub use api::election::{Election, ElectionBuilder, Leader, Leadership, TermEnd};
pub use api::fence;
pub use api::filter::Filter;
pub use api::guard::{LockGuard, ReleaseError, WithLockError};
pub use api::leases::{LeaseKeeper, Leases};
#[cfg(feature = "metrics")]
pub use api::metrics;
pub use api::request::{LockRequest, SameOwner};
pub use api::request_all::{LockAllGuard, LockAllRequest};
pub use api::request_any::LockAnyRequest;
pub use api::sleep::Slept;
#[cfg(feature = "dynamodb")]
pub use api::stores::dynamodb;
#[cfg(feature = "mongodb")]
pub use api::stores::mongodb;
#[cfg(feature = "postgres")]
pub use api::stores::postgres;
#[cfg(feature = "spanner")]
pub use api::stores::spanner;
#[cfg(feature = "sqlite")]
pub use api::stores::sqlite;
pub use api::testing;
#[cfg(feature = "tracing")]
pub use api::tracing;
pub use crossbeam_channel;
pub use engine::loss_watch::{LossReceiver, LossWatch};
pub use model::error::{Error, ErrorKind, Result};
pub use model::event::{Event, Observer, Operation, WaitEnd};
pub use model::lease_status::LeaseStatus;
pub use model::lock::{KeyStatus, Lock, LockStatus, Mode, Purged};
pub use model::loss::{Loss, LossReason};
pub use model::waiting::Waiting;
pub use parking_lot::Mutex;
pub use sys::cancel::{CancelOnDrop, CancelToken};

#[doc = include_str!("design.md")]
pub mod design {}

#[doc = include_str!("cli/guide.md")]
pub mod command {}

pub mod guide {
    //! For users and operators, a page for each question.
    //!
    //! | page | question |
    //! |---|---|
    //! | [`tour`] | What is there besides `lock`: shared locks, leases of names, elections |
    //! | [`choosing`] | Which store, which lease, and when not to lock at all |
    //! | [`guarantees`] | What is promised, and on which clocks and disks it rests |
    //! | [`pitfalls`] | What surprises people |
    //! | [`recipes`] | cron, systemd, Kubernetes, CI, migrations, signals, frozen functions |
    //! | [`operating`] | Alerts, a runbook, capacity, what it costs |
    //! | [`logs`] | What is logged, with targets, levels and fields |
    //! | [`step_by_step`] | How a lock is taken, with the file names |
    //! | [`speed`] | Measured ratios against raw requests |
    //! | [`c`] | The library from C, C++ and Python |
    //! | [`testing`] | How it is tested, and what is not shown |
    //! | [`compatibility`] | What a new version may change |
    //! | [`moving_other`] | Coming from other DynamoDB clients, Redis, ShedLock, advisory locks, Leases of Kubernetes |
    //! | `moving_dynamodb_lock_go`, `moving_mongo_lock`, `moving_spindle` | Coming from a Go library whose table leasehold shares |

    #[doc = include_str!("api/guide/step_by_step.md")]
    pub mod step_by_step {}

    #[doc = include_str!("api/guide/tour.md")]
    pub mod tour {}

    #[doc = include_str!("api/guide/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("api/guide/guarantees.md")]
    pub mod guarantees {}

    #[doc = include_str!("api/guide/pitfalls.md")]
    pub mod pitfalls {}

    #[doc = include_str!("api/guide/recipes.md")]
    pub mod recipes {}

    #[doc = include_str!("api/guide/operating.md")]
    pub mod operating {}

    #[doc = include_str!("api/guide/logs.md")]
    pub mod logs {}

    #[doc = include_str!("api/guide/speed.md")]
    pub mod speed {}

    #[doc = include_str!("api/guide/c.md")]
    pub mod c {}

    #[doc = include_str!("api/guide/testing.md")]
    pub mod testing {}

    #[doc = include_str!("api/guide/compatibility.md")]
    pub mod compatibility {}

    #[doc = include_str!("api/guide/moving_other.md")]
    pub mod moving_other {}

    #[cfg(feature = "dynamodb")]
    #[doc = include_str!("api/guide/moving_dynamodb_lock_go.md")]
    pub mod moving_dynamodb_lock_go {}

    #[cfg(feature = "mongodb")]
    #[doc = include_str!("api/guide/moving_mongo_lock.md")]
    pub mod moving_mongo_lock {}

    #[cfg(feature = "spanner")]
    #[doc = include_str!("api/guide/moving_spindle.md")]
    pub mod moving_spindle {}
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

#[cfg(feature = "_internals")]
#[doc(hidden)]
pub mod internals {
    //! For this package's own tests; no promise of any kind.
    pub mod store {
        pub use crate::store::*;
    }
    pub mod lease {
        pub use crate::lease::*;
    }
    pub mod sys {
        #[cfg(feature = "_async")]
        pub use crate::sys::driver;
        pub use crate::sys::log::is_written as log_is_written;
        pub use crate::sys::pause::stop as pause;
        pub use crate::sys::{clock, deadline};
    }

    /// The builder of a client for a store that is open already.
    pub fn builder_over(
        store: std::sync::Arc<dyn crate::store::Backend>,
        clock: std::sync::Arc<crate::sys::clock::Clock>,
    ) -> crate::ClientBuilder {
        crate::ClientBuilder::over(store, clock)
    }

    /// How many waiters for `key` are inside their callbacks, where no lock is handed over to them.
    pub fn in_users_code(client: &crate::LockClient, key: &str) -> usize {
        client.family.queues.in_users_code(key)
    }
}
