//! Tokens are neither made nor lost: in each bucket, and in the totals of each policy.
//!
//! The core asserts the same of the bucket that it touched; here it is seen through what an
//! operator sees.

use quota_core::authority::BucketView;

use super::{CONSERVATION, World};

impl World {
    pub(super) fn check_capacity(&mut self, view: &BucketView) {
        let taken = view.outstanding.plus(view.ghost).get();
        let sum = view.available + i128::from(taken);
        if sum > i128::from(view.capacity.get()) {
            self.fail(
                CONSERVATION,
                format!("{sum} tokens are accounted: {view:?}"),
            );
        }
        let held: u64 = view
            .leases
            .iter()
            .map(|lease| {
                let used = lease.spent.plus(lease.returned);
                lease.granted.get().saturating_sub(used.get())
            })
            .sum();
        if !view.unseen && held != view.outstanding.get() {
            self.fail(CONSERVATION, format!("leases hold {held} tokens: {view:?}"));
        }
    }

    /// Takes note of what was out when a tenure began.
    pub(in crate::world) fn note_resumed(&mut self, node: usize) {
        for policy in 0..self.policies.len() {
            let out = self.outstanding_of(policy);
            let id = self.policies[policy].id.clone();
            if let (Some(out), Some(tenure)) = (out, self.servers[node].tenure.as_mut()) {
                tenure.resumed.insert(id, out);
            }
        }
    }

    /// Tokens out of all buckets of a policy; `None` if there are buckets that the world does not
    /// watch, or if the policy cannot be seen.
    fn outstanding_of(&mut self, policy: usize) -> Option<u64> {
        if self.liar.has_flooded() {
            return None;
        }
        let mut out = 0;
        for bucket in self.buckets_of(policy) {
            let (_, view) = self.look(bucket)?;
            out += view.outstanding.get();
        }
        Some(out)
    }

    /// What a tenure began with and granted is outstanding, spent, returned or reclaimed.
    pub(super) fn check_totals(&mut self) {
        for policy in 0..self.policies.len() {
            let (Some(out), Some(node)) = (self.outstanding_of(policy), self.owner()) else {
                continue;
            };
            let Some(tenure) = &self.servers[node].tenure else {
                continue;
            };
            let id = &self.policies[policy].id;
            let stats = tenure.authority.policy_stats().find(|(of, _)| *of == id);
            let (Some((_, stats)), Some(began)) = (stats, tenure.resumed.get(id)) else {
                continue;
            };
            let came = began + stats.granted;
            let went = out + stats.spent + stats.returned + stats.reclaimed;
            if came != went {
                let text = format!("{id}: {began} + {stats:?}, {out} outstanding");
                self.fail(CONSERVATION, text);
            }
        }
    }
}
