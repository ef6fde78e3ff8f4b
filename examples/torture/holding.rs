//! What a worker does with a hold, and how it ends it.

use std::fs;
use std::mem;
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Lock, LockGuard};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::checker::history::{End, Form, Line, Mode};
use crate::clock::{nanos, now};
use crate::worker::{ABANDONED, Held, Worker, asked};

/// The least margin that DynamoDB's inexact time requires; for the other stores milliseconds are enough.
const MARGIN: Duration = Duration::from_millis(100);

/// Goes on with the answer of a call that gives a guard.
pub fn answered(
    worker: &Worker,
    random: &mut fastrand::Rng,
    id: u64,
    mode: Mode,
    answer: Result<Option<LockGuard>, Error>,
) {
    match answer {
        Ok(Some(guard)) => {
            let held = worker.granted(id, mode, guard.key(), guard.fencing_token());
            if hold(worker, random, &held, &guard) {
                end(worker, random, &held, guard);
            } else {
                // Like a holder that does not look before it writes: only the token protects here.
                if mode == Mode::Exclusive {
                    write(worker, &held, guard.fencing_token());
                }
                worker.tell_loss(id, &guard);
                end_lost(worker, random, id, guard);
            }
        }
        Ok(None) => worker.refused(id),
        Err(error) => worker.failed(id, &error),
    }
}

/// How long something is held: mostly briefly, at times for longer than a lease.
pub fn time_to_hold(worker: &Worker, random: &mut fastrand::Rng, mode: Mode) -> Duration {
    // Readers hold for longer, so that they overlap.
    let brief = if mode == Mode::Shared { 50 } else { 90 };
    let share = match random.u32(..100) {
        roll if roll < brief => random.f64() * 0.004,
        0..97 => random.f64() * 0.3,
        _ => 1.2 + random.f64() * 0.6,
    };
    worker.lease().mul_f64(share)
}

/// Holds it for a while, looking and writing; returns whether it is held at the end.
fn hold(worker: &Worker, random: &mut fastrand::Rng, held: &Held, guard: &LockGuard) -> bool {
    let started = Instant::now();
    let time = time_to_hold(worker, random, held.mode);
    loop {
        if !worker.look(held.id, guard) {
            return false;
        }
        let is_held = || guard.is_held() || guard.ensure_held().is_ok() || !guard.remaining().is_zero();
        fork_now_and_then(worker, random, held.id, is_held);
        // Like a holder that does not look again before it writes: only the token protects here.
        if random.u32(..20) == 0 {
            std::thread::sleep(worker.lease().mul_f64(0.1 * random.f64()));
        }
        if held.mode == Mode::Exclusive {
            write(worker, held, guard.fencing_token());
        }
        if time > worker.lease() && random.u32(..10) == 0 {
            // A renewal in addition to those of the heartbeat, whose answer is a promise.
            let (from, needed) = (now(), worker.lease().mul_f64(0.85));
            if guard.ensure_held_for(needed).is_ok() {
                worker.looked(from, held.id, needed);
            }
        }
        let Some(left) = time.checked_sub(started.elapsed()).filter(|_| !worker.is_over()) else {
            return worker.look(held.id, guard);
        };
        std::thread::sleep(left.min(worker.lease() / 8));
    }
}

pub fn write(worker: &Worker, held: &Held, token: u64) {
    let from = now();
    if let Some(accepted) = worker.resource.write(&held.key, token) {
        worker.write(&Line::Write { from, to: now(), id: held.id, token, accepted });
    }
}

fn release(worker: &Worker, id: u64, guard: LockGuard) {
    let mut failed = None;
    worker.end(id, End::Release, || {
        guard.release().map_err(|error| {
            let copy = error.error().clone();
            failed = Some((error.error().clone(), error.into_guard()));
            copy
        })
    });
    if let Some((error, guard)) = failed {
        // A drop does not report what became of it, so the release's error is written down.
        worker.end(id, End::Drop, || {
            drop(guard);
            Err(error)
        });
    }
}

fn end(worker: &Worker, random: &mut fastrand::Rng, held: &Held, guard: LockGuard) {
    match random.u32(..1000) {
        0..480 => release(worker, held.id, guard),
        480..900 => worker.end(held.id, End::Drop, || {
            drop(guard);
            Ok(())
        }),
        900..970 => hand_over(worker, held, guard),
        970..988 => show_to_others(worker, random, held, guard),
        _ if worker.leaves(random) => {
            worker.write(&Line::Ending { at: now(), id: held.id, how: End::Leave });
            mem::forget(guard);
            std::process::exit(ABANDONED);
        }
        _ => release(worker, held.id, guard),
    }
}

