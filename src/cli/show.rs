//! What people and machines are shown: on standard output the answer, on standard error everything else.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::{LeaseStatus, LockStatus, Mutex};
use nix::unistd::{getpgrp, tcgetpgrp};
use serde_json::{Value, json};
use terminal_size::{Width, terminal_size_of};

use crate::words::{ago, clock_time, fitted, ours, timestamp, words};

/// Whether the waiting line is on the terminal.
static LINE: Mutex<bool> = Mutex::new(false);

/// Whether standard error is for machines.
static JSON: AtomicBool = AtomicBool::new(false);

/// From now on each line on standard error is a JSON object.
pub fn speak_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// A line on standard error. If it can't be written, nobody reads it, and the error is ignored.
pub fn say(text: &str) {
    let text = ours(text);
    if JSON.load(Ordering::Relaxed) {
        return say_json(&json!({ "message": text }));
    }
    let mut line = LINE.lock();
    let clear = if std::mem::take(&mut *line) && !is_in_background() { "\r\x1b[K" } else { "" };
    err(&format!("{clear}leasehold: {text}\n"));
}

/// One JSON object on standard error.
pub fn say_json(value: &Value) {
    err(&format!("{value}\n"));
}

/// Text on standard error, in one write: others write there, too, and their text could come between the parts.
pub fn err(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Draws the waiting line anew; an empty text removes it.
pub fn wait_line(text: &str) {
    let mut line = LINE.lock();
    if is_in_background() {
        // The line of the terminal now has what the user types to a shell.
        *line = false;
        return;
    }
    if text.is_empty() && !*line {
        return;
    }
    *line = !text.is_empty();
    let text = fitted(text, columns(&io::stderr()).unwrap_or(usize::MAX));
    // A line that is wider all the same must not wrap, because it could not be drawn over.
    err(&format!("\r\x1b[K\x1b[?7l{text}\x1b[?7h"));
}

/// Whether standard error is our terminal, and another process group is in its foreground.
fn is_in_background() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|front| front != getpgrp())
}

/// The width of the terminal, if the stream is one.
pub fn columns(stream: &impl AsFd) -> Option<usize> {
    terminal_size_of(stream).map(|(Width(columns), _)| usize::from(columns))
}

pub fn is_stderr_a_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Text on standard output.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// One JSON document on standard output.
pub fn print_json(value: &Value) -> io::Result<()> {
    print(&format!("{value}\n"))
}

/// A holder: who, since when, until when.
pub fn holder(status: &LockStatus) -> String {
    let until = match status.remaining_now() {
        None => "without end".to_owned(),
        Some(left) if left.is_zero() => {
            // If the lease ended after the status was read, it may have been renewed meanwhile.
            let unless = if status.remaining() > Some(left) { ", unless it was renewed" } else { "" };
            format!("its lease ended{}{unless}", end(status, |at| format!(" {}", ago(at))))
        }
        // Says nothing of renewals: what is left of a minimum hold looks the same, and nobody renews that.
        Some(left) => format!("leased for {} more{}", words(left), end(status, |at| format!(" ({})", clock_time(at)))),
    };
    format!("{}, {until}", since(status))
}

/// The same for a holder that does not hold the lock any more.
pub fn former_holder(status: &LockStatus) -> String {
    let left = match status.remaining() {
        None => ", without end".to_owned(),
        Some(left) if left.is_zero() => String::new(),
        Some(left) => format!(", with {} of its lease left", words(left)),
    };
    format!("it was held by {}{left}", since(status))
}

fn since(status: &LockStatus) -> String {
    let comment = status.comment().map_or_else(String::new, |comment| format!(", comment {comment:?}"));
    let (owner, mode, token) = (status.owner(), status.mode(), status.fencing_token());
    let since = status.created();
    format!("{owner:?} ({mode}, token {token}{comment}) since {} ({})", clock_time(since), ago(since))
}

/// The same for a lease of names.
pub fn lease_holder(lease: &LeaseStatus) -> String {
    let (claimed, expires) = (lease.claimed(), lease.expires());
    let until = match lease.is_expired() {
        true => format!("its time is over since {}, but nobody has expired it", ago(expires)),
        false => format!("it ends in {} ({}) at the earliest", words(lease.remaining()), clock_time(expires)),
    };
    let (holder, token) = (lease.holder(), lease.fencing_token());
    format!("{holder:?} (token {token}) since {} ({}), {until}", clock_time(claimed), ago(claimed))
}

fn end(status: &LockStatus, say: impl Fn(std::time::SystemTime) -> String) -> String {
    status.leased_until().map_or_else(String::new, say)
}

/// All that is known of a holder, except its lock id, with which others could release the lock.
pub fn holder_json(status: &LockStatus) -> Value {
    json!({
        "key": status.key(),
        "mode": status.mode().to_string(),
        "owner": status.owner(),
        "host": status.host(),
        "comment": status.comment(),
        "token": status.fencing_token(),
        "created": timestamp(status.created()),
        "renewed": status.renewed().and_then(timestamp),
        "leased_until": status.leased_until().and_then(timestamp),
        "remaining_ms": status.remaining_now().map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "expired": status.is_expired(),
    })
}

/// All that is known of a lease of names.
pub fn lease_json(status: &LeaseStatus) -> Value {
    json!({
        "namespace": status.namespace(),
        "name": status.name(),
        "holder": status.holder(),
        "token": status.fencing_token(),
        "claimed": timestamp(status.claimed()),
        "extended": status.extended().and_then(timestamp),
        "expires": timestamp(status.expires()),
        "remaining_ms": u64::try_from(status.remaining().as_millis()).unwrap_or(u64::MAX),
        "expired": status.is_expired(),
        "pinned_by": status.pinned_by(),
    })
}
