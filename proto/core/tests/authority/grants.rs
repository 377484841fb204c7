//! Granting, reporting, waiting and reclaiming.

use quota_core::message::{Refusal, Status};
use quota_core::time::{Term, Timestamp};

use super::driver::{Ask, DRIFT, World, at, policy, tokens, want};

/// 10 a second, 100 at once.
fn world() -> World {
    World::new(policy(10, 1000, 100))
}

#[test]
fn a_grant_is_debited_when_it_is_made_and_the_rest_is_credited_when_it_is_returned() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(20));
    let grant = world.grant();
    assert_eq!(grant.granted, tokens(20));
    let view = world.inspect(at(0), "k");
    assert_eq!((view.available, view.outstanding), (80, tokens(20)));
    let report = Ask {
        lease: Some(grant.lease),
        spent: 5,
        returned: 15,
        ..Ask::default()
    };
    client.ask(&mut world, at(0), "k", report);
    let view = world.inspect(at(0), "k");
    assert_eq!((view.available, view.outstanding), (95, tokens(0)));
}

#[test]
fn refill_stops_where_tokens_are_out() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(20));
    world.pass(at(5_000));
    assert_eq!(world.inspect(at(5_000), "k").available, 80);
}

#[test]
fn a_repeated_request_is_granted_once() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(20));
    let first = world.grant();
    client.send(&mut world, at(10), "k", want(20), 1);
    assert_eq!(world.grant(), first);
    assert_eq!(world.inspect(at(10), "k").outstanding, tokens(20));
}

#[test]
fn a_late_copy_of_an_old_request_changes_nothing() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    let lease = world.grant().lease;
    let more = Ask {
        lease: Some(lease),
        spent: 3,
        ..want(5)
    };
    client.ask(&mut world, at(1), "k", more);
    world.grant();
    client.send(&mut world, at(2), "k", want(5), 1);
    assert!(world.take_answers().is_empty());
    assert_eq!(world.inspect(at(2), "k").leases[0].granted, tokens(10));
}

#[test]
fn what_is_not_reported_when_the_lease_ends_is_spent() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(40));
    let grant = world.grant();
    let end = at(0) + DRIFT.stretch(grant.term);
    let before = Timestamp::from_nanos(end.as_nanos() - 1);
    assert_eq!(world.inspect(before, "k").outstanding, tokens(40));
    let view = world.inspect(end, "k");
    assert_eq!((view.available, view.outstanding), (60, tokens(0)));
    // A report after the end is nobody's.
    let late = Ask {
        lease: Some(grant.lease),
        returned: 40,
        ..Ask::default()
    };
    client.ask(&mut world, end, "k", late);
    assert_eq!(world.inspect(end, "k").available, 60);
}

#[test]
fn the_longest_stated_term_ends_before_the_reclaim() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(1));
    let grant = world.grant();
    // The holder counts from when it sent the anchor, which is no later than the decision.
    assert!(at(0) + grant.term < at(0) + DRIFT.stretch(grant.term));
    assert_eq!(
        world.inspect(at(0), "k").leases[0].reclaim_in,
        DRIFT.stretch(grant.term)
    );
}

#[test]
fn lying_counters_gain_nothing() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(20));
    let lease = world.grant().lease;
    let lie = Ask {
        lease: Some(lease),
        spent: u64::MAX,
        returned: u64::MAX,
        ..Ask::default()
    };
    client.ask(&mut world, at(0), "k", lie);
    assert_eq!(world.inspect(at(0), "k").available, 80);
    let mut thief = world.connect(at(0), 2);
    let steal = Ask {
        lease: Some(lease),
        returned: 20,
        ..Ask::default()
    };
    thief.ask(&mut world, at(0), "k", steal);
    assert_eq!(world.inspect(at(0), "k").available, 80);
}

