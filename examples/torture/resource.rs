//! What the locks protect. It knows only their tokens, and refuses a token below the highest that it has seen.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::Mutex;

use crate::checker::history::Line;
use crate::clock::now;

fn socket(dir: &Path) -> PathBuf {
    dir.join("resource.sock")
}

/// The highest tokens, and the log of the writes in the order in which they came.
type State = Arc<Mutex<(HashMap<String, u64>, File)>>;

/// Serves each connection by a thread of its own, for as long as this process lives.
pub fn serve(dir: &Path) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket(dir))?;
    let log = File::create(dir.join("resource.log"))?;
    let state: State = Arc::new(Mutex::new((HashMap::new(), log)));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = state.clone();
            std::thread::spawn(move || serve_one(&stream, &state));
        }
    });
    Ok(())
}

fn serve_one(stream: &UnixStream, state: &State) {
    for line in BufReader::new(stream).lines() {
        let Some((key, token)) = line.as_ref().ok().and_then(|line| line.split_once(' ')) else { return };
        let Ok(token) = token.parse() else { return };
        let answer = {
            let (highest, log) = &mut *state.lock();
            let known = highest.entry(key.to_owned()).or_default();
            let (at, key) = (now(), key.to_owned());
            let accepted = token >= *known;
            let line = match accepted {
                true => Line::Accepted { at, key, token },
                false => Line::Outdated { at, key, token, highest: *known },
            };
            *known = token.max(*known);
            if writeln!(log, "{line}").is_err() {
                return;
            }
            accepted
        };
        let mut stream = stream;
        if stream.write_all(if answer { b"1\n" } else { b"0\n" }).is_err() {
            return;
        }
    }
}

/// A worker's connection to the resource.
pub struct Resource(Mutex<BufReader<UnixStream>>);

impl Resource {
    pub fn connect(dir: &Path) -> Resource {
        let stream = UnixStream::connect(socket(dir)).expect("the resource");
        Resource(Mutex::new(BufReader::new(stream)))
    }

    /// Whether the resource accepted the write; `None` when the parent is gone.
    pub fn write(&self, key: &str, token: u64) -> Option<bool> {
        let mut stream = self.0.lock();
        stream.get_mut().write_all(format!("{key} {token}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_line(&mut answer).ok()?;
        match answer.as_str() {
            "1\n" => Some(true),
            "0\n" => Some(false),
            _ => None,
        }
    }
}
