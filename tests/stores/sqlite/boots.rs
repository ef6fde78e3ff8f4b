//! Holders with times of another clock: of an earlier boot, or of a container with a shifted clock.

use std::time::Duration;

use leasehold::internals::lease::{Ask, Lease, Mode};
use leasehold::internals::store::{Backend, Purpose, Renewal, Swapped, Which};
use leasehold::internals::sys::clock::Clock;

use crate::sqlite::support::*;
use crate::support::servers::skip;

/// How far apart the two clocks of a test are: far more than any lease.
const APART: Duration = Duration::from_secs(1_000_000);
/// How much less than a whole lease may be reported at its beginning.
const NEAR: Duration = Duration::from_secs(5);
/// How long the test itself may take, on a machine that may stall for some seconds.
const SLACK: Duration = Duration::from_secs(8);

#[test]
fn the_first_to_see_it_starts_a_whole_lease() {
    // A machine without early randomness, or one that starts from a snapshot, may have the same boot id as the boot
    // before.
    for (earlier_boot, this_boot) in [("boot-1", "boot-2"), ("a:0.0", "a:0.0")] {
        let folder = Folder::new();
        let (before, earlier) = open_at(&folder.file(), earlier_boot);
        earlier.advance(APART);
        let old_token = granted(&before, &mut attempt("k", "a")).token;
        drop(before);
        let (now, clock) = open_at(&folder.file(), this_boot);
        // By the old clock the lock would be held for another million seconds.
        let seen = held(&now, &mut attempt("k", "b"));
        assert!(left(&seen) <= seconds(20) && left(&seen) > seconds(20) - NEAR, "{:?}", left(&seen));
        clock.advance(seconds(20) - SLACK);
        held(&now, &mut attempt("k", "b"));
        clock.advance(SLACK);
        assert!(granted(&now, &mut attempt("k", "b")).token > old_token);
    }
}

#[test]
fn a_sighting_by_an_earlier_boot_of_the_same_id_is_none() {
    let folder = Folder::new();
    granted(&open_at(&folder.file(), "boot-1").0, &mut attempt("k", "a"));
    let (before, earlier) = open_at(&folder.file(), "boot-2");
    earlier.advance(APART);
    held(&before, &mut attempt("k", "b"));
    let (now, clock) = open_at(&folder.file(), "boot-2");
    held(&now, &mut attempt("k", "b"));
    clock.advance(seconds(20));
    granted(&now, &mut attempt("k", "b"));
}

#[test]
fn an_earlier_boot_whose_clock_was_behind_is_not_taken_for_over() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    granted(&before, &mut attempt("k", "a"));
    let (now, clock) = open_at(&folder.file(), "boot-2");
    clock.advance(APART);
    held(&now, &mut attempt("k", "b"));
}

#[test]
fn any_path_notes_the_sighting_and_short_callers_share_it() {
    let noticing: [fn(&leasehold::internals::store::sqlite::Sqlite); 6] = [
        |store| drop(look(store, "k")),
        |store| drop(page(store, Which::Prefix(String::new()))),
        |store| drop(page(store, Which::LockId("id of a".to_owned()))),
        |store| drop(held(store, &mut attempt("k", "b"))),
        |store| drop(store.release(&mut attempt("k", "b"), Purpose::Release, &soon()).unwrap()),
        |store| drop(store.renew(&mut attempt("k", "b"), heartbeat(seconds(20)), &soon()).unwrap()),
    ];
    for notice in noticing {
        let folder = Folder::new();
        let (before, earlier) = open_at(&folder.file(), "boot-1");
        earlier.advance(APART);
        granted(&before, &mut attempt("k", "a"));
        let sighted = || -> bool {
            raw(&folder.file()).query_row("SELECT sightings IS NOT NULL FROM locks", [], |row| row.get(0)).unwrap()
        };
        assert!(!sighted());
        let (first, _) = open_at(&folder.file(), "boot-2");
        notice(&first);
        drop(first);
        assert!(sighted());
        // Another process of the same boot, 20 seconds later.
        let (second, clock) = open_at(&folder.file(), "boot-2");
        clock.advance(seconds(20));
        granted(&second, &mut attempt("k", "b"));
        assert!(!sighted());
    }
}

