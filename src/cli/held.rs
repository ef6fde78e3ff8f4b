//! What a command needs: one lock, or all of several.

use std::collections::BTreeMap;
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{
    CancelToken, Error, ErrorKind, Lock, LockAllGuard, LockAllRequest, LockClient, LockGuard, LockRequest, Loss,
    Result, Waiting,
};

use crate::asked::{Labels, Sharing};
use crate::clock::since_boot;
use crate::failure::Lost;
use crate::warnings::tell;
use crate::words::words;

/// The pause between two tries to set a minimum hold.
const STAND_AGAIN: Duration = Duration::from_millis(200);

/// Gets reports of how the wait goes on, each with its time.
pub type Told = Sender<(Instant, Waiting)>;

/// The locks that are asked for, and how.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub keys: Vec<String>,
    pub labels: Labels,
    pub sharing: Sharing,
    pub max_hold: Option<Duration>,
    pub at_least: Option<Duration>,
    pub until: Option<Instant>,
}

impl Wanted {
    /// Waits for all of the keys.
    pub fn lock(&self, client: &LockClient, cancel: &CancelToken, told: Option<Told>) -> Result<Held> {
        let each = |request| {
            let request = self.sharing.set(self.labels.set(request)).cancel(cancel);
            match told.clone() {
                Some(told) => request.on_wait(move |waiting| drop(told.send((Instant::now(), waiting.clone())))),
                None => request,
            }
        };
        let [key] = self.keys.as_slice() else { return self.lock_all(client, cancel, each) };
        let request = set(each(client.request(key)), self.until, LockRequest::wait_until);
        let request = set(request, self.max_hold, LockRequest::max_hold);
        set(request, self.at_least, LockRequest::hold_at_least).lock().map(Held::One)
    }

    fn lock_all(
        &self,
        client: &LockClient,
        cancel: &CancelToken,
        each: impl Fn(LockRequest) -> LockRequest + Send + Sync,
    ) -> Result<Held> {
        let request = set(client.request_all(&self.keys).each(each), self.until, LockAllRequest::wait_until);
        let guard = set(request, self.max_hold, LockAllRequest::max_hold).lock()?;
        let held = Held::All(guard, client.clone(), self.at_least);
        let Some(least) = self.at_least else { return Ok(held) };
        let Err(error) = held.stand(least, cancel, self.until) else { return Ok(held) };
        // A second signal ends this process at once, so the message comes first.
        let (name, time) = (held.name(), words(least));
        tell(&format!("nothing is run; until they are released some of {name} may stand for {time}"));
        held.free_what_stands(least, "nothing was run");
        Err(error)
    }
}

/// The variable with the lock ids of the leaseholds around this one, except the innermost, a line for each.
pub const OUTER: &str = "LEASEHOLD_OUTER_LOCK_IDS";

/// How many of them are kept: if each job starts its successor, which outlives it, there would be ever more.
const MOST_OUTER: usize = 64;

/// The lock ids of the leaseholds in whose commands this one runs, the innermost last.
pub fn outer_lock_ids() -> Vec<String> {
    let values = [OUTER, "LEASEHOLD_LOCK_ID"].map(|name| std::env::var(name).unwrap_or_default());
    newest(values.iter().flat_map(|value| value.lines()))
}

fn newest<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for id in ids.filter(|id| !id.is_empty()) {
        all.retain(|known| known != id);
        all.push(id.to_owned());
    }
    all.split_off(all.len().saturating_sub(MOST_OUTER))
}

/// With an option, if it is given.
fn set<R, T>(request: R, value: Option<T>, with: impl FnOnce(R, T) -> R) -> R {
    match value {
        Some(value) => with(request, value),
        None => request,
    }
}

fn named(guards: &[LockGuard]) -> String {
    let keys: Vec<String> = guards.iter().map(|guard| format!("{:?}", guard.key())).collect();
    match keys.as_slice() {
        [key] => format!("the lock {key}"),
        keys => format!("the locks {}", keys.join(", ")),
    }
}

/// The locks that are held.
pub enum Held {
    One(LockGuard),
    /// With the minimum hold of each.
    All(LockAllGuard, LockClient, Option<Duration>),
}

impl Held {
    /// In the order of their keys.
    fn guards(&self) -> &[LockGuard] {
        match self {
            Held::One(guard) => slice::from_ref(guard),
            Held::All(guard, ..) => guard.guards(),
        }
    }

