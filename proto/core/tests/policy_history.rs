//! What a policy's earlier versions may still have out.

use std::sync::Arc;

use bincode::config::standard;
use proptest::prelude::*;
use quota_core::id::PolicyVersion;
use quota_core::key::Key;
use quota_core::policy::{
    ChangeError, Durability, FORMER_MAX, Kind, LimitClass, LimitSpec, OverrideSpec, Policy,
    PolicyHistory, PolicySpec, live_cap,
};
use quota_core::time::{DriftAllowance, Term};
use quota_core::tokens::Tokens;

const DRIFT: DriftAllowance = DriftAllowance::DEFAULT;

fn at(version: u64) -> PolicyVersion {
    PolicyVersion::new(version)
}

/// `burst` tokens of capacity, refilled at 10 a second.
fn spec(burst: u64) -> PolicySpec {
    let limit = LimitSpec::new(10, Term::from_seconds(1)).with_burst(burst);
    PolicySpec::new("api", &["tenant"], limit)
}

fn create(burst: u64) -> PolicyHistory {
    PolicyHistory::create(spec(burst), at(1)).expect("legal")
}

fn former(history: &PolicyHistory) -> Vec<u64> {
    let versions = history.former().iter().map(|policy| policy.version().get());
    versions.collect()
}

fn key(value: &str) -> Key {
    Key::from_values(&[value]).expect("legal")
}

#[test]
fn lowering_keeps_the_old_version_and_raising_back_replaces_it() {
    let lowered = create(100).change(spec(20), at(2)).expect("legal");
    assert_eq!(former(&lowered), [1]);
    assert_eq!(lowered.capacity_max(&LimitClass::Default), Tokens::new(100));

    let raised = lowered.change(spec(100), at(3)).expect("legal");
    assert_eq!(former(&raised), [0_u64; 0]);
    assert_eq!(raised.clearable_after(DRIFT), Term::ZERO);
}

#[test]
fn toggling_for_ever_keeps_one_former_version() {
    let mut history = create(100);
    for version in 2..200 {
        let burst = if version % 2 == 0 { 20 } else { 100 };
        history = history.change(spec(burst), at(version)).expect("legal");
        assert!(history.former().len() <= 1, "{:?}", former(&history));
        assert_eq!(history.capacity_max(&LimitClass::Default), Tokens::new(100));
    }
}

#[test]
fn deletion_and_re_creation_inherit_what_may_be_live() {
    let deleted = create(100).delete(at(2)).expect("there");
    assert_eq!(deleted.current(), None);
    assert_eq!(former(&deleted), [1]);
    assert_eq!(deleted.changed_at(), at(2));
    assert_eq!(deleted.capacity_max(&LimitClass::Default), Tokens::new(100));

    let again = deleted.recreate(spec(5), at(3)).expect("legal");
    assert_eq!(former(&again), [1]);
    assert_eq!(again.ghost(&LimitClass::Default, 1), Tokens::new(80));

    let cleared = again.cleared().expect("there is a version in force");
    assert_eq!(cleared.capacity_max(&LimitClass::Default), Tokens::new(5));
    assert_eq!(deleted.cleared(), None);
}

#[test]
fn an_earlier_term_and_share_are_kept_as_well_as_a_capacity() {
    let mut long = spec(100);
    long.lease.term_max = Term::from_seconds(60).into();
    let history = PolicyHistory::create(long, at(1)).expect("legal");
    let history = history.change(spec(100), at(2)).expect("legal");
    assert_eq!(former(&history), [1]);
    assert_eq!(
        history.term_max(DRIFT),
        DRIFT.stretch(Term::from_seconds(60))
    );

    let mut small = spec(100);
    small.lease.share_per_mille = 100;
    let history = create(100).change(small, at(2)).expect("legal");
    assert_eq!(former(&history), [1]);
    assert_eq!(history.ghost(&LimitClass::Default, 1), Tokens::new(80));
}

