//! What the docs, the README and the manifest say matches the code.

use super::*;

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
    for path in ["builder.rs", "election/builder.rs", "filter.rs", "setters.rs", "request_any.rs"]
        .map(|path| format!("src/api/{path}"))
    {
        let text = text(&path);
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
    for path in ["README.md", "src/design.md", "src/api/guide/step_by_step.md", "CHANGELOG.md"] {
        for word in text(path).split(|c: char| c.is_whitespace() || "`()[],;".contains(c)) {
            let looks_like_a_path = word.ends_with(".rs") || word.ends_with(".md") || word.starts_with("examples/");
            if looks_like_a_path && !word.contains('*') {
                let there = ["", "src", "examples", "tests"].iter().any(|base| root().join(base).join(word).exists());
                assert!(there, "{path} speaks of {word}");
            }
        }
    }
}

/// The last column of the guide's tables names the functions after their file.
#[test]
fn the_functions_of_the_step_by_step_guide_stand_in_their_files() {
    let guide = text("src/api/guide/step_by_step.md");
    let (mut code, mut found) = (String::new(), 0);
    for line in guide.lines().filter(|line| line.starts_with('|')) {
        let places = line.trim_end_matches('|').rsplit('|').next().unwrap();
        for name in places.split('`').skip(1).step_by(2) {
            if name.contains('/') {
                code = if name.contains('*') { String::new() } else { text(format!("src/{name}")) };
            } else {
                found += 1;
                let is_there = code.contains(&format!("fn {name}(")) || code.contains(&format!("fn {name}<"));
                assert!(is_there, "{name}: {line}");
            }
        }
    }
    assert!(found > 20, "{found}");
}

/// A name that matches no test would run nothing, and pass.
#[test]
fn tests_that_are_run_again_by_their_names_exist() {
    let mut found = 0;
    for program in ["election", "promises", "stores"] {
        let folder = Path::new("tests").join(program);
        for path in files(&format!("tests/{program}"), "rs") {
            let code = text(&path);
            let is_name =
                |text: &&str| text.contains("::") && text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c));
            for name in
                code.split('"').filter(is_name).filter(|name| !name.starts_with("leasehold::") && !name.ends_with(":"))
            {
                let (module, test) = name.rsplit_once("::").unwrap();
                let file = folder.join(module.replace("::", "/"));
                let file = [file.with_extension("rs"), file.join("mod.rs")]
                    .into_iter()
                    .find(|file| root().join(file).exists());
                let there = file.is_some_and(|file| text(file).contains(&format!("#[test]\nfn {test}()")));
                assert!(there, "{} runs the test {name}, which is not there", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found} tests are run again");
}

/// Each name is that of a file, a folder or a test; `b01_*` means all tests whose names begin so.
#[test]
fn what_the_readme_of_the_tests_names_is_there() {
    let readme = text("tests/README.md");
    let code: String = files("tests", "rs").iter().map(text).collect();
    let is_test = |name: &str| code.contains(&format!("fn {name}("));
    let promises = readme.split_once("## What is promised").expect("its second half").1;
    for name in promises.split('`').skip(1).step_by(2).filter(|name| name.contains(['_', '/', '.'])) {
        let there = match name.strip_suffix('*') {
            Some(start) => code.contains(&format!("fn {start}")),
            None => root().join("tests").join(name).exists() || is_test(name),
        };
        assert!(there, "tests/README.md speaks of {name}");
    }
    for number in 1..=25 {
        assert!(promises.contains(&format!("\n| {number} | ")), "tests/README.md says nothing of behaviour {number}");
    }
}

#[test]
fn what_the_readme_runs_is_there() {
    let readme = text("README.md");
    let words = readme.split_whitespace().count();
    assert!(words <= 1300, "README.md is meant to be one page, and has {words} words: the guide is the place for more");
    let words = text("src/design.md").split_whitespace().count();
    assert!(
        words <= 6500,
        "src/design.md has {words} words: what the code says, and what users need, has other places"
    );
    assert!(readme.contains("cargo run --release --example batch_job"));
    let all = "cargo test --workspace --all-features";
    assert!(readme.contains(all));
    assert!(text(".ci/run").contains(all), "the gate runs another test command");
    let version = format!("## {}", env!("CARGO_PKG_VERSION"));
    assert!(text("CHANGELOG.md").lines().nth(2).is_some_and(|line| line.starts_with(&version)), "CHANGELOG.md");
}

/// It is a placeholder: to publish the crate one changes one line.
#[test]
fn the_address_of_the_repository_is_in_one_place() {
    let manifest = text("Cargo.toml");
    let address = manifest.lines().find_map(|line| line.strip_prefix("repository = \"")).unwrap().trim_end_matches('"');
    assert_eq!(manifest.matches(address).count(), 1);
    let folders = ["src", "tests", "examples", "benches", ".github", ".ci"];
    let others = folders.into_iter().flat_map(|folder| all_files(folder, |_| true));
    for path in others.chain(["README.md", "CHANGELOG.md"].map(PathBuf::from)) {
        let bytes = fs::read(root().join(&path)).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(address), "{} has the address, too", path.display());
    }
}

/// On the registry's page a relative link leads into the repository, so its target must be there, not in the package.
#[test]
fn every_link_of_the_readme_leads_somewhere() {
    let (readme, public) = (text("README.md"), text("tests/public_api.txt"));
    let links: Vec<&str> = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 15, "{links:?}");
    for link in links {
        let there = match link.strip_prefix("https://docs.rs/leasehold") {
            Some(page) => {
                let page = page.trim_start_matches("/latest/").trim_end_matches('/').replace('/', "::");
                page.is_empty() || public.lines().any(|path| path == page)
            }
            None => root().join(link).exists(),
        };
        assert!(there, "README.md links to {link}");
    }
}

#[test]
fn log_targets_are_in_the_docs() {
    let listed = text("src/api/guide/logs.md");
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

/// Users make alerts from these log lines.
#[test]
fn log_lines_of_the_guide_are_in_the_code() {
    let engine: String = files("src/engine", "rs").iter().map(|path| code(path)).collect();
    let guide = text("src/api/guide/operating.md");
    let cells = guide.lines().filter(|line| line.contains(" | `Event::")).filter_map(|line| line.split('|').nth(3));
    let lines: Vec<&str> = cells.filter_map(|cell| cell.split('"').nth(1)).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for line in lines {
        assert!(engine.contains(line), "nothing logs {line:?}");
    }
}
