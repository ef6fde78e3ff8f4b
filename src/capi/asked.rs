//! What is asked for by a request, and how it is asked of the Rust API.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::client::{Client, ClientHandle};
use super::code::Code;
use super::failure::Failure;
use super::guard::{Guard, GuardHandle};
use super::loss::{Callback, Watch};
use super::{handle, millis};
use crate::CancelToken;
use crate::api::guard::LockGuard;
use crate::api::request::SameOwner;
use crate::model::error::Error;
use crate::model::lock::Lock;
use crate::model::loss::Loss;

/// One lock, or the first of several that is free.
#[derive(Clone)]
pub struct Asked {
    pub client: Arc<Client>,
    pub keys: Vec<String>,
    /// The first of several.
    pub any: bool,
    pub in_order: bool,
    pub shared: bool,
    pub max_holders: Option<u32>,
    pub owner: Option<String>,
    pub comment: Option<String>,
    pub lock_id: Option<String>,
    pub lease: Option<AskedLease>,
    pub replace: bool,
    pub wait: Option<Wait>,
    pub cancel: Option<CancelToken>,
    pub max_hold: Option<Duration>,
    pub on_loss: Option<Callback>,
}

/// How the lease was given.
#[derive(Clone, Copy)]
pub enum AskedLease {
    For(Duration),
    Until(SystemTime),
    Forever,
}

/// How the end of the wait was given.
#[derive(Clone, Copy)]
pub enum Wait {
    For(Duration),
    Until(Instant),
}

/// A request of the Rust API with everything that was asked for; both kinds have the same setters.
macro_rules! request {
    ($asked:expr, $start:expr, $watch:expr) => {{
        let asked = $asked;
        let mut request = $start;
        if asked.shared {
            request = request.shared();
        }
        if let Some(n) = asked.max_holders {
            request = request.max_holders(n);
        }
        if let Some(owner) = &asked.owner {
            request = request.owner(owner.as_str());
        }
        if let Some(comment) = &asked.comment {
            request = request.comment(comment.as_str());
        }
        if let Some(lock_id) = &asked.lock_id {
            request = request.lock_id(lock_id.as_str());
        }
        request = match asked.lease {
            None => request,
            Some(AskedLease::For(lease)) => request.lease(lease),
            Some(AskedLease::Until(at)) => request.lease_until(at),
            Some(AskedLease::Forever) => request.lease_forever(),
        };
        if asked.replace {
            request = request.same_owner(SameOwner::Replace);
        }
        request = match asked.wait {
            None => request,
            Some(Wait::For(wait)) => request.wait(wait),
            Some(Wait::Until(until)) => request.wait_until(until),
        };
        if let Some(cancel) = &asked.cancel {
            request = request.cancel(cancel);
        }
        if let Some(max_hold) = asked.max_hold {
            request = request.max_hold(max_hold);
        }
        match $watch {
            Some(watch) => request.on_loss(move |loss: Loss| watch.lost(&loss)),
            None => request,
        }
    }};
}

impl Asked {
    pub fn new(client: ClientHandle) -> Result<Self, Failure> {
        Ok(Asked {
            client: handle::get(client)?,
            keys: Vec::new(),
            any: false,
            in_order: false,
            shared: false,
            max_holders: None,
            owner: None,
            comment: None,
            lock_id: None,
            lease: None,
            replace: false,
            wait: None,
            cancel: None,
            max_hold: None,
            on_loss: None,
        })
    }

    /// A request for one lock.
    pub fn one(client: ClientHandle, key: &str) -> Result<Self, Failure> {
        Ok(Asked { keys: vec![key.to_owned()], ..Asked::new(client)? })
    }

    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    pub fn waiting(mut self, ms: u64) -> Self {
        self.wait = Some(Wait::For(millis(ms)));
        self
    }

    pub fn lock(&self) -> Result<GuardHandle, Failure> {
        self.guard(|asked, watch| {
            let (client, watch) = (&asked.client.0, Some(watch));
            Ok(if asked.any {
                let request = client.request_any(&asked.keys);
                let request = if asked.in_order { request.in_order() } else { request };
                request!(asked, request, watch).lock()?
            } else {
                request!(asked, client.request(asked.key()), watch).lock()?
            })
        })
    }

