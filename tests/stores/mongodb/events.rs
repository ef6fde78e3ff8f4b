//! What a user's settings bring: handlers of the driver's events, and how often the driver checks its servers.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use leasehold::mongodb::driver::event::EventHandler;
use leasehold::mongodb::driver::event::sdam::SdamEvent;
use leasehold::mongodb::driver::options::{ClientOptions, ServerMonitoringMode};

use crate::mongodb::*;
use crate::support::mongodb::{DATABASE, Rows, settings};
use crate::support::wait::wait_until;

const LONG: Duration = Duration::from_secs(60);

/// The ends of the channels to a handler: dropping the first lets it go on, and the second receives each of its calls.
type Ends = (Sender<()>, Receiver<()>);

/// A handler that reports each call, and then hangs until it is let go.
fn hanging<T: Send + Sync + 'static>() -> (Option<EventHandler<T>>, Ends) {
    let ((leave, left), (enter, entered)) = (bounded::<()>(0), unbounded());
    let handler = EventHandler::callback(move |_: T| {
        let _ = enter.send(());
        let _ = left.recv();
    });
    (Some(handler), (leave, entered))
}

fn connect_with(options: &ClientOptions, rows: &Rows) -> LockClient {
    connected(|| patient(leasehold::mongodb::builder_with(options.clone(), DATABASE, &rows.0)))
}

#[test]
fn a_handler_that_hangs_holds_up_no_request() {
    needs_server!();
    let hangs: [fn(&mut ClientOptions) -> Ends; 3] = [
        |options| {
            let (handler, ends) = hanging();
            options.command_event_handler = handler;
            ends
        },
        |options| {
            let (handler, ends) = hanging();
            options.cmap_event_handler = handler;
            ends
        },
        |options| {
            let (handler, ends) = hanging();
            options.sdam_event_handler = handler;
            ends
        },
    ];
    for hang in hangs {
        let rows = Rows::fresh();
        let mut options = settings(&crate::support::servers::mongod().unwrap());
        let (leave, entered) = hang(&mut options);
        let client = connect_with(&options, &rows);
        entered.recv_timeout(LONG).unwrap();
        for _ in 0..10 {
            client.try_lock("k").unwrap().unwrap().release().unwrap();
        }
        drop(leave);
        // The events that came meanwhile are delivered in the end.
        entered.recv_timeout(LONG).unwrap();
    }
}

/// Handlers must not run on the thread that sends the driver's heartbeats.
#[cfg(target_os = "linux")]
#[test]
fn without_a_thread_for_handlers_events_are_left_out() {
    use crate::support::{alone::alone, threads};

    alone("mongodb::events::without_a_thread_for_handlers_events_are_left_out", || {
        needs_server!();
        let rows = Rows::fresh();
        let mut options = settings(&crate::support::servers::mongod().unwrap());
        let (told, tells) = unbounded();
        options.command_event_handler = Some(EventHandler::callback(move |_| {
            let _ = told.send(std::thread::current().name().map(str::to_owned));
        }));
        let client = connect_with(&options, &rows);
        client.get("k").unwrap();
        let has_ended = || !threads::ours().iter().any(|name| name == "leasehold-told");
        wait_until("all is told", || !tells.is_empty() && has_ended());
        threads::no_new_threads();
        (0..20).for_each(|_| drop(client.get("k").unwrap()));
        // An event that came in between may still have had a thread of its own.
        tells.try_iter().for_each(|thread| assert_eq!(thread.as_deref(), Some("leasehold-told")));
        threads::threads_again();
        client.get("k").unwrap();
        assert_eq!(tells.recv_timeout(LONG).unwrap().as_deref(), Some("leasehold-told"));
    });
}

/// The driver would keep a task for each event until its channel has room.
#[test]
fn a_channel_that_nobody_reads_keeps_no_more_than_it_holds() {
    needs_server!();
    let rows = Rows::fresh();
    let mut options = settings(&crate::support::servers::mongod().unwrap());
    let (events, mut read) = tokio::sync::mpsc::channel(1);
    options.command_event_handler = Some(EventHandler::TokioMpsc(events));
    let client = connect_with(&options, &rows);
    for _ in 0..10 {
        client.try_lock("k").unwrap().unwrap().release().unwrap();
    }
    // An event that waits for room comes as soon as there is some.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let kept = runtime.block_on(async {
        let mut kept = 0;
        while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(500), read.recv()).await {
            kept += 1;
        }
        kept
    });
    assert_eq!(kept, 1);
}

/// If the driver polls its servers, it learns in no other way that a primary is dead.
#[test]
fn servers_are_looked_at_often_enough_whatever_is_set() {
    needs_server!();
    let rows = Rows::fresh();
    let (looks, looked) = unbounded();
    let options = rows.options_with(|options| {
        options.heartbeat_freq = Some(Duration::from_secs(3_600));
        options.server_monitoring_mode = Some(ServerMonitoringMode::Poll);
        options.sdam_event_handler = Some(EventHandler::callback(move |event| {
            if let SdamEvent::ServerHeartbeatStarted(_) = event {
                let _ = looks.send(());
            }
        }));
    });
    let _store = open(options);
    // The first ones belong to connecting.
    wait_until("it is looked at again", || looked.len() >= 4);
}
