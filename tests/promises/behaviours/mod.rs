//! What other lock libraries got wrong, by the number that each fault has in our list of such behaviours; every test
//! fails in a library that has the fault. On every store, with the fault switch in front of it. What needs processes of
//! its own is in `exclusion/processes.rs`, what needs the clock of a store in `tests/stores/conformance`.

mod acquiring;
mod ending;
mod holding;
mod waiting;

use crate::support::bench::{Bench, LONG, loss_of, renews, waits_in_vain};
use crate::support::harness::connected;
use crate::support::stores::{Store, for_each_store};
use crate::support::wait::wait_until;

macro_rules! on_one_store {
    ($store:ident) => {
        mod $store {
            crate::behaviours::behaviours! { $store }
        }
    };
}

macro_rules! behaviours {
    ($store:ident) => {
        crate::support::stores::tests! {
            behaviours on $store:
        acquiring:
            b02_a_request_that_the_network_doubles_is_no_failure,
            b03_an_acquire_whose_answer_is_lost_finds_itself,
            b03_an_acquire_that_is_given_up_leaves_nothing,
            b03_an_acquire_of_which_one_try_was_not_answered_is_ambiguous_however_the_others_failed,
            b03_an_acquire_that_is_refused_for_good_ends_the_call_and_leaves_nothing,
            b03_a_first_renewal_that_is_refused_for_good_ends_the_call_and_leaves_nothing,
            b03_a_first_renewal_that_is_not_answered_is_repeated,
            b10_grants_that_come_too_late_are_asked_for_more_and_more_rarely,
            b10_a_grant_that_comes_too_late_to_be_used_is_not_returned,
            b13_a_caller_that_comes_once_takes_over_an_expired_lock_at_once,
            b14_a_client_with_a_short_lease_respects_a_long_one,
            b15_losing_a_race_or_an_error_of_the_store_does_not_end_a_wait,
            b15_a_store_that_is_away_is_asked_more_and_more_rarely,
            b15_a_store_that_is_away_for_longer_than_a_lease_does_not_end_a_wait,
            b15_a_takeover_before_the_first_renewal_does_not_end_a_wait,
            b15_a_poll_that_fails_is_no_reason_to_ask_for_the_lock,
            b15_a_wrong_argument_ends_a_wait_at_once,
            b24_a_grant_found_by_a_repeat_counts_from_the_first_request,
            a_lease_with_a_fixed_end_is_not_granted_within_its_margin,
            an_adopt_that_is_refused_when_it_may_be_done_is_ambiguous,
            an_adopt_of_which_one_try_was_not_answered_is_ambiguous_however_the_others_failed,
            a_wait_whose_lock_was_granted_and_could_not_be_had_in_full_ends_with_the_trouble,
            an_adopt_that_comes_too_late_to_be_held_is_not_called_lost;
        ending:
            b04_a_heartbeat_in_flight_does_not_revive_a_released_lock,
            b18_a_release_frees_nobody_elses_lock,
            b19_a_release_that_failed_can_be_tried_again,
            b19_a_failed_release_that_is_passed_on_is_tried_again_in_the_background,
            b19_a_release_whose_answer_is_lost_is_repeated,
            b19_a_release_is_repeated_until_it_is_answered_but_more_and_more_rarely,
            b19_a_release_that_the_store_refuses_is_not_repeated,
            b19_a_release_that_may_be_done_is_repeated_even_when_the_store_refuses_once,
            b19_a_lost_lock_is_released_by_one_request_also_when_that_fails,
            b19_a_lock_that_is_lost_already_says_so_at_its_release,
            b19_a_lock_that_was_taken_over_is_not_released,
            b19_only_an_acquire_that_was_sent_more_than_once_is_given_up_at_its_release,
            b20_a_release_waits_for_a_renewal_that_ends_in_time,
            b20_close_wakes_waiters,
            b20_a_close_without_a_bound_releases,
            b03_an_unanswered_hand_over_is_given_up_with_the_next_try_of_the_release;
        holding:
            b01_a_holder_survives_a_heartbeat_whose_answer_is_lost,
            b05_a_heartbeat_repeats_what_failed_and_a_panic_in_it_is_a_loss,
            b06_the_loss_is_told_at_the_deadline_when_heartbeats_fail,
            b06_the_loss_is_told_at_the_deadline_when_a_heartbeat_hangs,
            b06_a_heartbeat_that_is_not_answered_leaves_time_for_another,
            b07_a_lease_is_counted_from_before_the_request_was_sent,
            b09_after_a_suspend_past_the_lease_the_first_look_says_lost,
            b09_after_a_shorter_suspend_the_lock_is_renewed_at_once,
            b09_what_is_lost_by_its_deadline_stays_lost,
            b09_an_answer_that_comes_after_the_deadline_does_not_revive,
            b12_the_token_is_the_same_for_the_whole_hold,
            b16_a_store_that_is_away_for_a_while_costs_no_lock,
            b21_a_worker_that_hangs_loses_its_lock_after_max_hold,
            b21_what_max_hold_ended_is_released_also_when_the_first_release_fails,
            b22_a_callback_runs_once_on_its_own_thread_and_may_release,
            b22_a_panic_in_a_callback_is_contained,
            b22_a_slow_callback_delays_no_heartbeat,
            b25_time_to_live_and_purge_are_not_needed_for_a_takeover;
        waiting:
            b17_a_waiter_reads_at_its_poll_rate_and_does_not_write,
            b17_a_poll_is_aimed_at_the_end_of_the_lease;
        }
    };
}
use behaviours;

