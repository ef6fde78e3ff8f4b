//! Leader election.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::callback::{Callback, Gate};
use super::client::{Client, ClientHandle};
use super::code::Code;
use super::failure::Failure;
use super::{Outcome, call, handle, millis, out_arg, text, text_arg};
use crate::CancelToken;
use crate::api::election::{Election, Leader, TermEnd};
use crate::model::error::{Error, ErrorKind};
use crate::sys::drop_bound::DropBound;

/// An election, which is built when it is first used.
pub struct ElectionData {
    options: Mutex<Options>,
    built: Mutex<Option<Arc<Election>>>,
    /// Ends the campaigns of calls that are still inside, or about to begin.
    freed: CancelToken,
    gate: Arc<Gate>,
}

handle::object!(ElectionData = 9, ElectionHandle, "election");

/// A node of an election: of all nodes that campaign, at most one leads at a time. Free it with
/// leasehold_election_free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionHandle {
    pub id: u64,
}

struct Options {
    client: Arc<Client>,
    name: String,
    id: Option<String>,
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    once: bool,
    on_won: Option<Callback<WonFn>>,
    on_lost: Option<Callback<LostFn>>,
    on_leader: Option<Callback<LeaderFn>>,
    health_check: Option<Callback<HealthFn>>,
}

type WonFn = unsafe extern "C" fn(token: u64, user: *mut c_void);
type LostFn = unsafe extern "C" fn(token: u64, text: *const c_char, text_len: usize, user: *mut c_void);

type LeaderFn = unsafe extern "C" fn(token: u64, id: *const c_char, id_len: usize, user: *mut c_void);
/// Not `bool`: a function of another language may return any byte, and a `bool` other than 0 and 1 is undefined in
/// Rust.
type HealthFn = unsafe extern "C" fn(user: *mut c_void) -> u8;

/// Called with the fencing token of a leader's term, the leader's name, and the `user` pointer that was given. The text
/// ends in a NUL that its length leaves out, and is only there during the callback.
pub type OnLeader = Option<unsafe extern "C" fn(token: u64, id: *const c_char, id_len: usize, user: *mut c_void)>;

/// Called with the `user` pointer that was given; answers whether this node is healthy enough to lead.
pub type HealthCheck = Option<unsafe extern "C" fn(user: *mut c_void) -> bool>;

/// Called with the fencing token of a term that was won, and the `user` pointer that was given.
pub type OnWon = Option<unsafe extern "C" fn(token: u64, user: *mut c_void)>;

/// Called with the fencing token of a term that is over, a text for people that says how it ended, and the `user`
/// pointer that was given. The text ends in a NUL that its length leaves out, and is only there during the callback.
pub type OnLost = Option<unsafe extern "C" fn(token: u64, text: *const c_char, text_len: usize, user: *mut c_void)>;

impl ElectionData {
    fn set(&self, set: impl FnOnce(&mut Options)) -> Outcome {
        // Locked until the end, so that no other call builds the election meanwhile.
        let built = self.built.lock();
        if built.is_some() {
            return Err(self.error(ErrorKind::InvalidInput, "the election was used already").into());
        }
        set(&mut self.options.lock());
        Ok(())
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        let options = self.options.lock();
        options.client.api.error(kind, &options.name, message)
    }

    /// Whether no callback begins any more.
    #[cfg(all(test, feature = "_internals"))]
    pub fn is_closed(&self) -> bool {
        self.gate.pass(|| ()).is_none()
    }

