//! What is built on the C library: the header for C++ and the package for Python. Also how the compilers react to
//! misuse.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::library::{Language, compiler, library, links_shared, root, run, store, target};
use crate::servers::skip::skip_part;
use crate::tools::{answers, there};

/// Whether `code`, inside a function that has a client and a guard, compiles without a warning.
fn compiles(language: Language, code: &str) -> bool {
    let (standard, kind) = if language == Language::C11 { ("-std=c11", "c") } else { ("-std=c++17", "c++") };
    let mut cc = compiler(language);
    cc.args([standard, "-Wall", "-Werror", "-S", "-o", "/dev/null", "-x", kind, "-I"])
        .arg(root().join("src/capi"))
        .arg("-");
    let mut child = cc.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the compiler runs");
    let header = if language == Language::C11 { "leasehold.h" } else { "leasehold.hpp" };
    let program = format!(
        "#include <{header}>\nvoid f(leasehold_client client, leasehold_guard guard) {{ (void)client; (void)guard; {code} }}\n"
    );
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), program.as_bytes()).expect("it reads");
    child.wait().expect("it is our child").success()
}

#[test]
fn a_wrong_handle_and_a_code_that_nobody_reads_do_not_compile() {
    for language in [Language::C11, Language::Cpp17] {
        assert!(compiles(language, "leasehold_guard_free(guard); leasehold_client_free(client);"));
        assert!(!compiles(language, "leasehold_guard_free(client);"), "a wrong handle");
        assert!(!compiles(language, "leasehold_guard_free(0);"), "a number");
        assert!(compiles(language, "if (leasehold_guard_ensure_held(guard) != LEASEHOLD_CODE_OK) return;"));
        assert!(!compiles(language, "leasehold_guard_ensure_held(guard);"), "a code that is not read");
    }
    let cpp = |code: &str| compiles(Language::Cpp17, &format!("const leasehold::client c(client); {code}"));
    assert!(cpp("const auto held = c.lock(\"k\"); if (c.try_lock(\"k\")) return;"));
    for lost in
        ["c.lock(\"k\");", "c.try_lock(\"k\");", "c.request_all({\"k\"}).lock_all();", "c.request(\"k\").adopt({});"]
    {
        assert!(!cpp(lost), "it is released at once: {lost}");
    }
}

/// Compiles the C++ program and runs it.
fn wrapped(mut cc: Command, name: &str, flags: &[&str]) {
    let program = target("c").join(name);
    std::fs::create_dir_all(target("c")).expect("a folder can be made");
    cc.args(["-x", "c++", "-std=c++17", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-pedantic"]).args(flags);
    cc.arg("-I").arg(root().join("src/capi")).arg(root().join("tests/c/wrapped.cpp")).args(["-x", "none", "-pthread"]);
    links_shared(&mut cc);
    run(cc.arg("-o").arg(&program));
    let (_folder, url) = store();
    assert_eq!(
        run(Command::new(program).arg(url)).lines().last(),
        Some("proof: what is held ends with its scope, and what fails throws")
    );
}

#[test]
fn the_header_for_cpp_does_what_it_says() {
    wrapped(compiler(Language::Cpp17), "wrapped", &[]);
    // This would find a function that is freed while it runs.
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    wrapped(compiler(Language::Cpp17), "wrapped-sanitized", &sanitized);
    if answers(Command::new("clang++").arg("--version")) {
        wrapped(Command::new("clang++"), "wrapped-clang", &[]);
    } else {
        skip_part("not compiled by clang++, which is not here");
    }
}

/// Runs a program of tests/c with the package, in an environment of its own.
#[track_caller]
fn package(program: &str, proof: &str) {
    if !there("python3", answers(Command::new("python3").args(["-c", "import venv, ctypes, sqlite3"]))) {
        return;
    }
    let (folder, url) = store();
    let environment = folder.path().join("venv");
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&environment));
    let python = environment.join("bin/python");
    let said = run(Command::new(&python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]));
    let package = Path::new(said.trim()).join("leasehold");
    std::fs::create_dir_all(&package).expect("a folder can be made");
    for file in ["__init__.py", "py.typed"] {
        let from = root().join("examples/python/leasehold").join(file);
        std::fs::copy(from, package.join(file)).expect("without py.typed nobody's checker looks at the hints");
    }
    let mut command = Command::new(&python);
    command.arg("-B").arg(root().join("tests/c").join(program)).arg(&url);
    command.env("LEASEHOLD_LIBRARY", library().folder.join("libleasehold.so"));
    let printed = run(&mut command);
    assert_eq!(printed.lines().last(), Some(format!("proof: {proof}").as_str()), "{printed}");
}

#[test]
fn the_package_for_python_works_in_an_environment_of_its_own() {
    package("package.py", "held inside `with`, and a loss is told");
}

#[test]
fn the_package_for_python_says_at_the_end_of_with_what_the_work_must_know() {
    package("package_ends.py", "the end says what the work must know, and nothing else");
}

#[test]
fn the_package_for_python_has_the_numbers_of_the_header() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("it is committed");
    let (header, package) = (read("src/capi/leasehold.h"), read("examples/python/leasehold/__init__.py"));
    let of_header = |prefix: &str| {
        let lines = header.lines().filter_map(|line| line.trim().strip_prefix(prefix)?.strip_suffix(','));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let of_package = |class: &str| {
        let body = package.split_once(&format!("class {class}(enum.IntEnum):")).expect("a class").1;
        let body = body.split("\n\n\n").next().expect("a body").lines();
        body.filter(|line| line.contains(" = ")).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of_package("Code"), of_header("LEASEHOLD_CODE_"));
    assert_eq!(of_package("Reason"), of_header("LEASEHOLD_REASON_"));
    let version = header.split_once("LEASEHOLD_VERSION_NUMBER ").expect("it is there").1.split('u').next();
    let ours = package.split_once("_VERSION_NUMBER = ").expect("it is there").1.lines().next().expect("a number");
    assert_eq!(Some(ours.replace('_', "").as_str()), version);
    assert!(package.contains(&format!("__version__ = \"{}\"", env!("CARGO_PKG_VERSION"))));
}
