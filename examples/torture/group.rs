//! Several locks at once, which count as held only while all of them are. The history has a hold of its own for each
//! key, which is believed for as long as the guard reports for all together.

use std::mem;
use std::time::{Duration, Instant};

use leasehold::{Error, LockAllGuard};

use crate::checker::history::{Asked, End, Form, Line, Mode};
use crate::clock::now;
use crate::holding::{fork_now_and_then, leave, time_to_hold, write};
use crate::worker::{ABANDONED, Held, Worker, asked, key};

/// Asks for two or three of the keys.
pub fn ask(worker: &Worker, random: &mut fastrand::Rng) {
    let options = &worker.options;
    let mut numbers: Vec<usize> = (0..options.keys).collect();
    random.shuffle(&mut numbers);
    let keys: Vec<String> = numbers.into_iter().take(random.usize(2..=3)).map(|n| key(options, n).0).collect();
    // Not without a limit: a call that has one of the keys while it waits for another keeps all others from it.
    let wait = if random.bool() { Duration::ZERO } else { worker.lease().mul_f64(random.f64()) };
    let of = Asked { keys: keys.clone(), all: true, ..asked(Form::Guard, Mode::Exclusive, "", 0, Some(wait)) };
    let id = worker.ask(of);
    let request = worker.client.request_all(&keys).each(|request| request.cancel(&worker.cancel));
    let answer = if wait.is_zero() { request.try_lock() } else { request.try_lock_for(wait) };
    match answer {
        Ok(Some(guard)) => hold_all(worker, random, id, guard),
        Ok(None) => worker.refused(id),
        Err(error) => worker.failed(id, &error),
    }
}

fn hold_all(worker: &Worker, random: &mut fastrand::Rng, of: u64, guard: LockAllGuard) {
    let at = now();
    let part = |guard: &leasehold::LockGuard| {
        let (id, token, key) = (worker.id(), guard.fencing_token(), guard.key().to_owned());
        worker.write(&Line::Part { at, of, id, token, key: key.clone() });
        Held { id, key, mode: Mode::Exclusive }
    };
    let parts: Vec<Held> = guard.guards().iter().map(part).collect();
    let time = time_to_hold(worker, random, Mode::Exclusive);
    if hold(worker, random, &parts, &guard, time) {
        return end(worker, random, &parts, guard);
    }
    lost(worker, &parts, &guard);
    release(worker, &parts, guard);
}

/// Writes down for each key what the guard reports for all; returns whether they are held.
fn look(worker: &Worker, parts: &[Held], guard: &LockAllGuard) -> bool {
    let ids: Vec<u64> = parts.iter().map(|held| held.id).collect();
    worker.look_at(&ids, || guard.remaining(), || [guard.is_held(), guard.ensure_held().is_ok()])
}

/// Holds them for this time, looking and writing; returns whether they are held at the end.
fn hold(worker: &Worker, random: &mut fastrand::Rng, parts: &[Held], guard: &LockAllGuard, time: Duration) -> bool {
    let started = Instant::now();
    loop {
        if !look(worker, parts, guard) {
            return false;
        }
        let is_held = || guard.is_held() || guard.ensure_held().is_ok() || !guard.remaining().is_zero();
        fork_now_and_then(worker, random, parts[0].id, is_held);
        for (held, one) in parts.iter().zip(guard.guards()) {
            write(worker, held, one.fencing_token());
        }
        let Some(left) = time.checked_sub(started.elapsed()).filter(|_| !worker.is_over()) else {
            return look(worker, parts, guard);
        };
        std::thread::sleep(left.min(worker.lease() / 8));
    }
}

/// Writes down each loss that was reported; the locks that were not lost remain until they are released.
fn lost(worker: &Worker, parts: &[Held], guard: &LockAllGuard) {
    let until = Instant::now() + Duration::from_secs(1);
    while guard.lost().is_none() && Instant::now() < until {
        std::thread::sleep(worker.lease() / 100);
    }
    let nobody_said = guard.lost().is_none();
    for (held, one) in parts.iter().zip(guard.guards()) {
        let reason = one.loss().get().map(|loss| loss.reason.name()).or(nobody_said.then_some("unknown"));
        if let Some(reason) = reason {
            worker.write(&Line::Lost { at: now(), id: held.id, reason: reason.to_owned() });
        }
    }
    // What is lost stays lost, even if one of the locks is renewed at this moment.
    for _ in 0..4 {
        std::thread::sleep(worker.lease() / 20);
        look(worker, parts, guard);
    }
}

fn end(worker: &Worker, random: &mut fastrand::Rng, parts: &[Held], guard: LockAllGuard) {
    match random.u32(..1000) {
        0..400 => release(worker, parts, guard),
        400..780 => {
            ending(worker, parts, End::Drop);
            drop(guard);
            ended(worker, parts, "ok");
        }
        780..980 => show_one_to_others(worker, random, parts, guard),
        _ if worker.leaves(random) => {
            ending(worker, parts, End::Leave);
            mem::forget(guard);
            std::process::exit(ABANDONED);
        }
        _ => release(worker, parts, guard),
    }
}

/// Another process may adopt one of the locks: then they do not count as held any more, whatever remains of the others.
fn show_one_to_others(worker: &Worker, random: &mut fastrand::Rng, parts: &[Held], guard: LockAllGuard) {
    let at = random.usize(..parts.len());
    leave(worker, parts[at].id, Mode::Exclusive, &guard.guards()[at].info());
    if !hold(worker, random, parts, &guard, worker.lease().mul_f64(2.0)) {
        lost(worker, parts, &guard);
    }
    release(worker, parts, guard);
}

fn ending(worker: &Worker, parts: &[Held], how: End) {
    let at = now();
    parts.iter().for_each(|held| worker.write(&Line::Ending { at, id: held.id, how }));
}

fn ended(worker: &Worker, parts: &[Held], answer: &str) {
    let at = now();
    parts.iter().for_each(|held| worker.write(&Line::Ended { at, id: held.id, answer: answer.to_owned() }));
}

/// The error is that of the first lock whose release failed; the others are released as if their guard was dropped.
fn release(worker: &Worker, parts: &[Held], guard: LockAllGuard) {
    ending(worker, parts, End::Release);
    let error = guard.release().err();
    ended(worker, parts, error.as_ref().map_or("ok", |error| error.kind().name()));
    let is_of_another = |held: &Held| error.as_ref().and_then(Error::key).is_some_and(|key| key != held.key);
    for held in parts.iter().filter(|held| is_of_another(held)) {
        worker.end(held.id, End::Drop, || Ok(()));
    }
}
