//! Random calls about leases, by two clients, on every store: each answer and what is stored afterwards must be those
//! of the pure rules. `PROPTEST_CASES` says how many histories.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::internals::lease::claim::{self, Claim, LeaseRefusal};
use leasehold::internals::lease::transition::{Step, Times};
use leasehold::internals::lease::{End, Holder, Labels, LockRecord, StoreTime};
use leasehold::{Error, ErrorKind, LeaseStatus, Leases};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::support::asks::grant;
use crate::support::regressions::config;
use crate::support::seed::setting;
use crate::support::stores::{Opened, Store, for_each_store, on, unique};

const NAMES: [&str; 2] = ["a", "b"];
const HOLDERS: [&str; 2] = ["unit/0", "unit/1"];
const ANSWERS: [&str; 6] = ["done", "Stands", "Free", "HeldByOther", "StillRuns", "Pinned"];
/// With this many further steps, each of the answers has come up with any seed.
const MOST: usize = 1_000;

#[derive(Clone, Copy, Debug)]
enum Call {
    Claim { holder: usize, duration: Duration },
    Extend { holder: usize, duration: Duration },
    Expire,
    Revoke { holder: usize },
    Pin { entity: usize },
    Unpin { entity: usize },
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Call { client: usize, name: usize, call: Call },
    TimePasses(Duration),
}

fn op() -> impl Strategy<Value = Op> {
    let seconds = |range: std::ops::Range<u64>| range.prop_map(Duration::from_secs);
    let holder = 0..HOLDERS.len();
    let call = prop_oneof![
        3 => (holder.clone(), seconds(60..240)).prop_map(|(holder, duration)| Call::Claim { holder, duration }),
        3 => (holder.clone(), seconds(60..240)).prop_map(|(holder, duration)| Call::Extend { holder, duration }),
        4 => Just(Call::Expire),
        1 => holder.clone().prop_map(|holder| Call::Revoke { holder }),
        1 => holder.clone().prop_map(|entity| Call::Pin { entity }),
        2 => holder.prop_map(|entity| Call::Unpin { entity }),
    ];
    prop_oneof![
        5 => (0..2_usize, 0..NAMES.len(), call).prop_map(|(client, name, call)| Op::Call { client, name, call }),
        2 => seconds(1..200).prop_map(Op::TimePasses),
    ]
}

macro_rules! every_answer_is_the_models_on {
    ($store:ident) => {
        #[test]
        fn $store() {
            on(stringify!($store), every_answer_is_the_models);
        }
    };
}
for_each_store!(every_answer_is_the_models_on);

