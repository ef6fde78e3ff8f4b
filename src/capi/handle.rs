//! Handles: numbers that C holds in place of pointers, so that a wrong one is an error and nothing worse.
//!
//! A handle is type (8 bits), generation (32 bits) and index (24 bits). Freeing a handle raises the generation of its
//! slot; a slot whose generations are used up is never used again, so no number is ever given out twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::code::Code;
use super::failure::Failure;
use crate::sys::process::ProcessId;

const INDEX_BITS: u32 = 24;
const TYPE_SHIFT: u32 = 56;

/// What stands behind a handle.
pub trait Object: Sized + Send + Sync + 'static {
    /// Its type, for people, and as the first byte of the handle.
    const NAME: &'static str;
    const TYPE: u8;
    /// How many slots this process and those it was forked from ever had.
    fn slots_ever() -> &'static AtomicU32;
    fn table(tables: &Tables) -> &Table<Self>;
}

/// The objects of one type.
pub struct Table<T> {
    /// Handles below are the parent's, from which this process was forked.
    first: u32,
    slots: Mutex<Slots<T>>,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

impl<T: Object> Table<T> {
    fn new() -> Self {
        // Whatever the parent's other threads were doing: their slots were counted before they were used.
        let first = T::slots_ever().load(Ordering::SeqCst);
        Table { first, slots: Mutex::new(Slots { all: Vec::new(), free: Vec::new() }) }
    }

    fn insert(&self, object: T) -> Result<u64, Failure> {
        let object = Some(Arc::new(object));
        let mut slots = self.slots.lock();
        let at = match slots.free.pop() {
            Some(at) => at,
            None => {
                let at = slots.all.len() as u32;
                if self.first + at >= 1 << INDEX_BITS {
                    return Err(Failure::new(Code::TooManyHandles, format!("too many {}s; free some", T::NAME)));
                }
                T::slots_ever().fetch_max(self.first + at + 1, Ordering::SeqCst);
                slots.all.push(Slot { generation: 1, object: None });
                at
            }
        };
        let slot = &mut slots.all[at as usize];
        slot.object = object;
        Ok(u64::from(T::TYPE) << TYPE_SHIFT | u64::from(slot.generation) << INDEX_BITS | u64::from(self.first + at))
    }

    /// Looks up what stands behind a handle, and takes it out if `take` says so.
    fn find(&self, handle: u64, take: bool) -> Result<Arc<T>, Failure> {
        let is_a = |type_: u8| (handle >> TYPE_SHIFT) as u8 == type_;
        if !is_a(T::TYPE) {
            let known = (1..=LAST_TYPE).any(is_a);
            let code = if known { Code::WrongHandle } else { Code::BadHandle };
            return Err(Failure::new(code, format!("{handle:#x} is no handle of a {}", T::NAME)));
        }
        let index = (handle & ((1 << INDEX_BITS) - 1)) as u32;
        let generation = (handle >> INDEX_BITS) as u32;
        let Some(at) = index.checked_sub(self.first) else {
            let message = format!("this {} belongs to the process that this one was forked from", T::NAME);
            return Err(Failure::new(Code::Forked, message));
        };
        let mut slots = self.slots.lock();
        let slot = slots.all.get_mut(at as usize).filter(|slot| generation <= slot.generation && generation > 0);
        let Some(slot) = slot else {
            let message = format!("{handle:#x} was never given out as a {}", T::NAME);
            return Err(Failure::new(Code::BadHandle, message));
        };
        let found = slot.object.as_ref().filter(|_| generation == slot.generation).cloned();
        let Some(object) = found else {
            return Err(Failure::new(Code::StaleHandle, format!("this {} was freed", T::NAME)));
        };
        if take {
            slot.object = None;
            if let Some(next) = slot.generation.checked_add(1) {
                slot.generation = next;
                slots.free.push(at);
            }
        }
        Ok(object)
    }
}

/// Gives an object a handle.
pub fn insert<T: Object>(object: T) -> Result<u64, Failure> {
    T::table(tables()).insert(object)
}

/// The object of a handle. It lives on for this call when another thread frees it meanwhile.
pub fn get<T: Object>(handle: u64) -> Result<Arc<T>, Failure> {
    T::table(tables()).find(handle, false)
}

/// The same; the handle is of no use afterwards.
pub fn remove<T: Object>(handle: u64) -> Result<Arc<T>, Failure> {
    T::table(tables()).find(handle, true)
}

/// All objects of one process.
macro_rules! objects {
    ($last:ident; $($field:ident: $type:ty = $number:literal, $name:literal;)*) => {
        /// See the module.
        pub struct Tables {
            process: ProcessId,
            /// Those of the process that this one was forked from: never touched and never dropped, since the threads
            /// and connections behind them are not here.
            _parent: Option<&'static Tables>,
            $($field: Table<$type>,)*
        }

        impl Tables {
            fn new(process: ProcessId, _parent: Option<&'static Tables>) -> Self {
                Tables { process, _parent, $($field: Table::new(),)* }
            }
        }

        $(impl Object for $type {
            const NAME: &'static str = $name;
            const TYPE: u8 = $number;

            fn slots_ever() -> &'static AtomicU32 {
                static SLOTS: AtomicU32 = AtomicU32::new(0);
                &SLOTS
            }

            fn table(tables: &Tables) -> &Table<Self> {
                &tables.$field
            }
        })*

        const LAST_TYPE: u8 = {
            let mut last = 0;
            $(assert!($number == last + 1); last = $number;)*
            last
        };
    };
}

