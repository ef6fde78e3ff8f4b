//! What only the PostgreSQL store has. Fenced transactions are here for `tokio_postgres`, and in [`blocking`] for the crate
//! `postgres`.
//!
//! One table holds the locks. [`create_schema`](crate::LockClient::create_schema) makes it, or adds what it lacks;
//! [`schema`](crate::LockClient::schema) prints the DDL. The server's clock decides, and the token of a grant is its time
//! in microseconds, or one more than the last.
//!
//! Adding an index to a large table blocks writes for as long as it builds: nothing is granted or renewed meanwhile.
//! `create_schema` ends what takes longer than a request, or ten seconds: then make the index by hand, with
//! `CREATE INDEX CONCURRENTLY`.
//!
//! # The URL
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?table=leasehold`, or `postgresql:`. Several hosts are written with
//! commas between them, and the one that is the primary is used. They are asked one after the other, beginning with the
//! one that worked last, each for its share of three seconds. While a client connects, they are asked again until its
//! request timeout is over, if one of them accepted the connection but did not answer, and none refused the client for
//! good. A Unix socket is written as `postgres://%2Frun%2Fpostgresql/DATABASE`. The other options are libpq's:
//! `target_session_attrs`, which is always `read-write`, `application_name`, `connect_timeout`, `keepalives` and their
//! like, `options`, `user`, `password`, `dbname`, `host`, `hostaddr`, `port`, `channel_binding`, `load_balance_hosts`,
//! `tcp_user_timeout`, and those of TLS (see below). `port` is for hosts without a port of their own. Environment
//! variables (`PGPASSWORD`, ..), password files and service files are not read. A client needs its credentials for each
//! new connection and can't renew them if they expire, like the tokens of RDS IAM.
//!
//! `table` may name a schema, too: `app.leasehold`. **Name it where users differ in their `search_path`**: without it
//! each client uses the table that its own path finds when it connects, and if there is none, the path's first schema.
//! After that the client's sessions search nothing but `pg_catalog`. Either name is 1 to 50 ASCII letters, digits and
//! `_`, does not begin with a digit, and is case-sensitive as if it were quoted: `Locks` is another table than `locks`.
//!
//! Versions 13 to 18 are tested: all of our tests ran on 13.23, 14.24, 15, 16.15, 17.11 and 18.6, but those of standbys
//! only on 15, 16 and 17. An older version is refused. The database's encoding should be UTF8. SQL_ASCII takes all
//! texts, too; any other encoding refuses a text with a character that it lacks (`InvalidInput`), and EUC_JP takes
//! U+00A6 and U+FFE4 for the same character.
//!
//! # Poolers
//! PgBouncer in session mode needs no option (1.18 was tried). A statement whose caller has no more time is not cancelled
//! there, but ends at the server after ten seconds at most, unless it waits for a standby. In transaction mode the URL
//! must have `pooler=transaction`, and the table with its schema, like `table=public.leasehold`: if any program of the pool sets
//! a `search_path`, it stays in the session, which another program gets next. With this option the client leaves no
//! settings in a session and does not listen, so waiters poll. What is lost with it:
//!
//! * The session's `search_path` finds the names in the client's statements, so only users whom you trust may create
//!   functions and operators in its schemas. Other settings of your programs' sessions apply, too: with
//!   `default_transaction_read_only` nothing is granted. Any `default_transaction_isolation` works.
//! * A statement whose caller has no more time is not cancelled (PgBouncer 1.18 may end when this driver asks it to
//!   cancel one). Since all clients share the pool's sessions, a statement waits at most 100 ms for a row that
//!   somebody's transaction has locked, and is sent again a little later, up to a second. So a call that waits for that
//!   transaction is done that much later than it ends. Only heartbeats wait longer: two seconds for a shared lock, and
//!   ten seconds for an exclusive lock, whose heartbeat waits for no such transaction. A release waits once more, and
//!   then notifies nobody: a waiter that is connected directly, past the pooler, learns of that release at its next
//!   check.
//!
//! In both modes no statement stays prepared, so each step costs the server two to three times as much (see Cost).
//!
//! **Pgpool-II must not balance load** (`load_balance_mode = off`): a read that it sends to a standby, whose rows may
//! be old, is an error. The error is retryable, but comes again. Pgpool-II itself was not tried.
//!
//! Without `pooler=transaction` behind such a pooler, the client's time limits and search path would end up in other
//! programs' sessions. The client notices such a pooler when the first waiter begins to listen: it logs one warning,
//! and waiters poll. Statement mode does not work.
//!
//! # TLS
//! As `sslmode` says, with rustls:
//!
//! | `sslmode` | encrypted | what the server must show |
//! |---|---|---|
//! | `disable` | never | |
//! | `prefer`, the default | if the server offers it and it can be agreed on, and else **plain** | any certificate |
//! | `require` | always | any certificate; with `sslrootcert=FILE` as `verify-ca` |
//! | `verify-ca`, with `sslrootcert=FILE` | always | a certificate of an authority in that file, for any name |
//! | `verify-full` | always | a certificate of a trusted authority, for the name in the URL |
//!
//! **Only `verify-full` keeps out someone who can answer in the server's place**; use it wherever the network is not
//! your own. The name, or address, must be among the certificate's `subjectAltName`s: its common name does not count.
//! With `hostaddr` the name is still that of `host`, where there is one. A `host=` in the options adds a host to those
//! before it, which libpq would replace.
//!
//! Each certificate, also the client's own, must be of X.509 version 3. `openssl x509 -req` before OpenSSL 3.2 makes
//! version 1 if it gets no extensions: with such a certificate `prefer` does not encrypt, and every other mode is an
//! error.
//!
//! * `sslrootcert=FILE` names the authorities to trust, in PEM; a server's own self-signed certificate works, too.
//!   **Each certificate in the file counts as an authority**, also one that says it is none: put in only those whose
//!   keys are as safe as an authority's. An expired certificate is not trusted. Without the file `verify-full` trusts
//!   the system's authorities (those of `SSL_CERT_FILE` or `SSL_CERT_DIR` where these are set). `sslrootcert=system`
//!   means the same and makes `verify-full` the default; `verify-ca` needs a file. A file with `disable`, `prefer` or
//!   no `sslmode` is refused, since it would not be used; `~/.postgresql` is never read.
//! * `sslcert=FILE&sslkey=FILE`: the client's own certificate and its key, in PEM without a password. They are read
//!   with `sslmode=disable`, too. It is not checked who else may read the key's file.
//! * `sslnegotiation=direct`: TLS from the first byte, which PostgreSQL 17 and newer understand. A server that agrees
//!   to no protocol (ALPN) is not refused, as it would be by libpq.
//! * `channel_binding=require` makes a password (SCRAM) valid only for the very server with which TLS was made.
//!
//! The files are read when the client connects, and not again: a client whose own certificate is renewed must connect
//! again. No deadline bounds that reading, so name no file on a network that may hang. TLS takes two or three round
//! trips more, and each of several hosts has only its share of three seconds: name few hosts if they are 100 ms away.
//! TLS is 1.2 or newer. Lists of revoked certificates are not supported. A Unix socket has no TLS, whatever `sslmode`
//! says. Statements are cancelled over connections that are as safe. What is wrong with a certificate is an error of
//! kind `Config` from `connect`, and the server has got no password and no statement. A client that has been connected
//! before tries again, as if the server were away: then the error is of kind `Store` and retryable.
//!
//! # Rights
//! `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the table, `USAGE` on its schema, and `CONNECT` to the database, for
//! all but `create_schema`. That needs `CREATE` on the schema, and to own a table that lacks something. `DELETE` is
//! needed only by `purge`, and by `diagnose`, which without it leaves a row of its own each time. A user that only
//! reads (`get`, `list`) needs `SELECT`. **A policy of row-level security** must let the user see each row, and write
//! it whoever holds the lock. A release leaves no `owner` in the row: a policy that requires one refuses the release
//! (`Permission`), and the lock stays until its lease ends. A hidden row looks free to `get`; a request for its lock
//! gets an error, and no grant.
//!
//! `create_schema` runs its DDL in blocks of PL/pgSQL, which every database has unless somebody removed it.
//!
//! A user that is not let in (user, password, `CONNECT`, `pg_hba.conf`, settings that the server does not accept) gets
//! a final error from `connect`. A client that has been connected before tries again, for as long as its call waits, as
//! if the server were away: then the error is of kind `Store` and retryable.
//!
//! # Cost
//! | step | statements |
//! |---|---|
//! | exclusive: acquire, also refused; renew; release; transfer | 1 |
//! | shared: each of them | 2, and 2 more each time that another client was faster |
//! | an acquire that is repeated and finds its grant, a release that finds nothing of its own | 1 more |
//! | an acquire with a lease above a minute | 1 more, which sets it |
//! | give up an acquire that was granted; that was not | 1; 4 |
//! | read a key; a page of 200 rows | 1 |
//!
//! Connected directly to the server, a session keeps a statement prepared, with one plan, from its second use on: at
//! most a dozen statements. The client notices a pooler in between by itself, and then keeps none prepared. It does not
//! notice pgagroal's pooling of transactions, for which the URL must say `pooler=transaction`. Without that, a
//! statement that another client has prepared under the same name is not run, but a setting that another program makes
//! in the session, like `synchronous_commit = off`, then applies to the client's prepared statements, and a cancel may
//! end another client's statement. A table that is changed meanwhile, or a session that is made to forget its
//! statements, costs one statement more.
//!
//! A client has one connection while no more are needed, and never more than nine: four for calls that want a lock,
//! four for heartbeats, releases and the rest, and one that listens while somebody waits. The server sends it the
//! release of any key of any table in the database. A connection that was idle for a minute ends
//! after the next statement. Of the four for heartbeats and the rest, at most two at a time serve calls that only read,
//! like `get` and `list`; at most two serve releases and calls that take a lock away, and one more serves heartbeats of
//! shared locks: these may wait for somebody's transaction, one for each key. A refusal locks nothing and writes
//! nothing, unless it met a grant that was not committed yet: then it waits for that commit, and is a commit itself. A
//! statement whose caller has no more time is cancelled at the server, over one more short connection (but see
//! Poolers).
//!
//! # The table's upkeep
//! `create_schema` makes the table with `fillfactor = 50`, so that a heartbeat of an exclusive lock finds room next to
//! its row and changes no index. It also sets an autovacuum that comes after 1,000 dead rows, however many locks there
//! are (`autovacuum_vacuum_scale_factor = 0`, `autovacuum_vacuum_threshold = 1000`). Tried with 100 held locks among
//! 20,000: 3,000 renewals left table and indexes as large as they were; 3,000 more under an old snapshot added a fifth
//! to the table, and the vacuum after that snapshot's end made this space usable again. A table that existed before
//! keeps its own settings.
//!
//! * A heartbeat of a **shared** lock writes to the indexes, since one of them has the column that it changes: 200
//!   bytes of log (WAL), in addition to the row, which is written anew with all holders of its key: 300 bytes with one
//!   holder, 900 with ten, 4,900 with sixty. A heartbeat of an exclusive lock writes 200 in all. The indexes did not
//!   grow by more than a hundredth (2,000 renewals, on 13 and 15).
//! * After an upgrade of the operating system, or of the C library or ICU in it, an index of text may miss rows, and
//!   `unlock` by a lock id finds nothing. A table whose columns `lock_id` and `grant_id` have the collation "C", as
//!   `create_schema` makes them, needs nothing; any other needs `REINDEX TABLE CONCURRENTLY` then, and `diagnose`
//!   reports it. (Without `CONCURRENTLY` it keeps every heartbeat waiting.)
//! * An index of your own on `until`, `renewed` or `version` makes every heartbeat write to all indexes; `diagnose`
//!   reports an index that has these columns in its key.
//! * `VACUUM FULL`, `ALTER TABLE`, `CREATE TRIGGER`, pg_repack at its end, and `LOCK TABLE` keep every heartbeat
//!   waiting, also while they wait for somebody's fenced transaction themselves: set `lock_timeout` for them, well
//!   below a holder's margin.
//!
//! # Durability
//! A grant and a renewal are on the server's disk, and on a synchronous standby, before they are answered, whatever
//! `synchronous_commit` says by default. The release of a lease that ends within a minute does not wait for that. Even
//! with `remote_apply` no step's commit waits until the standby has also replayed it, which a query there may delay for
//! half a minute: locks are read from the primary only. But a fenced transaction commits as your session says: see
//! Neighbours. If a call finds its work done already, perhaps by an earlier call that got no answer, it answers only
//! after another commit on the row. That is so for a grant, a later end, a release, and a call that frees a key and
//! finds no holder left to remove. Only an [`unlock`](crate::LockClient::unlock) that finds no lock of its group has no
//! row to commit on. If somebody cancels the wait for the standby (`pg_cancel_backend`), the answer counts as one that
//! did not come.
//!
//! What a failover costs depends on the standby that is promoted; `diagnose`, and so `leasehold doctor`, reports its
//! kind:
//!
//! | standby | a failover to it |
//! |---|---|
//! | synchronous (`synchronous_standby_names`), where all that are named must confirm: `a`, `ANY 2 (a, b)` | loses no grant. While too few of them are there, nothing is granted |
//! | synchronous, where some of them are enough: `a, b`, `ANY 1 (a, b)`, `*` | loses no grant if it goes to the one that has received most, with all of them looked at: each grant is on some of them only. To another it is like one to an asynchronous standby |
//! | asynchronous | may lose the grants, renewals and releases of the last moment. Two may then believe that they hold a lock, until the earlier one's next heartbeat. Tokens rise by time, so the later holder has the higher one where the servers' clocks differ by less than the time between the two grants |
//!
//! **A primary that was replaced must not go on.** With an asynchronous standby the library can't keep it from granting
//! locks to clients that still reach it: fence it, as every failover of PostgreSQL needs.
//!
//! **The server's clock must not jump.** Every server that may become the primary must have a clock that differs from
//! the others' by less than the margin by which a holder stops early. Failover to a server whose clock is ahead by more
//! ends leases while their holders still count themselves as holding, also with a synchronous standby; so does an NTP
//! step of a primary. There is no grace time here. If the clock goes back, tokens rise all the same (if by more than 30
//! days, not those of a key whose row a purge has deleted since), and the lock of a holder that died stays for that
//! much longer.
//!
//! A table that is `UNLOGGED`, and a view, are refused. A partitioned table is accepted: each partition must be logged,
//! and detaching or dropping one takes the locks in it from their holders. With `fsync = off` a crash of the machine
//! may lose grants, and with `full_page_writes = off` damage the table, unless the storage itself guards against that;
//! `diagnose` reports these settings.
//!
//! # Neighbours at the server
//! * A transaction that asserts a **shared** lock ([`AssertIn`]) makes the heartbeats of **all** holders of that key
//!   wait, also those of other processes: the transaction must be shorter than what is left of the shortest of their
//!   leases. Its commit counts, and with `remote_apply` waits for the standby's readers: then
//!   `SET LOCAL synchronous_commit = on` in it.
//! * A commit that notifies waiters takes one lock of the whole cluster, until it is on disk and on the synchronous
//!   standby. While a standby hangs, shared releases, `force_release` and `purge` hang while they have that lock or
//!   wait for it, and so does every other program's `NOTIFY`.
//! * **The wait for a synchronous standby has no limit**: `statement_timeout` no longer applies during a commit. The
//!   session of a client that was killed stays until the standby is back, and a session that a client left when it
//!   ended may stay, too. Behind a pooler so does the session of each statement that was left, which the pooler no
//!   longer counts. Each try leaves one more session, and `max_connections` may be reached: bound them by the role's
//!   `CONNECTION LIMIT`, and end them at the server itself by
//!   `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`.
//! * **Multi-master replication** (BDR, Spock, pgactive) of the table does not work: both sides grant the same lock.
//!   All clients must use one server.
//! * A session anywhere in the cluster that listens and stays in one transaction for days lets the queue of
//!   notifications fill. Then releases still work, but notify nobody: waiters check at the lease's end, and now and
//!   then.
//! * A snapshot that is kept open for days (idle in transaction, a replication slot) keeps each heartbeat's dead row,
//!   and all steps on that key become slow. Set `idle_in_transaction_session_timeout`.
//! * If that goes on until the server is short of transaction ids, the server accepts no write before the snapshot is
//!   ended and the database is vacuumed: locks are lost then, and waiters wait. A prepared transaction
//!   (`PREPARE TRANSACTION`) that is forgotten has the same effect, and one that has asserted a lock blocks that lock
//!   for everybody: see `pg_prepared_xacts`.
//!
//! # This store is new: its limits
//! * **Failover was tried on one host only**: a primary that is killed and one standby that is promoted, synchronous
//!   and asynchronous. Two machines with clocks of their own were not tried.
//! * **A listener behind a proxy may stop hearing, unnoticed**, when the proxy stays up and loses the server: waiters
//!   then check only now and then, until they are done or the connection ends.
//! * **A host that dies in fenced transactions** leaves their rows locked until the server ends its sessions, after two
//!   hours by default. A client that waits for four such keys, or for two of them in several calls each, gets no other
//!   lock quickly. Set `tcp_keepalives_idle` and `idle_in_transaction_session_timeout` at the server.
//! * **A client's releases go two or three at a time**, so on a network of 30 ms some 60 a second. While two of them
//!   wait for somebody's transactions, the others try one by one whether their rows are free.
//! * **A client's heartbeats go four at a time**, two while others of its calls read without a pause, each with a third
//!   of the lease at first. If a statement takes `t` and the lease is L, at most 4 L / (3 t) locks are kept: 890 at a
//!   lease of 20 s and 30 ms. Heartbeats that the network held up for seconds are all sent at once after it, and each
//!   that ran out of time has ended its connection: let one client hold a quarter of that number, and several clients
//!   more.
//! * **Many holders of one shared key** on a slow network may lose to faster ones at each write of the row, also to
//!   others of the same client: then use exclusive locks, or longer leases.

