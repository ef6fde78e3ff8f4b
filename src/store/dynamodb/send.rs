//! One request at a time: on the driver's thread, stamped, within its deadline, and what became of it.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use jiff::fmt::rfc2822::DateTimeParser;

use super::error::{DynamodbError, Own};
use super::estimate::Estimate;
use super::expr::{Expr, Item};
use super::target::Target;
use super::{Dynamodb, mixed};
use crate::store::failure::{Fate, Left};
use crate::sys::clock::{BootTime, Clock};
use crate::sys::deadline::Deadline;
use crate::sys::log;

const WAITING: u8 = 0;
const SENT: u8 = 1;
const CALLED_OFF: u8 = 2;
/// Stands for a correction of the clock that is not known: reading it may fail.
const UNSEEN: i64 = i64::MIN;

/// Follows a request: whether it left this host, and what its answer says about the time.
#[derive(Clone, Debug)]
pub(super) struct Stamp(Arc<Stamping>);

#[derive(Debug)]
struct Stamping {
    clock: Arc<Clock>,
    estimate: Arc<Estimate>,
    hides_server: AtomicBool,
    state: AtomicU8,
    /// Another host of the service must confirm the time.
    is_to_confirm: AtomicBool,
    /// The number of the client over whose connections the request goes.
    over: AtomicU64,
    sent: AtomicU64,
    /// By how much the clock had been corrected when the request was sent.
    slew: AtomicI64,
}

impl Stamp {
    fn new(clock: &Arc<Clock>, estimate: &Arc<Estimate>) -> Self {
        Stamp(Arc::new(Stamping {
            clock: clock.clone(),
            estimate: estimate.clone(),
            hides_server: AtomicBool::new(false),
            state: AtomicU8::new(WAITING),
            is_to_confirm: AtomicBool::new(false),
            over: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            slew: AtomicI64::new(UNSEEN),
        }))
    }

    pub(super) fn left(&self) -> Left {
        if self.0.state.load(Ordering::SeqCst) == SENT { Left::Maybe } else { Left::No }
    }

    /// When it left, if it did.
    pub(super) fn sent_at(&self) -> BootTime {
        BootTime::from_nanos(self.0.sent.load(Ordering::SeqCst))
    }

    /// Stops the request if it did not leave yet.
    fn call_off(&self) -> Left {
        let off = self.0.state.compare_exchange(WAITING, CALLED_OFF, Ordering::SeqCst, Ordering::SeqCst);
        if off.is_ok() { Left::No } else { Left::Maybe }
    }
}

