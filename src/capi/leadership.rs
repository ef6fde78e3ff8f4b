//! Terms as the leader, for which C waits.

use std::time::Duration;

use parking_lot::RwLock;

use super::callback::Gate;
use super::code::Code;
use super::election::{ElectionHandle, find};
use super::failure::{Failure, about};
use super::guard::wait_loss;
use super::{as_millis, call, handle, millis, out_arg};
use crate::LossWatch;
use crate::api::election::Leadership;
use crate::model::error::ErrorKind;
use crate::model::lock::Lock;

/// A term as the leader, which stays readable after it was resigned.
pub struct LeadershipData {
    leadership: RwLock<Option<Leadership>>,
    /// One thread at a time ends it. No mutex: a callback of the call that ends it may try to end it, too.
    ending: Gate,
    /// How long a drop may take.
    drop_timeout: Duration,
    granted: Lock,
    loss: LossWatch,
    /// See `LockGuard::expiry`. Called without the lock on `leadership`, because a callback may resign.
    expire: Box<dyn Fn() + Send + Sync>,
}

handle::object!(LeadershipData = 10, LeadershipHandle, "leadership");

/// A term as the leader. Free it with leasehold_leadership_free, which resigns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeadershipHandle {
    pub id: u64,
}

impl LeadershipData {
    pub(super) fn won(won: Leadership) -> Result<LeadershipHandle, Failure> {
        let (granted, loss, expire) = (won.guard().info(), won.loss(), Box::new(won.guard().expiry()));
        let (ending, drop_timeout) = (Gate::default(), won.guard().drop_by().remaining());
        handle::insert(LeadershipData {
            leadership: RwLock::new(Some(won)),
            ending,
            drop_timeout,
            granted,
            loss,
            expire,
        })
    }

    fn ended(&self) -> Failure {
        about(&self.granted, ErrorKind::Closed, "the leadership was resigned already").into()
    }

    fn ask<T>(&self, ask: impl FnOnce(&Leadership) -> T) -> Option<T> {
        self.leadership.try_read().and_then(|leadership| leadership.as_ref().map(ask))
    }
}

/// Waits, without limit, until this node leads, and gives the term: use this or leasehold_election_run.
/// leasehold_election_stop or leasehold_election_free on another thread ends the wait with LEASEHOLD_CODE_CANCELLED.
/// \param leadership Gets the term.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_campaign(
    election: ElectionHandle,
    leadership: *mut LeadershipHandle,
) -> Code {
    call(|| {
        let leadership = out_arg!(leadership);
        leadership.write(LeadershipData::won(find(election)?.campaign()?)?)
    })
}

/// leasehold_election_campaign that waits for at most `wait_ms` milliseconds; with 0 it tries once.
/// LEASEHOLD_CODE_TIMED_OUT when this node does not lead by then: leasehold_error_holder says who does, if the store
/// was asked.
/// \param leadership Gets the term.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_campaign_for(
    election: ElectionHandle,
    wait_ms: u64,
    leadership: *mut LeadershipHandle,
) -> Code {
    call(|| {
        let leadership = out_arg!(leadership);
        leadership.write(LeadershipData::won(find(election)?.campaign_for(millis(wait_ms))?)?)
    })
}

/// Writes whether this node still leads. It does not wait and does not ask the store. No other node can win while it is
/// true, unless somebody takes the lock away: see leasehold_guard_is_held. Once false it stays false.
/// \param leader Gets the answer; false when the call fails.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leadership_is_leader(leadership: LeadershipHandle, leader: *mut bool) -> Code {
    call(|| {
        let leader = out_arg!(leader).or(false);
        let leadership = handle::get::<LeadershipData>(leadership)?;
        leader.write(leadership.ask(Leadership::is_leader).unwrap_or(false))
    })
}

/// The fencing token of the term: greater than that of every earlier term of the election.
/// \param token Gets the fencing token.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leadership_token(leadership: LeadershipHandle, token: *mut u64) -> Code {
    call(|| {
        let token = out_arg!(token);
        token.write(handle::get::<LeadershipData>(leadership)?.granted.fencing_token())
    })
}

/// How many milliseconds this node goes on leading if no further renewal succeeds, and no more than
/// leasehold_election_set_max_hold allows; 0 when it does not lead.
/// \param ms Gets the milliseconds.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_leadership_remaining(leadership: LeadershipHandle, ms: *mut u64) -> Code {
    call(|| {
        let ms = out_arg!(ms);
        ms.write(handle::get::<LeadershipData>(leadership)?.ask(Leadership::remaining).map_or(0, as_millis))
    })
}

/// Waits until the leadership is lost, which is LEASEHOLD_CODE_OK. LEASEHOLD_CODE_TIMED_OUT when that did not happen
/// within `ms` milliseconds, LEASEHOLD_CODE_CLOSED once this node has resigned, or its client was closed.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_leadership_wait_loss(leadership: LeadershipHandle, ms: u64) -> Code {
    call(|| {
        let leadership = handle::get::<LeadershipData>(leadership)?;
        wait_loss(&leadership.loss, &leadership.granted, ms, || (leadership.expire)())
    })
}

/// Gives the leadership up within the client's drop timeout, so that the next node need not wait for the lease's end.
/// LEASEHOLD_CODE_LOST when the term was lost before, LEASEHOLD_CODE_CLOSED when this node has resigned already (also
/// by leasehold_election_stop or a close of the client), or while another thread is still resigning. The leadership
/// stays yours to free.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_leadership_resign(leadership: LeadershipHandle) -> Code {
    call(|| {
        let leadership = handle::get::<LeadershipData>(leadership)?;
        let _ending = leadership.ending.alone_within(leadership.drop_timeout).ok_or_else(|| leadership.ended())?;
        let held = leadership.leadership.write().take();
        let held = held.ok_or_else(|| leadership.ended())?;
        if held.resigned()? { Ok(()) } else { Err(leadership.ended()) }
    })
}

/// Frees the leadership, and resigns if this node still leads, within the client's drop timeout.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_leadership_free(leadership: LeadershipHandle) -> Code {
    call(|| {
        let leadership = handle::remove::<LeadershipData>(leadership)?;
        let _ending = leadership.ending.alone_within(leadership.drop_timeout);
        let held = leadership.leadership.write().take();
        drop(held);
        Ok(())
    })
}
