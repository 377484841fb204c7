//! What a server counts, in the words of the glossary.
//!
//! Two kinds of numbers meet here. What the edge does (streams, messages, answers) is counted as it
//! happens: each counter is an atomic number, and counting is one relaxed add. What the ledger does
//! (grants, tokens, buckets) is counted by the authorities themselves, and [`Metrics::show`] copies
//! their totals when somebody asks, so that metrics and ledger cannot drift apart.
//!
//! Labels are bounded: a status is one of a few words, and at most [`POLICY_LABELS_MAX`] policies
//! are told apart; later ones are counted together as `other`. A policy keeps its label until the
//! server ends, deleted or not, because a counter must not go back.

mod ledger;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use quota_core::authority::{PolicyStats, Stats};
use quota_core::key::PolicyId;
use quota_core::message::{Refusal, Status};
use quota_core::outcomes::Outcomes;

use self::ledger::{Ledger, PolicyLabel};
use crate::store::handle::StoreWatch;

/// Most policies that are told apart by a label.
pub const POLICY_LABELS_MAX: usize = 200;

/// The label of the policies beyond [`POLICY_LABELS_MAX`]. It is no policy's name, which always
/// has a slash.
const OTHER: &str = "other";

/// Everything that a server counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    /// The policies that have a label of their own.
    labelled: Mutex<HashSet<PolicyId>>,
    ledger: Ledger,
    answers: [Counter; AnswerStatus::ALL.len()],
    records: Family<PolicyLabel, Counter>,
    decisions: Family<DecisionLabel, Counter>,
    /// Client streams open now.
    pub streams: Gauge,
    /// Messages received on streams.
    pub messages_in: Counter,
    /// Messages sent on streams.
    pub messages_out: Counter,
    /// Bytes of messages received on streams.
    pub bytes_in: Counter,
    /// Bytes of messages sent on streams.
    pub bytes_out: Counter,
    /// Messages refused at the edge, malformed or beyond a limit.
    pub messages_refused: Counter,
    /// Streams and calls turned away because a limit was reached.
    pub busy: Counter,
    /// Shards owned now.
    pub shards: Gauge,
    /// Shards of which earlier tenures may still have live exposure.
    pub shards_unsettled: Gauge,
    /// Claims made.
    pub claims: Counter,
    /// Tenures that ended because a write failed or its outcome was unknown.
    pub claims_lost: Counter,
    /// Policies in force.
    pub policies: Gauge,
    /// The highest policy version in force.
    pub policy_version: Gauge,
    /// Policy changes accepted.
    pub policy_changes: Counter,
    /// Kill switches that are set.
    pub kill_switches: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabel {
    policy: String,
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: AnswerStatus,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AnswerStatus {
    Done,
    Queued,
    Recall,
    UnknownPolicy,
    UnknownKey,
    KeyMismatch,
    CostAboveCapacity,
    Busy,
}

impl AnswerStatus {
    /// All of them, each at the place that its number names.
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Queued,
        Self::Recall,
        Self::UnknownPolicy,
        Self::UnknownKey,
        Self::KeyMismatch,
        Self::CostAboveCapacity,
        Self::Busy,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Queued => "queued",
            Self::Recall => "recall",
            Self::UnknownPolicy => "unknown_policy",
            Self::UnknownKey => "unknown_key",
            Self::KeyMismatch => "key_mismatch",
            Self::CostAboveCapacity => "cost_above_capacity",
            Self::Busy => "busy",
        }
    }
}

impl From<&Status> for AnswerStatus {
    fn from(status: &Status) -> Self {
        match status {
            Status::Done => Self::Done,
            Status::Queued { .. } => Self::Queued,
            Status::Recall { .. } => Self::Recall,
            Status::Refused(refusal) => match refusal {
                Refusal::UnknownPolicy => Self::UnknownPolicy,
                Refusal::UnknownKey => Self::UnknownKey,
                Refusal::KeyMismatch { .. } => Self::KeyMismatch,
                Refusal::CostAboveCapacity { .. } => Self::CostAboveCapacity,
                Refusal::Busy { .. } => Self::Busy,
            },
        }
    }
}

