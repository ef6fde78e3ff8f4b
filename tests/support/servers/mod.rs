//! The real servers that the tests of the stores use. The environment names them, or they are found or fetched into a
//! cache below the target folder, started on a free loopback port, and ended with the test run.
//!
//! All test processes of one target folder share a server, also one after the other. Each holds a file lock for
//! as long as it lives; the kernel drops the lock however the process ends. A small shell waits until nobody holds the
//! lock, and then kills the server. So tests must use tables and databases of their own.
#![allow(dead_code)] // Each test binary uses its own part of it.

pub mod dynamodb;
mod maven;
pub mod mongod;
pub mod postgres;
#[path = "../skip.rs"]
pub mod skip;
pub mod spanner;

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use skip::skip;

/// How long a server may take to start on a busy machine.
const START: Duration = Duration::from_secs(90);
/// How long a server stays after its last user ended: the next test binary may be about to start.
pub const LINGER: Duration = Duration::from_secs(2);

/// The variable of the environment that names another cache.
pub const CACHE: &str = "LEASEHOLD_TEST_SERVERS";

/// One kind of server.
pub struct Server {
    /// With its version, because it names the folder in the cache.
    pub name: &'static str,
    /// The variable of the environment that names a running server.
    pub env: &'static str,
    /// What must be installed to start one, as a text for people.
    pub install: &'static str,
    /// Puts what is needed to start one into this new folder.
    pub fetch: fn(&Path) -> Result<(), String>,
    /// The command that runs one. It gets that folder, the port, and an empty folder for its data.
    pub start: fn(&Path, u16, &Path) -> Command,
    /// The URL by which tests reach the one at this port.
    pub url: fn(u16) -> String,
    /// Whether it serves; asks with a real request.
    pub ready: fn(&str) -> bool,
}

/// The endpoint of DynamoDB, like `http://127.0.0.1:8000`; it accepts any credentials. None where no server is
/// available, after a line on standard error.
#[track_caller]
pub fn dynamodb_local() -> Option<String> {
    static SHARED: OnceLock<Result<Running, String>> = OnceLock::new();
    shared(&dynamodb::SERVER, &SHARED)
}

/// A server in no replica set, which asks for credentials. The first test process makes the first user.
#[track_caller]
pub fn mongod_alone() -> Option<String> {
    static SHARED: OnceLock<Result<Running, String>> = OnceLock::new();
    shared_as(&mongod::ALONE, "mongod-alone", &SHARED)
}

/// The URI of a writable MongoDB, without a database. None where no server is available, after a line on
/// standard error.
#[track_caller]
pub fn mongod() -> Option<String> {
    static SHARED: OnceLock<Result<Running, String>> = OnceLock::new();
    shared(&mongod::SERVER, &SHARED)
}

/// Where the emulator of Cloud Spanner serves gRPC, like `127.0.0.1:9010`. None where no server is available, after
/// a line on standard error.
#[track_caller]
pub fn spanner_emulator() -> Option<String> {
    static SHARED: OnceLock<Result<Running, String>> = OnceLock::new();
    let server = if spanner::aborts_at_random() { &spanner::FAULTY } else { &spanner::SERVER };
    shared(server, &SHARED)
}

/// The URL of a writable PostgreSQL, with a database. None where no server is available, after a line on
/// standard error.
#[track_caller]
pub fn postgres_server() -> Option<String> {
    static SHARED: OnceLock<Result<Running, String>> = OnceLock::new();
    shared_as(&postgres::SERVER, &postgres::room(), &SHARED)
}

/// The same, for benchmarks: each commit waits for the disk.
#[track_caller]
pub fn postgres_synced() -> Option<String> {
    static SHARED: OnceLock<Result<Running, String>> = OnceLock::new();
    shared_as(&postgres::SYNCED, &format!("{}-synced", postgres::room()), &SHARED)
}

#[track_caller]
fn shared(server: &Server, cell: &'static OnceLock<Result<Running, String>>) -> Option<String> {
    shared_as(server, server.name, cell)
}

