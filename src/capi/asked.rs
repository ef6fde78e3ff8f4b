//! What a request asks for, and how it is passed on to the Rust API.

use std::sync::{Arc, OnceLock};

use super::callback::Callback;
use super::client::{Client, ClientHandle};
use super::code::Code;
use super::failure::Failure;
use super::guard::{Guard, GuardHandle};
use super::guards::{Guards, GuardsHandle};
use super::loss::{LossFn, WarnFn, Watch};
use super::waiting::{self, WaitFn};
use super::{handle, millis};
use crate::api::guard::LockGuard;
use crate::api::request::{AskedWait, LockRequest};
use crate::api::request_any::LockAnyRequest;
use crate::model::error::{Error, Result as ApiResult};
use crate::model::lock::Lock;
use crate::model::loss::Loss;

/// A request for one lock, for the first of several that is free, or for all of several.
pub struct Asked {
    client: Arc<Client>,
    pub keys: Keys,
    /// Everything else. Each call uses up a copy.
    request: LockRequest,
    pub callbacks: Callbacks,
}

/// The functions of C's that a request calls.
#[derive(Clone, Copy, Default)]
pub struct Callbacks {
    pub on_loss: Option<Callback<LossFn>>,
    pub on_warning: Option<Callback<WarnFn>>,
    pub on_wait: Option<Callback<WaitFn>>,
}

impl Callbacks {
    fn watch(&self) -> Arc<Watch> {
        Watch::of(self.on_loss, self.on_warning)
    }

    /// Returns the request with these callbacks.
    fn given(&self, request: LockRequest, watch: &Arc<Watch>) -> LockRequest {
        let (mut request, warned) = (telling(request, watch, |_| true), watch.clone());
        if self.on_warning.is_some() {
            request = request.on_warning(move |left| warned.warns(left));
        }
        if let Some(callback) = self.on_wait {
            request = request.on_wait(move |waiting| waiting::tell(callback, waiting));
        }
        request
    }
}

/// Returns a request that reports a loss that counts to `watch` twice: as soon as it is found, and once more from a
/// thread of its own, which a callback may hold up.
fn telling(
    request: LockRequest,
    watch: &Arc<Watch>,
    counts: impl Fn(&Loss) -> bool + Clone + Send + 'static,
) -> LockRequest {
    let (found, lost, also_counts) = (watch.clone(), watch.clone(), counts.clone());
    let mut request = request.on_loss(move |loss| {
        if counts(&loss) {
            lost.lost(&loss);
        }
    });
    request.spec.callbacks.get_mut().at_loss = Some(Box::new(move |loss| {
        if also_counts(loss) {
            found.found();
        }
    }));
    request
}

/// Which locks.
#[derive(Clone)]
pub enum Keys {
    /// The one key of the request.
    One,
    AnyOf {
        keys: Vec<String>,
        order: Order,
    },
    AllOf {
        keys: Vec<String>,
    },
}

/// In which order several locks are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Random,
    AsGiven,
}

/// A request of the Rust API: both kinds have the same methods that end them.
enum Request {
    One(LockRequest),
    Any(LockAnyRequest),
}

impl Asked {
    /// A request for one lock.
    pub fn one(client: ClientHandle, key: &str) -> Result<Self, Failure> {
        let client: Arc<Client> = handle::get(client)?;
        let request = client.api.request(key);
        Ok(Asked { client, keys: Keys::One, request, callbacks: Callbacks::default() })
    }

    /// A request for the first of several locks that is free. Their keys are added later.
    pub fn any(client: ClientHandle) -> Result<Self, Failure> {
        let keys = Keys::AnyOf { keys: Vec::new(), order: Order::Random };
        Ok(Asked { keys, ..Asked::one(client, "")? })
    }

    /// A request for all of several locks. Their keys are added later.
    pub fn all(client: ClientHandle) -> Result<Self, Failure> {
        Ok(Asked { keys: Keys::AllOf { keys: Vec::new() }, ..Asked::one(client, "")? })
    }

