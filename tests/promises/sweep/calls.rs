//! The public calls that reach the store.

use std::time::Instant;

use leasehold::internals::store::fault::Call;
use leasehold::{
    CancelToken, Election, ElectionBuilder, Filter, Leadership, Lock, LockAllGuard, LockClient, LockGuard, LockStatus,
    Result,
};

use super::{Act, Answer, KEYS, LEASE, Leaves, Room};
use crate::support::harness::{PATIENCE, millis};
use crate::support::wait::wait_until;

/// The namespace and the name of the lease.
pub const SPACE: &str = "space";
pub const NAME: &str = "name";
/// More than an acquire may ask for, so a renewal follows.
const LEAST: std::time::Duration = millis(90_000);

/// A public call that is swept.
pub struct Swept {
    /// The path as in `tests/public_api.txt`. A comma and the name of a case may follow.
    pub path: &'static str,
    pub leaves: Leaves,
    /// Whether it waits for others: then how often it asks depends on timing.
    pub waits: bool,
    /// Makes what the call needs, and returns the call itself.
    pub prepare: fn(&Room) -> Act,
}

fn held(guard: LockGuard) -> Answer {
    Answer { text: format!("{} {} held {}", guard.key(), guard.mode(), guard.is_held()), kept: Box::new(guard) }
}

fn some(guard: Option<LockGuard>) -> Answer {
    guard.map_or_else(|| text("nothing"), held)
}

fn all_held(guard: LockAllGuard) -> Answer {
    Answer { text: format!("{} held {}", guard.guards().len(), guard.is_held()), kept: Box::new(guard) }
}

fn all_or_none(guard: Option<LockAllGuard>) -> Answer {
    guard.map_or_else(|| text("nothing"), all_held)
}

/// The answer must not depend on which key it is.
fn any(guard: LockGuard) -> Answer {
    Answer { text: format!("held {}", guard.is_held()), kept: Box::new(guard) }
}

fn text(text: impl Into<String>) -> Answer {
    Answer { text: text.into(), kept: Box::new(()) }
}

fn data(lock: &Lock) -> Answer {
    text(format!("{} {}", lock.key(), lock.mode()))
}

fn keys(locks: &[LockStatus]) -> Answer {
    text(locks.iter().map(LockStatus::key).collect::<Vec<_>>().join(" "))
}

fn leads(leadership: Leadership) -> Answer {
    Answer { text: format!("leads {}", leadership.is_leader()), kept: Box::new(leadership) }
}

/// A call that needs nothing to exist beforehand.
macro_rules! plain {
    ($path:literal, $leaves:ident, $call:expr) => {{
        let prepare = |_: &Room| -> Act { Box::new($call) };
        Swept { path: $path, leaves: Leaves::$leaves, waits: false, prepare }
    }};
}

/// A call that gets what was prepared for it.
macro_rules! with {
    ($path:literal, $leaves:ident, $made:expr, $call:expr) => {{
        let prepare = |room: &Room| -> Act {
            let made = ($made)(room);
            Box::new(move |room: &Room| ($call)(room, made))
        };
        Swept { path: $path, leaves: Leaves::$leaves, waits: false, prepare }
    }};
}

fn guard(room: &Room) -> LockGuard {
    room.client.lock("k").expect("it is free")
}

fn guard_for_least(room: &Room) -> LockGuard {
    room.client.request("k").hold_at_least(LEAST).lock().expect("it is free")
}

fn guards_of_two(room: &Room) -> LockAllGuard {
    room.client.lock_all(["k", "k2"]).expect("they are free")
}

/// Like the client that meets faults, but with more time for its requests.
fn patient(room: &Room) -> LockClient {
    let builder = room.builder().lease(LEASE).request_timeout(PATIENCE).owner("one");
    builder.connect().expect("a client")
}

fn lock(room: &Room) -> Lock {
    patient(room).request("k").acquire().expect("it is free")
}

/// Two keys with one lock id.
fn group(room: &Room) {
    let client = patient(room);
    for key in ["k", "k2"] {
        client.request(key).lock_id("group").acquire().expect("it is free");
    }
}

