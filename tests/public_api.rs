//! What users rely on: every public path of the crate, every function and every constant of the C header.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The features of this build, which the docs need, too. The paths of a store exist only with its feature.
const FEATURES: [(&str, bool); 9] = [
    ("capi", cfg!(feature = "capi")),
    ("cli", cfg!(feature = "cli")),
    ("dynamodb", cfg!(feature = "dynamodb")),
    ("mongodb", cfg!(feature = "mongodb")),
    ("postgres", cfg!(feature = "postgres")),
    ("serde", cfg!(feature = "serde")),
    ("spanner", cfg!(feature = "spanner")),
    ("sqlite", cfg!(feature = "sqlite")),
    ("_internals", cfg!(feature = "_internals")),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text between each `before` and the next quotation mark.
fn quoted<'a>(html: &'a str, before: &str) -> impl Iterator<Item = &'a str> {
    html.split(before).skip(1).filter_map(|rest| rest.split('"').next())
}

/// The public paths, read from the pages that rustdoc writes about them.
fn paths() -> BTreeSet<String> {
    let on: Vec<&str> = FEATURES.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    // With the workspace and an example, cargo uses the dependencies that the lints have built; otherwise it would
    // check each of them again.
    let what = ["doc", "--workspace", "--lib", "--example", "hello", "--no-deps"];
    let args = [&what[..], &["--offline", "--quiet", "--no-default-features", "--features"]].concat();
    let mut cargo = Command::new(env!("CARGO"));
    let docs = cargo.current_dir(root()).args(args).arg(on.join(",")).arg("--target-dir").arg(target).output().unwrap();
    assert!(docs.status.success(), "{}", String::from_utf8_lossy(&docs.stderr));
    let (mut found, mut modules) = (BTreeSet::new(), vec![vec!["leasehold".to_owned()]]);
    while let Some(module) = modules.pop() {
        let folder = target.join("doc").join(module.join("/"));
        let index = read(folder.join("index.html"));
        let path = |name: &str| format!("{}::{name}", module.join("::"));
        found.extend(quoted(&index, "id=\"reexport.").map(path));
        for page in quoted(&index, "href=\"") {
            match page.split(['/', '.']).collect::<Vec<_>>()[..] {
                [name, "index", "html"] if found.insert(path(name)) => {
                    modules.push(module.iter().cloned().chain([name.to_owned()]).collect());
                }
                [kind, name, "html"] if name != "index" && found.insert(path(name)) => {
                    let html = read(folder.join(page));
                    // After this come members from traits of other crates; and an alias shows members that belong to
                    // another crate.
                    let before = |html: &'_ str, mark| html.find(mark).unwrap_or(html.len());
                    let end = before(&html, "-implementations\" class").min(before(&html, "id=\"deref-methods-"));
                    let own = if kind == "type" { "" } else { &html[..end] };
                    let members = quoted(own, "id=\"").filter(|id| !id.ends_with(".fields")).filter_map(|id| {
                        ["method.", "tymethod.", "variant.", "structfield."]
                            .iter()
                            .find_map(|kind| id.strip_prefix(kind))
                    });
                    found.extend(members.map(|member| format!("{}::{}", path(name), member.replace(".field.", "::"))));
                }
                _ => {}
            }
        }
    }
    found
}

/// The functions of the C header, and its constants with their values.
fn in_c() -> BTreeSet<String> {
    let header = read(root().join("src/capi/leasehold.h"));
    let code: Vec<&str> = header.lines().map(str::trim).filter(|line| !line.starts_with(['/', '*'])).collect();
    let constants = code
        .iter()
        .filter(|line| line.starts_with("LEASEHOLD_") && line.contains(" = "))
        .map(|line| line.replace(',', ""));
    let functions = code.iter().flat_map(|line| line.split([' ', '*'])).filter_map(|word| {
        let (name, _) = word.split_once('(')?;
        name.starts_with("leasehold_").then(|| name.to_owned())
    });
    constants.chain(functions).collect()
}

#[test]
fn what_others_rely_on_is_there() {
    let list = root().join("tests/public_api.txt");
    let here: BTreeSet<String> = paths().into_iter().chain(in_c()).collect();
    // Paths that a disabled feature would add are not checked.
    let off = |path: &String| FEATURES.iter().any(|(name, on)| !on && path.starts_with(&format!("leasehold::{name}")));
    let listed: BTreeSet<String> = read(list.clone()).lines().map(str::to_owned).collect();
    let (elsewhere, listed): (BTreeSet<String>, BTreeSet<String>) = listed.into_iter().partition(off);
    if std::env::var_os("LEASEHOLD_WRITE_API").is_some() {
        let all: BTreeSet<&String> = here.union(&elsewhere).collect();
        fs::write(list, all.iter().map(|path| format!("{path}\n")).collect::<String>()).unwrap();
        return;
    }
    let gone: Vec<_> = listed.difference(&here).collect();
    assert!(gone.is_empty(), "others rely on what is gone: {gone:#?}");
    let new: Vec<_> = here.difference(&listed).collect();
    let how = "LEASEHOLD_WRITE_API=1 cargo test --all-features --test public_api";
    assert!(new.is_empty(), "tests/public_api.txt lacks what is new; `{how}` writes it: {new:#?}");
}
