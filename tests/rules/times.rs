//! Store time, ends, names, and the delays between tries.

use std::time::Duration;

use crate::support::asks::*;
use leasehold::internals::lease::backoff::{poll_delay, renewal_delay, retry_delay, with_jitter, woken_delay};
use leasehold::internals::lease::group::{GroupAnswer, release_group, renew_group};
use leasehold::internals::lease::transition::{KeepAnswer, Least, Renewal, keep_standing, renew};
use leasehold::internals::lease::{
    Ask, End, GrantId, Holder, Labels, Lease, LockRecord, Mode, RenewAnswer, StoreTime, Times, transition,
};

#[test]
fn store_time_adds_and_stops_at_its_ends() {
    assert_eq!(at(1).plus(ms(2)), at(3));
    assert_eq!(at(3).minus(ms(2)), at(1));
    assert_eq!(at(0).as_nanos(), 0);
    assert_eq!(StoreTime::from_nanos(-7).as_nanos(), -7);
    assert_eq!(at(1).plus(Duration::MAX), StoreTime::from_nanos(i64::MAX));
    assert_eq!(at(-1).minus(Duration::MAX).minus(Duration::MAX), StoreTime::from_nanos(i64::MIN));
}

#[test]
fn since_is_never_negative() {
    assert_eq!(at(5).since(at(3)), ms(2));
    assert_eq!(at(3).since(at(5)), Duration::ZERO);
    assert_eq!(at(3).since(StoreTime::from_nanos(i64::MIN)), Duration::from_nanos(i64::MAX as u64));
}

#[test]
fn an_end_is_after_every_point_before_it_and_never_is_last() {
    assert!(End::At(at(5)).is_after(at(4)));
    assert!(!End::At(at(5)).is_after(at(5)));
    assert!(End::Never.is_after(StoreTime::from_nanos(i64::MAX)));
    assert!(End::Never > End::At(StoreTime::from_nanos(i64::MAX)));
    assert_eq!((End::At(at(5)).left(at(3)), End::At(at(5)).left(at(9))), (Some(ms(2)), Some(Duration::ZERO)));
    assert_eq!(End::Never.left(at(3)), None);
    assert_eq!((Lease::For(ms(4)).end(at(3)), Lease::Forever.end(at(3))), (End::At(at(7)), End::Never));
}

#[test]
fn a_grant_id_shows_eight_digits() {
    let id = GrantId::from_text("0123456789abcdef");
    assert_eq!((id.as_str(), id.short(), format!("{id:?}").as_str()), ("0123456789abcdef", "01234567", "01234567"));
    assert_eq!(GrantId::from_text("short").short(), "short");
    // The eighth byte is inside a letter; the whole letter is shown.
    assert_eq!(GrantId::from_text("1234567ß9").short(), "1234567ß");
    assert_eq!(GrantId::from_text("ßßßßßßßßß").short(), "ßßßßßßßß");
}

#[test]
fn a_mode_is_named() {
    assert_eq!((Mode::Exclusive.to_string(), Mode::Shared.to_string()), ("exclusive".to_owned(), "shared".to_owned()));
}

#[test]
fn a_poll_is_drawn_from_its_range() {
    let range = ms(150)..=ms(350);
    assert_eq!(poll_delay(&range, ms(0), None, 0.0), ms(150));
    assert_eq!(poll_delay(&range, ms(0), None, 0.5), ms(250));
    assert_eq!(poll_delay(&range, ms(0), None, 1.0), ms(350));
    assert_eq!(poll_delay(&(ms(9)..=ms(5)), ms(0), None, 1.0), ms(9), "a range the wrong way round is its start");
}

#[test]
fn a_poll_slows_down_after_a_minute_and_after_ten() {
    let drawn = |waited, random| poll_delay(&(ms(150)..=ms(350)), Duration::from_secs_f64(waited), None, random);
    let after = |waited| drawn(waited, 0.5);
    assert_eq!(
        [after(59.9), after(60.0), after(599.9), after(600.0), after(9e9)].map(|d| d.as_millis()),
        [250, 500, 500, 1000, 1000]
    );
    // As the guide's tour says.
    assert_eq!([0.0, 60.0, 600.0].map(|waited| drawn(waited, 1.0)), [ms(350), ms(700), ms(1400)]);
}

