//! Requests and answers of HTTP/1.1, of MongoDB or of PostgreSQL, and where they end.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::servers::mongod;

/// Whose protocol it is.
#[derive(Debug, Clone, Copy)]
pub enum Wire {
    Http,
    /// Each message begins with its length, and a request has one answer.
    Mongodb,
    /// Each message but the first one has a letter and its length. A request is all messages up to one that asks for an
    /// answer.
    Postgres {
        /// Notifications for a listening session are passed on at once.
        tells: bool,
    },
}

/// The first message of a session for the user of the tests.
pub const STARTUP: &[u8] = b"\0\0\0\x2a\0\x03\0\0user\0leasehold\0database\0postgres\0\0";

/// The length of the message by which a client asks for TLS before that. No other message of a client is as short.
const TLS_REQUEST_BEGINS: &[u8] = b"\0\0\0\x08";

/// A request or an answer, with its exact bytes.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// With the empty line. Empty for MongoDB.
    pub head: String,
    /// With the frames of its chunks, if it is chunked.
    pub body: Vec<u8>,
    /// Nothing can come after it on this connection.
    pub is_last: bool,
    /// For PostgreSQL: the messages that prepared, earlier on this connection, the statements that it names.
    pub prepared: Vec<u8>,
    /// For PostgreSQL: it prepares a statement, or forgets one, and runs none.
    pub only_prepares: bool,
}

impl Message {
    /// An answer to this request that the proxy makes itself, without a server.
    pub fn said(wire: Wire, request: &Message, status: u16, text: &str) -> Message {
        if !matches!(wire, Wire::Mongodb) {
            return Message::json(status, text);
        }
        let number = i32::from_le_bytes(request.body[4..8].try_into().expect("four bytes"));
        Message { body: mongod::refusal(number, status, text), ..Message::default() }
    }

