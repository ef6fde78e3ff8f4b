//! `init` and `doctor`.

use leasehold::{Diagnosis, Error, ErrorKind, LockClient};
use serde_json::json;

use crate::args::{Global, Init};
use crate::failure::{Failure, Outcome, chain};
use crate::show::{print, print_json};
use crate::store::{Missing, client, url};

pub fn init(global: &Global, args: &Init) -> Outcome {
    let client = if args.print { client_that_makes_nothing(global)? } else { client(global, Missing::Made)? };
    let said = if args.print { client.schema()? } else { client.create_schema()? };
    if global.json {
        print_json(&json!({ "dry_run": args.print, "schema": said }))?;
    } else {
        print(&format!("{}\n", said.trim_end()))?;
    }
    Ok(0)
}

pub fn doctor(global: &Global) -> Outcome {
    let diagnosis = match client_that_makes_nothing(global) {
        Ok(client) => client.diagnose()?,
        // Without a connection there is nothing more to report.
        Err(failure) => {
            let error = if let Failure::Library(error) = &failure { Some(error) } else { None };
            let store = error.and_then(Error::store);
            let reached = error.is_some_and(|error| answered([Some(error.kind())]));
            // An error of the output is ignored, because the exit code must be that of the failure.
            let _ = if global.json {
                print_json(&json!({ "store": store, "well": false, "reached": reached }))
            } else {
                let store = store.map_or_else(String::new, |store| line("store", store));
                print(&(store + &line("reached", if reached { "yes" } else { "NO" }) + &line("usable", "NO")))
            };
            return Err(failure);
        }
    };
    let printed = if global.json { print_json(&as_json(&diagnosis)) } else { print(&as_text(&diagnosis)) };
    match diagnosis.problem() {
        None => {
            printed?;
            Ok(0)
        }
        Some(problem) => Err(Failure::Answered(problem.clone())),
    }
}

/// Connecting makes nothing but an SQLite file, so only for SQLite the store must exist. Anything else that is missing
/// is no error here, because the user asks for just that.
fn client_that_makes_nothing(global: &Global) -> Outcome<LockClient> {
    let makes = url(global, Missing::Wrong)?.starts_with("sqlite:");
    client(global, if makes { Missing::Wrong } else { Missing::Made })
}

fn is_reached(diagnosis: &Diagnosis) -> bool {
    answered([diagnosis.round_trip.as_ref().err(), diagnosis.schema.as_ref().err()].map(|error| error.map(Error::kind)))
}

/// Whether the store has answered one of its requests, by the kinds of their errors.
fn answered<const N: usize>(requests: [Option<ErrorKind>; N]) -> bool {
    requests.iter().any(|error| matches!(error, None | Some(ErrorKind::Permission | ErrorKind::Schema)))
}

fn as_text(diagnosis: &Diagnosis) -> String {
    let mut lines = vec![("store", diagnosis.store.clone())];
    lines.push(match &diagnosis.round_trip {
        Ok(took) => ("reached", format!("yes, a round trip takes {:.1} ms", took.as_secs_f64() * 1000.0)),
        Err(error) if is_reached(diagnosis) => ("reached", format!("yes, but a read fails: {}", chain(error))),
        Err(error) => ("reached", format!("NO: {}", chain(error))),
    });
    lines
        .push(("schema", diagnosis.schema.as_ref().map_or_else(|error| format!("NO: {}", chain(error)), Clone::clone)));
    let grace = match diagnosis.grace.is_zero() {
        true => String::new(),
        false => format!("; leases are respected for {:.1} s after their end", diagnosis.grace.as_secs_f64()),
    };
    lines.push(("clock", format!("{} decides{grace}", diagnosis.clock)));
    if let Some(millis) = diagnosis.clock_difference_ms {
        let side = if millis < 0 { "behind" } else { "ahead of" };
        let seconds = millis.unsigned_abs() as f64 / 1000.0;
        lines.push(("", format!("it is {seconds:.1} s {side} this host's wall clock, which decides nothing")));
    }
    if let Err(error) = &diagnosis.writers {
        lines.push(("written by", format!("NOT KNOWN: {}", chain(error))));
    }
    for (i, writer) in diagnosis.writers.iter().flatten().enumerate() {
        let ago = writer.last.elapsed().unwrap_or_default().as_secs();
        let found = format!("{}: {} holders, the last written {ago} s ago", writer.library, writer.holders);
        lines.push((if i == 0 { "written by" } else { "" }, found));
    }
    if let Some(rows) = diagnosis.writers_cut_at {
        let is_first = diagnosis.writers.iter().flatten().next().is_none();
        let found = format!("by the first {rows} rows only: others may have written the rest");
        lines.push((if is_first { "written by" } else { "" }, found));
    }
    for right in &diagnosis.rights {
        lines.push(match &right.outcome {
            Ok(()) => (right.what, "allowed".to_owned()),
            Err(error) if error.kind() == ErrorKind::Schema && diagnosis.schema.is_err() => {
                (right.what, "not tried".to_owned())
            }
            Err(error) if error.to_string().starts_with("not tried") => (right.what, error.to_string()),
            Err(error) if error.kind() == ErrorKind::Permission => (right.what, format!("DENIED: {}", chain(error))),
            Err(error) => (right.what, format!("NO: {}", chain(error))),
        });
    }
    lines.iter().map(|(what, found)| line(what, found)).collect()
}

fn line(what: &str, found: &str) -> String {
    format!("{what:<20}{}\n", found.replace('\n', "\n                    "))
}

fn as_json(diagnosis: &Diagnosis) -> serde_json::Value {
    let said = |error: &Error| json!({ "kind": format!("{:?}", error.kind()), "message": chain(error) });
    let rights = diagnosis.rights.iter().map(|right| {
        let error = right.outcome.as_ref().err().map(said);
        json!({ "what": right.what, "allowed": error.is_none(), "error": error })
    });
    let writers = diagnosis.writers.iter().flatten().map(|writer| {
        let ago = writer.last.elapsed().unwrap_or_default().as_secs();
        json!({ "library": writer.library, "holders": writer.holders, "last_written_s_ago": ago })
    });
    json!({
        "store": diagnosis.store,
        "well": diagnosis.is_well(),
        "reached": is_reached(diagnosis),
        "round_trip_ms": diagnosis.round_trip.as_ref().ok().map(|took| took.as_secs_f64() * 1000.0),
        "schema": diagnosis.schema.as_ref().ok(),
        "schema_error": diagnosis.schema.as_ref().err().map(said),
        "clock": diagnosis.clock,
        "grace_ms": u64::try_from(diagnosis.grace.as_millis()).unwrap_or(u64::MAX),
        "clock_difference_ms": diagnosis.clock_difference_ms,
        "writers": diagnosis.writers.is_ok().then(|| writers.collect::<Vec<_>>()),
        "writers_cut_at": diagnosis.writers_cut_at,
        "writers_error": diagnosis.writers.as_ref().err().map(said),
        "rights": rights.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_denies_or_lacks_something_was_reached() {
        use ErrorKind::{Ambiguous, Config, Permission, Schema, Store};
        for (read, schema, is_reached) in [
            (None, None, true),
            (None, Some(Store), true),
            (Some(Permission), None, true),
            (Some(Store), None, true),
            (Some(Permission), Some(Permission), true),
            (Some(Schema), Some(Store), true),
            (Some(Store), Some(Schema), true),
            (Some(Store), Some(Store), false),
            (Some(Ambiguous), Some(Config), false),
        ] {
            assert_eq!(answered([read, schema]), is_reached, "{read:?} {schema:?}");
        }
    }
}
