//! Faults that meet all workers alike: those of the server, by commands of the user's, and a full disk.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

use crate::checker::history::Line;
use crate::clock::now;
use crate::options::{DELETED, FULL, Options};
use crate::proxy::Told;
use crate::worker::key;

/// A command that takes longer is killed, because no other fault could be tried meanwhile.
const LONGEST: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(10);
/// A file system of up to this size may be filled.
const SMALL: u64 = 256 << 20;

/// How many rows are deleted one after the other: several, because most keys are free at that moment.
const DELETIONS: usize = 8;

enum Fault {
    /// Its name, and what the shell runs.
    Hook(String, String),
    /// What the shell runs to delete the row of a key, and the keys.
    Delete(String, Vec<String>),
    /// The disk of the file in this folder.
    Full(PathBuf),
}

impl Fault {
    fn name(&self) -> &str {
        match self {
            Fault::Hook(name, _) => name,
            Fault::Delete(..) => DELETED,
            Fault::Full(_) => FULL,
        }
    }

    /// Makes the fault, takes it back, and reports it.
    fn make(&self, lease: Duration, random: &mut fastrand::Rng, told: &Told) -> Result<(), String> {
        let from = now();
        match self {
            Fault::Hook(_, command) => hook(command, "")?,
            Fault::Full(folder) => fill(folder, lease.mul_f64(0.2 + random.f64()))?,
            Fault::Delete(command, keys) => {
                for _ in 0..DELETIONS {
                    let (from, key) = (now(), keys[random.usize(..keys.len())].clone());
                    hook(command, &key)?;
                    told(Line::Deleted { from, to: now(), key });
                }
                return Ok(());
            }
        }
        told(Line::Server { from, to: now(), kind: self.name().to_owned() });
        Ok(())
    }
}

/// The folder of a SQLite file, if it is on a file system that is small enough to be filled.
pub fn small_disk(options: &Options) -> Option<PathBuf> {
    let path = options.sqlite_file()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let disk = statvfs(folder).ok()?;
    (disk.blocks() * disk.fragment_size() <= SMALL).then(|| folder.to_owned())
}

/// How many faults of the server began and ended: odd while there is one.
pub type Made = Arc<AtomicUsize>;

/// Makes one fault after the other until `over`; then it ends the current one, and returns what went wrong.
pub fn start(options: &Options, told: Told, over: Arc<AtomicBool>, count: Made) -> JoinHandle<Vec<String>> {
    let mut faults: Vec<Fault> = Vec::new();
    faults.extend(options.hooks.iter().map(|(name, command)| Fault::Hook(name.clone(), command.clone())));
    let keys = || (0..options.keys).map(|number| key(options, number).0).collect();
    faults.extend(options.delete.iter().map(|command| Fault::Delete(command.clone(), keys())));
    faults.extend(small_disk(options).filter(|_| options.has(FULL)).map(Fault::Full));
    let (lease, mut random) = (options.lease, fastrand::Rng::with_seed(options.seed ^ 0x5e4e));
    std::thread::spawn(move || {
        let mut broken = Vec::new();
        for fault in faults.iter().cycle() {
            // Time to recover: a store that is disturbed all the time shows nothing.
            let calm = Instant::now() + lease.mul_f64(3.0 + 3.0 * random.f64());
            while Instant::now() < calm {
                if over.load(Ordering::SeqCst) {
                    return broken;
                }
                std::thread::sleep(TICK);
            }
            let is_of_all = usize::from(!matches!(fault, Fault::Delete(..)));
            count.fetch_add(is_of_all, Ordering::SeqCst);
            let from = now();
            let made = fault.make(lease, &mut random, &told);
            count.fetch_add(is_of_all, Ordering::SeqCst);
            if let Err(why) = made {
                // The fault does not count, but may have been half made, which explains what followed.
                told(Line::Late { from, to: now() });
                broken.push(format!("the fault {}: {why}", fault.name()));
                return broken;
            }
        }
        broken
    })
}

/// Runs the command to its end, in a process group of its own and with the key in its environment.
fn hook(command: &str, key: &str) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).env("KEY", key).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let mut child = shell.spawn().map_err(|error| format!("sh: {error}"))?;
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("its command failed: {status}")),
            Ok(None) if started.elapsed() < LONGEST => std::thread::sleep(TICK),
            Ok(None) => {
                let group = i32::try_from(child.id()).expect("a process id");
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
                let _ = child.wait();
                return Err(format!("its command did not end within {} s", LONGEST.as_secs()));
            }
            Err(error) => return Err(format!("its command: {error}")),
        }
    }
}

/// Takes all space that is left, and gives it back.
fn fill(folder: &Path, time: Duration) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    // The file has no name, so that a run that is killed leaves nothing.
    let mut file = tempfile::tempfile_in(folder).map_err(told)?;
    let until = Instant::now() + time;
    let (block, mut was_full) = ([0; 4096], false);
    // It also takes what others give back meanwhile; and if the machine stood still for that time, the disk still gets
    // full.
    while !was_full || Instant::now() < until {
        match file.write_all(&block) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                was_full = true;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(told(error)),
        }
    }
    Ok(())
}
