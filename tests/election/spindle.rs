//! What spindle offers, each test under the name that spindle uses.

use std::time::{Instant, SystemTime};

use leasehold::ErrorKind;
use leasehold::internals::store::fault::{Call, Fault};

use crate::*;

/// Run, and the callback: "1" when this node leads, "0" when it does not any more.
#[test]
fn run_and_the_callback_with_1_and_0() {
    on_every_store(|store| {
        let (node, tells) = node(&store.client(), "a");
        let election = node.build().unwrap();
        assert!(!election.is_standing());
        election.run().unwrap();
        let Told::Won(token) = next(&tells) else { panic!("it stands at once and wins") };
        assert_eq!(next(&tells), Told::Leader("a".into(), token));
        assert!(election.is_leader() && election.is_standing());
        election.stop().unwrap();
        assert_eq!(next(&tells), Told::Lost(token, "resigned".into()));
        assert!(!election.is_leader() && !election.is_standing());
        // A node can be stopped and started any number of times.
        election.stop().unwrap();
        election.run().unwrap();
        assert!(won(&tells) > token);
        drop(election);
        assert_eq!(lost(&tells).1, "resigned");
        assert!(tells.recv_timeout(LONG).is_err(), "nothing is left that could tell");
    });
}

/// HasLock: whether this node leads, and with which token. ErrNotRunning has no counterpart: such a node does not lead.
#[test]
fn has_lock() {
    on_every_store(|store| {
        let (leader, follower) = (store.client(), store.client());
        let (a, a_tells) = node(&leader, "a");
        let (a, b) = (a.build().unwrap(), follower.election("job").id("b").build().unwrap());
        assert_eq!((a.is_leader(), a.fencing_token()), (false, None), "not running");
        a.run().unwrap();
        let token = won(&a_tells);
        b.run().unwrap();
        assert_eq!((a.is_leader(), a.fencing_token()), (true, Some(token)));
        assert_eq!((b.is_leader(), b.fencing_token()), (false, None));
        assert_eq!((a.terms(), b.terms()), (1, 0));
    });
}

/// HasLock2 and Leader: the leader's id and token, from any node, even one that does not campaign.
#[test]
fn has_lock2_and_leader() {
    on_every_store(|store| {
        let before = SystemTime::now() - SECOND;
        let (a, a_tells) = node(&store.client(), "a");
        let (b, b_tells) = node(&store.client(), "b");
        let (a, b) = (a.build().unwrap(), b.build().unwrap());
        let stranger = store.client().election("job").build().unwrap();
        assert_eq!(stranger.leader().unwrap(), None);
        a.run().unwrap();
        let token = won(&a_tells);
        b.run().unwrap();
        assert_eq!(next(&b_tells), Told::Leader("a".into(), token), "a follower is told who leads");
        for node in [&a, &b, &stranger] {
            let leader = node.leader().unwrap().expect("somebody leads");
            assert_eq!((leader.id(), leader.fencing_token()), ("a", token));
            assert!(leader.since() >= before && leader.since() <= SystemTime::now() + SECOND, "{leader:?}");
        }
        assert!(!stranger.is_standing());
        a.stop().unwrap();
        assert!(won(&b_tells) > token);
        assert_eq!(stranger.leader().unwrap().unwrap().id(), "b");
        b.stop().unwrap();
        assert_eq!(stranger.leader().unwrap(), None);
    });
}

/// Duration: at least a second.
#[test]
fn duration() {
    on_every_store(|store| {
        let client = store.client();
        assert_eq!(client.election("job").build().unwrap().lease(), MINUTE, "the client's");
        assert_eq!(client.election("job").lease(SECOND).build().unwrap().lease(), SECOND);
        let error = client.election("job").lease(ms(999)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let right = "lease is 999ms, but must be from 1s on this store to 30 days in an election";
        assert!(error.to_string().ends_with(right), "{error}");
        assert_eq!(error.key(), Some("job"));
    });
}

/// WithId; the default is the client's owner.
#[test]
fn id() {
    on_every_store(|store| {
        let client = store.builder().owner("billing-7").connect().unwrap();
        assert_eq!(client.election("job").build().unwrap().id(), "billing-7");
        let election = client.election("job").id("node 1").build().unwrap();
        assert_eq!((election.id(), election.name()), ("node 1", "job"));
        let leadership = election.campaign().unwrap();
        assert_eq!(election.leader().unwrap().unwrap().id(), "node 1");
        drop(leadership);
        for id in ["", "a\nb"] {
            let error = client.election("job").id(id).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("the node's id is"), "{error}");
        }
    });
}

