//! Short runs of the command itself: by real processes that are killed and stopped, on each store.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../src/engine/seed.rs"]
mod seed;

/// One run of the command.
#[derive(Default)]
pub struct Run<'a> {
    pub store: String,
    pub env: Option<(&'a str, String)>,
    pub minutes: f64,
    pub faults: &'a str,
    /// More faults, of the server.
    pub hooks: Vec<String>,
    /// More arguments of the command.
    pub args: Vec<String>,
    /// The command that runs it, with its first arguments; empty: it is run directly.
    pub by: Vec<String>,
    /// Where all that it leaves is kept: then it runs only once, for `minutes`.
    pub out: Option<PathBuf>,
}

/// Cargo puts the examples next to the folder of the test binaries. `LEASEHOLD_TEST_TORTURE` names another build of the
/// command.
pub fn binary() -> PathBuf {
    if let Some(other) = std::env::var_os("LEASEHOLD_TEST_TORTURE") {
        return other.into();
    }
    let test = std::env::current_exe().expect("the test knows its path");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let path = profile.join("examples/torture");
    let hint =
        "`cargo test` builds it, `cargo test --test torture` does not; run `cargo build --example torture` first";
    assert!(path.is_file(), "{} is missing: {hint} with the same features", path.display());
    path
}

impl Run<'_> {
    /// Runs the command; its report, which is returned, must find nothing. If the machine was too busy for the run to
    /// prove anything, it runs again for longer.
    #[track_caller]
    pub fn is_clean(&self, dir: &Path) -> serde_json::Value {
        let mut void = Vec::new();
        let all = [1.0, 2.0, 4.0];
        for longer in if self.out.is_some() { &all[..1] } else { &all } {
            let out = self.out.clone().unwrap_or_else(|| dir.join(format!("out-{longer}")));
            let (code, said) = self.ran(self.minutes * longer, &out);
            if code == Some(3) {
                void.push(said);
                continue;
            }
            let json = std::fs::read_to_string(out.join("report.json")).unwrap_or_default();
            let json = serde_json::from_str::<serde_json::Value>(&json).unwrap_or_default();
            if code != Some(0) || json["violations"] != serde_json::json!({}) {
                // To explain it: the folder of the test is gone then.
                let kept = self.out.clone().unwrap_or_else(|| kept(&out));
                panic!("it ended with {code:?}; its histories are in {}: {said}", kept.display());
            }
            return json;
        }
        panic!("each of them was void: {void:#?}");
    }

    fn ran(&self, minutes: f64, out: &Path) -> (Option<i32>, String) {
        let seed = seed::seed().to_string();
        let binary = binary().into_os_string();
        let mut words = self.by.iter().map(OsString::from).chain([binary]);
        let mut command = Command::new(words.next().expect("the example"));
        command.args(words);
        command.args(["--store", &self.store, "--minutes", &minutes.to_string(), "--seed", &seed, "--keys", "4"]);
        command.args(["--faults", self.faults, "--least-faults", "1"]).args(&self.args);
        command.args(self.hooks.iter().flat_map(|hook| ["--hook", hook])).arg("--out").arg(out);
        // For servers that accept any credentials.
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.envs(self.env.clone());
        let ran = command.output().expect("the example starts");
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        (ran.status.code(), said)
    }
}

/// Moves what a run left to a folder that stays.
fn kept(out: &Path) -> PathBuf {
    let kept = tempfile::Builder::new().prefix("leasehold-red-").tempdir().expect("a folder").keep();
    std::fs::rename(out, &kept).expect("both are temporary folders");
    kept
}

#[test]
#[cfg(feature = "sqlite")]
fn sqlite_under_kills_stops_and_forks() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", dir.path().join("locks.db").display());
    Run { store, minutes: 0.35, faults: "stop,kill,fork", ..Run::default() }.is_clean(dir.path());
}

