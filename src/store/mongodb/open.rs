//! Makes a client of the driver from settings, on the driver's thread, and learns what kind of server it is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    Acknowledgment, ClientOptions, ConnectionString, ReadPreference, SelectionCriteria, ServerMonitoringMode,
};
use mongodb::{Client, Collection, ServerType};

use super::error::MongodbError;
use super::row::time;
use super::send::{Owned, counting_handler, majority};
use super::session::{Register, Sessions};
use super::turns::{CONNECTIONS, Turns};
use super::wakeup::Waking;
use super::{Mongodb, mixed};
use crate::lease::StoreTime;
use crate::model::error::Result;
use crate::store::fleet::Fleet;
use crate::store::{Bounds, Opener, url};
use crate::sys::log;

/// How long the driver looks for a primary before it says why there is none.
const SELECTION: Duration = Duration::from_secs(3);
/// How long making a connection may take.
const CONNECTION: Duration = Duration::from_secs(2);
/// How often the driver checks each server. A request that was dropped tells the driver nothing, so only these checks
/// show it that a primary is dead.
const LOOK: Duration = Duration::from_secs(10);
/// The same if the server does not report changes between two checks.
const LOOK_POLLED: Duration = Duration::from_secs(5);
/// The version of the wire protocol of server 4.4, which knows expressions in projections.
const OLDEST_WIRE: i32 = 9;
/// One for the change stream, whose answers the server holds back, one for acquires and waiters' looks, and one for
/// heartbeats and releases: a heartbeat that queued behind the others would come too late.
const LEAST_CONNECTIONS: u32 = 3;
/// The default collection.
pub const COLLECTION: &str = "locks";
/// Our own options of a URL.
const OPTIONS: [&str; 2] = ["collection", "fleet"];
const COMPRESSION: [&str; 2] = ["compressors", "zlibCompressionLevel"];

/// What `Mongodb::open` needs to know.
#[derive(Clone)]
pub struct MongodbOptions {
    /// The database.
    pub database: String,
    /// The collection.
    pub collection: String,
    /// Whose processes use the collection.
    pub fleet: Fleet,
    /// Hosts, credentials and the rest.
    pub settings: Settings,
}

/// Where hosts and credentials come from.
#[derive(Clone)]
pub enum Settings {
    /// A URL, without our own options.
    Url(Box<ConnectionString>),
    /// The user's options. Only their settings are used; the connections are our own.
    Given(Box<ClientOptions>),
}

impl fmt::Debug for MongodbOptions {
    /// Without the settings, which hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongodbOptions").field("label", &self.label()).finish_non_exhaustive()
    }
}

