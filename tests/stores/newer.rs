//! A row of a newer version, in a form that this one can't read: the error names the version, and no damage.

use std::sync::Arc;
use std::time::Duration;

use leasehold::internals::store::Backend;
use leasehold::internals::sys::clock::Clock;
use leasehold::{ErrorKind, Filter};

use crate::support::bench::builder_over;

const MINUTE: Duration = Duration::from_secs(60);

/// `change` gives the row with this key the format 2.0 and another kind.
pub fn its_version_is_told(store: impl Backend + 'static, change: impl Fn(&str)) {
    let client = builder_over(Arc::new(store), Clock::system()).connect().unwrap();
    for key in ["a", "newer"] {
        client.request(key).lock_id("of both").lease(MINUTE).acquire().unwrap();
    }
    client.request("newer shared").shared().owner("of nobody").lock_id("of others").lease(MINUTE).acquire().unwrap();
    ["newer", "newer shared"].iter().for_each(|key| change(key));
    for answer in [
        client.get("newer").map(drop),
        client.try_lock("newer").map(drop),
        client.force_release("newer").map(drop),
        client.renew("of both", MINUTE).map(drop),
        client.unlock("of both").map(drop),
    ] {
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Schema, Some("newer")), "{error}");
        assert!(error.to_string().contains("this version of leasehold reads up to"), "{error}");
    }
    for filter in [Filter::new(), Filter::new().lock_id("of both")] {
        let listed = client.list(&filter).unwrap();
        assert_eq!(listed.iter().map(|status| status.key()).collect::<Vec<_>>(), ["a"]);
    }
    // A group call meets only the rows of its own group.
    assert!(client.unlock("of nobody").unwrap().is_empty());
    assert_eq!(client.unlock("of others").unwrap_err().key(), Some("newer shared"));
}