#[test]
fn former_versions_stay_for_a_term_and_a_refill_at_the_slowest_rate() {
    let slow = LimitSpec::new(1, Term::from_seconds(1)).with_burst(20);
    let slow = PolicySpec::new("api", &["tenant"], slow);
    let history = create(100).change(slow.clone(), at(2)).expect("legal");
    let expected = DRIFT.stretch(Term::from_seconds(10)) + Term::from_seconds(100);
    assert_eq!(history.clearable_after(DRIFT), expected);
    assert_eq!(create(100).clearable_after(DRIFT), Term::ZERO);

    // It is the slowest rate of any version, old or new.
    let newest_is_fast = PolicyHistory::create(
        PolicySpec {
            limit: LimitSpec::new(1, Term::from_seconds(1)).with_burst(100),
            ..spec(1)
        },
        at(1),
    );
    let newest_is_fast = newest_is_fast.expect("legal").change(spec(20), at(2));
    assert_eq!(
        newest_is_fast.expect("legal").clearable_after(DRIFT),
        expected
    );

    // The slow version is outdone by the first one and dropped, but its rate is not forgotten.
    let history = history.change(spec(30), at(3)).expect("legal");
    assert_eq!(former(&history), [1]);
    assert_eq!(history.clearable_after(DRIFT), expected);
}

#[test]
fn a_volatile_version_stays_visible_until_a_newer_volatile_one_or_clearance() {
    let durable = |durability| PolicySpec {
        durability,
        ..spec(100)
    };
    let volatile = PolicyHistory::create(durable(Durability::Volatile), at(1)).expect("legal");
    let class = LimitClass::Default;
    assert!(!volatile.durable_throughout(&class, at(1)));

    let reserved = volatile
        .change(durable(Durability::Reserved), at(2))
        .expect("legal");
    assert_eq!(
        former(&reserved),
        [1],
        "its capacity is matched, its lack of records is not"
    );
    assert!(!reserved.durable_throughout(&class, at(1)));
    assert!(reserved.durable_throughout(&class, at(2)));
    assert!(
        reserved
            .cleared()
            .expect("there")
            .durable_throughout(&class, at(1))
    );

    let volatile = reserved
        .change(durable(Durability::Volatile), at(3))
        .expect("legal");
    assert_eq!(former(&volatile), [0_u64; 0]);
    assert!(!volatile.durable_throughout(&class, at(2)));

    // A volatile version that is older does not stand in for a newer one.
    let large = PolicySpec {
        durability: Durability::Volatile,
        ..spec(200)
    };
    let history = PolicyHistory::create(large, at(1)).expect("legal");
    let history = history
        .change(durable(Durability::Volatile), at(2))
        .expect("legal");
    let history = history
        .change(durable(Durability::Reserved), at(3))
        .expect("legal");
    assert_eq!(former(&history), [2, 1]);
    assert!(!history.durable_throughout(&class, at(2)));
}

#[test]
fn a_key_is_told_apart_if_any_kept_version_tells_it_apart() {
    let mut with_override = spec(10);
    with_override.overrides.push(OverrideSpec {
        key: vec!["big".into()],
        limit: LimitSpec::new(1_000, Term::from_seconds(1)),
    });
    let history = PolicyHistory::create(with_override, at(1)).expect("legal");
    let history = history.change(spec(10), at(2)).expect("legal");
    let class = history.class_of(&key("big"));
    assert_eq!(class, LimitClass::Override(key("big")));
    assert_eq!(history.capacity_max(&class), Tokens::new(1_000));
    assert_eq!(history.class_of(&key("small")), LimitClass::Default);
    assert_eq!(history.capacity_max(&LimitClass::Default), Tokens::new(10));
    assert_eq!(history.classes().count(), 2);
    // The version in force alone would lump it together with the others.
    let current = history.current().expect("there");
    assert_eq!(current.class_of(&key("big")), LimitClass::Default);
}

