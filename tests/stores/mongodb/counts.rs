//! How many requests each step takes, and what it leaves in the oplog.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold::CancelToken;
use leasehold::internals::lease::Lease;
use leasehold::internals::store::{Acquired, Consistency, Purpose, Released, Renewal, Renewed, Swapped};
use leasehold::internals::sys::clock::Clock;
use leasehold::mongodb::driver::bson::{Document, doc};
use leasehold::mongodb::driver::event::EventHandler;
use leasehold::mongodb::driver::event::command::CommandEvent;
use parking_lot::Mutex;

use crate::mongodb::*;
use crate::support::bench::builder_over;
use crate::support::contract::{LEASE, acquired, granted, raised, refused};
use crate::support::mongodb::{Rows, server};

struct Counted {
    rows: Rows,
    store: Mongodb,
    commands: Arc<Mutex<Vec<Document>>>,
}

impl Counted {
    fn new() -> Counted {
        let rows = Rows::fresh();
        let commands = Arc::<Mutex<Vec<Document>>>::default();
        let heard = commands.clone();
        let options = rows.options_with(|settings| {
            settings.command_event_handler = Some(EventHandler::callback(move |event| {
                if let CommandEvent::Started(started) = event {
                    heard.lock().push(started.command);
                }
            }));
        });
        let store = sent(|| {
            // Each try sends these commands.
            commands.lock().clear();
            Mongodb::open(options.clone(), &soon())
        });
        let counted = Counted { rows, store, commands };
        // The first write looks for the unique index, unless connecting did so.
        counted.store.schema(leasehold::internals::store::Schema::Check, &soon()).unwrap();
        counted
    }

    /// Runs `step`, which must send these commands.
    #[track_caller]
    fn sends<T>(&self, commands: &[&str], what: &str, step: impl FnOnce(&Mongodb) -> T) -> T {
        self.commands.lock().clear();
        let answer = step(&self.store);
        let sent = std::mem::take(&mut *self.commands.lock());
        let names: Vec<&str> = sent.iter().map(|command| command.keys().next().unwrap().as_str()).collect();
        println!("{what}: {names:?}");
        assert_eq!(names, commands, "{what}");
        for command in sent.iter().filter(|command| command.contains_key("findAndModify")) {
            let concern = command.get_document("writeConcern").unwrap();
            assert_eq!((concern.get_str("w"), concern.get_bool("j")), (Ok("majority"), Ok(true)), "{what}");
            assert!(command.contains_key("txnNumber"), "{what}: numbered");
        }
        answer
    }

    /// The same for a step that sends one `findAndModify`.
    #[track_caller]
    fn one<T>(&self, what: &str, step: impl FnOnce(&Mongodb) -> T) -> T {
        self.sends(&["findAndModify"], what, step)
    }

    /// How many writes of this collection the oplog has.
    fn oplog(&self) -> u64 {
        let filter = doc! { "ns": { "$regex": format!("{}$", self.rows.0) } };
        server().database("local").collection::<Document>("oplog.rs").count_documents(filter).run().unwrap()
    }
}

fn longer(lease: Duration) -> Renewal {
    Renewal { lease: Lease::For(lease), may_end_endless: false }
}

#[test]
fn connecting_looks_at_the_server() {
    let counted = needs_server!(Counted::new());
    let sent: Vec<String> =
        counted.commands.lock().iter().map(|command| command.keys().next().unwrap().clone()).collect();
    assert_eq!(sent, ["hello", "buildInfo", "listCollections", "listIndexes"]);
}

