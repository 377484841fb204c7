//! Policies, legal as such or not: that is not for the wire to judge.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use quota_core::id::PolicyVersion;
use quota_core::policy::{
    Action, Condition, CostSpec, Durability, FirstTouch, Kind, LeaseSpec, LimitSpec, OnOutage,
    OverrideSpec, Period, PolicySpec, Span, SwitchMode, SwitchScope,
};
use quota_core::time::Term;
use quota_wire::convert::policy::{PolicyUpdate, VersionedSpec};
use quota_wire::convert::switch::{Switch, Switches};

use super::{name, number, policy_id, term};

fn span() -> impl Strategy<Value = Span> {
    term().prop_map(Span::new)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn limit_spec() -> impl Strategy<Value = LimitSpec> {
    let period = prop_oneof![span().prop_map(Period::Span), Just(Period::Month)];
    let amount = || option::of(number(0, u64::MAX));
    (amount(), option::of(period), amount(), option::of(span())).prop_map(
        |(tokens, period, burst, emission_interval)| LimitSpec {
            tokens,
            period,
            burst,
            emission_interval,
        },
    )
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        text().prop_map(Condition::Literal),
        text().prop_map(Condition::Prefix),
        vec(text(), 0..4).prop_map(Condition::Set),
    ]
}

fn lease_spec() -> impl Strategy<Value = LeaseSpec> {
    (any::<u32>(), span(), span(), span(), any::<u64>()).prop_map(
        |(share_per_mille, horizon, term_max, idle_return, warm_floor)| LeaseSpec {
            share_per_mille,
            horizon,
            term_max,
            idle_return,
            warm_floor,
        },
    )
}

/// Any spec that can be written down.
pub(crate) fn policy_spec() -> impl Strategy<Value = PolicySpec> {
    use prop::sample::select;
    let kinds = [
        Kind::TokenBucket,
        Kind::SlidingWindow,
        Kind::CalendarWindow,
        Kind::Concurrency,
    ];
    let outages = [OnOutage::Closed, OnOutage::Open, OnOutage::Local];
    let touches = [FirstTouch::Wait, FirstTouch::Deny, FirstTouch::Admit];
    let durabilities = [Durability::Auto, Durability::Reserved, Durability::Volatile];
    let action = prop_oneof![Just(Action::Reject), span().prop_map(Action::Defer)];
    let cost = (any::<u64>(), option::of(any::<u64>()))
        .prop_map(|(default, max)| CostSpec { default, max });
    let overrides =
        (vec(text(), 0..3), limit_spec()).prop_map(|(key, limit)| OverrideSpec { key, limit });
    let identity = (
        text(),
        name(),
        vec(text(), 0..4),
        limit_spec(),
        any::<i32>(),
    );
    let rules = (
        btree_map(text(), condition(), 0..3),
        btree_map(text(), limit_spec(), 0..3),
        vec(overrides, 0..3),
        vec(vec(text(), 0..3), 0..3),
    );
    let cases = (
        select(kinds.to_vec()),
        select(outages.to_vec()),
        select(touches.to_vec()),
        select(durabilities.to_vec()),
    );
    let switches = (
        any::<bool>(),
        any::<bool>(),
        option::of(any::<u32>()),
        any::<i32>(),
    );
    (
        identity,
        rules,
        cases,
        switches,
        (action, cost, lease_spec()),
    )
        .prop_map(
            |(identity, rules, cases, switches, (action, cost, lease))| PolicySpec {
                name: identity.0,
                namespace: identity.1,
                key: identity.2,
                limit: identity.3,
                order: identity.4,
                conditions: rules.0,
                plans: rules.1,
                overrides: rules.2,
                outage_allow_list: rules.3,
                kind: cases.0,
                on_outage: cases.1,
                first_touch: cases.2,
                durability: cases.3,
                shadow: switches.0,
                disabled: switches.1,
                shadow_percent: switches.2,
                utc_offset_minutes: switches.3,
                action,
                cost,
                lease,
            },
        )
}

pub(crate) fn policy_update() -> impl Strategy<Value = PolicyUpdate> {
    let policy = (number(1, u64::MAX), policy_spec()).prop_map(|(version, spec)| VersionedSpec {
        version: PolicyVersion::new(version),
        spec,
    });
    let deleted = vec(policy_id(), 0..3);
    let told = (any::<u64>(), any::<bool>());
    (told, vec(policy, 0..4), deleted, option::of(switches())).prop_map(
        |((revision, complete), policies, deleted, switches)| PolicyUpdate {
            revision,
            complete,
            policies,
            deleted: if complete { Vec::new() } else { deleted },
            switches,
        },
    )
}

fn switches() -> impl Strategy<Value = Switches> {
    let scope = prop_oneof![
        Just(SwitchScope::Everything),
        policy_id().prop_map(|id| SwitchScope::Namespace(id.namespace)),
        policy_id().prop_map(SwitchScope::Policy),
    ];
    let mode = prop_oneof![Just(SwitchMode::AdmitAll), Just(SwitchMode::RefuseAll)];
    let expires_in = option::of(any::<u64>().prop_map(Term::from_nanos));
    let switch = (mode, expires_in, "[a-z ]{0,20}").prop_map(|(mode, expires_in, reason)| Switch {
        mode,
        expires_in,
        reason,
    });
    btree_map(scope, switch, 0..4)
}
