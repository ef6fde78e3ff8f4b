//! The way to the hidden runtime and back, which every request to a server takes.

use super::table::Table;

#[cfg(all(feature = "_async", feature = "_internals"))]
pub fn measure(rounds: usize, table: &mut Table) {
    use std::time::{Duration, Instant};

    use leasehold::internals::rt::deadline::Deadline;
    use leasehold::internals::rt::driver::Driver;

    use super::table::Samples;

    let by = || Deadline::after(Duration::from_secs(30));
    let driver = Driver::start(&by(), || async { Ok(7) }, |stopped| panic!("{stopped:?}")).expect("a thread");
    let mut times = Samples::default();
    for _ in 0..rounds * 5 {
        let started = Instant::now();
        assert_eq!(driver.run(&by(), |owned| async move { *owned }), Ok(7));
        times.push(started.elapsed());
    }
    table.alone("driver", "the way to the runtime and back", &times, "goal: 15 us at the median".to_owned());
}

#[cfg(not(all(feature = "_async", feature = "_internals")))]
pub fn measure(_rounds: usize, _table: &mut Table) {}
