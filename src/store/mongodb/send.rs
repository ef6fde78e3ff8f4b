//! One request at a time: on the driver's thread, within its deadline, and what became of it.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};
use mongodb::error::Result as DriverResult;
use mongodb::event::EventHandler;
use mongodb::event::cmap::CmapEvent;
use mongodb::options::{Acknowledgment, ReturnDocument, WriteConcern};
use mongodb::{Client, Collection};

use super::error::MongodbError;
use super::pipeline::{NOW, projection};
use super::row::{date, stands};
use super::session::Sessions;
use super::turns::Turns;
use super::{Mongodb, Topology, mixed};
use crate::lease::{Mode, StoreTime};
use crate::store::failure::{Fate, Left};
use crate::sys::deadline::Deadline;

/// What lives on the driver's thread.
pub(super) struct Owned {
    pub client: Client,
    pub locks: Collection<Document>,
    pub sessions: Sessions,
    pub waking: super::wakeup::Waking,
    pub turns: Turns,
}

/// How often a request may have left this host: counted each time that it got a connection.
#[derive(Clone, Debug, Default)]
struct Sends(Arc<AtomicU32>);

thread_local! {
    /// The counter of the request whose future is being polled.
    static CURRENT: RefCell<Option<Sends>> = const { RefCell::new(None) };
}

impl Sends {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Runs a request and counts how often it may have left.
    async fn counting<T>(self, request: impl Future<Output = T>) -> T {
        counted_as(Some(self), request).await
    }
}

/// How often the request whose future is being polled may have left this host so far.
fn sent_so_far() -> u32 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, Sends::count))
}

/// Runs a request that is no copy of the one around it, and so does not count.
pub(super) async fn uncounted<T>(request: impl Future<Output = T>) -> T {
    counted_as(None, request).await
}

async fn counted_as<T>(sends: Option<Sends>, request: impl Future<Output = T>) -> T {
    let mut request = pin!(request);
    poll_fn(|context| {
        let outer = CURRENT.replace(sends.clone());
        let polled = request.as_mut().poll(context);
        CURRENT.set(outer);
        polled
    })
    .await
}