/// The user's own command is a fault, which counts where a request felt it; one that fails makes the run fail.
#[test]
#[cfg(feature = "sqlite")]
fn a_hook_is_a_fault_of_the_server() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |name: &str, hook: &str| {
        let store = format!("sqlite:{}", dir.path().join("locks.db").display());
        let mut command = Command::new(binary());
        command.args(["--store", &store, "--minutes", "0.25", "--keys", "4", "--faults", "none"]);
        command.args(["--least-faults", "1000", "--hook", hook]).arg("--out").arg(dir.path().join(name));
        let ran = command.output().expect("the example starts");
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let met = dir.path().join("met");
    let checked_again = |name: &str, code: Option<i32>, why: &str| {
        let ran =
            Command::new(binary()).arg("--check").arg(dir.path().join(name)).output().expect("the example starts");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.code() == code && said.contains(why), "{code:?}: {said}");
    };
    let (code, said) = run("works", &format!("touch=touch {}", met.display()));
    // On a machine that is too busy for the leases the run finds something, too, but this test is not about that.
    assert!(matches!(code, Some(1 | 3)) && met.exists() && !said.contains("BROKEN"), "{said}");
    assert!(said.contains("faults of the kind touch met anything, but at least 1000 are needed"), "{said}");
    checked_again("works", code, "but at least 1000 are needed");
    let (code, said) = run("fails", "broken=exit 7");
    assert!(matches!(code, Some(1 | 4)), "{said}");
    assert!(said.contains("BROKEN the fault broken: its command failed: exit status: 7"), "{said}");
    assert!(said.contains("0 faults of the kind broken met anything"), "{said}");
    checked_again("fails", code, "its command failed: exit status: 7");
}

/// A command that runs what follows with a file system of this size at this folder, which ends with the process. Its
/// exit code is 99 if that is not possible.
pub fn on_a_disk(size: &str, folder: &Path) -> Vec<String> {
    let script = format!("mount -t tmpfs -o size={size} tmpfs \"$0\" || exit 99; exec \"$@\"");
    let flags = if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" };
    ["unshare", flags, "sh", "-c", &script, &folder.display().to_string()].map(str::to_owned).into()
}

/// On a small file system of its own.
#[test]
#[cfg(feature = "sqlite")]
fn sqlite_under_a_full_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let by = on_a_disk("8m", &disk);
    let ran = |longer: f64| {
        let mut command = Command::new(&by[0]);
        command.args(&by[1..]).arg(binary());
        command.arg("--store").arg(format!("sqlite:{}", disk.join("locks.db").display()));
        command.args(["--minutes", &(0.4 * longer).to_string(), "--keys", "4"]);
        command.args(["--faults", "full", "--least-faults", "1"]);
        let out = dir.path().join(format!("out-{longer}"));
        let ran = command.arg("--out").arg(out).output().expect("unshare starts");
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        println!("{said}");
        (ran.status.code(), said)
    };
    // If the machine was too busy for the run to prove anything, it runs again for longer.
    let mut all = [1.0, 2.0, 4.0].into_iter().map(ran);
    let (code, said) = all.find(|(code, _)| *code != Some(3)).expect("not void each time");
    if code == Some(99) || !said.contains("torture: ") {
        #[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
        use crate::servers::skip;
        #[cfg(not(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner")))]
        use crate::skip::skip;
        return skip(&format!("no small file system can be mounted here: {said}"));
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("full "), "{said}");
    // The fault is possible only where the disk may be filled.
    let store = format!("sqlite:{}", disk.join("locks.db").display());
    let ran = Command::new(binary()).args(["--store", &store, "--faults", "full"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(2) && said.contains("at most 256 MB"), "{said}");
}

/// A run in which nothing happens proves nothing, and says so.
#[test]
#[cfg(feature = "sqlite")]
fn a_run_with_too_little_is_void() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", dir.path().join("locks.db").display());
    let mut command = Command::new(binary());
    command.args(["--store", &store, "--minutes", "0.02", "--faults", "none", "--least-ops", "100000000"]);
    let ran = command.arg("--out").arg(dir.path().join("out")).output().expect("the example starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    // A machine that is too busy for its leases finds some lost without a fault, or calls too late.
    let mut violations = said.lines().filter_map(|line| line.strip_prefix("VIOLATION ")).peekable();
    assert_eq!(ran.status.code(), Some(if violations.peek().is_some() { 1 } else { 3 }), "{said}");
    assert!(violations.all(|found| found.starts_with("loss ") || found.starts_with("late ")), "{said}");
    assert!(said.contains("VOID") && said.contains("at least 100000000 are needed"), "{said}");
}

