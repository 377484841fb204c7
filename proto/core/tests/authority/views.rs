//! What an operator sees: which buckets stand out, what holders have, what a change would find.

use std::collections::BTreeSet;

use quota_core::authority::{
    Authority, AuthorityConfig, Holding, TopBucket, TopOrder, TopQuery, Waits,
};
use quota_core::id::{Epoch, Incarnation, PolicyVersion};
use quota_core::key::PolicyId;
use quota_core::time::Term;

use super::driver::{Ask, DRIFT, World, at, bucket, policy, tokens, want};

fn query(order: TopOrder) -> TopQuery {
    TopQuery {
        order,
        policy: None,
        most: 10,
    }
}

/// All slices together, the largest first.
fn top(world: &mut World, millis: u64, query: &TopQuery) -> Vec<TopBucket> {
    let mut found = Vec::new();
    let mut from = Some(0);
    while let Some(slot) = from {
        let slice = world.authority.top_buckets(at(millis), query, slot);
        assert!(slice.found.is_sorted_by(|a, b| a.amount >= b.amount));
        assert!(slice.found.len() <= query.most);
        found.extend(slice.found);
        from = slice.next;
    }
    found.sort_by_key(|one| std::cmp::Reverse(one.amount));
    found
}

fn amounts(found: &[TopBucket]) -> Vec<(String, u64)> {
    let name = |one: &TopBucket| {
        let value = one.bucket.key.values().next().expect("one dimension");
        String::from_utf8_lossy(value).into_owned()
    };
    found.iter().map(|one| (name(one), one.amount)).collect()
}

fn named(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(name, n)| ((*name).into(), *n)).collect()
}

#[test]
fn a_preview_says_what_the_change_then_finds_and_changes_nothing() {
    let mut world = World::new(policy(10, 1000, 100));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "a", want(40));
    client.ask(&mut world, at(0), "b", want(15));
    let lower = world.histories[0]
        .change(policy(10, 1000, 20), PolicyVersion::new(2))
        .expect("legal");
    let before = world.inspect(at(10), "a");
    let seen = world.authority.preview_policy(at(10), &lower);
    assert_eq!(seen, (tokens(55), tokens(20)));
    assert_eq!(world.inspect(at(10), "a"), before);
    world.apply(at(10), lower);
    assert_eq!((world.outstanding, world.owed), seen);
}

#[test]
fn demand_and_stranded_tokens_are_read_off_the_buckets() {
    let mut spec = policy(100, 1000, 1000);
    spec.lease.term_max = "1s".parse().expect("a span");
    spec.lease.horizon = "500ms".parse().expect("a span");
    let mut world = World::new(spec);
    let mut one = world.connect(at(0), 1);
    let mut two = world.connect(at(0), 2);
    let with = |want, demand| Ask {
        want,
        demand,
        ..Ask::default()
    };
    one.ask(&mut world, at(0), "a", with(50, 20));
    two.ask(&mut world, at(0), "a", with(30, 70));
    one.ask(&mut world, at(0), "b", with(60, 400));
    one.ask(&mut world, at(0), "c", with(5, 0));
    let demand = top(&mut world, 0, &query(TopOrder::Demand));
    assert_eq!(amounts(&demand), named(&[("b", 400), ("a", 90)]));
    assert_eq!(demand[1].outstanding, tokens(80));
    assert!(demand.iter().all(|one| one.error == 0));
    // Half a second of demand, the horizon, is used up; the rest is held for nothing.
    let stranded = top(&mut world, 0, &query(TopOrder::Stranded));
    assert_eq!(amounts(&stranded), named(&[("a", 40), ("c", 5)]));
    // The leases are over, though nobody has looked at the buckets since.
    assert_eq!(top(&mut world, 10_000, &query(TopOrder::Demand)), []);
    assert_eq!(top(&mut world, 10_000, &query(TopOrder::Stranded)), []);
}

#[test]
fn a_new_holder_s_demand_counts_while_it_waits() {
    let mut world = World::new(policy(1, 1000, 5));
    let mut one = world.connect(at(0), 1);
    let mut two = world.connect(at(0), 2);
    one.ask(&mut world, at(0), "a", want(5));
    let patient = Ask {
        least: 4,
        ..want(4)
    };
    two.ask(&mut world, at(0), "a", patient);
    let found = top(&mut world, 0, &query(TopOrder::Demand));
    assert_eq!(amounts(&found), named(&[("a", 9)]));
    assert_eq!(found[0].waiting, 1);
}

#[test]
fn what_was_asked_and_what_was_in_vain_is_counted_and_fades() {
    let mut world = World::new(policy(1, 5000, 10));
    let mut client = world.connect(at(0), 1);
    // The first takes what may be out at a time.
    for _ in 0..9 {
        let all = Ask {
            least: 8,
            ..want(8)
        };
        client.ask(&mut world, at(0), "dry", all);
    }
    client.ask(&mut world, at(0), "wet", want(1));
    client.ask(&mut world, at(0), "wet", want(1));
    let above = Ask {
        least: 1000,
        ..want(1000)
    };
    client.ask(&mut world, at(0), "dear", above);
    let messages = top(&mut world, 0, &query(TopOrder::Messages));
    assert_eq!(
        amounts(&messages),
        named(&[("dry", 9), ("wet", 2), ("dear", 1)])
    );
    let refusals = top(&mut world, 0, &query(TopOrder::Refusals));
    assert_eq!(amounts(&refusals), named(&[("dry", 8), ("dear", 1)]));
    // A minute later half of it counts, after ten nothing.
    let later = top(&mut world, 61_000, &query(TopOrder::Messages));
    assert_eq!(amounts(&later), named(&[("dry", 4), ("wet", 1)]));
    assert_eq!(top(&mut world, 700_000, &query(TopOrder::Messages)), []);
}

