//! What the README and the guide tell users to paste works.

use std::path::Path;
use std::process::Command;

use crate::support::{Store, run};

/// The shell blocks after this heading, up to the next heading of its level.
fn blocks(file: &str, heading: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split(heading).nth(1).unwrap_or_else(|| panic!("{file} has no {heading:?}"));
    let section = section.split("\n## ").next().unwrap();
    section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The output of a shell that gets this block on its standard input, with the command of this version.
#[track_caller]
pub fn pasted(store: &Store, block: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    // It is built already, perhaps in another target folder.
    let block = block.replace("cargo run --features cli -- ", "leasehold ");
    let mut shell = Command::new("bash");
    shell.args(["-euc", &block]).current_dir(store.folder.path()).env("PATH", path).env("HOME", store.folder.path());
    let ran = run(shell.env_remove("LEASEHOLD_STORE").env_remove("XDG_STATE_HOME"));
    assert_eq!(ran.code, Some(0), "{block}{}{}", ran.stdout, ran.stderr);
    ran.stdout
}

#[test]
fn from_nothing_to_a_held_lock() {
    let blocks = blocks("README.md", "## From a shell\n");
    let [first, more] = &blocks[..] else { panic!("{blocks:?}") };
    assert!(first.starts_with("cargo run --features cli -- run "), "{first}");
    let store = Store::new();
    assert!(pasted(&store, first).starts_with("held with token 1"));
    // A machine that stops for some of these few seconds mixes the lines up; then longer times are tried.
    let said = [1, 2, 4, 8].map(|times| {
        let longer = more.replace("sleep 5", &format!("sleep {}", 5 * times));
        longer.replace("sleep 1\n", &format!("sleep {times}\n"))
    });
    let said = said.iter().map(|block| pasted(&store, block)).take_while(|said| {
        let lines: Vec<&str> = said.lines().collect();
        let is_shown = lines.len() == 4
            && lines[0].starts_with("KEY ")
            && lines[1].starts_with("nightly-report  live   exclusive ")
            && lines[2..] == ["taken, exit code 75", "now it is mine"];
        !is_shown
    });
    let wrong: Vec<String> = said.collect();
    assert!(wrong.len() < 4, "{wrong:#?}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_steps_of_the_guide() {
    let blocks = blocks("src/cli/guide.md", "## Steps that share no process\n");
    let [steps, hold] = &blocks[..] else { panic!("{blocks:?}") };
    let store = Store::new();
    let said = pasted(&store, steps);
    assert!(
        said.starts_with("deployed with token 1") && said.contains("\nreleased: nobody holds \"deploy\" under token 1"),
        "{said}"
    );
    // The process that holds it ends with the shell, and at once.
    for _ in 0..2 {
        pasted(&store, &format!("{hold}\nleasehold status nightly --exit-code"));
    }
}

#[test]
fn the_completions_can_be_installed() {
    let store = Store::new();
    let completions = &blocks("src/cli/guide.md", "## Looking after a store\n")[0];
    std::fs::create_dir_all(store.path(".local/share/bash-completion/completions")).unwrap();
    pasted(&store, completions.lines().next().unwrap());
}
