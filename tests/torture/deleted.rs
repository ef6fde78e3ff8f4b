//! The checker on trial: what a row that somebody deleted explains; and runs in which rows are deleted.

use std::path::Path;
use std::process::Command;

use crate::checker::history::{Asked, End, Line};
use crate::forge::{Forged, LEASE, MS, SLACK, all, alone, instead_of};
use crate::long::{long, minutes};
use crate::runs::{Run, binary};

fn deleted(from: u64, key: &str) -> Line {
    Line::Deleted { from: from * MS, to: (from + 10) * MS, key: key.to_owned() }
}

/// `a` believes to hold the key from 1 s on and `b` from `at` on.
fn two(key: &str, at: u64) -> Forged {
    let mut forged = Forged::new();
    forged.told(deleted(1_500, key));
    forged.grant("a", 1_000, 1, alone());
    forged.grant("b", at, 2, alone());
    forged
}

#[test]
fn two_who_believe_until_the_next_heartbeat_are_explained_and_no_others() {
    two("job", 1_900).passes();
    two("other", 1_900).is_caught("overlap");
    // Before the deletion.
    two("job", 1_400).is_caught("overlap");
    // A hold that was granted after the deletion has no excuse.
    let mut forged = two("job", 1_900);
    let late = forged.grant("c", 2_000, 3, alone());
    forged.release(late, 2_500);
    forged.is_caught("overlap");
}

/// As on a busy machine. A call that begins after the deletion can't have been granted the key before it.
#[test]
fn who_had_asked_before_it_may_be_told_late() {
    let told = |asked: u64, at: u64| {
        let mut forged = Forged::new();
        forged.told(deleted(1_500, "job"));
        forged.grant("b", 1_900, 2, alone());
        let late = forged.ask("a", asked, alone());
        forged.put("a", Line::Granted { at: at * MS, id: late.1, token: 1, key: "job".to_owned() });
        // Within a lease after the deletion: a belief beyond that is caught on its own.
        forged.look(late, at, 500);
        forged
    };
    told(1_400, 1_510 + SLACK).passes();
    told(1_400, 1_511 + SLACK).is_caught("overlap");
    told(1_511, 2_000).is_caught("overlap");
}

/// No renewal brings the deleted row back, even if nobody else has the key.
#[test]
fn who_believes_for_longer_than_a_lease_is_caught() {
    let believed = |at: u64| {
        let mut forged = Forged::new();
        forged.told(deleted(1_500, "job"));
        let held = forged.grant("a", 1_000, 1, alone());
        forged.look(held, at, LEASE);
        forged
    };
    believed(1_510).passes();
    believed(1_511).is_caught("overlap");
}

#[test]
fn a_loss_of_its_holder_is_explained_and_no_other() {
    let lost = |granted: u64, reason: &str, key: &str, at: u64| {
        let mut forged = Forged::new();
        forged.told(deleted(1_500, key));
        let held = forged.grant("a", granted, 1, alone());
        forged.look(held, at, 0);
        forged.put("a", Line::Lost { at: at * MS, id: held.1, reason: reason.to_owned() });
        forged
    };
    for reason in ["gone", "taken_over", "released_by_other"] {
        lost(1_000, reason, "job", 2_000).passes();
        lost(1_000, reason, "other", 2_000).is_caught("loss");
        lost(1_000, reason, "job", 1_499).is_caught("loss");
        lost(1_600, reason, "job", 2_000).is_caught("loss");
        lost(1_000, reason, "job", 1_511 + LEASE + SLACK).is_caught("loss");
    }
    for reason in ["expired", "heartbeat_died", "unknown"] {
        lost(1_000, reason, "job", 2_000).is_caught("loss");
    }
    // Also if it learns of the deletion by its release.
    let mut forged = Forged::new();
    let held = forged.grant("a", 1_000, 1, alone());
    forged.end(held, 2_000, End::Release, "lost");
    forged.is_caught("loss");
    forged.told(deleted(1_500, "job"));
    forged.passes();
}

#[test]
fn who_can_not_adopt_it_any_more_is_explained() {
    let failed = |key: &str| {
        let mut forged = Forged::new();
        forged.told(deleted(1_500, key));
        let held = forged.grant("a", 1_000, 1, alone());
        forged.end(held, 1_100, End::Leave, "ok");
        let heir = forged.ask("b", 1_600, instead_of(1));
        forged.fail(heir, 1_610, "lost");
        forged
    };
    failed("job").passes();
    failed("other").is_caught("loss");
}

/// A call that wants all keys holds some of them while it waits for another.
#[test]
fn who_waits_for_all_and_loses_one_is_explained() {
    let failed = |key: &str, error: &str, asked: Asked| {
        let mut forged = Forged::new();
        forged.told(deleted(1_500, key));
        let asked = forged.ask("a", 1_000, asked);
        forged.fail(asked, 1_900, error);
        forged
    };
    let both = || all(&["job", "other"]);
    failed("other", "lost", both()).passes();
    failed("third", "lost", both()).is_caught("loss");
    failed("other", "store", both()).is_caught("loss");
    failed("job", "lost", alone()).is_caught("loss");
}