fn end_lost(worker: &Worker, random: &mut fastrand::Rng, id: u64, guard: LockGuard) {
    if random.bool() {
        return worker.end(id, End::Release, || guard.release().map_err(Error::from));
    }
    worker.end(id, End::Drop, || {
        drop(guard);
        Ok(())
    });
}

/// Leaves the lock as data, for the process that adopts it first.
fn hand_over(worker: &Worker, held: &Held, guard: LockGuard) {
    worker.write(&Line::Ending { at: now(), id: held.id, how: End::Leave });
    let lock = guard.into_lock();
    leave(worker, held.id, held.mode, &lock);
    worker.write(&Line::Ended { at: now(), id: held.id, answer: "ok".to_owned() });
}

/// Another process may adopt the lock while it is held: then its guard must report the loss.
fn show_to_others(worker: &Worker, random: &mut fastrand::Rng, held: &Held, guard: LockGuard) {
    leave(worker, held.id, held.mode, &guard.info());
    let until = Instant::now() + worker.lease().mul_f64(2.0);
    while Instant::now() < until && !worker.is_over() {
        if !worker.look(held.id, &guard) {
            worker.tell_loss(held.id, &guard);
            return end_lost(worker, random, held.id, guard);
        }
        std::thread::sleep(worker.lease() / 8);
    }
    release(worker, held.id, guard);
}

pub fn leave(worker: &Worker, id: u64, mode: Mode, lock: &Lock) {
    let mode = if mode == Mode::Shared { "s" } else { "x" };
    let file = worker.dir.join("handed").join(format!("{}-{id}-{mode}", worker.name));
    let part = worker.dir.join(format!("{}-{id}.part", worker.name));
    let json = serde_json::to_vec(lock).expect("a lock as JSON");
    // By the rename the whole file is there at once, or not at all.
    let left = fs::write(&part, json).and_then(|()| fs::rename(&part, &file));
    left.expect("a file for the lock");
}

/// Adopts what another process has left. At times it leaves the file for others, too: only one of them may get the
/// lock.
pub fn adopt(worker: &Worker, random: &mut fastrand::Rng) {
    let Ok(found) = fs::read_dir(worker.dir.join("handed")) else { return };
    let files: Vec<_> = found.filter_map(|entry| Some(entry.ok()?.path())).collect();
    if files.is_empty() {
        return;
    }
    let file = &files[random.usize(..files.len())];
    let mine = worker.dir.join(format!("{}-{}.mine", worker.name, fastrand::u64(..)));
    let took = if random.u32(..4) == 0 { fs::copy(file, &mine).map(drop) } else { fs::rename(file, &mine) };
    // Another process was faster.
    if took.is_err() {
        return;
    }
    let lock: Lock = serde_json::from_slice(&fs::read(&mine).expect("a file")).expect("a lock as JSON");
    let _ = fs::remove_file(&mine);
    let mode = if file.to_string_lossy().ends_with('s') { Mode::Shared } else { Mode::Exclusive };
    let mut ask = asked(Form::Guard, mode, lock.key(), 0, Some(Duration::ZERO));
    ask.instead_of = Some(lock.fencing_token());
    let id = worker.ask(ask);
    answered(worker, random, id, mode, worker.client.adopt(lock).map(Some));
}

/// A lock as data, which the worker renews itself. At times it lets the lease run out first, and renews all the same.
pub fn data(worker: &Worker, random: &mut fastrand::Rng, key: &str) {
    let id = worker.ask(asked(Form::Data, Mode::Exclusive, key, 0, Some(Duration::ZERO)));
    let sent = now();
    let mut lock = match worker.client.request(key).acquire() {
        Ok(lock) => lock,
        Err(error) => return worker.failed(id, &error),
    };
    let held = worker.granted(id, Mode::Exclusive, key, lock.fencing_token());
    let mut until = believe(worker, id, sent);
    for _ in 0..random.u32(..4) {
        if worker.is_over() {
            break;
        }
        // At times for longer than its lease: then only the store knows whether it is still there.
        let nap = if random.u32(..6) == 0 { 1.0 + random.f64() * 0.5 } else { 0.02 * random.f64() };
        std::thread::sleep(worker.lease().mul_f64(nap));
        if now() < until {
            write(worker, &held, lock.fencing_token());
        }
        let sent = now();
        match worker.client.heartbeat(&lock, worker.lease()) {
            Ok(renewed) => (lock, until) = (renewed, believe(worker, id, sent)),
            Err(error) if error.kind() == ErrorKind::Lost => {
                worker.write(&Line::Lost { at: now(), id, reason: "lost".to_owned() });
                return insist(worker, random, id, &lock);
            }
            Err(_) => {}
        }
    }
    if random.u32(..20) == 0 && !worker.is_over() {
        std::thread::sleep(worker.lease().mul_f64(1.0 + random.f64() * 0.5));
    }
    worker.end(id, End::Release, || worker.client.release(&lock));
}

