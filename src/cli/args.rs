//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueHint};

use crate::asked::{Ask, Key, Keys, Labels, Name, Patience, Sharing};
use crate::codes;
use crate::health::Checks;
use crate::words::{at_most_30_days, duration};

/// The help of `run` for this option: only `run` has --every.
const IN_VAIN: &str = "The exit code when the lock was not obtained in time; with 0 and --quiet nothing is said \
                       [default: 75, and 79 with --every]";

const STORES: &str = "\
The store, one of
  sqlite:PATH                            a file that the processes of one host share
  dynamodb://TABLE?region=..             a DynamoDB table
  mongodb://HOST/DATABASE?collection=..  a MongoDB collection
  postgres://HOST/DATABASE?table=..      a table of PostgreSQL
  spanner:projects/P/instances/I/databases/D?table=..
                                         a table of Cloud Spanner
as far as they are compiled in; the documentation of the library has their options. A URL with a password \
is better given in the environment.

[default: an SQLite file, $XDG_STATE_HOME/leasehold/locks.db or ~/.local/state/leasehold/locks.db]";

/// Holds a distributed lock while a command runs, and looks after the locks of a store.
#[derive(Parser, Debug)]
#[command(name = "leasehold", version, after_help = codes::ALL, max_term_width = 100, disable_help_subcommand = true)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The store, as a URL [default: a file in the user's state folder]
    #[arg(long, global = true, display_order = 100, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true, long_help = STORES)]
    pub store: Option<String>,
    /// Answers and errors as JSON
    #[arg(long, global = true, display_order = 101)]
    pub json: bool,
    /// Nothing on standard error but errors
    #[arg(short, long, global = true, display_order = 102)]
    pub quiet: bool,
    /// A line on standard error for each event, beside the library's warnings; twice: also each request to the store
    #[arg(short, long, global = true, display_order = 103, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Run(Box<Run>),
    Elect(Box<Elect>),
    Acquire(Acquire),
    Hold(Box<Hold>),
    Status(Status),
    Release(Release),
    Renew(Renew),
    Unlock(Unlock),
    Purge(Purge),
    Init(Init),
    /// Says what is wrong with a store.
    ///
    /// Whether it can be reached, whether its schema is right, how far its clock is off, how long a round trip takes,
    /// and which rights are missing: each is tried on a row of its own, which is deleted again.
    #[command(after_long_help = codes::DOCTOR)]
    Doctor,
    #[command(subcommand, after_long_help = codes::LEASE)]
    Lease(Lease),
    Completions(Completions),
    Man(Man),
}

