//! On a terminal: a command that stops, or is stopped, and what continues it.

use std::fs;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use crate::support::{Store, is_gone, state};
use crate::terminal::{Terminal, shell};
use crate::wait::wait_until;

/// A command that works until it is ended.
fn works(store: &Store) -> String {
    let script = store.path("script");
    fs::write(&script, "echo in-$$; exec sleep 1000").unwrap();
    format!("sh {}", script.display())
}

/// The process id, which that script prints.
pub fn its_pid(terminal: &mut Terminal) -> String {
    terminal.sees("in-");
    terminal.sees("\r\n").trim_end().to_owned()
}

/// As `pkill -CONT` or `cpulimit` does.
#[test]
fn what_a_neighbour_continues_does_not_work_beside_the_next_holder() {
    crate::lateness::measure();
    let (store, mut terminal) = shell();
    terminal.types(&format!("leasehold run --lease 12s --kill-after 0s k -- {}\n", works(&store)));
    let command = its_pid(&mut terminal);
    terminal.stops();
    let stopped = Instant::now();
    kill(Pid::from_raw(command.parse().unwrap()), Signal::SIGCONT).unwrap();
    let rival = store.client().lock("k").unwrap();
    // The command must not work while the next holder does.
    is_gone(&command, stopped);
    assert!(rival.is_held());
    terminal.types("fg; echo code=$?\n");
    terminal.sees("was lost");
    terminal.sees("code=76");
}

/// As `top` and `nano` do at Ctrl-Z.
#[test]
fn who_stops_itself_brings_the_shell_back() {
    let (store, mut terminal) = shell();
    let script = "echo i\"\"n; kill -STOP $$; echo went-\"\"on; read line; echo got-$line";
    terminal.types(&format!("leasehold run k -- sh -c '{script}'\n"));
    terminal.sees("in\r\n");
    terminal.sees("Stopped");
    terminal.sees("PROMPT> ");
    assert!(store.client().try_lock("k").unwrap().is_none(), "still held");
    terminal.types("fg\n");
    terminal.sees("went-on\r\n");
    terminal.echoes(["one"]);
    terminal.sees("PROMPT> ");
}

/// The shell does not report that it brought it to the foreground.
#[test]
fn ctrl_z_stops_what_was_brought_to_the_foreground() {
    let (store, mut terminal) = shell();
    terminal.types(&format!("leasehold run k -- {} &\n", works(&store)));
    let command = its_pid(&mut terminal);
    for _ in 0..2 {
        terminal.brings_back("fg\n");
        terminal.sees("script");
        wait_until("it works", || state(&command) != "T");
        terminal.stops();
        wait_until("it is stopped", || state(&command) == "T");
    }
    assert!(store.client().try_lock("k").unwrap().is_none(), "still held");
}

#[test]
fn where_nobody_could_continue_it_ctrl_z_stops_no_pipeline() {
    let store = Store::new();
    let script = "while read line; do echo got-$line; done </dev/tty";
    let pipeline = format!("leasehold run k -- sh -c '{script}' | cat");
    let mut terminal = Terminal::start(&store, &["sh", "-c", &pipeline]);
    for line in ["one", "two"] {
        terminal.echoes([line]);
        terminal.types("\x1a");
    }
    terminal.types("\x04");
    assert!(terminal.shell.wait().unwrap().success());
}

/// The command also stops behind a leasehold that passes the key on. What started leasehold must not see a stop for a
/// read of the terminal: after that sudo would let leasehold go on.
#[test]
fn ctrl_z_reaches_what_another_leasehold_holds_for() {
    let (store, mut terminal) = shell();
    terminal.types(&format!("leasehold run a -- leasehold run b -- {} | cat\n", works(&store)));
    let command = its_pid(&mut terminal);
    for _ in 0..2 {
        terminal.stops();
        wait_until("it is stopped", || state(&command) == "T");
        terminal.brings_back("fg\n");
        wait_until("it goes on", || state(&command) != "T");
    }
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("leasehold run k -- sh -c 'kill -TSTP $$'\n");
    assert!(!terminal.sees("PROMPT> ").contains("tty input"));
}

#[test]
fn what_the_command_has_left_behind_stops_too() {
    let (_store, mut terminal) = shell();
    terminal.types("leasehold run k -- sh -c 'sleep 1000 & echo i\"\"n-$!'\n");
    let left = Pid::from_raw(its_pid(&mut terminal).parse().unwrap());
    let command = getpgid(Some(left)).unwrap().to_string();
    wait_until("the command has ended", || state(&command).is_empty());
    terminal.stops();
    terminal.brings_back("fg\n");
    // It ignores Ctrl-C, like a background process of a script.
    kill(left, Signal::SIGKILL).unwrap();
    terminal.sees("PROMPT> ");
}

