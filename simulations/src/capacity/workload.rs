//! Who asks when: random arrivals at rates that change with time, at gateways that come and go.

use quota_core::policy::LimitSpec;
use quota_core::time::Term;

use super::arrivals::Arrivals;

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
    /// Sessions stay with the gateway that they began at.
    Sticky {
        /// How many sessions there are at a time; each asks equally often.
        sessions: u32,
        /// How long one lasts, in nanoseconds; then another begins elsewhere.
        length: u64,
    },
    /// The load is so many times as large for a while; with many keys, the crowd wants one of them.
    Crowd {
        /// When it comes, in nanoseconds.
        from: u64,
        /// When it has gone.
        until: u64,
        /// The load meanwhile, in multiples of the usual one.
        times: u64,
    },
    /// A day: the load swings between nothing and twice the mean, once in this span (nanoseconds).
    Daily(u64),
}

/// Which gateways see the requests for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Any gateway.
    Any,
    /// One of the three that a hash of the key picks.
    Three,
    /// The one that a hash of the key picks.
    One,
}

/// What becomes of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there from now on; until then it was not.
    Joins,
    /// It stops in order: gives back what it holds, and is asked no more.
    Leaves,
    /// Its process ends, and what it holds is lost. It is asked no more.
    Dies,
    /// It reaches nobody but its callers.
    CutOff,
    /// It is reached again.
    Heals,
}

/// A change of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds.
    pub at: u64,
    /// Which gateway.
    pub gateway: u32,
    /// What.
    pub change: Change,
}

/// What is asked of a fleet.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many gateways, those that join later included.
    pub gateways: u32,
    /// The limit of every key.
    pub limit: LimitSpec,
    /// Tokens refilled per second, for each key.
    pub rate: u64,
    /// The most that can be spent of one key at one moment.
    pub burst: u64,
    /// Requests per second of all gateways together, in thousandths of the rate; while *on* for
    /// [`Pattern::OnOff`], outside of the crowd for [`Pattern::Crowd`].
    pub load_per_mille: u64,
    /// How they are spread.
    pub pattern: Pattern,
    /// How many keys there are. Of several the n-th is asked for 1/n as often as the first: Zipf's
    /// law with exponent 1.
    pub keys: u32,
    /// Where the requests of a key go.
    pub routing: Routing,
    /// What becomes of gateways, in time order.
    pub events: Vec<Event>,
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
            burst,
            load_per_mille: 1_200,
            pattern: Pattern::Equal,
            keys: 1,
            routing: Routing::Any,
            events: Vec::new(),
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

    /// The same for so many keys.
    #[must_use]
    pub fn keyed(mut self, keys: u32, routing: Routing) -> Self {
        self.keys = keys;
        self.routing = routing;
        self
    }

    /// Requests per second of all gateways together, in millionths, on average.
    fn mean(&self) -> u64 {
        self.rate * self.load_per_mille * 1000
    }

    /// Requests per second, in millionths, that `gateway` sees at `at`.
    pub(super) fn load(&self, gateway: u32, at: u64) -> u64 {
        let all = self.mean();
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
            Pattern::Skewed => skewed(0),
            Pattern::Shifting(every) => skewed(at / every % count),
            Pattern::Unequal => {
                let share = self.rate * 1_000_000 / count;
                if gateway.is_multiple_of(3) {
                    share * 2 / 5
                } else {
                    share * 3 / 2 + share * u64::from(gateway % 3)
                }
            }
            _ => self.total(at) / count,
        }
    }

    /// The highest load that `gateway` ever sees, in millionths of a request per second.
    pub(super) fn peak(&self, gateway: u32) -> u64 {
        match self.pattern {
            Pattern::Shifting(_) => self.rate * self.load_per_mille * 500,
            _ => self.load(gateway, 0),
        }
    }

    /// Requests per second of all gateways together at `at`, in millionths.
    #[must_use]
    pub fn total(&self, at: u64) -> u64 {
        let all = self.mean();
        match self.pattern {
            Pattern::OnOff(span) if !(at / span).is_multiple_of(2) => 0,
            Pattern::Crowd { from, until, times } if (from..until).contains(&at) => all * times,
            Pattern::Daily(span) => {
                let turn = (at % span) as f64 / span as f64;
                // It begins at night.
                let swing = 1.0 - (turn * std::f64::consts::TAU).cos();
                (all as f64 * swing) as u64
            }
            _ => all,
        }
    }

    /// The most that [`Workload::total`] ever says.
    pub(super) fn total_peak(&self) -> u64 {
        let times = match self.pattern {
            Pattern::Crowd { times, .. } => times.max(1),
            Pattern::Daily(_) => 2,
            _ => 1,
        };
        self.mean() * times
    }

    /// True if each gateway draws its own arrivals: the load says how often each is asked.
    pub(super) fn is_by_gateway(&self) -> bool {
        let placed = matches!(
            self.pattern,
            Pattern::Sticky { .. } | Pattern::Crowd { .. } | Pattern::Daily(_)
        );
        self.keys == 1 && self.events.is_empty() && !placed
    }

    /// The gateways that callers can reach at `at`, by number.
    #[must_use]
    pub fn present(&self, at: u64) -> Vec<u32> {
        let here = |gateway: &u32| {
            let mine = || self.events.iter().filter(|e| e.gateway == *gateway);
            let joins = mine().find(|e| e.change == Change::Joins);
            let ends = mine().find(|e| matches!(e.change, Change::Leaves | Change::Dies));
            joins.is_none_or(|e| e.at <= at) && ends.is_none_or(|e| e.at > at)
        };
        (0..self.gateways).filter(here).collect()
    }

    /// All arrivals of a seed, in time order.
    #[must_use]
    pub fn arrivals(&self, seed: u64) -> Arrivals<'_> {
        Arrivals::new(self, seed)
    }
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
