//! What will happen when, in time order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Things that will happen. Of those of one moment, what was planned first comes first.
#[derive(Debug)]
pub struct Agenda<T> {
    planned: BinaryHeap<Reverse<Planned<T>>>,
    count: u64,
}

#[derive(Debug)]
struct Planned<T> {
    at: u64,
    number: u64,
    what: T,
}

impl<T> PartialEq for Planned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Planned<T> {}

impl<T> PartialOrd for Planned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Planned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            planned: BinaryHeap::new(),
            count: 0,
        }
    }
}

impl<T> Agenda<T> {
    /// `what` will happen at `at`.
    pub fn plan(&mut self, at: u64, what: T) {
        self.count += 1;
        let number = self.count;
        self.planned.push(Reverse(Planned { at, number, what }));
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.planned.peek().map(|Reverse(planned)| planned.at)
    }

    /// The next thing, which happens now.
    pub fn take(&mut self) -> Option<T> {
        self.planned.pop().map(|Reverse(planned)| planned.what)
    }
}
