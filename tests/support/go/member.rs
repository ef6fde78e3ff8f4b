//! One process of a mixed fleet: it uses our library or a Go library, and gets commands on its standard input like
//! `worker`.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{LockClient, LockGuard, Mode};

use crate::support::harness::{connected, millis};
use crate::support::oracle::Claims;
use crate::support::process::WORKER;
use crate::support::worker::say;

/// Locks without tokens (those of the Go libraries) are numbered from here: below every fencing token of ours, and
/// unique to a process.
pub const MOST_OF_GO: u64 = 1_000_000_000_000_000;
/// The time between two claims of a holder.
const PACE: Duration = millis(10);

/// One library's way to lock.
pub trait Member: Send {
    /// Tries once to acquire. Returns what identifies the hold: its token, or `number` where it has none; one more if
    /// the member took a live lock for a free one, as far as it can know.
    fn take(&mut self, key: &str, number: u64) -> Option<u64>;
    /// Whether it believes that it holds the lock that it took last.
    fn holds(&mut self, key: &str) -> bool;
    fn renew(&mut self, key: &str);
    fn leave(&mut self, key: &str);
}

/// Follows the commands if this process is a member: `connect KIND|STORE|.. LEASE POLL`, `roam FOLDER KEYS SEED`,
/// `halt`.
pub fn run() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let (halted, mut member, mut lease) = (Arc::<AtomicBool>::default(), None, Duration::ZERO);
    let mut roaming = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a command");
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["connect", place, ms, _] => {
                lease = millis(ms.parse().expect("milliseconds"));
                member = Some(connect(&place.split('|').collect::<Vec<_>>(), lease));
                say("connected");
            }
            ["roam", folder, keys, seed] => {
                let (folder, keys) = (folder.to_owned(), keys.parse().expect("a number"));
                let seed = seed.parse().expect("a seed");
                let (member, halted) = (member.take().expect("a member"), halted.clone());
                roaming = Some(std::thread::spawn(move || {
                    fastrand::seed(seed);
                    roam(member, Path::new(&folder), keys, lease, &halted);
                }));
                say("roams");
            }
            ["halt"] => {
                halted.store(true, Ordering::SeqCst);
                roaming.take().expect("a member that roams").join().expect("a member without a panic");
                say("halted");
            }
            _ => panic!("no such command: {line}"),
        }
    }
}

/// Takes and leaves the locks at random. Some holds are longer than a lease. Appends a byte to the file `grants` for
/// each grant.
fn roam(mut member: Box<dyn Member>, folder: &Path, keys: usize, lease: Duration, halted: &AtomicBool) {
    let mut claims: Vec<Claims> = (0..keys).map(|key| Claims::new(&folder.join(name(key)))).collect();
    let mut grants = OpenOptions::new().append(true).open(folder.join("grants")).expect("the file of grants");
    for n in (0..).step_by(2).take_while(|_| !halted.load(Ordering::SeqCst)) {
        let (at, pause) = (fastrand::usize(..keys), millis(fastrand::u64(..10)));
        let key = name(at);
        let Some(token) = member.take(&key, u64::from(std::process::id()) * 1_000_000 + n) else {
            std::thread::sleep(pause);
            continue;
        };
        let until = Instant::now() + if fastrand::u8(..16) == 0 { lease * 3 / 2 } else { pause };
        let (mut renewed, mut is_granted) = (Instant::now(), false);
        while claims[at].claim(Mode::Exclusive, token, || member.holds(&key)) {
            if !is_granted {
                grants.write_all(b".").expect("a grant");
            }
            is_granted = true;
            if Instant::now() > until || halted.load(Ordering::SeqCst) {
                break;
            }
            std::thread::sleep(PACE);
            if renewed.elapsed() > lease / 3 {
                renewed = Instant::now();
                member.renew(&key);
            }
        }
        member.leave(&key);
    }
}

/// No name is the prefix of another one.
pub fn name(key: usize) -> String {
    format!("k{key}k")
}

struct Ours {
    client: LockClient,
    guard: Option<LockGuard>,
}

impl Member for Ours {
    fn take(&mut self, key: &str, _number: u64) -> Option<u64> {
        // Where an overloaded server does not answer, there is no grant.
        self.guard = self.client.try_lock(key).unwrap_or_default();
        self.guard.as_ref().map(LockGuard::fencing_token)
    }

    fn holds(&mut self, _key: &str) -> bool {
        self.guard.as_ref().is_some_and(LockGuard::is_held)
    }

    fn renew(&mut self, _key: &str) {}

    fn leave(&mut self, _key: &str) {
        drop(self.guard.take());
    }
}

fn connect(place: &[&str], lease: Duration) -> Box<dyn Member> {
    let ours = |builder: &dyn Fn() -> leasehold::ClientBuilder| -> Box<dyn Member> {
        Box::new(Ours { client: connected(builder), guard: None })
    };
    match *place {
        #[cfg(feature = "dynamodb")]
        ["ours", "dynamodb", table] => {
            let table = || leasehold::dynamodb::Table::new(table).mixed_fleet();
            ours(&|| leasehold::dynamodb::builder(crate::support::dynamodb::config(), table()).lease(lease))
        }
        #[cfg(feature = "dynamodb")]
        ["go", "dynamodb", table] => {
            Box::new(super::dynamodb::Worker::new(table, format!("worker-{}", std::process::id()), lease))
        }
        // All members with the same owner.
        #[cfg(feature = "dynamodb")]
        ["same", "dynamodb", table] => Box::new(super::dynamodb::Worker::new(table, "worker".to_owned(), lease)),
        #[cfg(feature = "mongodb")]
        ["ours", "mongodb", name] => {
            let uri = crate::support::servers::mongod().expect("the server");
            let options = format!("collection={name}&fleet=mixed");
            let url = crate::support::mongodb::with_database(&uri, &options);
            ours(&|| LockClient::builder(&url).lease(lease))
        }
        #[cfg(feature = "mongodb")]
        ["go", "mongodb", name] => Box::new(super::mongodb::Worker::new(name, lease)),
        #[cfg(feature = "spanner")]
        ["ours", "spanner", host, path] => {
            use crate::support::spanner::{TABLE, settings};
            let table = || leasehold::spanner::Table::new(TABLE).spindle_duration(lease).mixed_fleet();
            ours(&|| leasehold::spanner::builder(settings(host), path, table()))
        }
        #[cfg(feature = "spanner")]
        ["go", "spanner", host, path] => Box::new(super::spanner::Worker::new(host, path, lease)),
        _ => panic!("no such place: {place:?}"),
    }
}
