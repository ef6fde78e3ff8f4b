//! What the answer to a commit says about it: a repeat of a commit that was written may be answered in many ways.

use std::time::Instant;

use leasehold::ErrorKind;
use leasehold::internals::store::{Acquired, Renewed, Swapped};
use leasehold::internals::sys::deadline::Deadline;

use crate::spanner::*;
use crate::support::grpc::{Call, Fault, Grpc};
use crate::support::servers::spanner::aborts_at_random;
use crate::support::spanner::Database;

const ABORTED: u8 = 10;
const UNAVAILABLE: u8 = 14;
/// All codes that are errors, except `ABORTED` and `UNAVAILABLE`, which the SDK repeats.
const OTHERS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16];

/// `None` on the emulator that aborts at random: there it is not known whether a commit was written if its answer is
/// lost.
fn behind() -> Option<(Grpc, Spanner)> {
    if aborts_at_random() {
        return None;
    }
    let database = Database::fresh();
    let grpc = Grpc::new(&database.host);
    let store = Spanner::open(database.options_at(&grpc.host), &soon()).unwrap();
    Some((grpc, store))
}

#[test]
fn after_a_repeat_of_a_commit_no_answer_says_that_nothing_was_written() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    for code in OTHERS {
        let key = format!("status {code}");
        let mut a = exclusive(&key);
        // The commit is written, its answer is lost, and the SDK sends it once more.
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
    let Some((grpc, store)) = behind() else { return };
    grpc.fault("Commit", 0, Fault::CutAfter);
    grpc.fault("Commit", 1, Fault::Refused(ABORTED));
    let (holder, repeated) = acquired(&store, &mut exclusive("k"));
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert!(repeated && get(&store, "k").record.exclusive == Some(holder));
}

/// At first, what is read is not locked until the commit.
#[test]
fn who_is_aborted_again_and_again_locks_what_it_reads() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    for after in 0..3 {
        grpc.fault("Commit", after, Fault::Refused(ABORTED));
    }
    grpc.restart();
    granted(&store, &mut exclusive("k"));
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert_eq!(grpc.locks(), [false, false, false, true]);
}

/// The row was deleted since it was read, and reading it locked nothing.
#[test]
fn who_is_to_update_a_row_that_is_deleted_meanwhile_begins_anew() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    let mut a = exclusive("k");
    granted(&store, &mut a);
    grpc.fault("Commit", 0, Fault::RowIsMissing);
    grpc.restart();
    assert!(matches!(store.renew(&mut a, RENEWAL, &soon()), Ok(Renewed::Until { .. })));
    assert_eq!(grpc.clear(), 0, "the fault was not met");
    assert_eq!(grpc.locks(), [false, true]);
}

/// The next try fails before it has read what the first one wrote.
#[test]
fn an_aborted_repeat_of_a_commit_does_not_say_that_nothing_was_written() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    let mut a = exclusive("k");
    grpc.fault("Commit", 0, Fault::CutAfter);
    grpc.fault("Commit", 1, Fault::Refused(ABORTED));
    grpc.fault("ExecuteStreamingSql", 1, Fault::Refused(7));
    let answer = store.acquire(&mut a, &soon());
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    let Ok(Acquired::Unknown(error)) = answer else { panic!("{answer:?}") };
    assert!(error.kind() == ErrorKind::Ambiguous && error.is_retryable(), "{error:?}");
    assert!(acquired(&store, &mut a).1, "it finds itself");
}

#[test]
fn a_commit_that_is_refused_the_first_time_wrote_nothing() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    // A token that is no longer accepted is soon replaced.
    for (code, kind) in [(7, ErrorKind::Permission), (16, ErrorKind::Store), (3, ErrorKind::Schema)] {
        let key = format!("status {code}");
        grpc.fault("Commit", 0, Fault::Refused(code));
        let error = store.acquire(&mut exclusive(&key), &soon()).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (kind, code == 16), "{key}: {error:?}");
        assert!(!get(&store, &key).record.exists(), "{key}");
    }
}

