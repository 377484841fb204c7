//! Counters split into parts at random: a fixed number of them, or more the hotter the key.
//!
//! A hot counter is split so that writes to it do not queue (sharded counters, as Google published
//! them for its datastore). Each part has its part of the limit, and each request asks one at
//! random: while one is empty, what the others have is out of reach. Requests fall into parts as
//! balls into bins, so that of `N` requests for a bucket of `N` in `k` parts about
//! `√(N·k / 2π)` are refused.
//!
//! The adaptive kind begins with one part and doubles their number when a part is asked more often
//! than a threshold, as stores split hot partitions; they are joined two by two when all parts
//! together have been asked for less than a quarter of that for some seconds.

use std::collections::HashMap;

use super::asked::{Asked, Rule};
use super::bucket::{Bucket, Rate};
use crate::capacity::workload::{SECOND, Workload};
use crate::random::Random;

/// Parts of a counter that is always split; between the 4 and the 16 that are usual.
pub(crate) const PARTS: u64 = 8;
/// A part that is asked this often in a second is hot.
const HOT: u64 = 500;
const PARTS_MAX: u64 = 16;
/// Seconds for which a key must be cold before its parts are joined.
const PATIENCE: u64 = 5;

/// Keys whose counters are split.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The limit of one part, by the number of parts.
    rates: HashMap<u64, Rate>,
    random: Random,
    keys: HashMap<u32, Split>,
    first: u64,
    adapts: bool,
}

#[derive(Debug)]
struct Split {
    parts: Vec<Bucket>,
    /// The second that is counted, how often the key was asked in it, and for how long it is cold.
    second: u64,
    asked: u64,
    cold: u64,
}

impl Parts {
    pub(crate) fn fixed(workload: &Workload, parts: u64) -> Asked<Self> {
        Asked::new(workload, Self::new(workload, parts, false))
    }

    pub(crate) fn adaptive(workload: &Workload) -> Asked<Self> {
        Asked::new(workload, Self::new(workload, 1, true))
    }

    fn new(workload: &Workload, first: u64, adapts: bool) -> Self {
        let all = (1..=PARTS_MAX.max(first)).map(|parts| (parts, Rate::part(workload, 1, parts)));
        Self {
            rates: all.collect(),
            random: Random::new(0x5eed),
            keys: HashMap::new(),
            first,
            adapts,
        }
    }

    fn split(&mut self, now: u64, key: u32) -> (&mut Split, &HashMap<u64, Rate>) {
        let full = Bucket::full(&self.rates[&self.first]);
        let parts = usize::try_from(self.first).expect("few");
        let split = self.keys.entry(key).or_insert_with(|| Split {
            parts: vec![full; parts],
            second: now / SECOND,
            asked: 0,
            cold: 0,
        });
        if self.adapts {
            split.adapt(now, &self.rates);
        }
        (split, &self.rates)
    }

    #[cfg(test)]
    fn parts(&self, key: u32) -> u64 {
        self.keys[&key].count()
    }
}

impl Split {
    fn count(&self) -> u64 {
        u64::try_from(self.parts.len()).expect("few")
    }

    /// Looks at each second that has passed.
    fn adapt(&mut self, now: u64, rates: &HashMap<u64, Rate>) {
        let second = now / SECOND;
        if second == self.second {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        let idle = second - self.second - 1;
        self.second = second;
        let count = self.count();
        let from = rates[&count];
        for part in &mut self.parts {
            part.settle(now, &from);
        }
        if asked > HOT * count && count < PARTS_MAX {
            let to = rates[&(count * 2)];
            let halves = |part: &Bucket| [part.converted(&from, &to, 1, 2); 2];
            self.parts = self.parts.iter().flat_map(halves).collect();
            self.cold = 0;
        } else if asked < HOT * count / 4 && count > 1 {
            self.cold += 1 + idle;
            if self.cold >= PATIENCE {
                self.cold = 0;
                let to = rates[&(count / 2)];
                let joined = self
                    .parts
                    .chunks(2)
                    .map(|pair| pair[0].plus(&pair[1]).converted(&from, &to, 1, 1));
                self.parts = joined.collect();
            }
        } else {
            self.cold = 0;
        }
    }
}

impl Rule for Parts {
    fn decide(&mut self, now: u64, key: u32, cost: u64) -> bool {
        let chance = self.random.bits();
        let (split, rates) = self.split(now, key);
        split.asked += 1;
        let count = split.count();
        let place = usize::try_from(chance % count).expect("few");
        split.parts[place].take(now, &rates[&count], cost)
    }

