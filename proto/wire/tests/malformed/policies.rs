//! Policies and updates.

use quota_core::key::{NAME_BYTES_MAX, PolicyId};
use quota_core::policy::{SWITCH_REASON_BYTES_MAX, SWITCHES_MAX, SwitchMode, SwitchScope};
use quota_core::time::Term;
use quota_wire::convert::policy::{UpdateParts, decode_spec};
use quota_wire::convert::switch::{Switch, Switches, decode_switches, encode_switches};
use quota_wire::proto as wire;

use super::{duration, policy_id, refuses};

fn spec() -> wire::PolicySpec {
    let limit = wire::Limit {
        tokens: Some(1),
        r#in: Some(wire::limit::In::Period(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        })),
        ..wire::Limit::default()
    };
    wire::PolicySpec {
        name: "api".to_owned(),
        limit: Some(limit),
        ..wire::PolicySpec::default()
    }
}

#[test]
fn policies_are_refused_by_field() {
    refuses(
        &spec(),
        |spec| decode_spec("spec", Some(spec)),
        &[
            (
                |s| s.limit = None,
                "spec.limit is absent; allowed: it is required",
            ),
            (
                |s| {
                    s.limit.as_mut().expect("there").r#in = Some(wire::limit::In::CalendarPeriod(0))
                },
                "spec.limit.calendar_period is 0; allowed: CALENDAR_PERIOD_MONTH (1)",
            ),
            (
                |s| s.limit.as_mut().expect("there").emission_interval = duration(-1, 0),
                "spec.limit.emission_interval is -1 s and 0 ns; allowed: no less than zero, at \
                 most 584 years, with 0 to 999,999,999 ns",
            ),
            (
                |s| {
                    let _ = s
                        .r#match
                        .insert("a\n".to_owned(), wire::Condition::default());
                },
                "spec.match[\"a\\n\"].condition is absent; allowed: it is required",
            ),
            (
                |s| s.overrides = vec![wire::Override::default()],
                "spec.overrides[0].limit is absent; allowed: it is required",
            ),
            (
                |s| s.defer = duration(0, -1),
                "spec.defer is 0 s and -1 ns; allowed: no less than zero, at most 584 years, with \
                 0 to 999,999,999 ns",
            ),
            (
                |s| {
                    s.lease = Some(wire::LeaseSpec {
                        term_max: duration(-1, 0),
                        ..Default::default()
                    })
                },
                "spec.lease.term_max is -1 s and 0 ns; allowed: no less than zero, at most 584 \
                 years, with 0 to 999,999,999 ns",
            ),
            (
                |s| s.kind = 99,
                "spec.kind is 99; allowed: KIND_TOKEN_BUCKET, KIND_SLIDING_WINDOW, \
                 KIND_CALENDAR_WINDOW, KIND_CONCURRENCY",
            ),
            (
                |s| s.on_outage = -1,
                "spec.on_outage is -1; allowed: ON_OUTAGE_CLOSED, ON_OUTAGE_OPEN, ON_OUTAGE_LOCAL",
            ),
            (
                |s| s.first_touch = 4,
                "spec.first_touch is 4; allowed: FIRST_TOUCH_WAIT, FIRST_TOUCH_DENY, \
                 FIRST_TOUCH_ADMIT",
            ),
            (
                |s| s.durability = 4,
                "spec.durability is 4; allowed: DURABILITY_AUTO, DURABILITY_RESERVED, \
                 DURABILITY_VOLATILE",
            ),
        ],
    );
    assert!(decode_spec("spec", None).is_err());
}

#[test]
fn what_a_policy_leaves_out_has_the_defaults_of_the_file_format() {
    use quota_core::policy::{LimitSpec, PolicySpec};
    use quota_core::time::Term;
    let expected = PolicySpec::new("api", &[], LimitSpec::new(1, Term::from_seconds(1)));
    assert_eq!(decode_spec("spec", Some(spec())), Ok(expected));
}

