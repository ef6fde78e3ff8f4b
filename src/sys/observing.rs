//! Calls code of the user's: the observers, when no mutex of ours is held and no lock depends on the thread; and other
//! code, which may panic.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::error::{Error, ErrorKind};
use crate::model::event::{Event, Observer, Operation, WaitEnd};
use crate::sys::aside::{Aside, TURN, Told, Weight};
use crate::sys::caught::caught;
use crate::sys::log;
use crate::sys::process::ProcessId;
use crate::sys::thread::{begin_users_code, keeps_a_lock};

/// The observers of a client.
#[derive(Clone, Default)]
pub(crate) struct Observing {
    observers: Arc<[Arc<dyn Observer>]>,
    aside: Aside,
    /// The only observer takes care itself that no lock waits for the user's code.
    is_own_aside: bool,
    /// The process that has connected the client.
    process: Option<ProcessId>,
}

impl Observing {
    /// The same, with one more observer.
    pub(crate) fn and(self, observer: Arc<dyn Observer>) -> Self {
        let more: Arc<dyn Observer> = Arc::new(Contained::new(observer));
        let observers = self.observers.iter().cloned().chain([more]).collect();
        Observing { observers, ..self }
    }

    /// With an observer that takes care itself that no lock waits for the user's code: it gets every event at once.
    #[cfg(feature = "capi")]
    pub(crate) fn by_own_aside(observer: Arc<dyn Observer>) -> Self {
        Observing { is_own_aside: true, ..Observing::default().and(observer) }
    }

    /// For a client that connects in this process. In a forked child nothing is reported: what was being reported at
    /// the fork would count as under way there for ever.
    pub(crate) fn in_this_process(self) -> Self {
        Observing { process: Some(ProcessId::current()), ..self }
    }

    fn is_forked(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.is_current())
    }

    /// Whether there is any observer.
    pub(crate) fn is_on(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Reports the event on this thread. Another thread reports the events of heartbeats, the watcher, a loss by the
    /// clock, a close and a release of several locks, since a slow observer must cost no lock; and the terms of
    /// elections, which end before their locks are released.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if !self.is_on() || self.is_forked() {
            return;
        }
        let goes_aside = keeps_a_lock() || event.leading_change() != 0;
        let most = if HURRIES.get() { Duration::ZERO } else { TURN };
        let is_first = |key: &str| self.aside.tell_first(key, most);
        let is_told_here = self.is_own_aside || !goes_aside && event.key().is_none_or(is_first);
        if self.is_forked() {
            return;
        }
        if is_told_here {
            return self.observers.iter().for_each(|observer| contained("observer", || observer.event(event)));
        }
        let weight = weight(event);
        let (kept, observers) = (kept(event), self.observers.clone());
        let tell = move || observers.iter().for_each(|observer| contained("observer", || kept(&**observer)));
        self.aside.push(event.key(), weight, Box::new(tell));
    }

    /// Whether another thread reports this thread's events, so that no code of the user's is called here.
    pub(crate) fn is_told_by_another(&self) -> bool {
        keeps_a_lock() && !self.is_own_aside
    }

    /// Waits until other threads have reported everything that was left to them, at most until `by`.
    pub(crate) fn wait_until_told(&self, by: Instant) {
        if !self.is_forked() {
            self.aside.wait_until_told(by);
        }
    }

    /// Reports a request, at once or when the thread's [`Later`] ends.
    pub(crate) fn asked(
        &self,
        operation: Operation,
        key: Option<&str>,
        took: Duration,
        error: Option<(&Error, Asked)>,
    ) {
        if !self.is_on() || self.is_forked() {
            return;
        }
        let observing = self.clone();
        let asked = key;
        let (key, error) = (key.map(str::to_owned), error.map(|(error, asked)| (error.clone(), asked)));
        let tell = move || {
            let key = key.as_deref();
            let failed = error.as_ref().map(|(error, _)| error);
            observing.tell(&Event::Request { operation, key, took, error: failed });
            if let (Some(key), Some((error, Asked::Unknown))) = (key, &error) {
                observing.tell(&Event::Unknown { operation, key, error });
            }
        };
        let mut tell = Some(Box::new(tell) as Told);
        // While a thread ends, `KEPT` can be gone before the thread's other data is dropped.
        let surplus = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let kept = kept.as_mut()?;
            kept.extend(tell.take());
            (kept.len() > MOST_KEPT).then(|| std::mem::take(kept))
        });
        if let Ok(Some(surplus)) = surplus {
            // In one piece, so that it stays in order.
            let tell_all = move || surplus.into_iter().for_each(|tell| tell());
            self.aside.push(asked, Weight::Light, Box::new(tell_all));
        }
        tell.into_iter().for_each(|tell| tell());
    }
}

