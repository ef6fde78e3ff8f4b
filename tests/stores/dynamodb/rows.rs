//! The rows: ours as they are documented, and those of dynamodb-lock-go.

use std::collections::HashMap;

use leasehold::ErrorKind;
use leasehold::internals::lease::{GrantId, Lease};
use leasehold::internals::store::{Backend, Purpose, Released, Renewal};

use crate::dynamodb::sdk::types::AttributeValue;
use crate::dynamodb::*;
use crate::support::dynamodb::Table;
use crate::support::proxy::{Mode as Network, Rule};
use crate::support::stores::soon;

fn row(key: &str, owner: &str, until: &str) -> HashMap<String, AttributeValue> {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    HashMap::from([
        ("key".to_owned(), text(key)),
        ("owner".to_owned(), text(owner)),
        ("leasedUntil".to_owned(), text(until)),
        ("createdAt".to_owned(), text("2026-11-21T01:47:36.973253484Z")),
        ("ttl".to_owned(), text("2030-01-04T03:04:05Z")),
    ])
}

fn time(offset_s: i64, zone: i32) -> String {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(offset_s);
    at.display_with_offset(jiff::tz::offset(zone as i8)).to_string()
}

#[test]
fn rows_of_the_go_library_are_respected_while_they_live() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    // In the time zone -8, the text of a live end sorts before that of now.
    for (i, zone) in [0, -8, 5].into_iter().enumerate() {
        for until in [time(40, zone), format!("2{}", &time(40, zone)[1..])] {
            let key = format!("live {i}");
            raw.put(row(&key, "worker-1", &until));
            let before = raw.get(&key);
            for attempt in [&mut exclusive(&key), &mut shared(&key)] {
                let seen = refused(&store, attempt);
                assert_eq!(seen.live().next().unwrap().1.labels.owner, "worker-1", "{until}");
            }
            assert_eq!(raw.get(&key), before);
        }
    }
    raw.put(row("whole", "worker-2", "2030-01-02T03:04:05Z"));
    refused(&store, &mut exclusive("whole"));
}

#[test]
fn the_recorded_rows_of_the_go_library_are_read() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let golden: serde_json::Value = serde_json::from_str(include_str!("../../golden/dynamodb-lock-go.json")).unwrap();
    let mut read = 0;
    for step in golden["steps"].as_array().unwrap() {
        for item in step["items"].as_array().unwrap() {
            let attributes = item.as_object().unwrap().iter();
            let text = |value: &serde_json::Value| AttributeValue::S(value["S"].as_str().unwrap().to_owned());
            raw.put(attributes.map(|(name, value)| (name.clone(), text(value))).collect());
            let key = item["key"]["S"].as_str().unwrap();
            let seen = get(&store, key);
            let (_, holder) = seen.record.holders().next().unwrap();
            assert_eq!(holder.labels.owner, item["owner"]["S"].as_str().unwrap());
            assert!(seen.record.exists() && seen.record.token == 0);
            // Those that lasted 20 s in 2026 are over, and those of 2030 are live.
            if item["leasedUntil"]["S"].as_str().unwrap().starts_with("2030") {
                refused(&store, &mut exclusive(key));
            } else {
                granted(&store, &mut exclusive(key));
            }
            read += 1;
        }
    }
    assert_eq!(read, 5);
}

#[test]
fn rows_of_the_go_library_are_taken_over_when_they_are_expired() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let ends = [time(-10, 0), time(-10, -8), time(-10, 5), "2026-11-21T01:47:55.61499108Z".to_owned()];
    for (i, until) in ends.iter().enumerate() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let key = format!("expired {i} {mode}");
            raw.put(row(&key, "worker-1", until));
            let holder = granted(&store, &mut attempt(&key, mode));
            let item = raw.get(&key);
            assert!(!item.contains_key("ttl") && item["fence"] == AttributeValue::N(holder.token.to_string()));
            assert_eq!(get(&store, &key).record.holders().map(|(_, h)| h.clone()).collect::<Vec<_>>(), [holder]);
        }
    }
}

