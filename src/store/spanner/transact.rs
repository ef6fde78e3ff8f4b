//! One transaction: it reads the row and the time, decides, and commits. That is two requests, or more when it is
//! aborted.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use google_cloud_gax::error::rpc::{Code, Status};
use google_cloud_gax::retry_policy::RetryPolicy;
use google_cloud_gax::retry_state::RetryState;
use google_cloud_gax::throttle_result::ThrottleResult;
use google_cloud_spanner::Error as SdkError;
use google_cloud_spanner::model::transaction_options::IsolationLevel;
use google_cloud_spanner::model::transaction_options::read_write::ReadLockMode;
use google_cloud_spanner::mutation::Mutation;
use google_cloud_spanner::retry_policy::SpannerRetryPolicy;
use google_cloud_spanner::transaction::{ReadWriteTransaction, RetryResult, TransactionRetryPolicy, TransactionRunner};

use super::error::{NO_SESSION, SpannerError, Stage};
use super::mixed::Contended;
use super::open::{Handles, Heard, Live};
use super::read::{Read, of_key};
use super::row::{Row, Stamps, time};
use super::{Spanner, Target};
use crate::lease::{LockRecord, Step, Times};
use crate::model::error::Result;
use crate::store::failure::{Cause, Fate, Left};
use crate::store::transactional::{Durability, Transacted, Transactional};
use crate::sys::deadline::Deadline;
use crate::sys::driver::Stopped;

/// The part of the call's time that the SDK gets. The SDK must end a little before the caller does, so that it can say
/// why.
const FOR_THE_SDK: f64 = 0.95;

const READING: u8 = 0;
const COMMITTING: u8 = 1;
const CALLED_OFF: u8 = 2;
const REPEATING: u8 = 3;

/// Tracks a transaction: whether its commit may have left this host, and whether it may have left more than once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flight(Arc<AtomicU8>);

impl Flight {
    /// Notes that another try begins. An error if the caller is gone.
    pub(crate) fn read(&self) -> std::result::Result<(), SdkError> {
        self.to(READING)
    }

    /// Notes that the commit comes next. An error if the caller is gone.
    pub(crate) fn commit(&self) -> std::result::Result<(), SdkError> {
        self.to(COMMITTING)
    }

    /// The retry policy for the commit.
    pub(crate) fn repeats(&self) -> Repeats {
        Repeats { own: SpannerRetryPolicy::new(), flight: self.clone() }
    }

    /// Notes that the commit is sent once more. Whatever follows, even `ABORTED` and another try, the first commit may
    /// have happened.
    fn repeat(&self) {
        let _ = self.to(REPEATING);
    }

    fn to(&self, next: u8) -> std::result::Result<(), SdkError> {
        let step = |state| (state != CALLED_OFF).then_some(if state == REPEATING { REPEATING } else { next });
        let stepped = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
        stepped.map(drop).map_err(|_| ended("the caller is gone"))
    }

    pub(super) fn stage(&self) -> Stage {
        match self.0.load(Ordering::SeqCst) {
            COMMITTING => Stage::Committing,
            REPEATING => Stage::Repeating,
            _ => Stage::Reading,
        }
    }

    /// Stops the commit if it has not left yet. The answer says whether it may have left.
    fn call_off(&self) -> Left {
        match self.0.compare_exchange(READING, CALLED_OFF, Ordering::SeqCst, Ordering::SeqCst) {
            Err(COMMITTING | REPEATING) => Left::Maybe,
            _ => Left::No,
        }
    }
}

/// The SDK's own policy of repeats for a commit, which also notes each repeat.
#[derive(Debug)]
pub(crate) struct Repeats {
    own: SpannerRetryPolicy,
    flight: Flight,
}

impl RetryPolicy for Repeats {
    fn on_error(&self, state: &RetryState, error: SdkError) -> RetryResult {
        let next = self.own.on_error(state, error);
        if matches!(next, RetryResult::Continue(_)) {
            self.flight.repeat();
        }
        next
    }

    fn on_throttle(&self, state: &RetryState, error: SdkError) -> ThrottleResult {
        self.own.on_throttle(state, error)
    }

    fn remaining_time(&self, state: &RetryState) -> Option<Duration> {
        self.own.remaining_time(state)
    }
}

/// Ends a transaction without a commit: the SDK rolls it back.
fn ended(why: &'static str) -> SdkError {
    SdkError::ser(why)
}

