//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::points::{self, POINTS};
use crate::proxy::{DATE, TWICE};
use crate::server;

pub const HELP: &str = "\
Works a store of locks hard, by many processes and under faults, and checks all that they saw.

built by: cargo build --release --features sqlite,serde --example torture   (dynamodb, mongodb, postgres, spanner: as you need)
usage: torture --store URL [--seed N] [--minutes M] [--keys K] [--workers W] [--faults LIST] ..

  --store URL       any store URL of leasehold, like sqlite:/tmp/t.db. It is worked on by keys that begin with
                    `torture-` and a part that no other run has; use a table of its own. The table is made if it is missing.
  --seed N          repeats the choices of a run (not its timing); default: a new one, which is printed
  --minutes M       how long the workers work; default 1, fractions are fine
  --keys K          over how many keys; default 6. Fewer: more waits
  --workers W       how many processes; default 4
  --threads T       how many threads in each; default 2, on Spanner 1: its emulator has one transaction at a time
                    With more keys and threads more happens: --keys 48 --workers 8 --threads 8 does three times as much on
                    SQLite, and ten times as much on MongoDB and PostgreSQL
  --lease S         the lease of every lock, in seconds; default 1.5 on SQLite, 5 on Spanner, 3 elsewhere
  --faults LIST     some of stop,kill,fork,points,wall,net,twice,date,full, or all, or none; default all that the store and
                    the build can have
                      stop  SIGSTOP for one to three leases
                      kill  SIGKILL, and a new process; processes that end with their locks
                      fork  children of a process that holds locks
                      points  a thread of a worker waits at a mark of the library's sources, between two of its steps, for
                            0.2 to 3 leases (needs a build with --features _internals, too)
                      wall  wall clocks that are up to 300 s off, and jump, now and then and in bursts (needs the program
                            faketime); a jump counts where a worker saw it
                      net   delay, reset, black hole, cut before the answer, an answer that comes late and then
                            nothing, late behind others, by a proxy
                            (needs a store URL with one host on loopback, or SPANNER_EMULATOR_HOST)
                      twice what is written comes to the server once more, up to three leases later, over a connection of
                            its own (DynamoDB and MongoDB, by the proxy of net); a copy counts if it was answered
                      date  answers over one connection with a Date that is 2 to 300 s off, as of one host of the service
                            with a wrong clock (DynamoDB, by the same proxy); each such answer counts. Never two of them
                            without the right time between, and none before a process has read the right time
                      full  no space is left on the disk of a SQLite file, which must have a file system of at most
                            256 MB, like: mount -t tmpfs -o size=16m none DIR
  --hook NAME=CMD   one more fault, of your server: the shell runs CMD from time to time, which makes the fault, takes
                    it back and ends with 0; repeat it for more. What goes wrong while it runs is explained by it. It
                    counts where a request of a worker failed or was late by it.
                      --hook pause='kill -STOP 123; sleep 4; kill -CONT 123'
                      --hook restart='systemctl kill -s KILL mongod; systemctl restart mongod'
                      --hook restart='pg_ctl -D DIR -m immediate -w restart'
                      --hook step-down='mongosh --quiet --eval \"rs.stepDown(10, 5)\"'
  --marks NAME      stops threads only at marks whose names begin so, like renew.sent or hand
  --delete CMD      one more fault: the shell runs CMD from time to time, which deletes the row of the key $KEY, as an operator
                    might, and ends with 0. It counts where the key was held. Whoever held it may believe so until its next
                    heartbeat, and is lost; nothing else is explained (not on DynamoDB, nor on SQLite with wall: there the
                    tokens go on rising only as far as a clock is right that a client knows badly, or that is a fault)
                      --delete 'psql -qc \"DELETE FROM locks WHERE key = '\\''$KEY'\\''\" URL'
  --least-ops N     fewer operations that were answered make the run void; default 20 for each worker and minute
  --least-faults N  fewer faults of any kind that met anything make it void; default one for each two minutes, at least 1
  --out DIR         where histories, report.txt, report.json and pictures go; default a new folder in the temporary one
  --check DIR       only checks the histories of an earlier run again
  --synthetic N     only checks a made-up history of so many operations, for the checker's speed

The workers lock, one or several at once, try, wait, share, hold as data, hand over, adopt, claim and extend, through
the public API, and write down each call and what they believed to hold, by the host's boot-time clock. A resource of the parent takes writes with
fencing tokens and refuses late ones. When it is over, the checker compares all histories. It knows nothing of the
library.

exit codes: 0 nothing wrong, 1 a violation, 2 usage, 3 void: too little was done to say anything, 4 it broke
";

/// The kind of store, on which the possible faults depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Dynamodb,
    Mongodb,
    Postgres,
    Spanner,
}