impl MongodbOptions {
    /// From a URL in MongoDB's own form. The driver parses it, except for our own options.
    pub(in crate::store) fn from_url(url: &str) -> Result<Self> {
        let (rest, options) = url::split_query(url, ["mongodb://", "mongodb+srv://"])?;
        let is_wrong = |said: &str| url::config(&format!("the mongodb: URL is wrong: {said}"));
        let (mut ours, mut theirs) = ([None, None], Vec::new());
        for (name, value) in options {
            if let Some(at) = OPTIONS.iter().position(|known| *known == name) {
                if ours[at].replace(url::decode(value)?.into_owned()).is_some() {
                    return Err(url::config(&format!("the option {name:?} of mongodb: is given twice")));
                }
                continue;
            }
            // The driver is built without compression, and would say that there is no such option.
            if COMPRESSION.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                log::warn!(target: "leasehold::mongodb", "the requests of locks are small, and not compressed; not used: {name}");
                continue;
            }
            let hint = url::near(name, &OPTIONS);
            if !hint.is_empty() {
                return Err(url::config(&format!("mongodb: has no option {name:?}{hint}")));
            }
            let pairs = || url::decode(value).map(|pairs| pairs.split(',').all(|pair| pair.contains(':')));
            if name.eq_ignore_ascii_case("authMechanismProperties") && !pairs()? {
                // The driver's error would quote the properties, and one of them is a secret.
                return Err(is_wrong(
                    "authMechanismProperties must be pairs like NAME:VALUE, with commas between them",
                ));
            }
            theirs.push(format!("{name}={value}"));
        }
        let [collection, fleet] = ours;
        let address = if theirs.is_empty() { rest.to_owned() } else { format!("{rest}?{}", theirs.join("&")) };
        // The driver panics if a `%` in the user or password is followed by characters that are not ASCII.
        let user = rest.split_once('@').map_or("", |(user, _)| user);
        let is_escape = |part: &str| part.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        if !user.split('%').skip(1).all(is_escape) {
            let right = "in a user name or password write @ : / ? # [ ] % as %40 %3A %2F %3F %23 %5B %5D %25";
            return Err(is_wrong(&format!("the driver cannot read it; {right}")));
        }
        // The driver's error quotes a wrong port, which is the rest of a user and a password if the @ is missing.
        let (_, hosts) = rest.rsplit_once('@').or_else(|| rest.split_once("://")).unwrap_or_default();
        let hosts = hosts.split('/').next().unwrap_or_default().split(',');
        // The port begins where the driver finds it.
        let after_ip = |host: &'_ str| host.starts_with('[').then(|| host.find(']')).flatten().unwrap_or(0);
        let mut ports = hosts.filter_map(|host| host[after_ip(host)..].split_once(':'));
        if !ports.all(|(_, port)| port.parse::<u16>().is_ok()) {
            return Err(is_wrong("the port of a host must be a number; user and password end with an @"));
        }
        // The driver's error quotes nothing that comes before the @.
        let parsed = ConnectionString::parse(&address).map_err(|error| is_wrong(&error.kind.to_string()))?;
        let fleet = Fleet::parse(fleet.as_deref(), mixed::LIBRARY)?;
        Ok(MongodbOptions { fleet, ..MongodbOptions::new(Settings::Url(Box::new(parsed)), None, collection)? })
    }

    /// The locks in this database and collection, or in what the settings name.
    pub fn new(
        settings: Settings,
        database: Option<String>,
        collection: Option<String>,
    ) -> std::result::Result<Self, crate::model::error::Error> {
        let named = match &settings {
            Settings::Url(url) => url.default_database.clone(),
            Settings::Given(options) => options.default_database.clone(),
        };
        let Some(database) = database.or(named).filter(|name| !name.is_empty()) else {
            let message = "mongodb: needs the name of a database, like mongodb://localhost/app?collection=locks";
            return Err(MongodbError::Config(message.to_owned()).into());
        };
        let collection = collection.unwrap_or_else(|| COLLECTION.to_owned());
        let is_bad = |name: &str| name.is_empty() || name.contains(['\0', '$']) || name.len() > 200;
        if is_bad(&collection) || collection.starts_with("system.") || collection.starts_with('.') {
            return Err(MongodbError::Config(format!("{collection:?} cannot be the name of a collection")).into());
        }
        if is_bad(&database) || database.contains(['/', '\\', '.', ' ', '"']) {
            return Err(MongodbError::Config(format!("{database:?} cannot be the name of a database")).into());
        }
        Ok(MongodbOptions { database, collection, fleet: Fleet::Own, settings })
    }

    /// An opener for the store in this collection.
    pub(crate) fn opener(self) -> Result<Opener> {
        Ok(Opener::new(self.bounds(), |_, _, by| Mongodb::open(self, by)))
    }

    pub(super) fn bounds(&self) -> Bounds {
        let (min_lease, min_margin, limits) = match self.fleet {
            Fleet::Own => (Mongodb::MIN_LEASE, Mongodb::MIN_MARGIN, None),
            Fleet::Mixed => (mixed::MIN_LEASE, mixed::MIN_MARGIN, Some(mixed::LIMITS)),
        };
        Bounds { min_lease, min_margin, default_lease: Mongodb::DEFAULT_LEASE, limits }
    }

    pub(super) fn label(&self) -> String {
        format!("mongodb://{}/{}.{}", self.hosts().join(","), self.database, self.collection)
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        match &self.settings {
            Settings::Url(url) => match &url.host_info {
                mongodb::options::HostInfo::HostIdentifiers(hosts) => hosts.iter().map(ToString::to_string).collect(),
                mongodb::options::HostInfo::DnsRecord(host) => vec![host.clone()],
                _ => Vec::new(),
            },
            Settings::Given(options) => options.hosts.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A connection that was idle for longer is not used again. A router may have forgotten it without telling either side;
/// some do after four minutes. Each such connection that is tried costs a part of a lease.
const IDLE: Duration = Duration::from_secs(60);

/// Makes the client. For a `mongodb+srv` URL, the driver asks the DNS for the hosts.
///
/// `patience`: how much time the caller has. The driver's timeouts are shorter, so that it says why a request failed
/// before that time is over.
pub(super) async fn client(options: MongodbOptions, register: Arc<Register>, patience: Duration) -> Result<Owned> {
    let label = options.label();
    let mut settings = match options.settings {
        Settings::Given(given) => *given,
        Settings::Url(url) => {
            ClientOptions::parse(*url).await.map_err(|error| MongodbError::classify(&error, None).1)?
        }
    };
    let overridden = force(&mut settings);
    if !overridden.is_empty() {
        log::warn!(
            target: "leasehold::mongodb", store:? = label;
            "locks need writes that the majority has in its journal, from the primary, {LEAST_CONNECTIONS} \
             connections, to repeat by themselves, and commands outside of the strict API; not used: {}",
            overridden.join(", ")
        );
    }
    let sooner = |set: Option<Duration>, most| Some(set.map_or(most, |set| set.min(most)));
    settings.server_selection_timeout = sooner(settings.server_selection_timeout, SELECTION.min(patience * 3 / 4));
    settings.connect_timeout = settings.connect_timeout.filter(|set| !set.is_zero());
    settings.connect_timeout = sooner(settings.connect_timeout, CONNECTION.min(patience / 2));
    let is_polled = match settings.server_monitoring_mode {
        Some(ServerMonitoringMode::Poll) => true,
        Some(ServerMonitoringMode::Stream) => false,
        _ => is_function(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())),
    };
    settings.heartbeat_freq = sooner(settings.heartbeat_freq, if is_polled { LOOK_POLLED } else { LOOK });
    settings.cmap_event_handler = Some(counting_handler(settings.cmap_event_handler.take()));
    settings.max_idle_time.get_or_insert(IDLE);
    settings.app_name.get_or_insert_with(|| "leasehold".to_owned());
    let turns = Turns::of(settings.max_pool_size);
    settings.max_pool_size.get_or_insert(CONNECTIONS);
    let client = Client::with_options(settings).map_err(|error| MongodbError::classify(&error, None).1)?;
    let locks: Collection<Document> = client.database(&options.database).collection(&options.collection);
    let (sessions, waking) = (Sessions::new(register), Waking::default());
    Ok(Owned { client, locks, sessions, waking, turns })
}

/// Whether the driver may take the environment for that of a cloud function, which is frozen between its calls: then
/// the driver polls, unless the settings say otherwise.
fn is_function(variable: impl Fn(&str) -> Option<String>) -> bool {
    const NAMES: [&str; 5] =
        ["AWS_LAMBDA_RUNTIME_API", "VERCEL", "FUNCTIONS_WORKER_RUNTIME", "K_SERVICE", "FUNCTION_NAME"];
    let is_set = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
    NAMES.iter().any(is_set) || variable("AWS_EXECUTION_ENV").is_some_and(|value| value.starts_with("AWS_Lambda_"))
}

/// Sets what locks need, whatever the user's settings say. Returns the settings that it had to change.
fn force(settings: &mut ClientOptions) -> Vec<String> {
    let mut overridden = Vec::new();
    if let Some(concern) = &settings.write_concern {
        if concern.w.as_ref().is_some_and(|w| *w != Acknowledgment::Majority) {
            overridden.push("w".to_owned());
        }
        if concern.journal == Some(false) {
            overridden.push("journal=false".to_owned());
        }
    }
    settings.write_concern = Some(majority(None));
    let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
    if settings.selection_criteria.as_ref().is_some_and(|criteria| *criteria != primary) {
        overridden.push("readPreference".to_owned());
    }
    // With a direct connection to one member, the driver would also read from a secondary, which may be far behind.
    let is_it = |kind| {
        matches!(kind, ServerType::RsPrimary | ServerType::Standalone | ServerType::Mongos | ServerType::LoadBalancer)
    };
    settings.selection_criteria =
        Some(SelectionCriteria::Predicate(Arc::new(move |server| is_it(server.server_type()))));
    if settings.read_concern.take().is_some() {
        overridden.push("readConcernLevel".to_owned());
    }
    // Only numbered writes stop an acquire that arrives late, and only writes that the driver may repeat have numbers.
    if settings.retry_writes == Some(false) {
        overridden.push("retryWrites=false".to_owned());
    }
    settings.retry_writes = Some(true);
    if let Some(most) = settings.max_pool_size.filter(|most| (1..LEAST_CONNECTIONS).contains(most)) {
        overridden.push(format!("maxPoolSize={most}"));
        settings.max_pool_size = Some(LEAST_CONNECTIONS);
    }
    // What an overloaded server refused was not done, which no error says of a write that was sent twice. The caller
    // repeats it, for as long as it has time. The driver takes a connection that fails (TCP, TLS, `hello`) for a sign of
    // overload, so it does not repeat after that, either.
    if let Some(most) = settings.max_adaptive_retries.filter(|most| *most > 0) {
        overridden.push(format!("maxAdaptiveRetries={most}"));
    }
    settings.max_adaptive_retries = Some(0);
    // The strict API refuses `buildInfo`, without which nobody knows what kind of server it is.
    if let Some(api) = settings.server_api.as_mut().filter(|api| api.strict == Some(true)) {
        overridden.push("apiStrict=true".to_owned());
        api.strict = Some(false);
    }
    overridden
}

/// What kind of server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A member of a replica set.
    Replicated,
    /// In front of several replica sets.
    Router,
    /// Alone: writes have no numbers, and there are no change streams.
    Standalone,
}

