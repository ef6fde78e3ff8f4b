//! `lease`: what a name holds until somebody expires it.

use std::collections::BTreeSet;

use leasehold::{ErrorKind, LeaseStatus};
use serde_json::json;

use crate::args::{Global, Lease, LeaseName, Pin};
use crate::failure::Outcome;
use crate::locks::{cell, table};
use crate::show::{lease_json, print, print_json};
use crate::store::{Missing, client};
use crate::words::{ago, clock_time, words};

pub fn lease(global: &Global, args: &Lease) -> Outcome {
    let makes = matches!(args, Lease::Claim(_));
    let client = client(global, if makes { Missing::Made } else { Missing::Wrong })?;
    match args {
        Lease::Claim(args) => {
            let leases = client.leases(&args.lease.namespace);
            one(global, "claimed", &leases.claim(&args.lease.name, &args.holder, args.duration)?)
        }
        Lease::Extend(args) => {
            let leases = client.leases(&args.lease.namespace);
            one(global, "extended", &leases.extend(&args.lease.name, &args.holder, args.duration)?)
        }
        Lease::Expire(args) => {
            match client.leases(&args.namespace).expire(&args.name) {
                Ok(()) => gone(global, Some("expired"), args),
                // The user wants nobody to hold it, so it does not matter who has ended the lease.
                Err(error) if error.kind() == ErrorKind::InvalidLease && error.lease().is_none() => {
                    gone(global, None, args)
                }
                Err(error) => Err(error.into()),
            }
        }
        Lease::Revoke(args) => {
            client.leases(&args.lease.namespace).revoke(&args.lease.name, &args.holder)?;
            gone(global, Some("revoked"), &args.lease)
        }
        Lease::Pin(args) => {
            let leases = client.leases(&args.lease.namespace);
            leases.pin(&args.lease.name, &args.pin)?;
            let pins = leases.pinned_by(&args.lease.name)?;
            let others: BTreeSet<String> = pins.iter().filter(|pin| **pin != args.pin).cloned().collect();
            let too = if others.is_empty() { String::new() } else { format!("; pinned by {}, too", quoted(&others)) };
            pinned(global, args, &pins, &format!("pinned: {:?} by {:?}{too}", args.lease.name, args.pin))
        }
        Lease::Unpin(args) => {
            let (leases, name) = (client.leases(&args.lease.namespace), &args.lease.name);
            // A user who has mistyped the pin would wait for an end that does not come.
            let was_pinned = leases.pinned_by(name)?.contains(&args.pin);
            leases.unpin(name, &args.pin)?;
            let left = leases.pinned_by(name)?;
            let said = match (was_pinned, left.is_empty()) {
                (true, true) => format!("unpinned: {name:?} by {:?}", args.pin),
                (true, false) => format!("unpinned: {name:?} by {:?}; still pinned by {}", args.pin, quoted(&left)),
                (false, true) => format!("{name:?} is not pinned in the namespace {:?}", args.lease.namespace),
                (false, false) => format!("{name:?} is not pinned by {:?}, but by {}", args.pin, quoted(&left)),
            };
            pinned(global, args, &left, &said)
        }
        Lease::List(args) => list(global, &args.namespace, &client.leases(&args.namespace).list()?),
    }
}

/// By whom it is pinned now.
fn pinned(global: &Global, args: &Pin, by: &BTreeSet<String>, said: &str) -> Outcome {
    match global.json {
        true => print_json(&json!({ "name": args.lease.name, "namespace": args.lease.namespace, "pinned_by": by }))?,
        false => print(&format!("{said}\n"))?,
    }
    Ok(0)
}

fn quoted(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn one(global: &Global, what: &str, status: &LeaseStatus) -> Outcome {
    if global.json {
        print_json(&lease_json(status))?;
    } else {
        let (name, holder, token) = (status.name(), status.holder(), status.fencing_token());
        print(&format!(
            "{what}: {name:?} for {holder:?}, at least until {} (token {token})\n",
            clock_time(status.expires())
        ))?;
    }
    Ok(0)
}

/// How it ended; `None` if nobody held it.
fn gone(global: &Global, how: Option<&str>, LeaseName { name, namespace }: &LeaseName) -> Outcome {
    match (global.json, how) {
        (true, _) => print_json(&json!({ "name": name, "namespace": namespace, "ended": how }))?,
        (false, Some(how)) => print(&format!("{how}: {name:?}\n"))?,
        (false, None) => print(&format!("{name:?} is free in the namespace {namespace:?}\n"))?,
    }
    Ok(0)
}

fn list(global: &Global, namespace: &str, all: &[LeaseStatus]) -> Outcome {
    if global.json {
        print_json(&all.iter().map(lease_json).collect())?;
        return Ok(0);
    }
    if all.is_empty() {
        print(&format!("no leases in the namespace {namespace:?}\n"))?;
        return Ok(0);
    }
    let mut table = table(&["NAME", "HOLDER", "STATE", "CLAIMED", "LEASE", "TOKEN", "PINNED BY"]);
    for status in all {
        let left = match status.is_expired() {
            true => format!("ended {}", ago(status.expires())),
            false => format!("{} left", words(status.remaining())),
        };
        table.add_row([
            cell(status.name()),
            cell(status.holder()),
            if status.is_expired() { "expired" } else { "runs" }.to_owned(),
            ago(status.claimed()),
            left,
            status.fencing_token().to_string(),
            cell(&status.pinned_by().iter().cloned().collect::<Vec<_>>().join(", ")),
        ]);
    }
    print(&table.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>())?;
    Ok(0)
}
