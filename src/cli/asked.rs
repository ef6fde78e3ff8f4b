//! What the commands that take a lock ask for: which lock, how, and for how long they wait.

use std::time::Duration;

use leasehold::LockRequest;

use crate::on_loss::{OnLoss, on_loss};
use crate::words::{at_most_30_days, duration};

/// How long it is waited for the lock, and how that ends when the time is over.
#[derive(clap::Args, Debug)]
pub struct Patience {
    /// How long to wait at most; a number alone is seconds, and 0 tries once [default: without limit]
    #[arg(short = 'w', long, alias = "timeout", value_name = "DURATION", allow_hyphen_values = true, value_parser = crate::words::duration_or_zero)]
    pub wait: Option<Duration>,
    /// Do not wait: end at once if others hold the lock
    #[arg(short = 'n', long = "try", aliases = ["nonblock", "nb"], conflicts_with = "wait")]
    pub once: bool,
    /// The exit code when the lock was not obtained in time; with 0 and --quiet nothing is said [default: 75]
    #[arg(short = 'E', long, value_name = "N")]
    pub conflict_exit_code: Option<u8>,
}

impl Patience {
    /// `None`: without limit.
    pub fn wait(&self) -> Option<Duration> {
        self.wait.or(self.once.then_some(Duration::ZERO))
    }
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = true)]
pub struct Keys {
    /// The name of the lock; of several, the command runs while all of them are held
    key: Vec<String>,
    /// The name of a lock, if it begins with a hyphen
    #[arg(long = "key", value_name = "KEY", allow_hyphen_values = true)]
    hyphened_key: Vec<String>,
}

impl Keys {
    pub fn get(&self) -> Vec<String> {
        self.key.iter().chain(&self.hyphened_key).cloned().collect()
    }
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Key {
    /// The name of the lock
    key: Option<String>,
    /// The name of the lock, if it begins with a hyphen
    #[arg(long = "key", value_name = "KEY", allow_hyphen_values = true)]
    hyphened_key: Option<String>,
}

impl Key {
    pub fn get(&self) -> &str {
        self.key.as_deref().or(self.hyphened_key.as_deref()).unwrap_or_default()
    }
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Name {
    /// The name of the election
    name: Option<String>,
    /// The name of the election, if it begins with a hyphen
    #[arg(long = "name", value_name = "NAME", allow_hyphen_values = true)]
    hyphened_name: Option<String>,
}

impl Name {
    pub fn get(&self) -> &str {
        self.name.as_deref().or(self.hyphened_name.as_deref()).unwrap_or_default()
    }
}

/// In which mode a lock is taken.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Sharing {
    /// Take a shared lock, which several holders can have at once
    #[arg(short = 's', long)]
    shared: bool,
    /// Hold it alone, which is the default
    #[arg(short = 'x', short_alias = 'e', long, conflicts_with = "shared")]
    exclusive: bool,
    /// Take a shared lock, and only while fewer than N hold it; who asks with a larger limit joins all the same
    #[arg(long, value_name = "N", conflicts_with = "exclusive", value_parser = clap::value_parser!(u32).range(1..))]
    max_holders: Option<u32>,
}

impl Sharing {
    pub fn set(&self, request: LockRequest) -> LockRequest {
        match (self.shared, self.max_holders) {
            (_, Some(n)) => request.max_holders(n),
            (true, None) => request.shared(),
            (false, None) => request,
        }
    }
}

/// What others are shown of a holder.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Labels {
    /// The name of the holder, which `status` shows to others [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub owner: Option<String>,
    /// A note that others see in `status`
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
}

impl Labels {
    /// Sets the comment. The owner is set on the client.
    pub fn set(&self, request: LockRequest) -> LockRequest {
        match &self.comment {
            Some(comment) => request.comment(comment),
            None => request,
        }
    }
}

