//! What the help of each command says of its exit codes.

pub const ALL: &str = "\
Exit codes:
  N     `run`, `elect`: what the command ended with
  1     `status --exit-code`: nothing of what is shown is live
  64    wrong usage
  69    the store is out of reach
  70    a fault of leasehold itself
  74    the output could not be written
  75    not obtained in time, or others hold it (`release`, `lease`); standard error says who
  76    lost while the command ran or `hold` held it, or no longer held (`renew`)
  77    the store denies it
  78    the store URL, the configuration or the store's schema is wrong
  79    `run --every`: not due, since it ran in this period or runs now
  80    `run`: --health-cmd failed, so the command was ended and the lock given back
  126   the command cannot be run
  127   there is no such command
  128+N signal N ended the command, or the wait for the lock";

/// The exit codes with a special meaning for one command.
macro_rules! of_its_own {
    ($codes:literal) => {
        concat!("Exit codes:\n", $codes, "\nThe others are those of every command: see `leasehold --help`.")
    };
}

pub const STATUS: &str = of_its_own!(
    "  0     also where nothing is held
  1     --exit-code: nothing of what is shown is live"
);
pub const RELEASE: &str = of_its_own!(
    "  0     it is not held any more, also where it was free before
  64    wrong usage, or --from has a lock that another store granted
  75    others hold it, or the answer to --force was not yes"
);
pub const RENEW: &str = of_its_own!(
    "  0     renewed
  64    wrong usage, or --from has a lock that another store granted
  76    it is not held any more, another has been granted it, or of a group one has less than a second left"
);
pub const UNLOCK: &str = of_its_own!("  0     nothing is held with this lock id any more, also where nothing was");
pub const PURGE: &str = of_its_own!("  0     also where there was nothing to do");
pub const INIT: &str = of_its_own!(
    "  0     the store has what it needs, also where it was there before
  77    the right to make it is missing; `init --print` shows what an administrator must do"
);
pub const DOCTOR: &str = of_its_own!(
    "  0     all is well
  69    the store is out of reach, or a request failed
  77    a right is missing
  78    the store URL, the configuration or the schema is wrong"
);
pub const LEASE: &str = of_its_own!(
    "  0     done; of `expire` and `unpin` also where there was nothing to end
  75    it is not as the command needs it. `claim`: somebody holds it; `extend`, `revoke`: nobody or
        another does; `expire`: its time is not over, or somebody pins it"
);
