//! Some hundred seeds of the world, and the proof that its checks can fail.

use simulations::campaign;
use simulations::campaign::shrink::shrink;
use simulations::shape::FAULTS;
use simulations::world::{self, Plan, Sabotage};

/// Invariants that speak of what must happen, not of what must never happen.
const LIVENESS: &[&str] = &["every claimant is served", "utilisation returns"];
fn broken(first: u64, count: u64, liveness: bool) -> Vec<String> {
    let verdict = campaign::run(first..first + count, 2, Sabotage::None, |_| {});
    assert_eq!(verdict.seeds, count);
    let violations = verdict.violations.into_iter();
    violations
        .filter(|b| LIVENESS.contains(&b.invariant) == liveness)
        .map(|b| format!("{}: {}\n    {}", b.invariant, b.what, b.replay))
        .collect()
}

#[test]
fn no_seed_breaks_the_promise() {
    let broken = broken(0, 80, false);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn after_the_faults_everybody_is_served() {
    let broken = broken(80, 60, true);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_seed_means_the_same_run_every_time() {
    for seed in [0, 7, 40, 335] {
        let (one, two) = (
            world::run(seed, Sabotage::None, false),
            world::run(seed, Sabotage::None, false),
        );
        assert_eq!(
            (one.hash, one.events),
            (two.hash, two.events),
            "seed {seed}"
        );
    }
    let other = world::run(1, Sabotage::None, false).hash;
    assert_ne!(world::run(0, Sabotage::None, false).hash, other);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let run = |threads| {
        let verdict = campaign::run(500..530, threads, Sabotage::None, |_| {});
        let coverage: Vec<_> = verdict.coverage.iter().collect();
        (verdict.hash, verdict.events, verdict.faults, coverage)
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn a_failing_seed_shrinks_to_a_short_replayable_trace() {
    let fails = |plan: &Plan| world::run_plan(plan).failure.is_some();
    let of_seed = |seed| Plan::of_seed(seed, Sabotage::ForgottenTenures);
    let plan = (0..50).map(of_seed).find(fails).expect("one of them fails");
    let shrunk = shrink(&plan).expect("it fails");
    println!("{}", campaign::replay_plan(&shrunk.plan));
    assert!(shrunk.events <= shrunk.events_before);
    assert!(shrunk.plan.without.len() > FAULTS.len() / 2, "{shrunk:?}");
    let again = world::run_plan(&shrunk.plan);
    assert_eq!(again.failure.as_ref(), Some(&shrunk.failure));
    assert_eq!(again.events, shrunk.events);
    assert!(shrink(&Plan::of_seed(0, Sabotage::None)).is_none());
}

/// How many seeds it takes until a sabotaged world breaks a safety invariant.
fn seeds_to_catch(sabotage: Sabotage, most: u64) -> (u64, &'static str) {
    for seed in 0..most {
        let failure = world::run(seed, sabotage, false).failure;
        if let Some(failure) = failure.filter(|f| !LIVENESS.contains(&f.invariant)) {
            return (seed + 1, failure.invariant);
        }
    }
    panic!("{sabotage:?} was not caught in {most} seeds: the checks do not bite");
}

#[test]
fn each_sabotage_of_the_world_is_caught() {
    for (sabotage, most) in [
        (Sabotage::StricterOracle, 20),
        (Sabotage::NewestAnchor, 60),
        (Sabotage::SlowHolders, 100),
        (Sabotage::HolderClockStops, 300),
        (Sabotage::AuthorityClockStops, 100),
        (Sabotage::ForgottenTenures, 100),
        (Sabotage::ForgottenRecords, 50),
        (Sabotage::ForgottenFormers, 100),
        (Sabotage::HandOverTwice, 100),
        (Sabotage::EarlyAcknowledge, 100),
        (Sabotage::TornBatch, 100),
        (Sabotage::NoFence, 100),
        (Sabotage::LateSettle, 300),
        (Sabotage::TenureFromAnswer, 2000),
        (Sabotage::TenureUnchecked, 100),
        (Sabotage::ClockBeforeDebit, 1000),
        (Sabotage::LiarSpendsReturns, 100),
    ] {
        let (seeds, invariant) = seeds_to_catch(sabotage, most);
        println!("{sabotage:?}: caught by `{invariant}` after {seeds} seeds");
    }
}