impl EncodeLabelValue for AnswerStatus {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.word().encode(encoder)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All counters at zero.
    #[must_use]
    pub fn new() -> Self {
        let answers = Family::<StatusLabel, Counter>::default();
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("quota")),
            labelled: Mutex::default(),
            ledger: Ledger::default(),
            answers: AnswerStatus::ALL
                .map(|status| answers.get_or_create_owned(&StatusLabel { status })),
            records: Family::default(),
            decisions: Family::default(),
            streams: Gauge::default(),
            messages_in: Counter::default(),
            messages_out: Counter::default(),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            messages_refused: Counter::default(),
            busy: Counter::default(),
            shards: Gauge::default(),
            shards_unsettled: Gauge::default(),
            claims: Counter::default(),
            claims_lost: Counter::default(),
            policies: Gauge::default(),
            policy_version: Gauge::default(),
            policy_changes: Counter::default(),
            kill_switches: Gauge::default(),
        };
        metrics.register(answers);
        metrics
    }

    fn register(&self, answers: Family<StatusLabel, Counter>) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let to = &mut *registry;
        self.ledger.register(to);
        to.register("answers", "Answers sent, by status", answers);
        to.register(
            "records",
            "Reservation records handed to the store; none for volatile buckets",
            self.records.clone(),
        );
        to.register(
            "gateway_decisions",
            "Requests that gateways decided beside the ledger: under policies in shadow mode, kill \
             switches and outages",
            self.decisions.clone(),
        );
        to.register("streams", "Client streams open", self.streams.clone());
        to.register(
            "messages_in",
            "Messages received on streams",
            self.messages_in.clone(),
        );
        to.register(
            "messages_out",
            "Messages sent on streams",
            self.messages_out.clone(),
        );
        to.register_with_unit(
            "messages_in",
            "Messages received on streams, in bytes without framing",
            Unit::Bytes,
            self.bytes_in.clone(),
        );
        to.register_with_unit(
            "messages_out",
            "Messages sent on streams, in bytes without framing",
            Unit::Bytes,
            self.bytes_out.clone(),
        );
        to.register(
            "messages_refused",
            "Messages refused at the edge, malformed or beyond a limit",
            self.messages_refused.clone(),
        );
        to.register(
            "busy",
            "Streams and calls turned away at a limit",
            self.busy.clone(),
        );
        to.register("shards", "Shards owned", self.shards.clone());
        to.register(
            "shards_unsettled",
            "Shards of which earlier tenures may have live exposure",
            self.shards_unsettled.clone(),
        );
        to.register("claims", "Claims of shards made", self.claims.clone());
        to.register(
            "claims_lost",
            "Tenures ended by a failed or doubtful write",
            self.claims_lost.clone(),
        );
        to.register("policies", "Policies in force", self.policies.clone());
        to.register(
            "policy_version",
            "Highest policy version",
            self.policy_version.clone(),
        );
        to.register(
            "policy_changes",
            "Policy changes accepted",
            self.policy_changes.clone(),
        );
        to.register(
            "kill_switches",
            "Kill switches that are set",
            self.kill_switches.clone(),
        );
    }

    /// Counts one answer.
    pub fn answered(&self, status: &Status) {
        let status = AnswerStatus::from(status);
        let index = AnswerStatus::ALL.iter().position(|&known| known == status);
        self.answers[index.expect("all statuses are listed")].inc();
    }

    /// Takes over what the authorities of all shards counted since the process started: the sum
    /// of their totals, and each policy's totals, which may come in several parts.
    pub fn show<'a>(
        &self,
        stats: &Stats,
        policies: impl IntoIterator<Item = (&'a PolicyId, &'a PolicyStats)>,
    ) {
        self.ledger.show(stats);
        let mut sums: BTreeMap<String, PolicyStats> = BTreeMap::new();
        for (id, stats) in policies {
            sums.entry(self.label(id)).or_default().merge(stats);
        }
        for (label, stats) in &sums {
            self.ledger.show_policy(label, stats);
        }
    }

    /// Counts records of one policy's buckets that are handed to the store. Takes a lock: once a
    /// write, not once a record.
    pub fn recorded(&self, policy: &PolicyId, count: u64) {
        let policy = self.label(policy);
        self.records
            .get_or_create(&PolicyLabel { policy })
            .inc_by(count);
    }

    /// Counts what gateways decided under a policy beside the ledger. Takes locks: once a report.
    pub fn decided(&self, policy: &PolicyId, news: &Outcomes) {
        let policy = self.label(policy);
        for (decision, count) in news.named() {
            if count > 0 {
                let policy = policy.clone();
                let label = DecisionLabel { policy, decision };
                self.decisions.get_or_create(&label).inc_by(count);
            }
        }
    }

    fn label(&self, id: &PolicyId) -> String {
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        let own = labelled.contains(id)
            || labelled.len() < POLICY_LABELS_MAX && labelled.insert(id.clone());
        if own {
            id.to_string()
        } else {
            OTHER.to_owned()
        }
    }

    /// Serves the counters of a store's thread as well. Once per store.
    pub fn watch_store(&self, store: StoreWatch) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register_collector(Box::new(StoreCollector(store)));
    }

    /// Everything as OpenMetrics text. Costs about a microsecond a line.
    #[must_use]
    pub fn text(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing to a string does not fail");
        text
    }
}

