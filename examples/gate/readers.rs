//! Readers that overlap without end, as those of a busy service do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{LockClient, LockGuard, Result};

/// How a reader takes the lock.
pub type Read = fn(&LockClient, &str) -> Result<LockGuard>;

/// Two readers, each on a thread of its own.
pub struct Readers {
    /// How often one of them was granted the lock.
    pub granted: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
    threads: [JoinHandle<Result<()>>; 2],
}

impl Readers {
    /// Each of them lets go when the other one is in, or after `patience` if that one does not come.
    pub fn start(client: &LockClient, key: &'static str, read: Read, patience: Duration) -> Readers {
        let (granted, over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let [(to_first, first), (to_second, second)] = [channel(), channel()];
        to_first.send(()).expect("it is here");
        let threads = [(first, to_second), (second, to_first)].map(|(turns, other)| {
            let (client, granted, over) = (client.clone(), granted.clone(), over.clone());
            thread::spawn(move || {
                let mut held: Option<LockGuard> = None;
                while !over.load(Ordering::SeqCst) {
                    let turn = turns.recv_timeout(patience);
                    drop(held.take());
                    match turn {
                        Ok(()) => {
                            held = Some(read(&client, key)?);
                            granted.fetch_add(1, Ordering::SeqCst);
                            // The other reader may have ended.
                            let _ = other.send(());
                        }
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                }
                Ok(())
            })
        });
        Readers { granted, over, threads }
    }

    pub fn granted(&self) -> u32 {
        self.granted.load(Ordering::SeqCst)
    }

    /// Waits until they were granted the lock more than `than` times, or one has ended.
    pub fn wait_for_more(&self, than: u32) {
        while self.granted() <= than && !self.threads.iter().any(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends both readers.
    pub fn stop(self) -> Result<()> {
        self.over.store(true, Ordering::SeqCst);
        self.threads.into_iter().try_for_each(|thread| thread.join().expect("a reader does not panic"))
    }
}
