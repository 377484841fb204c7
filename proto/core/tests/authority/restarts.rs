//! Crashes, take-overs and hand-overs.

use quota_core::policy::{Durability, PolicySpec};
use quota_core::time::Term;

use super::driver::{Ask, DRIFT, World, at, policy, tokens, want};

fn longest() -> Term {
    DRIFT.stretch(Term::from_seconds(10))
}

fn reserved(count: u64, period_ms: u64, burst: u64) -> PolicySpec {
    PolicySpec {
        durability: Durability::Reserved,
        ..policy(count, period_ms, burst)
    }
}

#[test]
fn after_a_crash_a_volatile_bucket_is_empty_and_its_ghost_counts() {
    let mut world = World::new(policy(10, 1000, 100));
    world.crash(at(0));
    let view = world.inspect(at(0), "k");
    assert_eq!((view.available, view.ghost), (0, tokens(80)));
    // Refill goes up to what the ghost leaves free, then on when it is over.
    assert_eq!(world.inspect(at(5_000), "k").available, 20);
    let over = at(0) + longest();
    assert_eq!(world.inspect(over, "k").available, 20);
    assert_eq!(
        world.inspect(over + Term::from_seconds(8), "k").available,
        100
    );
}

#[test]
fn what_is_there_after_a_take_over_is_granted_at_once() {
    let mut world = World::new(policy(10, 1000, 100));
    world.crash(at(0));
    let mut client = world.connect(at(1_000), 1);
    client.ask(&mut world, at(1_000), "k", want(6));
    assert_eq!(world.grant().granted, tokens(6));
}

#[test]
fn a_second_crash_within_a_term_counts_both_tenures() {
    let mut world = World::new(policy(10, 1000, 100));
    world.crash(at(0));
    world.crash(at(1_000));
    let view = world.inspect(at(1_000), "k");
    assert_eq!((view.available, view.ghost), (0, tokens(96)));
}

#[test]
fn what_is_live_and_the_ghost_are_never_more_than_the_next_owner_assumes() {
    let mut world = World::new(policy(10, 1000, 100));
    world.crash(at(0));
    // Twenty tokens have come back by now, and three holders would take them all.
    let now = at(5_000);
    assert_eq!(world.inspect(now, "k").available, 20);
    for who in 1..=3 {
        let mut client = world.connect(now, who);
        client.ask(&mut world, now, "k", want(100));
    }
    let view = world.inspect(now, "k");
    // A share of what the ghost leaves free, not of the capacity.
    assert_eq!((view.outstanding, view.ghost), (tokens(16), tokens(80)));
    world.crash(now);
    let assumed = world.inspect(now, "k").ghost;
    assert_eq!(assumed, view.outstanding.plus(view.ghost));
}

#[test]
fn a_settled_shard_counts_one_tenure_again() {
    let mut world = World::new(policy(10, 1000, 100));
    world.crash(at(0));
    world.pass(at(0) + longest());
    assert!(world.settled);
    world.crash(at(20_000));
    assert_eq!(world.inspect(at(20_000), "k").ghost, tokens(80));
}

#[test]
fn a_reserved_bucket_grants_nothing_before_its_record_is_durable() {
    let mut world = World::new(reserved(1, 3_600_000, 160));
    world.hold_writes = true;
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    // A short wait is not told.
    assert!(world.take_answers().is_empty());
    assert_eq!(world.unwritten.len(), 1);
    world.finish_writes(at(4));
    assert_eq!(world.grant().granted, tokens(5));
}

#[test]
fn a_reserved_bucket_comes_back_without_what_it_may_have_granted() {
    let mut world = World::new(reserved(1, 3_600_000, 160));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    world.grant();
    world.crash(at(100));
    let view = world.inspect(at(100), "k");
    // The block of a sixteenth was booked; five tokens of it went out.
    assert_eq!(
        (view.available, view.ghost, view.unseen),
        (150, tokens(10), false)
    );
    let untouched = world.inspect(at(100), "other");
    assert_eq!((untouched.available, untouched.ghost), (160, tokens(0)));
}