#[test]
fn a_policy_is_picked_and_an_unknown_one_has_no_buckets() {
    let mut world = World::new(policy(1, 1000, 10));
    let mut client = world.connect(at(0), 1);
    client.ask(&mut world, at(0), "a", want(1));
    let of = |policy: PolicyId| TopQuery {
        policy: Some(policy),
        ..query(TopOrder::Messages)
    };
    let own = of(bucket("a").policy);
    assert_eq!(top(&mut world, 0, &own).len(), 1);
    let other = of(PolicyId {
        namespace: "default".into(),
        name: "other".into(),
    });
    assert_eq!(top(&mut world, 0, &other), []);
}

#[test]
fn many_buckets_are_looked_at_in_slices_and_none_is_missed() {
    let mut world = World::new(policy(1000, 1000, 1000));
    let config = AuthorityConfig {
        epoch: Epoch::new(2),
        tenures_before: 0,
        first_tenure: true,
        drift: DRIFT,
        boot: 1,
        hash_seed: (1, 2),
        buckets_max: 20_000,
    };
    world.authority = Authority::new(at(0), config, world.histories.clone(), Vec::new(), None);
    let mut client = world.connect(at(0), 1);
    let most = 10_000_u64;
    for key in 1..=most {
        let ask = Ask {
            demand: key,
            ..want(1)
        };
        client.ask(&mut world, at(0), &format!("k{key}"), ask);
    }
    let slice = world
        .authority
        .top_buckets(at(0), &query(TopOrder::Demand), 0);
    assert!(slice.next.is_some(), "more than one slice");
    let found = top(&mut world, 0, &query(TopOrder::Demand));
    let ten: Vec<u64> = found.iter().take(10).map(|one| one.amount).collect();
    assert_eq!(ten, (most - 9..=most).rev().collect::<Vec<u64>>());

    let (me, nobody) = (Incarnation::new(1), Incarnation::new(9));
    let of = BTreeSet::from([me, nobody]);
    let (mut leases, mut out, mut from) = (0, tokens(0), Some(0));
    while let Some(slot) = from {
        let slice = world.authority.holdings(at(0), &of, slot);
        for holding in slice.found {
            let Holding {
                incarnation,
                leases: more,
                outstanding,
                ..
            } = holding;
            assert_eq!(incarnation, me);
            leases += more;
            out += outstanding;
        }
        from = slice.next;
    }
    assert_eq!((leases, out), (most, tokens(most)));
}

#[test]
fn a_wait_is_counted_from_when_it_began_and_a_first_touch_once_a_holder() {
    let mut world = World::new(policy(1, 10_000, 5));
    let mut one = world.connect(at(0), 1);
    let mut two = world.connect(at(0), 2);
    let all = Ask {
        least: 4,
        ..want(4)
    };
    one.ask(&mut world, at(0), "a", all);
    let held = world.grant();
    two.ask(&mut world, at(0), "a", all);
    // It wishes for something else meanwhile, and keeps its place.
    two.ask(&mut world, at(1000), "a", Ask { least: 3, ..all });
    let give_back = Ask {
        lease: Some(held.lease),
        returned: 4,
        ..Ask::default()
    };
    world.take_answers();
    one.ask(&mut world, at(1500), "a", give_back);
    let stats = |world: &World| {
        let mut all = world.authority.policy_stats();
        *all.next().expect("one policy").1
    };
    let seen = stats(&world);
    assert_eq!(seen.waits.nanos, 1_500_000_000);
    let place = Waits::BOUNDS
        .iter()
        .position(|b| b.as_nanos() == 2_000_000_000);
    assert_eq!(seen.waits.counts[place.expect("two seconds")], 1);
    assert_eq!(seen.waits.counts.iter().sum::<u64>(), 1);
    assert_eq!(seen.first_touches, 2);
    // Another lease of one that has one is no first touch.
    two.ask(&mut world, at(1500), "a", want(1));
    assert_eq!(stats(&world).first_touches, 2);

    let out = world.inspect(at(1600), "a").outstanding;
    assert!(out > tokens(0));
    assert_eq!(stats(&world).outstanding(), out.get());
    world.restart_cleanly(at(1600), at(1700));
    assert_eq!(stats(&world).taken_over, out.get());
    assert_eq!(stats(&world).outstanding(), out.get());
}

#[test]
fn a_wait_on_a_bound_is_within_it_and_one_beyond_all_is_counted_last() {
    let mut waits = Waits::default();
    for bound in Waits::BOUNDS {
        waits.add(bound);
    }
    waits.add(Term::from_seconds(61));
    assert_eq!(waits.counts, [1; 13]);
}
