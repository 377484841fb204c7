//! The invariants, seen from outside.
//!
//! | invariant | where |
//! |---|---|
//! | never over B + R·w: the ideal bucket stays above its floor | `World::admit`, at every admission |
//! | no spend past a deadline | `World::spend`, at every admission |
//! | in hand ≤ outstanding + ghost: the holder's deadline comes before the authority's | here |
//! | available + in hand ≤ ideal level: nothing is granted twice, at any take-over or change | here |
//! | available + outstanding + ghost ≤ capacity; outstanding is the sum of the leases | asserted by the core at every step |
//! | every claimant is served, utilisation returns | `liveness` |
//! | bounded memory | here |

use quota_core::cell::Tick;
use quota_core::holder::{Cells, Slot};

use super::World;
use crate::client::Use;

/// Without prompt checks, everything is checked after this many events.
const LAZY_EVERY: u64 = 64;

impl World {
    pub(super) fn check_after_event(&mut self) {
        self.since_checked += 1;
        if self.shape.prompt {
            let count = u64::try_from(self.buckets.len()).expect("few");
            let bucket = usize::try_from(self.since_checked % count).expect("few");
            self.check_bucket(bucket);
        } else if self.since_checked >= LAZY_EVERY {
            self.since_checked = 0;
            self.check_everything();
        }
    }

    pub(super) fn check_everything(&mut self) {
        for bucket in 0..self.buckets.len() {
            self.check_bucket(bucket);
        }
        self.check_memory();
    }

    /// Tokens of a bucket that holders could spend now.
    pub(super) fn spendable(&self, bucket: usize) -> u64 {
        let mut sum = 0;
        for client in self.clients.iter().filter(|c| c.alive) {
            let now = Tick::at(client.clock.read(self.time));
            for (place, used) in client.uses.iter().enumerate() {
                if matches!(used, Use::Bucket(b) | Use::Closing(b) if *b == bucket) {
                    let slot = Slot::new(u32::try_from(place).expect("small"));
                    let view = client.table.cell(slot).view();
                    sum += if view.live(now) { view.tokens.get() } else { 0 };
                }
            }
        }
        sum
    }

    fn check_bucket(&mut self, bucket: usize) {
        if self.failure.is_some() {
            return;
        }
        let in_hand = self.spendable(bucket);
        let (now, ideal_now) = (self.server.clock.read(self.time), self.ideal_now());
        let Some(tenure) = self.server.tenure.as_mut() else {
            return;
        };
        let watched = &mut self.buckets[bucket];
        let Some(view) = tenure.authority.inspect(now, &watched.address) else {
            return;
        };
        let ideal = watched
            .ideal
            .level(ideal_now)
            .expect("time never goes back");
        let numbers = format!(
            "{}: in hand {in_hand}, available {}, outstanding {}, ghost {}, ideal {ideal}, version \
             {}",
            watched.address, view.available, view.outstanding, view.ghost, view.version
        );
        self.trace.say(self.time, || format!("check: {numbers}"));
        if in_hand > view.outstanding.plus(view.ghost).get() {
            self.fail("in hand ≤ outstanding + ghost", numbers);
        } else if view.available + i128::from(in_hand) > ideal {
            self.fail("available + in hand ≤ ideal level", numbers);
        }
    }

    fn check_memory(&mut self) {
        let Some(tenure) = self.server.tenure.as_ref() else {
            return;
        };
        let stats = tenure.authority.stats();
        let buckets = u64::try_from(self.buckets.len()).expect("few");
        if stats.buckets > buckets || stats.waiting > buckets * stats.holders {
            self.fail("bounded memory", format!("{stats:?}"));
        }
    }
}