/// What a transaction writes.
pub(super) enum Write {
    Put(Row),
    Delete,
}

/// How a transaction ended.
pub(super) struct Done<A> {
    pub answer: A,
    /// What was read; after a write, the row as it was written.
    pub read: Read,
    /// What was read may be the work of an earlier commit of this transaction.
    pub may_be_own: bool,
    pub wrote: bool,
}

type Answer<T> = std::result::Result<T, (Fate, SpannerError)>;

impl Spanner {
    /// Does `operation`, which writes no row, on the driver's thread.
    pub(super) fn ask<T, F, Fut>(&self, by: &Deadline, operation: F) -> std::result::Result<T, SpannerError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Handles>, Duration) -> Fut + Send + 'static,
        Fut: Future<Output = std::result::Result<T, SpannerError>> + 'static,
    {
        let limit = by.remaining().mul_f64(FOR_THE_SDK);
        let asked = self.driver.run(by, move |handles| operation(handles, limit));
        asked.unwrap_or_else(|stopped| {
            let left = if stopped == Stopped::Panicked { Left::Maybe } else { Left::No };
            Err(SpannerError::stopped(stopped, left, limit).1.of_read())
        })
    }

    /// Reads the row of `key`, lets `decide` say what becomes of it, and commits that. After an error nothing was
    /// written, unless its fate is [`Fate::Unknown`].
    pub(super) fn transaction<A, F>(&self, key: &str, by: &Deadline, decide: F) -> Answer<Done<A>>
    where
        A: Send + 'static,
        F: FnMut(&Read) -> std::result::Result<(A, Option<Write>), SpannerError> + Send + 'static,
    {
        let (flight, target, key) = (Flight::default(), self.target.clone(), key.to_owned());
        let theirs = flight.clone();
        let limit = by.remaining().mul_f64(FOR_THE_SDK);
        let stopped = match self.driver.run(by, move |handles| run(handles, target, theirs, key, limit, decide)) {
            Ok(answer) => return answer,
            Err(stopped) => stopped,
        };
        Err(SpannerError::stopped(stopped, flight.call_off(), limit))
    }
}

