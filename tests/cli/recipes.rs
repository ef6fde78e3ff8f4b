//! What the guide gives people to copy into files of other programs: shells, cron, systemd, Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::readme::pasted;
use crate::servers::skip::skip_part;
use crate::support::Store;

/// Every block of this kind, with its page.
fn blocks(kind: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_dir(root.join("src/api/guide")).unwrap().map(|page| page.unwrap().path());
    let mut pages: Vec<PathBuf> = guide.chain([root.join("README.md"), root.join("src/cli/guide.md")]).collect();
    pages.sort();
    let begin = format!("\n```{kind}\n");
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let page = page.strip_prefix(root).unwrap().display().to_string();
        let texts = text.split(&begin).skip(1).map(|rest| rest.split("\n```").next().unwrap());
        found.extend(texts.map(|text| (page.clone(), format!("{text}\n"))));
    }
    found
}

/// The tool's output, if it is installed. These tools only check again what other code here checks, too, so a machine
/// need not have them.
fn checked_by(tool: &mut Command, input: &str) -> Option<Output> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), input).unwrap();
    tool.stdin(fs::File::open(file.path()).unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match tool.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip_part(&format!("not looked at again by {}, which is not here", tool.get_program().display()));
            None
        }
        Err(error) => panic!("{tool:?}: {error}"),
    }
}

#[test]
fn the_commands_of_the_recipes_are_those_of_this_version() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/guide/recipes.md");
    // One command per line, also where a backslash or a list continues it.
    let recipes = std::fs::read_to_string(path).unwrap().replace("\\\n", " ").replace(",\n   ", ",");
    let mut commands: Vec<String> = Vec::new();
    for line in recipes.lines().map(str::trim_start) {
        if let Some(list) = line.strip_prefix("command: ") {
            let words: Vec<String> = serde_json::from_str(list).unwrap();
            commands.push(words.join(" ").replace("$(POD_NAME)", "pod-1"));
        } else if let Some(at) = line.find("leasehold run ").or(line.find("leasehold elect ")) {
            commands.push(line[at..].to_owned());
        }
    }
    assert_eq!(commands.len(), 8, "{commands:?}");
    for command in commands {
        // A new store, because what one command did may keep the next one from running.
        let store = Store::new();
        let (options, _) = command.split_once(" -- ").unwrap_or_else(|| panic!("{command}"));
        pasted(&store, &format!("{options} -- true"));
    }
}

#[test]
fn shells_understand_what_is_to_be_pasted() {
    let blocks = blocks("sh");
    assert!(blocks.len() > 10, "{} blocks", blocks.len());
    for (page, text) in blocks {
        let shell = checked_by(Command::new("bash").arg("-n"), &text).expect("bash");
        assert!(shell.status.success(), "{page}: {text}{}", String::from_utf8_lossy(&shell.stderr));
    }
}

#[test]
fn lines_for_cron_have_five_times() {
    let lines: Vec<(String, String)> = blocks("cron")
        .iter()
        .flat_map(|(page, text)| text.lines().map(|line| (page.clone(), line.to_owned())))
        .collect();
    assert!(lines.len() > 2, "{lines:?}");
    // cron's own PATH has only /usr/bin and /bin.
    assert!(lines[0].1.starts_with("PATH=/usr/local/bin:"), "{lines:?}");
    for (page, line) in lines {
        if line.starts_with("LEASEHOLD_STORE=") || line.starts_with("PATH=") {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_time = |word: &&str| word.chars().all(|c| c.is_ascii_digit() || "*,-/".contains(c));
        let times = words.iter().take_while(|word| is_time(word)).count();
        // cron takes `%` as the end of a line.
        assert!(times == 5 && !line.contains('%'), "{page}: {line}");
    }
}

/// Each unit begins with a comment that has its path.
#[test]
fn units_are_what_systemd_expects() {
    let name_of = |text: &str| text.lines().next()?.strip_prefix("# /etc/systemd/system/").map(str::to_owned);
    let units: Vec<(String, String)> =
        blocks("ini").into_iter().map(|(page, text)| (name_of(&text).expect(&page), text)).collect();
    assert_eq!(units.len(), 4, "{units:?}");
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in &units {
        let always = text.contains("\nRestart=always\n");
        assert!(!always || text.contains("\nStartLimitIntervalSec=0\n"), "{name} is given up after five failures");
        // A backslash continues a line.
        let text = text.replace("\\\n", "");
        let mut section = "";
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                Some(begins) => section = begins,
                None => assert!(!section.is_empty() && line.contains('='), "{name}: {line}"),
            }
        }
        // systemd checks that the programs exist.
        let text = text.replace("/usr/local/bin/leasehold", env!("CARGO_BIN_EXE_leasehold"));
        fs::write(folder.path().join(name), text.replace("/usr/local/bin/", "/bin/true ")).unwrap();
    }
    let files = units.iter().map(|(name, _)| folder.path().join(name));
    let Some(said) = checked_by(Command::new("systemd-analyze").arg("verify").args(files), "") else { return };
    let said = String::from_utf8_lossy(&said.stderr);
    // Messages about other units of this machine do not count.
    let wrong: Vec<&str> = said.lines().filter(|line| units.iter().any(|(name, _)| line.contains(name))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Checked by PyYAML, and by kubernetes-validate (a PyPI package that has the schemas), where Python has them.
#[test]
fn manifests_are_what_kubernetes_expects() {
    const LOOK: &str = "import sys\ntry:\n import yaml\nexcept ImportError:\n print('PyYAML')\n sys.exit(0)\n\
        it = yaml.safe_load(sys.stdin)\n\
        try:\n import kubernetes_validate\nexcept ImportError:\n print('kubernetes-validate')\n sys.exit(0)\n\
        kubernetes_validate.validate(it, kubernetes_validate.latest_version(), strict=True)\n";
    let manifests = blocks("yaml");
    assert_eq!(manifests.len(), 3);
    for (page, text) in manifests {
        assert!(text.starts_with("apiVersion: ") && !text.contains('\t'), "{page}: {text}");
        // Otherwise each pod has a file of its own, and always gets the lock.
        assert!(text.contains("- name: LEASEHOLD_STORE\n"), "{page}: {text}");
        let has_period = text.contains("\"--every\"");
        assert!(
            !has_period || text.contains("startingDeadlineSeconds: "),
            "{page}: a late start moves the period: {text}"
        );
        let Some(python) = checked_by(Command::new("python3").args(["-c", LOOK]), &text) else { continue };
        assert!(python.status.success(), "{page}: {text}{}", String::from_utf8_lossy(&python.stderr));
        if !python.stdout.is_empty() {
            let lacks = String::from_utf8_lossy(&python.stdout);
            skip_part(&format!("a manifest is not checked by Kubernetes' schemas: Python has no {}", lacks.trim_end()));
        }
    }
}
