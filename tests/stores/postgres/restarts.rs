//! A server that crashes, restarts, ends single sessions, is a standby or asks for passwords.

use std::thread;
use std::time::Duration;

use leasehold::internals::store::postgres::PostgresOptions;
use leasehold::internals::store::{Acquired, Renewed, Swapped};
use leasehold::{ClientBuilder, ErrorKind, LockClient, internals::lease::Lease};
use nix::sys::signal::Signal;

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{granted, refused, renewal};
use crate::support::harness::PATIENCE;
use crate::support::own::Own;
use crate::support::postgres::{comes_soon, connected, opened, sql_at, standbys, unless_late};
use crate::support::servers::postgres;
use crate::support::wait::wait_until;

pub(super) const LEASE: Duration = Duration::from_secs(600);

pub(super) struct Server(pub(super) Own);

impl Server {
    pub(super) fn start() -> Option<Server> {
        Own::start(&postgres::OWN).map(Server)
    }

    pub(super) fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        sql_at(&self.0.url().parse().unwrap(), sql)
    }

    pub(super) fn client(&self) -> LockClient {
        connected(|| self.builder())
    }

    pub(super) fn builder(&self) -> ClientBuilder {
        // What a drop could not release while the server stalled, nobody would get during the test.
        LockClient::builder(self.0.url()).lease(LEASE).drop_timeout(PATIENCE)
    }

    pub(super) fn store(&self) -> Postgres {
        let options = PostgresOptions::new(self.0.url().parse().unwrap(), "leasehold");
        opened(options.unwrap())
    }

    /// A store as behind a pooler that gives each transaction another session.
    pub(super) fn pooled(&self) -> Postgres {
        let options = PostgresOptions::new(self.0.url().parse().unwrap(), "public.leasehold");
        opened(options.unwrap().pooled().unwrap())
    }

    pub(super) fn standbys(&self, names: &str) {
        standbys(&self.0.url().parse().unwrap(), names);
    }

    /// Runs `call`, and meanwhile cancels each statement that waits for a standby.
    pub(super) fn frees<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        let frees = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                     WHERE application_name = 'leasehold' AND wait_event = 'SyncRep'";
        thread::scope(|scope| {
            let called = scope.spawn(call);
            wait_until("it is answered", || {
                self.sql(frees);
                called.is_finished()
            });
            called.join().unwrap()
        })
    }

    /// Ends the sessions whose last statement was like this.
    fn end_sessions(&self, query: &str) {
        self.sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold' \
             AND query LIKE '{query}' AND pid <> pg_backend_pid()"
        ));
    }
}

/// In this order: it does not answer, then nothing listens, then it starts.
#[test]
fn a_server_that_wakes_up_is_connected_to() {
    let Some(mut server) = Server::start() else { return };
    let url = server.0.url();
    server.0.end(Signal::SIGQUIT);
    let silent = std::net::TcpListener::bind(postgres::host(&url).unwrap()).unwrap();
    thread::scope(|scope| {
        let connects = scope.spawn(|| LockClient::builder(&url).request_timeout(PATIENCE).connect());
        // Longer than one connection may take.
        thread::sleep(Duration::from_millis(3_500));
        drop(silent);
        server.0.start_again();
        connects.join().unwrap().unwrap();
    });
}

/// An immediate shutdown: what was not written to the disk is lost.
#[test]
fn a_grant_and_a_renewal_outlive_a_crash_whatever_the_users_default_is() {
    let Some(mut server) = Server::start() else { return };
    server.sql("ALTER ROLE leasehold SET synchronous_commit = off");
    server.client().create_schema().unwrap();
    let store = server.store();
    let modes = [Mode::Exclusive, Mode::Shared];
    let mut attempts: Vec<_> = modes.map(|mode| attempt(&store, &format!("{mode}"), mode)).into_iter().collect();
    for a in &mut attempts {
        granted(&store, a);
        // This wakes the process that would otherwise write the grant to the disk a little later.
        server.sql("CREATE TEMPORARY TABLE other ()");
    }
    let mut next = instead_of(&store, "exclusive", Mode::Exclusive, &holders(&store, "exclusive")[0]);
    granted(&store, &mut next);
    attempts[0] = next;
    let ends = attempts.iter_mut().map(|a| match store.renew(a, renewal(Lease::For(2 * LEASE)), &soon()).unwrap() {
        Renewed::Until { until, .. } => until,
        other => panic!("{other:?}"),
    });
    let ends: Vec<_> = ends.collect();
    server.0.end(Signal::SIGQUIT);
    server.0.start_again();
    let store = server.store();
    for (a, end) in attempts.iter().zip(ends) {
        let stands = holders(&store, &a.key);
        assert_eq!((stands.len(), &stands[0].grant, stands[0].until), (1, a.grant(), end), "{}", a.key);
    }
}

