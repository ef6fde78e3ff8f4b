//! Credentials that a separate task loads, once for all requests, and before the last ones expire.
//!
//! The SDK loads them inside the request that finds none, and drops the load with that request. A heartbeat may have
//! less time than a load takes, and so may its repeat.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use aws_types::sdk_config::TimeSource;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::estimate::ServiceTime;
use crate::sys::clock::BootTime;

/// A load that takes longer has failed. The slowest sources repeat by themselves, and query several services in turn.
const LONGEST: Duration = Duration::from_secs(20);
/// The next load begins this long before the credentials expire, or halfway to their end if less than twice this is
/// left: the source may be unavailable for a while.
const AHEAD: Duration = Duration::from_secs(5 * 60);
/// Credentials that expire within this time are no longer used: the request has to arrive before that.
const LAST: Duration = Duration::from_secs(5);
/// Credentials without an end are loaded anew after this, as the SDK does: somebody may have replaced them.
const ENDLESS: Duration = Duration::from_secs(15 * 60);

/// The source may go on giving credentials that have expired according to the service. After such an answer it is
/// queried no more often than this.
const REFUSED: Duration = Duration::from_secs(5);

/// Records that the service no longer accepts credentials because their token has expired: as their source says, they
/// may be valid for long. Also records that the service did not know some credentials, which may be only temporary.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    /// When the last request was sent whose answer was that the token has expired.
    said: Arc<AtomicU64>,
    unknown: Arc<AtomicBool>,
}

impl Ended {
    /// The answer to a request that was sent then: the token has expired.
    pub fn said_of(&self, sent: BootTime) {
        self.said.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// The service does not know the credentials.
    pub fn said_unknown(&self) {
        self.unknown.store(true, Ordering::SeqCst);
    }

    fn take_unknown(&self) -> bool {
        self.unknown.swap(false, Ordering::SeqCst)
    }

    /// Whether the service said that credentials loaded at `loaded` have expired: requests sent later carry them.
    fn is_said_of(&self, loaded: BootTime) -> bool {
        self.said.load(Ordering::SeqCst) > loaded.as_nanos()
    }
}

/// A user's source of credentials, and what it gave last. Used on the driver's thread.
pub(super) struct Loaded {
    source: SharedCredentialsProvider,
    ended: Ended,
    /// Credentials end by the service's clock. This host's wall clock may be hours off.
    time: ServiceTime,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Credentials>,
    /// When `last` was loaded, by the boot-time clock.
    loaded_at: Option<BootTime>,
    /// When the last load ended, also if it failed.
    tried_at: Option<BootTime>,
    /// A load that is under way, or that ended while nobody waited for it.
    load: Option<JoinHandle<provider::Result>>,
}

impl Loaded {
    pub fn from(source: SharedCredentialsProvider, ended: Ended, time: ServiceTime) -> Self {
        Loaded { source, ended, time, state: Mutex::default() }
    }

    async fn get(&self) -> provider::Result {
        let mut state = self.state.lock().await;
        if state.load.as_ref().is_some_and(JoinHandle::is_finished) {
            // If that load failed, it may have been long ago: its error is dropped, and the load is tried again.
            let _ = self.end(&mut state).await;
        }
        let now = self.time.clock.now();
        let may_ask = state.loaded_at.is_some_and(|at| now.since(at) >= REFUSED);
        if may_ask && state.loaded_at.is_some_and(|at| self.ended.is_said_of(at)) {
            state.last = None;
        }
        // The service may know these credentials again later, so they are kept until others are loaded.
        if self.ended.take_unknown() && may_ask {
            state.begin(&self.source);
        }
        let last = state.last.clone().map(|last| (self.left(&last), last));
        let Some((left, last)) = last.filter(|(left, _)| left.is_none_or(|left| left > LAST)) else {
            return self.end(&mut state).await;
        };
        if state.is_due(left, now) {
            state.begin(&self.source);
        }
        Ok(last)
    }

    /// How long these can still be used, if they end at all.
    fn left(&self, credentials: &Credentials) -> Option<Duration> {
        credentials.expiry().map(|end| end.duration_since(self.time.now()).unwrap_or_default())
    }