/// Runs a command while holding a lock.
///
/// Waits for the lock, runs the command in a process group of its own, and releases the lock when every process of
/// that group is gone. An example:
///
/// leasehold run nightly --wait 10m -- ./report.sh
///
/// The command gets LEASEHOLD_KEY, LEASEHOLD_TOKEN (the fencing token), LEASEHOLD_LOCK_ID, LEASEHOLD_OWNER and
/// LEASEHOLD_STORE in its environment. A URL of MongoDB or PostgreSQL that names a user, or may have a password among its
/// options, is not passed on: LEASEHOLD_STORE_WITHHELD stands there then, and a leasehold inside the command needs its own
/// --store.
///
/// With several keys it waits for all of them, and takes them sorted, whatever the order given here, so that two
/// commands never wait for each other. LEASEHOLD_KEY and LEASEHOLD_TOKEN then have a line for each, sorted, too.
///
/// INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on to the command's group. When leasehold is killed, the
/// command's group is killed with it.
#[derive(clap::Args, Debug)]
#[command(override_usage = "leasehold run [OPTIONS] <KEY|--key <KEY>>... -- <COMMAND>...")]
#[command(after_long_help = codes::ALL, mut_arg("conflict_exit_code", |code| code.help(IN_VAIN)))]
pub struct Run {
    #[command(flatten)]
    pub keys: Keys,
    #[command(flatten)]
    pub ask: Ask,
    #[command(flatten)]
    pub sharing: Sharing,
    #[command(flatten)]
    pub patience: Patience,
    #[command(flatten)]
    pub checks: Checks,
    /// The least time for which the lock is kept, counted from its grant: others do not get it before, however soon
    /// the command ends
    ///
    /// Also when leasehold is killed, told to end as it gets the lock, or cannot start the command. `release --force` frees
    /// it at once.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = at_most_30_days)]
    pub hold_at_least: Option<Duration>,
    /// Run the command only if it did not succeed within this time before; tries once unless --wait is given
    ///
    /// Counted from the last start, by the store's clock, over all hosts, with the period that was given then. A command
    /// that ends with another code than 0 or is told to end, and a host that dies, leave it due. At most 30 days. The lock
    /// stands until it is due again: what is started a moment too early, as by cron each day, is not due, so say 20h for a
    /// day.
    #[arg(long, value_name = "PERIOD", allow_hyphen_values = true, value_parser = at_most_30_days, conflicts_with_all = ["shared", "max_holders"])]
    pub every: Option<Duration>,
    /// The command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Runs a command while this node leads an election.
///
/// Waits until it leads (each time at most for --wait), runs the command as `run` does, and ends it when the leadership
/// is lost: then it campaigns again. When the command ends by itself, or by a signal to leasehold, the node resigns and
/// leasehold ends with its code. The name of the election is the key of the leader's lock. An example, which every node
/// runs:
///
/// leasehold elect scheduler -- ./scheduler
#[derive(clap::Args, Debug)]
#[command(override_usage = "leasehold elect [OPTIONS] <NAME|--name <NAME>> -- <COMMAND>...", after_long_help = codes::ALL)]
pub struct Elect {
    #[command(flatten)]
    pub name: Name,
    /// This node, as others are shown it: its --owner [default: host:pid]
    #[arg(long, value_name = "TEXT", conflicts_with = "owner", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub id: Option<String>,
    #[command(flatten)]
    pub ask: Ask,
    #[command(flatten)]
    pub patience: Patience,
    #[command(flatten)]
    pub checks: Checks,
    /// The command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Takes a lock and ends; `release` gives it back.
///
/// For steps that share no process, as those of a pipeline. Nothing renews the lock, so give a
/// --lease in which the steps are surely done, or renew it between them.
///
/// The lock is printed on standard output as one JSON object. `release --from` and `renew --from`
/// read it, and each write of the work should bring along its `fencing_token`. Who has the object
/// can release the lock, so keep it where others cannot read it:
///
///   umask 077
///   leasehold acquire deploy --lease 30m --wait 1h > lock.json || exit
///   ./deploy
///   leasehold release --from lock.json
///
/// A lock that cannot be printed, or that nobody reads when a signal comes, is released again.
/// Use `hold` to keep a lock for as long as a script lives, and `run` for a single command.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment, after_long_help = codes::ALL)]
pub struct Acquire {
    #[command(flatten)]
    pub key: Key,
    /// How long it is held unless it is released before, or renewed; at most 30 days
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "10m", value_parser = at_most_30_days)]
    pub lease: Duration,
    #[command(flatten)]
    pub labels: Labels,
    #[command(flatten)]
    pub sharing: Sharing,
    #[command(flatten)]
    pub patience: Patience,
}

/// Holds a lock for as long as another process lives, or has a pipe open.
///
/// Waits for the lock, prints it on standard output as `acquire` does, closes that, and renews the
/// lock until the process has ended, or the pipe is closed by all that can write to it. Then it
/// releases the lock and ends with 0. It does so, too, when it gets TERM, INT, HUP or QUIT, and
/// ends with 128+N. A script that holds a lock from here to its end, whatever ends it:
///
///   lock=$(leasehold hold nightly --wait 1m --pid $$ &)
///   test "$lock" || exit 1
///
/// With a pipe the lock is held until all that the script has started has ended, too, or closed it:
///
///   mkfifo pipe; exec 9<> pipe
///   lock=$(leasehold hold nightly --wait 1m --fd 0 < pipe 9>&- &)
///   test "$lock" || exit 1
///   exec 9> pipe
///
/// From then on only leasehold reads, so that `printf . >&9` ends the script with PIPE once the lock
/// is lost: put it before each step.
///
/// When the lock is lost it does what --on-loss says, and ends with 76. A process of --pid gets
/// TERM, and KILL before the store can grant the lock to another, or when leasehold is killed;
/// that is this process alone, and not what it has started, so `run` is better where it will do.
/// With --fd nothing is sent: leasehold ends, and with it the reading end of the pipe.
///
/// Do not `leasehold run` the same key inside such a script: each would wait for the other.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment, after_long_help = codes::ALL)]
pub struct Hold {
    #[command(flatten)]
    pub key: Key,
    #[command(flatten)]
    pub for_whom: ForWhom,
    #[command(flatten)]
    pub ask: Ask,
    #[command(flatten)]
    pub sharing: Sharing,
    #[command(flatten)]
    pub patience: Patience,
}

