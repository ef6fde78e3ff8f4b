//! A server for one test on this host, which the test can end and start again with the data on its disk.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::cluster::dies_with_us;
use super::room::room;
use super::servers::{Server, free_port, home, servers, skip};

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(90);

/// Its process ends when it is dropped.
pub struct Own {
    server: &'static Server,
    home: PathBuf,
    port: u16,
    data: TempDir,
    process: Option<Child>,
}

impl Own {
    /// None where there is nothing to start; that was already reported.
    pub fn start(server: &'static Server) -> Option<Own> {
        Own::start_in(server, room().expect("a folder"))
    }

    /// The same in this folder, which may already contain files that the start command looks for.
    pub fn start_in(server: &'static Server, data: TempDir) -> Option<Own> {
        let home = match home(server, &servers()) {
            Ok(home) => home,
            Err(why) => {
                skip(&format!("no {} to start: {why}\n  install {}", server.name, server.install));
                return None;
            }
        };
        let mut own = Own { server, home, port: free_port(), data, process: None };
        own.start_again();
        Some(own)
    }

    pub fn url(&self) -> String {
        (self.server.url)(self.port)
    }

    /// The folder of its data.
    pub fn data(&self) -> &std::path::Path {
        self.data.path()
    }

    /// Starts it again on the same port and the same data. It serves when this returns.
    pub fn start_again(&mut self) {
        let (url, started) = (self.url(), Instant::now());
        let ready = || (self.server.ready)(&url);
        while !ready() {
            assert!(started.elapsed() < START, "{} does not serve at {url}", self.server.name);
            let is_running =
                self.process.as_mut().is_some_and(|process| process.try_wait().expect("a state").is_none());
            // It ends at once if another program had its port for a moment.
            if !is_running {
                let command = (self.server.start)(&self.home, self.port, self.data.path());
                self.process = Some(dies_with_us(&command).spawn().expect("a server"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends SIGKILL, or the signal by which it ends in good order. The process is gone when this returns.
    pub fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("it runs");
        kill(Pid::from_raw(i32::try_from(process.id()).expect("a process id")), signal).expect("a signal");
        process.wait().expect("its end");
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
