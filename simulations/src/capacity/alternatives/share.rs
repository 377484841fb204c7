//! Nobody is asked: each gateway has an N-th of the limit, or all of it.
//!
//! An N-th each is exact and costs nothing, and what a gateway is not asked for is stranded with it.
//! The full limit each strands nothing and lets N times the limit through.

use std::collections::HashMap;

use super::bucket::{Bucket, Rate};
use crate::capacity::limiter::{Decided, Footprint, KeyState, Limiter, Traffic};
use crate::capacity::workload::{Change, Request, Workload};

/// A bucket for each gateway and key.
#[derive(Debug)]
pub(crate) struct Shares {
    rate: Rate,
    gateways: u32,
    /// Whether the shares are parts of one limit.
    splits: bool,
    /// For each key the gateways that were asked for it; all others have a full bucket.
    keys: HashMap<u32, HashMap<u32, Bucket>>,
}

impl Shares {
    pub(crate) fn nth(workload: &Workload) -> Self {
        let rate = Rate::part(workload, 1, u64::from(workload.gateways));
        Self::new(workload, rate, true)
    }

    pub(crate) fn full(workload: &Workload) -> Self {
        Self::new(workload, Rate::part(workload, 1, 1), false)
    }

    fn new(workload: &Workload, rate: Rate, splits: bool) -> Self {
        Self {
            rate,
            gateways: workload.gateways,
            splits,
            keys: HashMap::new(),
        }
    }

    fn held_of(&mut self, now: u64, key: u32, without: &[u32]) -> u64 {
        let (rate, gateways) = (self.rate, self.gateways);
        let Some(buckets) = self.keys.get_mut(&key).filter(|_| self.splits) else {
            return 0;
        };
        let others = (0..gateways).filter(|gateway| !without.contains(gateway));
        let held = others.map(|gateway| {
            let bucket = buckets.get_mut(&gateway);
            bucket.map_or_else(|| rate.capacity(), |b| b.spendable(now, &rate))
        });
        held.sum()
    }
}

impl Limiter for Shares {
    fn next_event(&self) -> Option<u64> {
        None
    }

    fn step(&mut self, _: u64, _: &mut Vec<Decided>) {}

    fn offer(&mut self, request: Request, decided: &mut Vec<Decided>) {
        let rate = self.rate;
        let buckets = self.keys.entry(request.key).or_default();
        let bucket = buckets.entry(request.gateway);
        let bucket = bucket.or_insert_with(|| Bucket::full(&rate));
        let admitted = bucket.take(request.at, &rate, request.cost);
        decided.push(Decided::new(request, request.at, admitted));
    }

    fn change(&mut self, _: u64, _: u32, _: Change, _: &mut Vec<Decided>) {}

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn held(&mut self, now: u64) -> u64 {
        let keys: Vec<u32> = self.keys.keys().copied().collect();
        let held = keys.into_iter().map(|key| self.held_of(now, key, &[]));
        held.sum()
    }

    fn out_of_reach(&mut self, now: u64, key: u32, refusing: &[u32]) -> u64 {
        self.held_of(now, key, refusing)
    }

    fn key_state(&mut self, _: u64, _: u32) -> Option<KeyState> {
        None
    }

    fn footprint(&self) -> Footprint {
        let buckets = self.keys.values().map(HashMap::len).sum::<usize>();
        let at_gateways = u64::try_from(buckets).expect("few");
        Footprint {
            at_gateways,
            at_centre: 0,
            bytes: at_gateways * 64,
        }
    }
}
