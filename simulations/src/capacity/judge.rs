//! What a run is worth: against the un-split ideal bucket on the same arrivals, and per message.

use std::collections::BTreeSet;

use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;
use serde::Serialize;

use super::limiter::{Decided, Limiter};
use super::workload::{Request, Workload};
use crate::oracle::{IdealBucket, IdealLimit};

/// Harmful stranding is sampled this often, in nanoseconds.
const SAMPLE: u64 = 100_000_000;

/// The figures of a run. Fractions are of one.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that the limiter admitted.
    pub admitted: u64,
    /// Requests that the ideal bucket admits.
    pub ideal: u64,
    /// What was admitted of what the ideal bucket admits.
    pub utilisation: f64,
    /// Of all requests, those that were refused though the ideal bucket admits them.
    pub false_refusals: f64,
    /// Tokens beyond `capacity + rate × window`, over the worst window.
    pub overshoot: u64,
    /// Messages per second and gateway, both directions together.
    pub messages: f64,
    /// Buckets mentioned per second and gateway, both directions together.
    pub items: f64,
    /// Jain's index over what the gateways were admitted after the first second.
    pub jain: f64,
    /// How far the gateway that is furthest off is from its max–min fair share of what all were
    /// admitted, given what each was asked for, as a part of that share.
    pub unfairness: f64,
    /// Tokens with the gateways: mean over time, as a share of the capacity.
    pub held: f64,
    /// The same while somebody was refused.
    pub stranded: f64,
    /// Waits of requests that were admitted late: how many, and the 99th percentile in ms.
    pub waited: u64,
    /// See `waited`.
    pub wait_p99: f64,
    /// Admissions by gateway, after the first second.
    pub by_gateway: Vec<u64>,
}

/// Watches a run.
#[derive(Debug)]
pub struct Judge<'a> {
    workload: &'a Workload,
    /// Fed with what the limiter admits: below zero is overshoot.
    real: IdealBucket,
    overshoot: u64,
    /// Fed with all that it can admit.
    ideal: IdealBucket,
    ideal_admits: BTreeSet<u64>,
    requests: u64,
    admitted: u64,
    ideal_admitted: u64,
    false_refusals: u64,
    by_gateway: Vec<u64>,
    asked: Vec<u64>,
    waits: Vec<u64>,
    sampled: u64,
    samples: u64,
    held: u64,
    stranded: u64,
    refused_in_sample: bool,
}

impl<'a> Judge<'a> {
    /// A judge of a run that has not begun.
    ///
    /// # Panics
    /// If the workload's limit is no valid one.
    #[must_use]
    pub fn new(workload: &'a Workload) -> Self {
        let limit = ideal_limit(workload);
        Self {
            workload,
            real: IdealBucket::new(limit),
            overshoot: 0,
            ideal: IdealBucket::new(limit),
            ideal_admits: BTreeSet::new(),
            requests: 0,
            admitted: 0,
            ideal_admitted: 0,
            false_refusals: 0,
            by_gateway: vec![0; usize::try_from(workload.gateways).expect("32 bits fit")],
            asked: vec![0; usize::try_from(workload.gateways).expect("32 bits fit")],
            waits: Vec::new(),
            sampled: 0,
            samples: 0,
            held: 0,
            stranded: 0,
            refused_in_sample: false,
        }
    }

    /// A request has arrived and will be offered next.
    pub fn arrived(&mut self, request: &Request, limiter: &dyn Limiter) {
        self.requests += 1;
        while request.at >= self.sampled + SAMPLE {
            self.sampled += SAMPLE;
            let held = limiter.held(request.key).get();
            self.samples += 1;
            self.held += held;
            if std::mem::take(&mut self.refused_in_sample) {
                self.stranded += held;
            }
        }
        if request.at >= super::workload::SECOND {
            let place = usize::try_from(request.gateway).expect("32 bits fit");
            self.asked[place] += request.cost;
        }
        let at = Timestamp::from_nanos(request.at);
        let level = self.ideal.level(at).expect("arrivals are in order");
        if level >= i128::from(request.cost) {
            let cost = Tokens::new(request.cost);
            self.ideal.admit(at, cost).expect("there is enough");
            self.ideal_admitted += request.cost;
            self.ideal_admits.insert(request.number);
        }
    }

