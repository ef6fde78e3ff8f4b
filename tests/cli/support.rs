//! A store in a folder of its own, and the command `leasehold` on it.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use leasehold::LockClient;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};
use tempfile::TempDir;

use crate::wait::wait_until;

/// Longer than anything here takes on a busy machine, even six processes in turn on a server.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the rest of the command line as another user.
pub const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// An SQLite store.
pub struct Store {
    pub folder: TempDir,
    pub url: String,
}

impl Store {
    pub fn new() -> Store {
        Store::within(crate::room::room())
    }

    /// In a folder where programs may be started, also with more rights.
    pub fn on_disk() -> Store {
        Store::within(tempfile::tempdir())
    }

    fn within(folder: std::io::Result<TempDir>) -> Store {
        ignore_no_signals();
        let folder = folder.expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        Store { folder, url }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client that tolerates a slow disk.
    pub fn client(&self) -> LockClient {
        let builder = LockClient::builder(&self.url).request_timeout(PATIENCE).drop_timeout(PATIENCE);
        builder.connect().expect("the store")
    }

    /// The command on this store.
    pub fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", &self.url).env("XDG_STATE_HOME", self.folder.path());
        command
    }

    /// `run k` with these options and a script.
    pub fn script(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.leasehold(&["run", "k"]);
        command.args(options).args(["--", "sh", "-c", script]);
        command
    }

    /// The same for a script that may `read` from `Running::stdin`. A shell that waits in `read`, and not for a child
    /// that it has just started, misses no signal: dash forgets signals that come while it starts a child.
    pub fn reading(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.script(options, script);
        command.stdin(Stdio::piped());
        command
    }

    /// A connection as from another program.
    pub fn db(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(self.path("locks.db")).expect("the file");
        db.busy_timeout(PATIENCE).expect("a limit");
        db
    }

    /// Nothing can be written until the returned value is dropped: no heartbeat, no release.
    pub fn stuck(&self) -> rusqlite::Connection {
        let db = self.db();
        db.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
        db
    }

    /// The same. Also returns when the lease of `k` ends, which no heartbeat can change now.
    pub fn stuck_lease(&self) -> (rusqlite::Connection, SystemTime) {
        crate::lateness::measure();
        let db = self.stuck();
        let key = self.client().get("k").expect("its row").expect("its row");
        (db, key.holders()[0].leased_until().expect("it ends"))
    }

    /// From now on each update fails that fits this condition.
    pub fn refuses(&self, updates: &str) {
        let trigger = format!("CREATE TRIGGER refused BEFORE UPDATE ON locks WHEN {updates}");
        let refused = self.db().execute_batch(&format!("{trigger} BEGIN SELECT RAISE(ABORT, 'refused'); END"));
        refused.expect("a trigger");
    }

    /// Makes `more`, which only root may signal, and next to it `leasehold`, for [`NOBODY`]. False if the test is
    /// skipped here.
    pub fn has_more_rights(&self) -> bool {
        let copies = format!("cp {} leasehold && cp $(command -v setpriv) more", env!("CARGO_BIN_EXE_leasehold"));
        let nobody = NOBODY.join(" ");
        let script = format!("{copies} && chmod 777 . && chmod 4755 more && {nobody} ./more --reuid=0 true");
        let is_made = run(Command::new("sh").args(["-c", &script]).current_dir(self.folder.path())).code == Some(0);
        if !is_made {
            crate::servers::skip("no program with more rights can be made here");
        }
        is_made
    }

