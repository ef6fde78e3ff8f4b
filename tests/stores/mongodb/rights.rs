//! Users with fewer rights, a server alone, settings that are not used: what works, and what the errors and warnings
//! say.

use std::sync::Once;

use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Schema};
use leasehold::mongodb::driver::bson::{Bson, Document, doc};
use leasehold::mongodb::driver::sync::Client;
use leasehold::{ErrorKind, LockClient};

use crate::mongodb::*;
use crate::support::contract::{LEASE, granted, lost, refused, release, renewal, renewed};
use crate::support::logs;
use crate::support::mongodb::{Rows, host};
use crate::support::proxy::Proxy;
use crate::support::servers::mongod_alone;
use crate::support::wait::wait_until;

/// A server with the users `root`, `reader`, `writer`, and `bare`, which may do only what a lock needs.
struct Guarded {
    host: String,
    rows: Rows,
}

impl Guarded {
    fn new() -> Option<Guarded> {
        let host = host(&mongod_alone()?);
        static USERS: Once = Once::new();
        USERS.call_once(|| {
            let run = |client: &Client, command: Document| client.database("admin").run_command(command).run();
            // Any client on this host may create the first user. Later runs find it.
            let nobody = Client::with_uri_str(format!("mongodb://{host}/")).unwrap();
            let _ = run(&nobody, doc! { "createUser": "root", "pwd": "canary", "roles": ["root"] });
            let root = Client::with_uri_str(format!("mongodb://root:canary@{host}/")).unwrap();
            let rights = ["find", "insert", "update", "remove"];
            let privileges = doc! { "resource": { "db": "leasehold", "collection": "" }, "actions": &rights[..] };
            let _ = run(&root, doc! { "createRole": "bare", "privileges": [privileges], "roles": [] });
            for (user, role) in [
                ("reader", Bson::from(doc! { "role": "read", "db": "leasehold" })),
                ("writer", Bson::from(doc! { "role": "readWrite", "db": "leasehold" })),
                ("bare", Bson::from("bare")),
            ] {
                let _ = run(&root, doc! { "createUser": user, "pwd": "canary", "roles": [role] });
            }
        });
        logs::keep();
        Some(Guarded { host, rows: Rows::unmade() })
    }

    fn uri(&self, user: &str) -> String {
        format!("mongodb://{user}:canary@{}/?authSource=admin", self.host)
    }

    fn open(&self, user: &str) -> Mongodb {
        open(self.rows.options_at(&self.uri(user)))
    }
}

#[test]
fn a_server_alone_works_and_is_warned_of() {
    let Some(at) = Guarded::new() else { return };
    let store = at.open("root");
    store.schema(Schema::Create, &soon()).unwrap();
    let (mut a, mut b) = (exclusive(&store, "k"), exclusive(&store, "k"));
    granted(&store, &mut a);
    refused(&store, &mut b);
    renewed(&store, &mut a, renewal(Lease::For(2 * LEASE)));
    assert_eq!(get(&store, "k").record.holders().count(), 1);
    release(&store, &mut a);
    granted(&store, &mut b);
    lost(&store, &mut a);
    let warned = warnings(&at.rows);
    assert!(warned.len() == 1 && warned[0].contains("no replica set"), "{warned:?}");
}

#[test]
fn wrong_credentials_are_told_at_connect() {
    let Some(at) = Guarded::new() else { return };
    for url in [
        format!("mongodb://root:canary-not@{}/leasehold?authSource=admin", at.host),
        format!("mongodb://nobody:canary@{}/leasehold?authSource=admin", at.host),
        // The user belongs to another database.
        format!("mongodb://root:canary@{}/leasehold", at.host),
        format!("mongodb://{}/leasehold", at.host),
    ] {
        let answer = sent(|| match patient(LockClient::builder(url.as_str())).connect() {
            Err(error) if !error.is_retryable() => Ok(Err(error)),
            answer => answer.map(Ok),
        });
        let Err(error) = answer else {
            // Without a user, connecting is not refused, but using the store is.
            let error = connect(&url).try_lock("k").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Permission, "{error:?}");
            continue;
        };
        let text = crate::errors::text(&error);
        assert_eq!(error.kind(), ErrorKind::Permission, "{text}");
        assert!(!error.is_retryable(), "{text}");
    }
}

