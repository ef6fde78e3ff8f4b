//! From settings to connections, and what is learnt of the server first.

use std::fmt;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error as DriverError, NoTls, SimpleQueryMessage, Socket,
};

use super::Postgres;
use super::error::PostgresError;
use super::row::Micros;
use crate::model::error::{Error, Result};
use crate::store::Opener;
use crate::store::failure::Cause;
use crate::store::url::{self, config};

/// The table where none is named.
const TABLE: &str = "leasehold";
/// What the driver reads in a URL; `table` is ours.
const OPTIONS: [&str; 18] = [
    "table",
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslmode",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];
/// The oldest release that is tested for: 13.
const OLDEST: u32 = 130_000;
/// A connection that carries nothing for so long is asked whether it still stands.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// What each session of ours sets, whatever the server's, the database's or the user's defaults are. What waits for a
/// row longer than a request may take has nobody who waits for its answer. Settings of newer servers are set where they
/// are known.
pub(super) const SESSION: &str = "SELECT current_setting('server_version_num'), version(), \
     (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, set_config('statement_timeout', '10s', false), \
     set_config('lock_timeout', '0', false), set_config('default_transaction_isolation', 'read committed', false), \
     set_config('client_min_messages', 'warning', false), \
     (SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout')";

/// What `Postgres::open` needs to know.
#[derive(Clone)]
pub struct PostgresOptions {
    config: Config,
    table: String,
}

impl fmt::Debug for PostgresOptions {
    /// Without the settings, which hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("label", &self.label()).finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// From a URL of libpq's form, which the driver reads, but for the option that is ours.
    pub(in crate::store) fn from_url(url: &str) -> Result<Self> {
        let (rest, query) = url.split_once('?').unwrap_or((url, ""));
        if query.contains('@') && !rest.contains('@') {
            return Err(config("the postgres: URL is wrong: in a user name or password write ? as %3F"));
        }
        let (mut seen, mut table, mut theirs) = (Vec::new(), None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !OPTIONS.contains(&name) {
                let (hint, known) = (url::near(name, &OPTIONS), OPTIONS.join(", "));
                return Err(config(&format!("postgres: has no option {name:?}{hint}; its options: {known}")));
            }
            if seen.contains(&name) {
                return Err(config(&format!("the option {name:?} of postgres: is given twice")));
            }
            seen.push(name);
            match name {
                "table" => table = Some(url::decode(value)?.into_owned()),
                "sslmode" if !["disable", "prefer"].contains(&value) => return Err(no_tls(value)),
                _ => theirs.push(pair),
            }
        }
        let url = if theirs.is_empty() { rest.to_owned() } else { format!("{rest}?{}", theirs.join("&")) };
        // The driver quotes no values.
        let parsed = Config::from_str(&url).map_err(|error| {
            let right = "in a user name or password write @ : / % ? as %40 %3A %2F %25 %3F";
            config(&format!("the postgres: URL is wrong: {}; {right}", Cause::of(&error)))
        })?;
        PostgresOptions::new(parsed, table.unwrap_or_else(|| TABLE.to_owned()))
    }

    /// The locks in this table.
    pub fn new(config: Config, table: impl Into<String>) -> Result<Self> {
        let options = PostgresOptions { config, table: table.into() };
        options.validate()?;
        Ok(options)
    }

    fn validate(&self) -> Result<()> {
        if self.config.get_hosts().is_empty() && self.config.get_hostaddrs().is_empty() {
            return Err(config("postgres: needs a host, like postgres://localhost/app?table=leasehold"));
        }
        if !matches!(self.config.get_ssl_mode(), SslMode::Disable | SslMode::Prefer) {
            return Err(no_tls("require"));
        }
        // The table's name is a part of statements; its indexes have longer names, of at most 63.
        let is_word = |name: &str| {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
            (1..=50).contains(&name.len())
                && name.chars().all(is_legal)
                && !name.starts_with(|c: char| c.is_ascii_digit())
        };
        let parts: Vec<&str> = self.table.split('.').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_word(part)) {
            return Err(config(&format!(
                "the table is {:?}, but must be like leasehold or app.leasehold: each name of 1 to 50 letters, digits or \
                 '_', which does not begin with a digit",
                self.table
            )));
        }
        Ok(())
    }

    /// The store in this table.
    pub(crate) fn opener(self) -> Result<Opener> {
        Ok(Opener::new(Postgres::MIN_LEASE, |_, _, by| Postgres::open(self, by)))
    }

    pub(super) fn table(&self) -> Table {
        let mut parts = self.table.split('.').map(|part| format!("\"{part}\""));
        let first = parts.next().unwrap_or_default();
        let last = self.table.rsplit('.').next().unwrap_or_default().to_owned();
        Table { quoted: parts.fold(first, |all, part| format!("{all}.{part}")), last, name: self.table.clone() }
    }

    /// Scheme, hosts, database and table.
    pub fn label(&self) -> String {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let host = |(at, host): (usize, &Host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(at)),
            #[cfg(unix)]
            Host::Unix(folder) => format!("{}:{}", folder.display(), port(at)),
        };
        let mut hosts: Vec<String> = self.config.get_hosts().iter().enumerate().map(host).collect();
        if hosts.is_empty() {
            hosts =
                self.config.get_hostaddrs().iter().enumerate().map(|(at, ip)| format!("{ip}:{}", port(at))).collect();
        }
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}.{}", hosts.join(","), self.table)
    }

    /// What a lock cannot do without, whatever the user's settings say.
    pub(super) fn config(&self) -> Config {
        let mut config = self.config.clone();
        // Of several hosts the one that is the primary.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        // The driver's default are two hours, and nothing else notices a network that went away under a listener.
        if config.get_keepalives() && config.get_keepalives_interval().is_none() {
            config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(2);
        }
        config
    }
}

