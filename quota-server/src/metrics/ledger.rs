//! What the authorities count, as metrics: copied from their totals when somebody asks.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use quota_core::authority::{PolicyStats, Stats, Waits};
use quota_core::time::Term;

/// What the authorities count.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    requests: Counter,
    retries: Counter,
    pushes: Counter,
    leases_opened: Counter,
    buckets_made: Counter,
    buckets_forgotten: Counter,
    records_read: Counter,
    buckets: Gauge,
    leases: Gauge,
    holders: Gauge,
    waiting: Gauge,
    grants: Family<PolicyLabel, Counter>,
    granted: Family<PolicyLabel, Counter>,
    spent: Family<PolicyLabel, Counter>,
    returned: Family<PolicyLabel, Counter>,
    reclaimed: Family<PolicyLabel, Counter>,
    queued: Family<PolicyLabel, Counter>,
    refused: Family<PolicyLabel, Counter>,
    recalls: Family<PolicyLabel, Counter>,
    first_touches: Family<PolicyLabel, Counter>,
    taken_over: Family<PolicyLabel, Counter>,
    lost: Family<PolicyLabel, Counter>,
    outstanding: Family<PolicyLabel, Gauge>,
    waits: WaitTimes,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct PolicyLabel {
    pub(super) policy: String,
}

impl Ledger {
    pub(super) fn register(&self, to: &mut Registry) {
        let tokens = || Unit::Other("tokens".to_owned());
        to.register(
            "requests",
            "Requests decided, retries included",
            self.requests.clone(),
        );
        to.register(
            "retries",
            "Retries answered from what was decided before",
            self.retries.clone(),
        );
        to.register(
            "pushes",
            "Answers pushed after waiting",
            self.pushes.clone(),
        );
        to.register("leases_opened", "Leases opened", self.leases_opened.clone());
        to.register("buckets_made", "Buckets made", self.buckets_made.clone());
        to.register(
            "buckets_forgotten",
            "Buckets forgotten because an unseen one would be the same",
            self.buckets_forgotten.clone(),
        );
        to.register(
            "records_read",
            "Reservations read at take-over",
            self.records_read.clone(),
        );
        to.register("buckets", "Buckets in memory", self.buckets.clone());
        to.register("leases", "Leases open", self.leases.clone());
        to.register(
            "holders",
            "Holders known, once in each shard",
            self.holders.clone(),
        );
        to.register("waiting", "Requests waiting now", self.waiting.clone());
        to.register(
            "grants",
            "Decisions that granted tokens",
            self.grants.clone(),
        );
        to.register_with_unit("granted", "Tokens granted", tokens(), self.granted.clone());
        to.register_with_unit(
            "spent",
            "Tokens reported spent",
            tokens(),
            self.spent.clone(),
        );
        to.register_with_unit(
            "returned",
            "Tokens returned unspent",
            tokens(),
            self.returned.clone(),
        );
        to.register_with_unit(
            "reclaimed",
            "Tokens that ended leases left unreported; they count as spent",
            tokens(),
            self.reclaimed.clone(),
        );
        to.register(
            "recalls",
            "Holders asked for tokens that they do not need",
            self.recalls.clone(),
        );
        to.register(
            "first_touches",
            "Leases opened for holders that had none for the bucket",
            self.first_touches.clone(),
        );
        to.register_with_unit(
            "taken_over",
            "Tokens in holders' hands that an orderly stop handed over",
            tokens(),
            self.taken_over.clone(),
        );
        to.register_with_unit(
            "lost",
            "Tokens in holders' hands when a tenure ended without a hand-over",
            tokens(),
            self.lost.clone(),
        );
        to.register_with_unit(
            "outstanding",
            "Tokens in holders' hands now, those of earlier tenures not included",
            tokens(),
            self.outstanding.clone(),
        );
        to.register_collector(Box::new(self.waits.clone()));
        to.register("queued", "Requests that had to wait", self.queued.clone());
        to.register("refused", "Requests refused", self.refused.clone());
    }

    pub(super) fn show(&self, stats: &Stats) {
        raise(&self.requests, stats.requests);
        raise(&self.retries, stats.retries);
        raise(&self.pushes, stats.pushes);
        raise(&self.leases_opened, stats.leases_opened);
        raise(&self.buckets_made, stats.buckets_made);
        raise(&self.buckets_forgotten, stats.buckets_forgotten);
        raise(&self.records_read, stats.records_read);
        set(&self.buckets, stats.buckets);
        set(&self.leases, stats.leases);
        set(&self.holders, stats.holders);
        set(&self.waiting, stats.waiting);
    }

    pub(super) fn show_policy(&self, label: &str, stats: &PolicyStats) {
        let label = PolicyLabel {
            policy: label.to_owned(),
        };
        for (family, total) in [
            (&self.grants, stats.grants),
            (&self.granted, stats.granted),
            (&self.spent, stats.spent),
            (&self.returned, stats.returned),
            (&self.reclaimed, stats.reclaimed),
            (&self.queued, stats.queued),
            (&self.refused, stats.refused),
            (&self.recalls, stats.recalls),
            (&self.first_touches, stats.first_touches),
            (&self.taken_over, stats.taken_over),
            (&self.lost, stats.lost),
        ] {
            raise(&family.get_or_create(&label), total);
        }
        set(&self.outstanding.get_or_create(&label), stats.outstanding());
        self.waits.raise(label, &stats.waits);
    }
}

/// A total never goes back, also if a shard does not answer this time.
fn raise(counter: &Counter, total: u64) {
    counter.inner().fetch_max(total, Ordering::Relaxed);
}

fn set(gauge: &Gauge, count: u64) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// How long requests waited, by policy: a histogram that is copied, not observed.
#[derive(Clone, Debug, Default)]
struct WaitTimes(Arc<Mutex<BTreeMap<PolicyLabel, Waits>>>);

impl WaitTimes {
    /// As [`raise`], for every count.
    fn raise(&self, label: PolicyLabel, waits: &Waits) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = shown.entry(label).or_default();
        for (count, total) in shown.counts.iter_mut().zip(waits.counts) {
            *count = total.max(*count);
        }
        shown.nanos = shown.nanos.max(waits.nanos);
    }
}

impl Collector for WaitTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_empty() {
            return Ok(());
        }
        let seconds = |term: Term| std::time::Duration::from_nanos(term.as_nanos()).as_secs_f64();
        let mut metric = encoder.encode_descriptor(
            "wait",
            "How long requests waited that were served in the end",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (label, waits) in shown.iter() {
            // The encoder adds the counts up, and takes the largest number for no bound.
            let bounds = Waits::BOUNDS.into_iter().map(seconds).chain([f64::MAX]);
            let buckets: Vec<(f64, u64)> = bounds.zip(waits.counts).collect();
            let sum = seconds(Term::from_nanos(waits.nanos));
            metric
                .encode_family(label)?
                .encode_histogram::<NoLabelSet>(sum, waits.counts.iter().sum(), &buckets, None)?;
        }
        Ok(())
    }
}
