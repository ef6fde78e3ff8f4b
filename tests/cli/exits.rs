//! What `run` gives to its command, and the exit codes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::{Filter, Mode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Ran, Running, Store, full_pipe, leasehold, run, run_until_answered, run_until_named};
use crate::wait::wait_until;

#[test]
fn the_code_of_the_command_is_ours() {
    let store = Store::new();
    for (script, code) in
        [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        let ran = run(&mut store.script(&[], script));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), ""), "{script}");
    }
    assert!(store.client().list(&Filter::new()).unwrap().is_empty(), "all were released");
}

#[test]
fn the_letters_of_flock_mean_the_same() {
    let store = Store::new();
    let held = store.client().lock("held").unwrap();
    let code =
        |args: &[&str]| run_until_answered(&mut store.leasehold(&[&["run"], args, &["--", "true"]].concat())).code;
    assert_eq!(code(&["-n", "-E", "7", "held"]), Some(7));
    for option in [&["--nonblock"][..], &["--nb"], &["--timeout", "0"], &["-n"]] {
        assert_eq!(code(&[option, &["held"]].concat()), Some(75), "{option:?}");
    }
    assert_eq!(code(&["-w", "1", "-E", "9", "held"]), Some(9), "a number alone is seconds");
    assert_eq!(code(&["-w", "0", "held"]), Some(75));
    assert_eq!(code(&["-w", "1.2", "held"]), Some(75));
    drop(held);
    assert_eq!(
        (code(&["-x", "held"]), code(&["-e", "held"]), code(&["--exclusive", "held"])),
        (Some(0), Some(0), Some(0))
    );
    let _reader = store.client().lock_shared("read").unwrap();
    assert_eq!((code(&["-n", "-s", "read"]), code(&["-n", "-x", "read"])), (Some(0), Some(75)));
    assert_eq!(code(&["-s", "-x", "read"]), Some(64));
}

