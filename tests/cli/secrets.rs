//! No secret of a store URL in any output, in the title of the process, or in the environment of the command.

use crate::support::{leasehold, run};

const CANARY: &str = "s3cr3t-canary";

fn url() -> String {
    // Nothing listens there; the parts are those of every store with a password.
    format!("mongodb://user:{CANARY}@127.0.0.1:9/db?collection=locks&serverSelectionTimeoutMS=500")
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
        format!("--store {url} status"),
        format!("--store {url} doctor"),
        format!("--store {url} doctor --json"),
        format!("--store {url} -vv run k --try -- true"),
        format!("--store=nosql{} status", &url[7..]),
        format!("--store {url}%zz&x=y status"),
        format!("--store sqlite:{}/no/such/folder/x?pass={CANARY} status", "/nowhere"),
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

/// `--help` shows where the URL comes from, not what it is.
#[test]
fn no_help_shows_it() {
    for args in [&["--help"][..], &["-h"], &["run", "--help"], &["status", "-h"], &["man"], &["completions", "bash"]] {
        let ran = run(leasehold(args).env("LEASEHOLD_STORE", url()).env("LEASEHOLD_LOCK_ID", CANARY));
        assert_eq!(ran.code, Some(0));
        assert!(!ran.stdout.contains(CANARY), "{args:?}: {}", ran.stdout);
    }
}

#[test]
#[cfg(feature = "dynamodb")]
fn the_title_of_the_process_and_the_environment_of_the_command_do_not_show_it() {
    use crate::servers::dynamodb_local;
    use crate::support::{Running, until};
    use std::process::Stdio;
    let Some(endpoint) = dynamodb_local() else { return };
    // The URL of this store has no password; what stands for one is in a name that nobody looks at.
    let table = format!("{CANARY}-{}", std::process::id());
    let url = format!("dynamodb://{table}?region=us-east-1&endpoint={endpoint}");
    let keys = |command: &mut std::process::Command| {
        command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any");
    };
    let mut init = leasehold(&["--store", &url, "init"]);
    keys(&mut init);
    let ran = run(&mut init);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut command = leasehold(&["run", "k", "--store", &url, "--", "sh", "-c", "env; echo ready; read go"]);
    keys(&mut command);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let title = format!("/proc/{}/cmdline", running.child.id());
    // Empty while it begins anew.
    until("the URL is hidden", || std::fs::read_to_string(&title).unwrap() == expected_title());
    loop {
        let line = running.line();
        assert!(!line.contains(CANARY), "{line}");
        if line == "ready" {
            break;
        }
    }
    running.tell("go");
    assert_eq!(running.end().code, Some(0));
}

#[cfg(feature = "dynamodb")]
fn expected_title() -> String {
    let own = env!("CARGO_BIN_EXE_leasehold");
    [own, "run", "k", "--", "sh", "-c", "env; echo ready; read go"].map(|arg| format!("{arg}\0")).concat()
}