    /// A named pipe, which only processes have that open it by its name.
    pub fn fifo(&self) -> PathBuf {
        let fifo = self.path("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).expect("a pipe");
        fifo
    }
}

/// Asserts that what was to end a second before `end` has ended now. It may be later than that second only by what the
/// machine was late.
#[track_caller]
pub fn ended_before(end: SystemTime) {
    let second = Duration::from_secs(1);
    let late = SystemTime::now().duration_since(end).unwrap_or_default();
    let slack = crate::lateness::slack(Instant::now() - late - second).saturating_sub(second);
    assert!(late <= slack, "it went on for {late:?}, and {slack:?} may be the machine's");
}

/// A waiter has got the lock just now: asserts that this process is gone. It may be late only by what the machine was
/// late since then.
#[track_caller]
pub fn is_gone(pid: &str, since: Instant) {
    let (granted, ended) = (Instant::now(), || ["Z", ""].contains(&state(pid).as_str()));
    if !ended() {
        wait_until("it is gone", ended);
        let (late, slack) = (granted.elapsed(), crate::lateness::slack(since).saturating_sub(crate::lateness::WORK));
        assert!(late <= slack, "it went on for {late:?}, and {slack:?} may be the machine's");
    }
}

/// The command without a store, and without the variables of the test environment.
pub fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .args(args)
        .env_remove("LEASEHOLD_STORE")
        .env_remove("LEASEHOLD_LOCK_ID")
        .env_remove("LEASEHOLD_OUTER_LOCK_IDS")
        .stdin(Stdio::null());
    command.env("NO_COLOR", "1").env("XDG_STATE_HOME", "/nowhere/at/all");
    command
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Ran {
    Running::start(command).end()
}

/// The same. Repeats it while a server that stopped for a while did not answer in the command's time: only for what may
/// be done twice.
#[track_caller]
pub fn run_until_answered(command: &mut Command) -> Ran {
    (0..20).map(|_| run(command)).find(|ran| ran.code != Some(69)).expect("an answer")
}

/// Runs a command that waits in vain for this long. Repeats it with more time while its answer names no holder: the wait
/// was over before the store had answered, as on a busy machine.
#[track_caller]
pub fn run_until_named(command: impl Fn(&str) -> Command) -> Ran {
    let mut runs = ["1s", "4s", "16s"].into_iter().map(|wait| run(&mut command(wait)));
    runs.find(|ran| ran.stderr.contains("held by ")).unwrap_or_else(|| run(&mut command("64s")))
}

/// A running command. It is killed when this is dropped.
pub struct Running {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    lines: Lines,
    seen: String,
    stderr: Lines,
    said: String,
}

impl Running {
    #[track_caller]
    pub fn start(command: &mut Command) -> Running {
        Running::start_to(Stdio::piped(), command)
    }

    /// Starts it, and waits until its script has printed `ready` and waits for something.
    #[track_caller]
    pub fn ready(command: &mut Command) -> Running {
        let mut running = Running::start(command);
        running.expect("ready");
        running.waits();
        running
    }

    /// Waits until what was started waits for something. A shell that gets a signal between its `echo` and its `read`
    /// handles it only after the next line.
    #[track_caller]
    fn waits(&self) {
        let waits = |pid: String| !matches!(state(&pid).as_str(), "R" | "D");
        wait_until("what it started waits", || self.children().into_iter().all(waits));
    }

    /// Starts it with this standard output.
    #[track_caller]
    pub fn start_to(stdout: Stdio, command: &mut Command) -> Running {
        let mut child = command.stdout(stdout).stderr(Stdio::piped()).spawn().expect("the command starts");
        // From now on only the command has that output.
        command.stdout(Stdio::null());
        let lines = child.stdout.take().map_or_else(|| lines_of(std::io::empty()), lines_of);
        let stderr = lines_of(child.stderr.take().expect("a pipe"));
        let stdin = child.stdin.take();
        Running { child, stdin, lines, seen: String::new(), stderr, said: String::new() }
    }

    /// Waits for the next line on standard output.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let line = self.lines.0.recv_timeout(PATIENCE).unwrap_or_else(|why| {
            let errors = self.stderr.0.try_iter().collect::<Vec<_>>();
            panic!("no line ({why}); it ended with {:?} and said {}{errors:#?}", self.child.try_wait(), self.said)
        });
        self.seen += &format!("{line}\n");
        line
    }

    #[track_caller]
    pub fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Waits until every process that has its standard output is gone.
    #[track_caller]
    pub fn output_ends(&mut self) {
        let started = Instant::now();
        loop {
            match self.lines.0.recv_timeout(PATIENCE.saturating_sub(started.elapsed())) {
                Ok(line) => self.seen += &format!("{line}\n"),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("somebody still has the standard output; it said {}", self.seen)
                }
            }
        }
    }

    /// Waits until standard error has a line with this text.
    #[track_caller]
    pub fn says(&mut self, text: &str) {
        loop {
            let line = self.stderr.0.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|why| panic!("{text:?} does not come ({why}): {}", self.said));
            self.said += &format!("{line}\n");
            if line.contains(text) {
                return;
            }
        }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("a pipe"), "{line}").expect("somebody reads");
    }

    /// Sends a signal, once what was started waits for something, because the signal may be passed on.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        if ![Signal::SIGSTOP, Signal::SIGCONT, Signal::SIGKILL].contains(&signal) {
            self.waits();
        }
        kill(pid(&self.child), signal).expect("it runs");
    }

    /// See [`children`].
    pub fn children(&self) -> Vec<String> {
        children(&self.child)
    }

    #[track_caller]
    pub fn status(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().expect("our child") {
                Some(status) => return status,
                None if Instant::now() > until => panic!("it does not end; it said {}", self.seen),
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The names of its threads, on Linux.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
    }

    /// Waits for its end, and for the end of everything that it started.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        drop(self.stdin.take());
        let status = self.status();
        self.output_ends();
        let mut stderr = std::mem::take(&mut self.said);
        while let Ok(line) = self.stderr.0.recv_timeout(PATIENCE) {
            stderr += &format!("{line}\n");
        }
        Ran { code: status.code(), stdout: std::mem::take(&mut self.seen), stderr }
    }
}

