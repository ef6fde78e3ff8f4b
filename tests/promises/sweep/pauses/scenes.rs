//! What leads a thread to each mark.

use std::time::Duration;

use leasehold::LockGuard;
use leasehold::internals::store::fault::{Call, Fault};

use super::{Got, LEASE, Room};
use crate::support::harness::{PATIENCE, millis};

/// One way to reach some marks.
pub struct Scene {
    pub name: &'static str,
    /// The marks that it reaches on every store.
    pub points: &'static [&'static str],
    /// The marks that it reaches only where the store wakes waiters.
    pub if_told: &'static [&'static str],
    /// Runs before any thread is stopped.
    pub prepare: fn(&Room),
    /// Runs on a thread of its own, the actor.
    pub act: fn(&Room) -> Got,
    /// Whether others free the key once the actor waits for it.
    pub is_freed: bool,
    /// Whether the thread that is stopped belongs to the library and is not the actor.
    pub is_of_library: bool,
    /// Whether it rightly leaves something that ends with its lease.
    pub leaves: bool,
}

impl Scene {
    const fn new(
        name: &'static str,
        points: &'static [&'static str],
        prepare: fn(&Room),
        act: fn(&Room) -> Got,
    ) -> Self {
        Scene { name, points, if_told: &[], prepare, act, is_freed: false, is_of_library: false, leaves: false }
    }
}

impl Scene {
    /// Whether another call of the client waits for the key.
    pub fn has_waiter(&self) -> bool {
        std::ptr::fn_addr_eq(self.prepare, held_and_waited_for as fn(&Room))
    }
}

const MINIMUM: Duration = Duration::from_secs(30);