#[test]
fn exclusive_steps() {
    let at = needs_server!(Counted::new());
    let by = soon();
    let store = &at.store;
    let mut a = exclusive(store, "k");
    at.one("acquire a missing document", |store| granted(store, &mut a));
    at.one("refused", |store| refused(store, &mut exclusive(store, "k")));
    assert!(at.one("repeated", |store| acquired(store, &mut a)).1);
    let renewed = at.one("renew", |store| store.renew(&mut a, longer(2 * LEASE), &by).unwrap());
    assert!(matches!(renewed, Renewed::Until { .. }));
    let renewed = at.one("renew, delayed", |store| store.renew(&mut a, longer(LEASE), &by).unwrap());
    assert!(matches!(renewed, Renewed::Until { .. }));
    let old = holders(store, "k").remove(0);
    let mut b = instead_of(store, "k", Mode::Exclusive, &old);
    at.one("transfer", |store| granted(store, &mut b));
    assert!(at.one("transfer repeated", |store| acquired(store, &mut b)).1);
    at.one("transfer refused", |store| refused(store, &mut instead_of(store, "k", Mode::Exclusive, &old)));
    let lost = at.one("renew, lost", |store| store.renew(&mut a, longer(LEASE), &by).unwrap());
    assert!(matches!(lost, Renewed::Lost(_)));
    let other = at.one("release, held by other", |store| store.release(&mut a, Purpose::Release, &by).unwrap());
    assert!(matches!(other, Released::HeldByOther(_)));
    assert!(matches!(at.one("release", |s| s.release(&mut b, Purpose::Release, &by).unwrap()), Released::Done));
    assert!(matches!(at.one("release again", |s| s.release(&mut b, Purpose::Release, &by).unwrap()), Released::Free));
    let mut c = exclusive(store, "k");
    at.one("acquire a released document", |store| granted(store, &mut c));
    assert!(matches!(at.one("give up, stands", |s| s.release(&mut c, Purpose::GiveUp, &by).unwrap()), Released::Done));
    let free = at.one("give up", |store| store.release(&mut exclusive(store, "k"), Purpose::GiveUp, &by).unwrap());
    assert!(matches!(free, Released::Free));
    granted(store, &mut exclusive(store, "k"));
    at.rows.age(LEASE);
    let last = at.one("acquire an expired document", |store| granted(store, &mut exclusive(store, "k")));
    let mut e = exclusive(store, "k");
    e.ask.labels.owner = last.labels.owner;
    e.ask.replace_same_owner = true;
    at.one("replace", |store| granted(store, &mut e));
    assert!(at.one("replace repeated", |store| acquired(store, &mut e)).1);
    // As after a failover to a server whose clock is behind.
    at.rows.grant_ahead("k");
    let mut f = exclusive(store, "k");
    (f.ask.labels, f.ask.replace_same_owner) = (e.ask.labels.clone(), true);
    at.sends(&["findAndModify"; 2], "replace one that was granted later", |store| granted(store, &mut f));
}

#[test]
fn shared_steps() {
    let at = needs_server!(Counted::new());
    let by = soon();
    let store = &at.store;
    let (mut a, mut b) = (shared(store, "k"), shared(store, "k"));
    let old = at.one("first shared holder", |store| granted(store, &mut a));
    at.one("joining", |store| granted(store, &mut b));
    assert!(at.one("shared repeated", |store| acquired(store, &mut b)).1);
    let mut full = shared(store, "k");
    full.ask.max_holders = Some(2);
    at.one("full", |store| refused(store, &mut full));
    at.one("refused by shared", |store| refused(store, &mut exclusive(store, "k")));
    at.one("shared renew", |store| store.renew(&mut a, longer(2 * LEASE), &by).unwrap());
    let mut c = instead_of(store, "k", Mode::Shared, &old);
    at.one("shared transfer", |store| granted(store, &mut c));
    assert!(matches!(at.one("shared release", |s| s.release(&mut b, Purpose::Release, &by).unwrap()), Released::Done));
    assert!(matches!(at.one("give up shared", |s| s.release(&mut c, Purpose::GiveUp, &by).unwrap()), Released::Done));
}

#[test]
fn reading_and_swapping() {
    let at = needs_server!(Counted::new());
    at.sends(&["find", "hello"], "read a missing key", |store| get(store, "k"));
    granted(&at.store, &mut exclusive(&at.store, "k"));
    let seen = at.sends(&["find"], "read a key", |store| get(store, "k"));
    let group = Which::LockId("x".to_owned());
    at.sends(&["find"], "read a group", |store| store.read(&group, None, Consistency::Strong, &soon()).unwrap());
    let new = raised(&seen.record);
    let swapped = at.sends(&["update"], "swap", |store| store.swap(&seen, Some(&new), &soon()).unwrap());
    assert!(matches!(swapped, Swapped::Done));
    let seen = get(&at.store, "k");
    assert!(matches!(at.sends(&["delete"], "delete", |s| s.swap(&seen, None, &soon()).unwrap()), Swapped::Done));
}