/// Iterations rise while it waits and while it leads.
#[test]
fn iterations() {
    on_every_store(|store| {
        let (a, a_tells) = node(&store.eager(), "a");
        // It rises three times in a lease, which does not run out on a busy machine.
        let a = a.lease(8 * SECOND).build().unwrap();
        assert_eq!(a.iterations(), 0);
        a.run().unwrap();
        won(&a_tells);
        let b = store.client().election("job").build().unwrap();
        b.run().unwrap();
        for node in [&a, &b] {
            let before = node.iterations();
            wait_until("it goes on campaigning", || node.iterations() > before + 1);
        }
        assert_eq!((a.terms(), b.terms()), (1, 0));
    });
}

/// Failover when the leader dies.
#[test]
fn the_next_takes_over_when_the_leader_is_cut_off() {
    on_every_store(|store| {
        let (client, faults) = store.faulty();
        let (a, a_tells) = node(&client.connect().unwrap(), "a");
        let (b, b_tells) = node(&store.client(), "b");
        let (a, b) = (a.build().unwrap(), b.build().unwrap());
        a.run().unwrap();
        let token = won(&a_tells);
        b.run().unwrap();
        assert_eq!(next(&b_tells), Told::Leader("a".into(), token));
        for call in [Call::Renew, Call::Acquire, Call::Release, Call::Read] {
            (0..1000).for_each(|_| faults.next(call, Fault::FailBefore));
        }
        store.outlast(MINUTE);
        assert!(!a.is_leader(), "before anybody could tell it");
        let (old, end) = lost(&a_tells);
        assert!(old == token && end.starts_with("lost: expired"), "{end}");
        assert!(won(&b_tells) > token);
        faults.heal();
        // A server's rows are made older before the clients' clock moves, so a term that was won in between is lost
        // again.
        let _ = b.stop();
        assert!(won(&a_tells) > token, "it stands again by itself");
    });
}

/// spindle lacks this: nobody waits for the lease of a leader that resigns.
#[test]
fn the_next_takes_over_at_once_when_the_leader_resigns() {
    on_every_store(|store| {
        // Nodes of one process with one client, and nodes of two processes.
        let shared = store.client();
        for (first, second) in [(shared.clone(), shared), (store.client(), store.client())] {
            let ((a, a_tells), (b, b_tells)) = (node(&first, "a"), node(&second, "b"));
            let (a, b) = (a.build().unwrap(), b.build().unwrap());
            a.run().unwrap();
            let token = won(&a_tells);
            b.run().unwrap();
            wait_until("it goes on campaigning", || b.iterations() > 1);
            a.stop().unwrap();
            assert!(!a.is_leader());
            // The lease is a minute, so it did not run out.
            assert!(won(&b_tells) > token);
            assert!(b.is_leader());
        }
    });
}

#[test]
fn a_follower_polls_no_more_than_its_client_does() {
    on_every_store(|store| {
        let leadership = store.client().election("job").build().unwrap().campaign().unwrap();
        let (client, faults) = store.faulty();
        let follower = client.poll(ms(50)..=ms(100)).connect().unwrap().election("job").build().unwrap();
        let started = Instant::now();
        follower.run().unwrap();
        wait_until("it goes on campaigning", || follower.iterations() > 12);
        let reads = faults.count(Call::Read) as u128;
        let most = started.elapsed().as_millis() / 50 + 1;
        assert!(reads <= most, "{reads} reads, {most} may be");
        assert_eq!(faults.count(Call::Acquire), 1, "it looks, and asks again only when the lock looks free");
        drop(leadership);
        wait_until("it leads", || follower.is_leader());
        // One more attempt may be refused because it meets a release that is under way.
        assert!(faults.count(Call::Acquire) <= 3);
    });
}
