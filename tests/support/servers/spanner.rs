//! The emulator of Cloud Spanner, from Google's Cloud SDK.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Server, need};

pub const SERVER: Server = Server {
    name: "spanner-emulator",
    env: "SPANNER_EMULATOR_HOST",
    install: "the Cloud SDK's emulator (package google-cloud-cli-spanner-emulator of Google's apt source, or \
              `gcloud components install cloud-spanner-emulator`) and flock",
    fetch,
    start,
    url: |port| format!("127.0.0.1:{port}"),
    ready,
};

/// The same, but it aborts commits at random. A server that the environment names is used instead, and does not.
pub const FAULTY: Server = Server {
    name: "spanner-emulator-faulty",
    start: |home, port, data| {
        let mut gateway = start(home, port, data);
        gateway.arg("-enable_fault_injection");
        gateway
    },
    ..SERVER
};

/// Whether the tests run on `FAULTY`, where that many more requests are correct.
pub fn aborts_at_random() -> bool {
    std::env::var_os("LEASEHOLD_TEST_SPANNER_ABORTS").is_some()
}

/// A wrapper, because the gateway starts the emulator and would leave it running if the gateway were killed.
const EMULATOR: &str = r#"#!/bin/sh
here=$(dirname "$0")
if setpriv --pdeathsig KILL true 2>/dev/null; then exec setpriv --pdeathsig KILL "$here/emulator_main" "$@"; fi
exec "$here/emulator_main" "$@"
"#;

/// Finds the emulator; nothing is downloaded.
fn fetch(folder: &Path) -> Result<(), String> {
    let found = places().into_iter().find(|place| place.join("gateway_main").is_file());
    let found = found.ok_or("no Cloud SDK here has bin/cloud_spanner_emulator/gateway_main")?;
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    for name in ["gateway_main", "emulator_main"] {
        std::os::unix::fs::symlink(found.join(name), folder.join(name)).map_err(told)?;
    }
    let script = folder.join("emulator");
    fs::write(&script, EMULATOR).map_err(told)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).map_err(told)
}

/// The folders in which a Cloud SDK may have it.
fn places() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    if need("gcloud").is_ok() {
        let mut gcloud = Command::new("gcloud");
        gcloud.args(["info", "--format=value(installation.sdk_root)"]).stdin(Stdio::null());
        if let Ok(output) = gcloud.output() {
            roots.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
        }
    }
    roots.extend(["/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk"].map(Into::into));
    roots.into_iter().map(|root| root.join("bin/cloud_spanner_emulator")).collect()
}

/// REST is served ten ports above gRPC, as with the emulator's own defaults.
fn start(home: &Path, port: u16, _: &Path) -> Command {
    let mut gateway = Command::new(home.join("gateway_main"));
    gateway.args(["-hostname", "127.0.0.1", "-grpc_port", &port.to_string(), "-http_port", &(port + 10).to_string()]);
    gateway.arg("-grpc_binary").arg(home.join("emulator"));
    gateway
}

/// Whether it lists its configurations over REST, which asks gRPC.
fn ready(host: &str) -> bool {
    rest(host, "GET", "/v1/projects/ready/instanceConfigs", "").is_some_and(|(status, _)| status == 200)
}

/// One request to the REST side of the emulator whose gRPC side is at `host`: the status and the body.
pub fn rest(host: &str, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    // Many tests that begin at once change something at once, and a server that does not start must not be waited for.
    let limit = Some(Duration::from_secs(if method == "GET" { 20 } else { 120 }));
    let address = host.to_socket_addrs().ok()?.next()?;
    let address = std::net::SocketAddr::new(address.ip(), address.port().checked_add(10)?);
    let mut stream = TcpStream::connect_timeout(&address, limit?).ok()?;
    stream.set_read_timeout(limit).ok()?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// Makes a database in a new instance of the emulator at `host`, by this request. Returns its path.
pub fn make_database(host: &str, project: &str, instance: &str, database: &str, create: &str) -> String {
    let post = |path: &str, body: &str| {
        let (status, answer) = rest(host, "POST", path, body).expect("the emulator");
        assert_eq!(status, 200, "{answer}");
    };
    let (instances, config) = (format!("projects/{project}/instances"), format!("projects/{project}/instanceConfigs"));
    let body = format!(
        "{{\"instanceId\": \"{instance}\", \"instance\": {{\"config\": \"{config}/emulator-config\", \
         \"displayName\": \"{project}\", \"nodeCount\": 1}}}}"
    );
    post(&format!("/v1/{instances}"), &body);
    post(&format!("/v1/{instances}/{instance}/databases"), create);
    format!("{instances}/{instance}/databases/{database}")
}