/// The directory of users is away, or a password is changed on the servers first: a client that was let in before waits
/// on.
#[test]
fn a_user_who_is_not_let_in_for_a_while_goes_on_waiting() {
    let Some(at) = Guarded::new() else { return };
    at.open("root").schema(Schema::Create, &soon()).unwrap();
    let root = Client::with_uri_str(at.uri("root")).unwrap();
    let run = |command: Document| drop(root.database("admin").run_command(command).run().unwrap());
    let user = at.rows.0.as_str();
    run(doc! { "createUser": user, "pwd": "canary", "roles": [{ "role": "readWrite", "db": "leasehold" }] });
    let proxy = Proxy::mongodb(&at.host);
    let way = "authSource=admin&directConnection=true&serverMonitoringMode=poll";
    let uri = format!("mongodb://{user}:canary@{}/?{way}", proxy.addr());
    let store = open(at.rows.options_at(&uri));
    granted(&store, &mut exclusive(&store, "before"));
    run(doc! { "updateUser": user, "pwd": "canary-not" });
    proxy.cut_all();
    let mut told = None;
    wait_until("it is not let in", || {
        let error = store.acquire(&mut exclusive(&store, "k"), &soon()).map(drop).err();
        told = error.filter(|error| error.to_string().contains("does not accept"));
        told.is_some()
    });
    let error = told.unwrap();
    assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error:?}");
    run(doc! { "updateUser": user, "pwd": "canary" });
    let mut a = exclusive(&store, "k");
    wait_until("it is let in", || matches!(store.acquire(&mut a, &soon()), Ok(Acquired::Granted { .. })));
    run(doc! { "dropUser": user });
}

#[test]
fn a_right_that_is_missing_is_told_and_named() {
    let Some(at) = Guarded::new() else { return };
    at.open("root").schema(Schema::Create, &soon()).unwrap();
    let reader = at.open("reader");
    reader.schema(Schema::Check, &soon()).unwrap();
    assert!(get(&reader, "k").record.holders().next().is_none(), "it may look");
    let error = reader.acquire(&mut exclusive(&reader, "k"), &soon()).unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Permission, false));
    assert!(error.to_string().contains("readWrite"), "{error}");
    let unmade = Guarded { host: at.host.clone(), rows: Rows::unmade() };
    let error = unmade.open("reader").schema(Schema::Create, &soon()).unwrap_err();
    assert!(error.kind() == ErrorKind::Permission && error.to_string().contains("createIndex"), "{error}");

    let writer = at.open("writer");
    writer.schema(Schema::Create, &soon()).unwrap();
    granted(&writer, &mut exclusive(&writer, "k"));

    // A user that may not look at indexes is believed, with a warning.
    warnings(&at.rows);
    let bare = at.open("bare");
    bare.schema(Schema::Check, &soon()).unwrap();
    let warned = warnings(&at.rows);
    assert!(warned.iter().any(|text| text.contains("listIndexes is denied")), "{warned:?}");
    let mut a = exclusive(&bare, "bare");
    assert!(matches!(bare.acquire(&mut a, &soon()).unwrap(), Acquired::Granted { .. }));
    release(&bare, &mut a);
}

#[test]
fn settings_that_locks_cannot_use_are_told_once() {
    let rows = needs_server!(Rows::fresh());
    let uri = crate::support::servers::mongod().unwrap();
    let join = if uri.contains('?') { '&' } else { '?' };
    let uri = format!("{uri}{join}w=1&readPreference=secondary&retryWrites=false");
    let store = sent(|| {
        // Each try logs the warnings.
        warnings(&rows);
        Mongodb::open(rows.options_at(&uri), &soon())
    });
    for _ in 0..3 {
        let mut a = exclusive(&store, "k");
        granted(&store, &mut a);
        release(&store, &mut a);
    }
    let warned = warnings(&rows);
    assert!(warned.len() == 1 && warned[0].ends_with("w, readPreference, retryWrites=false"), "{warned:?}");
}

/// The warnings about this collection since the last call.
pub fn warnings(rows: &Rows) -> Vec<String> {
    logs::take(&rows.0)
}
