//! Each public function is swept, or makes no request to the store: a new one must be put into one of the two lists.

use std::collections::BTreeSet;

use super::calls::all;

/// The functions that make no request to the store, by type; `*` stands for all functions of the type.
const ASKS_NOTHING: &[(&str, &[&str])] = &[
    // Values.
    (
        "CancelOnDrop CancelToken Diagnosis Error ErrorKind Event Filter KeyStatus Leader LeaseStatus Lock LockStatus",
        &["*"],
    ),
    (
        "Loss LossReason LossWatch Operation PurgePages Purged ReleaseError Right WaitEnd Waiting WithLockError Writer",
        &["*"],
    ),
    // The user's own code, which the library calls.
    ("Observer", &["*"]),
    // A store for users' tests, which is itself made of the fault switch.
    ("MemoryStore", &["*"]),
    // Only `connect` makes requests, and these lead to it.
    ("LockClient", &["builder", "connect", "from_env"]),
    (
        "ClientBuilder",
        &[
            "create_schema",
            "drop_timeout",
            "heartbeat",
            "lease",
            "margin",
            "must_exist",
            "observer",
            "owner",
            "poll",
            "request_timeout",
        ],
    ),
    // These make the values that make requests.
    ("LockClient", &["election", "fence", "leases", "request", "request_all", "request_any"]),
    ("LockAllRequest", &["each", "lock_id", "max_hold", "wait", "wait_until"]),
    ("Leases", &["fence", "namespace"]),
    ("ElectionBuilder", &["*"]),
    (
        "LockRequest LockAnyRequest",
        &["cancel", "comment", "hold_at_least", "lease", "lease_forever", "lease_until", "lock_id", "max_hold"],
    ),
    ("LockRequest LockAnyRequest", &["max_holders", "on_loss", "on_wait", "on_wait_every", "on_warning", "owner"]),
    ("LockRequest LockAnyRequest", &["same_owner", "shared", "wait", "wait_until", "warn_before"]),
    ("LockAnyRequest", &["in_order"]),
    // These answer from what the process knows.
    ("LockClient", &["held"]),
    ("LockGuard", &["ensure_held", "fencing_token", "info", "into_lock", "is_held", "key", "lock_id", "loss", "mode"]),
    ("LockGuard", &["remaining", "shared_info", "sleep"]),
    ("LockAllGuard", &["ensure_held", "guards", "is_held", "lock_id", "lost", "remaining"]),
    ("LeaseKeeper", &["*"]),
    ("TermEnd", &["name"]),
    ("Leadership", &["fencing_token", "guard", "is_leader", "loss", "name", "remaining"]),
    ("Election", &["fencing_token", "id", "is_leader", "is_standing", "iterations", "lease", "name", "terms", "wait"]),
];
/// What needs a server or a connection of the user's: the faults of these are in `tests/stores` and
/// `tests/promises/fenced`.
const ELSEWHERE: [&str; 5] = ["dynamodb", "mongodb", "postgres", "spanner", "sqlite"];

/// The functions of the public API, and the fields of its values: their types and names.
fn functions() -> BTreeSet<(String, String)> {
    let is_lower = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let paths = include_str!("../../public_api.txt").lines().filter_map(|line| line.strip_prefix("leasehold::"));
    let function = |path: &str| {
        let words: Vec<&str> = path.split("::").collect();
        let of = words.iter().find(|word| !is_lower(word))?;
        let name = words.last().filter(|name| is_lower(name))?;
        (!ELSEWHERE.contains(&words[0])).then(|| ((*of).to_owned(), (*name).to_owned()))
    };
    paths.filter_map(function).collect()
}

#[test]
fn each_public_function_is_swept_or_asks_the_store_nothing() {
    let swept: BTreeSet<(String, String)> = all()
        .iter()
        .filter_map(|swept| swept.path.split(',').next()?.strip_prefix("leasehold::")?.split_once("::"))
        .map(|(of, name)| (of.to_owned(), name.to_owned()))
        .collect();
    let functions = functions();
    assert!(functions.len() > 200, "{functions:?}");
    let gone: Vec<_> = swept.difference(&functions).collect();
    assert!(gone.is_empty(), "swept, but not public: {gone:?}");
    let asks_nothing = |of: &str, name: &str| {
        let of_type = ASKS_NOTHING.iter().filter(|(types, _)| types.split(' ').any(|one| one == of));
        of_type.flat_map(|(_, names)| *names).any(|one| *one == name || *one == "*")
    };
    let both: Vec<_> = swept.iter().filter(|(of, name)| asks_nothing(of, name)).collect();
    assert!(both.is_empty(), "swept, and said to ask nothing: {both:?}");
    let is_known = |function: &&(String, String)| swept.contains(*function) || asks_nothing(&function.0, &function.1);
    let unknown: Vec<_> = functions.iter().filter(|function| !is_known(function)).collect();
    assert!(unknown.is_empty(), "new: put it into the sweep (calls.rs), or say that it asks nothing: {unknown:?}");
}
