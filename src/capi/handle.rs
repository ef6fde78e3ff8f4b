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

/// An object that has a handle; `object!` implements this for a type.
pub trait Object: Sized + Send + Sync + 'static {
    type Kind: Kind;
    type Handle: Handle;
    fn tables() -> &'static Tables<Self>;
}

/// A handle as C has it: each type has a struct of its own, so that a handle of another type does not compile.
pub trait Handle: Copy {
    fn of(id: u64) -> Self;
    fn id(self) -> u64;
}

/// The type of a handle. It is implemented for an array whose length is the number of the type, so that the compiler
/// refuses two types with the same number.
pub trait Kind {
    /// The first byte of the type's handles.
    const NUMBER: u8;
    /// For people.
    const NAME: &'static str;
}

/// Types are numbered from 1 to this number.
pub const LAST_NUMBER: u8 = 15;

/// Gives handles to the objects of a type.
macro_rules! object {
    ($type:ty = $number:literal, $handle:ident, $name:literal) => {
        impl $crate::capi::handle::Handle for $handle {
            fn of(id: u64) -> Self {
                $handle { id }
            }

            fn id(self) -> u64 {
                self.id
            }
        }
        impl $crate::capi::handle::Kind for [(); $number] {
            const NUMBER: u8 = {
                assert!($number >= 1 && $number <= $crate::capi::handle::LAST_NUMBER);
                $number
            };
            const NAME: &'static str = $name;
        }
        impl $crate::capi::handle::Object for $type {
            type Kind = [(); $number];
            type Handle = $handle;

            fn tables() -> &'static $crate::capi::handle::Tables<Self> {
                static TABLES: $crate::capi::handle::Tables<$type> = $crate::capi::handle::Tables::new();
                &TABLES
            }
        }
    };
}
pub(super) use object;

/// The objects of one type in this process and in those that it was forked from.
pub struct Tables<T: 'static> {
    /// The table of this process, once it was used. There is no mutex, because after a fork it could be held for ever.
    current: AtomicPtr<Table<T>>,
    /// How many slots all of these processes ever had.
    slots_ever: AtomicU32,
}

/// The objects of one type in one process.
struct Table<T: 'static> {
    process: ProcessId,
    /// The table of the process that this one was forked from: never touched and never dropped, since the threads and
    /// connections of its objects do not exist in this process.
    _parent: Option<&'static Table<T>>,
    /// Handles with a lower index are those of the parent.
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

/// What happens to an object that was found.
#[derive(PartialEq, Eq)]
enum Then {
    Keep,
    Remove,
}

impl<T: Object> Tables<T> {
    pub const fn new() -> Self {
        Tables { current: AtomicPtr::new(std::ptr::null_mut()), slots_ever: AtomicU32::new(0) }
    }

    /// The table of this process.
    fn here(&self) -> &'static Table<T> {
        loop {
            let seen = self.current.load(Ordering::SeqCst);
            // SAFETY: it is NULL or comes from the `Box` below, which is never freed once it is in `current`.
            let current: Option<&'static Table<T>> = unsafe { seen.as_ref() };
            match current {
                Some(table) if table.process.is_current() => return table,
                parent => {
                    // Right at any moment of the fork: the parent's threads count their slots before they use them.
                    let new = Box::into_raw(Box::new(Table::new(self.slots_ever.load(Ordering::SeqCst), parent)));
                    if self.current.compare_exchange(seen, new, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                        // SAFETY: another thread was faster, so nobody else has seen this one.
                        drop(unsafe { Box::from_raw(new) });
                    }
                }
            }
        }
    }
}

