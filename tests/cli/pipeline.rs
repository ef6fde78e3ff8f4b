//! leasehold in a pipeline on a terminal, where other parts of the pipeline need the terminal, too.

use std::fs;

use nix::unistd::Pid;

use crate::stops::its_pid;
use crate::support::{NOBODY, Store, state};
use crate::terminal::{Terminal, shell};
use crate::wait::wait_until;

/// As `less` does.
const READS_KEYS: &str = "sh -c 'read -r line; echo \"$line\"; while read key </dev/tty; do echo got-$key; done'";

#[test]
fn what_reads_the_output_reads_the_terminal_too() {
    let (store, mut terminal) = shell();
    terminal.types(&format!("leasehold run k -- sh -c 'echo i\"\"n; exec sleep 1000' | {READS_KEYS}\n"));
    terminal.sees("in\r\n");
    terminal.echoes(["one"]);
    assert!(store.client().try_lock("k").unwrap().is_none());
    // Ctrl-C reaches the command as well.
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("echo code=$PIPESTATUS\n");
    terminal.sees("code=130");
    assert!(store.client().try_lock("k").unwrap().is_some());
}

#[test]
fn what_writes_the_input_reads_the_terminal_too() {
    let (_store, mut terminal) = shell();
    terminal.types("cat | leasehold run k -- sh -c 'echo i\"\"n; while read line; do echo got-$line; done'\n");
    terminal.sees("in\r\n");
    // The first read began before the command started.
    terminal.echoes(["one", "two"]);
    terminal.types("\x04");
    terminal.sees("PROMPT> ");
}

#[test]
fn a_command_in_a_pipeline_that_asks_for_the_terminal_gets_it() {
    let (store, mut terminal) = shell();
    let script = "echo i\"\"n; while read line; do echo got-$line; done";
    terminal.types(&format!("leasehold run k -- sh -c '{script}' | cat\n"));
    terminal.sees("in\r\n");
    terminal.echoes(["one"]);
    terminal.stops();
    assert!(store.client().try_lock("k").unwrap().is_none());
    terminal.types("fg\n");
    terminal.echoes(["two"]);
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("echo code=$PIPESTATUS\n");
    terminal.sees("code=130");
    assert!(store.client().try_lock("k").unwrap().is_some());
}

/// As `sudo cmd | less` does.
#[test]
fn after_the_command_of_a_pipeline_another_part_gets_the_terminal_by_one_fg() {
    let (_store, mut terminal) = shell();
    let script = "echo i\"\"n; read line; echo line-$line; exec sleep 1000";
    let reads = "read a; read b; echo $b; while read key </dev/tty; do echo got-$key; done";
    terminal.types(&format!("leasehold run k -- sh -c '{script}' | sh -c '{reads}'\n"));
    terminal.types("one\n");
    terminal.sees("line-one\r\n");
    terminal.sees("Stopped");
    terminal.sees("PROMPT> ");
    terminal.brings_back("fg\n");
    terminal.echoes(["two", "three"]);
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
}

#[test]
fn ctrl_z_stops_the_command_of_a_pipeline() {
    let (store, mut terminal) = shell();
    let script = store.path("script");
    fs::write(&script, "trap '' TSTP; echo in-$$; exec sleep 1000").unwrap();
    terminal.types(&format!("leasehold run k -- sh {} | {READS_KEYS}\n", script.display()));
    terminal.sees("\r\nin-");
    let command = terminal.sees("\r\n").trim_end().to_owned();
    for _ in 0..2 {
        terminal.stops();
        wait_until("it is stopped", || state(&command) == "T");
        terminal.brings_back("fg\n");
        wait_until("it goes on", || state(&command) != "T");
        terminal.echoes(["one"]);
    }
    assert!(store.client().try_lock("k").unwrap().is_none(), "still held");
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    assert!(store.client().try_lock("k").unwrap().is_some());
}

/// The terminal does not stay with the command's group while its lock is released.
#[test]
fn ctrl_c_ends_a_release_that_waits_for_the_store() {
    let (store, mut terminal) = shell();
    terminal.types("leasehold run --lease 10m k -- sh -c 'echo i\"\"n; read line'; echo code=$?\n");
    terminal.sees("in\r\n");
    let stuck = store.stuck();
    terminal.types("\n");
    terminal.sees("could not be released yet");
    terminal.types("\x03");
    terminal.sees("the store does not answer");
    terminal.sees("code=");
    drop(stuck);
}

/// `timeout` itself ignores the signals for a read of the terminal from the background, and no other process reports
/// that its child stops.
#[test]
fn what_timeout_has_started_gets_the_terminal_too() {
    let (_store, mut terminal) = shell();
    let script = "echo i\"\"n; while read line; do echo got-$line; done";
    terminal.types(&format!("leasehold run k -- timeout 1h sh -c '{script}' | cat\n"));
    terminal.sees("in\r\n");
    terminal.echoes(["one", "two"]);
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
}

/// As with `sudo`, to which leasehold may not pass on a key's signal.
#[test]
fn what_has_more_rights_gets_the_keys_itself() {
    let store = Store::on_disk();
    let mut terminal = Terminal::shell(&store);
    if !store.has_more_rights() {
        return;
    }
    let nobody = NOBODY.join(" ");
    let command = "sh -c 'echo in-$$; exec sleep 1000'";
    fs::write(store.path("script"), format!("{nobody} ./leasehold run k -- ./more --reuid=0 {command} | cat")).unwrap();
    terminal.types(&format!("cd {}; . ./script\n", store.folder.path().display()));
    let command = its_pid(&mut terminal);
    let group = Pid::from_raw(command.parse().unwrap());
    for _ in 0..2 {
        terminal.types("\x1a");
        wait_until("it has the terminal", || terminal.owner() == group);
        assert_ne!(state(&command), "T");
        terminal.stops();
        assert_eq!(state(&command), "T");
        terminal.brings_back("fg\n");
        wait_until("it goes on", || state(&command) != "T");
    }
    assert!(store.client().try_lock("k").unwrap().is_none(), "still held");
    terminal.types("\x03");
    wait_until("it has the terminal", || terminal.owner() == group);
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    assert!(store.client().try_lock("k").unwrap().is_some());
}