#[test]
fn a_command_that_cannot_run_ends_as_in_a_shell() {
    let store = Store::new();
    let ran = run(&mut store.leasehold(&["run", "k", "--", "no-such-command"]));
    assert_eq!(ran.code, Some(127));
    assert_eq!(ran.stderr, "leasehold: cannot run \"no-such-command\": No such file or directory (os error 2)\n");
    let ran = run(&mut store.leasehold(&["run", "k", "--", "/etc/passwd"]));
    assert_eq!(ran.code, Some(126));
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

#[test]
fn the_command_knows_its_lock_and_its_store() {
    let store = Store::new();
    // The environment of the test run may have other variables, which do not count.
    let script = "env | grep ^LEASEHOLD_ | grep -Ev '^LEASEHOLD_(TEST|CI)_' | sort; read go";
    let mut command = store.script(&["--owner", "ann", "--comment", "why", "--max-holders", "2"], script);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let lines: Vec<String> = (0..5).map(|_| running.line()).collect();
    let key = store.client().get("k").unwrap().unwrap();
    let [holder] = key.holders() else { panic!("{key:?}") };
    let (token, lock_id) = (holder.fencing_token(), holder.lock_id());
    assert_eq!((holder.owner(), holder.comment(), holder.mode()), ("ann", Some("why"), Mode::Shared));
    let expected = [
        "LEASEHOLD_KEY=k".to_owned(),
        format!("LEASEHOLD_LOCK_ID={lock_id}"),
        "LEASEHOLD_OWNER=ann".to_owned(),
        format!("LEASEHOLD_STORE={}", store.url),
        format!("LEASEHOLD_TOKEN={token}"),
    ];
    assert_eq!(lines, expected);
    running.tell("go");
    assert_eq!(running.end().stdout.lines().count(), 5, "and nothing else");
}

/// Its parent left the group and does not wait for it.
#[test]
#[cfg(target_os = "linux")]
fn what_ended_and_was_not_waited_for_keeps_no_lock() {
    let store = Store::new();
    let daemon = "sleep 0.3 & echo $$; exec setsid sleep 1000 >&- 2>&-";
    let mut running = Running::start(&mut store.script(&[], &format!("sh -c '{daemon}' & wait $! & sleep 1")));
    let daemon = Pid::from_raw(running.line().parse().unwrap());
    let ended = running.status().code();
    kill(daemon, Signal::SIGKILL).unwrap();
    assert_eq!(ended, Some(0));
    // A process that still lives keeps the lock.
    let mut running =
        Running::start(&mut store.reading(&[], "exec 3<&0; (echo ready; read go <&3; echo gone) & exit 3"));
    running.expect("ready");
    assert!(store.client().request("k").wait(Duration::from_millis(500)).lock().is_err());
    running.tell("go");
    running.expect("gone");
    assert_eq!(running.end().code, Some(3));
}

/// Next to it is a process that ended and that nobody waits for, so that the list of processes decides.
#[test]
#[cfg(target_os = "linux")]
fn a_name_that_is_not_utf_8_keeps_its_lock() {
    let store = Store::new();
    let daemon = "sleep 0.1 & echo $$; exec setsid sleep 1000 >&- 2>&-";
    let stays = "printf \"\\377\" >/proc/$$/comm; echo ready; read go <&3; echo gone";
    let script = format!("exec 3<&0; sh -c '{daemon}' & sh -c '{stays}' & exit 3");
    let mut running = Running::start(&mut store.reading(&[], &script));
    let mut lines = [running.line(), running.line()];
    lines.sort();
    let daemon = Pid::from_raw(lines[0].parse().unwrap());
    assert_eq!(lines[1], "ready");
    let is_kept = store.client().request("k").wait(Duration::from_secs(1)).lock().is_err();
    running.tell("go");
    running.expect("gone");
    let ended = running.status().code();
    kill(daemon, Signal::SIGKILL).unwrap();
    assert_eq!((ended, is_kept), (Some(3), true));
}

#[test]
fn standard_input_is_the_commands() {
    let store = Store::new();
    let mut running = Running::start(store.leasehold(&["run", "k", "--", "cat"]).stdin(Stdio::piped()));
    running.tell("through");
    running.expect("through");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_held_lock_is_told_with_its_holder() {
    let store = Store::new();
    let guard = store.client().request("k").owner("ann").comment("why").lock().unwrap();
    let token = guard.fencing_token();
    let told = |ran: &Ran| {
        assert_eq!(ran.stdout, "");
        assert!(ran.stderr.contains(&format!("held by \"ann\" (exclusive, token {token}, comment \"why\") since ")));
        assert!(ran.stderr.contains(" ago), leased for "), "{}", ran.stderr);
    };
    let ran = run(&mut store.script(&["--try"], "echo never"));
    assert_eq!(ran.code, Some(75));
    told(&ran);
    let ran = run_until_named(|wait| store.script(&["--wait", wait, "--conflict-exit-code", "9"], "echo never"));
    assert_eq!(ran.code, Some(9));
    told(&ran);

    let ran = run(&mut store.script(&["--try", "--json"], "echo never"));
    let told: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((ran.code, &told["error"]["exit_code"]), (Some(75), &75.into()));
    assert_eq!((&told["error"]["kind"], &told["error"]["key"]), (&"TimedOut".into(), &"k".into()));
    let holder = &told["error"]["holders"][0];
    assert_eq!((&holder["owner"], &holder["token"], &holder["expired"]), (&"ann".into(), &token.into(), &false.into()));
    assert!(!ran.stderr.contains(guard.lock_id()), "whoever reads it could release the lock");

    let ran = run(&mut store.script(&["--try", "--quiet", "--conflict-exit-code", "0"], "echo never"));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""));

    drop(guard);
    assert_eq!(run(&mut store.script(&["--try"], "true")).code, Some(0));
}

#[test]
fn wrong_usage_is_64() {
    let store = Store::new();
    let cases: [(&[&str], &str); 16] = [
        (&[], "Usage: leasehold"),
        (&["fly"], "unrecognized subcommand 'fly'"),
        (&["run", "k", "true"], "put -- before the command: leasehold run KEY -- COMMAND"),
        (&["elect", "--lease", "1m", "k", "sh", "-c", "true"], "put -- before the command: -- sh\n"),
        (&["run", "k"], "<COMMAND>"),
        (&["run", "", "--", "true"], "key is \"\", but must be 1 to 1024 bytes"),
        (
            &["run", "k", "--lease", "30x", "--", "true"],
            "a duration above zero and of at most 30 days is wanted, like 500ms, 30s, 5m, 1h30m or 1d",
        ),
        (&["run", "k", "--lease=-1s", "--", "true"], "a duration above zero"),
        (&["run", "k", "--wait", "-5s", "--", "true"], "'-5s' for '--wait <DURATION>': a duration of at most 36500d"),
        (&["run", "k", "--kill-after", "-5s", "--", "true"], "'--kill-after <DURATION>': a duration of at most"),
        (&["elect", "k", "--max-hold", "-5s", "--", "true"], "'--max-hold <DURATION>': a duration above zero"),
        (&["status", "--older-than", "-5s"], "'--older-than <DURATION>': a duration above zero"),
        (&["run", "k", "--kill-after", "10s", "--", "true"], "or the lease 33s or longer"),
        (&["run", "k", "--on-loss", "signal:NO", "--", "true"], "there is no signal NO"),
        (&["run", "k", "--max-holders", "2", "--exclusive", "--", "true"], "cannot be used with"),
        (&["run", "k", "--try", "--wait", "1s", "--", "true"], "cannot be used with"),
    ];
    for (args, message) in cases {
        let ran = run(&mut store.leasehold(args));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(64), ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(message), "{args:?}: {}", ran.stderr);
    }
    assert!(store.client().list(&Filter::new()).unwrap().is_empty());
}

