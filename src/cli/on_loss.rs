//! What is done to a command whose lock is lost.

use nix::sys::signal::Signal;

/// What is reported of a process to which we may send no signal.
pub const OUT_OF_REACH: &str = "has more rights than leasehold, which may not signal it, so it works on";

/// What is done to the command when the lock is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLoss {
    Kill,
    Signal(Signal),
    /// A shell runs this, and the command is killed if it fails.
    Command(String),
    Ignore,
}

impl OnLoss {
    /// Whether KILL may follow.
    pub fn may_kill(&self) -> bool {
        matches!(self, OnLoss::Kill | OnLoss::Command(_))
    }

    /// Whether the command may get this signal because of it.
    pub fn may_send(&self, signal: Signal) -> bool {
        matches!(self, OnLoss::Command(_)) || *self == OnLoss::Signal(signal)
    }
}

/// A command for a shell, as an option's value.
pub fn shell_command(text: &str) -> Result<String, String> {
    // A shell runs an empty command with success.
    match text.trim() {
        "" => Err("there is no command; write it in quotes, like './look-after --now'".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// The action at a loss, as an option's value.
pub fn on_loss(text: &str) -> Result<OnLoss, String> {
    match text.split_once(':') {
        None if text == "kill" => Ok(OnLoss::Kill),
        None if text == "ignore" => Ok(OnLoss::Ignore),
        Some(("cmd", command)) => shell_command(command).map(OnLoss::Command),
        Some(("signal", name)) => {
            let name = name.to_ascii_uppercase();
            let full = if name.starts_with("SIG") { name.clone() } else { format!("SIG{name}") };
            full.parse()
                .map(OnLoss::Signal)
                .map_err(|_| format!("there is no signal {name}; write it like signal:USR1"))
        }
        _ => Err("it must be kill, ignore, signal:NAME, like signal:USR1, or cmd:COMMAND".to_owned()),
    }
}