impl<T: Object> Table<T> {
    fn new(first: u32, _parent: Option<&'static Table<T>>) -> Self {
        let slots = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });
        Table { process: ProcessId::current(), _parent, first, slots }
    }

    fn insert(&self, object: T) -> Result<u64, Failure> {
        let object = Some(Arc::new(object));
        let mut slots = self.slots.lock();
        let at = match slots.free.pop() {
            Some(at) => at,
            None => {
                let at = slots.all.len() as u32;
                if self.first + at >= 1 << INDEX_BITS {
                    return Err(Failure::new(Code::TooManyHandles, format!("too many {}s; free some", T::Kind::NAME)));
                }
                T::tables().slots_ever.fetch_max(self.first + at + 1, Ordering::SeqCst);
                slots.all.push(Slot { generation: 1, object: None });
                at
            }
        };
        let slot = &mut slots.all[at as usize];
        slot.object = object;
        Ok(u64::from(T::Kind::NUMBER) << TYPE_SHIFT
            | u64::from(slot.generation) << INDEX_BITS
            | u64::from(self.first + at))
    }

    /// The object of a handle.
    fn find(&self, handle: u64, and: Then) -> Result<Arc<T>, Failure> {
        let is_a = |type_: u8| (handle >> TYPE_SHIFT) as u8 == type_;
        if !is_a(T::Kind::NUMBER) {
            let known = (1..=LAST_NUMBER).any(is_a);
            let code = if known { Code::WrongHandle } else { Code::BadHandle };
            return Err(Failure::new(code, format!("{handle:#x} is no handle of a {}", T::Kind::NAME)));
        }
        let index = (handle & ((1 << INDEX_BITS) - 1)) as u32;
        let generation = (handle >> INDEX_BITS) as u32;
        let Some(at) = index.checked_sub(self.first) else {
            let message = format!("this {} belongs to the process that this one was forked from", T::Kind::NAME);
            return Err(Failure::new(Code::Forked, message));
        };
        let mut slots = self.slots.lock();
        let slot = slots.all.get_mut(at as usize).filter(|slot| generation <= slot.generation && generation > 0);
        let Some(slot) = slot else {
            let message = format!("{handle:#x} was never given out as a {}", T::Kind::NAME);
            return Err(Failure::new(Code::BadHandle, message));
        };
        let found = slot.object.as_ref().filter(|_| generation == slot.generation).cloned();
        let Some(object) = found else {
            return Err(Failure::new(Code::StaleHandle, format!("this {} was freed", T::Kind::NAME)));
        };
        if and == Then::Remove {
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
pub fn insert<T: Object>(object: T) -> Result<T::Handle, Failure> {
    T::tables().here().insert(object).map(T::Handle::of)
}

/// The object of a handle. It stays alive for this call even if another thread frees the handle meanwhile.
pub fn get<T: Object>(handle: T::Handle) -> Result<Arc<T>, Failure> {
    T::tables().here().find(handle.id(), Then::Keep)
}

/// The same; the handle is not valid any more afterwards.
pub fn remove<T: Object>(handle: T::Handle) -> Result<Arc<T>, Failure> {
    T::tables().here().find(handle.id(), Then::Remove)
}

/// All objects of a type that this process has.
pub fn all<T: Object>() -> Vec<Arc<T>> {
    T::tables().here().slots.lock().all.iter().filter_map(|slot| slot.object.clone()).collect()
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
        let table = Table::new(0, None);
        let new = || Cancel(CancelToken::new());
        let first = table.insert(new()).unwrap_or(0);
        assert_eq!(code(table.find(first, Then::Remove)), Code::Ok);
        table.slots.lock().all[0].generation = u32::MAX;
        let last = table.insert(new()).unwrap_or(0);
        assert_eq!(code(table.find(last, Then::Remove)), Code::Ok);
        assert_eq!(code(table.find(last, Then::Remove)), Code::StaleHandle);
        let other = table.insert(new()).unwrap_or(0);
        assert_eq!(other & ((1 << INDEX_BITS) - 1), 1, "the next slot");
        assert_eq!(code(table.find(last, Then::Keep)), Code::StaleHandle);
        assert_eq!(code(table.find(first, Then::Keep)), Code::StaleHandle);
    }

    #[test]
    fn what_is_freed_is_dropped_and_its_place_used_again() {
        let table = Table::new(0, None);
        for _ in 0..100 {
            let handle = table.insert(Cancel(CancelToken::new())).unwrap_or(0);
            let object = table.find(handle, Then::Keep).map(|found| Arc::downgrade(&found));
            assert_eq!(code(table.find(handle, Then::Remove)), Code::Ok);
            assert!(object.is_ok_and(|object| object.upgrade().is_none()), "it is kept");
        }
        assert_eq!(table.slots.lock().all.len(), 1);
    }

    #[test]
    fn a_childs_table_begins_where_the_parents_ended() {
        let child = Table::new(3, None);
        let own = child.insert(Cancel(CancelToken::new())).unwrap_or(0);
        assert_eq!(code(child.find(own, Then::Keep)), Code::Ok);
        assert_eq!(code(child.find(own - 1, Then::Keep)), Code::Forked);
        assert_eq!(code(child.find(own + 1, Then::Keep)), Code::BadHandle);
        let without_generation = own & !(u64::from(u32::MAX) << INDEX_BITS);
        assert_eq!(code(child.find(without_generation, Then::Keep)), Code::BadHandle);
        let full = Table::new(1 << INDEX_BITS, None);
        let code = full.insert(Cancel(CancelToken::new())).map_or_else(super::super::failure::keep, |_| Code::Ok);
        assert_eq!(code, Code::TooManyHandles);
    }
}