/// A strong read of one key makes the server write into its oplog, and wait until the majority has that.
#[test]
fn who_waits_for_the_end_of_a_lease_reads_strongly_only_then() {
    let Counted { rows: _rows, store, commands } = needs_server!(Counted::new());
    let store: Arc<dyn Backend> = Arc::new(store);
    let leases = sent(|| builder_over(store.clone(), Clock::system()).connect()).leases("default");
    leases.claim("app", "app/0", Duration::from_secs(3)).unwrap();
    commands.lock().clear();
    leases.wait_until_expired("app", &CancelToken::new()).unwrap();
    let reads: Vec<Document> = commands.lock().iter().filter(|sent| sent.contains_key("find")).cloned().collect();
    let are_strong: Vec<bool> = reads.iter().map(|read| read.to_string().contains("linearizable")).collect();
    assert!(!are_strong[0] && are_strong.is_sorted() && are_strong.ends_with(&[true]), "{reads:?}");
}

#[test]
fn many_that_want_a_lock_leave_connections_to_heartbeats() {
    let rows = needs_server!(Rows::fresh());
    let (now, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (running, highest) = (now.clone(), most.clone());
    let options = rows.options_with(|settings| {
        settings.command_event_handler = Some(EventHandler::callback(move |event| match event {
            CommandEvent::Started(_) => {
                highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            }
            CommandEvent::Succeeded(_) | CommandEvent::Failed(_) => {
                running.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        }));
    });
    let store = open(options);
    granted(&store, &mut exclusive(&store, "k"));
    let at_once = |what: &(dyn Fn() + Sync)| {
        most.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| (0..40).for_each(|_| drop(scope.spawn(what))));
        most.load(Ordering::SeqCst)
    };
    // More connections are made for these calls, and a server that stalls for two seconds makes none of them.
    let read = |consistency| sent(|| store.read(&Which::Key("k".to_owned()), None, consistency, &soon()).map(drop));
    let asks = || {
        let answer = sent(|| store.acquire(&mut exclusive(&store, "k"), &soon()));
        assert!(matches!(answer, Acquired::Refused(_)), "{answer:?}");
    };
    let (looks, asks) = (at_once(&|| read(Consistency::Eventual)), at_once(&asks));
    assert!(looks <= 6 && asks <= 6, "{looks} looks and {asks} requests at once");
    println!("what is no waiter's: {} at once", at_once(&|| read(Consistency::Strong)));
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let at = needs_server!(Counted::new());
    let by = soon();
    let store = &at.store;
    let (mut a, mut s) = (exclusive(store, "k"), shared(store, "s"));
    let old = granted(store, &mut a);
    granted(store, &mut s);
    let before = at.oplog();
    assert!(before >= 2, "the grants are there");
    refused(store, &mut exclusive(store, "k"));
    refused(store, &mut shared(store, "k"));
    refused(store, &mut exclusive(store, "s"));
    assert!(acquired(store, &mut a).1 && acquired(store, &mut s).1);
    assert!(matches!(store.renew(&mut a, longer(Duration::from_secs(1)), &by).unwrap(), Renewed::Until { .. }));
    let mut wrong = instead_of(store, "k", Mode::Exclusive, &old);
    wrong.ask.instead_of = Some((old.grant.clone(), old.token + 1));
    refused(store, &mut wrong);
    assert!(matches!(store.renew(&mut exclusive(store, "k"), longer(LEASE), &by).unwrap(), Renewed::Lost(_)));
    assert!(matches!(
        store.release(&mut exclusive(store, "k"), Purpose::GiveUp, &by).unwrap(),
        Released::HeldByOther(_)
    ));
    assert!(matches!(store.release(&mut exclusive(store, "none"), Purpose::GiveUp, &by).unwrap(), Released::Free));
    assert_eq!(at.oplog(), before);
    // The count does notice a write.
    assert!(matches!(store.renew(&mut a, longer(2 * LEASE), &by).unwrap(), Renewed::Until { .. }));
    assert_eq!(at.oplog(), before + 1);
}
