//! Requests that fail before they leave, and answers that never come.

use std::sync::atomic::{AtomicU8, Ordering};

use leasehold::internals::backend::{Released, Renewal, Renewed};
use leasehold::internals::lease::Lease;

use crate::common::dynamodb::{Table, options};
use crate::sdk::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextMut,
};
use crate::sdk::config::{ConfigBag, Intercept, RuntimeComponents, SharedInterceptor};
use crate::sdk::error::BoxError;
use crate::*;

const PASS: u8 = 0;
const FAIL_BEFORE: u8 = 1;
const DROP_ANSWER: u8 = 2;

/// Breaks the next request.
#[derive(Clone, Debug, Default)]
struct Fault(Arc<AtomicU8>);

impl Fault {
    fn take(&self, fault: u8) -> Result<(), BoxError> {
        match self.0.compare_exchange(fault, PASS, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Err("as asked".into()),
            Err(_) => Ok(()),
        }
    }
}

impl Intercept for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn modify_before_transmit(
        &self,
        _context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.take(FAIL_BEFORE)
    }

    fn modify_before_deserialization(
        &self,
        _context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.take(DROP_ANSWER)
    }
}

fn faulty() -> (Dynamodb, Fault) {
    let (table, clock, fault) = (Table::fresh(), Clock::system(), Fault::default());
    let mut all = options(&table.0, &clock);
    all.interceptors.push(SharedInterceptor::new(fault.clone()));
    (open(all, &clock), fault)
}

fn renewal() -> Renewal {
    Renewal { lease: Lease::For(2 * LEASE), may_end_endless: false }
}

#[test]
fn what_did_not_leave_is_an_error_and_wrote_nothing() {
    needs_server!();
    let (store, fault) = faulty();
    let mut held = exclusive("held");
    granted(&store, &mut held);
    let before = get(&store, "held").record;
    let fail = || fault.0.store(FAIL_BEFORE, Ordering::SeqCst);
    fail();
    let errors = [
        store.acquire(&mut exclusive("k"), &soon()).map(drop),
        {
            fail();
            store.renew(&mut held, renewal(), &soon()).map(drop)
        },
        {
            fail();
            store.release(&mut held, false, &soon()).map(drop)
        },
        {
            fail();
            store.release(&mut held, true, &soon()).map(drop)
        },
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    assert_eq!(get(&store, "held").record, before);
    assert!(!get(&store, "k").record.exists());
}

#[test]
fn an_answer_that_never_came_is_unknown_and_the_repeat_finds_out() {
    needs_server!();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (store, fault) = faulty();
        let drop_answer = || fault.0.store(DROP_ANSWER, Ordering::SeqCst);
        let mut a = attempt("k", mode);
        drop_answer();
        assert!(matches!(store.acquire(&mut a, &soon()).unwrap(), Acquired::Unknown(_)));
        let stands = get(&store, "k").record;
        match store.acquire(&mut a, &soon()).unwrap() {
            Acquired::Granted { holder, repeated, .. } => {
                assert!(repeated && stands.standing(&holder.grant) == Some((mode, &holder)));
            }
            other => panic!("{other:?}"),
        }
        drop_answer();
        assert!(matches!(store.renew(&mut a, renewal(), &soon()).unwrap(), Renewed::Unknown(_)));
        assert!(matches!(store.renew(&mut a, renewal(), &soon()).unwrap(), Renewed::Until { .. }));
        let old = get(&store, "k").record.holders().next().unwrap().1.clone();
        let mut b = attempt("k", mode);
        b.ask.instead_of = Some((old.grant, old.token));
        if mode == Mode::Exclusive {
            drop_answer();
            assert!(matches!(store.acquire(&mut b, &soon()).unwrap(), Acquired::Unknown(_)));
        }
        granted(&store, &mut b);
        drop_answer();
        let released = store.release(&mut b, false, &soon()).unwrap();
        if mode == Mode::Exclusive {
            assert!(matches!(released, Released::Unknown(_)));
            assert!(matches!(store.release(&mut b, false, &soon()).unwrap(), Released::Free));
        }
        drop_answer();
        let mut c = attempt("other", mode);
        assert!(matches!(store.release(&mut c, true, &soon()).unwrap(), Released::Unknown(_)));
        assert!(matches!(store.release(&mut c, true, &soon()).unwrap(), Released::Free));
        refused(&store, &mut c);
    }
}
