//! How many tokens a second callers ask for.

use crate::message::DEMAND_MAX;
use crate::time::{NANOS_PER_SECOND, Term, Timestamp};
use crate::tokens::Tokens;

/// Averages are kept in millionths of a token a second, so that rare requests are not lost.
const MICRO: u128 = 1_000_000;
const FAST: Term = Term::from_seconds(1);
const SLOW: Term = Term::from_seconds(10);

/// The larger of a fast and a slow moving average: up within a second, down within ten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    sampled: Timestamp,
    fast: u64,
    slow: u64,
}

impl Demand {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self {
            sampled: now,
            fast: 0,
            slow: 0,
        }
    }

    /// Counts what was asked for since the last sample, however long ago that is.
    pub(super) fn sample(&mut self, now: Timestamp, asked: Tokens) {
        let elapsed = now.since(self.sampled);
        self.sampled = self.sampled.max(now);
        self.fast = averaged(self.fast, FAST, elapsed, asked);
        self.slow = averaged(self.slow, SLOW, elapsed, asked);
    }

    /// Millionths of a token a second.
    pub(super) fn micro(self) -> u64 {
        self.fast.max(self.slow)
    }

    /// Tokens a second, rounded up: a holder with any demand says so.
    pub(super) fn per_second(self) -> u64 {
        let tokens = u128::from(self.micro()).div_ceil(MICRO);
        u64::try_from(tokens).unwrap_or(u64::MAX).min(DEMAND_MAX)
    }
}

/// One implicit step of `x' = (rate − x) / span`, which is stable for every step length:
/// `(x·span + asked) / (span + elapsed)`. Rounded up, so that demand fades to one millionth.
fn averaged(micro: u64, span: Term, elapsed: Term, asked: Tokens) -> u64 {
    let span = u128::from(span.as_nanos());
    let kept = u128::from(micro).saturating_mul(span);
    let added = u128::from(asked.get())
        .saturating_mul(MICRO)
        .saturating_mul(u128::from(NANOS_PER_SECOND));
    let total = span.saturating_add(u128::from(elapsed.as_nanos()));
    let ceiling = u128::from(DEMAND_MAX).saturating_mul(MICRO);
    let next = kept.saturating_add(added).div_ceil(total).min(ceiling);
    u64::try_from(next).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Term::from_millis(millis)
    }

    #[test]
    fn steady_demand_is_found_whatever_the_sampling() {
        for step in [1, 7, 50, 400] {
            let mut demand = Demand::new(at(0));
            let mut now = 0;
            while now < 100_000 {
                now += step;
                demand.sample(at(now), Tokens::new(2 * step));
            }
            let found = demand.per_second();
            assert!((1_990..=2_010).contains(&found), "{found} at {step} ms");
        }
    }

    #[test]
    fn a_burst_shows_at_once_and_fades() {
        let mut demand = Demand::new(at(0));
        demand.sample(at(1), Tokens::new(100));
        assert!(demand.per_second() >= 99);
        for second in 1..=60 {
            demand.sample(at(second * 1000), Tokens::ZERO);
        }
        assert!(demand.per_second() <= 1, "{}", demand.per_second());
    }

    #[test]
    fn absurd_counts_and_clocks_saturate() {
        let mut demand = Demand::new(at(5));
        demand.sample(at(0), Tokens::new(u64::MAX));
        assert_eq!(demand.per_second(), DEMAND_MAX);
        demand.sample(Timestamp::MAX, Tokens::new(u64::MAX));
        assert!(demand.per_second() <= DEMAND_MAX);
    }
}
