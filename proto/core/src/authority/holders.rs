//! Who talks to this shard: incarnations, their streams, anchors and interned key numbers.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::input::StreamId;
use crate::id::{Incarnation, KeyNumber, MessageNumber};
use crate::message::Refusal;
use crate::time::Timestamp;

/// What an interned key number stands for: a bucket, by slot and generation. The bucket may have
/// been forgotten since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// One incarnation of a holder.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) incarnation: Incarnation,
    pub(super) stream: Option<StreamId>,
    /// The highest message number received, and when.
    pub(super) anchor: MessageNumber,
    pub(super) heard_at: Timestamp,
    /// Leases of this holder in this shard.
    pub(super) leases: u32,
    /// Buckets that passed its waiting request over, since it had been silent for too long.
    pub(super) passed_over: BTreeSet<u32>,
    numbers: HashMap<KeyNumber, Numbered, NumberHash>,
    /// Numbers whose introduction was refused; every request for them is too.
    refused: HashMap<KeyNumber, Refusal, NumberHash>,
}

impl Holder {
    /// What a number of the present stream stands for; `Err(None)` if it was never introduced.
    pub(super) fn number(&self, number: KeyNumber) -> Result<Numbered, Option<Refusal>> {
        let known = self.numbers.get(&number).copied();
        known.ok_or_else(|| self.refused.get(&number).copied())
    }

    /// The buckets that were introduced in the present stream.
    pub(super) fn numbered(&self) -> impl Iterator<Item = Numbered> {
        self.numbers.values().copied()
    }

    /// Gives a number its meaning. It is never given another within a stream: a second
    /// introduction is void.
    pub(super) fn introduce(&mut self, number: KeyNumber, meaning: Result<Numbered, Refusal>) {
        if self.number(number) != Err(None) {
            return;
        }
        match meaning {
            Ok(numbered) => drop(self.numbers.insert(number, numbered)),
            Err(refusal) => drop(self.refused.insert(number, refusal)),
        }
    }

    pub(super) fn forget_refusal(&mut self, number: KeyNumber) {
        self.refused.remove(&number);
    }

    fn forget_numbers(&mut self) {
        self.passed_over = BTreeSet::new();
        self.numbers = HashMap::default();
        self.refused = HashMap::default();
    }
}

/// Key numbers and incarnations are chosen by holders. A holder that crafts collisions slows only
/// the look-ups of its own stream, whose numbers the driver bounds; incarnations are as many as
/// streams.
///
/// A fixed multiplicative hash (Knuth, *The Art of Computer Programming* 3, 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHash(u64);

impl core::hash::BuildHasher for NumberHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl core::hash::Hasher for NumberHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed.rotate_left(29);
    }
}

/// All holders of a shard, in slots that are reused when a holder has neither a stream nor a
/// lease.
#[derive(Debug, Default)]
pub(super) struct Holders {
    slots: Vec<Option<Holder>>,
    free: Vec<u32>,
    by_incarnation: HashMap<Incarnation, u32, NumberHash>,
}

impl Holders {
    pub(super) fn len(&self) -> usize {
        self.by_incarnation.len()
    }

