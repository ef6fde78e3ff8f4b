//! The SDK's client, on the driver's thread, and when its connections are replaced by new ones.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::{Client, Config};

use crate::sys::log;

/// After this long without any answer, while requests are made, the connections are replaced.
const SILENCE: Duration = Duration::from_secs(1);

/// What lives on the driver's thread.
pub(super) struct Owned {
    table: String,
    config: Config,
    endpoint: Option<String>,
    client: RefCell<Rc<Client>>,
    /// The number of the client. Later clients have higher numbers.
    number: Cell<u64>,
    silence: Silence,
}

impl Owned {
    /// `endpoint`: the one that was given to the SDK. It can't be read from `config`.
    pub fn new(table: String, config: Config, endpoint: Option<String>) -> Self {
        let client = RefCell::new(Rc::new(Client::from_conf(config.clone())));
        Owned { table, config, endpoint, client, number: Cell::new(next_number()), silence: Silence::default() }
    }

    /// The region, and the endpoint if one was given.
    pub fn place(&self) -> (Option<String>, Option<String>) {
        (self.config.region().map(ToString::to_string), self.endpoint.clone())
    }

    /// The client for a request that begins now.
    pub fn client(&self) -> Rc<Client> {
        self.client.borrow().clone()
    }

    /// Waits for a request.
    ///
    /// The SDK has a pool of connections and never checks whether they still carry anything. After a while without
    /// traffic a router may have forgotten all of them, and each that is tried costs a part of a lease. So if a request
    /// is dropped after a second without any answer, the client is replaced by a new one, which has no connections yet.
    /// The same happens after a request for which `is_to_confirm` says that another host of the service must confirm
    /// the time: over a new connection, another host may answer.
    pub async fn within<T>(self: Rc<Self>, asks: impl Future<Output = T>, is_to_confirm: impl Fn() -> bool) -> T {
        self.silence.begins(Instant::now());
        let left = Leaves(self, is_to_confirm);
        let answer = asks.await;
        left.0.silence.answered();
        answer
    }

    /// The number of the client that [`Owned::client`] gives.
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    fn connect_anew(&self, why: &str) {
        self.number.set(next_number());
        self.client.replace(Rc::new(Client::from_conf(self.config.clone())));
        log::debug!(target: "leasehold::dynamodb", table:? = self.table; "{why}; the next request connects anew");
    }
}

/// The numbers are unique in this process, since several clients may share one estimate of the time.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A request that may be dropped before it is answered.
struct Leaves<F: Fn() -> bool>(Rc<Owned>, F);

impl<F: Fn() -> bool> Drop for Leaves<F> {
    fn drop(&mut self) {
        let own = &self.0;
        if own.silence.ends(Instant::now()) {
            own.connect_anew("nothing came from the service any more");
        } else if self.1() {
            own.connect_anew("another host is to say the time, too");
        }
    }
}

/// For how long requests have been made without any answer. A pause in which no request is under way does not count.
#[derive(Default)]
struct Silence {
    since: Cell<Option<Instant>>,
    /// How many requests are under way, and when the last one ended.
    asking: Cell<usize>,
    ended: Cell<Option<Instant>>,
}

impl Silence {
    fn begins(&self, now: Instant) {
        let pause = self.ended.get().filter(|_| self.asking.get() == 0).map_or(Duration::ZERO, |ended| now - ended);
        self.since.set(Some(self.since.get().map_or(now, |since| since + pause)));
        self.asking.set(self.asking.get() + 1);
    }

    fn answered(&self) {
        self.since.set(None);
    }

    /// Ends a request. Whether the silence has lasted for too long; then it begins anew.
    fn ends(&self, now: Instant) -> bool {
        self.asking.set(self.asking.get().saturating_sub(1));
        self.ended.set(Some(now));
        let is_over = self.since.get().is_some_and(|since| now.saturating_duration_since(since) >= SILENCE);
        if is_over {
            self.since.set(None);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_something_was_asked_is_silence() {
        let (silence, began) = (Silence::default(), Instant::now());
        let at = |millis| began + Duration::from_millis(millis);
        // Each request is dropped after 0.4 s, and begins an hour after the one before.
        let is_over = [0, 3_600_000, 7_200_000, 10_800_000].map(|start| {
            silence.begins(at(start));
            silence.ends(at(start + 400))
        });
        assert_eq!(is_over, [false, false, true, false]);
        // Of two requests, one is answered and the other one is dropped.
        silence.begins(at(11_000_000));
        silence.begins(at(11_000_000));
        silence.answered();
        assert!(!silence.ends(at(11_000_900)) && !silence.ends(at(11_005_000)));
        // Almost an hour later, the silence before that counts no more.
        silence.begins(at(14_000_000));
        assert!(!silence.ends(at(14_000_100)));
        // Two overlapping requests: each is under way while the other one begins or ends.
        silence.begins(at(14_000_100));
        silence.begins(at(14_000_600));
        assert!(!silence.ends(at(14_000_700)) && silence.ends(at(14_001_200)));
    }
}
