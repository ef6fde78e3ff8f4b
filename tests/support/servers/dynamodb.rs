//! DynamoDB Local, from Maven Central.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Server, maven, need};

pub const SERVER: Server = Server {
    name: "dynamodb-local-3.1.0",
    env: "LEASEHOLD_TEST_DYNAMODB_ENDPOINT",
    install: "java 17, maven and flock (on Debian: openjdk-17-jre-headless maven util-linux)",
    fetch,
    start,
    url: |port| format!("http://127.0.0.1:{port}"),
    ready,
};

/// The same with its tables on disk, where they survive a restart.
pub const ON_DISK: Server = Server {
    start: |home, port, data| {
        let mut java = serve(home, port);
        java.arg("-dbPath").arg(data);
        java
    },
    ..SERVER
};

fn fetch(folder: &Path) -> Result<(), String> {
    need("java")?;
    maven::fetch(folder, "software.amazon.dynamodb", "DynamoDBLocal", "3.1.0").map(drop)
}

fn start(home: &Path, port: u16, _: &Path) -> Command {
    let mut java = serve(home, port);
    java.arg("-inMemory");
    java
}

fn serve(home: &Path, port: u16) -> Command {
    let lib = home.join("lib");
    let mut java = Command::new("java");
    // It runs only for minutes: the better compiler and a collector on many threads would cost more than they bring.
    java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
    java.arg(format!("-Djava.library.path={}", lib.display()));
    java.arg("-cp").arg(lib.join("*")).arg("software.amazon.dynamodb.services.local.main.ServerRunner");
    java.args(["-disableTelemetry", "-port", &port.to_string()]);
    java
}

/// Whether it lists its tables.
fn ready(url: &str) -> bool {
    if url.starts_with("https:") {
        // Somebody's own server, which needs more than this request.
        return true;
    }
    ask(url, "ListTables", "{}").is_some_and(|answer| answer.contains("TableNames"))
}

/// The answer to one request, with its head.
fn ask(url: &str, operation: &str, body: &str) -> Option<String> {
    let limit = Some(Duration::from_secs(5));
    let host = url.strip_prefix("http://")?.trim_end_matches('/');
    let address = host.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, limit?).ok()?;
    stream.set_read_timeout(limit).ok()?;
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: DynamoDB_20120810.{operation}\r\nX-Amz-Date: 20260101T000000Z\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=any\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}