#[test]
fn a_release_of_an_old_lease_leaves_a_newer_one_alone() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    let old = world.grant().lease;
    client.ask(&mut world, at(1), "k", want(7));
    let new = world.grant();
    assert_ne!(new.lease, old);
    let release = Ask {
        lease: Some(old),
        release: true,
        returned: 5,
        ..Ask::default()
    };
    client.ask(&mut world, at(2), "k", release);
    client.ask(&mut world, at(3), "k", release);
    let view = world.inspect(at(3), "k");
    assert_eq!(view.leases.len(), 1);
    assert_eq!(
        (view.leases[0].lease, view.outstanding),
        (new.lease, tokens(7))
    );
}

#[test]
fn the_first_asker_does_not_get_everything() {
    let mut world = world();
    let mut greedy = world.connect(at(0), 1);
    greedy.ask(&mut world, at(0), "k", want(1_000_000));
    assert_eq!(world.grant().granted, tokens(40));
    let mut modest = world.connect(at(0), 2);
    modest.ask(&mut world, at(0), "k", want(10));
    assert_eq!(world.grant().granted, tokens(10));
}

#[test]
fn five_tokens_among_six_holders_go_round() {
    let mut world = World::new(policy(5, 1000, 5));
    let mut clients: Vec<_> = (1..=6).map(|who| world.connect(at(0), who)).collect();
    let mut served = [0_u64; 6];
    let mut leases = [None; 6];
    for step in 0..120_u64 {
        let now = at(step * 100);
        world.pass(now);
        for (who, client) in clients.iter_mut().enumerate() {
            let spent = served[who];
            let lease: Option<(quota_core::id::LeaseId, u64)> = leases[who];
            let ask = Ask {
                lease: lease.map(|l| l.0),
                spent: lease.map_or(0, |l| spent - l.1),
                ..want(1)
            };
            client.ask(&mut world, now, "k", ask);
        }
        for (incarnation, _, answer) in world.take_answers() {
            let who = usize::try_from(incarnation.get()).unwrap() - 1;
            let Some(grant) = answer.grant else { continue };
            let base = match leases[who] {
                Some((lease, base)) if lease == grant.lease => base,
                _ => served[who],
            };
            leases[who] = Some((grant.lease, base));
            served[who] = served[who].max(base + grant.granted.get());
        }
    }
    let total: u64 = served.iter().sum();
    assert!(total >= 5 * 12, "{total} tokens of 64 went out: {served:?}");
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(most - least <= 1, "unequal turns: {served:?}");
}

#[test]
fn waiting_as_long_as_told_is_enough() {
    let mut world = World::new(policy(1, 700, 3));
    let mut client = world.connect(at(0), 1);
    for _ in 0..3 {
        client.ask(&mut world, at(0), "k", want(1));
        let grant = world.grant();
        let done = Ask {
            lease: Some(grant.lease),
            spent: 3,
            release: true,
            ..Ask::default()
        };
        client.ask(&mut world, at(0), "k", done);
        world.take_answers();
    }
    client.ask(&mut world, at(0), "k", want(1));
    let Status::Queued { retry_after } = world.status() else {
        panic!("exhausted")
    };
    assert_eq!(retry_after, Term::from_millis(700));
    client.anchor(&mut world, at(699));
    world.pass(at(0) + Term::from_nanos(retry_after.as_nanos() - 1));
    assert!(world.take_answers().is_empty());
    world.pass(at(0) + retry_after);
    assert_eq!(world.grant().granted, tokens(1));
}

#[test]
fn a_push_echoes_the_newest_anchor_received_before_it() {
    let mut world = World::new(policy(1, 1000, 1));
    let mut first = world.connect(at(0), 1);
    first.ask(&mut world, at(0), "k", want(1));
    let grant = world.grant();
    let spent = Ask {
        lease: Some(grant.lease),
        spent: 1,
        ..want(1)
    };
    first.ask(&mut world, at(0), "k", spent);
    world.take_answers();
    first.anchor(&mut world, at(900));
    world.pass(at(1_000));
    let answers = world.take_answers();
    let [(_, anchor, answer)] = answers[..] else {
        panic!("one push: {answers:?}")
    };
    assert_eq!((anchor.get(), answer.sequence.get()), (3, 2));
}

