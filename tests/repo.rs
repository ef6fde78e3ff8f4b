//! Keeps the rules of this repository honest.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `folder` with this ending, relative to the root.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    assert!(!found.is_empty(), "no .{ending} file below {folder}");
    found.sort();
    found
}

/// The code of a file without its comments and without its own unit tests.
fn code(path: &Path) -> String {
    let is_test = |ending: &str| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending));
    if ["tests.rs", "orders.rs"].into_iter().any(is_test) {
        return String::new();
    }
    let text = text(path);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn files_stay_short() {
    for path in ["src", "tests", "examples", "benches"].iter().flat_map(|folder| files(folder, "rs")) {
        let lines = text(&path).lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines: find its seam", path.display());
    }
}

#[test]
fn each_room_uses_only_what_stands_below_it() {
    let forbidden: &[(&str, &[&str])] = &[
        // Pure: no I/O, clock, thread or randomness, nothing of the layers above.
        (
            "src/lease",
            &[
                "std::fs",
                "std::io",
                "std::net",
                "std::thread",
                "Instant",
                "SystemTime",
                "fastrand",
                "uuid",
                "log::",
                "crate::rt",
                "crate::backend",
                "crate::client",
                "unwrap()",
                "expect(",
            ],
        ),
        ("src/backend", &["crate::client", "crate::guard", "crate::request", "crate::rt::family", "crate::rt::hold"]),
        (
            "src/election",
            &["crate::backend", "crate::connect", "rt::hold", "rt::queue", "rt::waiters", "thread::sleep"],
        ),
        ("src/rt", &["crate::client", "crate::guard", "crate::request", "crate::connect", "rusqlite", "thread::sleep"]),
        // The C library is a user of the public API like any other.
        ("src/capi", &["crate::rt", "crate::backend", "crate::connect", "crate::options"]),
        ("src", &["tokio", "todo!(", "unimplemented!(", "dbg!(", "unsafe {", "println!("]),
    ];
    for (folder, words) in forbidden {
        for path in files(folder, "rs") {
            let code = code(&path);
            // The hidden runtime, and the stores that live on it.
            let is_async = path.ends_with("rt/driver.rs")
                || ["dynamodb", "mongodb", "spanner"]
                    .iter()
                    .any(|store| path.starts_with(format!("src/backend/{store}")));
            let is_c = path.starts_with("src/capi");
            let may = |word: &str| (word == "tokio" && is_async) || (word == "unsafe {" && is_c);
            for word in words.iter().filter(|word| !may(word)) {
                assert!(!code.contains(word), "{} has {word:?}", path.display());
            }
        }
    }
}

#[test]
fn each_unsafe_block_says_why_it_is_sound() {
    for path in files("src/capi", "rs") {
        let text = text(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let unsafe_code = line.contains("unsafe {") || line.trim_start().starts_with("unsafe impl");
            let reason = lines[..at].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
            let said = || reason.clone().any(|line| line.contains("SAFETY: "));
            // A chain may begin on the line before.
            let above = || at > 1 && lines[at - 2].contains("SAFETY: ");
            assert!(!unsafe_code || said() || above(), "{}:{}: no SAFETY comment", path.display(), at + 1);
        }
    }
}

#[test]
fn only_one_file_names_every_store() {
    for path in files("src", "rs") {
        let shown = path.display().to_string();
        let may = ["connect", "sqlite", "dynamodb", "mongodb", "spanner", "testing", "lib"]
            .map(|name| format!("src/{name}.rs"))
            .contains(&shown);
        if !may && !shown.starts_with("src/backend/") {
            let code = code(&path);
            assert!(
                ["sqlite", "memory", "dynamodb", "mongodb", "spanner"]
                    .iter()
                    .all(|store| !code.contains(&format!("backend::{store}"))),
                "{shown} names a store"
            );
        }
    }
}

#[test]
fn nothing_panics_on_purpose() {
    for path in files("src", "rs") {
        let code = code(&path);
        // The two that may: a fault that was asked for, and a promise about the memory store.
        let may_panic = path.ends_with("backend/fault.rs") || path.ends_with("testing.rs");
        for word in [".unwrap()", ".expect(", "panic!("] {
            assert!((may_panic && word == "panic!(") || !code.contains(word), "{}: {word}", path.display());
        }
    }
}

