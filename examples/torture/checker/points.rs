//! Threads that were stopped at marks of the library.

use std::collections::HashMap;

use super::model::Run;
use super::windows::Windows;

/// One stop of a thread that was in these calls, on these keys. Without calls it is a thread of the library, or one
/// that looks at what it holds.
#[derive(Clone, Debug)]
pub struct Point {
    pub from: u64,
    pub to: u64,
    pub mark: String,
    pub calls: Vec<u64>,
    pub keys: Vec<usize>,
}

impl Run {
    /// Finds the keys of each point, by its calls.
    pub(super) fn find_keys_of_points(&mut self) {
        let mut keys: HashMap<(usize, u64), &[usize]> = HashMap::new();
        keys.extend(self.asks.iter().map(|ask| ((ask.process, ask.id), &*ask.keys)));
        for hold in &self.holds {
            keys.entry((hold.process, hold.calls[1])).or_insert(std::slice::from_ref(&hold.key));
        }
        for (number, process) in self.processes.iter_mut().enumerate() {
            for point in &mut process.points {
                let of = point.calls.iter().filter_map(|call| keys.get(&(number, *call)));
                point.keys = of.copied().flatten().copied().collect();
            }
        }
    }

    /// Whether a thread of this process was stopped in `from` to `to`, at a point for which `such` holds.
    pub fn was_stopped(&self, process: usize, from: u64, to: u64, such: impl Fn(&Point) -> bool) -> bool {
        self.stopped_for(process, from, to, such) > 0
    }

    /// The same, and for how long in all: the stops explain no more than that.
    pub fn stopped_for(&self, process: usize, from: u64, to: u64, such: impl Fn(&Point) -> bool) -> u64 {
        let slack = self.terms.slack;
        let met = |point: &&Point| point.from <= to && point.to + slack >= from && such(point);
        let within = |point: &Point| point.to.min(to).saturating_sub(point.from.max(from)) + slack;
        self.processes[process].points.iter().filter(met).map(within).sum()
    }

    /// For how long of that time such a thread, or the whole process, did not get to run.
    pub fn stood_still_for(&self, process: usize, from: u64, to: u64, such: impl Fn(&Point) -> bool) -> u64 {
        let own = &self.processes[process];
        let points =
            own.points.iter().filter(|point| such(point)).map(|point| (point.from, point.to + self.terms.slack));
        let others = own.held_up.spans().chain(self.troubles.spans()).copied();
        let meets = |span: &(u64, u64)| span.0 <= to && span.1 >= from;
        Windows::new(points.chain(others).filter(meets).collect()).covered(from, to)
    }
}
