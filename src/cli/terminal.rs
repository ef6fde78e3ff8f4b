//! The controlling terminal, whose foreground is one process group at a time.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Our controlling terminal. A thread that uses it must have blocked SIGTTOU.
pub struct Terminal {
    file: File,
    /// The command gets the terminal only once it asks for it. We may be a part of a pipeline, of which another part
    /// may read the terminal, as `less` does; or run in the background of a script, which gives us another input.
    pub on_demand: bool,
}

impl Terminal {
    /// `None` where there is none.
    pub fn open() -> Option<Terminal> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { file, on_demand: is_shared() })
    }

    /// Whether this group is in the foreground.
    pub fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.file) == Ok(group)
    }

    /// Whether our own group is in the foreground.
    pub fn is_ours(&self) -> bool {
        self.is_with(getpgrp())
    }

    /// Puts this group into the foreground. If that fails, the terminal is gone.
    pub fn give_to(&self, group: Pid) {
        let _ = tcsetpgrp(&self.file, group);
    }

    /// Puts our group into the foreground again if this group was there; returns whether it was.
    pub fn take_back_from(&self, group: Pid) -> bool {
        let was = self.is_with(group);
        if was {
            self.give_to(getpgrp());
        }
        was
    }
}

/// Whether other processes may want the terminal. Always false except on Linux: elsewhere Ctrl-Z reaches only the
/// foreground, see `stops`, so the command must be there.
pub fn is_shared() -> bool {
    let kind = |mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
    let is_pipe = |mode| [SFlag::S_IFIFO, SFlag::S_IFSOCK].contains(&kind(mode));
    let is_shared = || !io::stdin().is_terminal() || fstat(io::stdout()).is_ok_and(|end| is_pipe(end.st_mode));
    cfg!(target_os = "linux") && is_shared()
}
