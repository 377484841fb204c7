//! The most frequent of many items, in bounded memory: Space-Saving (Metwally, Agrawal and El
//! Abbadi, *Efficient Computation of Frequent and Top-k Elements in Data Streams*, ICDT 2005).
//!
//! Every item of the first [`COUNTERS`] has a counter of its own. A further one takes over the
//! smallest, with its count, which is by how much it may then be too high. So a count is never too
//! low, and too high by at most a [`COUNTERS`]th of all that was counted; whatever makes up more
//! than that share has a counter.

use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::authority::holders::{NumberHash, Numbered};

/// Most items that are told apart: 48 KiB.
pub(super) const COUNTERS: usize = 1024;

/// What is known of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) item: Numbered,
    pub(super) count: u64,
    /// By how much `count` may be too high.
    pub(super) error: u64,
}

/// The counters, as a heap with the smallest count in front, and the place of each item in it.
/// Memory grows with the items seen, up to the bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Sketch {
    heap: Vec<Counter>,
    places: HashMap<(u32, u32), usize, NumberHash>,
}

impl Sketch {
    /// Counts one occurrence. Costs a look-up and at most ten moves.
    pub(super) fn add(&mut self, item: Numbered) {
        if let Some(place) = self.places.get(&key(item)).copied() {
            let counter = &mut self.heap[place];
            counter.count = counter.count.saturating_add(1);
            return self.sink(place);
        }
        let new = |count: u64| Counter {
            item,
            count: count.saturating_add(1),
            error: count,
        };
        if self.heap.len() < COUNTERS {
            let place = self.heap.len();
            self.heap.push(new(0));
            self.places.insert(key(item), place);
            return self.rise(place);
        }
        let smallest = self.heap[0];
        self.places.remove(&key(smallest.item));
        self.heap[0] = new(smallest.count);
        self.places.insert(key(item), 0);
        self.sink(0);
    }

    /// Halves every count, rounding down. Bounds stay bounds, of counts halved in the same way:
    /// hence an error rounds up. No order changes.
    pub(super) fn halve(&mut self) {
        for counter in &mut self.heap {
            counter.count >>= 1;
            counter.error = counter.error.div_ceil(2).min(counter.count);
        }
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.heap.iter()
    }

    /// Moves a counter up until none above it is larger.
    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let above = place.saturating_sub(1) >> 1;
            if self.heap[above].count <= self.heap[place].count {
                return;
            }
            self.swap(above, place);
            place = above;
        }
    }

    /// Moves a counter down until none below it is smaller.
    fn sink(&mut self, mut place: usize) {
        loop {
            let left = place.saturating_mul(2).saturating_add(1);
            let below = [left, left.saturating_add(1)].into_iter();
            let below = below.filter(|below| *below < self.heap.len());
            let Some(smaller) = below.min_by_key(|below| self.heap[*below].count) else {
                return;
            };
            if self.heap[place].count <= self.heap[smaller].count {
                return;
            }
            self.swap(place, smaller);
            place = smaller;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.places.insert(key(self.heap[place].item), place);
        }
    }
}

fn key(item: Numbered) -> (u32, u32) {
    (item.slot, item.generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    fn item(slot: u32) -> Numbered {
        Numbered {
            slot,
            generation: 1,
        }
    }

    /// A fixed generator (Marsaglia's xorshift), so that a failure repeats.
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn check(sketch: &Sketch, truth: &BTreeMap<u32, u64>, total: u64) {
        let share = total.div_ceil(u64::try_from(COUNTERS).expect("small"));
        let mut seen = BTreeMap::new();
        for counter in sketch.counters() {
            let true_count = truth.get(&counter.item.slot).copied().unwrap_or(0);
            assert!(counter.count >= true_count, "never too low: {counter:?}");
            let least = counter.count.checked_sub(counter.error);
            assert!(
                least.is_some_and(|least| least <= true_count),
                "at most the error too high: {counter:?}, {true_count}"
            );
            assert!(counter.error <= share, "{counter:?} of {total}");
            assert!(seen.insert(counter.item.slot, ()).is_none(), "counted once");
        }
        assert!(sketch.counters().count() <= COUNTERS);
        for (slot, count) in truth {
            assert!(
                *count <= share || seen.contains_key(slot),
                "whatever has more than its share is known: {slot} has {count} of {total}"
            );
        }
        for (place, counter) in sketch.heap.iter().enumerate() {
            assert_eq!(sketch.places.get(&key(counter.item)), Some(&place));
            let above = place.saturating_sub(1) >> 1;
            assert!(sketch.heap[above].count <= counter.count, "a heap");
        }
        assert_eq!(sketch.places.len(), sketch.heap.len());
    }

    #[test]
    fn few_items_are_counted_exactly() {
        let mut sketch = Sketch::default();
        for slot in 0..1000 {
            for _ in 0..=slot % 7 {
                sketch.add(item(slot));
            }
        }
        for counter in sketch.counters() {
            let expected = u64::from(counter.item.slot % 7 + 1);
            assert_eq!((counter.count, counter.error), (expected, 0));
        }
    }

    #[test]
    fn of_many_items_the_frequent_ones_are_known_within_the_bound() {
        let (mut sketch, mut truth) = (Sketch::default(), BTreeMap::<u32, u64>::new());
        let (mut state, mut total) = (0x5eed_u64, 0_u64);
        for round in 0..200_000_u64 {
            // Half of all is about twenty items, the rest about fifty thousand.
            let dice = next(&mut state);
            let slot = match dice % 2 {
                0 => u32::try_from((dice >> 8) % 20).expect("small"),
                _ => 1000 + u32::try_from((dice >> 8) % 50_000).expect("small"),
            };
            sketch.add(item(slot));
            *truth.entry(slot).or_default() += 1;
            total += 1;
            if round % 40_000 == 39_999 {
                check(&sketch, &truth, total);
                sketch.halve();
                truth.values_mut().for_each(|count| *count /= 2);
                total /= 2;
                check(&sketch, &truth, total);
            }
        }
        let mut top: Vec<Counter> = sketch.counters().copied().collect();
        top.sort_by_key(|counter| core::cmp::Reverse(counter.count));
        assert!(top[..20].iter().all(|counter| counter.item.slot < 20));
    }

    #[test]
    fn what_is_no_longer_asked_about_fades() {
        let mut sketch = Sketch::default();
        (0..1000).for_each(|_| sketch.add(item(7)));
        (0..10).for_each(|_| sketch.halve());
        assert_eq!(sketch.counters().map(|c| c.count).max(), Some(0));
        sketch.add(item(7));
        assert_eq!(sketch.counters().map(|c| c.count).max(), Some(1));
    }
}
