//! A table that nodes of spindle use as well (`fleet=mixed`).
//!
//! A node takes a lock over when the heartbeat is older than its own duration and a second, in two transactions: the
//! first inserts a row whose name is that of the lock and a hash of its old token; the second writes the lock's row, on
//! no condition. So a client of leasehold that takes a lock over also inserts that row, in its one transaction. If the
//! row is there already, a node is between its two transactions.

use std::time::Duration;

use google_cloud_spanner::key::KeySet;
use google_cloud_spanner::mutation::Mutation;
use google_cloud_spanner::result::ResultSet;
use google_cloud_spanner::statement::Statement;
use google_cloud_spanner::value::Timestamp;
use jiff::Timestamp as Time;
use twox_hash::XxHash64;

use super::Target;
use super::read::Read;
use super::row::{At, COMMIT_TIMESTAMP, Row, time};
use super::transact::Write;
use crate::lease::{End, GrantId, Holder, Labels, LockRecord, StoreTime};
use crate::store::fleet::{Fleet, Limits};
use crate::sys::log;

/// The name of the other library, in errors and docs.
pub(super) const LIBRARY: &str = "spindle";
/// How much longer than their duration nodes wait before they take over.
pub(super) const DRIFT: Duration = Duration::from_secs(1);
/// How old the row of a takeover must be to be listed, so that a purge may delete it: the same age as for the rows of
/// locks.
const LEFT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The same as a condition of a query, which may find other rows, too: see [`is_left_over`].
pub(super) const LEFT_OVER: &str =
    "(t.token IS NULL AND t.heartbeat < TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 30 DAY))";
/// A takeover adds one row, and deletes at most this many rows of earlier takeovers.
const FEW: usize = 20;
/// What the client of spindle reads if the token is null.
const NO_TOKEN: &str = "0001-01-01T00:00:00Z";

pub(super) fn limits(duration: Duration) -> Limits {
    Limits {
        library: LIBRARY,
        no_shared: None,
        no_endless: Some("its nodes take over what has no heartbeat for their own duration; renew instead"),
        no_names: Some("its nodes take over what has no heartbeat; keep leases of names in another table"),
        one_lease: Some((
            duration,
            "its nodes take over after a duration of their own, whatever a row says; the lease of all locks is the option \
             spindle_duration, at most the least of the nodes' durations",
        )),
        // A node that has ever contended does not lead by a row that it would have to make.
        keeps_rows: true,
        not_in_key: Some((&['\'', '\\'], "its nodes paste names into their SQL")),
    }
}

/// Whether this is the row of a takeover of long ago. Later takeovers of the same lock delete it, if there are any.
pub(super) fn is_left_over(name: &str, row: &Row, now: StoreTime) -> bool {
    let is_number = |hash: &str| (1..=20).contains(&hash.len()) && hash.bytes().all(|digit| digit.is_ascii_digit());
    let is_takeover = name.rsplit_once('_').is_some_and(|(_, hash)| is_number(hash));
    let is_old = row.heartbeat.is_some_and(|at| now.since(at.time()) > LEFT);
    is_takeover && is_old && row.token.is_none() && !row.is_lock()
}

/// Whether a node stands in the way of a takeover.
pub(super) enum Contended {
    /// No. What the takeover also writes: the row that keeps nodes out, deletions of rows of earlier takeovers that
    /// nobody needs any more, and a time in those that have none.
    No(Vec<Mutation>),
    /// Yes: a node is about to write the row of the lock. It was first seen at this time, or is seen now for the first
    /// time.
    Since(Option<StoreTime>),
}

impl Target {
    /// Warns once that spindle uses the table, if this client has no `fleet=mixed`.
    pub fn watch_fleet(&self, read: &Read) {
        let theirs = read.record.exclusive.iter().filter(|holder| holder.grant.as_str().is_empty());
        let last = |holder: &Holder| holder.renewed.unwrap_or(holder.created);
        if !self.watch.finds(self.fleet, read.now, theirs.map(last)) {
            return;
        }
        log::warn!(
            target: "leasehold::spanner", key:? = read.record.key, table:? = self.table;
            "{LIBRARY} wrote its row within the last hour: while its nodes use the table, ours must have the option \
             fleet=mixed, or nodes with a duration below our leases take over live locks"
        );
    }

    /// If `write` takes over what was read: the name of the row that nodes insert before they take it over.
    pub fn contended(&self, key: &str, read: &Read, write: &Write) -> Option<String> {
        let (Fleet::Mixed, Some(old), Write::Put(new)) = (self.fleet, &read.row, write) else { return None };
        // A give-up writes no holder. A repeat of an acquire whose first grant is over is a new grant, with the same
        // grant id and another token.
        let is_new = new.grant_id != old.grant_id || new.token != old.token;
        let takes = new.grant_id.is_some() && is_new && read.record.live(read.now).next().is_none();
        takes.then(|| contention(key, old))
    }

    /// The time from which on `new` would come too late, if it extends what was read. By then a node may be about to
    /// take the lock, and a node that has found the lease over does not look at the heartbeat again.
    ///
    /// A new grant also extends what is live, if it joins other holders or takes the place of one. If nothing is live,
    /// the row of the takeover keeps nodes out instead. The commit may come long after this check, and its answer may
    /// not come at all: so the row itself has this time, too ([`Row::unless_later`]).
    pub fn extends_before(&self, read: &Read, new: &LockRecord) -> Option<StoreTime> {
        let renews = new.holders().any(|(_, new)| standing(read, new).is_some_and(|old| old != new));
        let grants = new.holders().any(|(_, new)| standing(read, new).is_none());
        match read.record.live(read.now).map(|(_, holder)| holder.until).max() {
            _ if !self.fleet.is_mixed() => None,
            None => renews.then_some(read.now),
            Some(End::At(until)) => {
                // Nodes go by the heartbeat alone, whatever lease the row has; and the end of a node's own lock has the
                // drift in it already.
                let heartbeat = read.row.as_ref().and_then(|row| row.heartbeat).map_or(until, At::time);
                (renews || grants).then_some(until.plus(DRIFT).min(heartbeat.plus(self.foreign_lease)))
            }
            Some(End::Never) => None,
        }
    }