pub fn all() -> Vec<Scene> {
    vec![
        Scene::new(
            "an acquire",
            &[
                "acquire.begins",
                "acquire.sent",
                "acquire.answered",
                "acquire.timed",
                "acquire.granted",
                "acquire.leaves",
                "hold.made",
                "hold.started",
            ],
            nothing,
            |room| Got::of(room.client().try_lock("k")),
        ),
        Scene::new("a long lease", &["lengthen.sent", "lengthen.answered", "acquire.granted"], nothing, |room| {
            Got::of(room.client().request("k").lease(2 * LEASE).try_lock())
        }),
        Scene::new("an answer that is lost", &["acquire.failed"], nothing, |room| {
            room.plan.next(Call::Acquire, Fault::ApplyThenFail);
            Got::of(room.client().try_lock("k"))
        }),
        Scene::new("an acquire that is given up", &["acquire.undoes", "undo.sent", "undo.answered"], nothing, |room| {
            room.plan.next(Call::Acquire, Fault::ApplyThenHang);
            let client = room.client();
            // The time of a call may be over before it sends anything.
            while room.plan.unmet() > 0 {
                assert!(client.try_lock_for("k", millis(20)).is_err(), "it has no answer, or is closed");
                if room.is_closed() {
                    break;
                }
            }
            Got::Nothing
        }),
        Scene {
            is_freed: true,
            if_told: &["wake.asked", "wake.watches", "wake.told", "wake.ends"],
            ..Scene::new(
                "a wait",
                &[
                    "acquire.refused",
                    "acquire.entered",
                    "acquire.turn",
                    "wait.sleeps",
                    "wait.woken",
                    "wait.looked",
                    "line.left",
                ],
                |room| room.held_by_others(&["k"]),
                |room| Got::won(room.client().request("k").cancel(&room.cancel).wait(PATIENCE).lock()),
            )
        },
        Scene {
            is_freed: true,
            ..Scene::new(
                "a wait for one of two",
                &["any.sleeps", "any.turn", "any.leaves", "line.left"],
                |room| room.held_by_others(&["k", "k2"]),
                |room| Got::won(room.client().request_any(["k", "k2"]).cancel(&room.cancel).wait(PATIENCE).lock()),
            )
        },
        Scene {
            is_of_library: true,
            ..Scene::new(
                "a heartbeat",
                &[
                    "watch.looks",
                    "watch.starts",
                    "heartbeat.begins",
                    "heartbeat.woken",
                    "renew.sent",
                    "renew.answered",
                    "renew.publishes",
                    "renew.published",
                ],
                held,
                a_second_passes,
            )
        },
        Scene {
            is_of_library: true,
            ..Scene::new("a heartbeat that fails", &["renew.failed"], held, |room| {
                room.plan.always(Call::Renew, Fault::FailBefore);
                a_second_passes(room)
            })
        },
        Scene {
            is_of_library: true,
            ..Scene::new("a loss", &["watch.expires", "loss.found", "loss.declared"], held, |room| {
                room.outlast();
                Got::Nothing
            })
        },
        Scene::new(
            "a release",
            &["release.begun", "release.stopped", "release.sent", "release.answered", "release.wakes", "release.ends"],
            held,
            released,
        ),
        Scene {
            leaves: true,
            ..Scene::new(
                "the release of a minimum hold",
                &["keep.looked", "release.ends"],
                |room| room.has(room.client().request("k").hold_at_least(MINIMUM).lock().expect("it is free")),
                released,
            )
        },
        Scene::new("a drop", &["drop.begun", "release.begun", "drop.released", "abandon.begun"], held, |room| {
            drop(room.taken());
            Got::Nothing
        }),
        Scene::new(
            "a hand-over",
            &["hand.chooses", "hand.reserved", "hand.sent", "hand.gives", "hand.given", "acquire.leaves", "line.left"],
            held_and_waited_for,
            released,
        ),
        Scene::new(
            "a hand-over whose answer is lost",
            &["hand.unanswered", "hand.undoes"],
            held_and_waited_for,
            |room| {
                room.plan.next(Call::Acquire, Fault::ApplyThenFail);
                released(room)
            },
        ),
        Scene {
            leaves: true,
            ..Scene::new("into data", &["data.begun", "data.stopped"], held, |room| {
                room.taken().map_or(Got::Nothing, |guard| Got::Lock(Box::new(guard.into_lock())))
            })
        },
        Scene {
            leaves: true,
            ..Scene::new(
                "an adoption",
                &["adopt.checked", "acquire.sent", "acquire.answered", "acquire.timed", "hold.made", "hold.started"],
                |room| *room.lock.lock() = Some(room.client().lock("k").expect("it is free").into_lock()),
                |room| {
                    let lock = room.lock.lock().take().expect("a lock");
                    Got::won(room.client().adopt(lock))
                },
            )
        },
        Scene::new(
            "a close",
            &["close.begun", "close.releases", "close.released", "close.waited", "close.ended"],
            held_and_waited_for,
            |room| {
                let closed = room.client().close();
                // A server can take longer than the shortest bound, and then the close says so.
                assert!(closed.is_ok() || room.is_hurried, "{closed:?}");
                Got::Nothing
            },
        ),
        Scene::new("the drop of a client", &["client.dropped"], held_and_let_go, |room| {
            let client = room.client.lock().take();
            drop(client);
            Got::Nothing
        }),
        Scene {
            leaves: true,
            ..Scene::new("a claim", &["change.decided"], nothing, |room| {
                // The outcome does not matter: a lease is data.
                let _ = room.client().leases("space").claim("name", "one", LEASE);
                Got::Nothing
            })
        },
    ]
}

fn nothing(_: &Room) {}

fn held(room: &Room) {
    room.has(room.client().lock("k").expect("it is free"));
}

fn held_and_let_go(room: &Room) {
    room.client().lock("k").expect("it is free").release().expect("a release");
}

fn held_and_waited_for(room: &Room) {
    held(room);
    room.begin_to_wait();
}

/// Then the heartbeats are sent at once, as after a suspend.
fn a_second_passes(room: &Room) -> Got {
    room.opened.advance(Duration::from_secs(1));
    Got::Nothing
}

fn released(room: &Room) -> Got {
    // By the time of its release the lock may have been lost.
    drop(room.taken().map(LockGuard::release));
    Got::Nothing
}
