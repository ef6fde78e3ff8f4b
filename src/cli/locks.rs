//! The commands that look after the locks of a store.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use leasehold::{ErrorKind, Filter, LockClient, LockStatus, Mode};
use serde_json::{Value, json};

use crate::args::{Global, Purge, Release, Renew, States, Status, Times};
use crate::failure::{Failure, Outcome, chain, code};
use crate::show::{columns, err, former_holder, holder, holder_json, print, print_json, say};
use crate::steps;
use crate::store::{Missing, client};
use crate::words::{ago, duration, fitted, plain, words};

/// How often to look if the user does not say it.
const LOOK: Duration = Duration::from_secs(2);
/// After a look for which the store may have read all of its rows, it pauses at least this many times as long as that took,
/// but at most `LONGEST`.
const SHARE: u32 = 10;
const LONGEST: Duration = Duration::from_secs(60);

pub fn status(global: &Global, args: &Status) -> Outcome {
    if let (Some(None), Some(key)) = (args.watch, &args.key)
        && duration(key).is_ok()
    {
        // It would be watched for ever, since nobody holds a lock of that name.
        return Err(Failure::usage(format!(
            "{key:?} is taken for a key; give --watch={key} to look that often, or --watch=2s {key} to watch the lock \
             of that name"
        )));
    }
    let client = client(global, Missing::Wrong)?;
    let Some(every) = args.watch else { return show_status(global, args, &client.list(&filter(args))?) };
    let every = every.unwrap_or(LOOK);
    let clears = std::io::stdout().is_terminal() && !global.json;
    loop {
        let began = Instant::now();
        let found = client.list(&filter(args));
        let took = began.elapsed();
        if clears {
            print("\x1b[H\x1b[2J")?;
        }
        match found {
            // Like `run`, this waits for a store that is in trouble.
            Err(error) if error.is_retryable() => say(&chain(&error)),
            found => drop(show_status(global, args, &found?)?),
        }
        thread::sleep(rest(every, took, args.key.is_none()));
    }
}

/// The pause after a look that took so long.
fn rest(every: Duration, took: Duration, may_read_all: bool) -> Duration {
    let least = if may_read_all { (took * SHARE).min(LONGEST) } else { Duration::ZERO };
    every.saturating_sub(took).max(least)
}

fn show_status(global: &Global, args: &Status, found: &[LockStatus]) -> Outcome {
    let is_free = found.iter().all(LockStatus::is_expired);
    let code = u8::from(args.exit_code && is_free);
    let shown = match &args.key {
        _ if global.json => print_json(&found.iter().map(with_lock_id).collect()),
        // The filter may have left out locks that are held.
        _ if found.is_empty() && is_narrowed(args) => print("no such lock was found\n"),
        Some(key) if found.is_empty() => print(&format!("{key:?} is free\n")),
        None if found.is_empty() => print("no locks\n"),
        _ => print_table(found),
    };
    match shown {
        // The reader has closed the output, so it has seen enough, but the exit code must still be right.
        Err(error) if code != 0 && error.kind() == io::ErrorKind::BrokenPipe => Ok(code),
        shown => Ok(shown.map(|()| code)?),
    }
}

/// Whether the user asks for less than all locks, or than all that is known of one key.
fn is_narrowed(args: &Status) -> bool {
    let Times { older_than, newer_than, left_below, left_at_least } = args.times;
    let States { exclusive, shared, live, expired } = args.states;
    [&args.prefix, &args.owner, &args.lock_id].iter().any(|text| text.is_some())
        || [older_than, newer_than, left_below, left_at_least].iter().any(Option::is_some)
        || exclusive
        || shared
        || live
        || expired
}

fn filter(args: &Status) -> Filter {
    let now = std::time::SystemTime::now();
    let mut filter = Filter::new();
    if let Some(key) = &args.key {
        filter = filter.key(key);
    }
    if let Some(prefix) = &args.prefix {
        filter = filter.key_prefix(prefix);
    }
    if let Some(owner) = &args.owner {
        filter = filter.owner(owner);
    }
    if let Some(lock_id) = &args.lock_id {
        filter = filter.lock_id(lock_id);
    }
    if let Some(at) = args.times.older_than.and_then(|age| now.checked_sub(age)) {
        filter = filter.created_before(at);
    }
    if let Some(at) = args.times.newer_than.and_then(|age| now.checked_sub(age)) {
        filter = filter.created_after(at);
    }
    if let Some(left) = args.times.left_below {
        filter = filter.remaining_below(left);
    }
    if let Some(left) = args.times.left_at_least {
        filter = filter.remaining_at_least(left);
    }
    if args.states.shared {
        filter = filter.mode(Mode::Shared);
    }
    if args.states.exclusive {
        filter = filter.mode(Mode::Exclusive);
    }
    if args.states.live {
        filter = filter.live();
    }
    if args.states.expired {
        filter = filter.expired();
    }
    filter
}

