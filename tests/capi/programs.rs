//! Every program in tests/c runs, ends well and prints its proof.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Mutex;

use crate::library::{Language, compile, ran, root, store};
use crate::room::room;

/// A new program is named here, with its proof, in which `#` stands for a number above zero.
pub const PROGRAMS: [(&str, &str); 19] = [
    ("batch_job", "20 jobs, each done once by one of 4 processes"),
    ("beside", "a callback that takes long holds up no other lock, and has the stack that it needs"),
    ("callbacks", "callbacks lock, close, stop and free"),
    ("fenced", "who asserts its lock writes, and nobody else does"),
    ("forked", "dead in the child, alive in the parent"),
    ("forks_inside", "what forks inside costs the parent nothing"),
    ("from_env", "the store that the environment names was set up and locked"),
    ("hand_over", "handed over without a gap, adopted once"),
    ("hello", "nightly-report is ours, with the token #"),
    ("late", "closed by exit(), by a thread's end and under a poll()"),
    ("leader", "each term had one leader, told when it began and when it ended"),
    ("loss_callback", "called at each loss, once, with its reason, and never after a release"),
    ("loss_poll", "poll() woke at the loss, and saw the end at the release"),
    ("misuse", "every wrong handle, pointer and text was answered with its code"),
    ("observed", "messages, events, waits, losses and leaders were told"),
    ("options", "every option did what it says"),
    ("shared_readers", "3 readers at once, the next refused, and the writer after them"),
    ("tangled", "callbacks end what they are told of, and nobody waits for ever"),
    ("told", "refused by name, told of the release, and lost by order, from process to process"),
];

/// Runs only on PostgreSQL, with a client of its own.
pub const OF_POSTGRES: (&str, &str) =
    ("fenced_postgres", "who asserts its lock writes through libpq, and nobody else does");

/// How many programs run at the same time: they mostly wait.
pub const WAITING: usize = 3;

/// Runs a compiled program, perhaps under a tool.
#[track_caller]
pub fn prove(tool: &[&str], binary: &std::path::Path, proof: &str) {
    proves(tool, binary, proof).unwrap_or_else(|(_, said)| panic!("{said}"));
}

/// The same; an error has the exit code, and what was printed.
pub fn proves(tool: &[&str], binary: &std::path::Path, proof: &str) -> Result<(), (Option<i32>, String)> {
    let (_folder, url) = store();
    let mut command = match tool {
        [] => Command::new(binary),
        [tool, args @ ..] => {
            let mut command = Command::new(tool);
            command.args(args).arg(binary);
            command
        }
    };
    // The thread sanitizer does not know the library's own mutexes, so it checks only what the programs do.
    command.env("TSAN_OPTIONS", "ignore_interceptors_accesses=1");
    proves_on(&url, command, proof)
}

/// The same for a command that still needs the store's URL.
#[track_caller]
pub fn prove_on(url: &str, command: Command, proof: &str) {
    proves_on(url, command, proof).unwrap_or_else(|(_, said)| panic!("{said}"));
}

fn proves_on(url: &str, mut command: Command, proof: &str) -> Result<(), (Option<i32>, String)> {
    let folder = room().expect("a folder");
    command.arg(url);
    if proof.contains("20 jobs") {
        command.arg(folder.path());
    }
    let printed = ran(&mut command)?;
    assert!(printed.lines().last().is_some_and(|line| is_proof(line, proof)), "{proof}: {printed}");
    Ok(())
}

/// Whether a program's last line is this proof.
pub fn is_proof(line: &str, proof: &str) -> bool {
    let Some(said) = line.strip_prefix("proof: ") else { return false };
    match proof.strip_suffix('#') {
        Some(before) => said.strip_prefix(before).and_then(|token| token.parse::<u64>().ok()).is_some_and(|n| n > 0),
        None => said == proof,
    }
}

/// Calls `prove` with each of the programs, this many at the same time.
pub fn with_each<'a>(
    side_by_side: usize,
    programs: impl Iterator<Item = &'a (&'a str, &'a str)> + Send,
    prove: impl Fn(&str, &str) + Sync,
) {
    let programs = Mutex::new(programs);
    // The list is not locked while a program runs.
    let next = || programs.lock().expect("no panic in it").next();
    std::thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| std::iter::from_fn(next).for_each(|(program, proof)| prove(program, proof)));
        }
    });
}

#[test]
fn every_program_is_run() {
    let found: BTreeSet<String> = fs::read_dir(root().join("tests/c"))
        .expect("it is there")
        .filter_map(|entry| entry.expect("a file").file_name().to_string_lossy().strip_suffix(".c").map(str::to_owned))
        .collect();
    assert_eq!(found, PROGRAMS.iter().chain([&OF_POSTGRES]).map(|(name, _)| name.to_string()).collect());
}

#[test]
fn every_program_proves_itself_in_c11() {
    with_each(WAITING, PROGRAMS.iter(), |program, proof| prove(&[], &compile(program, Language::C11, &[]), proof));
}

#[test]
fn every_program_proves_itself_in_cpp17() {
    with_each(WAITING, PROGRAMS.iter(), |program, proof| prove(&[], &compile(program, Language::Cpp17, &[]), proof));
}

#[test]
fn every_function_is_misused() {
    let misuse = fs::read_to_string(root().join("tests/c/misuse.c")).expect("it is there");
    for function in crate::header::functions() {
        assert!(misuse.contains(&format!("leasehold_{function}(")), "misuse.c leaves out leasehold_{function}");
    }
}

/// Directly, by the header for C++ or by the package for Python, which has the names without their prefix.
#[test]
fn every_function_is_used_well() {
    let read = |path: &std::path::Path| fs::read_to_string(path).expect("it is there");
    let is_program = |path: &std::path::PathBuf| {
        path.extension().is_some_and(|kind| ["c", "h", "cpp"].iter().any(|of| kind == *of))
            && !path.ends_with("misuse.c")
    };
    let sources = fs::read_dir(root().join("tests/c")).expect("it is there").map(|entry| entry.expect("a file").path());
    let mut used: String = sources.filter(is_program).map(|path| read(&path)).collect();
    used += &read(&root().join("src/capi/leasehold.hpp"));
    let package = read(&root().join("examples/python/leasehold/__init__.py"));
    for function in crate::header::functions() {
        let is_used = used.contains(&format!("leasehold_{function}(")) || package.contains(&format!("\"{function}\""));
        assert!(is_used, "only misuse.c calls leasehold_{function}");
    }
}

#[test]
fn the_guide_shows_the_program_that_is_tested() {
    let guide = fs::read_to_string(root().join("src/api/guide/c.md")).expect("it is there");
    let shown = guide.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program in C");
    assert_eq!(shown, fs::read_to_string(root().join("tests/c/hello.c")).expect("it is there"));
}