/// The SDK sends it once more only once.
#[test]
fn a_commit_that_the_service_asks_for_again_and_again_is_not_taken_for_done() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    let mut a = exclusive("k");
    (0..2).for_each(|again| grpc.fault("Commit", again, Fault::Unfinished));
    let answer = store.acquire(&mut a, &soon());
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert!(!get(&store, "k").record.exists(), "nothing was written");
    let Ok(Acquired::Unknown(error)) = answer else { panic!("{answer:?}") };
    assert!(error.kind() == ErrorKind::Ambiguous && error.is_retryable(), "{error:?}");
    assert!(!acquired(&store, &mut a).1, "it does not find itself");
}

/// The later tries read what the first one wrote.
#[test]
fn a_swap_whose_commit_was_repeated_is_not_taken_for_another_change() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    let mut a = exclusive("k");
    granted(&store, &mut a);
    let seen = get(&store, "k");
    let mut new = seen.record.clone();
    new.pins.insert("pin".to_owned());
    grpc.fault("Commit", 0, Fault::CutAfter);
    grpc.fault("Commit", 1, Fault::Refused(ABORTED));
    let swapped = store.swap(&seen, Some(&new), &soon());
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert_eq!(get(&store, "k").record.pins, new.pins, "it was written");
    assert!(matches!(swapped, Ok(Swapped::Unknown(_))), "{swapped:?}");
    // A change by another client is still noticed.
    assert!(matches!(store.swap(&seen, Some(&new), &soon()), Ok(Swapped::Changed)));
}

/// A session of the emulator forgets a transaction when it begins a newer one.
#[test]
fn a_swap_that_was_written_and_forgotten_is_not_taken_for_another_change() {
    needs_server!();
    let Some((grpc, store)) = behind() else { return };
    let mut a = exclusive("k");
    granted(&store, &mut a);
    let seen = get(&store, "k");
    let mut new = seen.record.clone();
    new.pins.insert("pin".to_owned());
    grpc.restart();
    grpc.fault("Commit", 0, Fault::CutAfter);
    (1..4).for_each(|again| grpc.fault("Commit", again, Fault::Refused(UNAVAILABLE)));
    let swapped = std::thread::scope(|scope| {
        scope.spawn(|| {
            let commits = |calls: &[Call]| calls.iter().filter(|call| call.method == "Commit").count();
            grpc.wait_until("it is repeated", |calls| commits(calls) > 1);
            refused(&store, &mut exclusive("k"));
        });
        store.swap(&seen, Some(&new), &soon())
    });
    assert_eq!(grpc.clear(), 0, "the faults were not met");
    assert_eq!(get(&store, "k").record.pins, new.pins, "it was written");
    assert!(matches!(swapped, Ok(Swapped::Done | Swapped::Unknown(_))), "{swapped:?}");
}

/// The holder has given up, so the renewal would keep the key locked for as long as the commit is late.
#[test]
fn a_renewal_whose_commit_is_late_prolongs_by_no_more_than_was_asked() {
    needs_server!();
    for mode in [Mode::Exclusive, Mode::Shared] {
        // A busy machine may not send it in time; then this begins again.
        let known = [1, 3, 9].into_iter().any(|times| is_prolonged_in_time(mode, times * Duration::from_secs(3)));
        assert!(known, "{mode}: it is not known by when it was asked");
    }
}

fn is_prolonged_in_time(mode: Mode, late: Duration) -> bool {
    let Some((grpc, store)) = behind() else { return true };
    let mut a = attempt("k", mode);
    let before = granted(&store, &mut a).until;
    grpc.restart();
    grpc.fault("Commit", 0, Fault::Late(late));
    let asked = Instant::now();
    let answer = store.renew(&mut a, RENEWAL, &Deadline::after(late / 2));
    let latest = Lease::For(LEASE).end(get(&store, "nobody's").times.now);
    if !matches!(answer, Ok(Renewed::Unknown(_))) || asked.elapsed() >= late {
        return false;
    }
    let is_late = |call: &Call| call.method == "Commit" && call.answered;
    grpc.wait_until("the late commit", |calls| calls.iter().any(is_late));
    assert_eq!(grpc.clear(), 0, "the fault was not met");
    let until = get(&store, &a.key).record.holders().next().unwrap().1.until;
    assert!(before < until && until <= latest, "{mode}: {before:?} < {until:?} <= {latest:?}");
    // A caller that asks again gets the whole lease.
    let Ok(Renewed::Until { until: again, .. }) = store.renew(&mut a, RENEWAL, &soon()) else { panic!("{mode}") };
    assert!(until < again, "{mode}");
    true
}
