//! A table that dynamodb-lock-go writes to as well (`fleet=mixed`): what our rows have for its sake, and what is told
//! of its rows where nobody said that there would be any.
//!
//! Its acquire, heartbeat and release let through whoever has the owner's text, live or not: so ours ends in a part of
//! the grant id, which no other process has. Its put drops what it does not know and its release deletes the row; the
//! condition on the grant id notices both, and tokens rise all the same, by the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Dynamodb;
use super::expr::{Expr, Item, number};
use super::row::{self, DecodedRow};
use crate::lease::{End, GrantId, Holder, StoreTime};
use crate::store::fleet::{Fleet, Limits};
use crate::sys::log;

/// By its name in errors and docs.
pub(super) const LIBRARY: &str = "dynamodb-lock-go";
/// How long it waits itself: for as long as that, its hosts' clocks may be off.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// After the end of a lease, its rows may be deleted by the table's time to live.
const TTL_S: i64 = 2 * 24 * 3600;
/// A row of its that is older is of no interest to those who did not expect it.
const RECENT: Duration = Duration::from_secs(3600);

pub(super) const LIMITS: Limits = Limits {
    library: LIBRARY,
    no_shared: Some("it knows one owner of a row, and takes a row whose one owner it is; share locks in another table"),
    no_endless: Some("a row there has a time to live, which begins with the end of its lease; renew instead"),
    no_names: Some("the table's time to live would end it; keep leases of names in another table"),
    one_lease: None,
    not_in_key: None,
};

/// How the owner's text goes on in a row: `#` and the first eight digits of the grant id.
fn suffix(grant: &GrantId) -> String {
    format!("#{}", grant.short())
}

/// The label in the text of a row, whoever wrote it.
pub(super) fn label(mut owner: String, grant: &GrantId) -> String {
    if let Some(label) = owner.strip_suffix(&suffix(grant)) {
        owner.truncate(label.len());
    }
    owner
}

/// The owner's text for a new grant. Who replaces a holder by its label must have the same text: then it is the bare one.
pub(super) fn owner(fleet: Fleet, holder: &Holder, replaces: bool) -> String {
    let label = &holder.labels.owner;
    // A row of theirs has no grant id.
    if fleet.is_mixed() && !replaces && !holder.grant.as_str().is_empty() {
        label.clone() + &suffix(&holder.grant)
    } else {
        label.clone()
    }
}

/// The owner's text where the whole row is written: as it stands, for a grant that stands.
pub(super) fn stored_owner(fleet: Fleet, holder: &Holder, row: Option<&Item>) -> String {
    let stands = row.filter(|row| row::get_text(row, "grantId").ok().flatten() == Some(holder.grant.as_str()));
    let stored = stands.and_then(|row| row::get_text(row, "owner").ok().flatten());
    stored.map_or_else(|| owner(fleet, holder, false), str::to_owned)
}

/// The same write with a time to live, wherever it sets the end of the row. Theirs is a text, which the service does not
/// delete by; they read a number, too. In a table of our own it is without one: an older one may be before the new end.
pub(super) fn with_ttl(fleet: Fleet, mut expr: Expr) -> Expr {
    const END: &str = " #leasedUntil = ";
    const REMOVED: &str = ", #ttl";
    let Some(at) = expr.update.find(END) else { return expr };
    let value = expr.update[at + END.len()..].split([',', ' ']).next().unwrap_or_default();
    // Not an end that is only set where there is none.
    let Some(until) = expr.text(value).map(row::parse_end) else { return expr };
    let seconds = match until {
        Ok(End::At(at)) if fleet.is_mixed() && at > StoreTime::from_nanos(0) => {
            at.as_nanos().div_euclid(1_000_000_000) + TTL_S
        }
        _ => {
            if expr.update.contains(" REMOVE ") && !expr.update.contains(REMOVED) {
                expr.update = expr.update.replacen(" REMOVE ", " REMOVE #ttl, ", 1);
            } else if !expr.update.contains(REMOVED) {
                expr.update.push_str(" REMOVE #ttl");
            }
            return expr;
        }
    };
    expr.update = expr.update.replacen(REMOVED, "", 1).replacen("SET ", "SET #ttl = :ttl, ", 1);
    expr.value(":ttl", number(u64::try_from(seconds).unwrap_or(0)))
}

