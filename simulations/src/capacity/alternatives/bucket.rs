//! An exact token bucket: what the alternatives count with.

use crate::capacity::workload::{SECOND, Workload};

/// A limit, or a part of it, in parts of a token that make refill whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    token: i128,
    /// Parts a nanosecond.
    gain: i128,
    capacity: i128,
}

impl Rate {
    /// `numerator / denominator` of a workload's limit.
    pub(crate) fn part(workload: &Workload, numerator: u64, denominator: u64) -> Self {
        let token = i128::from(SECOND) * i128::from(denominator);
        Self {
            token,
            gain: i128::from(workload.rate) * i128::from(numerator),
            capacity: i128::from(workload.burst) * i128::from(SECOND) * i128::from(numerator),
        }
    }

    /// Whole tokens of a full bucket.
    pub(crate) fn capacity(&self) -> u64 {
        u64::try_from(self.capacity / self.token).unwrap_or(0)
    }
}

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    level: i128,
    at: u64,
}

impl Bucket {
    pub(crate) const fn full(rate: &Rate) -> Self {
        Self {
            level: rate.capacity,
            at: 0,
        }
    }

    pub(crate) fn settle(&mut self, now: u64, rate: &Rate) {
        let gain = i128::from(now.saturating_sub(self.at)) * rate.gain;
        self.level = (self.level + gain).min(rate.capacity);
        self.at = self.at.max(now);
    }

    /// Whole tokens at `now`, rounded down.
    pub(crate) fn tokens(&mut self, now: u64, rate: &Rate) -> i64 {
        self.settle(now, rate);
        i64::try_from(self.level.div_euclid(rate.token)).unwrap_or(i64::MAX)
    }

    /// Tokens that could be spent at `now`.
    pub(crate) fn spendable(&mut self, now: u64, rate: &Rate) -> u64 {
        u64::try_from(self.tokens(now, rate)).unwrap_or(0)
    }

    /// Takes `cost` tokens if they are there.
    pub(crate) fn take(&mut self, now: u64, rate: &Rate, cost: u64) -> bool {
        self.settle(now, rate);
        let cost = i128::from(cost) * rate.token;
        let enough = self.level >= cost;
        if enough {
            self.level -= cost;
        }
        enough
    }

    /// The same level in the parts of another rate, as `numerator / denominator` of it.
    pub(crate) fn converted(
        self,
        from: &Rate,
        to: &Rate,
        numerator: i128,
        denominator: i128,
    ) -> Self {
        Self {
            level: self.level * to.token / from.token * numerator / denominator,
            at: self.at,
        }
    }

    /// Both together.
    pub(crate) const fn plus(self, other: &Self) -> Self {
        Self {
            level: self.level + other.level,
            at: self.at,
        }
    }
}
