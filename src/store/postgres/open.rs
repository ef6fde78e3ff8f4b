//! From settings to connections, and what is first learnt about the server.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres::{Config, SimpleQueryMessage};

use super::Postgres;
use super::error::PostgresError;
use super::row::{Micros, STATEMENT};
use super::statements::durable_session;
use super::tls::{Tls, TlsOptions, Wanted};
use crate::model::error::Result;
use crate::store::failure::Cause;
use crate::store::url::{self, config};
use crate::store::{Bounds, Opener};

/// The table where none is named.
const TABLE: &str = "leasehold";
/// The options that a URL may have. The driver reads those that are not ours.
const OPTIONS: [&str; 25] = [
    "table",
    "pooler",
    "target_session_attrs",
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];
/// The oldest release that is tested for: 13.
const OLDEST: u32 = 130_000;
/// A connection that carries nothing for this long is checked by TCP keepalives.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a connection to one address may take.
const ADDRESS: Duration = Duration::from_secs(1);

/// What each session of ours sets, whatever the defaults of the server, the database or the user are. The wait for a
/// row is limited by `statement_timeout`, see [`session`]: a statement that waits longer than a request may take has no
/// caller that waits for its answer. Settings of newer servers are set where they are known.
const SESSION: &str = "SELECT current_setting('server_version_num'), version(), \
     (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
     set_config('lock_timeout', '0', false), set_config('default_transaction_isolation', 'read committed', false), \
     set_config('client_min_messages', 'warning', false), \
     (SELECT string_agg(set_config(name, '0', false), '') FROM pg_settings \
     WHERE name IN ('idle_session_timeout', 'transaction_timeout'))";

/// What a session also sets if it is the server's own. A prepared statement is planned once, for a table that may have
/// been empty then, so the plan must use the index however small the table was.
const KEEPING: &str = "set_config('plan_cache_mode', 'force_generic_plan', false) || set_config('enable_seqscan', 'off', false) \
     || set_config('jit', 'off', false)";

/// What `Postgres::open` needs to know.
#[derive(Clone)]
pub struct PostgresOptions {
    config: Config,
    tls: Wanted,
    table: String,
    /// Whether a pooler gives each transaction another session.
    pooled: bool,
}

impl fmt::Debug for PostgresOptions {
    /// Without the settings, which hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("label", &self.label()).finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// From a URL of libpq's form. The driver reads it, except for the options that are ours.
    pub(in crate::store) fn from_url(url: &str) -> Result<Self> {
        let (rest, options) = url::split_query(url, ["postgres://", "postgresql://"])?;
        let (mut seen, mut table, mut tls, mut theirs) = (Vec::new(), None, TlsOptions::default(), Vec::new());
        let (mut pooled, mut user_timeout) = (false, None);
        for (name, value) in options {
            if !OPTIONS.contains(&name) {
                let (hint, known) = (url::near(name, &OPTIONS), OPTIONS.join(", "));
                // The name may be the end of the password, so it is not shown.
                if seen.contains(&"password") {
                    return Err(config(&format!(
                        "postgres: does not know what comes after the password; in a value write & as %26; its options: {known}"
                    )));
                }
                return Err(config(&format!("postgres: has no option {name:?}{hint}; its options: {known}")));
            }
            if seen.contains(&name) {
                return Err(config(&format!("the option {name:?} of postgres: is given twice")));
            }
            seen.push(name);
            let ours = match name {
                "table" => &mut table,
                "sslmode" => &mut tls.mode,
                "sslrootcert" => &mut tls.roots,
                "sslcert" => &mut tls.cert,
                "sslkey" => &mut tls.key,
                "pooler" if value == "transaction" => {
                    pooled = true;
                    continue;
                }
                "pooler" => {
                    return Err(config(
                        "pooler must be transaction; one in session mode needs no option, and statement mode does not do",
                    ));
                }
                // The session is always read-write.
                "target_session_attrs" if value == "read-write" => continue,
                "target_session_attrs" => {
                    return Err(config("target_session_attrs must be read-write: a standby grants no lock"));
                }
                // The driver reads it as seconds, and has another name for the next option.
                "tcp_user_timeout" => {
                    // The value is not shown: it may be the end of a password.
                    let wrong = |_| config("tcp_user_timeout must be a number of milliseconds, like 30000");
                    user_timeout = Some(value.parse().map(Duration::from_millis).map_err(wrong)?);
                    continue;
                }
                "keepalives_count" => {
                    theirs.push(format!("keepalives_retries={value}"));
                    continue;
                }
                // The driver takes each `host` for one host.
                "host" => {
                    theirs.extend(value.split(',').map(|host| format!("host={host}")));
                    continue;
                }
                _ => {
                    theirs.push(format!("{name}={value}"));
                    continue;
                }
            };
            *ours = Some(url::decode(value)?.into_owned());
        }
        let mut rest = rest.to_owned();
        if seen.contains(&"port")
            && let Some((without, hosts)) = hosts_as_options(&rest)
        {
            (rest, theirs) = (without, [hosts, theirs].concat());
        }
        let url = if theirs.is_empty() { rest } else { format!("{rest}?{}", theirs.join("&")) };
        // The errors of the driver quote no values.
        let tls = Wanted::of_url(tls)?;
        let mut parsed = Config::from_str(&url).map_err(|error| {
            let right = "in a user name or password write @ : / % ? as %40 %3A %2F %25 %3F";
            config(&format!("the postgres: URL is wrong: {}; {right}", Cause::of(&error)))
        })?;
        if let Some(limit) = user_timeout {
            parsed.tcp_user_timeout(limit);
        }
        let options = PostgresOptions::with_tls(parsed, tls, table.unwrap_or_else(|| TABLE.to_owned()))?;
        if pooled { options.pooled() } else { Ok(options) }
    }

