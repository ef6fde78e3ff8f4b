//! The contract of the store trait, rule by rule, on every store of the table.

mod faults;
mod names;
mod races;
mod reads;
mod real_time;
mod rules;
mod wakes;

/// A test for each rule on each store of the table.
macro_rules! on_one_store {
    ($store:ident) => {
        mod $store {
            crate::conformance::contract! { $store }
            crate::support::stores::tests! {
                conformance on $store:
            real_time:
                leases_end_by_the_stores_own_clock;
            }
        }
    };
}

macro_rules! contract {
    ($store:ident) => {
        crate::support::stores::tests! {
            conformance on $store:
        rules:
            a_held_key_is_refused_and_the_holder_is_named,
            a_holder_is_live_until_its_end_and_then_replaced,
            who_was_replaced_learns_it_and_frees_nobody,
            exclusive_and_shared_holders_exclude_each_other,
            the_limit_of_shared_holders_counts_live_ones,
            a_grant_is_what_was_asked_for,
            a_repeat_finds_itself_and_writes_nothing,
            a_live_lock_id_is_refused_on_its_key_only,
            tokens_rise_whatever_happens_to_the_row,
            a_hold_has_one_token,
            a_transfer_takes_the_place_once,
            replace_takes_over_from_the_same_owner,
            a_renewal_moves_no_end_back,
            a_renewal_revives_what_nobody_took,
            an_endless_lease_ends_on_demand_only,
            a_release_frees_one_holder_and_keeps_the_token,
            giving_up_leaves_nothing,
            giving_up_stops_the_copy_that_comes_later,
            a_lease_is_not_granted_as_a_lock,
            a_newer_major_format_is_an_error_and_stays,
            a_newer_minor_format_is_used_and_stays;
        reads:
            a_missing_row_is_read_with_the_time,
            the_time_of_the_answers_goes_on,
            a_prefix_is_bytes_and_no_pattern,
            pages_have_every_record_once,
            a_lock_id_finds_every_holder,
            a_swap_is_written_if_nothing_changed,
            a_swap_sees_every_change,
            a_swap_makes_a_row_once,
            the_schema_can_be_made_again,
            a_call_whose_deadline_is_over_returns;
        faults:
            an_acquire_survives_every_fault,
            an_acquire_that_is_given_up_leaves_nothing,
            a_renewal_survives_every_fault,
            a_release_survives_every_fault,
            a_transfer_survives_every_fault,
            a_transfer_that_is_given_up_leaves_nothing,
            giving_up_survives_every_fault;
        names:
            every_name_is_a_key_of_its_own,
            every_text_comes_back_as_it_was;
        races:
            one_of_eight_is_granted,
            four_of_eight_share,
            one_of_eight_transfers,
            copies_of_one_attempt_are_one_grant,
            one_of_eight_swaps;
        wakes:
            a_release_is_told,
            a_shared_holder_that_goes_is_told,
            an_end_that_comes_sooner_is_told,
            a_row_that_is_deleted_or_swapped_is_told,
            a_new_set_takes_the_place_of_the_old_one,
            a_key_of_both_sets_is_told_without_a_gap,
            a_set_without_the_key_that_was_told_last_goes_on,
            an_empty_set_ends_the_telling,
            nobody_who_listens_is_no_harm,
            a_wake_whose_deadline_is_over_returns;
        }
    };
}
use contract;

crate::support::stores::for_each_store!(on_one_store);
// DynamoDB's other form of a table, with the same clock.
#[cfg(feature = "dynamodb")]
mod dynamodb_sorted {
    crate::conformance::contract! { dynamodb_sorted }
}

#[test]
fn every_store_is_in_the_table() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/store");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Each store is a folder, except the one in memory.
        if !path.is_dir() && !path.ends_with("memory.rs") {
            continue;
        }
        let module = path.file_stem().unwrap().to_str().unwrap();
        let is_off = match module {
            "sqlite" => cfg!(not(feature = "sqlite")),
            "dynamodb" => cfg!(not(feature = "dynamodb")),
            "mongodb" => cfg!(not(feature = "mongodb")),
            "postgres" => cfg!(not(feature = "postgres")),
            "spanner" => cfg!(not(feature = "spanner")),
            _ => false,
        };
        assert!(
            is_off || crate::support::stores::modules().contains(&module),
            "src/store/{module} is not in tests/support/stores.rs"
        );
    }
}