/// Whether it was said that theirs are there.
#[derive(Debug, Default)]
pub(super) struct Watch(AtomicBool);

impl Dynamodb {
    /// Says once that dynamodb-lock-go uses the table, where nobody said so.
    pub(super) fn watch_fleet(&self, found: &DecodedRow, now: StoreTime) {
        let theirs = found.record.exclusive.as_ref().filter(|holder| holder.grant.as_str().is_empty());
        // They set it at each heartbeat.
        let is_recent = |holder: &Holder| now.since(holder.created) < RECENT;
        if self.fleet.is_mixed() || !theirs.is_some_and(is_recent) || self.watch.0.swap(true, Ordering::Relaxed) {
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
    use crate::store::dynamodb::expr::text;

    fn adapted(update: &str, end: &str) -> (String, Option<String>) {
        adapted_for(Fleet::Mixed, update, end)
    }

    fn adapted_for(fleet: Fleet, update: &str, end: &str) -> (String, Option<String>) {
        let expr = Expr::new("k", "#fence = :f", update).value(":end", text(end)).value(":past", text(row::PAST));
        let expr = with_ttl(fleet, expr);
        let ttl = expr.values().get(":ttl").map(|ttl| ttl.as_n().cloned().unwrap_or_default());
        (expr.update, ttl)
    }

    #[test]
    fn each_end_has_its_time_to_live() {
        let end = "1970-01-02T00:00:01.999999999Z";
        let (update, ttl) = adapted("SET #a = :a, #leasedUntil = :end REMOVE #shared, #ttl, #host", end);
        assert_eq!(update, "SET #ttl = :ttl, #a = :a, #leasedUntil = :end REMOVE #shared, #host");
        assert_eq!(ttl.as_deref(), Some("259201"));
        let (update, ttl) = adapted("SET #leasedUntil = :end, #version = #version + :one", end);
        assert_eq!(update, "SET #ttl = :ttl, #leasedUntil = :end, #version = #version + :one");
        assert!(ttl.is_some());
    }

    #[test]
    fn what_has_no_end_has_no_time_to_live() {
        for (update, end) in
            [("SET #leasedUntil = :past REMOVE #a", row::PAST), ("SET #leasedUntil = :end REMOVE #a", row::NEVER)]
        {
            let (update, ttl) = adapted(update, end);
            assert!(update.ends_with("REMOVE #ttl, #a") && ttl.is_none(), "{update}");
        }
        let (update, ttl) = adapted("SET #leasedUntil = :end, #renewedAt = :now", row::NEVER);
        assert_eq!((update.as_str(), ttl), ("SET #leasedUntil = :end, #renewedAt = :now REMOVE #ttl", None));
        for update in
            ["SET #leasedUntil = if_not_exists(#leasedUntil, :past)", "SET #shared.#grant.#leasedUntil = :end"]
        {
            assert_eq!(adapted(update, row::PAST), (update.to_owned(), None));
        }
    }

    #[test]
    fn in_a_table_of_our_own_no_end_keeps_a_time_to_live() {
        let end = "1970-01-02T00:00:01.999999999Z";
        for (update, right) in [
            ("SET #leasedUntil = :end REMOVE #a, #ttl", "SET #leasedUntil = :end REMOVE #a, #ttl"),
            ("SET #leasedUntil = :end REMOVE #a", "SET #leasedUntil = :end REMOVE #ttl, #a"),
            ("SET #leasedUntil = :past ADD #g :g", "SET #leasedUntil = :past ADD #g :g REMOVE #ttl"),
            ("SET #shared.#grant.#leasedUntil = :end", "SET #shared.#grant.#leasedUntil = :end"),
        ] {
            assert_eq!(adapted_for(Fleet::Own, update, end), (right.to_owned(), None));
        }
    }
}
