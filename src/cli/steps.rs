//! `acquire`, and what is done with its JSON: a lock that is held from one step to another, and by no process.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crossbeam_channel::never;
use leasehold::Lock;
use serde_json::{Value, json};

use crate::args::{Acquire, Global};
use crate::failure::{Failure, Outcome, code};
use crate::held::{Held, Wanted};
use crate::run::{refused, until};
use crate::session::Session;
use crate::show::{print, print_json, say};
use crate::store::{self, Missing, client};

/// No lock's JSON is longer.
const LONGEST: u64 = 64 << 10;

pub fn acquire(global: &Global, args: &Acquire) -> Outcome {
    let wanted = Wanted {
        keys: vec![args.key.get().to_owned()],
        labels: args.labels.clone(),
        sharing: args.sharing.clone(),
        until: until(args.patience.wait()),
        ..Wanted::default()
    };
    let (of_all, labels, lease) = (global.clone(), args.labels.clone(), args.lease);
    let session = Session::start(global, move || store::taking(&of_all, lease, &labels), wanted.until, never())?;
    let held = match session.wait(wanted) {
        Err(failure) => return refused(failure, global, &args.patience, false),
        Ok(held) => held,
    };
    let lock = match held {
        Held::One(guard) => {
            // This process may have stood still since the lock was granted.
            guard.ensure_held()?;
            guard.into_lock()
        }
        Held::All(_) => return Err(Failure::Own(code::INTERNAL, "several locks are held".to_owned())),
    };
    hand_out(&lock).inspect_err(|_| {
        if let Err(why) = session.client.release(&lock) {
            say(&format!("the lock {:?} ends with its lease only: {why}", lock.key()));
        }
    })?;
    Ok(0)
}

/// Prints the lock. An error: nobody has it, so that nobody could release it.
pub fn hand_out(lock: &Lock) -> Outcome<()> {
    print_json(&as_json(lock)).map_err(|error| {
        let message = format!("the lock could not be written and is released again: {error}");
        Failure::Own(code::OUTPUT, message)
    })
}

fn as_json(lock: &Lock) -> Value {
    serde_json::to_value(lock).unwrap_or_default()
}

/// The lock that `acquire` has printed.
fn taken(from: &Path) -> Outcome<Lock> {
    let name = if from == Path::new("-") { "standard input".to_owned() } else { from.display().to_string() };
    if name.trim_start().starts_with('{') {
        // It is no name, and not to be shown.
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
    // What is in it may be used to release a lock: only where it is wrong is said, and what is missing.
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| wrong(&format!("line {}, column {}", error.line(), error.column())))?;
    serde_json::from_value(value).map_err(|error| {
        let why = error.to_string();
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
        false => print(&format!("released {:?}, token {}\n", lock.key(), lock.fencing_token()))?,
    }
    Ok(0)
}

/// `renew --from`.
pub fn renew(global: &Global, from: &Path, lease: Duration) -> Outcome {
    let renewed = client(global, Missing::Wrong)?.heartbeat(&taken(from)?, lease)?;
    match global.json {
        true => print_json(&as_json(&renewed))?,
        false => print(&format!("renewed {:?}, token {}\n", renewed.key(), renewed.fencing_token()))?,
    }
    Ok(0)
}
