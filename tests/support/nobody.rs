//! Addresses on this host at which nobody serves. Each value keeps its port while it lives, so that no other program
//! gets it, and nothing leaves the machine.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, socket};

/// A name that the resolver refuses by itself: its only label is longer than allowed.
pub const NO_NAME: &str = "a-name-that-is-longer-than-the-63-letters-that-a-label-can-have-at-most";

/// A connection to it is refused: the port is that of our end of a connection, and nobody listens on it.
pub struct Closed(TcpStream, TcpListener);

/// A connection to it gets no answer: nobody accepts connections, and the queue is full.
pub struct Mute(TcpListener, Vec<TcpStream>);

/// A connection to this port is refused while the value lives. None if another program already has the port.
pub fn closed(port: u16) -> Option<OwnedFd> {
    let own = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).expect("a socket");
    bind(own.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).is_ok().then_some(own)
}

impl Closed {
    pub fn new() -> Closed {
        let other = silent();
        Closed(TcpStream::connect(other.local_addr().expect("its address")).expect("a connection"), other)
    }

    pub fn address(&self) -> String {
        self.0.local_addr().expect("its address").to_string()
    }
}

impl Mute {
    pub fn new() -> Mute {
        let listener = silent();
        listen(&listener, Backlog::new(0).expect("a backlog")).expect("a shorter queue");
        let address = listener.local_addr().expect("its address");
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let waiting = std::iter::from_fn(connect).collect();
        Mute(listener, waiting)
    }

    pub fn address(&self) -> String {
        self.0.local_addr().expect("its address").to_string()
    }
}

/// A listener that takes a connection and says nothing.
pub fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}