#[test]
fn a_short_lease_needs_no_other_option() {
    let store = Store::new();
    for lease in ["6s", "3s", "2s"] {
        let once = |_| run(&mut store.leasehold(&["run", "k", "--lease", lease, "--", "true"]));
        // A machine that stopped for a whole lease has lost the lock, which says nothing about the options.
        let ran = (0..5).map(once).find(|ran| ran.code != Some(76)).expect("a lease that is longer than a start");
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{lease}");
    }
    // So short that a busy machine may lose the lock; but it is not a usage error.
    let ran = run(&mut store.leasehold(&["run", "k", "--wait", "20s", "--lease", "100ms", "--", "true"]));
    assert!(matches!(ran.code, Some(0 | 69 | 75 | 76)), "{}", ran.stderr);
    let ran = run(&mut store.leasehold(&["run", "k", "--lease", "99ms", "--", "true"]));
    assert_eq!(ran.code, Some(64), "{}", ran.stderr);
    let ran = run(&mut store.leasehold(&["run", "k", "--lease", "2s", "--kill-after", "400ms", "--", "true"]));
    assert!(ran.code == Some(64) && ran.stderr.contains("or the lease 2.4s or longer"), "{}", ran.stderr);
}

#[test]
fn a_wrong_store_is_78() {
    for (url, message) in [
        ("locks.db", "write one like sqlite:locks.db"),
        ("nosql:x", "is no store that this version knows"),
        ("sqlite:x?made=0600", "did you mean \"mode\""),
        #[cfg(not(feature = "dynamodb"))]
        ("dynamodb://locks", "turn on the feature `dynamodb`"),
    ] {
        let ran = run(&mut leasehold(&["--store", url, "run", "k", "--", "true"]));
        assert_eq!(ran.code, Some(78), "{url}: {}", ran.stderr);
        assert!(ran.stderr.contains(message), "{url}: {}", ran.stderr);
    }
    let ran = run(leasehold(&["run", "k", "--", "true"]).env_remove("XDG_STATE_HOME").env_remove("HOME"));
    assert_eq!(ran.code, Some(78));
    assert!(ran.stderr.contains("neither XDG_STATE_HOME nor HOME"), "{}", ran.stderr);
}

#[test]
fn without_a_store_it_is_a_file_in_the_state_folder() {
    let store = Store::new();
    let mut command = leasehold(&["run", "k", "--", "true"]);
    // A folder whose name would mean something in a URL.
    assert_eq!(run(command.env("XDG_STATE_HOME", store.path("a%41?b"))).code, Some(0));
    assert!(store.path("a%41?b/leasehold/locks.db").exists());
    let mut command = leasehold(&["run", "k", "--", "true"]);
    command.env_remove("XDG_STATE_HOME").env("HOME", store.folder.path());
    assert_eq!(run(&mut command).code, Some(0));
    let folder = store.path(".local/state/leasehold");
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(folder.join("locks.db").exists());
}

/// `LEASEHOLD_STORE=$FORGOTTEN`: the default would be another store on each host.
#[test]
fn a_store_that_would_keep_nobody_out_is_78() {
    let store = Store::new();
    for (url, said) in [("", "the store URL is empty"), ("memory:", "within one process"), ("memory:x", "one process")]
    {
        for mut command in [store.leasehold(&["--store", url, "run", "k", "--", "echo", "in"]), {
            let mut command = store.leasehold(&["run", "k", "--", "echo", "in"]);
            command.env("LEASEHOLD_STORE", url);
            command
        }] {
            let ran = run(&mut command);
            assert!(ran.code == Some(78) && ran.stderr.contains(said) && ran.stdout.is_empty(), "{url:?}: {ran:?}");
        }
    }
    assert!(!store.path("leasehold").exists());
}

#[test]
fn a_store_out_of_reach_is_69() {
    let store = Store::new();
    drop(store.client());
    let db = store.db();
    db.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    let ran = run(&mut store.script(&["--try"], "true"));
    assert_eq!(ran.code, Some(69), "{}", ran.stderr);
}

