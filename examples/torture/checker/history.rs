//! The lines of a history: what a worker, the parent and the resource write, one line per event.
//!
//! All times are nanoseconds of the host's boot-time clock. Each line is one `write`, so that a SIGKILL loses no line
//! whose `write` has returned; only the very last line of a file may be torn.

/// Shared or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
}

/// What a hold is, as its holder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Renewed by the library, which reports a loss.
    Guard,
    /// Renewed by the worker itself, or left to its lease's end.
    Data,
    /// The lease of a name: lasts until somebody expires or revokes it.
    Name,
}

/// A call that may give a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub form: Form,
    pub mode: Mode,
    /// The call gets the first key that is free.
    pub keys: Vec<String>,
    /// The call gets all keys together, and none alone.
    pub all: bool,
    /// At most this many shared holders; zero: any number.
    pub limit: u32,
    /// How long it may wait; `None`: without limit.
    pub wait: Option<u64>,
    /// The token of the grant whose place it takes.
    pub instead_of: Option<u64>,
}

/// How far one process can hold up the requests of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    Own,
    /// A process that is stopped can hold up all others, because it may have the store locked.
    Shared,
    /// The same, and the store lets in one request at a time and sends all others away: an unlucky call finds no gap
    /// for as long as it goes on.
    Crowded,
}

/// How a hold is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Release,
    Drop,
    /// Its lease runs out, or another process adopts it.
    Leave,
}

/// One event. `id` names the call that began a hold within its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A hold is asked for.
    Ask {
        at: u64,
        id: u64,
        asked: Asked,
    },
    Granted {
        at: u64,
        id: u64,
        token: u64,
        key: String,
    },
    /// One of all the locks that the call `of` got; its hold has an id of its own.
    Part {
        at: u64,
        of: u64,
        id: u64,
        token: u64,
        key: String,
    },
    /// Others held it, or the wait was over.
    Refused {
        at: u64,
        id: u64,
    },
    /// By this kind of error; `why` is for people.
    Failed {
        at: u64,
        id: u64,
        error: String,
        why: String,
    },
    /// A request to the store failed, or was answered late: one of many that a call may make. It excuses nothing of its
    /// process. But if the first word of `why` is `acquire`, it may hold the key that is in quotes there for a while.
    Request {
        from: u64,
        to: u64,
        why: String,
    },
    /// A thread of this process was stopped at this mark of the library for this time, within these calls of the
    /// worker. Each of them is a call that began a hold or that ends it. If there are none, the thread was in no such
    /// call.
    Point {
        from: u64,
        to: u64,
        mark: String,
        calls: Vec<u64>,
    },
    /// At a time between these two, the holder counted itself as holding for `left` longer; zero: not any more.
    Look {
        from: u64,
        to: u64,
        id: u64,
        left: u64,
    },
    Lost {
        at: u64,
        id: u64,
        reason: String,
    },
    Ending {
        at: u64,
        id: u64,
        how: End,
    },
    /// `ok`, `lost`, or the kind of an error.
    Ended {
        at: u64,
        id: u64,
        answer: String,
    },
    /// A write to the resource, begun and answered.
    Write {
        from: u64,
        to: u64,
        id: u64,
        token: u64,
        accepted: bool,
    },
    /// A forked child looked at a guard of its parent.
    Forked {
        at: u64,
        id: u64,
        held: bool,
    },
    /// A forked child that did not answer for so long that it was killed.
    Hung {
        from: u64,
        to: u64,
        id: u64,
    },
    /// A forked child that ended before it had answered and killed itself.
    Crashed {
        at: u64,
        id: u64,
    },
    // Lines of the parent.
    Terms {
        lease: u64,
        timeout: u64,
        grace: u64,
        slack: u64,
        settle: u64,
        fate: Fate,
    },
    /// This process was stopped for this time.
    Stopped {
        from: u64,
        to: u64,
        process: String,
    },
    /// From then on this process does not exist any more.
    Dead {
        at: u64,
        process: String,
    },
    /// A network fault that met requests of this process.
    Net {
        from: u64,
        to: u64,
        process: String,
        kind: String,
    },
    /// A write of this process to this key, which was passed on at `asked`, came to the server once more: sent at
    /// `from`, and answered, or waited for in vain, until `to`. A copy that is not `known_again` is done again.
    Twice {
        asked: u64,
        from: u64,
        to: u64,
        process: String,
        key: String,
        known_again: bool,
        answered: bool,
    },
    /// An answer to this process had a time that is this much off.
    Date {
        at: u64,
        process: String,
        seconds: i64,
    },
    /// A fault of the server or of the disk, which meets all processes.
    Server {
        from: u64,
        to: u64,
        kind: String,
    },
    /// Somebody deleted the row of this key.
    Deleted {
        from: u64,
        to: u64,
        key: String,
    },
    /// The machine itself was late. If a worker wrote it: the worker's own threads were late.
    Late {
        from: u64,
        to: u64,
    },
    /// The process's wall clock is this much off from now on, if the process looks at it.
    Wall {
        at: u64,
        process: String,
        seconds: i64,
    },
    /// The wall clock of the worker that writes this has jumped by this much.
    Jumped {
        at: u64,
        seconds: i64,
    },
    /// The client of a worker was closed, and this remains in addition to what was there before the client.
    Closed {
        at: u64,
        threads: u64,
        descriptors: u64,
    },
    /// When all workers had ended, the row of the key had this many holders, expired or not.
    Kept {
        at: u64,
        key: String,
        holders: u64,
    },
    /// The same after a purge, when all leases must be over.
    Left {
        at: u64,
        key: String,
        holders: u64,
    },
    /// The workers are asked to end.
    Over {
        at: u64,
    },
    // Lines of the resource.
    Accepted {
        at: u64,
        key: String,
        token: u64,
    },
    Outdated {
        at: u64,
        key: String,
        token: u64,
        highest: u64,
    },
}