/// An observer that counts holds, waits or terms must not miss their ends.
pub(crate) fn weight(event: &Event<'_>) -> Weight {
    let changes = [event.held_change(), event.waits_change(), event.leading_change()];
    if changes == [0; 3] { Weight::Light } else { Weight::Balance }
}

type Kept = Box<dyn Fn(&dyn Observer) + Send>;

/// Copies for later an event that borrows nothing but its key.
macro_rules! of_key {
    ($event:ident { $key:ident $(, $copied:ident)* }) => {{
        let key = $key.to_owned();
        Box::new(move |to| to.event(&Event::$event { key: &key, $($copied),* }))
    }};
}

/// Copies the event, so that it can be reported later.
fn kept(event: &Event<'_>) -> Kept {
    match *event {
        Event::Request { operation, key, took, error } => {
            let (key, error) = (key.map(str::to_owned), error.cloned());
            Box::new(move |to| {
                to.event(&Event::Request { operation, key: key.as_deref(), took, error: error.as_ref() });
            })
        }
        Event::Unknown { operation, key, error } => {
            let (key, error) = (key.to_owned(), error.clone());
            Box::new(move |to| to.event(&Event::Unknown { operation, key: &key, error: &error }))
        }
        Event::Renewed { key, fencing_token, left } => of_key!(Renewed { key, fencing_token, left }),
        Event::RenewalLate { key, fencing_token, left } => of_key!(RenewalLate { key, fencing_token, left }),
        Event::Lost { loss } => {
            let loss = loss.clone();
            Box::new(move |to| to.event(&Event::Lost { loss: &loss }))
        }
        // The watcher may be the last to have a guard, and so report its end.
        Event::Released { key, fencing_token, held_for } => of_key!(Released { key, fencing_token, held_for }),
        Event::HandedOver { key, fencing_token, held_for } => of_key!(HandedOver { key, fencing_token, held_for }),
        Event::Left { key, fencing_token, held_for } => of_key!(Left { key, fencing_token, held_for }),
        Event::TermBegan { key, fencing_token } => of_key!(TermBegan { key, fencing_token }),
        Event::TermEnded { key, fencing_token, led_for, end } => {
            of_key!(TermEnded { key, fencing_token, led_for, end })
        }
        Event::Granted { key, fencing_token, waited } => of_key!(Granted { key, fencing_token, waited }),
        Event::Refused { key, holders } => {
            let (key, holders) = (key.to_owned(), holders.to_vec());
            Box::new(move |to| to.event(&Event::Refused { key: &key, holders: &holders }))
        }
        Event::WaitBegan { key } => of_key!(WaitBegan { key }),
        Event::WaitEnded { key, waited, end } => of_key!(WaitEnded { key, waited, end }),
        Event::Waited { key, waited } => of_key!(Waited { key, waited }),
        Event::ReleasedData { key, fencing_token } => of_key!(ReleasedData { key, fencing_token }),
    }
}

/// A wait whose begin was reported to the observer. Its end is reported when this is dropped, also by a panic.
pub(crate) struct WaitSpan {
    observing: Observing,
    key: String,
    began: Instant,
    pub(crate) end: WaitEnd,
}

