//! Which policies match a request.

use std::sync::Arc;

use proptest::prelude::*;
use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{
    Condition, DimensionsError, LimitSpec, Policy, PolicySet, PolicySetError, PolicySpec,
};
use quota_core::time::Term;

fn spec(name: &str, key: &[&str]) -> PolicySpec {
    PolicySpec::new(name, key, LimitSpec::new(10, Term::from_seconds(1)))
}

fn policy(spec: PolicySpec) -> Arc<Policy> {
    Arc::new(Policy::parse(spec, PolicyVersion::new(1)).expect("legal"))
}

fn set(specs: impl IntoIterator<Item = PolicySpec>) -> PolicySet {
    PolicySet::new(specs.into_iter().map(policy)).expect("legal")
}

fn on(name: &str, key: &[&str], dimension: &str, condition: Condition) -> PolicySpec {
    PolicySpec {
        conditions: [(dimension.into(), condition)].into(),
        ..spec(name, key)
    }
}

fn names(set: &PolicySet, dimensions: &[(&str, &str)]) -> Vec<String> {
    let matches = set.matches(dimensions).expect("legal");
    matches.map(|one| one.policy().id().name.clone()).collect()
}

#[test]
fn conditions_and_key_dimensions_decide() {
    let set = set([
        spec("all", &[]),
        spec("tenant", &["tenant"]),
        on(
            "search",
            &["tenant", "route"],
            "route",
            Condition::Literal("/search".into()),
        ),
        on(
            "beta",
            &["tenant"],
            "tenant",
            Condition::Prefix("t-".into()),
        ),
        on(
            "eu",
            &["tenant"],
            "region",
            Condition::Set(vec!["de".into(), "fr".into(), "de".into()]),
        ),
    ]);
    assert_eq!(names(&set, &[]), ["all"]);
    assert_eq!(names(&set, &[("tenant", "x")]), ["all", "tenant"]);
    assert_eq!(
        names(
            &set,
            &[("region", "de"), ("route", "/search"), ("tenant", "t-1")]
        ),
        ["all", "beta", "eu", "search", "tenant"]
    );
    assert_eq!(
        names(&set, &[("route", "/search")]),
        ["all"],
        "the tenant is missing"
    );
    assert_eq!(names(&set, &[("Tenant", "x")]), ["all"], "case counts");
}

#[test]
fn policies_come_by_order_then_identity() {
    let with = |name: &str, namespace: &str, order| PolicySpec {
        namespace: namespace.into(),
        order,
        ..on(name, &[], "route", Condition::Literal("/".into()))
    };
    let set = set([
        with("b", "x", 0),
        with("a", "y", 0),
        PolicySpec {
            order: 5,
            ..spec("z", &[])
        },
        with("c", "x", -1),
        PolicySpec {
            order: -1,
            ..spec("d", &[])
        },
    ]);
    assert_eq!(names(&set, &[("route", "/")]), ["d", "c", "b", "a", "z"]);
}

#[test]
fn a_disabled_policy_is_known_but_matches_nothing() {
    let off = PolicySpec {
        disabled: true,
        ..spec("off", &[])
    };
    let set = set([off.clone()]);
    assert_eq!(names(&set, &[]), [""; 0]);
    assert_eq!(set.get(&off.id()), Some(&policy(off)));
}

#[test]
fn the_key_follows_the_policy_and_not_the_request() {
    let set = set([spec("a", &["tenant", "route"])]);
    let expected = quota_core::key::Key::from_values(&["t", ""]).expect("legal");
    for dimensions in [
        [("tenant", "t"), ("route", "")],
        [("route", ""), ("tenant", "t")],
    ] {
        let found = set
            .matches(&dimensions)
            .expect("legal")
            .next()
            .expect("matches");
        assert_eq!(found.values(), ["t", ""]);
        assert_eq!(found.key(), expected);
        assert_eq!(
            found.policy().key_of(&dimensions),
            Ok(Some(expected.clone()))
        );
        let mut bytes = vec![];
        found.write_key(|piece| bytes.extend_from_slice(piece));
        assert_eq!(bytes, expected.as_bytes());
    }
}

#[test]
fn one_identity_with_two_values_is_refused_and_replacing_is_repeatable() {
    let low = spec("api", &["key"]);
    let high = PolicySpec {
        limit: LimitSpec::new(99, Term::from_seconds(1)),
        order: 7,
        ..low.clone()
    };
    let both = PolicySet::new([policy(low.clone()), policy(high.clone())]);
    assert_eq!(both.err(), Some(PolicySetError::Duplicate { id: low.id() }));

    let elsewhere = PolicySpec {
        namespace: "other".into(),
        ..high.clone()
    };
    assert!(PolicySet::new([policy(low), policy(elsewhere)]).is_ok());

    for _ in 0..2 {
        let replaced = set([high.clone()]);
        assert_eq!(replaced.policies(), [policy(high.clone())]);
    }
}

