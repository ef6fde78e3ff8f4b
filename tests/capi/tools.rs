//! What valgrind and the sanitizers find, and the library used from Python.

use std::process::{Command, Stdio};

use crate::library::{Language, compile, compiler, library, root, run, store, target};
use crate::programs::{PROGRAMS, WAITING, prove, proves, with_each};
use crate::servers::skip;

/// Whether a tool is installed.
pub fn there(tool: &str, found: bool) -> bool {
    if !found {
        skip(&format!("{tool} is missing"));
    }
    found
}

pub fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Whether the C compiler can link with this sanitizer, and the result runs here.
fn sanitizes(flag: &str) -> bool {
    let probe = target("c").join(format!("probe{}", flag.replace(['=', ','], "")));
    std::fs::create_dir_all(target("c")).expect("a folder can be made");
    let source = probe.with_extension("c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file can be written");
    answers(compiler(Language::C11).arg(flag).arg(&source).arg("-o").arg(&probe)) && answers(&mut Command::new(&probe))
}

#[test]
fn valgrind_finds_no_error_and_no_leak() {
    if !there("valgrind", answers(Command::new("valgrind").arg("--version"))) {
        return;
    }
    let common = ["valgrind", "--quiet", "--error-exitcode=9", "--fair-sched=yes"];
    let leaks =
        ["--leak-check=full", "--errors-for-leak-kinds=definite,indirect", "--show-leak-kinds=definite,indirect"];
    // Under valgrind each program uses a whole core, but its time limits stay the same.
    with_each(2, PROGRAMS.iter(), |program, proof| {
        // A child that was forked while other threads ran necessarily leaks everything that they held.
        let leaks = if program == "forked" { &[][..] } else { &leaks };
        // Valgrind slows a program down so much that on a busy machine its own time limits may be too short: then it is
        // tried again. What valgrind itself finds (9) is not.
        let ran = || proves(&[&common, leaks].concat(), &compile(program, Language::C11, &[]), proof);
        let is_late = |ran: &Result<(), (Option<i32>, String)>| matches!(ran, Err((Some(1), _)));
        let tried = (0..3).map(|_| ran()).find(|ran| !is_late(ran)).unwrap_or_else(ran);
        tried.unwrap_or_else(|(_, said)| panic!("{said}"));
    });
}

#[test]
fn address_and_undefined_behaviour_sanitizers_find_nothing() {
    let flag = "-fsanitize=address,undefined";
    if !there(flag, sanitizes(flag)) {
        return;
    }
    let flags = [flag, "-fno-sanitize-recover=all"];
    with_each(WAITING, PROGRAMS.iter(), |program, proof| prove(&[], &compile(program, Language::C11, &flags), proof));
}

#[test]
fn the_thread_sanitizer_finds_nothing_in_the_programs() {
    let flag = "-fsanitize=thread";
    if !there(flag, sanitizes(flag)) {
        return;
    }
    // The sanitizer does not support a fork while other threads run.
    let programs = PROGRAMS.iter().filter(|(program, _)| *program != "forked");
    with_each(WAITING, programs, |program, proof| prove(&[], &compile(program, Language::C11, &[flag]), proof));
}

#[test]
fn the_shared_library_shows_nothing_but_its_functions() {
    if !there("nm", answers(Command::new("nm").arg("--version"))) {
        return;
    }
    let shared = library().folder.join("libleasehold.so");
    let shown = run(Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(shared));
    let mut names: Vec<&str> = shown.lines().filter_map(|name| name.strip_prefix("leasehold_")).collect();
    names.sort_unstable();
    // The symbols of SQLite must not be among them, because a program may have an SQLite of its own.
    assert_eq!(shown.lines().count(), names.len(), "{shown}");
    assert_eq!(names, crate::header::functions().iter().map(String::as_str).collect::<Vec<_>>());
}

/// Runs a program of tests/c in Python.
#[track_caller]
fn python(program: &str, proof: &str) {
    if !there("python3", answers(Command::new("python3").args(["-c", "import sqlite3"]))) {
        return;
    }
    let (_folder, url) = store();
    let shared = library().folder.join("libleasehold.so");
    let printed = run(Command::new("python3").arg("-B").arg(root().join("tests/c").join(program)).arg(shared).arg(url));
    assert_eq!(printed.lines().last(), Some(format!("proof: {proof}").as_str()), "{printed}");
}

#[test]
fn a_lock_from_python() {
    python("with_lock.py", "held inside `with`, released after it, also by an exception");
}

#[test]
fn a_second_sqlite_in_the_process_does_no_harm() {
    python("second_sqlite.py", "the log stays, and nobody else is granted what is held");
}

#[test]
fn a_second_copy_of_the_library_in_the_process_is_refused() {
    python("second_copy.py", "a second copy is refused while the first one has the file open");
}
