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
    // Says the usage of each command by its whole name.
    whole.build();
    let mut command = &whole;
    for name in &args.command {
        let found = command.find_subcommand(name);
        command = found.ok_or_else(|| Failure::usage(format!("{} has no command {name:?}", command.get_name())))?;
    }
    let mut text = Vec::new();
    // Its date would be that of the build.
    let page = clap_mangen::Man::new(command.clone()).date("").source("leasehold").manual("leasehold");
    page.render(&mut text)?;
    print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}
