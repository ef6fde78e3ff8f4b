//! The least rights, as the docs list them: they are enough, and each of them is needed. A proxy denies all others, as
//! the service does.

use leasehold::{Error, ErrorKind, LockClient};

use crate::dynamodb::*;
use crate::support::bench::{renews, waits_in_vain};
use crate::support::dynamodb::{Table, config_at};
use crate::support::proxy::{Mode as Network, Proxy, Rule};
use crate::support::stores::unique;

const DENIED: &str =
    r#"{"__type":"com.amazonaws.dynamodb.v20120810#AccessDeniedException","message":"not authorized"}"#;
/// All actions that are ever sent.
const ACTIONS: [&str; 8] = [
    "GetItem",
    "UpdateItem",
    "DeleteItem",
    "Scan",
    "DescribeTable",
    "CreateTable",
    "UpdateTable",
    "UpdateContinuousBackups",
];

/// The actions that this kind of user needs at least, as the docs list them.
fn documented(who: &str) -> Vec<String> {
    let docs = include_str!("../../../src/api/stores/dynamodb.rs");
    let row = docs.lines().find(|line| line.starts_with(&format!("//! | {who}: "))).expect("its row in the docs");
    let least = row.split(" for the protections ").next().unwrap_or_default();
    least.split('`').filter_map(|word| word.strip_prefix("dynamodb:")).map(str::to_owned).collect()
}

/// The actions in this kind of user's statement of the policy that the docs show.
fn policy(who: &str) -> Vec<String> {
    let docs = include_str!("../../../src/api/stores/dynamodb.rs");
    let json = docs.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the policy");
    let policy: serde_json::Value = serde_json::from_str(&json.replace("//!", "")).expect("JSON");
    let statements = policy["Statement"].as_array().expect("its statements");
    let statement = statements.iter().find(|statement| statement["Sid"] == who).expect("the role's statement");
    let actions = statement["Action"].as_array().expect("its actions").iter().filter_map(|action| action.as_str());
    actions.filter_map(|action| action.strip_prefix("dynamodb:")).map(str::to_owned).collect()
}

#[test]
fn the_policies_say_what_the_table_of_rights_says() {
    for (who, beside) in [
        ("locker", &["DescribeTable"][..]),
        ("observer", &["DescribeTable"]),
        ("operator", &["UpdateTable", "UpdateContinuousBackups"]),
    ] {
        let least: Vec<String> = documented(who).into_iter().chain(beside.iter().map(|also| (*also).into())).collect();
        assert_eq!(policy(who), least, "{who}");
    }
}

/// A client that may only use these actions.
fn client_with(allowed: &[String], table: &Table) -> (Proxy, LockClient) {
    let proxy = Proxy::http(&crate::support::servers::dynamodb_local().unwrap());
    for action in ACTIONS.iter().filter(|action| !allowed.iter().any(|allowed| allowed == *action)) {
        proxy.add(Rule::always(Network::Say(400, DENIED)).on(&format!("DynamoDB_20120810.{action}\r\n")));
    }
    let client = patient(config_at(&proxy.url()), &table.0).connect();
    (proxy, client.expect("connecting needs only GetItem"))
}

fn locks(client: &LockClient) -> Result<(), Error> {
    let guard = client.lock("k")?;
    renews(&guard);
    waits_in_vain(client, "k", Duration::from_secs(3))?;
    assert!(client.get("k")?.is_some());
    guard.release().map_err(|failed| failed.error().clone())?;
    drop((client.lock_shared("s")?, client.lock_shared("s")?));
    let lock = client.request("moved").lease_forever().acquire()?;
    client.adopt(lock)?.release().map_err(|failed| failed.error().clone())
}

fn looks(client: &LockClient) -> Result<(), Error> {
    client.get("k")?;
    client.list(&leasehold::Filter::new()).map(drop)
}

fn operates(client: &LockClient) -> Result<(), Error> {
    client.create_schema()?;
    locks(client)?;
    looks(client)?;
    let lock = client.request("grouped").lock_id("group").acquire()?;
    client.unlock(lock.lock_id())?;
    client.purge(Duration::ZERO).map(drop)
}

#[test]
fn the_documented_rights_are_enough_and_each_is_needed() {
    needs_server!();
    type Work = fn(&LockClient) -> Result<(), Error>;
    for (who, works) in [("locker", locks as Work), ("observer", looks as Work), ("operator", operates as Work)] {
        let all = documented(who);
        assert!(all.len() >= 2, "{who}: {all:?}");
        let table = || if who == "operator" { Table(unique()) } else { Table::fresh() };
        let (_proxy, client) = client_with(&all, &table());
        works(&client).unwrap_or_else(|error| panic!("{who} with {all:?}: {error}"));
        // Connecting needs GetItem, and a purge deletes only what was free for a month.
        for less in all.iter().filter(|action| !["GetItem", "DeleteItem"].contains(&action.as_str())) {
            let rest: Vec<String> = all.iter().filter(|action| *action != less).cloned().collect();
            let (_proxy, client) = client_with(&rest, &table());
            let error = works(&client).expect_err(&format!("{who} works without {less}"));
            assert_eq!(error.kind(), ErrorKind::Permission, "{who} without {less}: {error}");
        }
    }
}
