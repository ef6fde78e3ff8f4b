//! Undoes a grant whose own answer contradicts the time by which it was decided.

use super::Dynamodb;
use super::error::{DynamodbError, Own};
use super::estimate::Moment;
use super::expr::{Expr, Item};
use super::row::DecodedRow;
use super::send::Wrote;
use crate::lease::{Ask, End, Holder, Lease, LockRecord, Mode, StoreTime};
use crate::store::{Acquired, Attempt};
use crate::sys::deadline::Deadline;
use crate::sys::log;

/// Kept in an attempt: the row as it was before a grant that may have to be undone.
#[derive(Debug)]
pub(super) struct Doubted(Option<Item>);

/// Kept in an attempt: of all times by which it was sent without an answer, the one that is the furthest ahead, since
/// any of the copies may be the one that was granted.
#[derive(Debug)]
pub(super) struct Unanswered {
    moment: Moment,
    /// The latest `expired_before` of these times: if a copy replaced a holder, the lease of that holder ended by then.
    expired_before: StoreTime,
}

impl Unanswered {
    fn of(attempt: &Attempt) -> Option<&Unanswered> {
        attempt.native.as_ref()?.downcast_ref()
    }

    /// Notes in the attempt one more time by which it was sent without an answer.
    pub fn note(attempt: &mut Attempt, sent: Moment) {
        let (mut moment, mut expired_before) = (sent, sent.times().expired_before);
        if let Some(before) = Unanswered::of(attempt) {
            expired_before = expired_before.max(before.expired_before);
            moment = if before.moment.is_ahead_of(&moment) { before.moment } else { moment };
        }
        attempt.native = Some(Box::new(Unanswered { moment, expired_before }));
    }
}

impl Dynamodb {
    /// Whether an unanswered grant was decided by a time that had not come yet: it may have replaced a live holder, and
    /// it is unknown which one. A transfer replaces its own grant, whatever the time.
    pub(super) fn was_early(attempt: &Attempt, moment: &Moment) -> bool {
        let sent = Unanswered::of(attempt);
        attempt.ask.instead_of.is_none() && sent.is_some_and(|sent| moment.was_behind(&sent.moment))
    }

    /// Leaves such a grant in the row, unused, until the holder that it replaced has learned of its loss: for one lease
    /// from now on, and at least until that holder's lease has also ended by the right time.
    pub(super) fn lapsing(&self, attempt: &Attempt, found: &DecodedRow, moment: &Moment) -> Expr {
        let mut next = found.record.clone();
        let replaced = Unanswered::of(attempt).map_or(moment.now, |sent| sent.expired_before);
        let lease = Lease::For(attempt.ask.lease).end(moment.now).max(End::At(replaced));
        for holder in next.exclusive.iter_mut().chain(&mut next.shared).filter(|h| h.grant == *attempt.grant()) {
            holder.until = holder.until.min(lease);
        }
        next.given_up.insert(attempt.grant().clone());
        self.whole(found, &next, moment)
    }

    /// The row as it was before this attempt was granted, if an earlier call could not finish undoing the grant.
    pub(super) fn doubted(attempt: &mut Attempt) -> Option<Option<Item>> {
        let native = attempt.native.take_if(|native| native.is::<Doubted>())?;
        native.downcast::<Doubted>().ok().map(|doubted| doubted.0)
    }

    /// Reads the row, and gives the key back to the live holders that were replaced, if there are any.
    pub(super) fn settle_doubt(&self, attempt: &mut Attempt, old: Option<Item>, by: &Deadline) -> Acquired {
        let answer = self.give_back(attempt, old.as_ref(), by);
        let answer = answer.unwrap_or_else(|error| Acquired::Unknown(error.of_write().into()));
        attempt.native = None;
        if matches!(answer, Acquired::Unknown(_)) {
            attempt.native = Some(Box::new(Doubted(old)));
        }
        answer
    }

    fn give_back(&self, attempt: &Attempt, old: Option<&Item>, by: &Deadline) -> Result<Acquired, DynamodbError> {
        let (key, ask) = (&attempt.key, &attempt.ask);
        // A damaged row had no holder that can be given the key back.
        let old = DecodedRow::new(key, old.cloned()).map_or_else(|_| LockRecord::missing(key), |found| found.record);
        loop {
            let moment = self.confirmed_moment(by)?;
            let found = self.look(key, by)?;
            let Some((_, mine)) = found.record.standing(&ask.grant) else {
                return Ok(Acquired::Refused(found.seen(&moment)));
            };
            let mut wronged = old.live(moment.times().expired_before).filter(|(mode, other)| {
                found.record.standing(&other.grant).is_none() && !is_replaced(ask, *mode, other)
            });
            let mut next = found.record.clone();
            let Some(first) = wronged.next() else {
                if moment.is_unconfirmed() {
                    return Err(DynamodbError::Own(Own::Untold, None));
                }
                let most = Lease::For(ask.lease).end(moment.now.plus(self.grace_now().own));
                let holder = Holder { until: mine.until.min(most), ..mine.clone() };
                let granted = Acquired::Granted { holder: holder.clone(), repeated: false, now: moment.upper_bound() };
                // If the grant was made by a time that was ahead, it would remain for too long if this process died
                // now: no renewal moves an end back.
                let is_late = holder.until < mine.until && !moment.is_doubted();
                if is_late {
                    let all = next.exclusive.iter_mut().chain(&mut next.shared);
                    all.filter(|other| other.grant == ask.grant).for_each(|mine| mine.until = holder.until);
                    match self.update(self.whole(&found, &next, &moment), by)? {
                        Wrote::Done(_) => {}
                        Wrote::Unknown(error) => return Ok(Acquired::Unknown(error.into())),
                        Wrote::Failed(_) => continue,
                    }
                }
                return Ok(granted);
            };
            next.token = match first {
                _ if next.token == mine.token => old.token,
                // A join compares the token alone, and a join that is on its way has not counted the holders that are
                // put back.
                (Mode::Shared, _) => next.token.saturating_add(1),
                (Mode::Exclusive, _) => next.token,
            };
            next.exclusive.take_if(|holder| holder.grant == ask.grant);
            next.shared.retain(|holder| holder.grant != ask.grant);
            // Others that share the lock by now stay. A replaced exclusive holder is then not put back, and learns that
            // it lost the lock.
            let is_shared = !next.shared.is_empty();
            for (mode, holder) in [first].into_iter().chain(wronged) {
                match mode {
                    Mode::Exclusive if is_shared => {}
                    Mode::Exclusive => next.exclusive = Some(holder.clone()),
                    Mode::Shared => next.shared.push(holder.clone()),
                }
            }
            next.given_up.insert(ask.grant.clone());
            match self.update(self.whole(&found, &next, &moment), by)? {
                Wrote::Done(_) => {
                    log::warn!(target: "leasehold::dynamodb", key:?;
                        "a grant was undone: the clock of this host or of the service has jumped");
                    return Ok(Acquired::Refused(DecodedRow { record: next, row: found.row }.seen(&moment)));
                }
                Wrote::Unknown(error) => return Ok(Acquired::Unknown(error.into())),
                Wrote::Failed(_) => {}
            }
        }
    }
}

/// Whether the request asked to replace this holder, live or not.
fn is_replaced(ask: &Ask, mode: Mode, holder: &Holder) -> bool {
    let is_owner = ask.replace_same_owner && mode == Mode::Exclusive && holder.labels.owner == ask.labels.owner;
    is_owner || ask.instead_of.as_ref().is_some_and(|(old, _)| *old == holder.grant)
}
