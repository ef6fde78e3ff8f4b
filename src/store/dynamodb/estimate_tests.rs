//! What is learned from answers about the service's time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Grace = Grace { own: SECOND, of_all: SECOND };

fn boot(ms: u64) -> BootTime {
    BootTime::from_nanos(ms * 1_000_000)
}

fn moment(estimate: &Estimate, at: u64) -> (i64, u128) {
    let moment = estimate.moment(boot(at), GRACE).unwrap();
    (moment.now.as_nanos() / 1_000_000, moment.width.as_millis())
}

/// An estimate after the same answer from two hosts.
fn told(date: i64, sent: u64, received: u64) -> Estimate {
    let estimate = Estimate::default();
    for over in [0, 1] {
        estimate.learn_corrected(date, boot(sent), boot(received), 0, over);
    }
    estimate
}

#[test]
fn each_answer_narrows_it() {
    let estimate = Estimate::default();
    assert!(estimate.moment(boot(0), GRACE).is_none());
    // The service is 100 s ahead: at boot time 500 ms its clock says 100.5 s.
    estimate.learn(100, boot(490), boot(510));
    assert_eq!(moment(&estimate, 500), (100_500, 1_020));
    estimate.learn(100, boot(980), boot(990));
    estimate.learn(101, boot(1_010), boot(1_020));
    assert_eq!(moment(&estimate, 1_020), (101_020, 40));
    // A slow answer says nothing new.
    estimate.learn(103, boot(1_100), boot(9_000));
    assert_eq!(moment(&estimate, 9_000), (109_000, 47));
}

#[test]
fn while_in_doubt_the_time_that_this_hosts_wall_clock_agrees_with_signs() {
    let estimate = told(100, 490, 510);
    let signs = |wall: u64| estimate.roughly(boot(510), wall * 1_000_000).unwrap() / 1_000_000;
    assert_eq!(signs(5_000), 100);
    estimate.learn(3_700, boot(490), boot(510));
    assert_eq!([signs(90), signs(5_000)], [100, 3_700]);
}

/// The client that got the first answer may send no more requests.
#[test]
fn of_several_clients_one_confirms_what_another_was_told() {
    for (estimate, confirms) in [(Estimate::of_several(), true), (Estimate::default(), false)] {
        for over in [9, 5] {
            estimate.learn_corrected(100, boot(490), boot(510), 0, over);
        }
        assert_eq!(estimate.moment(boot(510), GRACE).unwrap().is_unconfirmed(), !confirms);
    }
}

#[test]
fn it_widens_with_its_age() {
    let estimate = told(100, 490, 510);
    let days = 4 * 86_400_000;
    let idle = estimate.moment(boot(510 + days), GRACE).unwrap();
    assert_eq!(idle.width.as_millis(), 1_020 + u128::from(days) / 1_000);
    let is_old = |moment: &Moment| moment.is_wider(SECOND, Duration::ZERO);
    let wait = SECOND + (idle.width - SECOND - SLACK) / 2;
    assert!(is_old(&idle) && idle.times().expired_before == idle.now.minus(wait));
    assert!(!is_old(&estimate.moment(boot(60_000), GRACE).unwrap()));
    // A clock that was 50 ppm fast causes no contradiction, but the answer may come from a host that is wrong.
    let answer = |over| {
        estimate.learn_corrected(100 + days as i64 / 1_000 - 17, boot(490 + days), boot(510 + days), 0, over);
        estimate.moment(boot(510 + days), GRACE).unwrap()
    };
    for over in [7, 7] {
        let known = answer(over);
        assert!(known.is_unconfirmed() && known.times().expired_before == ONLY_RELEASED, "{known:?}");
    }
    let known = answer(8);
    assert!(!known.is_doubted() && !is_old(&known) && known.width.as_millis() == 1_020, "{known:?}");
}

#[test]
fn it_widens_by_what_its_clock_is_corrected_by() {
    let estimate = Estimate::default();
    estimate.slewed(77_000_000_000);
    estimate.learn(100, boot(500), boot(500));
    let width = || estimate.moment(boot(500), GRACE).unwrap().width;
    // A correction before the first answer does not count.
    assert_eq!(width(), SECOND);
    estimate.slewed(77_900_000_000);
    assert_eq!(width(), SECOND + 2 * Duration::from_millis(900));
    // The clock was corrected back: the answer may have come at any moment in between.
    estimate.slewed(77_800_000_000);
    assert_eq!(width(), SECOND + 2 * SECOND);
    estimate.learn(100, boot(500), boot(500));
    assert_eq!(width(), SECOND);
    let corrected = Estimate::default();
    corrected.learn_corrected(100, boot(500), boot(500), -100_000_000, 1);
    let known = corrected.moment(boot(500), GRACE).unwrap();
    assert_eq!(known.width, SECOND + 2 * SLACK);
}