async fn run<A, F>(
    handles: Rc<Handles>,
    target: Arc<Target>,
    flight: Flight,
    key: String,
    limit: Duration,
    mut decide: F,
) -> Answer<Done<A>>
where
    F: FnMut(&Read) -> std::result::Result<(A, Option<Write>), SpannerError>,
{
    let started = Instant::now();
    let mut may_be_own = false;
    let mut reads = ReadLockMode::Optimistic;
    let (answer, write, mut read, at) = loop {
        // Until the next commit nothing is under way, except a commit that was repeated: then the stage remains.
        let _ = flight.read();
        let live = handles.live(limit.saturating_sub(started.elapsed())).await;
        let left = limit.saturating_sub(started.elapsed());
        // What was decided, if the row of the lock is not written.
        let mut kept = None;
        let attempt = async |transaction: ReadWriteTransaction| {
            kept = None;
            may_be_own = flight.stage() == Stage::Repeating;
            flight.read()?;
            let rows = transaction.execute_query(target.query_key(&key)).await?;
            let mut read = match of_key(&target, &key, rows).await? {
                Ok(read) => read,
                Err(error) => {
                    kept = Some(Err(error));
                    return Err(ended("the row can't be used"));
                }
            };
            match decide(&read) {
                Ok((answer, Some(write))) => {
                    let mut writes = vec![write.mutation(&target, &key, read.row.as_ref())];
                    if let Some(name) = target.contended(&key, &read, &write) {
                        let rows = transaction.execute_query(target.query_contention(&key, &name, read.now)).await?;
                        match target.judge(&name, read.now, rows).await? {
                            Contended::No(beside) => writes.extend(beside),
                            Contended::Since(since) => {
                                read.record.exclusive = Some(target.taking_over(read.now));
                                kept = Some(decide(&read).map(|(answer, _)| (answer, read)));
                                if since.is_some() {
                                    return Err(ended("a node is taking it over"));
                                }
                                transaction.buffer([target.sighting(&name)])?;
                                return Ok(None);
                            }
                        }
                    }
                    transaction.buffer(writes)?;
                    flight.commit()?;
                    Ok(Some((answer, write, read)))
                }
                Ok((answer, None)) => {
                    kept = Some(Ok((answer, read)));
                    Err(ended("there is nothing to write"))
                }
                Err(error) => {
                    kept = Some(Err(error));
                    Err(ended("it is refused"))
                }
            }
        };
        let runs = handles.alone(live.runner(left, &flight, &reads).run(attempt));
        let ran = handles.within(left, runs, heard).await;
        // The rollback may have failed or taken too long: that changes nothing.
        match kept {
            Some(Ok((answer, read))) => return Ok(Done { answer, read, may_be_own, wrote: false }),
            Some(Err(error)) if may_be_own => {
                return Err((Fate::Unknown, SpannerError::Unanswered { cause: Some(Cause::of(&error)) }));
            }
            Some(Err(error)) => return Err((Fate::NotDone, error)),
            None => {}
        }
        match ran {
            Some(Ok(result)) => {
                let committed = result.commit_timestamp();
                // Without a value the decision is in `kept`, and was returned above.
                if let Some((answer, write, read)) = result.into_inner() {
                    // The service may ask for a commit once more, and then again. The SDK sends it twice, and takes any
                    // second answer for a success.
                    let Some(committed) = committed else {
                        return Err((Fate::Unknown, SpannerError::Unanswered { cause: None }));
                    };
                    break (answer, write, read, time(&committed));
                }
            }
            Some(Err(error)) if is_superseded(&error) => {
                // The commit may have happened, and this may be the answer to a repeat of it.
                if flight.stage() != Stage::Reading {
                    flight.repeat();
                }
                handles.one_at_a_time.set(Instant::now() + TURNS);
            }
            Some(Err(error)) if reads == ReadLockMode::Optimistic && (is_aborted(&error) || is_deleted(&error)) => {
                reads = ReadLockMode::Pessimistic
            }
            Some(Err(error)) => return Err(target.classify_at(&error, flight.stage())),
            None if flight.call_off() == Left::Maybe => {
                return Err((Fate::Unknown, SpannerError::Unanswered { cause: None }));
            }
            None => return Err((Fate::NotDone, SpannerError::NotSent)),
        }
    };
    read.now = read.now.max(at);
    read.row = match write {
        Write::Put(row) => Some(row.committed(at)),
        Write::Delete => None,
    };
    read.record = target.record(&key, read.row.as_ref()).map_err(|error| (Fate::Unknown, error))?;
    Ok(Done { answer, read, may_be_own, wrote: true })
}

impl Live {
    /// `reads`: optimistic at first, so that what is read is not locked before the commit. Otherwise heartbeats would
    /// wait ten seconds for the locks that a request that was cut off has left. If other transactions are faster again
    /// and again, it is pessimistic, and what is read is locked.
    fn runner(&self, limit: Duration, flight: &Flight, reads: &ReadLockMode) -> TransactionRunner {
        self.database
            .read_write_transaction()
            // What was read must be the same at the commit.
            .set_isolation_level(IsolationLevel::Serializable)
            .set_read_lock_mode(reads.clone())
            .with_transaction_timeout(limit)
            .with_retry_policy(UntilTheDeadline { locks: *reads == ReadLockMode::Pessimistic })
            .with_commit_retry_policy(flight.repeats())
            .build()
    }
}

/// How long transactions run one at a time after the server answered as the emulator does (see [`is_superseded`]). The
/// emulator says so again after that. If another server used such words once, then without this limit all heartbeats
/// would wait for one write for ever.
const TURNS: Duration = Duration::from_secs(600);

impl Handles {
    /// Runs a transaction; with the emulator, one at a time: there a session has one transaction, and a newer one ends
    /// those before it.
    async fn alone<T>(&self, transaction: impl Future<Output = T>) -> T {
        let _alone = if Instant::now() < self.one_at_a_time.get() { Some(self.turn.lock().await) } else { None };
        transaction.await
    }
}

/// How many transactions that lock nothing are aborted before one locks what it reads.
const UNLOCKED: u32 = 3;

/// Repeats an aborted transaction: without locks, until [`UNLOCKED`] were aborted; with locks, without an end here,
/// since the transaction has a time limit of its own.
#[derive(Debug)]
struct UntilTheDeadline {
    locks: bool,
}

impl TransactionRetryPolicy for UntilTheDeadline {
    fn on_abort(&self, error: SdkError, attempts: u32, _elapsed: Duration) -> RetryResult {
        if self.locks || attempts < UNLOCKED { RetryResult::Continue(error) } else { RetryResult::Exhausted(error) }
    }
}

