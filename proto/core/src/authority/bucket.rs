//! One bucket with all that belongs to it, and the table of buckets.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::lease::Leases;
use super::ledger::Ledger;
use super::queue::Queue;
use super::reserve::Reserve;
use crate::id::Incarnation;
use crate::key::Key;
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// One bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) ledger: Ledger,
    pub(super) leases: Leases,
    /// Index of the policy in the authority's table.
    pub(super) policy: u32,
    /// Index of the limit class in its policy.
    pub(super) class: u32,
    /// When the queue's front can be served, as entered in the authority's timetable.
    pub(super) due: Timestamp,
    /// Whether requests have had to wait lately, and for how long.
    pub(super) scarce: Scarce,
    /// Present while requests wait.
    pub(super) queue: Option<Box<Queue>>,
    /// Present for reserved buckets.
    pub(super) reserve: Option<Box<Reserve>>,
    pub(super) key: Key,
}

/// A spell in which requests of a bucket had to wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scarce {
    since: Timestamp,
    /// When a request last began to wait.
    last: Timestamp,
}

/// For how long after a request had to wait a bucket counts as scarce: as long as the slower of
/// the averages of demand looks back.
const SCARCE_FOR: Term = Term::from_seconds(10);

impl Scarce {
    /// A request has to wait. Another spell begins if nobody waits now (`idle`) and nobody has for
    /// a `pause`.
    pub(super) fn note(&mut self, now: Timestamp, idle: bool, pause: Term) {
        if self.last == Timestamp::ZERO || (idle && now > self.last + pause) {
            self.since = now;
        }
        self.last = now;
    }

    /// True in a spell and for a while after it.
    pub(super) fn holds(self, now: Timestamp) -> bool {
        self.last > Timestamp::ZERO && now < self.last + SCARCE_FOR
    }

    /// How long the spell has lasted.
    pub(super) fn lasted(self, now: Timestamp) -> Term {
        now.since(self.since)
    }
}

impl Bucket {
    pub(super) fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.len())
    }

    /// What an incarnation holds over all its leases here.
    pub(super) fn held_by(&self, holder: u32) -> Tokens {
        let leases = self.leases.as_slice().iter();
        leases
            .filter(|l| l.holder == holder)
            .map(super::lease::Lease::held)
            .sum()
    }

    /// The place of the incarnation's request in the queue, if it waits.
    pub(super) fn waiter(&self, incarnation: Incarnation) -> Option<&super::queue::Waiter> {
        self.queue.as_ref()?.of(incarnation)
    }
}

/// Buckets in slots, found by policy and key. A slot that is emptied gets a new generation, so
/// that an old number never reaches another bucket.
#[derive(Debug)]
pub(super) struct Buckets {
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hash: KeyHash,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    bucket: Option<Bucket>,
}

/// Keyed, so that nobody outside can craft keys that collide.
#[derive(Clone, Copy, Debug)]
struct KeyHash(u64, u64);

impl BuildHasher for KeyHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

impl KeyHash {
    fn of(self, policy: u32, key: &Key) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write_u32(policy);
        hasher.write(key.as_bytes());
        hasher.finish()
    }
}

fn index_of(slot: u32) -> usize {
    usize::try_from(slot).expect("32 bits fit a usize")
}

impl Buckets {
    pub(super) fn new(seed: (u64, u64)) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hash: KeyHash(seed.0, seed.1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// One more than the highest slot ever used.
    pub(super) fn slot_count(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("fewer than 2^32 buckets in a shard")
    }

    pub(super) fn find(&self, policy: u32, key: &Key) -> Option<u32> {
        let hash = self.hash.of(policy, key);
        self.index
            .find(hash, |slot| {
                let bucket = self.slots[index_of(*slot)].bucket.as_ref();
                bucket.is_some_and(|b| b.policy == policy && b.key == *key)
            })
            .copied()
    }

    /// Enters a bucket that is not there yet; returns its slot.
    pub(super) fn insert(&mut self, bucket: Bucket) -> u32 {
        let hash = self.hash.of(bucket.policy, &bucket.key);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.slot_count();
                self.slots.push(Slot {
                    generation: 0,
                    bucket: None,
                });
                slot
            }
        };
        self.slots[index_of(slot)].bucket = Some(bucket);
        let (slots, hasher) = (&self.slots, self.hash);
        self.index.insert_unique(hash, slot, |slot| {
            let bucket = slots[index_of(*slot)]
                .bucket
                .as_ref()
                .expect("indexed slots are full");
            hasher.of(bucket.policy, &bucket.key)
        });
        slot
    }

    /// Forgets a bucket. The caller has made sure that an unseen one would be the same.
    pub(super) fn remove(&mut self, slot: u32) {
        let place = &mut self.slots[index_of(slot)];
        let bucket = place.bucket.take().expect("a removed bucket was there");
        // A generation that has run out retires its slot rather than repeat a number.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(slot);
        }
        let hash = self.hash.of(bucket.policy, &bucket.key);
        match self.index.find_entry(hash, |other| *other == slot) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => panic!("every bucket is indexed"),
        }
    }

    pub(super) fn generation(&self, slot: u32) -> u32 {
        self.slots[index_of(slot)].generation
    }

    /// The bucket that was in this slot under this generation, unless it was forgotten.
    pub(super) fn is_live(&self, slot: u32, generation: u32) -> bool {
        self.slots
            .get(index_of(slot))
            .is_some_and(|s| s.generation == generation && s.bucket.is_some())
    }

    pub(super) fn try_get(&self, slot: u32) -> Option<&Bucket> {
        self.slots.get(index_of(slot))?.bucket.as_ref()
    }

    pub(super) fn get(&self, slot: u32) -> &Bucket {
        self.try_get(slot).expect("the slot holds a bucket")
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Bucket {
        self.slots[index_of(slot)]
            .bucket
            .as_mut()
            .expect("the slot holds a bucket")
    }

    /// The slots that hold a bucket, in order.
    pub(super) fn occupied(&self) -> impl Iterator<Item = u32> {
        (0..self.slot_count()).filter(|slot| self.slots[index_of(*slot)].bucket.is_some())
    }
}