/// How long `hold` goes on.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub struct ForWhom {
    /// Until this process has ended (on Linux)
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Until the pipe of which this descriptor is the reading end is closed by all that can write to it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1 << 20))]
    pub fd: Option<u32>,
}

/// Shows who holds what, live and expired, newest first.
#[derive(clap::Args, Debug)]
#[command(after_long_help = codes::STATUS)]
pub struct Status {
    /// Only this lock
    pub key: Option<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Only locks of this owner
    #[arg(long, value_name = "TEXT")]
    pub owner: Option<String>,
    /// Only locks with this lock id
    #[arg(long, value_name = "ID")]
    pub lock_id: Option<String>,
    #[command(flatten)]
    pub times: Times,
    #[command(flatten)]
    pub states: States,
    /// Show it again and again, each 2 s, or after this time, which needs the equals sign; without a KEY it pauses for ten
    /// times what a look takes, up to a minute, since on DynamoDB that reads the whole table
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = duration)]
    pub watch: Option<Option<Duration>>,
    /// End with 1 if none of what is shown is live, and with 0 if one is
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
}

/// Which locks `status` shows, by their times.
#[derive(clap::Args, Debug)]
pub struct Times {
    /// Only locks that were granted longer ago than this
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Only locks that were granted within this time
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    pub newer_than: Option<Duration>,
    /// Only locks with less than this left of their lease, which leaves out endless ones
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    pub left_below: Option<Duration>,
    /// Only locks with this or more left of their lease, which leaves out endless ones
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    pub left_at_least: Option<Duration>,
}

/// Which locks `status` shows, by how they are held.
#[derive(clap::Args, Debug)]
pub struct States {
    /// Only locks that are held alone
    #[arg(long, conflicts_with = "shared")]
    pub exclusive: bool,
    /// Only locks that are held together with others
    #[arg(long)]
    pub shared: bool,
    /// Only locks whose lease runs, or the grace of DynamoDB after it
    #[arg(long, conflicts_with = "expired")]
    pub live: bool,
    /// Only locks whose lease, and the grace of DynamoDB after it, has ended
    #[arg(long)]
    pub expired: bool,
}

/// Releases a lock that `acquire` took, or that another process holds, or all locks of a group.
///
/// A process that holds it learns of it at its next heartbeat; until then only the fencing token protects.
#[derive(clap::Args, Debug)]
#[command(after_long_help = codes::RELEASE)]
pub struct Release {
    /// The name of the lock; with --lock-id or --force
    pub key: Option<String>,
    /// The lock that `acquire` or `hold` has printed, from this file; from standard input if it is -
    ///
    /// Ends with 0 also where the lease is over and nobody holds it, and with 75 if others do. For `hold` this is a loss:
    /// what it still holds is given back by a TERM to it.
    ///
    /// Stores with the same path or host name are taken for one: they cannot be told apart.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["key", "group", "lock_id", "force", "yes"])]
    pub from: Option<PathBuf>,
    /// All locks with this lock id
    #[arg(long, value_name = "ID", conflicts_with_all = ["key", "lock_id", "force", "yes"])]
    pub group: Option<String>,
    /// The lock id under which it is held; other holders are left alone [env: LEASEHOLD_LOCK_ID]
    #[arg(long, value_name = "ID", conflicts_with = "force")]
    pub lock_id: Option<String>,
    /// Take it from whoever holds it; shows the holder and asks first
    #[arg(long)]
    pub force: bool,
    /// Do not ask; with --json it must be given
    #[arg(long, requires = "force")]
    pub yes: bool,
}