/// Reads a store's counters when asked.
#[derive(Debug)]
struct StoreCollector(StoreWatch);

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counters = self.0.counters();
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        for (name, help, value) in [
            (
                "store_calls",
                "Calls that the store answered",
                read(&counters.calls),
            ),
            (
                "record_commits",
                "Groups of record writes committed, each with one sync",
                read(&counters.groups),
            ),
            (
                "record_writes",
                "Shards' batches of records applied",
                read(&counters.batches),
            ),
            (
                "record_writes_failed",
                "Shards' batches refused, failed or in doubt",
                read(&counters.batches_failed),
            ),
            (
                "records_written",
                "Records written, removals included",
                read(&counters.records),
            ),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let nanos = read(&counters.commit_nanos);
        let seconds = ConstCounter::new(std::time::Duration::from_nanos(nanos).as_secs_f64());
        let metric = encoder.encode_descriptor(
            "record_commit",
            "Time spent committing records",
            Some(&Unit::Seconds),
            seconds.metric_type(),
        )?;
        seconds.encode(metric)?;
        let stopped = ConstGauge::new(i64::from(self.0.stopped().is_some()));
        let metric = encoder.encode_descriptor(
            "store_stopped",
            "1 if the store has failed and the server must be restarted",
            None,
            stopped.metric_type(),
        )?;
        stopped.encode(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::time::Term;

    fn id(name: &str) -> PolicyId {
        PolicyId {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }
    }

    fn granted(granted: u64) -> PolicyStats {
        PolicyStats {
            granted,
            ..PolicyStats::default()
        }
    }

    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }

    #[test]
    fn what_is_counted_is_served_under_the_glossary_s_names() {
        let metrics = Metrics::new();
        metrics.streams.inc();
        metrics.recorded(&id("api"), 3);
        metrics.answered(&Status::Done);
        metrics.answered(&Status::Refused(Refusal::Busy {
            retry_after: Term::ZERO,
        }));
        let stats = Stats {
            requests: 9,
            leases: 2,
            ..Stats::default()
        };
        let (api, web) = (id("api"), id("web"));
        let parts = [
            (&api, &granted(40)),
            (&web, &granted(1)),
            (&api, &granted(2)),
        ];
        metrics.show(&stats, parts);
        let text = metrics.text();
        for line in [
            "quota_streams 1",
            "quota_records_total{policy=\"default/api\"} 3",
            "quota_requests_total 9",
            "quota_leases 2",
            "quota_answers_total{status=\"done\"} 1",
            "quota_answers_total{status=\"busy\"} 1",
            "quota_answers_total{status=\"queued\"} 0",
            "quota_granted_tokens_total{policy=\"default/api\"} 42",
            "quota_granted_tokens_total{policy=\"default/web\"} 1",
            "# UNIT quota_granted_tokens tokens",
        ] {
            assert_line(&text, line);
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn waits_are_a_histogram_in_seconds_and_what_is_out_goes_down_again() {
        let metrics = Metrics::new();
        let mut stats = granted(40);
        stats.waits.add(Term::from_millis(3));
        stats.waits.add(Term::from_millis(1500));
        stats.waits.add(Term::from_seconds(90));
        metrics.show(&Stats::default(), [(&id("api"), &stats)]);
        let text = metrics.text();
        for line in [
            "# TYPE quota_wait_seconds histogram",
            "quota_wait_seconds_count{policy=\"default/api\"} 3",
            "quota_wait_seconds_sum{policy=\"default/api\"} 91.503",
            "quota_wait_seconds_bucket{le=\"0.001\",policy=\"default/api\"} 0",
            "quota_wait_seconds_bucket{le=\"0.005\",policy=\"default/api\"} 1",
            "quota_wait_seconds_bucket{le=\"2.0\",policy=\"default/api\"} 2",
            "quota_wait_seconds_bucket{le=\"60.0\",policy=\"default/api\"} 2",
            "quota_wait_seconds_bucket{le=\"+Inf\",policy=\"default/api\"} 3",
            "quota_outstanding_tokens{policy=\"default/api\"} 40",
        ] {
            assert_line(&text, line);
        }
        (stats.spent, stats.returned, stats.lost) = (10, 5, 3);
        metrics.show(&Stats::default(), [(&id("api"), &stats)]);
        let text = metrics.text();
        assert_line(&text, "quota_outstanding_tokens{policy=\"default/api\"} 22");
        assert_line(&text, "quota_lost_tokens_total{policy=\"default/api\"} 3");
    }

    #[test]
    fn a_total_never_goes_back_and_a_present_count_does() {
        let metrics = Metrics::new();
        let show = |requests, buckets, tokens| {
            let stats = Stats {
                requests,
                buckets,
                ..Stats::default()
            };
            metrics.show(&stats, [(&id("api"), &granted(tokens))]);
            metrics.text()
        };
        show(9, 5, 7);
        let text = show(4, 3, 6);
        assert_line(&text, "quota_requests_total 9");
        assert_line(
            &text,
            "quota_granted_tokens_total{policy=\"default/api\"} 7",
        );
        assert_line(&text, "quota_buckets 3");
    }

    #[test]
    fn any_number_of_policies_makes_a_bounded_number_of_labels() {
        let metrics = Metrics::new();
        let ids: Vec<PolicyId> = (0..POLICY_LABELS_MAX + 50)
            .map(|n| id(&format!("p{n}")))
            .collect();
        let each = granted(1);
        for _ in 0..2 {
            metrics.show(&Stats::default(), ids.iter().map(|id| (id, &each)));
        }
        let text = metrics.text();
        let granted = |line: &&str| line.starts_with("quota_granted_tokens_total{");
        assert_eq!(text.lines().filter(granted).count(), POLICY_LABELS_MAX + 1);
        assert_line(&text, "quota_granted_tokens_total{policy=\"other\"} 50");
        assert_line(&text, "quota_granted_tokens_total{policy=\"default/p0\"} 1");
    }
}
