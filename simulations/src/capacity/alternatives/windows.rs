//! Windows in a central store, asked on every request: fixed, sliding by two counters, and a log.
//!
//! The window is the time in which the burst refills, and the limit in it is the burst, so that all
//! of them allow the same rate as the token bucket.
//!
//! - Two counters, as Cloudflare published it: 42 requests in the last minute and 18 in the first 15
//!   seconds of this one count as 42 · 45/60 + 18 = 49.5.
//! - Fixed: at the edge of two windows twice the limit passes at once.
//! - Log: a time stamp for each admitted request; exact in every window, and as large as the limit.

use std::collections::{HashMap, VecDeque};

use super::asked::{Asked, Rule};
use crate::capacity::workload::{SECOND, Workload};

/// At most so many in a window.
#[derive(Clone, Copy, Debug)]
struct Window {
    limit: u64,
    /// In nanoseconds.
    length: u64,
}

impl Window {
    fn of(workload: &Workload) -> Self {
        Self {
            limit: workload.burst,
            length: (workload.burst * SECOND).div_ceil(workload.rate),
        }
    }
}

/// Counts of two windows that follow each other.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    window: u64,
    this: u64,
    last: u64,
}

impl Counts {
    fn settle(&mut self, window: u64) {
        if window > self.window {
            self.last = if window == self.window + 1 {
                self.this
            } else {
                0
            };
            self.this = 0;
            self.window = window;
        }
    }

    /// What counts `elapsed` nanoseconds into a window of `length`, times `length`.
    fn weighed(&self, elapsed: u64, length: u64) -> u128 {
        u128::from(self.last) * u128::from(length - elapsed)
            + u128::from(self.this) * u128::from(length)
    }
}

/// Counters of fixed windows; sliding if the last one counts in part.
#[derive(Debug)]
pub(crate) struct Counters {
    window: Window,
    slides: bool,
    counts: HashMap<u32, Counts>,
}

impl Counters {
    pub(crate) fn fixed(workload: &Workload) -> Asked<Self> {
        Self::limiter(workload, false)
    }

    pub(crate) fn sliding(workload: &Workload) -> Asked<Self> {
        Self::limiter(workload, true)
    }

    fn limiter(workload: &Workload, slides: bool) -> Asked<Self> {
        let rule = Self {
            window: Window::of(workload),
            slides,
            counts: HashMap::new(),
        };
        Asked::new(workload, rule)
    }

    /// What counts at `now`, times the window's length.
    fn counted(&mut self, now: u64, key: u32) -> u128 {
        let length = self.window.length;
        let counts = self.counts.entry(key).or_default();
        counts.settle(now / length);
        let elapsed = if self.slides { now % length } else { length };
        counts.weighed(elapsed, length)
    }
}

impl Rule for Counters {
    fn decide(&mut self, now: u64, key: u32, cost: u64) -> bool {
        let length = u128::from(self.window.length);
        let counted = self.counted(now, key) + u128::from(cost) * length;
        let admitted = counted <= u128::from(self.window.limit) * length;
        if admitted {
            self.counts.entry(key).or_default().this += cost;
        }
        admitted
    }

    fn available(&mut self, now: u64, key: u32) -> i64 {
        let length = u128::from(self.window.length);
        let all = u128::from(self.window.limit) * length;
        let left = all.saturating_sub(self.counted(now, key)) / length;
        i64::try_from(left).unwrap_or(i64::MAX)
    }

    fn counters(&self) -> (u64, u64) {
        (u64::try_from(self.counts.len()).expect("few"), 72)
    }
}

/// A time stamp for each admitted request.
#[derive(Debug)]
pub(crate) struct Log {
    window: Window,
    /// When, and how much.
    stamps: HashMap<u32, VecDeque<(u64, u64)>>,
}

impl Log {
    pub(crate) fn limiter(workload: &Workload) -> Asked<Self> {
        let rule = Self {
            window: Window::of(workload),
            stamps: HashMap::new(),
        };
        Asked::new(workload, rule)
    }