#[test]
fn it_explains_nothing_else() {
    let mut forged = Forged::new();
    forged.told(deleted(1_500, "job"));
    forged.grant("a", 1_000, 2, alone());
    forged.grant("b", 5_000, 1, alone());
    forged.is_caught("tokens");
    let mut forged = Forged::new();
    forged.told(deleted(1_500, "job"));
    for (at, token) in [(1_400, 2), (1_600, 1)] {
        forged.put("resource", Line::Accepted { at: at * MS, key: "job".to_owned(), token });
    }
    forged.grant("a", 1_300, 3, Asked { keys: vec!["job".to_owned()], ..alone() });
    forged.is_caught("resource");
    for error in ["store", "lost"] {
        let mut forged = Forged::new();
        forged.told(deleted(1_500, "job"));
        let asked = forged.ask("a", 1_490, alone());
        forged.fail(asked, 1_520, error);
        forged.is_caught("loss");
        // If a store has one writer at a time, a client that deletes something is in the way of all others.
        forged.is_crowded();
        forged.passes();
    }
    let mut forged = Forged::new();
    forged.told(deleted(1_500, "job"));
    forged.refuse("a", 1_490, 1_520, alone());
    forged.is_caught("refusal");
}

/// A deletion counts if the key was held.
#[test]
fn what_really_hit_is_counted() {
    let dir = tempfile::tempdir().expect("a folder");
    let history = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
    let terms = "terms 3000000000 1000000000 0 1000000000 1000000000 0\n";
    history("parent.log", &format!("{terms}deleted 2500 2600 job\ndeleted 5000 5100 job\ndeleted 2500 2600 other\n"));
    history("w0.0.log", "ask 1000 1 gx job 0 0 0\ngranted 2000 1 5 job\nlook 2000 2001 1 1000\n");
    let ran = Command::new(binary()).arg("--check").arg(dir.path()).output().expect("the example starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("faults that met something: deleted 1\n"), "{said}");
}

#[test]
fn what_knows_the_time_badly_can_not_have_it() {
    for (store, faults, why) in [
        ("dynamodb://x?region=r", "none", "--delete is not for DynamoDB"),
        ("sqlite:x", "wall", "--faults names wall, but the tokens behind a deleted row"),
    ] {
        let mut command = Command::new(binary());
        let ran = command.args(["--store", store, "--faults", faults, "--delete", "true"]).output().expect("it starts");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(2) && said.contains(why), "{store}: {said}");
    }
}

/// As `Run::is_clean`, while `delete` deletes the row of a key now and then.
#[allow(dead_code)] // A build without stores runs nothing.
fn is_clean_while_deleted(run: Run, dir: &Path, mut delete: impl FnMut(&str)) {
    let wanted = dir.join("wanted");
    let shown = wanted.display();
    let command =
        format!("echo $KEY > {shown}.part; mv {shown}.part {shown}; while [ -e {shown} ]; do sleep 0.02; done");
    let mut args = run.args.clone();
    args.extend(["--delete".to_owned(), command]);
    let run = Run { args, ..run };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run.is_clean(dir));
        while !running.is_finished() {
            if let Ok(key) = std::fs::read_to_string(&wanted) {
                delete(key.trim());
                std::fs::remove_file(&wanted).expect("the command has asked by it");
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
}

/// As `long` has it, under these faults alone.
#[allow(dead_code)] // A build without stores runs nothing.
fn short_or_long<'a>(name: &str, store: String, faults: &'a str) -> Run<'a> {
    match minutes() {
        Some(minutes) => Run { faults, ..long(name, minutes, store) },
        None => Run { store, minutes: 0.5, faults, ..Run::default() },
    }
}

/// Deletes over a connection that is not the library's.
#[cfg(feature = "sqlite")]
fn in_file(path: &Path) -> impl FnMut(&str) {
    move |key| {
        let file = rusqlite::Connection::open(path).expect("the file");
        file.busy_timeout(std::time::Duration::from_secs(20)).expect("a timeout");
        file.execute("DELETE FROM locks WHERE key = CAST(?1 AS BLOB)", [key]).expect("a row is deleted");
    }
}

#[test]
#[cfg(feature = "sqlite")]
fn sqlite_whose_rows_are_deleted() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("locks.db");
    let mut run = short_or_long("sqlite-deleted", format!("sqlite:{}", path.display()), "kill");
    // On a busy machine a heartbeat may be a little late, and then has to wait until the deletion is on disk, for half
    // a second each: the usual lease here has no more than that to spare.
    run.args.extend(["--lease", "3"].map(str::to_owned));
    is_clean_while_deleted(run, dir.path(), in_file(&path));
}

#[cfg(feature = "postgres")]
fn in_table<'a>(url: &'a str, table: &'a str) -> impl FnMut(&str) + 'a {
    use leasehold::postgres::blocking::postgres::Client;
    use leasehold::postgres::tokio_postgres::NoTls;

    move |key| {
        let mut client = Client::connect(url, NoTls).expect("a connection");
        let statement = format!("DELETE FROM {table} WHERE key = $1");
        client.execute(&statement, &[&key]).expect("a row is deleted");
    }
}

#[test]
#[cfg(feature = "postgres")]
fn postgres_whose_rows_are_deleted() {
    let Some(url) = crate::servers::postgres_server() else { return };
    let (dir, table) = (tempfile::tempdir().expect("a folder"), crate::runs::unique());
    let store = format!("{url}?table={table}");
    let run = short_or_long("postgres-deleted", store, "net");
    is_clean_while_deleted(run, dir.path(), in_table(&url, &table));
}