pub mod blocking;

use std::error::Error as StdError;
use std::future::Future;

pub use tokio_postgres;
use tokio_postgres::{Config, Transaction};

use crate::api::builder::ClientBuilder;
use crate::api::fence::Fenced;
use crate::model::error::Result;
use crate::store::postgres::PostgresOptions;
pub use crate::store::postgres::fence::Assertion;
use crate::store::postgres::fence::{PATIENCE, run_within};
use crate::sys::clock::Clock;

/// A client of the locks in this table, `leasehold` or with its schema `app.leasehold`, with the hosts and credentials
/// of `config`. The client makes its own connections. The `ssl_mode` of `config` means what `sslmode` does: `Require`
/// is encrypted, but **checks no certificate**; for a check use a URL with `sslmode=verify-full`. Only a URL can say
/// `pooler=transaction`.
///
/// # Example
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let mut config = leasehold::postgres::tokio_postgres::Config::new();
/// config.host("localhost").user("app").password("secret").dbname("app");
/// let client = leasehold::postgres::builder(config, "leasehold").connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # Ok(())
/// # }
/// ```
pub fn builder(config: Config, table: impl Into<String>) -> ClientBuilder {
    let opener = PostgresOptions::new(config, table).and_then(PostgresOptions::opener);
    ClientBuilder::with_opener(opener, Clock::system())
}

