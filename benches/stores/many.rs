//! Many guards in one process: whether all of them stay held, what they cost, and how long `close` takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::{LockClient, LockGuard};

use super::cost::{Costed, threads};
use super::store::{Stalling, Store};
use super::table::{Samples, Table};

/// How many guards `close` must release, unless fewer are asked for.
const CLOSED: usize = 1000;
/// How long the one request stalls.
const STALL: Duration = Duration::from_secs(1);

pub fn measure(store: &Store, guards: usize, seconds: u64, table: &mut Table) {
    held(store.name, &store.url, None, guards, seconds, table);
    if let Some(stalling) = &store.stalling {
        let stalling = stalling();
        held(store.name, &stalling.url, Some(&stalling), guards, seconds, table);
    }
    // The few of a trial run, otherwise a thousand, however many guards are held above.
    closed(store, if guards < 100 { guards } else { CLOSED }, table);
}

fn hold(client: &LockClient, guards: usize) -> Vec<leasehold::LockGuard> {
    let lock = |n| {
        let refused = |error| panic!("guard {n} of {guards} is not granted, with {}: {error:?}", used());
        client.lock(&format!("many-{n}")).unwrap_or_else(refused)
    };
    (0..guards).map(lock).collect()
}

fn close(client: &LockClient, guards: usize) {
    let failed = |error| panic!("not all of {guards} guards are released, with {}: {error:?}", used());
    client.close().unwrap_or_else(failed);
}

/// How guards were lost, with the number of guards for each reason.
fn losses(guards: &[LockGuard]) -> BTreeMap<String, usize> {
    let mut losses = BTreeMap::new();
    for guard in guards {
        let how = match guard.loss().get() {
            Some(loss) => loss.reason.to_string(),
            None if !guard.is_held() => "not held, and no loss is told".to_owned(),
            None => continue,
        };
        *losses.entry(how).or_default() += 1;
    }
    losses
}

/// The resources that a process with many threads may run out of.
fn used() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().count();
    let most = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let [most_maps, most_pids] = ["vm/max_map_count", "kernel/pid_max"].map(|name| most(&format!("/proc/sys/{name}")));
    format!("{} threads (the host has numbers for {most_pids}), {maps} of {most_maps} memory maps", threads())
}

/// Half-way through, one request stalls, if `stalling` is given.
fn held(name: &str, url: &str, stalling: Option<&Stalling>, guards: usize, seconds: u64, table: &mut Table) {
    // Not `store.connect()`, whose usual bound for releases the row of `closed` measures.
    let costed = Costed::connect(url);
    let client = &costed.client;
    let before = memory();
    let mut taken = Samples::default();
    let started = Instant::now();
    let guards = hold(client, guards);
    taken.push(started.elapsed());
    let before_holding = costed.count();
    let (started, cpu_before) = (Instant::now(), cpu());
    let (mut highest, mut stalls) = (0, stalling);
    while started.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(200));
        highest = highest.max(memory());
        if started.elapsed() > Duration::from_secs(seconds) / 2
            && let Some(stalling) = stalls.take()
        {
            (stalling.stall)(STALL);
        }
    }
    let share = cpu().saturating_sub(cpu_before).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    let costs = costed.since(&before_holding);
    let losses = losses(&guards);
    let lost: usize = losses.values().sum();
    let used_most = used();
    let beside = format!(
        "then held for {seconds} s{}: {lost} lost, {share:.1} % of a core, {} MB, {} of them before, {costs}",
        if stalling.is_some() { ", by way of a proxy in this process, where one request stalls for 1 s" } else { "" },
        highest / 1024,
        before / 1024
    );
    table.alone(name, &format!("{} guards, taken one by one", guards.len()), &taken, beside);
    assert_eq!(lost, 0, "guards were lost, with {used_most}: {losses:#?}");
    close(client, guards.len());
}

fn closed(store: &Store, guards: usize, table: &mut Table) {
    let client = store.connect();
    let guards = hold(&client, guards);
    let started = Instant::now();
    close(&client, guards.len());
    let took = Samples(vec![started.elapsed()]);
    table.alone(store.name, &format!("close() of {} guards", guards.len()), &took, String::new());
}

/// The resident memory of this process, in KiB; zero where that is not known.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The processor time that this process has used.
#[cfg(unix)]
pub fn cpu() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("its usage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.try_into().unwrap_or(0))
}

#[cfg(not(unix))]
pub fn cpu() -> Duration {
    Duration::ZERO
}
