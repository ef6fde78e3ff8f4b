//! What the command says about itself, for shells and for `man`.

use clap::CommandFactory;

use crate::args::{Args, Completions, Man};
use crate::failure::{Failure, Outcome};
use crate::show::print;

pub fn completions(args: &Completions) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "leasehold", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

pub fn man(args: &Man) -> Outcome {
    let mut whole = Args::command();
    // After this the usage of each command has its whole name.
    whole.build();
    let mut command = &whole;
    for name in &args.command {
        let found = command.find_subcommand(name);
        command = found.ok_or_else(|| Failure::usage(format!("{} has no command {name:?}", command.get_name())))?;
    }
    let mut text = Vec::new();
    // Without a date, because it would be that of the build.
    let page = clap_mangen::Man::new(command.clone()).date("").source("leasehold").manual("leasehold");
    page.render(&mut text)?;
    print(&set(&String::from_utf8_lossy(&text)))?;
    Ok(0)
}

/// Keeps the line breaks of indented lines, and puts the exit codes into the section that `man` has for them.
fn set(page: &str) -> String {
    let mut out = String::new();
    let mut lines = page.lines().peekable();
    let mut is_table = false;
    while let Some(line) = lines.next() {
        let follows = line.starts_with("  ");
        if follows != is_table {
            out += if follows { ".nf\n" } else { ".fi\n" };
            is_table = follows;
        }
        match line {
            ".SH EXTRA" if lines.next_if_eq(&"Exit codes:").is_some() => out += ".SH \"EXIT STATUS\"\n",
            _ => out += &format!("{line}\n"),
        }
    }
    if is_table {
        out += ".fi\n";
    }
    out
}
