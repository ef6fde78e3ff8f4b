//! Wakes waiters when a key may have become free: one change stream for all keys that somebody waits for.
//!
//! The server sends what happened to the documents of these keys, except mere heartbeats and grants of free keys. A
//! stream for another set of keys continues where the last one was, so that nothing is missed in between. If it can't,
//! all keys are reported. A document that mongo-lock makes meanwhile is recognized by its key.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Sender;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, ResumeToken};
use mongodb::error::Result as DriverResult;
use mongodb::options::{ChangeStreamOptions, ReadConcern};
use tokio::task::AbortHandle;

use super::error::MongodbError;
use super::send::{Owned, limit};
use super::{Mongodb, Topology};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// The server answers after this at the latest, even if nothing happened.
const AWAIT: Duration = Duration::from_secs(10);
/// After this long without an answer, the network or the server counts as dead.
const LOST: Duration = Duration::from_secs(15);

type Stream = ChangeStream<ChangeStreamEvent<Document>>;

/// The stream that is open, on the driver's thread.
#[derive(Default)]
pub(super) struct Waking(RefCell<Option<Telling>>);

struct Telling {
    task: AbortHandle,
    /// Where the next stream continues. None once this one has ended, because from there the server may have to search
    /// through days.
    place: Rc<RefCell<Option<Place>>>,
}

/// Where a stream goes on.
#[derive(Clone)]
enum Place {
    /// After this token. If the token is that of an event, the server looks for the event behind the filter, which must
    /// let it pass.
    Token(ResumeToken),
    /// At the time of the last event that was reported. The filter for another set of keys may not let that event pass.
    Time(Timestamp),
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        self.0.take();
    }
}