impl Line {
    /// The event of this line; `None` if the line is not one.
    pub fn parse(line: &str) -> Option<Line> {
        let mut words = Words(line.split(' '));
        let line = match words.text()? {
            "ask" => {
                let (at, id) = (words.number()?, words.number()?);
                let (form, mode) = words.text()?.split_at_checked(1)?;
                let all = form == "a";
                let form = match form {
                    "a" | "g" => Form::Guard,
                    "d" => Form::Data,
                    "n" => Form::Name,
                    _ => return None,
                };
                let mode = match mode {
                    "x" => Mode::Exclusive,
                    "s" => Mode::Shared,
                    _ => return None,
                };
                let keys = words.text()?.split(',').map(str::to_owned).collect();
                let limit = words.number()?.try_into().ok()?;
                let wait = match words.text()? {
                    "-" => None,
                    wait => Some(wait.parse().ok()?),
                };
                let instead_of = Some(words.number()?).filter(|token| *token != 0);
                Line::Ask { at, id, asked: Asked { form, mode, keys, all, limit, wait, instead_of } }
            }
            "granted" => {
                Line::Granted { at: words.number()?, id: words.number()?, token: words.number()?, key: words.owned()? }
            }
            "part" => Line::Part {
                at: words.number()?,
                of: words.number()?,
                id: words.number()?,
                token: words.number()?,
                key: words.owned()?,
            },
            "refused" => Line::Refused { at: words.number()?, id: words.number()? },
            "failed" => {
                Line::Failed { at: words.number()?, id: words.number()?, error: words.owned()?, why: words.rest() }
            }
            "request" => Line::Request { from: words.number()?, to: words.number()?, why: words.rest() },
            "point" => Line::Point {
                from: words.number()?,
                to: words.number()?,
                mark: words.owned()?,
                calls: match words.text()? {
                    "-" => Vec::new(),
                    calls => calls.split(',').map(|call| call.parse().ok()).collect::<Option<_>>()?,
                },
            },
            "look" => {
                Line::Look { from: words.number()?, to: words.number()?, id: words.number()?, left: words.number()? }
            }
            "lost" => Line::Lost { at: words.number()?, id: words.number()?, reason: words.owned()? },
            "ending" => {
                let (at, id) = (words.number()?, words.number()?);
                let how = match words.text()? {
                    "release" => End::Release,
                    "drop" => End::Drop,
                    "leave" => End::Leave,
                    _ => return None,
                };
                Line::Ending { at, id, how }
            }
            "ended" => Line::Ended { at: words.number()?, id: words.number()?, answer: words.owned()? },
            "write" => Line::Write {
                from: words.number()?,
                to: words.number()?,
                id: words.number()?,
                token: words.number()?,
                accepted: words.flag()?,
            },
            "forked" => Line::Forked { at: words.number()?, id: words.number()?, held: words.flag()? },
            "hung" => Line::Hung { from: words.number()?, to: words.number()?, id: words.number()? },
            "crashed" => Line::Crashed { at: words.number()?, id: words.number()? },
            "terms" => Line::Terms {
                lease: words.number()?,
                timeout: words.number()?,
                grace: words.number()?,
                slack: words.number()?,
                settle: words.number()?,
                fate: match words.text()? {
                    "0" => Fate::Own,
                    "1" => Fate::Shared,
                    "2" => Fate::Crowded,
                    _ => return None,
                },
            },
            "stopped" => Line::Stopped { from: words.number()?, to: words.number()?, process: words.owned()? },
            "dead" => Line::Dead { at: words.number()?, process: words.owned()? },
            "net" => {
                Line::Net { from: words.number()?, to: words.number()?, process: words.owned()?, kind: words.owned()? }
            }
            "twice" => Line::Twice {
                asked: words.number()?,
                from: words.number()?,
                to: words.number()?,
                process: words.owned()?,
                key: words.owned()?,
                known_again: words.flag()?,
                answered: words.flag()?,
            },
            "date" => {
                let (at, process) = (words.number()?, words.owned()?);
                Line::Date { at, process, seconds: words.text()?.parse().ok()? }
            }
            "server" => Line::Server { from: words.number()?, to: words.number()?, kind: words.owned()? },
            "deleted" => Line::Deleted { from: words.number()?, to: words.number()?, key: words.owned()? },
            "late" => Line::Late { from: words.number()?, to: words.number()? },
            "wall" => {
                let (at, process) = (words.number()?, words.owned()?);
                Line::Wall { at, process, seconds: words.text()?.parse().ok()? }
            }
            "jumped" => Line::Jumped { at: words.number()?, seconds: words.text()?.parse().ok()? },
            "closed" => Line::Closed { at: words.number()?, threads: words.number()?, descriptors: words.number()? },
            "kept" => Line::Kept { at: words.number()?, key: words.owned()?, holders: words.number()? },
            "left" => Line::Left { at: words.number()?, key: words.owned()?, holders: words.number()? },
            "over" => Line::Over { at: words.number()? },
            "accepted" => Line::Accepted { at: words.number()?, key: words.owned()?, token: words.number()? },
            "outdated" => Line::Outdated {
                at: words.number()?,
                key: words.owned()?,
                token: words.number()?,
                highest: words.number()?,
            },
            _ => return None,
        };
        words.0.next().is_none().then_some(line)
    }
}

struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn text(&mut self) -> Option<&'a str> {
        self.0.next().filter(|word| !word.is_empty())
    }

    fn owned(&mut self) -> Option<String> {
        self.text().map(str::to_owned)
    }

    /// All that follows, which may have spaces or be nothing.
    fn rest(&mut self) -> String {
        self.0.by_ref().collect::<Vec<_>>().join(" ")
    }

    fn number(&mut self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.text()? {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}

/// The events of one file. A last line without its end was torn by a SIGKILL and is left out.
pub fn lines(text: &str) -> Result<Vec<Line>, String> {
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let parsed = whole.lines().enumerate();
    parsed.map(|(at, line)| Line::parse(line).ok_or_else(|| format!("line {}: {line:?}", at + 1))).collect()
}
