//! Notices of the system that the file is written to.
//!
//! Every commit begins with a write to the log beside the file, which Linux reports (inotify). The commit can be seen
//! a moment later, after its sync where it has one. Linux also reports when one of the files is removed or moved.

use std::path::Path;
use std::time::Duration;

pub(super) use system::{Bell, LULL, Notice};

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

    use super::{Duration, Path};
    use crate::store::sqlite::file::beside;

    /// The longest time between two looks if writes are not noticed. A user has 128 notices: if none is left for this
    /// process, others have them and are woken at once.
    pub const LULL: Duration = Duration::from_millis(50);

    /// Once it has rung, every wait of its notice ends.
    #[derive(Clone, Debug)]
    pub struct Bell(Arc<EventFd>);

    impl Bell {
        pub fn ring(&self) {
            // It can only fail when it rings already.
            let _ = self.0.write(1);
        }
    }

    #[derive(Debug)]
    pub struct Notice {
        bell: Bell,
        /// `None` where the system has no more of them: then the thread must look from time to time.
        writes: Option<Inotify>,
    }

    impl Notice {
        pub fn new(path: &Path) -> io::Result<Notice> {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let bell = Bell(Arc::new(EventFd::from_value_and_flags(0, flags)?));
            let watch = || {
                let writes = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
                let gone = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF;
                for (file, events) in [("-wal", gone | AddWatchFlags::IN_MODIFY), ("-shm", gone), ("", gone)] {
                    writes.add_watch(&beside(path, file), events)?;
                }
                Ok::<_, nix::Error>(writes)
            };
            Ok(Notice { bell, writes: watch().ok() })
        }

        pub fn bell(&self) -> Bell {
            self.bell.clone()
        }

        /// Whether writes are noticed.
        pub fn is_watching(&self) -> bool {
            self.writes.is_some()
        }

        /// Waits for the bell, the limit or a write; whether a write came.
        pub fn wait_for_write(&self, limit: Duration) -> bool {
            let Some(writes) = &self.writes else {
                self.wait(limit);
                return false;
            };
            let mut both = [self.bell.0.as_fd(), writes.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut both, timeout(limit));
            self.take_writes()
        }

        /// Takes the notices of all writes that came so far; whether there were any.
        pub fn take_writes(&self) -> bool {
            let Some(writes) = &self.writes else { return false };
            std::iter::from_fn(|| writes.read_events().ok()).take_while(|events| !events.is_empty()).count() > 0
        }

        /// Waits for the bell or the limit.
        pub fn wait(&self, limit: Duration) {
            let _ = poll(&mut [PollFd::new(self.bell.0.as_fd(), PollFlags::POLLIN)], timeout(limit));
        }
    }

    fn timeout(limit: Duration) -> PollTimeout {
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::sync::Arc;

    use parking_lot::{Condvar, Mutex};

    use super::{Duration, Path};

    /// The longest time between two looks. There are no notices, and a lone waiter must not wait for long.
    pub const LULL: Duration = Duration::from_millis(5);

    /// Ends every wait of its notice from now on.
    #[derive(Clone, Debug, Default)]
    pub struct Bell(Arc<(Mutex<bool>, Condvar)>);

    impl Bell {
        pub fn ring(&self) {
            *self.0.0.lock() = true;
            self.0.1.notify_all();
        }
    }

    #[derive(Debug)]
    pub struct Notice(Bell);

    impl Notice {
        pub fn new(_path: &Path) -> io::Result<Notice> {
            Ok(Notice(Bell::default()))
        }

        pub fn bell(&self) -> Bell {
            self.0.clone()
        }

        /// Whether writes are noticed.
        pub fn is_watching(&self) -> bool {
            false
        }

        /// Waits for the bell, the limit or a write; whether a write came.
        pub fn wait_for_write(&self, limit: Duration) -> bool {
            self.wait(limit);
            false
        }

        /// Takes the notices of all writes that came so far; whether there were any.
        pub fn take_writes(&self) -> bool {
            false
        }

        /// Waits for the bell or the limit.
        pub fn wait(&self, limit: Duration) {
            let (rings, rung) = &*self.0.0;
            let mut rings = rings.lock();
            if !*rings {
                rung.wait_for(&mut rings, limit);
            }
        }
    }
}
