//! The hidden runtime: one thread that drives the futures of an async SDK for callers that block.
//!
//! What the SDK needs (its client, its connections) is made, used and dropped on that thread. A caller hands
//! over a closure that makes a future there, and waits on a channel until its own deadline. So nothing ever
//! blocks on a future on the caller's thread, which may well be running somebody's async task. While there
//! is nothing to do the thread sleeps; it ends with its handle.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crossbeam_channel::Sender;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::caught::caught;
use super::deadline::Deadline;
#[cfg(any(feature = "mongodb", feature = "postgres"))]
use super::deadline::{far_from, is_ready_by};
use super::thread::{self, Thread};
use crate::model::error::{Error, ErrorKind, Result};

/// Futures of an SDK are large, above all in a debug build.
const STACK: usize = 8 * 1024 * 1024;
/// How long a caller whose time is over waits to learn whether its future is dropped.
#[cfg(any(feature = "mongodb", feature = "postgres"))]
const HEAR: std::time::Duration = std::time::Duration::from_millis(20);

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Job<C> = Box<dyn FnOnce(Rc<C>) -> Task + Send>;

/// The handle of the thread, which owns a `C`. Dropping it ends the thread, without waiting for that.
#[derive(Debug)]
pub struct Driver<C> {
    jobs: UnboundedSender<Job<C>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The deadline came or the call was cancelled. The future is dropped on its thread.
    Over,
    /// The future panicked; the thread goes on.
    Panicked,
    /// The thread is gone.
    Ended,
}

impl<C: 'static> Driver<C> {
    /// Starts the thread and makes the `C` that it owns there.
    ///
    /// `over`: the error to give if that takes longer than the deadline, or panics.
    pub fn start<F, Fut>(by: &Deadline, init: F, over: impl FnOnce(Stopped) -> Error) -> Result<Driver<C>>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<C>> + 'static,
    {
        let (jobs, mut queue) = unbounded_channel::<Job<C>>();
        let (ready, made) = crossbeam_channel::bounded(1);
        // Disconnected when the caller is gone.
        let (waiting, gone) = oneshot::channel();
        Thread::spawn_with(STACK, "leasehold-driver", move || {
            thread::begin_to_keep_time();
            block_sigpipe();
            let (runtime, _standing) = match runtime() {
                Ok(made) => made,
                Err(error) => return drop(ready.send(Ok(Err(error)))),
            };
            // Entered until the last task is dropped: SDKs start tasks of their own when their last part is dropped.
            let _entered = runtime.enter();
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, async {
                let owned = match contained(init, gone, &AtomicBool::default()).await {
                    Ok(Ok(owned)) => Rc::new(owned),
                    Ok(Err(error)) => return drop(ready.send(Ok(Err(error)))),
                    Err(stopped) => return drop(ready.send(Err(stopped))),
                };
                if ready.send(Ok(Ok(()))).is_err() {
                    return;
                }
                drop(ready);
                while let Some(job) = queue.recv().await {
                    tokio::task::spawn_local(job(owned.clone()));
                }
            });
        })?;
        let answer = wait(&made, by);
        drop(waiting);
        match answer {
            Ok(Ok(Ok(()))) => Ok(Driver { jobs }),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(stopped)) | Err(stopped) => Err(over(stopped)),
        }
    }

    /// Makes a future on the thread and waits for it. When it returns because the deadline came, the future
    /// is dropped soon after.
    pub fn run<T, F, Fut>(&self, by: &Deadline, make: F) -> Result<T, Stopped>
    where
        T: Send + 'static,
        F: FnOnce(Rc<C>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (done, answer) = crossbeam_channel::bounded(1);
        let (waiting, gone) = oneshot::channel();
        let is_over = Arc::new(AtomicBool::default());
        let known = is_over.clone();
        let job: Job<C> = Box::new(move |owned| {
            Box::pin(async move {
                let _ = done.send(contained(move || make(owned), gone, &known).await);
            })
        });
        self.jobs.send(job).map_err(|_| Stopped::Ended)?;
        let answer = wait(&answer, by);
        if matches!(answer, Err(Stopped::Over)) {
            // From now on the future is not polled, whatever the thread does first.
            is_over.store(true, Ordering::SeqCst);
            // Dropped on the driver's thread: the drop wakes the task, which needs tokio's thread-local data, and on
            // this thread that is gone if the thread is about to end.
            let _ = self.jobs.send(Box::new(move |_| Box::pin(async move { drop(waiting) })));
        }
        answer.and_then(|answer| answer)
    }

    /// The same as [`run`](Self::run). Without an answer it also reports whether the future is dropped, and waits a
    /// moment for that: until it is dropped, a request may still be sent.
    #[cfg(any(feature = "mongodb", feature = "postgres"))]
    pub fn run_heard<T, F, Fut>(&self, by: &Deadline, make: F) -> Result<T, (Stopped, bool)>
    where
        T: Send + 'static,
        F: FnOnce(Rc<C>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (alive, gone) = crossbeam_channel::bounded::<()>(0);
        let answer = self.run(by, move |owned| async move {
            let _alive = alive;
            make(owned).await
        });
        // Nothing is ever sent: `gone` is ready once the future is dropped, and `alive` with it.
        let is_gone = || is_ready_by(&gone, far_from(std::time::Instant::now(), HEAR));
        answer.map_err(|stopped| (stopped, is_gone()))
    }
}