/// A pipe that takes nothing more until somebody reads, and how many bytes are in it.
pub fn full_pipe() -> (PipeReader, Stdio, usize) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let set = |writer: &PipeWriter, flags| fcntl(writer, FcntlArg::F_SETFL(flags)).expect("a pipe");
    set(&writer, OFlag::O_NONBLOCK);
    let mut full = 0;
    while let Ok(n) = writer.write(&[b' '; 4096]) {
        full += n;
    }
    set(&writer, OFlag::empty());
    (reader, writer.into(), full)
}

/// The lines of a pipe, as they arrive.
pub struct Lines(Receiver<String>);

impl Lines {
    #[track_caller]
    pub fn line(&self) -> String {
        self.0.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("no line: {why:?}"))
    }

    #[track_caller]
    pub fn expect(&self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Asserts that nothing more comes and every process that had the pipe is gone.
    #[track_caller]
    pub fn end(&self) {
        assert_eq!(self.0.recv_timeout(PATIENCE).unwrap_err(), RecvTimeoutError::Disconnected);
    }
}

/// The lines of a `Store::fifo` after its first line, which must be `line`.
#[track_caller]
pub fn lines_after(line: &str, fifo: &Path) -> Lines {
    let lines = lines_of(File::open(fifo).expect("the pipe"));
    lines.expect(line);
    lines
}

/// The lines of this pipe, as they arrive.
pub fn lines_of(pipe: impl Read + Send + 'static) -> Lines {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Lines(lines)
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the parent of this process has reaped it.
#[track_caller]
pub fn wait_until_reaped(pid: &str) {
    let pid = Pid::from_raw(pid.parse().expect("a process id"));
    wait_until("its end is seen", || kill(pid, None).is_err());
}

/// Signals that `nohup` or a shell's `&` made the tests ignore would also be ignored by what the tests start. A handler
/// prevents that, because it is not inherited.
fn ignore_no_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.map_or(0, |bits| u64::from_str_radix(bits.trim(), 16).expect("bits"));
        for signal in [SIGHUP, SIGINT, SIGQUIT].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 1) {
            signal_hook::flag::register(signal, Arc::default()).expect("it can be handled");
        }
    });
}

/// Sends a signal to a leasehold, and waits until its thread for signals has handed it on and waits for the next one.
/// No other signal comes meanwhile.
#[track_caller]
pub fn tell_signal(leasehold: &Child, signal: Signal) {
    let tasks = format!("/proc/{}/task", leasehold.id());
    // How often that thread has gone to sleep, if it sleeps now.
    let sleeps = || {
        let tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        let mut all = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        let status = all.find(|status| status.starts_with("Name:\tleasehold-signa\n"))?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        let times = field("voluntary_ctxt_switches:").parse::<u64>().ok()?;
        field("State:").starts_with('S').then_some(times)
    };
    let mut before = None;
    if cfg!(target_os = "linux") {
        wait_until("it waits for signals", || {
            before = sleeps();
            before.is_some()
        });
    }
    kill(pid(leasehold), signal).expect("it runs");
    let has_ended = || ["Z", ""].contains(&state(&leasehold.id().to_string()).as_str());
    wait_until("it is told", || before.is_none() || has_ended() || sleeps() > before);
}

/// The children of a process, on Linux. The kernel's own lists of children may miss some if one ends meanwhile.
pub fn children(of: &Child) -> Vec<String> {
    let own = of.id().to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().into_string().ok());
    all.filter(|pid| pid.parse::<u32>().is_ok() && stat(pid, 1) == own).collect()
}

/// The state of a process, as `T` for stopped.
pub fn state(pid: &str) -> String {
    stat(pid, 0)
}

/// A field of `/proc/PID/stat` after the name: 0 for its state, 1 for its parent.
fn stat(pid: &str, field: usize) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(field));
    fields.unwrap_or_default().to_owned()
}

pub fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a process id"))
}