    /// The record that applies if `new` comes too late: it has no holder that could be renewed; if `new` has a new
    /// grant, a node is the holder.
    pub fn too_late(&self, read: &Read, new: &LockRecord) -> LockRecord {
        let grants = new.holders().any(|(_, new)| standing(read, new).is_none());
        let exclusive = grants.then(|| self.taking_over(read.now));
        LockRecord { exclusive, shared: Vec::new(), ..read.record.clone() }
    }

    /// Finds the row `name`, and the rows of earlier takeovers of the same lock that nobody needs any more or that have
    /// no time yet. Names of other locks may begin in the same way, so only a number may follow.
    pub fn query_contention(&self, key: &str, name: &str, now: StoreTime) -> Statement {
        let sql = format!(
            "SELECT t.name, t.heartbeat FROM `{}` AS t WHERE STARTS_WITH(t.name, @prefix) AND t.writer IS NULL \
             AND t.format IS NULL AND REGEXP_CONTAINS(SUBSTR(t.name, LENGTH(@prefix) + 1), '^[0-9]{{1,20}}$') \
             AND (t.heartbeat IS NULL OR t.heartbeat < @long_ago OR t.name = @name) \
             ORDER BY IF(t.name = @name, 0, 1) LIMIT {FEW}",
            self.table
        );
        Statement::builder(sql)
            .add_param("prefix", format!("{key}_"))
            .add_param("name", name)
            .add_param("long_ago", At::Time(self.long_ago(now)).value())
            .build()
    }

    /// What the rows of that query mean for a takeover now.
    pub async fn judge(
        &self,
        name: &str,
        now: StoreTime,
        mut rows: ResultSet,
    ) -> google_cloud_spanner::Result<Contended> {
        let long_ago = self.long_ago(now);
        let (mut writes, mut is_there) = (Vec::new(), false);
        while let Some(row) = rows.next().await {
            let row = row?;
            let (found, since): (String, Option<Timestamp>) = (row.get(0)?, row.get(1)?);
            let since = since.as_ref().map(time);
            if found != name {
                // Not deleted earlier: a slow node would insert it again, and then write the row of the lock.
                writes.push(match since {
                    Some(_) => Mutation::delete(&self.table, KeySet::from(google_cloud_spanner::key![found])),
                    None => self.sighting(&found),
                });
            } else if since.is_some_and(|since| since < long_ago) {
                // Left by a node that died between its two transactions. Other nodes would wait for it for ever.
                is_there = true;
            } else {
                return Ok(Contended::Since(since));
            }
        }
        if !is_there {
            writes.push(self.sighting(name));
        }
        Ok(Contended::No(writes))
    }

    /// Writes the row of a takeover with a time. It is our own row, or that of a node that is seen for the first time
    /// between its two transactions, since nodes write no time. If the row came or went since it was read, the commit
    /// begins anew.
    pub fn sighting(&self, name: &str) -> Mutation {
        Mutation::new_insert_or_update_builder(&self.table)
            .set("name")
            .to(name)
            .set("heartbeat")
            .to(COMMIT_TIMESTAMP)
            .build()
    }

    /// A node that is between its two transactions, as a holder: so the pure rule refuses the lock.
    pub fn taking_over(&self, now: StoreTime) -> Holder {
        Holder {
            grant: GrantId::from_text(""),
            lock_id: String::new(),
            labels: Labels::of(taking_over()),
            token: 0,
            created: now,
            renewed: None,
            until: End::At(now.plus(self.duration())),
        }
    }

    /// What a node began before this time is over.
    fn long_ago(&self, now: StoreTime) -> StoreTime {
        now.minus(2 * self.duration())
    }

    fn duration(&self) -> Duration {
        self.foreign_lease.saturating_sub(DRIFT)
    }
}

/// The owner that is shown for a node that takes a lock over, or may be about to.
pub(super) fn taking_over() -> String {
    format!("a node of {LIBRARY} that takes it over")
}

fn standing<'a>(read: &'a Read, new: &Holder) -> Option<&'a Holder> {
    read.record.standing(&new.grant).map(|(_, old)| old)
}

/// The name of the row on which a takeover contends.
fn contention(key: &str, old: &Row) -> String {
    let text = old.token.map_or_else(|| NO_TOKEN.to_owned(), |at| rfc3339(at.time()));
    format!("{key}_{}", XxHash64::oneshot(0, text.as_bytes()))
}

/// As Go writes it: in UTC, without zeros at the end of the fraction.
fn rfc3339(at: StoreTime) -> String {
    // jiff can represent each `StoreTime`.
    Time::from_nanosecond(i128::from(at.as_nanos())).map_or_else(|_| NO_TOKEN.to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_row_of_a_takeover_has_the_recorded_name() {
        let at = |text: &str| {
            let nanos = text.parse::<Time>().unwrap().as_nanosecond();
            Some(At::Time(StoreTime::from_nanos(i64::try_from(nanos).unwrap())))
        };
        let name = |token| contention("golden", &Row { token, ..Row::default() });
        assert_eq!(name(at("2026-11-21T01:47:37.960599Z")), "golden_10665596657793393990");
        assert_eq!(name(at("2026-11-21T01:47:42.506173Z")), "golden_17944513966344031329");
    }
}