#[test]
fn a_reader_behind_a_writer_goes_without_the_sighting() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    granted(&before, &mut attempt("k", "a"));
    let (now, _) = open_at(&folder.file(), "boot-2");
    let writer = raw(&folder.file());
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(left(&look(&now, "k")) > seconds(20) - NEAR);
    writer.execute_batch("COMMIT").unwrap();
    let version = look(&now, "k").record.version;
    let noted: (String, u64) = writer
        .query_row("SELECT sightings, version FROM locks", [], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))
        .unwrap();
    assert!(noted.0.contains("boot-2"));
    assert_eq!(noted.1, version);
}

/// Makes a grant of a boot that ran longer than the next one, with its lease renewed to this length.
fn held_for(folder: &Folder, lease: Duration) {
    let (before, earlier) = open_at(&folder.file(), "1:0.0");
    earlier.advance(APART);
    let mut long = attempt("k", "a");
    granted(&before, &mut long);
    renewed(&before, &mut long, heartbeat(lease));
}

#[test]
fn a_long_lease_waits_a_minute_when_the_wall_clock_says_it_is_over_and_its_whole_length_when_not() {
    let folder = Folder::new();
    let hours = Duration::from_secs(8 * 3600);
    held_for(&folder, hours);
    let (now, clock) = open_at(&folder.file(), "2:0.0");
    assert!(left(&held(&now, &mut attempt("k", "b"))) > hours - NEAR);
    clock.advance(seconds(3600));
    held(&now, &mut attempt("k", "b"));
    // The wall clock says that the lease is over, and it was first seen an hour ago.
    clock.set_wall_offset(hours.as_micros() as i64 + 60_000_000);
    granted(&now, &mut attempt("k", "b"));
}

#[test]
fn a_minute_counts_from_the_sighting() {
    let folder = Folder::new();
    let hours = Duration::from_secs(8 * 3600);
    held_for(&folder, hours);
    let (now, clock) = open_at(&folder.file(), "2:0.0");
    clock.set_wall_offset(hours.as_micros() as i64 + 60_000_000);
    held(&now, &mut attempt("k", "b"));
    clock.advance(seconds(60) - SLACK);
    held(&now, &mut attempt("k", "b"));
    clock.advance(SLACK);
    granted(&now, &mut attempt("k", "b"));
}

/// A container has a boot id of its own, and is alive: neither another boot id nor a wall clock that was set proves
/// that its boot is over.
#[test]
fn a_holder_that_may_be_alive_has_its_whole_lease_whatever_the_wall_clock_says() {
    let lease = seconds(300);
    // Not comparable; comparable and behind ours; both drawn at random.
    for (theirs, ours) in [("a:9.0", "b:0.0"), ("a:0.0", "b:0.0"), ("process:a", "process:b"), ("boot-1", "boot-2")] {
        let folder = Folder::new();
        let (container, container_clock) = open_at(&folder.file(), theirs);
        if theirs == "a:9.0" {
            container_clock.advance(APART);
        }
        let mut mine = leasehold::internals::store::Attempt::new("k", ask("a", lease));
        granted(&container, &mut mine);
        let (host, host_clock) = open_at(&folder.file(), ours);
        host_clock.set_wall_offset(APART.as_micros() as i64);
        for _ in 0..3 {
            held(&host, &mut attempt("k", "b"));
            // Its heartbeats are a third of the lease apart.
            host_clock.advance(lease / 3);
            container_clock.advance(lease / 3);
            held(&host, &mut attempt("k", "b"));
            renewed(&container, &mut mine, heartbeat(lease));
        }
        held(&host, &mut attempt("k", "b"));
        host_clock.advance(lease);
        granted(&host, &mut attempt("k", "b"));
    }
}

#[test]
fn an_endless_one_is_never_taken_over_by_time() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    let mut endless = attempt("k", "a");
    granted(&before, &mut endless);
    let forever = Renewal { lease: Lease::Forever, may_end_endless: false };
    assert_eq!(renewed(&before, &mut endless, forever), None);
    let (now, clock) = open_at(&folder.file(), "boot-2");
    held(&now, &mut attempt("k", "b"));
    clock.advance(APART * 100);
    clock.set_wall_offset(i64::MAX / 2);
    held(&now, &mut attempt("k", "b"));
    // But any client that has the grant id may release it.
    now.release(&mut endless, Purpose::Release, &soon()).unwrap();
    granted(&now, &mut attempt("k", "b"));
}

