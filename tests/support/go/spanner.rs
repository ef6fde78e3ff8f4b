//! spindle: the requests of one node at each of its ticks. It uses no clock of its own; the service's clock decides.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::spanner::google_cloud_spanner as sdk;
use sdk::statement::Statement;
use sdk::value::Value;

use crate::support::spanner::{Database, Raw, TABLE};

/// A node that wants to lead.
pub struct Node {
    raw: Raw,
    name: String,
    id: String,
    duration_ms: i64,
    /// The token that it got last, as text.
    token: Option<String>,
    /// It has not yet seen that the row exists.
    is_new: bool,
    leads: bool,
    misread: bool,
    is_early: bool,
    looked_at: Option<String>,
}

/// A takeover whose first transaction is done: the token that the second one writes.
pub struct HalfDone(String);

impl Node {
    pub fn new(database: &Database, name: &str, id: &str, duration: Duration) -> Node {
        let duration_ms = i64::try_from(duration.as_millis()).unwrap();
        let (name, id) = (name.to_owned(), id.to_owned());
        Node {
            raw: database.raw(),
            name,
            id,
            duration_ms,
            token: None,
            is_new: true,
            leads: false,
            misread: false,
            is_early: false,
            looked_at: None,
        }
    }

    /// One whole tick.
    pub fn tick(&mut self) {
        if let Some(half) = self.begin() {
            self.finish(half);
        }
    }

    /// Makes its next look find a heartbeat of the same millisecond.
    pub fn is_early(&mut self) {
        self.is_early = true;
    }

    /// A tick up to the first transaction of a takeover.
    pub fn begin(&mut self) -> Option<HalfDone> {
        if self.finds_it_free() { self.contend() } else { None }
    }

    /// Its first look, and its heartbeat if it leads.
    pub fn finds_it_free(&mut self) -> bool {
        let (token, age) = self.look();
        let age = if std::mem::take(&mut self.is_early) { age.map(|_| 0) } else { age };
        self.leads = self.token.is_some() && token == self.token;
        if self.leads {
            self.heartbeat();
            return false;
        }
        self.looked_at = token;
        // It treats an age of zero or less as if there were no heartbeat.
        self.misread = age.is_some_and(|age| age <= 0);
        age.is_none_or(|age| age <= 0 || age > self.duration_ms + 1_000)
    }

    /// The rest of the tick, whatever happened since the first look: it reads the token again, but not the heartbeat's
    /// age.
    pub fn contend(&mut self) -> Option<HalfDone> {
        if self.is_new {
            let (table, name, id) = (TABLE, &self.name, &self.id);
            let now = "PENDING_COMMIT_TIMESTAMP()";
            let sql =
                format!("INSERT {table} (name, heartbeat, token, writer) VALUES ('{name}', {now}, {now}, '{id}')");
            if let Some(committed) = self.run(&[Statement::builder(sql).build()]) {
                self.token = Some(committed);
                return None;
            }
            self.is_new = false;
        }
        let is_there = !self.row().is_empty();
        let token = self.look().0;
        self.misread |= token != self.looked_at;
        let null = if is_there { "0001-01-01T00:00:00Z" } else { "" };
        let token = token.unwrap_or_else(|| null.to_owned());
        let contended = format!("{}_{}", self.name, xxhash64(token.as_bytes()));
        let insert = format!("INSERT {TABLE} (name) VALUES ('{contended}')");
        self.run(&[Statement::builder(insert).build()]).map(HalfDone)
    }

    /// The second transaction, without any condition.
    pub fn finish(&mut self, half: HalfDone) {
        let sql = format!(
            "UPDATE {TABLE} SET heartbeat = PENDING_COMMIT_TIMESTAMP(), token = TIMESTAMP '{}', writer = @writer \
             WHERE name = @name",
            half.0
        );
        let update = Statement::builder(sql).add_param("name", &self.name).add_param("writer", &self.id).build();
        let committed = self.run(&[update]).unwrap();
        let [begun, done] = [&half.0, &committed].map(|at| at.parse::<jiff::Timestamp>().unwrap());
        self.misread |= done.duration_since(begun).as_millis() > i128::from(2 * self.duration_ms);
        self.token = Some(half.0);
    }

    /// Also without any condition. In spindle another task sends it between half a duration and a duration after the
    /// last one, unless the last tick found another leader; here a tick sends it, too. It also deletes every row whose
    /// name begins with the lock's name and `_`.
    pub fn heartbeat(&self) {
        let update = format!("UPDATE {TABLE} SET heartbeat = PENDING_COMMIT_TIMESTAMP() WHERE name = @name");
        let update = Statement::builder(update).add_param("name", &self.name).build();
        let delete = format!("DELETE FROM {TABLE} WHERE STARTS_WITH(name, '{}_')", self.name);
        self.run(&[update, Statement::builder(delete).build()]).unwrap();
    }

    /// Whether it leads, by the token in the row.
    pub fn has_lock(&self) -> bool {
        self.token.is_some() && self.look().0 == self.token
    }

