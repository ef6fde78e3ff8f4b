//! On a terminal: Ctrl-C, Ctrl-Z and `fg` under a shell with job control, and the waiting line.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockGuard;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{PATIENCE, Store, is_gone, pid, run};
use crate::wait::wait_until;

/// A shell on a terminal of its own.
pub struct Terminal {
    pub shell: Child,
    keys: File,
    screen: Receiver<String>,
    /// The text that has arrived and was not waited for yet.
    text: String,
}

impl Terminal {
    /// `bash -i`, or another program, as the leader of the terminal's session.
    pub fn start(store: &Store, program: &[&str]) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a terminal");
        let end = || File::from(pty.slave.try_clone().expect("a descriptor"));
        // The only way to a controlling terminal without unsafe code.
        let mut shell = Command::new("setsid");
        shell.args(["--ctty"]).args(program).stdin(end()).stdout(end()).stderr(end());
        let path = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().expect("a folder");
        let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap_or_default());
        shell.env("PATH", path).env("LEASEHOLD_STORE", &store.url).env("PS1", "PROMPT> ").env("TERM", "dumb");
        let shell = shell.spawn().expect("setsid, of util-linux");
        let keys = File::from(pty.master);
        let mut reader = keys.try_clone().expect("a descriptor");
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if sender.send(String::from_utf8_lossy(&bytes[..n]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Terminal { shell, keys, screen, text: String::new() }
    }

    pub fn shell(store: &Store) -> Terminal {
        let mut terminal = Terminal::start(store, &["bash", "--norc", "--noprofile", "-i"]);
        terminal.sees("PROMPT> ");
        terminal
    }

    /// The process group in the foreground.
    pub fn owner(&self) -> Pid {
        nix::unistd::tcgetpgrp(&self.keys).expect("the owner of the terminal")
    }

    /// Types `line`, and waits until the terminal belongs to what it brings to the foreground: until then keys like Ctrl-C
    /// are the shell's.
    pub fn brings_back(&mut self, line: &str) {
        let shell = self.owner();
        self.types(line);
        wait_until("it is in the foreground", || self.owner() != shell);
    }

    /// Ctrl-Z, which brings the shell back.
    pub fn stops(&mut self) {
        self.types("\x1a");
        self.sees("Stopped");
        self.sees("PROMPT> ");
    }

    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// What runs prints `got-` and each line that it reads.
    #[track_caller]
    pub fn echoes<const N: usize>(&mut self, lines: [&str; N]) {
        for line in lines {
            self.types(&format!("{line}\n"));
            self.sees(&format!("got-{line}\r\n"));
        }
    }

    /// Waits until the seconds after this text are counted.
    #[track_caller]
    fn counts(&mut self, behind: &str) {
        self.sees(behind);
        while self.sees(" s") == "0 s" {
            self.sees(behind);
        }
    }

    /// Waits until this text is on the screen, after what was waited for before.
    #[track_caller]
    pub fn sees(&mut self, wanted: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.text.find(wanted) {
                let rest = self.text.split_off(at + wanted.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(more) => self.text += &more,
                Err(why) => panic!("{wanted:?} does not come ({why}): {:?}", self.text),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

pub fn shell() -> (Store, Terminal) {
    let store = Store::new();
    let terminal = Terminal::shell(&store);
    (store, terminal)
}

/// The quotes keep what is typed apart from what is said.
const READS: &str = "leasehold run k -- sh -c 'echo in; while read line; do echo got-$line; done'\n";

#[test]
fn ctrl_c_ends_the_command_and_the_lock_is_free() {
    let (store, mut terminal) = shell();
    terminal.types("leasehold run k -- sh -c 'echo i\"\"n; read line'\n");
    terminal.sees("in\r\n");
    assert!(store.client().try_lock("k").unwrap().is_none());
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("echo code=$?\n");
    terminal.sees("code=130");
    assert!(store.client().try_lock("k").unwrap().is_some());
    // The shell has its terminal back.
    terminal.types("echo a\"\"b\n");
    terminal.sees("ab\r\n");
}

#[test]
fn ctrl_z_stops_it_and_fg_and_bg_continue_it() {
    let (store, mut terminal) = shell();
    terminal.types(READS);
    terminal.sees("in\r\n");
    terminal.echoes(["one"]);
    terminal.stops();
    terminal.types("echo shell-$?-\"\"again\n");
    terminal.sees("-again\r\n");
    assert!(store.client().try_lock("k").unwrap().is_none(), "still held");
    terminal.types("fg\n");
    terminal.echoes(["two"]);
    // In the background it may not read, so it is stopped.
    terminal.stops();
    terminal.types("bg\n");
    terminal.sees("PROMPT> ");
    terminal.types("wait %1; jobs\n");
    terminal.sees("Stopped");
    terminal.types("fg\n");
    terminal.echoes(["three"]);
    terminal.types("\x04");
    terminal.sees("PROMPT> ");
    assert!(store.client().try_lock("k").unwrap().is_some());
}

#[test]
fn what_stopped_for_longer_than_the_lease_does_not_go_on() {
    // Whether the loss is noticed before the command could go on is a matter of chance, so there are several.
    thread::scope(|scope| (0..6).for_each(|_| drop(scope.spawn(stopped_for_longer_than_the_lease))));
}

fn stopped_for_longer_than_the_lease() {
    let (store, mut terminal) = shell();
    let ticks = store.path("ticks");
    // It works without a pause, so it would work as soon as it is continued.
    let script = format!("while :; do echo x >>{}; done", ticks.display());
    terminal.types(&format!("leasehold run --lease 12s --kill-after 0s k -- sh -c '{script}'\n"));
    wait_until("it works", || ticks.exists());
    terminal.stops();
    // Waits for the end of the lease.
    let rival = store.client().lock("k").unwrap();
    let before = std::fs::metadata(&ticks).unwrap().len();
    terminal.types("fg; echo code=$?\n");
    let said = terminal.sees("code=76");
    assert!(said.contains("was lost"), "{said:?}");
    assert_eq!(std::fs::metadata(&ticks).unwrap().len(), before, "it went on");
    assert!(rival.is_held());
}

#[test]
fn ctrl_c_and_ctrl_z_reach_the_script_around_it() {
    let (store, mut terminal) = shell();
    terminal.types("sh -c 'leasehold run k -- sh -c \"echo i\"\"n; read line\"; echo not-\"\"reached'\n");
    terminal.sees("in\r\n");
    terminal.stops();
    terminal.brings_back("fg\n");
    // The shell prints what it continues; Ctrl-C ends it even if it is still stopped.
    terminal.sees("read line");
    terminal.sees("\r\n");
    terminal.types("\x03");
    terminal.sees("^C");
    terminal.sees("PROMPT> ");
    terminal.types("echo code=$?\n");
    let said = terminal.sees("code=130");
    assert!(!said.contains("not-reached"), "{said:?}");
    // The shell and its prompt are back at once, but leasehold may still be releasing the lock.
    assert!(store.client().try_lock_for("k", Duration::from_secs(10)).unwrap().is_some());
}

/// Also after a loss; but a signal that leasehold itself has sent is no key.
#[test]
fn the_script_around_it_hears_of_ctrl_c_and_not_of_the_signal_of_a_loss() {
    let (store, mut terminal) = shell();
    let run = r#"sh -c 'trap "echo trap\"\"ped" INT; leasehold run k --on-loss"#;
    for on_loss in ["signal:INT", r#""cmd:kill -INT \$LEASEHOLD_PID""#] {
        terminal.types(&format!("{run} {on_loss} --max-hold 300ms -- sleep 1000; echo code=\"\"$?'\n"));
        assert!(!terminal.sees("code=76").contains("trapped"));
    }
    // A maximum hold may be over before the command begins.
    let command = r#"ignore --lease 6s -- sh -c "echo i\"\"n; exec sleep 1000"'"#;
    terminal.types(&format!("{run} {command}\n"));
    terminal.sees("in\r\n");
    store.client().force_release("k").unwrap();
    terminal.sees("was lost");
    terminal.types("\x03");
    terminal.sees("trapped");
}

#[test]
fn the_script_around_it_reads_the_terminal_again() {
    let (_store, mut terminal) = shell();
    terminal.types("sh -c 'leasehold run k -- true; echo ne\"\"xt; read line; echo got-$line'\n");
    terminal.sees("next\r\n");
    terminal.echoes(["one"]);
}

#[test]
fn where_nobody_could_continue_it_ctrl_z_stops_nothing() {
    let store = Store::new();
    // No shell with job control around it.
    let script = "while read line; do echo got-$line; done";
    let mut terminal = Terminal::start(&store, &["leasehold", "run", "k", "--", "sh", "-c", script]);
    terminal.echoes(["one"]);
    terminal.types("\x1a");
    terminal.echoes(["two"]);
    terminal.types("\x04");
    assert!(terminal.shell.wait().unwrap().success());
}

/// The wait begins before the store is opened, which may take more than half a second.
fn is_of_ten_minutes(said: &str) -> bool {
    said.ends_with(" of 10 min") || said.contains(" of 9 min")
}

#[test]
fn while_it_waits_a_line_says_who_holds_the_lock() {
    let store = Store::new();
    let guard = store.client().request("k").owner("ann").lock().unwrap();
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold run --wait 10m k -- echo in\"\"side\n");
    let said = terminal.sees("leasehold: held by \"ann\" for ") + &terminal.sees(" min");
    assert!(said.contains(" more; waiting for \"k\" for ") && is_of_ten_minutes(&said), "{said:?}");
    terminal.counts("; waiting for \"k\" for ");
    drop(guard);
    let said = terminal.sees("inside\r\n");
    assert!(said.trim_end_matches("inside\r\n").ends_with("\r\x1b[K\x1b[?7l\x1b[?7h"), "the line is gone: {said:?}");

    let _guard = store.client().lock("k").unwrap();
    terminal.types("leasehold run --quiet --wait 1500ms k -- true; echo code=$?\n");
    let said = terminal.sees("code=75");
    assert!(!said.contains("waiting"), "{said:?}");
    terminal.types("leasehold run k -- true\n");
    let mut age = || {
        terminal.sees("held by \"");
        terminal.sees("\" for ");
        terminal.sees(", leased for ")
    };
    let first = age();
    assert!((0..10).any(|_| age() != first), "the age stands still: {first:?}");
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("echo code=$?\n");
    terminal.sees("code=130");
}

/// The text that the user types to the shell is on that line.
#[test]
fn nothing_is_drawn_in_the_background() {
    let store = Store::new();
    let guard = store.client().lock("k").unwrap();
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold run -v k -- echo in\"\"side &\n");
    // Either of the two may come first.
    let refused = "refused: \"k\" is held by";
    if !terminal.sees("PROMPT> ").contains(refused) {
        terminal.sees(refused);
    }
    // The line of this one, which has an end, is drawn while the other one's line, which has none, must not be.
    terminal.types("leasehold run --wait 10m k -- true\n");
    for _ in 0..6 {
        terminal.sees("; waiting for \"k\" for ");
        let said = terminal.sees("\x1b");
        assert!(is_of_ten_minutes(said.trim_end_matches('\x1b')), "{said:?}");
    }
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
    terminal.types("fg\n");
    terminal.sees("leasehold: held by");
    drop(guard);
    terminal.sees("inside\r\n");
}

#[test]
fn while_the_store_is_in_trouble_a_line_says_so() {
    let store = Store::new();
    drop(store.client());
    std::fs::create_dir(store.path("locks.db-wal")).unwrap();
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold run --wait 10m k -- echo in\"\"side\n");
    terminal.counts("leasehold: waiting for the store for ");
    let said = terminal.sees(": sqlite:");
    assert!(is_of_ten_minutes(said.trim_end_matches(": sqlite:")), "{said:?}");
    std::fs::remove_dir(store.path("locks.db-wal")).unwrap();
    let said = terminal.sees("inside\r\n");
    assert!(said.trim_end_matches("inside\r\n").ends_with("\r\x1b[K\x1b[?7l\x1b[?7h"), "the line is gone: {said:?}");
}

#[test]
fn a_narrow_terminal_sees_the_holder_and_an_ellipsis() {
    let store = Store::new();
    let _guard = store.client().request("k").owner("ann").lock().unwrap();
    let mut terminal = Terminal::shell(&store);
    terminal.types("stty cols 60; leasehold run --wait 10m k -- true\n");
    terminal.sees("\x1b[?7l");
    let said = terminal.sees("\x1b[?7h");
    let line = said.strip_suffix("\x1b[?7h").expect("the end");
    assert!(line.starts_with("leasehold: held by \"ann\" for ") && line.ends_with('…'), "{line:?}");
    assert_eq!(line.chars().count(), 60, "{line:?}");
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
}

#[test]
fn a_forced_release_shows_the_holder_and_asks() {
    let store = Store::new();
    let guard = store.client().request("k").owner("ann").lock().unwrap();
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold release k --force; echo code=$?\n");
    terminal.sees("\"k\" is held by \"ann\" (exclusive");
    terminal.sees("Release it? [y/N] ");
    terminal.types("n\n");
    terminal.sees("\"k\" was left as it is");
    terminal.sees("code=75");
    assert!(store.client().try_lock("k").unwrap().is_none());
    terminal.types("leasehold release k --force; echo code=$?\n");
    terminal.sees("[y/N] ");
    terminal.types("y\n");
    terminal.sees("released \"k\": it was held by \"ann\"");
    terminal.sees("code=0");
    assert!(store.client().try_lock("k").unwrap().is_some());
    drop(guard);
}

/// While the question waits for its answer, the lock may go to another holder, even one of the same group.
#[test]
fn a_forced_release_takes_nothing_from_who_was_not_shown() {
    let store = Store::new();
    let held_by = |owner| store.client().request("k").owner(owner).lock_id("job").lock().unwrap();
    let ann = held_by("ann");
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold release k --force; echo code=$?\n");
    terminal.sees("\"k\" is held by \"ann\" (exclusive");
    terminal.sees("[y/N] ");
    drop(ann);
    let bob = held_by("bob");
    terminal.types("y\n");
    terminal.sees("\"k\" is held by \"bob\" (exclusive");
    terminal.sees("[y/N] ");
    terminal.types("n\n");
    terminal.sees("\"k\" was left as it is");
    terminal.sees("code=75");
    assert_stands(&store, &bob);
    // The same where nobody holds it by then.
    terminal.types("leasehold release k --force; echo code=$?\n");
    terminal.sees("[y/N] ");
    drop(bob);
    terminal.types("y\n");
    terminal.sees("\"k\" is free");
    terminal.sees("code=0");
}

/// By what the store says, whatever the guard knows.
fn assert_stands(store: &Store, guard: &LockGuard) {
    store.client().heartbeat(&guard.info(), Duration::from_secs(20)).unwrap();
}

#[test]
fn an_answer_that_is_no_text_releases_nothing() {
    let store = Store::new();
    let guard = store.client().lock("k").unwrap();
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold release k --force; echo code=$?\n");
    terminal.sees("[y/N] ");
    terminal.keys.write_all(b"\xff\n").unwrap();
    terminal.sees("\"k\" was left as it is");
    terminal.sees("code=75");
    assert_stands(&store, &guard);
}

/// As after Ctrl-S, or while text is selected.
#[test]
fn a_terminal_that_takes_no_output_holds_up_nothing() {
    for option in ["--wait=1h", "-v"] {
        let store = Store::new();
        let guard = store.client().lock("k").unwrap();
        let started = store.path("started");
        let path = started.to_str().expect("a path");
        let mut terminal = Terminal::start(&store, &["leasehold", "run", option, "k", "--", "touch", path]);
        terminal.sees("waiting for \"k\" for ");
        terminal.types("\x13");
        drop(guard);
        wait_until("the command runs", || started.exists());
    }
    let store = Store::new();
    let _guard = store.client().lock("k").unwrap();
    let mut terminal = Terminal::start(&store, &["leasehold", "run", "k", "--", "true"]);
    terminal.sees("waiting for \"k\" for ");
    terminal.types("\x13");
    kill(pid(&terminal.shell), Signal::SIGTERM).unwrap();
    wait_until("it has ended", || terminal.shell.try_wait().unwrap().is_some());
    assert_eq!(terminal.shell.wait().unwrap().code(), Some(143));
}

#[test]
fn a_long_key_does_not_widen_every_row() {
    let store = Store::new();
    let client = store.client();
    let long = "k".repeat(1024);
    let _guards = [client.request(&long).owner(&long).comment(&long).lock(), client.request("short").lock()];
    client.leases("default").claim(&long[..1000], &long, std::time::Duration::from_secs(60)).unwrap();
    let mut terminal = Terminal::shell(&store);
    for command in ["status", "lease list"] {
        terminal.types(&format!("stty cols 120; leasehold {command}; echo e\"\"nd\n"));
        terminal.sees("TOKEN");
        let said = terminal.sees("end\r\n");
        let widest = said.lines().map(|line| line.chars().filter(|c| !c.is_control()).count()).max();
        assert!(said.contains("kkk…") && widest <= Some(160), "{said:?}");
    }
    // Output to a program is not shortened.
    let said = run(&mut store.leasehold(&["status"])).stdout;
    assert_eq!(said.matches(&long).count(), 3);
}

#[test]
fn a_status_that_is_watched_is_drawn_anew() {
    let store = Store::new();
    drop(store.client());
    let mut terminal = Terminal::shell(&store);
    terminal.types("leasehold status --watch\n");
    terminal.sees("\x1b[H\x1b[2Jno locks\r\n");
    let _guard = store.client().request("k").owner("ann").lock().unwrap();
    terminal.sees("\x1b[H\x1b[2J");
    terminal.sees("ann");
    terminal.types("\x03");
    terminal.sees("PROMPT> ");
}

/// Otherwise it would run on without the lock.
#[test]
fn what_ignores_ctrl_z_is_stopped_too() {
    crate::lateness::measure();
    let (store, mut terminal) = shell();
    let ticks = store.path("ticks");
    let child = format!("trap \"\" TSTP; while :; do echo $$ >>{}; done", ticks.display());
    let script = store.path("script");
    std::fs::write(&script, format!("sh -c '{child}' &\nwait\n")).unwrap();
    terminal.types(&format!("leasehold run --lease 12s --kill-after 0s k -- sh {}\n", script.display()));
    wait_until("it works", || ticks.exists());
    terminal.stops();
    let stopped = Instant::now();
    let worker = std::fs::read_to_string(&ticks).unwrap().lines().next().unwrap().to_owned();
    let rival = store.client().lock("k").unwrap();
    let before = std::fs::metadata(&ticks).unwrap().len();
    is_gone(&worker, stopped);
    assert_eq!(std::fs::metadata(&ticks).unwrap().len(), before, "it runs on");
    assert!(rival.is_held());
    terminal.types("fg; echo code=$?\n");
    terminal.sees("code=76");
}
