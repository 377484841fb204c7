//! From a failing seed to a short trace.
//!
//! Faults, holders, policies and the network's troubles are left out one after another, and what
//! still breaks the same invariant with no more events is kept. Leaving something out shifts what
//! chance decides afterwards, so each candidate is tried with a few salts. In the end the run is cut
//! off at the moment of the failure. The same seed always shrinks to the same plan.

use crate::shape::{FAULTS, Fault};
use crate::world::{Failure, Plan, run_plan};

/// Other courses of events that each candidate is tried with.
const SALTS: u64 = 4;
/// Those that the last candidate is tried with, to find the shortest.
const LAST_SALTS: u64 = 40;
/// Rounds over everything that can be left out.
const ROUNDS: usize = 3;

/// A failing plan that says less.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The plan.
    pub plan: Plan,
    /// What it breaks.
    pub failure: Failure,
    /// Inputs that the core handles until then.
    pub events: u64,
    /// As many as the plan needed that was to be shrunk.
    pub events_before: u64,
    /// How many plans were run.
    pub runs: u64,
}

/// Shrinks a failing plan; `None` if it does not fail.
#[must_use]
pub fn shrink(plan: &Plan) -> Option<Shrunk> {
    let mut quiet = plan.clone();
    quiet.print = false;
    let first = run_plan(&quiet);
    let mut best = Shrunk {
        plan: quiet,
        failure: first.failure?,
        events: first.events,
        events_before: first.events,
        runs: 1,
    };
    for _ in 0..ROUNDS {
        let before = best.plan.clone();
        for candidate in candidates(&best.plan) {
            try_it(&mut best, &candidate, SALTS);
        }
        if best.plan == before {
            break;
        }
    }
    let last = best.plan.clone();
    try_salts(&mut best, &last, LAST_SALTS);
    best.plan.until = Some(best.failure.at);
    Some(best)
}

/// What could be left out of a plan, the largest parts first.
fn candidates(plan: &Plan) -> Vec<Change> {
    let mut changes = vec![Change::Calm, Change::Policies(1), Change::Policies(2)];
    changes.extend((1..5).map(Change::Clients));
    let present: Vec<Fault> = FAULTS
        .iter()
        .copied()
        .filter(|fault| !plan.without.contains(fault))
        .collect();
    for size in [present.len(), present.len() / 2, present.len() / 4, 1] {
        if size > 0 {
            let parts = present.chunks(size);
            changes.extend(parts.map(|part| Change::Without(part.to_vec())));
        }
    }
    changes
}

#[derive(Clone, Debug)]
enum Change {
    Calm,
    Policies(usize),
    Clients(u64),
    Without(Vec<Fault>),
}

fn try_it(best: &mut Shrunk, change: &Change, salts: u64) {
    let mut plan = best.plan.clone();
    match change {
        Change::Calm => plan.calm = true,
        Change::Policies(count) => {
            plan.policies = Some(plan.policies.map_or(*count, |p| p.min(*count)))
        }
        Change::Clients(count) => {
            plan.clients = Some(plan.clients.map_or(*count, |c| c.min(*count)))
        }
        Change::Without(faults) => {
            for fault in faults {
                if !plan.without.contains(fault) {
                    plan.without.push(*fault);
                }
            }
        }
    }
    if plan != best.plan {
        try_salts(best, &plan, salts);
    }
}

/// Keeps the plan with the salt that breaks the same invariant soonest, if none needs more events
/// than the best so far.
fn try_salts(best: &mut Shrunk, plan: &Plan, salts: u64) {
    for salt in std::iter::once(plan.salt).chain((0..salts).filter(|salt| *salt != plan.salt)) {
        let candidate = Plan {
            salt,
            ..plan.clone()
        };
        let outcome = run_plan(&candidate);
        best.runs += 1;
        if let Some(failure) = outcome.failure
            && failure.invariant == best.failure.invariant
            && outcome.events <= best.events
        {
            (best.plan, best.failure, best.events) = (candidate, failure, outcome.events);
        }
    }
}
