//! Which policies are refused, and what those that are not come out as.

mod policy_parse {
    mod arbitrary;
}

use quota_core::id::PolicyVersion;
use quota_core::key::{Key, VALUE_BYTES_MAX};
use quota_core::policy::{
    Action, Condition, CostTooHigh, Durability, Kind, LimitClass, LimitSpec, OnOutage,
    OverrideSpec, Period, Policy, PolicyError, PolicySpec,
};
use quota_core::time::Term;
use quota_core::tokens::Tokens;

const DAY: u64 = 86_400;

fn parse(spec: PolicySpec) -> Result<Policy, PolicyError> {
    Policy::parse(spec, PolicyVersion::new(1))
}

fn with_limit(limit: LimitSpec) -> PolicySpec {
    PolicySpec::new("api", &["key"], limit)
}

fn per_minute() -> PolicySpec {
    with_limit(LimitSpec::new(100, Term::from_seconds(60)).with_burst(20))
}

fn key(values: &[&str]) -> Key {
    Key::from_values(values).expect("legal")
}

fn refused(spec: PolicySpec) -> (String, String) {
    let error = parse(spec).expect_err("refused");
    (error.field().into(), error.to_string())
}

fn of_kind(kind: Kind, limit: LimitSpec) -> PolicySpec {
    PolicySpec {
        kind,
        ..with_limit(limit)
    }
}

#[test]
fn the_demonstration_policies_mean_what_they_say() {
    let api = parse(per_minute()).expect("legal");
    let limit = api.limit_of(&LimitClass::Default);
    assert_eq!(limit.capacity(), Tokens::new(20));
    assert_eq!(
        limit.rate().time_for(Tokens::new(100)),
        Term::from_seconds(60)
    );
    assert_eq!(limit.cost_max(), Tokens::new(16));
    assert!(!api.is_reserved(limit));
    assert_eq!(api.cost_default(), Tokens::ONE);

    let daily = parse(with_limit(LimitSpec::new(1_000, Term::from_seconds(DAY)))).expect("legal");
    assert!(daily.is_reserved(daily.limit_of(&LimitClass::Default)));
}

#[test]
fn both_spellings_are_one_limit() {
    let bucket = parse(per_minute()).expect("legal");
    let gcra = parse(with_limit(LimitSpec::gcra(Term::from_millis(600), 20))).expect("legal");
    assert_eq!(
        bucket.limit_of(&LimitClass::Default),
        gcra.limit_of(&LimitClass::Default)
    );
}

#[test]
fn auto_durability_turns_at_a_minute_of_refill() {
    let reserved = |seconds, durability| {
        let mut spec = with_limit(LimitSpec::new(10, Term::from_seconds(seconds)));
        spec.durability = durability;
        let policy = parse(spec).expect("legal");
        policy.is_reserved(policy.limit_of(&LimitClass::Default))
    };
    assert!(!reserved(60, Durability::Auto));
    assert!(reserved(61, Durability::Auto));
    assert!(reserved(1, Durability::Reserved));
    assert!(!reserved(DAY, Durability::Volatile));
}

#[test]
fn an_override_wins_over_a_plan_and_a_plan_over_the_policy() {
    let limit = |tokens| LimitSpec::new(tokens, Term::from_seconds(1));
    let spec = PolicySpec {
        plans: [("pro".into(), limit(2))].into(),
        overrides: vec![OverrideSpec {
            key: vec!["t1".into(), "pro".into()],
            limit: limit(3),
        }],
        ..PolicySpec::new("api", &["tenant", "plan"], limit(1))
    };
    let policy = parse(spec).expect("legal");
    let one = key(&["t1", "pro"]);
    let pro = LimitClass::Plan("pro".into());
    for (key, class, capacity) in [
        (one.clone(), LimitClass::Override(one), 3),
        (key(&["t2", "pro"]), pro.clone(), 2),
        (key(&["t1", "free"]), LimitClass::Default, 1),
        // A key of another shape has no bucket here, and still no panic.
        (key(&["t1"]), LimitClass::Default, 1),
        (key(&[]), LimitClass::Default, 1),
    ] {
        assert_eq!(policy.class_of(&key), class);
        assert_eq!(policy.limit_for(&key).capacity(), Tokens::new(capacity));
        assert_eq!(policy.limit_of(&class), policy.limit_for(&key));
    }
    assert!(policy.fits(&key(&["t1", "pro"])) && !policy.fits(&key(&["t1"])));
    assert_eq!(policy.classes().count(), 3);
    // Classes that this version does not know fall back as their keys do.
    let unknown = LimitClass::Override(key(&["t9", "pro"]));
    assert_eq!(policy.limit_of(&unknown), policy.limit_of(&pro));
    let unknown = LimitClass::Plan("gold".into());
    assert_eq!(
        policy.limit_of(&unknown),
        policy.limit_of(&LimitClass::Default)
    );
}