#[test]
fn updates_are_refused_by_field() {
    let policy = wire::Policy {
        version: 1,
        spec: Some(spec()),
    };
    let update = wire::PolicyUpdate {
        revision: 1,
        policies: vec![policy],
        deleted: vec![policy_id()],
        ..wire::PolicyUpdate::default()
    };
    refuses(
        &update,
        |update| UpdateParts::default().push(update),
        &[
            (
                |u| u.policies[0].version = 0,
                "policies[0].version is 0; allowed: 1 to 18446744073709551615",
            ),
            (
                |u| u.policies[0].spec = None,
                "policies[0].spec is absent; allowed: it is required",
            ),
            (
                |u| u.deleted[0].name.clear(),
                "deleted[0].name is empty; allowed: 1 to 128 bytes",
            ),
            (
                |u| u.complete = true,
                "deleted is 1 entries long; allowed: empty in a complete update",
            ),
            (
                |u| u.deleted = vec![policy_id(); 65_537],
                "deleted is 65537 entries long; allowed: at most 65536 entries",
            ),
        ],
    );
    let mut parts = UpdateParts::default();
    let begun = wire::PolicyUpdate {
        more: true,
        ..update.clone()
    };
    assert_eq!(parts.push(begun), Ok(None));
    let other = wire::PolicyUpdate {
        revision: 2,
        ..update
    };
    assert_eq!(
        parts.push(other).expect_err("another update").field,
        "revision"
    );
}

#[test]
fn a_large_update_comes_in_parts_that_each_fit() {
    use prost::Message;
    use quota_core::id::PolicyVersion;
    use quota_wire::convert::policy::{PolicyUpdate, VersionedSpec, encode_update};
    use quota_wire::limits::MESSAGE_BYTES_MAX;
    let mut spec = decode_spec("spec", Some(spec())).expect("legal");
    spec.key = vec!["d".repeat(1000); 60];
    let policies = (1..=50)
        .map(|version| VersionedSpec {
            version: PolicyVersion::new(version),
            spec: spec.clone(),
        })
        .collect();
    let update = PolicyUpdate {
        revision: 50,
        complete: true,
        policies,
        deleted: Vec::new(),
        switches: Some(longest_switches()),
    };
    let encoded = encode_update(&update);
    assert!(encoded.len() > 1);
    assert!(
        encoded
            .iter()
            .all(|part| part.encoded_len() <= MESSAGE_BYTES_MAX)
    );
    let mut parts = UpdateParts::default();
    let whole = encoded
        .into_iter()
        .filter_map(|part| parts.push(part).expect("legal"))
        .collect::<Vec<_>>();
    assert_eq!(whole, [update]);
}

/// As many switches as there may be, with the longest texts.
fn longest_switches() -> Switches {
    let switch = Switch {
        mode: SwitchMode::RefuseAll,
        expires_in: Some(Term::from_nanos(u64::MAX)),
        reason: "r".repeat(SWITCH_REASON_BYTES_MAX),
    };
    let scope = |number: usize| {
        let name = format!("{number:0>width$}", width = NAME_BYTES_MAX);
        SwitchScope::Policy(PolicyId {
            namespace: name.clone(),
            name,
        })
    };
    let scopes = (0..SWITCHES_MAX).map(scope);
    scopes.map(|scope| (scope, switch.clone())).collect()
}

#[test]
fn switches_that_make_no_sense_are_refused_by_field() {
    let refused = |switches: Vec<wire::KillSwitch>| {
        let error = decode_switches("kill_switches", wire::KillSwitches { switches });
        error.expect_err("refused").to_string()
    };
    let good = encode_switches(&longest_switches()).switches;
    let one = good[0].clone();
    let mut off = one.clone();
    off.set_mode(wire::KillSwitchMode::Off);
    assert!(refused(vec![off]).contains("kill_switches.switches[0].mode"));
    assert!(refused(vec![one.clone(), one.clone()]).contains("switches[1].scope"));
    let mut talkative = one.clone();
    talkative.reason.push('r');
    assert!(refused(vec![talkative]).contains("switches[0].reason"));
    let mut nowhere = one.clone();
    nowhere.scope = Some(wire::PolicyId {
        namespace: String::new(),
        name: "p".to_owned(),
    });
    assert!(refused(vec![nowhere]).contains("switches[0].scope.namespace"));
    let many = [&good[..], &[wire::KillSwitch { scope: None, ..one }]].concat();
    assert!(refused(many).contains("257 entries"));
}
