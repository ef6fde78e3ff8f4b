//! The worker's side of `process`.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Election, LockClient, LockGuard, Loss, LossReason, Mode};

use super::harness::{PATIENCE, connected, millis, patient};
use super::oracle::{Claims, Oracle};
use super::process::{ANSWER, WORKER};
use super::roamer::Roamer;
use super::wait::wait_until;

/// Follows the commands on standard input if this process is a worker.
pub fn run() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let mut worker: Option<State> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a command");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match (&words[..], &mut worker) {
            (["connect", url, lease, poll], _) => {
                let of = |text: &str| millis(text.parse().expect("milliseconds"));
                worker = Some(State::connect(url, of(lease), of(poll)));
                "connected".to_owned()
            }
            (words, Some(worker)) => worker.follow(words),
            (words, None) => panic!("not connected: {words:?}"),
        };
        say(&answer);
    }
}

/// Writes an answer on a line of its own, whatever the test runner has written on the last one.
pub fn say(answer: &str) {
    println!("\n{ANSWER}{answer}");
}

struct State {
    client: LockClient,
    guards: HashMap<String, LockGuard>,
    node: Option<Election>,
    resigns: Arc<AtomicU64>,
    roamer: Option<Roamer>,
}

impl State {
    fn connect(url: &str, lease: Duration, poll: Duration) -> State {
        let client = connected(|| patient(LockClient::builder(url)).lease(lease).poll(poll / 5..=poll));
        State { client, guards: HashMap::new(), node: None, resigns: Arc::default(), roamer: None }
    }

    fn follow(&mut self, words: &[&str]) -> String {
        match *words {
            ["lock", key] => {
                let guard = self.client.lock(key);
                self.keep(key, guard.map(Some))
            }
            ["try", key] => {
                let guard = self.client.try_lock(key);
                self.keep(key, guard)
            }
            ["held", key] => format!("held {}", self.guards[key].is_held()),
            ["token", key] => format!("token {}", self.guards[key].fencing_token()),
            ["loss", key] => told(self.guards[key].loss().wait_timeout(PATIENCE)),
            ["release", key] => match self.guards.remove(key).expect("a guard").release() {
                Ok(()) => "released".to_owned(),
                Err(failed) => format!("error {:?}", failed.error().kind()),
            },
            ["stopped", key, gap] => {
                let gap = millis(gap.parse().expect("milliseconds"));
                held_after_a_stop(&self.guards[key], gap)
            }
            ["wall"] => format!("wall {}", wall_millis()),
            ["block", file, ms] => block(Path::new(file), millis(ms.parse().expect("milliseconds"))),
            // As a program does that leaks its guards and exits normally.
            ["abandon"] => {
                std::mem::forget(std::mem::take(&mut self.guards));
                say("abandoned");
                std::process::exit(0);
            }
            ["exclude", key, count, folder] => self.exclude(key, count.parse().expect("a number"), Path::new(folder)),
            ["share", key, threads, total, folder] => {
                let (threads, total) = (threads.parse().expect("a number"), total.parse().expect("a number"));
                self.share(key, threads, total, Path::new(folder))
            }
            ["stand", name, folder] => self.stand(name, Path::new(folder)),
            ["resign", token] => {
                self.resigns.store(token.parse().expect("a token"), Ordering::SeqCst);
                "resigns".to_owned()
            }
            ["roam", mode, key, seed, folder] => {
                let seed = seed.parse().expect("a seed");
                self.roamer = Some(Roamer::start(&self.client, mode, key, seed, Path::new(folder)));
                "roams".to_owned()
            }
            ["pin"] => self.roamer.as_ref().expect("a roamer").pin(),
            ["unpin"] => self.roamer.as_ref().expect("a roamer").unpin(),
            ["halt"] => self.roamer.take().expect("a roamer").halt(),
            ["left", key, token] => self.left(key, token.parse().expect("a token")),
            ["intrude", key, folder] => intrude(&Oracle::new(Path::new(folder), key)),
            _ => panic!("no such command: {words:?}"),
        }
    }

    fn keep(&mut self, key: &str, guard: leasehold::Result<Option<LockGuard>>) -> String {
        match guard {
            Ok(Some(guard)) => {
                let answer = format!("token {}", guard.fencing_token());
                self.guards.insert(key.to_owned(), guard);
                answer
            }
            Ok(None) => "none".to_owned(),
            Err(error) => format!("error {:?}: {error}", error.kind()),
        }
    }