#[test]
fn a_poll_comes_when_the_lock_can_be_free() {
    let aimed = |free| poll_delay(&(ms(150)..=ms(350)), ms(700_000), Some(free), 0.0);
    assert_eq!((aimed(ms(40)), aimed(ms(0)), aimed(ms(9_000))), (ms(40), ms(0), ms(600)));
}

#[test]
fn a_repeat_doubles_up_to_a_second_with_its_upper_half_at_random() {
    let long = Duration::from_secs(3600);
    let bounds =
        |failures| (retry_delay(failures, long, 0.0).as_millis(), retry_delay(failures, long, 1.0).as_millis());
    assert_eq!(bounds(0), (10, 20));
    assert_eq!(bounds(1), (20, 40));
    assert_eq!(bounds(5), (320, 640));
    for failures in [6, 10, 11, 40, u32::MAX] {
        assert_eq!(bounds(failures), (500, 1000));
    }
}

#[test]
fn a_repeat_leaves_time_for_two_more() {
    assert_eq!(retry_delay(9, ms(90), 0.5), ms(30));
    assert_eq!(retry_delay(9, Duration::ZERO, 0.5), Duration::ZERO);
    // With half a minute left the longest wait is that of `retry_delay`; with more left it may be longer, but never too
    // long.
    let last = |left| renewal_delay(u32::MAX, Duration::from_secs(left), 1.0);
    assert_eq!(renewal_delay(1, Duration::MAX, 1.0), retry_delay(1, Duration::MAX, 1.0));
    assert_eq!([0, 3, 30, 300, 3000].map(|left| last(left).as_millis()), [0, 1000, 1000, 10_000, 30_000]);
    assert_eq!(renewal_delay(u32::MAX, Duration::MAX, 1.0), Duration::from_secs(5));
}

#[test]
fn a_heartbeat_has_ten_percent_of_jitter() {
    let drawn = [0.0, 0.5, 1.0].map(|random| with_jitter(ms(1000), random).as_millis());
    assert_eq!(drawn, [900, 1000, 1100]);
}

#[test]
fn a_poll_may_be_as_long_as_one_likes() {
    for waited in [0, 61, 601] {
        for random in [0.0, 0.5, 1.0] {
            let drawn = poll_delay(&(ms(1)..=Duration::MAX), Duration::from_secs(waited), None, random);
            assert!(drawn >= ms(1));
            poll_delay(&(Duration::MAX..=Duration::MAX), Duration::from_secs(waited), None, random);
        }
    }
}

#[test]
fn a_told_waiter_looks_a_hundredth_as_often_or_when_the_lock_can_be_free() {
    let range = ms(150)..=ms(350);
    assert_eq!(woken_delay(&range, None, 0.0), ms(15_000));
    assert_eq!(woken_delay(&range, None, 1.0), ms(35_000));
    assert_eq!(woken_delay(&range, Some(ms(20_000)), 1.0), ms(20_000));
    assert!(woken_delay(&(Duration::MAX..=Duration::MAX), None, 1.0) > ms(1));
}

/// A record whose holders' leases end at these times.
fn ends(exclusive: Option<End>, shared: &[i64]) -> LockRecord {
    let holder = |n: i64, until| Holder {
        grant: grant(&format!("g{n}")),
        lock_id: "l".to_owned(),
        labels: Labels::of("o"),
        token: 1,
        created: at(0),
        renewed: None,
        until,
    };
    let mut record = LockRecord::missing("k");
    record.exclusive = exclusive.map(|end| holder(0, end));
    record.shared = shared.iter().map(|end| holder(*end, End::At(at(*end)))).collect();
    record
}