fn no_tls(mode: &str) -> Error {
    let known = ["disable", "prefer", "require", "verify-ca", "verify-full"];
    let right = "write sslmode=disable, on a network that you trust, or use a tunnel";
    if known.contains(&mode) {
        return config(&format!(
            "sslmode={mode} is not supported: this version of leasehold has no TLS to PostgreSQL; {right}"
        ));
    }
    // Not shown: it may be anything.
    config(&format!("the option sslmode must be disable or prefer{}", url::near(mode, &known)))
}

/// The table's name.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// As it stands in statements.
    pub quoted: String,
    /// Without its schema.
    pub last: String,
    /// As it was given.
    pub name: String,
}

/// How connections are made safe.
#[derive(Clone)]
pub(super) enum Tls {
    None,
}

/// A connection, which must be polled.
pub(super) enum Moving {
    Plain(Connection<Socket, NoTlsStream>),
}

impl Moving {
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<std::result::Result<AsyncMessage, DriverError>>> {
        match self {
            Moving::Plain(connection) => connection.poll_message(context),
        }
    }
}

impl Tls {
    pub async fn connect(&self, config: &Config) -> std::result::Result<(Client, Moving), DriverError> {
        match self {
            Tls::None => {
                let (client, connection) = config.connect(NoTls).await?;
                Ok((client, Moving::Plain(connection)))
            }
        }
    }
}

/// What the server says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    pub now: Micros,
}

impl Server {
    /// From the answer to [`SESSION`]; an error says why it can't be used.
    pub fn of(said: &[SimpleQueryMessage]) -> std::result::Result<Server, PostgresError> {
        let row = said.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let text = |column| row.and_then(|row| row.try_get(column).ok().flatten()).unwrap_or_default();
        let (number, version) = (text(0).parse::<u32>().unwrap_or(0), text(1));
        let others = [("Cockroach", "CockroachDB"), ("-YB-", "YugabyteDB"), ("Redshift", "Amazon Redshift")];
        if let Some((_, name)) = others.iter().find(|(part, _)| version.contains(part)) {
            return Err(PostgresError::Config(format!(
                "the server is {name}, which speaks PostgreSQL's protocol but was never tested for locks; use PostgreSQL itself"
            )));
        }
        if number < OLDEST {
            return Err(PostgresError::Config(format!(
                "the server is {version:?}, but must be PostgreSQL 13 or newer"
            )));
        }
        let now = text(2).parse().map_err(|_| PostgresError::Config("the server says no time".to_owned()))?;
        Ok(Server { now: Micros(now) })
    }
}
