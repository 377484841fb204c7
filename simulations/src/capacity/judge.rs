//! Watches a run: against the un-split ideal bucket on the same arrivals, and per message.

use std::collections::{HashMap, HashSet};

use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use super::figures::{Figures, Moment, max_min};
use super::histogram::Histogram;
use super::limiter::{Decided, Footprint, Limiter};
use super::workload::{Request, SECOND, Workload};
use crate::oracle::{IdealBucket, IdealLimit, Violation};

/// What is held is looked at this often, in nanoseconds: often for one key, more seldom where each
/// look passes over a million.
const SAMPLE: u64 = SECOND / 10;
const SAMPLE_MANY: u64 = SECOND;

/// Watches a run.
#[derive(Debug)]
pub struct Judge<'a> {
    workload: &'a Workload,
    limit: IdealLimit,
    keys: HashMap<u32, Box<KeyJudge>>,
    /// Requests that the ideal bucket admits and that are not decided yet.
    ideal_admits: HashSet<u64>,
    requests: u64,
    admitted: u64,
    ideal_admitted: u64,
    /// Refused though the ideal bucket admits them, and the other way round.
    falsely_refused: u64,
    falsely_admitted: u64,
    overshoot: u64,
    by_gateway: Vec<u64>,
    asked: Vec<u64>,
    waited: u64,
    admitted_requests: u64,
    waits: Histogram,
    every: u64,
    sampled: u64,
    samples: Samples,
    /// Keys that were refused since the last sample.
    refused: Vec<u32>,
    moments: Vec<Moment>,
    moment: Moment,
}

/// One key's buckets.
#[derive(Debug)]
struct KeyJudge {
    /// Fed with what the limiter admits: below zero is overshoot.
    real: IdealBucket,
    /// Fed with all that it can admit.
    ideal: IdealBucket,
    /// Tokens refused since the last sample, and where.
    refused: u64,
    refusing: Vec<u32>,
}

#[derive(Debug, Default)]
struct Samples {
    /// In millionths of the capacity of all keys that were asked for.
    held: Histogram,
    held_sum: f64,
    harmful_sum: f64,
    count: u64,
    footprint: Footprint,
}

impl<'a> Judge<'a> {
    /// A judge of a run that has not begun.
    ///
    /// # Panics
    /// If the workload's limit is no valid one.
    #[must_use]
    pub fn new(workload: &'a Workload) -> Self {
        let gateways = usize::try_from(workload.gateways).expect("32 bits fit");
        Self {
            workload,
            limit: ideal_limit(workload),
            keys: HashMap::new(),
            ideal_admits: HashSet::new(),
            requests: 0,
            admitted: 0,
            ideal_admitted: 0,
            falsely_refused: 0,
            falsely_admitted: 0,
            overshoot: 0,
            by_gateway: vec![0; gateways],
            asked: vec![0; gateways],
            waited: 0,
            admitted_requests: 0,
            waits: Histogram::default(),
            every: if workload.keys == 1 {
                SAMPLE
            } else {
                SAMPLE_MANY
            },
            sampled: 0,
            samples: Samples::default(),
            refused: Vec::new(),
            moments: Vec::new(),
            moment: Moment::default(),
        }
    }

    /// When the next sample is due: call [`Judge::sample`] before anything later happens.
    #[must_use]
    pub const fn next_sample(&self) -> u64 {
        self.sampled + self.every
    }

    /// Looks at what is held.
    pub fn sample<L: Limiter + ?Sized>(&mut self, limiter: &mut L) {
        self.sampled += self.every;
        let now = self.sampled;
        let capacity = self.limit.capacity.get() as f64;
        let all = capacity * (self.keys.len().max(1)) as f64;
        let held = limiter.held(now);
        let mut harmful = 0;
        for key in std::mem::take(&mut self.refused) {
            let judge = self.keys.get_mut(&key).expect("it was asked for");
            let refused = std::mem::take(&mut judge.refused);
            let refusing = std::mem::take(&mut judge.refusing);
            let idle = limiter.out_of_reach(now, key, &refusing);
            harmful += refused.min(idle);
        }
        let samples = &mut self.samples;
        samples.count += 1;
        samples.held.add((held as f64 / all * 1e6) as u64, 1);
        samples.held_sum += held as f64 / all;
        samples.harmful_sum += harmful as f64 / all;
        let footprint = limiter.footprint();
        if footprint.bytes > samples.footprint.bytes {
            samples.footprint = footprint;
        }
        let state = limiter.key_state(now, 0);
        let moment = std::mem::take(&mut self.moment);
        self.moments.push(Moment {
            at: now,
            held,
            available: state.map(|state| state.available),
            outstanding: state.map_or(0, |state| state.outstanding),
            ..moment
        });
    }

