//! Five processes over 200 terms, which are killed, stopped and resign. The test checks them from outside.

use std::time::Instant;

use crossbeam_channel::Select;

use crate::support::harness::{Folder, PATIENCE};
use crate::support::oracle::assert_one_writer_or_readers;
use crate::support::process::Worker;
use crate::support::stores::{is_wanted, stores};
use crate::support::urls::{Shared, of, shared};
use crate::*;

const NODES: usize = 5;
const TERMS: usize = 200;

/// Every store that processes can share is tested.
#[test]
fn every_store_has_its_url() {
    let known = shared().into_iter().map(|store| store.module).filter(|module| is_wanted(module));
    let known: Vec<_> = known.collect();
    let all: Vec<_> = stores().into_iter().map(|store| store.module).filter(|module| *module != "memory").collect();
    assert_eq!(known, all);
}

/// What happens to a leader.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Resigns,
    IsKilled,
    IsStopped,
}

/// The nodes, and the terms that they have reported.
struct Nodes<'a> {
    store: &'a Shared,
    job: &'a str,
    poll: Duration,
    folder: Folder,
    workers: Vec<Worker>,
    /// The term that each node believes to lead.
    terms: Vec<Option<u64>>,
}

impl Nodes<'_> {
    fn start<'a>(store: &'a Shared, job: &'a str, poll: Duration) -> Nodes<'a> {
        let (folder, terms) = (Folder::new(), vec![None; NODES]);
        let mut nodes = Nodes { store, job, poll, folder, workers: Vec::new(), terms };
        nodes.workers = (0..NODES).map(|_| nodes.worker()).collect();
        nodes
    }

    fn worker(&self) -> Worker {
        let mut worker = Worker::polling(&self.store.url, SECOND, self.poll, self.store.env.as_ref());
        worker.tell(&format!("stand {} {}", self.job, self.folder.path().display()));
        worker
    }

    /// The node that wins next, and its token.
    fn next(&mut self) -> (usize, u64) {
        let by = Instant::now() + PATIENCE;
        loop {
            let mut select = Select::new();
            for worker in &self.workers {
                select.recv(worker.answers());
            }
            let operation = select.select_deadline(by).expect("somebody wins");
            let at = operation.index();
            let said = operation.recv(self.workers[at].answers()).expect("the worker lives");
            match said.split(' ').collect::<Vec<_>>()[..] {
                ["won", token] => {
                    let token = token.parse().unwrap();
                    assert_eq!(self.terms[at].replace(token), None, "won, and not lost what was won before");
                    return (at, token);
                }
                ["lost", token] => {
                    let token = token.parse().unwrap();
                    assert_eq!(self.terms[at].take(), Some(token), "lost what was not won");
                }
                _ => {}
            }
        }
    }
}

/// Runs elections on this store over this many terms. Waiters look at the lock at least every `poll`.
fn one_leads_at_a_time(store: &Shared, job: &str, poll: Duration, terms: usize) {
    let Shared { module, grace, .. } = store;
    let mut nodes = Nodes::start(store, job, poll);
    store.measure();
    let (mut takeovers, mut stopped) = (Vec::new(), None::<usize>);
    let mut since: Option<(Fate, Instant)> = None;
    for term in 0..terms {
        let (at, token) = nodes.next();
        if let Some((fate, since)) = since.take() {
            takeovers.push((fate, since.elapsed(), store.slack(since)));
        }
        // When a stopped node goes on, another one leads.
        stopped.take().into_iter().for_each(|at: usize| nodes.workers[at].go_on());
        let fate = match term % 20 {
            7 => Fate::IsKilled,
            13 => Fate::IsStopped,
            _ => Fate::Resigns,
        };
        // Replaces a node that is killed. It is started before, because its start is not part of the takeover.
        let fresh = (fate == Fate::IsKilled).then(|| nodes.worker());
        since = Some((fate, Instant::now()));
        match fate {
            Fate::Resigns => nodes.workers[at].tell(&format!("resign {token}")),
            Fate::IsStopped => {
                nodes.workers[at].stop();
                stopped = Some(at);
            }
            Fate::IsKilled => {
                nodes.workers[at].kill();
                nodes.workers[at] = fresh.expect("it was started");
                nodes.terms[at] = None;
            }
        }
    }
    let tokens = assert_one_writer_or_readers(nodes.folder.path());
    assert!(tokens.len() > terms / 2, "only {} terms were claimed", tokens.len());
    for fate in [Fate::Resigns, Fate::IsKilled, Fate::IsStopped] {
        let of_fate = || takeovers.iter().filter(|(of, ..)| *of == fate);
        let mut took: Vec<Duration> = of_fate().map(|(_, took, _)| *took).collect();
        took.sort();
        let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{module}: a leader that {fate:?} is followed after {median:.1?}, at most {most:.1?}");
        // When a leader resigns, more than half of its lease is left, so the lease cannot have run out instead.
        let bound = if fate == Fate::Resigns { SECOND / 2 } else { SECOND + *grace };
        // The next leader may be as late as this process, which learns of it: twice the slack.
        let late = of_fate().find(|(_, took, slack)| *took > bound + 2 * *slack);
        assert!(late.is_none(), "{module}: {late:?}");
    }
}

/// Most of the time is spent waiting for takeovers. So several groups of nodes run at the same time, each with an
/// election of its own; more groups where a grace makes each takeover long.
fn on(module: &str) {
    let Some(store) = is_wanted(module).then(|| of(module)).flatten() else { return };
    let poll = if store.module == "sqlite" { ms(5) } else { ms(50) };
    let started = Instant::now();
    std::thread::scope(|scope| {
        let groups = if store.grace.is_zero() { 2 } else { 4 };
        for group in 0..groups {
            let (store, job) = (&store, format!("job{group}"));
            scope.spawn(move || one_leads_at_a_time(store, &job, poll, TERMS / groups));
        }
    });
    println!("{module}: {TERMS} terms in {:.0?}", started.elapsed());
}

mod one_leads_at_a_time_over_200_terms {
    macro_rules! on_one_store {
        // Other processes can't reach this store.
        (memory) => {};
        ($store:ident) => {
            #[test]
            fn $store() {
                super::on(stringify!($store));
            }
        };
    }
    crate::support::stores::for_each_store!(on_one_store);
}
