//! Every state that a few acquisitions of one key can reach, breadth first: each request is sent
//! or not, arrives at any later times, often or never, and is answered or not. A client that
//! does nothing more has crashed.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::support::asks::*;
use crate::support::steps::{Answer, Request, apply};
use leasehold::internals::lease::{
    AcquireAnswer, Ask, End, Labels, Lease, LockRecord, Mode, RenewAnswer, Times, transition,
};

const GRACE: i8 = 2;
const LEASE_TICKS: i8 = 2;
/// How far each client's estimate of the store's time is off.
const SKEW: [i8; 3] = [-1, 1, 0];

/// A request of one acquisition.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Acquire,
    Renew,
    Release,
    GiveUp,
}
const ALL: [What; 4] = [What::Acquire, What::Renew, What::Release, What::GiveUp];

/// All times are relative to now, and what can no longer matter is forgotten. So the number of states is finite,
/// however long it goes on and however often a request arrives.
#[derive(Clone, PartialEq, Eq)]
struct State {
    record: LockRecord,
    clients: Vec<Client>,
}

/// Hashes only the fields in which most states differ: hashing all their texts took longer than the steps themselves.
impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for Client { sent: [acquire, renew, release, give_up], held_for, over } in &self.clients {
            let [a, b, c, d, e] =
                [acquire, renew, release, give_up, held_for].map(|ticks| ticks.map_or(0xff, |n| n as u8));
            u64::from_le_bytes([a, b, c, d, e, u8::from(*over), 0, 0]).hash(state);
        }
        for (_, holder) in self.record.holders() {
            (holder.token, holder.until).hash(state);
        }
        self.record.given_up.len().hash(state);
    }
}

#[derive(Clone, PartialEq, Eq, Default)]
struct Client {
    /// How many ticks ago each request was sent.
    sent: [Option<i8>; 4],
    /// For how many more ticks the client holds the key, as far as it knows.
    held_for: Option<i8>,
    /// The client stopped, or a takeover that was asked for replaced its grant.
    over: bool,
}

struct Search {
    asks: Vec<Ask>,
}

impl Search {
    /// Visits every state and returns their number.
    fn run(&self) -> usize {
        let clients = vec![Client::default(); self.asks.len()];
        let first = Arc::new(State { record: LockRecord::missing("k"), clients });
        let mut seen = HashSet::from([first.clone()]);
        let mut level = vec![first];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        while !level.is_empty() {
            let followers = |states: &[Arc<State>]| -> Vec<Arc<State>> {
                states.iter().flat_map(|state| self.followers(state)).map(|state| Arc::new(normal(state))).collect()
            };
            let found: Vec<_> = std::thread::scope(|scope| {
                let parts = level.chunks(level.len().div_ceil(threads)).map(|part| scope.spawn(|| followers(part)));
                let parts: Vec<_> = parts.collect();
                parts.into_iter().flat_map(|part| part.join().expect("no step panics")).collect()
            });
            level = found.into_iter().filter(|state| seen.insert(state.clone())).collect();
            level.iter().for_each(|state| self.check(state));
        }
        seen.len()
    }

    fn followers(&self, state: &State) -> Vec<State> {
        let mut all = vec![tick(state)];
        for (i, client) in state.clients.iter().enumerate() {
            for what in ALL {
                if client.sent[what as usize].is_some() {
                    all.extend(self.deliver(state, i, what));
                } else if may_send(client, what) {
                    all.push(send(state, i, what));
                }
            }
        }
        all
    }

    /// The next states where the request is answered, and where it is not.
    fn deliver(&self, state: &State, i: usize, what: What) -> [State; 2] {
        let mut next = state.clone();
        let ask = &self.asks[i];
        let grant = ask.grant.clone();
        let request = match what {
            What::Acquire => Request::Acquire(known(ask, &state.record)),
            What::Renew => Request::Renew { grant, lease: Lease::For(ask.lease), may_end_endless: false },
            What::Release => Request::Release(grant),
            What::GiveUp => Request::GiveUp(grant),
        };
        let now = SKEW[i];
        let times = Times { expired_before: at((now - GRACE).into()), ..Times::without_grace(at(now.into()), 0) };
        let (answer, written) = apply(&state.record, &request, &times);
        if matches!(answer, Answer::Acquired(AcquireAnswer::Granted { repeated: false, .. })) {
            self.tell_replaced(&mut next, ask);
        }
        next.record = written.unwrap_or(next.record);
        let unanswered = next.clone();
        let client = &mut next.clients[i];
        // Counted from before the request was sent.
        let left = client.sent[what as usize].map_or(0, |ago| LEASE_TICKS - ago);
        match answer {
            _ if client.over => {}
            Answer::Acquired(AcquireAnswer::Granted { .. }) if left > 0 => {
                client.held_for = client.held_for.max(Some(left));
            }
            Answer::Renewed(RenewAnswer::Until(_)) => {
                client.held_for = client.held_for.map(|held| held.max(left));
            }
            Answer::Renewed(RenewAnswer::Lost) => panic!("{ask:?} was lost while its client held it"),
            _ => {}
        }
        [next, unanswered]
    }

    /// Takeovers that were asked for: transfer and Replace.
    fn tell_replaced(&self, next: &mut State, ask: &Ask) {
        for (client, other) in next.clients.iter_mut().zip(&self.asks) {
            let from = ask.instead_of.as_ref().is_some_and(|(old, _)| *old == other.grant);
            let same = ask.replace_same_owner && other.labels == ask.labels && other.grant != ask.grant;
            if (from || same) && next.record.standing(&other.grant).is_some() {
                client.held_for = None;
                client.over = true;
            }
        }
    }