    /// A copy, so that the mutex of the original need not stay locked during a wait.
    pub fn again(&self) -> Self {
        let (client, keys, request) = (self.client.clone(), self.keys.clone(), self.request.again());
        Asked { client, keys, request, callbacks: self.callbacks }
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

    pub fn acquire(self) -> Result<Lock, Failure> {
        Ok(match self.with(LockRequest::without_guard).request()? {
            Request::One(request) => request.acquire(),
            Request::Any(request) => request.acquire(),
        }?)
    }

    /// Obtains all of the locks; with `once` it does not wait for other holders.
    pub fn lock_all(self, once: bool) -> Result<GuardsHandle, Failure> {
        let Asked { client, keys: Keys::AllOf { keys }, mut request, callbacks } = self else {
            return Err(Failure::new(Code::InvalidInput, "the request is not one for all of several keys"));
        };
        // These options apply to all locks together, so they are not set for each.
        let spec = &mut request.spec;
        let (lock_id, wait) = (spec.lock.lock_id.take(), spec.wait.take());
        let max_hold = spec.callbacks.get_mut().max_hold.take();
        let watch = callbacks.watch();
        client.watch(&watch);
        // A loss counts only once all are granted: a lock that is lost before is obtained again, or the call fails.
        let granted: Arc<OnceLock<Vec<Lock>>> = Arc::default();
        let each = |one: LockRequest| {
            let mut like = request.again();
            like.spec.lock.key = one.spec.lock.key;
            let granted = granted.clone();
            telling(callbacks.given(like, &watch), &watch, move |loss| {
                let is = |lock: &Lock| lock.key() == loss.key && lock.fencing_token() == loss.fencing_token;
                granted.get().is_some_and(|granted| granted.iter().any(is))
            })
        };
        let mut all = client.api.request_all(&keys).each(each);
        if let Some(lock_id) = lock_id {
            all = all.lock_id(lock_id);
        }
        if let Some(max_hold) = max_hold {
            all = all.max_hold(max_hold);
        }
        let locked = match wait {
            _ if once => all.lock_once(),
            Some(AskedWait::For(wait)) => all.wait(wait).lock().map(Ok),
            Some(AskedWait::Until(until)) => all.wait_until(until).lock().map(Ok),
            None => all.lock().map(Ok),
        };
        let held = |refused| Failure::with_code(refused, Code::Held);
        let obtained = locked.map_err(Failure::from).and_then(|locked| locked.map_err(held));
        let made = obtained.and_then(|held| {
            granted.get_or_init(|| held.guards().iter().map(LockGuard::info).collect());
            held.ensure_held()?;
            handle::insert(Guards::new(held, watch.clone()))
        });
        give(made, watch)
    }

    pub fn adopt(self, lock: Lock) -> Result<GuardHandle, Failure> {
        self.with(LockRequest::without_wait).guard(|request| match request {
            Request::One(request) => request.adopt(lock),
            Request::Any(_) => {
                Err(Error::invalid("request", "for one of several keys", "for one key, to adopt a lock"))
            }
        })
    }

    fn request(self) -> Result<Request, Failure> {
        Ok(match self.keys {
            Keys::One => Request::One(self.request),
            Keys::AnyOf { keys, order } => {
                let any = self.client.api.request_any(&keys).like(self.request);
                Request::Any(if order == Order::AsGiven { any.in_order() } else { any })
            }
            Keys::AllOf { .. } => {
                let message = "the request is for all of several keys: use leasehold_request_lock_all";
                return Err(Failure::new(Code::InvalidInput, message));
            }
        })
    }

    fn guard(self, start: impl FnOnce(Request) -> ApiResult<LockGuard>) -> Result<GuardHandle, Failure> {
        let (callbacks, watch) = (self.callbacks, self.callbacks.watch());
        self.client.watch(&watch);
        let started = start(self.with(|request| callbacks.given(request, &watch)).request()?);
        let made = started.map_err(Failure::from).and_then(|guard| handle::insert(Guard::new(guard, watch.clone())));
        give(made, watch)
    }
}

/// Returns the handle of what was made. Without a handle no callback is called any more.
fn give<H>(made: Result<H, Failure>, watch: Arc<Watch>) -> Result<H, Failure> {
    if made.is_err() {
        // The caller gets no guard whose freeing would end the use of `user`, so its use ends here.
        watch.freed();
    }
    made
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::super::loss::LossInfo;
    use super::*;
    use crate::model::error::ErrorKind;
    use crate::model::loss::LossReason;

    static CALLED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn called(_: *const LossInfo, _: *mut c_void) {
        CALLED.store(true, Ordering::SeqCst);
    }

    fn code<T>(answer: Result<T, Failure>) -> Code {
        answer.map_or_else(super::super::failure::keep, |_| Code::Ok)
    }

    /// The guard existed and was lost, but no handle could be given out: the caller may have freed `user` by then.
    #[test]
    fn nothing_is_called_for_a_guard_that_nobody_got() {
        let watch = Watch::new(Some(Callback { function: called as LossFn, user: std::ptr::null_mut() }));
        let answer = give::<GuardHandle>(Err(Error::new(ErrorKind::Held, "as a test").into()), watch.clone());
        assert_eq!(code(answer), Code::Held);
        watch.lost(&Loss { reason: LossReason::Gone, key: "k".to_owned(), fencing_token: 1, held_for: Duration::ZERO });
        assert!(!CALLED.load(Ordering::SeqCst), "it was called");
    }

    /// A process at its limit of threads has none for the callback, so the descriptor must not depend on one.
    #[cfg(unix)]
    #[test]
    fn a_descriptor_says_so_as_soon_as_the_loss_is_found() {
        use std::io::Read;
        use std::os::unix::net::UnixStream;

        let Ok(client) = crate::LockClient::connect("memory:") else { panic!("no client") };
        // Repeated, because the thread of the callback may be fast by chance.
        for _ in 0..100 {
            let (callbacks, request) = (Callbacks::default(), client.request("k").lease(Duration::from_secs(60)));
            let watch = callbacks.watch();
            let Ok(guard) = callbacks.given(request, &watch).lock() else { panic!("no lock") };
            let Ok(mut descriptor) = watch.descriptor().map(UnixStream::from) else { panic!("no descriptor") };
            assert!(client.force_release("k").is_ok() && descriptor.set_nonblocking(true).is_ok());
            // This asks the store.
            let lost = guard.ensure_held_for(Duration::MAX);
            assert!(lost.is_err_and(|error| error.kind() == ErrorKind::Lost));
            let mut said = String::new();
            assert!(descriptor.read_to_string(&mut said).is_ok() && said == "!", "it says {said:?}");
        }
    }

    #[test]
    fn a_try_for_all_of_several_keys_waits_for_none() {
        use crate::{Event, Observer};

        #[derive(Default)]
        struct Told(parking_lot::Mutex<(u32, u32)>);

        impl Observer for Told {
            fn event(&self, event: &Event<'_>) {
                match event {
                    Event::Refused { .. } => self.0.lock().0 += 1,
                    Event::WaitBegan { .. } | Event::WaitEnded { .. } | Event::Waited { .. } => self.0.lock().1 += 1,
                    _ => {}
                }
            }
        }

        let told = Arc::new(Told::default());
        let client = crate::LockClient::builder("memory:").observer(told.clone()).connect();
        let Ok(client) = client else { panic!("no client") };
        let asked = handle::insert(Client::new(client.clone(), None)).and_then(Asked::all);
        let Ok(asked) = asked else { panic!("no request") };
        let asked = Asked { keys: Keys::AllOf { keys: vec!["a".to_owned(), "b".to_owned()] }, ..asked };
        let held = client.lock("b");
        assert!(held.is_ok());
        assert_eq!(code(asked.lock_all(true)), Code::Held);
        assert!(client.request_all(["a", "b"]).try_lock().is_ok_and(|all| all.is_none()));
        assert_eq!(*told.0.lock(), (2, 0), "refusals and waits");
    }

    /// The next waiter in this client's queue has not looked at the store since the lock was handed over.
    #[test]
    fn a_try_for_all_that_stands_back_is_told_that_they_are_held() {
        use crate::{Event, Observer};

        #[derive(Default)]
        struct Waits(std::sync::atomic::AtomicU32);

        impl Observer for Waits {
            fn event(&self, event: &Event<'_>) {
                if matches!(event, Event::WaitBegan { .. }) {
                    self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                }
            }
        }

        let (waits, pause) = (Arc::new(Waits::default()), Duration::from_secs(60));
        let builder = crate::LockClient::builder("memory:").poll(pause..=pause).observer(waits.clone());
        let Ok(client) = builder.connect() else { panic!("no client") };
        let asked = handle::insert(Client::new(client.clone(), None)).and_then(Asked::all);
        let Ok(asked) = asked else { panic!("no request") };
        let asked = Asked { keys: Keys::AllOf { keys: vec!["a".to_owned(), "b".to_owned()] }, ..asked };
        let Ok(held) = client.lock("b") else { panic!("no lock") };
        let (locked, locks) = crossbeam_channel::unbounded();
        for begun in 1..=2 {
            let (client, locked) = (client.clone(), locked.clone());
            std::thread::spawn(move || client.lock("b").is_ok_and(|guard| locked.send(guard).is_ok()));
            while waits.0.load(std::sync::atomic::Ordering::SeqCst) < begun {
                std::thread::yield_now();
            }
        }
        assert!(held.release().is_ok());
        assert!(locks.recv().is_ok_and(|next| {
            let code = code(asked.again().lock_all(true));
            next.is_held() && code == Code::Held
        }));
    }

    #[test]
    fn a_maximum_hold_of_several_begins_when_all_are_held() {
        // None is above a minute, the longest that a first lease lasts.
        let (max_hold, more, lease) = (Duration::from_secs(20), Duration::from_secs(25), Duration::from_secs(60));
        let store = crate::testing::MemoryStore::new();
        let (client, rival) = (store.client(), store.client());
        let asked = handle::insert(Client::new(client.clone(), None)).and_then(Asked::all);
        let Ok(asked) = asked else { panic!("no request") };
        let asked = Asked { keys: Keys::AllOf { keys: vec!["a".to_owned(), "b".to_owned()] }, ..asked };
        let asked = asked.with(|request| request.max_hold(max_hold).lease(lease));
        let Ok(held) = rival.request("b").lease(lease).lock() else { panic!("no lock") };
        let locks = std::thread::spawn(move || code(asked.lock_all(false)));
        while client.held().is_empty() && !locks.is_finished() {
            std::thread::yield_now();
        }
        store.advance(more);
        assert!(held.release().is_ok());
        assert_eq!(locks.join().ok(), Some(Code::Ok));
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
            let store = Arc::new(Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone()));
            let builder = || crate::ClientBuilder::over(store.clone(), clock.clone());
            // A lease of more than a minute is set by a renewal, and too much time passes during that renewal.
            let asked = |client: &crate::LockClient| {
                let asked = handle::insert(Client::new(client.clone(), None)).and_then(|client| {
                    let asked = Asked::one(client, "k");
                    handle::remove::<Client>(client).and(asked)
                });
                let Ok(asked) = asked else { panic!("no request") };
                Asked { keys: keys.clone(), ..asked }.with(|request| request.lease(2 * MINUTE))
            };
            let brief = builder().observer(Arc::new(Jumps(clock.clone()))).request_timeout(Duration::from_millis(100));
            // The other one waits for its answer also on a busy machine.
            let (Ok(brief), Ok(client)) = (brief.connect(), builder().connect()) else { panic!("no client") };
            faults.always(Call::Renew, Fault::ApplyThenDelay(MINUTE));
            let code = self::code(asked(&brief).try_lock());
            let message = super::super::failure::message();
            assert_eq!(code, Code::TimedOut, "{message}");
            faults.heal();
            let held = client.lock("k");
            assert!(held.is_ok());
            assert_eq!(self::code(asked(&client).try_lock()), Code::Held);
            let text = super::super::failure::message();
            assert!(text.contains("others hold") && text.contains("exclusive"), "{text}");
        }
    }
}