    async fn end(&self, state: &mut State) -> provider::Result {
        let ended = state.end(&self.source).await;
        state.tried_at = Some(self.time.clock.now());
        if ended.is_ok() {
            state.loaded_at = state.tried_at;
        }
        ended
    }
}

impl State {
    /// Whether to begin the next load. That moment is not set when a load ends, since by the first request, which is
    /// made before the service has said its time, it would be hours off.
    fn is_due(&self, left: Option<Duration>, now: BootTime) -> bool {
        let since = self.tried_at.map_or(Duration::ZERO, |at| now.since(at));
        left.map_or(since >= ENDLESS, |left| left <= AHEAD.min(left.saturating_add(since) / 2))
    }

    /// Begins a load, unless one is under way.
    fn begin(&mut self, source: &SharedCredentialsProvider) -> &mut JoinHandle<provider::Result> {
        let source = source.clone();
        self.load.get_or_insert_with(|| tokio::spawn(load(source, LONGEST)))
    }

    /// Loads, or waits for the load that is under way. If the caller stops waiting, the load goes on.
    async fn end(&mut self, source: &SharedCredentialsProvider) -> provider::Result {
        let ended =
            self.begin(source).await.unwrap_or_else(|_| Err(CredentialsError::unhandled("the source panicked")));
        self.load = None;
        self.last = ended.as_ref().ok().cloned().or(self.last.take());
        ended
    }
}

async fn load(source: SharedCredentialsProvider, longest: Duration) -> provider::Result {
    match tokio::time::timeout(longest, source.provide_credentials()).await {
        Ok(loaded) => loaded,
        // Some sources have credentials for the time in which the service that they query is unavailable. The wrapper
        // around the source does not pass this call on, so `as_ref` goes past it.
        Err(_) => source.as_ref().fallback_on_interrupt().ok_or(CredentialsError::provider_timed_out(longest)),
    }
}

impl ProvideCredentials for Loaded {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.get())
    }
}

impl fmt::Debug for Loaded {
    /// Without the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::SystemTime;

    use super::*;
    use crate::store::dynamodb::Estimate;
    use crate::sys::clock::Clock;

    /// Credentials that expire this much later than now.
    fn ending_in(seconds: u64) -> Credentials {
        Credentials::new("key", "secret", None, Some(SystemTime::now() + Duration::from_secs(seconds)), "test")
    }

    /// A source that hangs.
    #[derive(Debug)]
    struct Hangs(Option<Credentials>);

    impl ProvideCredentials for Hangs {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(std::future::pending())
        }