    pub(super) fn get(&self, slot: u32) -> &Holder {
        self.slot(slot)
            .as_ref()
            .expect("a lease or a request keeps its holder")
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Holder {
        let index = usize::try_from(slot).expect("32 bits fit a usize");
        self.slots[index]
            .as_mut()
            .expect("a lease or a request keeps its holder")
    }

    fn slot(&self, slot: u32) -> &Option<Holder> {
        let index = usize::try_from(slot).expect("32 bits fit a usize");
        &self.slots[index]
    }

    pub(super) fn find(&self, incarnation: Incarnation) -> Option<u32> {
        self.by_incarnation.get(&incarnation).copied()
    }

    /// The holder's slot if `stream` is its present stream.
    pub(super) fn on_stream(&self, incarnation: Incarnation, stream: StreamId) -> Option<u32> {
        self.find(incarnation)
            .filter(|slot| self.get(*slot).stream == Some(stream))
    }

    /// True if a waiting request of this holder and stream can still be answered.
    pub(super) fn is_waiting_on(&self, slot: u32, stream: StreamId) -> bool {
        self.slot(slot)
            .as_ref()
            .is_some_and(|h| h.stream == Some(stream))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.slots.iter().flatten()
    }

    /// The holder's slot, made if it is new.
    pub(super) fn enter(&mut self, incarnation: Incarnation) -> u32 {
        if let Some(slot) = self.find(incarnation) {
            return slot;
        }
        let holder = Holder {
            incarnation,
            stream: None,
            anchor: MessageNumber::default(),
            heard_at: Timestamp::ZERO,
            leases: 0,
            passed_over: BTreeSet::new(),
            numbers: HashMap::default(),
            refused: HashMap::default(),
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len())
                    .expect("fewer than 2^32 holders")
                    .saturating_sub(1)
            }
        };
        let index = usize::try_from(slot).expect("32 bits fit a usize");
        self.slots[index] = Some(holder);
        self.by_incarnation.insert(incarnation, slot);
        slot
    }

    /// True if no newer stream of the incarnation is known.
    pub(super) fn is_newest(&self, incarnation: Incarnation, stream: StreamId) -> bool {
        let known = self
            .find(incarnation)
            .and_then(|slot| self.get(slot).stream);
        known.is_none_or(|known| known < stream)
    }

    /// Starts a stream, the newest of its incarnation; numbers of an earlier one mean nothing in
    /// it.
    pub(super) fn connect(&mut self, incarnation: Incarnation, stream: StreamId) {
        let slot = self.enter(incarnation);
        let holder = self.get_mut(slot);
        holder.stream = Some(stream);
        holder.forget_numbers();
    }

    pub(super) fn disconnect(&mut self, incarnation: Incarnation, stream: StreamId) {
        let Some(slot) = self.on_stream(incarnation, stream) else {
            return;
        };
        let holder = self.get_mut(slot);
        holder.stream = None;
        holder.forget_numbers();
        self.leave_if_idle(slot);
    }

    pub(super) fn lease_opened(&mut self, slot: u32) {
        let holder = self.get_mut(slot);
        holder.leases = holder.leases.saturating_add(1);
    }

    pub(super) fn lease_ended(&mut self, slot: u32) {
        let holder = self.get_mut(slot);
        holder.leases = holder.leases.checked_sub(1).expect("a lease ends once");
        self.leave_if_idle(slot);
    }

    /// Forgets every holder that has neither a stream nor a lease.
    pub(super) fn drop_idle(&mut self) {
        let slots = 0..u32::try_from(self.slots.len()).expect("fewer than 2^32 holders");
        for slot in slots {
            if self.slot(slot).is_some() {
                self.leave_if_idle(slot);
            }
        }
    }

    fn leave_if_idle(&mut self, slot: u32) {
        let holder = self.get(slot);
        if holder.leases == 0 && holder.stream.is_none() {
            let incarnation = holder.incarnation;
            self.by_incarnation.remove(&incarnation);
            let index = usize::try_from(slot).expect("32 bits fit a usize");
            self.slots[index] = None;
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_forgotten_only_without_stream_and_lease() {
        let mut holders = Holders::default();
        let (who, stream) = (Incarnation::new(7), StreamId::new(1));
        holders.connect(who, stream);
        let slot = holders.find(who).expect("connected");
        holders.lease_opened(slot);
        holders.disconnect(who, stream);
        assert_eq!(holders.find(who), Some(slot));
        holders.lease_ended(slot);
        assert_eq!(holders.find(who), None);
        holders.connect(Incarnation::new(8), StreamId::new(2));
        assert_eq!(
            holders.find(Incarnation::new(8)),
            Some(slot),
            "the slot is reused"
        );
    }

    #[test]
    fn an_older_stream_is_not_the_newest_and_ends_nothing() {
        let mut holders = Holders::default();
        let who = Incarnation::new(7);
        holders.connect(who, StreamId::new(2));
        assert!(!holders.is_newest(who, StreamId::new(1)));
        assert!(holders.is_newest(who, StreamId::new(3)));
        holders.disconnect(who, StreamId::new(1));
        assert!(holders.on_stream(who, StreamId::new(2)).is_some());
    }
}
