//! Short runs of the command in which a server of their own is killed and comes back, or is not the primary for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::own::Own;
use crate::runs::{Run, unique};
use crate::servers;

/// Runs it with a hook by this name; each time that its command is run, `fault` makes the fault and takes it back. Else as
/// `Run::is_clean`, which also wants the fault to have met requests.
fn is_clean_under(run: Run, name: &str, mut fault: impl FnMut() + Send) {
    let dir = tempfile::tempdir().expect("a folder");
    let (wanted, over) = (dir.path().join("wanted"), AtomicBool::new(false));
    let shown = wanted.display();
    let hook = format!("{name}=touch {shown}; while [ -e {shown} ]; do sleep 0.02; done");
    std::thread::scope(|scope| {
        let faults = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if wanted.exists() {
                    fault();
                    std::fs::remove_file(&wanted).expect("the command has asked by it");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let _over = Over(&over);
        Run { hook: Some(hook), ..run }.is_clean(dir.path());
        assert!(!faults.is_finished(), "the fault could not be made");
    });
}

/// Also where something failed: else the thread would go on for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn killed(mut own: Own) -> impl FnMut() + Send {
    move || {
        own.end(Signal::SIGKILL);
        own.start_again();
    }
}

#[cfg(feature = "postgres")]
static POSTGRES: servers::Server = servers::Server {
    start: |_, port, data| {
        servers::postgres::with(port, data, &["listen_addresses=127.0.0.1", "unix_socket_directories="])
    },
    ..servers::postgres::SERVER
};

/// What it has answered is on its disk, as far as a killed process goes, but for releases of the last moment.
#[test]
#[cfg(feature = "postgres")]
fn postgres_under_kills_of_its_server() {
    let Some(own) = Own::start(&POSTGRES) else { return };
    let store = format!("{}?table={}", own.url(), unique());
    let run = Run { store, minutes: 0.6, faults: "kill", ..Run::default() };
    is_clean_under(run, "server-kill", killed(own));
}

/// It is its own successor, a second later.
#[test]
#[cfg(feature = "mongodb")]
fn mongodb_under_step_downs() {
    let Some(own) = Own::start(&servers::mongod::SERVER) else { return };
    let (url, server) = (own.url(), &servers::mongod::SERVER);
    let host = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).expect("a host").to_owned();
    let store = format!("mongodb://{host}/torture?directConnection=true&collection={}", unique());
    let run = Run { store, minutes: 0.6, faults: "stop", ..Run::default() };
    is_clean_under(run, "step-down", || {
        servers::mongod::ask(&host, &servers::mongod::step_down()).expect("an answer");
        crate::wait::wait_until("a primary", || (server.ready)(&url));
    });
}
