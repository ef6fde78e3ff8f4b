//! Four processes share out the text files of a folder by locks. One is killed while it holds one;
//! another takes that file over. In the end every file was counted exactly once.
//!
//! Each file has a lock. Its fencing token goes to the result database, which refuses a token that
//! is older than the newest it has seen for the file: see `Results`.
//!
//! ```sh
//! cargo run --release --example batch_job                       # the locks are in a SQLite file of its own
//! cargo run --release --features postgres --example batch_job -- --store 'postgres://HOST/DATABASE?table=leasehold'
//! ```
//! Any store's URL will do, with its feature: `sqlite:PATH` (default), `dynamodb`, `mongodb`, `postgres`, `spanner`.
//! One with a password belongs in the environment: `BATCH_JOB_STORE=..` in place of `--store ..`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, fs};

use leasehold::LockClient;
use rusqlite::{Connection, params};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const WORKERS: usize = 4;
/// The worker that is killed.
const VICTIM: usize = 2;
/// Short, so that the file of the dead worker is taken over soon.
const LEASE: Duration = Duration::from_secs(1);
/// A file takes milliseconds, so a worker that waits for one looks often.
const POLL: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(30);
/// The environment variable with the store's URL, also for the workers: command lines are for all to see, and a URL may
/// hold a password.
const STORE: &str = "BATCH_JOB_STORE";
const HELP: &str = "\
Counts lines, words and bytes of the text files below FOLDER with four processes, kills one of them
half way, and proves that every file was counted exactly once.

Usage: batch_job [--store URL] [FOLDER]

  FOLDER         default: the folder of this repository
  --store URL    where the locks are: sqlite:PATH, dynamodb://TABLE?region=.., mongodb://HOST/DATABASE,
                 postgres://HOST/DATABASE, spanner:projects/P/instances/I/databases/D; each but sqlite needs
                 the feature of its name. Its table is made if it is missing; what was locked stays there as
                 free rows. All users see command lines: put a URL that has a password into the variable
                 BATCH_JOB_STORE instead. Default: a SQLite file that is removed at the end

