//! One session for each attempt. Its writes are numbered, and the server refuses a number below the highest it has
//! seen: so a release that follows an unanswered acquire in the same session also stops it, however late it arrives.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mongodb::{Client, ClientSession};
use parking_lot::Mutex;

use crate::sys::process::ProcessId;

/// Names the session of an attempt, and ends that session when it is dropped, on whatever thread. The session itself
/// lives on the driver's thread.
#[derive(Debug)]
pub(super) struct Handle {
    id: u64,
    register: Arc<Register>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child another thread may have locked it for ever, and the session is the parent's.
        if self.register.process.is_current() {
            self.register.ended.lock().push(self.id);
        }
    }
}

/// The names of one store's sessions, and which of them are over.
#[derive(Debug, Default)]
pub(super) struct Register {
    next: AtomicU64,
    process: ProcessId,
    ended: Mutex<Vec<u64>>,
}

impl Register {
    /// The session that is kept in `native`; a new one if it has none or one of another store.
    pub fn of(self: &Arc<Register>, native: &mut Option<Box<dyn Any + Send>>) -> u64 {
        let kept = native.as_ref().and_then(|native| native.downcast_ref::<Handle>());
        if let Some(handle) = kept.filter(|handle| Arc::ptr_eq(&handle.register, self)) {
            return handle.id;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        *native = Some(Box::new(Handle { id, register: self.clone() }));
        id
    }
}

type Session = Rc<tokio::sync::Mutex<ClientSession>>;

/// The sessions, on the driver's thread.
pub(super) struct Sessions {
    register: Arc<Register>,
    open: RefCell<HashMap<u64, Session>>,
}

impl Sessions {
    pub fn new(register: Arc<Register>) -> Self {
        Sessions { register, open: RefCell::default() }
    }

    /// The session of this name. A request whose caller no longer waits may still hold it, but its future is dropped
    /// soon.
    pub async fn get(&self, client: &Client, id: u64) -> mongodb::error::Result<Session> {
        let ended = std::mem::take(&mut *self.register.ended.lock());
        for id in ended {
            self.open.borrow_mut().remove(&id);
        }
        if let Some(session) = self.open.borrow().get(&id) {
            return Ok(session.clone());
        }
        // Taken from a pool; nothing is sent. Its writes all go to the primary, so they need not name the time of the
        // last one.
        let session = client.start_session().causal_consistency(false).await?;
        let session = Rc::new(tokio::sync::Mutex::new(session));
        Ok(self.open.borrow_mut().entry(id).or_insert(session).clone())
    }
}
