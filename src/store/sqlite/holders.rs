//! Shared holders, pins and sightings as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value};

use super::boot::{Here, written};
use crate::lease::{End, GrantId, Holder, Labels, StoreTime};

/// How many clocks may have sighted one holder. A further one gets the place of a clock that nobody uses any more, or
/// none: clocks that replaced each other's sightings would all wait for ever.
const CLOCKS: usize = 32;
/// After a lease's end, a takeover takes at most another lease and this long: the time of two looks.
const TAKEOVER: Duration = Duration::from_secs(10);

/// A holder as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) holder: Holder,
    /// The clock of the holder's times.
    pub(super) clock: String,
    /// What a later minor version added; it stays.
    pub(super) unknown: Map<String, Value>,
}

impl Entry {
    /// Whether its times are of our clock. They are not if it was written at a time that is still to come: then it was
    /// written in an earlier boot that had the same id.
    pub(super) fn is_of(&self, here: Here<'_>) -> bool {
        self.clock == here.clock && written(&self.holder) <= here.now
    }
}

/// The shared holders as text; `None` if there are none.
pub(super) fn to_text(entries: &[Entry]) -> Option<String> {
    let list: Vec<Value> = entries.iter().map(encode).collect();
    (!list.is_empty()).then(|| Value::Array(list).to_string())
}

fn encode(entry: &Entry) -> Value {
    let Holder { grant, lock_id, labels, token, created, renewed, until } = &entry.holder;
    let mut map = entry.unknown.clone();
    let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
    put("grant_id", grant.as_str().into());
    put("lock_id", lock_id.as_str().into());
    put("owner", labels.owner.as_str().into());
    put("host", labels.host.as_deref().into());
    put("comment", labels.comment.as_deref().into());
    put("token", (*token).into());
    put("clock", entry.clock.as_str().into());
    put("created", created.as_nanos().into());
    put("renewed", renewed.map(StoreTime::as_nanos).into());
    let end = match until {
        End::At(at) => Some(at.as_nanos()),
        End::Never => None,
    };
    put("leased_until", end.into());
    Value::Object(map)
}

/// The shared holders, or what is wrong with the text.
pub(super) fn from_text(text: &str) -> Result<Vec<Entry>, String> {
    let Ok(Value::Array(list)) = serde_json::from_str(text) else {
        return Err("its holders are not a JSON list".to_owned());
    };
    list.into_iter().map(decode).collect()
}

fn decode(value: Value) -> Result<Entry, String> {
    let Value::Object(mut map) = value else {
        return Err("one of its holders is not a JSON object".to_owned());
    };
    let grant = GrantId::from_text(text(&mut map, "grant_id")?);
    let holder = Holder {
        grant,
        lock_id: text(&mut map, "lock_id")?,
        labels: Labels {
            owner: text(&mut map, "owner")?,
            host: optional_text(&mut map, "host")?,
            comment: optional_text(&mut map, "comment")?,
        },
        token: map.remove("token").as_ref().and_then(Value::as_u64).ok_or_else(|| bad("token"))?,
        created: optional_time(&mut map, "created")?.ok_or_else(|| bad("created"))?,
        renewed: optional_time(&mut map, "renewed")?,
        until: optional_time(&mut map, "leased_until")?.map_or(End::Never, End::At),
    };
    Ok(Entry { holder, clock: text(&mut map, "clock")?, unknown: map })
}

fn bad(name: &str) -> String {
    format!("the {name} of one of its holders can't be read")
}

fn text(map: &mut Map<String, Value>, name: &str) -> Result<String, String> {
    optional_text(map, name)?.ok_or_else(|| bad(name))
}

fn optional_text(map: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match map.remove(name) {
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Null) | None => Ok(None),
        Some(_) => Err(bad(name)),
    }
}

/// Null means none. But a missing field is damage: no end would mean for ever.
fn optional_time(map: &mut Map<String, Value>, name: &str) -> Result<Option<StoreTime>, String> {
    match map.remove(name) {
        Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(|nanos| Some(StoreTime::from_nanos(nanos))).ok_or_else(|| bad(name)),
        None => Err(bad(name)),
    }
}