for_each_store!(on_one_store);

/// A module of tests for some stores.
macro_rules! only {
    ($($(#[$on:meta])? $store:ident: $name:ident),+ => $tests:tt) => {
        $($(#[$on])?
        mod $name {
            crate::behaviours::only! { @ $store $tests }
        })+
    };
    (@ $store:ident { $($tests:tt)+ }) => {
        crate::support::stores::tests! { behaviours on $store: $($tests)+ }
    };
}
use only;

// Stores that go by this host's own clocks, which a test can set wrong.
only! {
    memory: memory_by_the_wall_clock,
    #[cfg(feature = "sqlite")]
    sqlite: sqlite_by_the_wall_clock => {
        acquiring:
            b11_tokens_rise_over_release_expiry_takeover_purge_and_deleted_rows,
            b11_a_wall_clock_that_is_set_back_does_not_lower_a_token;
        holding:
            b24_what_a_repeat_is_granted_anew_once_the_first_grant_is_over_is_given_up;
    }
}

// What needs request timeouts that are shorter than the time in which a server may answer.
only! {
    memory: memory_with_brief_requests,
    #[cfg(feature = "sqlite")]
    sqlite: sqlite_with_brief_requests => {
        acquiring:
            b03_an_unanswered_acquire_that_arrives_behind_a_rival_is_given_up,
            b03_an_unanswered_acquire_is_given_up_when_half_its_lease_is_over_and_not_before,
            b03_what_can_not_be_given_up_at_once_is_given_up_in_the_background,
            a_store_that_goes_away_in_a_wait_is_what_the_wait_ends_with,
            an_adopt_that_is_given_up_unanswered_is_not_called_lost;
        ending:
            b20_one_release_that_fails_at_close_skips_no_other;
    }
}

// Stores that remember given-up grants. On the others, a request that the fault switch delivers late would count as a
// new one.
only! {
    memory: memory_with_late_requests,
    #[cfg(feature = "dynamodb")]
    dynamodb: dynamodb_with_late_requests,
    #[cfg(feature = "postgres")]
    postgres: postgres_with_late_requests => {
        acquiring:
            b03_an_acquire_that_arrives_after_it_was_given_up_is_granted_to_nobody,
            b03_a_late_copy_of_what_was_passed_on_in_this_process_is_granted_to_nobody;
    }
}

// Stores whose time runs like ours: under load the time of Spanner's emulator runs ahead.
only! {
    memory: memory_by_a_steady_clock,
    #[cfg(feature = "sqlite")]
    sqlite: sqlite_by_a_steady_clock,
    #[cfg(feature = "dynamodb")]
    dynamodb: dynamodb_by_a_steady_clock,
    #[cfg(feature = "mongodb")]
    mongodb: mongodb_by_a_steady_clock,
    #[cfg(feature = "postgres")]
    postgres: postgres_by_a_steady_clock => {
        holding:
            b08_a_guard_counts_itself_as_lost_before_a_rival_can_be_granted;
    }
}

// Tests of the engine alone, in very many rounds.
only! {
    memory: memory_in_many_rounds => {
        holding:
            b09_what_was_seen_as_lost_is_never_held_again;
    }
}