    fn used(&mut self, now: u64, key: u32) -> u64 {
        let length = self.window.length;
        let stamps = self.stamps.entry(key).or_default();
        while stamps.front().is_some_and(|(at, _)| at + length <= now) {
            stamps.pop_front();
        }
        stamps.iter().map(|(_, cost)| cost).sum()
    }
}

impl Rule for Log {
    fn decide(&mut self, now: u64, key: u32, cost: u64) -> bool {
        let admitted = self.used(now, key) + cost <= self.window.limit;
        if admitted {
            self.stamps.entry(key).or_default().push_back((now, cost));
        }
        admitted
    }

    fn available(&mut self, now: u64, key: u32) -> i64 {
        let left = self.window.limit - self.used(now, key);
        i64::try_from(left).unwrap_or(i64::MAX)
    }

    fn counters(&self) -> (u64, u64) {
        let stamps = self.stamps.values().map(VecDeque::len).sum::<usize>();
        (u64::try_from(stamps).expect("few"), 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(limit: u64) -> Window {
        Window {
            limit,
            length: 60 * SECOND,
        }
    }

    /// The example with which Cloudflare published the approximation.
    #[test]
    fn forty_two_and_eighteen_after_fifteen_seconds_are_forty_nine_and_a_half() {
        let mut counters = Counters {
            window: minute(100),
            slides: true,
            counts: HashMap::new(),
        };
        let minute = 60 * SECOND;
        let admitted = |counters: &mut Counters, from: u64, tries: u64| {
            let tries = 0..tries;
            tries
                .filter(|nth| counters.decide(from + nth * SECOND / 4, 7, 1))
                .count()
        };
        assert_eq!(admitted(&mut counters, minute, 42), 42);
        assert_eq!(admitted(&mut counters, 2 * minute, 18), 18);
        let counted = counters.counted(2 * minute + 15 * SECOND, 7);
        assert_eq!(counted * 2, 99 * u128::from(minute));
        // One more would make it 50.5.
        counters.window.limit = 50;
        assert!(!counters.decide(2 * minute + 15 * SECOND, 7, 1));
    }

    #[test]
    fn a_fixed_window_lets_twice_the_limit_through_at_its_edge_and_the_others_do_not() {
        let workload = Workload::new(1, 100, 100);
        let burst = |rule: &mut dyn Rule| {
            let moments = [SECOND - 1, SECOND];
            let tries = moments.iter().flat_map(|at| (0..150).map(move |_| *at));
            tries.filter(|at| rule.decide(*at, 0, 1)).count()
        };
        let mut fixed = Counters {
            window: Window::of(&workload),
            slides: false,
            counts: HashMap::new(),
        };
        assert_eq!(burst(&mut fixed), 200);
        let mut log = Log {
            window: Window::of(&workload),
            stamps: HashMap::new(),
        };
        assert_eq!(burst(&mut log), 100);
        let mut sliding = Counters {
            slides: true,
            ..fixed
        };
        sliding.counts.clear();
        assert_eq!(burst(&mut sliding), 100);
    }

    /// Two counters assume that the last window was even: all of it at its end, and half a window
    /// later half of it is forgotten too early.
    #[test]
    fn two_counters_pass_the_limit_of_a_window_by_half_and_the_log_never() {
        let run = |rule: &mut dyn Rule| {
            let late = (0..100).filter(|_| rule.decide(SECOND - 1, 0, 1)).count();
            let next = (0..100)
                .filter(|_| rule.decide(SECOND * 3 / 2, 0, 1))
                .count();
            late + next
        };
        let workload = Workload::new(1, 100, 100);
        let window = Window::of(&workload);
        let mut log = Log {
            window,
            stamps: HashMap::new(),
        };
        let mut sliding = Counters {
            window,
            slides: true,
            counts: HashMap::new(),
        };
        // Both within one window's length: from just before one second to one and a half.
        assert_eq!(run(&mut sliding), 150);
        assert_eq!(run(&mut log), 100);
    }
}
