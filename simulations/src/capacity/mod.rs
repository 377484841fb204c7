//! Capacity: how much of a limit a fleet can use, and what that costs in messages.
//!
//! A virtual world without faults. Requests of a workload reach gateways, a limiter decides them,
//! and a judge compares what it admitted with what one un-split bucket would have admitted on the
//! same arrivals. Our own limiter drives the shipped authority, holder machine and lease cells.
//!
//! - `workload`: who asks when
//! - `limiter`: what every way of limiting looks like from outside
//! - `leases`: ours
//! - `judge`: what a run is worth
//! - `targets`: the figures that sizing must reach, each with its measurement

pub mod judge;
pub mod leases;
pub mod limiter;
pub mod targets;
pub mod workload;

use self::judge::{Figures, Judge};
use self::limiter::Limiter;
use self::workload::Workload;

/// Runs a limiter under a workload from beginning to end.
pub fn run(workload: &Workload, seed: u64, limiter: &mut impl Limiter) -> Figures {
    run_with(workload, seed, limiter, |_, _| {})
}

/// As [`run`], with something that happens to the limiter: `hook` is called before each arrival
/// with its time.
///
/// Arrivals and the limiter's own events take turns in time order; at one instant the limiter's
/// own come first, so that a grant that arrives with a request is there for it.
pub fn run_with<L: Limiter>(
    workload: &Workload,
    seed: u64,
    limiter: &mut L,
    mut hook: impl FnMut(u64, &mut L),
) -> Figures {
    let mut judge = Judge::new(workload);
    let mut decided = Vec::new();
    for request in workload.arrivals(seed) {
        while let Some(at) = limiter.next_event().filter(|at| *at <= request.at) {
            limiter.step(at, &mut decided);
            judge.decided(&mut decided);
        }
        hook(request.at, limiter);
        judge.arrived(&request, limiter);
        limiter.offer(request, &mut decided);
        judge.decided(&mut decided);
    }
    while let Some(at) = limiter.next_event().filter(|at| *at < workload.length) {
        limiter.step(at, &mut decided);
        judge.decided(&mut decided);
    }
    judge.figures(limiter)
}
