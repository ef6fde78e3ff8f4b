//! The one table of results, and how its figures are computed.

use std::time::Duration;

/// A run is cut into this many parts, to show how much the ratio varies.
const PARTS: usize = 5;

/// One side of a comparison.
#[derive(Clone, Default)]
pub struct Samples(pub Vec<Duration>);

impl Samples {
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub fn median(&self) -> Duration {
        quantile(&self.0, 0.5)
    }

    pub fn p99(&self) -> Duration {
        quantile(&self.0, 0.99)
    }
}

fn quantile(samples: &[Duration], at: f64) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() as f64 * at) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[derive(Default)]
pub struct Table(Vec<[String; 8]>);

impl Table {
    /// Adds two sides that were measured by turns.
    pub fn compare(&mut self, store: &str, what: &str, ours: &Samples, against: &str, theirs: &Samples) {
        let ratio = |a: &[Duration], b: &[Duration]| {
            quantile(a, 0.5).as_secs_f64() / quantile(b, 0.5).as_secs_f64().max(f64::MIN_POSITIVE)
        };
        let part = ours.0.len().div_ceil(PARTS).max(1);
        let parts: Vec<f64> = ours.0.chunks(part).zip(theirs.0.chunks(part)).map(|(a, b)| ratio(a, b)).collect();
        let (low, high) = parts.iter().fold((f64::MAX, 0.0_f64), |(low, high), r| (low.min(*r), high.max(*r)));
        let more = ours.median().as_secs_f64() - theirs.median().as_secs_f64();
        self.0.push([
            store.to_owned(),
            what.to_owned(),
            time(ours.median()),
            time(ours.p99()),
            format!("{against}: {}, {}", time(theirs.median()), time(theirs.p99())),
            format!("{:.2}", ratio(&ours.0, &theirs.0)),
            format!("{low:.2} to {high:.2}"),
            format!("{:+.1} us", more * 1e6),
        ]);
    }

    /// Adds one side alone, with a remark.
    pub fn alone(&mut self, store: &str, what: &str, ours: &Samples, beside: String) {
        let none = String::new;
        let p99 = if ours.0.len() > 1 { time(ours.p99()) } else { none() };
        self.0.push([store.to_owned(), what.to_owned(), time(ours.median()), p99, beside, none(), none(), none()]);
    }

    pub fn print(&self) {
        let head = ["store", "what", "median", "p99", "against: median, p99", "ratio", "in fifths", "more"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.0.iter().cloned());
        let widths: Vec<usize> = (0..head.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            println!("| {} |", cells.join(" | "));
            if number == 0 {
                let lines: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                println!("| {} |", lines.join(" | "));
            }
        }
    }
}

fn time(d: Duration) -> String {
    if d < Duration::from_millis(10) {
        format!("{:.1} us", d.as_secs_f64() * 1e6)
    } else if d < Duration::from_secs(10) {
        format!("{:.1} ms", d.as_secs_f64() * 1e3)
    } else {
        format!("{:.1} s", d.as_secs_f64())
    }
}
