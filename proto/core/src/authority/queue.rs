//! Requests that wait for tokens at the authority, least recently served first.
//!
//! Each serving is at most a fair chunk, and a holder that wants more asks again behind the
//! others, so the queue is deficit round robin with one chunk as its quantum. A waiting request
//! belongs to a holder and its stream, not to a lease: the lease may end before its turn comes.

use alloc::collections::VecDeque;

use crate::id::{Incarnation, KeyNumber, LeaseId, Sequence};
use crate::time::Timestamp;
use crate::tokens::Tokens;

use super::input::StreamId;

/// One waiting request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) incarnation: Incarnation,
    /// Index of the holder in the authority's table; valid while it is on `stream`.
    pub(super) holder: u32,
    pub(super) stream: StreamId,
    pub(super) number: KeyNumber,
    pub(super) sequence: Sequence,
    /// The lease that the holder wants extended.
    pub(super) lease: Option<LeaseId>,
    pub(super) want: Tokens,
    pub(super) least: Tokens,
    pub(super) demand: u32,
    /// When its holder began to wait, whatever it has wished for since.
    pub(super) since: Timestamp,
    /// Grows with the time of the holder's last grant; zero if it has no lease.
    pub(super) served: Timestamp,
}

/// The waiting requests of one bucket, at most one per holder.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter()
    }

    /// The request that has so many before it.
    pub(super) fn at(&self, place: usize) -> Option<&Waiter> {
        self.waiters.get(place)
    }

    pub(super) fn take(&mut self, place: usize) -> Option<Waiter> {
        self.waiters.remove(place)
    }

    pub(super) fn of(&self, incarnation: Incarnation) -> Option<&Waiter> {
        self.waiters.iter().find(|w| w.incarnation == incarnation)
    }

    /// Queues a request before those of holders that were served later, so that whoever asks for
    /// less than its share is not kept waiting by those who ask for more. A holder that already
    /// waits keeps its place and changes its wish.
    pub(super) fn put(&mut self, waiter: Waiter) {
        match self
            .waiters
            .iter_mut()
            .find(|w| w.incarnation == waiter.incarnation)
        {
            Some(place) => *place = waiter,
            None => {
                let later = |w: &Waiter| w.served > waiter.served;
                let place = self.waiters.iter().position(later);
                let place = place.unwrap_or(self.waiters.len());
                self.waiters.insert(place, waiter);
            }
        }
    }

    pub(super) fn remove(&mut self, incarnation: Incarnation) {
        self.waiters.retain(|w| w.incarnation != incarnation);
    }

    /// Removes and returns the requests that `gone` picks.
    pub(super) fn extract(&mut self, mut gone: impl FnMut(&Waiter) -> bool) -> VecDeque<Waiter> {
        let (out, kept) = self.waiters.iter().partition(|w| gone(w));
        self.waiters = kept;
        out
    }

    /// How many requests are before that of `incarnation`.
    pub(super) fn place_of(&self, incarnation: Incarnation) -> usize {
        let mut waiters = self.waiters.iter();
        waiters
            .position(|w| w.incarnation == incarnation)
            .unwrap_or(self.waiters.len())
    }
}