#[test]
fn one_that_is_wide_binds_no_later_time_however_long_the_grace() {
    let estimate = told(100, 490, 510);
    let grace = Grace { own: 5 * SECOND, of_all: 5 * SECOND };
    let hour = 3_600_000;
    let idle = estimate.moment(boot(500 + hour), grace).unwrap();
    assert!(idle.width > 4 * SECOND && idle.times().expired_before == idle.now.minus(5 * SECOND));
    // This host's clock was 500 ppm fast.
    estimate.learn(100 + 3_600 - 2, boot(490 + hour), boot(510 + hour));
    estimate.learn(100 + 3_600 - 2, boot(491 + hour), boot(510 + hour));
    let known = estimate.moment(boot(510 + hour), grace).unwrap();
    assert!(known.width < SECOND && idle.now.since(known.now) > SECOND, "{known:?}");
}

/// It is unknown whether the clock of the first host is right, or that of the first one after an idle hour.
#[test]
fn what_one_host_says_takes_nobody_over() {
    let estimate = Estimate::default();
    let learn = |at: u64, over| {
        let host_is_to_say_it = estimate.learn_corrected(100 + at as i64, boot(at * 1_000), boot(at * 1_000), 0, over);
        let moment = estimate.moment(boot(at * 1_000), GRACE).unwrap();
        (host_is_to_say_it, moment.times().expired_before == ONLY_RELEASED)
    };
    assert_eq!([learn(0, 0), learn(0, 0), learn(0, 1)], [(true, true), (false, true), (false, false)]);
    // Heartbeats leave no room for a wrong answer, nor does a pause of some minutes.
    assert_eq!([learn(10, 1), learn(300, 1)], [(false, false); 2]);
    assert_eq!([learn(3_900, 1), learn(3_900, 2)], [(true, true), (false, false)]);
    // A correction of this host's clock does.
    estimate.slewed(0);
    estimate.slewed(900_000_000);
    assert_eq!([learn(3_901, 2), learn(3_901, 3)], [(true, true), (false, false)]);
    // An unconfirmed answer that is contradicted is settled like any other doubt.
    assert!(learn(7_500, 3).1);
    assert!(estimate.learn_corrected(7_700, boot(7_500_000), boot(7_500_000), 0, 4));
    assert!(estimate.moment(boot(7_500_000), GRACE).unwrap().is_contradicted());
    // The host that reported it first confirms nothing.
    assert_eq!(learn(7_500, 3), (false, true));
    assert_eq!(learn(7_500, 5), (false, false));
}

#[test]
fn one_wrong_answer_is_doubted_and_then_forgotten() {
    let estimate = told(100, 490, 510);
    let used = estimate.moment(boot(510), GRACE).unwrap();
    estimate.learn(3_700, boot(490), boot(510));
    let doubted = estimate.moment(boot(510), GRACE).unwrap();
    assert!(doubted.contradicts(&used) && doubted.is_doubted());
    assert_eq!(doubted.times().expired_before, ONLY_RELEASED);
    estimate.learn(100, boot(490), boot(510));
    let settled = estimate.moment(boot(510), GRACE).unwrap();
    assert!(!settled.contradicts(&used) && !settled.is_doubted());
    assert_eq!(moment(&estimate, 510).0, 100_510);
}

#[test]
fn an_answer_that_fits_both_settles_no_doubt() {
    let (estimate, hour) = (Estimate::default(), 3_600_000);
    estimate.learn(100, boot(490), boot(510));
    estimate.learn(3_700, boot(490), boot(510));
    // This answer took an hour.
    estimate.learn(3_700, boot(490), boot(510 + hour));
    let doubted = estimate.moment(boot(510 + hour), GRACE).unwrap();
    assert!(doubted.is_doubted() && doubted.times().expired_before == ONLY_RELEASED, "{doubted:?}");
    for sent in [490, 491] {
        estimate.learn(3_700, boot(sent + hour), boot(510 + hour));
    }
    assert!(!estimate.moment(boot(510 + hour), GRACE).unwrap().is_doubted());
}

