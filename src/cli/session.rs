//! A client, and the signals to this process, while it waits for a lock and holds it.

use std::cell::Cell;
use std::time::Instant;

use crossbeam_channel::Receiver;
use leasehold::{CancelToken, ClientBuilder, LockClient};
use nix::sys::signal::Signal;

use crate::args::Global;
use crate::failure::{Failure, Outcome, code};
use crate::held::{Held, Wanted};
use crate::show::is_stderr_a_terminal;
use crate::signals::{self, Gone, Hangup, Interrupts};
use crate::stops;
use crate::wait::{Shows, connect, wait};
use crate::warnings::Once;

/// See the module.
pub struct Session {
    pub client: LockClient,
    pub interrupts: Interrupts,
    shows: Shows,
    /// The last release was not answered, and its answer is not waited for any more.
    pub is_unanswered: Cell<bool>,
}

impl Drop for Session {
    /// What the background still has to release must be done before this process ends.
    fn drop(&mut self) {
        if !self.is_unanswered.get() {
            let _ = self.client.close();
        }
    }
}

impl Session {
    /// `until`: when it is too late to connect. `hangup`: what a HUP means while this process waits. `gone` makes the
    /// channel that reports when nobody needs the lock any more.
    pub fn start(
        global: &Global,
        builder: impl Fn() -> Outcome<ClientBuilder> + Send + Sync + 'static,
        until: Option<Instant>,
        hangup: Hangup,
        gone: impl FnOnce() -> Outcome<Receiver<Gone>>,
    ) -> Outcome<Session> {
        // Before the first warning, because that starts a thread.
        stops::spare_us().map_err(internal)?;
        let _once = Once::begin();
        // So wrong options are reported at once.
        drop(builder()?);
        let interrupts = Interrupts { signals: signals::watch().map_err(internal)?, gone: gone()?, hangup };
        let shows = Shows { words: !global.quiet, line: !global.quiet && !global.json && is_stderr_a_terminal() };
        let client = connect(move || Ok(builder()?.connect()?), until, &interrupts, shows)?;
        Ok(Session { client, interrupts, shows, is_unanswered: Cell::new(false) })
    }

    pub fn wait(&self, wanted: Wanted) -> Outcome<Held> {
        // An unanswered release before this wait says nothing about what this wait may leave behind.
        self.is_unanswered.set(false);
        // Waits for adopted children that ended during the release.
        self.interrupts.end_wait(Signal::SIGCHLD);
        let client = self.client.clone();
        wait(move |cancel: &CancelToken, told| wanted.lock(&client, cancel, told), &self.interrupts, self.shows)
    }
}

/// The failure if the system refuses something.
pub fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::Own(code::INTERNAL, error.to_string())
}