fn every_answer_is_the_models(store: &Store) {
    let cases = setting("PROPTEST_CASES").unwrap_or(match store.module {
        "memory" => 100,
        "sqlite" => 25,
        _ => 8,
    });
    println!("{}: {cases} histories", store.module);
    let opened = (store.open)();
    let seen = RefCell::<BTreeMap<String, u32>>::default();
    let config = Config { cases, max_shrink_iters: 200, ..config("promises/api/lease_model.txt") };
    let histories = proptest::collection::vec(op(), 1..60);
    let mut runner = TestRunner::new(config);
    let run = runner.run(&histories, |ops| {
        let mut world = World::new(&opened, &seen);
        ops.into_iter().for_each(|op| world.step(op));
        world.ends();
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{}: {failure}", store.module));
    // A run that never got an answer of some kind proves nothing about it.
    let (mut world, mut more) = (World::new(&opened, &seen), 0..MOST);
    while let Some(answer) = ANSWERS.into_iter().find(|answer| !seen.borrow().contains_key(*answer)) {
        more.next().unwrap_or_else(|| panic!("{}: never {answer}", store.module));
        world.step(op().new_tree(&mut runner).unwrap().current());
    }
    world.ends();
    println!("{}: {:?}, with {} steps more", store.module, seen.borrow(), more.start);
}

/// What a call answers: the holder, if it reports one, or why it is refused.
type Answer = Result<Option<Holder>, LeaseRefusal>;

struct World<'a> {
    store: &'a Opened,
    clients: [Leases; 2],
    space: String,
    /// One record for each of `NAMES`.
    model: [LockRecord; 2],
    /// How often each answer came.
    seen: &'a RefCell<BTreeMap<String, u32>>,
}

impl<'a> World<'a> {
    fn new(store: &'a Opened, seen: &'a RefCell<BTreeMap<String, u32>>) -> Self {
        let space = unique();
        let clients = [store.client().leases(&space), store.rival().leases(&space)];
        let model = NAMES.map(|name| LockRecord::missing(key(&space, name)));
        World { store, clients, space, model, seen }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Call { client, name, call } => self.call(client, name, call),
            Op::TimePasses(by) => {
                self.store.advance(by);
                // Where the server has its own clock, the stored times were moved into the past instead.
                for (name, model) in NAMES.iter().zip(&mut self.model) {
                    let older = self.store.record(&key(&self.space, name));
                    assert_eq!(timeless(&older), timeless(model), "time passed for {name}");
                    *model = older;
                }
            }
        }
    }

    fn call(&mut self, client: usize, name: usize, call: Call) {
        let (leases, key, model) = (&self.clients[client], key(&self.space, NAMES[name]), &self.model[name]);
        let doing = format!("{call:?} of {:?} by client {client}", NAMES[name]);
        let before = self.store.get(&key);
        assert_eq!(&before.record, model, "before {doing}");
        let answer = ask(leases, NAMES[name], call);
        let after = self.store.get(&key);
        // The store decided at some moment between the two reads, as far as its time is known.
        let off = self.store.slack + Duration::from_millis(2);
        let moments = [before.times.now.minus(off), after.times.now.plus(off)];
        let holder = after.record.exclusive.as_ref();
        let steps = moments.map(|now| {
            let grace = self.store.store.info().grace;
            rules(
                model,
                call,
                holder.filter(|_| answer.is_ok()),
                &Times { expired_before: now.minus(grace), ..Times::without_grace(now, 0) },
            )
        });
        let may = moments.map(|now| may_succeed(model, call, now.minus(self.store.store.info().grace)));
        assert!(may.contains(&answer.is_ok()), "{doing}: {answer:?}");
        let told = answer.as_ref().err().map(|error| {
            assert_eq!(error.kind(), ErrorKind::InvalidLease, "{doing}: {error}");
            assert_eq!(error.lease().map(shown), model.exclusive.as_ref().map(shown_of), "{doing}: what was found");
            refusal(error)
        });
        let step = steps.iter().find(|step| step.answer.as_ref().err() == told.as_ref());
        let step = step.unwrap_or_else(|| panic!("{doing}: {answer:?}, but the model says {:?}", steps[0].answer));
        *self.seen.borrow_mut().entry(told.map_or("done".to_owned(), |told| format!("{told:?}"))).or_default() += 1;

        let right = step.record.as_ref().unwrap_or(model);
        assert_eq!(timeless(&after.record), timeless(right), "{doing}: what is stored");
        let ends = steps.each_ref().map(|step| step.record.as_ref().unwrap_or(model).exclusive.as_ref());
        if let (Call::Claim { duration, .. } | Call::Extend { duration, .. }, Ok(_)) = (call, &answer) {
            let promised = End::At(moments[0].plus(duration));
            let before = model.exclusive.as_ref().map_or(promised, |before| before.until);
            assert!(holder.is_some_and(|holder| holder.until >= promised.max(before)), "{doing}: {holder:?}");
        }
        if let (Some(stored), [Some(early), Some(late)]) = (holder, ends) {
            let between = |of: fn(&Holder) -> Option<StoreTime>| of(early) <= of(stored) && of(stored) <= of(late);
            assert!(between(|h| Some(h.created)) && between(|h| h.renewed), "{doing}: {stored:?}, not {early:?}");
            assert!(early.until <= stored.until && stored.until <= late.until, "{doing}: {stored:?}, not {early:?}");
        }
        match call {
            Call::Claim { .. } if answer.is_ok() => {
                let token = after.record.token;
                assert!(token > model.token && holder.is_some_and(|holder| holder.token == token), "{doing}");
            }
            // The token of a new row is the time at which the row was made.
            _ => assert!(after.record.token == model.token || !model.exists(), "{doing}: the token"),
        }
        if let Ok(Some(status)) = &answer {
            assert_eq!(Some(shown(status)), holder.map(shown_of), "{doing}: what is told");
            assert_eq!(status.pinned_by(), &right.pins, "{doing}: who pins it");
        }
        self.model[name] = after.record;
    }

    /// Asserts that both clients see what the model says.
    fn ends(&self) {
        for leases in &self.clients {
            let held: Vec<_> = self.model.iter().filter_map(|model| model.exclusive.as_ref().map(shown_of)).collect();
            let listed: Vec<_> = leases.list().unwrap().iter().map(shown).collect();
            assert_eq!(listed, held, "the list");
            for (name, model) in NAMES.iter().zip(&self.model) {
                assert_eq!(leases.get(name).unwrap().as_ref().map(shown), model.exclusive.as_ref().map(shown_of));
                assert_eq!(leases.pinned_by(name).unwrap(), model.pins);
            }
        }
    }
}