    /// The variables for the command's environment: for several locks, with a line for each.
    pub fn environment(&self) -> BTreeMap<&'static str, String> {
        let lines = |of: &dyn Fn(&LockGuard) -> String| self.guards().iter().map(of).collect::<Vec<_>>().join("\n");
        let first = |of: &dyn Fn(&LockGuard) -> String| self.guards().first().map(of).unwrap_or_default();
        BTreeMap::from([
            ("LEASEHOLD_KEY", lines(&|guard| guard.key().to_owned())),
            ("LEASEHOLD_TOKEN", lines(&|guard| guard.fencing_token().to_string())),
            ("LEASEHOLD_LOCK_ID", self.lock_id().to_owned()),
            ("LEASEHOLD_OWNER", first(&|guard| guard.info().owner().to_owned())),
        ])
    }

    fn lock_id(&self) -> &str {
        self.guards().first().map_or("", LockGuard::lock_id)
    }

    /// The first lock as data.
    pub fn info(&self) -> Option<Lock> {
        self.guards().first().map(LockGuard::info)
    }

    /// Frees each of several locks after their minimum hold could not be set on all of them: those that have one would
    /// keep others from work that nobody has done. A single lock has none then.
    pub fn free_what_stands(&self, least: Duration, though: &str) {
        let Held::All(all, client, _) = self else { return };
        let guards = all.guards();
        for (nth, guard) in guards.iter().enumerate() {
            let freed = client.unlock_key(guard.key(), guard.lock_id());
            let Some(why) = freed.err().filter(|why| why.kind() != ErrorKind::Held) else { continue };
            // A store that does not answer would take as long for each of the others.
            let is_silent = why.is_retryable() || why.kind() == ErrorKind::Ambiguous;
            let stand = if is_silent { &guards[nth..] } else { slice::from_ref(guard) };
            tell(&format!("{} may stand for {} though {though}: {why}", named(stand), words(least)));
            if is_silent {
                break;
            }
        }
    }

    /// As messages name the locks.
    pub fn name(&self) -> String {
        named(self.guards())
    }

    pub fn is_held(&self) -> bool {
        self.guards().iter().all(LockGuard::is_held)
    }

    pub fn ensure_held(&self) -> Result<()> {
        self.guards().iter().try_for_each(LockGuard::ensure_held)
    }

    /// Until when all locks except these are surely held, since boot; `None` once one of them is not held.
    pub fn held_until(&self, but: &[String]) -> Option<Duration> {
        // The clock first: if this process is stopped in between, the result is too early, never too late.
        let now = since_boot();
        let left = self.guards_but(but).map(LockGuard::remaining).min().filter(|left| !left.is_zero());
        left.map(|left| now.saturating_add(left))
    }

    /// The first loss of a lock that is none of these.
    pub fn lost(&self, but: &[String]) -> Option<Loss> {
        self.guards_but(but).find_map(|guard| guard.loss().get())
    }

    /// Whether there is a lock that is none of these.
    pub fn has_other_than(&self, but: &[String]) -> bool {
        self.guards_but(but).next().is_some()
    }

    fn guards_but(&self, but: &[String]) -> impl Iterator<Item = &LockGuard> {
        self.guards().iter().filter(|guard| but.iter().all(|key| key != guard.key()))
    }

    /// The loss of a lock that is not held any more; waits until it is reported.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<Loss> {
        let guard = self.guards().iter().find(|guard| !guard.is_held())?;
        // Declares it if it is over by the clock: the library's own thread may be late.
        let _ = guard.ensure_held();
        guard.loss().wait_timeout(timeout)
    }

    /// What is reported to machines if the locks were lost. Waits for a loss that is not reported yet.
    pub fn if_lost(&self, first: Option<&Loss>, timeout: Duration) -> Lost {
        let found = self.lost(&[]).or_else(|| self.wait_for_loss(timeout)).filter(|_| first.is_none());
        let key = match self.guards() {
            [guard] => Some(guard.key()),
            _ => None,
        };
        let info = self.info();
        Lost::new(key, info.as_ref().and_then(Lock::store), first.or(found.as_ref()))
    }

    /// A channel for the losses. With several locks the caller must also call `lost` now and then, because there may be
    /// no thread to report a loss.
    pub fn losses(&self) -> Receiver<Loss> {
        if let Held::One(guard) = self {
            return Receiver::clone(&guard.loss().receiver());
        }
        let (to, losses) = unbounded();
        for guard in self.guards() {
            let (watched, to) = (guard.loss().receiver(), to.clone());
            // The thread ends with the hold.
            let _ = thread::Builder::new().name("leasehold-loss".to_owned()).spawn(move || {
                if let Ok(loss) = watched.recv() {
                    let _ = to.send(loss);
                }
            });
        }
        losses
    }

    /// Sets a minimum hold on each lock. While the locks are held it repeats what fails, unless that is cancelled or it
    /// is too late.
    pub fn stand(&self, least: Duration, cancel: &CancelToken, until: Option<Instant>) -> Result<()> {
        let may_repeat = || !cancel.is_cancelled() && until.is_none_or(|until| Instant::now() < until);
        self.guards().iter().try_for_each(|guard| {
            loop {
                match guard.hold_at_least(least) {
                    // Also if the store denies it: an operator may correct that meanwhile.
                    Err(error) if error.kind() != ErrorKind::InvalidInput && self.is_held() && may_repeat() => {
                        let _ = guard.sleep(STAND_AGAIN, cancel);
                    }
                    answer => return answer,
                }
            }
        })
    }

    /// Releases the locks. What was not answered is tried again for as long as `goes_on` returns true, which gets the
    /// error. After that the drop of a single lock tries once more; `done` is called before. Several locks are tried
    /// again by closing their client; but not if they have a minimum hold (`stands`: by [`Held::stand`]), since a close
    /// leaves out what must stand.
    pub fn release(self, stands: bool, mut goes_on: impl FnMut(&Error) -> bool, done: impl FnOnce(Result<()>)) {
        let mut guard = match self {
            Held::One(guard) => guard,
            Held::All(guard, client, at_least) => {
                let mut released = guard.release();
                let may_stand = stands || at_least.is_some();
                // Whatever is left is given up in the background by now, and a close tries it once more.
                while let Err(error) = &released
                    && !may_stand
                    && error.is_retryable()
                    && goes_on(error)
                {
                    released = client.close();
                }
                return done(released);
            }
        };
        loop {
            let Err(failed) = guard.release() else { return done(Ok(())) };
            if failed.error().is_retryable() && goes_on(failed.error()) {
                guard = failed.into_guard();
                continue;
            }
            // The guard's drop tries once more, for as long.
            return done(Err(failed.error().clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use leasehold::testing::MemoryStore;
    use leasehold::{Event, Observer, Operation};

    use super::*;

    /// Takes the store away once `c` is granted, and cancels the caller's wait once a renewal fails.
    struct GoesAway {
        store: Arc<MemoryStore>,
        cancel: CancelToken,
        asked: Mutex<BTreeSet<String>>,
    }

    impl Observer for GoesAway {
        fn event(&self, event: &Event<'_>) {
            match event {
                Event::Granted { key: "c", .. } => self.store.go_offline(),
                Event::Request { operation: Operation::Renew, error: Some(_), .. } => self.cancel.cancel(),
                Event::Request { operation: Operation::Read, key: Some(key), error: Some(_), .. } => {
                    self.asked.lock().unwrap().insert((*key).to_owned());
                }
                _ => {}
            }
        }
    }

    /// Each further lock would take as long.
    #[test]
    fn a_store_that_does_not_answer_is_asked_to_free_one_of_several() {
        let (store, cancel) = (Arc::new(MemoryStore::new()), CancelToken::new());
        let away = Arc::new(GoesAway { store: store.clone(), cancel: cancel.clone(), asked: Mutex::default() });
        let builder = store.builder().observer(away.clone()).drop_timeout(Duration::from_millis(300));
        // It runs out, but not before even a busy machine has asked once.
        let builder = builder.request_timeout(Duration::from_secs(2));
        let keys = ["a", "b", "c"].map(str::to_owned).to_vec();
        let wanted = Wanted { keys, at_least: Some(Duration::from_secs(3600)), ..Wanted::default() };
        assert!(wanted.lock(&builder.connect().unwrap(), &cancel, None).is_err());
        assert_eq!(away.asked.lock().unwrap().iter().collect::<Vec<_>>(), ["a"]);
    }

    /// Otherwise the present would be taken for the end of a lease that may have ended long ago.
    #[test]
    fn what_is_over_is_held_until_no_time() {
        let client = LockClient::connect("memory:").unwrap();
        let held = Held::One(client.lock("k").unwrap());
        assert!(held.held_until(&[]).is_some_and(|until| until > since_boot()));
        let over = client.request("over").max_hold(Duration::from_millis(100)).lock().unwrap();
        assert!(over.loss().wait_timeout(Duration::from_secs(60)).is_some());
        assert_eq!(Held::One(over).held_until(&[]), None);
    }

    #[test]
    fn of_the_leaseholds_around_it_the_newest_are_kept_each_once() {
        assert_eq!(newest(["a", "", "b", "a"].into_iter()), ["b", "a"]);
        let many: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
        let kept = newest(many.iter().map(String::as_str));
        assert_eq!((kept.len(), kept.last()), (MOST_OUTER, many.last()));
    }
}
