//! Which processes there are.

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::unistd::Pid;

/// Whether something of a process group runs. What ended and was not waited for by its parent, which may be a daemon
/// that left the group, does nothing any more. `member`: one that ran at the last look.
pub fn is_alive(group: Pid, member: &mut Option<i32>) -> bool {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return false;
    }
    // To read the whole list each time would cost much.
    *member = member.filter(|pid| Stat::read(&pid.to_string()).is_some_and(|stat| stat.runs_in(group)));
    // Read twice, since a process may be made while the list is read.
    member.is_some() || !(0..2).all(|_| only_zombies(group, member))
}

/// Whether nothing of a group that is there runs; `false` also where that can't be told.
fn only_zombies(group: Pid, member: &mut Option<i32>) -> bool {
    let shows_all = || -> Option<bool> {
        // Of another namespace of processes, or without those of other users.
        let is_ours = Stat::read("self")?.pid == nix::unistd::getpid().as_raw();
        Some(is_ours && !std::fs::read_to_string("/proc/self/mountinfo").ok()?.contains("hidepid="))
    };
    let members = || -> Option<Vec<Stat>> {
        let names = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.file_name());
        let all = names.filter_map(|name| Stat::read(name.to_str().filter(|name| name.parse::<i32>().is_ok())?));
        Some(all.filter(|stat| stat.group == group.as_raw()).collect())
    };
    let Some(members) = shows_all().filter(|all| *all).and_then(|_| members()) else { return false };
    *member = members.iter().find(|stat| stat.runs_in(group)).map(|stat| stat.pid);
    !members.is_empty() && member.is_none()
}

/// What `/proc/PID/stat` says, on Linux.
struct Stat {
    pid: i32,
    state: String,
    group: i32,
    threads: u32,
}

impl Stat {
    fn read(name: &str) -> Option<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
        // The name of the program may have blanks and parentheses.
        let (head, rest) = text.rsplit_once(") ")?;
        let rest: Vec<&str> = rest.split(' ').collect();
        Some(Stat {
            pid: head.split(' ').next()?.parse().ok()?,
            state: (*rest.first()?).to_owned(),
            group: rest.get(2)?.parse().ok()?,
            threads: rest.get(17)?.parse().ok()?,
        })
    }

    fn runs_in(&self, group: Pid) -> bool {
        // One whose first thread ended is called a zombie, too, while its others run.
        let is_zombie = ["Z", "X"].contains(&self.state.as_str()) && self.threads <= 1;
        self.group == group.as_raw() && !is_zombie
    }
}
