//! Every order of events of a small world, within bounds: one bucket, two holders, an authority
//! that crashes and is succeeded, on the shipped machines.
//!
//! `MODEL_STEPS=2 cargo test --release -p simulations --test model -- --nocapture` looks two
//! steps further than the usual run. Each step costs two to three times as many states.
#![allow(missing_docs, unreachable_pub, reason = "a test")]

mod setup;
mod space;
mod world;

use quota_core::policy::Durability;
use stateright::{Checker, HasDiscoveries, Model};

use setup::{Mistake, Setup};
use space::*;

/// Steps beyond the usual bound.
fn more() -> usize {
    let steps = std::env::var("MODEL_STEPS");
    steps.map_or(0, |steps| steps.parse().expect("MODEL_STEPS is a number"))
}

/// Visits every state within the bound: nothing breaks, and what should be reached is.
#[track_caller]
fn holds(name: &str, setup: Setup, reached: &[&'static str]) {
    let depth = setup.depth + more();
    let space = Space(setup).checker().threads(2).target_max_depth(depth);
    // Goes on when everything has been reached: what must always hold is never discovered.
    let checker = space.spawn_bfs().join();
    println!(
        "{name}: {} states within {depth} steps, {} transitions",
        checker.unique_state_count(),
        checker.state_count()
    );
    for property in [PROMISE, COVER] {
        checker.assert_no_discovery(property);
    }
    for property in reached {
        checker.assert_any_discovery(property);
    }
}

/// The checker finds the mistake.
#[track_caller]
fn is_found(mistake: Mistake, property: &'static str, setup: Setup) {
    let depth = setup.depth;
    let space = Space(setup.with(mistake));
    let checker = space.checker().threads(2).target_max_depth(depth);
    let checker = checker.finish_when(HasDiscoveries::AllOf([property].into()));
    let checker = checker.spawn_bfs().join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{mistake:?} is not found within {depth} steps"));
    println!(
        "{mistake:?}: found among {} states by {:?}",
        checker.unique_state_count(),
        path.into_actions()
    );
}

/// What every bucket comes to.
const USUAL: [&str; 4] = [EMPTIED, QUEUED, OLD_BESIDE_NEW, OLD_OWNER_HEARD];

#[test]
fn a_volatile_bucket_keeps_the_promise() {
    let setup = Setup::new(Durability::Volatile, 2, 11);
    holds(
        "volatile",
        setup,
        &[&USUAL[..], &[WASTED, SETTLED]].concat(),
    );
}

#[test]
fn a_reserved_bucket_keeps_the_promise() {
    let setup = Setup::new(Durability::Reserved, 2, 10);
    let records = [WAITS_FOR_RECORD, RECORD_LOST, RECORD_KEPT];
    holds("reserved", setup, &[&USUAL[..], &records[..]].concat());
}

#[test]
fn two_crashes_within_a_term_keep_the_promise() {
    let mut setup = Setup::new(Durability::Volatile, 3, 10);
    setup.crashes = 2;
    holds(
        "two crashes",
        setup,
        &[&USUAL[..], &[SECOND_CRASH]].concat(),
    );
}

#[test]
fn repeated_lost_and_reordered_messages_keep_the_promise() {
    let mut setup = Setup::new(Durability::Volatile, 2, 6);
    (setup.duplicates, setup.losses, setup.reorder) = (1, 1, true);
    (setup.restarts, setup.reconnects) = (1, 1);
    holds("bad network", setup, &[QUEUED, REPEATED, OLD_OWNER_HEARD]);
}

#[test]
fn a_ghost_of_zero_is_found() {
    let mut setup = Setup::new(Durability::Volatile, 2, 16);
    setup.quanta = 1;
    is_found(Mistake::GhostOfZero, PROMISE, setup);
}

#[test]
fn an_answer_dated_by_a_later_message_is_found() {
    let mut setup = Setup::new(Durability::Volatile, 2, 10);
    setup.crashes = 0;
    is_found(Mistake::NewestAnchor, COVER, setup);
}

#[test]
fn a_write_that_is_acknowledged_early_is_found() {
    let mut setup = Setup::new(Durability::Reserved, 2, 16);
    setup.quanta = 0;
    is_found(Mistake::EarlyAcknowledge, PROMISE, setup);
}

#[test]
fn records_that_are_not_read_back_are_found() {
    let mut setup = Setup::new(Durability::Reserved, 2, 16);
    setup.quanta = 0;
    is_found(Mistake::ForgottenRecords, PROMISE, setup);
}

#[test]
fn a_second_tenure_that_is_forgotten_is_found() {
    let mut setup = Setup::new(Durability::Volatile, 3, 10);
    setup.crashes = 2;
    is_found(Mistake::SecondTenureForgotten, COVER, setup);
}