#[test]
fn changes_that_would_break_buckets_are_refused() {
    let history = create(100);
    let other_key = PolicySpec {
        key: vec!["user".into()],
        ..spec(100)
    };
    let other_kind = PolicySpec {
        kind: Kind::SlidingWindow,
        limit: LimitSpec::new(1, Term::from_seconds(1)),
        ..spec(100)
    };
    let other_name = PolicySpec {
        name: "web".into(),
        ..spec(100)
    };
    let refused = |spec: &PolicySpec| history.change(spec.clone(), at(2)).expect_err("refused");
    assert!(matches!(
        refused(&other_key),
        ChangeError::KeyChanged { .. }
    ));
    assert!(matches!(
        refused(&other_kind),
        ChangeError::KindChanged { .. }
    ));
    assert!(matches!(
        refused(&other_name),
        ChangeError::OtherPolicy { .. }
    ));
    assert!(matches!(refused(&spec(0)), ChangeError::Invalid(_)));
    for old in [0, 1] {
        let error = history.change(spec(5), at(old)).expect_err("refused");
        assert!(matches!(error, ChangeError::NotNewer { .. }));
    }
    let error = history.recreate(spec(5), at(2)).expect_err("refused");
    assert!(matches!(error, ChangeError::Exists { .. }));

    let deleted = history.delete(at(2)).expect("there");
    for error in [deleted.change(spec(5), at(3)), deleted.delete(at(3))] {
        assert!(matches!(error, Err(ChangeError::Deleted { .. })));
    }
    for changed in [other_key, other_kind] {
        assert!(deleted.recreate(changed, at(3)).is_err());
    }
    let error = deleted.recreate(spec(5), at(2)).expect_err("refused");
    assert!(matches!(error, ChangeError::NotNewer { .. }));
}

/// Each spec trades capacity for term, so that none outdoes another.
fn trade(step: u64) -> PolicySpec {
    let mut traded = spec(1_000 - step);
    traded.lease.term_max = Term::from_seconds(10 + step).into();
    traded
}

#[test]
fn former_versions_are_bounded_and_the_refusal_says_what_to_do() {
    let mut history = PolicyHistory::create(trade(0), at(1)).expect("legal");
    for step in 1..=32 {
        history = history.change(trade(step), at(step + 1)).expect("room");
    }
    assert_eq!(history.former().len(), FORMER_MAX);
    let error = history.change(trade(33), at(100)).expect_err("full");
    assert!(matches!(error, ChangeError::TooManyFormer { .. }));
    assert!(
        error.to_string().contains("wait until they are over"),
        "{error}"
    );

    // A deletion always goes, and so does a change that outdoes all the others.
    let deleted = history.delete(at(100)).expect("never refused for that");
    let again = deleted.recreate(trade(33), at(101)).expect("legal");
    assert_eq!(again.former().len(), FORMER_MAX + 1);
    assert!(again.change(trade(34), at(102)).is_err());
    let mut best = trade(0);
    best.lease.term_max = Term::from_seconds(100).into();
    let best = again.change(best, at(102)).expect("outdoes all");
    assert_eq!(best.former().len(), 0);
}

fn stored(history: &PolicyHistory) -> serde_json::Value {
    serde_json::to_value(history).expect("writes")
}

#[test]
fn a_history_survives_every_format() {
    let one = create(100);
    let two = one.change(spec(20), at(2)).expect("legal");
    let three = two.delete(at(7)).expect("there");
    for history in [one, two, three] {
        let json = stored(&history).to_string();
        assert_eq!(
            serde_json::from_str::<PolicyHistory>(&json).expect("reads"),
            history
        );
        let bytes = bincode::serde::encode_to_vec(&history, standard()).expect("writes");
        let (back, _) = bincode::serde::decode_from_slice::<PolicyHistory, _>(&bytes, standard())
            .expect("reads");
        assert_eq!(back, history);
        for end in 0..bytes.len() {
            let torn = &bytes[..end];
            assert!(
                bincode::serde::decode_from_slice::<PolicyHistory, _>(torn, standard()).is_err()
            );
        }
    }
}

#[test]
fn a_stored_history_that_does_not_hold_is_an_error() {
    let two = create(100).change(spec(20), at(2)).expect("legal");
    let spoiled = |spoil: fn(&mut serde_json::Value)| {
        let mut value = stored(&two);
        spoil(&mut value);
        let error = serde_json::from_value::<PolicyHistory>(value).expect_err("refused");
        error.to_string()
    };
    let error = spoiled(|v| v["former"][0]["spec"]["limit"]["tokens"] = 0.into());
    assert!(error.contains("version 1 no longer parses"), "{error}");
    assert!(error.contains("`limit.tokens` is 0"), "{error}");
    let error = spoiled(|v| v["former"][0]["version"] = 2.into());
    assert!(error.contains("out of order"), "{error}");
    let error = spoiled(|v| v["changed_at"] = 1.into());
    assert!(error.contains("out of order"), "{error}");
    let error = spoiled(|v| v["changed_at"] = 9.into());
    assert!(error.contains("another version is in force"), "{error}");
    let error = spoiled(|v| v["id"]["name"] = "web".into());
    assert!(error.contains("contradicts itself"), "{error}");
    let error = spoiled(|v| v["former"][0]["spec"]["key"] = serde_json::json!(["user"]));
    assert!(error.contains("contradicts itself"), "{error}");
    let error = spoiled(|v| {
        let one = v["former"][0].clone();
        v["former"] = vec![one; FORMER_MAX + 2].into();
    });
    assert!(error.contains("at most 33"), "{error}");
}

