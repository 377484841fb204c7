//! Telling the authority what policies decided here beside the ledger, for its statistics.
//!
//! What travels are running totals of one stream: what was counted since the stream began, and
//! what earlier streams were not told. So a message that is repeated changes nothing, an authority
//! that was restarted does not count anything again, and only what was on its way when a stream
//! broke goes missing.

use std::collections::HashMap;

use quota_core::key::PolicyId;
use quota_core::outcomes::Outcomes;
use quota_core::time::{Term, Timestamp};
use quota_wire::convert::outcomes::encode_outcomes;
use quota_wire::limits::OUTCOMES_MAX;
use quota_wire::proto as wire;

use crate::names::Names;

/// Totals travel with a message that leaves anyway, and this often at most. Without other news
/// one leaves each second.
const REPORT_EVERY: Term = Term::from_millis(900);

/// What has been reported so far.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    policies: HashMap<PolicyId, Told>,
    due: Timestamp,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The totals since the client was made, as they were last told on an earlier stream.
    before: Outcomes,
    /// The totals since the client was made, as they were last told on any stream.
    last: Outcomes,
}

impl Reporter {
    /// A new stream: its totals begin where the last one's were told.
    pub(crate) fn stream_began(&mut self) {
        for told in self.policies.values_mut() {
            told.before = told.last;
        }
        self.due = Timestamp::ZERO;
    }

    /// What the next message is to carry: as many policies as it takes, of those with news.
    pub(crate) fn take(&mut self, now: Timestamp, names: &Names) -> Vec<wire::PolicyOutcomes> {
        if now < self.due {
            return Vec::new();
        }
        let mut report = Vec::new();
        for (policy, tally) in names.tallies() {
            let totals = tally.outcomes();
            if totals.is_zero() {
                continue;
            }
            if report.len() == OUTCOMES_MAX {
                // The rest travels with the next message.
                return report;
            }
            let told = self.policies.entry(policy.clone()).or_default();
            if told.last != totals {
                told.last = totals;
                report.push(encode_outcomes(policy, &totals.since(told.before)));
            }
        }
        self.due = now + REPORT_EVERY;
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Tallied;

    fn names(count: usize) -> (Names, Vec<crate::names::PolicyNumber>) {
        let names = Names::default();
        let numbers = (0..count).map(|number| {
            names.number(&PolicyId {
                namespace: "default".to_owned(),
                name: format!("p{number}"),
            })
        });
        let numbers = numbers.collect();
        (names, numbers)
    }

    fn refused(report: &[wire::PolicyOutcomes]) -> Vec<u64> {
        report.iter().map(|one| one.shadow_refused).collect()
    }

    #[test]
    fn totals_are_of_the_stream_and_nothing_is_told_twice_or_left_out() {
        let (names, numbers) = names(1);
        let at = |seconds| Timestamp::ZERO + Term::from_seconds(seconds);
        let count = || names.tally(numbers[0]).add(Tallied::ShadowRefused);
        let mut reporter = Reporter::default();
        reporter.stream_began();
        assert_eq!(refused(&reporter.take(at(1), &names)), Vec::<u64>::new());
        count();
        assert_eq!(
            refused(&reporter.take(at(1), &names)),
            Vec::<u64>::new(),
            "not yet due"
        );
        assert_eq!(refused(&reporter.take(at(2), &names)), [1]);
        assert_eq!(
            refused(&reporter.take(at(3), &names)),
            Vec::<u64>::new(),
            "no news"
        );
        count();
        assert_eq!(refused(&reporter.take(at(4), &names)), [2]);
        count();
        reporter.stream_began();
        assert_eq!(refused(&reporter.take(at(4), &names)), [1]);
        count();
        assert_eq!(refused(&reporter.take(at(5), &names)), [2]);
    }

    #[test]
    fn many_policies_travel_in_several_messages() {
        let (names, numbers) = names(OUTCOMES_MAX + 3);
        for number in numbers {
            names.tally(number).add(Tallied::ShadowRefused);
        }
        let mut reporter = Reporter::default();
        let now = Timestamp::ZERO + Term::from_seconds(1);
        assert_eq!(reporter.take(now, &names).len(), OUTCOMES_MAX);
        assert_eq!(reporter.take(now, &names).len(), 3);
        assert_eq!(reporter.take(now, &names).len(), 0);
    }
}