#[test]
fn a_holder_that_lives_on_another_clock_keeps_its_lock() {
    let folder = Folder::new();
    let (host, host_clock) = open_at(&folder.file(), "boot:host");
    let (container, container_clock) = open_at(&folder.file(), "boot:container");
    container_clock.advance(APART);
    let lease = seconds(60);
    let mut mine = leasehold::internals::store::Attempt::new("k", ask("a", lease));
    granted(&container, &mut mine);
    for _ in 0..10 {
        // Three quarters of the lease pass for both.
        held(&host, &mut attempt("k", "b"));
        host_clock.advance(lease * 3 / 4);
        container_clock.advance(lease * 3 / 4);
        held(&host, &mut attempt("k", "b"));
        let left = renewed(&container, &mut mine, heartbeat(lease));
        assert!(left.unwrap() > lease - NEAR);
    }
    held(&host, &mut attempt("k", "b"));
    host_clock.advance(lease);
    granted(&host, &mut attempt("k", "b"));
    let lost = container.renew(&mut mine, heartbeat(seconds(20)), &soon()).unwrap();
    assert!(matches!(lost, leasehold::internals::store::Renewed::Lost(_)));
}

/// If two clocks overwrote each other's sighting, both would wait for ever.
#[test]
fn clocks_that_take_turns_in_looking_do_not_stop_each_other() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    granted(&before, &mut attempt("k", "a"));
    let (host, host_clock) = open_at(&folder.file(), "boot-2:host");
    let (container, container_clock) = open_at(&folder.file(), "boot-2:container");
    for _ in 0..4 {
        look(&host, "k");
        look(&container, "k");
        host_clock.advance(seconds(5));
        container_clock.advance(seconds(5));
    }
    granted(&host, &mut attempt("k", "b"));
}

/// More clocks than a row can note, as when each process has its own because the system names none.
#[test]
fn a_dead_holder_ends_while_a_crowd_of_clocks_takes_turns_in_looking() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    // The crowd may take a quarter of the lease for its looks.
    granted(&before, &mut leasehold::internals::store::Attempt::new("k", ask("a", seconds(60))));
    let open = |n: usize| open_at(&folder.file(), &format!("process:{n}"));
    let crowd: Vec<_> = (0..35).map(open).collect();
    let mut wall = 0;
    for _ in 0..4 {
        for (store, clock) in &crowd {
            held(store, &mut attempt("k", "b"));
            clock.advance(seconds(15));
        }
        wall += 15_000_000;
        crowd.iter().for_each(|(_, clock)| clock.set_wall_offset(wall));
    }
    // The clocks that were noted are due, and no later one has removed their notes.
    crowd[34..].iter().for_each(|(store, _)| drop(held(store, &mut attempt("k", "b"))));
    granted(&crowd[0].0, &mut attempt("k", "b"));
}

#[test]
fn clocks_that_are_gone_make_room_for_others() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    granted(&before, &mut attempt("k", "a"));
    for n in 0..32 {
        look(&open_at(&folder.file(), &format!("process:{n}")).0, "k");
    }
    let sightings =
        || -> String { raw(&folder.file()).query_row("SELECT sightings FROM locks", [], |row| row.get(0)).unwrap() };
    let (store, clock) = open_at(&folder.file(), "process:late");
    let full = sightings();
    look(&store, "k");
    assert_eq!(sightings(), full, "it is written for nothing");
    clock.set_wall_offset(51_000_000);
    look(&store, "k");
    assert!(sightings().contains("late") && !sightings().contains("\"process:0\""));
    clock.advance(seconds(20));
    granted(&store, &mut attempt("k", "b"));
}

/// If each renewal wrote the other holders anew, a dead holder would live for ever.
#[test]
fn a_dead_shared_holder_ends_while_others_on_two_clocks_renew() {
    let folder = Folder::new();
    let (before, _) = open_at(&folder.file(), "boot-1");
    granted(&before, &mut shared("k", "dead"));
    let (host, host_clock) = open_at(&folder.file(), "boot-2:host");
    let (container, container_clock) = open_at(&folder.file(), "boot-2:container");
    container_clock.advance(APART);
    let (mut one, mut two) = (shared("k", "one"), shared("k", "two"));
    granted(&host, &mut one);
    granted(&container, &mut two);
    assert_eq!(look(&host, "k").live().count(), 3);
    for _ in 0..5 {
        host_clock.advance(seconds(5));
        container_clock.advance(seconds(5));
        renewed(&host, &mut one, heartbeat(seconds(20)));
        renewed(&container, &mut two, heartbeat(seconds(20)));
    }
    for store in [&host, &container] {
        let seen = look(store, "k");
        let live: Vec<&str> = seen.live().map(|(_, holder)| holder.labels.owner.as_str()).collect();
        assert_eq!(live, ["one", "two"]);
    }
    // Each renewal also counted: 25 seconds are more than a lease.
    held(&host, &mut attempt("k", "b"));
}