#[test]
fn lib_rs_is_a_table_of_contents() {
    let code = code(Path::new("src/lib.rs"));
    assert!(!code.contains("impl ") && !code.contains("struct LockClient"), "src/lib.rs has code of its own");
    assert!(code.contains("#![deny(missing_docs)]"));
    assert!(code.contains(r#"#![cfg_attr(not(feature = "capi"), forbid(unsafe_code))]"#));
    assert!(code.contains(r#"#![cfg_attr(feature = "capi", deny(unsafe_code))]"#));
    assert_eq!(code.matches("allow(unsafe_code)").count(), 1, "only the C library may");
}

#[test]
fn every_feature_is_explained() {
    let manifest = text("Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let docs = text("src/lib.rs");
    let mut comment = false;
    for line in features.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            comment = true;
            continue;
        }
        let name = line.split_whitespace().next().unwrap();
        assert!(comment || name == "default", "the feature {name} has no comment in Cargo.toml");
        let listed = name == "default" || name.starts_with('_') || docs.contains(&format!("//! | `{name}` |"));
        assert!(listed, "the feature {name} is not in the table of src/lib.rs");
        comment = false;
    }
}

#[test]
fn setters_tell_their_default() {
    for path in ["src/builder.rs", "src/election/builder.rs", "src/filter.rs", "src/request.rs", "src/request_any.rs"] {
        let text = text(path);
        let mut docs = String::new();
        for line in text.lines() {
            let line = line.trim();
            if let Some(doc) = line.strip_prefix("///") {
                docs.push_str(doc);
            } else if line.starts_with("pub fn") && line.contains("-> Self") && line.contains("self") {
                assert!(docs.contains("Defaults to"), "{path}: {line}");
                docs.clear();
            } else if !line.starts_with("#[") {
                docs.clear();
            }
        }
    }
}

#[test]
fn every_path_in_the_docs_exists() {
    for path in ["README.md", "src/design.md", "CHANGELOG.md"] {
        for word in text(path).split(|c: char| c.is_whitespace() || "`()[],;".contains(c)) {
            let looks_like_a_path = word.ends_with(".rs") || word.ends_with(".md") || word.starts_with("examples/");
            if looks_like_a_path && !word.contains('*') {
                let there = ["", "src", "examples", "tests"].iter().any(|base| root().join(base).join(word).exists());
                assert!(there, "{path} speaks of {word}");
            }
        }
    }
}

#[test]
fn what_the_readme_runs_is_there() {
    let readme = text("README.md");
    assert!(readme.contains("cargo run --release --example batch_job"));
    assert!(readme.contains("cargo test --all-features"));
    assert!(text(".ci/run").contains("cargo test --all-features"), "the gate runs another test command");
    assert!(text("CHANGELOG.md").lines().nth(2).is_some_and(|line| line == "## Unreleased"), "CHANGELOG.md");
}

/// A panic of the user's logger must end no thread of ours, and no drop.
#[test]
fn log_calls_are_contained() {
    for path in files("src", "rs").iter().filter(|path| !path.ends_with("log.rs") && !path.starts_with("src/cli")) {
        let code = code(path);
        let calls = ["error", "warn", "info", "debug", "trace"].iter().any(|l| code.contains(&format!("log::{l}!(")));
        assert!(!calls || code.contains("use crate::log;"), "{} calls the logger itself", path.display());
    }
}

#[test]
fn log_targets_are_in_the_docs() {
    let listed = text("src/design.md");
    let mut targets = BTreeSet::new();
    for path in files("src", "rs") {
        let code = code(&path);
        let found = code.split("\"leasehold::").skip(1).filter_map(|rest| rest.split('"').next());
        targets.extend(found.map(str::to_owned));
    }
    for target in targets {
        assert!(listed.contains(&format!("| `{target}` |")), "the log target leasehold::{target} is not in the docs");
    }
}

#[test]
fn the_default_build_stays_small() {
    let tree = |features: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO"));
        let args = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
        let output = command.current_dir(root()).args(args).args(features).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.replace(" (*)", "")).collect::<BTreeSet<_>>()
    };
    for features in [&[][..], &["--no-default-features", "--features", "sqlite"]] {
        let crates = tree(features);
        assert!(!crates.iter().any(|name| name.starts_with("tokio ")), "{crates:?}");
        // Beside this one.
        assert!(crates.len() - 1 <= 40, "{} crates: {crates:?}", crates.len() - 1);
    }
}
