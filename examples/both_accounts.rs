//! A lock on all of several keys: transfers between two accounts in both directions, at the same time. Each takes both
//! locks, always in the same order, whatever order it names them in. So neither waits for the other for ever.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use leasehold::{LockClient, Mutex};

const TRANSFERS: usize = 20;

fn main() -> leasehold::Result<()> {
    let client = LockClient::connect("memory:")?;
    let balances = Mutex::new(BTreeMap::from([("account/3", 100), ("account/7", 100)]));
    let transfer = |from: &'static str, to: &'static str| -> leasehold::Result<()> {
        let both = client.request_all([from, to]).wait(Duration::from_secs(60)).lock()?;
        let read = balances.lock().clone();
        thread::sleep(Duration::from_millis(1)); // what another transfer would spoil
        both.ensure_held()?;
        balances.lock().extend([(from, read[from] - 1), (to, read[to] + 1)]);
        both.release()
    };
    thread::scope(|scope| {
        let there = scope.spawn(|| (0..TRANSFERS).try_for_each(|_| transfer("account/3", "account/7")));
        let back = scope.spawn(|| (0..TRANSFERS).try_for_each(|_| transfer("account/7", "account/3")));
        there.join().expect("no panic").and(back.join().expect("no panic"))
    })?;
    assert_eq!(*balances.lock(), BTreeMap::from([("account/3", 100), ("account/7", 100)]));
    println!("proof: {TRANSFERS} transfers in each direction, and nothing is lost or made");
    Ok(())
}
