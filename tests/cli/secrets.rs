//! No secret of a store URL appears in any output, in the process title, or in the environment of the command.

use std::process::Stdio;
use std::sync::LazyLock;

use crate::nobody::Closed;
use crate::shared::Shared;
use crate::support::{Running, leasehold, run};
use crate::wait::wait_until;

/// The secret; also part of a name wherever a name can contain it.
const CANARY: &str = "s3cr3t";

fn url() -> String {
    static CLOSED: LazyLock<Closed> = LazyLock::new(Closed::new);
    let nobody = CLOSED.address();
    // The parts are those of the URL of every store with a password.
    format!("mongodb://user:{CANARY}@{nobody}/db?collection=locks&serverSelectionTimeoutMS=500")
}

#[test]
fn no_output_shows_it() {
    let url = url();
    let typos: Vec<Vec<String>> = [
        format!("{url} status"),
        format!("run {url} true"),
        format!("status --stor={url}"),
        format!("status --stor {url}"),
        format!("--store {url} status --left-below {url}"),
        format!("--store {url} lease claim a b {url}"),
        format!("doctor postgres://db/app?password={CANARY}"),
        format!("elect k prog --token {CANARY}"),
        format!("--store {url} status"),
        format!("--store {url} doctor"),
        format!("--store {url} doctor --json"),
        format!("--store {url} -vv run k --try -- true"),
        format!("--store=nosql{} status", &url[7..]),
        format!("--store {url}%zz&x=y status"),
        format!("--store sqlite:{}/no/such/folder/x?pass={CANARY} status", "/nowhere"),
        // Written as for other services.
        format!("--store dynamodb://AKIA:{CANARY}@eu-west-1/locks status"),
        format!("--store dynamodb://AKIA:{CANARY}/locks --json status"),
        format!("--store spanner://user:{CANARY}@db/app?table=locks status"),
        format!("--store sqlite://user:{CANARY}@db/app status"),
        format!("--store sqlite://user:a?{CANARY}@db/app status"),
        format!("--store mongodb://user:{CANARY}%40db/app status"),
        format!("--store postgres//user%3A{CANARY}@db:5432/app status"),
        format!("postgres//user:{CANARY}@db/app"),
        format!("postgres:user:{CANARY}@db/app status"),
        format!("user:{CANARY}@db/app status"),
        format!("run -w postgres://db/app?passwd={CANARY}"),
        format!("run -w postgres://db/app&password={CANARY}"),
    ]
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .into();
    for args in typos {
        let ran = run(leasehold(&[]).args(&args));
        assert_ne!(ran.code, Some(0), "{args:?}");
        assert!(!ran.stdout.contains(CANARY) && !ran.stderr.contains(CANARY), "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(!ran.stderr.is_empty() || !ran.stdout.is_empty());
    }
}

/// `--help` shows where the URL comes from, but not its value.
#[test]
fn no_help_shows_it() {
    for args in [&["--help"][..], &["-h"], &["run", "--help"], &["status", "-h"], &["man"], &["completions", "bash"]] {
        let ran = run(leasehold(args).env("LEASEHOLD_STORE", url()).env("LEASEHOLD_LOCK_ID", CANARY));
        assert_eq!(ran.code, Some(0));
        assert!(!ran.stdout.contains(CANARY), "{args:?}: {}", ran.stdout);
    }
}

/// The URLs of the test servers have no password, so the canary is in the name of the table: the title must not show
/// the URL, and the environment only as the store's URL.
#[track_caller]
#[allow(dead_code)] // Where no server is compiled in.
fn shows_it_to_nobody(shared: Option<Shared>) {
    let Some(shared) = shared else { return };
    shared.init();
    let script = "env; echo ready; read go";
    let mut command = leasehold(&["run", "k", "--store", &shared.url, "--", "sh", "-c", script]);
    let mut running = Running::start(command.envs(shared.env.clone()).stdin(Stdio::piped()));
    let title = format!("/proc/{}/cmdline", running.child.id());
    let own = env!("CARGO_BIN_EXE_leasehold");
    let expected = [own, "run", "k", "--", "sh", "-c", script].map(|arg| format!("{arg}\0")).concat();
    // Empty while the process executes itself again.
    wait_until("the URL is hidden", || std::fs::read_to_string(&title).unwrap() == expected);
    loop {
        let line = running.line();
        // A URL without a password is passed on to the command.
        assert!(!line.contains(CANARY) || line == format!("LEASEHOLD_STORE={}", shared.url), "{line}");
        if line == "ready" {
            break;
        }
    }
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
}

#[test]
#[cfg(feature = "dynamodb")]
fn neither_title_nor_environment_show_the_url_of_a_dynamodb() {
    shows_it_to_nobody(crate::shared::dynamodb(CANARY));
}

#[test]
#[cfg(feature = "mongodb")]
fn neither_title_nor_environment_show_the_url_of_a_mongodb() {
    shows_it_to_nobody(crate::shared::mongodb(CANARY));
}

#[test]
#[cfg(feature = "spanner")]
fn neither_title_nor_environment_show_the_url_of_a_spanner() {
    shows_it_to_nobody(crate::shared::spanner(CANARY));
}
