//! The parent: starts the workers, makes the faults, and gathers the histories.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold::{LockClient, Mutex};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::checker::history::{Fate, Line};
use crate::clock::{measure_lateness, nanos, now};
use crate::left;
use crate::options::{Kind, Options};
use crate::probe::{Finding, judge};
use crate::proxy::{DATE, Fault, Proxy, TWICE, Told};
use crate::resource;
use crate::server;
use crate::wall::{self, Wall};
use crate::wire::Wire;
use crate::worker::{ABANDONED, NOT_CONNECTED, chain};

/// How long one request may take before anything is disturbed: a server may be cold.
const START: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(10);
/// When this many processes of one slot in a row fail to connect, the run ends: each tries for long enough.
const CONNECTS: usize = 3;
/// How many findings of the probe are kept at most: more say nothing new.
const FINDINGS: usize = 5;
/// The name of the probe's keys; `PROBED` is their lease.
pub const PROBE: &str = "probe";
const PROBED: Duration = Duration::from_secs(30);
/// How often the terminal shows the progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// The result of a run.
pub struct Ran {
    pub dir: PathBuf,
    /// What went wrong with processes, apart from the locks.
    pub broken: Vec<String>,
    /// Faults that could not be made.
    pub missing: Vec<String>,
}

/// A worker's place, for one process after the other.
struct Slot {
    number: usize,
    incarnation: usize,
    /// How many processes in a row could not connect.
    unconnected: usize,
    child: Child,
    _stdin: Option<ChildStdin>,
    proxy: Option<Proxy>,
    wall: Option<Wall>,
    stopped: Option<(u64, Instant)>,
    next_fault: Instant,
}

impl Slot {
    fn name(&self) -> String {
        name(self.number, self.incarnation)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // It is our child and was not waited for, so no other process has its id.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// However the parent ends, no worker remains, not even a stopped one that has the store's file locked.
impl Drop for Slot {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::SIGCONT);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn name(slot: usize, incarnation: usize) -> String {
    format!("w{slot}.{incarnation}")
}

/// Everything that the parent knows of a run that goes on.
struct Parent<'a> {
    options: &'a Options,
    dir: &'a Path,
    told: Told,
    random: fastrand::Rng,
    faketime: Option<String>,
    /// The server behind the proxies.
    server: Option<String>,
    faults: usize,
    broken: Vec<String>,
}

/// Makes the whole run.
pub fn run(options: &Options) -> Result<Ran, String> {
    let dir = options
        .out
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("torture-{}-{}", options.seed, std::process::id())));
    let made = fs::create_dir_all(dir.join("handed"));
    made.map_err(|error| format!("{}: {error}", dir.display()))?;
    let has_log = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|e| e.path().extension() == Some("log".as_ref()));
    if fs::read_dir(&dir).is_ok_and(|mut entries| entries.any(has_log)) {
        return Err(format!("{} has histories of another run", dir.display()));
    }
    println!("torture: histories in {}", dir.display());
    let told = log_to(&dir.join("parent.log"))?;
    let connect = |timeout: Duration| {
        let client = LockClient::builder(options.store.clone()).create_schema(true).request_timeout(timeout);
        client.lease(PROBED).connect().map_err(|error| format!("no store: {}", chain(&error)))
    };
    let grace = connect(START)?.diagnose().map_err(|error| chain(&error))?.grace;
    // The probe's client: a request of it that hangs explains what the workers see meanwhile, so it must not hang for
    // half a minute. There are two tries, because the machine may stand still.
    let client = connect(options.lease * 2).or_else(|_| connect(options.lease * 2))?;
    let (slack, settle) = match options.kind() {
        Kind::Sqlite => (1_000, 1_000),
        Kind::Dynamodb => (1_500, 3_000),
        Kind::Mongodb => (1_500, 5_000),
        Kind::Postgres => (1_500, 5_000),
        Kind::Spanner => (2_000, 10_000),
    };
    let millis = |ms: u64| ms * 1_000_000;
    let settle = millis(settle) + 2 * nanos(options.request_timeout());
    told(Line::Terms {
        lease: nanos(options.lease),
        timeout: nanos(options.request_timeout()),
        grace: nanos(grace),
        slack: millis(slack),
        settle,
        fate: match options.kind() {
            Kind::Sqlite => Fate::Shared,
            // Its emulator has one transaction at a time.
            Kind::Spanner => Fate::Crowded,
            Kind::Dynamodb | Kind::Mongodb | Kind::Postgres => Fate::Own,
        },
    });
    resource::serve(&dir).map_err(|error| format!("the resource's socket: {error}"))?;
    let mut missing = Vec::new();
    let faketime = options.has("wall").then(wall::library).flatten();
    if options.has("wall") && faketime.is_none() {
        missing.push("wall (the program faketime is not there)".to_owned());
    }
    let has_proxy = ["net", TWICE, DATE].iter().any(|fault| options.has(fault));
    let server = if has_proxy { Some(server(options)?) } else { None };
    let tell = told.clone();
    measure_lateness(options.lease, move |line| tell(line));
    let over = Arc::new(AtomicBool::new(false));
    let made = server::Made::default();
    let probe = measure_store(client, options.key(PROBE), told.clone(), over.clone(), made.clone());
    let random = fastrand::Rng::with_seed(options.seed);
    let mut parent = Parent { options, dir: &dir, told, random, faketime, server, faults: 0, broken: Vec::new() };
    let mut slots = (0..options.workers).map(|n| parent.start(n)).collect::<Result<Vec<_>, _>>()?;
    let calm = Arc::new(AtomicBool::new(false));
    let servers = server::start(options, parent.told.clone(), calm.clone(), made);
    if let Err(why) = parent.disturb(&mut slots) {
        parent.broken.push(why);
    }
    calm.store(true, Ordering::SeqCst);
    parent.broken.extend(servers.join().unwrap_or_else(|_| vec!["what disturbs the server panicked".to_owned()]));
    parent.end(slots);
    over.store(true, Ordering::SeqCst);
    // What the probe is still waiting for may explain what the workers saw.
    let mut broken = parent.broken;
    broken.extend(probe.join().unwrap_or_else(|_| vec!["the probe of the store panicked".to_owned()]));
    // By then requests that the last fault has held up, or sends once more, are over, too.
    let longest = options.lease * 5 + grace + Duration::from_nanos(settle + millis(slack));
    let looked = connect(START).and_then(|client| left::look_at_rows(&client, options, &parent.told, longest));
    broken.extend(looked.err().map(|why| format!("what is left in the store: {why}")));
    Ok(Ran { dir, broken, missing })
}

