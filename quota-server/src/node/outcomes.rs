//! What gateways report to have decided beside the ledger, summed up by policy.
//!
//! A stream reports running totals that begin with it, so that what is added here is the difference
//! to what it had reported before, and a repeated or late report adds nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use quota_core::key::PolicyId;
use quota_core::outcomes::Outcomes;
use quota_core::policy::POLICIES_MAX;

use super::policies::PolicySnapshot;
use crate::metrics::Metrics;

/// Totals by policy since the node's start.
#[derive(Debug, Default)]
pub(crate) struct GatewayOutcomes(Mutex<BTreeMap<PolicyId, Outcomes>>);

impl GatewayOutcomes {
    /// Adds what was decided under a policy since the last report. Beyond as many policies as
    /// there may be, which takes deletions, further ones are not counted here.
    pub(crate) fn add(&self, metrics: &Metrics, policy: &PolicyId, news: Outcomes) {
        if news.is_zero() {
            return;
        }
        metrics.decided(policy, &news);
        let mut totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(total) = totals.get_mut(policy) {
            *total = total.and(news);
        } else if totals.len() < POLICIES_MAX {
            totals.insert(policy.clone(), news);
        }
    }

    /// All totals, by policy.
    pub(crate) fn totals(&self) -> Vec<(PolicyId, Outcomes)> {
        let totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = totals.iter();
        totals.map(|(id, total)| (id.clone(), *total)).collect()
    }
}

/// What one stream has reported.
#[derive(Debug, Default)]
pub(crate) struct Reported(HashMap<PolicyId, Outcomes>);

impl Reported {
    /// Takes a report: what is new in it, by policy. Policies that are not in force are left out,
    /// so that nobody makes up names for this node to remember.
    pub(crate) fn take(
        &mut self,
        report: Vec<(PolicyId, Outcomes)>,
        snapshot: &PolicySnapshot,
    ) -> Vec<(PolicyId, Outcomes)> {
        let mut news = Vec::new();
        for (policy, totals) in report {
            if snapshot.get(&policy).is_none() {
                continue;
            }
            let before = self.0.entry(policy.clone()).or_default();
            let new = totals.since(*before);
            *before = before.max(totals);
            news.push((policy, new));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::id::PolicyVersion;
    use quota_core::policy::{LimitSpec, PolicyHistory, PolicySpec};
    use quota_core::time::Term;
    use std::sync::Arc;

    use crate::node::policies::testing;

    fn refused(count: u64) -> Outcomes {
        Outcomes {
            shadow_refused: count,
            ..Outcomes::default()
        }
    }

    #[test]
    fn a_report_adds_what_is_new_in_it_and_names_no_policy_of_its_own_making() {
        let spec = PolicySpec::new("api", &[], LimitSpec::new(1, Term::from_seconds(1)));
        let api = spec.id();
        let history = PolicyHistory::create(spec, PolicyVersion::new(1)).expect("legal");
        let snapshot = Arc::new(testing::snapshot([history]));
        let mut made_up = api.clone();
        made_up.name = "made-up".to_owned();
        let mut reported = Reported::default();
        let (metrics, totals) = (Metrics::new(), GatewayOutcomes::default());
        for count in [3, 3, 2, 5] {
            let report = vec![(api.clone(), refused(count)), (made_up.clone(), refused(9))];
            for (policy, news) in reported.take(report, &snapshot) {
                totals.add(&metrics, &policy, news);
            }
        }
        // Another stream begins at zero.
        for (policy, news) in Reported::default().take(vec![(api.clone(), refused(1))], &snapshot) {
            totals.add(&metrics, &policy, news);
        }
        assert_eq!(totals.totals(), [(api, refused(6))]);
        let text = metrics.text();
        let line =
            "quota_gateway_decisions_total{policy=\"default/api\",decision=\"shadow_refused\"} 6";
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
