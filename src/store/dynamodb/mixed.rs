//! A table that dynamodb-lock-go writes to as well (`fleet=mixed`): what our rows have for its sake, and the warning
//! about its rows where the option is not set.
//!
//! Its acquire, heartbeat and release accept any caller with the owner text of the row, whether the lock is live or
//! not. So our owner text ends in a part of the grant id, which no other process has. Its put drops attributes that it
//! does not know, and its release deletes the row. The condition on the grant id notices both, and tokens still rise,
//! because they are made from the time.

use std::time::Duration;

use super::Dynamodb;
use super::expr::{Expr, Item, number};
use super::row::{self, DecodedRow};
use crate::lease::{End, GrantId, Holder, StoreTime};
use crate::store::fleet::{Fleet, Limits};
use crate::sys::log;

/// Its name in errors and docs.
pub(super) const LIBRARY: &str = "dynamodb-lock-go";
/// How long that library waits itself: the clocks of its hosts may be off by as much.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How long after the end of a lease the table's time to live may delete the row, in seconds.
const TTL_S: i64 = 2 * 24 * 3600;

pub(super) const LIMITS: Limits = Limits {
    library: LIBRARY,
    no_shared: Some("it knows one owner of a row, and takes a row whose one owner it is; share locks in another table"),
    no_endless: Some("a row there has a time to live, which begins with the end of its lease; renew instead"),
    no_names: Some("the table's time to live would end it; keep leases of names in another table"),
    one_lease: None,
    keeps_rows: false,
    not_in_key: None,
};

/// What follows the label in the owner text of a row: `#` and the first eight digits of the grant id.
fn suffix(grant: &GrantId) -> String {
    format!("#{}", grant.short())
}

/// The label in the owner text of a row, whichever library wrote it.
pub(super) fn label(mut owner: String, grant: &GrantId) -> String {
    if let Some(label) = owner.strip_suffix(&suffix(grant)) {
        owner.truncate(label.len());
    }
    owner
}

/// The owner text for a new grant. A request that replaces a holder by its label must have the same text as that
/// holder, so then the text is the label alone.
pub(super) fn owner(fleet: Fleet, holder: &Holder, replaces: bool) -> String {
    let label = &holder.labels.owner;
    // A holder of that library has no grant id.
    if fleet.is_mixed() && !replaces && !holder.grant.as_str().is_empty() {
        label.clone() + &suffix(&holder.grant)
    } else {
        label.clone()
    }
}

/// The owner text where the whole row is written: unchanged, if the row already has this grant.
pub(super) fn stored_owner(fleet: Fleet, holder: &Holder, row: Option<&Item>) -> String {
    let stands = row.filter(|row| row::get_text(row, "grantId").ok().flatten() == Some(holder.grant.as_str()));
    let stored = stands.and_then(|row| row::get_text(row, "owner").ok().flatten());
    stored.map_or_else(|| owner(fleet, holder, false), str::to_owned)
}

/// The same write, with a time to live wherever it sets the end of the row. The other library's time to live is a text,
/// by which the service deletes nothing, but it can read a number. In a table of our own the time to live is removed:
/// an older one may be before the new end.
pub(super) fn with_ttl(fleet: Fleet, mut expr: Expr) -> Expr {
    // An end that is only set where there is none gets no time to live.
    let Some(until) = expr.update.value_of("#leasedUntil").and_then(|value| expr.text(value)) else { return expr };
    let ttl = match row::parse_end(until) {
        Ok(End::At(at)) if fleet.is_mixed() && at > StoreTime::from_nanos(0) => {
            u64::try_from(at.as_nanos().div_euclid(1_000_000_000) + TTL_S).ok().map(number)
        }
        _ => None,
    };
    expr.put("ttl", ttl);
    expr
}

impl Dynamodb {
    /// Warns once that dynamodb-lock-go uses the table, if `fleet=mixed` is not set.
    pub(super) fn watch_fleet(&self, found: &DecodedRow, now: StoreTime) {
        let theirs = found.record.exclusive.iter().filter(|holder| holder.grant.as_str().is_empty());
        // That library sets `createdAt` at each heartbeat. Its older versions do not write it.
        let last = |holder: &Holder| match holder.until {
            End::At(until) if holder.created == StoreTime::from_nanos(0) => until,
            _ => holder.created,
        };
        if !self.watch.finds(self.fleet, now, theirs.map(last)) {
            return;
        }
        log::warn!(
            target: "leasehold::dynamodb", key:? = found.record.key, store:? = self.info.label;
            "{LIBRARY} wrote its row within the last hour: while its processes use the table, ours must have the option \
             fleet=mixed, or a client of theirs with the same owner takes our live locks"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::dynamodb::expr::{Update, text};

    const END: &str = "1970-01-02T00:00:01.999999999Z";

    fn adapted(fleet: Fleet, update: Update, end: &str) -> (String, Option<String>) {
        let expr = Expr::new("k", "#fence = :f", update).value(":end", text(end));
        let expr = with_ttl(fleet, expr);
        let ttl = expr.values().get(":ttl").map(|ttl| ttl.as_n().cloned().unwrap_or_default());
        (expr.update.to_string(), ttl)
    }

    fn ending() -> Update {
        Update::setting(&[("#a", ":a"), ("#leasedUntil", ":end")])
    }

    #[test]
    fn each_end_has_its_time_to_live() {
        for update in [ending(), ending().remove("#ttl")] {
            let (update, ttl) = adapted(Fleet::Mixed, update.remove("#host"), END);
            assert_eq!(update, "SET #a = :a, #leasedUntil = :end, #ttl = :ttl REMOVE #host");
            assert_eq!(ttl.as_deref(), Some("259201"));
        }
    }

    #[test]
    fn what_has_no_end_has_no_time_to_live() {
        for (fleet, end) in [(Fleet::Mixed, row::PAST), (Fleet::Mixed, row::NEVER), (Fleet::Own, END)] {
            let update = adapted(fleet, ending().add("#g", ":g"), end);
            assert_eq!(update, ("SET #a = :a, #leasedUntil = :end REMOVE #ttl ADD #g :g".to_owned(), None));
        }
        for (path, value) in
            [("#leasedUntil", "if_not_exists(#leasedUntil, :end)"), ("#shared.#grant.#leasedUntil", ":end")]
        {
            for fleet in [Fleet::Mixed, Fleet::Own] {
                let update = adapted(fleet, Update::setting(&[(path, value)]), END);
                assert_eq!(update, (format!("SET {path} = {value}"), None));
            }
        }
    }
}
