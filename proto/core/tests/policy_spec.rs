//! How policies are written: every spelling, in every format that carries them.

use bincode::config::standard;
use quota_core::policy::{
    Action, Condition, CostSpec, Durability, FirstTouch, Kind, LeaseSpec, LimitSpec, OnOutage,
    OverrideSpec, Period, PolicySpec,
};
use quota_core::time::Term;

/// A spec in which no field has its default.
const FULL: &str = r#"
name = "search"
namespace = "team-a"
match = { route = "/search", tenant = { prefix = "t-" }, region = { set = ["eu", "us"] } }
key = ["tenant", "route", "plan"]
kind = "sliding-window"
limit = { tokens = 10, period = "1m30s", burst = 10 }
cost = { default = 2, max = 5 }
action = { defer = "200ms" }
on_outage = "open"
first_touch = "admit"
durability = "volatile"
shadow = true
shadow_percent = 25
order = -3
disabled = true

[plans.pro]
tokens = 100
period = "1s"

[[overrides]]
key = ["t-1", "/search", "pro"]
limit = { emission_interval = "10ms", burst = 7 }

[lease]
share_per_mille = 500
horizon = "250ms"
term_max = "30s"
idle_return = "1s"
warm_floor = 3
"#;

fn full() -> PolicySpec {
    PolicySpec {
        namespace: "team-a".into(),
        conditions: [
            ("route".into(), Condition::Literal("/search".into())),
            ("tenant".into(), Condition::Prefix("t-".into())),
            (
                "region".into(),
                Condition::Set(vec!["eu".into(), "us".into()]),
            ),
        ]
        .into(),
        kind: Kind::SlidingWindow,
        plans: [("pro".into(), LimitSpec::new(100, Term::from_seconds(1)))].into(),
        overrides: vec![OverrideSpec {
            key: vec!["t-1".into(), "/search".into(), "pro".into()],
            limit: LimitSpec::gcra(Term::from_millis(10), 7),
        }],
        cost: CostSpec {
            default: 2,
            max: Some(5),
        },
        action: Action::Defer(Term::from_millis(200).into()),
        on_outage: OnOutage::Open,
        first_touch: FirstTouch::Admit,
        durability: Durability::Volatile,
        shadow: true,
        shadow_percent: Some(25),
        order: -3,
        disabled: true,
        lease: LeaseSpec {
            share_per_mille: 500,
            horizon: Term::from_millis(250).into(),
            term_max: Term::from_seconds(30).into(),
            idle_return: Term::from_seconds(1).into(),
            warm_floor: 3,
        },
        ..PolicySpec::new(
            "search",
            &["tenant", "route", "plan"],
            LimitSpec::new(10, Term::from_seconds(90)).with_burst(10),
        )
    }
}

fn minimal() -> PolicySpec {
    PolicySpec::new("api", &["key"], LimitSpec::new(100, Term::from_seconds(60)))
}

/// Exercises what the other two leave out.
fn odd() -> PolicySpec {
    PolicySpec {
        kind: Kind::CalendarWindow,
        limit: LimitSpec {
            tokens: Some(1),
            period: Some(Period::Month),
            ..LimitSpec::default()
        },
        conditions: [
            ("quote\"d".into(), Condition::Literal("\0\u{e9}\\".into())),
            ("none".into(), Condition::Set(vec![])),
        ]
        .into(),
        outage_allow_list: vec![vec!["".into()], vec![]],
        utc_offset_minutes: -720,
        ..minimal()
    }
}

fn read(text: &str) -> Result<PolicySpec, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn every_field_is_read_as_written() {
    assert_eq!(read(FULL), Ok(full()));
}

#[test]
fn three_fields_are_enough() {
    let text = r#"
        name = "api"
        key = ["key"]
        limit = { tokens = 100, period = "60s" }
    "#;
    assert_eq!(read(text), Ok(minimal()));
}

#[test]
fn the_same_limit_and_the_same_condition_have_several_spellings() {
    let spelled = |kind: &str, condition: &str| {
        read(&format!(
            "name = 'a'\nkey = []\nlimit = {{ tokens = 1, period = '1s' }}\nkind = '{kind}'\n\
             match = {{ route = {condition} }}"
        ))
        .expect("legal")
    };
    assert_eq!(
        spelled("gcra", "'/a'"),
        spelled("token-bucket", "{ literal = '/a' }")
    );
    assert_eq!(
        spelled("gcra", "['/a', '/b']"),
        spelled("gcra", "{ set = ['/a', '/b'] }")
    );
}

#[test]
fn every_format_carries_every_spec() {
    for spec in [full(), minimal(), odd()] {
        let text = toml::to_string(&spec).expect("writes");
        assert_eq!(read(&text).as_ref(), Ok(&spec), "{text}");

        let text = serde_json::to_string(&spec).expect("writes");
        assert_eq!(
            serde_json::from_str::<PolicySpec>(&text).expect(&text),
            spec
        );

        let bytes = bincode::serde::encode_to_vec(&spec, standard()).expect("writes");
        let (back, length) =
            bincode::serde::decode_from_slice::<PolicySpec, _>(&bytes, standard()).expect("reads");
        assert_eq!((back, length), (spec, bytes.len()));
    }
}

#[test]
fn a_torn_binary_spec_is_an_error() {
    let bytes = bincode::serde::encode_to_vec(full(), standard()).expect("writes");
    for end in 0..bytes.len() {
        assert!(
            bincode::serde::decode_from_slice::<PolicySpec, _>(&bytes[..end], standard()).is_err(),
            "cut at {end}"
        );
    }
}

#[test]
fn what_is_not_understood_is_refused_with_what_is() {
    let with = |line: &str| {
        let base = "name = 'a'\nkey = []\n";
        let limit = if line.starts_with("limit") {
            ""
        } else {
            "limit = { tokens = 1, period = '1s' }\n"
        };
        read(&format!("{base}{limit}{line}")).expect_err(line)
    };
    for (line, says) in [
        ("limt = 3", "unknown field `limt`"),
        ("limit = { tokens = 1, per = '1s' }", "unknown field `per`"),
        ("limit = { tokens = -1, period = '1s' }", "-1"),
        ("limit = { tokens = 1.5, period = '1s' }", "1.5"),
        ("limit = { tokens = nan, period = '1s' }", "nan"),
        ("limit = { tokens = 1, period = 60 }", "such as \"60s\""),
        ("limit = { tokens = 1, period = '60' }", "has no unit"),
        ("kind = 'leaky'", "token-bucket"),
        ("action = 'wait'", "reject"),
        ("action = { defer = '1 s' }", "unknown unit"),
        ("on_outage = 'maybe'", "closed"),
        ("first_touch = 'later'", "admit"),
        ("durability = 'yes'", "reserved"),
        ("lease = { share = 1 }", "share_per_mille"),
        ("match = { route = 5 }", "a value such as"),
        ("match = { route = { suffix = 'x' } }", "prefix"),
        ("match = { route = {} }", "match"),
        ("overrides = [{ key = [] }]", "missing field `limit`"),
    ] {
        let error = with(line);
        assert!(error.contains(says), "{line}\n{error}");
    }
}
