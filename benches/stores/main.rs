//! How fast the stores are, as ratios: each call compared with the same statements done raw, by turns in one run.
//!
//! ```sh
//! cargo bench -p leasehold-tests --bench stores    # all stores that are compiled in
//! cargo bench -p leasehold-tests --bench stores -- --rounds 10000
//! cargo bench -p leasehold-tests --bench stores -- --only calls          # or: waits, waiting, many, fenced, hop
//! cargo bench -p leasehold-tests --bench stores -- --many 10000 --seconds 60
//! cargo bench -p leasehold-tests --bench stores --features dynamodb -- --store dynamodb
//! cargo bench -p leasehold-tests --bench stores --features postgres -- --store postgres
//! cargo bench -p leasehold-tests --bench stores --features spanner -- --store spanner
//! cargo bench -p leasehold-tests --bench stores --features dynamodb -- --only hop
//! ```
//!
//! Only the ratios and differences within one run mean something, because the machine's load affects both sides.

mod calls;
mod cost;
#[path = "../../tests/promises/fenced/data/mod.rs"]
mod data;
mod fenced;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
mod hidden;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
mod hop;
mod many;
#[cfg(feature = "dynamodb")]
#[path = "../../tests/support/proxy/mod.rs"]
mod proxy;
#[cfg(feature = "dynamodb")]
mod raw_dynamodb;
#[cfg(feature = "mongodb")]
mod raw_mongodb;
#[cfg(feature = "postgres")]
mod raw_postgres;
#[cfg(feature = "spanner")]
mod raw_spanner;
#[cfg(feature = "sqlite")]
mod raw_sqlite;
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
#[path = "../../tests/support/servers/mod.rs"]
mod servers;
mod store;
mod table;
mod waiting;
mod waits;

use table::Table;

struct Args {
    rounds: usize,
    waits: usize,
    many: usize,
    fenced: u64,
    seconds: u64,
    only: Option<String>,
    store: Option<String>,
}

fn main() {
    let mut args = std::env::args().skip(1);
    // `cargo bench` passes `--bench`. `cargo test --benches` does not: it only checks that the benchmark runs.
    let mut parsed = Args { rounds: 20, waits: 1, many: 20, fenced: 1, seconds: 1, only: None, store: None };
    let mut told: Vec<(String, String)> = Vec::new();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => parsed = Args { rounds: 4000, waits: 20, many: 500, fenced: 30, seconds: 5, ..parsed },
            "--child" => return waits::child(args),
            "--rounds" | "--waits" | "--many" | "--fenced" | "--seconds" | "--only" | "--store" => {
                let value = args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
                told.push((arg, value));
            }
            // A filter of names, or something else that cargo passes to every harness.
            other => eprintln!("{other:?} is ignored"),
        }
    }
    for (name, value) in told {
        let number = || value.parse().unwrap_or_else(|_| panic!("{name} {value}: not a number"));
        match name.as_str() {
            "--rounds" => parsed.rounds = number(),
            "--waits" => parsed.waits = number(),
            "--many" => parsed.many = number(),
            "--fenced" => parsed.fenced = number() as u64,
            "--seconds" => parsed.seconds = number() as u64,
            "--store" => parsed.store = Some(value),
            _ => parsed.only = Some(value),
        }
    }
    run(&parsed);
}

fn run(args: &Args) {
    // On the disk of the build: `/tmp` may be in memory, where a sync costs nothing.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the stores");
    let wanted = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    let mut table = Table::default();
    #[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "postgres", feature = "spanner"))]
    if wanted("hop") {
        hop::measure(args.rounds, &mut table);
    }
    for mut store in store::stores(folder.path(), args.store.as_deref()) {
        if wanted("calls") {
            calls::measure(&mut store, args.rounds, &mut table);
        }
        if wanted("waits") {
            waits::measure(&mut store, args.waits, &mut table);
        }
        if wanted("waiting") {
            waiting::measure(&store, args.many, args.seconds, &mut table);
        }
        if wanted("many") {
            many::measure(&store, args.many, args.seconds, &mut table);
        }
        if wanted("fenced") {
            fenced::measure(&store, args.fenced, &mut table);
        }
        #[cfg(feature = "postgres")]
        if store.name == "postgres" {
            raw_postgres::tidy(&store.url);
        }
    }
    table.print();
}
