//! A server that runs out of transaction ids because somebody's prepared transaction keeps its old rows for too long.

use std::process::Command;
use std::time::Duration;

use leasehold::LockClient;
use leasehold::internals::lease::Lease;
use leasehold::internals::store::Purpose;
use leasehold::internals::store::postgres::PostgresOptions;
use nix::sys::signal::Signal;

use crate::errors::text;
use crate::postgres::*;
use crate::support::contract::{granted, renewal};
use crate::support::own::Own;
use crate::support::postgres::{connected, opened, sql_at};
use crate::support::servers::{Server, postgres, skip};

const PREPARES: Server = Server {
    start: |_, port, data| {
        let at = ["listen_addresses=127.0.0.1", "unix_socket_directories="];
        postgres::with(port, data, &[&at[..], &["max_prepared_transactions=1", "autovacuum_naptime=1s"]].concat())
    },
    ..postgres::SERVER
};

/// Moves the counter to where the server gives out no more ids. The file says what became of the ids that were never
/// used.
const SPEND: &str = r#"
set -e
cd /
bin=$1 data=$2 as=
[ ! -e "$data/programs" ] || bin=$data/programs/bin
[ "$(id -u)" != 0 ] || as="setpriv --reuid postgres --regid postgres --init-groups"
$as "$bin/pg_resetwal" -x 2144583648 "$data/db"
$as sh -c 'head -c 262144 /dev/zero > "$0/db/pg_xact/07FD"' "$data"
"#;

/// The server accepts writes again after the old transaction has ended and a vacuum has run, which it starts by itself.
#[test]
fn a_server_that_is_short_of_transaction_ids_is_waited_for() {
    let Some(reset) = postgres::program("pg_resetwal") else { return skip("there is no pg_resetwal beside initdb") };
    let Some(mut server) = Own::start(&PREPARES) else { return };
    let config = server.url().parse().unwrap();
    let client = connected(|| LockClient::builder(server.url()).create_schema(true));
    let store = opened(PostgresOptions::new(server.url().parse().unwrap(), "leasehold").unwrap());
    let mut held = exclusive(&store, "held");
    granted(&store, &mut held);
    sql_at(&config, "BEGIN; CREATE TABLE theirs (); PREPARE TRANSACTION 'theirs'");
    server.end(Signal::SIGINT);
    let spent =
        Command::new("sh").args(["-c", SPEND, "spend"]).arg(reset.parent().unwrap()).arg(server.data()).output();
    let spent = spent.unwrap();
    assert!(spent.status.success(), "{}", String::from_utf8_lossy(&spent.stderr));
    server.start_again();
    let told = |error: leasehold::Error| {
        assert!(error.is_retryable() && text(&error).contains("transaction ids"), "{error:?}");
    };
    let lease = renewal(Lease::For(Duration::from_secs(60)));
    told(unless_late(|| store.renew(&mut held, lease, &soon())).unwrap_err());
    told(unless_late(|| store.acquire(&mut exclusive(&store, "k"), &soon())).unwrap_err());
    told(unless_late(|| store.release(&mut held, Purpose::Release, &soon())).unwrap_err());
    std::thread::scope(|scope| {
        let (to, waits) = std::sync::mpsc::channel();
        let request = client.request("k").on_wait(move |_| to.send(()).unwrap_or_default());
        let waiter = scope.spawn(move || request.lock().map(|guard| guard.is_held()));
        let began = waits.recv_timeout(Duration::from_secs(30));
        sql_at(&config, "ROLLBACK PREPARED 'theirs'");
        let answer = waiter.join().unwrap();
        assert!(began.is_ok() && answer.as_ref().is_ok_and(|held| *held), "{began:?}, {answer:?}");
    });
    renewed_anew(&store, &mut held, Duration::from_secs(60));
}