#[test]
fn a_change_frees_when_a_holder_goes_or_an_end_moves_back() {
    let until = |ms| Some(End::At(at(ms)));
    let frees = |before: &LockRecord, after: &LockRecord| transition::frees(before, after);
    for (before, after, right) in [
        (ends(until(9), &[]), ends(None, &[]), true),
        (ends(until(9), &[]), ends(until(8), &[]), true),
        (ends(Some(End::Never), &[]), ends(until(8), &[]), true),
        (ends(until(9), &[]), ends(None, &[9]), true),
        (ends(None, &[5, 7]), ends(None, &[7]), true),
        (ends(None, &[5, 7]), ends(None, &[5]), true),
        (ends(None, &[5, 7]), ends(None, &[4, 7]), true),
        (ends(None, &[5, 7]), ends(until(9), &[]), true),
        (ends(None, &[]), ends(None, &[]), false),
        (ends(None, &[]), ends(until(9), &[]), false),
        (ends(until(9), &[]), ends(until(9), &[]), false),
        (ends(until(9), &[]), ends(until(10), &[]), false),
        (ends(until(9), &[]), ends(Some(End::Never), &[]), false),
        (ends(None, &[5, 7]), ends(None, &[7, 5]), false),
        (ends(None, &[5, 7]), ends(None, &[5, 6, 7]), false),
        (ends(None, &[5, 7]), ends(None, &[8, 7]), false),
    ] {
        assert_eq!(frees(&before, &after), right, "{before:?} to {after:?}");
    }
}

#[test]
fn a_group_is_renewed_with_a_second_left_and_not_with_less() {
    let record = held(&[Ask { lease: ms(5000), ..exclusive("a") }]);
    let renew = |time| renew_group(&record, "id of a", Lease::For(ms(9000)), &now(time)).answer;
    assert!(matches!(renew(4000), GroupAnswer::Renewed(_)));
    assert!(matches!(renew(4001), GroupAnswer::TooLate(..)));
}

/// Written by a library that wrote no grant ids, or by an older version of this one.
#[test]
fn holders_without_a_grant_id_are_told_apart_by_their_lock_ids() {
    let mut record = held(&[shared("a"), shared("b")]);
    record.shared.iter_mut().for_each(|holder| holder.grant = grant(""));
    let step = release_group(&record, "id of b");
    assert_eq!(step.answer.iter().map(|(_, holder)| &*holder.lock_id).collect::<Vec<_>>(), ["id of b"]);
    let left = step.record.expect("it is written").shared;
    assert_eq!(left.iter().map(|holder| &*holder.lock_id).collect::<Vec<_>>(), ["id of a"]);
}

#[test]
fn a_grant_that_ends_too_early_keeps_its_place_under_an_id_that_nobody_has() {
    let record = held(&[exclusive("a")]);
    let granted = record.exclusive.as_ref().unwrap().created;
    let for_least = |time, left| Least { granted, time: ms(time), left: ms(left) };
    // The new end is earlier than the old one, or later.
    for least in [50, 150] {
        let step = keep_standing(&record, &grant("a"), &grant("b"), for_least(least, 1000), &now(49));
        assert_eq!(step.answer, KeepAnswer::Kept);
        let kept = step.record.expect("it is written");
        let (before, after) = (record.exclusive.clone().unwrap(), kept.exclusive.clone().unwrap());
        assert_eq!((after.until, after.grant.as_str()), (End::At(at(least as i64)), "b"));
        assert_eq!((after.token, after.created, &*after.lock_id), (before.token, before.created, "b"));
        assert_eq!((kept.token, kept.version), (record.token, record.version + 1));
        assert_eq!(renew(&kept, &grant("a"), Renewal::heartbeat(Lease::Forever), &now(49)).answer, RenewAnswer::Lost);
        // A repeat changes nothing.
        let again = keep_standing(&kept, &grant("a"), &grant("b"), for_least(least, 1000), &now(49));
        assert_eq!((again.answer, again.record), (KeepAnswer::Kept, None));
    }
    // By the guard's own count, if the store's clock was set back since the grant.
    let step = keep_standing(&record, &grant("a"), &grant("b"), for_least(50, 20), &now(-3000));
    assert_eq!(step.record.and_then(|kept| kept.exclusive).map(|kept| kept.until), Some(End::At(at(-3000 + 20))));
    // Whether the lease is over is decided by the time before which others may be granted the lock.
    for (least, cut, answer) in [(50, 49, KeepAnswer::Kept), (50, 50, KeepAnswer::Over)] {
        let times = Times { expired_before: at(cut), ..now(60) };
        assert_eq!(keep_standing(&record, &grant("a"), &grant("b"), for_least(least, 1000), &times).answer, answer);
    }
    let step = keep_standing(&record, &grant("c"), &grant("b"), for_least(50, 0), &now(1));
    assert_eq!((step.answer, step.record), (KeepAnswer::Over, None));
}
