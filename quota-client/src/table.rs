//! Where leases live: a fixed table from fingerprints to cells.
//!
//! The table knows fingerprints, cells and what the authority last said about a bucket; it does
//! not know keys, policies or streams. All its memory is taken at start: one 64-byte entry, on a
//! cache line of its own, for each of `keys_max / 0.9` keys, so about 71 bytes per key. Entries
//! never move, because a cell that moved could be spent from twice.
//!
//! **Finding.** A fingerprint picks two sets of eight entries and a first entry to try in each.
//! A key goes into its first set until that holds four, then into the emptier one, so at 90 % of
//! the entries in use about 1 % of new keys find both sets full, and three keys in four are
//! found in the set that is looked at first.
//!
//! **Changing hands.** An entry is given to another key only by the driver, after the holder
//! machine has reported its slot closed: then its cell is empty, and what installs into it later
//! has another identity than anything that was in it before. Readers take no lock. They read the
//! entry's generation, compare the fingerprint, debit, and read the generation again *before* they
//! count on the debit; if it has changed, they take the debit back, which the cell refuses if it
//! cannot be told apart from another key's ([`LeaseCell::roll_back`]).
//!
//! **Full.** An insertion that finds both sets full names an idle entry to be closed (no tokens,
//! no renewal under way) and fails; the driver closes that entry, which returns what it may still
//! hold, and a later insertion finds room. One that takes the last room of both sets names one in
//! advance.

use std::sync::PoisonError;

use quota_core::cell::{Debit, Ended, Exhausted, LeaseCell, Receipt, RollBack, Tick};
use quota_core::holder::{Cells, Slot};
use quota_core::id::PolicyVersion;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};

/// Entries of one set.
#[cfg(not(loom))]
const WAYS: usize = 8;
/// Each entry that a model looks at multiplies its interleavings.
#[cfg(loom)]
const WAYS: usize = 1;
/// A key stays in its first set while that holds fewer than this.
const FIRST_SET_KEEPS: usize = 4;
/// Most keys that one table may be made for; slots are 32-bit numbers.
pub(crate) const KEYS_LIMIT: usize = 1 << 30;

/// What the authority last said about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Nothing yet.
    Unknown,
    /// It granted tokens.
    Granted,
    /// It has none for now.
    Exhausted,
    /// It has no such policy.
    UnknownPolicy,
    /// No single request may cost as much as was asked for.
    CostAboveCapacity,
    /// It cannot take more work now.
    Busy,
}

impl Status {
    const fn code(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Granted => 1,
            Self::Exhausted => 2,
            Self::UnknownPolicy => 3,
            Self::CostAboveCapacity => 4,
            Self::Busy => 5,
        }
    }

    const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Granted,
            2 => Self::Exhausted,
            3 => Self::UnknownPolicy,
            4 => Self::CostAboveCapacity,
            5 => Self::Busy,
            _ => Self::Unknown,
        }
    }
}

/// One key's place: everything that a decision reads, in one cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Zero in a free entry, never otherwise.
    high: AtomicU64,
    low: AtomicU64,
    cell: LeaseCell,
    /// Version of the policy that the present lease belongs to; for display.
    version: AtomicU64,
    /// When the authority expects to have tokens, in nanoseconds of the client's clock.
    retry_at: AtomicU64,
    /// Odd while the entry changes hands; another even number for each of its keys.
    generation: AtomicU32,
    status: AtomicU32,
}

impl Entry {
    pub(crate) fn cell(&self) -> &LeaseCell {
        &self.cell
    }

    pub(crate) fn version(&self) -> PolicyVersion {
        PolicyVersion::new(self.version.load(Ordering::Relaxed))
    }

    pub(crate) fn status(&self) -> Status {
        Status::from_code(self.status.load(Ordering::Relaxed))
    }

