//! Capacity: how much of a limit a fleet can use, and what that costs in messages.
//!
//! A virtual world in which gateways come, go and are cut off, but nothing else fails. Requests of a
//! workload reach gateways, a limiter decides them, and a judge compares what it admitted with what
//! one un-split bucket would have admitted on the same arrivals. Our own limiter drives the shipped
//! authority, holder machine and lease cells.
//!
//! - `workload`, `arrivals`, `zipf`: who asks when
//! - `limiter`: what every way of limiting looks like from outside; `wire_size`: bytes of messages
//! - `leases`: ours; `alternatives`: what people do instead; `agenda`: what happens when
//! - `judge`, `figures`, `histogram`: what a run is worth
//! - `targets`: the figures that sizing must reach, each with its measurement

pub mod agenda;
pub mod alternatives;
pub mod arrivals;
pub mod figures;
pub mod histogram;
pub mod judge;
pub mod leases;
pub mod limiter;
pub mod targets;
pub mod wire_size;
pub mod workload;
pub mod zipf;

use std::convert::Infallible;

use self::figures::{Figures, Moment};
use self::judge::Judge;
use self::limiter::Limiter;
use self::workload::{Request, Workload};

/// Runs a limiter under a workload from beginning to end.
pub fn run<L: Limiter + ?Sized>(workload: &Workload, seed: u64, limiter: &mut L) -> Figures {
    run_with(workload, seed, limiter, |_, _| {})
}

/// As [`run`], with something that happens to the limiter: `hook` is called before each arrival
/// with its time.
pub fn run_with<L: Limiter + ?Sized>(
    workload: &Workload,
    seed: u64,
    limiter: &mut L,
    hook: impl FnMut(u64, &mut L),
) -> Figures {
    let arrivals = workload.arrivals(seed).map(Ok::<_, Infallible>);
    let Ok((figures, _)) = replay(workload, arrivals, limiter, hook);
    figures
}

/// Runs a limiter on arrivals in time order, and returns the figures and the course of the run.
///
/// Arrivals and the limiter's own events take turns in time order; at one instant the limiter's
/// own come first, so that a grant that arrives with a request is there for it. What becomes of
/// gateways comes before both.
///
/// # Errors
/// The first error of the arrivals.
pub fn replay<L: Limiter + ?Sized, E>(
    workload: &Workload,
    arrivals: impl Iterator<Item = Result<Request, E>>,
    limiter: &mut L,
    mut hook: impl FnMut(u64, &mut L),
) -> Result<(Figures, Vec<Moment>), E> {
    let mut course = Course {
        workload,
        judge: Judge::new(workload),
        events: 0,
        decided: Vec::new(),
    };
    for request in arrivals {
        let request = request?;
        course.until(request.at, limiter);
        hook(request.at, limiter);
        course.judge.arrived(&request);
        limiter.offer(request, &mut course.decided);
        course.judge.decided(&mut course.decided);
    }
    course.until(workload.length, limiter);
    Ok(course.judge.figures(limiter))
}

struct Course<'a> {
    workload: &'a Workload,
    judge: Judge<'a>,
    /// How many of the workload's events have happened.
    events: usize,
    decided: Vec<limiter::Decided>,
}

impl Course<'_> {
    /// Everything that happens up to and at `end` by itself.
    fn until<L: Limiter + ?Sized>(&mut self, end: u64, limiter: &mut L) {
        loop {
            let event = self.workload.events.get(self.events);
            let event_at = event.map_or(u64::MAX, |event| event.at);
            let own = limiter.next_event().unwrap_or(u64::MAX);
            let sample = self.judge.next_sample();
            let next = event_at.min(own).min(sample);
            if next > end {
                return;
            }
            if sample == next {
                self.judge.sample(limiter);
            } else if let Some(event) = event.filter(|event| event.at == next) {
                self.events += 1;
                limiter.change(event.at, event.gateway, event.change, &mut self.decided);
            } else {
                limiter.step(next, &mut self.decided);
            }
            self.judge.decided(&mut self.decided);
        }
    }
}