    fn available(&mut self, now: u64, key: u32) -> i64 {
        let (split, rates) = self.split(now, key);
        let rate = rates[&split.count()];
        let parts = split.parts.iter_mut();
        parts.map(|part| part.tokens(now, &rate)).sum()
    }

    fn in_parts(&mut self, now: u64) -> u64 {
        let rates = &self.rates;
        let split = self.keys.values_mut().filter(|split| split.count() > 1);
        let tokens = split.map(|split| {
            let rate = rates[&split.count()];
            let parts = split.parts.iter_mut();
            parts.map(|part| part.spendable(now, &rate)).sum::<u64>()
        });
        tokens.sum()
    }

    fn counters(&self) -> (u64, u64) {
        (self.keys.values().map(Split::count).sum(), 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Balls into bins: as many requests as tokens, and what overflows a part is refused.
    #[test]
    fn refusals_of_split_counters_follow_the_square_root() {
        for parts in [4, 8, 16] {
            let mut workload = Workload::new(1, 1, 10_000);
            workload.rate = 1;
            let mut rule = Parts::new(&workload, parts, false);
            let rounds = 20;
            let refused = (0..rounds * 10_000_u32).filter(|n| !rule.decide(0, n / 10_000, 1));
            let mean = refused.count() as f64 / f64::from(rounds);
            let expected = (10_000.0 * parts as f64 / std::f64::consts::TAU).sqrt();
            // One part of k less, since the bins add up to all balls.
            let expected = expected * ((parts - 1) as f64 / parts as f64).sqrt();
            assert!(
                (mean / expected - 1.0).abs() < 0.12,
                "{parts} parts: {mean} refused, {expected} expected"
            );
        }
    }

    /// A store that splits where more than a threshold is asked needs as many parts as the load is
    /// thresholds, and does not go back and forth at a load between the two.
    #[test]
    fn a_hot_key_is_split_until_no_part_is_hot_and_joined_when_it_stays_cold() {
        let workload = Workload::new(1, 100_000, 100_000);
        let mut rule = Parts::new(&workload, 1, true);
        let mut second = 0;
        let mut ask = |rule: &mut Parts, per_second: u64, seconds: u64| {
            let mut seen = Vec::new();
            for _ in 0..seconds {
                for nth in 0..per_second {
                    rule.decide(second * SECOND + nth * (SECOND / per_second), 0, 1);
                }
                second += 1;
                seen.push(rule.parts(0));
            }
            seen
        };
        assert_eq!(ask(&mut rule, 3_900, 6).last(), Some(&8));
        // Half of what split it: too little to split, too much to join.
        assert!(ask(&mut rule, 2_000, 30).iter().all(|parts| *parts == 8));
        let joined = ask(&mut rule, 100, 30);
        assert_eq!(joined.last(), Some(&1), "{joined:?}");
        assert!(joined[..4].iter().all(|parts| *parts == 8), "{joined:?}");
    }

    #[test]
    fn splitting_and_joining_mints_nothing() {
        let workload = Workload::new(1, 1_000, 1_000);
        let mut rule = Parts::new(&workload, 1, true);
        let mut admitted = 0;
        for nth in 0..200_000_u64 {
            // On for three seconds, off for seven.
            let at = nth * SECOND / 5_000;
            let at = at / (3 * SECOND) * 10 * SECOND + at % (3 * SECOND);
            admitted += u64::from(rule.decide(at, 0, 1));
            assert!(admitted <= 1_000 + at * 1_000 / SECOND + 1, "at {at}");
        }
    }
}
