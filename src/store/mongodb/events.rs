//! Calls the event handlers from the user's settings where no lock waits for them.

use mongodb::event::EventHandler;
use mongodb::options::ClientOptions;

use crate::sys::aside::Aside;
use crate::sys::observing::contained;

/// The same settings, but a separate thread calls the callbacks. The driver would call them on its own thread, which
/// also sends every heartbeat. If a callback or a channel is too slow, or no thread can be started, events are left
/// out.
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
        // The driver would keep a task for each event until the channel has room.
        EventHandler::TokioMpsc(events) => return EventHandler::callback(move |event| drop(events.try_send(event))),
        // An async callback waits without blocking the thread.
        users => return users,
    };
    let aside = aside.clone();
    EventHandler::callback(move |event: T| {
        let callback = callback.clone();
        let tell = move || contained("handler of the driver's events", || callback(event));
        aside.offer(Box::new(tell));
    })
}
