//! A row of the table: as text and numbers, and as the record that the pure rules see.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::types::FromSql;
use rusqlite::{Connection, Row as Columns, params};

use super::boot::{Here, translate, written};
use super::error::SqliteError;
use super::holders::{self, Entry, Sightings};
use super::schema::{self, Format};
use crate::lease::{End, GrantId, Holder, Kind, Labels, LockRecord, StoreTime};

macro_rules! columns {
    () => {
        "key, kind, token, version, clock, sightings, grant_id, lock_id, owner, host, comment, holder_token, created, \
         renewed, leased_until, holders, pins"
    };
}
/// The columns, in the order in which they are read and written.
pub(super) const COLUMNS: &str = columns!();

/// Places in [`COLUMNS`].
pub(super) const LOCK_ID: usize = 7;
/// See [`LOCK_ID`].
pub(super) const HOLDERS: usize = 15;

const READ: &str = concat!("SELECT ", columns!(), " FROM main.locks WHERE key = ?1");

/// Columns that a later minor version added keep what they hold.
const WRITE: &str = concat!(
    "INSERT INTO locks (",
    columns!(),
    ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) \
     ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, token = excluded.token, version = excluded.version, \
     clock = excluded.clock, sightings = excluded.sightings, grant_id = excluded.grant_id, lock_id = excluded.lock_id, \
     owner = excluded.owner, host = excluded.host, comment = excluded.comment, holder_token = excluded.holder_token, \
     created = excluded.created, renewed = excluded.renewed, leased_until = excluded.leased_until, \
     holders = excluded.holders, pins = excluded.pins",
);

/// A sighting changes nothing about the record, so the version stays. It is only written if the row is the one that was
/// read.
const SIGHT: &str = "UPDATE locks SET sightings = ?2 WHERE key = ?1 AND token = ?3 AND version = ?4";

/// A row as it is stored: each holder's times are of the clock that wrote it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    key: String,
    kind: Kind,
    pub(super) token: u64,
    pub(super) version: u64,
    exclusive: Option<Entry>,
    shared: Vec<Entry>,
    sightings: Sightings,
    pins: BTreeSet<String>,
}

impl Row {
    /// For a key without a row.
    pub(super) fn missing(key: &str) -> Row {
        Row {
            key: key.to_owned(),
            kind: Kind::Lock,
            token: 0,
            version: 0,
            exclusive: None,
            shared: Vec::new(),
            sightings: Sightings::default(),
            pins: BTreeSet::new(),
        }
    }

    /// The format and the row of a key, a missing one where there is none. The format is read while the statement is
    /// open: from the same state of the file, and without a second read transaction.
    pub(super) fn read(conn: &Connection, path: &Path, key: &str) -> Result<(Format, Row), SqliteError> {
        // The table of a newer format may have other columns: then that is the error. If the file is locked, a second
        // read would only wait once more.
        let look = |source: &rusqlite::Error| (!SqliteError::is_busy(source)).then(|| schema::format(conn, path));
        let failed = |source: rusqlite::Error| match look(&source) {
            Some(Err(newer @ SqliteError::NewerFormat { .. })) => newer,
            _ => SqliteError::Engine { path: path.to_owned(), doing: "read the row", source },
        };
        let mut statement = conn.prepare_cached(READ).map_err(failed)?;
        let mut rows = statement.query([key.as_bytes()]).map_err(failed)?;
        let columns = rows.next().map_err(failed)?;
        let format = schema::format(conn, path)?;
        let row = columns.map_or_else(|| Ok(Row::missing(key)), |columns| Row::decode(columns, path))?;
        Ok((format, row))
    }

    /// The row in [`COLUMNS`].
    pub(super) fn decode(columns: &Columns<'_>, path: &Path) -> Result<Row, SqliteError> {
        let key = decode_key(columns, path)?;
        decode(columns, &key).map_err(|what| SqliteError::Damaged { path: path.to_owned(), key, what })
    }

    /// The record on our clock, and the sightings that are missing in the row.
    pub(super) fn view(&self, format: Format, here: Here<'_>) -> View {
        let mut sightings = None;
        let mut holder = |entry: &Entry| {
            if entry.is_of(here) {
                return entry.holder.clone();
            }
            let sighted = self.sightings.of(&entry.holder.grant, here).unwrap_or_else(|| {
                // Time never ends a lease without end.
                if let End::At(end) = entry.holder.until {
                    let so_far = sightings.as_ref().unwrap_or(&self.sightings);
                    let noted = so_far.with(&entry.holder.grant, end.since(written(&entry.holder)), here);
                    sightings = noted.or(sightings.take());
                }
                here.now
            });
            translate(&entry.holder, &entry.clock, sighted, here)
        };
        let record = LockRecord {
            key: self.key.clone(),
            kind: self.kind,
            token: self.token,
            exclusive: self.exclusive.as_ref().map(&mut holder),
            shared: self.shared.iter().map(&mut holder).collect(),
            pins: self.pins.clone(),
            given_up: BTreeSet::new(),
            gave_up_at: 0,
            version: self.version,
            format,
        };
        let is_foreign = |entry: &Entry| !entry.is_of(here) && entry.holder.until != End::Never;
        let is_foreign = self.exclusive.iter().chain(&self.shared).any(is_foreign);
        View { record, sightings, is_foreign }
    }

