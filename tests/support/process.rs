//! Worker processes: each is this test binary again, and gets commands on its standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid};

use super::faketime;
use super::wait::wait_until;

/// The variable of the environment that makes a process a worker.
pub const WORKER: &str = "LEASEHOLD_TEST_WORKER";
/// How an answer's line begins: the test runner writes to the same pipe.
pub const ANSWER: &str = "@@ ";

/// Longer than a worker takes for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest time between two looks of a waiter. With that of SQLite, the waiters would send a server as many
/// requests as it can answer.
pub fn poll(url: &str) -> Duration {
    Duration::from_millis(if url.starts_with("sqlite:") { 5 } else { 50 })
}

/// Forks this process. In the child only this thread goes on.
pub fn fork() -> ForkResult {
    // SAFETY: the child may allocate: glibc keeps its heap usable over a fork. Locks that other threads may have held are what
    // the tests are about.
    #[allow(unsafe_code)]
    let forked = unsafe { nix::unistd::fork() };
    forked.expect("a fork")
}

/// See the module. The process is killed when this is dropped.
pub struct Worker {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Worker {
    /// A process that is connected to `url`; the binary's test `worker` must call `worker::run`.
    pub fn start(url: &str, lease: Duration) -> Worker {
        Worker::polling(url, lease, poll(url), None)
    }

    /// The same, started as another test of the binary.
    pub fn start_as(test: &str, url: &str, lease: Duration) -> Worker {
        Worker::spawn(Command::new(binary()), test, url, lease, poll(url))
    }

    /// The same, with this longest time between two looks of a waiter, and this variable in its environment.
    pub fn polling(url: &str, lease: Duration, poll: Duration, env: Option<&(&str, String)>) -> Worker {
        let mut command = Command::new(binary());
        command.envs(env.map(|(name, value)| (name, value)));
        Worker::start_by(command, url, lease, poll)
    }

    /// The same, with a wall clock that is off by this many seconds; needs the program `faketime`.
    pub fn start_off(url: &str, lease: Duration, seconds: i32) -> Worker {
        let mut command = Command::new(binary());
        // The clocks that nobody can set on a host are not faked.
        command.env("LD_PRELOAD", faketime::library()).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env("FAKETIME", format!("{seconds:+}s"));
        Worker::start_by(command, url, lease, poll(url))
    }

    fn start_by(command: Command, url: &str, lease: Duration, poll: Duration) -> Worker {
        Worker::spawn(command, "worker", url, lease, poll)
    }

    fn spawn(mut command: Command, test: &str, url: &str, lease: Duration, poll: Duration) -> Worker {
        let mut child = command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(WORKER, "1")
            // For servers that accept any credentials.
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test binary again");
        let commands = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (sender, answers) = crossbeam_channel::unbounded();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(ANSWER)
                    && sender.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let mut worker = Worker { child, commands, answers };
        assert_eq!(worker.ask(&format!("connect {url} {} {}", lease.as_millis(), poll.as_millis())), "connected");
        worker
    }

    /// Sends a command without waiting for its answer.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the worker's input");
    }

    /// The channel on which its answers arrive.
    pub fn answers(&self) -> &Receiver<String> {
        &self.answers
    }

    /// The next answer.
    #[track_caller]
    pub fn answer(&self) -> String {
        self.answer_by(Instant::now() + PATIENCE).expect("an answer of the worker")
    }

    /// The next answer if it comes by this time.
    #[track_caller]
    pub fn answer_by(&self, by: Instant) -> Option<String> {
        match self.answers.recv_deadline(by) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the worker is gone"),
        }
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Sends a command whose answer is a token.
    #[track_caller]
    pub fn token(&mut self, command: &str) -> u64 {
        self.tell(command);
        self.granted()
    }

    /// The token in the next answer.
    #[track_caller]
    pub fn granted(&self) -> u64 {
        let answer = self.answer();
        answer.strip_prefix("token ").and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a signal to the worker");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"))
    }

    /// Sends SIGKILL. The process is gone when this returns.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("the end of the worker");
    }

    /// Sends SIGSTOP. When this returns, all its threads have stopped, and none of them within a write to SQLite, for
    /// whose end all other processes would wait.
    pub fn stop(&self) {
        let mut goes_on = false;
        wait_until("it writes no more", || {
            if std::mem::replace(&mut goes_on, true) {
                self.go_on();
                // About as long as a write takes.
                std::thread::sleep(Duration::from_millis(1));
            }
            self.signal(Signal::SIGSTOP);
            let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).expect("the stop of the worker");
            assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
            !self.is_writing()
        });
    }

    /// Whether it has SQLite's lock for the single writer: byte 120 of the WAL index.
    fn is_writing(&self) -> bool {
        let (locks, pid) = (std::fs::read_to_string("/proc/locks").unwrap_or_default(), self.child.id().to_string());
        locks.lines().map(|line| line.split_whitespace().skip(3).collect::<Vec<_>>()).any(|words| match words[..] {
            // The kernel merges adjacent locks into one range. A range up to the end of the file is not one of
            // SQLite's.
            ["WRITE", of, _, from, to] if of == pid => {
                from.parse().is_ok_and(|from: u64| from <= 120)
                    && to.parse().is_ok_and(|to: u64| (120..1000).contains(&to))
            }
            _ => false,
        })
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Waits for its end.
    pub fn end(&mut self) {
        self.child.wait().expect("the end of the worker");
    }
}

fn binary() -> PathBuf {
    std::env::current_exe().expect("this test binary")
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        faketime::clean_up(self.child.id());
    }
}
