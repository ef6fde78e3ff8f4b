//! When a call may have held a key although nobody knew of it, and which waits a fault explains.

use super::history::{Fate, Form};
use super::model::{Ask, Copy, Hold, Outcome, Run};
use super::points::Point;
use super::windows::{Span, Windows};

impl Run {
    /// When others could not get the key because of this hold, which stood until `until`. Without a fault each request
    /// of its call was answered, except for the last.
    pub fn in_the_way(&self, hold: &Hold, until: u64) -> Vec<Span> {
        let faults = self.delays_in(hold.process, hold.call, hold.ret).chain(self.failed_for(hold));
        self.held(hold, hold.ret.saturating_sub(self.terms.slack), until, faults)
    }

    /// When the key was taken by this hold, or may have been. If its call's thread was stopped for some time, it may be
    /// held earlier than the answer by as much.
    pub fn taken(&self, hold: &Hold, stopped: u64) -> Vec<Span> {
        let faults = self.troubles_in(hold.process, hold.call, hold.ret).chain(self.failed_for(hold));
        let faults = faults.chain(self.stops_of(hold.process, hold.calls[0]));
        self.held(hold, hold.ret.saturating_sub(stopped), self.stands_until(hold), faults)
    }

    fn held(&self, hold: &Hold, from: u64, until: u64, faults: impl Iterator<Item = Span>) -> Vec<Span> {
        // One of several locks that are wanted together may be held before the call is answered.
        let from = if hold.is_part { hold.call } else { from.max(hold.call) };
        let too_late = self.granted_too_late((hold.call, hold.ret), until, faults);
        joined(hold.form, too_late.chain([(from, until)]).collect())
    }

    /// When a call that did not get this key may have held it.
    pub fn may_have_held(&self, ask: &Ask, key: usize) -> Vec<Span> {
        let (call, ret) = (ask.call, ask.ret.or(self.processes[ask.process].dead).unwrap_or(self.end));
        let (form, until) = (ask.asked.form, self.unanswered_until(ask));
        if ask.is_unanswered() {
            // A call that wants all keys holds the first of them while it asks for the others.
            let from = if ask.asked.all { call } else { ret.saturating_sub(self.terms.slack).max(call) };
            let too_late = self.granted_too_late((call, ret), until, self.delays_in(ask.process, call, ret));
            return joined(form, too_late.chain([(from, until)]).collect());
        }
        let is_granted = ask.outcome == Outcome::Granted;
        if ask.asked.all && !is_granted {
            // It gives back those that it had when it does not get another: at once, or after its wait.
            let given_back = match (self.is_delayed(ask.process, call, ret), ask.asked.wait) {
                (true, _) => until,
                (false, Some(0)) => ret,
                (false, _) => ret + self.terms.slack,
            };
            return vec![(call, given_back)];
        }
        // Of several keys it may have got another one.
        let is_of_another = is_granted && !ask.asked.all && ask.got != Some(key);
        if !is_of_another && ask.outcome != Outcome::Refused {
            return Vec::new();
        }
        // If one of its requests failed, or its thread was stopped after an answer, it may have held the key even if the
        // next answer, or the end of its wait, was a refusal.
        let faults = self.failed_requests(ask.process, key, call, ret).chain(self.stops_of(ask.process, ask.id));
        let too_late = self.granted_too_late((call, ret), until, faults);
        // Of two locks that were handed over to it at once it gives one back, after its answer.
        let slack = self.terms.slack;
        let handed =
            (is_of_another && ask.asked.wait != Some(0)).then(|| (ret.saturating_sub(slack).max(call), ret + slack));
        joined(form, too_late.chain(handed).collect())
    }

    /// When requests of a call may have been granted that met one of these faults: the grant came too late, and was given
    /// up. A request is under way for its timeout at most, or until the fault is over.
    fn granted_too_late(
        &self,
        (call, ret): Span,
        until: u64,
        faults: impl Iterator<Item = Span>,
    ) -> impl Iterator<Item = Span> {
        let terms = self.terms;
        let (before, after) = (terms.timeout + terms.slack, terms.settle.max(terms.lease + terms.grace) + terms.slack);
        let met = faults.filter(move |(from, to)| *from <= ret && *to >= call);
        met.map(move |(from, to)| (from.saturating_sub(before).max(call), to.saturating_add(after).min(until)))
    }