    fn json(status: u16, body: &str) -> Message {
        let head = format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\
             Date: {}\r\n\r\n",
            body.len(),
            to_date(now())
        );
        Message { head, body: body.as_bytes().to_vec(), ..Message::default() }
    }

    /// What AWS answers to a signature with a wrong time.
    pub fn skewed() -> Message {
        let json =
            r#"{"__type":"com.amazon.coral.service#InvalidSignatureException","message":"Signature expired: .."}"#;
        let mut said = Message::json(400, json);
        ["Server: Server", "x-amzn-RequestId: made-by-the-test"].iter().for_each(|header| said.set_header(header));
        said
    }

    /// Whether a service that is this many seconds ahead refuses the time of its signature.
    pub fn is_skewed(&self, ahead: i64) -> bool {
        let signed = self.header("x-amz-date").and_then(from_amz_date);
        signed.is_some_and(|signed| (signed - now() - ahead).abs() > 300)
    }

    /// A message that makes the server run this statement at once.
    pub fn sql(sql: &str) -> Message {
        let length = u32::try_from(sql.len() + 5).expect("a short statement").to_be_bytes();
        Message { body: [b"Q", &length[..], sql.as_bytes(), b"\0"].concat(), ..Message::default() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Sets this header, `Name: value`, replacing one of the same name.
    pub fn set_header(&mut self, header: &str) {
        let name = header.split(':').next().unwrap_or_default();
        let is_it = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        let mut lines: Vec<&str> = self.head.split("\r\n").filter(|line| !is_it(line)).collect();
        lines.insert(1, header);
        self.head = lines.join("\r\n");
    }

    /// Moves its `Date` by this many seconds. A message without a `Date` is not changed.
    pub fn shift_date(&mut self, seconds: i64) {
        let Some(old) = self.header("date").map(str::to_owned) else { return };
        let old_seconds = from_date(&old).unwrap_or_else(|| panic!("no date: {old}"));
        self.head = self.head.replacen(&old, &to_date(old_seconds + seconds), 1);
    }
}

/// One side of a connection.
pub struct Peer {
    pub stream: Arc<TcpStream>,
    wire: Wire,
    /// Bytes that were read beyond the last message.
    ahead: Vec<u8>,
    /// A client's first message was read.
    has_begun: bool,
    /// The statements that it has prepared: the exact message of each, by its name.
    prepared: HashMap<Vec<u8>, Vec<u8>>,
}

impl Peer {
    pub fn new(stream: Arc<TcpStream>, wire: Wire) -> Peer {
        Peer { stream, wire, ahead: Vec::new(), has_begun: false, prepared: HashMap::new() }
    }

    pub fn write(&self, message: &Message) -> io::Result<()> {
        let bytes = [message.head.as_bytes(), &message.body].concat();
        (&*self.stream).write_all(&bytes)
    }

    /// The next request, or None where the connection ends before it.
    pub fn request(&mut self) -> io::Result<Option<Message>> {
        self.message(false)
    }

    /// The answer, which must come.
    pub fn answer(&mut self) -> io::Result<Message> {
        self.message(true)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads and discards everything until the other side ends the connection.
    pub fn swallow(&self) -> io::Result<()> {
        io::copy(&mut &*self.stream, &mut io::sink()).map(drop)
    }

    /// The next notification of PostgreSQL, or None once `client` has something to say or the server sends anything
    /// else.
    pub fn told_before(&mut self, client: &Peer) -> io::Result<Option<Message>> {
        if self.ahead.is_empty() && client.ahead.is_empty() {
            let mut both = [client, &*self].map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN));
            poll(&mut both, PollTimeout::NONE)?;
            let (speaks, mut first) = (both[0].any().unwrap_or(true), [0]);
            if speaks || self.stream.peek(&mut first)? == 0 || first != *b"A" {
                return Ok(None);
            }
            self.more()?;
        }
        if self.ahead.first() != Some(&b'A') {
            return Ok(None);
        }
        while self.ahead.len() < 5 {
            if self.more()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let length = u32::from_be_bytes(self.ahead[1..5].try_into().expect("four bytes"));
        Ok(Some(Message { body: self.take(1 + length as usize)?, ..Message::default() }))
    }

    fn message(&mut self, is_answer: bool) -> io::Result<Option<Message>> {
        match self.wire {
            Wire::Http => self.http_message(is_answer),
            Wire::Mongodb => self.mongodb_message(),
            Wire::Postgres { .. } => self.postgres_message(is_answer),
        }
    }

    fn postgres_message(&mut self, is_answer: bool) -> io::Result<Option<Message>> {
        let (mut body, letters) = (Vec::new(), usize::from(is_answer || self.has_begun));
        let (mut prepared, mut runs) = (Vec::new(), false);
        loop {
            while self.ahead.len() < letters + 4 {
                if self.more()? == 0 {
                    // A session that the server ends gets the reason as its last message.
                    let is_over = body.first() == Some(&b'E') || (body.is_empty() && self.ahead.is_empty());
                    let message = Message { body, is_last: true, ..Message::default() };
                    return if !is_over {
                        Err(io::ErrorKind::UnexpectedEof.into())
                    } else {
                        Ok(Some(message).filter(|message| !message.body.is_empty()))
                    };
                }
            }
            // The proxy reads the messages, so it refuses TLS.
            if letters == 0 && !is_answer && self.ahead.starts_with(TLS_REQUEST_BEGINS) {
                self.take(8)?;
                (&*self.stream).write_all(b"N")?;
                continue;
            }
            let letter = (letters == 1).then_some(self.ahead[0]);
            let length = u32::from_be_bytes(self.ahead[letters..letters + 4].try_into().expect("four bytes"));
            let part = self.take(letters + length as usize)?;
            body.extend(&part);
            match letter {
                _ if is_answer => {}
                Some(b'P') => {
                    let name = name_at(&part, 5);
                    if !name.is_empty() {
                        self.prepared.insert(name, part);
                    }
                }
                // The statement's name comes after the portal's.
                Some(b'B') => {
                    let name = name_at(&part, 6 + name_at(&part, 5).len());
                    prepared.extend(self.prepared.get(&name).into_iter().flatten());
                }
                Some(b'E' | b'Q') | None => runs = true,
                Some(_) => {}
            }
            match letter {
                Some(b'X') if !is_answer => return Ok(None),
                None | Some(b'Z') => break,
                Some(b'S' | b'Q' | b'p') if !is_answer => break,
                Some(_) => {}
            }
        }
        self.has_begun = true;
        let only_prepares = !is_answer && !runs && body.first() != Some(&b'p');
        Ok(Some(Message { body, prepared, only_prepares, ..Message::default() }))
    }

    fn mongodb_message(&mut self) -> io::Result<Option<Message>> {
        while self.ahead.len() < 4 {
            if self.more()? == 0 {
                return if self.ahead.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
        let length = i32::from_le_bytes([self.ahead[0], self.ahead[1], self.ahead[2], self.ahead[3]]);
        let length = usize::try_from(length).map_err(|_| invalid("the message's length is no length"))?;
        Ok(Some(Message { body: self.take(length)?, ..Message::default() }))
    }

    fn http_message(&mut self, is_answer: bool) -> io::Result<Option<Message>> {
        let end = loop {
            if let Some(at) = find(&self.ahead, b"\r\n\r\n") {
                break at + 4;
            }
            if self.more()? == 0 {
                return if self.ahead.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        };
        let head = self.take(end)?;
        let head = String::from_utf8(head).map_err(|_| invalid("the head is no text"))?;
        let mut message = Message { head, ..Message::default() };
        message.is_last = message.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if message.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            message.body = self.chunks()?;
        } else if let Some(length) = message.header("content-length") {
            let length = length.parse().map_err(|_| invalid("the content's length is no number"))?;
            message.body = self.take(length)?;
        } else if is_answer && !message.head.contains(" 204 ") {
            while self.more()? > 0 {}
            message.body = std::mem::take(&mut self.ahead);
            message.is_last = true;
        }
        Ok(Some(message))
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = loop {
                match find(&self.ahead, b"\r\n") {
                    Some(at) => break self.take(at + 2)?,
                    None if self.more()? == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    None => {}
                }
            };
            let size = String::from_utf8_lossy(&line);
            let size = size.trim().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| invalid("the chunk's size is no number"))?;
            body.extend(line);
            // With the line's end after the chunk. Trailers are not supported.
            body.extend(self.take(size + 2)?);
            if size == 0 {
                return Ok(body);
            }
        }
    }

    /// Takes exactly this many bytes.
    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < count {
            if self.more()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.ahead.split_off(count);
        Ok(std::mem::replace(&mut self.ahead, rest))
    }

    fn more(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        let count = (&*self.stream).read(&mut bytes)?;
        self.ahead.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}

/// The name at this place, up to its zero byte.
fn name_at(part: &[u8], at: usize) -> Vec<u8> {
    part.iter().skip(at).take_while(|byte| **byte != 0).copied().collect()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(now.as_secs()).expect("a date")
}

/// The seconds since 1970 of a time like `19941106T084937Z`.
fn from_amz_date(text: &str) -> Option<i64> {
    let [year, month, day, hour, minute, second] =
        [0..4, 4..6, 6..8, 9..11, 11..13, 13..15].map(|part| text.get(part).unwrap_or_default());
    let month = MONTHS.get(month.parse::<usize>().ok()?.checked_sub(1)?)?;
    from_date(&format!("Day, {day} {month} {year} {hour}:{minute}:{second} GMT"))
}

/// The seconds since 1970 of a date like `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn from_date(text: &str) -> Option<i64> {
    let parts: Vec<&str> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = parts[..] else { return None };
    let number = |text: &str| text.parse::<i64>().ok();
    let month = MONTHS.iter().position(|name| *name == month)?;
    let days = (1970..number(year)?).map(days_of_year).sum::<i64>()
        + (0..month).map(|month| days_of_month(number(year).unwrap_or(0), month)).sum::<i64>()
        + number(day)?
        - 1;
    Some(((days * 24 + number(hour)?) * 60 + number(minute)?) * 60 + number(second)?)
}

/// The date of this many seconds since 1970.
pub fn to_date(seconds: i64) -> String {
    let (mut days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 0;
    while days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT", days + 1, MONTHS[month])
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_of_year(year: i64) -> i64 {
    365 + i64::from(is_leap(year))
}

fn days_of_month(year: i64, month: usize) -> i64 {
    match month {
        1 => 28 + i64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}