/// Blocks SIGPIPE, so that a write to a server that is gone is only an error: TCP is written to without the flag that
/// prevents the signal, which would end a program in C. Threads that are started from this one inherit the block.
fn block_sigpipe() {
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, Signal};

        let _ = SigSet::from(Signal::SIGPIPE).thread_block();
    }
}

/// Runs the future until it is done, the caller is gone or `is_over` is set; a panic ends the future and nothing else.
async fn contained<T, Fut>(
    make: impl FnOnce() -> Fut,
    gone: oneshot::Receiver<()>,
    is_over: &AtomicBool,
) -> Result<T, Stopped>
where
    Fut: Future<Output = T>,
{
    let mut gone = pin!(gone);
    let Some(future) = caught(make) else {
        return Err(Stopped::Panicked);
    };
    let mut future = pin!(future);
    poll_fn(|context| {
        if is_over.load(Ordering::SeqCst) || gone.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(Stopped::Over));
        }
        // The future is never polled again after a panic.
        match caught(|| future.as_mut().poll(context)) {
            Some(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Some(Poll::Pending) => Poll::Pending,
            None => Poll::Ready(Err(Stopped::Panicked)),
        }
    })
    .await
}

/// The runtime, and a sender that keeps one of its threads for blocking work, asleep until the sender is dropped.
///
/// SDKs look up hosts' names on such threads. If there is none and none can be started, tokio panics, also in tasks of
/// the SDK that nobody restarts. If there is one, the look-up waits until another can be started, and the SDK tries
/// again.
fn runtime() -> Result<(Runtime, Sender<Infallible>)> {
    let failed = || Error::new(ErrorKind::Store, "the hidden runtime can't be started").retryable();
    // `build` panics if it gets no file descriptor for signals.
    let runtime = caught(|| Builder::new_current_thread().enable_all().build()).ok_or_else(failed)?;
    let runtime = runtime.map_err(|error| failed().caused_by(error))?;
    let (standing, over) = crossbeam_channel::bounded(0);
    // A plain thread is tried first: without one `spawn_blocking` panics, and not every program survives a panic.
    let tried = std::thread::Builder::new().spawn(|| ()).map_err(|error| failed().caused_by(error))?;
    let _ = tried.join();
    caught(|| runtime.spawn_blocking(move || over.recv())).ok_or_else(failed)?;
    Ok((runtime, standing))
}