fn expired(room: &Room) {
    room.others.request("k").acquire().expect("it is free");
    room.outlast();
}

/// Others hold the lock until a call waits for it.
fn contended(room: &Room) -> Act {
    let lock = room.others.request("k").acquire().expect("it is free");
    Box::new(move |room| {
        let (plan, others) = (room.plan.clone(), &room.others);
        let woken = plan.count(Call::Wake);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("somebody waits", || plan.count(Call::Wake) > woken);
                others.release(&lock).expect("it is released");
            });
            room.client.request("k").wait(PATIENCE).lock().map(held)
        })
    })
}

fn claimed(room: &Room) {
    room.others.leases(SPACE).claim(NAME, "holder", LEASE).expect("it is free");
}

fn overdue(room: &Room) {
    claimed(room);
    room.outlast();
}

fn election(room: &Room) -> ElectionBuilder {
    room.client.election("e").id("one").lease(LEASE)
}

fn standing(room: &Room) -> Election {
    election(room).build().expect("an election")
}

fn leading(room: &Room) -> Election {
    let election = standing(room);
    election.run().expect("it stands");
    wait_until("it leads", || election.is_leader());
    election
}

/// Trouble with the store does not end an election.
fn is_elected(election: Election) -> Result<Answer> {
    wait_until("it leads", || election.is_leader());
    Ok(Answer { text: "leads".to_owned(), kept: Box::new(election) })
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// All calls that are swept.
pub fn all() -> Vec<Swept> {
    let mut all = clients();
    all.extend(requests());
    all.extend(guards());
    all.extend(leases());
    all.extend(elections());
    all
}

fn clients() -> Vec<Swept> {
    vec![
        plain!("leasehold::ClientBuilder::connect", EitherAtOnce, |room| {
            let client = room.builder().create_schema(true).connect()?;
            Ok(Answer { text: String::new(), kept: Box::new(client) })
        }),
        plain!("leasehold::LockClient::create_schema", EitherAtOnce, |room| room
            .client
            .create_schema()
            .map(|_| text(""))),
        // The answer contains the table's name, which is another one in each room.
        plain!("leasehold::LockClient::schema", EitherAtOnce, |room| {
            room.client.schema().map(|schema| text(schema.is_empty().to_string()))
        }),
        // The answer itself says what got no answer.
        plain!("leasehold::LockClient::diagnose", EitherAtOnce, |room| room.client.diagnose().map(|_| text(""))),
        plain!("leasehold::LockClient::lock", AsBefore, |room| room.client.lock("k").map(held)),
        plain!("leasehold::LockClient::try_lock", AsBefore, |room| room.client.try_lock("k").map(some)),
        plain!("leasehold::LockClient::try_lock_for", AsBefore, |room| room
            .client
            .try_lock_for("k", PATIENCE)
            .map(some)),
        plain!("leasehold::LockClient::try_lock_until", AsBefore, |room| room
            .client
            .try_lock_until("k", soon())
            .map(some)),
        plain!("leasehold::LockClient::lock_shared", AsBefore, |room| room.client.lock_shared("k").map(held)),
        plain!("leasehold::LockClient::try_lock_shared", AsBefore, |room| room.client.try_lock_shared("k").map(some)),
        plain!("leasehold::LockClient::try_lock_shared_for", AsBefore, |room| {
            room.client.try_lock_shared_for("k", PATIENCE).map(some)
        }),
        plain!("leasehold::LockClient::try_lock_shared_until", AsBefore, |room| {
            room.client.try_lock_shared_until("k", soon()).map(some)
        }),
        plain!("leasehold::LockClient::lock_any", AsBefore, |room| room.client.lock_any(["k"]).map(held)),
        plain!("leasehold::LockClient::try_lock_any", AsBefore, |room| room.client.try_lock_any(["k"]).map(some)),
        plain!("leasehold::LockClient::with_lock", Either, |room| {
            let done = room.client.with_lock("k", |guard| guard.is_held().to_string());
            Ok(text(done.map_err(leasehold::Error::from)?))
        }),
        with!("leasehold::LockClient::adopt", OrNothing, lock, |room: &Room, lock| room.client.adopt(lock).map(held)),
        with!("leasehold::LockClient::heartbeat", Either, lock, |room: &Room, lock: Lock| {
            room.client.heartbeat(&lock, LEASE).map(|lock| data(&lock))
        }),
        with!("leasehold::LockClient::release", Either, lock, |room: &Room, lock: Lock| {
            room.client.release(&lock).map(|()| text(""))
        }),
        with!("leasehold::LockClient::get", Either, lock, |room: &Room, _| {
            Ok(keys(room.client.get("k")?.expect("it is there").holders()))
        }),
        with!("leasehold::LockClient::list", Either, group, |room: &Room, ()| Ok(keys(
            &room.client.list(&Filter::new())?
        ))),
        with!("leasehold::LockClient::renew", Either, group, |room: &Room, ()| Ok(keys(
            &room.client.renew("group", LEASE)?
        ))),
        with!("leasehold::LockClient::unlock", Part, group, |room: &Room, ()| Ok(keys(&room.client.unlock("group")?))),
        with!("leasehold::LockClient::unlock_key", Either, group, |room: &Room, ()| {
            Ok(keys(&room.client.unlock_key("k", "group")?))
        }),
        with!("leasehold::LockClient::force_release", Either, group, |room: &Room, ()| {
            Ok(keys(&room.client.force_release("k")?))
        }),
        with!("leasehold::LockClient::purge", AnotherTime, expired, |room: &Room, ()| {
            room.client.purge(millis(0)).map(|_| text(""))
        }),
        with!("leasehold::LockClient::purge_preview", Either, expired, |room: &Room, ()| {
            Ok(keys(&room.client.purge_preview(millis(0))?.freed))
        }),
        with!("leasehold::LockClient::purge_pages", AnotherTime, expired, |room: &Room, ()| {
            room.client.purge_pages(millis(0)).collect::<Result<Vec<_>>>().map(|_| text(""))
        }),
        with!("leasehold::LockClient::close", Either, guard, |room: &Room, guard| {
            room.client.close().map(|()| Answer { text: String::new(), kept: Box::new(guard) })
        }),
    ]
}

fn requests() -> Vec<Swept> {
    let waits = |path, prepare| Swept { path, leaves: Leaves::AsBefore, waits: true, prepare };
    vec![
        plain!("leasehold::LockRequest::lock", AsBefore, |room| room
            .client
            .request("k")
            .wait(PATIENCE)
            .lock()
            .map(held)),
        waits("leasehold::LockRequest::lock, contended", contended),
        // A lease of more than a minute needs a renewal.
        plain!("leasehold::LockRequest::lock, for long", AsBefore, |room| {
            room.client.request("k").lease(2 * LEASE).lock().map(held)
        }),
        plain!("leasehold::LockRequest::lock_with_progress", AsBefore, |room| {
            room.client.request("k").lock_with_progress(|_| {}).map(held)
        }),
        plain!("leasehold::LockRequest::try_lock", AsBefore, |room| room
            .client
            .request("k")
            .max_holders(2)
            .try_lock()
            .map(some)),
        plain!("leasehold::LockRequest::with_lock", Either, |room| {
            let done = room.client.request("k").wait(PATIENCE).with_lock(|guard| guard.is_held().to_string());
            Ok(text(done.map_err(leasehold::Error::from)?))
        }),
        plain!("leasehold::LockRequest::try_lock_for", AsBefore, |room| {
            room.client.request("k").try_lock_for(PATIENCE).map(some)
        }),
        plain!("leasehold::LockRequest::try_lock_until", AsBefore, |room| {
            room.client.request("k").try_lock_until(soon()).map(some)
        }),
        plain!("leasehold::LockRequest::acquire", AsBefore, |room| room
            .client
            .request("k")
            .acquire()
            .map(|lock| data(&lock))),
        with!("leasehold::LockRequest::adopt", OrNothing, lock, |room: &Room, lock| {
            room.client.request("k").adopt(lock).map(held)
        }),
        plain!("leasehold::LockAnyRequest::lock", AsBefore, |room| room
            .client
            .request_any(KEYS)
            .in_order()
            .lock()
            .map(any)),
        plain!("leasehold::LockAnyRequest::lock_with_progress", AsBefore, |room| {
            room.client.request_any(["k"]).lock_with_progress(|_| {}).map(held)
        }),
        plain!("leasehold::LockAnyRequest::try_lock", AsBefore, |room| room
            .client
            .request_any(["k"])
            .try_lock()
            .map(some)),
        plain!("leasehold::LockAnyRequest::try_lock_for", AsBefore, |room| {
            room.client.request_any(["k"]).try_lock_for(PATIENCE).map(some)
        }),
        plain!("leasehold::LockAnyRequest::try_lock_until", AsBefore, |room| {
            room.client.request_any(["k"]).try_lock_until(soon()).map(some)
        }),
        plain!("leasehold::LockAnyRequest::acquire", AsBefore, |room| {
            room.client.request_any(["k"]).acquire().map(|lock| data(&lock))
        }),
        plain!("leasehold::LockClient::lock_all", AsBefore, |room| room.client.lock_all(["k2", "k"]).map(all_held)),
        plain!("leasehold::LockClient::try_lock_all", AsBefore, |room| {
            room.client.try_lock_all(["k2", "k"]).map(all_or_none)
        }),
        plain!("leasehold::LockAllRequest::lock", AsBefore, |room| {
            room.client.request_all(["k2", "k"]).wait(PATIENCE).lock().map(all_held)
        }),
        plain!("leasehold::LockAllRequest::try_lock", AsBefore, |room| {
            room.client.request_all(["k2", "k"]).try_lock().map(all_or_none)
        }),
        plain!("leasehold::LockAllRequest::try_lock_for", AsBefore, |room| {
            room.client.request_all(["k2", "k"]).try_lock_for(PATIENCE).map(all_or_none)
        }),
    ]
}

fn guards() -> Vec<Swept> {
    vec![
        with!("leasehold::LockGuard::release", Either, guard, |_: &Room, guard: LockGuard| Ok(guard
            .release()
            .map(|()| text(""))?)),
        with!("leasehold::LockAllGuard::release", Either, guards_of_two, |_: &Room, guard: LockAllGuard| {
            guard.release().map(|()| text(""))
        }),
        with!("leasehold::LockGuard, dropped", AnotherTime, guard, |_: &Room, guard| {
            drop(guard);
            Ok(text(""))
        }),
        plain!("leasehold::LockRequest::lock, for a least time", AsBefore, |room| {
            room.client.request("k").hold_at_least(LEAST).lock().map(held)
        }),
        with!(
            "leasehold::LockGuard::release, before its least time",
            Either,
            guard_for_least,
            |_: &Room, guard: LockGuard| { Ok(guard.release().map(|()| text(""))?) }
        ),
        with!(
            "leasehold::LockGuard, dropped before its least time",
            AnotherTime,
            guard_for_least,
            |_: &Room, guard| {
                drop(guard);
                Ok(text(""))
            }
        ),
        with!("leasehold::LockGuard::hold_at_least", EitherAtOnce, guard, |_: &Room, guard: LockGuard| {
            match guard.hold_at_least(LEAST) {
                Ok(()) => Ok(held(guard)),
                // A failed call must leave the lock held.
                Err(error) => Err((error, guard.ensure_held().expect("it is held"), guard.into_lock()).0),
            }
        }),
        with!("leasehold::LockGuard::ensure_held_for", EitherAtOnce, guard, |room: &Room, guard: LockGuard| {
            // What is left right after a renewal, minus the time that a request may take.
            let least = LEASE.mul_f64(0.9) - 2 * room.timeout;
            wait_until("some of it is over", || guard.remaining() < least);
            guard.ensure_held_for(least)?;
            Ok(held(guard))
        }),
    ]
}

fn leases() -> Vec<Swept> {
    vec![
        plain!("leasehold::Leases::claim", Either, |room| {
            room.client.leases(SPACE).claim(NAME, "holder", LEASE).map(|lease| text(lease.holder()))
        }),
        with!("leasehold::Leases::extend", Either, claimed, |room: &Room, ()| {
            room.client.leases(SPACE).extend(NAME, "holder", 2 * LEASE).map(|lease| text(lease.holder()))
        }),
        with!("leasehold::Leases::expire", Either, overdue, |room: &Room, ()| {
            room.client.leases(SPACE).expire(NAME).map(|()| text(""))
        }),
        with!("leasehold::Leases::revoke", Either, claimed, |room: &Room, ()| {
            room.client.leases(SPACE).revoke(NAME, "holder").map(|()| text(""))
        }),
        with!("leasehold::Leases::get", Either, claimed, |room: &Room, ()| {
            let lease = room.client.leases(SPACE).get(NAME)?;
            Ok(text(lease.expect("it is there").holder()))
        }),
        with!("leasehold::Leases::list", Either, claimed, |room: &Room, ()| {
            room.client.leases(SPACE).list().map(|leases| text(leases.len().to_string()))
        }),
        with!("leasehold::Leases::refresh", Either, claimed, |room: &Room, ()| {
            let mut lease = room.others.leases(SPACE).get(NAME)?.expect("it is there");
            room.client.leases(SPACE).refresh(&mut lease).map(|()| text(lease.holder()))
        }),
        with!("leasehold::Leases::pin", Either, claimed, |room: &Room, ()| {
            room.client.leases(SPACE).pin(NAME, "who").map(|()| text(""))
        }),
        with!(
            "leasehold::Leases::unpin",
            Either,
            |room: &Room| room.others.leases(SPACE).pin(NAME, "who").expect("it is pinned"),
            |room: &Room, ()| room.client.leases(SPACE).unpin(NAME, "who").map(|()| text(""))
        ),
        plain!("leasehold::Leases::pinned_by", Either, |room| {
            room.client.leases(SPACE).pinned_by(NAME).map(|pins| text(pins.len().to_string()))
        }),
        with!("leasehold::Leases::wait_until_expired", Either, overdue, |room: &Room, ()| {
            room.client.leases(SPACE).wait_until_expired(NAME, &CancelToken::new()).map(|()| text(""))
        }),
        with!("leasehold::Leases::keep", Either, claimed, |room: &Room, ()| {
            let keeper = room.client.leases(SPACE).keep(NAME, "holder", LEASE)?;
            Ok(Answer { text: keeper.is_held().to_string(), kept: Box::new(keeper) })
        }),
    ]
}

fn elections() -> Vec<Swept> {
    let waits = |swept: Swept| Swept { waits: true, ..swept };
    vec![
        with!("leasehold::Election::campaign", AsBefore, standing, |_: &Room, election: Election| election
            .campaign()
            .map(leads)),
        with!("leasehold::Election::campaign_for", AsBefore, standing, |_: &Room, election: Election| {
            election.campaign_for(PATIENCE).map(leads)
        }),
        waits(with!("leasehold::Election::run", AsBefore, standing, |_: &Room, election: Election| {
            election.run()?;
            is_elected(election)
        })),
        waits(with!("leasehold::Election::lead", AsBefore, standing, |_: &Room, election: Election| {
            election.lead(|leadership| drop(leadership.loss().wait()))?;
            is_elected(election)
        })),
        waits(with!("leasehold::Election::try_lead", AsBefore, standing, |_: &Room, election: Election| {
            election.try_lead(|leadership| {
                leadership.loss().wait();
                Ok::<(), String>(())
            })?;
            is_elected(election)
        })),
        with!("leasehold::Election::leader", OrNothing, leading, |_: &Room, election: Election| {
            let leader = election.leader()?.expect("it leads");
            Ok(Answer { text: leader.id().to_owned(), kept: Box::new(election) })
        }),
        with!("leasehold::Election::stop", Either, leading, |_: &Room, election: Election| election
            .stop()
            .map(|()| text(""))),
        with!("leasehold::Election, dropped", AnotherTime, leading, |_: &Room, election: Election| {
            drop(election);
            Ok(text(""))
        }),
        with!(
            "leasehold::Leadership::resign",
            Either,
            |room: &Room| standing(room).campaign().expect("it is elected"),
            |_: &Room, leadership: Leadership| leadership.resign().map(|()| text(""))
        ),
    ]
}