/// The session is set to wait for the disk only once, not with each statement.
#[test]
fn what_is_prepared_waits_for_the_disk() {
    let Some(mut server) = Server::start() else { return };
    server.sql("ALTER ROLE leasehold SET synchronous_commit = off");
    server.client().create_schema().unwrap();
    let mut a = exclusive(&server.store(), "k");
    for is_grant in [true, false] {
        let store = server.store();
        warm(&store);
        let end = match is_grant {
            true => granted(&store, &mut a).until,
            false => renewed(&store, &mut a, renewal(Lease::For(2 * LEASE))),
        };
        server.0.end(Signal::SIGQUIT);
        server.0.start_again();
        let stands = holders(&server.store(), "k");
        assert_eq!((stands.len(), stands.first().map(|holder| holder.until)), (1, Some(end)), "a grant: {is_grant}");
    }
}

/// The release of a lease of at most a minute need not outlive a crash, because such a lease ends by itself.
#[test]
fn the_release_of_a_long_lease_outlives_a_crash() {
    let Some(mut server) = Server::start() else { return };
    server.sql("ALTER ROLE leasehold SET synchronous_commit = off");
    server.client().create_schema().unwrap();
    let hour = Lease::For(Duration::from_secs(3_600));
    for (is_prepared, lease) in [(false, Lease::Forever), (false, hour), (true, hour)] {
        let store = server.store();
        if is_prepared {
            warm(&store);
        }
        let mut a = exclusive(&store, "long");
        granted(&store, &mut a);
        renewed(&store, &mut a, renewal(lease));
        release(&store, &mut a);
        server.0.end(Signal::SIGQUIT);
        server.0.start_again();
        assert_eq!(holders(&server.store(), "long"), [], "{lease:?}, prepared: {is_prepared}");
    }
}