    /// Takes note of decisions, in time order.
    pub fn decided(&mut self, decided: &mut Vec<Decided>) {
        for decision in decided.drain(..) {
            let request = decision.request;
            let ideal = self.ideal_admits.remove(&request.number);
            if !decision.admitted {
                self.refused_in_sample = true;
                self.false_refusals += u64::from(ideal);
                continue;
            }
            self.admitted += request.cost;
            let at = Timestamp::from_nanos(decision.at);
            if let Err(violation) = self.real.admit(at, Tokens::new(request.cost)) {
                let crate::oracle::Violation::Exceeded { excess, .. } = violation else {
                    panic!("decisions are in order: {violation}");
                };
                self.overshoot = self.overshoot.max(excess.get());
            }
            if decision.at > request.at {
                self.waits.push(decision.at - request.at);
            }
            if decision.at >= super::workload::SECOND {
                let place = usize::try_from(request.gateway).expect("32 bits fit");
                self.by_gateway[place] += request.cost;
            }
        }
    }

    /// The figures of the run that is over.
    #[must_use]
    pub fn figures(mut self, limiter: &dyn Limiter) -> Figures {
        self.waits.sort_unstable();
        let seconds = self.workload.length as f64 / 1e9;
        let gateways = f64::from(self.workload.gateways);
        let traffic = limiter.traffic();
        let per_gateway = |count: u64| count as f64 / seconds / gateways;
        let capacity = ideal_limit(self.workload).capacity.get() as f64;
        let samples = self.samples.max(1) as f64;
        let sum: u64 = self.by_gateway.iter().sum();
        let squares: f64 = self.by_gateway.iter().map(|n| (*n as f64).powi(2)).sum();
        let fair = max_min(&self.asked, sum);
        let off = |(got, share): (&u64, &f64)| (*got as f64 - share).abs() / share.max(1.0);
        let unfairness = self.by_gateway.iter().zip(&fair).map(off);
        let unfairness = unfairness.fold(0.0, f64::max);
        let rank = (self.waits.len() * 99 / 100).min(self.waits.len().saturating_sub(1));
        Figures {
            requests: self.requests,
            admitted: self.admitted,
            ideal: self.ideal_admitted,
            utilisation: self.admitted as f64 / (self.ideal_admitted as f64).max(1.0),
            false_refusals: self.false_refusals as f64 / (self.requests as f64).max(1.0),
            overshoot: self.overshoot,
            messages: per_gateway(traffic.messages),
            items: per_gateway(traffic.items),
            jain: (sum as f64).powi(2) / (gateways * squares).max(1.0),
            unfairness,
            held: self.held as f64 / samples / capacity,
            stranded: self.stranded as f64 / samples / capacity,
            waited: self.waits.len() as u64,
            wait_p99: self
                .waits
                .get(rank)
                .map_or(0.0, |nanos| *nanos as f64 / 1e6),
            by_gateway: self.by_gateway,
        }
    }
}

/// Shares out `sum` by progressive filling: nobody gets more than was asked for, and nobody who gets
/// less than that gets less than anybody else.
fn max_min(asked: &[u64], sum: u64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_unstable_by_key(|place| asked[*place]);
    let mut shares = vec![0.0; asked.len()];
    let (mut left, mut claimants) = (sum as f64, asked.len() as f64);
    for place in order {
        let share = (left / claimants).min(asked[place] as f64);
        shares[place] = share;
        left -= share;
        claimants -= 1.0;
    }
    shares
}

fn ideal_limit(workload: &Workload) -> IdealLimit {
    let policy = super::leases::policy(workload);
    IdealLimit::from(policy.limit_for(&super::leases::key()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_min_gives_small_askers_all_and_the_rest_equal_parts() {
        assert_eq!(max_min(&[10, 2, 30], 24), [10.0, 2.0, 12.0]);
        assert_eq!(max_min(&[10, 10], 6), [3.0, 3.0]);
        assert_eq!(max_min(&[1, 1], 6), [1.0, 1.0]);
    }
}
