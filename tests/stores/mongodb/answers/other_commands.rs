//! The same for the commands that write no lock: what the server says of itself, lists, the making of indexes, the
//! change stream. The caller learns what it may do, nothing is granted meanwhile, and a repeat is answered as if
//! nothing had happened.

use std::iter::from_fn;
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use leasehold::ErrorKind;
use leasehold::internals::sys::clock::Clock;

use super::*;
use crate::mongodb::waking::{LONG, names, wake, watch};
use crate::support::bench::builder_over;
use crate::support::contract::release;
use crate::support::mongodb::{Rows, host};
use crate::support::proxy::{Mode as Network, Proxy, Rule};
use crate::support::servers::mongod;

/// The kind of the error, and whether the call may be repeated.
type Says = (ErrorKind, bool);
const AGAIN: Says = (ErrorKind::Store, true);
const DENIED: Says = (ErrorKind::Permission, false);
const REFUSED: Says = (ErrorKind::Store, false);

/// The code, whether the driver by itself repeats a read once, and what the caller is told: NotWritablePrimary,
/// InterruptedDueToReplStateChange, InterruptedAtShutdown, Interrupted, MaxTimeMSExpired, ExceededTimeLimit,
/// HostUnreachable, IngressRequestRateLimitExceeded, Unauthorized. The last two codes are not MongoDB's: too many
/// requests, from servers that are refused at connect, and a code that no server uses.
const CODES: [(u16, bool, Says); 11] = [
    (10107, true, AGAIN),
    (11602, true, AGAIN),
    (11600, true, AGAIN),
    (11601, false, AGAIN),
    (50, false, AGAIN),
    (262, true, AGAIN),
    (6, true, AGAIN),
    (462, false, AGAIN),
    (13, false, DENIED),
    (16500, false, REFUSED),
    (9999, false, REFUSED),
];

fn error(code: u16) -> Document {
    doc! { "errorCode": i32::from(code), "errorLabels": [] }
}

#[track_caller]
fn must_say(answer: leasehold::Result<()>, says: Says, name: &str) {
    let error = answer.expect_err(name);
    assert_eq!((error.kind(), error.is_retryable()), says, "{name}: {error:?}");
}

/// What is reported next; `None` once nobody reports any more.
fn next(told: &Receiver<String>) -> Option<String> {
    let next = told.recv_timeout(LONG);
    assert_ne!(next, Err(RecvTimeoutError::Timeout));
    next.ok()
}

/// The server says in a `hello` what kind of server it is, and also its time, where no document has it.
#[test]
fn every_hello_survives_every_answer_of_a_server_in_trouble() {
    let rows = needs_server!(Rows::fresh());
    let proxy = Proxy::mongodb(&host(&mongod().unwrap()));
    let options = || rows.options_at(&format!("mongodb://{}/?directConnection=true{POLL}", proxy.addr()));
    let (store, beside) = (open(options()), rows.open());
    let other = granted(&beside, &mut exclusive(&beside, "other"));
    let opens = || Mongodb::open(options(), &soon()).map(drop);
    let looks = || store.read(&Which::Key("none".to_owned()), None, Consistency::Strong, &soon()).map(drop);
    let renews = || -> leasehold::Result<()> {
        let answer = store.renew(&mut exclusive(&store, "none"), renewal(Lease::For(LEASE)), &soon())?;
        assert!(matches!(answer, Renewed::Lost(_)), "{answer:?}");
        Ok(())
    };
    let transfers = || -> leasehold::Result<()> {
        let answer = store.acquire(&mut instead_of(&store, "none", Mode::Exclusive, &other), &soon())?;
        assert!(matches!(answer, Acquired::Refused(_)), "{answer:?}");
        Ok(())
    };
    let calls: [(&str, &dyn Fn() -> leasehold::Result<()>); 4] =
        [("opens", &opens), ("looks", &looks), ("renews", &renews), ("transfers", &transfers)];
    for (code, _, says) in CODES {
        for (what, call) in calls {
            let mut answer = Ok(());
            // On a busy machine the call may end before it asks.
            wait_until("it asks", || {
                // A `hello` that the driver sends for itself has no session.
                proxy.add(Rule::next(1, Network::Say(code, "made by the test")).on("hello").on("lsid"));
                answer = call();
                proxy.clear().is_empty()
            });
            must_say(answer, says, &format!("hello {what} {code}"));
            sent(call);
        }
    }
    assert!(!get(&beside, "none").record.exists());
}