/// A client that has read the release must not write over another's grant.
#[test]
fn a_release_that_a_crash_takes_back_leaves_no_version_to_others() {
    let Some(mut server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    assert!((0..5).any(|_| is_taken_back(&mut server)), "each release was on the disk");
}

/// Returns `false` if the server had already written the release to the disk, which it does every ten seconds.
fn is_taken_back(server: &mut Server) -> bool {
    let store = server.store();
    let mut a = exclusive(&store, "k");
    granted(&store, &mut a);
    release(&store, &mut a);
    let which = Which::Key("k".to_owned());
    let free = store.read(&which, None, Consistency::Strong, &soon()).unwrap().records.remove(0);
    server.0.end(Signal::SIGQUIT);
    server.0.start_again();
    let store = server.store();
    let record = get(&store, "k").record;
    if record.token == free.record.token && record.holders().next().is_none() {
        return false;
    }
    let stands = holders(&store, "k");
    assert_eq!(stands.iter().map(|holder| &holder.grant).collect::<Vec<_>>(), [a.grant()], "it was on the disk");
    granted(&store, &mut instead_of(&store, "k", Mode::Exclusive, &stands[0]));
    for new in [Some(&free.record), None] {
        assert!(matches!(store.swap(&free, new, &soon()).unwrap(), Swapped::Changed), "{new:?}");
    }
    true
}

#[test]
fn a_restart_costs_no_lock() {
    let Some(mut server) = Server::start() else { return };
    let client = server.client();
    client.create_schema().unwrap();
    let guard = client.lock("k").unwrap();
    let store = server.store();
    let mut a = exclusive(&store, "a");
    granted(&store, &mut a);
    for signal in [Signal::SIGKILL, Signal::SIGINT] {
        server.0.end(signal);
        server.0.start_again();
        wait_until("it is renewed", || {
            matches!(store.renew(&mut a, renewal(Lease::For(2 * LEASE)), &soon()), Ok(Renewed::Until { .. }))
        });
        refused(&store, &mut exclusive(&store, "a"));
        assert!(guard.is_held());
        assert!(server.client().try_lock("k").unwrap().is_none());
    }
    guard.release().unwrap();
}

/// Sessions end under every statement, and still there is one holder at a time, and tokens rise.
#[test]
fn sessions_that_are_ended_let_nobody_in() {
    let Some(server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let inside = std::sync::Mutex::new(0_u64);
    let order = std::sync::atomic::Ordering::SeqCst;
    let clients: Vec<LockClient> = (0..3).map(|_| server.client()).collect();
    thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter()
            .map(|client| {
                let inside = &inside;
                scope.spawn(move || {
                    for _ in 0..60 {
                        let guard = client.lock("k").unwrap();
                        {
                            let mut last = inside.try_lock().expect("nobody else is in");
                            assert!(guard.fencing_token() > *last, "tokens rise");
                            *last = guard.fencing_token();
                            thread::yield_now();
                            assert!(guard.is_held());
                        }
                        drop(guard);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(order) {
                server.end_sessions("%");
                thread::sleep(Duration::from_millis(30));
            }
        });
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, order);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}

#[test]
fn a_listener_that_is_ended_is_made_anew() {
    let Some(server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    assert!((0..5).any(|_| is_made_anew(&server)), "it does not listen");
}

/// Returns `false` if the waiter does not listen: after a second in which it did not hear itself, for example because
/// the server stalled, it polls for minutes.
fn is_made_anew(server: &Server) -> bool {
    let (holder, waiter) = (server.client(), server.client());
    (0..3).all(|_| {
        let guard = holder.lock("k").unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.lock("k").unwrap());
            let listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%unnest%' \
                             AND application_name = 'leasehold'";
            let listens = comes_soon(|| server.sql(listening).len() == 1);
            if listens {
                let first = server.sql(listening);
                server.end_sessions("%unnest%");
                wait_until("it is gone", || server.sql(listening) != first);
            }
            drop(guard);
            drop(waiting.join().unwrap());
            listens
        })
    })
}

#[test]
fn a_standby_is_refused_until_it_is_promoted() {
    let Some(mut server) = Server::start() else { return };
    let client = server.client();
    client.create_schema().unwrap();
    let held = client.request("k").acquire().unwrap();
    server.0.end(Signal::SIGINT);
    std::fs::write(server.0.data().join("db/standby.signal"), "").unwrap();
    server.0.start_again();
    let error = unless_late(|| LockClient::connect(&server.0.url())).unwrap_err();
    assert!(error.kind() == ErrorKind::Store && text(&error).contains("standby"), "{error}");
    let error = client.request("other").acquire().unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.is_retryable(), "{error}");
    server.sql("SELECT pg_promote()");
    assert!(server.client().try_lock("k").unwrap().is_none());
    // The client's connections belonged to the server that ended.
    unless_late(|| client.release(&held)).unwrap();
    let next = server.client().lock("k").unwrap();
    assert!(next.fencing_token() > held.fencing_token());
}

/// Such a warning comes with every write that a trigger comments on, or while the server is short of transaction ids.
#[test]
fn a_warning_of_something_else_costs_no_lock() {
    let Some(server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    server.sql(
        "CREATE FUNCTION warns() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'canary'; RETURN NEW; END $$; \
         CREATE TRIGGER warns BEFORE INSERT OR UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION warns()",
    );
    let store = server.store();
    for mode in [Mode::Exclusive, Mode::Shared] {
        granted(&store, &mut attempt(&store, &format!("{mode}"), mode));
    }
}

/// A primary that was replaced: its connections are of no more use.
#[test]
fn a_server_that_became_read_only_keeps_no_connection() {
    let Some(server) = Server::start() else { return };
    server.client().create_schema().unwrap();
    let store = server.store();
    granted(&store, &mut exclusive(&store, "a"));
    let ours = || server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold' ORDER BY 1");
    let before = ours();
    let read_only = |value: &str| {
        server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        server.sql("SELECT pg_reload_conf()");
        wait_until("it counts", || server.sql("SHOW default_transaction_read_only")[0][0].as_deref() == Some(value));
    };
    read_only("on");
    wait_until("it is told", || store.acquire(&mut exclusive(&store, "b"), &soon()).is_err());
    wait_until("they are closed", || ours().iter().all(|pid| !before.contains(pid)));
    read_only("off");
    granted_anew(&store, &mut exclusive(&store, "b"));
}

#[test]
fn passwords_are_asked_for_and_never_shown() {
    let Some(server) = Server::start() else { return };
    server.sql(
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE app LOGIN PASSWORD 'canary'; CREATE ROLE other LOGIN",
    );
    let rules = "host all app all scram-sha-256\nhost all leasehold all trust\n";
    std::fs::write(server.0.data().join("db/pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let url = |user: &str| server.0.url().replace("leasehold@", &format!("{user}@"));
    wait_until("the rules count", || unless_late(|| LockClient::connect(&url("other"))).is_err());
    unless_late(|| LockClient::connect(&url("app:canary"))).unwrap();
    for wrong in ["app", "app:not-canary", "other"] {
        let error = unless_late(|| LockClient::connect(&url(wrong))).unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(!said.contains("canary"), "{said}");
        assert!(!error.is_retryable(), "{wrong}: {said}");
    }
}

#[test]
fn a_unix_socket_will_do() {
    let Some(server) = Server::start() else { return };
    let port = postgres::host(&server.0.url()).unwrap().rsplit_once(':').unwrap().1.to_owned();
    let client = connected(|| LockClient::builder(format!("postgres://leasehold@%2Ftmp:{port}/postgres")));
    client.create_schema().unwrap();
    let store = server.store();
    let _guard = client.lock("k").unwrap();
    assert!(matches!(store.acquire(&mut exclusive(&store, "k"), &soon()), Ok(Acquired::Refused(_))));
}
