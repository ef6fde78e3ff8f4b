//! Puts a store of locks under stress, by many processes and under faults, and checks all that they saw. See `--help`.

#[cfg(target_os = "linux")]
mod checker;
#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod holding;
#[cfg(target_os = "linux")]
mod left;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod picture;
#[cfg(target_os = "linux")]
mod points;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod resource;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod wall;
#[cfg(target_os = "linux")]
mod wire;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("torture: signals, forks and the boot-time clock are used as Linux has them");
    std::process::exit(4);
}

#[cfg(target_os = "linux")]
fn main() {
    std::process::exit(linux::main());
}

#[cfg(target_os = "linux")]
mod linux {
    use std::path::Path;

    use crate::checker::{self, Run};
    use crate::options::{Command, HELP, Options};
    use crate::{report, run, worker};

    pub const CLEAN: i32 = 0;
    pub const VIOLATED: i32 = 1;
    pub const USAGE: i32 = 2;
    pub const VOID: i32 = 3;
    pub const BROKEN: i32 = 4;

    pub fn main() -> i32 {
        match Options::parse(std::env::args().skip(1)) {
            Err(why) => {
                eprintln!("torture: {why}");
                USAGE
            }
            Ok(Command::Help) => {
                print!("{HELP}");
                CLEAN
            }
            Ok(Command::Work(options, dir, name)) => worker::run(options, &dir, &name),
            Ok(Command::Check(dir)) => judge(&dir, None, &[]),
            Ok(Command::Synthetic(operations)) => synthetic(operations),
            Ok(Command::Run(options)) => {
                println!("torture: --seed {}", options.seed);
                match run::run(&options) {
                    Ok(ran) => {
                        let mut broken = ran.broken;
                        broken.extend(ran.missing.iter().map(|what| format!("MISSING: {what}")));
                        judge(&ran.dir, Some(&options), &broken)
                    }
                    Err(why) => {
                        eprintln!("torture: {why}");
                        BROKEN
                    }
                }
            }
        }
    }

    fn judge(dir: &Path, options: Option<&Options>, broken: &[String]) -> i32 {
        match report::report(dir, options, broken) {
            Ok(code) => code,
            Err(why) => {
                eprintln!("torture: {why}");
                BROKEN
            }
        }
    }

    fn synthetic(operations: usize) -> i32 {
        let text = checker::clean(operations, 8);
        let started = std::time::Instant::now();
        // Parsed from text, as the histories in files are.
        let files = text.into_iter().map(|(name, lines)| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            (name, text)
        });
        let parsed = files.map(|(name, text)| Ok((name, checker::history::lines(&text)?)));
        let checked = parsed.collect::<Result<_, String>>().and_then(Run::new);
        let verdict = checked.map(|run| checker::check(&run));
        match verdict {
            Ok(verdict) => {
                let found = verdict.violations.len();
                println!("{operations} operations: {found} violations, {:.1} s", started.elapsed().as_secs_f64());
                if found == 0 { CLEAN } else { VIOLATED }
            }
            Err(why) => {
                eprintln!("torture: {why}");
                BROKEN
            }
        }
    }
}
