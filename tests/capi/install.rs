//! The documented way from the sources to an installed library, and a program that learns of it only from pkg-config.

use std::process::Command;

use crate::library::{Language, SONAME, compiler, library, make, root, run, store};
use crate::programs::is_proof;

/// What pkg-config says about the library that is installed below `prefix`.
fn pkg_config(prefix: &std::path::Path, args: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(args).arg("leasehold");
    // A space inside a word is written after a backslash.
    let said = run(&mut command).replace("\\ ", "\0");
    said.split_whitespace().map(|word| word.replace('\0', " ")).collect()
}

#[test]
fn a_program_outside_uses_the_installed_library() {
    let (folder, url) = store();
    let prefix = folder.path().join("my usr");
    library();
    let make = |goals: &[&str]| {
        let mut make = make(goals, "false");
        make.arg(format!("PREFIX={}", prefix.display()));
        make
    };
    // As root, who may have no cargo: it installs what was built, and only with the features that were built.
    run(&mut make(&["install"]));
    let other = make(&["install", "FEATURES=mongodb"]).output().expect("make runs");
    assert!(!other.status.success(), "it installed a library without the feature");

    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(pkg_config(&prefix, &["--modversion"]), [version]);
    let installed = |name: &str| prefix.join("lib").join(name);
    for name in ["libleasehold.a".to_owned(), "libleasehold.so".to_owned(), format!("libleasehold.so.{version}")] {
        assert!(installed(&name).is_file(), "{name}");
    }

    // Outside the repository, with the commands that the README shows.
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder can be made");
    std::fs::copy(root().join("tests/c/hello.c"), elsewhere.join("hello.c")).expect("it can be copied");
    for (name, how) in [("shared", &["--cflags", "--libs"][..]), ("static", &["--cflags", "--static", "--libs"])] {
        let mut cc = compiler(Language::C11);
        cc.current_dir(&elsewhere).args(["hello.c", "-o", name]);
        if name == "static" {
            cc.arg("-Wl,-Bstatic");
        }
        let flags = pkg_config(&prefix, how);
        let static_too = |flag: String| {
            if name == "static" && flag == "-lleasehold" { vec![flag, "-Wl,-Bdynamic".to_owned()] } else { vec![flag] }
        };
        cc.args(flags.into_iter().flat_map(static_too));
        run(&mut cc);
        let needed =
            String::from_utf8_lossy(&Command::new("ldd").arg(elsewhere.join(name)).output().expect("ldd runs").stdout)
                .into_owned();
        // It is linked by the name that changes with the library's interface.
        assert_eq!(needed.contains(&format!("{SONAME} ")), name == "shared", "{needed}");
        let mut program = Command::new(elsewhere.join(name));
        program.current_dir(&elsewhere).env("LD_LIBRARY_PATH", prefix.join("lib")).arg(&url);
        let printed = run(&mut program);
        assert!(is_proof(printed.trim_end(), "nightly-report is ours, with the token #"), "{printed}");
    }

    let mut cpp = compiler(Language::Cpp17);
    cpp.args(["-std=c++17", "-fsyntax-only", "-x", "c++"]).arg(root().join("tests/c/wrapped.cpp"));
    run(cpp.args(pkg_config(&prefix, &["--cflags"])));

    run(&mut make(&["uninstall"]));
    let headers = ["leasehold.h", "leasehold.hpp"].map(|name| prefix.join("include").join(name));
    assert!(!installed("libleasehold.so").exists() && headers.iter().all(|header| !header.exists()));
}

/// As in a fresh checkout, where the folder for build results does not exist yet.
#[test]
fn make_makes_its_own_folder() {
    let (folder, _) = store();
    let mut make = Command::new("make");
    make.arg("-C").arg(root().join("src/capi")).args(["all", "PROFILE=debug", "CARGO=true"]);
    make.arg(format!("TARGET={}", folder.path().join("new/capi").display())).env_remove("MAKEFLAGS");
    run(&mut make);
}