#[test]
fn refill_across_a_crash_counts_only_on_the_same_boot() {
    let mut world = World::new(reserved(1, 1000, 160));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(10));
    let lease = world.grant().lease;
    client.ask(
        &mut world,
        at(0),
        "k",
        Ask {
            lease: Some(lease),
            spent: 10,
            ..want(40)
        },
    );
    world.grant();
    let (records, tenures) = (world.records.clone(), world.tenures);
    world.crash(at(10_000));
    let same_boot = world.inspect(at(10_000), "k").available;
    world.records = records;
    world.tenures = tenures;
    world.boot = 2;
    world.crash(at(10_000));
    let other_boot = world.inspect(at(10_000), "k").available;
    assert_eq!(same_boot - other_boot, 10);
}

#[test]
fn a_busy_reserved_bucket_writes_few_records() {
    let mut world = World::new(reserved(1000, 86_400_000, 1000));
    let mut client = world.connect(at(0), 1);
    let mut lease = None;
    for turn in 0..600_u64 {
        client.ask(
            &mut world,
            at(turn),
            "k",
            Ask {
                lease,
                spent: turn,
                ..want(1)
            },
        );
        lease = world.grant().lease.into();
    }
    let stats = world.authority.stats();
    assert!(
        stats.records_written * 20 <= 600,
        "{} records",
        stats.records_written
    );
}

#[test]
fn a_full_reserved_bucket_keeps_no_record() {
    let mut world = World::new(reserved(1000, 1000, 160));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    let lease = world.grant().lease;
    let release = Ask {
        lease: Some(lease),
        spent: 5,
        release: true,
        ..Ask::default()
    };
    client.ask(&mut world, at(0), "k", release);
    assert_eq!(world.records.len(), 1);
    world.pass(at(60_000));
    assert!(world.records.is_empty());
    assert_eq!(world.authority.stats().buckets, 0);
}

#[test]
fn a_hand_over_loses_nothing() {
    let mut world = World::new(policy(10, 1000, 100));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(30));
    let lease = world.grant().lease;
    let before = world.inspect(at(10), "k");
    world.restart_cleanly(at(10), at(10));
    let after = world.inspect(at(10), "k");
    assert_eq!(
        (after.available, after.outstanding, after.ghost),
        (before.available, before.outstanding, before.ghost)
    );
    // The lease goes on: its unspent tokens can still be returned, and its retries are known.
    let mut again = world.connect(at(11), 1);
    again.sequence = client.sequence;
    again.number = client.number;
    again.ask(
        &mut world,
        at(11),
        "k",
        Ask {
            lease: Some(lease),
            returned: 30,
            ..Ask::default()
        },
    );
    assert_eq!(world.inspect(at(11), "k").available, 100);
}

#[test]
fn restarting_cleanly_again_and_again_restores_no_budget() {
    let mut world = World::new(policy(1, 3_600_000, 100));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(40));
    world.grant();
    world.boot = 9;
    for restart in 1..=5 {
        world.restart_cleanly(at(restart), at(restart));
        assert_eq!(world.inspect(at(restart), "k").available, 60);
    }
}

#[test]
fn a_crash_of_an_exhausted_bucket_costs_it_no_block() {
    let mut world = World::new(reserved(1000, 86_400_000, 1000));
    let mut client = world.connect(at(0), 1);
    let (mut lease, mut spent) = (None, 0);
    while world.inspect(at(0), "k").available > 0 {
        let ask = Ask {
            lease,
            spent,
            ..want(7)
        };
        client.ask(&mut world, at(0), "k", ask);
        let grant = world.grant();
        (lease, spent) = (Some(grant.lease), grant.granted.get());
    }
    assert_eq!(spent, 1000);
    let done = Ask {
        lease,
        spent,
        release: true,
        ..Ask::default()
    };
    client.ask(&mut world, at(0), "k", done);
    world.pass(at(15_000));
    world.crash(at(15_000));
    assert_eq!(world.inspect(at(15_000), "k").available, 0);
}
