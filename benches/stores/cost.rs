//! What a client costs its process in addition to time and memory: threads, connections, requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Event, LockClient, Observer, Operation};

use super::store::{builder, counting};

/// Counts the requests that the library reports.
#[derive(Default)]
pub struct Requests {
    reads: AtomicU64,
    asks: AtomicU64,
    others: AtomicU64,
}

impl Requests {
    pub fn made(&self) -> Made {
        let [reads, asks, others] = [&self.reads, &self.asks, &self.others].map(|count| count.load(Ordering::Relaxed));
        Made { reads, asks, others }
    }
}

impl Observer for Requests {
    fn event(&self, event: &Event<'_>) {
        let count = match event {
            Event::Request { operation: Operation::Read, .. } => &self.reads,
            Event::Request { operation: Operation::Acquire | Operation::Swap, .. } => &self.asks,
            Event::Request { .. } => &self.others,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Numbers of requests: looks at locks, attempts to acquire one, and the requests of holders.
#[derive(Clone, Copy, Default)]
pub struct Made {
    pub reads: u64,
    pub asks: u64,
    pub others: u64,
}

impl Made {
    pub fn since(self, before: Made) -> Made {
        Made { reads: self.reads - before.reads, asks: self.asks - before.asks, others: self.others - before.others }
    }

    pub fn add(&mut self, more: Made) {
        self.reads += more.reads;
        self.asks += more.asks;
        self.others += more.others;
    }

    fn all(self) -> u64 {
        self.reads + self.asks + self.others
    }
}

/// A client whose requests are counted.
pub struct Costed {
    pub client: LockClient,
    requests: Arc<Requests>,
    /// How many commands its SDK sends, where it reports that: also commands that are not requests for a lock.
    commands: Option<Arc<AtomicU64>>,
    sockets: usize,
}

/// The counts at one moment.
pub struct Count {
    at: Instant,
    requests: Made,
    commands: u64,
}

impl Costed {
    /// With a long drop timeout, because this does not measure the guards' own bounds.
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
        Count { at: Instant::now(), requests: self.requests.made(), commands }
    }

    /// The threads and connections now, and the requests since `before`.
    pub fn since(&self, before: &Count) -> String {
        let (now, took) = (self.count(), before.at.elapsed().as_secs_f64());
        let rate = |made: u64| made as f64 / took;
        let commands = match self.commands {
            Some(_) => format!(" ({:.1} commands)", rate(now.commands - before.commands)),
            None => String::new(),
        };
        let connections = sockets().saturating_sub(self.sockets);
        let requests = rate(now.requests.since(before.requests).all());
        format!("{} threads, {connections} connections, {requests:.1} requests{commands} a second", threads())
    }
}

/// The threads of this process; zero where that is not known.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
