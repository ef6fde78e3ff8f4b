//! The store of a command, and the client of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{ClientBuilder, Event, LockClient, Observer};

use crate::args::Global;
use crate::asked::{Ask, Labels};
use crate::failure::{Failure, Outcome, chain};
use crate::on_loss::OnLoss;
use crate::secret::has_password;
use crate::show::holder;
use crate::warnings;
use crate::words::words;

/// The variable that a command gets in its environment instead of a URL that must not be passed on.
pub const WITHHELD: &str = "LEASEHOLD_STORE_WITHHELD";

/// Whether a command makes what is missing, or needs it to exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Made,
    Wrong,
}

/// The store that is meant.
pub fn url(global: &Global, missing: Missing) -> Outcome<String> {
    match global.store.as_deref() {
        // It may come from a variable that was not set. The default instead would be another store on each host.
        Some("") => Err(Failure::config(
            "the store URL is empty; give --store or LEASEHOLD_STORE a value, or neither for the file in your state \
             folder",
        )),
        Some(url) if url.starts_with("memory:") => Err(Failure::config(
            "memory: is a store within one process, which would keep no other command out; name one that all of them \
             reach, like sqlite:locks.db",
        )),
        Some(url) => Ok(url.to_owned()),
        // The default would be another store than that of the outer leasehold.
        None if std::env::var_os(WITHHELD).is_some() => Err(Failure::config(
            "the store of the leasehold around this one was not passed on, since its URL names a user or may have a \
             password, or is a file in a folder that is gone or whose name is no UTF-8; give a --store, or set LEASEHOLD_STORE",
        )),
        None => default_url(missing),
    }
}

/// The variable that passes our store on to a command: its name and value.
pub fn passed_on(url: String) -> (&'static str, String) {
    let withheld = (WITHHELD, "1".to_owned());
    if has_password(&url) {
        return withheld;
    }
    // The command may work in another folder.
    let is_absolute = |path: &str| ["/", "%2f", "%2F"].iter().any(|root| path.starts_with(root));
    let Some(path) = url.strip_prefix("sqlite:").filter(|path| !is_absolute(path)) else {
        return ("LEASEHOLD_STORE", url);
    };
    // Withheld if the folder is gone, or its name is no UTF-8.
    let folder = std::env::current_dir().ok().and_then(|folder| folder.into_os_string().into_string().ok());
    folder.map_or(withheld, |folder| ("LEASEHOLD_STORE", format!("sqlite:{}/{path}", escaped(&folder))))
}

/// A file's path as it must be in a URL, without control characters.
fn escaped(path: &str) -> String {
    let escape = |c: char| match c {
        '%' | '?' | '\0'..='\x1f' | '\x7f'..='\u{9f}' => {
            c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect()
        }
        c => c.to_string(),
    };
    path.chars().map(escape).collect()
}

/// The options that all commands set on their client.
fn builder(global: &Global, missing: Missing) -> Outcome<ClientBuilder> {
    let builder = LockClient::builder(url(global, missing)?).must_exist(missing == Missing::Wrong);
    Ok(if global.verbose == 0 { builder } else { builder.observer(Arc::new(Events { requests: global.verbose > 1 })) })
}

/// A client with the defaults of the library.
pub fn client(global: &Global, missing: Missing) -> Outcome<LockClient> {
    Ok(builder(global, missing)?.connect()?)
}

/// A client for a command that takes a lock.
pub fn taking(global: &Global, lease: Duration, labels: &Labels) -> Outcome<ClientBuilder> {
    let builder = builder(global, Missing::Made)?.lease(lease);
    Ok(match &labels.owner {
        Some(owner) => builder.owner(owner),
        None => builder,
    })
}