/// If a client has not yet seen the unique index, its acquire looks for it, as `create_schema` does.
#[test]
fn every_list_survives_every_answer_of_a_server_in_trouble() {
    type Call = fn(&Mongodb, &str) -> leasehold::Result<()>;
    let Some(at) = At::start() else { return };
    let [_, beside] = at.two_stores();
    let calls: [(&str, Call); 2] = [
        ("acquire", |store, key| store.acquire(&mut exclusive(store, key), &soon()).map(drop)),
        ("create", |store, _| store.schema(Schema::Create, &soon()).map(drop)),
    ];
    for command in ["listCollections", "listIndexes"] {
        for (code, _, says) in CODES {
            for (what, call) in calls {
                let key = format!("{command} {what} {code}");
                let store = at.open_with(POLL);
                let answer = at.under(&key, (command, 1), error(code), |fault| {
                    fault();
                    call(&store, &key)
                });
                if says == DENIED {
                    // A user that may not look is believed.
                    answer.unwrap();
                } else {
                    must_say(answer, says, &key);
                    assert!(!get(&beside, &key).record.exists(), "{key}");
                    sent(|| call(&store, &key));
                }
                assert_eq!(holders(&beside, &key).len(), usize::from(what == "acquire"), "{key}");
            }
        }
    }
}

#[test]
fn every_making_of_indexes_survives_every_answer_of_a_server_in_trouble() {
    let Some(at) = At::start() else { return };
    let [_, beside] = at.two_stores();
    let before = CODES.map(|(code, _, says)| {
        // This is treated as if another index was in the way.
        let says = if says == REFUSED { (ErrorKind::Schema, false) } else { says };
        (i32::from(code), error(code), says)
    });
    let after = after().into_iter().map(|(code, answer)| (code, answer, AGAIN));
    for (code, answer, says) in before.into_iter().chain(after) {
        let is_made = answer.contains_key("writeConcernError");
        let key = format!("createIndexes {code} {is_made}");
        at.raw().drop().run().unwrap();
        let store = at.open_with(POLL);
        let answer = at.under(&key, ("createIndexes", 1), answer, |fault| {
            fault();
            store.schema(Schema::Create, &soon()).map(drop)
        });
        must_say(answer, says, &key);
        let mut a = exclusive(&store, &key);
        if !is_made {
            let error = store.acquire(&mut a, &soon()).unwrap_err();
            // The driver may still be looking for a primary.
            assert!(error.kind() == ErrorKind::Schema || error.is_retryable(), "{key}: {error:?}");
        }
        let said = sent(|| store.schema(Schema::Create, &soon()));
        let end = if is_made { "is there, with its indexes" } else { "was made, with its indexes" };
        assert!(said.ends_with(end), "{key}: {said}");
        wait_until("it is granted", || matches!(store.acquire(&mut a, &soon()), Ok(Acquired::Granted { .. })));
        assert_eq!(holders(&beside, &key).len(), 1, "{key}");
    }
}

#[test]
fn every_opening_of_a_stream_survives_every_answer_of_a_server_in_trouble() {
    let Some(at) = At::start() else { return };
    let [store, beside] = at.two_stores();
    for (code, is_repeated, says) in CODES {
        // If the driver repeats the command, the caller only learns of the error when it comes again.
        for is_told in [false, true].into_iter().skip(usize::from(!is_repeated)) {
            let key = format!("aggregate {code} {is_told}");
            let mut held = exclusive(&beside, &key);
            granted(&beside, &mut held);
            let times = 1 + i32::from(is_repeated && is_told);
            let told = at.under(&key, ("aggregate", times), error(code), |fault| {
                let last = wake(&store, &[&key]);
                fault();
                if is_told {
                    let (to, ended) = crossbeam_channel::unbounded();
                    let answer = store.wake(std::slice::from_ref(&key), to, &soon());
                    if says == DENIED {
                        assert!(!answer.unwrap(), "{key}: it polls");
                    } else {
                        must_say(answer.map(drop), says, &key);
                    }
                    // Receivers that rely on either stream learn that nobody reports any more.
                    for ended in [&last, &ended] {
                        while next(ended).is_some() {}
                    }
                }
                watch(&store, &[&key])
            });
            release(&beside, &mut held);
            assert_eq!(next(&told).as_ref(), Some(&key));
        }
    }
}

