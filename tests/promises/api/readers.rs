//! A writer behind readers of another process that overlap without end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::support::bench::builder_over;
use leasehold::{Event, LockClient, Mode, Mutex, Observer};

use crate::api::{LONG, on_every_store};
use crate::support::wait::wait_until;

// The recipe of the docs and of the example `readers_and_writer`.
#[path = "../../../examples/gate/mod.rs"]
mod gate;

use gate::readers::Readers;

#[test]
fn without_a_gate_overlapping_readers_keep_a_writer_out() {
    on_every_store(|store| {
        let readers = Readers::start(&store.client(), "k", LockClient::lock_shared, LONG);
        readers.wait_for_more(1);
        let writer = store.rival();
        while readers.granted() < 8 {
            let got = writer.try_lock_for("k", Duration::from_millis(100));
            // A busy store may not answer in such a short time, which is no grant either.
            assert!(!matches!(got, Ok(Some(_))), "they do not overlap");
        }
        readers.stop().unwrap();
        assert!(writer.try_lock_for("k", LONG).unwrap().is_some());
    });
}

#[test]
fn a_writer_that_loses_the_gate_takes_it_anew() {
    on_every_store(|store| {
        let readers = Readers::start(&store.client(), "k", gate::lock_shared, Duration::from_millis(200));
        readers.wait_for_more(1);
        let held = store.client().lock_shared("k").unwrap();
        let writer = builder_over(store.second.clone(), store.clock.clone()).heartbeat(Duration::from_millis(200));
        let (writer, operator) = (writer.connect().unwrap(), store.client());
        let wait = std::thread::spawn(move || drop(gate::lock(&writer, "k").unwrap()));
        let writers = || {
            let gate = operator.get("k.gate").unwrap()?;
            let writer = gate.holders().iter().find(|holder| holder.mode() == Mode::Exclusive);
            writer.map(|writer| writer.fencing_token())
        };
        wait_until("a writer was granted", || writers().is_some());
        let first = writers();
        operator.force_release("k.gate").unwrap();
        wait_until("another one was granted", || writers() > first);
        drop(held);
        wait.join().unwrap();
        readers.stop().unwrap();
    });
}

/// Notes, at each grant to this client, how often readers had been granted the lock by then.
struct Notes(Arc<AtomicU32>, Mutex<Vec<(String, u32)>>);

impl Observer for Notes {
    fn event(&self, event: &Event<'_>) {
        if let Event::Granted { key, .. } = event {
            self.1.lock().push(((*key).to_owned(), self.0.load(Ordering::SeqCst)));
        }
    }
}

#[test]
fn at_a_gate_a_writer_waits_for_those_readers_alone_that_are_in() {
    on_every_store(|store| {
        let readers = Readers::start(&store.client(), "k", gate::lock_shared, Duration::from_millis(200));
        readers.wait_for_more(1);
        let notes = Arc::new(Notes(readers.granted.clone(), Mutex::default()));
        let writer = builder_over(store.second.clone(), store.clock.clone()).observer(notes.clone());
        let writer = writer.connect().unwrap();
        let (tell, told) = mpsc::channel();
        let wait = std::thread::spawn(move || {
            let guard = gate::lock(&writer, "k").unwrap();
            tell.send(()).unwrap();
            guard.release().unwrap();
        });
        let in_time = told.recv_timeout(LONG);
        readers.wait_for_more(readers.granted() + 2);
        readers.stop().unwrap();
        wait.join().unwrap();
        assert!(in_time.is_ok(), "it starved");
        let notes = notes.1.lock();
        let [(first, before), (second, after)] = notes.as_slice() else { panic!("{notes:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("k.gate", "k"));
        // At most one reader had looked at the gate before the writer took it.
        assert!(after - before <= 1, "{} readers went by it", after - before);
    });
}
