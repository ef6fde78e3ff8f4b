//! The proxy that passes on bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::proxy::{LATE, NEVER, PATIENCE, QUIET, threads};
use crate::support::lateness::{measure, slack};
use crate::support::proxy::{Flow, Proxy};

/// A proxy and both ends of a connection through it.
fn joined() -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::raw(&listener.local_addr().unwrap().to_string());
    let client = TcpStream::connect(proxy.addr()).unwrap();
    let server = listener.accept().unwrap().0;
    // Now the proxy knows both ends.
    write(&client, "hello");
    assert_eq!(read(&server).unwrap(), "hello");
    (proxy, client, server)
}

fn read(mut stream: &TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 100];
    stream.read(&mut bytes).map(|count| String::from_utf8_lossy(&bytes[..count]).into_owned())
}

fn write(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

#[track_caller]
fn assert_quiet(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(QUIET)).unwrap();
    let read = stream.read(&mut [0; 100]);
    assert!(read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "{read:?}");
}

#[test]
fn bytes_pass_both_ways_and_so_does_the_end_of_one() {
    let (_proxy, client, server) = joined();
    write(&client, "up");
    write(&server, "down");
    assert_eq!((read(&server).unwrap(), read(&client).unwrap()), ("up".to_owned(), "down".to_owned()));
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read(&server).unwrap(), "");
    write(&server, "still");
    assert_eq!(read(&client).unwrap(), "still");
    drop(server);
    assert_eq!(read(&client).unwrap(), "");
}

#[test]
fn each_direction_can_be_held() {
    let (proxy, client, server) = joined();
    proxy.flow(Flow::Hold, Flow::Pass);
    write(&client, "up");
    write(&server, "down");
    assert_eq!(read(&client).unwrap(), "down");
    assert_quiet(&server);
    proxy.flow(Flow::Pass, Flow::Hold);
    assert_eq!(read(&server).unwrap(), "up");
    write(&server, "down");
    assert_quiet(&client);
    proxy.flow(Flow::Pass, Flow::Pass);
    assert_eq!(read(&client).unwrap(), "down");
}

#[test]
fn each_direction_can_be_slow() {
    let (proxy, client, server) = joined();
    proxy.flow(Flow::Pass, Flow::Delay(LATE));
    let started = Instant::now();
    write(&server, "down");
    assert_eq!(read(&client).unwrap(), "down");
    assert!(started.elapsed() >= LATE);
    write(&client, "up");
    assert_eq!(read(&server).unwrap(), "up");
}

#[test]
fn connections_can_be_cut_and_reset_also_while_held() {
    for flow in [Flow::Pass, Flow::Hold, Flow::Delay(NEVER)] {
        let (proxy, client, server) = joined();
        proxy.flow(flow, flow);
        if flow != Flow::Pass {
            write(&client, "lost");
        }
        proxy.cut_all();
        assert_eq!((read(&client).unwrap(), read(&server).unwrap()), (String::new(), String::new()), "{flow:?}");

        let (proxy, client, server) = joined();
        proxy.flow(flow, flow);
        if flow != Flow::Pass {
            write(&client, "lost");
        }
        proxy.reset_all();
        for stream in [client, server] {
            let end = read(&stream);
            assert!(
                end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
                "{flow:?}: {end:?}"
            );
        }
    }
}

#[test]
fn its_end_ends_everything() {
    let (proxy, client, server) = joined();
    proxy.flow(Flow::Hold, Flow::Delay(NEVER));
    write(&client, "lost");
    write(&server, "lost");
    let port = proxy.addr().port();
    assert!(threads(port).len() >= 2, "{:?}", threads(port));
    measure();
    let started = Instant::now();
    drop(proxy);
    while !threads(port).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(5) + slack(started), "{:?}", threads(port));
    }
    assert_eq!((read(&client).unwrap(), read(&server).unwrap()), (String::new(), String::new()));
}