    /// Whether its last tick found it leading.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Whether its last tick took a live lock for a free one: it took a heartbeat of the same millisecond for none, or
    /// somebody took the lock over between its two looks, or its second transaction came so late after the first that
    /// it counts as dead.
    pub fn misread(&self) -> bool {
        self.misread
    }

    /// The hash of the token, by which its users know it.
    pub fn hash(&self) -> u64 {
        xxhash64(self.token.as_deref().unwrap_or_default().as_bytes())
    }

    /// The leader, as it reports it to its users.
    pub fn leader(&self) -> Option<String> {
        self.row().first()?["writer"].as_str().map(str::to_owned)
    }

    fn row(&self) -> Vec<BTreeMap<String, Value>> {
        let sql = format!("SELECT token, writer FROM {TABLE} WHERE name = @name");
        self.raw.query(Statement::builder(sql).add_param("name", &self.name).build())
    }

    /// The row's token, and the age of its heartbeat in milliseconds.
    fn look(&self) -> (Option<String>, Option<i64>) {
        let sql = format!(
            "SELECT TIMESTAMP_DIFF(CURRENT_TIMESTAMP(), heartbeat, MILLISECOND) AS diff, token FROM {TABLE} WHERE name = @name"
        );
        let rows = self.raw.query(Statement::builder(sql).add_param("name", &self.name).build());
        let Some(row) = rows.first() else { return (None, None) };
        let token = row["token"].as_str().map(|token| token.parse::<jiff::Timestamp>().unwrap().to_string());
        (token, row["diff"].as_str().map(|diff| diff.parse().unwrap()))
    }

    /// Runs them in one transaction. Returns its commit time as text; `None` where a row existed already.
    fn run(&self, statements: &[Statement]) -> Option<String> {
        let runner = self.raw.client.read_write_transaction().build();
        let ran = self.raw.wait(runner.run(async |tx| {
            for statement in statements {
                tx.execute_update(statement.clone()).await?;
            }
            Ok(())
        }));
        match ran {
            Ok(result) => {
                let at = result.commit_timestamp().expect("a commit has a time");
                let at = jiff::Timestamp::new(at.seconds(), at.nanos()).unwrap();
                Some(at.to_string())
            }
            Err(error) if error.status().is_some_and(|status| format!("{:?}", status.code) == "AlreadyExists") => None,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// The hash of a text below 32 bytes, with the seed 0, written from its definition.
fn xxhash64(text: &[u8]) -> u64 {
    const P: [u64; 5] = [
        11_400_714_785_074_694_791,
        14_029_467_366_897_019_727,
        1_609_587_929_392_839_161,
        9_650_029_242_287_828_579,
        2_870_177_450_012_600_261,
    ];
    let mut hash = P[4].wrapping_add(text.len() as u64);
    let mut rest = text;
    while rest.len() >= 8 {
        let lane = u64::from_le_bytes(rest[..8].try_into().unwrap());
        hash ^= lane.wrapping_mul(P[1]).rotate_left(31).wrapping_mul(P[0]);
        hash = hash.rotate_left(27).wrapping_mul(P[0]).wrapping_add(P[3]);
        rest = &rest[8..];
    }
    if rest.len() >= 4 {
        let lane = u64::from(u32::from_le_bytes(rest[..4].try_into().unwrap()));
        hash = (hash ^ lane.wrapping_mul(P[0])).rotate_left(23).wrapping_mul(P[1]).wrapping_add(P[2]);
        rest = &rest[4..];
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P[1]);
    hash = (hash ^ hash >> 29).wrapping_mul(P[2]);
    hash ^ hash >> 32
}

/// One process of a fleet, with a node for each lock. It leaves a lock by not ticking any more: the others wait for its
/// duration.
#[cfg(target_os = "linux")]
pub struct Worker {
    database: Database,
    duration: Duration,
    nodes: BTreeMap<String, Node>,
}

#[cfg(target_os = "linux")]
impl Worker {
    pub fn new(host: &str, path: &str, duration: Duration) -> Worker {
        let database = Database { host: host.to_owned(), path: path.to_owned() };
        Worker { database, duration, nodes: BTreeMap::new() }
    }

    fn node(&mut self, key: &str) -> &mut Node {
        let id = format!("node-{}", std::process::id());
        let new = || Node::new(&self.database, key, &id, self.duration);
        self.nodes.entry(key.to_owned()).or_insert_with(new)
    }
}

#[cfg(target_os = "linux")]
impl super::member::Member for Worker {
    fn take(&mut self, key: &str, number: u64) -> Option<u64> {
        let node = self.node(key);
        // It has left this lock, and nobody took it over yet: a tick would send a heartbeat.
        if node.has_lock() {
            return None;
        }
        node.tick();
        node.has_lock().then(|| number + u64::from(node.misread()))
    }

    fn holds(&mut self, key: &str) -> bool {
        self.node(key).has_lock()
    }

    fn renew(&mut self, key: &str) {
        let node = self.node(key);
        if node.has_lock() {
            node.heartbeat();
        }
    }

    fn leave(&mut self, _key: &str) {}
}
