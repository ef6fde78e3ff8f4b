//! Eight processes on one table, half of them of the Go kind, are killed and stopped while they lock. The oracle is
//! outside of the table: files in which each holder notes when it believed to hold a lock. `LEASEHOLD_TEST_OPS` says
//! how many acquisitions.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::go::member::{MOST_OF_GO, name};
use crate::support::harness::Folder;
use crate::support::oracle::{assert_rising, terms};
use crate::support::process::Worker;
use crate::support::seed::{seed, setting};
use crate::support::wait::wait_until;

const SIZE: usize = 8;
const LEASE: Duration = Duration::from_secs(3);
/// How many processes are killed or stopped.
const BLOWS: usize = 12;

/// A table, as its processes know it.
struct Place {
    store: &'static str,
    address: String,
    keys: usize,
    /// How long a lease is respected after its end.
    grace: Duration,
    /// Whether tokens also rise over what the Go library writes.
    tokens_rise: bool,
}

/// What the oracle saw.
#[derive(Debug, Default)]
struct Figures {
    ours: usize,
    theirs: usize,
    killed: usize,
    stopped: usize,
    /// How often two believed that they held one lock.
    overlaps: usize,
    /// The same, if the second of them is a node that took a live lock for a free one.
    beside_misread: usize,
    /// How many took a live lock for a free one, of ours or of their own kind.
    misread: usize,
}

struct Members<'a> {
    place: &'a Place,
    kinds: [&'static str; 2],
    folder: Folder,
    /// The seed of the next process.
    seed: u64,
    all: Vec<Worker>,
    stopped: Option<(usize, Instant)>,
}

impl Members<'_> {
    fn start<'a>(place: &'a Place, kinds: [&'static str; 2]) -> Members<'a> {
        let folder = Folder::new();
        (0..place.keys).for_each(|key| fs::create_dir(folder.path().join(name(key))).unwrap());
        fs::write(folder.path().join("grants"), "").unwrap();
        let mut members = Members { place, kinds, folder, seed: seed(), all: Vec::new(), stopped: None };
        members.all = (0..SIZE).map(|n| members.member(n)).collect();
        members
    }

    fn member(&mut self, n: usize) -> Worker {
        let address = format!("{}|{}|{}", self.kinds[n % 2], self.place.store, self.place.address);
        let mut member = Worker::start_as("mixed::member", &address, LEASE);
        let roam = format!("roam {} {} {}", self.folder.path().display(), self.place.keys, self.seed);
        assert_eq!(member.ask(&roam), "roams");
        self.seed = self.seed.wrapping_add(1);
        member
    }

    fn granted(&self) -> usize {
        usize::try_from(fs::metadata(self.folder.path().join("grants")).unwrap().len()).unwrap()
    }

    /// One process at a time is stopped, for longer than anybody respects its lease. This lets it go on when that time
    /// is over.
    fn go_on_by(&mut self, now: Instant) {
        let outlasts = LEASE + self.place.grace + Duration::from_secs(1);
        if let Some((n, _)) = self.stopped.take_if(|(_, since)| now > *since + outlasts) {
            self.all[n].go_on();
        }
    }

    fn strike(&mut self, blow: usize, figures: &mut Figures) {
        let n = blow * 3 % SIZE;
        if blow.is_multiple_of(3) && self.stopped.is_none() {
            self.all[n].stop();
            self.stopped = Some((n, Instant::now()));
            figures.stopped += 1;
        } else if self.stopped.is_none_or(|(stopped, _)| stopped != n) {
            self.all[n].kill();
            self.all[n] = self.member(n);
            figures.killed += 1;
        }
    }

    /// Waits for this many acquisitions, for as long as they go on.
    fn lock_until(&mut self, acquisitions: usize) {
        let mut granted = self.granted();
        while granted < acquisitions {
            wait_until("the fleet goes on", || {
                self.go_on_by(Instant::now());
                self.granted() > granted
            });
            granted = self.granted();
        }
    }

    fn run(mut self, acquisitions: usize, blows: usize) -> Figures {
        let mut figures = Figures::default();
        for blow in 0..blows {
            self.lock_until(acquisitions * blow / blows);
            self.strike(blow, &mut figures);
        }
        self.lock_until(acquisitions);
        wait_until("none is stopped any more", || {
            self.go_on_by(Instant::now());
            self.stopped.is_none()
        });
        self.all.iter_mut().for_each(|member| member.tell("halt"));
        self.all.iter().for_each(|member| assert_eq!(member.answer(), "halted"));
        for key in 0..self.place.keys {
            figures.judge(&self.folder.path().join(name(key)), self.place.tokens_rise);
        }
        println!("{}, {} and {}: {figures:?}", self.place.store, self.kinds[0], self.kinds[1]);
        figures
    }
}

