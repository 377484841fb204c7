//! What people do instead of leases, each behind the same face.
//!
//! - `asked`: a store that is asked on every request, by one of the rules `central`, `windows`, `parts`
//! - `share`: nobody is asked: a part of the limit, or all of it, at each gateway
//! - `bucket`: what they count with

mod asked;
mod bucket;
mod central;
mod parts;
mod share;
mod windows;

use super::leases::Fleet;
use super::limiter::Limiter;
use super::workload::Workload;

/// A way of limiting, by its name in tables.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    make: fn(&Workload) -> Box<dyn Limiter>,
}

impl Way {
    /// A fleet that is limited in this way and has been asked for nothing yet.
    #[must_use]
    pub fn limiter(&self, workload: &Workload) -> Box<dyn Limiter> {
        (self.make)(workload)
    }
}

/// Ours first, then what people do instead.
pub const WAYS: [Way; 9] = [
    Way {
        name: "leases",
        make: |workload| Box::new(Fleet::new(workload, None)),
    },
    Way {
        name: "central-bucket",
        make: |workload| Box::new(central::Central::limiter(workload)),
    },
    Way {
        name: "nth-share",
        make: |workload| Box::new(share::Shares::nth(workload)),
    },
    Way {
        name: "full-limit-each",
        make: |workload| Box::new(share::Shares::full(workload)),
    },
    Way {
        name: "fixed-window",
        make: |workload| Box::new(windows::Counters::fixed(workload)),
    },
    Way {
        name: "two-counters",
        make: |workload| Box::new(windows::Counters::sliding(workload)),
    },
    Way {
        name: "sliding-log",
        make: |workload| Box::new(windows::Log::limiter(workload)),
    },
    Way {
        name: "eight-parts",
        make: |workload| Box::new(parts::Parts::fixed(workload, parts::PARTS)),
    },
    Way {
        name: "splitting-parts",
        make: |workload| Box::new(parts::Parts::adaptive(workload)),
    },
];