impl WaitSpan {
    /// A wait of a call that began at `began`.
    pub(crate) fn new(observing: &Observing, key: &str, began: Instant) -> Self {
        observing.tell(&Event::WaitBegan { key });
        WaitSpan { observing: observing.clone(), key: key.to_owned(), began, end: WaitEnd::Failed(ErrorKind::Store) }
    }
}

impl Drop for WaitSpan {
    fn drop(&mut self) {
        let waited = self.began.elapsed();
        self.observing.tell(&Event::WaitEnded { key: &self.key, waited, end: self.end });
    }
}

/// Whether a request that failed may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Failed,
    Unknown,
}

/// If a thread keeps more reports than this, as in a call that repeats for long, another thread makes them.
const MOST_KEPT: usize = 64;

thread_local! {
    /// What is reported when the outermost [`Later`] of this thread ends.
    static KEPT: RefCell<Option<Vec<Told>>> = const { RefCell::new(None) };
    static HURRIES: Cell<bool> = const { Cell::new(false) };
}

/// Runs this. Its reports do not wait for earlier reports about the same key: a lock may have been granted that nobody
/// renews yet.
pub(crate) fn hurrying(run: impl FnOnce()) {
    let before = HURRIES.replace(true);
    run();
    HURRIES.set(before);
}

/// Keeps the reports about requests of this thread until it is dropped. Make it before a mutex is taken: then it
/// reports after the mutex is free again.
pub(crate) struct Later {
    is_outermost: bool,
}

pub(crate) fn later() -> Later {
    let begin = |kept: &RefCell<Option<Vec<Told>>>| {
        let is_outermost = kept.borrow().is_none();
        if is_outermost {
            *kept.borrow_mut() = Some(Vec::new());
        }
        is_outermost
    };
    Later { is_outermost: KEPT.try_with(begin).unwrap_or(false) }
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.is_outermost {
            let kept = KEPT.try_with(|kept| kept.borrow_mut().take());
            kept.ok().flatten().into_iter().flatten().for_each(|tell| tell());
        }
    }
}

impl fmt::Debug for Observing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Observer" } else { "none" })
    }
}

/// A closure or an observer of the user's, until it is taken. All that the library keeps are kept in this: what they
/// own is dropped with them, and a panic in such a drop is caught here.
pub(crate) struct Contained<T>(pub(crate) Option<T>);

impl<T> Contained<T> {
    pub fn new(code: T) -> Self {
        Contained(Some(code))
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        panic_logged("drop of a callback or an observer", || drop(self.0.take()));
    }
}

impl Observer for Contained<Arc<dyn Observer>> {
    fn event(&self, event: &Event<'_>) {
        self.0.iter().for_each(|observer| observer.event(event));
    }
}

/// Runs code of the user's: a panic in it is logged and ends here.
pub(crate) fn contained(what: &str, run: impl FnOnce()) {
    begin_users_code();
    panic_logged(what, run);
}

/// The same for code that is hardly ever the user's.
pub(crate) fn panic_logged(what: &str, run: impl FnOnce()) {
    if caught(run).is_none() {
        log::error!(target: "leasehold::callback", "a panic in the {what} was contained");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(parking_lot::Mutex<Vec<Duration>>);

    impl Observer for Heard {
        fn event(&self, event: &Event<'_>) {
            if let Event::Request { took, .. } = event {
                self.0.lock().push(*took);
            }
        }
    }

    /// As in a release that is repeated for hours.
    #[test]
    fn what_is_told_later_grows_no_further_and_stays_in_order() {
        let heard = Arc::new(Heard::default());
        let observing = Observing::default().and(heard.clone());
        let later = later();
        let all: Vec<_> = (0..2 * MOST_KEPT as u64).map(Duration::from_nanos).collect();
        all.iter().for_each(|nth| observing.asked(Operation::Release, Some("k"), *nth, None));
        observing.wait_until_told(Instant::now() + Duration::from_secs(20));
        assert_eq!(heard.0.lock().len(), MOST_KEPT + 1);
        drop(later);
        assert_eq!(*heard.0.lock(), all);
    }
}
