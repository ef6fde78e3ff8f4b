//! What a proxy must know of the messages for its faults: where a request ends, whether it writes, and an answer's
//! date.

/// The protocol of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// HTTP/1.1 without TLS.
    Dynamodb,
    Mongodb,
}

/// A request that writes to the row of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub bytes: Vec<u8>,
    pub key: String,
    /// The store recognizes a copy of it, and does not do the same again.
    pub known_again: bool,
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Requests {
    wire: Wire,
    begun: Vec<u8>,
}

impl Requests {
    pub fn new(wire: Wire) -> Requests {
        Requests { wire, begun: Vec::new() }
    }

    /// The writes to keys of this run that end in these bytes.
    pub fn writes_ended_by(&mut self, chunk: &[u8], run: &str) -> Vec<Write> {
        self.begun.extend_from_slice(chunk);
        let mut writes = Vec::new();
        while let Some(length) = self.length().filter(|length| *length <= self.begun.len()) {
            let bytes: Vec<u8> = self.begun.drain(..length).collect();
            writes.extend(write(self.wire, bytes, run));
        }
        writes
    }

    /// The length of the first request, as soon as its bytes show it.
    fn length(&self) -> Option<usize> {
        match self.wire {
            Wire::Dynamodb => {
                let head = head_of(&self.begun)?;
                let body = value(head, "content-length").map_or(Some(0), |length| length.parse::<usize>().ok())?;
                Some(head.len() + body)
            }
            Wire::Mongodb => number(&self.begun, 0).filter(|length| *length >= HEADER),
        }
    }
}

/// MongoDB's header: length, number, number of the message that it answers, and kind. The body of an OP_MSG follows its
/// flags.
const HEADER: usize = 16;
const OP_MSG: usize = 2013;
const BODY: usize = HEADER + 4;

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn write(wire: Wire, bytes: Vec<u8>, run: &str) -> Option<Write> {
    let (is_write, known_again) = match wire {
        // It is recognized by the token that its condition compares.
        Wire::Dynamodb => (is_write_of_dynamodb(&bytes), true),
        // It is recognized by its session and its number there, which it does not have for a server outside a replica
        // set.
        Wire::Mongodb => (is_write_of_mongodb(&bytes), find(&bytes, b"\x12txnNumber\0").is_some()),
    };
    let key = is_write.then(|| key(&bytes, run))??;
    Some(Write { bytes, key, known_again })
}

fn is_write_of_dynamodb(request: &[u8]) -> bool {
    let target = head_of(request).and_then(|head| value(head, "x-amz-target"));
    let operation = target.and_then(|target| target.split('.').next_back());
    operation.is_some_and(|name| ["UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"].contains(&name))
}

fn is_write_of_mongodb(request: &[u8]) -> bool {
    // A section of kind 0, the length of its document, and the type of the first element, whose name is the command's.
    let name = request.get(BODY + 6..).unwrap_or_default();
    let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(0)];
    let is_one = number(request, HEADER - 4) == Some(OP_MSG) && request.get(BODY) == Some(&0);
    is_one && [&b"findAndModify"[..], b"update", b"insert", b"delete"].contains(&name)
}

/// Whether a server of MongoDB says that it is in a replica set.
pub fn numbers_writes(answer: &[u8]) -> bool {
    find(answer, b"\x02setName\0").is_some()
}

/// The first name of this run in the request, as the histories have it.
fn key(request: &[u8], run: &str) -> Option<String> {
    const LOCK: &[u8] = b"torture-";
    let start = find(request, format!("{run}-").as_bytes())?;
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'-';
    let end = start + request[start..].iter().take_while(is_name).count();
    let start = if request[..start].ends_with(LOCK) { start - LOCK.len() } else { start };
    String::from_utf8(request[start..end].to_vec()).ok()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The head of an HTTP message, with the empty line; `None` if the message ends before that.
pub fn head_of(message: &[u8]) -> Option<&str> {
    let length = find(message, b"\r\n\r\n")? + 4;
    std::str::from_utf8(&message[..length]).ok()
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// The same answer with a `Date` that is off by this many seconds; `None` if it has no `Date`.
pub fn with_wrong_date(answer: &[u8], seconds: i64) -> Option<Vec<u8>> {
    let old = value(head_of(answer)?, "date")?;
    let new = to_date(from_date(old)? + seconds);
    let start = find(answer, old.as_bytes())?;
    Some([&answer[..start], new.as_bytes(), &answer[start + old.len()..]].concat())
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const DAY: i64 = 86_400;

/// The days from 1970 to the first of a month, counted from 0, where years begin in March: leap days come last.
fn days_before(year: i64, month: i64) -> i64 {
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 - 719_468
}

/// Seconds since 1970.
fn from_date(text: &str) -> Option<i64> {
    let parts: Vec<&str> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = parts[..] else { return None };
    let number = |text: &str| text.parse::<i64>().ok();
    let month = i64::try_from(MONTHS.iter().position(|name| *name == month)?).ok()?;
    let days = days_before(number(year)?, month) + number(day)? - 1;
    Some(days * DAY + number(hour)? * 3600 + number(minute)? * 60 + number(second)?)
}

fn to_date(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    // This begins with a year that may be too late, and goes back.
    let year = (0..).map(|back| 1970 + days * 400 / 146_097 + 1 - back).find(|year| days_before(*year, 0) <= days);
    let year = year.unwrap_or(1970);
    let month = (0..12).rev().find(|month| days_before(year, *month) <= days).unwrap_or(0);
    let (day, weekday) = (days - days_before(year, month) + 1, DAYS[days.rem_euclid(7) as usize]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT", MONTHS[month as usize])
}