/// A history that was changed by hand is caught by the command, with a picture.
#[test]
#[cfg(feature = "sqlite")]
fn a_violation_has_its_exit_code_and_a_picture() {
    let dir = tempfile::tempdir().expect("a folder");
    let history = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
    history("parent.log", "terms 3000000000 1000000000 0 1000000000 1000000000 0\n");
    history("w0.0.log", "ask 1000 1 gx job 0 0 0\ngranted 2000 1 5 job\nlook 2000 2001 1 2900000000\n");
    history("w1.0.log", "ask 3000 1 gx job 0 0 0\ngranted 4000 1 6 job\nlook 4000 4001 1 2900000000\n");
    let ran = Command::new(binary()).arg("--check").arg(dir.path()).output().expect("the example starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("VIOLATION overlap job"), "{said}");
    let picture = std::fs::read_to_string(dir.path().join("violation-0.svg")).expect("a picture");
    assert!(picture.contains("token 5") && picture.contains("token 6"), "{picture}");
}

#[test]
fn a_folder_without_a_run_is_void() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = || Command::new(binary()).arg("--check").arg(dir.path()).output().expect("the example starts");
    for terms in [false, true] {
        if terms {
            let terms = "terms 3000000000 1000000000 0 1000000000 1000000000 0\n";
            std::fs::write(dir.path().join("parent.log"), terms).expect("a file");
        }
        let ran = check();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(ran.status.code(), Some(3), "{said}");
        assert_eq!(said.contains("VOID no history names the terms"), !terms, "{said}");
        assert!(said.contains("VOID nothing was granted"), "{said}");
    }
}

/// What a run has left in the store does not affect the next one.
#[test]
#[cfg(feature = "sqlite")]
fn two_runs_on_one_store_have_no_name_in_common() {
    // In memory: with a slow disk a run may be too short for both kinds of names.
    let dir = crate::room::room().expect("a folder");
    let store = format!("sqlite:{}", dir.path().join("locks.db").display());
    let names = |out: &str, longer: f64| {
        let out = dir.path().join(format!("{out}-{longer}"));
        let mut command = Command::new(binary());
        // One key, on which nothing lasts long: all kinds of calls are made soon.
        let minutes = (0.07 * longer).to_string();
        command.args(["--store", &store, "--minutes", &minutes, "--seed", "1", "--faults", "none"]);
        command.args(["--keys", "1", "--lease", "0.5"]);
        let ran = command.arg("--out").arg(&out).output().expect("the example starts");
        // On one key a worker may be granted nothing, and a busy machine can't keep so short a lease.
        assert!(matches!(ran.status.code(), Some(0 | 1 | 3)), "{}", String::from_utf8_lossy(&ran.stdout));
        let mut names = std::collections::BTreeSet::new();
        for worker in 0..4 {
            // A process that connected too late has no history.
            let history = std::fs::read_to_string(out.join(format!("w{worker}.0.log"))).unwrap_or_default();
            let asked = history.lines().filter(|line| line.starts_with("ask "));
            names.extend(asked.filter_map(|line| Some(line.split(' ').nth(4)?.to_owned())));
        }
        names
    };
    let is_both = |names: &std::collections::BTreeSet<String>| {
        names.iter().any(|name| name.contains("name-")) && names.iter().any(|name| name.starts_with("torture-"))
    };
    // On a machine that is slow, or stands still, the second kind of name needs more time.
    let both = [1.0, 2.0, 4.0, 8.0].into_iter().map(|longer| (names("first", longer), names("second", longer)));
    let (first, second) = both
        .inspect(|(first, second)| println!("{first:?} {second:?}"))
        .find(|(first, second)| is_both(first) && is_both(second))
        .expect("names of both kinds");
    assert_eq!(first.intersection(&second).next(), None);
}

