//! A server that accepts connections but answers nothing, like a stopped one: every call, drop, `close` and `connect`
//! ends within its bound.

use std::time::{Duration, Instant};

use leasehold::{CancelToken, Filter};

use crate::remote::Remote;
use crate::support::harness::{PATIENCE, connected, millis, sent, with_slack, within, within_among_many};
use crate::support::lateness::AMONG_MANY;
use crate::support::proxy::Flow;

/// The time of one request.
const REQUEST: Duration = millis(3000);
/// The bound of one drop.
const DROP: Duration = millis(3200);
/// Long enough that no heartbeat comes by itself, and that no bound is met because a lease ends.
const LEASE: Duration = Duration::from_secs(600);

type Call<'a> = (&'static str, Duration, Box<dyn FnOnce() + Send + 'a>);

fn no_call_outlives_its_bound(remote: &Remote) {
    let connect = || {
        let builder = remote.behind().lease(LEASE).request_timeout(REQUEST).drop_timeout(DROP);
        builder.connect()
    };
    let client = sent(connect);
    // The preparations have more time than what is tested, because a server may stall.
    let before = connected(|| remote.direct().lease(LEASE).request_timeout(PATIENCE));
    let guard = |key: &str| client.lock(key).expect("a lock");
    let data = |key: &str| before.request(key).lock_id(format!("id of {key}")).acquire().expect("a lock");
    let (dropped, released, kept) = (guard("dropped"), guard("released"), guard("kept"));
    let (failing, closing) = (guard("failing"), sent(connect));
    let closed = closing.lock("closed").expect("a lock");
    let (renewed, freed, adopted) = (data("renewed"), data("freed"), data("adopted"));
    let leases = client.leases("space");
    let claim = |name: &str| before.leases("space").claim(name, "holder", LEASE).expect("a lease");
    let mut lease = claim("known");
    claim("keeper");
    let keeper = sent(|| leases.keep("keeper", "holder", LEASE));
    let _waited = before.request("others").acquire().expect("a lock");

    remote.proxy.flow(Flow::Hold, Flow::Hold);
    let never = CancelToken::new();
    let mut calls: Vec<Call> = Vec::new();
    macro_rules! calls {
        ($bound:expr; $($what:literal => $call:expr),* $(,)?) => {
            $(calls.push(($what, $bound, Box::new(|| { let _done = $call; })));)*
        };
    }
    calls! { REQUEST;
        "try_lock" => client.try_lock("a"),
        "try_lock_shared" => client.try_lock_shared("b"),
        "acquire" => client.request("c").acquire(),
        "try_lock_any" => client.try_lock_any(["d", "e"]),
        "adopt" => client.adopt(adopted),
        "heartbeat" => client.heartbeat(&renewed, LEASE),
        "release as data" => client.release(&freed),
        "get" => client.get("kept"),
        "list" => client.list(&Filter::new()),
        "renew by lock id" => client.renew("id of renewed", LEASE),
        "unlock by lock id" => client.unlock("id of freed"),
        "unlock_key" => client.unlock_key("kept", "id"),
        "force_release" => client.force_release("others"),
        "purge" => client.purge(Duration::ZERO),
        "purge_preview" => client.purge_preview(Duration::ZERO),
        "schema" => client.schema(),
        "create_schema" => client.create_schema(),
        "claim" => leases.claim("new", "holder", LEASE),
        "extend" => leases.extend("known", "holder", LEASE),
        "expire" => leases.expire("known"),
        "revoke" => leases.revoke("known", "holder"),
        "lease get" => leases.get("known"),
        "lease list" => leases.list(),
        "refresh" => leases.refresh(&mut lease),
        "pin" => leases.pin("known", "entity"),
        "unpin" => leases.unpin("known", "entity"),
        "pinned_by" => leases.pinned_by("known"),
        "keep" => leases.keep("other", "holder", LEASE),
        "connect" => connect(),
    }
    calls! { 2 * REQUEST;
        "try_lock_for" => client.try_lock_for("f", 2 * REQUEST),
        "try_lock_until" => client.try_lock_until("g", Instant::now() + 2 * REQUEST),
        "try_lock_shared_for" => client.try_lock_shared_for("h", 2 * REQUEST),
        "wait" => client.request("others").wait(2 * REQUEST).cancel(&never).lock(),
        "wait for any" => client.request_any(["i", "others"]).wait(2 * REQUEST).lock(),
        "diagnose" => client.diagnose(),
    }
    calls! { DROP;
        "drop" => dropped,
        "release" => released.release().map_err(|failed| drop(failed.into_guard().into_lock())),
        "the keeper's drop" => keeper,
        "close" => closing.close(),
    }
    let took = std::thread::scope(|scope| {
        let threads: Vec<_> = calls
            .into_iter()
            .map(|(what, bound, call)| {
                scope.spawn(move || {
                    let started = Instant::now();
                    // It asks four things, one after the other, and each of these ends like a call.
                    let times = if what == "diagnose" { 4 } else { 1 };
                    with_slack(times * AMONG_MANY, what, bound, call);
                    (started.elapsed().saturating_sub(bound), what)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let failed = took.iter().filter(|took| took.is_err()).count();
    println!("the longest over its bound: {:?}", took.iter().flatten().max());
    assert_eq!(failed, 0, "calls outlived their bounds, see above");
    assert!(kept.is_held(), "its lease is long");

    within("the close of a client with guards", DROP, || drop(client.close()));
    for guard in [failing, kept, closed] {
        within("the drop of a guard of a closed client", DROP, || drop(guard));
    }
    // Those of two clients.
    within_among_many("the drops of clients", DROP, || drop((client, closing, leases)));
    remote.proxy.flow(Flow::Pass, Flow::Pass);
}

crate::remote::on_each_remote! { together: no_call_outlives_its_bound }
