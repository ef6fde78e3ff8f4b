//! A user that may lock but may not open change streams, on a replica set that has them.

use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use leasehold::internals::store::Schema;
use leasehold::mongodb::driver::bson::{Bson, Document, doc};
use leasehold::mongodb::driver::sync::Client;

use crate::mongodb::rights::warnings;
use crate::mongodb::waking::{listen, names};
use crate::mongodb::*;
use crate::support::cluster::Cluster;
use crate::support::contract::granted;
use crate::support::mongodb::{DATABASE, Rows, settings, with_database};
use crate::support::wait::wait_until;

/// A replica set with the users `root`, `hears`, which may do all that locks need, and `deaf`, which may not watch.
struct Guarded {
    cluster: Cluster,
    rows: Rows,
    _key: tempfile::TempDir,
}

impl Guarded {
    fn new() -> Option<Guarded> {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key).unwrap();
        std::io::Write::write_all(&mut file, b"the members of this set know it").unwrap();
        let cluster = Cluster::one(&["--auth", "--keyFile", key.to_str().unwrap()])?;
        let at = Guarded { cluster, rows: Rows::unmade(), _key: folder };
        let run = |client: &Client, command: Document| client.database("admin").run_command(command).run().unwrap();
        // Any client on this host may create the first user.
        let nobody = Client::with_uri_str(at.cluster.uri()).unwrap();
        run(&nobody, doc! { "createUser": "root", "pwd": "canary", "roles": ["root"] });
        let root = Client::with_uri_str(at.uri("root")).unwrap();
        let rights = ["find", "insert", "update", "remove", "listCollections", "listIndexes"];
        let privileges = doc! { "resource": { "db": DATABASE, "collection": "" }, "actions": &rights[..] };
        run(&root, doc! { "createRole": "deaf", "privileges": [privileges], "roles": [] });
        let may_write = doc! { "role": "readWrite", "db": DATABASE };
        for (user, role) in [("hears", Bson::from(may_write)), ("deaf", Bson::from("deaf"))] {
            run(&root, doc! { "createUser": user, "pwd": "canary", "roles": [role] });
        }
        at.open("root").schema(Schema::Create, &soon()).unwrap();
        Some(at)
    }

    fn uri(&self, user: &str) -> String {
        format!("mongodb://{user}:canary@{}/?replicaSet=rs0&authSource=admin", self.cluster.hosts())
    }

    fn open(&self, user: &str) -> Mongodb {
        open(self.rows.options_at(&self.uri(user)))
    }
}

#[test]
fn who_may_not_watch_polls_which_is_said_once_and_has_its_locks() {
    let Some(at) = Guarded::new() else { return };
    warnings(&at.rows);
    let url = with_database(&at.uri("hears"), &format!("collection={}", at.rows.0));
    let holder = connect(&url);
    // The server has change streams: a user that may use them gets reports.
    let (to, _told) = crossbeam_channel::unbounded();
    assert!(at.open("hears").wake(&["x".to_owned()], to, &soon()).unwrap());
    assert_eq!(warnings(&at.rows), Vec::<String>::new());

    let mut settings = settings(&at.uri("deaf"));
    let commands = listen(&mut settings);
    let waiter = connected(|| patient(leasehold::mongodb::builder_with(settings.clone(), DATABASE, &at.rows.0)));
    for _ in 0..2 {
        let held = ["a", "b"].map(|key| holder.lock(key).unwrap());
        commands.lock().clear();
        std::thread::scope(|scope| {
            let waiting = ["a", "b"].map(|key| scope.spawn(|| waiter.lock(key).unwrap()));
            // Both were refused and look again, so they poll.
            let is_look = |name: &&String| ["find", "findAndModify"].contains(&name.as_str());
            wait_until("they poll", || names(&commands).iter().filter(is_look).count() >= 8);
            held.into_iter().for_each(|guard| guard.release().unwrap());
            waiting.into_iter().for_each(|waiting| waiting.join().unwrap().release().unwrap());
        });
    }
    // The holder is gone, and the end of its lease is no event that could be reported.
    let store = at.open("hears");
    let mut gone = exclusive(&store, "gone");
    gone.ask.lease = Duration::from_secs(1);
    let before = granted(&store, &mut gone);
    assert!(waiter.lock("gone").unwrap().fencing_token() > before.token);
    let said = warnings(&at.rows);
    assert!(said.len() == 1 && said[0].contains("poll") && said[0].contains("changeStream"), "{said:?}");
}
