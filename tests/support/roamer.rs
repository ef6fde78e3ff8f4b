//! A worker's thread that takes and leaves one lock again and again, until it is halted, killed or stopped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use leasehold::{ErrorKind, LockClient, Mode};

use super::harness::{PATIENCE, millis};
use super::oracle::Claims;
use super::worker::told;

/// See the module.
pub struct Roamer {
    halted: Arc<AtomicBool>,
    pins: Sender<()>,
    unpinned: Arc<AtomicBool>,
    said: Receiver<String>,
    thread: JoinHandle<usize>,
}

impl Roamer {
    /// Claims the lock in this folder, see [`Claims`], all the time while it holds it. The seed determines how long it
    /// holds the lock and how long it stays away.
    pub fn start(client: &LockClient, mode: &str, key: &str, seed: u64, folder: &Path) -> Roamer {
        let (client, key, claims) = (client.clone(), key.to_owned(), Claims::new(folder));
        let mode = if mode == "shared" { Mode::Shared } else { Mode::Exclusive };
        let (halted, unpinned) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let ((pins, pinned), (say, said)) = (crossbeam_channel::unbounded(), crossbeam_channel::unbounded());
        let mut roam =
            Roam { client, mode, key, claims, halted: halted.clone(), pinned, unpinned: unpinned.clone(), say };
        let thread = std::thread::spawn(move || {
            fastrand::seed(seed);
            let mut grants = 0;
            while !roam.halted.load(Ordering::SeqCst) {
                grants += usize::from(roam.once());
            }
            grants
        });
        Roamer { halted, pins, unpinned, said, thread }
    }

    /// Keeps the next grant until it is lost or unpinned, and returns its token. There is no limit here to how long the
    /// grant may take among all the others: the process that sent the command limits its wait.
    pub fn pin(&self) -> String {
        self.pins.send(()).expect("the roaming thread");
        self.said.recv().expect("a grant")
    }

    /// Leaves the pinned lock. Returns whether and how it was lost.
    pub fn unpin(&self) -> String {
        self.unpinned.store(true, Ordering::SeqCst);
        self.said.recv().expect("the end of the pinned hold")
    }

    /// Ends the thread. Returns how often it held the lock.
    pub fn halt(self) -> String {
        self.halted.store(true, Ordering::SeqCst);
        format!("grants {}", self.thread.join().expect("the roaming thread"))
    }
}

struct Roam {
    client: LockClient,
    mode: Mode,
    key: String,
    claims: Claims,
    halted: Arc<AtomicBool>,
    pinned: Receiver<()>,
    unpinned: Arc<AtomicBool>,
    say: Sender<String>,
}

impl Roam {
    /// Holds the lock once, if it is granted soon.
    fn once(&mut self) -> bool {
        let request = self.client.request(&self.key).wait(millis(2000));
        let guard = match if self.mode == Mode::Shared { request.shared() } else { request }.lock() {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::TimedOut || error.is_retryable() => return false,
            Err(error) => panic!("{error:?}"),
        };
        let granted = Instant::now();
        let (token, is_pinned) = (guard.fencing_token(), self.pinned.try_recv().is_ok());
        if is_pinned {
            let _ = self.say.send(format!("token {token}"));
        }
        let until = granted + millis(fastrand::u64(10..40));
        let is_over = || if is_pinned { self.unpinned.swap(false, Ordering::SeqCst) } else { Instant::now() >= until };
        while self.claims.claim(self.mode, token, || guard.is_held()) && !is_over() {
            guard.loss().wait_timeout(millis(2));
        }
        if is_pinned {
            let loss = if guard.is_held() { None } else { guard.loss().wait_timeout(PATIENCE) };
            let _ = self.say.send(told(loss));
        }
        // On a busy machine the lease may have ended, so an error is ignored.
        let _ = guard.release();
        // Stays away for longer than it held: readers that are there most of the time would let no writer in.
        std::thread::sleep(granted.elapsed().min(millis(500)) * fastrand::u32(2..6));
        true
    }
}
