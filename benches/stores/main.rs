//! How fast the stores are, as ratios: each call beside the same statements done raw, by turns in one run.
//!
//! ```sh
//! cargo bench --bench stores                          # all stores that are compiled in
//! cargo bench --bench stores -- --rounds 10000
//! cargo bench --bench stores -- --only calls          # or: waits, many
//! cargo bench --bench stores -- --many 10000 --seconds 60
//! ```
//!
//! Only the ratios and differences of one run mean something: the machine's load moves both sides.

mod calls;
mod many;
#[cfg(feature = "sqlite")]
mod raw_sqlite;
mod table;
mod waits;

use std::path::{Path, PathBuf};

use table::Table;

/// A store to be measured.
struct Store {
    name: &'static str,
    url: String,
    /// The same statements without the library.
    raw: Option<Box<dyn Raw>>,
    /// Several processes can share it.
    shared: bool,
}

/// The calls of the low level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Acquire,
    Renew,
    Release,
    Refused,
}

/// What a careful program would do by hand, with the same promise about power cuts.
trait Raw {
    /// What is not part of the call and must stand before it.
    fn prepare(&mut self, call: Call);
    /// The call; it must succeed.
    fn run(&mut self, call: Call);
}

struct Args {
    rounds: usize,
    waits: usize,
    many: usize,
    seconds: u64,
    only: Option<String>,
}

fn main() {
    let mut args = std::env::args().skip(1);
    // `cargo bench` says so; `cargo test --benches` does not, and only wants to see that it runs.
    let mut parsed = Args { rounds: 20, waits: 1, many: 20, seconds: 1, only: None };
    let mut told: Vec<(String, String)> = Vec::new();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => parsed = Args { rounds: 4000, waits: 20, many: 500, seconds: 5, ..parsed },
            "--child" => return waits::child(args),
            "--rounds" | "--waits" | "--many" | "--seconds" | "--only" => {
                let value = args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
                told.push((arg, value));
            }
            // A filter of names or something else that cargo hands to every harness.
            other => eprintln!("{other:?} is ignored"),
        }
    }
    for (name, value) in told {
        let number = || value.parse().unwrap_or_else(|_| panic!("{name} {value}: not a number"));
        match name.as_str() {
            "--rounds" => parsed.rounds = number(),
            "--waits" => parsed.waits = number(),
            "--many" => parsed.many = number(),
            "--seconds" => parsed.seconds = number() as u64,
            _ => parsed.only = Some(value),
        }
    }
    run(&parsed);
}

fn run(args: &Args) {
    // On the disk that the build is on: `/tmp` may be memory, where a sync costs nothing.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("stores-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the stores");
    let wanted = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    let mut table = Table::default();
    for mut store in stores(&folder) {
        if wanted("calls") {
            calls::measure(&mut store, args.rounds, &mut table);
        }
        if wanted("waits") {
            waits::measure(&store, args.waits, &mut table);
        }
        if wanted("many") {
            many::measure(&store, args.many, args.seconds, &mut table);
        }
    }
    table.print();
    let _ = std::fs::remove_dir_all(&folder);
}

fn stores(folder: &Path) -> Vec<Store> {
    let memory = Store { name: "memory", url: "memory:bench".to_owned(), raw: None, shared: false };
    [Some(memory), sqlite(folder)].into_iter().flatten().collect()
}

#[cfg(feature = "sqlite")]
fn sqlite(folder: &Path) -> Option<Store> {
    let raw = raw_sqlite::RawSqlite::new(&folder.join("raw.db"));
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    Some(Store { name: "sqlite", url, raw: Some(Box::new(raw)), shared: true })
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_folder: &Path) -> Option<Store> {
    None
}