    /// What slowed down the process.
    fn troubles_in(&self, process: usize, from: u64, to: u64) -> impl Iterator<Item = Span> {
        self.processes[process].troubles.within(from, to).chain(self.troubles.within(from, to)).copied()
    }

    /// The same, and the stops of its threads.
    fn delays_in(&self, process: usize, from: u64, to: u64) -> impl Iterator<Item = Span> {
        self.processes[process].delays.within(from, to).chain(self.troubles.within(from, to)).copied()
    }

    /// The stops of threads that were in this call.
    fn stops_of(&self, process: usize, call: u64) -> impl Iterator<Item = Span> {
        let points = self.processes[process].points.iter();
        points.filter(move |point| point.calls.contains(&call)).map(|point| (point.from, point.to))
    }

    /// The requests for this key that failed.
    fn failed_requests(&self, process: usize, key: usize, from: u64, to: u64) -> impl Iterator<Item = Span> {
        let key = format!("\"{}\"", self.keys[key]);
        let requests = self.processes[process].requests.iter();
        let failed = requests
            .filter(move |(at, _, why)| *at >= from && *at <= to && why.starts_with("acquire ") && why.contains(&key));
        failed.map(|(from, to, _)| (*from, *to))
    }

    /// The requests of the call that got this hold which failed, or came to the server twice.
    fn failed_for(&self, hold: &Hold) -> impl Iterator<Item = Span> {
        let is_its = |copy: &&Copy| {
            copy.process == hold.process
                && copy.key == self.keys[hold.key]
                && copy.asked >= hold.call
                && copy.asked <= hold.ret
        };
        let copies = self.copies.iter().filter(is_its).map(|copy| (copy.asked, copy.to));
        self.failed_requests(hold.process, hold.key, hold.call, hold.ret).chain(copies)
    }

    /// Where a store lets in one request at a time, those that found no gap between the others.
    pub fn crowded_out(&self, process: usize, keys: &[usize], (from, to): Span) -> Vec<Span> {
        let keys = keys.iter().filter(|_| self.terms.fate == Fate::Crowded);
        let begun = from.saturating_sub(self.terms.timeout);
        let failed = keys.flat_map(|key| self.failed_requests(process, *key, begun, to));
        failed.filter(|(_, over)| *over >= from).collect()
    }

    /// Whether faults explain that a call for these keys waited in vain in all of this time: those that it met, each until
    /// it was over and a lease later; and stops of its process's threads, if they are at such a point.
    pub fn explains(&self, process: usize, keys: &[usize], (from, to): Span, such: impl Fn(&Point) -> bool) -> bool {
        let (lease, slack) = (self.terms.lease, self.terms.slack);
        let meets = |(begun, over): &Span| *begun <= to && *over >= from;
        let later = |(begun, over): Span| (begun, over + lease);
        let faults =
            self.troubles_in(process, from, to).filter(meets).chain(self.crowded_out(process, keys, (from, to)));
        let faults: Vec<Span> = faults.map(later).collect();
        let points = self.processes[process].points.iter().filter(|point| such(point));
        let stops: Vec<Span> = points.map(|point| (point.from, point.to + slack)).filter(meets).map(later).collect();
        let gaps = Windows::new(faults.clone()).gaps(from, to, slack);
        // Many short stops explain no more than they last in all, and one lease.
        let all = Windows::new([faults.clone(), stops.clone()].concat());
        let is_long = |(from, to): &Span| to - from > self.stopped_for(process, *from, *to, &such) + lease + slack;
        let is_met = !faults.is_empty() || !stops.is_empty();
        is_met && !gaps.iter().any(is_long) && all.gaps(from, to, slack).is_empty()
    }
}

/// No span twice. What the name of a lease may have got stands until the last moment.
fn joined(form: Form, spans: Vec<Span>) -> Vec<Span> {
    let first = spans.iter().map(|(from, _)| *from).min();
    match (form, first, spans.iter().map(|(_, to)| *to).max()) {
        (Form::Name, Some(from), Some(to)) => vec![(from, to)],
        _ => Windows::new(spans).joined(),
    }
}
