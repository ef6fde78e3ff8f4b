//! Every example runs, ends well and prints its proof.

#[cfg(all(unix, any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner")))]
#[path = "support/servers/mod.rs"]
mod servers;

#[path = "support/room.rs"]
mod room;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A new example is named here and run below.
const EXAMPLES: [&str; 15] = [
    "batch_job",
    "both_accounts",
    "election",
    "fenced_dynamodb",
    "fenced_mongodb",
    "fenced_postgres",
    "fenced_spanner",
    "fenced_write",
    "hand_over",
    "hello",
    "lost_lock",
    "observer",
    "readers_and_writer",
    "shared_readers",
    "sigterm",
];
/// No example takes more than a few seconds; an example that hangs must not hang the tests.
const PATIENCE: Duration = Duration::from_secs(120);

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    #[track_caller]
    fn proves(&self, proof: &str) {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout.lines().last(), Some(format!("proof: {proof}").as_str()), "{}", self.stdout);
    }
}

/// Cargo puts the examples next to the folder of the test binaries.
fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its path");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let path = profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let hint = "`cargo test` builds it, `cargo test --test examples` does not; run `cargo build --examples` first";
    assert!(path.is_file(), "{} is missing: {hint} with the same features", path.display());
    path
}

fn run(name: &str, args: &[&str]) -> Ran {
    run_with(name, args, &[])
}

/// The same, with these variables in its environment.
fn run_with(name: &str, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let mut child = Command::new(binary(name))
        .args(args)
        // If a disk stops for as long as a request may take, the example can prove nothing.
        .env("TMPDIR", room::place())
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let stdout = text_of(child.stdout.take().expect("piped"));
    let stderr = text_of(child.stderr.take().expect("piped"));
    // The pipes end when the example ends.
    let (Ok(stdout), Ok(stderr)) = (stdout.recv_timeout(PATIENCE), stderr.recv_timeout(PATIENCE)) else {
        let _ = child.kill().and_then(|()| child.wait());
        panic!("{name} did not end within {PATIENCE:?}");
    };
    let code = child.wait().expect("it is our child").code();
    Ran { code, stdout, stderr }
}

/// Runs it again if it failed, at most twice, and prints that. An example works with leases of a second or two, or with
/// a server: if these stop for that long, as on a busy machine, it can prove nothing. A real defect fails each time.
fn again(run: impl Fn() -> Ran) -> Ran {
    let well = (0..2).map(|_| run()).find(|ran| {
        let is_well = ran.code == Some(0);
        if !is_well {
            println!("it failed, and is run again:\n{}{}", ran.stdout, ran.stderr);
        }
        is_well
    });
    well.unwrap_or_else(run)
}

fn text_of(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("examples print UTF-8");
        // After the time limit nobody receives this any more.
        let _ = sender.send(text);
    });
    receiver
}

#[test]
fn every_example_is_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut found: Vec<String> = fs::read_dir(folder)
        .expect("there are examples")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.is_file())
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES, "add the new example to EXAMPLES and a test that runs it");
    let tests = include_str!("examples.rs");
    for example in EXAMPLES {
        let is_run = ["run", "run_with"].iter().any(|run| tests.contains(&format!("{run}(\"{example}\"")));
        assert!(is_run, "no test runs {example}");
    }
}

#[test]
fn hello() {
    run("hello", &[]).proves("refused to a second while the guard lived, granted after it was dropped");
}

#[test]
fn both_accounts() {
    run("both_accounts", &[]).proves("20 transfers in each direction, and nothing is lost or made");
}

#[test]
fn shared_readers() {
    run("shared_readers", &[])
        .proves("3 readers at once, the fourth refused, the writer granted after the last reader");
}

#[test]
fn observer() {
    again(|| run("observer", &[])).proves("5 locks granted, 4 released and 1 lost, as the observer was told");
}

#[test]
#[cfg(all(unix, feature = "cli"))]
fn sigterm() {
    run("sigterm", &[]).proves("3 rounds, then SIGTERM ended the pause, and the lock is released");
}

#[test]
#[cfg(all(unix, feature = "sqlite"))]
fn lost_lock() {
    run("lost_lock", &[]).proves("the woken holder knew of its loss, and its late write was refused");
}

#[test]
#[cfg(feature = "sqlite")]
fn election() {
    again(|| run("election", &[]))
        .proves("three terms of three nodes, over a kill and a resignation, and each token above the last");
}

#[test]
#[cfg(all(unix, feature = "sqlite"))]
fn fenced_write() {
    again(|| run("fenced_write", &[]))
        .proves("the woken holder's transaction was refused, and the rival's text stands");
}

#[cfg(all(unix, any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner")))]
mod fenced {
    use super::*;

    const PROOF: &str = "the woken holder's transaction was refused, and the rival's text stands";

    /// A name that no other run uses.
    #[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "spanner"))]
    fn unique() -> String {
        format!("example-{:016x}", fastrand::u64(..))
    }