#[track_caller]
fn shared_as(server: &Server, room: &str, cell: &'static OnceLock<Result<Running, String>>) -> Option<String> {
    let outcome = cell.get_or_init(|| match std::env::var(server.env) {
        Ok(url) if still_serves(server, &url) => Ok(Running { url, _user: None }),
        Ok(url) => Err(format!("{} names {url}, but no such server answers there", server.env)),
        Err(_) => run(server, &servers().join("running").join(room)),
    });
    match outcome {
        Ok(running) => Some(running.url.clone()),
        Err(why) => {
            let what =
                format!("{} cannot be used: {why}\n  install {}, or set {}", server.name, server.install, server.env);
            assert!(std::env::var_os(server.env).is_none(), "{what}");
            skip(&what);
            None
        }
    }
}

/// The cache, with a folder for the state of each running server. It is in the target folder, so that `cargo clean`
/// empties it.
pub fn servers() -> PathBuf {
    if let Some(other) = std::env::var_os(CACHE) {
        return other.into();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    target.join("servers")
}

/// A server that runs at least as long as this value or this process lives.
pub struct Running {
    pub url: String,
    // The user's shared lock. None for a server that the environment names, which the harness does not end.
    _user: Option<File>,
}

/// The server whose state is in the folder `room`, started if it does not run yet.
pub fn run(server: &Server, room: &Path) -> Result<Running, String> {
    let home = home(server, &servers())?;
    fs::create_dir_all(room).map_err(told(room))?;
    let room = room.canonicalize().map_err(told(room))?;
    // One process at a time starts a server; the others find it.
    let starting = lock_file(&room.join("starting"))?;
    starting.lock().map_err(told(&room))?;
    // Waits while a supervisor ends the previous server.
    let user = lock_file(&room.join("users"))?;
    let started = Instant::now();
    while user.try_lock_shared().is_err() {
        if started.elapsed() > START {
            return Err(format!("{}: its last supervisor does not end", room.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let known = room.join("url");
    if let Ok(url) = fs::read_to_string(&known)
        && still_serves(server, &url)
    {
        return Ok(Running { url, _user: Some(user) });
    }
    let mut url = launch(server, &home, &room);
    for _ in 0..2 {
        // Another program may have taken its port, or the port ten above, meanwhile.
        url = url.or_else(|_| launch(server, &home, &room));
    }
    let url = url?;
    fs::write(&known, &url).map_err(told(&known))?;
    Ok(Running { url, _user: Some(user) })
}

/// Whether the server that was started before still serves. If it has stopped for a while, this waits for it, because
/// others use it: a new server in its place would take away their data.
fn still_serves(server: &Server, url: &str) -> bool {
    let asked = Instant::now();
    while !(server.ready)(url) {
        if !is_listened_to(url) || asked.elapsed() > START {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Whether anything listens at the port in this URL of a server that was started here. A stopped server whose queue is
/// full does not answer at all, whereas a port without a listener refuses at once.
fn is_listened_to(url: &str) -> bool {
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    let port: Option<u16> = url.split_once("127.0.0.1:").and_then(|(_, rest)| digits(rest).parse().ok());
    port.is_some_and(|port| {
        let outcome = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_secs(5));
        !outcome.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    })
}

/// A port for a server that is about to be started, perhaps ended and started there again. It lies outside the range
/// from which the system serves programs that ask for any port, as each proxy of the tests does: a busy server may take
/// long until it listens.
pub fn free_port() -> u16 {
    let usual = (32_768, 60_999);
    let given = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let given: Vec<u16> = given.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let (first, last) = if let [first, last] = given[..] { (first, last) } else { usual };
    for _ in 0..100 {
        // Each one has other random keys, also in another process.
        let random = RandomState::new().build_hasher().finish();
        let port = 10_240 + (random % 50_000) as u16;
        if !(first..=last).contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    // The range covers nearly all ports.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.expect("a free port").port()
}

/// The folder with what is needed to start the server, fetched if it does not exist yet.
pub fn home(server: &Server, servers: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(servers).map_err(told(servers))?;
    let home = servers.join(server.name);
    // One process at a time fetches.
    let fetching = lock_file(&servers.join(format!("{}.lock", server.name)))?;
    fetching.lock().map_err(told(servers))?;
    if !home.exists() {
        // A partial folder that a killed process left is useless.
        let part = servers.join(format!("{}.part", server.name));
        let _ = fs::remove_dir_all(&part);
        fs::create_dir_all(&part).map_err(told(&part))?;
        let _ = writeln!(io::stderr(), "fetching {} into {}", server.name, home.display());
        (server.fetch)(&part)?;
        fs::rename(&part, &home).map_err(told(&home))?;
    }
    Ok(home)
}

/// Starts a server under a supervisor and waits until it serves.
fn launch(server: &Server, home: &Path, room: &Path) -> Result<String, String> {
    let port = free_port();
    let url = (server.url)(port);
    let data = room.join("data");
    let _ = fs::remove_dir_all(&data);
    fs::create_dir_all(&data).map_err(told(&data))?;
    let mut supervisor = supervise(&(server.start)(home, port, &data), room)?;
    let started = Instant::now();
    while !(server.ready)(&url) {
        let ended = supervisor.try_wait().map_err(told(room))?;
        if ended.is_some() || started.elapsed() > START {
            let log = fs::read_to_string(room.join("log")).unwrap_or_default();
            let how = ended.map_or("does not serve".to_owned(), |status| format!("ended ({status})"));
            end(&mut supervisor);
            return Err(format!("it {how} after {:?}; its log: {}", started.elapsed(), log.trim_end()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(url)
}

/// Runs `$@` until nobody holds the lock `users` any more. The exclusive lock is kept until the server is gone.
/// Where `setpriv` exists, the server also dies with this shell.
const SUPERVISOR: &str = r#"
exec 9<users
if setpriv --pdeathsig KILL true 2>/dev/null; then set -- setpriv --pdeathsig KILL "$@"; fi
"$@" 9<&- &
server=$!
(
  while :; do
    flock -x 9; flock -u 9
    sleep "$LINGER"
    flock -n -x 9 && break
  done
  rm -f url
  kill -KILL $server
  while kill -0 $server 2>/dev/null; do sleep 0.02; done
) &
wait $server
code=$?
# Here it ended by itself, or was killed by the watcher, which ends with this group.
trap '' TERM
kill -TERM 0
exit $code
"#;

fn supervise(command: &Command, room: &Path) -> Result<Child, String> {
    for tool in ["sh", "flock"] {
        need(tool)?;
    }
    let log = File::create(room.join("log")).map_err(told(room))?;
    let mut supervisor = Command::new("sh");
    supervisor.args(["-c", SUPERVISOR, "supervisor"]).arg(command.get_program()).args(command.get_args());
    supervisor.current_dir(room).env("LINGER", LINGER.as_secs().to_string());
    // It inherits no open pipe of ours: a reader of our output would wait for the server's end.
    supervisor.stdin(Stdio::null()).stdout(log.try_clone().map_err(told(room))?).stderr(log);
    // A process group of its own: a Ctrl-C ends this test run, but other test runs may use the server.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut supervisor, 0);
    supervisor.spawn().map_err(|error| format!("sh: {error}"))
}

/// Kills a supervisor and everything that it started.
fn end(supervisor: &mut Child) {
    // A negative number means the process group, which the supervisor leads.
    let group = format!("-{}", supervisor.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = supervisor.wait();
}

/// Runs python3 in this folder.
fn python(folder: &Path, args: &[&str]) -> Result<(), String> {
    ends_well(Command::new("python3").args(args).current_dir(folder), &format!("python3 {}", args[1]))
}

/// Runs a command; the error has the last lines that the command wrote to standard error.
fn ends_well(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().rev().take(3).collect::<Vec<_>>().join("; ");
    Err(format!("{what} failed ({}): {said}", output.status))
}

/// An error if there is no such command.
pub fn need(tool: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    if there { Ok(()) } else { Err(format!("there is no {tool}")) }
}

fn lock_file(path: &Path) -> Result<File, String> {
    File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(told(path))
}

fn told(path: &Path) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}
