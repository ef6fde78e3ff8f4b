//! A connection, and the statements that its session keeps prepared: to plan one takes the server longer than to run
//! it.
//!
//! A statement always goes in one message with its values. After its second time it is prepared, and no caller waits
//! for that, so a program that sends few statements pays nothing for it. Only a session that is known to be the
//! server's own keeps prepared statements: every program that uses the driver has the same names for them, and behind a
//! pooler other programs would find ours.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::task::AbortHandle;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Error as DriverError, Row as Answer, Statement as Prepared};

use super::statements::in_durable_session;
use super::tls::Moving;
use crate::sys::random;

/// How long a connection that nobody needs is kept.
const UNUSED: Duration = Duration::from_secs(60);

/// A connection. Its bytes are moved by a task that ends with this value, whatever is under way.
pub(super) struct Connected {
    pub client: Rc<Client>,
    task: AbortHandle,
    /// The server said that the last commit is not on the standbys that it must be on.
    pub unreplicated: Rc<Cell<bool>>,
    /// The session is the server's own, and no pooler's.
    pub is_direct: Cell<bool>,
    kept: Rc<Kept>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The statements that the session keeps, by their text as it is in [`Statements`](super::statements::Statements):
/// there are few.
#[derive(Default)]
struct Kept {
    /// Whether any statement may be kept.
    is_on: Cell<bool>,
    all: RefCell<Vec<(Arc<str>, State)>>,
    /// What no other client sends, see [`in_durable_session`].
    token: String,
}

enum State {
    /// It was sent once.
    Asked,
    /// It is being prepared, or that failed.
    Tried,
    Ready(Prepared),
}

impl Connected {
    /// `hear` is called for each notification.
    pub fn new(client: Client, mut connection: Moving, hear: impl Fn(&str) + 'static) -> Connected {
        let unreplicated = Rc::<Cell<bool>>::default();
        let theirs = unreplicated.clone();
        let moving = async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    AsyncMessage::Notification(told) => hear(told.payload()),
                    AsyncMessage::Notice(notice) if is_unreplicated(&notice) => theirs.set(true),
                    _ => {}
                }
            }
        };
        let task = tokio::task::spawn_local(moving).abort_handle();
        let kept = Kept { token: random::uuid().to_string(), ..Kept::default() };
        let is_direct = Cell::new(false);
        Connected { client: Rc::new(client), task, unreplicated, is_direct, kept: Rc::new(kept) }
    }

    /// The session is the server's own. From now on statements are kept: its commits wait as [`in_durable_session`]
    /// needs, and it plans a prepared statement once.
    pub fn goes_direct(&self) {
        self.is_direct.set(true);
        self.kept.is_on.set(true);
    }

    /// Sends `sql` with these values, as one statement. `lasting`: its text, if it is sent again and again.
    pub async fn query(
        &self,
        sql: &str,
        lasting: Option<&Arc<str>>,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Answer>, DriverError> {
        let lasting = lasting.filter(|_| self.kept.is_on.get());
        if let Some(lasting) = lasting
            && let Some(prepared) = self.kept.ready(lasting)
        {
            // The driver logs the values that it gets here.
            let hidden: Vec<_> = values.iter().map(|(value, _)| Hidden(*value)).collect();
            let mut hidden: Vec<_> = hidden.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
            hidden.push(&self.kept.token);
            match self.client.query(&prepared, &hidden).await {
                Err(error) if self.kept.forgets(lasting, &error) => {}
                answer => return answer,
            }
        }
        let answer = self.client.query_typed(sql, values).await;
        if answer.is_ok()
            && let Some(lasting) = lasting
            && self.kept.is_asked_again(lasting)
        {
            self.prepare(lasting, values.iter().map(|(_, kind)| kind.clone()).collect());
        }
        answer
    }

    /// Prepares a statement, for which no caller waits. If that fails, the statement is sent as before.
    fn prepare(&self, lasting: &Arc<str>, mut types: Vec<Type>) {
        types.push(Type::TEXT);
        let Some(sql) = in_durable_session(lasting, &self.kept.token, types.len()) else { return };
        let (client, kept, lasting) = (self.client.clone(), self.kept.clone(), lasting.clone());
        tokio::task::spawn_local(async move {
            if let Ok(prepared) = client.prepare_typed(&sql, &types).await {
                kept.set(&lasting, State::Ready(prepared));
            }
        });
    }
}