#[test]
fn odd_requests_are_refused_or_matched_but_never_panic() {
    let set = set([spec("a", &["d"])]);
    let long = "x".repeat(257);
    assert_eq!(
        set.matches(&[("d", long.as_str())]).err(),
        Some(DimensionsError::ValueTooLong {
            index: 0,
            bytes: 257
        })
    );
    assert_eq!(
        set.matches(&[("d", "1"), ("e", "1"), ("d", "1")]).err(),
        Some(DimensionsError::Repeated { index: 2 })
    );
    let many: Vec<String> = (0..17).map(|n| format!("d{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    assert_eq!(
        set.matches(&many).err(),
        Some(DimensionsError::TooMany { count: 17 })
    );
    assert!(set.matches(&many[..16]).is_ok());
    for value in ["", "/", "*", "%", "\0", "\u{e9}", &long[..256]] {
        assert_eq!(names(&set, &[("d", value), ("", "")]), ["a"]);
    }
}

#[test]
fn a_thousand_literals_cost_one_list() {
    let set = set((0..1_000).map(|n| {
        on(
            &format!("p{n}"),
            &["tenant"],
            "route",
            Condition::Literal(format!("/{n}")),
        )
    }));
    assert_eq!(names(&set, &[("tenant", "t"), ("route", "/777")]), ["p777"]);
    assert!(
        set.get(&PolicyId {
            namespace: "default".into(),
            name: "p999".into()
        })
        .is_some()
    );
}

const DIMENSIONS: [&str; 4] = ["a", "b", "c", "plan"];
const VALUES: [&str; 4] = ["", "x", "xy", "y"];

fn arbitrary_condition() -> impl Strategy<Value = Condition> {
    let value = || proptest::sample::select(&VALUES[..]).prop_map(String::from);
    prop_oneof![
        value().prop_map(Condition::Literal),
        value().prop_map(Condition::Prefix),
        proptest::collection::vec(value(), 1..4).prop_map(Condition::Set),
    ]
}

fn arbitrary_spec() -> impl Strategy<Value = PolicySpec> {
    let dimension = || proptest::sample::select(&DIMENSIONS[..]);
    (
        proptest::sample::subsequence(&DIMENSIONS[..], 0..=3).prop_shuffle(),
        proptest::collection::btree_map(
            dimension().prop_map(String::from),
            arbitrary_condition(),
            0..3,
        ),
        -1_i32..2,
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(key, conditions, order, disabled)| PolicySpec {
            conditions,
            order,
            disabled,
            ..spec("p", &key)
        })
}

proptest! {
    #[test]
    fn the_set_finds_what_looking_at_each_policy_finds(
        specs in proptest::collection::vec(arbitrary_spec(), 0..40),
        request in proptest::sample::subsequence(&DIMENSIONS[..], 0..=4).prop_shuffle(),
        values in proptest::collection::vec(proptest::sample::select(&VALUES[..]), 4),
    ) {
        let numbered = specs.into_iter().zip(0..).map(|(spec, n)| PolicySpec {
            name: format!("p{n}"),
            ..spec
        });
        let mut policies: Vec<_> = numbered.map(policy).collect();
        let set = PolicySet::new(policies.clone()).expect("legal");
        let dimensions: Vec<(&str, &str)> = request.into_iter().zip(values).collect();

        policies.sort_by_key(|policy| (policy.spec().order, policy.id().clone()));
        let value_of = |wanted: &str| dimensions.iter().find(|d| d.0 == wanted).map(|d| d.1);
        let expected: Vec<_> = policies
            .iter()
            .filter(|policy| {
                let spec = policy.spec();
                let holds = |(dimension, condition): (&String, &Condition)| match (value_of(dimension), condition) {
                    (None, _) => false,
                    (Some(value), Condition::Literal(text)) => value == text,
                    (Some(value), Condition::Prefix(text)) => value.starts_with(text),
                    (Some(value), Condition::Set(texts)) => texts.iter().any(|text| text == value),
                };
                !spec.disabled
                    && spec.conditions.iter().all(holds)
                    && spec.key.iter().all(|dimension| value_of(dimension).is_some())
            })
            .map(|policy| {
                let values: Vec<_> = policy.spec().key.iter().filter_map(|d| value_of(d)).collect();
                (policy.id().clone(), values)
            })
            .collect();
        let found: Vec<_> = set
            .matches(&dimensions)
            .expect("legal")
            .map(|one| (one.policy().id().clone(), one.values().to_vec()))
            .collect();
        prop_assert_eq!(found, expected);
    }
}