fn log_to(path: &Path) -> Result<Told, String> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = Mutex::new(file);
    Ok(Arc::new(move |line| {
        let wrote = file.lock().write_all(format!("{line}\n").as_bytes());
        wrote.expect("the parent's history can be written");
    }))
}

/// Writes down when the store itself is so slow that no lease can be kept: a busy disk, a server without a processor.
/// It uses keys of its own and no proxy. Returns what it finds wrong and not only slow.
fn measure_store(
    client: LockClient,
    key: String,
    told: Told,
    over: Arc<AtomicBool>,
    faults: server::Made,
) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let (mut broken, mut failures) = (Vec::new(), 0);
        while !over.load(Ordering::SeqCst) {
            let (from, begun) = (now(), faults.load(Ordering::SeqCst));
            // After a failure the probe may still hold its key, and a server that was killed may have brought a hold
            // back. So it uses another key then.
            let asked = client.request(&format!("{key}-{failures}-{begun}")).acquire();
            let failed = asked.and_then(|lock| client.release(&lock)).err();
            let to = now();
            let is_disturbed = faults.load(Ordering::SeqCst) > 0;
            let kind = failed.as_ref().map(leasehold::Error::kind);
            match judge(kind, Duration::from_nanos(to - from), PROBED, is_disturbed) {
                Finding::Well => {}
                Finding::Late => told(Line::Late { from, to }),
                Finding::Broken(why) if broken.len() < FINDINGS => {
                    broken.push(format!("the parent's own key, which nobody else asks for: {why}"));
                }
                Finding::Broken(_) => {}
            }
            failures += usize::from(failed.is_some() || !begun.is_multiple_of(2));
            std::thread::sleep(TICK * 10);
        }
        broken
    })
}

/// The host and port that the store URL names.
fn server(options: &Options) -> Result<String, String> {
    let url = &options.store;
    let found = match options.kind() {
        Kind::Spanner => std::env::var("SPANNER_EMULATOR_HOST").ok(),
        Kind::Dynamodb => url.split_once("endpoint=http://").map(|(_, rest)| rest.to_owned()),
        _ => url.split_once("://").map(|(_, rest)| rest.rsplit('@').next().unwrap_or(rest).to_owned()),
    };
    let host = found.and_then(|rest| rest.split(['/', '?', '&']).next().map(str::to_owned));
    let loopback = |host: &String| {
        let one = !host.contains(',') && host.contains(':');
        one && ["127.0.0.1:", "localhost:"].iter().any(|name| host.starts_with(name))
    };
    host.filter(loopback).ok_or_else(|| {
        "faults of the network need a store with one host on loopback and a port, reached without TLS (MongoDB: with \
         directConnection=true, too); leave net, twice and date out of --faults"
            .to_owned()
    })
}

