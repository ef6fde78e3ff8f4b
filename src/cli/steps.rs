//! `acquire`, and the commands that take its JSON: a lock that is held from one step to another, and by no process.

use std::fs::{File, metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvError, bounded, never, select};
use leasehold::Lock;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::args::{Acquire, Global};
use crate::failure::{Failure, Outcome, chain, code};
use crate::held::{Held, Wanted};
use crate::run::{refused, until};
use crate::session::{Session, internal};
use crate::show::{print, print_json, say};
use crate::signals::{ENDING, Hangup};
use crate::store::{self, Missing, client};
use crate::wait::{by_signal, on_thread};
use crate::words::{clock_time, whole, words};

/// The JSON of a lock is never longer than this.
const LONGEST: u64 = 64 << 10;

pub fn acquire(global: &Global, args: &Acquire) -> Outcome {
    can_be_printed()?;
    if is_printed_to_nobody() {
        return Err(Failure::usage(
            "standard output is closed, or /dev/null, so that nobody could release the lock; keep it with > FILE",
        ));
    }
    let wanted = Wanted {
        keys: vec![args.key.get().to_owned()],
        labels: args.labels.clone(),
        sharing: args.sharing.clone(),
        until: until(args.patience.wait()),
        ..Wanted::default()
    };
    let (of_all, labels, lease) = (global.clone(), args.labels.clone(), args.lease);
    let taking = move || store::taking(&of_all, lease, &labels);
    let session = Session::start(global, taking, wanted.until, Hangup::Ends, || Ok(never()))?;
    let held = match session.wait(wanted) {
        Err(failure) => return refused(failure, global, &args.patience, false),
        Ok(held) => held,
    };
    let lock = still_held(held)?;
    print_unless_told_to_end(&lock, &session.interrupts.signals).inspect_err(|_| {
        if let Err(why) = session.client.release(&lock) {
            say(&format!("the lock {:?} ends with its lease only: {}", lock.key(), chain(&why)));
        }
    })?;
    Ok(0)
}

/// Refuses a standard output that is open for reading only: the standard library would report each write to it as done.
pub fn can_be_printed() -> Outcome<()> {
    let flags = fcntl(io::stdout(), FcntlArg::F_GETFL).map(OFlag::from_bits_truncate);
    if flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDONLY) {
        return Err(Failure::usage(
            "standard output is open for reading only, so that the lock could not be written there; keep it with > FILE",
        ));
    }
    Ok(())
}

/// Whether standard output is /dev/null, where nothing is read. A closed one was opened as /dev/null before `main`
/// began.
fn is_printed_to_nobody() -> bool {
    let out = io::stdout().as_fd().try_clone_to_owned().and_then(|out| File::from(out).metadata());
    let (Ok(out), Ok(null)) = (out, metadata("/dev/null")) else { return false };
    out.file_type().is_char_device() && out.rdev() == null.rdev()
}

/// The lock as data, if it is still held: this process may have stood still since the grant.
fn still_held(held: Held) -> Outcome<Lock> {
    match held {
        Held::One(guard) => {
            guard.ensure_held()?;
            Ok(guard.into_lock())
        }
        Held::All(..) => Err(Failure::Own(code::INTERNAL, "several locks are held".to_owned())),
    }
}

fn print_unless_told_to_end(lock: &Lock, signals: &Receiver<Signal>) -> Outcome<()> {
    let printed = start_printing(lock)?;
    loop {
        select! {
            recv(printed) -> answer => return was_printed(answer),
            recv(signals) -> signal => if let Some(signal) = signal.ok().filter(|signal| ENDING.contains(signal)) {
                return Err(by_signal(signal));
            },
        }
    }
}

/// Prints the lock on a thread of its own, because that blocks if nobody reads the output.
pub fn start_printing(lock: &Lock) -> Outcome<Receiver<io::Result<()>>> {
    let (json, (done, printed)) = (as_json(lock), bounded(1));
    on_thread("leasehold-print", move || drop(done.send(print_json(&json))))?;
    Ok(printed)
}

/// The result of printing. An error: nobody has got the lock, so nobody could release it.
pub fn was_printed(answer: Result<io::Result<()>, RecvError>) -> Outcome<()> {
    answer.map_err(internal)?.map_err(|error| {
        Failure::Own(code::OUTPUT, format!("the lock could not be written, so it is given back: {error}"))
    })
}

fn as_json(lock: &Lock) -> Value {
    serde_json::to_value(lock).unwrap_or_default()
}

/// The lock that `acquire` has printed.
fn taken(from: &Path) -> Outcome<Lock> {
    let name = if from == Path::new("-") { "standard input".to_owned() } else { from.display().to_string() };
    if name.trim_start().starts_with('{') {
        // This is no name but a lock, which must not be shown.
        return Err(Failure::usage("--from wants a file: give - and the lock on standard input"));
    }
    let mut bytes = Vec::new();
    let read = match from == Path::new("-") {
        true => std::io::stdin().lock().take(LONGEST).read_to_end(&mut bytes),
        false => File::open(from).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::usage(format!("--from: {name} cannot be read: {error}")))?;
    let wrong = |why: &str| {
        Failure::usage(format!("--from: {name} is not the JSON of a lock, as `leasehold acquire` prints it: {why}"))
    };
    if bytes.trim_ascii().is_empty() {
        return Err(wrong("it is empty"));
    }
    // The content may be used to release a lock, so the message only says where it is wrong, and what is missing.
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| wrong(&format!("line {}, column {}", error.line(), error.column())))?;
    // The JSON of a newer version may have other fields, also before its version, so the version is looked at alone.
    let version = json!({ "version": value["version"] });
    serde_json::from_value(value).map_err(|error| {
        let newer = serde_json::from_value::<Lock>(version).map_err(|error| error.to_string());
        let why = newer.err().filter(|why| why.starts_with("version is")).unwrap_or_else(|| error.to_string());
        let is_plain = ["missing field", "version is"].iter().any(|start| why.starts_with(start));
        wrong(if is_plain { &why } else { "a field has another type" })
    })
}

/// `release --from`.
pub fn release(global: &Global, from: &Path) -> Outcome {
    let lock = taken(from)?;
    client(global, Missing::Wrong)?.release(&lock)?;
    match global.json {
        true => print_json(&json!({ "key": lock.key(), "fencing_token": lock.fencing_token() }))?,
        // True also if the lock had been released before.
        false => {
            print(&format!("released: nobody holds {:?} under token {} any more\n", lock.key(), lock.fencing_token()))?
        }
    }
    Ok(0)
}

/// `renew --from`.
pub fn renew(global: &Global, from: &Path, lease: Duration) -> Outcome {
    let renewed = client(global, Missing::Wrong)?.heartbeat(&taken(from)?, lease)?;
    match global.json {
        true => print_json(&as_json(&renewed))?,
        false => {
            let until = renewed.leased_until().map_or_else(String::new, |end| {
                let left = end.duration_since(SystemTime::now()).unwrap_or_default();
                format!(", for {} (until {})", words(whole(left)), clock_time(end))
            });
            print(&format!("renewed {:?}, token {}{until}\n", renewed.key(), renewed.fencing_token()))?
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_not_handed_out() {
        let client = leasehold::LockClient::connect("memory:").unwrap();
        let guard = client.request("k").max_hold(Duration::from_millis(100)).lock().unwrap();
        assert!(guard.loss().wait_timeout(Duration::from_secs(60)).is_some());
        let refused = still_held(Held::One(guard)).unwrap_err();
        assert_eq!(refused.code(), code::LOST, "{refused:?}");
    }
}
