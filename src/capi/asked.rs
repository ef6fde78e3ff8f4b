//! What is asked for by a request, and how it is asked of the Rust API.

use std::sync::Arc;

use super::callback::Callback;
use super::client::{Client, ClientHandle};
use super::failure::Failure;
use super::guard::{Guard, GuardHandle};
use super::loss::{LossFn, Watch};
use super::{handle, millis};
use crate::api::guard::LockGuard;
use crate::api::request::LockRequest;
use crate::api::request_any::LockAnyRequest;
use crate::model::error::{Error, Result as ApiResult};
use crate::model::lock::Lock;
use crate::model::loss::Loss;

/// One lock, or the first of several that is free.
pub struct Asked {
    client: Arc<Client>,
    pub keys: Keys,
    /// Everything else, of which a copy is used up each time.
    request: LockRequest,
    pub on_loss: Option<Callback<LossFn>>,
}

/// Which locks.
#[derive(Clone)]
pub enum Keys {
    /// The one of the request.
    One,
    AnyOf {
        keys: Vec<String>,
        order: Order,
    },
}

/// In which order several locks are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Random,
    AsGiven,
}

/// Both kinds of requests end alike.
enum Request {
    One(LockRequest),
    Any(LockAnyRequest),
}

impl Asked {
    /// A request for one lock.
    pub fn one(client: ClientHandle, key: &str) -> Result<Self, Failure> {
        let client: Arc<Client> = handle::get(client)?;
        let request = client.api.request(key);
        Ok(Asked { client, keys: Keys::One, request, on_loss: None })
    }

    /// A request for the first of several locks, which are still to be named.
    pub fn any(client: ClientHandle) -> Result<Self, Failure> {
        let keys = Keys::AnyOf { keys: Vec::new(), order: Order::Random };
        Ok(Asked { keys, ..Asked::one(client, "")? })
    }

    /// The same once more, so that nothing is locked while a wait goes on.
    pub fn again(&self) -> Self {
        let (client, keys, request) = (self.client.clone(), self.keys.clone(), self.request.again());
        Asked { client, keys, request, on_loss: self.on_loss }
    }

    pub fn with(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.request = set(self.request);
        self
    }

    pub fn waiting(self, ms: u64) -> Self {
        self.with(|request| request.wait(millis(ms)))
    }

    pub fn lock(self) -> Result<GuardHandle, Failure> {
        self.guard(|request| match request {
            Request::One(request) => request.lock(),
            Request::Any(request) => request.lock(),
        })
    }

    /// One try, which unlike the `try_lock` of the Rust API reports who holds the lock.
    pub fn try_lock(self) -> Result<GuardHandle, Failure> {
        self.guard(|request| match request {
            Request::One(request) => request.lock_once(),
            Request::Any(request) => request.lock_once(),
        })
    }

    pub fn acquire(self) -> Result<Lock, Error> {
        match self.with(LockRequest::without_wait).request() {
            Request::One(request) => request.acquire(),
            Request::Any(request) => request.acquire(),
        }
    }

    pub fn adopt(self, lock: Lock) -> Result<GuardHandle, Failure> {
        self.with(LockRequest::without_wait).guard(|request| match request {
            Request::One(request) => request.adopt(lock),
            Request::Any(_) => {
                Err(Error::invalid("request", "for one of several keys", "for one key, to adopt a lock"))
            }
        })
    }

    fn request(self) -> Request {
        match self.keys {
            Keys::One => Request::One(self.request),
            Keys::AnyOf { keys, order } => {
                let any = self.client.api.request_any(&keys).like(self.request);
                Request::Any(if order == Order::AsGiven { any.in_order() } else { any })
            }
        }
    }

    fn guard(self, start: impl FnOnce(Request) -> ApiResult<LockGuard>) -> Result<GuardHandle, Failure> {
        let watch = Watch::new(self.on_loss);
        self.client.watch(&watch);
        let told = watch.clone();
        let request = self.with(|request| request.on_loss(move |loss: Loss| told.lost(&loss))).request();
        give(start(request), watch)
    }
}

/// Makes the handle of what was started.
fn give(started: ApiResult<LockGuard>, watch: Arc<Watch>) -> Result<GuardHandle, Failure> {
    let made = started.map_err(Failure::from).and_then(|guard| handle::insert(Guard::new(guard, watch.clone())));
    if made.is_err() {
        // Nobody has a guard whose freeing would say until when `user` is used: it is until now.
        watch.freed();
    }
    made
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::super::code::Code;
    use super::super::loss::LossInfo;
    use super::*;
    use crate::ErrorKind;
    use crate::model::loss::LossReason;

    static CALLED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn called(_: *const LossInfo, _: *mut c_void) {
        CALLED.store(true, Ordering::SeqCst);
    }

    fn code<T>(answer: Result<T, Failure>) -> Code {
        answer.map_or_else(super::super::failure::keep, |_| Code::Ok)
    }

    /// The guard was there, and lost, but could not be given out: whoever asked has freed `user` by then.
    #[test]
    fn nothing_is_called_for_a_guard_that_nobody_got() {
        let watch = Watch::new(Some(Callback { function: called as LossFn, user: std::ptr::null_mut() }));
        let answer = give(Err(Error::new(ErrorKind::Held, "as a test")), watch.clone());
        assert_eq!(code(answer), Code::Held);
        watch.lost(&Loss { reason: LossReason::Gone, key: "k".to_owned(), fencing_token: 1, held_for: Duration::ZERO });
        assert!(!CALLED.load(Ordering::SeqCst), "it was called");
    }

    #[cfg(feature = "_internals")]
    #[test]
    fn a_grant_that_came_too_late_is_not_held_by_others() {
        use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
        use crate::store::memory::Memory;
        use crate::sys::clock::Clock;

        const MINUTE: Duration = Duration::from_secs(60);

        struct Jumps(Arc<Clock>);

        impl crate::Observer for Jumps {
            fn event(&self, event: &crate::Event<'_>) {
                if matches!(event, crate::Event::Request { operation: crate::Operation::Renew, .. }) {
                    self.0.advance(3 * MINUTE);
                }
            }
        }

        for keys in [Keys::One, Keys::AnyOf { keys: vec!["k".to_owned()], order: Order::Random }] {
            let (clock, faults) = (Clock::system(), FaultPlan::default());
            let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
            let builder = crate::ClientBuilder::over(Arc::new(store), clock.clone()).observer(Arc::new(Jumps(clock)));
            let Ok(client) = builder.request_timeout(Duration::from_millis(100)).connect() else { panic!("no client") };
            // So long a lease is set by a renewal, and too much time passes while that is under way.
            let asked = handle::insert(Client::new(client.clone())).and_then(|client| Asked::one(client, "k"));
            let Ok(asked) = asked else { panic!("no request") };
            let asked = Asked { keys, ..asked }.with(|request| request.lease(2 * MINUTE));
            faults.always(Call::Renew, Fault::ApplyThenDelay(MINUTE));
            let code = self::code(asked.again().try_lock());
            let message = super::super::failure::message();
            assert_eq!(code, Code::TimedOut, "{message}");
            faults.heal();
            let held = client.lock("k");
            assert!(held.is_ok());
            assert_eq!(self::code(asked.try_lock()), Code::Held);
            let text = super::super::failure::message();
            assert!(text.contains("others hold") && text.contains("exclusive"), "{text}");
        }
    }
}
