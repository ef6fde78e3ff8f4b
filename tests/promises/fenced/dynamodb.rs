//! On DynamoDB Local.

use std::any::Any;
use std::time::Duration;

use leasehold::ClientBuilder;
use leasehold::fence::Fence;

use crate::fenced::cases::lost;
use crate::fenced::data::Data;
use crate::fenced::data::dynamodb::Items;
use crate::fenced::{LONG, Open, Store};
use crate::support::dynamodb::{Table, config_at};
use crate::support::servers::dynamodb_local;

pub struct Kind;

impl Store for Kind {
    type Data = Items;
    const NAME: &str = "dynamodb";
    const GRACE: Duration = Duration::from_secs(2);

    fn fresh() -> Option<(String, Box<dyn Any + Sync>)> {
        let endpoint = dynamodb_local()?;
        Some((format!("dynamodb://{}?endpoint={endpoint}", Table::fresh().0), Box::new(())))
    }

    fn builder(url: &str) -> ClientBuilder {
        let (table, endpoint) = named(url);
        leasehold::dynamodb::builder(config_at(endpoint), table)
    }

    fn data(url: &str) -> Items {
        let (table, endpoint) = named(url);
        Items::new(&config_at(endpoint), table)
    }
}

fn named(url: &str) -> (&str, &str) {
    url.strip_prefix("dynamodb://").and_then(|rest| rest.split_once("?endpoint=")).unwrap()
}

crate::fenced::suite!(Kind);

#[test]
fn the_loss_tells_who_holds_it() {
    let Some(open) = Open::<Kind>::fresh() else { return };
    let client = open.client(LONG);
    let owners = |held: Fence<'_>| {
        let error = lost(open.data.write(&held, "a", "late"));
        error.holders().iter().map(|holder| holder.owner().to_owned()).collect::<Vec<_>>()
    };
    let guard = client.lock("a").unwrap();
    let next = client.request("a").owner("next").adopt(guard.info()).unwrap();
    assert_eq!(owners(client.fence(&guard.info())), ["next"]);
    let released = next.info();
    next.release().unwrap();
    assert!(owners(client.fence(&released)).is_empty());
    let leases = client.leases("space");
    let lease = leases.claim("app", "unit/0", LONG).unwrap();
    leases.revoke("app", "unit/0").unwrap();
    leases.claim("app", "unit/1", LONG).unwrap();
    assert_eq!(owners(leases.fence(&lease)), ["unit/1"]);
}