impl Kind {
    /// Whether the store has no server.
    pub fn is_local(self) -> bool {
        self == Kind::Sqlite
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub store: String,
    pub seed: u64,
    pub time: Duration,
    pub keys: usize,
    pub workers: usize,
    pub threads: usize,
    pub lease: Duration,
    pub faults: Vec<String>,
    /// Faults of the server: their names, and what the shell runs.
    pub hooks: Vec<(String, String)>,
    /// What the shell runs to delete the row of a key.
    pub delete: Option<String>,
    /// Threads are stopped only at marks whose names begin with this.
    pub marks: String,
    pub least_ops: Option<usize>,
    pub least_faults: Option<usize>,
    pub out: Option<PathBuf>,
    /// A part of all names in the store, so that they differ from those that an earlier run has left there.
    pub run: String,
    /// The process that started this worker.
    pub parent: u32,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    Run(Options),
    /// A worker's part, in this folder and by this name.
    Work(Options, PathBuf, String),
    Check(PathBuf),
    Synthetic(usize),
    Help,
}

/// The fault of a disk without space.
pub const FULL: &str = "full";
/// The fault of a row that was deleted.
pub const DELETED: &str = "deleted";
const FAULTS: [&str; 9] = ["stop", "kill", "fork", POINTS, "wall", "net", TWICE, DATE, FULL];

impl Options {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Command, String> {
        let mut options = Options {
            store: String::new(),
            seed: fastrand::u64(..1_000_000),
            time: Duration::from_secs(60),
            keys: 6,
            workers: 4,
            threads: 0,
            lease: Duration::ZERO,
            faults: Vec::new(),
            hooks: Vec::new(),
            delete: None,
            marks: String::new(),
            least_ops: None,
            least_faults: None,
            out: None,
            run: format!("{:08x}", fastrand::u32(..)),
            parent: 0,
        };
        let (mut faults, mut work) = ("default".to_owned(), None);
        while let Some(arg) = args.next() {
            if arg == "--help" || arg == "-h" {
                return Ok(Command::Help);
            }
            let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
            let number = || value.parse::<usize>().map_err(|_| format!("{arg} is {value:?}, but must be a number"));
            let positive = || number().and_then(|n| if n > 0 { Ok(n) } else { Err(format!("{arg} must be above 0")) });
            let seconds = |unit: f64| {
                let time = value.parse::<f64>().ok().filter(|n| *n > 0.0 && *n < 1e5);
                let time = time.ok_or_else(|| format!("{arg} is {value:?}, but must be a number above 0"))?;
                Ok::<_, String>(Duration::from_secs_f64(time * unit))
            };
            match arg.as_str() {
                "--store" => options.store = value,
                "--seed" => options.seed = value.parse().map_err(|_| format!("--seed is {value:?}, not a number"))?,
                "--minutes" => options.time = seconds(60.0)?,
                "--keys" => options.keys = positive()?,
                "--workers" => options.workers = positive()?,
                "--threads" => options.threads = positive()?,
                "--lease" => options.lease = seconds(1.0)?,
                "--faults" => faults = value,
                "--hook" => options.hooks.push(hook(&value)?),
                "--marks" => options.marks = value,
                "--delete" => options.delete = Some(value),
                "--least-ops" => options.least_ops = Some(number()?),
                "--least-faults" => options.least_faults = Some(number()?),
                "--out" => options.out = Some(value.into()),
                "--check" => return Ok(Command::Check(value.into())),
                "--synthetic" => return Ok(Command::Synthetic(positive()?)),
                "--run" => options.run = value,
                "--parent" => options.parent = value.parse().map_err(|_| "--parent is for the parent only")?,
                // For workers only: the parent passes the run's id, its own id, and here the folder and the worker's
                // name in it.
                "--work" => work = Some(value),
                _ => return Err(format!("{arg} is not known; --help says what is")),
            }
        }
        let kind = options.store.split_once(':').map(|(scheme, _)| scheme);
        if !matches!(kind, Some("sqlite" | "dynamodb" | "mongodb" | "postgres" | "postgresql" | "spanner")) {
            let right = "sqlite:, dynamodb:, mongodb:, postgres: or spanner: (memory: lives in one process only)";
            return Err(format!("--store must be the URL of a store: {right}"));
        }
        let (lease, threads) = match options.kind() {
            Kind::Sqlite => (1_500, 2),
            Kind::Spanner => (5_000, 1),
            Kind::Dynamodb | Kind::Mongodb | Kind::Postgres => (3_000, 2),
        };
        if options.lease.is_zero() {
            options.lease = Duration::from_millis(lease);
        }
        if options.threads == 0 {
            options.threads = threads;
        }
        options.faults = match faults.as_str() {
            "none" => Vec::new(),
            "default" | "all" => {
                let can = |fault: &&&str| options.lacks(fault).is_none();
                FAULTS.iter().filter(can).map(|fault| (*fault).to_owned()).collect()
            }
            list => list.split(',').map(str::to_owned).collect(),
        };
        if options.delete.is_some() && options.kind() == Kind::Dynamodb {
            return Err("--delete is not for DynamoDB, whose tokens then rise only as far as a client knows the time"
                .to_owned());
        }
        if let Some(wrong) = options.faults.iter().find(|fault| !FAULTS.contains(&fault.as_str())) {
            return Err(format!("--faults names {wrong:?}, but must be some of {}", FAULTS.join(",")));
        }
        if let Some((fault, why)) = options.faults.iter().find_map(|fault| Some((fault, options.lacks(fault)?))) {
            return Err(format!("--faults names {fault}, {why}"));
        }
        match work.as_deref().map(|work| work.rsplit_once('/')) {
            Some(Some((dir, name))) => Ok(Command::Work(options, dir.into(), name.to_owned())),
            Some(None) => Err("--work is for the parent only".to_owned()),
            None => Ok(Command::Run(options)),
        }
    }

