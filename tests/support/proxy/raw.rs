//! One client's connection, whose protocol the proxy does not know.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::{Flow, Inner, State};

/// How many bytes of each connection are remembered.
const HEARD: usize = 100_000;

pub fn serve(inner: &Arc<Inner>, id: u64, client: Arc<TcpStream>) -> io::Result<()> {
    let (server_id, server) = inner.connect(Some(id))?;
    std::thread::scope(|scope| {
        let up =
            || pump(inner, &client, &server, server_id, |state| state.to_server, |bytes| inner.hear(server_id, bytes));
        let up = std::thread::Builder::new().name(inner.name("up")).spawn_scoped(scope, up)?;
        pump(inner, &server, &client, id, |state| state.to_client, |_| {});
        up.join().expect("no panic in the proxy");
        Ok(())
    })
    .inspect(|()| inner.forget(server_id))
}

/// Carries bytes until one side ends the connection, and then passes that end on to the other.
fn pump(
    inner: &Inner,
    mut from: &TcpStream,
    mut to: &TcpStream,
    to_id: u64,
    flow: fn(&State) -> Flow,
    hear: impl Fn(&[u8]),
) {
    let mut bytes = [0; 16 * 1024];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        hear(&bytes[..count]);
        if !inner.let_through(to_id, flow) {
            return;
        }
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
    }
}

impl Inner {
    /// Remembers what a client sent.
    fn hear(&self, id: u64, bytes: &[u8]) {
        let mut state = self.lock();
        let heard = state.heard.entry(id).or_default();
        let room = HEARD.saturating_sub(heard.len());
        heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Waits as the flow says. False once the socket has been cut.
    fn let_through(&self, id: u64, flow: fn(&State) -> Flow) -> bool {
        let mut state = self.lock();
        let is_held = |state: &State| flow(state) == Flow::Hold || state.silent.contains(&id);
        self.changed.wait_while(&mut state, |state| is_held(state) && state.open.contains_key(&id));
        let (now, is_open) = (flow(&state), state.open.contains_key(&id));
        drop(state);
        match now {
            Flow::Delay(time) => self.wait(id, time),
            Flow::Pass | Flow::Hold => is_open,
        }
    }
}
