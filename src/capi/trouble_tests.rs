//! What C is told when the store fails, which no program in C can bring about.

use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, leasehold_client_close, leasehold_client_free};
use super::client_lock::leasehold_client_try_lock;
use super::code::Code;
use super::error::{leasehold_error_held_by_this_client, leasehold_error_is_retryable};
use super::failure;
use super::guard::{
    GuardHandle, leasehold_guard_ensure_held, leasehold_guard_free, leasehold_guard_is_held, leasehold_guard_release,
};
use super::handle;
use super::list::leasehold_client_create_schema;
use crate::ClientBuilder;
use crate::store::fault::{Call, Fault, FaultPlan, Faulty};
use crate::store::memory::Memory;
use crate::sys::clock::Clock;

/// A client whose requests meet faults, and what it is by its handle.
fn client() -> (u64, FaultPlan) {
    let (clock, faults) = (Clock::system(), FaultPlan::default());
    let store = Faulty::new(Arc::new(Memory::open("", clock.clone())), faults.clone());
    let short = Duration::from_millis(300);
    let builder = ClientBuilder::over(Arc::new(store), clock).request_timeout(short).drop_timeout(short);
    let client = builder.connect().ok().and_then(|client| handle::insert(Client::new(client)).ok());
    (client.expect("a client"), faults)
}

fn try_lock(client: u64, guard: &mut GuardHandle) -> Code {
    // SAFETY: a text, and a place that can be written to.
    unsafe { leasehold_client_try_lock(client, "k".as_ptr().cast(), 1, guard) }
}

fn is_held(guard: GuardHandle) -> bool {
    let mut held = false;
    // SAFETY: a place that can be written to.
    assert_eq!(unsafe { leasehold_guard_is_held(guard, &mut held) }, Code::Ok);
    held
}

#[test]
fn a_release_that_failed_can_be_called_again() {
    let ((client, faults), mut guard, mut other) = (client(), 0, 0);
    assert_eq!(try_lock(client, &mut guard), Code::Ok);
    assert!(is_held(guard) && leasehold_guard_ensure_held(guard) == Code::Ok);
    faults.always(Call::Release, Fault::FailBefore);
    let failed = leasehold_guard_release(guard);
    assert!(failed == Code::Store && leasehold_error_is_retryable(), "{failed:?}");
    assert!(!is_held(guard), "who gave it up must not go on");
    assert_eq!(try_lock(client, &mut other), Code::Held);
    assert!(!leasehold_error_is_retryable());
    faults.heal();
    assert_eq!(leasehold_guard_release(guard), Code::Ok);
    assert_eq!(leasehold_guard_release(guard), Code::Closed);
    assert_eq!(try_lock(client, &mut other), Code::Ok);
    assert_eq!(try_lock(client, &mut 0), Code::Held);
    assert!(leasehold_error_held_by_this_client());
    for (freed, free) in [
        (guard, leasehold_guard_free as extern "C" fn(u64) -> Code),
        (other, leasehold_guard_free),
        (client, leasehold_client_free),
    ] {
        assert_eq!(free(freed), Code::Ok);
    }
}

#[test]
fn what_the_store_refuses_is_told() {
    let (client, faults) = client();
    faults.next(Call::Schema, Fault::Refuse);
    assert_eq!(leasehold_client_create_schema(client), Code::Permission);
    let message = failure::message();
    assert!(message.ends_with("refused the request: permission denied"), "with its cause: {message}");
    assert_eq!(leasehold_client_create_schema(client), Code::Ok);
    assert_eq!(leasehold_client_free(client), Code::Ok);
}

#[test]
fn what_an_operator_released_stays_lost() {
    let ((client, _), mut guard) = (client(), 0);
    assert_eq!(try_lock(client, &mut guard), Code::Ok);
    assert!(handle::get::<Client>(client).is_ok_and(|client| client.api.force_release("k").is_ok()));
    for _ in 0..2 {
        assert_eq!(leasehold_guard_release(guard), Code::Lost);
        assert_eq!(leasehold_guard_ensure_held(guard), Code::Lost);
    }
    assert_eq!((leasehold_guard_free(guard), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}

#[test]
fn a_close_whose_release_fails_says_so() {
    let ((client, faults), mut guard) = (client(), 0);
    assert_eq!(try_lock(client, &mut guard), Code::Ok);
    faults.always(Call::Release, Fault::FailBefore);
    assert_eq!(leasehold_client_close(client), Code::Store);
    assert!(!is_held(guard));
    assert_eq!((leasehold_guard_free(guard), leasehold_client_free(client)), (Code::Ok, Code::Ok));
}