impl Mongodb {
    pub(super) fn wake_keys(&self, keys: &[String], to: Sender<String>, by: &Deadline) -> Result<bool, MongodbError> {
        if self.topology == Some(Topology::Standalone) {
            self.say_deaf("the server belongs to no replica set");
            return Ok(false);
        }
        let (keys, limit) = (keys.to_vec(), limit(by));
        let answer = self.ask(by, move |owned| async move {
            if keys.is_empty() {
                owned.waking.0.take();
                return Ok(());
            }
            // The last stream ends with this call, even if the new one can't be opened, so that no later call continues
            // from the same place.
            let last = owned.waking.0.take();
            let mut place = last.as_ref().and_then(|telling| telling.place.borrow().clone());
            let watch = Watch { keys, owned: owned.clone() };
            let opened = match watch.open(place.clone(), limit).await {
                // The server no longer has what happened since.
                Err(error) if is_history_lost(&error) => {
                    place = None;
                    watch.open(None, limit).await?
                }
                opened => opened?,
            };
            if last.is_some() && place.is_none() {
                watch.keys.iter().for_each(|key| drop(to.send(key.clone())));
            }
            let place = Rc::new(RefCell::new(opened.stream.resume_token().map(Place::Token)));
            let task = tokio::task::spawn_local(watch.run(opened, to, place.clone())).abort_handle();
            owned.waking.0.replace(Some(Telling { task, place }));
            Ok(())
        });
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.is_deaf() => {
                self.say_deaf(
                    "the user may not open change streams (the role read, or the actions find and changeStream)",
                );
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn say_deaf(&self, why: &str) {
        if !self.noticed.said_deaf.swap(true, Ordering::Relaxed) {
            log::warn!(
                target: "leasehold::mongodb", store:? = self.info.label;
                "waiters are not woken when a lock is free, and poll: {why}"
            );
        }
    }
}

/// A stream that will be opened.
struct Watch {
    keys: Vec<String>,
    owned: Rc<Owned>,
}

struct Opened {
    stream: Stream,
    /// The keys by the ids of their documents, as `Bson` prints them.
    names: HashMap<String, String>,
}

impl Watch {
    async fn open(&self, place: Option<Place>, limit: Duration) -> DriverResult<Opened> {
        let (mut ids, at) = self.documents(limit).await?;
        // A document that this version makes has its key as its id.
        ids.extend(self.keys.iter().map(|key| (Bson::from(key.as_str()), key.clone())));
        let named = doc! { "$in": &self.keys };
        let known = doc! { "$in": ids.iter().map(|(id, _)| id.clone()).collect::<Vec<Bson>>() };
        let ours = doc! { "$or": [{ "documentKey._id": known }, { "fullDocument.resource": named }] };
        let filter = doc! { "$match": { "$and": [ours, { "$expr": is_news() }] } };
        let mut options = ChangeStreamOptions::builder().max_await_time(AWAIT).build();
        match place {
            Some(Place::Token(after)) => options.resume_after = Some(after),
            Some(Place::Time(at)) => options.start_at_operation_time = Some(at),
            None => options.start_at_operation_time = at,
        }
        let stream = self.owned.locks.watch().pipeline([filter]).with_options(options).await?;
        let names = ids.into_iter().map(|(id, key)| (id.to_string(), key)).collect();
        Ok(Opened { stream, names })
    }

    /// The ids that other versions and libraries gave to the documents of these keys, and the server's time of that
    /// read.
    async fn documents(&self, limit: Duration) -> DriverResult<(Vec<(Bson, String)>, Option<Timestamp>)> {
        let mut session = self.owned.client.start_session().await?;
        let request = self.owned.locks.find(doc! { "resource": { "$in": &self.keys } });
        let request = request.projection(doc! { "_id": 1, "resource": 1 }).read_concern(ReadConcern::local());
        let request = request.batch_size(u32::try_from(self.keys.len() + 1).unwrap_or(u32::MAX)).max_time(limit);
        let mut cursor = request.session(&mut session).await?;
        let mut ids = Vec::new();
        while cursor.advance(&mut session).await? {
            let mut row: Document = cursor.deserialize_current()?;
            if let (Some(id), Some(Bson::String(key))) = (row.remove("_id"), row.remove("resource"))
                && id.as_str() != Some(&key)
            {
                ids.push((id, key));
            }
        }
        Ok((ids, session.operation_time()))
    }

    /// Reports until the stream breaks or nobody listens. The channel ends with it.
    async fn run(self, opened: Opened, to: Sender<String>, place: Rc<RefCell<Option<Place>>>) {
        self.pass_on(opened, &to, &place).await;
        place.borrow_mut().take();
    }

    async fn pass_on(&self, mut opened: Opened, to: &Sender<String>, place: &RefCell<Option<Place>>) {
        let mut last = None;
        loop {
            let next = tokio::time::timeout(LOST, opened.stream.next_if_any()).await;
            let Ok(Ok(event)) = next else { return };
            let Some(event) = event else {
                // The collection is gone, or it is another one.
                if !opened.stream.is_alive() {
                    return;
                }
                // While nothing was written, the token is still that of the last event.
                let after = opened.stream.resume_token().filter(|after| last.as_ref() != Some(after));
                after.into_iter().for_each(|after| *place.borrow_mut() = Some(Place::Token(after)));
                continue;
            };
            let id = event.document_key.as_ref().and_then(|key| key.get("_id")).map(Bson::to_string);
            let by_id = id.as_ref().and_then(|id| opened.names.get(id)).cloned();
            let full = event.full_document.as_ref().and_then(|row| row.get_str("resource").ok()).map(str::to_owned);
            let is_new = by_id.is_none();
            if let Some(key) = by_id.or(full)
                && to.send(key).is_err()
            {
                return;
            }
            last = opened.stream.resume_token();
            let after = last.clone().map(Place::Token);
            *place.borrow_mut() = event.cluster_time.map(Place::Time).or_else(|| after.clone());
            // The id of the document was not known: the new stream has it.
            if is_new {
                match tokio::time::timeout(LOST, self.open(after, LOST)).await {
                    Ok(Ok(again)) => opened = again,
                    _ => return,
                }
            }
        }
    }
}

/// Anything but a heartbeat and a grant of a free key. A write that makes a lease shorter also sets a field of its own.
fn is_news() -> Document {
    let fields = doc! { "$objectToArray": { "$ifNull": ["$updateDescription.updatedFields", {}] } };
    let of_heartbeat = doc! { "$regexMatch": { "input": "$$field.k", "regex": r"(expiresAt|renewedAt)$|^asserts$" } };
    let all = doc! { "$map": { "input": fields, "as": "field", "in": of_heartbeat } };
    let has_any = |of: &str| doc! { "$gt": [{ "$size": { "$ifNull": [of, []] } }, 0] };
    let acquired = doc! { "$getField": {
        "field": "exclusive.acquired", "input": { "$ifNull": ["$updateDescription.updatedFields", {}] },
    } };
    doc! { "$or": [
        { "$ne": ["$operationType", "update"] },
        { "$and": [
            { "$ne": [acquired, true] },
            { "$or": [
                { "$not": [{ "$allElementsTrue": [all] }] },
                has_any("$updateDescription.removedFields"),
                has_any("$updateDescription.truncatedArrays"),
            ] },
        ] },
    ] }
}

/// The token can no longer be used: InvalidResumeToken, ChangeStreamFatalError, ChangeStreamHistoryLost.
fn is_history_lost(error: &mongodb::error::Error) -> bool {
    let lost = [260, 280, 286];
    matches!(error.kind.as_ref(), mongodb::error::ErrorKind::Command(command) if lost.contains(&command.code))
}
