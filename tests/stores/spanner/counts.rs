//! How many requests each step takes, and which.

use leasehold::internals::store::{Consistency, Purpose, Released, Renewed, Schema, Swapped};

use crate::spanner::*;
use crate::support::grpc::Grpc;
use crate::support::servers::spanner::aborts_at_random;
use crate::support::spanner::Database;

const READ: &str = "ExecuteStreamingSql";
const COMMIT: &str = "Commit";
const ROLLBACK: &str = "Rollback";

struct Counted {
    grpc: Grpc,
    store: Spanner,
}

impl Counted {
    fn new() -> Counted {
        let database = Database::fresh();
        let grpc = Grpc::new(&database.host);
        let store = Spanner::open(database.options_at(&grpc.host), &soon()).unwrap();
        Counted { grpc, store }
    }

    /// Runs `step`, which must send these requests.
    #[track_caller]
    fn takes<T>(&self, requests: &[&str], what: &str, step: impl FnOnce(&Spanner) -> T) -> T {
        self.grpc.restart();
        let answer = step(&self.store);
        let methods = self.grpc.methods();
        // An abort causes some more requests.
        assert!(methods == requests || (aborts_at_random() && methods.len() > requests.len()), "{what}: {methods:?}");
        answer
    }

    fn release(&self, requests: &[&str], what: &str, attempt: &mut Attempt, purpose: Purpose) -> Released {
        self.takes(requests, what, |store| store.release(attempt, purpose, &soon()).unwrap())
    }
}

#[test]
fn connecting() {
    needs_server!();
    let at = Counted::new();
    assert_eq!(at.grpc.methods(), ["CreateSession", READ], "the session and the dialect");
    at.takes(&[READ], "check", |store| store.schema(Schema::Check, &soon()).unwrap());
    at.takes(&[READ], "describe", |store| store.schema(Schema::Describe, &soon()).unwrap());
}

#[test]
fn steps_of_both_modes() {
    needs_server!();
    let at = Counted::new();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let key = mode.to_string();
        let (write, keep): (&[&str], &[&str]) = (&[READ, COMMIT], &[READ, ROLLBACK]);
        let mut a = attempt(&key, mode);
        let held = at.takes(write, "acquire", |store| granted(store, &mut a));
        at.takes(keep, "repeat", |store| granted(store, &mut a));
        at.takes(write, "renew", |store| store.renew(&mut a, RENEWAL, &soon()).unwrap());
        at.takes(keep, "refused", |store| refused(store, &mut exclusive(&key)));
        let mut next = attempt(&key, mode);
        next.ask.instead_of = Some((held.grant.clone(), held.token));
        at.takes(write, "transfer", |store| granted(store, &mut next));
        let lost = at.takes(keep, "lost", |store| store.renew(&mut a, RENEWAL, &soon()).unwrap());
        assert!(matches!(lost, Renewed::Lost(_)));
        assert!(matches!(
            at.release(keep, "release what another holds", &mut a, Purpose::Release),
            Released::HeldByOther(_)
        ));
        assert!(matches!(
            at.release(write, "give up what another holds", &mut a, Purpose::GiveUp),
            Released::HeldByOther(_)
        ));
        if mode == Mode::Exclusive {
            let mut replacing = exclusive(&key);
            replacing.ask.labels = next.ask.labels.clone();
            replacing.ask.replace_same_owner = true;
            at.takes(write, "replace", |store| granted(store, &mut replacing));
            next = replacing;
        } else {
            let mut other = attempt(&key, mode);
            at.takes(write, "join", |store| granted(store, &mut other));
            at.release(write, "leave", &mut other, Purpose::Release);
        }
        assert!(matches!(at.release(write, "release", &mut next, Purpose::Release), Released::Done));
        assert!(matches!(at.release(keep, "release what is free", &mut next, Purpose::Release), Released::Free));
        assert!(matches!(
            at.release(write, "give up what is free", &mut attempt(&key, mode), Purpose::GiveUp),
            Released::Free
        ));
    }
    let mut missing = exclusive("missing");
    assert!(matches!(
        at.release(&[READ, ROLLBACK], "release what is missing", &mut missing, Purpose::Release),
        Released::Free
    ));
    assert!(matches!(
        at.release(&[READ, COMMIT], "give up what is missing", &mut missing, Purpose::GiveUp),
        Released::Free
    ));
}

#[test]
fn reads_and_swaps() {
    needs_server!();
    let at = Counted::new();
    granted(&at.store, &mut exclusive("k"));
    let read = |which: Which| {
        at.takes(&[READ], "read", |store| store.read(&which, None, Consistency::Eventual, &soon()).unwrap())
    };
    let seen = read(Which::Key("k".to_owned())).records.remove(0);
    read(Which::Key("missing".to_owned()));
    read(Which::Prefix(String::new()));
    read(Which::LockId("id".to_owned()));
    let mut new = seen.record.clone();
    new.pins.insert("pin".to_owned());
    let swap = |requests: &[&str], new| at.takes(requests, "swap", |store| store.swap(&seen, new, &soon()).unwrap());
    assert!(matches!(swap(&[READ, COMMIT], Some(&new)), Swapped::Done));
    assert!(matches!(swap(&[READ, ROLLBACK], None), Swapped::Changed));
    let seen = get(&at.store, "k");
    at.takes(&[READ, COMMIT], "delete", |store| store.swap(&seen, None, &soon()).unwrap());
}