#[test]
fn a_cost_above_the_limit_is_its_own_permanent_error() {
    let policy = parse(per_minute()).expect("legal");
    let limit = policy.limit_of(&LimitClass::Default);
    assert_eq!(limit.check_cost(Tokens::new(16)), Ok(()));
    let error = CostTooHigh {
        cost: Tokens::new(21),
        cost_max: Tokens::new(16),
        capacity: Tokens::new(20),
    };
    assert_eq!(limit.check_cost(Tokens::new(21)), Err(error));
    assert!(error.to_string().contains("can never be admitted"));

    let mut dear = per_minute();
    dear.cost.max = Some(20);
    let policy = parse(dear.clone()).expect("up to the capacity");
    let limit = policy.limit_of(&LimitClass::Default);
    assert_eq!(limit.check_cost(Tokens::new(20)), Ok(()));
    assert!(limit.check_cost(Tokens::new(u64::MAX)).is_err());

    dear.cost.max = Some(21);
    assert_eq!(
        refused(dear).1,
        "policy `default/api`: `cost.max` is 21; it must be 1 to 20: a request can cost no more \
         than the largest capacity, nor more than 1048576"
    );
}

#[test]
fn a_small_plan_caps_the_cost_at_its_capacity() {
    let mut spec = PolicySpec::new("api", &["plan"], LimitSpec::new(100, Term::from_seconds(1)));
    spec.cost.max = Some(50);
    spec.plans
        .insert("tiny".into(), LimitSpec::new(2, Term::from_seconds(1)));
    let policy = parse(spec).expect("legal");
    let tiny = LimitClass::Plan("tiny".into());
    assert_eq!(policy.limit_of(&tiny).cost_max(), Tokens::new(2));
    assert_eq!(
        policy.limit_of(&LimitClass::Default).cost_max(),
        Tokens::new(50)
    );
}

#[test]
fn rates_from_one_a_month_to_a_billion_a_second_are_exact() {
    for (tokens, period) in [
        (1, Term::from_seconds(31 * DAY)),
        (1, Term::from_seconds(366 * DAY)),
        (1_000_000_000, Term::from_seconds(1)),
        (1_000_000_000_000, Term::from_seconds(1)),
        (1_000_000, Term::from_millis(1)),
    ] {
        let policy = parse(with_limit(LimitSpec::new(tokens, period))).expect("legal");
        let rate = policy.limit_of(&LimitClass::Default).rate();
        assert_eq!(rate.tokens_in(period), Tokens::new(tokens));
        let shorter = Term::from_nanos(period.as_nanos() - 1);
        assert!(rate.tokens_in(shorter) < Tokens::new(tokens));
    }
    let policy = parse(with_limit(LimitSpec::gcra(Term::from_nanos(1), 5))).expect("legal");
    let rate = policy.limit_of(&LimitClass::Default).rate();
    assert_eq!(
        rate.tokens_in(Term::from_seconds(1)),
        Tokens::new(1_000_000_000)
    );
}

