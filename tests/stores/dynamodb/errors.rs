//! Bad input and a service that is not there: reported within the deadline, and without secrets.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use leasehold::dynamodb::aws_config::credential_process::CredentialProcessProvider;
use leasehold::dynamodb::aws_config::{self, BehaviorVersion, SdkConfig};
use leasehold::{ErrorKind, LockClient};

use crate::dynamodb::*;
use crate::errors::{are_refused, no_server_is_told, text, works_inside_async_tasks};
use crate::support::dynamodb::{config_at, on_answer};
use crate::support::harness::PATIENCE;

#[test]
fn what_is_wrong_in_a_url_is_said_before_anything_is_sent() {
    are_refused([
        ("dynamodb:", "name of a table"),
        ("dynamodb:locks", "name of a table"),
        ("dynamodb://ab", "3 to 255"),
        ("dynamodb://a/b/c", "letters"),
        ("dynamodb://AKIA:canary@eu-west-1/locks", "no user and password"),
        ("dynamodb://AKIA:can?ary@eu-west-1/locks", "%3F"),
        ("dynamodb://AKIA:canary/locks", "letters"),
        ("dynamodb://locks?regoin=x", "region"),
        ("dynamodb://locks?grace=soon", "grace"),
        ("dynamodb://locks?grace=-1s", "grace"),
        ("dynamodb://locks?grace=2h", "minute"),
        ("dynamodb://locks?partition_key=owner", "partition_key"),
        ("dynamodb://locks?partition_key=", "partition_key"),
        ("dynamodb://locks?sort_key=kind", "NAME:VALUE"),
        ("dynamodb://locks?sort_key=:lock", "the name in sort_key"),
        ("dynamodb://locks?sort_key=key:lock", "the partition key"),
        ("dynamodb://locks?sort_key=part:", "the value in sort_key"),
        ("dynamodb://locks?sort_key=owner:lock", "sort_key is \"owner\""),
        ("dynamodb://locks?sort_key=part:lock&fleet=mixed", "fleet=mixed"),
        ("dynamodb://locks?deletion_protection=maybe", "deletion_protection"),
        ("dynamodb://locks?point_in_time_recovery=", "point_in_time_recovery"),
        ("dynamodb://locks?region=", "region"),
        ("dynamodb://locks?region=x&endpoint=localhost:8000", "endpoint"),
        ("dynamodb://locks?region=x&endpoint=http://me:secret-canary@localhost:8000", "endpoint"),
    ]);
}

/// The SDK takes the endpoint as it is, and quotes it if it is wrong.
#[test]
fn an_endpoint_that_is_wrong_is_not_shown() {
    for endpoint in ["me:canary@localhost:8000", "http://me:can^ary@localhost:8000"] {
        let error = patient(config_at(endpoint), "locks").connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(text(&error).contains("must be like http") && !text(&error).contains("can"), "{}", text(&error));
    }
}

#[test]
fn no_region_is_said() {
    let config = SdkConfig::builder().behavior_version(BehaviorVersion::v2026_01_12()).build();
    let error = patient(config, "locks").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("region"), "{error}");
}

#[test]
fn an_endpoint_that_is_not_there_is_said_within_the_deadline() {
    let at = |host: &str| leasehold::dynamodb::builder(config_at(&format!("http://{host}")), "locks");
    let told = RefCell::new(BTreeSet::new());
    no_server_is_told(&[1, 5], at, |host, error| {
        assert!(error.to_string().contains("endpoint"), "{host}: {}", text(error));
        // A busy machine may need all of the time to begin, and then the error only knows the table.
        if error.store() != Some("dynamodb://locks") || !error.to_string().contains("no request could be sent") {
            assert_eq!(error.store(), Some(&*format!("dynamodb://locks?region=us-east-1&endpoint={host}")));
            told.borrow_mut().insert(host.to_owned());
        }
    });
    let told = told.into_inner();
    assert_eq!(told.len(), 4, "the endpoint is told only of {told:?}");
}

