//! Who held what when around a violation, as an SVG.

use std::fmt::Write;

use crate::checker::history::Mode;
use crate::checker::{Run, Violation};

const WIDTH: f64 = 1_100.0;
const LEFT: f64 = 90.0;
const ROW: f64 = 34.0;

/// One row for each process that held the key, or may have, from two leases before the violation to two after; `None`
/// if the violation has no key.
pub fn draw(run: &Run, violation: &Violation) -> Option<String> {
    let key = violation.key?;
    let around = 2 * run.terms.lease;
    let (from, to) = (violation.at.saturating_sub(around), violation.at + around);
    let x = |at: u64| LEFT + (at.clamp(from, to) - from) as f64 / (to - from) as f64 * (WIDTH - LEFT);
    let holds: Vec<_> = run.holds.iter().filter(|hold| hold.key == key && hold.call <= to).collect();
    let holds: Vec<_> = holds.into_iter().filter(|hold| run.stands_until(hold) >= from).collect();
    let mut rows: Vec<usize> = holds.iter().map(|hold| hold.process).collect();
    rows.sort_unstable();
    rows.dedup();
    let height = 60.0 + ROW * rows.len() as f64;
    let mut svg = String::new();
    let mut put = |text: String| svg.write_str(&text).expect("a text takes all");
    put(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    ));
    put(format!("<text x=\"4\" y=\"16\">{}: {}</text>\n", run.keys[key], escaped(&violation.text)));
    put(
        "<text x=\"4\" y=\"32\" fill=\"gray\">pale: could stand; blue: believed, alone; green: believed, shared; red: \
         stopped; orange: network fault; black: dead</text>\n"
            .to_owned(),
    );
    for (at, process) in rows.iter().enumerate() {
        let y = 44.0 + ROW * at as f64;
        let state = &run.processes[*process];
        put(format!("<text x=\"4\" y=\"{:.0}\">{}</text>\n", y + 16.0, escaped(&state.name)));
        let mut span = |start: u64, end: u64, y: f64, high: f64, color: &str, opacity: f64, title: &str| {
            if start < to && end > from {
                let wide = (x(end) - x(start)).max(1.0);
                put(format!(
                    "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high}\" fill=\"{color}\" \
                     opacity=\"{opacity}\"><title>{}</title></rect>\n",
                    x(start),
                    escaped(title)
                ));
            }
        };
        for (start, end) in &state.stops {
            span(*start, *end, y, ROW - 4.0, "red", 0.2, "stopped");
        }
        for (start, end, kind) in &state.nets {
            span(*start, *end, y, ROW - 4.0, "orange", 0.4, kind);
        }
        if let Some(dead) = state.dead {
            span(dead, dead + 1, y, ROW - 4.0, "black", 1.0, "dead");
        }
        for hold in holds.iter().filter(|hold| hold.process == *process) {
            let title = format!("token {}", hold.token);
            span(hold.call, run.stands_until(hold), y + 4.0, 6.0, "gray", 0.3, &title);
            let color = if hold.mode == Mode::Shared { "green" } else { "blue" };
            for (start, end) in &hold.beliefs {
                span(*start, *end, y + 12.0, 12.0, color, 0.6, &title);
            }
        }
    }
    let at = x(violation.at);
    put(format!("<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"38\" y2=\"{height}\" stroke=\"red\"/>\n</svg>\n"));
    Some(svg)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