impl Parent<'_> {
    fn start(&mut self, number: usize) -> Result<Slot, String> {
        let proxy = match &self.server {
            Some(server) => {
                let wire = match self.options.kind() {
                    Kind::Dynamodb => Some(Wire::Dynamodb),
                    Kind::Mongodb => Some(Wire::Mongodb),
                    Kind::Sqlite | Kind::Postgres | Kind::Spanner => None,
                };
                let proxy = Proxy::start(server, wire, &self.options.run, self.told.clone());
                Some(proxy.map_err(|error| format!("the proxy: {error}"))?)
            }
            None => None,
        };
        let (child, stdin, wall) = self.spawn(number, 0, proxy.as_ref())?;
        // Not at once, so that the new process gets to work first.
        let next_fault = Instant::now() + self.options.lease.mul_f64(0.5 + 3.0 * self.random.f64());
        Ok(Slot {
            number,
            incarnation: 0,
            unconnected: 0,
            child,
            _stdin: stdin,
            proxy,
            wall,
            stopped: None,
            next_fault,
        })
    }

    fn spawn(
        &mut self,
        number: usize,
        incarnation: usize,
        proxy: Option<&Proxy>,
    ) -> Result<(Child, Option<ChildStdin>, Option<Wall>), String> {
        let name = name(number, incarnation);
        let binary = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(binary);
        let mut url = self.options.store.clone();
        if let (Some(proxy), Some(server)) = (proxy, &self.server) {
            proxy.belongs_to(&name);
            let here = format!("127.0.0.1:{}", proxy.port);
            match self.options.kind() {
                Kind::Spanner => {
                    command.env("SPANNER_EMULATOR_HOST", here);
                }
                _ => url = url.replacen(server, &here, 1),
            }
        }
        let wall = match self.faketime.as_ref().filter(|_| number % 2 == 1) {
            Some(library) => {
                let (wall, seconds) = Wall::set(&mut command, library, self.dir, &name, self.random.fork())?;
                (self.told)(Line::Wall { at: now(), process: name.clone(), seconds });
                Some(wall)
            }
            None => None,
        };
        let work = format!("{}/{name}", self.dir.display());
        command.args(self.options.to_worker(&url, &work));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut child = child.map_err(|error| format!("this program again: {error}"))?;
        let stdin = child.stdin.take();
        Ok((child, stdin, wall))
    }

    /// Makes faults until the time is over: storms of them, with calm between.
    fn disturb(&mut self, slots: &mut [Slot]) -> Result<(), String> {
        let started = Instant::now();
        let (storm, calm) = (self.options.lease * 5, self.options.lease * 4);
        let mut shown = Instant::now();
        while started.elapsed() < self.options.time {
            std::thread::sleep(TICK);
            let into = started.elapsed().as_secs_f64() % (storm + calm).as_secs_f64();
            let is_storm = into < storm.as_secs_f64();
            for slot in slots.iter_mut() {
                self.look_after(slot, is_storm)?;
            }
            if shown.elapsed() > PROGRESS {
                shown = Instant::now();
                self.show_progress(started.elapsed());
            }
        }
        Ok(())
    }

    fn show_progress(&self, elapsed: Duration) {
        let size = |path: PathBuf| fs::metadata(path).map_or(0, |data| data.len());
        let files = fs::read_dir(self.dir).into_iter().flatten().flatten().map(|entry| size(entry.path()));
        let bytes: u64 = files.sum();
        let (end, of) = (if io::stderr().is_terminal() { "\r" } else { "\n" }, self.options.time.as_secs());
        eprint!(
            "torture: {} of {of} s, {:.1} MB of history, {} stops, kills and faults of the network begun  {end}",
            elapsed.as_secs(),
            bytes as f64 / 1e6,
            self.faults
        );
    }

    fn look_after(&mut self, slot: &mut Slot, is_storm: bool) -> Result<(), String> {
        // The wall clock jumps also while the process is stopped.
        if let Some(seconds) =
            slot.wall.as_mut().and_then(|wall| wall.jump(self.options.lease).transpose()).transpose()?
        {
            (self.told)(Line::Wall { at: now(), process: slot.name(), seconds });
        }
        if let Some((from, until)) = slot.stopped {
            if Instant::now() < until {
                return Ok(());
            }
            self.go_on(slot, from);
        }
        if let Ok(Some(status)) = slot.child.try_wait() {
            if ![Some(ABANDONED), Some(NOT_CONNECTED)].contains(&status.code()) {
                self.broken.push(format!("{} ended by itself: {status}", slot.name()));
            }
            slot.unconnected += usize::from(status.code() == Some(NOT_CONNECTED));
            if slot.unconnected >= CONNECTS {
                return Err(format!(
                    "{CONNECTS} processes in a row could not connect, the last of them {}",
                    slot.name()
                ));
            }
            return self.replace(slot);
        }
        if Instant::now() < slot.next_fault || !is_storm {
            return Ok(());
        }
        let lease = self.options.lease;
        slot.next_fault = Instant::now() + lease.mul_f64(2.0 + 5.0 * self.random.f64());
        let kinds = ["stop", "kill", "net", TWICE, "net", DATE];
        let kinds: Vec<&str> = kinds.into_iter().filter(|kind| self.options.has(kind)).collect();
        // In turn, so that a short run has each.
        let Some(kind) = kinds.get(self.faults % kinds.len().max(1)).copied() else { return Ok(()) };
        self.faults += 1;
        match kind {
            "stop" => {
                let leases = if self.random.u32(..4) == 0 { 0.3 } else { 1.0 } + 2.0 * self.random.f64();
                slot.signal(Signal::SIGSTOP);
                slot.stopped = Some((now(), Instant::now() + lease.mul_f64(leases)));
            }
            "kill" => {
                let _ = slot.child.kill();
                let _ = slot.child.wait();
                self.replace(slot)?;
            }
            _ => {
                if let Some(proxy) = &slot.proxy {
                    let (fault, time) = Fault::of(kind, &mut self.random, lease);
                    proxy.disturb(fault, time);
                }
            }
        }
        Ok(())
    }

    fn go_on(&self, slot: &mut Slot, from: u64) {
        slot.signal(Signal::SIGCONT);
        slot.stopped = None;
        (self.told)(Line::Stopped { from, to: now(), process: slot.name() });
    }

    /// The process is gone: another one takes its place.
    fn replace(&mut self, slot: &mut Slot) -> Result<(), String> {
        (self.told)(Line::Dead { at: now(), process: slot.name() });
        // A process has a history once it was connected.
        if self.dir.join(format!("{}.log", slot.name())).exists() {
            slot.unconnected = 0;
        }
        wall::clean_up(slot.child.id());
        slot.incarnation += 1;
        (slot.child, slot._stdin, slot.wall) = self.spawn(slot.number, slot.incarnation, slot.proxy.as_ref())?;
        slot.next_fault = Instant::now() + self.options.lease.mul_f64(1.0 + 4.0 * self.random.f64());
        Ok(())
    }

    fn end(&mut self, mut slots: Vec<Slot>) {
        for slot in &mut slots {
            if let Some((from, _)) = slot.stopped {
                self.go_on(slot, from);
            }
        }
        (self.told)(Line::Over { at: now() });
        slots.iter_mut().for_each(|slot| slot._stdin = None);
        let until = Instant::now() + self.options.lease * 6 + Duration::from_secs(30);
        // All of them at the same time, because the time of each end is written down.
        while !slots.is_empty() {
            std::thread::sleep(TICK);
            slots.retain_mut(|slot| self.goes_on(slot, until));
        }
    }

    /// Whether a process that was asked to end is still running and still has time to end.
    fn goes_on(&mut self, slot: &mut Slot, until: Instant) -> bool {
        match slot.child.try_wait() {
            Ok(None) if Instant::now() < until => return true,
            Ok(None) => {
                self.broken.push(format!("{} did not end", slot.name()));
                let _ = slot.child.kill();
                let _ = slot.child.wait();
            }
            Ok(Some(status)) => {
                if ![Some(0), Some(ABANDONED), Some(NOT_CONNECTED)].contains(&status.code()) {
                    self.broken.push(format!("{} ended by {status}", slot.name()));
                }
            }
            Err(error) => self.broken.push(format!("{}: {error}", slot.name())),
        }
        wall::clean_up(slot.child.id());
        (self.told)(Line::Dead { at: now(), process: slot.name() });
        false
    }
}
