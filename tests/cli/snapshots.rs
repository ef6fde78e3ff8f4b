//! Help, errors and manual pages as they were accepted. `LEASEHOLD_TEST_ACCEPT=1` writes them anew: look at the
//! difference before you commit it.

use std::path::Path;

use crate::support::{Store, leasehold, run, run_until_answered};

#[track_caller]
fn assert_accepted(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("LEASEHOLD_TEST_ACCEPT").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let accepted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(accepted == text, "{} is not what is said now (LEASEHOLD_TEST_ACCEPT=1 accepts):\n{text}", path.display());
}

/// Replaces numbers, which differ from run to run.
fn redacted(text: &str, store: &Store) -> String {
    let text = text.replace(&store.folder.path().display().to_string(), "[FOLDER]");
    let mut redacted = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if redacted.ends_with('#') => {}
            '0'..='9' => redacted.push('#'),
            _ => redacted.push(c),
        }
    }
    // Longer times are shown without tenths.
    redacted.replace("#.# s", "# s")
}

const COMMANDS: [&str; 21] = [
    "run",
    "elect",
    "acquire",
    "hold",
    "status",
    "release",
    "renew",
    "unlock",
    "purge",
    "init",
    "doctor",
    "lease",
    "lease claim",
    "lease extend",
    "lease expire",
    "lease revoke",
    "lease pin",
    "lease unpin",
    "lease list",
    "completions",
    "man",
];

#[test]
fn help() {
    assert_accepted("tests/cli/snapshots/leasehold.txt", &run(&mut leasehold(&["--help"])).stdout);
    for command in COMMANDS {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let ran = run(&mut leasehold(&args));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        assert_accepted(&format!("tests/cli/snapshots/{}.txt", command.replace(' ', "-")), &ran.stdout);
    }
}

#[test]
fn manual_pages() {
    assert_accepted("src/cli/man/leasehold.1", &run(&mut leasehold(&["man"])).stdout);
    for name in COMMANDS {
        let ran = run(leasehold(&["man"]).args(name.split(' ')));
        assert_accepted(&format!("src/cli/man/leasehold-{}.1", name.replace(' ', "-")), &ran.stdout);
    }
    assert_eq!(run(&mut leasehold(&["man", "fly"])).code, Some(64));
}

#[test]
fn manual_pages_keep_columns_and_have_the_exit_codes() {
    for command in [&["man"][..], &["man", "run"]] {
        let page = run(&mut leasehold(command)).stdout;
        let (_, codes) = page.split_once("\n.SH \"EXIT STATUS\"\n.nf\n").expect("the codes");
        let (codes, _) = codes.split_once("\n.fi").expect("their end");
        assert!(codes.lines().all(|line| line.starts_with("  ")) && codes.lines().count() == 15, "{codes}");
        let (_, stores) = page.split_once("The store, one of\n.nf\n").expect("the stores");
        assert!(stores.split_once("\n.fi\n").is_some_and(|(stores, _)| stores.lines().count() == 6), "{page}");
    }
}

#[test]
fn manual_pages_say_how_to_type_it_and_refer_to_pages_that_are_there() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/man");
    let is_there = |name: &str| pages.join(format!("{}.1", name.replace('\\', ""))).exists();
    for page in std::fs::read_dir(&pages).unwrap() {
        let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
        let missing: Vec<&str> =
            text.lines().filter_map(|line| line.strip_suffix("(1)")).filter(|name| !is_there(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(text.contains("LEASEHOLD_STORE\\fR environment variable"), "{text}");
    }
    for (command, usage) in [
        ("run", "<KEY|\\-\\-key <KEY>>... \\-\\- <COMMAND>..."),
        ("elect", "<NAME|\\-\\-name <NAME>> \\-\\- <COMMAND>..."),
    ] {
        let page = run(&mut leasehold(&["man", command])).stdout;
        assert!(page.contains(&format!("\\fBleasehold {command}\\fR [OPTIONS] {usage}\n")), "{page}");
    }
}

#[test]
fn completions_are_for_the_known_shells() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = run(&mut leasehold(&["completions", shell]));
        assert!(ran.code == Some(0) && ran.stdout.contains("leasehold"), "{shell}");
    }
    assert_eq!(run(&mut leasehold(&["completions", "cobol"])).code, Some(64));
}

#[test]
fn errors() {
    let store = Store::new();
    let _guard = store.client().request("k").owner("ann").comment("why").lock().unwrap();
    let cases: [&[&str]; 18] = [
        &[],
        &["fly"],
        &["run"],
        &["run", "k"],
        &["run", "k", "true"],
        &["run", "k", "--try", "--", "true"],
        &["run", "k", "--wait", "1s", "--", "true"],
        &["run", "k", "--lease", "soon", "--", "true"],
        &["run", "k", "--kill-after", "1h", "--", "true"],
        &["run", "k", "--on-loss", "panic", "--", "true"],
        &["run", "k", "--on-loss", "signal:TREM", "--", "true"],
        &["run", "a\nb", "--", "true"],
        &["run", "free", "--", "no-such-command"],
        &["--store", "sqlite::memory:", "status"],
        &["release", "k"],
        &["release", "k", "--lock-id", "unknown"],
        &["renew"],
        &["renew", "unknown"],
    ];
    let mut said = String::new();
    for args in cases {
        let ran = run_until_answered(&mut store.leasehold(args));
        let text = format!("$ leasehold {}\n{}{}", args.join(" "), ran.stdout, ran.stderr);
        said += &format!("{}[{}]\n\n", redacted(&text, &store), ran.code.unwrap());
    }
    assert_accepted("tests/cli/snapshots/errors.txt", &said);
}