    pub fn kind(&self) -> Kind {
        match self.store.split(':').next() {
            Some("dynamodb") => Kind::Dynamodb,
            Some("mongodb") => Kind::Mongodb,
            Some("postgres" | "postgresql") => Kind::Postgres,
            Some("spanner") => Kind::Spanner,
            _ => Kind::Sqlite,
        }
    }

    /// The file that the URL of a SQLite store names.
    pub fn sqlite_file(&self) -> Option<PathBuf> {
        let (_, path) = self.store.split_once(':').filter(|_| self.kind() == Kind::Sqlite)?;
        Some(path.split('?').next()?.into())
    }

    pub fn has(&self, fault: &str) -> bool {
        self.faults.iter().any(|f| f == fault)
    }

    /// A key of this run alone.
    pub fn key(&self, name: &str) -> String {
        format!("torture-{}-{name}", self.run)
    }

    /// Why the store can't have a fault, if it can't.
    fn lacks(&self, fault: &str) -> Option<&'static str> {
        let kind = self.kind();
        match fault {
            POINTS => points::LACKING,
            "wall" if kind.is_local() && self.delete.is_some() => {
                Some("but the tokens behind a deleted row of SQLite are made from the wall clock")
            }
            "net" if kind.is_local() => Some("but SQLite has no network"),
            TWICE if !matches!(kind, Kind::Dynamodb | Kind::Mongodb) => {
                Some("but only the requests of DynamoDB and MongoDB can come twice")
            }
            TWICE if kind == Kind::Mongodb && self.store.contains('@') => {
                Some("but a request comes twice without a login, so only where MongoDB asks for none")
            }
            DATE if kind != Kind::Dynamodb => Some("but only the answers of DynamoDB tell the time by a Date"),
            FULL if server::small_disk(self).is_none() => {
                Some("which needs a SQLite file on a file system of at most 256 MB, like a small tmpfs of its own")
            }
            _ => None,
        }
    }

    /// The names of all faults of this run.
    pub fn all_faults(&self) -> impl Iterator<Item = &str> {
        let hooks = self.hooks.iter().map(|(name, _)| name.as_str());
        self.faults.iter().map(String::as_str).chain(hooks).chain(self.delete.as_ref().map(|_| DELETED))
    }

    pub fn forks(&self) -> bool {
        self.has("fork")
    }

    pub fn kills(&self) -> bool {
        self.has("kill")
    }

    /// Short, so that faults of the network end in unanswered requests.
    pub fn request_timeout(&self) -> Duration {
        if self.kind().is_local() { self.lease * 2 } else { self.lease / 2 }
    }

    /// The arguments that a worker is started with.
    pub fn to_worker(&self, store: &str, work: &str) -> Vec<String> {
        let faults = if self.faults.is_empty() { "none".to_owned() } else { self.faults.join(",") };
        let pairs = [
            ("--store", store.to_owned()),
            ("--seed", self.seed.to_string()),
            ("--keys", self.keys.to_string()),
            ("--threads", self.threads.to_string()),
            ("--lease", self.lease.as_secs_f64().to_string()),
            ("--faults", faults),
            ("--marks", self.marks.clone()),
            ("--run", self.run.clone()),
            ("--parent", std::process::id().to_string()),
            ("--work", work.to_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

/// A fault by its name, and the command that makes it.
fn hook(text: &str) -> Result<(String, String), String> {
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    let parts = text.split_once('=').filter(|(name, command)| {
        !name.is_empty()
            && name.bytes().all(is_letter)
            && name != &DELETED
            && !FAULTS.contains(name)
            && !command.is_empty()
    });
    let (name, command) = parts.ok_or_else(|| {
        format!(
            "--hook is {text:?}, but must be NAME=CMD, its name of a-z, 0-9 and -, and none of {}",
            FAULTS.join(",")
        )
    })?;
    Ok((name.to_owned(), command.to_owned()))
}
