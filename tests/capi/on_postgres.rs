//! Programs on a store whose driver has a runtime, hidden in the library: on a real server, with processes that fork.

use std::process::Command;

use leasehold::LockClient;

use crate::library::{Language, compile, with_postgres};
use crate::programs::{PROGRAMS, WAITING, prove_on, with_each};
use crate::servers::postgres_server;

/// Those that are about a file of SQLite: they open it, name it, block it, or are refused a second client of it in a child.
const OF_SQLITE: [&str; 7] = ["fenced", "forked", "late", "leader", "misuse", "observed", "options"];

#[test]
fn programs_prove_themselves_on_postgres() {
    let Some(server) = postgres_server() else { return };
    let programs = PROGRAMS.iter().filter(|(program, _)| !OF_SQLITE.contains(program));
    with_each(WAITING, programs, |program, proof| {
        let url = format!("{server}?table=c_{program}_{}", std::process::id());
        LockClient::builder(&url).create_schema(true).connect().expect("a table").close().expect("an end");
        // What is linked with the shared library runs with any build of it.
        let mut command = Command::new(compile(program, Language::Cpp17, &[]));
        command.env("LD_LIBRARY_PATH", with_postgres());
        prove_on(&url, command, proof);
    });
}
