//! Which processes there are.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The children that this process had before it became leasehold by `exec`. Nobody else waits for them.
pub static INHERITED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// The children of this process, where the system lists them: in `/proc/PID/task/TID/children` of Linux, which a small
/// kernel and some sandboxes do not have.
pub fn children() -> Option<Vec<Pid>> {
    children_in(Path::new("/proc/self/task"))
}

/// The children of this process that have ended and were not waited for, if the list of processes can be read.
#[cfg(target_os = "linux")]
pub fn zombies() -> Vec<Pid> {
    let Ok(Some(own)) = Stat::read("self") else { return Vec::new() };
    let names = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let all = names.filter(|name| name.parse::<i32>().is_ok()).filter_map(|name| Stat::read(&name).ok().flatten());
    all.filter(|stat| stat.parent == own.pid && stat.state == "Z").map(|stat| Pid::from_raw(stat.pid)).collect()
}

fn children_in(tasks: &Path) -> Option<Vec<Pid>> {
    let threads = std::fs::read_dir(tasks).ok()?;
    // A thread that ends meanwhile leaves its children to another thread.
    let lists = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let all = |before: Option<Vec<Pid>>, list: String| {
        let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw);
        Some(before.into_iter().flatten().chain(pids).collect())
    };
    lists.fold(None, all)
}

/// A handle of a process. It never refers to a later process with the same number. An error: there can be none.
#[cfg(target_os = "linux")]
pub fn handle(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

#[cfg(not(target_os = "linux"))]
pub fn handle(_: i32) -> io::Result<OwnedFd> {
    Err(ErrorKind::Unsupported.into())
}

/// Sends a signal to the process of a handle.
#[cfg(target_os = "linux")]
pub fn send_signal(process: impl AsFd, signal: Signal) -> io::Result<()> {
    let signal = rustix::process::Signal::from_named_raw(signal as i32).ok_or(ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_send_signal(process, signal)?)
}

#[cfg(not(target_os = "linux"))]
pub fn send_signal(_: impl AsFd, _: Signal) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Whether a process of a group runs. A zombie does not count: its parent, which may be a daemon that left the group,
/// may never wait for it. `member`: a process that ran at the last look.
pub fn is_alive(group: Pid, member: &mut Option<i32>) -> bool {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return false;
    }
    // First the known member, because reading the whole list each time would cost much.
    *member = member
        .filter(|pid| Stat::read(&pid.to_string()).is_ok_and(|stat| stat.is_some_and(|stat| stat.runs_in(group))));
    // Read twice, since a process may be made while the list is read.
    member.is_some() || !(0..2).all(|_| only_zombies(group, member))
}

/// Whether the group has processes, and none of them runs; `false` also if that is not known.
fn only_zombies(group: Pid, member: &mut Option<i32>) -> bool {
    let Ok(Some(members)) = members(group) else { return false };
    *member = members.iter().find(|stat| stat.runs_in(group)).map(|stat| stat.pid);
    !members.is_empty() && member.is_none()
}

/// Whether all of a process group is stopped or has ended. If not all processes are shown: whether its leader is or
/// has.
#[cfg(target_os = "linux")]
pub fn stands_still(group: Pid) -> bool {
    let stands = |stat: &Stat| ["T", "t", "Z", "X"].contains(&stat.state.as_str());
    match members(group) {
        Ok(Some(members)) => members.iter().all(stands),
        _ => Stat::read(&group.to_string()).ok().flatten().is_none_or(|leader| stands(&leader)),
    }
}

/// Whether a process of a group was stopped because it uses the terminal, as far as that is shown. With an old kernel,
/// or once its parent has waited for the stop, it is not known by which signal a process was stopped; then this assumes
/// a signal of the terminal.
pub fn asks_for_terminal(group: Pid) -> bool {
    let asks = |stat: &Stat| {
        stat.state == "T" && [0, Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&stat.stopped_by)
    };
    members(group).ok().flatten().is_some_and(|members| members.iter().any(asks))
}

/// The processes of a group; `None` where not all are shown.
fn members(group: Pid) -> io::Result<Option<Vec<Stat>>> {
    // `/proc` may be that of another namespace of processes, or hide the processes of other users.
    let is_ours = Stat::read("self")?.is_some_and(|own| own.pid == nix::unistd::getpid().as_raw());
    if !is_ours || String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo")?).contains("hidepid=") {
        return Ok(None);
    }
    let mut members = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.parse::<i32>().is_ok()) else { continue };
        members.extend(Stat::read(name)?.filter(|stat| stat.group == group.as_raw()));
    }
    Ok(Some(members))
}

/// What `/proc/PID/stat` says, on Linux.
struct Stat {
    pid: i32,
    state: String,
    parent: i32,
    group: i32,
    threads: u32,
    /// While it is stopped: the signal, or 0.
    stopped_by: i32,
}

impl Stat {
    /// `None`: there is no such process.
    fn read(name: &str) -> io::Result<Option<Stat>> {
        let is_gone = |error: &io::Error| {
            error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
        };
        match std::fs::read(format!("/proc/{name}/stat")) {
            Ok(bytes) => {
                Stat::parse(&String::from_utf8_lossy(&bytes)).map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name of the program may have blanks and parentheses.
        let (head, rest) = text.rsplit_once(") ")?;
        let rest: Vec<&str> = rest.split(' ').collect();
        Some(Stat {
            pid: head.split(' ').next()?.parse().ok()?,
            state: (*rest.first()?).to_owned(),
            parent: rest.get(1)?.parse().ok()?,
            group: rest.get(2)?.parse().ok()?,
            threads: rest.get(17)?.parse().ok()?,
            stopped_by: rest.get(49).and_then(|code| code.trim_end().parse().ok()).unwrap_or(0),
        })
    }

    fn runs_in(&self, group: Pid) -> bool {
        // A process whose first thread ended is called a zombie, too, while its other threads run.
        let is_zombie = ["Z", "X"].contains(&self.state.as_str()) && self.threads <= 1;
        self.group == group.as_raw() && !is_zombie
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_stopped_by_others_does_not_ask_for_the_terminal() {
        use std::os::unix::process::CommandExt;
        use std::process::Command;

        use nix::sys::wait::{Id, WaitPidFlag, waitid};

        use super::*;

        let mut sleeping = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let group = Pid::from_raw(sleeping.id() as i32);
        for (signal, asks) in [(Signal::SIGSTOP, false), (Signal::SIGTTIN, true)] {
            killpg(group, signal).unwrap();
            // Not taken (WNOWAIT), so that the system goes on saying by which signal the process was stopped.
            waitid(Id::Pid(group), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT).unwrap();
            let stat = Stat::read(&group.to_string()).unwrap().unwrap();
            let says = stat.stopped_by == signal as i32;
            assert!(says || stat.stopped_by == 0, "{}", stat.stopped_by);
            assert_eq!(asks_for_terminal(group), asks || !says);
            killpg(group, Signal::SIGCONT).unwrap();
        }
        sleeping.kill().unwrap();
        sleeping.wait().unwrap();
    }
}
