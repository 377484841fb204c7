//! What must never happen, seen from outside of the core: one file for each invariant.
//!
//! The number is that of `ARCHITECTURE.md`'s list.
//!
//! | invariant | it says | no. | checked | file |
//! |---|---|---|---|---|
//! | never over B + R·w | the ideal bucket, fed with every admission, stays above its floor | 1 | at every admission | `World::admit` |
//! | no spend past a deadline | a debit is admitted only while its lease lives | 3 | at every admission | `World::spend` |
//! | conservation | available + outstanding + ghost ≤ capacity; all that was granted is outstanding, spent, returned or reclaimed | 1, 2 | per bucket; whole state | `conservation` |
//! | in hand ≤ outstanding + ghost | the ledger knows of every token that can still be spent | 2, 5 | per bucket | `exposure` |
//! | available + in hand ≤ ideal level | nothing is granted twice, at any take-over or change | 1, 9 | per bucket | `exposure` |
//! | the holder stops first | a lease ends at its holder before it ends at the authority, or before the ghost that covers it | 3 | per bucket | `deadlines` |
//! | booked before granted | what is out is what a successor would assume to be out | 7 | whole state | `replay` |
//! | replay equals live | an authority that began now from the store would not have more than the live one | 7, 9 | whole state | `replay` |
//! | one owner | nobody decides once another tenure has been claimed | 6 | at every batch | `fencing` |
//! | fencing | no record of a replaced owner is applied | 6 | at every write | `fencing` |
//! | idempotence | a message or an answer that is handled twice changes nothing the second time | 4 | at some messages and answers | `idempotence` |
//! | counters of a liar | no lease is spent, returned or extended beyond what it was granted | 4, 12 | at every message of a liar | `liar` |
//! | bounded memory | buckets, holders, leases and waiting requests follow what is active | 11 | whole state; end | `memory` |
//! | every claimant is served, utilisation returns | once nothing goes wrong any more | – | end | `liveness` |
//! | an assertion of the shipped code | every `handle` ends by checking the bucket that it touched | 1, 10 | at every event | in the core |
//!
//! *Per bucket*: after every event in worlds that check promptly, otherwise after some dozens, and
//! always with the whole state. *Whole state*: at every fault and take-over, at intervals, at the
//! end of the faults and at the end.

mod conservation;
mod deadlines;
mod exposure;
mod fencing;
mod idempotence;
mod memory;
mod replay;

use quota_core::authority::BucketView;
use quota_core::cell::Tick;
use quota_core::holder::{Cells, Slot};
use quota_core::time::Timestamp;

use super::World;
use crate::client::Use;

pub(crate) const PROMISE: &str = "never over B + R·w";
pub(crate) const PAST_DEADLINE: &str = "no spend past a deadline";
pub(crate) const CONSERVATION: &str = "conservation";
pub(crate) const EXPOSURE: &str = "in hand ≤ outstanding + ghost";
pub(crate) const TWICE: &str = "available + in hand ≤ ideal level";
pub(crate) const HOLDER_FIRST: &str = "the holder stops first";
pub(crate) const BOOKED: &str = "booked before granted";
pub(crate) const REPLAY: &str = "replay equals live";
pub(crate) const ONE_OWNER: &str = "one owner";
pub(crate) const FENCING: &str = "fencing";
pub(crate) const IDEMPOTENCE: &str = "idempotence";
pub(crate) const LIAR_COUNTERS: &str = "counters of a liar";
pub(crate) const MEMORY: &str = "bounded memory";
pub(crate) const SERVED: &str = "every claimant is served";
pub(crate) const UTILISATION: &str = "utilisation returns";
pub(crate) const ASSERTION: &str = "an assertion of the shipped code";
pub(crate) const GOES_ON: &str = "the world goes on";

/// Without prompt checks, every bucket is checked after this many events.
const LAZY_EVERY: u64 = 64;
/// The whole state is checked after this many events.
const WHOLE_EVERY: u64 = 512;

impl World {
    /// What an event touched, or in lazy worlds now and then everything.
    pub(super) fn check_after_event(&mut self) {
        self.since_checked += 1;
        self.since_imagined += 1;
        if self.since_imagined >= WHOLE_EVERY {
            self.check_everything();
        } else if self.shape.prompt {
            let count = u64::try_from(self.buckets.len()).expect("few");
            let bucket = usize::try_from(self.since_checked % count).expect("few");
            self.check_bucket(bucket);
        } else if self.since_checked >= LAZY_EVERY {
            self.since_checked = 0;
            self.check_buckets();
        }
    }

    /// The whole state.
    pub(super) fn check_everything(&mut self) {
        self.since_imagined = 0;
        self.check_buckets();
        self.check_totals();
        self.check_memory();
        self.check_successor();
    }

    fn check_buckets(&mut self) {
        for bucket in 0..self.buckets.len() {
            self.check_bucket(bucket);
        }
    }

    fn check_bucket(&mut self, bucket: usize) {
        if self.failure.is_some() {
            return;
        }
        let Some((now, view)) = self.look(bucket) else {
            return;
        };
        self.check_capacity(&view);
        self.check_exposure(bucket, &view);
        self.check_deadlines(bucket, now, &view);
    }

    /// A bucket as its owner sees it, and the owner's time.
    pub(super) fn look(&mut self, bucket: usize) -> Option<(Timestamp, BucketView)> {
        let node = self.owner()?;
        let now = self.servers[node].clock.read(self.time);
        let tenure = self.servers[node].tenure.as_mut()?;
        let view = tenure
            .authority
            .inspect(now, &self.buckets[bucket].address)?;
        Some((now, view))
    }

    /// Tokens of a bucket that could be spent now, by holders and by the liar.
    pub(super) fn in_hand(&self, bucket: usize) -> u64 {
        self.spendable(bucket) + self.liar.in_hand(bucket)
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
}
