//! What the lines of one worker say.

use std::collections::HashMap;

use super::history::{Form, Line};
use super::model::{Ask, Closed, Hold, Names, Outcome, Run, Write};
use super::points::Point;

/// The lines of one worker.
pub(super) struct Reader {
    process: usize,
    /// Each call's place among the asks, by its id.
    asks: HashMap<u64, usize>,
    /// Each hold's place among the holds, by its id.
    holds: HashMap<u64, usize>,
}

impl Reader {
    pub(super) fn new(process: usize) -> Reader {
        Reader { process, asks: HashMap::new(), holds: HashMap::new() }
    }

    pub(super) fn read(&mut self, run: &mut Run, keys: &mut Names, line: Line) -> Result<(), String> {
        let mut key = |run: &mut Run, name: &str| keys.of(name, || run.keys.push(name.to_owned()));
        match line {
            Line::Ask { at, id, asked } => {
                let keys = asked.keys.iter().map(|name| key(run, name)).collect();
                self.asks.insert(id, run.asks.len());
                let (process, outcome) = (self.process, Outcome::Open);
                let why = String::new();
                run.asks.push(Ask {
                    process,
                    id,
                    asked,
                    keys,
                    call: at,
                    ret: None,
                    outcome,
                    why,
                    old: None,
                    got: None,
                });
                run.end = run.end.max(at);
            }
            Line::Granted { at, id, token, key: name } => {
                let key = key(run, &name);
                self.grant(run, at, id, id, token, key)?;
            }
            Line::Part { at, of, id, token, key: name } => {
                let key = key(run, &name);
                self.grant(run, at, of, id, token, key)?;
            }
            Line::Refused { at, id } => self.answer(run, id, at, Outcome::Refused)?,
            Line::Failed { at, id, error, why } => {
                self.answer(run, id, at, Outcome::Failed(error))?;
                self.ask(run, id)?.why = why;
            }
            Line::Request { from, to, why } => run.processes[self.process].requests.push((from, to, why)),
            Line::Point { from, to, mark, calls } => {
                run.processes[self.process].points.push(Point { from, to, mark, calls, keys: Vec::new() });
            }
            Line::Look { from, to, id, left } => {
                run.end = run.end.max(to);
                self.hold(run, id)?.1.look(from, to, left);
            }
            Line::Lost { at, id, reason } => self.hold(run, id)?.1.lost = Some((at, reason)),
            Line::Ending { at, id, how } => {
                let hold = self.hold(run, id)?.1;
                let first = hold.ending.map_or(at, |(first, _)| first);
                (hold.ending, hold.ended) = (Some((first, how)), None);
                hold.end_calls.push((at, how, None));
                run.end = run.end.max(at);
            }
            Line::Ended { at, id, answer } => {
                run.end = run.end.max(at);
                let hold = self.hold(run, id)?.1;
                hold.ended = Some((at, answer));
                if let Some((_, _, answered)) = hold.end_calls.last_mut() {
                    *answered = Some(at);
                }
            }
            Line::Write { from, to, id, token, accepted } => {
                let (hold, _) = self.hold(run, id)?;
                run.writes.push(Write { hold, from, to, token, accepted });
            }
            Line::Forked { at, held, .. } => run.forks.push((at, self.process, held)),
            Line::Hung { from, to, .. } => run.hung.push((from, to, self.process)),
            Line::Crashed { at, .. } => run.crashed.push((at, self.process)),
            Line::Jumped { at, seconds } => run.processes[self.process].jumps.push((at, seconds)),
            Line::Closed { at, threads, descriptors } => {
                run.closed.push(Closed { process: self.process, at, threads, descriptors });
            }
            line => return Err(format!("no worker writes this: {line}")),
        }
        Ok(())
    }

    fn ask<'a>(&self, run: &'a mut Run, id: u64) -> Result<&'a mut Ask, String> {
        let at = self.asks.get(&id).ok_or_else(|| format!("nothing was asked with the id {id}"))?;
        Ok(&mut run.asks[*at])
    }

    fn answer(&self, run: &mut Run, id: u64, at: u64, outcome: Outcome) -> Result<(), String> {
        run.end = run.end.max(at);
        let ask = self.ask(run, id)?;
        (ask.ret, ask.outcome) = (Some(at), outcome);
        Ok(())
    }

    /// The call `of` has got a hold with this id.
    fn grant(&mut self, run: &mut Run, at: u64, of: u64, id: u64, token: u64, key: usize) -> Result<(), String> {
        run.end = run.end.max(at);
        let ask = self.ask(run, of)?;
        (ask.ret, ask.outcome, ask.got) = (Some(at), Outcome::Granted, Some(key));
        let hold = Hold {
            process: ask.process,
            calls: [of, id],
            key,
            form: ask.asked.form,
            mode: ask.asked.mode,
            limit: ask.asked.limit,
            is_part: ask.asked.all,
            token,
            call: ask.call,
            ret: at,
            beliefs: Vec::new(),
            gone: None,
            revived: None,
            lost: None,
            ending: None,
            ended: None,
            end_calls: Vec::new(),
            granted_until: 0,
            replaced: None,
            heir: None,
        };
        self.holds.insert(id, run.holds.len());
        run.holds.push(hold);
        Ok(())
    }

    fn hold<'a>(&self, run: &'a mut Run, id: u64) -> Result<(usize, &'a mut Hold), String> {
        let at = self.holds.get(&id).ok_or_else(|| format!("nothing was granted with the id {id}"))?;
        Ok((*at, &mut run.holds[*at]))
    }
}

impl Hold {
    fn look(&mut self, from: u64, to: u64, left: u64) {
        if left == 0 {
            self.gone.get_or_insert(from);
            return;
        }
        let was_over = if self.form == Form::Guard { self.gone.is_some() } else { self.lost.is_some() };
        if was_over {
            self.revived.get_or_insert(from);
        }
        let until = from.saturating_add(left);
        if self.lost.is_none() {
            self.granted_until = self.granted_until.max(until);
        }
        match self.beliefs.last_mut() {
            Some((_, end)) if to <= *end => *end = until.max(*end),
            _ if to < until => self.beliefs.push((to, until)),
            _ => {}
        }
    }
}