pub(super) async fn hello(owned: &Owned) -> mongodb::error::Result<Document> {
    owned.client.database("admin").run_command(doc! { "hello": 1 }).await
}

pub(super) async fn build_info(owned: &Owned) -> mongodb::error::Result<Document> {
    owned.client.database("admin").run_command(doc! { "buildInfo": 1 }).await
}

pub(super) fn local_time(hello: &Document) -> Option<StoreTime> {
    hello.get_datetime("localTime").ok().map(|at| time(*at))
}

/// The kind of server, by what it says about itself, or why it can't be used.
pub(super) fn topology(
    hosts: &[String],
    hello: &Document,
    build: &Document,
) -> std::result::Result<Topology, MongodbError> {
    if let Some(name) = look_alike(hosts, hello, build) {
        let message = format!(
            "the server is {name}, which speaks MongoDB's protocol but does not promise what locks need \
             (one atomic findAndModify with a pipeline, numbered writes, majority); use MongoDB itself"
        );
        return Err(MongodbError::Config(message));
    }
    // MongoDB says it to the millisecond, as a date, and leases end by it.
    if hello.get("localTime").is_some_and(|time| time.as_datetime().is_none()) {
        let message = "the server's hello has a localTime that is no date, so it is another server that speaks MongoDB's \
                       protocol and does not promise what locks need; use MongoDB itself";
        return Err(MongodbError::Config(message.to_owned()));
    }
    let wire = hello.get_i32("maxWireVersion").unwrap_or(0);
    if wire < OLDEST_WIRE {
        let version = build.get_str("version").unwrap_or("of an unknown version");
        return Err(MongodbError::Config(format!("the server is MongoDB {version}, but must be 4.4.2 or newer")));
    }
    Ok(if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        Topology::Router
    } else if hello.contains_key("setName") {
        Topology::Replicated
    } else {
        Topology::Standalone
    })
}