/// The pins as text; `None` if there are none.
pub(super) fn pins_to_text(pins: &BTreeSet<String>) -> Option<String> {
    let list: Vec<Value> = pins.iter().map(|pin| pin.as_str().into()).collect();
    (!list.is_empty()).then(|| Value::Array(list).to_string())
}

/// The pins, or what is wrong with the text.
pub(super) fn pins_from_text(text: &str) -> Result<BTreeSet<String>, String> {
    let wrong = || "its pins are not a JSON list of texts".to_owned();
    let Ok(Value::Array(list)) = serde_json::from_str(text) else {
        return Err(wrong());
    };
    list.iter().map(|pin| pin.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

/// When clocks other than its own first saw a holder in its present state: by grant id, the earliest first. Each clock
/// has its own place: two clocks that overwrote each other's sightings would both wait for ever.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sightings(BTreeMap<String, Vec<Sighting>>);

#[derive(Clone, Debug, PartialEq)]
struct Sighting {
    clock: String,
    /// The time on that clock.
    at: i64,
    /// The wall clock then, in microseconds. It only decides which clock gets a place.
    wall: u64,
}

impl Sighting {
    /// Whether its clock would have taken over a holder with this lease by now, if anybody still looked with that
    /// clock.
    fn is_idle(&self, lease: Duration, wall: u64) -> bool {
        // A wall clock that was set back says nothing about its age.
        let age = wall.checked_sub(self.wall).map_or(Duration::MAX, Duration::from_micros);
        age > lease.saturating_mul(2).saturating_add(TAKEOVER)
    }
}

impl Sightings {
    /// When our clock saw this grant. A time that is still to come does not count: an earlier boot with the same id saw
    /// it.
    pub(super) fn of(&self, grant: &GrantId, here: Here<'_>) -> Option<StoreTime> {
        let seen = self.0.get(grant.as_str())?;
        let at = seen.iter().find(|seen| seen.clock == here.clock).map(|seen| StoreTime::from_nanos(seen.at));
        at.filter(|at| *at <= here.now)
    }

    /// The same sightings with a note that our clock sees this grant, whose lease is this long; `None` if there is no
    /// place.
    pub(super) fn with(&self, grant: &GrantId, lease: Duration, here: Here<'_>) -> Option<Sightings> {
        let mut sightings = self.clone();
        let seen = sightings.0.entry(grant.as_str().to_owned()).or_default();
        seen.retain(|seen| seen.clock != here.clock);
        if seen.len() >= CLOCKS {
            let idle = seen.iter().position(|seen| seen.is_idle(lease, here.wall))?;
            seen.remove(idle);
        }
        seen.push(Sighting { clock: here.clock.to_owned(), at: here.now.as_nanos(), wall: here.wall });
        Some(sightings)
    }

    /// Copies what `from` has about this grant.
    pub(super) fn keep(&mut self, grant: &GrantId, from: &Sightings) {
        if let Some(seen) = from.0.get(grant.as_str()) {
            self.0.insert(grant.as_str().to_owned(), seen.clone());
        }
    }

    /// As text; `None` if there are none.
    pub(super) fn to_text(&self) -> Option<String> {
        let list = |seen: &Sighting| Value::Array(vec![seen.clock.as_str().into(), seen.at.into(), seen.wall.into()]);
        let map: Map<String, Value> =
            self.0.iter().map(|(grant, seen)| (grant.clone(), seen.iter().map(list).collect())).collect();
        (!map.is_empty()).then(|| Value::Object(map).to_string())
    }

    /// From text, or what is wrong with it.
    pub(super) fn from_text(text: &str) -> Result<Sightings, String> {
        let wrong = || "its sightings can't be read".to_owned();
        let sighting = |value: &Value| {
            let (clock, at) = (value.get(0)?.as_str()?.to_owned(), value.get(1)?.as_i64()?);
            Some(Sighting { clock, at, wall: value.get(2).and_then(Value::as_u64).unwrap_or(0) })
        };
        let Ok(Value::Object(map)) = serde_json::from_str(text) else {
            return Err(wrong());
        };
        let by_grant = map.into_iter().map(|(grant, seen)| {
            let list = seen.as_array().and_then(|seen| seen.iter().map(sighting).collect()).ok_or_else(wrong)?;
            Ok((grant, list))
        });
        by_grant.collect::<Result<_, _>>().map(Sightings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let mut unknown = Map::new();
        unknown.insert("of_a_later_minor".to_owned(), Value::Array(vec![1.into()]));
        Entry {
            holder: Holder {
                grant: GrantId::from_text("g\"1"),
                lock_id: "ä\u{0}".to_owned(),
                labels: Labels { comment: Some(String::new()), ..Labels::of("o") },
                token: u64::MAX,
                created: StoreTime::from_nanos(i64::MIN),
                renewed: Some(StoreTime::from_nanos(-1)),
                until: End::Never,
            },
            clock: "c".to_owned(),
            unknown,
        }
    }

    #[test]
    fn holders_come_back_with_what_is_unknown() {
        let finite = Holder { until: End::At(StoreTime::from_nanos(7)), renewed: None, ..entry().holder };
        let list = vec![entry(), Entry { holder: finite, ..entry() }];
        assert_eq!(from_text(&to_text(&list).unwrap()), Ok(list));
        assert_eq!(to_text(&[]), None);
    }

    #[test]
    fn a_holder_without_an_end_is_damaged_and_not_endless() {
        let text = to_text(&[entry()]).unwrap();
        // The order of fields depends on what else is built in: bson has serde_json keep it.
        let without = text.replace("\"leased_until\":null,", "").replace(",\"leased_until\":null", "");
        assert_ne!(without, text);
        let what = "the leased_until of one of its holders can't be read";
        assert_eq!(from_text(&without), Err(what.to_owned()));
        for bad in ["{}", "[1]", "[{}]", "[", ""] {
            assert!(from_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sightings_come_back_and_forget_who_is_long_due() {
        let (grant, mut seen, lease) = (GrantId::from_text("g"), Sightings::default(), Duration::from_secs(20));
        assert_eq!(seen.to_text(), None);
        let here = |clock, wall| Here { clock, now: StoreTime::from_nanos(7), wall };
        for n in 0..CLOCKS as u64 {
            let clock = format!("c{n}");
            seen = seen.with(&grant, lease, Here { clock: &clock, ..here("", 100 + n) }).unwrap();
        }
        let seen = Sightings::from_text(&seen.to_text().unwrap()).unwrap();
        let due = 100 + 50_000_001;
        assert_eq!(seen.with(&grant, lease, here("late", due - 1)), None);
        let made_room = seen.with(&grant, lease, here("late", due)).unwrap();
        let of = |seen: &Sightings, clock| seen.of(&grant, here(clock, due));
        assert_eq!(of(&made_room, "late"), Some(StoreTime::from_nanos(7)));
        assert_eq!((of(&made_room, "c0"), of(&made_room, "c1").is_some()), (None, true));
        assert!(seen.with(&grant, lease, here("set back", 99)).is_some());
        assert!(seen.with(&GrantId::from_text("h"), lease, here("c1", 100)).is_some());
        assert_eq!(seen.of(&GrantId::from_text("h"), here("c1", 100)), None);
        let again = seen.with(&grant, lease, here("c1", 100)).unwrap();
        assert_eq!(again.0["g"].len(), CLOCKS, "a clock has one place");
        assert!(Sightings::from_text("{\"g\":[[1]]}").is_err());
        let earlier_form = Sightings::from_text("{\"g\":[[\"c\",1]]}").unwrap();
        assert_eq!(of(&earlier_form, "c"), Some(StoreTime::from_nanos(1)));
        let of_an_earlier_boot = Sightings::from_text("{\"g\":[[\"c\",8,0]]}").unwrap();
        assert_eq!(of(&of_an_earlier_boot, "c"), None);
    }

    #[test]
    fn pins_come_back() {
        let pins = BTreeSet::from(["a".to_owned(), "b\n".to_owned()]);
        assert_eq!(pins_from_text(&pins_to_text(&pins).unwrap()), Ok(pins));
        assert!(pins_from_text("[1]").is_err());
    }
}
