//! What a command needs: one lock, or all of several.

use std::collections::BTreeMap;
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{CancelToken, Error, LockAllGuard, LockClient, LockGuard, LockRequest, Loss, Result, Waiting};

use crate::clock::since_boot;

/// Between two tries to have the lock stand for longer.
const STAND_AGAIN: Duration = Duration::from_millis(200);

/// How the wait goes on, and when that was said.
pub type Told = Sender<(Instant, Waiting)>;

/// What each lock is asked for with.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub comment: Option<String>,
    pub max_hold: Option<Duration>,
    pub shared: bool,
    pub max_holders: Option<u32>,
    pub at_least: Option<Duration>,
}

impl Wanted {
    fn of(&self, mut request: LockRequest) -> LockRequest {
        if let Some(comment) = &self.comment {
            request = request.comment(comment);
        }
        if let Some(d) = self.max_hold {
            request = request.max_hold(d);
        }
        if self.shared {
            request = request.shared();
        }
        match self.max_holders {
            Some(n) => request.max_holders(n),
            None => request,
        }
    }

    /// Waits for all of the keys.
    pub fn lock(
        &self,
        client: &LockClient,
        keys: &[String],
        until: Option<Instant>,
        cancel: &CancelToken,
        told: Option<Told>,
    ) -> Result<Held> {
        let each = |request| {
            let request = self.of(request).cancel(cancel);
            match told.clone() {
                Some(told) => request.on_wait(move |waiting| drop(told.send((Instant::now(), waiting.clone())))),
                None => request,
            }
        };
        if let [key] = keys {
            let mut request = each(client.request(key));
            if let Some(d) = self.at_least {
                request = request.hold_at_least(d);
            }
            if let Some(until) = until {
                request = request.wait_until(until);
            }
            return request.lock().map(Held::One);
        }
        let mut request = client.request_all(keys).each(each);
        if let Some(until) = until {
            request = request.wait_until(until);
        }
        let held = Held::All(request.lock()?);
        self.at_least.map_or(Ok(()), |d| held.stand(d))?;
        Ok(held)
    }
}

/// The locks that a command runs under.
pub enum Held {
    One(LockGuard),
    All(LockAllGuard),
}

impl Held {
    /// In the order of their keys.
    fn guards(&self) -> &[LockGuard] {
        match self {
            Held::One(guard) => slice::from_ref(guard),
            Held::All(guard) => guard.guards(),
        }
    }

    /// What the command finds in its environment: of several locks a line for each.
    pub fn environment(&self) -> BTreeMap<&'static str, String> {
        let lines = |of: &dyn Fn(&LockGuard) -> String| self.guards().iter().map(of).collect::<Vec<_>>().join("\n");
        let first = |of: &dyn Fn(&LockGuard) -> String| self.guards().first().map(of).unwrap_or_default();
        BTreeMap::from([
            ("LEASEHOLD_KEY", lines(&|guard| guard.key().to_owned())),
            ("LEASEHOLD_TOKEN", lines(&|guard| guard.fencing_token().to_string())),
            ("LEASEHOLD_LOCK_ID", first(&|guard| guard.lock_id().to_owned())),
            ("LEASEHOLD_OWNER", first(&|guard| guard.info().owner().to_owned())),
        ])
    }

    /// As messages name it.
    pub fn name(&self) -> String {
        let keys: Vec<String> = self.guards().iter().map(|guard| format!("{:?}", guard.key())).collect();
        match keys.as_slice() {
            [key] => format!("the lock {key}"),
            keys => format!("the locks {}", keys.join(", ")),
        }
    }

    pub fn is_held(&self) -> bool {
        self.guards().iter().all(LockGuard::is_held)
    }

    pub fn ensure_held(&self) -> Result<()> {
        self.guards().iter().try_for_each(LockGuard::ensure_held)
    }

    /// Until when all are held at the least, since boot.
    pub fn held_until(&self) -> Duration {
        let left = self.guards().iter().map(LockGuard::remaining).min().unwrap_or_default();
        since_boot().saturating_add(left)
    }

    /// The first loss, if one was lost.
    pub fn lost(&self) -> Option<Loss> {
        self.guards().iter().find_map(|guard| guard.loss().get())
    }

    /// The loss of one that is not held any more.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<Loss> {
        self.guards().iter().find(|guard| !guard.is_held())?.loss().wait_timeout(timeout)
    }

    /// Reports the losses. Whoever holds several also asks `lost` now and then.
    pub fn losses(&self) -> Receiver<Loss> {
        if let Held::One(guard) = self {
            return Receiver::clone(&guard.loss().receiver());
        }
        let (to, losses) = unbounded();
        for guard in self.guards() {
            let (watched, to) = (guard.loss().receiver(), to.clone());
            // It ends with the hold.
            let _ = thread::Builder::new().name("leasehold-loss".to_owned()).spawn(move || {
                if let Ok(loss) = watched.recv() {
                    let _ = to.send(loss);
                }
            });
        }
        losses
    }

    /// Has the locks stand for so long. While they are held there is time to repeat what fails.
    pub fn stand(&self, least: Duration) -> Result<()> {
        self.guards().iter().try_for_each(|guard| {
            loop {
                match guard.hold_at_least(least) {
                    Err(error) if error.is_retryable() && self.is_held() => {
                        let _ = guard.sleep(STAND_AGAIN, &CancelToken::new());
                    }
                    answer => return answer,
                }
            }
        })
    }

    /// Releases the locks. What was not answered is not tried once more.
    pub fn release(self) -> Result<(), Error> {
        match self {
            Held::One(guard) => guard.release().map_err(|failed| {
                let error = failed.error().clone();
                if error.kind() != leasehold::ErrorKind::Lost {
                    // Its drop would try for as long once more.
                    std::mem::forget(failed);
                }
                error
            }),
            Held::All(guard) => guard.release(),
        }
    }
}