impl Kept {
    fn ready(&self, lasting: &Arc<str>) -> Option<Prepared> {
        self.all.borrow().iter().find_map(|(of, state)| match state {
            State::Ready(prepared) if Arc::ptr_eq(of, lasting) => Some(prepared.clone()),
            _ => None,
        })
    }

    /// Whether the statement must be prepared now.
    fn is_asked_again(&self, lasting: &Arc<str>) -> bool {
        let mut all = self.all.borrow_mut();
        match all.iter_mut().find(|(of, _)| Arc::ptr_eq(of, lasting)) {
            None => all.push((lasting.clone(), State::Asked)),
            Some((_, state @ State::Asked)) => {
                *state = State::Tried;
                return true;
            }
            Some(_) => {}
        }
        false
    }

    fn set(&self, lasting: &Arc<str>, state: State) {
        let mut all = self.all.borrow_mut();
        match all.iter_mut().find(|(of, _)| Arc::ptr_eq(of, lasting)) {
            Some((_, of)) => *of = state,
            None => all.push((lasting.clone(), state)),
        }
    }

    /// Whether the server did nothing because it does not have the statement as it was prepared. If the table was
    /// changed, the statement is prepared again. If somebody has made the session forget all statements, which may
    /// happen again, or the session is another one, no statement is kept any more.
    fn forgets(&self, lasting: &Arc<str>, error: &DriverError) -> bool {
        match error.code() {
            Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
                self.set(lasting, State::Asked);
                true
            }
            Some(
                &SqlState::INVALID_SQL_STATEMENT_NAME
                | &SqlState::INVALID_TEXT_REPRESENTATION
                | &SqlState::PROTOCOL_VIOLATION,
            ) => {
                self.is_on.set(false);
                true
            }
            _ => false,
        }
    }
}

/// Puts a connection behind those that are idle, of which the last is used next. Ends those that nobody has needed for
/// [`UNUSED`]: they may be from one moment in which all callers waited.
pub(super) fn rest<T>(idle: &mut Vec<(Instant, T)>, one: T, now: Instant) {
    idle.retain(|(since, _)| now.duration_since(*since) <= UNUSED);
    idle.push((now, one));
}

/// Whether the server says that it has committed, but no longer waited for the standby. That warning has the code of
/// all warnings that have none of their own, and its text is in the server's language. So the routine that wrote it
/// decides: warnings of a trigger, or of transaction ids that run short, come with every write.
fn is_unreplicated(notice: &DbError) -> bool {
    notice.parsed_severity().unwrap_or(Severity::Warning) == Severity::Warning
        && notice.routine().is_none_or(|routine| routine == "SyncRepWaitForLSN")
}

/// A value that is shown nowhere: it may be the grant id.
struct Hidden<'a>(&'a (dyn ToSql + Sync));

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl ToSql for Hidden<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(kind, out)
    }

    /// The value itself checks its type.
    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(kind, out)
    }

    fn encode_format(&self, kind: &Type) -> Format {
        self.0.encode_format(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_nobody_needs_end_and_the_one_that_is_used_stays() {
        let began = Instant::now();
        let mut idle = Vec::new();
        (0..8).for_each(|one| rest(&mut idle, one, began));
        for (seconds, left) in [(30, 8), (60, 8), (61, 1), (600, 1)] {
            let (_, one) = idle.pop().unwrap();
            rest(&mut idle, one, began + Duration::from_secs(seconds));
            assert_eq!((idle.len(), idle[idle.len() - 1].1), (left, 7), "after {seconds} s");
        }
    }
}
