//! The controlling terminal, whose foreground is one process group at a time.

use std::fs::File;

use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Our controlling terminal. Whoever uses it must have blocked SIGTTOU.
pub struct Terminal(File);

impl Terminal {
    /// `None` where there is none.
    pub fn open() -> Option<Terminal> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Terminal)
    }

    /// Whether this group is in the foreground.
    pub fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0) == Ok(group)
    }

    /// Whether our own group is in the foreground.
    pub fn is_ours(&self) -> bool {
        self.is_with(getpgrp())
    }

    /// Puts this group into the foreground. When that fails the terminal is gone.
    pub fn give_to(&self, group: Pid) {
        let _ = tcsetpgrp(&self.0, group);
    }

    /// Our group again, if this one was in the foreground; says whether it was.
    pub fn take_back_from(&self, group: Pid) -> bool {
        let was = self.is_with(group);
        if was {
            self.give_to(getpgrp());
        }
        was
    }
}
