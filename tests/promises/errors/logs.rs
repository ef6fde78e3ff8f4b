//! Which warnings are logged. Alone in its process, because there is one logger.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::alone::alone;
use crate::support::harness::Store;
use crate::support::lateness::{at_rest, measure, slack};
use crate::support::wait::wait_until;
use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::internals::sys::log_is_written;
use leasehold::testing::{Failure, MemoryStore};
use leasehold::{CancelToken, ErrorKind, Leadership, LockClient, LockGuard, LockRequest, Operation};

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        // Kept as a plain logger writes it, without the key-value fields.
        KEPT.lock().unwrap().push(format!("{} {}: {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

fn listen_with(logger: &'static dyn log::Log, most: log::LevelFilter) {
    log::set_logger(logger).unwrap();
    log::set_max_level(most);
}

fn listen() {
    listen_with(&Keep, log::LevelFilter::Warn);
}

/// The warnings since the last call.
fn warnings() -> Vec<String> {
    wait_until("the log is written", log_is_written);
    std::mem::take(&mut KEPT.lock().unwrap())
}

/// Asserts that there is exactly one warning, which begins with `of`.
#[track_caller]
fn assert_warned(of: &str) -> String {
    wait_until("it is warned of", || KEPT.lock().unwrap().iter().any(|line| line.starts_with(of)));
    let mut warned = warnings();
    assert!(warned.len() == 1 && warned[0].starts_with(of), "{warned:#?}");
    warned.remove(0)
}

#[test]
fn warnings_tell_what_went_wrong_and_nothing_else() {
    alone("errors::logs::warnings_tell_what_went_wrong_and_nothing_else", || {
        listen();
        let store = MemoryStore::new();
        let client = store.builder().heartbeat(Duration::from_millis(10)).connect().unwrap();
        let guard = client.lock("k").unwrap();
        assert!(client.try_lock_for("k", Duration::from_millis(500)).unwrap().is_none());
        wait_until("a heartbeat is answered", || guard.info().renewed().is_some());
        guard.release().unwrap();
        drop(client.lock("k").unwrap());
        client.close().unwrap();
        assert_eq!(warnings(), [""; 0]);

        // Time for only one request.
        let connect = || store.builder().drop_timeout(Duration::from_secs(1)).connect().unwrap();
        // The background of this client releases once more, and must not meet the next failure.
        let ends = |client: LockClient| wait_until("the background is done", || client.close().is_ok());
        let client = connect();
        let guard = client.lock("k").unwrap();
        store.fail_next(Operation::Release, Failure::AnswerHangs);
        drop(guard);
        assert_warned("WARN leasehold::guard: lock \"k\" could not be released");
        ends(client);
        // The same for one of several locks, either of them; and for both, if the machine stalls until the drop is over.
        let one_of_two = || {
            let client = connect();
            let all = client.lock_all(["a", "b"]).unwrap();
            store.fail_next(Operation::Release, Failure::AnswerHangs);
            drop(all);
            ends(client);
            matches!(&warnings()[..], [one] if one.starts_with("WARN leasehold::guard: lock \"") && one.contains("could not"))
        };
        assert!((0..3).any(|_| one_of_two()));

        // There is one warning, although the guard is dropped after that.
        let client = connect();
        let all = client.lock_all(["a"]).unwrap();
        store.fail_next(Operation::Release, Failure::AnswerHangs);
        all.release().unwrap_err();
        assert_warned("WARN leasehold::guard: lock \"a\" could not be released");

        // A loss that only the drop finds.
        let guard = client.lock("l").unwrap();
        client.force_release("l").unwrap();
        drop(guard);
        assert_warned("WARN leasehold::guard: lock \"l\" lost: released by another");

        let guard = client.lock("k").unwrap();
        store.advance(Duration::from_secs(21));
        guard.loss().wait().unwrap();
        drop(guard);
        assert_warned("WARN leasehold::guard: lock \"k\" lost: expired after");
        drop(client);
        what_fails_names_the_lock_and_the_time_left(&store);
        a_telling_that_fails_is_warned_of_once();
    });
}

fn what_fails_names_the_lock_and_the_time_left(store: &MemoryStore) {
    let client = store.builder().lease(Duration::from_secs(60)).connect().unwrap();
    // The first heartbeat fails at a third of the lease, and that is the first warning.
    let guard = client.request("k").warn_before(Duration::from_secs(30)).lock().unwrap();
    store.go_offline();
    store.advance(Duration::from_secs(30));
    // The watcher logs the second one, which may come after more of the first.
    for text in [
        "WARN leasehold::heartbeat: a heartbeat of lock \"k\" failed and is repeated, ",
        "WARN leasehold::guard: heartbeats of lock \"k\" fail; it will be lost in ",
    ] {
        wait_until(text, || KEPT.lock().unwrap().iter().any(|line| line.starts_with(text)));
    }
    store.advance(Duration::from_secs(30));
    guard.loss().wait().unwrap();
    store.go_online();
    drop(guard);
    wait_until("the loss is told", || KEPT.lock().unwrap().iter().any(|line| line.contains(" lost: expired")));
    let (warned, text) = (warnings(), "WARN leasehold::guard: lock \"k\" lost: expired (lock \"k\" on memory: ");
    assert!(warned.iter().any(|line| line.starts_with(text)), "{text} in {warned:#?}");
}

/// Runs the function for each line that contains the text, before the line is kept.
struct In(&'static str, fn());

static STANDS: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());

impl log::Log for In {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        if record.args().to_string().contains(self.0) {
            (self.1)();
        }
        Keep.log(record);
    }

    fn flush(&self) {}
}

static STOOD: AtomicBool = AtomicBool::new(false);

/// Hangs until `go_on` is called, like a logger whose standard error nobody reads.
fn stand() {
    STOOD.store(true, Ordering::SeqCst);
    let stands = STANDS.0.lock().unwrap();
    drop(STANDS.1.wait_while(stands, |stands| *stands).unwrap());
}

fn go_on() {
    *STANDS.0.lock().unwrap() = false;
    STANDS.1.notify_all();
}

#[test]
fn a_logger_that_hangs_in_a_heartbeat_costs_no_lock() {
    alone("errors::logs::a_logger_that_hangs_in_a_heartbeat_costs_no_lock", || {
        listen_with(&In("a heartbeat of lock", stand), log::LevelFilter::Warn);
        let store = MemoryStore::new();
        let client = store.builder().heartbeat(Duration::from_millis(10)).connect().unwrap();
        store.fail_next(Operation::Renew, Failure::NotSent);
        let guard = client.lock("k").unwrap();
        wait_until("a heartbeat is answered", || guard.info().renewed().is_some());
        assert_eq!(*KEPT.lock().unwrap(), [""; 0]);
        go_on();
        assert_warned("WARN leasehold::heartbeat: a heartbeat of lock \"k\" failed and is repeated, ");
    });
}

/// The message alone may say no more than that the store refused.
#[test]
fn a_heartbeat_that_failed_is_logged_with_the_cause() {
    alone("errors::logs::a_heartbeat_that_failed_is_logged_with_the_cause", || {
        listen();
        let store = Store::memory();
        let builder = store.builder().lease(Duration::from_secs(3600));
        let client = builder.heartbeat(Duration::from_millis(10)).connect().unwrap();
        let _guard = client.lock("k").unwrap();
        store.plan.always(Call::Renew, Fault::Refuse);
        let failed = |line: &String| line.contains("failed and is repeated");
        wait_until("a heartbeat has failed", || KEPT.lock().unwrap().iter().any(failed));
        let line = KEPT.lock().unwrap().iter().find(|line| failed(line)).cloned().unwrap();
        assert!(line.ends_with("the store refused the request: permission denied"), "{line}");
        // The failures that follow are not logged.
        wait_until("more have failed", || store.plan.count(Call::Renew) > 5);
        assert_eq!(KEPT.lock().unwrap().iter().filter(|line| failed(line)).count(), 1);
    });
}

#[test]
fn a_logger_that_hangs_at_one_of_several_leaves_no_other_standing() {
    alone("errors::logs::a_logger_that_hangs_at_one_of_several_leaves_no_other_standing", || {
        listen_with(&In(" lost: ", stand), log::LevelFilter::Warn);
        let client = MemoryStore::new().client();
        let all = client.lock_all(["a", "b"]).unwrap();
        client.force_release("a").unwrap();
        let dropping = thread::spawn(|| drop(all));
        wait_until("the other is free", || client.get("b").unwrap().is_none_or(|status| status.is_free()));
        wait_until("the loss is logged", || STOOD.load(Ordering::SeqCst));
        go_on();
        dropping.join().unwrap();
    });
}

#[test]
fn a_logger_that_hangs_in_a_loss_keeps_nothing_else_from_being_told() {
    alone("errors::logs::a_logger_that_hangs_in_a_loss_keeps_nothing_else_from_being_told", || {
        listen_with(&In(" lost: ", stand), log::LevelFilter::Warn);
        let store = MemoryStore::new();
        let client = store.client();
        let (to, losses) = std::sync::mpsc::channel();
        let lock = |key: &str| {
            let to = to.clone();
            client.request(key).on_loss(move |loss| to.send(loss.key).unwrap()).lock().unwrap()
        };
        for key in ["first", "second"] {
            let guard = lock(key);
            // The watcher declares the loss.
            store.go_offline();
            store.advance(Duration::from_secs(60));
            assert_eq!(losses.recv_timeout(Duration::from_secs(60)).as_deref(), Ok(key));
            store.go_online();
            drop(guard);
        }
        go_on();
        wait_until("both are written", || KEPT.lock().unwrap().len() == 2);
    });
}

/// The lock of a node that has ended its term must not be renewed.
#[test]
fn a_logger_that_hangs_at_the_end_of_a_term_keeps_nobody_from_leading() {
    alone("errors::logs::a_logger_that_hangs_at_the_end_of_a_term_keeps_nobody_from_leading", || {
        listen_with(&In(" is over: ", stand), log::LevelFilter::Info);
        let (store, is_well) = (MemoryStore::new(), Arc::new(AtomicBool::new(true)));
        let (asked, (to, leads)) = (is_well.clone(), std::sync::mpsc::channel());
        let node = store.client().election("job").lease(Duration::from_secs(6));
        let node = node.health_check(move || asked.load(Ordering::SeqCst)).build().unwrap();
        let lead = move |leadership: &Leadership| {
            to.send(()).unwrap_or_default();
            leadership.loss().wait();
        };
        node.lead(lead).unwrap();
        leads.recv_timeout(Duration::from_secs(60)).unwrap();
        is_well.store(false, Ordering::SeqCst);
        let rival = store.client();
        wait_until("the leader's lock is free", || rival.try_lock("job").unwrap().is_some());
        let is_over = |line: &String| line.contains(" is over: ");
        assert!(!KEPT.lock().unwrap().iter().any(is_over), "the logger does not stand");
        go_on();
        wait_until("it is written", || KEPT.lock().unwrap().iter().any(is_over));
    });
}

/// Nor is the lock renewed for a caller that leads without a thread of the library.
#[test]
fn a_logger_that_hangs_keeps_no_leadership_that_its_user_ends() {
    alone("errors::logs::a_logger_that_hangs_keeps_no_leadership_that_its_user_ends", || {
        // This logger also hangs when the term begins.
        listen_with(&In("\"job\"", stand), log::LevelFilter::Info);
        let store = MemoryStore::new();
        let (client, rival) = (store.client(), store.client());
        for closes in [false, true] {
            let (client, (to, ended)) = (client.clone(), std::sync::mpsc::channel());
            thread::spawn(move || {
                let leads = client.election("job").build().unwrap().campaign().unwrap();
                let closed = closes.then(|| client.close());
                drop(leads);
                to.send(closed).unwrap_or_default();
            });
            ended.recv_timeout(Duration::from_secs(60)).expect("it waits for the logger");
            assert!(rival.try_lock("job").unwrap().is_some(), "it is renewed for nobody");
        }
        assert_eq!(*KEPT.lock().unwrap(), [""; 0], "the logger does not stand");
        go_on();
    });
}

/// Ends a guard whose release fails at first, while the logger hangs at this line. The lock must be given up all the
/// same.
#[track_caller]
fn is_given_up_where_the_logger_hangs(line: &'static str, ask: fn(LockRequest) -> LockRequest, ends: fn(LockGuard)) {
    listen_with(Box::leak(Box::new(In(line, stand))), log::LevelFilter::Debug);
    let store = Store::memory();
    let builder = store.builder().drop_timeout(Duration::from_millis(200));
    let client = builder.lease(Duration::from_secs(3600)).connect().unwrap();
    let guard = ask(client.request("k")).lock().unwrap();
    store.plan.always(Call::Release, Fault::FailBefore);
    thread::spawn(move || ends(guard));
    wait_until("the logger hangs", || STOOD.load(Ordering::SeqCst));
    store.plan.heal();
    let rival = store.bystander();
    wait_until("the lock is free", || rival.try_lock("k").unwrap().is_some());
    go_on();
}

#[test]
fn a_logger_that_hangs_where_a_release_failed_leaves_no_lock_standing() {
    alone("errors::logs::a_logger_that_hangs_where_a_release_failed_leaves_no_lock_standing", || {
        is_given_up_where_the_logger_hangs("could not be released yet", |request| request, drop);
    });
}

#[test]
fn a_logger_that_hangs_where_a_lost_lock_could_not_be_released_leaves_it_to_others() {
    alone("errors::logs::a_logger_that_hangs_where_a_lost_lock_could_not_be_released_leaves_it_to_others", || {
        let short = |request: LockRequest| request.max_hold(Duration::from_millis(300));
        is_given_up_where_the_logger_hangs("releasing a lost lock", short, |guard| {
            guard.loss().wait().unwrap();
            drop(guard.release());
        });
    });
}

/// The heartbeat's thread hangs as well, in the store.
#[test]
fn a_logger_that_hangs_where_a_heartbeat_does_keeps_no_lock_that_is_given_up() {
    alone("errors::logs::a_logger_that_hangs_where_a_heartbeat_does_keeps_no_lock_that_is_given_up", || {
        listen_with(&In("that hangs is left behind", stand), log::LevelFilter::Warn);
        for closes in [false, true] {
            let (store, (go, stuck)) = (Store::memory(), crossbeam_channel::bounded(0));
            let builder = store.builder().drop_timeout(Duration::from_millis(400)).lease(Duration::from_secs(3600));
            let client = builder.heartbeat(Duration::from_millis(10)).connect().unwrap();
            let guard = client.lock("k").unwrap();
            store.plan.next(Call::Renew, Fault::Stuck(stuck));
            wait_until("the heartbeat hangs", || store.plan.unmet() == 0);
            thread::spawn(move || match closes {
                true => drop((client.close(), guard)),
                false => drop(guard),
            });
            let rival = store.bystander();
            wait_until("the lock is free", || rival.try_lock("k").unwrap().is_some());
            drop(go);
        }
        // The thread that logs may be late.
        wait_until("it is said", || STOOD.load(Ordering::SeqCst));
        go_on();
    });
}

#[test]
fn a_logger_that_hangs_where_the_work_failed_ends_the_term_all_the_same() {
    alone("errors::logs::a_logger_that_hangs_where_the_work_failed_ends_the_term_all_the_same", || {
        listen_with(&In(" failed: ", stand), log::LevelFilter::Warn);
        let store = MemoryStore::new();
        let node = store.client().election("job").stand_again(false).build().unwrap();
        node.try_lead(|_| Err("no disk")).unwrap();
        let rival = store.client();
        wait_until("the leader's lock is free", || node.terms() == 1 && rival.try_lock("job").unwrap().is_some());
        go_on();
        wait_until("it is written", || KEPT.lock().unwrap().iter().any(|line| line.contains("no disk")));
    });
}

/// Like a disk that is busy.
fn dawdle() {
    thread::sleep(Duration::from_millis(10));
}

#[test]
fn a_slow_logger_holds_up_no_loss() {
    const LOST: usize = 400;
    alone("errors::logs::a_slow_logger_holds_up_no_loss", || {
        listen_with(&In(" lost: ", dawdle), log::LevelFilter::Warn);
        let (store, (to, losses)) = (MemoryStore::new(), std::sync::mpsc::channel());
        let client = store.client();
        let guard = |n: usize| {
            let to = to.clone();
            let told = move |_| to.send(KEPT.lock().unwrap().len()).unwrap_or_default();
            client.request(&format!("k{n}")).on_loss(told).lock().unwrap()
        };
        let guards: Vec<_> = (0..LOST).map(guard).collect();
        store.go_offline();
        store.advance(Duration::from_secs(60));
        let written = losses.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(written < LOST, "the first is told after the last line is written");
        drop(guards);
        wait_until("all is written", log_is_written);
    });
}

#[cfg(target_os = "linux")]
fn has_thread(name: &str) -> bool {
    let mut tasks = crate::support::threads::tasks().into_iter();
    tasks.any(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|of| of.trim_end() == name))
}