/// The name of a server of another vendor that speaks MongoDB's protocol.
fn look_alike(hosts: &[String], hello: &Document, build: &Document) -> Option<&'static str> {
    // If the URL names a tunnel, the server's answer may still name the server.
    let own = ["me", "primary"].into_iter().filter_map(|name| hello.get_str(name).ok());
    let own = own.chain(hello.get_array("hosts").into_iter().flatten().filter_map(Bson::as_str));
    let all: Vec<&str> = hosts.iter().map(String::as_str).chain(own).collect();
    let is_at = |domain: &str| all.iter().any(|host| host.split(':').next().is_some_and(|h| h.ends_with(domain)));
    // Where the gateway of the open DocumentDB says what it is; otherwise its answers are those of a router.
    let internal = hello.get_document("internal").ok();
    let says = |name: &str| {
        let text = |value: &Bson| value.to_string().to_ascii_lowercase().contains(name);
        build.iter().chain(hello.iter()).chain(internal.into_iter().flatten()).any(|(key, value)| {
            key.to_ascii_lowercase().contains(name)
                || (matches!(key.as_str(), "version" | "gitVersion" | "modules") && text(value))
        })
    };
    let is_of_aws = |domain: &str| is_at(domain) || is_at(&format!("{domain}.cn"));
    if is_of_aws(".docdb.amazonaws.com") || is_of_aws(".docdb-elastic.amazonaws.com") {
        return Some("Amazon DocumentDB");
    }
    if is_at(".cosmos.azure.com") || is_at(".cosmosdb.azure.com") || says("cosmos") {
        return Some("Azure Cosmos DB");
    }
    if says("ferretdb") {
        return Some("FerretDB");
    }
    if says("documentdb") {
        return Some("DocumentDB");
    }
    None
}

