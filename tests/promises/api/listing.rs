//! Listing: what each filter finds.

use std::time::{Duration, SystemTime};

use leasehold::internals::store::Swapped;
use leasehold::{ErrorKind, Filter, LockClient, LockStatus, Mode};

use crate::api::{MINUTE, ROWS, on_every_store};
use crate::support::stores::{Opened, soon};

fn found(client: &LockClient, filter: Filter) -> Vec<String> {
    let found = client.list(&filter).unwrap();
    assert!(found.is_sorted_by(|a, b| a.fencing_token() > b.fencing_token()), "newest first");
    found.iter().map(|status| status.key().to_owned()).collect()
}

/// Moves the grant of the key into the past, on stores where only the ends were moved.
fn predate(store: &Opened, key: &str, by: Duration) {
    let seen = store.get(key);
    let mut record = seen.record.clone();
    let holder = record.exclusive.as_mut().unwrap();
    holder.created = holder.created.minus(by);
    holder.token -= u64::try_from(by.as_micros()).unwrap();
    record.token = holder.token;
    assert!(matches!(store.store.swap(&seen, Some(&record), &soon()), Ok(Swapped::Done)));
}

#[test]
fn each_filter_finds_its_locks_newest_first() {
    on_every_store(|store| {
        let client = store.client();
        assert!(found(&client, Filter::new()).is_empty());
        client.request("t/old").owner("ann").lock_id("g").lease(MINUTE).acquire().unwrap();
        store.advance(10 * MINUTE);
        let created = store.record("t/old").exclusive.unwrap().created;
        if store.get("t/old").times.now.since(created) < 10 * MINUTE {
            predate(store, "t/old", 10 * MINUTE);
        }
        // This lease is live until all is listed, even on a slow server.
        let short = 2 * MINUTE - Duration::from_secs(5);
        client.request("t/short").owner("bob").lock_id("g").lease(short).acquire().unwrap();
        // Tokens order the grants of different keys only as far as the store's own clocks agree.
        let from = store.get("t/short").times.now;
        while store.get("t/short").times.now.since(from) < Duration::from_millis(20) {}
        client.request("t/shared").shared().owner("ann").lock_id("g").lease(9 * MINUTE).acquire().unwrap();
        client.request("t/shared").shared().owner("bob").lease(9 * MINUTE).acquire().unwrap();
        client.request("u/endless").owner("ann").lease_forever().acquire().unwrap();
        drop(client.lock("u/free").unwrap());

        let all = ["u/endless", "t/shared", "t/shared", "t/short", "t/old"];
        let five = SystemTime::now() - 5 * MINUTE;
        let cases: Vec<(Filter, &[&str])> = vec![
            (Filter::new(), &all),
            (Filter::new().created_before(five), &["t/old"]),
            (Filter::new().created_after(five), &all[..4]),
            (Filter::new().created_before(five).created_after(five), &[]),
            (Filter::new().remaining_below(2 * MINUTE), &["t/short", "t/old"]),
            (Filter::new().remaining_at_least(2 * MINUTE), &["t/shared", "t/shared"]),
            (Filter::new().remaining_at_least(Duration::ZERO), &all[1..]),
            (Filter::new().remaining_below(Duration::MAX), &all[1..]),
            (Filter::new().key("t/shared"), &["t/shared", "t/shared"]),
            (Filter::new().key("t/share"), &[]),
            (Filter::new().key("u/free"), &[]),
            (Filter::new().key_prefix("t/sh"), &["t/shared", "t/shared", "t/short"]),
            (Filter::new().key_prefix(""), &all),
            (Filter::new().lock_id("g"), &["t/shared", "t/short", "t/old"]),
            (Filter::new().owner("ann"), &["u/endless", "t/shared", "t/old"]),
            (Filter::new().owner("an"), &[]),
            (Filter::new().mode(Mode::Shared), &["t/shared", "t/shared"]),
            (Filter::new().mode(Mode::Exclusive), &["u/endless", "t/short", "t/old"]),
            (Filter::new().live(), &all[..4]),
            (Filter::new().expired(), &["t/old"]),
            (Filter::new().expired().live(), &all[..4]),
            // All conditions apply together, whichever of them the store itself filters by.
            (Filter::new().key("t/shared").key_prefix("u").lock_id("g"), &[]),
            (Filter::new().lock_id("g").key_prefix("t/sh").owner("ann").live(), &["t/shared"]),
            (Filter::new().key("t/shared").lock_id("g"), &["t/shared"]),
        ];
        for (filter, expected) in cases {
            assert_eq!(found(&client, filter.clone()), expected, "{filter:?}");
        }
    });
}

#[test]
fn a_listing_tells_everything_of_a_lock() {
    on_every_store(|store| {
        let guard = store.rival().request("k").lock_id("a-long-secret").comment("c").lock().unwrap();
        let filter = Filter::new().lock_id("a-long-secret");
        let found: Vec<LockStatus> = store.client().list(&filter).unwrap();
        let [status] = &found[..] else { panic!("{found:?}") };
        assert_eq!((status.owner(), status.comment(), status.lock_id()), ("rival", Some("c"), "a-long-secret"));
        assert_eq!((status.fencing_token(), status.mode()), (guard.fencing_token(), Mode::Exclusive));
        assert!(!format!("{filter:?} {found:?}").contains("secret"));
    });
}

#[test]
fn a_listing_reads_every_page() {
    on_every_store(|store| {
        let client = store.client();
        for n in 0..ROWS {
            let group = if n % 2 == 0 { "even" } else { "odd" };
            client.request(&format!("k-{n}")).lock_id(group).acquire().unwrap();
        }
        for (filter, count) in [
            (Filter::new(), ROWS),
            (Filter::new().key_prefix("k-1"), 111),
            (Filter::new().lock_id("odd"), ROWS / 2),
            (Filter::new().lock_id("odd").key_prefix("k-1"), 56),
        ] {
            assert_eq!(found(&client, filter.clone()).len(), count, "{filter:?}");
        }
    });
}

#[test]
fn a_filter_that_is_out_of_bounds_is_refused() {
    on_every_store(|store| {
        let client = store.client();
        let long = "x".repeat(1025);
        for filter in [
            Filter::new().key(""),
            Filter::new().lock_id(""),
            Filter::new().owner("\u{7}"),
            Filter::new().key_prefix(long),
        ] {
            assert_eq!(client.list(&filter).unwrap_err().kind(), ErrorKind::InvalidInput, "{filter:?}");
        }
        client.close().unwrap();
        assert_eq!(client.list(&Filter::new()).unwrap_err().kind(), ErrorKind::Closed);
    });
}
