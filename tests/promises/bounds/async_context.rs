//! Calls, drops and closes inside an async task of the user: they block that task, and never panic.

use std::time::Duration;

use crate::support::harness::{Folder, millis};
use leasehold::{ErrorKind, LockClient};
use tokio::runtime::{Builder, Runtime};

fn runtimes() -> Vec<(&'static str, Runtime)> {
    let multi = Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    vec![("multi-thread", multi), ("current-thread", Builder::new_current_thread().build().expect("a runtime"))]
}

/// On each runtime and store: in a task, in `block_on` itself and in `spawn_blocking`.
fn everywhere(call: fn(&str)) {
    let folder = Folder::new();
    for url in ["memory:", &folder.url()] {
        for (name, runtime) in runtimes() {
            let (task, blocking, root) = (url.to_owned(), url.to_owned(), url.to_owned());
            runtime.block_on(async move {
                let what = |how| format!("{how} on {name} with {root}");
                tokio::spawn(async move { call(&task) }).await.unwrap_or_else(|e| panic!("{}: {e}", what("a task")));
                let blocking = tokio::task::spawn_blocking(move || call(&blocking)).await;
                blocking.unwrap_or_else(|e| panic!("{}: {e}", what("spawn_blocking")));
                call(&root);
            });
        }
    }
}

fn client(url: &str) -> LockClient {
    LockClient::builder(url).poll(millis(5)..=millis(20)).connect().expect("a client")
}

#[test]
fn every_call_works_in_an_async_task() {
    everywhere(|url| {
        let client = client(url);
        let guard = client.lock("job").expect("a lock");
        assert!(client.try_lock("job").expect("an answer").is_none());
        // A machine that stalls may use up the time of the only request.
        let refused = [1, 20, 400].into_iter().find_map(|longer| client.try_lock_for("job", longer * millis(50)).ok());
        assert!(refused.expect("an answer").is_none());
        assert!(guard.is_held());
        // This is more than what is left, so the store is asked.
        let _ = guard.ensure_held_for(guard.remaining() + Duration::from_micros(1));
        assert!(guard.info().renewed().is_some());
        let lock = guard.into_lock();
        let lock = client.heartbeat(&lock, Duration::from_secs(30)).expect("a heartbeat");
        let guard = client.adopt(lock).expect("a hand-over");
        assert!(client.get("job").expect("a look").is_some());
        guard.release().expect("a release");
        client.with_lock("job", |guard| assert!(guard.is_held())).expect("a lock");
        client.purge(Duration::ZERO).expect("a purge");
        client.close().expect("a close");
        assert_eq!(client.lock("job").unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn guard_and_client_can_be_dropped_in_an_async_task_in_any_order() {
    everywhere(|url| {
        let first = client(url);
        let guard = first.lock("job").expect("a lock");
        drop(guard);
        drop(first);
        let second = client(url);
        let guard = second.lock("job").expect("a lock");
        drop(second);
        drop(guard);
        assert!(client(url).try_lock("job").expect("an answer").is_some());
    });
}

#[test]
fn a_panic_in_an_async_task_releases_the_lock() {
    let folder = Folder::new();
    for (name, runtime) in runtimes() {
        let client = client(&folder.url());
        let inside = client.clone();
        let task = async move {
            let _guard = inside.lock("job").expect("a lock");
            panic!("a user's panic");
        };
        let failed = runtime.block_on(async { tokio::spawn(task).await });
        let panic = failed.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"a user's panic"), "on {name}");
        assert!(client.try_lock("job").expect("an answer").is_some(), "it is still held, on {name}");
    }
}

/// The guard lives in a task that the shutdown of the runtime drops unfinished.
#[test]
fn a_guard_in_a_cancelled_task_is_released() {
    let folder = Folder::new();
    for (name, runtime) in runtimes() {
        let client = client(&folder.url());
        let inside = client.clone();
        let (ready, held) = std::sync::mpsc::channel();
        let task = runtime.spawn(async move {
            let _guard = inside.lock("job").expect("a lock");
            ready.send(()).expect("somebody listens");
            std::future::pending::<()>().await;
        });
        // A current-thread runtime only runs its tasks inside `block_on`.
        runtime.block_on(tokio::task::yield_now());
        held.recv().expect("it is held");
        drop(runtime);
        drop(task);
        assert!(client.try_lock("job").expect("an answer").is_some(), "it is still held, on {name}");
    }
}

/// The thread panics, and client and guard are dropped during unwinding.
#[test]
fn a_panic_drops_guard_and_client_in_good_order() {
    let folder = Folder::new();
    for url in ["memory:panic", &folder.url()] {
        let observer = client(url);
        let alone = client(url);
        let thread = std::thread::spawn(move || {
            let _guard = alone.lock("job").expect("a lock");
            panic!("a user's panic");
        });
        let panic = thread.join().unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a user's panic"));
        assert!(observer.try_lock("job").expect("an answer").is_some());
    }
}
