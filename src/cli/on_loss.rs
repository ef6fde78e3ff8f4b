//! What is done to a command whose lock is lost.

use nix::sys::signal::Signal;

/// What is done to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    Kill,
    Signal(Signal),
    Ignore,
}

/// As an option's value.
pub fn on_loss(text: &str) -> Result<OnLoss, String> {
    match text {
        "kill" => Ok(OnLoss::Kill),
        "ignore" => Ok(OnLoss::Ignore),
        _ => {
            let name =
                text.strip_prefix("signal:").ok_or("it must be kill, ignore or signal:NAME, like signal:USR1")?;
            let name = name.to_ascii_uppercase();
            let full = if name.starts_with("SIG") { name.clone() } else { format!("SIG{name}") };
            full.parse()
                .map(OnLoss::Signal)
                .map_err(|_| format!("there is no signal {name}; write it like signal:USR1"))
        }
    }
}
