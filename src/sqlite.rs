//! What only the SQLite store has.

use std::path::PathBuf;

use crate::backend::sqlite::SqliteOptions;
use crate::builder::ClientBuilder;
use crate::connect::sqlite_file;
use crate::rt::clock::Clock;

/// A client of the locks in this file, whatever characters its path has: in a store URL some of
/// them mean something else. The file is created if it is missing.
///
/// # Example
/// ```
/// # let folder = std::env::temp_dir().join(format!("leasehold-builder-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let client = leasehold::sqlite::builder(folder.join("100%?.db")).connect()?;
/// let _guard = client.lock("nightly-report")?;
/// # drop((_guard, client));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn builder(path: impl Into<PathBuf>) -> ClientBuilder {
    let options = SqliteOptions { path: path.into(), mode: None, unsafe_fs: false, clock_identity: None };
    ClientBuilder::with_opener(Ok(sqlite_file(options)), Clock::system())
}