/// Lets a user's own transaction in the same database be committed only while a lock or lease [stands](Fenced).
pub trait AssertIn: Fenced {
    /// Asserts in `transaction`. From then on a rival's takeover waits until the transaction ends, and the guard's own
    /// heartbeats go on. (For a shared lock the heartbeats of every holder of that key wait, so the transaction must be
    /// shorter than what is left of the shortest of their leases.) A release waits: drop the guard after the commit.
    /// [`run_fenced`] repeats a transaction that is in conflict.
    ///
    /// Do not call it in a savepoint that may be rolled back: the assertion would be rolled back, too. It waits for the
    /// row as long as your session allows: set `lock_timeout` there.
    ///
    /// # Errors
    /// `Lost` when the lock is not held any more: **do not commit**. Also `Lost` for a lock that is held, if the
    /// transaction does not see its grant: a repeatable read that began before it, or a transaction in another database
    /// with such a table. `Store` with the driver's error as its source, retryable where a serializable transaction
    /// must begin again; `Schema` where the table lacks an index; `InvalidInput` for a lock of another kind of store;
    /// `Closed` in a forked child.
    fn assert_in(&self, transaction: &Transaction<'_>) -> impl Future<Output = Result<()>>;

    /// The same as one statement, for transactions of other drivers. (The crate `postgres` has [`blocking`].)
    ///
    /// # Errors
    /// `InvalidInput` for a lock of another kind of store; `Closed` in a forked child.
    ///
    /// # Example
    /// By hand, with `tokio_postgres`. sqlx, diesel and others bind the two texts in their own way.
    /// ```no_run
    /// # use leasehold::postgres::tokio_postgres;
    /// # async fn report(
    /// #     client: &mut tokio_postgres::Client,
    /// #     guard: &leasehold::LockGuard,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::postgres::AssertIn;
    ///
    /// let transaction = client.transaction().await?;
    /// transaction.execute("UPDATE report SET text = $1", &[&"new"]).await?;
    /// let assertion = guard.assertion()?;
    /// let [key, holder] = assertion.params();
    /// let row = transaction.query_opt(assertion.sql(), &[&key, &holder]).await?;
    /// assertion.judge(row.map(|row| row.get(0)))?; // an error drops the transaction, which rolls it back
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    fn assertion(&self) -> Result<Assertion>;
}

impl<T: Fenced> AssertIn for T {
    async fn assert_in(&self, transaction: &Transaction<'_>) -> Result<()> {
        self.assertion()?.run(transaction).await
    }