    /// A request has arrived and will be offered next.
    pub fn arrived(&mut self, request: &Request) {
        self.requests += 1;
        self.moment.asked += request.cost;
        if request.at >= SECOND {
            self.asked[place(request)] += request.cost;
        }
        let limit = self.limit;
        let judge = self.keys.entry(request.key).or_insert_with(|| {
            Box::new(KeyJudge {
                real: IdealBucket::new(limit),
                ideal: IdealBucket::new(limit),
                refused: 0,
                refusing: Vec::new(),
            })
        });
        let at = Timestamp::from_nanos(request.at);
        let level = judge.ideal.level(at).expect("arrivals are in order");
        if level >= i128::from(request.cost) {
            let cost = Tokens::new(request.cost);
            judge.ideal.admit(at, cost).expect("there is enough");
            self.ideal_admitted += request.cost;
            self.moment.ideal += request.cost;
            self.ideal_admits.insert(request.number);
        }
    }

    /// Takes note of decisions, in time order.
    pub fn decided(&mut self, decided: &mut Vec<Decided>) {
        for decision in decided.drain(..) {
            self.decision(&decision);
        }
    }

    fn decision(&mut self, decision: &Decided) {
        let request = &decision.request;
        let ideal = self.ideal_admits.remove(&request.number);
        let judge = self.keys.get_mut(&request.key).expect("it has arrived");
        if !decision.admitted {
            if judge.refused == 0 {
                self.refused.push(request.key);
            }
            judge.refused += request.cost;
            if !judge.refusing.contains(&request.gateway) {
                judge.refusing.push(request.gateway);
            }
            self.falsely_refused += u64::from(ideal);
            return;
        }
        self.falsely_admitted += u64::from(!ideal);
        self.admitted += request.cost;
        self.admitted_requests += 1;
        self.moment.admitted += request.cost;
        let at = Timestamp::from_nanos(decision.at);
        if let Err(violation) = judge.real.admit(at, Tokens::new(request.cost)) {
            let Violation::Exceeded { excess, .. } = violation else {
                panic!("decisions are in order: {violation}");
            };
            self.overshoot = self.overshoot.max(excess.get());
        }
        let waited = decision.at - request.at;
        self.waited += u64::from(waited > 0);
        self.waits.add(waited, 1);
        if decision.at >= SECOND {
            self.by_gateway[place(request)] += request.cost;
        }
    }

    /// The figures of the run that is over, and its course.
    #[must_use]
    pub fn figures<L: Limiter + ?Sized>(self, limiter: &L) -> (Figures, Vec<Moment>) {
        let seconds = self.workload.length as f64 / 1e9;
        let gateways = f64::from(self.workload.gateways);
        let traffic = limiter.traffic();
        let requests = (self.requests as f64).max(1.0);
        let per_1000 = |count: u64| count as f64 / requests * 1000.0;
        let samples = self.samples.count.max(1) as f64;
        let sum: u64 = self.by_gateway.iter().sum();
        let squares: f64 = self.by_gateway.iter().map(|n| (*n as f64).powi(2)).sum();
        let fair = max_min(&self.asked, sum);
        let off = |(got, share): (&u64, &f64)| (*got as f64 - share).abs() / share.max(1.0);
        let unfairness = self.by_gateway.iter().zip(&fair).map(off);
        let refused = self.falsely_refused.saturating_sub(self.falsely_admitted);
        let figures = Figures {
            requests: self.requests,
            admitted: self.admitted,
            ideal: self.ideal_admitted,
            utilisation: self.admitted as f64 / (self.ideal_admitted as f64).max(1.0),
            false_refusals: refused as f64 / requests,
            overshoot: self.overshoot,
            traffic,
            messages: traffic.messages as f64 / seconds / gateways,
            messages_per_1000: per_1000(traffic.messages),
            items_per_1000: per_1000(traffic.items),
            bytes_per_1000: per_1000(traffic.bytes),
            jain: (sum as f64).powi(2) / (gateways * squares).max(1.0),
            unfairness: unfairness.fold(0.0, f64::max),
            stranded_mean: self.samples.held_sum / samples,
            stranded_p99: self.samples.held.quantile(990) as f64 / 1e6,
            stranded_harmful: self.samples.harmful_sum / samples,
            waited: self.waited as f64 / (self.admitted_requests as f64).max(1.0),
            wait_p50: self.waits.quantile(500) as f64 / 1e6,
            wait_p99: self.waits.quantile(990) as f64 / 1e6,
            footprint: self.samples.footprint,
            by_gateway: self.by_gateway,
        };
        (figures, self.moments)
    }
}

fn place(request: &Request) -> usize {
    usize::try_from(request.gateway).expect("32 bits fit")
}

fn ideal_limit(workload: &Workload) -> IdealLimit {
    let policy = super::leases::policy(workload);
    IdealLimit::from(policy.limit_for(&super::leases::key(0)))
}
