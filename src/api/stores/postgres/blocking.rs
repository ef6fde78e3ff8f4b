//! Fenced transactions of the blocking client, the crate `postgres`.
//!
//! That client has a runtime of its own inside. The hidden runtime of the locks is on another thread, and the two do
//! not affect each other. **In a task of an async runtime the client panics**, whatever is called: there use
//! [`leasehold::postgres`](crate::api::stores::postgres) and `tokio_postgres`, or a thread such as that of
//! `tokio::task::spawn_blocking`.
//!
//! **That client has no deadlines**, so the calls here have none. `tcp_user_timeout` of its `Config` ends the wait for
//! a network or a host that is gone, and `statement_timeout` ends the wait for a row, or a statement that takes long.
//! Nothing ends the wait for a server whose processes stand still on a host that goes on (SIGSTOP, a disk that hangs),
//! since that host's network acknowledges everything: the guard is then lost at the end of its lease, and reports it,
//! but the call goes on. If you need a deadline, drop the future of the
//! [async one](crate::api::stores::postgres::run_fenced), as `tokio::time::timeout` does, and its client.

use std::error::Error as StdError;

pub use postgres;
use postgres::{Client, Transaction};

use crate::api::fence::Fenced;
use crate::model::error::Result;
use crate::store::postgres::fence::{Assertion, PATIENCE, run_blocking_within};

/// Lets a user's own transaction in the same database be committed only while a lock or lease [stands](Fenced).
pub trait AssertIn: Fenced {
    /// Asserts in `transaction`, with the promises and requirements of the
    /// [async one](crate::api::stores::postgres::AssertIn::assert_in): drop the guard after the commit, and set
    /// `lock_timeout` in your session. [`run_fenced`] repeats a transaction that is in conflict.
    ///
    /// # Errors
    /// As the async one: `Lost` when it is not held any more: **do not commit**.
    ///
    /// # Example
    /// ```no_run
    /// use leasehold::postgres::blocking::AssertIn;
    /// # use leasehold::postgres::blocking::postgres;
    ///
    /// # fn report(client: &mut postgres::Client, guard: leasehold::LockGuard) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = client.transaction()?;
    /// transaction.execute("UPDATE report SET text = $1", &[&"new"])?;
    /// guard.assert_in(&mut transaction)?; // an error drops the transaction, which rolls it back
    /// transaction.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    fn assert_in(&self, transaction: &mut Transaction<'_>) -> Result<()>;
}

impl<T: Fenced> AssertIn for T {
    fn assert_in(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        Assertion::of(self.standing()?)?.run_blocking(transaction)
    }
}

/// Runs `work` in a transaction, asserts that the lock or lease is held, and commits. If the server says that the
/// transaction was in conflict, it begins again from the start, for up to two minutes. So `work` may run several times.
/// All is as in the [async one](crate::api::stores::postgres::run_fenced), except that no deadline ends it (see the
/// module).
///
/// # Errors
/// As the async one: `Lost` when the lock is not held any more; nothing was committed, unless the kind is `Ambiguous`.
///
/// # Example
/// ```no_run
/// use leasehold::postgres::blocking::postgres::{Client, NoTls};
/// use leasehold::postgres::blocking::run_fenced;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = leasehold::LockClient::connect("postgres://app:secret@localhost/app?table=locks")?;
/// let mut client = Client::connect("postgres://app:secret@localhost/app", NoTls)?;
///
/// let guard = locks.lock("report")?;
/// run_fenced(&guard, &mut client, |transaction| {
///     transaction.execute("UPDATE report SET text = 'new' WHERE id = 1", &[])?;
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn run_fenced<T>(
    fenced: &impl Fenced,
    client: &mut Client,
    work: impl FnMut(&mut Transaction<'_>) -> Result<T, Box<dyn StdError + Send + Sync>>,
) -> Result<T> {
    run_blocking_within(&Assertion::of(fenced.standing()?)?, PATIENCE, client, work)
}
