//! What `hold` holds a lock for: a process, or the processes that have the writing end of a pipe.

use std::fs::{File, Metadata, read_dir, symlink_metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, close};

use crate::args::ForWhom;
use crate::failure::{Failure, Outcome};
use crate::on_loss::OnLoss;
use crate::processes::{handle, send_signal};
use crate::session::internal;
use crate::signals::Gone;

/// The pause between two tries to wait.
const AGAIN: Duration = Duration::from_secs(1);

/// Closes all descriptors that this process has inherited, except its standard streams and this one. Otherwise, for as
/// long as this process lives, a pipe of the script's would not end, and a lock of its `flock` would not be free.
pub fn close_inherited(but: Option<u32>) {
    let Ok(names) = read_dir("/dev/fd") else { return };
    let numbers: Vec<i32> = names.filter_map(|name| name.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|n| *n > 2 && but.is_none_or(|but| u32::try_from(*n) != Ok(but))) {
        let _ = close(number);
    }
}

/// See the module.
pub enum Watched {
    Process(i32, OwnedFd),
    Pipe(u32, File),
}

impl Watched {
    pub fn open(args: &ForWhom, on_loss: &OnLoss) -> Outcome<Watched> {
        match (args.pid, args.fd) {
            (Some(pid), _) => process(pid, on_loss),
            (None, fd) => pipe(fd.unwrap_or_default(), on_loss),
        }
    }

    /// As messages name what is watched.
    pub fn name(&self) -> String {
        match self {
            Watched::Process(pid, _) => format!("process {pid}"),
            Watched::Pipe(fd, _) => format!("the pipe of descriptor {fd}"),
        }
    }

    /// The number of the process, if it is one.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Watched::Process(pid, _) => Some(*pid),
            Watched::Pipe(..) => None,
        }
    }

    /// A handle of the process, if it is one.
    pub fn process(&self) -> Option<OwnedFd> {
        match self {
            Watched::Process(_, process) => process.try_clone().ok(),
            Watched::Pipe(..) => None,
        }
    }

    /// Sends a signal to the process, if it is one and still exists. False: it has more rights than we have by now.
    pub fn signal(&self, signal: Signal) -> bool {
        let Watched::Process(_, process) = self else { return true };
        let sent = send_signal(process, signal);
        !sent.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// A channel that reports once that it has ended.
    pub fn gone(&self) -> Outcome<Receiver<Gone>> {
        let (sender, gone) = bounded(1);
        let name = self.name();
        let thread = thread::Builder::new().name("leasehold-watched".to_owned());
        let spawned = match self {
            Watched::Process(_, process) => {
                let process = process.try_clone().map_err(internal)?;
                thread.spawn(move || {
                    wait_readable(process.as_fd());
                    let _ = sender.send(format!("{name} has ended"));
                })
            }
            Watched::Pipe(_, pipe) => {
                let pipe = pipe.try_clone().map_err(internal)?;
                thread.spawn(move || {
                    wait_closed(&pipe);
                    let _ = sender.send(format!("{name} was closed"));
                })
            }
        };
        spawned.map_err(internal)?;
        Ok(gone)
    }
}

fn process(pid: i32, on_loss: &OnLoss) -> Outcome<Watched> {
    if pid == 1 && on_loss.may_kill() {
        return Err(Failure::usage(
            "--pid: process 1 cannot be ended from within its container when the lock is lost: put its work behind \
             `run`, or say --on-loss ignore",
        ));
    }
    let handle = handle(pid).map_err(|error| match error.raw_os_error() == Some(Errno::ESRCH as i32) {
        true => Failure::usage(format!("--pid: there is no process {pid}")),
        false => Failure::usage(format!("--pid: process {pid} cannot be watched, --fd may work here: {error}")),
    })?;
    if *on_loss != OnLoss::Ignore && kill(Pid::from_raw(pid), None) == Err(Errno::EPERM) {
        return Err(Failure::usage(format!(
            "--pid: process {pid} is another user's, so that it could not be ended when the lock is lost; if that is \
             right, say --on-loss ignore"
        )));
    }
    Ok(Watched::Process(pid, handle))
}

fn pipe(fd: u32, on_loss: &OnLoss) -> Outcome<Watched> {
    if matches!(on_loss, OnLoss::Signal(_)) {
        return Err(Failure::usage("--on-loss signal:.. needs a process, which --pid names"));
    }
    let wrong = |why: &str| Failure::usage(format!("--fd: descriptor {fd} {why}"));
    let path = format!("/dev/fd/{fd}");
    let file = match std::fs::metadata(&path) {
        Err(_) => return Err(wrong("is not open")),
        Ok(file) => file,
    };
    if !file.file_type().is_fifo() {
        return Err(wrong("is no pipe; give the reading end of one, like --fd 0 < FIFO"));
    }
    match writing_end(&file) {
        Some(same) if same == fd.to_string() => Err(wrong("can be written to; give the reading end of the pipe")),
        Some(other) => Err(wrong(&format!(
            "is never closed, since this process has the writing end, too, as descriptor {other}; close it with {other}>&-"
        ))),
        None => {
            // Opened anew: O_NONBLOCK on the inherited descriptor would change the reads of other processes, too.
            let pipe = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path);
            let pipe = pipe.map_err(|error| wrong(&format!("cannot be watched: {error}")))?;
            // A command that is started at a loss must not inherit the pipe. (Standard input is not passed on to it.)
            if let Some(inherited) = i32::try_from(fd).ok().filter(|fd| *fd > 2) {
                let _ = close(inherited);
            }
            Ok(Watched::Pipe(fd, pipe))
        }
    }
}

/// A descriptor of this process by which the pipe can be written to, as far as the system shows that.
fn writing_end(pipe: &Metadata) -> Option<String> {
    let writes =
        |name: &str| symlink_metadata(format!("/proc/self/fd/{name}")).is_ok_and(|link| link.mode() & 0o200 != 0);
    let is_same = |file: Metadata| (file.dev(), file.ino()) == (pipe.dev(), pipe.ino());
    let names = read_dir("/proc/self/fd").ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| std::fs::metadata(format!("/proc/self/fd/{name}")).is_ok_and(is_same)).find(|name| writes(name))
}

fn wait_readable(fd: BorrowedFd<'_>) {
    // An error of the system that lasts a moment says nothing about the other side.
    while poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE).is_err_and(|error| {
        thread::sleep(if error == Errno::EINTR { Duration::ZERO } else { AGAIN });
        true
    }) {}
}

/// Waits until the pipe is closed. What is written to it is ignored.
fn wait_closed(mut pipe: &File) {
    let mut waste = [0; 4096];
    loop {
        match pipe.read(&mut waste) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_readable(pipe.as_fd()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
