//! A small HTTP/1.1 server, and a client that sees everything.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The date in the server's answers.
pub const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[derive(Default)]
struct Seen {
    bodies: Vec<(String, Instant)>,
    connections: usize,
}

/// Answers each request with its number and its body. Lives as long as the test process.
pub struct Upstream {
    pub addr: String,
    seen: Arc<Mutex<Seen>>,
}

impl Upstream {
    pub fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Seen>>::default();
        let own = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                own.lock().unwrap().connections += 1;
                let seen = own.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &seen));
            }
        });
        Upstream { addr, seen }
    }

    /// The bodies of the requests, in the order they came.
    pub fn bodies(&self) -> Vec<String> {
        self.seen.lock().unwrap().bodies.iter().map(|(body, _)| body.clone()).collect()
    }

    /// When the last request came.
    pub fn last(&self) -> Instant {
        self.seen.lock().unwrap().bodies.last().unwrap().1
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }
}

/// A request with `chunked` in its body is answered in chunks, one with `close` ends its connection afterwards without
/// saying so, and the answer to one with `until the end` ends only with the connection.
fn serve(stream: TcpStream, seen: &Mutex<Seen>) {
    let mut input = BufReader::new(&stream);
    while let Some((_, body)) = read(&mut input).unwrap_or(None) {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.bodies.push((body.clone(), Instant::now()));
            seen.bodies.len()
        };
        let text = format!("{number}: {body}");
        let answer = if body.contains("chunked") {
            let (first, second) = text.split_at(2);
            format!("Transfer-Encoding: chunked\r\n\r\n2\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", second.len())
        } else if body.contains("until the end") {
            format!("\r\n{text}")
        } else {
            format!("Content-Length: {}\r\n\r\n{text}", text.len())
        };
        (&stream).write_all(format!("HTTP/1.1 200 OK\r\nDate: {DATE}\r\n{answer}").as_bytes()).unwrap();
        if body.contains("close") || body.contains("until the end") {
            return;
        }
    }
}

/// A message's head and body; `None` if the connection ends before it.
fn read(input: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
    let mut body = Vec::new();
    let small = head.to_lowercase();
    match small.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        Some(length) => {
            body.resize(length.parse().unwrap(), 0);
            input.read_exact(&mut body)?;
        }
        None if small.contains("chunked") => {
            let mut text = Vec::new();
            while !text.ends_with(b"0\r\n\r\n") {
                input.read_until(b'\n', &mut text)?;
            }
            let text = String::from_utf8(text).unwrap();
            body = text.split("\r\n").skip(1).step_by(2).collect::<String>().into_bytes();
        }
        None => drop(input.read_to_end(&mut body)?),
    }
    Ok(Some((head, String::from_utf8(body).unwrap())))
}

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    Answer(String),
    /// The connection ended in good order.
    End,
    Reset,
    /// It is still waiting.
    Nothing,
}

pub fn answer(text: &str) -> Got {
    Got::Answer(text.to_owned())
}

/// One connection.
pub struct Client {
    input: BufReader<TcpStream>,
    /// The head of the last answer.
    pub head: String,
}

impl Client {
    pub fn connect(to: impl std::net::ToSocketAddrs) -> Client {
        let stream = TcpStream::connect(to).unwrap();
        Client { input: BufReader::new(stream), head: String::new() }
    }

    pub fn send(&mut self, operation: &str, body: &str) {
        self.input.get_ref().write_all(request(operation, body).as_bytes()).unwrap();
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.input.get_ref().write_all(bytes).unwrap();
    }

    /// What arrives within this time.
    pub fn got(&mut self, time: Duration) -> Got {
        self.input.get_ref().set_read_timeout(Some(time)).unwrap();
        match read(&mut self.input) {
            Ok(Some((head, body))) => {
                self.head = head;
                Got::Answer(body)
            }
            Ok(None) => Got::End,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Got::Reset,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Got::Nothing,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a request and waits, without a limit, for what comes.
    pub fn ask(&mut self, operation: &str, body: &str) -> Got {
        self.send(operation, body);
        self.got(crate::proxy::PATIENCE)
    }
}

pub fn request(operation: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nhost: x\r\nx-amz-target: Service_1.{operation}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
