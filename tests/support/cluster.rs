//! A replica set of a test's own on this host, whose members it can stop and kill.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::servers::mongod::{SERVER, ask, hello, initiate, is_new, is_writable, member};
use super::servers::{free_port, home, servers, skip};
use super::wait::wait_until;

struct Member {
    process: Child,
    host: String,
    is_stopped: bool,
}

/// Its processes end when it is dropped. Only one cluster of several members at a time: three servers are a lot for a
/// small machine.
pub struct Cluster {
    members: Vec<Member>,
    home: PathBuf,
    options: Vec<String>,
    data: TempDir,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Cluster {
    /// Three members. None where there is no mongod; that was already reported.
    pub fn start() -> Option<Cluster> {
        Cluster::with(3, &[])
    }

    /// One member, with these options. None as for three.
    pub fn one(options: &[&str]) -> Option<Cluster> {
        Cluster::with(1, options)
    }

    fn with(members: usize, options: &[&str]) -> Option<Cluster> {
        super::servers::mongod()?;
        let home = match home(&SERVER, &servers()) {
            Ok(home) => home,
            // The environment names a running server, and there is no binary to start more.
            Err(why) => {
                skip(&format!("no mongod to start: {why}"));
                return None;
            }
        };
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        static TURN: Mutex<()> = Mutex::new(());
        let turn = (members > 1).then(|| TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let data = tempfile::tempdir().unwrap();
        let mut ports = BTreeSet::new();
        while ports.len() < members {
            ports.insert(free_port());
        }
        let running = ports.iter().map(|port| {
            std::fs::create_dir(data.path().join(port.to_string())).unwrap();
            let process = run(&home, data.path(), &port.to_string(), &options);
            Member { process, host: format!("127.0.0.1:{port}"), is_stopped: false }
        });
        let members = running.collect();
        let cluster = Cluster { members, home, options, data, _turn: turn };
        let hosts: Vec<&str> = cluster.members.iter().map(|member| member.host.as_str()).collect();
        wait_until("all members answer", || hosts.iter().all(|host| ask(host, &hello()).is_some()));
        wait_until("they are a replica set", || {
            // On a busy machine the answer may come too late, or say that a member did not answer in time.
            ask(hosts[0], &initiate(&hosts));
            ask(hosts[0], &hello()).is_some_and(|answer| !is_new(&answer))
        });
        cluster.primary();
        // Waits until the secondaries have caught up, so that any of them may be elected.
        wait_until("secondaries", || {
            let secondaries = hosts.iter().filter(|host| {
                let answer = ask(host, &hello()).unwrap_or_default();
                answer.windows(12).any(|part| part == b"\x08secondary\0\x01")
            });
            secondaries.count() == hosts.len() - 1
        });
        Some(cluster)
    }

    pub fn uri(&self) -> String {
        format!("mongodb://{}/?replicaSet=rs0", self.hosts())
    }

    /// All members, as a URL names them.
    pub fn hosts(&self) -> String {
        let hosts: Vec<&str> = self.members.iter().map(|member| member.host.as_str()).collect();
        hosts.join(",")
    }

    /// The URI of one member, whether it is the primary or not.
    pub fn uri_of(&self, member: usize) -> String {
        format!("mongodb://{}/?directConnection=true", self.members[member].host)
    }

    /// The member that accepts writes, once there is one.
    pub fn primary(&self) -> usize {
        let mut found = None;
        wait_until("a primary", || {
            let running = self.members.iter().enumerate().filter(|(_, member)| !member.is_stopped);
            let is_primary = |member: &Member| ask(&member.host, &hello()).is_some_and(|answer| is_writable(&answer));
            found = running.into_iter().find(|(_, member)| is_primary(member)).map(|(i, _)| i);
            found.is_some()
        });
        found.unwrap()
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.process.kill().unwrap();
        member.process.wait().unwrap();
        member.is_stopped = true;
    }

    /// Starts a member that was killed, with the data on its disk.
    pub fn start_again(&mut self, member: usize) {
        let member = &mut self.members[member];
        let (_, port) = member.host.split_once(':').unwrap();
        member.process = run(&self.home, self.data.path(), port, &self.options);
        member.is_stopped = false;
    }

    /// Sends SIGSTOP. All threads of the member have stopped when this returns. (On a busy machine they run on for a
    /// while after the signal, and would write what is sent to the member after it.)
    pub fn stop(&mut self, member: usize) {
        self.signal(member, Signal::SIGSTOP);
        let status = waitpid(self.pid(member), Some(WaitPidFlag::WUNTRACED)).expect("the stop of the member");
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
        self.members[member].is_stopped = true;
    }

    /// Sends SIGCONT.
    pub fn go_on(&mut self, member: usize) {
        self.signal(member, Signal::SIGCONT);
        self.members[member].is_stopped = false;
    }

    fn signal(&self, member: usize, signal: Signal) {
        kill(self.pid(member), signal).unwrap();
    }

    fn pid(&self, member: usize) -> Pid {
        Pid::from_raw(i32::try_from(self.members[member].process.id()).unwrap())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

/// Starts the member of this port, whose files are in a folder named like the port.
fn run(home: &Path, data: &Path, port: &str, options: &[String]) -> Child {
    let mut mongod = member(home, port.parse().unwrap(), &data.join(port));
    // Otherwise a member that copied from a stopped one waits for it for ten seconds: no write has a majority then.
    mongod.args(["--setParameter", "oplogNetworkTimeoutBufferSeconds=1"]);
    mongod.args(["--replSet", "rs0", "--oplogSize", "64"]).args(options);
    dies_with_us(&mongod).spawn().unwrap()
}

/// Where `setpriv` exists, the kernel kills the process when the thread that starts it ends, for whatever reason.
pub fn dies_with_us(command: &Command) -> Command {
    let has =
        Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).status().is_ok_and(|status| status.success());
    let mut wrapped = if has { Command::new("setpriv") } else { Command::new(command.get_program()) };
    if has {
        wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program());
    }
    wrapped.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    wrapped
}