    fn assertion(&self) -> Result<Assertion> {
        Assertion::of(self.standing()?)
    }
}

/// Runs `work` in a transaction, asserts that the lock or lease is held, and commits. If the server says that the
/// transaction was in conflict (40001, 40P01), it begins again from the start, for up to two minutes. So `work` may run
/// several times.
///
/// The transaction has the isolation level of the session:
/// `SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE` before the first transaction makes all
/// serializable. The assertion comes last in each try, and from the second try on also first, so `work` must not set
/// the level itself. If a statement of `work` fails, PostgreSQL commits nothing of the transaction, also if `work`
/// ignores the error: then the assertion fails. Between tries it pauses for up to a second, by a statement at the
/// server.
///
/// The guard's heartbeats go on meanwhile; those of a shared lock wait from the assertion to the commit. A statement of
/// `work` waits for other transactions as long as your session allows: set `lock_timeout` there. The future is `Send`,
/// as `tokio::spawn` requires, if `work` owns what it uses (`async move`): a `work` that borrows is refused by the
/// compiler there.
///
/// # Errors
/// `Lost` when the lock is not held any more; the error of `work`, as the source of an error of kind `Store`, or as it
/// is if it is an error of this crate; otherwise as [`AssertIn::assert_in`]. Nothing was committed, unless the kind is
/// `Ambiguous`: then it is not known, since the commit had no answer.
///
/// # Example
/// ```no_run
/// use leasehold::postgres::{run_fenced, tokio_postgres};
///
/// # async fn publish(mut client: tokio_postgres::Client, guard: leasehold::LockGuard) -> leasehold::Result<()> {
/// run_fenced(&guard, &mut client, async |transaction| {
///     transaction.execute("UPDATE report SET text = 'new' WHERE id = 1", &[]).await?;
///     Ok(())
/// })
/// .await
/// # }
/// ```
pub async fn run_fenced<T, W>(fenced: &impl Fenced, client: &mut tokio_postgres::Client, work: W) -> Result<T>
where
    W: AsyncFnMut(&Transaction<'_>) -> Result<T, Box<dyn StdError + Send + Sync>>,
{
    run_within(&fenced.assertion()?, PATIENCE, client, work).await
}