/// Puts a folder where SQLite's log should be: a temporary error.
fn in_trouble(store: &Store) -> std::path::PathBuf {
    drop(store.client());
    let trouble = store.path("locks.db-wal");
    fs::create_dir(&trouble).unwrap();
    trouble
}

#[test]
fn a_store_in_trouble_is_waited_for() {
    let store = Store::new();
    let trouble = in_trouble(&store);
    for options in [&[][..], &["--wait", "1h"]] {
        let mut running = Running::start(&mut store.script(options, "echo in"));
        running.says("leasehold: waiting for the store: sqlite:");
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end().code, Some(143));
    }
    let mut runs: Vec<Running> = [&["run", "k"][..], &["run", "--wait", "1h", "l"], &["elect", "m"]]
        .map(|args| Running::start(store.leasehold(args).args(["--", "echo", "in"])))
        .into();
    runs.iter_mut().for_each(|running| running.says("leasehold: waiting for the store: sqlite:"));
    fs::remove_dir(&trouble).unwrap();
    for mut running in runs {
        running.expect("in");
        assert_eq!(running.end().code, Some(0));
    }
}

#[test]
fn a_store_in_trouble_is_waited_for_no_longer_than_for_the_lock() {
    let store = Store::new();
    in_trouble(&store);
    let started = Instant::now();
    let ran = run(&mut store.script(&["--wait", "700ms", "--conflict-exit-code", "0"], "echo in"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(69), ""), "{}", ran.stderr);
    assert!(started.elapsed() >= Duration::from_millis(700), "at once");
    let ran = run(&mut store.script(&["--try", "--quiet", "--conflict-exit-code", "0"], "echo in"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(69), ""), "{}", ran.stderr);
    assert!(!ran.stderr.contains("waiting"), "{}", ran.stderr);
}

#[test]
#[cfg(feature = "dynamodb")]
fn a_server_out_of_reach_is_69() {
    let nobody = crate::nobody::Closed::new();
    let url = format!("dynamodb://locks?region=us-east-1&endpoint=http://{}", nobody.address());
    let mut command = leasehold(&["--store", &url, "run", "k", "--try", "--", "true"]);
    command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "canary");
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(69), "{}", ran.stderr);
    assert!(!ran.stderr.contains("canary"));
}

#[test]
fn looking_makes_nothing() {
    let store = Store::new();
    let looking: [&[&str]; 12] = [
        &["init", "--print"],
        &["status"],
        &["status", "k"],
        &["doctor"],
        &["lease", "list"],
        &["lease", "expire", "k"],
        &["purge", "--dry-run"],
        &["purge"],
        &["release", "k", "--lock-id", "x"],
        &["release", "k", "--force", "--yes"],
        &["renew", "x"],
        &["unlock", "x"],
    ];
    for args in looking {
        let ran = run(&mut store.leasehold(args));
        assert_eq!(ran.code, Some(78), "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(
            ran.stderr.contains("there is no such file; correct the path, or make it by `leasehold init`"),
            "{ran:?}"
        );
        // The user's default store.
        let ran = run(store.leasehold(args).env_remove("LEASEHOLD_STORE"));
        assert_eq!(ran.code, Some(78), "{args:?}: {}{}", ran.stdout, ran.stderr);
        let said = ["there are no locks yet: no --store is given, and ", "/leasehold/locks.db is made by "];
        assert!(said.iter().all(|said| ran.stderr.contains(said)), "{ran:?}");
        assert_eq!(fs::read_dir(store.folder.path()).unwrap().count(), 0, "{args:?}");
    }
    fs::write(store.path("locks.db"), "").unwrap();
    let ran = run(&mut store.leasehold(&["status"]));
    assert_eq!((ran.code, fs::read(store.path("locks.db")).unwrap().len()), (Some(78), 0), "{}", ran.stderr);
    assert!(ran.stderr.contains("the table `locks` is missing; `leasehold init` makes it"), "{}", ran.stderr);
}

#[test]
#[cfg(feature = "mongodb")]
fn a_collection_that_is_missing_is_no_empty_one() {
    use crate::support::run_until_answered;
    let Some(shared) = crate::shared::mongodb("mistyped") else { return };
    let ran = run_until_answered(leasehold(&["doctor"]).env("LEASEHOLD_STORE", &shared.url));
    let said = &ran.stdout;
    assert!(ran.code == Some(78) && said.contains("yes, a round trip takes"), "{ran:?}");
    assert!(said.contains("NO: ") && said.matches("not tried").count() == 6, "{said}");
    for args in [&["status"][..], &["lease", "list"]] {
        let ran = run_until_answered(leasehold(args).env("LEASEHOLD_STORE", &shared.url));
        assert_eq!(ran.code, Some(78), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("does not exist; `leasehold init` makes it"), "{}", ran.stderr);
    }
    shared.init();
    assert_eq!(run_until_answered(leasehold(&["status"]).env("LEASEHOLD_STORE", &shared.url)).code, Some(0));
}

