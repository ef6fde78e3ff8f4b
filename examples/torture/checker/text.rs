//! How the lines of a history are written.

use std::fmt;

use super::history::{End, Form, Line, Mode};

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Ask { at, id, asked } => {
                let form = match asked.form {
                    Form::Guard if asked.all => 'a',
                    Form::Guard => 'g',
                    Form::Data => 'd',
                    Form::Name => 'n',
                };
                let mode = if asked.mode == Mode::Shared { 's' } else { 'x' };
                let wait = asked.wait.map_or("-".to_owned(), |wait| wait.to_string());
                let old = asked.instead_of.unwrap_or(0);
                write!(f, "ask {at} {id} {form}{mode} {} {} {wait} {old}", asked.keys.join(","), asked.limit)
            }
            Line::Granted { at, id, token, key } => write!(f, "granted {at} {id} {token} {key}"),
            Line::Part { at, of, id, token, key } => write!(f, "part {at} {of} {id} {token} {key}"),
            Line::Refused { at, id } => write!(f, "refused {at} {id}"),
            Line::Failed { at, id, error, why } => write!(f, "failed {at} {id} {error} {why}"),
            Line::Request { from, to, why } => write!(f, "request {from} {to} {why}"),
            Line::Point { from, to, mark, calls } => {
                let calls: Vec<String> = calls.iter().map(u64::to_string).collect();
                write!(
                    f,
                    "point {from} {to} {mark} {}",
                    if calls.is_empty() { "-".to_owned() } else { calls.join(",") }
                )
            }
            Line::Look { from, to, id, left } => write!(f, "look {from} {to} {id} {left}"),
            Line::Lost { at, id, reason } => write!(f, "lost {at} {id} {reason}"),
            Line::Ending { at, id, how } => {
                let how = match how {
                    End::Release => "release",
                    End::Drop => "drop",
                    End::Leave => "leave",
                };
                write!(f, "ending {at} {id} {how}")
            }
            Line::Ended { at, id, answer } => write!(f, "ended {at} {id} {answer}"),
            Line::Write { from, to, id, token, accepted } => {
                write!(f, "write {from} {to} {id} {token} {}", u8::from(*accepted))
            }
            Line::Forked { at, id, held } => write!(f, "forked {at} {id} {}", u8::from(*held)),
            Line::Hung { from, to, id } => write!(f, "hung {from} {to} {id}"),
            Line::Crashed { at, id } => write!(f, "crashed {at} {id}"),
            Line::Terms { lease, timeout, grace, slack, settle, fate } => {
                write!(f, "terms {lease} {timeout} {grace} {slack} {settle} {}", *fate as u8)
            }
            Line::Stopped { from, to, process } => write!(f, "stopped {from} {to} {process}"),
            Line::Dead { at, process } => write!(f, "dead {at} {process}"),
            Line::Net { from, to, process, kind } => write!(f, "net {from} {to} {process} {kind}"),
            Line::Twice { asked, from, to, process, key, known_again, answered } => {
                let [known_again, answered] = [known_again, answered].map(|flag| u8::from(*flag));
                write!(f, "twice {asked} {from} {to} {process} {key} {known_again} {answered}")
            }
            Line::Date { at, process, seconds } => write!(f, "date {at} {process} {seconds}"),
            Line::Server { from, to, kind } => write!(f, "server {from} {to} {kind}"),
            Line::Deleted { from, to, key } => write!(f, "deleted {from} {to} {key}"),
            Line::Late { from, to } => write!(f, "late {from} {to}"),
            Line::Wall { at, process, seconds } => write!(f, "wall {at} {process} {seconds}"),
            Line::Jumped { at, seconds } => write!(f, "jumped {at} {seconds}"),
            Line::Closed { at, threads, descriptors } => write!(f, "closed {at} {threads} {descriptors}"),
            Line::Kept { at, key, holders } => write!(f, "kept {at} {key} {holders}"),
            Line::Left { at, key, holders } => write!(f, "left {at} {key} {holders}"),
            Line::Over { at } => write!(f, "over {at}"),
            Line::Accepted { at, key, token } => write!(f, "accepted {at} {key} {token}"),
            Line::Outdated { at, key, token, highest } => write!(f, "outdated {at} {key} {token} {highest}"),
        }
    }
}