/// A caller that has lost a lock and goes on to renew and release it: this must not affect the holders that have it
/// now.
fn insist(worker: &Worker, random: &mut fastrand::Rng, id: u64, lock: &Lock) {
    for _ in 0..random.u32(..40) {
        std::thread::sleep(Duration::from_micros(random.u64(..4_000)));
        let sent = now();
        if random.bool() && worker.client.heartbeat(lock, worker.lease()).is_ok() {
            believe(worker, id, sent);
        } else {
            let _ = worker.client.release(lock);
        }
    }
    worker.end(id, End::Release, || worker.client.release(lock));
}

/// A caller that renews a lock as data counts its lease from before the request was sent, to its end less what two
/// clocks may differ by. A margin like that of a guard would hide a takeover that is too early by less than the margin.
fn believe(worker: &Worker, id: u64, sent: u64) -> u64 {
    let until = sent + nanos(worker.lease() - MARGIN.min(worker.lease() / 10));
    let from = now();
    worker.looked(from, id, Duration::from_nanos(until.saturating_sub(from)));
    until
}

/// The lease of a name: claimed, extended, and revoked or left until somebody expires it.
pub fn lease_of_a_name(worker: &Worker, random: &mut fastrand::Rng, number: usize) {
    let (leases, name) = (worker.client.leases("torture"), format!("{}-name-{number}", worker.options.run));
    let lease = worker.lease();
    if random.u32(..3) == 0 {
        let _ = leases.expire(&name);
    }
    let id = worker.ask(asked(Form::Name, Mode::Exclusive, &name, 0, Some(Duration::ZERO)));
    let holder = format!("{}-{id}", worker.name);
    let sent = now();
    let token = match leases.claim(&name, &holder, lease) {
        Ok(status) => status.fencing_token(),
        Err(error) if error.kind() == ErrorKind::InvalidLease => return worker.refused(id),
        Err(error) => return worker.failed(id, &error),
    };
    worker.granted(id, Mode::Exclusive, &name, token);
    believe(worker, id, sent);
    for _ in 0..random.u32(..3) {
        std::thread::sleep(lease.mul_f64(0.05 * random.f64()));
        let sent = now();
        match leases.extend(&name, &holder, lease) {
            Ok(_) => {
                believe(worker, id, sent);
            }
            Err(error) if error.kind() == ErrorKind::InvalidLease => {
                worker.write(&Line::Lost { at: now(), id, reason: "invalid_lease".to_owned() });
                break;
            }
            Err(_) => {}
        }
    }
    if random.u32(..10) > 0 {
        return worker.end(id, End::Release, || leases.revoke(&name, &holder));
    }
    worker.end(id, End::Leave, || Ok(()));
}

/// A child of this very process looks at the guard, and must not hold what its parent holds.
pub fn fork_now_and_then(worker: &Worker, random: &mut fastrand::Rng, id: u64, is_held: impl Fn() -> bool) {
    // Often enough that a short run on a busy machine has one.
    if !worker.options.forks() || random.u32(..50) > 0 {
        return;
    }
    // SAFETY: the child calls nothing but the guards, one `prctl`, one `write` and one signal to itself, and ends by
    // that.
    #[allow(unsafe_code)]
    let forked = unsafe { fork() };
    match forked {
        Ok(ForkResult::Child) => {
            // When the worker is killed, this child must be killed, too, even if it hangs.
            let _ = set_pdeathsig(Signal::SIGKILL);
            worker.write(&Line::Forked { at: now(), id, held: is_held() });
            let _ = kill(Pid::this(), Signal::SIGKILL);
            unreachable!("a process that has killed itself");
        }
        Ok(ForkResult::Parent { child }) => {
            let (started, from) = (Instant::now(), now());
            loop {
                match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                    Ok(WaitStatus::StillAlive) if started.elapsed() < Duration::from_secs(5) => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(WaitStatus::StillAlive) => {
                        let _ = kill(child, Signal::SIGKILL);
                        let _ = waitpid(child, None);
                        return worker.write(&Line::Hung { from, to: now(), id });
                    }
                    Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _)) | Err(_) => return,
                    Ok(_) => return worker.write(&Line::Crashed { at: now(), id }),
                }
            }
        }
        Err(error) => eprintln!("torture: {}: no fork: {error}", worker.name),
    }
}