    pub(crate) fn retry_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.retry_at.load(Ordering::Relaxed))
    }

    /// Notes what the authority said. Driver only.
    pub(crate) fn note(&self, status: Status, retry_at: Timestamp) {
        self.retry_at.store(retry_at.as_nanos(), Ordering::Relaxed);
        self.status.store(status.code(), Ordering::Relaxed);
    }

    /// Notes that the lease there was is over or does not suffice, and that the authority is only
    /// now being asked: until it answers, nothing is known about the quota.
    pub(crate) fn note_asked(&self) {
        let (granted, unknown) = (Status::Granted.code(), Status::Unknown.code());
        // Fails if the authority has said something else meanwhile, which then stands.
        let _stands =
            self.status
                .compare_exchange(granted, unknown, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes the version that the lease belongs to. Driver only.
    pub(crate) fn note_version(&self, version: PolicyVersion) {
        self.version.store(version.get(), Ordering::Relaxed);
    }

    #[inline]
    fn holds(&self, fingerprint: Fingerprint) -> bool {
        self.high.load(Ordering::Acquire) == fingerprint.high
            && self.low.load(Ordering::Acquire) == fingerprint.low
    }

    fn is_free(&self) -> bool {
        self.high.load(Ordering::Acquire) == 0
    }

    /// Nothing is lost by closing this entry, and nobody is being served from it.
    fn is_idle(&self) -> bool {
        let view = self.cell.view();
        !self.is_free() && view.tokens.is_zero() && !view.renewing
    }
}

/// A key's place as a reader found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'t> {
    pub(crate) slot: Slot,
    pub(crate) entry: &'t Entry,
    generation: u32,
}

/// Why a debit did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebitError {
    /// There are too few tokens.
    Exhausted(Exhausted),
    /// The entry has gone to another key meanwhile: look the key up again.
    Moved,
}

impl Found<'_> {
    /// Takes `cost` tokens from the key that was found, never from another.
    ///
    /// # Errors
    /// [`DebitError`]; nothing was taken, or it was put back.
    #[inline]
    pub(crate) fn debit(&self, cost: Tokens) -> Result<Debit, DebitError> {
        let debit = self.entry.cell.debit(cost).map_err(DebitError::Exhausted)?;
        // The debit's compare-exchange acquires what the driver released when it installed the
        // lease that was debited, and the entry changed its generation before that.
        if self.entry.generation.load(Ordering::Acquire) == self.generation {
            return Ok(debit);
        }
        self.give_up(debit, Tick::at(clock::now()));
        Err(DebitError::Moved)
    }

    /// True if the entry has not gone to another key up to now: what was read from it before is
    /// of the key that was found.
    #[inline]
    pub(crate) fn is_still_there(&self) -> bool {
        // Keeps the reads before from sinking below the second look at the generation.
        fence(Ordering::Acquire);
        self.entry.generation.load(Ordering::Relaxed) == self.generation
    }

    /// The second half of a debit: see [`LeaseCell::confirm`].
    #[inline]
    pub(crate) fn confirm(&self, debit: Debit, now: Tick) -> Result<Receipt, Ended> {
        self.entry.cell.confirm(debit, now)
    }

    /// Takes back a debit that was not confirmed. `now` must have been read after it.
    pub(crate) fn give_up(&self, debit: Debit, now: Tick) -> GivenUp {
        match self.entry.cell.confirm(debit, now) {
            Ok(receipt) => GivenUp {
                restored: self.entry.cell.roll_back(receipt) == RollBack::Restored,
                renew: debit.renew(),
            },
            Err(Ended { renew }) => GivenUp {
                restored: false,
                renew,
            },
        }
    }
}

/// What became of a debit that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    /// The tokens are in the cell again; otherwise they are lost.
    pub(crate) restored: bool,
    /// The holder machine is to be told.
    pub(crate) renew: bool,
}

/// Why a key was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertError {
    /// Both sets are full. The slot, if any, is idle: closing it makes room.
    Full(Option<Slot>),
    /// The caller could not announce the key.
    NotAnnounced,
}

