//! Specs at random: each is refused with reasons, or comes out as the ledger's arithmetic needs it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quota_core::level::Level;
use quota_core::message::COST_MAX;
use quota_core::policy::{
    CAPACITY_MAX, CostSpec, Durability, FirstTouch, Kind, LeaseSpec, LimitClass, LimitSpec,
    OverrideSpec, Period, Policy, PolicySpec,
};
use quota_core::rate::Rate;
use quota_core::time::Term;
use quota_core::tokens::Tokens;

use crate::{DAY, parse};

fn arbitrary_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        40 => 1_u64..2_000,
        1 => Just(0),
        1 => any::<u64>(),
        1 => (0_u32..64).prop_map(|shift| 1 << shift),
        1 => Just(u64::MAX),
    ]
}

fn arbitrary_term() -> impl Strategy<Value = Term> {
    prop_oneof![
        20 => (1_u64..100_000).prop_map(Term::from_millis),
        1 => (1_u64..400).prop_map(|days| Term::from_seconds(days * DAY)),
        1 => arbitrary_number().prop_map(Term::from_nanos),
    ]
}

/// Boxed, since a tree of all its alternatives is large for a test's stack.
fn arbitrary_limit() -> BoxedStrategy<LimitSpec> {
    let full = (
        proptest::option::of(arbitrary_number()),
        proptest::option::of(prop_oneof![
            arbitrary_term().prop_map(Period::from),
            Just(Period::Month)
        ]),
        proptest::option::of(arbitrary_number()),
        proptest::option::of(arbitrary_term().prop_map(Into::into)),
    )
        .prop_map(|(tokens, period, burst, emission_interval)| LimitSpec {
            tokens,
            period,
            burst,
            emission_interval,
        });
    prop_oneof![
        1 => full,
        20 => (arbitrary_number(), arbitrary_term()).prop_map(|(tokens, period)| LimitSpec::new(tokens, period)),
        6 => (arbitrary_term(), arbitrary_number()).prop_map(|(interval, burst)| LimitSpec::gcra(interval, burst)),
    ]
    .boxed()
}

fn arbitrary_text() -> impl Strategy<Value = String> {
    prop_oneof![
        40 => "[a-z]{1,3}",
        1 => Just("plan".to_string()),
        1 => any::<String>(),
    ]
}

prop_compose! {
    fn arbitrary_lease()(
        share_per_mille in prop_oneof![4 => 1_u32..=1000, 1 => any::<u32>()],
        term_max in arbitrary_term(),
        warm_floor in prop_oneof![4 => Just(0), 1 => arbitrary_number()],
        keep in proptest::bool::weighted(0.7),
    ) -> LeaseSpec {
        if keep {
            return LeaseSpec::default();
        }
        LeaseSpec { share_per_mille, term_max: term_max.into(), warm_floor, ..LeaseSpec::default() }
    }
}

prop_compose! {
    /// Mostly legal, and illegal in every way.
    fn arbitrary_spec()(
        name in arbitrary_text(),
        key in prop_oneof![
            8 => proptest::sample::subsequence(vec!["tenant", "plan", "user"], 0..=3)
                .prop_map(|key| key.into_iter().map(String::from).collect()),
            1 => proptest::collection::vec(arbitrary_text(), 0..4),
        ],
        kind in prop_oneof![
            20 => Just(Kind::TokenBucket),
            1 => Just(Kind::SlidingWindow),
            1 => Just(Kind::CalendarWindow),
            1 => Just(Kind::Concurrency)
        ],
        limit in arbitrary_limit(),
        plans in proptest::collection::btree_map(arbitrary_text(), arbitrary_limit(), 0..3),
        with_plans in proptest::bool::weighted(0.3),
        fitting in proptest::bool::weighted(0.9),
        overrides in proptest::collection::vec(
            (proptest::collection::vec(arbitrary_text(), 4), arbitrary_limit())
                .prop_map(|(key, limit)| OverrideSpec { key, limit }), 0..2),
        cost in (prop_oneof![8 => Just(1), 1 => arbitrary_number()],
                 proptest::option::weighted(0.2, arbitrary_number()))
            .prop_map(|(default, max)| CostSpec { default, max }),
        lease in arbitrary_lease().boxed(),
        durability in prop_oneof![Just(Durability::Auto), Just(Durability::Reserved)],
        first_touch in prop_oneof![Just(FirstTouch::Wait), Just(FirstTouch::Admit)],
        order in any::<i32>(),
    ) -> PolicySpec {
        let mut overrides = overrides;
        for one in overrides.iter_mut().filter(|_| fitting) {
            one.key.truncate(key.len());
        }
        let plans = if with_plans { plans } else { BTreeMap::new() };
        PolicySpec {
            key, kind, plans, overrides, cost, lease, durability, first_touch, order,
            ..PolicySpec::new(&name, &[], limit)
        }
    }
}

/// What the ledger's arithmetic relies on.
fn check_limit(policy: &Policy, class: &LimitClass) {
    let limit = policy.limit_of(class);
    assert!(Tokens::ONE <= limit.cost_max() && limit.cost_max() <= limit.capacity());
    assert!(limit.capacity() <= CAPACITY_MAX && limit.cost_max() <= COST_MAX);
    assert!(policy.cost_default() <= limit.cost_max());
    let rate: Rate = limit.rate();
    assert!(rate.numerator() < 1 << 56 && rate.denominator() < 1 << 56);
    let refill = limit.refill_time();
    assert!(refill <= Term::from_seconds(100 * 366 * DAY));
    // A whole refill fills the bucket and no shorter one does; no span overflows.
    let ceiling = i128::from(limit.capacity().get());
    let empty = Level::from_tokens(0, rate);
    let after = |term| empty.refilled(rate, term, ceiling).takeable(rate);
    assert_eq!(after(refill), limit.capacity());
    let sooner = after(Term::from_nanos(refill.as_nanos() - 1));
    assert!(sooner < limit.capacity(), "{sooner} a nanosecond sooner");
    assert_eq!(after(Term::from_nanos(u64::MAX)), limit.capacity());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_spec_is_either_refused_with_reasons_or_sound(spec in arbitrary_spec()) {
        match parse(spec.clone()) {
            Ok(policy) => {
                prop_assert_eq!(policy.spec(), &spec);
                prop_assert_eq!(policy.id(), &spec.id());
                for class in policy.classes() {
                    check_limit(&policy, &class);
                }
            }
            Err(error) => {
                prop_assert!(!error.field().is_empty() && !error.allowed().is_empty());
                prop_assert!(error.to_string().contains(error.value()));
            }
        }
    }
}

#[test]
fn the_arbitrary_specs_are_often_legal_and_often_not() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let legal = (0..1_000)
        .filter(|_| {
            let spec = arbitrary_spec()
                .new_tree(&mut runner)
                .expect("generates")
                .current();
            parse(spec).is_ok()
        })
        .count();
    assert!((100..900).contains(&legal), "{legal} of 1000 are legal");
}
