//! The harness of the real servers: they are found or started, shared, and gone after the run.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::nobody;
use crate::support::servers::dynamodb::SERVER;
use crate::support::servers::{LINGER, Server, dynamodb_local, home, mongod, spanner, spanner_emulator};
use crate::support::wait::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Tells a process to use a server until its standard input ends.
const USER: &str = "LEASEHOLD_TEST_SERVER_USER";

/// The processes that use a server begin here.
#[test]
fn user() {
    if std::env::var_os(USER).is_some()
        && let Some(url) = dynamodb_local()
    {
        println!("\n@@ {url}");
        let _ = std::io::stdin().read(&mut [0]);
    }
}

fn user_command(cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["servers::user", "--exact", "--test-threads=1"])
        .env(USER, "1")
        .env(crate::support::servers::CACHE, cache);
    command.env_remove(SERVER.env).env_remove("LEASEHOLD_TEST_REQUIRE").stdin(Stdio::piped());
    command
}

/// A process that uses the server of this cache. It is killed when dropped.
struct User {
    child: Child,
    lines: BufReader<ChildStdout>,
    _input: ChildStdin,
}

impl User {
    fn start(cache: &Path) -> User {
        let mut child = user_command(cache).arg("--nocapture").stdout(Stdio::piped()).spawn().unwrap();
        let (output, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        User { child, lines: BufReader::new(output), _input: input }
    }

    /// The address of its server.
    #[track_caller]
    fn url(&mut self) -> String {
        let url = self.lines.by_ref().lines().map_while(Result::ok).find_map(|line| {
            let url = line.strip_prefix("@@ ")?;
            Some(url.to_owned())
        });
        url.expect("the user got no server, see above")
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A cache without a running server, in which everything that a start needs exists. `None` if there are no servers at
/// all.
fn cache() -> Option<TempDir> {
    dynamodb_local()?;
    if std::env::var_os(SERVER.env).is_some() {
        return None; // There may be no Java here.
    }
    let cache = tempfile::tempdir().unwrap();
    let home = home(&SERVER, &crate::support::servers::servers()).unwrap();
    symlink(home, cache.path().join(SERVER.name)).unwrap();
    Some(cache)
}

/// The processes that work for the server of this cache, and their names.
fn processes(cache: &Path) -> Vec<(Pid, String)> {
    let room = cache.join("running").join(SERVER.name).canonicalize().unwrap_or_default();
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let cwd = fs::read_link(entry.path().join("cwd")).ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        (cwd == room).then(|| (Pid::from_raw(pid), name.trim_end().to_owned()))
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).collect()
}

#[track_caller]
fn assert_none_left(cache: &Path) {
    wait_until("no process of the server is left", || processes(cache).is_empty());
}

/// Asks several times, because one try has only five seconds, and a busy server may stall. One that is gone never
/// answers.
#[track_caller]
fn assert_serves(url: &str) {
    wait_until("it serves", || (SERVER.ready)(url));
}

fn has_java(cache: &Path) -> bool {
    processes(cache).iter().any(|(_, name)| name == "java")
}

#[test]
fn one_server_serves_all_users_and_goes_with_the_last() {
    let Some(cache) = cache() else { return };
    let cache = cache.path();
    let mut users: Vec<User> = (0..4).map(|_| User::start(cache)).collect();
    let urls: Vec<String> = users.iter_mut().map(User::url).collect();
    assert!(urls.iter().all(|url| *url == urls[0]), "{urls:?}");
    assert_serves(&urls[0]);
    let count = processes(cache).iter().filter(|(_, name)| name == "java").count();
    assert_eq!(count, 1);

    // All but one user are killed, and the server stays.
    let last = users.pop().unwrap();
    drop(users);
    std::thread::sleep(LINGER + Duration::from_secs(1));
    // The server must not go while it has a user.
    assert_serves(&urls[0]);

    // The next user comes right after the last one, as test binaries do. On a busy machine it may come too late, and is
    // repeated.
    let (mut user, mut url) = (last, urls[0].clone());
    for tries in 1.. {
        let left = Instant::now();
        drop(user);
        std::thread::sleep(LINGER / 4);
        user = User::start(cache);
        let next = user.url();
        if next == url {
            break;
        }
        assert!(left.elapsed() > LINGER && tries < 5, "{url} and then {next}");
        url = next;
    }

    drop(user);
    assert_none_left(cache);
    assert!(!(SERVER.ready)(&url));

    // The same again, from nothing.
    let mut again = User::start(cache);
    assert_serves(&again.url());
    drop(again);
    assert_none_left(cache);
}

#[test]
fn nothing_is_left_of_a_start_that_was_killed() {
    let Some(cache) = cache() else { return };
    let cache = cache.path();
    let user = User::start(cache);
    wait_until("the server starts", || has_java(cache));
    drop(user);
    assert_none_left(cache);
    let mut next = User::start(cache);
    assert_serves(&next.url());
    drop(next);
    assert_none_left(cache);
}

#[test]
fn the_server_dies_with_its_supervisor_and_is_started_anew() {
    let Some(cache) = cache() else { return };
    let cache = cache.path();
    let mut first = User::start(cache);
    let url = first.url();
    for (pid, name) in processes(cache) {
        if name != "java" {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
    assert_none_left(cache);
    // The server that is gone left its address behind.
    let mut next = User::start(cache);
    let other = next.url();
    assert_ne!(url, other);
    assert_serves(&other);
    drop((first, next));
    assert_none_left(cache);
}

/// What a user without Java prints.
fn without_java(prepare: impl FnOnce(&mut Command)) -> (bool, String) {
    let (cache, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = user_command(cache.path());
    command.env("PATH", empty.path());
    prepare(&mut command);
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

#[test]
fn a_missing_server_is_skipped_loudly() {
    let (passed, said) = without_java(|_| ());
    assert!(passed, "{said}");
    for part in ["SKIPPED: servers::user: dynamodb-local-3.1.0", "there is no java", "install java 17", SERVER.env] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

#[test]
fn a_missing_server_fails_where_it_is_required() {
    let (passed, said) = without_java(|command| {
        command.env("LEASEHOLD_TEST_REQUIRE", "1");
    });
    assert!(!passed && said.contains("install java 17") && !said.contains("SKIPPED"), "{said}");
}

#[test]
fn the_named_server_is_used_as_it_is() {
    let Some(url) = dynamodb_local() else { return };
    // One try has only five seconds, and a busy server may stall, so this is repeated.
    wait_until("it is used", || {
        let (passed, said) = without_java(|command| {
            command.env(SERVER.env, &url).arg("--nocapture");
        });
        println!("{said}");
        passed && said.contains(&format!("@@ {url}"))
    });
}

#[test]
fn a_named_server_that_is_not_there_fails() {
    let closed = nobody::Closed::new();
    let url = format!("http://{}", closed.address());
    let (passed, said) = without_java(|command| {
        command.env(SERVER.env, &url);
    });
    assert!(!passed && said.contains(&url) && said.contains(SERVER.env), "{said}");
}

#[test]
fn a_fetch_runs_once_and_only_its_success_stays() {
    static FETCHES: AtomicU32 = AtomicU32::new(0);
    let fetch = |folder: &Path| {
        let nth = FETCHES.fetch_add(1, Ordering::SeqCst);
        assert!(fs::read_dir(folder).unwrap().next().is_none(), "there is something left of another");
        fs::write(folder.join("part"), nth.to_string()).unwrap();
        if nth == 0 { Err("no network".to_owned()) } else { Ok(()) }
    };
    let fake = Server { name: "fake", fetch, ..SERVER };
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(home(&fake, cache.path()), Err("no network".to_owned()));
    // Each thread opens the lock file for itself, as processes do.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| home(&fake, cache.path()))).collect();
        for thread in threads {
            let folder = thread.join().unwrap().unwrap();
            assert_eq!(fs::read_to_string(folder.join("part")).unwrap(), "1");
        }
    });
    assert_eq!(FETCHES.load(Ordering::SeqCst), 2);
}

#[test]
fn mongod_serves_as_a_replica_set_and_goes_with_its_last_user() {
    let Some(shared) = mongod() else { return };
    wait_until("it serves", || (mongod::SERVER.ready)(&shared));
    if std::env::var_os(mongod::SERVER.env).is_some() {
        return;
    }
    // A server of its own.
    let room = tempfile::tempdir().unwrap();
    let running = crate::support::servers::run(&mongod::SERVER, room.path()).unwrap();
    let host = running.url.strip_prefix("mongodb://").unwrap().split('/').next().unwrap().to_owned();
    assert!(crate::support::servers::mongod::is_writable(
        &crate::support::servers::mongod::ask(&host, &crate::support::servers::mongod::hello()).unwrap()
    ));
    let again = crate::support::servers::run(&mongod::SERVER, room.path()).unwrap();
    assert_eq!(again.url, running.url);
    drop(running);
    wait_until("it serves still", || (mongod::SERVER.ready)(&again.url));
    drop(again);
    wait_until("it is gone", || {
        crate::support::servers::mongod::ask(&host, &crate::support::servers::mongod::hello()).is_none()
    });
}

#[test]
fn the_emulator_of_spanner_serves_both_sides_and_goes_with_its_last_user() {
    let Some(shared) = spanner_emulator() else { return };
    wait_until("it serves", || (spanner::SERVER.ready)(&shared));
    if std::env::var_os(spanner::SERVER.env).is_some() {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let running = crate::support::servers::run(&spanner::SERVER, room.path()).unwrap();
    assert_ne!(running.url, shared);
    let again = crate::support::servers::run(&spanner::SERVER, room.path()).unwrap();
    assert_eq!(again.url, running.url);
    let url = running.url.clone();
    drop(running);
    wait_until("it serves still", || (spanner::SERVER.ready)(&again.url));
    drop(again);
    // Both the gateway, which serves REST, and the emulator behind it must be gone.
    wait_until("nobody serves there", || std::net::TcpStream::connect(&url).is_err() && !(spanner::SERVER.ready)(&url));
}