    /// For a pooler that gives each transaction another session. Other programs may have set their own search path
    /// there, and two clients would find two tables: so the table must be named with its schema.
    pub fn pooled(self) -> Result<Self> {
        if !self.table.contains('.') {
            let message =
                format!("pooler=transaction needs the table with its schema, like table=public.{}", self.table);
            return Err(config(&message));
        }
        Ok(PostgresOptions { pooled: true, ..self })
    }

    /// Options for the locks in this table.
    pub fn new(config: Config, table: impl Into<String>) -> Result<Self> {
        let tls = Wanted::of_settings(&config);
        PostgresOptions::with_tls(config, tls, table.into())
    }

    fn with_tls(mut config: Config, tls: Wanted, table: String) -> Result<Self> {
        config.ssl_mode(tls.ssl_mode());
        let options = PostgresOptions { config, tls, table, pooled: false };
        options.validate()?;
        Ok(options)
    }

    fn validate(&self) -> Result<()> {
        if self.config.get_hosts().is_empty() && self.config.get_hostaddrs().is_empty() {
            return Err(config("postgres: needs a host, like postgres://localhost/app?table=leasehold"));
        }
        let (names, addresses) = (self.config.get_hosts().len(), self.config.get_hostaddrs().len());
        if addresses == 0 && self.config.get_hosts().iter().any(is_nameless) {
            return Err(config("postgres: needs a host before each port, like postgres://localhost:5432/app"));
        }
        let (count, ports) = (names.max(addresses), self.config.get_ports().len());
        if names > 0 && addresses > 0 && names != addresses || ports > 1 && ports != count {
            return Err(config(
                "postgres: needs as many of host, of hostaddr and of port, or one port for all; where a port stands \
                 behind its host, there can be no option port",
            ));
        }
        let is_direct = self.config.get_ssl_negotiation() == SslNegotiation::Direct;
        if is_direct && self.tls.ssl_mode() != SslMode::Require {
            return Err(config(
                "sslnegotiation=direct is TLS from the first byte: it needs sslmode=require or a stricter one",
            ));
        }
        // The protocol ends each text with a zero byte.
        let own = &self.config;
        let texts = [own.get_user(), own.get_dbname(), own.get_options(), own.get_application_name()];
        let mut texts = texts.into_iter().flatten().map(str::as_bytes).chain(own.get_password());
        if texts.any(|text| text.contains(&0)) {
            return Err(config("postgres: no user, password, database or other text may have a %00 in it"));
        }
        // The table's name is a part of SQL statements. The names of its indexes are longer, and may have at most 63
        // bytes.
        let is_word = |name: &str| {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
            (1..=50).contains(&name.len())
                && name.chars().all(is_legal)
                && !name.starts_with(|c: char| c.is_ascii_digit())
        };
        let parts: Vec<&str> = self.table.split('.').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_word(part)) {
            return Err(config(&format!(
                "the table is {:?}, but must be like leasehold or app.leasehold: each name of 1 to 50 ASCII letters, digits \
                 or '_', which does not begin with a digit",
                self.table
            )));
        }
        Ok(())
    }

    /// The store in this table.
    pub(crate) fn opener(self) -> Result<Opener> {
        Ok(Opener::new(Bounds::of(Postgres::MIN_LEASE), |_, _, by| Postgres::open(self, by)))
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled
    }

    pub(super) fn table(&self) -> Table {
        let mut parts = self.table.split('.').map(|part| format!("\"{part}\""));
        let first = parts.next().unwrap_or_default();
        let last = self.table.rsplit('.').next().unwrap_or_default().to_owned();
        let quoted = parts.fold(first, |all, part| format!("{all}.{part}"));
        Table { quoted, last, full: self.table.clone(), name: self.table.clone() }
    }

    /// Scheme, hosts, database and table, as far as it was named.
    pub fn label(&self) -> String {
        self.label_of(&self.table)
    }

    /// The same for a table of this name.
    pub(super) fn label_of(&self, table: &str) -> String {
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}.{table}", addresses(&self.config))
    }

    /// How its connections are made.
    pub(super) fn tls(&self) -> Result<Tls> {
        self.tls.tls(self.config.get_ssl_negotiation())
    }

    /// The settings for each host alone. With all hosts, the driver tries one after the other, and one that does not
    /// answer would take the time of all.
    pub(super) fn hosts(&self) -> Vec<Config> {
        let all = self.config();
        let count = all.get_hosts().len().max(all.get_hostaddrs().len());
        let one = |at: usize| {
            let mut one = Config::new();
            one.ssl_mode(all.get_ssl_mode());
            let address = all.get_hostaddrs().get(at);
            match (all.get_hosts().get(at), address) {
                (Some(host @ Host::Tcp(name)), _) if !is_nameless(host) => drop(one.host(name)),
                // Nobody can listen in on a Unix socket, and the server offers no TLS there.
                #[cfg(unix)]
                (Some(Host::Unix(folder)), None) => drop(one.host_path(folder).ssl_mode(SslMode::Disable)),
                // Otherwise the driver has no name that a certificate could be for.
                (_, Some(address)) => drop(one.host(address.to_string())),
                _ => {}
            }
            address.map(|address| one.hostaddr(*address));
            all.get_ports().get(at).or(all.get_ports().first()).map(|port| one.port(*port));
            all.get_user().map(|user| one.user(user));
            all.get_password().map(|password| one.password(password));
            all.get_dbname().map(|name| one.dbname(name));
            all.get_options().map(|options| one.options(options));
            all.get_application_name().map(|name| one.application_name(name));
            all.get_connect_timeout().map(|limit| one.connect_timeout(*limit));
            all.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
            all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
            all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
            one.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
            one.ssl_negotiation(all.get_ssl_negotiation());
            one.channel_binding(all.get_channel_binding()).load_balance_hosts(all.get_load_balance_hosts());
            one.target_session_attrs(all.get_target_session_attrs());
            one
        };
        (0..count).map(one).collect()
    }

    /// The settings of the user, with what a lock cannot do without.
    fn config(&self) -> Config {
        let mut config = self.config.clone();
        // Of several hosts only the primary is used.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        // Only keepalives notice that the network of a listener is gone.
        if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
            config.keepalives_idle(KEEPALIVE);
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(KEEPALIVE);
        }
        if config.get_keepalives_retries().is_none() {
            config.keepalives_retries(2);
        }
        // One name may have several addresses.
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(ADDRESS);
        }
        config
    }
}

