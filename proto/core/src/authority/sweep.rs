//! The background pass that ends leases nobody asks about and forgets idle buckets.

use super::Authority;
use crate::time::{Term, Timestamp};

/// A whole pass over a shard's buckets takes this many steps of [`STEP`]: ten seconds.
const STEPS: u32 = 10;
const STEP: Term = Term::from_seconds(1);

/// Where the pass stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    cursor: u32,
    at: Timestamp,
}

impl Sweep {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            cursor: 0,
            at: now + STEP,
        }
    }

    /// When the next step is due; never while there is no bucket.
    pub(super) fn next(&self, buckets: usize) -> Option<Timestamp> {
        (buckets > 0).then_some(self.at)
    }

    /// A pass that slept while there were no buckets starts from now.
    pub(super) fn wake(&mut self, now: Timestamp) {
        self.at = self.at.max(now);
    }
}

impl Authority {
    /// Does the steps of the background pass that are due: one, however late it comes.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        if self.sweep.at > now || self.buckets.len() == 0 {
            return;
        }
        self.sweep.at = now + STEP;
        let slots = self.buckets.slot_count();
        for _ in 0..slots.div_ceil(STEPS) {
            let slot = self.sweep.cursor;
            self.sweep.cursor = if slot.saturating_add(1) >= slots {
                0
            } else {
                slot.saturating_add(1)
            };
            if slot < slots && self.buckets.try_get(slot).is_some() {
                self.tidy(now, slot);
            }
        }
    }

    /// Settles one bucket; renews or deletes its record where that is due; forgets it if an
    /// unseen one would be the same in every respect.
    fn tidy(&mut self, now: Timestamp, slot: u32) {
        self.settle(slot, now);
        self.check(slot);
        let bucket = self.buckets.get(slot);
        let policy = self.policies.get(bucket.policy);
        let limit = &policy.class(bucket.class).limit;
        if let Some(reserve) = &bucket.reserve {
            let idle = bucket.leases.is_empty() && bucket.queue.is_none();
            if reserve.is_stale(&bucket.ledger, limit) || (idle && reserve.is_open()) {
                self.writes.dirty.push(slot);
                return;
            }
            if !reserve.is_blank() {
                return;
            }
        }
        if !bucket.leases.is_empty() || bucket.queue.is_some() || self.writes.dirty.contains(&slot)
        {
            return;
        }
        let (policy, class, ledger) = (bucket.policy, bucket.class, bucket.ledger);
        let unseen = self.policies.get_mut(policy).unseen(class, now);
        let same = ledger.level == unseen.level
            && ledger.ghost == unseen.ghost
            && ledger.outstanding == unseen.outstanding
            && (ledger.ghost.is_zero() || ledger.ghost_end == unseen.ghost_end);
        if same {
            self.buckets.remove(slot);
            self.policies.bucket_gone(policy);
            self.stats.buckets_forgotten = self.stats.buckets_forgotten.saturating_add(1);
        }
    }
}