/// With the lock id a machine can renew and unlock.
fn with_lock_id(status: &LockStatus) -> Value {
    let mut value = holder_json(status);
    value["lock_id"] = json!(status.lock_id());
    value
}

fn print_table(found: &[LockStatus]) -> io::Result<()> {
    let mut table = table(&["KEY", "STATE", "MODE", "OWNER", "SINCE", "LEASE", "TOKEN", "COMMENT"]);
    for status in found {
        let lease = match (status.remaining_now(), status.leased_until()) {
            (None, _) => "no end".to_owned(),
            (Some(left), _) if !left.is_zero() => format!("{} left", words(left)),
            (_, Some(end)) => format!("ended {}", ago(end)),
            (_, None) => "ended".to_owned(),
        };
        table.add_row([
            cell(status.key()),
            if status.is_expired() { "expired" } else { "live" }.to_owned(),
            status.mode().to_string(),
            cell(status.owner()),
            ago(status.created()),
            lease,
            status.fencing_token().to_string(),
            cell(status.comment().unwrap_or_default()),
        ]);
    }
    let expired = AnsiColor::Yellow.on_default();
    // Coloured line by line after the layout, which does not know escape sequences.
    let mut out = anstream::stdout().lock();
    for (line, status) in table.lines().zip(std::iter::once(None).chain(found.iter().map(Some))) {
        let style = match status {
            None => Style::new().bold(),
            Some(status) if status.is_expired() => expired,
            Some(_) => Style::new(),
        };
        writeln!(out, "{style}{}{style:#}", line.trim_end())?;
    }
    out.flush()
}

/// A table without borders, with one line for each row.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head.to_vec());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// A text that others chose. On a terminal it is cut to a fifth of the width, but at least 16 columns.
pub fn cell(text: &str) -> String {
    let text = plain(text);
    match columns(&std::io::stdout()) {
        Some(columns) => fitted(&text, (columns / 5).max(16)),
        None => text,
    }
}

/// Prints which locks were released or renewed, and how each lock is, or was, held.
fn told(
    global: &Global,
    what: &str,
    nothing: &str,
    statuses: &[LockStatus],
    held: fn(&LockStatus) -> String,
) -> Outcome {
    if global.json {
        print_json(&statuses.iter().map(with_lock_id).collect())?;
    } else if statuses.is_empty() {
        print(&format!("{nothing}\n"))?;
    } else {
        let lines = statuses.iter().map(|status| format!("{what} {:?}: {}\n", status.key(), held(status)));
        print(&lines.collect::<String>())?;
    }
    Ok(0)
}

pub fn release(global: &Global, args: &Release) -> Outcome {
    if let Some(lock_id) = &args.group {
        return release_group(global, lock_id);
    }
    if let Some(from) = &args.from {
        return steps::release(global, from);
    }
    let Some(key) = args.key.as_deref() else {
        return Err(Failure::usage(
            "say what to release: --from FILE with what `acquire` has printed, a KEY with --lock-id or --force, or --group \
             with a lock id",
        ));
    };
    let nothing = format!("{key:?} is free");
    if !args.force {
        // Not read by the parser, which would refuse it together with --force.
        let lock_id = args.lock_id.clone().or_else(|| std::env::var("LEASEHOLD_LOCK_ID").ok());
        let lock_id = lock_id.filter(|id| !id.is_empty()).ok_or_else(|| {
            Failure::usage(
                "give --from FILE with what `acquire` has printed, the --lock-id of the lock, or --force to take it from \
                 whoever holds it",
            )
        })?;
        let freed = client(global, Missing::Wrong)?.unlock_key(key, &lock_id)?;
        return told(global, "released", &nothing, &freed, former_holder);
    }
    if global.json && !args.yes {
        return Err(Failure::usage("--force asks before it takes a lock away, which is no JSON; give --yes"));
    }
    let client = client(global, Missing::Wrong)?;
    if args.yes {
        return told(global, "released", &nothing, &client.force_release(key)?, former_holder);
    }
    let mut freed = Vec::new();
    let answer = release_shown(&client, key, &mut freed);
    if answer.is_ok() || !freed.is_empty() {
        told(global, "released", &nothing, &freed, former_holder)?;
    }
    answer.map(|()| 0)
}

