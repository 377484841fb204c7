//! Memory follows what is active.
//!
//! An authority keeps at most as many buckets as it has room for, a holder only while it has a
//! stream or a lease, and one waiting request for each holder and bucket. A bucket that is full and
//! unused is forgotten within two sweeps, so that long after a flood of keys only the usual buckets
//! are there.

use quota_core::time::Term;

use super::{MEMORY, World};
use crate::coverage::Sometimes;
use crate::shape::{Fault, MILLI};

/// Two passes over all buckets, of ten seconds each, and a record's write in between.
const SWEPT_AFTER: u64 = 25_000 * MILLI;

impl World {
    pub(super) fn check_memory(&mut self) {
        let Some(tenure) = self
            .owner()
            .and_then(|node| self.servers[node].tenure.as_ref())
        else {
            return;
        };
        let stats = tenure.authority.stats();
        let streams = u64::try_from(tenure.streams.len()).expect("few");
        let watched = u64::try_from(self.buckets.len()).expect("few");
        let room = u64::from(self.shape.buckets_max);
        let buckets = if self.liar.has_flooded() {
            room
        } else {
            watched
        };
        let bounded = stats.buckets <= buckets.max(watched)
            && stats.holders <= streams + stats.leases
            && stats.waiting <= stats.buckets * stats.holders;
        if !bounded {
            let text = format!("{stats:?}, {streams} streams, room for {room} buckets");
            self.fail(MEMORY, text);
        }
    }

    /// At the end of the world: what a flood left is forgotten, if there was time for it.
    pub(in crate::world) fn check_flood_forgotten(&mut self) {
        let changed = [
            Fault::PolicyChange,
            Fault::PolicyToggle,
            Fault::PolicyDelete,
        ]
        .iter()
        .any(|fault| self.faults.contains_key(fault.name()));
        if !self.liar.has_flooded() || changed {
            return;
        }
        let refill = |bucket: usize| {
            let limit = self.buckets[bucket].ideal.limit();
            limit.rate.time_for(limit.capacity)
        };
        let refill = (0..self.buckets.len()).map(refill).max();
        let term = self.policies.iter().map(|p| p.term).max();
        let term = term.unwrap_or_default();
        // Once for the leases, once for a ghost; a slow clock makes it longer.
        let wait = (refill.unwrap_or_default() + term + term).scale_up(5, 4);
        let over = self.liar.flooded_at() + wait.as_nanos() + SWEPT_AFTER;
        if self.time < over.max(self.begun_at + SWEPT_AFTER + wait.as_nanos()) {
            return;
        }
        let watched = u64::try_from(self.buckets.len()).expect("few");
        let Some(tenure) = self
            .owner()
            .and_then(|node| self.servers[node].tenure.as_ref())
        else {
            return;
        };
        let stats = tenure.authority.stats();
        self.hit(Sometimes::FloodForgotten);
        // A request that still waits keeps its bucket: one of the flood may be served only when its
        // holder is heard again.
        if stats.buckets > watched + stats.waiting {
            let after = Term::from_nanos(self.time - self.liar.flooded_at());
            self.fail(
                MEMORY,
                format!("{after:?} after a flood of keys: {stats:?}"),
            );
        }
    }
}