/// What all ask for that renew a lock.
#[derive(clap::Args, Clone, Debug)]
pub struct Ask {
    /// How long the lock survives if leasehold dies or loses the store; it is renewed for as long as it is held
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s", value_parser = at_most_30_days)]
    pub lease: Duration,
    #[command(flatten)]
    pub labels: Labels,
    /// The time between TERM and KILL [default: 5s, at most a sixth of the lease]
    ///
    /// KILL comes before the store can grant the lock to another: the lock counts as lost this time and a second (at
    /// most a sixth of the lease) before its lease ends. Both together must be at most a third of the lease. If it is
    /// given and not 0, KILL also follows a TERM that `run` passes on to the command.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = crate::words::duration_or_zero)]
    kill_after: Option<Duration>,
    /// The lock counts as lost after this time, so that a command that hangs is ended
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    pub max_hold: Option<Duration>,
    /// What is done to the command, or to the process of `hold`, when the lock is lost
    ///
    /// `kill` sends TERM to the command's process group, and KILL after --kill-after if anything of it is left; of `hold`
    /// to the process alone. `signal:NAME` sends that signal, as long before the lease's end as TERM, and nothing else. `cmd:COMMAND` runs that shell command
    /// instead, in the environment of the command with LEASEHOLD_PID, its process, LEASEHOLD_LOST_KEY and LEASEHOLD_LOSS, what
    /// has happened: if that fails, or takes longer than --kill-after, the command gets KILL; else it is left alone. It is run
    /// again for each further key that is lost. `ignore` lets the command go on: then only the fencing token protects.
    #[arg(long, value_name = "kill|signal:NAME|cmd:COMMAND|ignore", default_value = "kill", value_parser = on_loss)]
    pub on_loss: OnLoss,
}

impl Ask {
    /// The time between TERM and KILL.
    pub fn kill_after(&self) -> Duration {
        self.kill_after.unwrap_or_else(|| Duration::from_secs(5).min(self.lease / 6))
    }

    /// The time between a TERM that is passed on and KILL, if the user asked for that, as with `timeout -k`.
    pub fn kill_after_term(&self) -> Option<Duration> {
        self.kill_after.filter(|time| !time.is_zero())
    }

    /// The time between KILL and the end of the lease, which the system may need to kill.
    pub fn after_kill(&self) -> Duration {
        Duration::from_secs(1).min(self.lease / 6)
    }

    /// How often this process looks whether the locks were renewed: the keeper must learn of it before it kills.
    pub fn looks(&self) -> Duration {
        (self.lease / 20).min((self.kill_after() + self.after_kill() / 2) / 2)
    }

    /// How much of the lease is kept back. An error: that is too much; it has the shortest lease for which it is not.
    pub fn margin(&self) -> Result<Duration, Duration> {
        let (kill_after, margin) = (self.kill_after(), self.kill_after() + self.after_kill());
        if margin <= self.lease / 3 {
            return Ok(margin);
        }
        let with_a_second = kill_after.saturating_add(Duration::from_secs(1)).saturating_mul(3);
        Err(with_a_second.min(kill_after.saturating_mul(6)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit_every_lease_and_a_lease_that_is_advised_fits() {
        let ask = |lease, kill_after| {
            let on_loss = OnLoss::Kill;
            Ask { lease, labels: Labels::default(), kill_after, max_hold: None, on_loss }
        };
        for nanos in (1..40).map(|n| 3_u64.pow(n)) {
            let lease = Duration::from_nanos(nanos);
            assert!(
                ask(lease, None).margin().is_ok_and(|margin| margin >= (lease / 7).min(Duration::from_secs(6))),
                "{lease:?}"
            );
        }
        for (lease, kill_after) in [(10, Some(0)), (30, Some(0)), (110, None), (3_600, None), (86_400, Some(60))] {
            let ask = ask(Duration::from_secs(lease), kill_after.map(Duration::from_secs));
            // Half of the time remains for a look that is late.
            assert!(2 * ask.looks() <= ask.kill_after() + ask.after_kill() / 2, "{ask:?}");
        }
        let usual = ask(Duration::from_secs(30), None);
        assert_eq!((usual.kill_after(), usual.margin()), (Duration::from_secs(5), Ok(Duration::from_secs(6))));
        for millis in [1, 333, 999, 1000, 1001, 5000, 60_000] {
            let kill_after = Some(Duration::from_millis(millis));
            let least = ask(Duration::from_millis(1), kill_after).margin().unwrap_err();
            assert!(ask(least, kill_after).margin().is_ok(), "{millis}: {least:?}");
            assert!(ask(least - Duration::from_millis(1), kill_after).margin().is_err(), "{millis}: {least:?}");
        }
    }
}
