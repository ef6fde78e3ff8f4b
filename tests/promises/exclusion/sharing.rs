//! Readers and writers in processes of their own, which are killed and stopped while they hold, on every store that
//! processes can share.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::harness::{Folder, millis};
use crate::support::oracle::{Term, assert_one_writer_or_readers, now, terms};
use crate::support::process::Worker;
use crate::support::seed::seed;
use crate::support::urls::Shared;
use crate::support::wait::wait_until;
use leasehold::Mode;

const LEASE: Duration = millis(3000);
const POLL: Duration = millis(60);
/// The lease of processes that must keep their grants even if the machine stalls. It ends in time if a release could
/// not end it.
const LONG: Duration = Duration::from_secs(12);
/// How much too high the reported rest of a lease may be, where the clients' estimates of the store's time agree.
const EARLY: Duration = millis(100);

/// Starts a worker that takes and releases the key at random, with a seed of its own.
fn roamer(store: &Shared, lease: Duration, mode: Mode, key: &str, seed: u64, folder: &Path) -> Worker {
    let mut worker = Worker::polling(&store.url, lease, POLL, store.env.as_ref());
    assert_eq!(worker.ask(&format!("roam {mode} {key} {seed} {}", folder.display())), "roams");
    worker
}

/// When the key was first claimed, after this grant, by a holder that can't hold it next to that one.
#[track_caller]
fn replaced(folder: &Path, mode: Mode, old: u64) -> u128 {
    let mut first = None;
    wait_until("another is granted what the holder left", || {
        let all = terms(folder);
        let mut after = all.range(old + 1..).map(|(_, term)| term);
        first =
            after.find(|term| mode == Mode::Exclusive || term.mode == Mode::Exclusive).map(|term| term.first_claimed);
        first.is_some()
    });
    first.expect("a claim")
}

/// Three of each mode; one of each is killed and one of each is stopped, while it holds. Nobody may be let in next to a
/// writer, nor a writer next to readers, and the lease of a holder that is gone must be respected to its end.
fn readers_and_writers_exclude_each_other(store: &Shared) {
    let (folder, seed) = (Folder::new(), seed());
    let [mut writers, mut readers] = [(Mode::Exclusive, 0), (Mode::Shared, 3)].map(|(mode, first)| {
        [0, 1, 2].map(|n| roamer(store, LEASE, mode, "job", seed.wrapping_add(first + n), folder.path()))
    });
    for (mode, roamers) in [(Mode::Exclusive, &mut writers), (Mode::Shared, &mut readers)] {
        let [stays, killed, stopped] = roamers;
        // Readers share the lock, so that the writers have to respect one when another is gone.
        let beside = (mode == Mode::Shared).then(|| stays.token("pin"));
        let (old, granted) = (killed.token("pin"), Instant::now());
        if beside.is_some() {
            // This makes sure that two were seen together, unless it took so long that the lease is over.
            let is_claimed = || terms(folder.path()).contains_key(&old);
            wait_until("it claims it, too", || is_claimed() || granted.elapsed() > LEASE);
        }
        killed.kill();
        let asked = now();
        let left = stays.ask(&format!("left job {old}"));
        let left: u64 =
            left.strip_prefix("left ").and_then(|left| left.parse().ok()).unwrap_or_else(|| panic!("{left}"));
        if beside.is_some() {
            println!("{}: the reader beside it: {}", store.module, stays.ask("unpin"));
        }
        // If this process was late, another may have the lock before it asks; then nothing is left.
        let taken = Duration::from_nanos(replaced(folder.path(), mode, old).saturating_sub(asked) as u64);
        println!("{}: a killed holder ({mode}) had {left} ms left, and was replaced after {taken:?}", store.module);
        assert!(taken + EARLY >= millis(left), "{mode}: taken after {taken:?}, with {left} ms left");

        let old = stopped.token("pin");
        stopped.stop();
        replaced(folder.path(), mode, old);
        stopped.go_on();
        let loss = stopped.ask("unpin");
        assert!(["loss Expired", "loss TakenOver"].contains(&loss.as_str()), "{mode}: {loss}");
    }
    // On a slow store, this writer may not have had its turn among all the others yet.
    writers[0].token("pin");
    println!("{}: the writer that stays: {}", store.module, writers[0].ask("unpin"));
    // The readers pinned above were not together if the machine stalled for a lease. Those that come and go will be.
    wait_until("readers are there side by side", || side_by_side(folder.path()) > 0);
    for [stays, _, stopped] in [&mut writers, &mut readers] {
        for worker in [stays, stopped] {
            let grants = worker.ask("halt");
            assert!(grants.starts_with("grants ") && grants != "grants 0", "{grants}");
        }
    }
    let terms = assert_one_writer_or_readers(folder.path());
    let of = |mode| terms.values().filter(|term| term.mode == mode).count();
    let (writers, readers, beside) = (of(Mode::Exclusive), of(Mode::Shared), side_by_side(folder.path()));
    println!("{}: {writers} writers, {readers} readers, {beside} of them beside another", store.module);
}

/// How many readers came while the one before was still there: without this, they might have held the lock one by one.
#[track_caller]
fn side_by_side(folder: &Path) -> usize {
    let terms = terms(folder);
    let readers: Vec<&Term> = terms.values().filter(|term| term.mode == Mode::Shared).collect();
    readers.windows(2).filter(|pair| pair[1].first_claimed < pair[0].last_asked).count()
}

macro_rules! on_one_store {
    (memory) => {};
    ($store:ident) => {
        mod $store {
            #[test]
            fn readers_and_writers_exclude_each_other() {
                crate::support::urls::on(stringify!($store), super::readers_and_writers_exclude_each_other);
            }
        }
    };
}

crate::support::stores::for_each_store!(on_one_store);

/// The negative control: without a shared lock (each has a key of its own), the oracle does see them together.
#[test]
fn readers_and_writers_without_the_lock_do_meet() {
    let (store, folder, seed) = (crate::support::urls::of("sqlite").expect("a file"), Folder::new(), seed());
    for (first, second) in
        [(Mode::Exclusive, Mode::Exclusive), (Mode::Exclusive, Mode::Shared), (Mode::Shared, Mode::Shared)]
    {
        let folder = folder.path().join(format!("{first} {second}").replace(' ', "-"));
        std::fs::create_dir(&folder).expect("a folder");
        let mut both = [(first, "a", seed), (second, "b", seed.wrapping_add(1))]
            .map(|(mode, key, seed)| roamer(&store, LONG, mode, key, seed, &folder));
        // Each holds its own lock until the other one's ends.
        let tokens = both.each_mut().map(|worker| worker.token("pin"));
        wait_until("both claim it after the other", || {
            let all = terms(&folder);
            let [a, b] = tokens.map(|token| all.get(&token));
            a.zip(b).is_some_and(|(a, b)| a.first_claimed < b.last_asked && b.first_claimed < a.last_asked)
        });
        drop(both);
        let seen = std::panic::catch_unwind(|| assert_one_writer_or_readers(&folder));
        assert_eq!(seen.is_err(), first == Mode::Exclusive, "{first} beside {second}: {seen:?}");
    }
}
