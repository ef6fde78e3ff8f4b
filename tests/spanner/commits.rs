//! What an answer to a commit says of it: a repeat of one that was written may be answered in many ways.

use leasehold::ErrorKind;
use leasehold::internals::store::Acquired;
use leasehold::internals::sys::clock::Clock;

use crate::common::grpc::{Fault, Grpc};
use crate::common::spanner::Database;
use crate::*;

const ABORTED: u8 = 10;
/// All that are errors, but `ABORTED` and `UNAVAILABLE`, which the SDK repeats.
const OTHERS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16];

fn behind() -> (Grpc, Spanner) {
    let database = Database::fresh();
    let grpc = Grpc::new(&database.host);
    let store = Spanner::open(database.options_at(&grpc.host), Clock::system(), &soon()).unwrap();
    (grpc, store)
}

#[test]
fn after_a_repeat_of_a_commit_only_aborted_says_that_nothing_was_written() {
    needs_server!();
    let (grpc, store) = behind();
    for code in OTHERS {
        let key = format!("status {code}");
        let mut a = exclusive(&key);
        // It is written, its answer is lost, and the SDK sends it once more.
        grpc.fault("Commit", 0, Fault::CutAfter);
        grpc.fault("Commit", 1, Fault::Refused(code));
        let answer = store.acquire(&mut a, &soon());
        assert_eq!(grpc.clear(), 0, "{key}: the faults were not met");
        let Ok(Acquired::Unknown(error)) = answer else { panic!("{key}: {answer:?}") };
        assert!(error.kind() == ErrorKind::Ambiguous && error.is_retryable(), "{key}: {error:?}");
        let (holder, repeated) = acquired(&store, &mut a);
        assert!(repeated && holder.grant == a.ask.grant, "{key}");
    }
}

#[test]
fn an_aborted_repeat_of_a_commit_finds_what_was_written() {
    needs_server!();
    let (grpc, store) = behind();
    grpc.fault("Commit", 0, Fault::CutAfter);
    grpc.fault("Commit", 1, Fault::Refused(ABORTED));
    let (holder, repeated) = acquired(&store, &mut exclusive("k"));
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert!(repeated && get(&store, "k").record.exclusive == Some(holder));
}

#[test]
fn a_commit_that_is_refused_the_first_time_wrote_nothing() {
    needs_server!();
    let (grpc, store) = behind();
    for (code, kind) in [(7, ErrorKind::Permission), (16, ErrorKind::Permission), (3, ErrorKind::Schema)] {
        let key = format!("status {code}");
        grpc.fault("Commit", 0, Fault::Refused(code));
        let error = store.acquire(&mut exclusive(&key), &soon()).unwrap_err();
        assert!(error.kind() == kind && !error.is_retryable(), "{key}: {error:?}");
        assert!(!get(&store, &key).record.exists(), "{key}");
    }
}
