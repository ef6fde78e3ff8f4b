//! How long a waiter still waits after the lock has become free, and what its waiting costs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use leasehold::LockClient;

use super::cost::{Made, Requests};
use super::many::cpu;
use super::store::{Call, Store, builder};
use super::table::{Samples, Table};

/// By then the waiter has settled: it has looked several times, and its start has no effect any more.
const HOLD: Duration = Duration::from_millis(1000);
/// Holds differ by up to this many milliseconds.
const SPREAD: u64 = 1000;
/// The time of a wait in which nothing happens, for each round up to twenty.
const IDLE: Duration = Duration::from_millis(1000);
/// The lease of a holder that is killed.
const LEASE: Duration = Duration::from_secs(1);
/// The lease of a holder that releases. A hold longer than its lease would first give other processes a turn.
const LONG_LEASE: Duration = Duration::from_secs(20);

/// The cost for each wait, from the requests `made` in this time; a holder only renews and releases meanwhile.
fn text(made: Made, waits: usize, waited: Duration) -> String {
    let (reads, asked) = (made.reads as f64, (made.reads + made.asks) as f64);
    format!("{:.1} reads a second, {:.1} requests a wait", reads / waited.as_secs_f64(), asked / waits.max(1) as f64)
}

fn client(url: &str, lease: Duration) -> (LockClient, Arc<Requests>) {
    let requests = Arc::<Requests>::default();
    let client = builder(url).lease(lease).observer(requests.clone()).connect().expect("the store");
    (client, requests)
}

pub fn measure(store: &mut Store, rounds: usize, table: &mut Table) {
    two_threads(store, rounds, table);
    if store.shared {
        two_processes(store, rounds, table);
        takeover(store, rounds.div_ceil(2), table);
    }
}

/// Different in every round, so that neither a poll nor a clock with a resolution of a second falls into step with it.
fn spread(round: usize) -> Duration {
    Duration::from_millis(round as u64 * 370 % SPREAD)
}

fn hold_time(round: usize) -> Duration {
    HOLD + spread(round)
}

/// Also measures a raw acquire after the same rest: a core that has slept, and caches that others have used, make both
/// slower than in a loop.
fn two_threads(store: &mut Store, rounds: usize, table: &mut Table) {
    let (client, requests) = client(&store.url, LONG_LEASE);
    let (mut delays, mut rested) = (Samples::default(), Samples::default());
    let (mut made, mut waited) = (Made::default(), Duration::ZERO);
    for round in 0..rounds {
        if let Some(raw) = &mut store.raw {
            raw.prepare(Call::Acquire);
            thread::sleep(hold_time(round));
            let started = Instant::now();
            raw.run(Call::Acquire);
            rested.push(started.elapsed());
            raw.prepare(Call::Release);
            raw.run(Call::Release);
        }
        let guard = client.lock("hand-over").expect("nobody holds it");
        let before = requests.made();
        let (granted, when) = mpsc::channel();
        let waiter = client.clone();
        let waiter = thread::spawn(move || {
            let guard = waiter.lock("hand-over").expect("it becomes free");
            let _ = granted.send(Instant::now());
            drop(guard);
        });
        thread::sleep(hold_time(round));
        let freed = Instant::now();
        drop(guard);
        let at = when.recv().expect("the waiter's time");
        delays.push(at - freed);
        waited += hold_time(round) + (at - freed);
        made.add(requests.made().since(before));
        waiter.join().expect("the waiter");
    }
    let what = "hand-over between two threads";
    table.alone(store.name, what, &delays, text(made, rounds, waited));
    if store.raw.is_some() {
        table.compare(store.name, what, &delays, "a raw acquire after the same rest", &rested);
    }
}

fn two_processes(store: &Store, rounds: usize, table: &mut Table) {
    let (client, _) = client(&store.url, LONG_LEASE);
    let mut child = Other::start("wait", &store.url);
    let mut delays = Samples::default();
    let (mut made, mut waited, mut cpu) = (Made::default(), Duration::ZERO, 0.0);
    for round in 0..rounds {
        let guard = client.lock("hand-over").expect("nobody holds it");
        child.say("wait");
        thread::sleep(hold_time(round));
        let freed = SystemTime::now();
        drop(guard);
        let told = child.hear();
        let delay = at(told[0]).duration_since(freed).unwrap_or_default();
        delays.push(delay);
        waited += hold_time(round) + delay;
        made.add(Made { reads: told[1] as u64, asks: told[2] as u64, others: 0 });
        cpu += told[3];
    }
    let share = cpu / waited.as_secs_f64() * 100.0;
    let made = text(made, rounds, waited);
    let beside = format!("{made}, {share:.2} % of a core, its beginning and end included");
    table.alone(store.name, "hand-over between two processes", &delays, beside);
    // What a wait costs while nothing happens.
    let client = store.connect();
    let guard = client.lock("hand-over").expect("nobody holds it");
    child.say("wait");
    let idle = IDLE * rounds.min(20) as u32;
    thread::sleep(idle);
    let freed = SystemTime::now();
    drop(guard);
    let told = child.hear();
    let mut delay = Samples::default();
    delay.push(at(told[0]).duration_since(freed).unwrap_or_default());
    let (made, share) = (told[1] + told[2], told[3] / idle.as_secs_f64() * 100.0);
    let beside = format!("{made:.0} requests in {:.0} s, {share:.2} % of a core", idle.as_secs_f64());
    table.alone(store.name, "hand-over after a long wait", &delay, beside);
}