    fn check(&self, state: &State) {
        let holding = || state.clients.iter().zip(&self.asks).filter(|(client, _)| client.held_for.is_some());
        for (_, ask) in holding() {
            assert!(state.record.standing(&ask.grant).is_some(), "{ask:?} is held and does not stand");
        }
        let modes: Vec<Mode> = holding().map(|(_, ask)| ask.mode).collect();
        assert!(modes.len() < 2 || !modes.contains(&Mode::Exclusive), "two hold it, one of them exclusively");
        let limit = self.asks.iter().filter_map(|ask| ask.max_holders).min();
        assert!(limit.is_none_or(|limit| modes.len() <= limit as usize), "more hold it than the limit");
        // Whatever happened, after a lease and the grace anybody can have the key.
        let later = Times { expired_before: at(100 - i64::from(GRACE)), ..Times::without_grace(at(100), 0) };
        let outsider = transition::acquire(&state.record, &exclusive("outsider"), &later);
        assert!(outsider.record.is_some(), "nobody can have it any more: {:?}", outsider.answer);
    }
}

fn tick(state: &State) -> State {
    let mut next = state.clone();
    for client in &mut next.clients {
        client.sent.iter_mut().flatten().for_each(|ago| *ago += 1);
        // A guard past its local deadline is lost and stays lost.
        client.over |= client.held_for == Some(1);
        client.held_for = client.held_for.map(|left| left - 1).filter(|left| *left > 0);
    }
    let holders = next.record.exclusive.iter_mut().chain(&mut next.record.shared);
    for holder in holders {
        holder.until = earlier(holder.until);
    }
    next
}

fn earlier(end: End) -> End {
    match end {
        End::At(end) => End::At(end.minus(ms(1))),
        End::Never => End::Never,
    }
}

/// Fills in the token of the grant that a transfer starts from, which its client knows.
fn known(ask: &Ask, record: &LockRecord) -> Ask {
    let mut ask = ask.clone();
    if let Some((old, token)) = &mut ask.instead_of {
        *token = record.standing(old).map_or(0, |(_, h)| h.token);
    }
    ask
}

/// Forgets what has no effect any more: versions, how old a dead holder is, how high tokens are.
fn normal(mut state: State) -> State {
    let record = &mut state.record;
    record.version = 1;
    let mut tokens: Vec<u64> = record.holders().map(|(_, h)| h.token).chain([record.token]).collect();
    tokens.sort();
    tokens.dedup();
    let rank = |token: u64| tokens.iter().position(|t| *t == token).map_or(0, |at| at as u64 + 1);
    record.token = rank(record.token);
    let dead = End::At(at((-GRACE).into()));
    for holder in record.exclusive.iter_mut().chain(&mut record.shared) {
        holder.token = rank(holder.token);
        (holder.created, holder.renewed) = (at(0), None);
        holder.until = holder.until.max(dead);
    }
    for client in &mut state.clients {
        let forgets = client.over;
        client.sent.iter_mut().flatten().for_each(|ago| {
            *ago = if forgets { LEASE_TICKS } else { (*ago).min(LEASE_TICKS) };
        });
    }
    state
}

/// Whether the library would send this: one acquire; a renewal while the client holds; then one way to end.
fn may_send(client: &Client, what: What) -> bool {
    let sent = |what: What| client.sent[what as usize].is_some();
    match what {
        What::Acquire => true,
        What::Renew => client.held_for.is_some(),
        What::Release => client.held_for.is_some(),
        What::GiveUp => sent(What::Acquire) && client.held_for.is_none() && !sent(What::Release),
    }
}

fn send(state: &State, i: usize, what: What) -> State {
    let mut next = state.clone();
    let client = &mut next.clients[i];
    client.sent[what as usize] = Some(0);
    if matches!(what, What::Release | What::GiveUp) {
        client.held_for = None;
        client.over = true;
    }
    next
}

fn short(ask: Ask) -> Ask {
    Ask { lease: ms(LEASE_TICKS as u64), ..ask }
}

/// The number of states is fixed: a change of the rules or of the requests must expect more or fewer, because a state
/// that is never reached is not checked.
#[track_caller]
fn search(asks: Vec<Ask>, states: usize) {
    let found = Search { asks: asks.into_iter().map(short).collect() }.run();
    assert_eq!(found, states, "as many states as there were");
}

#[test]
fn three_exclusive() {
    search(vec![exclusive("a"), exclusive("b"), exclusive("c")], 20_691);
}

#[test]
fn an_exclusive_and_two_shared() {
    search(vec![shared("a"), exclusive("b"), shared("c")], 59_254);
}

#[test]
fn two_shared_with_room_for_one() {
    search(["a", "b"].map(|name| shared_of(name, 1)).to_vec(), 1_139);
}

#[test]
fn three_shared_with_room_for_two() {
    search(["a", "b", "c"].map(|name| shared_of(name, 2)).to_vec(), 151_353);
}

#[test]
fn a_transfer_and_a_rival() {
    let transfer = Ask { instead_of: Some((grant("a"), 0)), ..exclusive("b") };
    search(vec![exclusive("a"), transfer, exclusive("c")], 13_937);
}

#[test]
fn a_replacing_owner_and_a_rival() {
    let owner = Labels::of("one");
    let a = Ask { labels: owner.clone(), ..exclusive("a") };
    let b = Ask { labels: owner, replace_same_owner: true, ..exclusive("b") };
    search(vec![a, b, exclusive("c")], 20_691);
}
