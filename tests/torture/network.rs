//! The faults for which the proxy reads the messages that pass it: a write comes twice, and a date is wrong.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::checker::history::Line;
use crate::proxy::{Fault, Proxy};
use crate::wire::{Requests, Wire};

/// How long the tests wait for a message that must come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test.
const ALWAYS: Duration = Duration::from_secs(600);
const LATER: Duration = Duration::from_millis(30);
const RIGHT: &str = "Sat, 28 Nov 2026 23:59:30 GMT";

fn answer(date: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ndate: {date}\r\nContent-Length: 2\r\n\r\n{{}}").into_bytes()
}

fn http(operation: &str, key: &str) -> Vec<u8> {
    let body = format!("{{\"Key\": {{\"key\": {{\"S\": \"{key}\"}}}}}}");
    let target = format!("X-Amz-Target: DynamoDB_20120810.{operation}");
    format!("POST / HTTP/1.1\r\n{target}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// An OP_MSG whose command has this name, and a number if `numbered`.
fn op_msg(command: &str, key: &str, numbered: bool) -> Vec<u8> {
    let text = |name: &str, value: &str| {
        let length = u32::try_from(value.len() + 1).expect("a short text").to_le_bytes();
        [&[2], name.as_bytes(), &[0], &length[..], value.as_bytes(), &[0]].concat()
    };
    let number = if numbered { [&b"\x12txnNumber\0"[..], &7_u64.to_le_bytes()].concat() } else { Vec::new() };
    let elements = [text(command, "locks"), text("resource", key), number].concat();
    let size = u32::try_from(elements.len() + 5).expect("a short document");
    let body = [&[0; 4], &[0][..], &size.to_le_bytes(), &elements, &[0]].concat();
    let size = u32::try_from(body.len() + 16).expect("a short message");
    [size, 1, 0, 2013].iter().flat_map(|number| number.to_le_bytes()).chain(body).collect()
}

/// A server behind a proxy. `asked` has its requests, each with the number of its connection. It answers on the first
/// `answered` connections, and ends the others.
struct Server {
    proxy: Proxy,
    asked: Receiver<(usize, Vec<u8>)>,
    told: Receiver<Line>,
}

impl Server {
    /// Each request has this many bytes.
    fn start(wire: Wire, length: usize, answered: usize) -> Server {
        Server::saying(answer(RIGHT), wire, length, answered)
    }

    fn saying(answer: Vec<u8>, wire: Wire, length: usize, answered: usize) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let ((asks, asked), (tells, told)) = (channel(), channel());
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                let (mut client, asks, answer) = (client.expect("a connection"), asks.clone(), answer.clone());
                std::thread::spawn(move || {
                    let mut request = vec![0; length];
                    while client.read_exact(&mut request).is_ok() {
                        // The test may be over.
                        let _ = asks.send((number, request.clone()));
                        if number >= answered || client.write_all(&answer).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let proxy = Proxy::start(&address, Some(wire), "ab12", Arc::new(move |line| drop(tells.send(line))));
        Server { proxy: proxy.expect("a proxy"), asked, told }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.proxy.port)).expect("the proxy")
    }

    fn told(&self) -> Line {
        self.told.recv_timeout(PATIENCE).expect("the proxy tells of its fault")
    }

    fn asked(&self) -> (usize, Vec<u8>) {
        self.asked.recv_timeout(PATIENCE).expect("the server is asked")
    }
}

fn ask(client: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    // In two parts, as a network may cut it.
    let (begin, end) = request.split_at(request.len() / 2);
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    client.write_all(begin).and_then(|()| client.write_all(end)).expect("it is asked");
    let mut said = answer(RIGHT);
    client.read_exact(&mut said).expect("an answer");
    said
}

/// Whether nothing more has come.
fn is_silent(client: &TcpStream) -> bool {
    client.set_nonblocking(true).expect("a socket");
    client.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn what_is_written_comes_once_more_later_over_a_connection_of_its_own() {
    let numbered = [(Wire::Mongodb, op_msg("findAndModify", "torture-ab12-3", true), true)];
    let alone = [(Wire::Mongodb, op_msg("findAndModify", "torture-ab12-3", false), false)];
    let all = [(Wire::Dynamodb, http("UpdateItem", "torture-ab12-3"), true)].into_iter().chain(numbered).chain(alone);
    for (wire, request, is_known) in all {
        let server = Server::start(wire, request.len(), 2);
        server.proxy.belongs_to("w0.1");
        let mut client = server.connect();
        // Without the fault there is no copy.
        ask(&mut client, &request);
        server.proxy.disturb(Fault::Twice(LATER), ALWAYS);
        assert_eq!(ask(&mut client, &request), answer(RIGHT));
        let line = server.told();
        let Line::Twice { asked, from, to, process, key, known_again, answered } = line else { panic!("{line}") };
        assert!(from - asked >= LATER.as_nanos() as u64 && to >= from, "{asked} {from} {to}");
        assert_eq!((&*process, &*key, known_again, answered), ("w0.1", "torture-ab12-3", is_known, true));
        let mut came =
            [server.asked(), server.asked(), server.asked()].map(|(number, bytes)| (number, bytes == request));
        // The threads of the connections report independently, so their order may differ.
        came.sort();
        assert_eq!(came, [(0, true), (0, true), (1, true)], "{wire:?}");
        // The answer to the copy does not come to the client.
        assert!(is_silent(&client) && server.asked.try_recv().is_err(), "{wire:?}");
    }
}

/// Otherwise a library that forgot to number its writes would have an excuse for all that it does.
#[test]
fn a_copy_without_a_number_explains_nothing_in_a_replica_set() {
    let request = op_msg("findAndModify", "torture-ab12-3", false);
    let in_set = [&b"\x02setName\0"[..], &answer(RIGHT)].concat();
    let server = Server::saying(in_set, Wire::Mongodb, request.len(), 2);
    let mut client = server.connect();
    ask(&mut client, &request);
    server.proxy.disturb(Fault::Twice(LATER), ALWAYS);
    ask(&mut client, &request);
    let line = server.told();
    assert!(matches!(line, Line::Twice { known_again: true, .. }), "{line}");
}

#[test]
fn a_copy_that_is_not_answered_is_told_as_such() {
    let request = http("UpdateItem", "torture-ab12-name-3");
    let server = Server::start(Wire::Dynamodb, request.len(), 1);
    server.proxy.disturb(Fault::Twice(Duration::ZERO), ALWAYS);
    ask(&mut server.connect(), &request);
    let line = server.told();
    assert!(matches!(line, Line::Twice { answered: false, .. }), "{line}");
}

#[test]
fn only_a_write_to_a_key_of_the_run_comes_twice() {
    let keys = |wire, requests: &[Vec<u8>]| {
        let mut passing = Requests::new(wire);
        // All bytes at once, and one by one.
        let all = requests.concat();
        let together = passing.writes_ended_by(&all, "ab12");
        let apart: Vec<_> = all.iter().flat_map(|byte| passing.writes_ended_by(&[*byte], "ab12")).collect();
        assert_eq!(together, apart);
        together.into_iter().map(|write| write.key).collect::<Vec<_>>()
    };
    let writes = ["UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"];
    let reads = ["GetItem", "Query", "Scan", "DescribeTable"].map(|name| http(name, "torture-ab12-1"));
    assert_eq!(keys(Wire::Dynamodb, &reads), [""; 0]);
    assert_eq!(keys(Wire::Dynamodb, &writes.map(|name| http(name, "torture-ab12-1"))), ["torture-ab12-1"; 4]);
    assert_eq!(keys(Wire::Dynamodb, &[http("UpdateItem", "torture-ab13-1")]), [""; 0]);
    // The name of a lease, as the histories have it.
    assert_eq!(keys(Wire::Dynamodb, &[http("PutItem", "~lease~ab12-name-1")]), ["ab12-name-1"]);
    let of = |name: &str| op_msg(name, "torture-ab12-1", true);
    assert_eq!(keys(Wire::Mongodb, &["find", "hello", "aggregate"].map(of)), [""; 0]);
    assert_eq!(keys(Wire::Mongodb, &["update", "insert", "delete"].map(of)), ["torture-ab12-1"; 3]);
    // This is no OP_MSG.
    let mut other = of("update");
    other[12..14].copy_from_slice(&2012_u16.to_le_bytes());
    assert_eq!(keys(Wire::Mongodb, &[other, of("update")]), ["torture-ab12-1"]);
}

/// The host with a wrong clock answers over one connection only, and only when the process knows the right time.
#[test]
fn one_connection_at_a_time_has_a_wrong_date_and_never_the_first() {
    let request = http("GetItem", "torture-ab12-3");
    let server = Server::start(Wire::Dynamodb, request.len(), usize::MAX);
    let is = |client: &mut TcpStream, date: &str| {
        assert_eq!(String::from_utf8(ask(client, &request)), String::from_utf8(answer(date)));
    };
    let (wrong, far) = ("Sun, 29 Nov 2026 00:00:15 GMT", "Sat, 28 Nov 2026 23:54:30 GMT");
    server.proxy.belongs_to("w0.0");
    server.proxy.disturb(Fault::Date(45), ALWAYS);
    let (mut first, mut second) = (server.connect(), server.connect());
    // Nobody knows whether the first one's answer was read before that of the second one.
    is(&mut first, RIGHT);
    is(&mut second, RIGHT);
    is(&mut first, RIGHT);
    is(&mut second, wrong);
    is(&mut first, RIGHT);
    let mut third = server.connect();
    is(&mut third, RIGHT);
    is(&mut second, wrong);
    // The next connection is wrong only after the right time was read over a connection newer than the last wrong one.
    server.proxy.disturb(Fault::Date(-300), ALWAYS);
    is(&mut first, RIGHT);
    is(&mut second, RIGHT);
    let mut fourth = server.connect();
    is(&mut fourth, RIGHT);
    is(&mut third, far);
    // Another process: it gets no wrong date before it has read the right time.
    server.proxy.belongs_to("w0.1");
    server.proxy.disturb(Fault::Date(45), ALWAYS);
    let mut fresh = server.connect();
    for _ in 0..3 {
        is(&mut third, RIGHT);
        is(&mut fresh, RIGHT);
    }
    is(&mut server.connect(), wrong);
    server.proxy.disturb(Fault::Date(45), Duration::ZERO);
    is(&mut server.connect(), RIGHT);
    let told: Vec<(String, i64)> = std::iter::from_fn(|| server.told.try_recv().ok())
        .map(|line| match line {
            Line::Date { process, seconds, .. } => (process, seconds),
            other => panic!("{other}"),
        })
        .collect();
    let of = |process: &str, seconds| (process.to_owned(), seconds);
    assert_eq!(told, [of("w0.0", 45), of("w0.0", 45), of("w0.0", -300), of("w0.1", 45)]);
}

/// Forwards over the turn of a year and a leap day, and back.
#[test]
fn a_wrong_date_is_a_date() {
    let moved = |date: &str, seconds| {
        let answer = crate::wire::with_wrong_date(&answer(date), seconds).expect("it has a date");
        String::from_utf8(answer).expect("text").lines().nth(1).expect("its date")[6..].to_owned()
    };
    for (one, other, seconds) in [
        ("Thu, 31 Dec 2026 23:59:59 GMT", "Fri, 01 Jan 2027 00:00:01 GMT", 2),
        ("Mon, 28 Feb 2028 23:58:00 GMT", "Tue, 29 Feb 2028 00:03:00 GMT", 300),
        ("Tue, 29 Feb 2028 23:58:00 GMT", "Wed, 01 Mar 2028 00:01:01 GMT", 181),
        ("Sun, 28 Feb 2027 23:58:00 GMT", "Mon, 01 Mar 2027 00:00:00 GMT", 120),
    ] {
        assert_eq!(moved(one, seconds), other);
        assert_eq!(moved(other, -seconds), one);
    }
    assert_eq!(crate::wire::with_wrong_date(b"HTTP/1.1 200 OK\r\n\r\n", 5), None);
}