    /// Returns the election, and builds it if that was not done yet.
    fn election(&self) -> Result<Arc<Election>, Failure> {
        let mut built = self.built.lock();
        if let Some(election) = &*built {
            return Ok(election.clone());
        }
        let options = self.options.lock();
        let mut builder = options.client.api.election(&options.name).stand_again(!options.once).cancel(&self.freed);
        if let Some(id) = &options.id {
            builder = builder.id(id.as_str());
        }
        if let Some(lease) = options.lease {
            builder = builder.lease(lease);
        }
        if let Some(max_hold) = options.max_hold {
            builder = builder.max_hold(max_hold);
        }
        if let Some(callback) = options.on_won {
            let gate = self.gate.clone();
            builder = builder.on_won(move |token| {
                let Callback { function, user } = { callback };
                // SAFETY: the program that set it promised that it may be called until the election is freed; freeing
                // closes the gate.
                gate.pass(|| unsafe { function(token, user) });
            });
        }
        if let Some(callback) = options.on_lost {
            let gate = self.gate.clone();
            builder = builder.on_lost(move |token, end: &TermEnd| {
                let Callback { function, user } = { callback };
                let text = format!("{end}\0");
                // SAFETY: as above; the text lives until it returns.
                gate.pass(|| unsafe { function(token, text.as_ptr().cast(), text.len() - 1, user) });
            });
        }
        if let Some(callback) = options.on_leader {
            let gate = self.gate.clone();
            builder = builder.on_leader(move |leader: &Leader| {
                let Callback { function, user } = { callback };
                let id = format!("{}\0", leader.id());
                let token = leader.fencing_token();
                // SAFETY: as above; the text lives until it returns.
                gate.pass(|| unsafe { function(token, id.as_ptr().cast(), id.len() - 1, user) });
            });
        }
        if let Some(callback) = options.health_check {
            let gate = self.gate.clone();
            builder = builder.health_check(move || {
                let Callback { function, user } = { callback };
                // SAFETY: as above.
                // A leadership outlives its election. A check that can't be called any more counts as healthy.
                gate.pass(|| unsafe { function(user) }).is_none_or(|is_healthy| is_healthy != 0)
            });
        }
        let election = Arc::new(builder.build()?);
        *built = Some(election.clone());
        Ok(election)
    }
}

pub fn find(election: ElectionHandle) -> Result<Arc<Election>, Failure> {
    handle::get::<ElectionData>(election)?.election()
}

fn set(election: ElectionHandle, set: impl FnOnce(&mut Options)) -> Outcome {
    handle::get::<ElectionData>(election)?.set(set)
}

/// Makes a node for the election of this name, which is also the key of the leader's lock. Nothing is sent to the store
/// yet. Call the functions that set something before all others: after those they return LEASEHOLD_CODE_INVALID_INPUT.
/// \param name `name_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
/// \param election Gets the election.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_new(
    client: ClientHandle,
    name: *const c_char,
    name_len: usize,
    election: *mut ElectionHandle,
) -> Code {
    call(|| {
        let (name, election) = (text_arg!(name, name_len).to_owned(), out_arg!(election));
        let client = handle::get::<Client>(client)?;
        let (id, lease, max_hold, on_won, on_lost) = (None, None, None, None, None);
        let (on_leader, health_check) = (None, None);
        let options =
            Options { client, name, id, lease, max_hold, once: false, on_won, on_lost, on_leader, health_check };
        let options = Mutex::new(options);
        let data = ElectionData { options, built: Mutex::default(), freed: CancelToken::new(), gate: Arc::default() };
        election.write(handle::insert(data)?)
    })
}

/// The name by which others see this node when it leads: 1 to 1,024 bytes. Defaults to the client's owner.
/// \param id `id_len` bytes of UTF-8; with SIZE_MAX it ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_election_set_id(election: ElectionHandle, id: *const c_char, id_len: usize) -> Code {
    call(|| {
        let id = text_arg!(id, id_len).to_owned();
        set(election, |options| options.id = Some(id))
    })
}

/// For how many milliseconds a leader leads without a renewal, at least 1,000. When a leader dies, another node can win
/// this much later. Defaults to the client's lease.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_election_set_lease(election: ElectionHandle, ms: u64) -> Code {
    call(|| set(election, |options| options.lease = Some(millis(ms))))
}

/// Ends a term after `ms` milliseconds, so that others get their turn. Defaults to no limit.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_election_set_max_hold(election: ElectionHandle, ms: u64) -> Code {
    call(|| set(election, |options| options.max_hold = Some(millis(ms))))
}