/// These waiters sleep for long, because they expect the store to wake them.
#[test]
fn a_logger_that_hangs_where_the_store_stops_telling_leaves_no_waiter_asleep() {
    const HOUR: Duration = Duration::from_secs(3600);
    alone("errors::logs::a_logger_that_hangs_where_the_store_stops_telling_leaves_no_waiter_asleep", || {
        listen_with(&In("the store does not wake waiters", stand), log::LevelFilter::Warn);
        let (store, cancel) = (Store::memory(), CancelToken::new());
        let client = store.builder().lease(HOUR).poll(HOUR..=HOUR).connect().unwrap();
        let _held = store.bystander().request("k").lease(HOUR).acquire().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| client.request("k").cancel(&cancel).lock().unwrap_err());
            wait_until("it sleeps", || store.plan.count(Call::Read) == 1);
            store.stop_telling();
            wait_until("it looks again", || store.plan.count(Call::Read) > 1);
            cancel.cancel();
            assert_eq!(waits.join().unwrap().kind(), ErrorKind::Cancelled);
        });
        // Each thread that remains would keep the store open.
        client.close().unwrap();
        #[cfg(target_os = "linux")]
        wait_until("no thread is left that the store told", || !has_thread("leasehold-wake"));
        assert_eq!(*KEPT.lock().unwrap(), [""; 0], "the logger does not stand");
        go_on();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_logger_that_hangs_where_a_file_is_gone_leaves_no_waiter_asleep() {
    const HOUR: Duration = Duration::from_secs(3600);
    alone("errors::logs::a_logger_that_hangs_where_a_file_is_gone_leaves_no_waiter_asleep", || {
        listen_with(&In("waiters are not woken any more", stand), log::LevelFilter::Debug);
        let store = Store::sqlite();
        let client = store.builder().lease(HOUR).poll(HOUR..=HOUR).connect().unwrap();
        let _held = store.bystander().request("k").lease(HOUR).acquire().unwrap();
        let (to, ended) = std::sync::mpsc::channel();
        thread::spawn(move || to.send(client.lock("k").map(drop).unwrap_err().kind()).unwrap_or_default());
        wait_until("it sleeps", || store.plan.count(Call::Read) > 0);
        std::fs::rename(store.folder.file(), store.folder.path().join("elsewhere.db")).unwrap();
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(ErrorKind::Store));
        go_on();
    });
}