fn key(space: &str, name: &str) -> String {
    format!("\u{1}{space}\u{1}{name}")
}

fn ask(leases: &Leases, name: &str, call: Call) -> Result<Option<LeaseStatus>, Error> {
    match call {
        Call::Claim { holder, duration } => leases.claim(name, HOLDERS[holder], duration).map(Some),
        Call::Extend { holder, duration } => leases.extend(name, HOLDERS[holder], duration).map(Some),
        Call::Expire => leases.expire(name).map(|()| None),
        Call::Revoke { holder } => leases.revoke(name, HOLDERS[holder]).map(|()| None),
        Call::Pin { entity } => leases.pin(name, HOLDERS[entity]).map(|()| None),
        Call::Unpin { entity } => leases.unpin(name, HOLDERS[entity]).map(|()| None),
    }
}

/// The same call by the pure rules. A client makes the grant of a claim, so `claimed`'s grant is used if there is one.
fn rules(record: &LockRecord, call: Call, claimed: Option<&Holder>, times: &Times) -> Step<Answer> {
    let holds = |step: Step<claim::LeaseAnswer>| Step { answer: step.answer.map(Some), record: step.record };
    let pins = |step: Step<bool>| Step { answer: Ok(None), record: step.record };
    match call {
        Call::Claim { holder, duration } => {
            let owner = HOLDERS[holder].to_owned();
            let (grant, lock_id, labels) = match claimed {
                Some(made) => (made.grant.clone(), made.lock_id.clone(), Labels { owner, ..made.labels.clone() }),
                None => (grant("refused"), String::new(), Labels::of(owner)),
            };
            holds(claim::claim(record, &Claim { grant, lock_id, labels, duration }, times))
        }
        Call::Extend { holder, duration } => holds(claim::extend(record, HOLDERS[holder], duration, times)),
        Call::Expire => holds(claim::expire(record, times)),
        Call::Revoke { holder } => holds(claim::revoke(record, HOLDERS[holder], times)),
        Call::Pin { entity } => pins(claim::pin(record, HOLDERS[entity], times)),
        Call::Unpin { entity } => pins(claim::unpin(record, HOLDERS[entity], times)),
    }
}

/// The rules in brief, written independently of the code: a lease that ended by `expired_before` is over.
fn may_succeed(record: &LockRecord, call: Call, expired_before: StoreTime) -> bool {
    let is_held_by = |holder: usize| record.exclusive.as_ref().is_some_and(|h| h.labels.owner == HOLDERS[holder]);
    match call {
        Call::Claim { .. } => record.exclusive.is_none(),
        Call::Extend { holder, .. } | Call::Revoke { holder } => is_held_by(holder),
        Call::Expire => {
            record.exclusive.as_ref().is_some_and(|h| h.until <= End::At(expired_before)) && record.pins.is_empty()
        }
        Call::Pin { .. } | Call::Unpin { .. } => true,
    }
}

/// Why a call was refused, taken from the error text.
fn refusal(error: &Error) -> LeaseRefusal {
    let words = [
        ("somebody holds it: ", LeaseRefusal::Stands),
        ("nobody holds it", LeaseRefusal::Free),
        ("another holds it: ", LeaseRefusal::HeldByOther),
        ("its time is not over: ", LeaseRefusal::StillRuns),
        ("it is pinned by ", LeaseRefusal::Pinned),
    ];
    let text = error.to_string();
    words.into_iter().find(|(words, _)| text.contains(words)).unwrap_or_else(|| panic!("{text}")).1
}

/// A record without its times, its tokens, and what only its store counts.
fn timeless(record: &LockRecord) -> LockRecord {
    let mut record = record.clone();
    (record.token, record.version, record.gave_up_at, record.format) = (0, 0, 0, (0, 0));
    record.given_up.clear();
    if let Some(holder) = &mut record.exclusive {
        let zero = StoreTime::from_nanos(0);
        (holder.token, holder.created, holder.renewed) = (0, zero, None);
        holder.until = End::At(zero);
    }
    record
}

fn shown(status: &LeaseStatus) -> (String, u64) {
    (status.holder().to_owned(), status.fencing_token())
}

fn shown_of(holder: &Holder) -> (String, u64) {
    (holder.labels.owner.clone(), holder.token)
}
