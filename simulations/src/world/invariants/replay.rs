//! If the owner died now: an authority that began from the store alone must be safe, must assume
//! to be out at least what is out, and must not have more than the live one.
//!
//! The last is said of buckets whose record the owner has made itself, and of those without one. An
//! owner that recovered from an older record, or went on from a hand-over on another machine, has
//! lost what was not certain then: parts of a token, the time between the tenures, a block that was
//! booked and not granted. A successor that recovers from the same record on the same boot may know
//! better. Both stay below the ideal bucket, which is checked to the token in any case.

use quota_core::authority::{Authority, BucketView};

use super::{BOOKED, REPLAY, World};
use crate::coverage::Sometimes;
use crate::store::Claim;

impl World {
    /// Imagines a successor and compares it with the owner.
    pub(super) fn check_successor(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let Some(node) = self.owner() else { return };
        let claim = Claim {
            epoch: self.store.epoch().next(),
            tenures_before: self.store.tenures(),
            first: false,
            hand_over: None,
        };
        let now = self.servers[node].clock.read(self.time);
        let (policies, records) = (self.store.policies(), self.store.reservations());
        let config = self.config(node, &claim);
        let mut successor = Authority::new(now, config, policies, records, None);
        self.hit(Sometimes::Successor);
        for bucket in 0..self.buckets.len() {
            let Some((_, live)) = self.look(bucket) else {
                continue;
            };
            let address = &self.buckets[bucket].address;
            if let Some(next) = successor.inspect(now, address) {
                self.compare(bucket, &live, &next);
            }
        }
    }

    fn compare(&mut self, bucket: usize, live: &BucketView, next: &BucketView) {
        let in_hand = self.in_hand(bucket);
        let text = || {
            format!(
                "{}: in hand {in_hand}; live: available {}, outstanding {}, ghost {}, version {}; \
                 a successor's: available {}, ghost {}, version {}",
                live.bucket,
                live.available,
                live.outstanding,
                live.ghost,
                live.version,
                next.available,
                next.ghost,
                next.version
            )
        };
        // The live ghost may count a block that was booked and never granted; a successor that finds
        // the record void does not. Without a change of policy no record is void.
        let initial = live.version.get() <= u64::try_from(self.policies.len()).expect("few");
        let unchanged = initial && live.version == next.version;
        let counted = if unchanged { live.ghost.get() } else { 0 };
        let out = (live.outstanding.get() + counted).max(in_hand);
        if out > next.ghost.get() {
            return self.fail(BOOKED, text());
        }
        // Another version may be stored that the owner, and so the ideal bucket, has not been told
        // of yet.
        let ideal_now = self.ideal_now();
        let ideal = self.buckets[bucket].ideal.level(ideal_now);
        let ideal = ideal.expect("time never goes back");
        let over = next.available + i128::from(in_hand) > ideal;
        let more = self.has_own_record(bucket) && next.available > live.available.max(0);
        if live.version == next.version && (more || over) {
            self.fail(REPLAY, format!("{}, ideal {ideal}", text()));
        }
    }

    /// True unless the bucket's record is older than the owner's tenure.
    fn has_own_record(&self, bucket: usize) -> bool {
        let Some(node) = self.owner() else {
            return false;
        };
        let clock = self.servers[node].clock;
        let record = self.store.reservation(&self.buckets[bucket].address);
        record.is_none_or(|record| {
            record.stamp.boot == clock.boot && record.stamp.at >= clock.read(self.begun_at)
        })
    }
}