#[test]
fn a_row_that_the_go_library_took_over_is_lost() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let mut a = exclusive("ours");
    granted(&store, &mut a);
    raw.put(row("ours", "x", &time(40, 0)));
    let renewal = Renewal { lease: Lease::For(LEASE), may_end_endless: false };
    let lost = store.renew(&mut a, renewal, &soon()).unwrap();
    assert!(matches!(lost, leasehold::internals::store::Renewed::Lost(_)), "{lost:?}");
    assert!(matches!(store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::HeldByOther(_)));
    // Giving up notes the grant id in the row, which still belongs to the other library.
    assert!(matches!(store.release(&mut a, Purpose::GiveUp, &soon()).unwrap(), Released::HeldByOther(_)));
    refused(&store, &mut exclusive("ours"));
}

#[test]
fn attributes_that_are_not_known_stay() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let mut a = exclusive("k");
    granted(&store, &mut a);
    let mut item = raw.get("k");
    item.insert("later".to_owned(), AttributeValue::Bool(true));
    raw.put(item);
    store.release(&mut a, Purpose::Release, &soon()).unwrap();
    let (mut b, mut c) = (shared("k"), shared("k"));
    granted(&store, &mut b);
    granted(&store, &mut c);
    let seen = get(&store, "k");
    store.swap(&seen, Some(&seen.record), &soon()).unwrap();
    assert_eq!(raw.get("k")["later"], AttributeValue::Bool(true));
}

#[test]
fn what_is_written_is_what_is_documented() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let mut a = exclusive("k");
    granted(&store, &mut a);
    let names = |key: &str| {
        let mut names: Vec<String> = raw.get(key).into_keys().collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(names("k"), "createdAt fence format grantId key kind leasedUntil lockId owner version");
    let until = raw.get("k")["leasedUntil"].as_s().unwrap().clone();
    assert_eq!((until.len(), until.ends_with('Z')), (30, true), "{until}");
    store.release(&mut a, Purpose::Release, &soon()).unwrap();
    assert_eq!(names("k"), "createdAt fence format key kind leasedUntil version");
    assert_eq!(raw.get("k")["leasedUntil"].as_s().unwrap(), "1970-01-01T00:00:00.000000000Z");
    granted(&store, &mut shared("s"));
    assert_eq!(names("s"), "createdAt fence format key kind leasedUntil shared version");
    store.release(&mut exclusive("g"), Purpose::GiveUp, &soon()).unwrap();
    assert_eq!(names("g"), "givenUp givenUpAt key leasedUntil version");
}

#[test]
fn a_damaged_row_is_an_error_that_names_it() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let mut item = row("k", "x", &time(40, 0));
    item.insert("fence".to_owned(), AttributeValue::S("seven".to_owned()));
    raw.put(item.clone());
    let error = store.acquire(&mut exclusive("k"), &soon()).unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("fence"), "{error}");
    assert_eq!(raw.get("k"), item);
}

fn set(row: &mut HashMap<String, AttributeValue>, name: &str, value: Option<&AttributeValue>) {
    row.remove(name);
    row.extend(value.map(|value| (name.to_owned(), value.clone())));
}