/// The processes, other than this one, that were started for this folder; each with its state.
fn processes_of(dir: &Path) -> Vec<(i32, char)> {
    let name = dir.to_str().expect("a path as text");
    let ids = std::fs::read_dir("/proc").expect("processes").flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of = ids.filter_map(|id| {
        let command = std::fs::read(format!("/proc/{id}/cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains(name).then_some(())?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        Some((id, stat.rsplit_once(") ")?.1.chars().next()?))
    });
    // A dead process that was not waited for (a zombie) counts as gone.
    of.filter(|(_, state)| *state != 'Z').collect()
}

/// Waits until it is true; returns whether it became true within this time.
fn comes_true(seconds: u64, is_true: impl Fn() -> bool) -> bool {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    while !is_true() {
        if std::time::Instant::now() > until {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    true
}

/// Not even a worker that is stopped: it could keep the store's file locked for ever.
#[test]
#[cfg(feature = "sqlite")]
fn no_worker_outlives_its_parent() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let dir = tempfile::tempdir().expect("a folder");
    let (out, store) = (dir.path().join("out"), format!("sqlite:{}", dir.path().join("locks.db").display()));
    let mut command = Command::new(binary());
    command.args(["--store", &store, "--minutes", "2", "--faults", "stop", "--lease", "2"]);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut parent = command.arg("--out").arg(&out).spawn().expect("the example starts");
    let is_stopped = comes_true(90, || processes_of(dir.path()).iter().any(|(_, state)| *state == 'T'));
    parent.kill().expect("the parent is there");
    parent.wait().expect("it is dead");
    let are_gone = comes_true(60, || processes_of(dir.path()).is_empty());
    let left = processes_of(dir.path());
    left.iter().for_each(|(id, _)| {
        let _ = kill(Pid::from_raw(*id), Signal::SIGKILL);
    });
    assert!(is_stopped && are_gone, "stopped: {is_stopped}, left: {left:?}");
}

#[test]
fn what_is_asked_for_wrongly_is_a_usage_error() {
    for args in [
        &["--store", "nowhere"][..],
        &["--sore", "sqlite:x"],
        &["--store", "sqlite:x", "--faults", "rain"],
        &["--store", "sqlite:x", "--hook", "net=x"],
    ] {
        let ran = Command::new(binary()).args(args).output().expect("the example starts");
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    let help = Command::new(binary()).arg("--help").output().expect("the example starts");
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("exit codes"));
}

/// A name that nobody else has.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
pub fn unique() -> String {
    format!("t{:016x}", fastrand::u64(..))
}

#[test]
#[cfg(feature = "dynamodb")]
fn dynamodb_under_stops_and_network_faults() {
    let Some(endpoint) = crate::servers::dynamodb_local() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let store = format!("dynamodb://{}?region=us-east-1&endpoint={endpoint}", unique());
    Run { store, minutes: 0.5, faults: "stop,net,twice,date", ..Run::default() }.is_clean(dir.path());
}

#[test]
#[cfg(feature = "mongodb")]
fn mongodb_under_stops_and_network_faults() {
    let Some(uri) = crate::servers::mongod() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let host = uri.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next()).expect("a host");
    let store = format!("mongodb://{host}/torture?directConnection=true&collection={}", unique());
    Run { store, minutes: 0.5, faults: "stop,net,twice", ..Run::default() }.is_clean(dir.path());
}

#[test]
#[cfg(feature = "postgres")]
fn postgres_under_stops_and_network_faults() {
    let Some(url) = crate::servers::postgres_server() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let store = format!("{url}?table={}", unique());
    Run { store, minutes: 0.5, faults: "stop,net", ..Run::default() }.is_clean(dir.path());
}

#[test]
#[cfg(feature = "spanner")]
fn spanner_under_stops_and_network_faults() {
    let Some(host) = crate::servers::spanner_emulator() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let request = "{\"createStatement\": \"CREATE DATABASE `locks`\"}";
    let database = crate::servers::spanner::make_database(&host, "tests", &unique(), "locks", request);
    let env = Some(("SPANNER_EMULATOR_HOST", host));
    Run { store: format!("spanner:{database}?table=locks"), env, minutes: 0.5, faults: "stop,net", ..Run::default() }
        .is_clean(dir.path());
}