/// Ends leasehold_election_run after one term. Defaults to campaigning again after each term.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_election_set_once(election: ElectionHandle) -> Code {
    call(|| set(election, |options| options.once = true))
}

/// Sets a function that is called when this node has won a term, with the term's fencing token and `user`. The
/// callbacks of an election run on one thread of the library's, one after the other, and each "won" is followed by one
/// "lost" before the next "won". They may call every function of this header, and must return: no exception, longjmp()
/// or pthread_exit(). Once leasehold_election_free has returned, none of them is running or is called any more, unless
/// one of them freed the election; then `user` can be freed. NULL for none, which is the default.
/// \param on_won Any thread may call it with `user` until the election is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_election_set_on_won(
    election: ElectionHandle,
    on_won: OnWon,
    user: *mut c_void,
) -> Code {
    call(|| {
        let callback = on_won.map(|function| Callback { function, user });
        set(election, |options| options.on_won = callback)
    })
}

/// Sets a function that is called when a term that this node had won is over. See leasehold_election_set_on_won.
/// \param on_lost Any thread may call it with `user` until the election is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_election_set_on_lost(
    election: ElectionHandle,
    on_lost: OnLost,
    user: *mut c_void,
) -> Code {
    call(|| {
        let callback = on_lost.map(|function| Callback { function, user });
        set(election, |options| options.on_lost = callback)
    })
}

/// Sets a function that is called when this node sees a new leader, itself included, while it campaigns or leads. See
/// leasehold_election_set_on_won.
/// \param on_leader Any thread may call it with `user` until the election is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_election_set_on_leader(
    election: ElectionHandle,
    on_leader: OnLeader,
    user: *mut c_void,
) -> Code {
    call(|| {
        let callback = on_leader.map(|function| Callback { function, user });
        set(election, |options| options.on_leader = callback)
    })
}

/// Sets a function that answers whether this node is healthy enough to lead: it is called on a thread of its own before
/// the node campaigns, and every third of the lease while it leads. When it answers false, or not within a lease, the
/// node resigns, and campaigns again once it answers true. The work of leasehold_election_lead must end before the node
/// resigns: while it runs, no other node leads. A call inside the health check that stops or frees the election waits
/// in vain for the check's answer, for at most the drop timeout. The other rules are those of
/// leasehold_election_set_on_won. NULL for always healthy, which is the default.
/// \param health_check Any thread may call it with `user` until the election is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leasehold_election_set_health_check(
    election: ElectionHandle,
    health_check: HealthCheck,
    user: *mut c_void,
) -> Code {
    call(|| {
        // SAFETY: the types differ in what they return, and C passes a `bool` and a `u8` in the same way.
        let function = unsafe { std::mem::transmute::<HealthCheck, Option<HealthFn>>(health_check) };
        let callback = function.map(|function| Callback { function, user });
        set(election, |options| options.health_check = callback)
    })
}

/// Starts a thread that campaigns, and again after each term, until leasehold_election_stop; returns at once.
/// Errors of the store do not end it. LEASEHOLD_CODE_ALREADY_HELD when this node already campaigns or leads.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn leasehold_election_run(election: ElectionHandle) -> Code {
    call(|| Ok(find(election)?.run()?))
}

/// leasehold_election_run that calls a function whenever this node has won, on a thread of its own: the work of the
/// leader. While it runs, this node neither campaigns again nor lets others lead, unless the lock is lost; so it should
/// look at leasehold_election_is_leader and return soon after that became false. When it returns while this node leads,
/// the node resigns, and campaigns again after a moment, or ends with leasehold_election_set_once. It may call every
/// function of this header; freeing the election inside it does not wait for it. It must return: no exception,
/// longjmp() or pthread_exit(). Once leasehold_election_free has returned, it is not running and is not called any
/// more, unless it freed the election.
/// \param work Any thread may call it with the fencing token of the term and `user` until the election is freed.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_lead(election: ElectionHandle, work: OnWon, user: *mut c_void) -> Code {
    call(|| {
        let none = || Failure::new(Code::NullPointer, "work is NULL");
        let callback = Callback { function: work.ok_or_else(none)?, user };
        let gate = handle::get::<ElectionData>(election)?.gate.clone();
        Ok(find(election)?.lead(move |leadership| {
            let Callback { function, user } = { callback };
            let token = leadership.fencing_token();
            // SAFETY: the program that gave it promised that it may be called until the election is freed; freeing
            // closes the gate.
            gate.pass(|| unsafe { function(token, user) });
        })?)
    })
}