    /// One look, which unlike the `try_lock` of the Rust API tells who holds the lock.
    pub fn try_lock(self) -> Result<GuardHandle, Failure> {
        self.guard(|asked, watch| {
            let (client, watch) = (&asked.client.0, Some(watch));
            Ok(if asked.any {
                let request = client.request_any(&asked.keys);
                let request = if asked.in_order { request.in_order() } else { request };
                request!(asked, request, watch).lock_once()?
            } else {
                request!(asked, client.request(asked.key()), watch).lock_once()?
            })
        })
    }

    pub fn acquire(&self) -> Result<Lock, Error> {
        let client = &self.client.0;
        if self.any {
            let request = client.request_any(&self.keys);
            let request = if self.in_order { request.in_order() } else { request };
            request!(self, request, None::<Arc<Watch>>).acquire()
        } else {
            request!(self, client.request(self.key()), None::<Arc<Watch>>).acquire()
        }
    }

    pub fn adopt(&self, lock: Lock) -> Result<GuardHandle, Failure> {
        if self.any {
            return Err(Failure::new(Code::InvalidInput, "a lock is adopted by a request for one key"));
        }
        self.guard(|asked, watch| Ok(request!(asked, asked.client.0.request(asked.key()), Some(watch)).adopt(lock)?))
    }

    fn guard(
        &self,
        start: impl FnOnce(&Asked, Arc<Watch>) -> Result<LockGuard, Failure>,
    ) -> Result<GuardHandle, Failure> {
        let watch = Watch::new(self.on_loss);
        let made = start(self, watch.clone()).and_then(|guard| handle::insert(Guard::new(guard, watch.clone())));
        if made.is_err() {
            // Nobody has a guard whose freeing would say until when `user` is used: it is until now.
            watch.end(true);
        }
        made
    }

    fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::loss::LossInfo;
    use super::*;
    use crate::LockClient;
    use crate::model::loss::LossReason;

    static CALLED: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn called(_: *const LossInfo, _: *mut c_void) {
        CALLED.store(true, Ordering::SeqCst);
    }

    fn one(client: LockClient) -> Asked {
        let asked = handle::insert(Client(client)).and_then(|client| Asked::one(client, "k"));
        asked.unwrap_or_else(|failure| panic!("{:?}", super::super::failure::keep(failure)))
    }

    fn code<T>(answer: Result<T, Failure>) -> Code {
        answer.map_or_else(super::super::failure::keep, |_| Code::Ok)
    }

    /// The guard was there, and lost, but could not be given out: whoever asked has freed `user` by then.
    #[test]
    fn nothing_is_called_for_a_guard_that_nobody_got() {
        let Ok(client) = LockClient::connect("memory:") else { panic!("no client") };
        // SAFETY: it uses nothing.
        let callback = unsafe { Callback::new(called, std::ptr::null_mut()) };
        let mut kept = None;
        let answer = Asked { on_loss: Some(callback), ..one(client) }.guard(|_, watch| {
            kept = Some(watch);
            Err(Failure::new(Code::TooManyHandles, "too many"))
        });
        assert_eq!(code(answer), Code::TooManyHandles);
        let loss = Loss { reason: LossReason::Gone, key: "k".to_owned(), fencing_token: 1, held_for: Duration::ZERO };
        kept.iter().for_each(|watch| watch.lost(&loss));
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

        for any in [false, true] {
            let (clock, faults) = (Clock::system(), FaultPlan::default());
            let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
            let builder = crate::ClientBuilder::over(Arc::new(store), clock.clone()).observer(Arc::new(Jumps(clock)));
            let Ok(client) = builder.request_timeout(Duration::from_millis(100)).connect() else { panic!("no client") };
            // So long a lease is set by a renewal, and too much time passes while that is under way.
            let asked = Asked { lease: Some(AskedLease::For(2 * MINUTE)), any, ..one(client.clone()) };
            faults.always(Call::Renew, Fault::ApplyThenDelay(MINUTE));
            let code = self::code(asked.clone().try_lock());
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
