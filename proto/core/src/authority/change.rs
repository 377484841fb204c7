//! Putting another version of a policy in force, for every bucket at once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::policies::{self, Beginning};
use super::{Authority, Effect};
use crate::policy::PolicyHistory;
use crate::time::Timestamp;
use crate::tokens::Tokens;

impl Authority {
    /// Puts what was stored in force and says what is out and owed under it.
    pub(super) fn apply_policy(
        &mut self,
        now: Timestamp,
        history: PolicyHistory,
        effects: &mut Vec<Effect>,
    ) {
        let id = history.id().clone();
        let version = history.current().map(|policy| policy.version());
        let (mut outstanding, mut owed) = (Tokens::ZERO, Tokens::ZERO);
        match self.policies.find(&id) {
            None => {
                if let Some(slot) = policies::begin(now, history, Beginning::New, self.config.drift)
                {
                    self.policies.insert(slot);
                }
            }
            // What was decided later stays: nobody serves below the version that is recorded.
            Some(policy)
                if history.changed_at() < self.policies.get(policy).history.changed_at() => {}
            Some(policy) => {
                self.change_policy(now, policy, history, effects, &mut outstanding, &mut owed);
            }
        }
        effects.push(Effect::PolicyApplied {
            id,
            version,
            outstanding,
            owed,
        });
    }

    /// Brings every bucket of a policy under its new version at this instant, so that no later
    /// grant follows the old one.
    fn change_policy(
        &mut self,
        now: Timestamp,
        policy: u32,
        history: PolicyHistory,
        effects: &mut Vec<Effect>,
        outstanding: &mut Tokens,
        owed: &mut Tokens,
    ) {
        let touched: Vec<u32> = self
            .buckets
            .occupied()
            .filter(|slot| self.buckets.get(*slot).policy == policy)
            .collect();
        let mut old_limits = Vec::with_capacity(touched.len());
        for slot in &touched {
            self.settle(*slot, now);
            *outstanding += self.buckets.get(*slot).ledger.outstanding;
            old_limits.push(*self.limit_of(*slot));
        }
        self.policies.get_mut(policy).change(now, history);
        for (slot, old) in touched.into_iter().zip(old_limits) {
            let changed = self.policies.get(policy);
            let bucket = self.buckets.get_mut(slot);
            bucket.class = changed.class_of(&bucket.key);
            let class = changed.class(bucket.class);
            bucket.ledger.restate(&old, &class.limit);
            let debt = bucket
                .ledger
                .level
                .tokens(class.limit.rate())
                .min(0)
                .unsigned_abs();
            *owed += Tokens::new(u64::try_from(debt).unwrap_or(u64::MAX));
            // A lease belongs to one version: its renewal opens another.
            for lease in bucket.leases.as_mut_slice() {
                if !changed.is_current() || lease.version != changed.version() {
                    lease.close();
                }
            }
            match (class.limit.is_reserved(), bucket.reserve.is_some()) {
                (true, false) => bucket.reserve = Some(Box::default()),
                (false, true) => self.unreserve(slot),
                _ => {}
            }
            self.drop_unservable(now, slot, effects);
            self.recall_former(now, slot, effects);
            self.serve(now, slot, effects);
            self.check(slot);
        }
    }

    /// A bucket stops keeping records. One in flight still ends, into nothing.
    fn unreserve(&mut self, slot: u32) {
        self.buckets.get_mut(slot).reserve = None;
        self.writes.dirty.retain(|dirty| *dirty != slot);
        if let Some((_, slots)) = self.writes.in_flight.as_mut() {
            slots.retain(|written| *written != slot);
        }
    }
}