#[test]
fn nonsense_limits_are_refused_by_field_and_value() {
    let second = Term::from_seconds(1);
    let missing = |limit: LimitSpec| LimitSpec {
        tokens: None,
        ..limit
    };
    let month = LimitSpec {
        period: Some(Period::Month),
        ..LimitSpec::new(1, second)
    };
    let both = LimitSpec {
        emission_interval: Some(second.into()),
        ..LimitSpec::new(1, second)
    };
    for (limit, field, says) in [
        (
            LimitSpec::new(0, second),
            "limit.tokens",
            "is 0; it must be 1 to",
        ),
        (
            LimitSpec::new(u64::MAX, second),
            "limit.tokens",
            "18446744073709551615",
        ),
        (
            LimitSpec::new(1, Term::ZERO),
            "limit.period",
            "is 0s; it must be 1ms to 366d",
        ),
        (
            LimitSpec::new(1, Term::from_nanos(999_999)),
            "limit.period",
            "999us999ns",
        ),
        (
            LimitSpec::new(1, Term::from_seconds(366 * DAY + 1)),
            "limit.period",
            "366d1s",
        ),
        (
            LimitSpec::new(1, second).with_burst(0),
            "limit.burst",
            "is 0",
        ),
        (
            LimitSpec::new(1, second).with_burst(u64::MAX),
            "limit.burst",
            "2^40",
        ),
        (
            LimitSpec::new(1 << 41, Term::from_seconds(DAY)),
            "limit.burst",
            "2^40",
        ),
        (
            LimitSpec::new(1_001, Term::from_nanos(1_000_000)).with_burst(1),
            "",
            "",
        ),
        (
            LimitSpec::new(1_000_000_000_001, second).with_burst(1),
            "limit.tokens",
            "a second",
        ),
        (
            LimitSpec::new(1, Term::from_seconds(366 * DAY)).with_burst(101),
            "limit.burst",
            "100 years",
        ),
        (
            missing(LimitSpec::new(1, second)),
            "limit.tokens",
            "is missing",
        ),
        (LimitSpec::default(), "limit.tokens", "is missing"),
        (
            LimitSpec {
                period: None,
                ..LimitSpec::new(1, second)
            },
            "limit.period",
            "is missing",
        ),
        (month, "limit.period", "30d"),
        (both, "limit.tokens", "either"),
        (
            LimitSpec::gcra(Term::ZERO, 1),
            "limit.emission_interval",
            "1ns to 366d",
        ),
        (LimitSpec::gcra(second, 0), "limit.burst", "is 0"),
    ] {
        if field.is_empty() {
            parse(with_limit(limit)).expect("legal");
            continue;
        }
        let (got, error) = refused(with_limit(limit));
        assert_eq!(got, field, "{error}");
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_other_kinds_are_laid_out_and_refuse_what_does_not_fit_them() {
    let hour = Term::from_seconds(3_600);
    let month = LimitSpec {
        tokens: Some(5),
        period: Some(Period::Month),
        ..LimitSpec::default()
    };
    let in_flight = LimitSpec {
        tokens: Some(5),
        ..LimitSpec::default()
    };
    for (kind, limit, reserved) in [
        (Kind::SlidingWindow, LimitSpec::new(5, hour), true),
        (Kind::CalendarWindow, LimitSpec::new(5, hour), true),
        (Kind::CalendarWindow, month, true),
        (Kind::Concurrency, in_flight, false),
    ] {
        let policy = parse(of_kind(kind, limit)).expect("legal");
        let limit = policy.limit_of(&LimitClass::Default);
        assert_eq!(limit.capacity(), Tokens::new(5));
        assert_eq!(limit.is_reserved(), reserved);
    }
    for (kind, limit, field) in [
        (Kind::SlidingWindow, month, "limit.period"),
        (
            Kind::SlidingWindow,
            LimitSpec::new(5, hour).with_burst(6),
            "limit.burst",
        ),
        (
            Kind::SlidingWindow,
            LimitSpec::gcra(hour, 1),
            "limit.emission_interval",
        ),
        (
            Kind::CalendarWindow,
            LimitSpec::new(5, Term::from_seconds(90)),
            "limit.period",
        ),
        (
            Kind::CalendarWindow,
            LimitSpec::new(1 << 41, hour),
            "limit.tokens",
        ),
        (Kind::Concurrency, LimitSpec::new(5, hour), "limit.period"),
        (Kind::Concurrency, in_flight.with_burst(4), "limit.burst"),
    ] {
        assert_eq!(refused(of_kind(kind, limit)).0, field);
    }
    let mut shifted = of_kind(Kind::CalendarWindow, month);
    shifted.utc_offset_minutes = 120;
    parse(shifted.clone()).expect("legal");
    shifted.utc_offset_minutes = 841;
    assert_eq!(refused(shifted).0, "utc_offset_minutes");
    let mut shifted = per_minute();
    shifted.utc_offset_minutes = 1;
    assert_eq!(refused(shifted).0, "utc_offset_minutes");
}

/// A change to a legal spec that makes it illegal, and the field that is then named.
type Spoil = (&'static str, fn(&mut PolicySpec));

#[test]
fn every_other_field_is_checked_and_named() {
    let spoils: [Spoil; 35] = [
        ("name", |s| s.name = String::new()),
        ("name", |s| s.name = "-a".into()),
        ("name", |s| s.name = "a/b".into()),
        ("name", |s| s.name = "a\u{e9}".into()),
        ("name", |s| s.name = "a".repeat(129)),
        ("namespace", |s| s.namespace = "a b".into()),
        ("key", |s| s.key = (0..9).map(|n| format!("d{n}")).collect()),
        ("key[1]", |s| s.key.push("key".into())),
        ("key[0]", |s| s.key = vec!["".into()]),
        ("match", |s| {
            s.conditions
                .insert("a b".into(), Condition::Prefix("".into()));
        }),
        ("match", |s| {
            s.conditions = (0..9)
                .map(|n| (format!("d{n}"), Condition::Prefix("".into())))
                .collect();
        }),
        ("match.route", |s| {
            s.conditions.insert("route".into(), Condition::Set(vec![]));
        }),
        ("match.route", |s| {
            let long = "x".repeat(VALUE_BYTES_MAX + 1);
            s.conditions
                .insert("route".into(), Condition::Literal(long));
        }),
        ("plans", |s| {
            s.plans.insert("pro".into(), s.limit);
        }),
        ("plans", |s| {
            s.key.push("plan".into());
            s.plans.insert("".into(), s.limit);
        }),
        ("plans.pro.tokens", |s| {
            s.key.push("plan".into());
            let zero = LimitSpec::new(0, Term::from_seconds(1));
            s.plans.insert("pro".into(), zero);
        }),
        ("overrides[0].key", |s| {
            let (key, limit) = (vec![], s.limit);
            s.overrides.push(OverrideSpec { key, limit });
        }),
        ("overrides[0].key", |s| {
            let (key, limit) = (vec!["x".repeat(257)], s.limit);
            s.overrides.push(OverrideSpec { key, limit });
        }),
        ("overrides[0].limit.tokens", |s| {
            let (key, limit) = (vec!["x".into()], LimitSpec::default());
            s.overrides.push(OverrideSpec { key, limit });
        }),
        ("overrides[1].key", |s| {
            let (key, limit) = (vec!["x".into()], s.limit);
            s.overrides = vec![OverrideSpec { key, limit }; 2];
        }),
        ("overrides", |s| {
            let (key, limit) = (vec!["x".into()], s.limit);
            s.overrides = vec![OverrideSpec { key, limit }; 1_001];
        }),
        ("policy", |s| {
            s.outage_allow_list = vec![vec!["x".repeat(256)]; 300]
        }),
        ("policy", |s| s.outage_allow_list = vec![vec![]; 10_000]),
        ("outage_allow_list[0]", |s| {
            s.outage_allow_list = vec![vec![]]
        }),
        ("outage_allow_list", |s| {
            s.on_outage = OnOutage::Open;
            s.outage_allow_list = vec![vec!["x".into()]];
        }),
        ("cost.default", |s| s.cost.default = 0),
        ("cost.default", |s| s.cost.default = 17),
        ("cost.max", |s| s.cost.max = Some(0)),
        ("action.defer", |s| {
            s.action = Action::Defer(Term::from_seconds(61).into())
        }),
        ("shadow_percent", |s| s.shadow_percent = Some(50)),
        ("shadow_percent", |s| {
            (s.shadow, s.shadow_percent) = (true, Some(0))
        }),
        ("lease.share_per_mille", |s| s.lease.share_per_mille = 1001),
        ("lease.horizon", |s| s.lease.horizon = Term::ZERO.into()),
        ("lease.term_max", |s| {
            s.lease.term_max = Term::from_seconds(301).into()
        }),
        ("lease.warm_floor", |s| s.lease.warm_floor = 21),
    ];
    for (index, (field, spoil)) in spoils.into_iter().enumerate() {
        let mut spec = per_minute();
        spoil(&mut spec);
        let (got, error) = refused(spec);
        assert_eq!(got, field, "number {index}: {error}");
    }
}

#[test]
fn errors_quote_odd_values_safely_and_briefly() {
    let mut spec = per_minute();
    spec.name = format!("\n\u{1b}[31m{}", "x".repeat(10_000));
    let (_, error) = refused(spec);
    assert!(
        error.len() < 500 && !error.contains('\u{1b}') && !error.contains('\n'),
        "{error}"
    );
}