    /// Joins an election, reports the calls of its callbacks, and claims all the time while it leads.
    fn stand(&mut self, name: &str, folder: &Path) -> String {
        let node = self.client.election(name);
        let node = node.on_won(|token| say(&format!("won {token}"))).on_lost(|token, _| say(&format!("lost {token}")));
        let (node, mut claims) = (node.build().expect("a node"), Claims::new(folder));
        let resigns = self.resigns.clone();
        node.lead(move |leadership| {
            let token = leadership.fencing_token();
            while claims.claim(Mode::Exclusive, token, || leadership.is_leader())
                && resigns.load(Ordering::SeqCst) != token
            {
                leadership.loss().wait_timeout(millis(1));
            }
        })
        .expect("it stands");
        self.node = Some(node);
        "stands".to_owned()
    }

    /// What is left of the lease of the holder with this token, in milliseconds.
    fn left(&self, key: &str, token: u64) -> String {
        let status = self.client.get(key).expect("a look").expect("a row");
        let holder = status.holders().iter().find(|holder| holder.fencing_token() == token);
        let left = holder.and_then(leasehold::LockStatus::remaining).unwrap_or_default();
        format!("left {}", left.as_millis())
    }

    /// Enters the critical section `count` times, under the lock.
    fn exclude(&self, key: &str, count: u32, folder: &Path) -> String {
        let oracle = Oracle::new(folder, key);
        let mut overlaps = 0;
        for _ in 0..count {
            let guard = self.client.lock(key).expect("the lock");
            if !oracle.section(guard.fencing_token(), std::thread::yield_now) {
                overlaps += 1;
            }
            guard.release().expect("a release");
        }
        format!("overlaps {overlaps}")
    }
}

impl State {
    /// Takes the lock with this many threads until it was granted `total` times to all processes together. Returns how
    /// often to this one. The count is in a file that the lock guards.
    fn share(&self, key: &str, threads: usize, total: usize, folder: &Path) -> String {
        let count = folder.join("count");
        let work = || {
            let mut mine = 0;
            loop {
                let guard = self.client.lock(key).expect("the lock");
                let so_far = std::fs::read_to_string(&count).map_or(0, |text| text.parse().expect("a number"));
                if so_far >= total {
                    return mine;
                }
                std::fs::write(&count, (so_far + 1).to_string()).expect("the count");
                mine += 1;
                guard.release().expect("a release");
            }
        };
        let granted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        format!("granted {granted}")
    }
}

/// The negative control: enters without the lock. It stays inside until somebody else comes, so that the two must meet.
fn intrude(oracle: &Oracle) -> String {
    let alone = oracle.section(1, || wait_until("another process enters the section", || oracle.saw_overlap()));
    format!("overlaps {}", u32::from(!alone))
}

/// Takes SQLite's write lock for this long, as a user's own transaction in the same file may.
fn block(file: &Path, time: Duration) -> String {
    let connection = rusqlite::Connection::open(file).expect("the database");
    connection.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    std::thread::spawn(move || {
        std::thread::sleep(time);
        connection.execute_batch("ROLLBACK").expect("the end of the transaction");
    });
    "blocked".to_owned()
}

/// This process's wall clock, in milliseconds since 1970.
pub fn wall_millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a time")
}

pub fn told(loss: Option<Loss>) -> String {
    let reason = match loss.map(|loss| loss.reason) {
        None => "none",
        Some(LossReason::TakenOver { .. }) => "TakenOver",
        Some(LossReason::Expired { .. }) => "Expired",
        Some(LossReason::Gone) => "Gone",
        Some(_) => "other",
    };
    format!("loss {reason}")
}

/// Returns what the very first `is_held()` says after the process did not run for `gap`. It calls it all the time, so
/// that no thread of the library can be quicker. On a busy machine the lock may be lost before the stop.
fn held_after_a_stop(guard: &LockGuard, gap: Duration) -> String {
    say("spinning");
    let mut before = Instant::now();
    loop {
        let held = guard.is_held();
        let now = Instant::now();
        if now - before > gap {
            // The stop may have been between the answer and the look at the clock, so ask again at once.
            return format!("held {}", guard.is_held());
        }
        if !held {
            return "lost before the stop".to_owned();
        }
        before = now;
    }
}
