//! The way to the hidden runtime and back, which every request to a server takes.

use std::time::Instant;

use super::hidden::{hidden, soon};
use super::table::{Samples, Table};

pub fn measure(rounds: usize, table: &mut Table) {
    let driver = hidden(|| async { Ok(7) });
    let mut times = Samples::default();
    for _ in 0..rounds * 5 {
        let started = Instant::now();
        assert_eq!(driver.run(&soon(), |owned| async move { *owned }), Ok(7));
        times.push(started.elapsed());
    }
    table.alone("driver", "the way to the runtime and back", &times, "goal: 15 us at the median".to_owned());
}
