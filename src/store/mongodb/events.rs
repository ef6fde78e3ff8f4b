//! Handlers of the driver's events that a user has in the settings: called where no lock waits for them.

use mongodb::event::EventHandler;
use mongodb::options::ClientOptions;

use crate::sys::aside::Aside;
use crate::sys::observing::contained;

/// The same settings, whose callbacks are called by a thread that does nothing else: the driver calls them on its own, on
/// which every heartbeat is sent. Where they or a channel are too slow, or there is no thread to be had, what happens is left out.
pub(crate) fn apart(mut options: ClientOptions) -> ClientOptions {
    let aside = Aside::default();
    options.command_event_handler = options.command_event_handler.map(|users| called_by(&aside, users));
    options.cmap_event_handler = options.cmap_event_handler.map(|users| called_by(&aside, users));
    options.sdam_event_handler = options.sdam_event_handler.map(|users| called_by(&aside, users));
    options
}

fn called_by<T: Send + Sync + 'static>(aside: &Aside, users: EventHandler<T>) -> EventHandler<T> {
    let callback = match users {
        EventHandler::Callback(callback) => callback,
        // The driver would keep a task for each event until there is room.
        EventHandler::TokioMpsc(events) => return EventHandler::callback(move |event| drop(events.try_send(event))),
        // By its type it waits without blocking the thread.
        users => return users,
    };
    let aside = aside.clone();
    EventHandler::callback(move |event: T| {
        let callback = callback.clone();
        let tell = move || contained("handler of the driver's events", || callback(event));
        aside.offer(Box::new(tell));
    })
}