/// Writes whether this node leads. It does not wait and does not ask the store. No other node can win while it is true,
/// unless somebody takes the lock away: see leasehold_guard_is_held.
/// \param leader Gets the answer; false when the call fails.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_is_leader(election: ElectionHandle, leader: *mut bool) -> Code {
    call(|| {
        let leader = out_arg!(leader).or(false);
        leader.write(find(election)?.is_leader())
    })
}

/// The fencing token of the term while this node leads, otherwise LEASEHOLD_CODE_LOST. Does not ask the store.
/// \param token Gets the fencing token.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_token(election: ElectionHandle, token: *mut u64) -> Code {
    call(|| {
        let token = out_arg!(token);
        let election = handle::get::<ElectionData>(election)?;
        let none = || election.error(ErrorKind::Lost, "this node does not lead");
        token.write(election.election()?.fencing_token().ok_or_else(none)?)
    })
}

/// Asks the store who leads, and gives that node's name and the fencing token of its term. LEASEHOLD_CODE_NOT_FOUND
/// when nobody leads. Each call asks anew, so give room for 1,025 bytes, the longest name and a NUL, rather than ask
/// for the length first.
/// \param token Gets the fencing token.
/// \param buffer Gets the text, and `len` its length: as every text, see the top.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn leasehold_election_leader(
    election: ElectionHandle,
    token: *mut u64,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Code {
    call(|| {
        let token = out_arg!(token);
        let election = handle::get::<ElectionData>(election)?;
        let none = || election.error(ErrorKind::InvalidInput, "nobody leads");
        let leader = election.election()?.leader()?.ok_or_else(|| Failure::with_code(none(), Code::NotFound))?;
        // SAFETY: passed on from the caller.
        unsafe { text::write(leader.id(), buffer, capacity, len) }?;
        token.write(leader.fencing_token())
    })
}

/// Waits, without limit, until the thread that leasehold_election_run started is over: after leasehold_election_stop or
/// leasehold_client_close, or after one term with leasehold_election_set_once. Returns at once if it was not started.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_election_wait(election: ElectionHandle) -> Code {
    call(|| {
        find(election)?.wait();
        Ok(())
    })
}

/// Ends this node's campaign, and resigns if it leads, so that the next node need not wait for the lease's end. Waits
/// for the work and for the store for at most the drop timeout. The node can campaign again later.
/// LEASEHOLD_CODE_TIMED_OUT when the work did not end in time: the lock is then not released, and ends with its lease.
/// LEASEHOLD_CODE_LOST when the term was lost already, which a program can ignore at its shutdown.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_election_stop(election: ElectionHandle) -> Code {
    call(|| Ok(find(election)?.stop()?))
}

