//! From the arguments to the exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::failure::{Outcome, code};
use crate::{about, exec, leases, locks, run, secret, show, store, store_care};

pub fn main() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    if given.get(1).is_some_and(|first| first == exec::NAME) {
        return end(false, exec::exec(given.into_iter().skip(2)));
    }
    let args = match Args::try_parse_from(&given) {
        Ok(args) => args,
        Err(error) => return usage(&error, &given),
    };
    let json = args.global.json;
    end(json, secret::hide(&given).and_then(|()| perform(&args)))
}

fn perform(args: &Args) -> Outcome {
    let global = &args.global;
    store::log(global.verbose);
    if global.json {
        show::speak_json();
    }
    match &args.command {
        Command::Run(args) => run::run(global, args),
        Command::Elect(args) => run::elect(global, args),
        Command::Status(args) => locks::status(global, args),
        Command::Release(args) => locks::release(global, args),
        Command::Renew(args) => locks::renew(global, args),
        Command::Unlock(args) => locks::unlock(global, args),
        Command::Purge(args) => locks::purge(global, args),
        Command::Init(args) => store_care::init(global, args),
        Command::Doctor => store_care::doctor(global),
        Command::Lease(args) => leases::lease(global, args),
        Command::Completions(args) => about::completions(args),
        Command::Man(args) => about::man(args),
    }
}

/// Help and version are answers; all else is wrong usage.
fn usage(error: &clap::Error, given: &[OsString]) -> ExitCode {
    let text = error.render();
    if !error.use_stderr() {
        return match anstream_print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            failed => end(false, failed.map(|()| 0).map_err(Into::into)),
        };
    }
    use std::io::Write;
    let _ = write!(anstream::stderr().lock(), "{}", secret::scrubbed(&text.ansi().to_string(), given));
    ExitCode::from(code::USAGE)
}

fn anstream_print(text: &clap::builder::StyledStr) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = anstream::stdout().lock();
    write!(out, "{}", text.ansi())?;
    out.flush()
}

fn end(json: bool, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            match (json, failure.json(), failure.text()) {
                (true, Some(told), _) => show::say_json(&told),
                (false, _, Some(text)) => show::say(&text),
                _ => {}
            }
            ExitCode::from(failure.code())
        }
    }
}
