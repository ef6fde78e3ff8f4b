//! Unusual names and texts. The empty one and control characters are refused by a higher layer.

use leasehold::internals::store::{Released, Which};

use crate::support::contract::*;
use crate::support::stores::Store;

fn odd() -> Vec<String> {
    let mut odd: Vec<String> = [
        "a",
        "A",
        "a_b",
        "a%b",
        "a b",
        " a",
        "a ",
        "a/b",
        "a\\b",
        "a.b",
        "a:b",
        "a|b",
        "a#b",
        "a,b",
        "a;b",
        "a\"b",
        "a'b",
        "a`b",
        "$a",
        ".a",
        "..",
        "/",
        "\\",
        "'",
        "\"",
        "%",
        "_",
        "*",
        "?",
        "$",
        "null",
        "NULL",
        "true",
        "0",
        "1e9",
        "-1",
        "NaN",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "ı",
        "İ",
        "\u{3a9}",
        "\u{2126}",
        "🔒",
        "👩‍👩‍👧",
        "\u{200b}",
        "\u{feff}a",
        "\u{10ffff}",
        "\u{fffd}",
        "مرحبا",
        "鎖",
        "key='x' OR '1'='1",
        "'; DROP TABLE locks; --",
        "\" OR 1=1 --",
        "{\"$gt\": \"\"}",
        "${HOME}",
        "%s%n",
        "a\u{a0}b",
        "\u{1}own",
    ]
    .map(str::to_owned)
    .to_vec();
    odd.push("x".repeat(1_024));
    odd.push("🔒".repeat(256));
    odd.push("x".repeat(1_023));
    odd
}

pub fn every_name_is_a_key_of_its_own(store: &Store) {
    let at = (store.open)();
    let names = odd();
    let mut held = Vec::new();
    for name in &names {
        let mut attempt = exclusive(&at, name);
        // On a busy machine all of them take longer than a usual lease.
        attempt.ask.lease = 60 * LEASE;
        let holder = granted(&*at.store, &mut attempt);
        held.push((attempt, holder));
    }
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), names.len());
    let found: Vec<String> = at.all(&Which::Prefix(String::new())).into_iter().map(|record| record.key).collect();
    assert_eq!(found, sorted, "byte by byte");
    for (mut attempt, holder) in held {
        let name = attempt.key.clone();
        assert_eq!(at.holders(&name), [holder], "{name:?}");
        refused(&*at.second, &mut exclusive(&at, &name));
        let by_prefix = at.all(&Which::Prefix(name.clone()));
        assert!(by_prefix.iter().any(|record| record.key == name), "{name:?}");
        assert!(by_prefix.iter().all(|record| record.key.starts_with(&name)), "{name:?}");
        renewed(&*at.store, &mut attempt, renewal(leasehold::internals::lease::Lease::For(120 * LEASE)));
        assert!(matches!(release(&*at.second, &mut attempt), Released::Done), "{name:?}");
        assert_eq!(at.holders(&name), []);
    }
}

pub fn every_text_comes_back_as_it_was(store: &Store) {
    let at = (store.open)();
    for (i, text) in odd().into_iter().chain([String::new(), "two\nlines\tand a tab".to_owned()]).enumerate() {
        for key in ["exclusive", "shared"] {
            let key = format!("{key} {i}");
            let mut attempt = if i % 2 == 0 { exclusive(&at, &key) } else { shared(&at, &key) };
            attempt.ask.lock_id = text.clone();
            attempt.ask.labels.owner = text.clone();
            attempt.ask.labels.host = Some(text.clone());
            attempt.ask.labels.comment = Some(text.clone());
            let holder = granted(&*at.store, &mut attempt);
            assert_eq!((&holder.lock_id, &holder.labels), (&text, &attempt.ask.labels));
            assert_eq!(at.holders(&key), [holder], "{text:?}");
        }
        let found = at.all(&Which::LockId(text.clone()));
        assert_eq!(found.len(), 2, "{text:?}");
    }
}