Skipped: folders named target or .git, symbolic links, files that are not UTF-8.
Exit code: 0 proved, 1 not proved or failed, 2 wrong arguments.";

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut given = &args.iter().map(String::as_str).collect::<Vec<_>>()[..];
    let told = env::var(STORE).ok();
    let mut store = told.as_deref();
    if let ["--store", rest @ ..] = given {
        let [url, rest @ ..] = rest else { return wrong("--store needs a URL, like postgres://HOST/DATABASE") };
        (store, given) = (Some(*url), rest);
    }
    if store.is_some_and(|url| url.starts_with("memory:")) {
        return wrong("a memory: store is not shared by processes, of which this example has four");
    }
    let outcome = match *given {
        ["--worker", number, job, folder] => work(number, Path::new(job), Path::new(folder)).map(|()| true),
        ["-h" | "--help"] => {
            println!("{HELP}");
            Ok(true)
        }
        [] => run(Path::new(env!("CARGO_MANIFEST_DIR")), store),
        [option] if option.starts_with('-') => return wrong(&format!("there is no option {option}")),
        [folder] if !Path::new(folder).is_dir() => return wrong(&format!("there is no folder {folder:?}")),
        [folder] => run(Path::new(folder), store),
        _ => return wrong(&format!("{} arguments are given, but one folder is enough", given.len())),
    };
    match outcome {
        Ok(proved) => ExitCode::from(u8::from(!proved)),
        Err(error) => {
            eprintln!("batch_job: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("batch_job: {message}\n\n{HELP}");
    ExitCode::from(2)
}

/// One worker: locks and counts file after file, beginning with its own quarter.
fn work(number: &str, job: &Path, folder: &Path) -> Result<()> {
    let number: usize = number.parse()?;
    let (client, prefix) = match env::var(STORE) {
        Ok(url) => {
            // Others may use that store, too: the keys of this run are its own.
            let run = job.file_name().unwrap_or_default().to_string_lossy();
            (LockClient::builder(url), format!("{run}/"))
        }
        Err(_) => (leasehold::sqlite::builder(job.join("locks.db")).poll(POLL), String::new()),
    };
    let client = client.owner(name(number)).lease(LEASE).connect()?;
    let results = Results::open(job)?;
    let mut files: Vec<String> = results.rows()?.into_keys().collect();
    // The others stop here until the victim is dead. They leave it a file even if each has one in hand.
    let half = (files.len() / 2).min(files.len().saturating_sub(WORKERS));
    let mut half_way = false;
    let quarter = files.len() * number / WORKERS;
    files.rotate_left(quarter);
    for file in &files {
        if results.is_counted(file)? {
            continue;
        }
        if !half_way && results.counted()? >= half {
            half_way = true;
            if number != VICTIM {
                until_stdin_ends()?;
            }
        }
        let guard = client.lock(&format!("{prefix}{file}"))?;
        let token = i64::try_from(guard.fencing_token())?;
        // Another may have counted it while this one waited for the lock.
        if !results.claim(file, token, number)? {
            continue;
        }
        if half_way && number == VICTIM {
            println!("{token} {file}");
            until_stdin_ends()?;
            return Err("the parent ended before it killed this worker".into());
        }
        let text = fs::read_to_string(folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
        if !results.record(file, token, count(&text))? {
            eprintln!("{}: lost {file} meanwhile; its new holder counts it", name(number));
        }
    }
    Ok(())
}

/// Waits until the parent closes the standard input, which means that this worker must go on.
fn until_stdin_ends() -> io::Result<u64> {
    io::copy(&mut io::stdin().lock(), &mut io::sink())
}

/// The parent: starts the workers, kills one, waits for the others and checks what they did.
fn run(folder: &Path, store: Option<&str>) -> Result<bool> {
    if let Some(url) = store {
        LockClient::builder(url).lease(LEASE).create_schema(true).connect()?;
    }
    let mut expected = BTreeMap::new();
    let skipped = find_texts(folder, folder, &mut expected)?;
    if expected.is_empty() {
        return Err(format!("there are no text files below {}", folder.display()).into());
    }
    println!("{} text files below {} ({skipped} others skipped)", expected.len(), folder.display());
    println!("{WORKERS} workers, a lease of {LEASE:?}\n");
    let job = tempfile::tempdir()?; // removed at the end
    let results = Results::create(job.path(), expected.keys())?;

    let mut workers = Workers(Vec::new());
    for number in 0..WORKERS {
        workers.0.push(start(number, job.path(), folder, store)?);
    }
    let (token, file) = what_it_holds(&mut workers.0[VICTIM])?;
    workers.0[VICTIM].kill()?;
    let killed_at = millis();
    // Tells all of them to go on, before it waits for the first.
    workers.0.iter_mut().for_each(|worker| drop(worker.stdin.take()));
    let mut problems = Vec::new();
    for (number, worker) in workers.0.iter_mut().enumerate() {
        let status = worker.wait()?;
        if number != VICTIM && !status.success() {
            problems.push(format!("{} ended with {status}", name(number)));
        }
    }

    let late_write_taken = results.record(&file, token, [0; 3])?;
    let rows = results.rows()?;
    println!("{:10}{:>7}{:>10}{:>10}{:>12}", "worker", "files", "lines", "words", "bytes");
    for worker in (0..WORKERS).map(name) {
        let mine: Vec<Counts> = rows.values().filter(|row| row.worker == worker).map(|row| row.counts).collect();
        let [lines, words, bytes] = [0, 1, 2].map(|n| mine.iter().map(|counts| counts[n]).sum::<i64>());
        let note = if worker == name(VICTIM) { "  killed" } else { "" };
        println!("{worker:10}{:>7}{lines:>10}{words:>10}{bytes:>12}{note}", mine.len());
    }
    let heir = &rows[&file];
    let after = Duration::from_millis(u64::try_from(heir.claimed_at - killed_at).unwrap_or(0));
    println!("\n{} was killed while it held {file} with token {token}", name(VICTIM));
    println!("{} took it over {after:?} after the kill with token {}", heir.worker, heir.token);
    println!("a late write with the dead worker's token: {}", if late_write_taken { "TAKEN" } else { "refused" });

    if late_write_taken || heir.token <= token || heir.worker == name(VICTIM) {
        problems.push(format!("{file} was not protected by a higher token"));
    }
    for (file, counts) in &expected {
        let row = &rows[file];
        if row.writes != 1 || row.counts != *counts {
            problems.push(format!("{file}: {row:?}, but the parent counts {counts:?}"));
        }
    }
    match &problems[..] {
        [] => println!("proof: {} files, each counted exactly once, and all as the parent counts them", rows.len()),
        _ => println!("NOT PROVED:\n  {}", problems.join("\n  ")),
    }
    Ok(problems.is_empty())
}

/// No worker outlives the parent, even if the parent fails.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill().and_then(|()| worker.wait());
        }
    }
}

fn start(number: usize, job: &Path, folder: &Path, store: Option<&str>) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--worker", &number.to_string()]).args([job, folder]).stdin(Stdio::piped());
    if let Some(url) = store {
        command.env(STORE, url);
    }
    command.stdout(if number == VICTIM { Stdio::piped() } else { Stdio::inherit() }).spawn()
}