/// Waits for the answer, the deadline, or the deadline's cancel tokens.
fn wait<T>(answer: &crossbeam_channel::Receiver<T>, by: &Deadline) -> Result<T, Stopped> {
    by.wait_for_any(std::time::Duration::MAX, std::iter::once(answer));
    // An answer that has come counts, even if the deadline has passed or the call was cancelled as well.
    answer.try_recv().map_err(|error| match error {
        crossbeam_channel::TryRecvError::Empty => Stopped::Over,
        crossbeam_channel::TryRecvError::Disconnected => Stopped::Ended,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sys::cancel::CancelToken;

    fn driver() -> Driver<u32> {
        let over = |stopped| Error::new(ErrorKind::Store, format!("{stopped:?}"));
        Driver::start(&soon(), || async { Ok(7) }, over).unwrap()
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    /// Reports when it is dropped, and on which thread.
    struct Told(crossbeam_channel::Sender<Option<String>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn a_future_runs_on_the_thread_with_what_it_owns() {
        let name = driver().run(&soon(), |owned| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            (*owned, std::thread::current().name().map(str::to_owned))
        });
        assert_eq!(name, Ok((7, Some("leasehold-driver".to_owned()))));
    }

    /// A signal would end a program in C, where nothing ignores SIGPIPE.
    #[cfg(unix)]
    #[test]
    fn a_write_to_a_server_that_is_gone_is_no_signal() {
        use nix::sys::signal::{SigSet, Signal};

        let mask = driver().run(&soon(), |_| async { SigSet::thread_get_mask() }).unwrap().unwrap();
        assert!(mask.contains(Signal::SIGPIPE));
    }

    #[test]
    fn it_works_and_is_dropped_inside_async_tasks() {
        let in_task = || {
            let driver = driver();
            assert_eq!(driver.run(&soon(), |_| async { tokio::task::yield_now().await }), Ok(()));
        };
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { in_task() });
    }

    #[test]
    fn a_deadline_and_a_cancel_end_the_call_and_drop_the_future() {
        let driver = driver();
        let cancel = CancelToken::new();
        let late = Deadline::after(Duration::from_secs(120)).or_cancel(&cancel);
        for (by, cancels) in [(Deadline::after(Duration::from_millis(50)), false), (late, true)] {
            let (told, dropped) = crossbeam_channel::unbounded();
            let (begun, begins) = crossbeam_channel::bounded(1);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if begins.recv().is_ok() && cancels {
                        cancel.cancel();
                    }
                });
                let told = Told(told);
                let answer = driver.run(&by, move |_| async move {
                    let _told = told;
                    begun.send(()).unwrap_or_default();
                    std::future::pending::<()>().await
                });
                assert_eq!(answer, Err(Stopped::Over));
            });
            assert!(!cancels || Instant::now() < by.instant(), "the cancel did not end it");
            let thread = dropped.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(thread.as_deref(), Some("leasehold-driver"));
        }
    }

    /// A guard may be thread-local data, and its release may get no answer.
    #[test]
    fn a_call_at_the_end_of_its_thread_ends_as_any_other() {
        type Tells<T> = crossbeam_channel::Sender<T>;
        struct Calls(Driver<u32>, Tells<Option<String>>, Tells<Option<Result<(), Stopped>>>);
        impl Drop for Calls {
            fn drop(&mut self) {
                let told = Told(self.1.clone());
                let ended = caught(|| self.0.run(&Deadline::after(Duration::from_millis(20)), waits(told)));
                let _ = self.2.send(ended);
            }
        }
        fn waits(told: Told) -> impl FnOnce(Rc<u32>) -> Pin<Box<dyn Future<Output = ()>>> + Send {
            move |_| {
                Box::pin(async move {
                    let _told = told;
                    std::future::pending().await
                })
            }
        }
        thread_local!(static CALLS: std::cell::RefCell<Option<Calls>> = const { std::cell::RefCell::new(None) });
        let (told, dropped) = crossbeam_channel::unbounded();
        let (end, ended) = crossbeam_channel::bounded(1);
        let calls = Calls(driver(), told, end);
        std::thread::spawn(move || {
            let told = Told(calls.1.clone());
            // Set first, so that it is dropped last.
            CALLS.set(Some(calls));
            // This makes the thread-local data that a call needs, which is dropped before.
            driver().run(&Deadline::after(Duration::from_millis(20)), waits(told)).unwrap_err();
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(Some(Err(Stopped::Over))));
        for _ in 0..2 {
            let thread = dropped.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(thread.as_deref(), Some("leasehold-driver"));
        }
    }

    /// It must send nothing once nobody waits for its answer any more.
    #[test]
    fn a_call_that_was_over_before_the_thread_came_to_it_does_nothing() {
        let driver = driver();
        let (go_on, told) = crossbeam_channel::bounded::<()>(0);
        let ((begun, begins), (polled, polls)) = (crossbeam_channel::bounded(1), crossbeam_channel::bounded(1));
        std::thread::scope(|scope| {
            // A future that blocks the driver's thread.
            let holds = move |_| async move { begun.send(()).is_ok() && told.recv().is_ok() };
            let held = scope.spawn(|| driver.run(&soon(), holds));
            begins.recv().unwrap();
            let brief = Deadline::after(Duration::from_millis(20));
            let answer = driver.run(&brief, move |_| async move { polled.send(()).unwrap_or_default() });
            drop(go_on);
            assert_eq!((answer, held.join().unwrap()), (Err(Stopped::Over), Ok(false)));
        });
        let left = polls.recv_timeout(Duration::from_secs(20));
        assert_eq!(left, Err(crossbeam_channel::RecvTimeoutError::Disconnected), "it was polled");
    }

    #[test]
    fn a_panic_is_contained() {
        let driver = driver();
        let make = |panics: bool| move |_| async move { assert!(!panics, "as asked") };
        assert_eq!(driver.run(&soon(), make(true)), Err(Stopped::Panicked));
        assert_eq!(driver.run(&soon(), make(false)), Ok(()));
        // Also while the future is being made.
        let unmade = |_| -> std::future::Ready<()> { panic!("as asked") };
        assert_eq!(driver.run(&soon(), unmade), Err(Stopped::Panicked));
        let init = || async { panic!("as asked") };
        let over = |stopped| Error::new(ErrorKind::Store, format!("{stopped:?}"));
        assert!(Driver::<u32>::start(&soon(), init, over).unwrap_err().to_string().contains("Panicked"));
    }

    #[test]
    fn the_handle_ends_the_thread_and_what_it_owns() {
        let (told, dropped) = crossbeam_channel::unbounded();
        let over = |stopped| Error::new(ErrorKind::Store, format!("{stopped:?}"));
        let driver = Driver::start(&soon(), || async { Ok(Told(told)) }, over).unwrap();
        drop(driver);
        let thread = dropped.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(thread.as_deref(), Some("leasehold-driver"));
    }

    #[test]
    fn a_start_that_takes_too_long_says_so() {
        let over = |stopped| Error::new(ErrorKind::Store, format!("{stopped:?}"));
        let by = Deadline::after(Duration::from_millis(20));
        let error = Driver::<u32>::start(&by, std::future::pending, over).unwrap_err();
        assert!(error.to_string().contains("Over"), "{error}");
    }

    #[cfg(any(feature = "mongodb", feature = "postgres"))]
    #[test]
    fn a_caller_hears_whether_its_future_is_dropped() {
        let (driver, soon_over) = (driver(), || Deadline::after(Duration::from_millis(20)));
        let waits = |_| std::future::pending::<()>();
        assert!((0..20).any(|_| driver.run_heard(&soon_over(), waits) == Err((Stopped::Over, true))), "never heard");
        // A future that blocks the driver's thread, so that it can't be dropped.
        let holds = || {
            let (go_on, told) = crossbeam_channel::bounded::<()>(0);
            let ended = driver.run_heard(&soon_over(), |_| async move { told.recv().is_ok() });
            drop(go_on);
            ended == Err((Stopped::Over, false))
        };
        // The thread may come to it too late, and then it is dropped without being polled.
        assert!((0..20).any(|_| holds()), "each time it was heard to be dropped");
        assert_eq!(driver.run_heard(&soon(), |owned| async move { *owned }), Ok(7));
    }

    /// SDKs start tasks when their last part is dropped, and a task that never ended may own that part.
    #[test]
    fn what_it_owns_is_dropped_inside_the_runtime() {
        struct Starts(crossbeam_channel::Sender<bool>);
        impl Drop for Starts {
            fn drop(&mut self) {
                let _ = self.0.send(tokio::runtime::Handle::try_current().is_ok());
            }
        }
        let (told, dropped) = crossbeam_channel::unbounded();
        let over = |stopped| Error::new(ErrorKind::Store, format!("{stopped:?}"));
        let driver = Driver::start(&soon(), || async { Ok(Starts(told)) }, over).unwrap();
        let task = |owned: Rc<Starts>| async move {
            let endless = async move {
                let _owned = owned;
                std::future::pending::<()>().await
            };
            drop(tokio::task::spawn_local(endless));
        };
        assert_eq!(driver.run(&soon(), task), Ok(()));
        drop(driver);
        assert_eq!(dropped.recv_timeout(Duration::from_secs(20)), Ok(true));
    }

    /// Also a measurement: `cargo test --release --lib --features dynamodb -- --nocapture the_way`
    #[test]
    fn the_way_there_and_back() {
        let driver = driver();
        let mut times: Vec<Duration> = (0..20_000)
            .map(|_| {
                let started = Instant::now();
                assert_eq!(driver.run(&soon(), |owned| async move { *owned }), Ok(7));
                started.elapsed()
            })
            .collect();
        times.sort();
        println!("median {:?}, p99 {:?}", times[10_000], times[19_800]);
    }

    /// All of them under way at the same time.
    #[test]
    fn thousands_of_callers_at_once() {
        const CALLERS: usize = 3_000;
        let (driver, all) = (driver(), std::sync::Arc::new(tokio::sync::Barrier::new(CALLERS)));
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                let (driver, all) = (&driver, all.clone());
                let call = move || {
                    let answer = driver.run(&Deadline::after(Duration::from_secs(120)), move |owned| async move {
                        all.wait().await;
                        *owned
                    });
                    assert_eq!(answer, Ok(7));
                };
                std::thread::Builder::new().stack_size(64 * 1024).spawn_scoped(scope, call).unwrap();
            }
        });
    }

    /// How often this thread has gone to sleep or was stopped.
    #[cfg(target_os = "linux")]
    fn switches(thread: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let numbers = status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
        numbers.sum()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_runtime_without_work_does_nothing() {
        let driver = driver();
        let thread = driver.run(&soon(), |_| async { std::fs::read_link("/proc/thread-self") }).unwrap().unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap().to_owned();
        // It may still be going to sleep in a first round; what wakes it without work does so in every round.
        let sleeps = || {
            let before = switches(&thread);
            std::thread::sleep(Duration::from_secs(2));
            switches(&thread) == before
        };
        assert!((0..5).any(|_| sleeps()), "it woke with nothing to do");
        let before = switches(&thread);
        assert_eq!(driver.run(&soon(), |owned| async move { *owned }), Ok(7));
        // The switch is counted once the thread goes to sleep again, which is after its answer.
        let by = Instant::now() + Duration::from_secs(20);
        while switches(&thread) == before {
            assert!(Instant::now() < by, "it was not woken");
            std::thread::yield_now();
        }
    }
}
