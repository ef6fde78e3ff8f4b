//! The library as C programs get it, and C programs that are compiled against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// No program takes more than a few seconds, or some minutes under valgrind on a busy machine. They end themselves
/// earlier.
const PATIENCE: Duration = Duration::from_secs(660);
/// The same warnings for every program, all of them errors.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The file name that programs look for.
pub const SONAME: &str =
    concat!("libleasehold.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

pub struct Library {
    /// The folder of `libleasehold.a` and `libleasehold.so`.
    pub folder: PathBuf,
    /// What a program that links the static library must link, too.
    pub system: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Language {
    C11,
    Cpp17,
}

impl Language {
    fn standard(self) -> &'static str {
        match self {
            Language::C11 => "c11",
            Language::Cpp17 => "c++17",
        }
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in a folder of it")
}

/// A folder that is kept between runs, so that only the first run compiles everything.
pub fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The library's own Makefile, on the build that all tests share.
pub fn make(goals: &[&str], cargo: &str) -> Command {
    make_in("capi", goals, cargo)
}

fn make_in(build: &str, goals: &[&str], cargo: &str) -> Command {
    let mut make = Command::new("make");
    make.arg("-C").arg(root().join("src/capi")).args(goals).arg("PROFILE=debug");
    make.arg(format!("TARGET={}", target(build).display())).arg(format!("CARGO={cargo}"));
    // Debug information is a third of the library, which each program links.
    make.env("CARGO_PROFILE_DEV_DEBUG", "0");
    // Cargo sets these variables for its children, which would make them build again.
    make.env_remove("CARGO_TARGET_DIR").env_remove("MAKEFLAGS");
    make
}

/// The library for the tests, built once.
pub fn library() -> &'static Library {
    static BUILT: OnceLock<Library> = OnceLock::new();
    BUILT.get_or_init(|| build("capi", "FEATURES="))
}

/// The folder of a library with a store on a server, which contains a hidden runtime.
#[cfg(all(feature = "postgres", target_os = "linux"))]
pub fn with_postgres() -> &'static Path {
    static BUILT: OnceLock<Library> = OnceLock::new();
    &BUILT.get_or_init(|| build("capi-postgres", "FEATURES=postgres")).folder
}

fn build(name: &str, features: &str) -> Library {
    let built = make_in(name, &["all", features], &format!("{} --offline", env!("CARGO"))).output().expect("make runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = std::fs::read_to_string(target(name).with_extension("log")).expect("what cargo said");
    let system = said.split("native-static-libs: ").nth(1).and_then(|rest| rest.lines().next());
    let system = system.map(|line| line.split_whitespace().map(str::to_owned).collect());
    let folder = target(name).join("debug");
    let _ = std::os::unix::fs::symlink("libleasehold.so", folder.join(SONAME));
    Library { folder, system: system.expect("rustc names the libraries") }
}

/// The C or C++ compiler.
pub fn compiler(language: Language) -> Command {
    static HOST: OnceLock<String> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let rustc = Command::new("rustc").arg("-vV").output().expect("rustc runs");
        let said = String::from_utf8_lossy(&rustc.stdout);
        said.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
    });
    let mut build = cc::Build::new();
    build.target(host).host(host).opt_level(1).cargo_metadata(false).cpp(language == Language::Cpp17);
    build.get_compiler().to_command()
}

/// Compiles a program of tests/c with these extra flags. Plain C is linked with the static library, everything else
/// with the shared one, which takes a third of the time.
pub fn compile(program: &str, language: Language, flags: &[&str]) -> PathBuf {
    let output =
        target("c").join(format!("{program}-{}{}", language.standard(), flags.concat().replace(['=', ','], "")));
    // Each program is compiled once, and several at the same time: each links the whole library.
    static COMPILED: Mutex<BTreeMap<PathBuf, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner).entry(output.clone()).or_default().clone();
    compiled.get_or_init(|| compile_as(program, language, flags, &output));
    output
}

fn compile_as(program: &str, language: Language, flags: &[&str], output: &Path) {
    let standard = language.standard();
    std::fs::create_dir_all(target("c")).expect("a folder can be made");
    let mut command = compiler(language);
    let source = root().join("tests/c").join(program).with_extension("c");
    if language == Language::Cpp17 {
        command.args(["-x", "c++"]);
    }
    command.arg(&source).args(["-x", "none", "-g", &format!("-std={standard}"), "-D_POSIX_C_SOURCE=200809L"]);
    command.args(WARNINGS).args(flags).arg("-I").arg(root().join("src/capi")).arg("-pthread");
    // Only the static library exposes its SQLite.
    let uses_sqlite = std::fs::read_to_string(&source).expect("it is there").contains("sqlite3_");
    if language == Language::C11 && flags.is_empty() || uses_sqlite {
        command.arg(library().folder.join("libleasehold.a")).args(&library().system);
    } else {
        links_shared(&mut command);
    }
    command.arg("-o").arg(output);
    let answer = command.output().expect("the compiler runs");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success() && said.is_empty(), "{program} as {standard}: {said}");
}

/// Links the shared library so that the program finds it where it was built.
pub fn links_shared(compiler: &mut Command) {
    let folder = &library().folder;
    compiler.arg(folder.join("libleasehold.so")).arg(format!("-Wl,-rpath,{}", folder.display()));
}

/// Runs it to its end and returns what it printed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    ran(command).unwrap_or_else(|(_, said)| panic!("{said}"))
}

/// The same; an error has the exit code, and what was printed.
#[track_caller]
pub fn ran(command: &mut Command) -> Result<String, (Option<i32>, String)> {
    let shown = format!("{command:?}");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect(&shown);
    let read = |pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || std::io::read_to_string(pipe).unwrap_or_default())
    };
    let stdout = read(Box::new(child.stdout.take().expect("piped")));
    let stderr = read(Box::new(child.stderr.take().expect("piped")));
    let start = Instant::now();
    while !(stdout.is_finished() && stderr.is_finished()) {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{shown} did not end within {PATIENCE:?}");
        }
        // The pipes end when the program ends, but one cannot wait for two pipes with a time limit.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let (stdout, stderr) = (stdout.join().expect("text"), stderr.join().expect("text"));
    let status = child.wait().expect("it is our child");
    if status.success() { Ok(stdout) } else { Err((status.code(), format!("{shown}: {status}\n{stdout}{stderr}"))) }
}

/// A new store for each run.
pub fn store() -> (tempfile::TempDir, String) {
    let folder = crate::room::room().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    (folder, url)
}