/// A key that was inserted or had been.
#[derive(Debug)]
pub(crate) struct Inserted<'t> {
    pub(crate) found: Found<'t>,
    /// An idle slot whose closing makes room for the next key in these sets.
    pub(crate) spare: Option<Slot>,
}

#[derive(Debug)]
pub(crate) struct Table {
    entries: Box<[Entry]>,
    sets: u64,
    /// Number of keys; the lock orders insertions among each other and with `free`.
    keys: Mutex<u64>,
}

impl Table {
    /// A table for about `keys_max` keys, from 1 to [`KEYS_LIMIT`].
    pub(crate) fn new(keys_max: usize) -> Self {
        assert!(
            (1..=KEYS_LIMIT).contains(&keys_max),
            "the configuration is checked before"
        );
        let sets = (keys_max * 10).div_ceil(9 * WAYS);
        let entries = (0..sets * WAYS).map(|_| Entry::default()).collect();
        Self {
            entries,
            sets: u64::try_from(sets).expect("a usize fits 64 bits"),
            keys: Mutex::new(0),
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("bounded by the keys limit")
    }

    /// Keys in the table now.
    pub(crate) fn len(&self) -> u64 {
        *self.lock()
    }

    /// The entry of a slot of this table.
    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[usize::try_from(slot.index()).expect("32 bits fit a usize")]
    }

