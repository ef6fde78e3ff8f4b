//! Short runs of the command in which a server of their own is killed and comes back, or is not the primary for a while.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::own::Own;
use crate::runs::{Run, unique};
use crate::servers;

/// Makes the run with a hook of each of these names. Each time that a hook's command runs, `fault` makes the fault of
/// that name and takes it back. Otherwise like `Run::is_clean`, which also requires that each fault met requests.
pub fn is_clean_under(run: Run, names: &[&str], mut fault: impl FnMut(&str)) {
    let dir = tempfile::tempdir().expect("a folder");
    let wanted = |name: &str| dir.path().join(format!("wanted-{name}"));
    let hooks = names.iter().map(|name| {
        let wanted = wanted(name);
        let shown = wanted.display();
        format!("{name}=touch {shown}; while [ -e {shown} ]; do sleep 0.02; done")
    });
    let run = Run { hooks: hooks.collect(), ..run };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run.is_clean(dir.path()));
        while !running.is_finished() {
            for name in names.iter().filter(|name| wanted(name).exists()) {
                fault(name);
                std::fs::remove_file(wanted(name)).expect("the command has asked by it");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

pub fn killed(mut own: Own) -> impl FnMut(&str) {
    move |_| {
        own.end(Signal::SIGKILL);
        own.start_again();
    }
}

#[cfg(feature = "postgres")]
pub static POSTGRES: servers::Server = servers::Server {
    start: |_, port, data| {
        servers::postgres::with(port, data, &["listen_addresses=127.0.0.1", "unix_socket_directories="])
    },
    ..servers::postgres::SERVER
};

/// What the server has answered outlives a kill of its process, except for releases of the last moment.
#[test]
#[cfg(feature = "postgres")]
fn postgres_under_kills_of_its_server() {
    let Some(own) = Own::start(&POSTGRES) else { return };
    let store = format!("{}?table={}", own.url(), unique());
    let run = Run { store, minutes: 0.6, faults: "kill", ..Run::default() };
    is_clean_under(run, &["server-kill"], killed(own));
}

/// The only server steps down, and is the primary again a second later.
#[test]
#[cfg(feature = "mongodb")]
fn mongodb_under_step_downs() {
    let Some(own) = Own::start(&servers::mongod::SERVER) else { return };
    let (url, server) = (own.url(), &servers::mongod::SERVER);
    let host = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).expect("a host").to_owned();
    let store = format!("mongodb://{host}/torture?directConnection=true&collection={}", unique());
    let run = Run { store, minutes: 0.6, faults: "stop", ..Run::default() };
    is_clean_under(run, &["step-down"], |_| {
        // A server that stands still steps down later than this call waits, or not at all: a fault counts only if it is
        // felt.
        let _ = servers::mongod::ask(&host, &servers::mongod::step_down());
        crate::wait::wait_until("a primary", || (server.ready)(&url));
    });
}
