//! Policies that change while tokens are out.

use quota_core::id::PolicyVersion;
use quota_core::message::{Refusal, Status};

use super::driver::{Ask, World, at, policy, tokens, want};

fn version(number: u64) -> PolicyVersion {
    PolicyVersion::new(number)
}

#[test]
fn toggling_a_limit_mints_nothing() {
    let mut world = World::new(policy(1, 3_600_000, 100));
    let mut client = world.connect(at(0), 1);
    let mut history = world.histories[0].clone();
    let mut out = 0;
    for toggle in 0..10_u64 {
        client.ask(&mut world, at(toggle), "k", want(100));
        for (_, _, answer) in world.take_answers() {
            out += answer.grant.map_or(0, |grant| grant.granted.get());
        }
        let burst = if toggle % 2 == 0 { 20 } else { 100 };
        history = history
            .change(policy(1, 3_600_000, burst), version(toggle + 2))
            .unwrap();
        world.apply(at(toggle), history.clone());
        world.take_answers();
    }
    assert!(out <= 100, "{out} tokens of 100 went out");
}

#[test]
fn lowering_leaves_a_debt_that_is_reported_and_paid_first() {
    let mut world = World::new(policy(10, 1000, 100));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(40));
    world.take_answers();
    let lower = world.histories[0]
        .change(policy(10, 1000, 20), version(2))
        .unwrap();
    world.apply(at(0), lower);
    assert_eq!((world.outstanding, world.owed), (tokens(40), tokens(20)));
    assert_eq!(world.inspect(at(0), "k").available, -20);
    // What is out is asked for, so that the debt is paid sooner.
    let keep = tokens(0);
    assert_eq!(world.status(), Status::Recall { keep });
    let mut other = world.connect(at(0), 2);
    other.ask(&mut world, at(0), "k", want(1));
    assert!(matches!(world.status(), Status::Queued { .. }));
}

#[test]
fn raising_makes_the_difference_available_at_once() {
    let mut world = World::new(policy(1, 3_600_000, 10));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(4));
    world.take_answers();
    let higher = world.histories[0]
        .change(policy(1, 3_600_000, 50), version(2))
        .unwrap();
    world.apply(at(0), higher);
    assert_eq!(world.inspect(at(0), "k").available, 46);
}

#[test]
fn a_lease_is_not_extended_under_another_version() {
    let mut world = World::new(policy(10, 1000, 100));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(10));
    let old = world.grant();
    let next = world.histories[0]
        .change(policy(10, 1000, 90), version(2))
        .unwrap();
    world.apply(at(0), next);
    let renewal = Ask {
        lease: Some(old.lease),
        spent: 4,
        ..want(10)
    };
    client.ask(&mut world, at(1), "k", renewal);
    let new = world.grant();
    assert_ne!(new.lease, old.lease);
    assert_eq!((new.granted, new.version), (tokens(10), version(2)));
    let leases = world.inspect(at(1), "k").leases;
    let kept = leases.iter().find(|l| l.lease == old.lease).unwrap();
    assert_eq!(kept.granted, tokens(10), "the old lease got nothing more");
}

#[test]
fn a_deleted_policy_grants_nothing_and_comes_back_with_what_was_used() {
    let mut world = World::new(policy(1, 3_600_000, 100));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(30));
    let lease = world.grant().lease;
    let deleted = world.histories[0].delete(version(2)).unwrap();
    world.apply(at(0), deleted.clone());
    client.ask(
        &mut world,
        at(1),
        "k",
        Ask {
            lease: Some(lease),
            spent: 30,
            ..want(5)
        },
    );
    assert_eq!(world.status(), Status::Refused(Refusal::UnknownPolicy));
    let again = deleted
        .recreate(policy(1, 3_600_000, 100), version(3))
        .unwrap();
    world.apply(at(2), again);
    assert_eq!(world.inspect(at(2), "k").available, 70);
}

#[test]
fn a_waiting_request_is_refused_when_its_policy_goes() {
    let mut world = World::new(policy(1, 3_600_000, 1));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(1));
    let lease = world.grant().lease;
    client.ask(
        &mut world,
        at(0),
        "k",
        Ask {
            lease: Some(lease),
            spent: 1,
            ..want(1)
        },
    );
    assert!(matches!(world.status(), Status::Queued { .. }));
    let deleted = world.histories[0].delete(version(2)).unwrap();
    world.apply(at(0), deleted);
    assert_eq!(world.status(), Status::Refused(Refusal::UnknownPolicy));
    assert_eq!(world.authority.stats().waiting, 0);
}