#[test]
fn no_credentials_are_said() {
    needs_server!();
    let endpoint = crate::support::servers::dynamodb_local().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dynamodb::errors::connects_without_credentials", "--nocapture"])
        .env("LEASEHOLD_TEST_URL", format!("dynamodb://locks?region=us-east-1&endpoint={endpoint}"))
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("HOME", "/nonexistent")
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env_remove("AWS_PROFILE")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Other SDKs know this mode.
#[test]
fn a_mode_of_retries_that_the_sdk_does_not_know_is_nothing_to_it() {
    needs_server!();
    let endpoint = crate::support::servers::dynamodb_local().unwrap();
    for (name, value) in [("AWS_RETRY_MODE", "legacy"), ("AWS_MAX_ATTEMPTS", "0")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "dynamodb::errors::connects_with_odd_settings", "--nocapture"])
            .env("LEASEHOLD_TEST_ODD_URL", format!("dynamodb://no-such-table?region=us-east-1&endpoint={endpoint}"))
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env(name, value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn connects_with_odd_settings() {
    // Runs only as the other process of the test above.
    let Ok(url) = std::env::var("LEASEHOLD_TEST_ODD_URL") else { return };
    // There is no such table, which the first use reports.
    let told = LockClient::connect(&url).and_then(|client| client.try_lock("k")).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Schema, "{told:?}");
}

#[test]
fn connects_without_credentials() {
    // Runs only as the other process of `no_credentials_are_said`.
    if std::env::var_os("LEASEHOLD_TEST_URL").is_none() {
        return;
    }
    let builder = LockClient::builder(std::env::var("LEASEHOLD_TEST_URL").unwrap());
    let error = builder.request_timeout(PATIENCE).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{}", text(&error));
    assert!(error.to_string().contains("environment, profile"), "{}", text(&error));
}

#[test]
fn a_client_works_and_is_dropped_inside_async_tasks() {
    let table = needs_server!(Table::fresh());
    // The same settings that the program's own client uses on its own runtime.
    let config = config();
    let builder = || patient(config.clone(), &table.0);
    works_inside_async_tasks(builder);
    let own = || async {
        let client = sdk::Client::new(&config);
        client.list_tables().send().await.unwrap();
        drop(builder().connect().unwrap().lock("k").unwrap());
        client.list_tables().send().await.unwrap();
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(own());
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    many.block_on(own());
    let blocking = builder();
    let blocking = move || drop(blocking.connect().unwrap().lock("k").unwrap());
    many.block_on(async move { tokio::task::spawn_blocking(blocking).await.unwrap() });
}

#[test]
fn the_last_clone_ends_the_thread() {
    needs_server!();
    if !cfg!(target_os = "linux") {
        return;
    }
    crate::support::alone::alone("dynamodb::errors::the_last_clone_ends_the_thread", || {
        let client = patient(config(), &Table::fresh().0).connect().unwrap();
        let clone = client.clone();
        drop(client);
        clone.lock("k").unwrap().release().unwrap();
        let ours = crate::support::threads::ours();
        assert!(ours.iter().any(|name| name.starts_with("leasehold-drive")), "{ours:?}");
        drop(clone);
        crate::support::threads::none_soon();
    });
}

/// How often the SDK's thread has gone to sleep or was stopped.
fn switches() -> u64 {
    let tasks = crate::support::threads::tasks().into_iter();
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.join("status")).ok());
    let ours: Vec<String> = status.filter(|status| status.contains("leasehold-drive")).collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    let numbers = ours[0].lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
    numbers.sum()
}

