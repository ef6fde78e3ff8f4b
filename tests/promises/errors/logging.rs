//! The user writes the logger: it may call the library, and may be slow.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::support::alone::alone;
use leasehold::internals::builder_over;
use leasehold::internals::store::fault::{Call, Fault, FaultPlan, Faulty};
use leasehold::internals::store::memory::Memory;
use leasehold::internals::sys::clock::Clock;
use leasehold::{LockGuard, Mutex};

type Hook = Box<dyn FnMut() + Send>;

/// Runs the hook at the first failed heartbeat.
struct Logger(Mutex<Option<Hook>>);

static LOGGER: Logger = Logger(Mutex::new(None));

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target() == "leasehold::heartbeat"
            && let Some(mut hook) = { self.0.lock().take() }
        {
            hook();
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_may_ask_the_guard_that_it_is_told_of() {
    alone("errors::logging::a_logger_may_ask_the_guard_that_it_is_told_of", || {
        log::set_logger(&LOGGER).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let (clock, faults) = (Clock::system(), FaultPlan::default());
        let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
        let client = builder_over(Arc::new(store), clock).connect().unwrap();
        let guard = Arc::new(client.lock("k").unwrap());
        let (told, tells) = mpsc::channel();
        let asked: Arc<LockGuard> = guard.clone();
        *LOGGER.0.lock() = Some(Box::new(move || told.send(asked.info().fencing_token()).unwrap()));
        faults.next(Call::Renew, Fault::FailBefore);
        let beating = guard.clone();
        std::thread::spawn(move || beating.ensure_held_for(Duration::from_secs(18)));
        let token = tells.recv_timeout(Duration::from_secs(20)).expect("the logger hangs");
        assert_eq!(token, guard.fencing_token());
    });
}