/// The part of a URL before its options, without the hosts, and the hosts as options; `None` if a host has a port.
/// Without this, the driver gives each host that has no port the default port, in addition to those of the option
/// `port`.
fn hosts_as_options(rest: &str) -> Option<(String, Vec<String>)> {
    let start = rest.find("://")? + 3;
    let start = rest.find('@').map_or(start, |at| at + 1);
    let end = rest[start..].find('/').map_or(rest.len(), |at| start + at);
    let hosts = rest[start..end].split(',').filter(|_| start < end).map(|host| {
        let name = match host.strip_prefix('[') {
            Some(name) => name.strip_suffix(']'),
            None => Some(host).filter(|host| !host.contains(':')),
        };
        name.filter(|name| !name.contains(['&', '='])).map(|name| format!("host={name}"))
    });
    let hosts = hosts.collect::<Option<Vec<_>>>()?;
    Some((format!("{}{}", &rest[..start], &rest[end..]), hosts))
}

/// Whether the host has no name, so that only its `hostaddr` can be used.
fn is_nameless(host: &Host) -> bool {
    matches!(host, Host::Tcp(name) if name.is_empty())
}

/// The hosts and their ports.
pub(super) fn addresses(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let host = |(at, host): (usize, &Host)| match host {
        Host::Tcp(name) if name.is_empty() => {
            let address = config.get_hostaddrs().get(at).map(|ip| ip.to_string()).unwrap_or_default();
            format!("{address}:{}", port(at))
        }
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        #[cfg(unix)]
        Host::Unix(folder) => format!("{}:{}", folder.display(), port(at)),
    };
    let mut hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    if hosts.is_empty() {
        hosts = config.get_hostaddrs().iter().enumerate().map(|(at, ip)| format!("{ip}:{}", port(at))).collect();
    }
    hosts.join(",")
}