    /// Finds a key: one cache miss for most.
    #[inline]
    pub(crate) fn find(&self, fingerprint: Fingerprint) -> Option<Found<'_>> {
        self.places(fingerprint)
            .find_map(|place| self.found_at(place, fingerprint))
    }

    /// The key again, where it was when it was found last.
    #[inline]
    pub(crate) fn find_at(&self, slot: Slot, fingerprint: Fingerprint) -> Option<Found<'_>> {
        let place = usize::try_from(slot.index()).ok()?;
        (place < self.entries.len()).then(|| self.found_at(place, fingerprint))?
    }

    #[inline]
    fn found_at(&self, place: usize, fingerprint: Fingerprint) -> Option<Found<'_>> {
        let entry = &self.entries[place];
        let generation = entry.generation.load(Ordering::Acquire);
        (entry.holds(fingerprint) && generation.is_multiple_of(2)).then(|| Found {
            slot: slot(place),
            entry,
            generation,
        })
    }

    /// Gives a key a place, unless it has one. `announce` is called with the slot before anyone
    /// else can find it, and may refuse. Takes a lock.
    pub(crate) fn insert(
        &self,
        fingerprint: Fingerprint,
        announce: impl FnOnce(Slot) -> bool,
    ) -> Result<Inserted<'_>, InsertError> {
        let mut keys = self.lock();
        if let Some(found) = self.find(fingerprint) {
            return Ok(Inserted { found, spare: None });
        }
        let (first, second) = self.sets_of(fingerprint);
        let room = (
            self.free_in(first, fingerprint),
            self.free_in(second, fingerprint),
        );
        let used = (WAYS - room.0.1, WAYS - room.1.1);
        let place = if used.0 < FIRST_SET_KEEPS || used.0 <= used.1 {
            room.0.0.or(room.1.0)
        } else {
            room.1.0.or(room.0.0)
        };
        let Some(place) = place else {
            return Err(InsertError::Full(self.idle_of(first, second)));
        };
        if !announce(slot(place)) {
            return Err(InsertError::NotAnnounced);
        }
        let entry = &self.entries[place];
        entry.generation.fetch_add(1, Ordering::AcqRel);
        entry.note(Status::Unknown, Timestamp::ZERO);
        entry.note_version(PolicyVersion::default());
        entry.low.store(fingerprint.low, Ordering::Release);
        entry.high.store(fingerprint.high, Ordering::Release);
        let generation = entry
            .generation
            .fetch_add(1, Ordering::AcqRel)
            .wrapping_add(1);
        *keys += 1;
        let spare = (room.0.1 + room.1.1 == 1)
            .then(|| self.idle_of(first, second))
            .flatten();
        let found = Found {
            slot: slot(place),
            entry,
            generation,
        };
        Ok(Inserted { found, spare })
    }

    /// True if a key that is only watched may take a place: in neither of its sets does it come
    /// near to crowding out keys that are enforced, whatever these need next. Takes a lock.
    pub(crate) fn is_roomy(&self, fingerprint: Fingerprint) -> bool {
        let _keys = self.lock();
        let (first, second) = self.sets_of(fingerprint);
        let free = self.free_in(first, fingerprint).1 + self.free_in(second, fingerprint).1;
        free >= WAYS
    }

    /// Takes the entry of a closed slot from its key. Driver only, after
    /// [`quota_core::holder::Event::Closed`].
    pub(crate) fn free(&self, slot: Slot) {
        let mut keys = self.lock();
        let entry = self.entry(slot);
        assert!(!entry.is_free(), "a slot is closed once");
        entry.generation.fetch_add(1, Ordering::AcqRel);
        entry.low.store(0, Ordering::Release);
        entry.generation.fetch_add(1, Ordering::AcqRel);
        // Last, since this is what makes the entry available.
        entry.high.store(0, Ordering::Release);
        *keys -= 1;
    }

    /// Takes every token out of everyone's reach, for good if nobody installs any more.
    pub(crate) fn drain(&self) {
        for entry in &self.entries {
            entry.cell.take_back(Tokens::ZERO);
        }
    }

    /// Slots in use whose renewal has been asked for, whether or not the driver was told.
    pub(crate) fn renewing(&self) -> impl Iterator<Item = Slot> {
        let entries = self.entries.iter().enumerate();
        entries
            .filter(|(_, entry)| !entry.is_free() && entry.cell.view().renewing)
            .map(|(place, _)| slot(place))
    }

    #[inline]
    fn sets_of(&self, fingerprint: Fingerprint) -> (usize, usize) {
        (self.set(fingerprint.high), self.set(fingerprint.low))
    }

    #[inline]
    /// Scales a hash to a set: the high half of the product, so that any number of sets will do.
    fn set(&self, hash: u64) -> usize {
        let product = u128::from(hash) * u128::from(self.sets);
        usize::try_from(product >> 64).expect("smaller than the number of sets")
    }

    /// Where a key may be, in the order to look.
    #[inline]
    fn places(&self, fingerprint: Fingerprint) -> impl Iterator<Item = usize> {
        let (first, second) = self.sets_of(fingerprint);
        set_places(first, fingerprint).chain(set_places(second, fingerprint))
    }

    /// The free entry of a set that a key finds soonest, and how many there are.
    fn free_in(&self, set: usize, fingerprint: Fingerprint) -> (Option<usize>, usize) {
        let mut free = set_places(set, fingerprint).filter(|place| self.entries[*place].is_free());
        let nearest = free.next();
        (nearest, usize::from(nearest.is_some()) + free.count())
    }

    fn idle_of(&self, first: usize, second: usize) -> Option<Slot> {
        [first, second]
            .into_iter()
            .flat_map(|set| set * WAYS..(set + 1) * WAYS)
            .find(|place| self.entries[*place].is_idle())
            .map(slot)
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cells for Table {
    fn cell(&self, slot: Slot) -> &LeaseCell {
        self.entry(slot).cell()
    }
}

/// The entries of a set, beginning at a place that depends on the key.
#[inline]
fn set_places(set: usize, fingerprint: Fingerprint) -> impl Iterator<Item = usize> {
    let mixed = fingerprint.high ^ fingerprint.low;
    let home = usize::try_from(mixed % WAYS as u64).expect("smaller than a set");
    (0..WAYS).map(move |way| set * WAYS + (home + way) % WAYS)
}

#[inline]
fn slot(place: usize) -> Slot {
    Slot::new(u32::try_from(place).expect("bounded by the keys limit"))
}

#[cfg(all(test, not(loom)))]
mod tests;