/// Releases the holders that were shown to the user, and no holder that came during the wait for the answer. (A holder
/// that takes over with the same lock id between the last look and the release is released, too: the release goes by
/// lock id.)
fn release_shown(client: &LockClient, key: &str, freed: &mut Vec<LockStatus>) -> Outcome<()> {
    let holders = || client.list(&Filter::new().key(key));
    let mut shown = holders()?;
    while !shown.is_empty() {
        confirm(key, &shown)?;
        // Not by the lock id alone: a group may use one lock id for all its locks.
        let is_shown = |now: &LockStatus| {
            let same =
                |then: &LockStatus| (then.fencing_token(), then.lock_id()) == (now.fencing_token(), now.lock_id());
            shown.iter().any(same)
        };
        let (still, others): (Vec<_>, Vec<_>) = holders()?.into_iter().partition(is_shown);
        let mut lock_ids: Vec<&str> = still.iter().map(LockStatus::lock_id).collect();
        lock_ids.sort_unstable();
        lock_ids.dedup();
        let mut came = false;
        for lock_id in lock_ids {
            match client.unlock_key(key, lock_id) {
                // The holder went between these two calls, and another came.
                Err(error) if error.kind() == ErrorKind::Held => came = true,
                released => freed.extend(released?),
            }
        }
        shown = if came { holders()? } else { others };
    }
    Ok(())
}

/// Shows the holders and asks.
fn confirm(key: &str, holders: &[LockStatus]) -> Outcome<()> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("--force asks before it takes a lock away, but there is no terminal; give --yes"));
    }
    let held: String = holders.iter().map(|status| format!("{key:?} is held by {}\n", holder(status))).collect();
    err(&format!("{held}Its holder learns of it only at its next heartbeat. Release it? [y/N] "));
    let mut answer = String::new();
    // An answer that cannot be read is no consent.
    match io::stdin().read_line(&mut answer).map(|_| answer.trim()) {
        Ok("y" | "Y" | "yes") => Ok(()),
        _ => Err(Failure::Own(code::CONFLICT, format!("{key:?} was left as it is"))),
    }
}

pub fn renew(global: &Global, args: &Renew) -> Outcome {
    if let Some(from) = &args.from {
        return steps::renew(global, from, args.lease);
    }
    let lock_id = args.group.as_deref().or(args.lock_id.as_deref()).ok_or_else(|| {
        Failure::usage("say what to renew: --from FILE with what `acquire` has printed, or --group with a lock id")
    })?;
    told(global, "renewed", "nothing was renewed", &client(global, Missing::Wrong)?.renew(lock_id, args.lease)?, holder)
}

pub fn release_group(global: &Global, lock_id: &str) -> Outcome {
    let nothing = format!("no lock with the lock id {lock_id:?} is held");
    told(global, "released", &nothing, &client(global, Missing::Wrong)?.unlock(lock_id)?, former_holder)
}

/// Reports page by page, so that a store of any size needs only the memory of one page.
pub fn purge(global: &Global, args: &Purge) -> Outcome {
    let client = client(global, Missing::Wrong)?;
    let pages = client.purge_pages(args.older_than);
    let pages = if args.dry_run { pages.preview() } else { pages };
    let would = if args.dry_run { "would be " } else { "" };
    let (mut freed, mut deleted) = (0, 0);
    let mut outcome: Outcome<()> = Ok(());
    // If nobody reads the output any more (`| head`), it goes on purging.
    let mut printed = Ok(());
    if global.json {
        printed = print(&format!("{{\"dry_run\":{},\"freed\":[", args.dry_run));
    }
    for page in pages {
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                outcome = Err(error.into());
                break;
            }
        };
        let lines = page.freed.iter().zip(freed..).map(|(status, before)| match global.json {
            true => format!("{}{}", if before == 0 { "" } else { "," }, with_lock_id(status)),
            false => format!("{would}freed: {:?}: {}\n", status.key(), holder(status)),
        });
        printed = printed.and_then(|()| print(&lines.collect::<String>()));
        if args.dry_run && printed.is_err() {
            break;
        }
        freed += page.freed.len();
        deleted += page.deleted;
    }
    // Also after an error of the store, because what was done before stays done.
    let last = match global.json {
        true => format!("],\"deleted_rows\":{deleted}}}\n"),
        false => format!("locks {would}freed: {freed}, unused rows {would}deleted: {deleted}\n"),
    };
    let printed = printed.and_then(|()| print(&last));
    outcome?;
    printed?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_pauses_longer_where_a_look_at_all_takes_long() {
        let (second, fast, slow) = (Duration::from_secs(1), Duration::from_millis(10), Duration::from_secs(3));
        assert_eq!(rest(2 * second, fast, true), 2 * second - fast);
        assert_eq!(rest(2 * second, slow, true), 30 * second);
        assert_eq!(rest(2 * second, 20 * second, true), 60 * second);
        assert_eq!(rest(2 * second, second, false), second);
    }
}