/// The parts of a spec on which exposure depends, small enough to collide often.
fn arbitrary_spec() -> impl Strategy<Value = PolicySpec> {
    let limit = || {
        (1_u64..4, 1_u64..5).prop_map(|(rate, burst)| {
            LimitSpec::new(rate, Term::from_seconds(10)).with_burst(burst * 10)
        })
    };
    (
        limit(),
        proptest::option::of(limit()),
        proptest::option::of(limit()),
        1_u32..4,
        1_u64..4,
        proptest::option::of(1_u64..4),
        prop_oneof![
            Just(Durability::Auto),
            Just(Durability::Reserved),
            Just(Durability::Volatile)
        ],
    )
        .prop_map(|(limit, plan, one, share, term, cost, durability)| {
            let mut spec = PolicySpec::new("api", &["plan", "tenant"], limit);
            spec.plans.extend(plan.map(|limit| ("pro".into(), limit)));
            spec.overrides.extend(one.map(|limit| OverrideSpec {
                key: vec!["pro".into(), "big".into()],
                limit,
            }));
            spec.lease.share_per_mille = share * 250;
            spec.lease.term_max = Term::from_seconds(term).into();
            spec.cost.max = cost;
            spec.durability = durability;
            spec
        })
}

#[derive(Clone, Debug)]
enum Step {
    Put(Box<PolicySpec>),
    Delete,
    Clear,
}

fn arbitrary_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => arbitrary_spec().prop_map(|spec| Step::Put(Box::new(spec))),
        1 => Just(Step::Delete),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 1..24)
}

/// Everything that a key may have live, from all versions since the last clearance.
fn check_against_all(history: &PolicyHistory, all: &[Arc<Policy>]) {
    let keys = [["pro", "big"], ["pro", "x"], ["free", "big"]];
    for key in keys.map(|values| Key::from_values(&values).expect("legal")) {
        let class = history.class_of(&key);
        let limits = || all.iter().map(|policy| policy.limit_for(&key));
        let capacity = limits().map(|limit| limit.capacity()).max().expect("one");
        let cost = limits().map(|limit| limit.cost_floor()).max().expect("one");
        let leases = || all.iter().map(|policy| policy.lease());
        let share = leases()
            .map(|lease| lease.share_per_mille())
            .max()
            .expect("one");
        let term = leases().map(|lease| lease.term_max()).max().expect("one");
        assert_eq!(history.capacity_max(&class), capacity);
        assert_eq!(history.term_max(DRIFT), DRIFT.stretch(term));
        let mut free = capacity;
        for tenures in 0..5 {
            assert_eq!(history.ghost(&class, tenures), capacity.minus(free));
            free = free.minus(live_cap(free, share, cost));
        }
        for since in 0..=history.changed_at().get() {
            let durable = all
                .iter()
                .filter(|policy| policy.version() >= at(since))
                .all(|policy| policy.is_reserved(policy.limit_for(&key)));
            assert_eq!(
                history.durable_throughout(&class, at(since)),
                durable,
                "since {since}"
            );
        }
        if let Some(current) = history.current() {
            let rate = current.limit_for(&key).rate();
            let enough = DRIFT.stretch(term) + rate.time_for(capacity);
            assert!(history.former().is_empty() || history.clearable_after(DRIFT) >= enough);
        }
    }
}