fn takeover(store: &Store, rounds: usize, table: &mut Table) {
    let (client, requests) = client(&store.url, LEASE);
    let (mut delays, mut late) = (Samples::default(), Samples::default());
    let (mut made, mut waited) = (Made::default(), Duration::ZERO);
    for round in 0..rounds {
        thread::sleep(spread(2 * round));
        let end = killed_holder(store, &client);
        let (before, started) = (requests.made(), Instant::now());
        let guard = client.lock("takeover").expect("it becomes free");
        delays.push(SystemTime::now().duration_since(end).unwrap_or_default());
        made.add(requests.made().since(before));
        waited += started.elapsed();
        drop(guard);

        // A client that never saw the holder alive comes after the end of its lease.
        thread::sleep(spread(2 * round + 1));
        let end = killed_holder(store, &client);
        let mut comer = Other::start("late", &store.url);
        thread::sleep((end + store.grace / 2).duration_since(SystemTime::now()).unwrap_or_default());
        comer.say("now");
        late.push(at(comer.hear()[0]).duration_since(end).unwrap_or_default());
    }
    let after = format!("after the lease's end, with a grace of {:?}", store.grace);
    let beside = format!("{after}; {}", text(made, rounds, waited));
    table.alone(store.name, "takeover from a killed process", &delays, beside);
    table.alone(store.name, "the same by one who comes late", &late, format!("{after}; it came at half the grace"));
}

/// Another process acquires the lock and is killed. Returns the end of its lease.
fn killed_holder(store: &Store, client: &LockClient) -> SystemTime {
    let mut holder = Other::start("hold", &store.url);
    holder.hear();
    holder.kill();
    let status = client.get("takeover").expect("the store").expect("the killed holder's row");
    status.holders()[0].leased_until().expect("a lease with an end")
}

fn micros_now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970").as_micros()
}

fn at(micros: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros as u64)
}

/// This program again, in another process.
pub struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    pub fn start(role: &str, url: &str) -> Other {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--child", role, url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a second process");
        let (to, from) = (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
        Other { child, to, from: BufReader::new(from) }
    }

    pub fn say(&mut self, word: &str) {
        writeln!(self.to, "{word}").expect("the other process lives");
    }

    pub fn hear(&mut self) -> Vec<f64> {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the other process lives");
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(!numbers.is_empty(), "the other process said {line:?}");
        numbers
    }

    fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the second process does.
pub fn child(mut args: impl Iterator<Item = String>) {
    let (role, url) = (args.next().expect("a role"), args.next().expect("a store"));
    if let Some(keys) = role.strip_prefix(super::waiting::ROLE) {
        return super::waiting::child(keys, &builder(&url).connect().expect("the store"));
    }
    let (client, requests) = client(&url, if role == "wait" { LONG_LEASE } else { LEASE });
    if role == "hold" {
        let guard = client.lock("takeover").expect("nobody holds it");
        println!("{}", guard.fencing_token());
        thread::sleep(Duration::from_secs(60));
        return;
    }
    for line in std::io::stdin().lines() {
        line.expect("the first process lives");
        if role == "late" {
            // Until now this process has had no contact with the store.
            let late = self::client(&url, LEASE).0;
            let guard = late.lock("takeover").expect("it becomes free");
            println!("{}", micros_now());
            guard.release().expect("it is held");
            continue;
        }
        let (before, cpu_before) = (requests.made(), cpu());
        let guard = client.lock("hand-over").expect("it becomes free");
        let now = micros_now();
        let made = requests.made().since(before);
        let used = cpu().saturating_sub(cpu_before).as_secs_f64();
        drop(guard);
        println!("{now} {} {} {used}", made.reads, made.asks);
    }
}