/// It stops at its own Ctrl-Z, and not again once it goes on.
#[test]
fn what_is_left_behind_by_the_command_of_a_pipeline_goes_on_by_one_fg() {
    let (_store, mut terminal) = shell();
    terminal.types("leasehold run k -- sh -c 'sleep 1000 & echo i\"\"n-$!' </dev/null\n");
    let left = its_pid(&mut terminal);
    let command = getpgid(Some(Pid::from_raw(left.parse().unwrap()))).unwrap().to_string();
    wait_until("the command has ended", || state(&command).is_empty());
    for _ in 0..3 {
        terminal.stops();
        terminal.brings_back("fg\n");
        wait_until("it goes on", || state(&left) != "T");
    }
    kill(Pid::from_raw(left.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert!(!terminal.sees("PROMPT> ").contains("Stopped"));
}

/// As `less` and `vim` do, which restore the terminal first, while the shell that started them stops at once.
#[test]
fn what_needs_time_to_stop_does_not_stop_again_once_it_is_continued() {
    // If it is late by a second, as on a busy machine, it is stopped as if it did not obey, and then it does obey.
    assert!((0..5).any(|_| goes_on_by_one_fg()), "it stops again each time");
}

fn goes_on_by_one_fg() -> bool {
    let (store, mut terminal) = shell();
    let script = store.path("slow");
    // Ctrl-Z may also come before the `wait`.
    let stops = "stops() { sleep 0.1; trap - TSTP; kill -TSTP $$; trap stops TSTP; echo again; kill -9 $!; }";
    fs::write(&script, format!("{stops}\ntrap stops TSTP; sleep 1000 & echo in; wait")).unwrap();
    terminal.types(&format!("leasehold run k -- sh -c 'bash {}; true'\n", script.display()));
    terminal.sees("in\r\n");
    terminal.stops();
    terminal.types("fg\n");
    let said = terminal.sees("PROMPT> ");
    let again = said.contains("Stopped");
    assert!(again || said.contains("again\r\n"), "{said:?}");
    !again
}

/// The system signals the whole pipeline, but not the command.
#[test]
fn who_asks_for_the_terminal_in_the_background_stops_the_command_of_the_pipeline() {
    // leasehold learns in another way of a program that sets up the terminal, as `less` does.
    for asks in ["", "stty sane </dev/tty; "] {
        let (store, mut terminal) = shell();
        let reads = format!("read line; echo $line; {asks}read key </dev/tty; echo got-$key");
        terminal.types(&format!("leasehold run k -- {} | sh -c '{reads}' &\n", works(&store)));
        let command = its_pid(&mut terminal);
        wait_until("the shell sees it stop", || {
            terminal.types("\n");
            terminal.sees("PROMPT> ").contains("Stopped")
        });
        wait_until("it is stopped", || state(&command) == "T");
        terminal.brings_back("fg\n");
        wait_until("it goes on", || state(&command) != "T");
        terminal.echoes(["one"]);
    }
}

/// It shares the terminal, and the process group, with the script.
#[test]
fn in_the_background_of_a_script_it_leaves_the_terminal_alone() {
    let (store, mut terminal) = shell();
    let script = store.path("background");
    let run = format!("leasehold run k -- {} &", works(&store));
    fs::write(&script, format!("{run}\nread line; echo got-$line; kill $!")).unwrap();
    terminal.types(&format!("sh {}\n", script.display()));
    its_pid(&mut terminal);
    terminal.echoes(["one"]);
    terminal.sees("PROMPT> ");
}

/// As `fg` and `bg` do right after Ctrl-Z.
#[test]
fn who_is_continued_before_it_stood_still_goes_on() {
    let (store, mut terminal) = shell();
    let script = store.path("script");
    fs::write(&script, "trap 'echo told' TSTP; trap 'echo went-on' CONT; echo in-$PPID; while :; do :; done").unwrap();
    terminal.types(&format!("leasehold run k -- sh {} &\n", script.display()));
    let leasehold = Pid::from_raw(its_pid(&mut terminal).parse().unwrap());
    kill(leasehold, Signal::SIGTSTP).unwrap();
    terminal.sees("told");
    // leasehold waits for the command to obey.
    kill(leasehold, Signal::SIGCONT).unwrap();
    terminal.sees("went-on");
    // Otherwise the command would work on for a while.
    kill(leasehold, Signal::SIGKILL).unwrap();
}

/// Nobody reports to it that it may use the terminal now.
#[test]
fn what_was_brought_to_the_foreground_reads_the_terminal() {
    let (_store, mut terminal) = shell();
    let script = "echo i\"\"n; while [ ! -e go ]; do sleep 0.01; done; read line; echo got-$line";
    terminal.types("cd $(mktemp -d)\n");
    terminal.types(&format!("leasehold run k -- sh -c '{script}' &\n"));
    terminal.sees("in\r\n");
    terminal.types("(while [ \"$(ps -o tpgid= $$)\" -eq $$ ]; do sleep 0.01; done; touch go) & fg %1\n");
    terminal.types("one\n");
    assert!(!terminal.sees("got-one\r\n").contains("Stopped"));
}

/// After a Ctrl-C bash goes on if the program that it waited for did not die of it.
#[test]
fn ctrl_c_ends_a_script_of_bash() {
    for (waits, returns) in [(false, false), (true, false), (false, true)] {
        let (store, mut terminal) = shell();
        let _guard = waits.then(|| store.client().lock("k").unwrap());
        let does = if returns { "exec sleep 1000" } else { "read line" };
        terminal.types(&format!("bash -c 'leasehold run k -- sh -c \"echo i\"\"n; {does}\"; echo went-\"\"on'\n"));
        terminal.sees(if waits { "waiting for \"k\"" } else { "in\r\n" });
        if returns {
            // The shell brings the running command back and reports it to nobody.
            terminal.stops();
            terminal.types("bg\n");
            terminal.sees("PROMPT> ");
            terminal.brings_back("fg\n");
            terminal.sees("leasehold");
        }
        terminal.types("\x03");
        terminal.sees("PROMPT> ");
        terminal.types("echo code=$?\n");
        let said = terminal.sees("code=130");
        assert!(!said.contains("went-on"), "{said:?}");
    }
}

#[test]
fn ctrl_c_ends_a_script_that_waits_for_hold() {
    let (_store, mut terminal) = shell();
    terminal.types("bash -c 'leasehold hold k --pid $$; echo went-\"\"on'\n");
    terminal.sees("fencing_token");
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("echo code=$?\n");
    let said = terminal.sees("code=130");
    assert!(!said.contains("went-on"), "{said:?}");
}
