//! Many spans of time, asked whether any of them meets another span.

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    spans: Vec<(u64, u64)>,
    /// The latest end of a span and all those before it.
    ends: Vec<u64>,
}

impl Windows {
    pub fn new(mut spans: Vec<(u64, u64)>) -> Windows {
        spans.sort_unstable();
        let mut latest = 0;
        let ends = spans.iter().map(|(_, end)| {
            latest = latest.max(*end);
            latest
        });
        Windows { ends: ends.collect(), spans }
    }

    pub fn spans(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.spans.iter()
    }

    /// The latest end of those that begin by `to`, if it is not before `from`: then one of them meets the span.
    pub fn met(&self, from: u64, to: u64) -> Option<u64> {
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        self.ends.get(begun.checked_sub(1)?).copied().filter(|end| *end >= from)
    }

    pub fn meets(&self, from: u64, to: u64) -> bool {
        self.met(from, to).is_some()
    }

    /// Whether at least this many of them meet the span.
    pub fn has(&self, least: usize, from: u64, to: u64) -> bool {
        // All spans before `first` ended before `from`.
        let first = self.ends.partition_point(|end| *end < from);
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        let meeting = self.spans[first.min(begun)..begun].iter().filter(|(_, end)| *end >= from);
        meeting.take(least).count() == least
    }

    /// How much of the time from `from` to `to` lies in any of them.
    pub fn covered(&self, from: u64, to: u64) -> u64 {
        (to - from) - self.gaps(from, to, 0).iter().map(|(from, to)| to - from).sum::<u64>()
    }

    /// The gaps between them, from `from` to `to`, that are longer than `least`.
    pub fn gaps(&self, from: u64, to: u64, least: u64) -> Vec<(u64, u64)> {
        let (mut gaps, mut covered) = (Vec::new(), from);
        for (start, end) in self.spans.iter().chain([&(to, to)]) {
            let start = (*start).min(to);
            if start > covered && start - covered > least {
                gaps.push((covered, start));
            }
            covered = covered.max(*end);
        }
        gaps
    }
}