impl Intercept for Stamp {
    fn name(&self) -> &'static str {
        "leasehold"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let state = self.0.state.compare_exchange(WAITING, SENT, Ordering::SeqCst, Ordering::SeqCst);
        if state == Err(CALLED_OFF) {
            return Err("the caller is gone".into());
        }
        self.0.clock.slew().into_iter().for_each(|slew| self.0.slew.store(slew, Ordering::SeqCst));
        self.0.sent.store(self.0.clock.now().as_nanos(), Ordering::SeqCst);
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date").filter(|_| is_dated_by_the_service(context.response()));
        if let Some(date) = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok()) {
            let (received, slew) = (self.0.clock.now(), self.0.clock.slew());
            slew.into_iter().for_each(|slew| self.0.estimate.slewed(slew));
            let sent = Some(self.0.slew.load(Ordering::SeqCst)).filter(|sent| *sent != UNSEEN);
            let moved = slew.zip(sent).map_or(0, |(now, sent)| now.saturating_sub(sent));
            let over = self.0.over.load(Ordering::SeqCst);
            let is_to_confirm =
                self.0.estimate.learn_corrected(date.as_second(), self.sent_at(), received, moved, over);
            self.0.is_to_confirm.store(is_to_confirm, Ordering::SeqCst);
            // The service itself sends this header in each answer.
            let is_hidden = context.response().headers().get("server").is_none_or(str::is_empty);
            self.0.hides_server.store(is_hidden, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Whether the `Date` is the service's own. nginx replaces the `Date` and `Server` of the service by its own unless it
/// is configured to pass them on, even where it passes on everything else. Proxies that add `Via` pass the date on. The
/// date of an answer from a cache is old. Without `Server` this is unknown: some proxies hide it and pass the date on,
/// so this is only logged as a warning.
fn is_dated_by_the_service(answer: &HttpResponse) -> bool {
    let headers = answer.headers();
    let server = headers.get("server").unwrap_or_default().to_ascii_lowercase();
    headers.contains_key("x-amzn-requestid")
        && !headers.contains_key("age")
        && !["nginx", "openresty", "tengine"].iter().any(|proxy| server.starts_with(proxy))
}

/// What an operation answers on the driver's thread.
pub(super) type Answer<T> = Result<T, (Fate, DynamodbError)>;

/// How a conditional write went.
#[derive(Debug)]
pub(super) enum Wrote {
    /// It is written. The row as it is now, none after a delete; for a grant, the row as it was before, if there was
    /// one.
    Done(Option<Item>),
    /// Its condition failed; the row as it is, if there is one.
    Failed(Option<Item>),
    /// It may or may not be written.
    Unknown(DynamodbError),
}

impl Dynamodb {
    /// Does one operation. The error says whether it may have happened.
    pub(super) fn send<T, F, Fut>(&self, by: &Deadline, operation: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Client>, Stamp, Target) -> Fut + Send + 'static,
        Fut: Future<Output = Answer<T>> + 'static,
    {
        let started = Instant::now();
        let stamp = Stamp::new(&self.clock, &self.estimate);
        let (theirs, target) = (stamp.clone(), self.target.clone());
        let answer = self.driver.run(by, move |owned| {
            let stamping = theirs.0.clone();
            stamping.over.store(owned.number(), Ordering::SeqCst);
            let is_to_confirm = move || stamping.is_to_confirm.load(Ordering::SeqCst);
            owned.clone().within(operation(owned.client(), theirs, target), is_to_confirm)
        });
        if stamp.0.hides_server.load(Ordering::SeqCst) && !self.target.said_hidden.swap(true, Ordering::Relaxed) {
            log::warn!(
                target: "leasehold::dynamodb", table:? = self.target.table;
                "the answers have no header Server, which a proxy may have taken away: then their Date may be of its clock and \
                 not the service's, by which leases end; it must pass both on (nginx: proxy_pass_header Date and Server)"
            );
        }
        let stopped = match answer {
            Ok(answer) => return answer,
            Err(stopped) => stopped,
        };
        Err(DynamodbError::stopped(stopped, stamp.call_off(), started.elapsed()))
    }

    /// Does one `UpdateItem`.
    pub(super) fn update(&self, expr: Expr, by: &Deadline) -> Result<Wrote, DynamodbError> {
        self.update_item(expr, ReturnValue::AllNew, by)
    }

    /// Does the `UpdateItem` of a grant, which may have to be undone.
    pub(super) fn grant(&self, expr: Expr, by: &Deadline) -> Result<Wrote, DynamodbError> {
        self.update_item(expr, ReturnValue::AllOld, by)
    }

    fn update_item(&self, expr: Expr, answer: ReturnValue, by: &Deadline) -> Result<Wrote, DynamodbError> {
        let (key, expr) = (expr.key.clone(), mixed::with_ttl(self.fleet, expr));
        let wrote = unknown_is_an_answer(self.send(by, move |client, stamp, target| async move {
            let request = client
                .update_item()
                .table_name(&target.table)
                .set_key(Some(target.place(&expr.key)))
                .condition_expression(&expr.condition)
                .update_expression(expr.update.to_string())
                .set_expression_attribute_names(Some(expr.names(&target.partition_key)))
                .set_expression_attribute_values(Some(expr.values()))
                .return_values(answer)
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
            match request.customize().interceptor(stamp.clone()).send().await {
                Ok(done) => Ok(Wrote::Done(done.attributes)),
                Err(error) => match error.as_service_error() {
                    Some(
                        aws_sdk_dynamodb::operation::update_item::UpdateItemError::ConditionalCheckFailedException(
                            failed,
                        ),
                    ) => Ok(Wrote::Failed(failed.item.clone())),
                    _ => target.classify(Err(error), &stamp),
                },
            }
        }));
        wrote.map_err(|error| match error {
            // An attribute that the update raises or adds to may be damaged, which the row shows.
            DynamodbError::Own(Own::Invalid { .. }, _) => match self.look(&key, by) {
                Err(damage @ DynamodbError::Damaged(_)) => damage,
                _ => error,
            },
            error => error,
        })
    }

    /// Does one `DeleteItem`; the update of `expr` is not used.
    pub(super) fn delete(&self, expr: Expr, by: &Deadline) -> Result<Wrote, DynamodbError> {
        unknown_is_an_answer(self.send(by, move |client, stamp, target| async move {
            let request = client
                .delete_item()
                .table_name(&target.table)
                .set_key(Some(target.place(&expr.key)))
                .condition_expression(&expr.condition)
                .set_expression_attribute_names(Some(expr.names(&target.partition_key)))
                .set_expression_attribute_values(Some(expr.values()))
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
            match request.customize().interceptor(stamp.clone()).send().await {
                Ok(_) => Ok(Wrote::Done(None)),
                Err(error) => match error.as_service_error() {
                    Some(
                        aws_sdk_dynamodb::operation::delete_item::DeleteItemError::ConditionalCheckFailedException(
                            failed,
                        ),
                    ) => Ok(Wrote::Failed(failed.item.clone())),
                    _ => target.classify(Err(error), &stamp),
                },
            }
        }))
    }
}

/// A write whose fate is unknown is an answer; an error says that nothing was written.
fn unknown_is_an_answer(answer: Answer<Wrote>) -> Result<Wrote, DynamodbError> {
    answer.or_else(|(fate, error)| match fate {
        Fate::Unknown => Ok(Wrote::Unknown(error)),
        _ => Err(error),
    })
}
