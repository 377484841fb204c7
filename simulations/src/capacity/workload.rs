//! Who asks when: Poisson arrivals at each gateway, at rates that may change with time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quota_core::policy::LimitSpec;
use quota_core::time::Term;

use crate::random::Random;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Counts arrivals from zero.
    pub number: u64,
    /// When it arrives, in nanoseconds.
    pub at: u64,
    /// At which gateway.
    pub gateway: u32,
    /// For which key.
    pub key: u32,
    /// What it costs.
    pub cost: u64,
}

/// How the load is spread over gateways and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The same everywhere, all the time.
    Equal,
    /// One gateway has half of the load, the others share the rest.
    Skewed,
    /// As skewed, and the busy gateway changes this often (nanoseconds).
    Shifting(u64),
    /// All gateways together: on for this long, off for as long (nanoseconds).
    OnOff(u64),
    /// A third of the gateways ask for a tenth of the limit each, the rest for more than their
    /// share: what max–min fairness is about.
    Unequal,
}

/// A workload on one key.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many gateways.
    pub gateways: u32,
    /// The limit.
    pub limit: LimitSpec,
    /// Tokens refilled per second.
    pub rate: u64,
    /// Requests per second of all gateways together, in thousandths of the rate; while *on* for
    /// [`Pattern::OnOff`].
    pub load_per_mille: u64,
    /// How they are spread.
    pub pattern: Pattern,
    /// How long it lasts, in nanoseconds.
    pub length: u64,
    /// How long a request that finds no tokens waits for them at most, in nanoseconds.
    pub patience: u64,
    /// From one end of the network to the other, in nanoseconds.
    pub one_way: u64,
}

impl Workload {
    /// `rate` tokens a second, up to `burst` at once, for so many gateways, five milliseconds'
    /// round trip, a minute long.
    #[must_use]
    pub fn new(gateways: u32, rate: u64, burst: u64) -> Self {
        Self {
            gateways,
            limit: LimitSpec::new(rate, Term::from_seconds(1)).with_burst(burst),
            rate,
            load_per_mille: 1_200,
            pattern: Pattern::Equal,
            length: 60 * SECOND,
            patience: SECOND / 20,
            one_way: 2_500_000,
        }
    }

    /// The same with another load, in thousandths of the rate.
    #[must_use]
    pub fn loaded(mut self, per_mille: u64) -> Self {
        self.load_per_mille = per_mille;
        self
    }

    /// The same spread in another way.
    #[must_use]
    pub fn spread(mut self, pattern: Pattern) -> Self {
        self.pattern = pattern;
        self
    }

    /// Requests per second, in millionths, that `gateway` sees at `at`.
    fn load(&self, gateway: u32, at: u64) -> u64 {
        let all = self.rate * self.load_per_mille * 1000;
        let count = u64::from(self.gateways);
        let rest = (count - 1).max(1);
        let skewed = |hot: u64| {
            if u64::from(gateway) == hot {
                all / 2
            } else {
                all / 2 / rest
            }
        };
        match self.pattern {
            Pattern::Equal => all / count,
            Pattern::Skewed => skewed(0),
            Pattern::Shifting(every) => skewed(at / every % count),
            Pattern::OnOff(span) if (at / span).is_multiple_of(2) => all / count,
            Pattern::OnOff(_) => 0,
            Pattern::Unequal => {
                let share = self.rate * 1_000_000 / count;
                if gateway.is_multiple_of(3) {
                    share * 2 / 5
                } else {
                    share * 3 / 2 + share * u64::from(gateway % 3)
                }
            }
        }
    }

    /// The highest load that `gateway` ever sees, in millionths of a request per second.
    fn peak(&self, gateway: u32) -> u64 {
        match self.pattern {
            Pattern::Shifting(_) => self.rate * self.load_per_mille * 500,
            _ => self.load(gateway, 0),
        }
    }

    /// All arrivals of a seed, in time order.
    #[must_use]
    pub fn arrivals(&self, seed: u64) -> Arrivals<'_> {
        let mut arrivals = Arrivals {
            workload: self,
            sources: Vec::new(),
            next: BinaryHeap::new(),
            count: 0,
        };
        for gateway in 0..self.gateways {
            // One generator for each gateway: its arrivals do not depend on the others'.
            let random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(gateway));
            arrivals.sources.push(random);
            arrivals.plan(gateway, 0);
        }
        arrivals
    }
}

/// The arrivals of a workload.
#[derive(Debug)]
pub struct Arrivals<'a> {
    workload: &'a Workload,
    sources: Vec<Random>,
    next: BinaryHeap<Reverse<(u64, u32)>>,
    count: u64,
}

impl Arrivals<'_> {
    /// Draws a gateway's next arrival after `from` by thinning (Lewis and Shedler, "Simulation of
    /// nonhomogeneous Poisson processes by thinning", 1979).
    fn plan(&mut self, gateway: u32, from: u64) {
        let peak = self.workload.peak(gateway);
        if peak == 0 {
            return;
        }
        let random = &mut self.sources[usize::try_from(gateway).expect("32 bits fit")];
        let mut at = from;
        loop {
            at = at.saturating_add(exponential(random, peak));
            if at >= self.workload.length {
                return;
            }
            if random.below(peak) < self.workload.load(gateway, at) {
                break;
            }
        }
        self.next.push(Reverse((at, gateway)));
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let Reverse((at, gateway)) = self.next.pop()?;
        self.plan(gateway, at);
        let number = self.count;
        self.count += 1;
        Some(Request {
            number,
            at,
            gateway,
            key: 0,
            cost: 1,
        })
    }
}

/// An exponentially distributed gap in nanoseconds, for a rate in millionths a second.
fn exponential(random: &mut Random, micro: u64) -> u64 {
    let uniform = (random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
    let gap = -(1.0 - uniform).ln() * 1e15 / micro as f64;
    // A float to an integer saturates.
    gap as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(workload: &Workload, gateway: u32) -> u64 {
        let arrivals = workload.arrivals(3);
        u64::try_from(arrivals.filter(|r| r.gateway == gateway).count()).expect("fits")
    }

    #[test]
    fn arrivals_come_in_order_and_at_the_rate_that_was_asked_for() {
        let workload = Workload::new(20, 1_000, 1_000);
        let arrivals: Vec<_> = workload.arrivals(1).collect();
        assert!(arrivals.windows(2).all(|pair| pair[0].at <= pair[1].at));
        let all = arrivals.len();
        assert!((71_000..73_000).contains(&all), "{all}");
        assert_eq!(arrivals, workload.arrivals(1).collect::<Vec<_>>());
        assert_ne!(all, workload.arrivals(2).count());
    }

    #[test]
    fn patterns_put_the_load_where_they_say() {
        let skewed = Workload::new(20, 1_000, 1_000).spread(Pattern::Skewed);
        assert!((35_000..37_000).contains(&count(&skewed, 0)));
        assert!((1_750..2_050).contains(&count(&skewed, 7)));
        let shifting = Workload::new(20, 1_000, 1_000).spread(Pattern::Shifting(5 * SECOND));
        let hot = shifting.arrivals(1).filter(|r| r.at / (5 * SECOND) == 3);
        let (mut of_three, mut all) = (0, 0);
        for request in hot {
            all += 1;
            of_three += u32::from(request.gateway == 3);
        }
        assert!(of_three * 10 > all * 4 && of_three * 10 < all * 6);
        let on_off = Workload::new(20, 1_000, 1_000).spread(Pattern::OnOff(SECOND));
        assert!(
            on_off
                .arrivals(1)
                .all(|r| (r.at / SECOND).is_multiple_of(2))
        );
    }
}