/// Waits until the victim says that it holds a lock, which it then keeps until it is killed.
fn what_it_holds(victim: &mut Child) -> Result<(i64, String)> {
    let mut line = String::new();
    BufReader::new(victim.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
    let (token, file) = line.trim_end_matches('\n').split_once(' ').ok_or("the victim ended before it held a file")?;
    Ok((token.parse()?, file.to_owned()))
}

/// Adds the text files below `folder` by their paths below `root`; returns how many other files it saw.
fn find_texts(root: &Path, folder: &Path, found: &mut BTreeMap<String, Counts>) -> Result<usize> {
    let mut skipped = 0;
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            if entry.file_name() != "target" && entry.file_name() != ".git" {
                skipped += find_texts(root, &path, found)?;
            }
            continue;
        }
        // The path is the end of a lock's key: at most 1,024 bytes and no control characters.
        let is_key = |key: &&str| kind.is_file() && key.len() <= 1000 && !key.contains(char::is_control);
        match path.strip_prefix(root)?.to_str().filter(is_key).zip(fs::read_to_string(&path).ok()) {
            Some((key, text)) => drop(found.insert(key.to_owned(), count(&text))),
            None => skipped += 1,
        }
    }
    Ok(skipped)
}

/// Lines, words and bytes.
type Counts = [i64; 3];

fn count(text: &str) -> Counts {
    let counts = [text.lines().count(), text.split_whitespace().count(), text.len()];
    counts.map(|n| i64::try_from(n).expect("a file is shorter than 2^63 bytes"))
}

fn name(number: usize) -> String {
    format!("worker-{}", number + 1)
}

fn millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The resource that the locks protect. It keeps the highest token that it has seen for each file.
/// A holder shows its token with `claim` before it begins; from then on `record` refuses everyone
/// who was granted the lock before, even while the new holder has not written anything yet.
struct Results(Connection);

#[derive(Debug)]
struct Row {
    token: i64,
    worker: String,
    claimed_at: i64,
    counts: Counts,
    writes: i64,
}

impl Results {
    fn open(job: &Path) -> Result<Results> {
        let db = Connection::open(job.join("results.db"))?;
        db.busy_timeout(Duration::from_secs(10))?;
        Ok(Results(db))
    }

    fn create<'a>(job: &Path, files: impl Iterator<Item = &'a String>) -> Result<Results> {
        let results = Results::open(job)?;
        results.0.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE files (
                 file TEXT PRIMARY KEY, token INTEGER NOT NULL DEFAULT 0,
                 worker TEXT NOT NULL DEFAULT 'nobody', claimed_at INTEGER NOT NULL DEFAULT 0,
                 lines INTEGER NOT NULL DEFAULT 0, words INTEGER NOT NULL DEFAULT 0,
                 bytes INTEGER NOT NULL DEFAULT 0, writes INTEGER NOT NULL DEFAULT 0);
             BEGIN",
        )?;
        for file in files {
            results.0.execute("INSERT INTO files (file) VALUES (?1)", [file])?;
        }
        results.0.execute_batch("COMMIT")?;
        Ok(results)
    }

    /// False when the file is counted already, or when a newer holder of its lock was here. The same holder may call it
    /// again, as when an answer is lost.
    fn claim(&self, file: &str, token: i64, number: usize) -> Result<bool> {
        let sql = "UPDATE files SET token = ?2, worker = ?3, claimed_at = ?4
                   WHERE file = ?1 AND token <= ?2 AND writes = 0";
        Ok(self.0.execute(sql, params![file, token, name(number), millis()])? == 1)
    }

    /// False when a newer holder of the file's lock was here.
    fn record(&self, file: &str, token: i64, [lines, words, bytes]: Counts) -> Result<bool> {
        let sql = "UPDATE files SET lines = ?3, words = ?4, bytes = ?5, writes = writes + 1
                   WHERE file = ?1 AND token <= ?2";
        Ok(self.0.execute(sql, params![file, token, lines, words, bytes])? == 1)
    }

    fn is_counted(&self, file: &str) -> Result<bool> {
        Ok(self.0.query_row("SELECT writes > 0 FROM files WHERE file = ?1", [file], |row| row.get(0))?)
    }

    fn counted(&self) -> Result<usize> {
        let sql = "SELECT count(*) FROM files WHERE writes > 0";
        Ok(usize::try_from(self.0.query_row(sql, [], |row| row.get::<_, i64>(0))?)?)
    }

    fn rows(&self) -> Result<BTreeMap<String, Row>> {
        let sql = "SELECT file, token, worker, claimed_at, lines, words, bytes, writes FROM files";
        let mut rows = self.0.prepare(sql)?;
        let rows = rows.query_map([], |row| {
            let counts = [row.get(4)?, row.get(5)?, row.get(6)?];
            let (token, worker, claimed_at, writes) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(7)?);
            Ok((row.get(0)?, Row { token, worker, claimed_at, counts, writes }))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
