//! Tables that the Go libraries use, too: what is the same for all three of them.
mod fleet;

/// The processes of a fleet begin here.
#[test]
fn member() {
    crate::support::go::member::run();
}