/// In real time, because the warning goes by no other clock.
#[test]
fn a_wait_is_warned_of_after_half_a_minute() {
    const HALF: Duration = Duration::from_secs(30);
    alone("errors::logs::a_wait_is_warned_of_after_half_a_minute", || {
        listen();
        measure();
        let (client, cancel) = (MemoryStore::new().client(), CancelToken::new());
        let _held = client.lock("k").unwrap();
        // A candidate that stands by for a healthy leader waits for weeks, so it gets no warning.
        let _leads = client.election("web").build().unwrap().campaign().unwrap();
        let stands_by = client.election("web").build().unwrap();
        let began = Instant::now();
        thread::scope(|scope| {
            let campaign = scope.spawn(|| stands_by.campaign().unwrap_err().kind());
            wait_until("it stands by", || stands_by.is_standing());
            let waits = scope.spawn(|| client.request("k").cancel(&cancel).lock().unwrap_err().kind());
            wait_until("it is warned of", || !KEPT.lock().unwrap().is_empty());
            // The candidate has waited for longer than the waiter.
            at_rest("no more is warned of", || KEPT.lock().unwrap().len());
            cancel.cancel();
            stands_by.stop().unwrap();
            assert_eq!([waits, campaign].map(|ends| ends.join().unwrap()), [ErrorKind::Cancelled; 2]);
        });
        let waits = "WARN leasehold::client: still waiting for lock \"k\" after ";
        let said = assert_warned(waits);
        let (seconds, _) = said[waits.len()..].split_once(" s, held by \"").expect(&said);
        let waited = Duration::from_secs(seconds.parse().unwrap());
        assert!((HALF..=HALF + slack(began)).contains(&waited), "{said}");
        assert!(said.contains(" s left) since 20") && said.contains(" UTC"), "{said}");
    });
}

/// There is one warning, however often the wake-up is tried again while a call waits.
fn a_telling_that_fails_is_warned_of_once() {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let client = builder_over(Arc::new(store), clock).connect().unwrap();
    faults.always(Call::Wake, Fault::FailBefore);
    let held = client.request("k").lease(Duration::from_secs(3600)).acquire().unwrap();
    while faults.count(Call::Wake) < 3 {
        assert!(client.try_lock_for("k", Duration::from_millis(200)).unwrap().is_none());
    }
    client.release(&held).unwrap();
    client.close().unwrap();
    assert_warned("WARN leasehold::wake: the store does not wake waiters when a lock is free");
}