/// A client that renews a grant of another clock (`heartbeat` with a lock that was handed over) gets an end that the
/// others must respect, too.
#[test]
fn a_renewal_from_another_clock_is_what_the_others_read() {
    let folder = Folder::new();
    let (first, first_clock) = open_at(&folder.file(), "boot:one");
    let (second, second_clock) = open_at(&folder.file(), "boot:two");
    second_clock.advance(APART);
    let mut mine = Ask { lease: seconds(60), ..ask("a", seconds(60)) };
    mine.mode = Mode::Exclusive;
    let mut mine = leasehold::internals::store::Attempt::new("k", mine);
    granted(&first, &mut mine);
    first_clock.advance(seconds(50));
    second_clock.advance(seconds(50));
    // It asks for less than the translated end has left, which an ordinary renewal would not write.
    let told = renewed(&second, &mut mine, heartbeat(seconds(20))).unwrap();
    assert!(told > seconds(20));
    let step = told - SLACK;
    first_clock.advance(step);
    second_clock.advance(step);
    held(&first, &mut attempt("k", "b"));
    held(&second, &mut attempt("k", "b"));
}

#[test]
fn a_swap_leaves_the_holders_that_it_does_not_change_on_their_clock() {
    let folder = Folder::new();
    let (container, container_clock) = open_at(&folder.file(), "boot:container");
    container_clock.advance(APART);
    let mut mine = attempt("k", "a");
    granted(&container, &mut mine);
    let (host, host_clock) = open_at(&folder.file(), "boot:host");
    let seen = look(&host, "k");
    let mut new = seen.record.clone();
    new.version += 1;
    new.pins.insert("p".to_owned());
    // The wall clock moves on in between, so the translated times would differ.
    host_clock.set_wall_offset(3_000_000);
    assert!(matches!(host.swap(&seen, Some(&new), &soon()).unwrap(), Swapped::Done));
    let after = look(&container, "k");
    assert_eq!(after.record.pins.len(), 1);
    assert_eq!(after.record.exclusive.as_ref().unwrap().created, granted(&container, &mut mine).created);
    // The sighting still counts.
    host_clock.advance(seconds(20));
    granted(&host, &mut attempt("k", "b"));
}

#[test]
fn this_boot_has_one_identity() {
    let folder = Folder::new();
    granted(&open(&folder.file()), &mut attempt("k", "a"));
    let clock = Clock::system();
    let same = leasehold::internals::store::sqlite::Sqlite::open(options(&folder.file()), clock.clone(), &soon());
    clock.advance(seconds(20));
    granted(&same.unwrap(), &mut attempt("k", "b"));
}

/// With a real time namespace, if the kernel and the rights allow it.
#[test]
fn a_process_in_another_time_namespace_respects_the_lease() {
    const FILE: &str = "LEASEHOLD_NAMESPACE";
    let sightings = |path: &std::path::Path| -> Option<String> {
        raw(path).query_row("SELECT sightings FROM locks", [], |row| row.get(0)).unwrap()
    };
    if let Some(path) = std::env::var_os(FILE).map(std::path::PathBuf::from) {
        let seen = held(&open(&path), &mut attempt("k", "b"));
        assert!(left(&seen) <= seconds(20) && left(&seen) > seconds(20) - NEAR, "{:?}", left(&seen));
        return;
    }
    let folder = Folder::new();
    let store = open(&folder.file());
    let mut mine = attempt("k", "a");
    granted(&store, &mut mine);
    held(&open(&folder.file()), &mut attempt("k", "b"));
    assert_eq!(sightings(&folder.file()), None);
    // The second namespace gets the number of the first one, which is gone, and must not take the first one's sighting
    // for its own.
    for offset in ["1000000", "2000000"] {
        let ran = rerun_by("sqlite::boots::a_process_in_another_time_namespace_respects_the_lease", |exe| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--time", "--boottime", offset, "--fork"]).arg(exe).env(FILE, folder.file());
            command
        });
        if !ran.told.contains("running 1 test") {
            return skip(&format!("no time namespace can be made here: {}", ran.told));
        }
        ran.assert_passed();
        assert!(sightings(&folder.file()).unwrap().contains(&format!(":{offset}.0\"")));
    }
    renewed(&store, &mut mine, heartbeat(seconds(20)));
    assert_eq!(sightings(&folder.file()), None);
}

