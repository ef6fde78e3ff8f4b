//! What a client costs its process beside time and memory: threads, connections, requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Event, LockClient, Observer};

use super::store::{builder, counting};

/// Every request that the library tells of.
#[derive(Default)]
struct Requests(AtomicU64);

impl Observer for Requests {
    fn event(&self, event: &Event<'_>) {
        if let Event::Request { .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A client whose requests are counted.
pub struct Costed {
    pub client: LockClient,
    requests: Arc<Requests>,
    /// What its SDK sends, where that tells: also what is no request of a lock.
    commands: Option<Arc<AtomicU64>>,
    sockets: usize,
}

/// What was counted at a moment.
pub struct Count {
    at: Instant,
    requests: u64,
    commands: u64,
}

impl Costed {
    /// Its guards' own bounds are not the question.
    pub fn connect(url: &str) -> Costed {
        let (sockets, requests) = (sockets(), Arc::<Requests>::default());
        let (builder, commands) = match counting(url) {
            Some((builder, commands)) => (builder, Some(commands)),
            None => (builder(url), None),
        };
        let builder = builder.drop_timeout(Duration::from_secs(60)).observer(requests.clone());
        Costed { client: builder.connect().expect("the store"), requests, commands, sockets }
    }

    pub fn count(&self) -> Count {
        let commands = self.commands.as_ref().map_or(0, |commands| commands.load(Ordering::Relaxed));
        Count { at: Instant::now(), requests: self.requests.0.load(Ordering::Relaxed), commands }
    }

    /// Threads and connections now, requests since then.
    pub fn since(&self, before: &Count) -> String {
        let (now, took) = (self.count(), before.at.elapsed().as_secs_f64());
        let rate = |made: u64| made as f64 / took;
        let commands = match self.commands {
            Some(_) => format!(" ({:.1} commands)", rate(now.commands - before.commands)),
            None => String::new(),
        };
        let connections = sockets().saturating_sub(self.sockets);
        let requests = rate(now.requests - before.requests);
        format!("{} threads, {connections} connections, {requests:.1} requests{commands} a second", threads())
    }
}

/// Of this process; zero where that can't be told.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
