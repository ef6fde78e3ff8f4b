//! The committed header matches the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::library::root;

/// In the order that suits a reader.
const FILES: [&str; 24] = [
    "code",
    "version",
    "error",
    "logging",
    "event",
    "client",
    "client_lock",
    "request",
    "waiting",
    "cancel",
    "guard",
    "loss",
    "assertion",
    "guards",
    "status",
    "lock",
    "client_data",
    "list",
    "filter",
    "leases",
    "keeper",
    "admin",
    "election",
    "leadership",
];

fn folder() -> PathBuf {
    root().join("src/capi")
}

/// The header's functions, without the prefix `leasehold_`.
pub fn functions() -> BTreeSet<String> {
    let header = fs::read_to_string(folder().join("leasehold.h")).expect("it is committed");
    let code: String =
        header.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let code = code.split_once("*/").expect("it begins with a comment").1;
    let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('));
    words.filter_map(|word| word.strip_prefix("leasehold_")?.split_once('(')).map(|(name, _)| name.to_owned()).collect()
}

/// The constants for the version that a program was compiled for.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let part = |text: &str| text.parse::<u32>().expect("a number");
    let number = part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
        + part(env!("CARGO_PKG_VERSION_PATCH"));
    format!(
        "\n// The version of this header, as a text and as a number: 1,000,000 for a major version, 1,000 for a minor one.\n\
         #define LEASEHOLD_VERSION \"{version}\"\n#define LEASEHOLD_VERSION_NUMBER {number}u\n"
    )
}

#[test]
fn the_header_is_what_the_code_says() {
    let mut config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).expect("a configuration");
    config.after_includes = Some(config.after_includes.unwrap_or_default() + &version());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(folder().join(file).with_extension("rs"));
    }
    let mut written = Vec::new();
    builder.generate().expect("a header").write(&mut written);
    let written = String::from_utf8(written).expect("UTF-8");
    let path = folder().join("leasehold.h");
    if std::env::var_os("LEASEHOLD_WRITE_HEADER").is_some() {
        fs::write(&path, &written).expect("the header can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let how = "LEASEHOLD_WRITE_HEADER=1 cargo test -p leasehold-tests --all-features --test capi header";
    assert!(written == committed, "src/capi/leasehold.h is not what the code says; `{how}` writes it");
}

#[test]
fn every_exported_function_stands_in_the_header_with_its_meaning() {
    let mut exported = BTreeSet::new();
    for entry in fs::read_dir(folder()).expect("it is there") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8");
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]") {
            let (before, rest) = text.split_at(at);
            let name = rest.split_once("fn leasehold_").expect("a name").1.split('(').next().expect("a name");
            let before = before.strip_suffix("#[cfg(unix)]\n").unwrap_or(before);
            assert!(before.lines().last().is_some_and(|line| line.starts_with("///")), "{name} has no comment");
            // A function that can fail goes through `call`; the others only look something up.
            let body = rest.split_once(" {\n").expect("a body").1.split("\n}\n").next().expect("a body");
            let answers_code = rest.split_once(" {\n").expect("a body").0.ends_with("-> Code");
            let is_kept = body.contains("call(|") || name.starts_with("error_");
            assert!(is_kept || !answers_code, "a panic could leave {name}");
            exported.insert(name.to_owned());
        }
    }
    assert_eq!(exported, functions());
}
