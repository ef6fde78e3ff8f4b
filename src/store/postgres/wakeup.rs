//! Wakes waiters when a key may have become free: `LISTEN` on one connection for all keys that somebody waits for, and a
//! `NOTIFY` of the key's hash in every transaction that removes a holder.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};

use super::Postgres;
use super::error::PostgresError;
use super::send::{Connected, Lane, Statement, Went};
use super::statements::{CHANNEL, hash};
use crate::store::failure::Fate;
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// How long a new listener waits for a notification that another connection of the client sends, each time.
const HEARD: Duration = Duration::from_secs(1);
/// How many times it tries that: a server or a network that stood still for a moment is no pooler.
const TOLD: usize = 2;

/// Where to report, and the keys by their hashes.
struct Told {
    names: HashMap<String, Vec<String>>,
    to: Sender<String>,
}

/// What the listener's connection reports; `None` once the connection has ended: then `to` is dropped.
type Watched = Rc<RefCell<Option<Told>>>;

/// The connection that listens, on the driver's thread.
#[derive(Default)]
pub(super) struct Waking {
    listening: RefCell<Option<(Connected, Watched)>>,
    /// The last call has answered that keys are reported.
    tells: Cell<bool>,
    /// The log has said that no notification arrives.
    said_deaf: Cell<bool>,
}

impl Waking {
    /// Ends the connection, so that waiters poll until there is another.
    pub fn end(&self) {
        self.listening.take();
    }
}

/// Drops `to` with the connection's task, so that waiters poll.
struct Until(Watched);

impl Drop for Until {
    fn drop(&mut self) {
        self.0.borrow_mut().take();
    }
}

impl Postgres {
    pub(super) fn wake_keys(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool, PostgresError> {
        if self.pooled {
            return Ok(false);
        }
        let (keys, hash) = (keys.to_vec(), hash(&self.table.quoted));
        // Some time of the call is left to report that nothing came. But a server that has too little time to answer
        // must not be taken for one that reports nothing.
        let heard_within = (by.remaining() / 4).clamp(HEARD / 4, HEARD);
        let answer = self.driver.run(by, move |owned| async move {
            let goes_on = owned.waking.tells.take();
            if keys.is_empty() {
                owned.waking.end();
                return Ok(true);
            }
            let standing =
                owned.waking.listening.borrow_mut().take().filter(|(connected, _)| !connected.client.is_closed());
            let mut is_new = false;
            let (connected, watched) = match standing {
                Some(standing) => standing,
                None => {
                    is_new = true;
                    let watched = Watched::default();
                    let until = Until(watched.clone());
                    let heard = Rc::<Notify>::default();
                    let hears = heard.clone();
                    let hear = move |hash: &str| {
                        heard.notify_one();
                        if let Some(told) = &*until.0.borrow() {
                            told.names.get(hash).into_iter().flatten().for_each(|key| drop(told.to.send(key.clone())));
                        }
                    };
                    let (connected, _) = owned.connect(&Cell::default(), hear).await?;
                    let listen = connected.client.batch_execute(&format!("LISTEN {CHANNEL}")).await;
                    listen.map_err(|error| owned.classify(&error))?;
                    // A pooler that gives each transaction another session accepts LISTEN, but nothing arrives while
                    // the connection is idle. What this connection sends itself would arrive, since it then has the
                    // session that listens again: so another connection sends it.
                    let tell = format!("SELECT pg_notify('{CHANNEL}', 'self')");
                    let mut is_heard = false;
                    for _ in 0..TOLD {
                        owned.ask(Lane::Wanting, &Statement::once(&tell), &Went::default()).await?;
                        is_heard = tokio::time::timeout(heard_within, hears.notified()).await.is_ok();
                        if is_heard {
                            break;
                        }
                    }
                    if !is_heard {
                        if !owned.waking.said_deaf.replace(true) {
                            log::warn!(target: "leasehold::postgres",
                                "notifications do not reach a session that listens: waiters poll; a pooler must give \
                                 each client a session of its own, or the URL name it: pooler=transaction");
                        }
                        return Ok(false);
                    }
                    (connected, watched)
                }
            };
            let hash = format!("SELECT key, {hash} FROM unnest($1) AS key");
            let all: &(dyn ToSql + Sync) = &keys;
            let rows = connected.client.query_typed(&hash, &[(all, Type::TEXT_ARRAY)]).await;
            let rows = rows.map_err(|error| owned.classify(&error))?;
            let mut names = HashMap::<String, Vec<String>>::new();
            for row in rows {
                if let (Ok(key), Ok(hash)) = (row.try_get(0), row.try_get(1)) {
                    names.entry(hash).or_default().push(key);
                }
            }
            if goes_on && is_new {
                keys.iter().for_each(|key| drop(to.send(key.clone())));
            }
            watched.replace(Some(Told { names, to }));
            // The connection may have ended meanwhile, and its task with it.
            if connected.client.is_closed() {
                watched.take();
            }
            owned.waking.listening.replace(Some((connected, watched)));
            owned.waking.tells.set(true);
            Ok(true)
        });
        let answer = answer.unwrap_or(Err((Fate::NotDone, PostgresError::NotSent)));
        answer.map_err(|(_, error): (Fate, PostgresError)| error.of_read())
    }
}
