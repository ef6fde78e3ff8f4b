//! What holds for every store behind a network, one test for each: bounds behind a server that answers nothing,
//! children that a connected process forks, connections that go silent, servers that stall, and panics inside an SDK.
#![cfg(all(
    target_os = "linux",
    any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner")
))]

/// Makes a test of this function on each store behind a network. With `alone` it runs in a process of its own.
macro_rules! on_each_remote {
    ($how:ident: $test:ident) => {
        crate::remote::on_each_remote! { @ "dynamodb" dynamodb $how $test }
        crate::remote::on_each_remote! { @ "mongodb" mongodb $how $test }
        crate::remote::on_each_remote! { @ "postgres" postgres $how $test }
        crate::remote::on_each_remote! { @ "spanner" spanner $how $test }
    };
    (@ $feature:literal $store:ident $how:ident $test:ident) => {
        #[cfg(feature = $feature)]
        mod $store {
            #[test]
            fn $test() {
                let test = || crate::remote::$store().iter().for_each(super::$test);
                crate::remote::on_each_remote! { @$how $test test }
            }
        }
    };
    (@together $test:ident $body:ident) => {
        $body()
    };
    (@alone $test:ident $body:ident) => {
        let (_, module) = module_path!().split_once("::").expect("a module of this program");
        crate::support::alone::alone(&format!("{module}::{}", stringify!($test)), $body);
    };
}
use on_each_remote;

mod forks;
mod holes;
mod late;
#[cfg(any(feature = "dynamodb", feature = "mongodb"))]
mod panics;
mod silence;
mod still;

use crate::support::proxy::Proxy;
use leasehold::ClientBuilder;

/// A store of its own, which a client reaches directly or through a proxy.
struct Remote {
    proxy: Proxy,
    /// A client of the server at this `HOST:PORT`.
    at: Box<dyn Fn(&str) -> ClientBuilder + Send + Sync>,
    upstream: String,
    _room: Box<dyn std::any::Any + Send + Sync>,
}

impl Remote {
    fn new(
        upstream: &str,
        at: impl Fn(&str) -> ClientBuilder + Send + Sync + 'static,
        room: impl Send + Sync + 'static,
    ) -> Remote {
        let upstream = upstream.trim_start_matches("http://").to_owned();
        Remote { proxy: Proxy::raw(&upstream), at: Box::new(at), upstream, _room: Box::new(room) }
    }

    /// A client that goes through the proxy.
    fn behind(&self) -> ClientBuilder {
        (self.at)(&self.proxy.addr().to_string())
    }

    fn direct(&self) -> ClientBuilder {
        (self.at)(&self.upstream)
    }
}

#[cfg(feature = "dynamodb")]
fn dynamodb() -> Option<Remote> {
    use crate::support::dynamodb::{Table, config_at};
    let endpoint = crate::support::servers::dynamodb_local()?;
    let table = Table::fresh();
    let name = table.0.clone();
    let at = move |host: &str| leasehold::dynamodb::builder(config_at(&format!("http://{host}")), name.as_str());
    Some(Remote::new(&endpoint, at, table))
}

#[cfg(feature = "mongodb")]
fn mongodb() -> Option<Remote> {
    mongodb_with("directConnection=true")
}

#[cfg(feature = "mongodb")]
fn mongodb_with(options: &str) -> Option<Remote> {
    use crate::support::mongodb::{Rows, host, with_database};
    let server = crate::support::servers::mongod()?;
    let rows = Rows::fresh();
    let options = format!("{options}&collection={}", rows.0);
    let at = move |host: &str| leasehold::LockClient::builder(with_database(&format!("mongodb://{host}"), &options));
    Some(Remote::new(&host(&server), at, rows))
}

#[cfg(feature = "postgres")]
fn postgres() -> Option<Remote> {
    use crate::support::{postgres::Rows, servers};
    let server = servers::postgres_server()?;
    let rows = Rows::fresh();
    let table = rows.0.clone();
    let at =
        move |host: &str| leasehold::LockClient::builder(format!("postgres://leasehold@{host}/postgres?table={table}"));
    Some(Remote::new(&servers::postgres::host(&server)?, at, rows))
}

#[cfg(feature = "spanner")]
fn spanner() -> Option<Remote> {
    use crate::support::spanner::{Database, TABLE, settings};
    let server = crate::support::servers::spanner_emulator()?;
    let path = Database::fresh().path;
    let at = move |host: &str| leasehold::spanner::builder(settings(host), &path, TABLE);
    Some(Remote::new(&server, at, ()))
}