objects! {
    LAST_TYPE;
    builders: super::client::Builder = 1, "builder";
    clients: super::client::Client = 2, "client";
    requests: super::request::Request = 3, "request";
    guards: super::guard::Guard = 4, "guard";
    locks: super::lock::LockData = 5, "lock";
    lists: super::list::List = 6, "list";
    filters: super::filter::FilterData = 7, "filter";
    cancels: super::cancel::Cancel = 8, "cancel token";
    elections: super::election::ElectionData = 9, "election";
    leaderships: super::leadership::LeadershipData = 10, "leadership";
}

/// Those of this process. No mutex is involved: after a fork it could be held for ever.
fn tables() -> &'static Tables {
    static CURRENT: AtomicPtr<Tables> = AtomicPtr::new(std::ptr::null_mut());
    loop {
        let seen = CURRENT.load(Ordering::SeqCst);
        // SAFETY: it is NULL or comes from the `Box` below, which is never freed once it is in `CURRENT`.
        let current: Option<&'static Tables> = unsafe { seen.as_ref() };
        match current {
            Some(tables) if tables.process.is_current() => return tables,
            parent => {
                let new = Box::into_raw(Box::new(Tables::new(ProcessId::current(), parent)));
                if CURRENT.compare_exchange(seen, new, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    // SAFETY: another thread was faster, so nobody else has seen this one.
                    drop(unsafe { Box::from_raw(new) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cancel::Cancel;
    use super::*;
    use crate::CancelToken;

    fn code(found: Result<Arc<Cancel>, Failure>) -> Code {
        found.map_or_else(super::super::failure::keep, |_| Code::Ok)
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_used_again() {
        let table: Table<Cancel> = Table { first: 0, slots: Mutex::new(Slots { all: Vec::new(), free: Vec::new() }) };
        let new = || Cancel(CancelToken::new());
        let first = table.insert(new()).unwrap_or(0);
        assert_eq!(code(table.find(first, true)), Code::Ok);
        table.slots.lock().all[0].generation = u32::MAX;
        let last = table.insert(new()).unwrap_or(0);
        assert_eq!(code(table.find(last, true)), Code::Ok);
        assert_eq!(code(table.find(last, true)), Code::StaleHandle);
        let other = table.insert(new()).unwrap_or(0);
        assert_eq!(other & ((1 << INDEX_BITS) - 1), 1, "the next slot");
        assert_eq!(code(table.find(last, false)), Code::StaleHandle);
        assert_eq!(code(table.find(first, false)), Code::StaleHandle);
    }

    #[test]
    fn a_childs_table_begins_where_the_parents_ended() {
        let empty = || Mutex::new(Slots { all: Vec::new(), free: Vec::new() });
        let child: Table<Cancel> = Table { first: 3, slots: empty() };
        let own = child.insert(Cancel(CancelToken::new())).unwrap_or(0);
        assert_eq!(code(child.find(own, false)), Code::Ok);
        assert_eq!(code(child.find(own - 1, false)), Code::Forked);
        assert_eq!(code(child.find(own + 1, false)), Code::BadHandle);
        let full: Table<Cancel> = Table { first: 1 << INDEX_BITS, slots: empty() };
        let code = full.insert(Cancel(CancelToken::new())).map_or_else(super::super::failure::keep, |_| Code::Ok);
        assert_eq!(code, Code::TooManyHandles);
    }
}