    /// Whether the row has this grant, with times of another clock.
    pub(super) fn is_foreign(&self, grant: &GrantId, here: Here<'_>) -> bool {
        self.entry(grant).is_some_and(|entry| !entry.is_of(here))
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether one of the holders, expired or not, belongs to this group.
    pub(super) fn has_lock_id(&self, id: &str) -> bool {
        self.exclusive.iter().chain(&self.shared).any(|entry| entry.holder.lock_id == id)
    }

    /// The token of this grant, if it is in the row, expired or not.
    pub(super) fn token_of(&self, grant: &GrantId) -> Option<u64> {
        self.entry(grant).map(|entry| entry.holder.token)
    }

    fn entry(&self, grant: &GrantId) -> Option<&Entry> {
        self.exclusive.iter().chain(&self.shared).find(|entry| entry.holder.grant == *grant)
    }

    /// The row for `new`. A holder that is unchanged since `view` stays as it is stored, with its own clock and its
    /// sightings, because others count from them. But the holder with the grant of `claim` is written anew on our
    /// clock.
    pub(super) fn next(&self, view: &View, new: &LockRecord, claim: Option<&GrantId>, clock: &str) -> Row {
        let old = view.sightings.as_ref().unwrap_or(&self.sightings);
        let mut sightings = Sightings::default();
        let mut entry = |holder: &Holder| {
            let stored = self.entry(&holder.grant);
            let same = view.record.standing(&holder.grant).is_some_and(|(_, seen)| seen == holder);
            match stored {
                Some(stored) if same && claim != Some(&holder.grant) => {
                    sightings.keep(&holder.grant, old);
                    stored.clone()
                }
                _ => Entry {
                    holder: holder.clone(),
                    clock: clock.to_owned(),
                    unknown: stored.map(|stored| stored.unknown.clone()).unwrap_or_default(),
                },
            }
        };
        Row {
            key: new.key.clone(),
            kind: new.kind,
            token: new.token,
            version: new.version.max(self.version.saturating_add(1)),
            exclusive: new.exclusive.as_ref().map(&mut entry),
            shared: new.shared.iter().map(&mut entry).collect(),
            sightings,
            pins: new.pins.clone(),
        }
    }

    /// Writes the whole row.
    pub(super) fn write(&self, conn: &Connection, path: &Path, clock: &str) -> Result<(), SqliteError> {
        let number = |number: u64, what| {
            i64::try_from(number).map_err(|_| SqliteError::TooLarge { path: path.to_owned(), what })
        };
        let (token, version) = (number(self.token, "the token")?, number(self.version, "the version")?);
        let held = self.exclusive.as_ref();
        let holder = held.map(|entry| &entry.holder);
        let own_token = match holder {
            Some(holder) if holder.token != self.token => Some(number(holder.token, "the holder's token")?),
            _ => None,
        };
        let end = holder.and_then(|holder| match holder.until {
            End::At(at) => Some(at.as_nanos()),
            End::Never => None,
        });
        let write = || -> rusqlite::Result<usize> {
            conn.prepare_cached(WRITE)?.execute(params![
                self.key.as_bytes(),
                self.kind.as_str(),
                token,
                version,
                held.map_or(clock, |entry| &entry.clock),
                self.sightings.to_text(),
                holder.map(|holder| holder.grant.as_str()),
                holder.map(|holder| &holder.lock_id),
                holder.map(|holder| &holder.labels.owner),
                holder.and_then(|holder| holder.labels.host.as_ref()),
                holder.and_then(|holder| holder.labels.comment.as_ref()),
                own_token,
                holder.map(|holder| holder.created.as_nanos()),
                holder.and_then(|holder| holder.renewed).map(StoreTime::as_nanos),
                end,
                holders::to_text(&self.shared),
                holders::pins_to_text(&self.pins),
            ])
        };
        match write() {
            // A trigger ignored the row. A grant that is not in the file would be given out twice.
            Ok(0) => Err(SqliteError::Unwritten { path: path.to_owned() }),
            Ok(_) => Ok(()),
            Err(source) => Err(SqliteError::Engine { path: path.to_owned(), doing: "write the row", source }),
        }
    }

    /// Writes these sightings if the row is still the same. Returns whether they were written.
    pub(super) fn write_sightings(
        &self,
        conn: &Connection,
        path: &Path,
        sightings: &Sightings,
    ) -> Result<bool, SqliteError> {
        let (token, version) = (i64::try_from(self.token), i64::try_from(self.version));
        let write = || -> rusqlite::Result<usize> {
            let mut statement = conn.prepare_cached(SIGHT)?;
            statement.execute(params![self.key.as_bytes(), sightings.to_text(), token.ok(), version.ok()])
        };
        let doing = "note that a holder of an earlier boot was seen";
        let written = write().map_err(|source| SqliteError::Engine { path: path.to_owned(), doing, source })?;
        Ok(written > 0)
    }
}

/// A row on our clock.
#[derive(Debug)]
pub(super) struct View {
    pub(super) record: LockRecord,
    /// The row's sightings with ours added, where one was missing.
    pub(super) sightings: Option<Sightings>,
    /// Whether a holder has times of another clock, so that its end is only the latest that it can be.
    pub(super) is_foreign: bool,
}

/// The key of a row in [`COLUMNS`].
pub(super) fn decode_key(columns: &Columns<'_>, path: &Path) -> Result<String, SqliteError> {
    let damaged = |key: String, what: &str| SqliteError::Damaged { path: path.to_owned(), key, what: what.to_owned() };
    let bytes: Vec<u8> = columns.get(0).map_err(|_| {
        let text: String = columns.get(0).unwrap_or_default();
        damaged(text, "the key is not a BLOB")
    })?;
    String::from_utf8(bytes)
        .map_err(|error| damaged(String::from_utf8_lossy(error.as_bytes()).into_owned(), "the key is not UTF-8"))
}

fn decode(columns: &Columns<'_>, key: &str) -> Result<Row, String> {
    let kind = Kind::parse(Some(&column::<String>(columns, "kind", 1)?))?;
    let token = unsigned(column(columns, "token", 2)?, "token")?;
    let version = unsigned(column(columns, "version", 3)?, "version")?;
    if version == 0 {
        return Err("its version is 0".to_owned());
    }
    let shared: Option<String> = column(columns, "holders", HOLDERS)?;
    let pins: Option<String> = column(columns, "pins", 16)?;
    let sightings: Option<String> = column(columns, "sightings", 5)?;
    Ok(Row {
        key: key.to_owned(),
        kind,
        token,
        version,
        exclusive: exclusive(columns, token)?,
        shared: shared.as_deref().map_or(Ok(Vec::new()), holders::from_text)?,
        sightings: sightings.as_deref().map_or(Ok(Sightings::default()), Sightings::from_text)?,
        pins: pins.as_deref().map_or(Ok(BTreeSet::new()), holders::pins_from_text)?,
    })
}

fn exclusive(columns: &Columns<'_>, token: u64) -> Result<Option<Entry>, String> {
    let Some(grant) = column::<Option<String>>(columns, "grant_id", 6)? else {
        return Ok(None);
    };
    let own_token: Option<i64> = column(columns, "holder_token", 11)?;
    let end: Option<i64> = column(columns, "leased_until", 14)?;
    let holder = Holder {
        grant: GrantId::from_text(grant),
        lock_id: column(columns, "lock_id", LOCK_ID)?,
        labels: Labels {
            owner: column(columns, "owner", 8)?,
            host: column(columns, "host", 9)?,
            comment: column(columns, "comment", 10)?,
        },
        token: own_token.map_or(Ok(token), |own| unsigned(own, "holder_token"))?,
        created: StoreTime::from_nanos(column(columns, "created", 12)?),
        renewed: column::<Option<i64>>(columns, "renewed", 13)?.map(StoreTime::from_nanos),
        until: end.map_or(End::Never, |end| End::At(StoreTime::from_nanos(end))),
    };
    Ok(Some(Entry { holder, clock: column(columns, "clock", 4)?, unknown: serde_json::Map::new() }))
}

fn column<T: FromSql>(columns: &Columns<'_>, name: &str, at: usize) -> Result<T, String> {
    columns.get(at).map_err(|_| format!("its {name} can't be read"))
}

fn unsigned(number: i64, name: &str) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("its {name} is negative"))
}

/// Removes the row of a key, which is there.
pub(super) fn delete(conn: &Connection, path: &Path, key: &str) -> Result<(), SqliteError> {
    let delete = || conn.prepare_cached("DELETE FROM locks WHERE key = ?1")?.execute([key.as_bytes()]);
    match delete() {
        // A trigger ignored it, as in `write`.
        Ok(0) => Err(SqliteError::Unwritten { path: path.to_owned() }),
        Ok(_) => Ok(()),
        Err(source) => Err(SqliteError::Engine { path: path.to_owned(), doing: "delete the row", source }),
    }
}
