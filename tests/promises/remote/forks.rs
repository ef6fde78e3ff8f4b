//! A forked child of a connected process connects anew: the parent's threads, sockets and TLS sessions remain the
//! parent's.

use leasehold::{ErrorKind, LockClient, LockGuard};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::remote::Remote;
use crate::support::harness::{self, millis, patient};
use crate::support::wait::wait_until;

fn connected(remote: &Remote) -> LockClient {
    // A lease that does not end even on a busy machine, and heartbeats that come soon.
    harness::connected(|| patient(remote.direct().lease(millis(60_000)).heartbeat(millis(2000))))
}

fn in_the_child(remote: &Remote, parents: LockClient, guard: LockGuard) {
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Closed);
    let own = connected(remote);
    assert!(own.try_lock("parent's").expect("an answer").is_none(), "the parent holds it");
    let other = own.lock("child's").expect("a lock");
    let renewed = other.info().renewed();
    wait_until("the child's heartbeat goes on", || other.info().renewed() != renewed);
    other.release().expect("a release");
    own.close().expect("a close");
    drop((guard, parents, own));
}

fn a_child_connects_anew(remote: &Remote) {
    let client = connected(remote);
    let guard = client.lock("parent's").expect("a lock");
    let token = guard.fencing_token();
    // SAFETY: only this thread goes on in the child, and it may allocate and start threads: glibc keeps its heap and
    // its threads usable over a fork. What the SDK's threads may have held is what the test is about.
    #[allow(unsafe_code)]
    let forked = unsafe { fork() }.expect("a fork");
    match forked {
        ForkResult::Child => {
            let body = std::panic::AssertUnwindSafe(|| in_the_child(remote, client, guard));
            let failed = std::panic::catch_unwind(body).is_err();
            std::process::exit(i32::from(failed));
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).expect("the end of the child");
            assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
            assert!(guard.is_held());
            let renewed = guard.info().renewed();
            wait_until("the parent's heartbeat goes on", || guard.info().renewed() != renewed);
            assert_eq!(client.get("parent's").expect("a look").expect("a row").fencing_token(), token);
            // The parent's connections still work.
            client.lock("another").expect("a lock").release().expect("a release");
            guard.release().expect("a release");
        }
    }
}

crate::remote::on_each_remote! { alone: a_child_connects_anew }
