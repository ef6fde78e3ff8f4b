//! What the examples of fenced writes share: a program that runs itself once more, and stops and wakes that process.

use std::error::Error;

/// The other process. It prints one line, stops itself, and prints one more when it is woken.
pub struct Other {
    #[cfg(unix)]
    child: std::process::Child,
    #[cfg(unix)]
    said: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

#[cfg(unix)]
impl Other {
    /// Starts this program with these arguments; the whole process is stopped when this returns.
    pub fn start_and_stop(args: &[&str]) -> Result<Other, Box<dyn Error>> {
        use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
        use std::io::BufRead;

        let mut command = std::process::Command::new(std::env::current_exe()?);
        let mut child = command.args(args).stdout(std::process::Stdio::piped()).spawn()?;
        let mut said = std::io::BufReader::new(child.stdout.take().ok_or("stdout is piped")?).lines();
        println!("{}", said.next().ok_or("the other process ended early")??);
        let status = waitpid(nix::unistd::Pid::from_raw(child.id().try_into()?), Some(WaitPidFlag::WUNTRACED))?;
        match status {
            WaitStatus::Stopped(..) => Ok(Other { child, said }),
            _ => Err("the other process ended early".into()),
        }
    }

    /// Lets it go on to its end, and returns its last line.
    pub fn wake(mut self) -> Result<String, Box<dyn Error>> {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id().try_into()?), nix::sys::signal::SIGCONT)?;
        let last = self.said.next().ok_or("the other process ended early")??;
        println!("{last}");
        if self.child.wait()?.success() { Ok(last) } else { Err("the other process failed".into()) }
    }
}

/// Stops this very process. It goes on when it is woken.
#[cfg(unix)]
pub fn stop() -> Result<(), Box<dyn Error>> {
    Ok(nix::sys::signal::raise(nix::sys::signal::SIGSTOP)?)
}

#[cfg(not(unix))]
const NEEDS_UNIX: &str = "this example stops a process by a signal, which only Unix has";

#[cfg(not(unix))]
impl Other {
    pub fn start_and_stop(_: &[&str]) -> Result<Other, Box<dyn Error>> {
        Err(NEEDS_UNIX.into())
    }

    pub fn wake(self) -> Result<String, Box<dyn Error>> {
        Err(NEEDS_UNIX.into())
    }
}

#[cfg(not(unix))]
pub fn stop() -> Result<(), Box<dyn Error>> {
    Err(NEEDS_UNIX.into())
}