/// Counts the connections that requests get, and passes the event on to the user's own handler.
pub(super) fn counting_handler(users: Option<EventHandler<CmapEvent>>) -> EventHandler<CmapEvent> {
    EventHandler::callback(move |event| {
        if let CmapEvent::ConnectionCheckedOut(_) = event {
            CURRENT.with_borrow(|current| {
                if let Some(sends) = current {
                    sends.0.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        match &users {
            Some(EventHandler::Callback(callback)) => callback(event),
            Some(EventHandler::AsyncCallback(callback)) => drop(tokio::task::spawn(callback(event))),
            _ => {}
        }
    })
}

/// What an operation answers.
pub(super) type Answer<T> = Result<T, (Fate, MongodbError)>;

/// How a write went.
#[derive(Debug)]
pub(super) enum Wrote<T> {
    /// The server did it, or decided not to.
    Answered(T),
    /// It may or may not be written.
    Unknown(MongodbError),
}

/// A `findAndModify`.
pub(super) struct Update {
    pub key: String,
    /// From this time on, by the server's clock, the request finds no document.
    pub not_after: Option<StoreTime>,
    pub pipeline: Vec<Document>,
    /// Makes the document if it is missing.
    pub upsert: bool,
    /// Answers with the document as it is afterwards; otherwise as it was before.
    pub after: bool,
    /// Whether it extends a running lease.
    pub extends: bool,
    pub session: u64,
    /// The grant that it would make, with its mode.
    pub grants: Option<(Mode, ObjectId)>,
}

impl Update {
    /// Whether this answer, after `sends` copies, leaves open what becomes of the other copies. The server remembers
    /// only the numbers of requests that wrote something. So a copy that was sent before the refused one would still be
    /// done, however late it arrives.
    fn is_open(&self, row: Option<&Document>, sends: u32) -> bool {
        let grants = self.grants.as_ref().filter(|_| sends > 1);
        grants.is_some_and(|(mode, grant)| !row.is_some_and(|row| stands(row, *mode, grant)))
    }
}

/// The majority has the write in its journal before it is answered.
pub(super) fn majority(limit: Option<Duration>) -> WriteConcern {
    let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true);
    concern.w_timeout(limit).build()
}

/// The time that is left, in whole milliseconds; the server stops working then.
pub(super) fn limit(by: &Deadline) -> Duration {
    let millis = by.remaining().as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).clamp(1, i32::MAX as u64))
}

impl Mongodb {
    /// Does an operation that writes nothing, in one request or several.
    pub(super) fn ask<T, F, Fut>(&self, by: &Deadline, operation: F) -> Result<T, MongodbError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Owned>) -> Fut + Send + 'static,
        Fut: Future<Output = DriverResult<T>> + 'static,
    {
        // How often it left does not matter: the last answer counts.
        self.request(by, operation, |_| None).map_err(|(_, error)| error.of_read())
    }

    /// Does one write. The error says whether it may have happened.
    pub(super) fn send<T, F, Fut>(&self, by: &Deadline, operation: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Owned>) -> Fut + Send + 'static,
        Fut: Future<Output = DriverResult<T>> + 'static,
    {
        let answer = self.request(by, operation, |sends| Some(sends.count()));
        if self.topology == Some(Topology::Router) { answer.map_err(MongodbError::of_router) } else { answer }
    }

    fn request<T, F, Fut>(&self, by: &Deadline, operation: F, copies: fn(&Sends) -> Option<u32>) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Owned>) -> Fut + Send + 'static,
        Fut: Future<Output = DriverResult<T>> + 'static,
    {
        if by.is_over() {
            return Err((Fate::NotDone, MongodbError::NotSent));
        }
        let started = Instant::now();
        let sends = Sends::default();
        let theirs = sends.clone();
        let asked = self.driver.run_heard(by, move |owned| async move { theirs.counting(operation(owned)).await });
        let (stopped, is_gone) = match asked {
            Ok(answer) => {
                let told = answer.map_err(|error| MongodbError::classify(&error, copies(&sends)));
                // This client was let in when it connected.
                return if self.topology.is_some() { told.map_err(MongodbError::of_known_user) } else { told };
            }
            Err(stopped) => stopped,
        };
        let left = if is_gone && sends.count() == 0 { Left::No } else { Left::Maybe };
        Err(MongodbError::stopped(stopped, left, started.elapsed()))
    }

    /// Does one `findAndModify`.
    ///
    /// If the driver repeated a request that was already written, the server repeats its first answer, without the
    /// time. That settles a release. Any other request is sent once more, and finds what it wrote.
    pub(super) fn update(&self, update: Update, by: &Deadline) -> Result<Wrote<Option<Document>>, MongodbError> {
        let first = self.find_and_modify(&update, by)?;
        let is_old = |row: &Document| update.after && !has_time(row);
        match &first {
            Wrote::Answered(Some(row)) if is_old(row) => {}
            _ => return Ok(first),
        }
        match self.find_and_modify(&update, by) {
            // The first request was written, even if this one came too late or fails.
            Ok(Wrote::Answered(row)) if row.as_ref().is_none_or(is_old) => {
                Ok(Wrote::Unknown(MongodbError::overdue(Duration::ZERO)))
            }
            Ok(answer) => Ok(answer),
            Err(error) => Ok(Wrote::Unknown(error.of_write())),
        }
    }

    fn find_and_modify(&self, update: &Update, by: &Deadline) -> Result<Wrote<Option<Document>>, MongodbError> {
        let limit = limit(by);
        let work = if update.extends { mixed::limit_of_extending(self.fleet, limit) } else { limit };
        let mut filter = doc! { "resource": &update.key };
        if let Some(not_after) = update.not_after {
            filter.insert("$expr", doc! { "$lt": [NOW, date(not_after)] });
        }
        let mut duplicates = 0;
        loop {
            let Update { pipeline, upsert, after, session, .. } = update;
            let (filter, pipeline, upsert, after, session) =
                (filter.clone(), pipeline.clone(), *upsert, *after, *session);
            let wanted = upsert.then(|| update.key.clone());
            let answer = self.send(by, move |owned| async move {
                let _turn = match wanted {
                    Some(key) => Some(owned.turns.want(&key).await),
                    None => None,
                };
                let session = owned.sessions.get(&owned.client, session).await?;
                let mut session = session.lock().await;
                let returned = if after { ReturnDocument::After } else { ReturnDocument::Before };
                let request = owned.locks.find_one_and_update(filter, pipeline);
                let request = request.upsert(upsert).return_document(returned).projection(projection());
                let request = request.write_concern(majority(Some(limit))).max_time(work).session(&mut *session);
                Ok((request.await?, sent_so_far()))
            });
            match answer {
                // Two made the document at once; it is there now.
                Err((Fate::Duplicate, error)) if !by.is_over() => {
                    self.must_be_ours(&update.key, &error, by)?;
                    if duplicates > 0 {
                        by.wait_to_repeat(duplicates);
                    }
                    duplicates += 1;
                }
                Ok((row, sends)) if update.is_open(row.as_ref(), sends) => {
                    return Ok(Wrote::Unknown(MongodbError::refused_after_copies()));
                }
                answer => return unknown_is_an_answer(answer.map(|(row, _)| row)),
            }
        }
    }
}

pub(super) fn has_time(row: &Document) -> bool {
    row.contains_key("now")
}

/// A write whose fate is unknown is an answer; an error says that nothing was written.
pub(super) fn unknown_is_an_answer<T>(answer: Answer<T>) -> Result<Wrote<T>, MongodbError> {
    match answer {
        Ok(answer) => Ok(Wrote::Answered(answer)),
        Err((Fate::Unknown, error)) => Ok(Wrote::Unknown(error)),
        Err((_, error)) => Err(error),
    }
}