/// A clock that was moved by `unshare` and `fork`, without starting another program.
#[test]
fn a_forked_child_in_another_time_namespace_respects_the_lease() {
    const FILE: &str = "LEASEHOLD_NEW_TIME";
    const TEST: &str = "sqlite::boots::a_forked_child_in_another_time_namespace_respects_the_lease";
    let Some(file) = std::env::var_os(FILE).map(std::path::PathBuf::from) else {
        let folder = Folder::new();
        let store = open(&folder.file());
        granted(&store, &mut attempt("k", "a"));
        let ran = rerun(TEST, &[(FILE, folder.file().as_ref())]);
        if ran.told.contains("no time namespace") {
            return skip(&ran.told);
        }
        return ran.assert_passed();
    };
    // The identity of the clock is read before it changes.
    let other = Folder::new();
    granted(&open(&other.file()), &mut attempt("k", "b"));
    let new_time = nix::sched::CloneFlags::from_bits_retain(nix::libc::CLONE_NEWTIME);
    if let Err(error) = nix::sched::unshare(new_time) {
        panic!("no time namespace can be made here: {error}");
    }
    // Of the thread, because it is the thread that forks.
    let offsets = format!("/proc/{}/timens_offsets", nix::unistd::gettid());
    std::fs::write(offsets, "boottime 1000000 0").unwrap();
    match crate::support::process::fork() {
        nix::unistd::ForkResult::Child => {
            let body = std::panic::AssertUnwindSafe(|| {
                let seen = held(&open(&file), &mut attempt("k", "b"));
                assert!(left(&seen) > seconds(20) - NEAR, "{:?}", left(&seen));
                // From now on the system reports the clock of this process's children.
                nix::sched::unshare(new_time).unwrap();
                let own = Folder::new();
                granted(&open(&own.file()), &mut attempt("k", "b"));
                assert!(clock_of_the_row(&own.file()).starts_with("process:"));
            });
            std::process::exit(i32::from(std::panic::catch_unwind(body).is_err()));
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)), "{status:?}");
            // This process's own clock is where it was.
            held(&open(&file), &mut attempt("k", "b"));
        }
    }
}

/// The leases of names outlast a reboot, and then last for their whole duration once more.
#[test]
fn a_lease_of_an_earlier_boot_is_expired_after_its_duration_and_can_be_extended() {
    let folder = Folder::new();
    let leases = |identity: &str| {
        let (store, clock) = open_at(&folder.file(), identity);
        let client = leasehold::internals::builder_over(std::sync::Arc::new(store), clock.clone()).connect().unwrap();
        (client.leases("space"), clock)
    };
    let (before, earlier) = leases("boot-1");
    earlier.advance(APART);
    let claimed = before.claim("app", "unit/0", seconds(30)).unwrap();
    drop(before);
    let (now, clock) = leases("boot-2");
    assert!(now.expire("app").is_err());
    clock.advance(seconds(15));
    let extended = now.extend("app", "unit/0", seconds(40)).unwrap();
    assert_eq!(extended.fencing_token(), claimed.fencing_token());
    assert!(extended.remaining() > seconds(40) - SLACK);
    clock.advance(seconds(40) - SLACK);
    assert!(now.expire("app").is_err());
    clock.advance(SLACK);
    now.expire("app").unwrap();
    assert!(now.claim("app", "unit/1", seconds(30)).unwrap().fencing_token() > claimed.fencing_token());
}

/// A kernel without time namespaces has no link to them, and without `/proc` there is no link at all.
#[cfg(target_os = "linux")]
#[test]
fn a_kernel_without_time_namespaces_has_moved_no_clock() {
    const OLD: &str = "LEASEHOLD_OLD_KERNEL";
    if std::env::var_os(OLD).is_none() {
        let test = "sqlite::boots::a_kernel_without_time_namespaces_has_moved_no_clock";
        return rerun(test, &[(OLD, "1".as_ref())]).assert_passed();
    }
    refuse_links(nix::libc::ENOENT);
    let folder = Folder::new();
    granted(&open(&folder.file()), &mut attempt("k", "a"));
    let clock = clock_of_the_row(&folder.file());
    assert!(clock.len() == 40 && clock.ends_with(":0.0"), "{clock}");
}