        fn fallback_on_interrupt(&self) -> Option<Credentials> {
            self.0.clone()
        }
    }

    /// Panics, then fails, then gives credentials that expire at once, and then valid ones.
    #[derive(Debug, Default)]
    struct Fails(AtomicU32);

    impl ProvideCredentials for Fails {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            let nth = self.0.fetch_add(1, Ordering::SeqCst);
            assert!(nth > 0, "as asked");
            let failed = || CredentialsError::provider_error("away");
            future::ProvideCredentials::ready(if nth == 1 {
                Err(failed())
            } else {
                Ok(ending_in(u64::from(nth - 2) * 3_600))
            })
        }
    }

    /// Counts how often it was called. Its credentials are valid for an hour.
    #[derive(Clone, Debug, Default)]
    struct Counts(Arc<AtomicU32>);

    impl ProvideCredentials for Counts {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            self.0.fetch_add(1, Ordering::SeqCst);
            future::ProvideCredentials::ready(Ok(ending_in(3_600)))
        }
    }

    /// At a service that has not said its time yet.
    fn untold(source: impl ProvideCredentials + 'static, clock: &Arc<Clock>) -> Loaded {
        let time = ServiceTime { clock: clock.clone(), estimate: Arc::default() };
        Loaded::from(SharedCredentialsProvider::new(source), Ended::default(), time)
    }

    /// At a service whose time is the system's, and moves with `clock`.
    fn of(source: impl ProvideCredentials + 'static, clock: &Arc<Clock>) -> Loaded {
        let loaded = untold(source, clock);
        tell(&loaded.time.estimate, clock);
        loaded
    }

    fn tell(estimate: &Estimate, clock: &Clock) {
        let date = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        estimate.learn(i64::try_from(date).unwrap(), clock.now(), clock.now());
    }

    /// Whether a request at this time begins a load.
    async fn begins_at(loaded: &Loaded, time: BootTime) -> bool {
        loaded.time.clock.advance(time.since(loaded.time.clock.now()));
        loaded.get().await.unwrap();
        loaded.state.lock().await.load.is_some()
    }

    fn on_a_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn a_load_that_hangs_ends_with_what_the_source_falls_back_on() {
        on_a_runtime(async {
            let longest = Duration::from_millis(10);
            let of = |source| load(SharedCredentialsProvider::new(source), longest);
            assert!(of(Hangs(Some(ending_in(9)))).await.is_ok());
            assert!(matches!(of(Hangs(None)).await, Err(CredentialsError::ProviderTimedOut(_))));
        });
    }

    #[test]
    fn what_has_ended_for_the_service_is_loaded_anew_and_not_at_each_answer() {
        on_a_runtime(async {
            let (clock, source) = (Clock::system(), Counts::default());
            let loaded = of(source.clone(), &clock);
            let after = async |time: Duration| {
                clock.advance(time);
                let sent = clock.now();
                loaded.get().await.unwrap();
                (source.0.load(Ordering::SeqCst), sent)
            };
            let (_, first) = after(Duration::ZERO).await;
            let (_, sent) = after(Duration::from_secs(600)).await;
            loaded.ended.said_of(sent);
            assert_eq!(after(Duration::ZERO).await.0, 2);
            // Ignored: an answer to a request with earlier credentials, and later an answer too soon after a load.
            loaded.ended.said_of(first);
            assert_eq!(after(REFUSED).await.0, 2);
            loaded.ended.said_of(clock.now());
            assert_eq!(after(Duration::ZERO).await.0, 3);
            loaded.ended.said_of(clock.now());
            assert_eq!(after(REFUSED / 2).await.0, 3);
            assert_eq!(after(REFUSED).await.0, 4);
        });
    }

    #[test]
    fn what_fails_is_told_and_loaded_again_and_what_serves_is_kept() {
        on_a_runtime(async {
            let loaded = of(Fails::default(), &Clock::system());
            assert!(matches!(loaded.get().await, Err(CredentialsError::Unhandled(_))));
            assert!(matches!(loaded.get().await, Err(CredentialsError::ProviderError(_))));
            // Expired credentials are given to the caller that waited for their load, and to no other.
            let at_end = loaded.get().await.unwrap();
            let kept = loaded.get().await.unwrap();
            assert!(kept.expiry() > at_end.expiry());
            assert_eq!(loaded.get().await.unwrap(), kept);
            assert!(!format!("{loaded:?}").contains("key"));
        });
    }

    #[test]
    fn the_next_load_begins_in_the_middle_of_what_is_left_or_five_minutes_before_the_end() {
        on_a_runtime(async {
            for (left, begins) in [(Some(3_600), 3_300), (Some(60), 30), (None, 900)] {
                let gives = left.map_or_else(|| Credentials::new("key", "secret", None, None, "test"), ending_in);
                let clock = Clock::system();
                let loaded = of(gives, &clock);
                loaded.get().await.unwrap();
                let begins = clock.now() + Duration::from_secs(begins);
                let off = Duration::from_secs(10);
                assert!(!begins_at(&loaded, begins - off).await, "{left:?}: too early");
                assert!(begins_at(&loaded, begins + off).await, "{left:?}: too late");
            }
        });
    }

    /// The service says its time in the answer to the request that the first load was for.
    #[test]
    fn what_is_loaded_by_a_wall_clock_that_is_hours_off_ends_by_the_services_time() {
        on_a_runtime(async {
            for hours in [2, -2] {
                let (clock, source) = (Clock::system(), Counts::default());
                clock.set_wall_offset(hours * 3_600_000_000);
                let loaded = untold(source.clone(), &clock);
                loaded.get().await.unwrap();
                tell(&loaded.time.estimate, &clock);
                let begins = clock.now() + Duration::from_secs(3_300);
                let off = Duration::from_secs(10);
                assert!(!begins_at(&loaded, begins - off).await, "{hours}: too early");
                assert_eq!(source.0.load(Ordering::SeqCst), 1, "{hours}");
                assert!(begins_at(&loaded, begins + off).await, "{hours}: too late");
            }
        });
    }
}
