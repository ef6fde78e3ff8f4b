//! Tables that the Go libraries also use: what is the same for all three of them.
#[cfg(any(feature = "dynamodb", feature = "mongodb", feature = "spanner"))]
pub mod cells;
#[cfg(all(target_os = "linux", feature = "dynamodb", feature = "mongodb", feature = "spanner"))]
mod fleet;

/// The processes of a fleet begin here.
#[cfg(target_os = "linux")]
#[test]
fn member() {
    crate::support::go::member::run();
}
