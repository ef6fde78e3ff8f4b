//! From the arguments to the exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::failure::{Failure, Outcome, code};
use crate::signals::{end_as_interrupted, end_process_1_by_signals, outlive_file_size_limit};
use crate::{about, exec, keeper, leases, locks, on_behalf, run, secret, show, steps, store_care, warnings, words};

pub fn main() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    if given.get(1).is_some_and(|first| first == exec::NAME) {
        let (json, outcome) = exec::exec(given.into_iter().skip(2));
        return end(json, outcome);
    }
    if given.get(1).is_some_and(|first| first == keeper::NAME) {
        return end(false, keeper::keep());
    }
    outlive_file_size_limit();
    let args = match Args::try_parse_from(&given) {
        Ok(args) => args,
        Err(error) => return usage(error, &given),
    };
    let json = args.global.json;
    end(json, secret::hide(&given).and_then(|()| perform(&args)))
}

fn perform(args: &Args) -> Outcome {
    let global = &args.global;
    warnings::show(global, matches!(&args.command, Command::Init(init) if !init.print));
    if global.json {
        show::speak_json();
    }
    if !matches!(args.command, Command::Run(_) | Command::Elect(_) | Command::Acquire(_) | Command::Hold(_)) {
        end_process_1_by_signals();
    }
    match &args.command {
        Command::Run(args) => run::run(global, args),
        Command::Elect(args) => run::elect(global, args),
        Command::Acquire(args) => steps::acquire(global, args),
        Command::Hold(args) => on_behalf::hold(global, args),
        Command::Status(args) => locks::status(global, args),
        Command::Release(args) => locks::release(global, args),
        Command::Renew(args) => locks::renew(global, args),
        Command::Unlock(args) => locks::release_group(global, &args.lock_id),
        Command::Purge(args) => locks::purge(global, args),
        Command::Init(args) => store_care::init(global, args),
        Command::Doctor => store_care::doctor(global),
        Command::Lease(args) => leases::lease(global, args),
        Command::Completions(args) => about::completions(args),
        Command::Man(args) => about::man(args),
    }
}

/// Help and version are answers; all else is wrong usage.
fn usage(mut error: clap::Error, given: &[OsString]) -> ExitCode {
    correct_tip(&mut error, given);
    let text = error.render();
    if !error.use_stderr() {
        return match anstream_print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            failed => end(false, failed.map(|()| 0).map_err(Into::into)),
        };
    }
    use std::io::Write;
    if given.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json") {
        let text = secret::scrubbed(text.to_string().trim_end(), given);
        return end(true, Err(Failure::usage(text.strip_prefix("error: ").unwrap_or(&text))));
    }
    // A terminal would obey control characters in an argument, too.
    let quotes = given.iter().any(|arg| words::is_obeyed(&arg.to_string_lossy()));
    let text = if quotes { words::plain_lines(&text.to_string()) } else { text.ansi().to_string() };
    let text = secret::scrubbed(&text, given);
    warnings::last_words(move || drop(write!(anstream::stderr().lock(), "{text}")));
    ExitCode::from(code::USAGE)
}

/// Corrects clap's tips for `run` and `elect`: what follows `--` there is the command, so a name that begins with a
/// hyphen must be an option's value.
fn correct_tip(error: &mut clap::Error, given: &[OsString]) {
    use clap::error::{ContextKind, ContextValue};
    let is = |name: &str| given.iter().take_while(|arg| *arg != "--").any(|arg| arg == name);
    let option = match (is("run"), is("elect")) {
        (true, false) => "--key",
        (false, true) => "--name",
        _ => return,
    };
    let has_hyphens = given.iter().any(|arg| arg == "--");
    use clap::error::ErrorKind::{MissingRequiredArgument, UnknownArgument};
    // `run` takes several keys, so it is not known which argument is meant as the name of the command.
    let is_long = |wrong: &ContextValue| matches!(wrong, ContextValue::String(wrong) if wrong.starts_with("--"));
    let is_mistyped = error.get(ContextKind::InvalidArg).is_some_and(is_long);
    if is("run") && !has_hyphens && !is_mistyped && matches!(error.kind(), MissingRequiredArgument | UnknownArgument) {
        let tip = "put -- before the command: leasehold run KEY -- COMMAND";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.to_owned().into()]));
        return;
    }
    let wrong = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) => wrong.clone(),
        _ => return,
    };
    if error.kind() == UnknownArgument && !has_hyphens && !wrong.starts_with('-') {
        // Only the command's name: its arguments may be secret.
        let tip = format!("put -- before the command: -- {wrong}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return;
    }
    let is_tip = |tips: &ContextValue| tips.to_string().contains("as a value, use '");
    if error.get(ContextKind::Suggested).is_some_and(is_tip) {
        let tip = format!("to pass '{wrong}' as a value, use '{option}={wrong}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

fn anstream_print(text: &clap::builder::StyledStr) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = anstream::stdout().lock();
    write!(out, "{}", text.ansi())?;
    out.flush()
}

fn end(json: bool, outcome: Outcome) -> ExitCode {
    warnings::flush();
    let code = match outcome {
        Ok(code) => code,
        Err(failure) => {
            match (json, failure.json(), failure.text()) {
                (true, Some(told), _) => warnings::last_words(move || show::say_json(&told)),
                (false, _, Some(text)) => warnings::last_words(move || show::say(&text)),
                _ => {}
            }
            failure.code()
        }
    };
    end_as_interrupted(code);
    ExitCode::from(code)
}