/// Frees the election, and stops what leasehold_election_run started, within the client's drop timeout. Other threads
/// may be inside calls: their leasehold_election_campaign returns LEASEHOLD_CODE_CANCELLED. A leadership that was given
/// before goes on. If a callback of this election is running on another thread, this waits until it has returned,
/// however long that takes: see leasehold_guard_free.
#[unsafe(no_mangle)]
pub extern "C" fn leasehold_election_free(election: ElectionHandle) -> Code {
    call(|| {
        // The drop of what goes with the election, which may be the client, has the same bound.
        let mut drop_bound = DropBound::default();
        let election = handle::remove::<ElectionData>(election)?;
        election.freed.cancel();
        let built = election.built.lock().take();
        if let Some(built) = &built {
            drop_bound.begin(built.drop_by());
            built.end_quietly();
        }
        election.gate.close();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::super::wait_until;
    use super::*;
    use crate::LockClient;

    /// A node with a store of its own, its election as a call that is inside has it, and a client of the same store.
    fn node() -> (ElectionHandle, Arc<Election>, LockClient) {
        node_with(|_| Code::Ok)
    }

    fn node_with(set: impl FnOnce(ElectionHandle) -> Code) -> (ElectionHandle, Arc<Election>, LockClient) {
        let made = LockClient::connect("memory:").map_err(Failure::from).and_then(|client| {
            let (name, mut election) = ("job", ElectionHandle::default());
            let of = handle::insert(Client::new(client.clone(), None))?;
            // SAFETY: a text, and a place that can be written to.
            let code = unsafe { leasehold_election_new(of, name.as_ptr().cast(), name.len(), &mut election) };
            assert_eq!((code, set(election)), (Code::Ok, Code::Ok));
            handle::remove::<Client>(of)?;
            Ok((election, find(election)?, client))
        });
        made.unwrap_or_else(|failure| panic!("{:?}", super::super::failure::keep(failure)))
    }

    fn kind<T>(answer: Result<T, Error>) -> Option<ErrorKind> {
        answer.err().map(|error| error.kind())
    }

    #[test]
    fn freeing_stops_a_node_that_another_call_is_inside() {
        let (election, inside, client) = node();
        assert_eq!(leasehold_election_run(election), Code::Ok);
        wait_until(|| inside.is_leader());
        assert_eq!(leasehold_election_free(election), Code::Ok);
        assert!(!inside.is_leader() && !inside.is_standing(), "it goes on leading");
        assert!(matches!(client.try_lock("job"), Ok(Some(_))), "it did not resign");
        // A call that found the election before it was freed, and campaigns afterwards.
        assert_eq!(kind(inside.campaign()), Some(ErrorKind::Cancelled));
        assert_eq!(kind(inside.run()), None);
        inside.wait();
        assert_eq!(inside.terms(), 1);
    }

    #[test]
    fn freeing_leaves_a_leadership_that_was_given_whatever_its_health_check_would_say() {
        extern "C" fn is_well(_: *mut c_void) -> bool {
            true
        }
        let (election, inside, _client) = node_with(|election| {
            assert_eq!(leasehold_election_set_lease(election, 3_000), Code::Ok);
            // SAFETY: it takes no data.
            unsafe { leasehold_election_set_health_check(election, Some(is_well), std::ptr::null_mut()) }
        });
        let leadership = inside.campaign().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(leasehold_election_free(election), Code::Ok);
        let before = inside.iterations();
        wait_until(|| inside.iterations() > before + 3);
        assert!(leadership.is_leader(), "it was taken for unwell");
    }

    /// In other languages `true` need not be 1.
    #[test]
    fn any_byte_but_zero_is_healthy() {
        extern "C" fn is_well(_: *mut c_void) -> u8 {
            4
        }
        // SAFETY: as in `leasehold_election_set_health_check`, which takes it back.
        let is_well = unsafe { std::mem::transmute::<HealthFn, unsafe extern "C" fn(*mut c_void) -> bool>(is_well) };
        let (election, inside, _client) = node_with(|election| {
            // SAFETY: it takes no data.
            unsafe { leasehold_election_set_health_check(election, Some(is_well), std::ptr::null_mut()) }
        });
        let led = inside.campaign_for(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{error}"));
        drop(led);
        assert_eq!(leasehold_election_free(election), Code::Ok);
    }

    #[test]
    fn freeing_ends_a_campaign() {
        let (election, inside, client) = node();
        let held = client.lock("job");
        let campaigns = inside.clone();
        let campaign = std::thread::spawn(move || (kind(campaigns.campaign()), campaigns.terms()));
        wait_until(|| inside.iterations() > 0);
        assert_eq!(leasehold_election_free(election), Code::Ok);
        drop(held);
        assert!(matches!(campaign.join(), Ok((Some(ErrorKind::Cancelled), 0))), "it went on and won");
    }
}