#[test]
fn a_silent_asker_is_passed_over() {
    let mut world = World::new(policy(1, 6000, 1));
    let mut silent = world.connect(at(0), 1);
    silent.ask(&mut world, at(0), "k", want(1));
    let grant = world.grant();
    let spent = Ask {
        lease: Some(grant.lease),
        spent: 1,
        ..want(1)
    };
    silent.ask(&mut world, at(0), "k", spent);
    let mut other = world.connect(at(3_000), 2);
    other.ask(&mut world, at(3_000), "k", want(1));
    world.take_answers();
    world.pass(at(6_000));
    let answers = world.take_answers();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].0.get(), 2);
    // It was told that it waits, so it keeps its place for when it is heard again.
    let spent = Ask {
        lease: answers[0].2.grant.map(|grant| grant.lease),
        spent: 1,
        ..want(1)
    };
    other.ask(&mut world, at(9_000), "k", spent);
    world.take_answers();
    world.pass(at(12_000));
    assert!(world.take_answers().iter().all(|(who, ..)| who.get() == 2));
    silent.anchor(&mut world, at(12_500));
    world.pass(at(18_000));
    let answers = world.take_answers();
    assert!(
        answers.iter().any(|(who, ..)| who.get() == 1),
        "{answers:?}"
    );
}

#[test]
fn a_silent_asker_is_served_as_soon_as_it_is_heard_again() {
    let mut world = World::new(policy(1, 6000, 1));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(1));
    let grant = world.grant();
    let spent = Ask {
        lease: Some(grant.lease),
        spent: 1,
        ..want(1)
    };
    client.ask(&mut world, at(0), "k", spent);
    world.take_answers();
    world.pass(at(6_000));
    assert!(
        world.take_answers().is_empty(),
        "its term would be half over"
    );
    client.anchor(&mut world, at(6_100));
    assert_eq!(world.grant().granted, tokens(2));
}

#[test]
fn a_cost_that_can_never_be_granted_is_its_own_refusal() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(
        &mut world,
        at(0),
        "k",
        Ask {
            want: 500,
            least: 500,
            ..Ask::default()
        },
    );
    assert_eq!(
        world.status(),
        Status::Refused(Refusal::CostAboveCapacity {
            capacity: tokens(80)
        })
    );
    assert!(world.inspect(at(0), "k").leases.is_empty());
}

#[test]
fn a_closed_stream_loses_its_place_and_keeps_its_lease() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    let lease = world.grant().lease;
    let mut again = world.connect(at(1), 1);
    again.sequence = client.sequence;
    again.number = client.number;
    client.ask(&mut world, at(2), "k", want(5));
    assert!(world.take_answers().is_empty(), "the old stream is dead");
    again.ask(
        &mut world,
        at(2),
        "k",
        Ask {
            lease: Some(lease),
            spent: 5,
            ..want(5)
        },
    );
    assert_eq!(world.grant().granted, tokens(10));
}

#[test]
fn an_idle_bucket_is_forgotten_and_comes_back_the_same() {
    let mut world = world();
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "k", want(5));
    let lease = world.grant().lease;
    let release = Ask {
        lease: Some(lease),
        release: true,
        spent: 5,
        ..Ask::default()
    };
    client.ask(&mut world, at(0), "k", release);
    world.take_answers();
    assert_eq!(world.authority.stats().buckets, 1);
    world.pass(at(30_000));
    assert_eq!(world.authority.stats().buckets, 0);
    assert_eq!(world.inspect(at(30_000), "k").available, 100);
    client.ask(&mut world, at(30_000), "k", want(1));
    assert_eq!(world.status(), Status::Refused(Refusal::UnknownKey));
}
