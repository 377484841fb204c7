//! What a change of a policy would find, without making it.

use super::Authority;
use crate::policy::PolicyHistory;
use crate::time::Timestamp;
use crate::tokens::Tokens;

impl Authority {
    /// The tokens that are out under the versions before, and those that buckets would owe, if
    /// `history` were put in force now; see [`super::Effect::PolicyApplied`]. Nothing changes but
    /// what settling brings about anyway.
    ///
    /// Cost: a look at every bucket, as for putting it in force.
    pub fn preview_policy(&mut self, now: Timestamp, history: &PolicyHistory) -> (Tokens, Tokens) {
        let (mut outstanding, mut owed) = (Tokens::ZERO, Tokens::ZERO);
        let Some(policy) = self.policies.find(history.id()) else {
            return (outstanding, owed);
        };
        let touched: alloc::vec::Vec<u32> = self
            .buckets
            .occupied()
            .filter(|slot| self.buckets.get(*slot).policy == policy)
            .collect();
        for slot in touched {
            self.settle(slot, now);
            let old = *self.limit_of(slot);
            let bucket = self.buckets.get(slot);
            outstanding += bucket.ledger.outstanding;
            // Of a deleted policy the last limits stay in force.
            let new = history.current().map_or(&old, |p| p.limit_for(&bucket.key));
            let mut ledger = bucket.ledger;
            ledger.restate(&old, new);
            let debt = ledger.level.tokens(new.rate()).min(0).unsigned_abs();
            owed += Tokens::new(u64::try_from(debt).unwrap_or(u64::MAX));
        }
        (outstanding, owed)
    }
}