#[test]
fn output_that_nobody_takes_is_no_failure_and_a_full_one_is_74() {
    let mut command = leasehold(&["--help"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status = command.stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(74));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = leasehold(&["--help"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn it_runs_with_closed_standard_streams() {
    let store = Store::new();
    let proof = store.path("proof");
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!("exec {binary} run k -- sh -c 'echo $LEASEHOLD_KEY > {}' <&- >&- 2>&-", proof.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("LEASEHOLD_STORE", &store.url);
    assert_eq!(command.status().unwrap().code(), Some(0));
    assert_eq!(fs::read_to_string(proof).unwrap(), "k\n");
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

#[test]
fn events_are_told_with_v_and_nothing_without() {
    let store = Store::new();
    let ran = run(&mut store.script(&["-v"], "true"));
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("leasehold: granted: \"k\" with token "), "{lines:?}");
    assert!(lines[1].starts_with("leasehold: released: \"k\" after "), "{lines:?}");
    let ran = run(&mut store.script(&["-vv"], "true"));
    assert!(ran.stderr.contains("leasehold: request: Acquire of \"k\" answered after "), "{}", ran.stderr);
    assert_eq!(run(&mut store.script(&["--quiet"], "true")).stderr, "");
}

#[test]
fn a_real_time_signal_ends_a_command_as_any_other() {
    let store = Store::new();
    for _ in 0..5 {
        let mut running = Running::start(&mut store.script(&["--try"], "kill -34 $$"));
        assert_eq!(running.status().code(), Some(128 + 34));
    }
    assert!(store.client().get("k").unwrap().unwrap().is_free());
}

/// A duration that the machine can't count, or that the library refuses: the error names the option and its limit.
#[test]
fn a_duration_that_is_too_long_is_wrong_usage() {
    let store = Store::new();
    let run_with = |option| vec!["run", "k", "--try", option, "TIME", "--", "true"];
    let cases = [
        vec!["status", "--older-than", "TIME"],
        vec!["status", "--newer-than", "TIME"],
        vec!["status", "--left-below", "TIME"],
        vec!["status", "--left-at-least", "TIME"],
        vec!["status", "--watch=TIME"],
        vec!["purge", "--older-than", "TIME"],
        vec!["renew", "id", "--lease", "TIME"],
        vec!["acquire", "k", "--lease", "TIME"],
        vec!["lease", "claim", "name", "holder", "--for", "TIME"],
        vec!["run", "k", "--wait", "TIME", "--", "true"],
        vec!["elect", "k", "--kill-after", "TIME", "--", "true"],
    ];
    let of_run = ["--lease", "--kill-after", "--max-hold", "--hold-at-least", "--every"].map(run_with);
    for case in cases.into_iter().chain(of_run) {
        for time in ["18446744073709551615s", "18446744073709551616", "40000d", "1e19"] {
            let args: Vec<String> = case.iter().map(|arg| arg.replace("TIME", time)).collect();
            let option = case.iter().find(|arg| arg.starts_with("--") && **arg != "--try").unwrap();
            let option = option.split('=').next().unwrap();
            let ran = run(leasehold(&[]).args(&args).env("LEASEHOLD_STORE", &store.url));
            assert_eq!(ran.code, Some(64), "{args:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(option) && ran.stderr.contains("at most"), "{args:?}: {}", ran.stderr);
            let is_lease = ["--lease", "--hold-at-least", "--every", "--for"].contains(&option);
            assert_eq!(ran.stderr.contains("at most 30 days"), is_lease, "{args:?}: {}", ran.stderr);
        }
    }
}

/// This holds at any time, not only while a lock is held or waited for.
#[test]
fn a_message_that_nobody_reads_holds_up_no_end() {
    let store = Store::new();
    let _guard = store.client().lock("held").unwrap();
    for (args, code) in [
        (&["run", "-n", "held", "--", "true"][..], 75),
        (&["--json", "run", "-n", "held", "--", "true"], 75),
        (&["run", "k", "--", "no-such-command"], 127),
        (&["run", "--no-such-option"], 64),
    ] {
        let (_reader, full, _) = full_pipe();
        let mut child = store.leasehold(args).stderr(full).spawn().unwrap();
        let mut ended = None;
        wait_until(&format!("{args:?} has ended"), || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().code(), Some(code), "{args:?}");
    }
}