/// What the outcome of a transaction shows about the service. If it was ended here without a commit, the service has
/// answered its read all the same.
pub(super) fn heard<T>(outcome: &std::result::Result<T, SdkError>) -> Heard {
    match outcome.as_ref().err().map(|error| (error.status(), error)) {
        Some((Some(status), _)) if status.message.contains(NO_SESSION) => Heard::NoSession,
        Some((Some(status), _)) if status.code.name() == "UNAUTHENTICATED" => Heard::NotAccepted,
        Some((None, error)) if !error.is_serialization() => Heard::Nothing,
        _ => Heard::Answer,
    }
}

fn is_aborted(error: &SdkError) -> bool {
    error.status().is_some_and(|status| status.code == Code::Aborted)
}

/// Whether the row to be updated was deleted after it was read. That counts as an abort.
fn is_deleted(error: &SdkError) -> bool {
    let is_one = |status: &Status| status.code == Code::NotFound && status.message.contains("Row cannot be updated");
    error.status().is_some_and(is_one)
}

/// Whether the emulator ended the transaction because of a newer one of the same session. The service aborts
/// transactions that were idle for too long with some of the same words, but it needs no turns.
fn is_superseded(error: &SdkError) -> bool {
    let of_emulator = [
        "Invalid transaction ID. Transaction ID must be",
        "Transaction not found",
        "after it has been committed or rolled",
    ];
    let is_one = |status: &Status| of_emulator.iter().any(|part| status.message.contains(part));
    !is_aborted(error) && error.status().is_some_and(is_one)
}

impl Write {
    fn mutation(&self, target: &Target, key: &str, old: Option<&Row>) -> Mutation {
        match self {
            Write::Put(row) => row.mutation(&target.table, key, old),
            Write::Delete => Mutation::delete(
                &target.table,
                google_cloud_spanner::key::KeySet::from(google_cloud_spanner::key![key]),
            ),
        }
    }
}

impl Transactional for Spanner {
    fn transact<A: Send + 'static>(
        &self,
        key: &str,
        _durability: Durability,
        by: &Deadline,
        mut transition: impl FnMut(&LockRecord, &Times) -> Step<A> + Send + 'static,
    ) -> Result<Transacted<A>> {
        let target = self.target.clone();
        let done = self.transaction(key, by, move |read| {
            read.record.check_format()?;
            let step = transition(&read.record, &read.times());
            let next = |new| read.row.clone().unwrap_or_default().next(&read.record, &new, Stamps::Commits);
            let Some(new) = step.record else { return Ok(((step.answer, None), None)) };
            let Some(by) = target.extends_before(read, &new) else {
                return Ok(((step.answer, None), Some(Write::Put(next(new)))));
            };
            // The record and the answer that apply if the write comes too late: the commit may come long after the
            // read.
            let stands = target.too_late(read, &new);
            let late = transition(&stands, &read.times());
            if read.now >= by {
                return Ok(((late.answer, None), late.record.map(|new| Write::Put(next(new)))));
            }
            let next = next(new).unless_later(Some(by), read.now);
            Ok(((step.answer, Some((by, late.answer, stands))), Some(Write::Put(next))))
        });
        match done {
            Ok(Done { answer: (_, Some((by, late, stands))), read, .. }) if read.now >= by => {
                Ok(Transacted::Done(late, Read { record: stands, ..read }.seen()))
            }
            Ok(done) if done.may_be_own && !done.wrote => {
                let error = SpannerError::Unanswered { cause: None }.into();
                Ok(Transacted::Found(done.answer.0, done.read.seen(), error))
            }
            Ok(done) => Ok(Transacted::Done(done.answer.0, done.read.seen())),
            Err((Fate::Unknown, error)) => Ok(Transacted::Unknown(error.into())),
            Err((_, error)) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service says the same of a transaction that was idle for too long. Taken for the limit of the emulator, it
    /// would make each transaction wait for all others.
    #[test]
    fn what_the_service_aborts_is_not_taken_for_the_emulators_limit() {
        let of = |code| SdkError::service(Status::default().set_code(code).set_message("Transaction not found"));
        assert!(is_superseded(&of(Code::NotFound)));
        assert!(!is_superseded(&of(Code::Aborted)));
    }
}