/// Returns whether a stream whose next request gets this answer goes on, on the same channel.
fn goes_on(at: &At, [store, beside]: &[Mongodb; 2], name: &str, answer: Document) -> bool {
    let keys = ["1", "2"].map(|nth| format!("{name} {nth}"));
    let mut held = keys.each_ref().map(|key| exclusive(beside, key));
    held.iter_mut().for_each(|a| drop(granted(beside, a)));
    at.under(name, ("getMore", 1), answer, |fault| {
        let told = watch(store, &keys.each_ref().map(String::as_str));
        fault();
        // The first release is reported by the answer to the request that is already on its way.
        held.iter_mut().all(|a| {
            release(beside, a);
            from_fn(|| next(&told)).any(|key| key == a.key)
        })
    })
}

#[test]
fn every_stream_survives_every_answer_of_a_server_in_trouble() {
    let Some(at) = At::start() else { return };
    let stores = at.two_stores();
    // CursorNotFound: the driver opens the stream again by itself, even without a label.
    let mut cases = vec![(43, true, vec![])];
    for (code, ..) in CODES {
        cases.extend([(code, false, vec![]), (code, true, vec!["ResumableChangeStreamError"])]);
    }
    for (code, is_resumed, labels) in cases {
        let name = format!("getMore {code} {labels:?}");
        let answer = doc! { "errorCode": i32::from(code), "errorLabels": labels };
        // On a machine that stalls the driver may find no primary in its three seconds.
        let tries = if is_resumed { 3 } else { 1 };
        let goes_on = (0..tries).any(|nth| goes_on(&at, &stores, &format!("{name} {nth}"), answer.clone()));
        assert_eq!(goes_on, is_resumed, "{name}");
    }
}

/// A waiter that polls asks for the stream again.
#[test]
fn a_waiter_is_woken_again_after_every_trouble_of_its_stream() {
    let Some(at) = At::start() else { return };
    let [_, beside] = at.two_stores();
    let beside: Arc<dyn Backend> = Arc::new(beside);
    let holder = builder_over(beside.clone(), Clock::system()).connect().unwrap();
    // One code of each kind. After a denial it is asked for again only minutes later: see `deaf`.
    for (code, is_repeated, _) in CODES.into_iter().filter(|(code, ..)| [10107, 50, 9999].contains(code)) {
        let key = format!("waiter {code}");
        let (store, commands) = at.open_listening();
        let waiter = builder_over(Arc::new(store), Clock::system()).connect().unwrap();
        let opened = || names(&commands).iter().filter(|name| *name == "aggregate").count();
        let last = |command: &str| names(&commands).iter().rposition(|name| name == command);
        // After more than `count` streams, another one was opened, and it is asked for news.
        let is_woken_after = |count: usize| opened() > count && last("getMore") > last("aggregate");
        std::thread::scope(|scope| {
            let held = holder.lock(&key).unwrap();
            let token = held.fencing_token();
            let times = 1 + u8::from(is_repeated);
            let waiting = at.under(&key, ("aggregate", times.into()), error(code), |fault| {
                fault();
                let waiting = scope.spawn(|| waiter.try_lock_for(&key, 3 * LONG).unwrap().expect("it is released"));
                wait_until("it is woken again", || is_woken_after(times.into()));
                waiting
            });
            let before = opened();
            at.under(&key, ("getMore", 1), error(code), |fault| {
                fault();
                // A change that is reported makes the stream ask for more.
                let change = doc! { "$set": { "changed": i32::from(code) } };
                at.raw().update_one(doc! { "resource": &key }, change).run().unwrap();
                wait_until("it is woken again", || is_woken_after(before));
            });
            held.release().unwrap();
            let taken = waiting.join().unwrap();
            assert!(taken.is_held() && taken.fencing_token() > token, "{key}");
            assert_eq!(holders(&*beside, &key).len(), 1, "{key}");
        });
    }
}
