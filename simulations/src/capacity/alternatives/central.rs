//! A token bucket in a central store, asked on every request.
//!
//! Exact, and as dear as can be. The bucket is the one that redis-cell documents for its command
//! `CL.THROTTLE user 15 30 60`: a burst of 15 and one more, refilled by 30 a minute.

use std::collections::HashMap;

use super::asked::{Asked, Rule};
use super::bucket::{Bucket, Rate};
use crate::capacity::workload::Workload;

/// One bucket a key.
#[derive(Debug)]
pub(crate) struct Central {
    rate: Rate,
    buckets: HashMap<u32, Bucket>,
}

impl Central {
    pub(crate) fn limiter(workload: &Workload) -> Asked<Self> {
        let rule = Self {
            rate: Rate::part(workload, 1, 1),
            buckets: HashMap::new(),
        };
        Asked::new(workload, rule)
    }

    fn bucket(&mut self, key: u32) -> &mut Bucket {
        let full = Bucket::full(&self.rate);
        self.buckets.entry(key).or_insert(full)
    }
}

impl Rule for Central {
    fn decide(&mut self, now: u64, key: u32, cost: u64) -> bool {
        let rate = self.rate;
        self.bucket(key).take(now, &rate, cost)
    }

    fn available(&mut self, now: u64, key: u32) -> i64 {
        let rate = self.rate;
        self.bucket(key).tokens(now, &rate)
    }

    fn counters(&self) -> (u64, u64) {
        (u64::try_from(self.buckets.len()).expect("few"), 64)
    }
}