/// Renews a lock that `acquire` took, or all locks with one lock id.
///
/// A group is refused when one of its locks has less than a second left.
#[derive(clap::Args, Debug)]
#[command(after_long_help = codes::RENEW)]
pub struct Renew {
    /// All locks with this lock id
    #[arg(long, value_name = "ID")]
    pub group: Option<String>,
    /// The lock that `acquire` has printed, from this file; from standard input if it is -
    ///
    /// Also one whose lease is over, unless somebody was granted the lock since: then it ends with 76.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "group")]
    pub from: Option<PathBuf>,
    /// The same as --group
    #[arg(conflicts_with_all = ["group", "from"])]
    pub lock_id: Option<String>,
    /// The lease from now on, if that is longer than what is left of it
    ///
    /// The default is that of `run`, and shorter than that of `acquire`: say for how long the next step needs the lock.
    /// A lease that ends later stays as it is, since whoever has the lock counts on the end that was told before.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s", value_parser = at_most_30_days)]
    pub lease: Duration,
}

/// Releases all locks with one lock id: the same as `release --group`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = codes::UNLOCK)]
pub struct Unlock {
    /// The lock id
    pub lock_id: String,
}

/// Frees locks whose lease has ended, and deletes free rows last granted 30 days ago.
///
/// Only housekeeping: an expired lock is granted without it.
#[derive(clap::Args, Debug)]
#[command(after_long_help = codes::PURGE)]
pub struct Purge {
    /// Only locks whose lease ended longer ago than this
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "0s", value_parser = crate::words::duration_or_zero)]
    pub older_than: Duration,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Makes what the store needs: tables, indexes.
#[derive(clap::Args, Debug)]
#[command(after_long_help = codes::INIT)]
pub struct Init {
    /// Only show what it would do to an empty store, for whoever may do that. An SQLite file must be there
    #[arg(long)]
    pub print: bool,
}

/// Looks after leases, which a name holds until somebody expires them.
#[derive(Subcommand, Debug)]
pub enum Lease {
    /// Claims a lease for a holder.
    #[command(after_long_help = codes::LEASE)]
    Claim(Claim),
    /// Makes the lease of a holder last for longer.
    #[command(after_long_help = codes::LEASE)]
    Extend(Claim),
    /// Ends a lease whose time is over.
    #[command(after_long_help = codes::LEASE)]
    Expire(LeaseName),
    /// Ends the lease of a holder before its time.
    #[command(after_long_help = codes::LEASE)]
    Revoke(Revoke),
    /// Keeps a lease from being expired, until it is unpinned.
    ///
    /// Several can pin it, also while nobody holds it, and a pin outlasts the claim. `revoke` ends the lease all the
    /// same.
    #[command(after_long_help = codes::LEASE)]
    Pin(Pin),
    /// Takes back a pin, also that of a program that is gone.
    ///
    /// `lease list` shows who pins what somebody holds; of a name that nobody holds the answer to this says who pins it
    /// still. The exit code is 0 also where there is no such pin.
    #[command(after_long_help = codes::LEASE)]
    Unpin(Pin),
    /// Shows the leases of a namespace.
    #[command(after_long_help = codes::LEASE)]
    List(LeaseList),
}

#[derive(clap::Args, Debug)]
pub struct LeaseName {
    /// The leases of this namespace
    #[arg(long, value_name = "TEXT", default_value = "default")]
    pub namespace: String,
    /// The name of the lease
    pub name: String,
}

#[derive(clap::Args, Debug)]
pub struct Claim {
    #[command(flatten)]
    pub lease: LeaseName,
    /// The name that holds it
    pub holder: String,
    /// How long it lasts at least, from now on
    #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true, default_value = "60s", value_parser = at_most_30_days)]
    pub duration: Duration,
}

#[derive(clap::Args, Debug)]
pub struct Revoke {
    #[command(flatten)]
    pub lease: LeaseName,
    /// The name that holds it
    pub holder: String,
}

#[derive(clap::Args, Debug)]
pub struct Pin {
    #[command(flatten)]
    pub lease: LeaseName,
    /// Who pins it, as `lease list` shows it
    pub pin: String,
}

#[derive(clap::Args, Debug)]
pub struct LeaseList {
    /// The leases of this namespace
    #[arg(long, value_name = "TEXT", default_value = "default")]
    pub namespace: String,
}

/// Prints the completions for a shell.
#[derive(clap::Args, Debug)]
pub struct Completions {
    pub shell: clap_complete::Shell,
}

/// Prints the manual page.
#[derive(clap::Args, Debug)]
pub struct Man {
    /// The page of this command instead
    pub command: Vec<String>,
}