impl Figures {
    fn judge(&mut self, claims: &Path, tokens_rise: bool) {
        let mut terms: Vec<_> = terms(claims).into_iter().collect();
        terms.sort_by_key(|(_, term)| term.first_claimed);
        let mut last = 0;
        for (token, term) in &terms {
            let is_misread = *token < MOST_OF_GO && token % 2 == 1;
            self.misread += usize::from(is_misread);
            let overlaps = usize::from(last > term.first_claimed);
            *(if is_misread { &mut self.beside_misread } else { &mut self.overlaps }) += overlaps;
            last = term.last_asked.max(last);
        }
        let (theirs, ours): (Vec<u64>, Vec<u64>) = terms.iter().map(|(token, _)| token).partition(|t| **t < MOST_OF_GO);
        (self.ours, self.theirs) = (self.ours + ours.len(), self.theirs + theirs.len());
        if tokens_rise {
            assert_rising(&ours);
        }
    }
}

/// Runs the fleet with ours and, if a number of acquisitions is set, also without ours.
fn fleet(place: &Place) {
    let wanted = setting("LEASEHOLD_TEST_OPS");
    let acquisitions = wanted.unwrap_or(150);
    let mixed = Members::start(place, ["ours", "go"]).run(acquisitions, BLOWS);
    assert!(mixed.ours > 0 && mixed.theirs > 0 && mixed.killed > 5 && mixed.stopped > 0, "{mixed:?}");
    assert_eq!(mixed.overlaps, 0, "{mixed:?}");
    if wanted.is_some() {
        // What nodes do to ours, they also do to each other.
        let alone = Members::start(place, ["go", "go"]).run(acquisitions, BLOWS);
        assert!(alone.overlaps == 0 && (alone.misread > 0 || mixed.misread == 0), "{alone:?}");
    }
}

#[test]
fn no_two_hold_one_lock_in_dynamodb() {
    let Some(_) = crate::support::servers::dynamodb_local() else { return };
    let address = crate::support::dynamodb::Table::fresh().0;
    let place = Place { store: "dynamodb", address, keys: 12, grace: Duration::from_secs(5), tokens_rise: false };
    fleet(&place);
    // The oracle does see what a bug of their own allows: two clients with one owner.
    let same = Members::start(&Place { keys: 2, ..place }, ["same", "same"]).run(60, 0);
    assert!(same.overlaps > 0, "{same:?}");
}

#[test]
fn no_two_hold_one_lock_in_mongodb() {
    let Some(_) = crate::support::servers::mongod() else { return };
    let rows = crate::support::mongodb::Rows::fresh();
    fleet(&Place { store: "mongodb", address: rows.0.clone(), keys: 6, grace: Duration::ZERO, tokens_rise: true });
}

#[test]
fn no_two_hold_one_lock_in_spanner() {
    let Some(_) = crate::support::servers::spanner_emulator() else { return };
    let database = crate::support::spanner::Database::fresh();
    let address = format!("{}|{}", database.host, database.path);
    // A node never releases: each of its turns keeps a lock from the next one for the lease and the grace.
    fleet(&Place { store: "spanner", address, keys: 24, grace: Duration::from_secs(1), tokens_rise: true });
}