impl Table {
    /// The same table in this schema, if none was named.
    pub fn within(self, schema: &str) -> Table {
        if self.name.contains('.') {
            return self;
        }
        let quoted = format!("\"{}\".{}", schema.replace('"', "\"\""), self.quoted);
        Table { quoted, full: format!("{schema}.{}", self.name), ..self }
    }
}

/// The table's name.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// As it is written in statements.
    pub quoted: String,
    /// Without its schema.
    pub last: String,
    /// With the schema that it is in, as far as that is known.
    pub full: String,
    /// As it was given.
    pub name: String,
}

/// The first statements of a connection. They look up the schema of this table by the user's own search path. From then
/// on nothing is found but what the server brings, since others may make functions and operators in the schemas of that
/// path. Behind a pooler this and the other settings last only for this transaction: another program may get the
/// session next.
///
/// `process`: the process that must serve the session. If another one does, there is a pooler that the options do not
/// name.
pub(super) fn session(table: &Table, pooled: bool, process: Option<i32>) -> String {
    // A table that was named with its schema is not looked up: a user that may not use the schema would get no session.
    let table = if table.name.contains('.') { "NULL".to_owned() } else { format!("'{}'", table.quoted) };
    let keeping = process.map_or_else(
        || "NULL".to_owned(),
        |process| {
            let durable = durable_session();
            format!("CASE WHEN pg_backend_pid() = {process} THEN {KEEPING} || {durable} END IS NOT NULL")
        },
    );
    let session = format!(
        "SELECT coalesce((SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n \
         ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.oid OPERATOR(pg_catalog.=) \
         pg_catalog.to_regclass({table})::pg_catalog.oid), pg_catalog.current_schema(), 'public'); \
         SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false); \
         SELECT set_config('statement_timeout', '{}', false); {SESSION}, {keeping}",
        STATEMENT.as_millis()
    );
    if pooled { session.replace("', false)", "', true)") } else { session }
}

/// What the server says of itself.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The schema in which the table is, or will be made.
    pub schema: String,
    pub now: Micros,
    /// The session is the server's own, and no pooler's.
    pub is_direct: bool,
}

impl Server {
    /// From the answer to [`session`]; an error says why it can't be used.
    pub fn of(said: &[SimpleQueryMessage]) -> std::result::Result<Server, PostgresError> {
        let mut rows = said.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let schema = rows.next().and_then(|row| row.try_get(0).ok().flatten()).unwrap_or_default().to_owned();
        let row = rows.last();
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
        Ok(Server { schema, now: Micros(now), is_direct: text(7) == "t" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_connection_are_libpqs() {
        let config =
            |options: &str| PostgresOptions::from_url(&format!("postgres://h/d?{options}")).map(|all| all.config());
        let given = config("tcp_user_timeout=30000&keepalives_idle=120&keepalives_count=6").unwrap();
        assert_eq!(given.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
        assert_eq!(given.get_keepalives_idle(), Duration::from_secs(120));
        assert_eq!((given.get_keepalives_interval(), given.get_keepalives_retries()), (Some(KEEPALIVE), Some(6)));
        let usual = config("keepalives_interval=3").unwrap();
        assert_eq!((usual.get_keepalives_idle(), usual.get_keepalives_retries()), (KEEPALIVE, Some(2)));
        let error = config("tcp_user_timeout=canary").unwrap_err().to_string();
        assert!(error.contains("milliseconds") && !error.contains("canary"), "{error}");
    }
}