/// An attribute of our row that somebody removed, or wrote in another form: no write of ours would ever match it.
#[test]
fn a_damaged_row_of_ours_is_named_and_left_as_it_is() {
    let table = needs_server!(Table::fresh());
    let (raw, (store, _)) = (Raw::new(&table), client(&table));
    let text = |text: &str| Some(AttributeValue::S(text.to_owned()));
    let is_named = |row: &HashMap<String, AttributeValue>, error: leasehold::Error| {
        let key = row["key"].as_s().unwrap();
        assert_eq!(error.kind(), ErrorKind::Schema, "{key}: {error}");
        assert!(error.to_string().contains("damaged"), "{key}: {error}");
        assert_eq!(raw.get(key), *row);
    };
    let both = [Mode::Exclusive, Mode::Shared];
    // In addition to each acquire: the modes in which a renewal meets the damage, and those in which a release does.
    type Damage<'a> = (&'a str, Option<AttributeValue>, &'a [Mode], &'a [Mode]);
    let damages: [Damage; 5] = [
        ("version", None, &both, &both),
        ("version", text("seven"), &both, &both),
        ("fence", None, &[], &[Mode::Shared]),
        ("leasedUntil", text(&time(40, 2)), &both, &[Mode::Shared]),
        ("leasedUntil", text(&time(40, -8)), &[], &[Mode::Shared]),
    ];
    for (i, (name, damage, renewals, releases)) in damages.iter().enumerate() {
        for mode in both {
            let mut held = attempt(&format!("{i} {name} {mode}"), mode);
            granted(&store, &mut held);
            let mut row = raw.get(&held.key);
            set(&mut row, name, damage.as_ref());
            // The entry of a shared holder also contains the end.
            if let ("leasedUntil", Some(AttributeValue::M(shared))) = (*name, row.get_mut("shared")) {
                for entry in shared.values_mut() {
                    let mut inner = entry.as_m().unwrap().clone();
                    set(&mut inner, name, damage.as_ref());
                    *entry = AttributeValue::M(inner);
                }
            }
            raw.put(row.clone());
            for other in both {
                is_named(&row, store.acquire(&mut attempt(&held.key, other), &soon()).unwrap_err());
            }
            if renewals.contains(&mode) {
                is_named(&row, store.renew(&mut held, renewal(LEASE), &soon()).unwrap_err());
            }
            if releases.contains(&mode) {
                is_named(&row, store.release(&mut held, Purpose::Release, &soon()).unwrap_err());
            }
        }
    }
    // A free row, where the write meets the damage.
    let mut over = exclusive("free");
    granted(&store, &mut over);
    store.release(&mut over, Purpose::Release, &soon()).unwrap();
    let mut row = raw.get("free");
    set(&mut row, "version", text("seven").as_ref());
    raw.put(row.clone());
    is_named(&row, store.acquire(&mut exclusive("free"), &soon()).unwrap_err());
}

#[test]
fn a_release_of_what_was_sent_twice_stops_the_second_copy() {
    let table = needs_server!(Table::fresh());
    let (store, _) = client(&table);
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut a = attempt(&format!("{mode}"), mode);
        granted(&store, &mut a);
        a.sends = 2;
        assert!(matches!(store.release(&mut a, Purpose::Release, &soon()).unwrap(), Released::Done));
        refused(&store, &mut a);
        let mut b = attempt(&a.key, mode);
        granted(&store, &mut b);
        assert!(matches!(store.release(&mut b, Purpose::Release, &soon()).unwrap(), Released::Done));
        assert_eq!(get(&store, &a.key).record.given_up.into_iter().collect::<Vec<GrantId>>(), [a.ask.grant]);
    }
}

/// There is no guard that would remove such traces.
#[test]
fn a_lock_as_data_leaves_nothing_in_its_row() {
    let table = needs_server!(Table::fresh());
    let (raw, client) = (Raw::new(&table), patient(config(), &table.0).connect().unwrap());
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let lock = client.request("k").acquire().unwrap();
        let lock = client.heartbeat(&lock, LEASE).unwrap();
        client.release(&lock).unwrap();
        sizes.push(raw.get("k").len());
    }
    assert_eq!(sizes, [7; 3], "{:?}", raw.get("k"));
}

/// Somebody's own item with that key, in a table for all things.
#[test]
fn giving_up_leaves_an_item_that_is_no_lock_as_it_is() {
    needs_server!();
    let at = Behind::new();
    let raw = Raw::new(&at.table);
    let item = HashMap::from([
        ("key".to_owned(), AttributeValue::S("k".to_owned())),
        ("version".to_owned(), AttributeValue::N("7".to_owned())),
    ]);
    raw.put(item.clone());
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut lost = attempt("k", mode);
        at.proxy.add(Rule::next(1, Network::CutAfter).on("UpdateItem"));
        assert!(matches!(at.store.acquire(&mut lost, &soon()).unwrap(), Acquired::Unknown(_)));
        let error = at.store.acquire(&mut lost, &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        let error = at.store.release(&mut lost, Purpose::GiveUp, &soon()).unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && !error.is_retryable(), "{error}");
        assert_eq!(raw.get("k"), item);
    }
    // Where there is no item, the given-up grant is noted as always.
    let mut lost = exclusive("missing");
    assert!(matches!(at.store.release(&mut lost, Purpose::GiveUp, &soon()).unwrap(), Released::Free));
    refused(&at.store, &mut lost);
}