#[cfg(test)]
mod tests {
    use mongodb::options::{ServerApi, ServerApiVersion};

    use super::*;

    #[test]
    fn in_a_function_the_driver_polls() {
        for (name, value, is_it) in [
            ("K_SERVICE", "reports", true),
            ("VERCEL", "", false),
            ("AWS_EXECUTION_ENV", "AWS_Lambda_rust", true),
            ("AWS_EXECUTION_ENV", "AWS_ECS_FARGATE", false),
            ("HOME", "/root", false),
        ] {
            assert_eq!(is_function(|asked| (asked == name).then(|| value.to_owned())), is_it, "{name}={value}");
        }
    }

    #[test]
    fn servers_that_only_look_like_it_are_refused_by_name() {
        let hello = doc! { "maxWireVersion": 17, "setName": "rs0" };
        let mongo =
            doc! { "version": "6.0.5", "gitVersion": "c9a99c120371d4d4c52cbb15dac34a36ce8d3b1d", "modules": [] };
        let of = |hosts: &[&str], build: &Document| {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            topology(&hosts, &hello, build).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["127.0.0.1:27017"], &mongo), Ok(Topology::Replicated));
        let router = doc! { "maxWireVersion": 17, "msg": "isdbgrid" };
        assert_eq!(topology(&[], &router, &mongo).unwrap(), Topology::Router);
        let ferret = doc! { "version": "7.0.42", "ferretdbVersion": "v1.24.0" };
        let cases = [
            (&["a.cluster-x.eu-central-1.docdb.amazonaws.com:27017"][..], &mongo, "Amazon DocumentDB"),
            (&["x.docdb.cn-north-1.docdb.amazonaws.com.cn:27017"], &mongo, "Amazon DocumentDB"),
            (&["x.mongo.cosmos.azure.com:10255"], &mongo, "Azure Cosmos DB"),
            (&["127.0.0.1:27017"], &ferret, "FerretDB"),
            (&["127.0.0.1:27017"], &doc! { "version": "7.0", "ferretdb": { "version": "v2.0.0" } }, "FerretDB"),
        ];
        for (hosts, build, name) in cases {
            assert!(of(hosts, build).is_err_and(|error| error.contains(name)), "{name}");
        }
        let tunnel = ["localhost:27017".to_owned()];
        for (name, value) in
            [("me", Bson::from("a.docdb.amazonaws.com:1")), ("hosts", vec!["a.docdb.amazonaws.com:1"].into())]
        {
            let said = topology(&tunnel, &doc! { "maxWireVersion": 17, "setName": "rs0", name: value }, &mongo);
            assert!(said.is_err_and(|error| error.to_string().contains("Amazon DocumentDB")), "{name}");
        }
        // The gateway of the open DocumentDB, that of Cosmos clusters, and one that does not say what it is.
        let build =
            doc! { "version": "7.0.0", "versionArray": [7, 0, 0, 0], "bits": 64, "maxBsonObjectSize": 16_777_216 };
        let gateway = |internal: Document| {
            doc! { "maxWireVersion": 21, "msg": "isdbgrid", "localTime": 1_790_000_000_000_i64, "internal": internal }
        };
        for (internal, name) in [
            (doc! { "documentdb_versions": ["0.117-0", "0.117.0"], "kind": "" }, "is DocumentDB"),
            (doc! { "cosmos_versions": ["1.104-1", "1.105.0"] }, "Azure Cosmos DB"),
            (doc! {}, "localTime that is no date"),
        ] {
            let said = topology(&tunnel, &gateway(internal), &build);
            assert!(said.as_ref().is_err_and(|error| error.to_string().contains(name)), "{name}: {said:?}");
        }
        let dated = doc! { "maxWireVersion": 17, "setName": "rs0", "localTime": mongodb::bson::DateTime::now() };
        assert_eq!(topology(&tunnel, &dated, &mongo).unwrap(), Topology::Replicated);
        let old = topology(&[], &doc! { "maxWireVersion": 8 }, &doc! { "version": "4.2.1" }).unwrap_err();
        assert!(old.to_string().contains("4.2.1"), "{old}");
    }

    #[test]
    fn what_locks_need_is_forced_and_what_it_overrides_is_told() {
        let parsed = |query: &str| {
            let url = format!("mongodb://localhost/app?{query}");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut settings = runtime.block_on(async { ClientOptions::parse(&url).await.unwrap() });
            let told = force(&mut settings).join(", ");
            assert_eq!(settings.write_concern, Some(majority(None)));
            assert_eq!((settings.retry_writes, settings.max_adaptive_retries), (Some(true), Some(0)));
            told
        };
        assert_eq!(parsed(""), "");
        assert_eq!(parsed("w=majority&retryWrites=true"), "");
        let all = "w=1&journal=false&readPreference=secondary&readConcernLevel=local&retryWrites=false";
        assert_eq!(parsed(all), "w, journal=false, readPreference, readConcernLevel, retryWrites=false");
        let api = ServerApi::builder().version(ServerApiVersion::V1).strict(true).build();
        let mut strict = ClientOptions::builder().server_api(api).build();
        assert_eq!(force(&mut strict), ["apiStrict=true"]);
        assert_eq!(strict.server_api.map(|api| (api.version, api.strict)), Some((ServerApiVersion::V1, Some(false))));
        assert_eq!(parsed("maxAdaptiveRetries=5"), "maxAdaptiveRetries=5");
        assert_eq!((parsed("maxPoolSize=2").as_str(), parsed("maxPoolSize=3").as_str()), ("maxPoolSize=2", ""));
    }
}