/// The same for a command that renews the lock: so much of each lease is kept back as margin that the user's command
/// can be ended within it, or has that time after its signal.
pub fn holding(global: &Global, ask: &Ask) -> Outcome<ClientBuilder> {
    let builder = taking(global, ask.lease, &ask.labels)?;
    if ask.on_loss == OnLoss::Ignore {
        return Ok(builder);
    }
    if matches!(ask.on_loss, OnLoss::Command(_)) && ask.kill_after().is_zero() {
        return Err(Failure::usage("--on-loss cmd:.. is done within --kill-after, so that must be above 0"));
    }
    let margin = ask.margin().map_err(|least| {
        let (kill, lease, rest) = (words(ask.kill_after()), words(ask.lease), words(ask.after_kill()));
        Failure::usage(format!(
            "--kill-after is {kill}, too long for a --lease of {lease}: with {rest} on top it must be at most a third \
             of the lease, so make it {:?} or shorter, or the lease {least:?} or longer",
            // Not rounded, because a rounded bound may be refused again.
            (ask.lease / 3).saturating_sub(ask.after_kill())
        ))
    })?;
    Ok(builder.margin(margin))
}

/// The file in the user's state folder.
fn default_url(missing: Missing) -> Outcome<String> {
    if !cfg!(feature = "sqlite") {
        let message = "no --store is given, and the default needs the feature `sqlite`, which is not compiled in";
        return Err(Failure::config(message));
    }
    let path = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
    let Some(folder) = state.map(|state| state.join("leasehold")) else {
        let message = "no --store is given, and neither XDG_STATE_HOME nor HOME says where the default could be";
        return Err(Failure::config(message));
    };
    if missing == Missing::Made {
        make_folder(&folder)?;
    }
    let path = folder.join("locks.db");
    if missing == Missing::Wrong && matches!(path.try_exists(), Ok(false)) {
        return Err(Failure::config(format!(
            "there are no locks yet: no --store is given, and {} is made by the first command that takes a lock, or by \
             `leasehold init`. If your locks are elsewhere, give --store or LEASEHOLD_STORE",
            path.display()
        )));
    }
    match path.to_str() {
        Some(path) => Ok(format!("sqlite:{}", escaped(path))),
        None => Err(Failure::config(format!("{} is not UTF-8; give a --store", path.display()))),
    }
}

fn make_folder(folder: &PathBuf) -> Outcome<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => crate::failure::code::PERMISSION,
            _ => crate::failure::code::CONFIG,
        };
        Failure::Own(code, format!("the folder {} of the default store cannot be made: {error}", folder.display()))
    })
}

/// One line for each event.
struct Events {
    requests: bool,
}

impl Observer for Events {
    fn event(&self, event: &Event<'_>) {
        let text = match event {
            Event::Request { operation, key, took, error, .. } if self.requests => {
                let key = key.map_or_else(String::new, |key| format!(" of {key:?}"));
                let end = error.map_or_else(|| "answered".to_owned(), |error| format!("failed ({})", chain(error)));
                format!("request: {operation:?}{key} {end} after {:.1} ms", took.as_secs_f64() * 1000.0)
            }
            Event::Unknown { operation, key, error, .. } => {
                format!("unknown: {operation:?} of {key:?}: {}", chain(error))
            }
            Event::Granted { key, fencing_token, waited, .. } => {
                format!("granted: {key:?} with token {fencing_token} after {}", words(*waited))
            }
            Event::Refused { key, holders, .. } => {
                let held: Vec<String> = holders.iter().map(holder).collect();
                format!("refused: {key:?} is held by {}", held.join("; "))
            }
            Event::Renewed { key, left, .. } => format!("renewed: {key:?} with {} left", words(*left)),
            Event::RenewalLate { key, left, .. } => {
                format!("late: {key:?} could not be renewed and has {} left", words(*left))
            }
            Event::Lost { loss, .. } => format!("lost: {:?}: {loss}", loss.key),
            Event::Released { key, held_for, .. } => format!("released: {key:?} after {}", words(*held_for)),
            _ => return,
        };
        // A heartbeat, or a call that has just been granted the lock, may be here: neither must wait for standard
        // error.
        warnings::tell(&text);
    }
}
