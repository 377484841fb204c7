//! Totals of a shard over all its tenures in this process.

use std::collections::BTreeMap;

use quota_core::authority::{Authority, PolicyStats, Stats};
use quota_core::key::PolicyId;

use super::event::ShardReport;

/// Running totals, which go on when a tenure ends, and the present counts of the latest one.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    stats: Stats,
    policies: BTreeMap<PolicyId, PolicyStats>,
}

impl Totals {
    /// Adds what an authority counted since its tenure began.
    pub(super) fn add(&mut self, authority: &Authority) {
        merge(&mut self.stats, &authority.stats());
        for (id, stats) in authority.policy_stats() {
            self.policies.entry(id.clone()).or_default().merge(stats);
        }
    }

    /// Forgets what was present when a tenure ended. What holders had in hand counts as spent from
    /// here on; the next tenure knows it as a ghost.
    pub(super) fn clear_present(&mut self) {
        for stats in self.policies.values_mut() {
            stats.lost = stats.lost.saturating_add(stats.outstanding());
        }
        let stats = &mut self.stats;
        (stats.buckets, stats.leases, stats.holders, stats.waiting) = (0, 0, 0, 0);
    }

    pub(super) fn report(self, settled: bool) -> ShardReport {
        ShardReport {
            stats: self.stats,
            policies: self.policies.into_iter().collect(),
            settled,
        }
    }
}

/// Adds `from` to `into`, field by field.
pub(crate) fn merge(into: &mut Stats, from: &Stats) {
    // By name, so that a new field is not forgotten here.
    let Stats {
        requests,
        retries,
        pushes,
        leases_opened,
        buckets_made,
        buckets_forgotten,
        records_written,
        writes,
        records_read,
        buckets,
        leases,
        holders,
        waiting,
    } = into;
    *requests += from.requests;
    *retries += from.retries;
    *pushes += from.pushes;
    *leases_opened += from.leases_opened;
    *buckets_made += from.buckets_made;
    *buckets_forgotten += from.buckets_forgotten;
    *records_written += from.records_written;
    *writes += from.writes;
    *records_read += from.records_read;
    *buckets += from.buckets;
    *leases += from.leases;
    *holders += from.holders;
    *waiting += from.waiting;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_out_when_a_tenure_ended_is_lost_and_not_out_for_ever() {
        let id = PolicyId {
            namespace: "default".into(),
            name: "api".into(),
        };
        let first = PolicyStats {
            granted: 10,
            spent: 4,
            ..PolicyStats::default()
        };
        let mut totals = Totals::default();
        totals.policies.insert(id.clone(), first);
        totals.clear_present();
        let next = PolicyStats {
            granted: 5,
            ..PolicyStats::default()
        };
        let stats = totals.policies.get_mut(&id).expect("entered above");
        stats.merge(&next);
        assert_eq!((stats.lost, stats.outstanding()), (6, 5));
    }
}