/// If the interval is wide, because an answer was slow or long ago, a wrong answer contradicts nothing.
#[test]
fn what_is_known_badly_is_told_by_two_hosts() {
    let learn = |estimate: &Estimate, date, (sent, received), over| {
        estimate.learn_corrected(date, boot(sent), boot(received), 0, over);
        let moment = estimate.moment(boot(received), GRACE).unwrap();
        (moment.is_doubted(), moment.width.as_millis())
    };
    // The service is 100 s ahead. A host that answers slowly is right, the next one is 2.5 s behind.
    let estimate = Estimate::default();
    assert_eq!(learn(&estimate, 100, (0, 3_200), 0), (true, 4_200));
    assert_eq!(learn(&estimate, 100, (3_200, 3_200), 1), (true, 1_000));
    assert!(learn(&estimate, 103, (3_200, 3_200), 2).0);
    assert_eq!(learn(&estimate, 103, (3_200, 3_200), 3), (false, 1_000));
    // In the other order, the slow answer confirms no more than it says.
    let estimate = Estimate::default();
    assert_eq!(learn(&estimate, 100, (3_200, 3_200), 0), (true, 1_000));
    assert_eq!(learn(&estimate, 103, (3_200, 6_400), 1), (false, 4_200));
    assert_eq!(learn(&estimate, 106, (6_400, 6_400), 1), (true, 1_000));
    assert_eq!(learn(&estimate, 106, (6_400, 6_400), 2), (false, 1_000));
    // After an idle day, one host is 100 s ahead, and the next one 30 s.
    let (estimate, day) = (told(100, 0, 0), 86_400_000);
    assert!(learn(&estimate, 86_600, (day, day), 2).0);
    assert!(learn(&estimate, 86_530, (day, day), 3).0);
    assert!(learn(&estimate, 86_500, (day, day), 4).0);
    assert_eq!(learn(&estimate, 86_500, (day, day), 5), (false, 1_000));
}

/// Each answer is less exact than needed, but new connections over a slow link cost several round trips.
#[test]
fn a_slow_link_takes_new_connections_seldom() {
    for way in [600, 700, 1_500, 4_000] {
        let (estimate, mut over, mut connects, mut widest) = (Estimate::default(), 0, 0, Duration::ZERO);
        for sent in (0..4 * 3_600_000).step_by(5_170) {
            // The service's time is the same as ours, and is read at any point of the way.
            let told_at = sent + sent / 11 % way;
            let is_to_confirm =
                estimate.learn_corrected((told_at / 1_000) as i64, boot(sent), boot(sent + way), 0, over);
            over += u64::from(is_to_confirm);
            connects += u64::from(is_to_confirm);
            let moment = estimate.moment(boot(sent + way), GRACE).unwrap();
            assert!(moment.ahead.low <= 0 && moment.ahead.high >= 0 && !moment.is_contradicted());
            widest = if sent > 60_000 { widest.max(moment.width) } else { widest };
        }
        assert!(connects <= 4 * 8, "{connects} in four hours, where a way takes {way} ms");
        assert!(widest <= 2 * Duration::from_millis(1_000 + way) + ROOM + SLACK, "{widest:?} for {way} ms");
    }
}

/// Of two answers that agree only thanks to `SLACK`, the later one is kept.
#[test]
fn an_old_connection_settles_no_doubt_that_it_made() {
    let estimate = told(100, 500, 500);
    let learn = |date, sent, received, over| estimate.learn_corrected(date, boot(sent), boot(received), 0, over);
    assert!(learn(105, 500, 500, 1));
    // This answer took five seconds, and is slightly later than what was known before.
    learn(106, 500, 5_450, 1);
    let doubted = estimate.moment(boot(5_450), GRACE).unwrap();
    assert!(doubted.is_doubted(), "{doubted:?}");
}

/// Otherwise no answer would ever end the doubt, and nobody would be taken over.
#[test]
fn a_doubt_ends_where_what_is_left_of_both_agrees() {
    let estimate = Estimate::default();
    // The service is 100 s ahead, which is known to 20 ms.
    for (date, at) in [(100, 990), (101, 1_010)] {
        estimate.learn(date, boot(at), boot(at));
    }
    // One host of the service is 150 ms further ahead, and the next answer agrees with it only thanks to `SLACK`.
    estimate.learn(102, boot(1_860), boot(1_860));
    assert!(estimate.moment(boot(1_860), GRACE).unwrap().is_doubted());
    estimate.learn(101, boot(1_910), boot(1_910));
    assert!(!estimate.moment(boot(1_910), GRACE).unwrap().is_doubted());
}

#[test]
fn it_begins_anew_when_nothing_fits() {
    let estimate = Estimate::default();
    estimate.learn(100, boot(490), boot(510));
    moment(&estimate, 500);
    assert!(estimate.learn(70, boot(490), boot(510)));
    assert_eq!(moment(&estimate, 500), (70_500, 1_020));
    let doubted = estimate.moment(boot(500), GRACE).unwrap();
    assert_eq!(doubted.upper_bound().as_nanos(), 100_510_000_000, "a holder trusts neither");
    // An answer agrees that was already on its way, maybe from the same host.
    assert!(!estimate.learn(70, boot(490), boot(520)));
    assert!(estimate.moment(boot(520), GRACE).unwrap().is_doubted());
    // The next one agrees.
    estimate.learn(70, boot(520), boot(530));
    assert!(!estimate.moment(boot(530), GRACE).unwrap().is_doubted());
    // Of three different times, the one known first is not forgotten, and a return to it is no contradiction.
    assert!(estimate.learn(20, boot(540), boot(550)) && estimate.learn(40, boot(560), boot(570)));
    assert!(!estimate.learn(70, boot(580), boot(590)));
    assert!(!estimate.moment(boot(590), GRACE).unwrap().is_doubted());
}

