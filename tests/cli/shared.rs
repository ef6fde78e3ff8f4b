//! Stores on servers, each with a table of its own.

#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
use leasehold::LockClient;

use crate::support::{leasehold, run_until_answered};

/// A store with its URL, and the environment that its clients need.
pub struct Shared {
    pub url: String,
    pub env: Vec<(&'static str, String)>,
}

#[allow(dead_code)] // Where no server is compiled in.
impl Shared {
    /// Creates its schema, with the URL as an argument.
    #[track_caller]
    pub fn init(&self) {
        let ran = run_until_answered(leasehold(&["--store", &self.url, "init"]).envs(self.env.clone()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
}

/// Creates the schema of this store and runs `cases` on it, if the server is available.
#[allow(dead_code)] // Where no server is compiled in.
#[track_caller]
pub fn on_server(shared: Option<Shared>, cases: impl FnOnce(&Shared)) {
    let Some(shared) = shared else { return };
    shared.init();
    cases(&shared);
}

/// Makes a test for each server: of this function, on a table whose name begins with `$name`.
macro_rules! on_each_server {
    ($cases:path, $name:literal) => {
        #[test]
        #[cfg(feature = "dynamodb")]
        fn on_dynamodb() {
            crate::shared::on_server(crate::shared::dynamodb($name), $cases);
        }

        #[test]
        #[cfg(feature = "mongodb")]
        fn on_mongodb() {
            crate::shared::on_server(crate::shared::mongodb($name), $cases);
        }

        #[test]
        #[cfg(feature = "postgres")]
        fn on_postgres() {
            crate::shared::on_server(crate::shared::postgres($name), $cases);
        }

        #[test]
        #[cfg(feature = "spanner")]
        fn on_spanner() {
            crate::shared::on_server(crate::shared::spanner($name), $cases);
        }
    };
}
pub(crate) use on_each_server;

/// A table of its own, if the server is available. Its name begins with `name`.
#[cfg(feature = "postgres")]
#[track_caller]
pub fn postgres(name: &str) -> Option<Shared> {
    let url = format!("{}?table={name}_{}", crate::servers::postgres_server()?, uuid().replace('-', ""));
    Some(Shared { url, env: Vec::new() })
}

/// A table of its own, if the server is available. Its name begins with `name`.
#[cfg(feature = "dynamodb")]
#[track_caller]
pub fn dynamodb(name: &str) -> Option<Shared> {
    let endpoint = crate::servers::dynamodb_local()?;
    Some(Shared {
        url: format!("dynamodb://{name}-{}?region=us-east-1&endpoint={endpoint}", uuid()),
        env: ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name, "any".to_owned())).into(),
    })
}

/// A collection of its own, if the server is available. Its name begins with `name`.
#[cfg(feature = "mongodb")]
#[track_caller]
pub fn mongodb(name: &str) -> Option<Shared> {
    let uri = crate::servers::mongod()?;
    let (hosts, options) = uri.split_once('?').unwrap_or((&uri, ""));
    let url = format!("{}/cli?{options}&collection={name}-{}", hosts.trim_end_matches('/'), uuid());
    Some(Shared { url, env: Vec::new() })
}

/// A table of its own in a database of its own, if the emulator is available. Its name begins with `name`.
#[cfg(feature = "spanner")]
#[track_caller]
pub fn spanner(name: &str) -> Option<Shared> {
    let host = crate::servers::spanner_emulator()?;
    let instance = format!("c{}", &uuid().replace('-', "")[..20]);
    let post = |path: &str, body: &str| {
        let answer = crate::servers::spanner::rest(&host, "POST", path, body);
        let (status, text) = answer.expect("the emulator answers");
        assert_eq!(status, 200, "{text}");
    };
    let config = "projects/tests/instanceConfigs/emulator-config";
    let body = serde_json::json!({
        "instanceId": instance, "instance": { "config": config, "displayName": "tests", "nodeCount": 1 },
    });
    post("/v1/projects/tests/instances", &body.to_string());
    let databases = format!("/v1/projects/tests/instances/{instance}/databases");
    post(&databases, &serde_json::json!({ "createStatement": "CREATE DATABASE `locks`" }).to_string());
    let url = format!("spanner:projects/tests/instances/{instance}/databases/locks?table={name}");
    Some(Shared { url, env: vec![("SPANNER_EMULATOR_HOST", host)] })
}

/// A unique text.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
fn uuid() -> String {
    let client = LockClient::connect("memory:").expect("a store");
    client.request("k").acquire().expect("a lock").lock_id().to_owned()
}