    #[track_caller]
    fn asks_for(ran: &Ran, what: &str) {
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(what), "{}", ran.stderr);
    }

    #[test]
    #[cfg(feature = "dynamodb")]
    fn dynamodb() {
        asks_for(&run("fenced_dynamodb", &[]), "name a table: fenced_dynamodb TABLE");
        let Some(endpoint) = servers::dynamodb_local() else { return };
        let env = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        again(|| run_with("fenced_dynamodb", &[&unique()], &env)).proves(PROOF);
    }

    #[test]
    #[cfg(feature = "mongodb")]
    fn mongodb() {
        asks_for(&run("fenced_mongodb", &[]), "name a database: FENCED_MONGODB='mongodb://");
        let Some(server) = servers::mongod() else { return };
        let (hosts, query) = server.split_once("/?").unwrap_or((server.trim_end_matches('/'), ""));
        let url = || format!("{hosts}/{}?{query}", unique());
        again(|| run_with("fenced_mongodb", &[], &[("FENCED_MONGODB", url().as_str())])).proves(PROOF);
    }

    /// The example needs the tables of that server's first database for itself.
    #[test]
    #[cfg(feature = "postgres")]
    fn postgres() {
        asks_for(&run("fenced_postgres", &[]), "name a database: FENCED_POSTGRES=postgres://");
        let Some(url) = servers::postgres_server() else { return };
        again(|| run_with("fenced_postgres", &[], &[("FENCED_POSTGRES", url.as_str())])).proves(PROOF);
    }

    #[test]
    #[cfg(feature = "spanner")]
    fn spanner() {
        asks_for(&run("fenced_spanner", &[]), "name a database: fenced_spanner projects/");
        let Some(host) = servers::spanner_emulator() else { return };
        let table = "CREATE TABLE report (id INT64 NOT NULL, text STRING(MAX)) PRIMARY KEY (id)";
        let source = include_str!("../examples/fenced_spanner.rs");
        assert!(source.contains(table), "the example tells another table");
        let create = format!("{{\"createStatement\": \"CREATE DATABASE report\", \"extraStatements\": [\"{table}\"]}}");
        let path = servers::spanner::make_database(&host, "examples", &unique(), "report", &create);
        again(|| run_with("fenced_spanner", &[&path], &[("SPANNER_EMULATOR_HOST", &host)])).proves(PROOF);
    }
}

#[test]
#[cfg(feature = "sqlite")]
fn readers_and_writer() {
    run("readers_and_writer", &[]).proves("a writer starved behind overlapping readers, and got in through the gate");
}

#[test]
#[cfg(all(feature = "sqlite", feature = "serde"))]
fn hand_over() {
    run("hand_over", &[]).proves("handed over without a gap, tokens rose");
}

#[cfg(feature = "sqlite")]
mod batch_job {
    use super::*;

    fn write(folder: &Path, path: &str, bytes: impl AsRef<[u8]>) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder can be made");
        fs::write(path, bytes).expect("a file can be written");
    }

    #[test]
    fn counts_every_text_file_once_although_a_worker_dies() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..40 {
            write(folder.path(), &format!("d{}/{number} ü.txt", number % 3), "one two\nthree\n".repeat(number));
        }
        write(folder.path(), "not-utf8", [0xff, 0xfe]);
        write(folder.path(), "target/debug/skipped", "x");
        write(folder.path(), "d1/.git/skipped", "x");
        let ran = run("batch_job", &[folder.path().to_str().expect("UTF-8")]);
        ran.proves("40 files, each counted exactly once, and all as the parent counts them");
        assert!(ran.stdout.starts_with("40 text files below"), "{}", ran.stdout);
        assert!(ran.stdout.contains("(1 others skipped)"), "{}", ran.stdout);
        assert!(ran.stdout.contains("worker-3 was killed while it held "), "{}", ran.stdout);
        assert!(ran.stdout.contains("a late write with the dead worker's token: refused"), "{}", ran.stdout);
    }

    /// The locks are in this store, and the example prints what it has proved.
    fn counts_with(store: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..12 {
            write(folder.path(), &format!("{number}.txt"), "one two\nthree\n".repeat(number));
        }
        let folder = folder.path().to_str().expect("UTF-8");
        // A second run has other locks.
        for _ in 0..2 {
            let ran = again(|| run("batch_job", &["--store", store, folder]));
            ran.proves("12 files, each counted exactly once, and all as the parent counts them");
            assert!(ran.stdout.contains("a late write with the dead worker's token: refused"), "{}", ran.stdout);
        }
    }

    #[test]
    fn locks_in_the_store_that_it_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("told.db");
        counts_with(&format!("sqlite:{}", file.display()));
        assert!(file.is_file(), "the locks are elsewhere");
    }

    #[test]
    #[cfg(all(unix, feature = "postgres"))]
    fn locks_in_postgres() {
        let Some(server) = servers::postgres_server() else { return };
        counts_with(&format!("{server}?table=example_{:016x}", fastrand::u64(..)));
    }

    #[test]
    fn takes_over_the_only_file() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "only", "");
        let ran = run("batch_job", &[folder.path().to_str().expect("UTF-8")]);
        ran.proves("1 files, each counted exactly once, and all as the parent counts them");
    }

    #[test]
    fn says_what_is_wrong_with_its_arguments() {
        let empty = tempfile::tempdir().expect("a folder");
        let empty = empty.path().to_str().expect("UTF-8");
        let cases: [(&[&str], i32, &str); 8] = [
            (&["--store"], 2, "--store needs a URL"),
            (&["--store", "memory:"], 2, "a memory: store is not shared by processes"),
            (&["--store", "redis://localhost"], 1, "redis"),
            (&["/no/such/folder"], 2, "there is no folder \"/no/such/folder\""),
            (&["--fast"], 2, "there is no option --fast"),
            (&["a", "b"], 2, "2 arguments are given, but one folder is enough"),
            (&[""], 2, "there is no folder \"\""),
            (&[empty], 1, "there are no text files below"),
        ];
        for (args, code, message) in cases {
            let ran = run("batch_job", args);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{args:?}: {}", ran.stderr);
            let is_told = ran.stderr.starts_with("batch_job: ") && ran.stderr.contains(message);
            assert!(is_told, "{args:?}: {}", ran.stderr);
        }
        let help = run("batch_job", &["--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        assert!(help.stdout.contains("Usage: batch_job [--store URL] [FOLDER]"), "{}", help.stdout);
    }
}