#[test]
fn it_never_tells_an_earlier_time() {
    let estimate = told(100, 490, 510);
    assert_eq!(moment(&estimate, 600).0, 100_600);
    // The service's clock had not reached 101 s yet: the middle is 54 ms earlier than was assumed.
    estimate.learn(100, boot(599), boot(600));
    assert_eq!(moment(&estimate, 600).0, 100_600);
    assert_eq!(moment(&estimate, 640).0, 100_620);
    assert_eq!(moment(&estimate, 1_600).0, 101_545);
}

#[test]
fn too_wide_a_takeover_waits_for_longer_and_a_holder_trusts_less() {
    let estimate = told(100, 0, 2_000);
    let wide = estimate.moment(boot(2_000), GRACE).unwrap();
    assert_eq!(wide.width, Duration::from_secs(3));
    assert_eq!(wide.times().expired_before, wide.now.minus(SECOND + (2 * SECOND - SLACK) / 2));
    assert_eq!(wide.upper_bound().since(wide.now), SECOND);
    for sent in [2_000, 2_001] {
        estimate.learn(102, boot(sent), boot(2_050));
    }
    let fine = estimate.moment(boot(2_050), GRACE).unwrap();
    assert_eq!(fine.times().expired_before, fine.now.minus(SECOND));
    assert!(fine.upper_bound().since(fine.now) <= Duration::from_millis(25));
}

#[test]
fn a_takeover_comes_before_the_holders_end_by_no_more_than_the_least_margin_covers() {
    let true_now = 120_000_000_000;
    let lease = 10_000_000_000;
    // Where in its second the service is, for the holder and for the rival.
    let seconds = (0..1_000).step_by(111);
    // How long the answer took, and for how long the host's clock has run wrong since, and was corrected.
    let known = |phase: i64, way: i64, is_late: bool, (idle, drift, slew): (i64, i64, i64), grace: Grace| {
        let (sent, received) = (20_000 - way, 20_000);
        // The service read its time when the request was sent, or when the answer was received.
        let said_at = if is_late { received } else { sent };
        let date = (said_at + 100_000 + phase).div_euclid(1_000);
        let estimate = told(date, sent as u64, received as u64);
        estimate.slewed(0);
        estimate.slewed(slew * 1_000_000);
        let moment = estimate.moment(boot((received + idle) as u64), grace).unwrap();
        (moment, true_now + (phase + idle + drift) * 1_000_000)
    };
    let drifts = [(0, 0), (60_000, 30), (60_000, -30), (3_600_000, 1_800), (3_600_000, -1_800)];
    let [drifts, slews] = [drifts.map(|(idle, drift)| (idle, drift, 0)).to_vec(), vec![(11_000, 900, 900)]];
    let clocks = [drifts, slews].concat();
    let all_by = |grace: Grace| -> Vec<(Moment, i64)> {
        seconds
            .clone()
            .flat_map(|phase| [0, 20, 100, 400, 3_000].map(|way| (phase, way)))
            .flat_map(|(phase, way)| [false, true].map(|is_late| (phase, way, is_late)))
            .flat_map(|(phase, way, is_late)| clocks.iter().map(move |clock| (phase, way, is_late, *clock)))
            .map(|(phase, way, is_late, clock)| known(phase, way, is_late, clock, grace))
            .collect()
    };
    let slack = i64::try_from(SLACK.as_nanos()).unwrap();
    for own in [0, 100, 500, 950, 1_000, 5_000].map(Duration::from_millis) {
        let (all, mut worst) = (all_by(Grace { own, of_all: own.min(SECOND) }), i64::MIN);
        for (holder, now) in &all {
            let end = holder.now.as_nanos() + lease;
            // Counted from this moment, on a clock that runs as the service's.
            let held_for = end - holder.upper_bound().as_nanos();
            for (rival, rivals_now) in &all {
                // How far the end that the rival takes over is behind the service's time.
                let behind = rivals_now - rival.times().expired_before.as_nanos();
                let taken_over_after = end + behind - now;
                worst = worst.max(held_for - taken_over_after);
            }
        }
        assert!(worst <= slack / 2, "{own:?}: {worst}");
        let is_close = own > SECOND || worst > slack / 2 - 5_000_000;
        assert!(is_close, "a margin of nothing leads to two holders: {own:?}: {worst}");
    }
}
