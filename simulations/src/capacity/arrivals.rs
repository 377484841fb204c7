//! Arrivals of a workload: Poisson processes whose rates change with time.
//!
//! Where the pattern says how much each gateway is asked, each gateway draws for itself; otherwise
//! one process draws all requests and each is then given a key and a gateway.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::workload::{Pattern, Request, Routing, Workload};
use super::zipf::Zipf;
use crate::random::Random;

/// The arrivals of a workload.
#[derive(Debug)]
pub struct Arrivals<'a> {
    workload: &'a Workload,
    source: Source,
    count: u64,
}

#[derive(Debug)]
enum Source {
    /// One generator for each gateway: its arrivals do not depend on the others'.
    Gateways {
        sources: Vec<Random>,
        next: BinaryHeap<Reverse<(u64, u32)>>,
    },
    All(Placed),
}

#[derive(Debug)]
struct Placed {
    random: Random,
    at: u64,
    zipf: Option<Zipf>,
    present: Vec<u32>,
    /// How many events `present` has seen.
    events: usize,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(workload: &'a Workload, seed: u64) -> Self {
        if !workload.is_by_gateway() {
            let placed = Placed {
                random: Random::salted(seed, 1),
                at: 0,
                zipf: (workload.keys > 1).then(|| Zipf::new(workload.keys)),
                present: workload.present(0),
                events: 0,
            };
            return Self {
                workload,
                source: Source::All(placed),
                count: 0,
            };
        }
        let mut sources = Vec::new();
        let mut next = BinaryHeap::new();
        for gateway in 0..workload.gateways {
            let random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(gateway));
            sources.push(random);
            plan(workload, &mut sources, &mut next, gateway, 0);
        }
        Self {
            workload,
            source: Source::Gateways { sources, next },
            count: 0,
        }
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let (at, gateway, key) = match &mut self.source {
            Source::Gateways { sources, next } => {
                let Reverse((at, gateway)) = next.pop()?;
                plan(self.workload, sources, next, gateway, at);
                (at, gateway, 0)
            }
            Source::All(placed) => placed.draw(self.workload)?,
        };
        let number = self.count;
        self.count += 1;
        Some(Request {
            number,
            at,
            gateway,
            key,
            cost: 1,
        })
    }
}

/// Draws a gateway's next arrival after `from`.
fn plan(
    workload: &Workload,
    sources: &mut [Random],
    next: &mut BinaryHeap<Reverse<(u64, u32)>>,
    gateway: u32,
    from: u64,
) {
    let random = &mut sources[usize::try_from(gateway).expect("32 bits fit")];
    let peak = workload.peak(gateway);
    let load = |at| workload.load(gateway, at);
    if let Some(at) = thinned(random, workload.length, peak, load, from) {
        next.push(Reverse((at, gateway)));
    }
}

/// The next arrival after `from` by thinning (Lewis and Shedler, "Simulation of nonhomogeneous
/// Poisson processes by thinning", 1979), for loads in millionths a second.
fn thinned(
    random: &mut Random,
    end: u64,
    peak: u64,
    load: impl Fn(u64) -> u64,
    from: u64,
) -> Option<u64> {
    if peak == 0 {
        return None;
    }
    let mut at = from;
    loop {
        at = at.saturating_add(exponential(random, peak));
        if at >= end {
            return None;
        }
        if random.below(peak) < load(at) {
            return Some(at);
        }
    }
}

impl Placed {
    fn draw(&mut self, workload: &Workload) -> Option<(u64, u32, u32)> {
        let peak = workload.total_peak();
        let load = |at| workload.total(at);
        let at = thinned(&mut self.random, workload.length, peak, load, self.at)?;
        self.at = at;
        let passed = workload.events.iter().skip(self.events);
        let passed = passed.take_while(|event| event.at <= at).count();
        if passed > 0 {
            self.events += passed;
            self.present = workload.present(at);
        }
        let key = self.key(workload);
        let salt = match (workload.keys, workload.routing) {
            (1, _) | (_, Routing::Any) => return Some((at, self.anywhere(workload), key)),
            (_, Routing::Three) => self.random.below(3),
            (_, Routing::One) => 0,
        };
        let hash = mix((u64::from(key) << 2) | salt);
        Some((at, self.present_at(hash), key))
    }

    fn key(&mut self, workload: &Workload) -> u32 {
        let Some(zipf) = &self.zipf else { return 0 };
        if let Pattern::Crowd { from, until, times } = workload.pattern
            && (from..until).contains(&self.at)
            && self.random.below(times) > 0
        {
            // In the middle of the field: nobody asked for it much before.
            return workload.keys / 2;
        }
        zipf.draw(&mut self.random)
    }

    fn anywhere(&mut self, workload: &Workload) -> u32 {
        if let Pattern::Sticky { sessions, length } = workload.pattern {
            let session = self.random.below(u64::from(sessions));
            // They do not end together.
            let since = self.at + length / u64::from(sessions) * session;
            return self.present_at(mix((session << 32) | (since / length)));
        }
        let any = self.random.bits();
        self.present_at(any)
    }

    fn present_at(&self, number: u64) -> u32 {
        let count = u64::try_from(self.present.len()).expect("few");
        self.present[usize::try_from(number % count).expect("below a length")]
    }
}

/// A 64-bit finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
pub(super) const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An exponentially distributed gap in nanoseconds, for a rate in millionths a second.
pub(super) fn exponential(random: &mut Random, micro: u64) -> u64 {
    let uniform = (random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
    let gap = -(1.0 - uniform).ln() * 1e15 / micro as f64;
    // A float to an integer saturates.
    gap as u64
}