proptest! {
    #[test]
    fn dropping_versions_changes_no_answer(
        first in arbitrary_spec(),
        steps in arbitrary_steps(),
    ) {
        let mut history = PolicyHistory::create(first, at(1)).expect("legal");
        let mut all: Vec<Arc<Policy>> = history.versions().cloned().collect();
        for (version, step) in (2..).zip(steps) {
            history = match step {
                Step::Put(spec) => {
                    let put = match history.current() {
                        Some(_) => history.change(*spec, at(version)),
                        None => history.recreate(*spec, at(version)),
                    };
                    put.expect("few versions")
                }
                Step::Delete if history.current().is_some() => {
                    history.delete(at(version)).expect("there")
                }
                Step::Delete => history,
                Step::Clear => match history.cleared() {
                    Some(cleared) => {
                        all.clear();
                        cleared
                    }
                    None => history,
                },
            };
            if let Some(current) = history.current()
                && all.iter().all(|one| one.version() != current.version())
            {
                all.push(Arc::clone(current));
            }
            check_against_all(&history, &all);
            let bytes = bincode::serde::encode_to_vec(&history, standard()).expect("writes");
            let (back, _) = bincode::serde::decode_from_slice::<PolicyHistory, _>(&bytes, standard())
                .expect("reads");
            prop_assert_eq!(back, history.clone());
        }
    }

    /// Owners may have served any kept version, each within its own cap.
    #[test]
    fn a_ghost_covers_every_mixture_of_versions(
        specs in proptest::collection::vec(arbitrary_spec(), 1..6),
        served in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut versions = (1..).map(at);
        let mut specs_left = specs.into_iter();
        let first = specs_left.next().expect("at least one");
        let mut all = vec![];
        let mut history = PolicyHistory::create(first.clone(), versions.next().expect("endless"))
            .expect("legal");
        all.extend(history.current().cloned());
        for spec in specs_left {
            history = history.change(spec, versions.next().expect("endless")).expect("few");
            all.extend(history.current().cloned());
        }
        for values in [["pro", "big"], ["pro", "x"], ["free", "x"]] {
            let key = Key::from_values(&values).expect("legal");
            let mut live = Tokens::ZERO;
            for (tenures, index) in (1..).zip(&served) {
                let policy = index.get(&all);
                let limit = policy.limit_for(&key);
                let free = limit.capacity().less(live);
                live += live_cap(free, policy.lease().share_per_mille(), limit.cost_floor());
                let ghost = history.ghost(&history.class_of(&key), tenures);
                prop_assert!(live <= ghost, "{live} live after {tenures}, {ghost} reckoned with");
            }
        }
    }

    #[test]
    fn a_live_cap_never_shrinks_as_its_arguments_grow(
        free in 0_u64..1 << 41,
        more in 0_u64..1_000,
        share in 1_u64..=1000,
        cost in 0_u64..1 << 21,
    ) {
        let cap = |free, share, cost| live_cap(Tokens::new(free), share, Tokens::new(cost));
        prop_assert!(cap(free, share, cost) <= cap(free + more, share, cost));
        prop_assert!(cap(free, share, cost) <= cap(free, (share + more).min(1000), cost));
        prop_assert!(cap(free, share, cost) <= cap(free, share, cost + more));
        prop_assert!(cap(free, share, cost) <= Tokens::new(free));
        let few = 1 + free % 100;
        prop_assert!(cap(few, share, 0) >= Tokens::ONE);
    }
}

#[test]
fn a_second_take_over_leaves_something_to_grant_unless_one_request_may_take_it_all() {
    let class = LimitClass::Default;
    let ghosts =
        |history: PolicyHistory| [1, 2, 3].map(|tenures| history.ghost(&class, tenures).get());
    assert_eq!(ghosts(create(100)), [80, 96, 99]);
    let mut dear = spec(100);
    dear.cost.max = Some(80);
    assert_eq!(
        ghosts(PolicyHistory::create(dear.clone(), at(1)).expect("legal")),
        [80, 96, 99]
    );
    dear.cost.max = Some(90);
    assert_eq!(
        ghosts(PolicyHistory::create(dear, at(1)).expect("legal")),
        [90, 100, 100]
    );
}

#[test]
fn a_ghost_of_any_number_of_tenures_is_the_capacity_at_most() {
    let mut sparing = spec(1 << 30);
    sparing.lease.share_per_mille = 1;
    sparing.cost.max = Some(1);
    let history = PolicyHistory::create(sparing, at(1)).expect("legal");
    let class = LimitClass::Default;
    assert_eq!(history.ghost(&class, 0), Tokens::ZERO);
    assert_eq!(history.ghost(&class, 1), Tokens::new((1 << 30) / 1000));
    assert_eq!(history.ghost(&class, u32::MAX), Tokens::new(1 << 30));
}