#[test]
fn an_idle_client_does_nothing() {
    needs_server!();
    if !cfg!(target_os = "linux") {
        return;
    }
    crate::support::alone::alone("dynamodb::errors::an_idle_client_does_nothing", || {
        let client = patient(config(), &Table::fresh().0).connect().unwrap();
        crate::support::wait::wait_until("only one thread of the library is left", || {
            crate::support::threads::ours().len() == 1
        });
        client.lock("k").unwrap().release().unwrap();
        // By then the work that the last answer left should be done, which takes longer on a busy machine.
        std::thread::sleep(Duration::from_secs(2));
        let is_at_rest = |_| {
            let before = switches();
            std::thread::sleep(Duration::from_secs(2));
            let woke = switches() - before;
            println!("{woke}");
            woke <= 2
        };
        assert!((0..5).any(is_at_rest), "it woke more than twice in 2 s with nothing to do");
    });
}

/// Credentials from a command, which end at once and so are loaded again for each request. As many loads fail as the
/// file `failures` has bytes, and each of them removes a byte.
fn refreshed(failures: &std::path::Path) -> SdkConfig {
    let script = r#"if [ -s "$1" ]; then truncate -s -1 "$1"; exit 1; fi
        echo '{"Version":1,"AccessKeyId":"key","SecretAccessKey":"secret-canary","Expiration":"2020-01-01T00:00:00Z"}'"#;
    let file = failures.with_extension("sh");
    std::fs::write(&file, script).unwrap();
    let command = format!("sh {} {}", file.display(), failures.display());
    let provider = CredentialProcessProvider::new(command);
    let provider = sdk::config::SharedCredentialsProvider::new(provider);
    config().into_builder().credentials_provider(provider).build()
}

#[test]
fn a_refresh_that_fails_for_a_moment_ends_no_wait() {
    needs_server!();
    let (table, folder) = (Table::fresh(), tempfile::tempdir().unwrap());
    let failures = folder.path().join("failures");
    std::fs::write(&failures, "").unwrap();
    let client = patient(refreshed(&failures), &table.0).connect().unwrap();
    std::fs::write(&failures, "xx").unwrap();
    client.lock("k").unwrap().release().unwrap();
    assert_eq!(std::fs::read(&failures).unwrap(), b"", "both failures were met");
    std::fs::write(&failures, "x".repeat(1_000)).unwrap();
    let error = client.request("k").wait(Duration::from_secs(2)).lock().unwrap_err();
    assert!(error.is_retryable() && error.kind() == ErrorKind::Store, "{}", text(&error));
    // For a first connection, nobody can know whether the failures are only temporary.
    let error = patient(refreshed(&failures), &table.0).connect().unwrap_err();
    assert!(error.is_retryable() && error.kind() == ErrorKind::Store, "{}", text(&error));
    assert!(error.to_string().contains("credentials could not be loaded"), "{}", text(&error));
}

#[test]
fn settings_without_credentials_are_said() {
    let config = SdkConfig::builder().behavior_version(BehaviorVersion::v2026_01_12());
    let config = config.region(aws_config::Region::new("us-east-1")).endpoint_url("http://127.0.0.1:1").build();
    let error = patient(config, "locks").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{}", text(&error));
    assert!(error.to_string().contains("credentials"), "{error}");
}

/// Otherwise a machine that is busy would make any test fail.
#[test]
fn dynamodb_local_that_waited_too_long_for_a_lock_of_its_own_is_asked_again() {
    let table = needs_server!(Table::fresh());
    let (clock, times) = (Clock::system(), Arc::new(AtomicU32::new(0)));
    let (mut options, left) = (options(&table.0, &clock), times.clone());
    options.interceptors.push(on_answer(move |context| {
        if left.load(SeqCst) > 0 {
            left.fetch_sub(1, SeqCst);
            let (answer, kind) = (context.response_mut(), "com.amazonaws.dynamodb.v20120810#InternalServerError");
            *answer.status_mut() = 500_u16.try_into()?;
            let body = format!(r#"{{"__type":"{kind}","message":"it too long waiting for a lock"}}"#);
            *answer.body_mut() = body.into();
        }
        Ok(())
    }));
    let store = open(options, &clock);
    times.store(3, SeqCst);
    assert_eq!(get(&store, "k").record.holders().count(), 0);
    assert_eq!(times.load(SeqCst), 0);
}
