//! Who reads the log for warnings reads none while all goes well. Alone in its process, since
//! there is one logger.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::LockClient;

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        KEPT.lock().unwrap().push(format!("{} {}: {}", record.level(), record.target(), record.args()));
    }

    fn flush(&self) {}
}

#[test]
fn nothing_is_warned_of_while_all_goes_well() {
    log::set_logger(&Keep).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let client = LockClient::builder("memory:").heartbeat(Duration::from_millis(10)).connect().unwrap();
    let guard = client.lock("k").unwrap();
    assert!(client.try_lock_for("k", Duration::from_millis(500)).unwrap().is_none());
    assert!(guard.info().renewed().is_some());
    guard.release().unwrap();
    drop(client.lock("k").unwrap());
    client.close().unwrap();
    let kept = KEPT.lock().unwrap();
    assert!(kept.is_empty(), "{kept:#?}");
}
