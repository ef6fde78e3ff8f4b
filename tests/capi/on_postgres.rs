//! Programs on a store whose driver needs a runtime, hidden in the library: on a real server, with processes that fork.

use std::process::Command;
use std::time::Duration;

use leasehold::LockClient;

use crate::library::{Language, compile, with_postgres};
use crate::programs::{OF_POSTGRES, PROGRAMS, WAITING, prove_on, with_each};
use crate::servers::{postgres_server, skip};
use crate::tools::answers;

const PATIENCE: Duration = Duration::from_secs(60);
/// The programs that open an SQLite file themselves.
const OF_SQLITE: [&str; 2] = ["fenced", "late"];

#[test]
fn programs_prove_themselves_on_postgres() {
    let Some(server) = postgres_server() else { return };
    let with_libpq = answers(Command::new("sh").args(["-c", "/sbin/ldconfig -p | grep -q 'libpq[.]so[.]5'"]));
    if !with_libpq {
        skip("there is no libpq, with which fenced_postgres writes");
    }
    let programs = PROGRAMS.iter().filter(|(program, _)| !OF_SQLITE.contains(program));
    let programs = programs.chain(with_libpq.then_some(&OF_POSTGRES));
    with_each(WAITING, programs, |program, proof| {
        let url = format!("{server}?table=c_{program}_{:016x}", fastrand::u64(..));
        // With the programs' own long timeouts, so that a server that stops for some seconds makes no call fail.
        let client = LockClient::builder(&url).create_schema(true).request_timeout(PATIENCE).drop_timeout(PATIENCE);
        client.connect().expect("a table").close().expect("an end");
        // A program that is linked with the shared library runs with any build of it.
        let mut command = Command::new(compile(program, Language::Cpp17, &[]));
        command.env("LD_LIBRARY_PATH", with_postgres());
        prove_on(&url, command, proof);
    });
}
