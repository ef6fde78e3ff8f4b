//! Many spans of time, asked whether any of them meets another span.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// From when to when.
pub type Span = (u64, u64);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    spans: Vec<Span>,
    /// The latest end of a span and all those before it.
    ends: Vec<u64>,
}

impl Windows {
    pub fn new(mut spans: Vec<Span>) -> Windows {
        spans.sort_unstable();
        let mut latest = 0;
        let ends = spans.iter().map(|(_, end)| {
            latest = latest.max(*end);
            latest
        });
        Windows { ends: ends.collect(), spans }
    }

    /// The places of those that may meet this span: all others do not.
    pub fn range(&self, from: u64, to: u64) -> Range<usize> {
        // All spans before `first` ended before `from`.
        let first = self.ends.partition_point(|end| *end < from);
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        first.min(begun)..begun
    }

    pub fn within(&self, from: u64, to: u64) -> impl Iterator<Item = &Span> {
        self.spans[self.range(from, to)].iter()
    }

    pub fn spans(&self) -> impl Iterator<Item = &Span> {
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
        self.within(from, to).filter(|(_, end)| *end >= from).take(least).count() == least
    }

    /// Whether at least this many of them meet each other within the span.
    pub fn has_together(&self, least: usize, from: u64, to: u64) -> bool {
        if !self.has(least, from, to) {
            return false;
        }
        let mut ends = BinaryHeap::new();
        self.within(from, to).filter(|(_, end)| *end >= from).any(|(start, end)| {
            while ends.peek().is_some_and(|Reverse(end)| *end < (*start).max(from)) {
                ends.pop();
            }
            ends.push(Reverse(*end));
            ends.len() >= least
        })
    }

    /// When at least this many of them meet.
    pub fn together(&self, least: usize) -> Vec<Span> {
        // At the same moment, those that begin come before those that end.
        let mut changes: Vec<(u64, bool)> =
            self.spans.iter().flat_map(|(from, to)| [(*from, false), (*to, true)]).collect();
        changes.sort_unstable();
        let (mut together, mut count, mut since) = (Vec::new(), 0, 0);
        for (at, is_end) in changes {
            if !is_end {
                count += 1;
                since = if count == least { at } else { since };
            } else {
                if count == least {
                    together.push((since, at));
                }
                count -= 1;
            }
        }
        together
    }

    /// Each moment in one of them is in one of these, which do not meet each other.
    pub fn joined(self) -> Vec<Span> {
        let mut joined: Vec<Span> = Vec::new();
        for (start, end) in self.spans {
            match joined.last_mut().filter(|(_, last)| start <= *last) {
                Some((_, last)) => *last = end.max(*last),
                None => joined.push((start, end)),
            }
        }
        joined
    }

    /// How much of the time from `from` to `to` lies in any of them.
    pub fn covered(&self, from: u64, to: u64) -> u64 {
        (to - from) - self.gaps(from, to, 0).iter().map(|(from, to)| to - from).sum::<u64>()
    }

    /// The gaps between them, from `from` to `to`, that are longer than `least`.
    pub fn gaps(&self, from: u64, to: u64, least: u64) -> Vec<Span> {
        let (mut gaps, mut covered) = (Vec::new(), from);
        for (start, end) in self.within(from, to).chain([&(to, to)]) {
            let start = *start;
            if start > covered && start - covered > least {
                gaps.push((covered, start));
            }
            covered = covered.max(*end);
        }
        gaps
    }
}
