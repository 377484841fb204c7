//! Policies: the typed mirror of [`PolicySpec`].
//!
//! Only the shape is checked here: required parts, enum values, spans. Whether the values make a
//! policy is for `Policy::parse` to say, with one set of rules for files and for the wire.

use std::collections::BTreeMap;

use prost::Message as _;
use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{
    Action, Condition, CostSpec, Durability, FirstTouch, Kind, LeaseSpec, LimitSpec, OnOutage,
    OverrideSpec, POLICIES_MAX, Period, PolicySpec, Span,
};

use super::common::{
    check_count, decode_number, decode_policy_id, decode_term, encode_policy_id, encode_term,
};
use super::switch::{Switches, decode_switches, encode_switches};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::malformed::Malformed;
use crate::proto as wire;
use wire::condition::Condition as WireCondition;
use wire::limit::In;

/// A policy with the version under which it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedSpec {
    /// Never zero.
    pub version: PolicyVersion,
    /// What it says.
    pub spec: PolicySpec,
}

/// A policy in force.
#[must_use]
pub fn encode_policy(version: PolicyVersion, spec: &PolicySpec) -> wire::Policy {
    wire::Policy {
        version: version.get(),
        spec: Some(encode_spec(spec)),
    }
}

/// A policy in force, from the field `path`.
///
/// # Errors
/// [`Malformed`] if its version is zero or its spec is absent or malformed.
pub fn decode_policy(path: &str, policy: wire::Policy) -> Result<VersionedSpec, Malformed> {
    let version = decode_number(&format!("{path}.version"), policy.version, 1, u64::MAX)?;
    Ok(VersionedSpec {
        version: PolicyVersion::new(version),
        spec: decode_spec(&format!("{path}.spec"), policy.spec)?,
    })
}

/// The policies in force, or what changed about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyUpdate {
    /// The revision after this update.
    pub revision: u64,
    /// Whether `policies` are all there are.
    pub complete: bool,
    /// Policies that are new or have a new version.
    pub policies: Vec<VersionedSpec>,
    /// Policies that were deleted.
    pub deleted: Vec<PolicyId>,
    /// All kill switches, if they are told anew.
    pub switches: Option<Switches>,
}

/// The update, in as many parts as keep each within [`MESSAGE_BYTES_MAX`]; one at least.
#[must_use]
pub fn encode_update(update: &PolicyUpdate) -> Vec<wire::PolicyUpdate> {
    let mut parts = Parts {
        head: wire::PolicyUpdate {
            revision: update.revision,
            complete: update.complete,
            more: true,
            ..wire::PolicyUpdate::default()
        },
        closed: Vec::new(),
        open_bytes: 0,
    };
    let mut open = parts.head.clone();
    for policy in &update.policies {
        let policy = encode_policy(policy.version, &policy.spec);
        parts.make_room(&mut open, policy.encoded_len());
        open.policies.push(policy);
    }
    for id in &update.deleted {
        let id = encode_policy_id(id);
        parts.make_room(&mut open, id.encoded_len());
        open.deleted.push(id);
    }
    if let Some(switches) = &update.switches {
        let switches = encode_switches(switches);
        parts.make_room(&mut open, switches.encoded_len());
        open.kill_switches = Some(switches);
    }
    open.more = false;
    parts.closed.push(open);
    parts.closed
}

/// The parts of an update that are full.
struct Parts {
    head: wire::PolicyUpdate,
    closed: Vec<wire::PolicyUpdate>,
    open_bytes: usize,
}

impl Parts {
    /// Closes the `open` part if it would pass half of the limit with `bytes` more. One policy is
    /// far smaller than the other half.
    fn make_room(&mut self, open: &mut wire::PolicyUpdate, bytes: usize) {
        self.open_bytes += bytes;
        if self.open_bytes > MESSAGE_BYTES_MAX / 2 {
            let full = std::mem::replace(open, self.head.clone());
            self.closed.push(full);
            self.open_bytes = bytes;
        }
    }
}

/// Puts the parts of updates together again, one watch long.
#[derive(Clone, Debug, Default)]
pub struct UpdateParts {
    begun: Option<PolicyUpdate>,
}

impl UpdateParts {
    /// Takes the next part; the update if it was the last one.
    ///
    /// # Errors
    /// [`Malformed`] if a policy is malformed, parts do not belong together, there are more than
    /// [`POLICIES_MAX`] policies, or a complete update deletes. The watch is then of no further
    /// use.
    pub fn push(&mut self, part: wire::PolicyUpdate) -> Result<Option<PolicyUpdate>, Malformed> {
        let more = part.more;
        let mut update = match self.begun.take() {
            None => PolicyUpdate {
                revision: part.revision,
                complete: part.complete,
                policies: Vec::new(),
                deleted: Vec::new(),
                switches: None,
            },
            Some(begun) if (begun.revision, begun.complete) == (part.revision, part.complete) => {
                begun
            }
            Some(begun) => {
                return Err(Malformed::new(
                    "revision",
                    format!("{}, after a part of {}", part.revision, begun.revision),
                    "the same in all parts of an update, as is `complete`",
                ));
            }
        };
        if part.complete && !part.deleted.is_empty() {
            return Err(Malformed::new(
                "deleted",
                format!("{} entries long", part.deleted.len()),
                "empty in a complete update",
            ));
        }
        let policies = update.policies.len().saturating_add(part.policies.len());
        let deleted = update.deleted.len().saturating_add(part.deleted.len());
        check_count("policies", policies, POLICIES_MAX)?;
        check_count("deleted", deleted, POLICIES_MAX)?;
        update
            .policies
            .extend(each("policies", part.policies, decode_policy)?);
        update
            .deleted
            .extend(each("deleted", part.deleted, decode_policy_id)?);
        if let Some(switches) = part.kill_switches {
            update.switches = Some(decode_switches("kill_switches", switches)?);
        }
        if more {
            self.begun = Some(update);
            return Ok(None);
        }
        Ok(Some(update))
    }
}

/// A policy as it is written. Every field that has a value is sent, defaults too.
#[must_use]
pub fn encode_spec(spec: &PolicySpec) -> wire::PolicySpec {
    wire::PolicySpec {
        name: spec.name.clone(),
        namespace: spec.namespace.clone(),
        r#match: encode_map(&spec.conditions, encode_condition),
        key: spec.key.clone(),
        kind: encode_kind(spec.kind).into(),
        limit: Some(encode_limit(&spec.limit)),
        plans: encode_map(&spec.plans, encode_limit),
        overrides: spec.overrides.iter().map(encode_override).collect(),
        cost: Some(wire::Cost {
            default: Some(spec.cost.default),
            max: spec.cost.max,
        }),
        defer: match spec.action {
            Action::Reject => None,
            Action::Defer(span) => Some(encode_term(span.term())),
        },
        on_outage: encode_on_outage(spec.on_outage).into(),
        outage_allow_list: spec
            .outage_allow_list
            .iter()
            .map(|values| wire::KeyText {
                values: values.clone(),
            })
            .collect(),
        first_touch: encode_first_touch(spec.first_touch).into(),
        durability: encode_durability(spec.durability).into(),
        shadow: spec.shadow,
        shadow_percent: spec.shadow_percent,
        order: spec.order,
        disabled: spec.disabled,
        utc_offset_minutes: spec.utc_offset_minutes,
        lease: Some(encode_lease_spec(&spec.lease)),
    }
}

/// A policy as it is written, from the required field `path`.
///
/// # Errors
/// [`Malformed`] if a required part is absent, an enum value is not known, or a span is none.
pub fn decode_spec(path: &str, spec: Option<wire::PolicySpec>) -> Result<PolicySpec, Malformed> {
    let spec = spec.ok_or_else(|| Malformed::missing(path))?;
    let field = |name: &str| format!("{path}.{name}");
    Ok(PolicySpec {
        namespace: if spec.namespace.is_empty() {
            "default".to_owned()
        } else {
            spec.namespace
        },
        name: spec.name,
        conditions: decode_map(&field("match"), spec.r#match, decode_condition)?,
        key: spec.key,
        kind: decode_kind(&field("kind"), spec.kind)?,
        limit: decode_limit(&field("limit"), spec.limit)?,
        plans: decode_map(&field("plans"), spec.plans, |path, limit| {
            decode_limit(path, Some(limit))
        })?,
        overrides: each(&field("overrides"), spec.overrides, decode_override)?,
        cost: decode_cost(spec.cost),
        action: match decode_span(&field("defer"), spec.defer)? {
            None => Action::Reject,
            Some(span) => Action::Defer(span),
        },
        on_outage: decode_on_outage(&field("on_outage"), spec.on_outage)?,
        outage_allow_list: spec
            .outage_allow_list
            .into_iter()
            .map(|k| k.values)
            .collect(),
        first_touch: decode_first_touch(&field("first_touch"), spec.first_touch)?,
        durability: decode_durability(&field("durability"), spec.durability)?,
        shadow: spec.shadow,
        shadow_percent: spec.shadow_percent,
        order: spec.order,
        disabled: spec.disabled,
        utc_offset_minutes: spec.utc_offset_minutes,
        lease: decode_lease_spec(&field("lease"), spec.lease)?,
    })
}

/// The section `lease` of a policy.
#[must_use]
pub fn encode_lease_spec(lease: &LeaseSpec) -> wire::LeaseSpec {
    wire::LeaseSpec {
        share_per_mille: Some(lease.share_per_mille),
        horizon: Some(encode_term(lease.horizon.term())),
        term_max: Some(encode_term(lease.term_max.term())),
        idle_return: Some(encode_term(lease.idle_return.term())),
        warm_floor: Some(lease.warm_floor),
    }
}

/// The section `lease` of a policy, from the field `path`; absent parts have their defaults.
///
/// # Errors
/// [`Malformed`] if a span is none.
pub fn decode_lease_spec(
    path: &str,
    lease: Option<wire::LeaseSpec>,
) -> Result<LeaseSpec, Malformed> {
    tune_lease_spec(path, lease.unwrap_or_default(), &LeaseSpec::default())
}

/// The section `lease` of a policy with the parts that `lease`, from the field `path`, changes;
/// absent parts stay as they are in `before`.
///
/// # Errors
/// [`Malformed`] if a span is none.
pub fn tune_lease_spec(
    path: &str,
    lease: wire::LeaseSpec,
    before: &LeaseSpec,
) -> Result<LeaseSpec, Malformed> {
    let span = |name: &str, span| decode_span(&format!("{path}.{name}"), span);
    Ok(LeaseSpec {
        share_per_mille: lease.share_per_mille.unwrap_or(before.share_per_mille),
        horizon: span("horizon", lease.horizon)?.unwrap_or(before.horizon),
        term_max: span("term_max", lease.term_max)?.unwrap_or(before.term_max),
        idle_return: span("idle_return", lease.idle_return)?.unwrap_or(before.idle_return),
        warm_floor: lease.warm_floor.unwrap_or(before.warm_floor),
    })
}

fn each<W, D>(
    path: &str,
    items: Vec<W>,
    decode: impl Fn(&str, W) -> Result<D, Malformed>,
) -> Result<Vec<D>, Malformed> {
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| decode(&format!("{path}[{index}]"), item))
        .collect()
}

fn encode_map<D, W>(map: &BTreeMap<String, D>, encode: fn(&D) -> W) -> BTreeMap<String, W> {
    map.iter()
        .map(|(name, item)| (name.clone(), encode(item)))
        .collect()
}

fn decode_map<W, D>(
    path: &str,
    map: BTreeMap<String, W>,
    decode: impl Fn(&str, W) -> Result<D, Malformed>,
) -> Result<BTreeMap<String, D>, Malformed> {
    map.into_iter()
        .map(|(name, item)| {
            let decoded = decode(&format!("{path}[{name:?}]"), item)?;
            Ok((name, decoded))
        })
        .collect()
}

fn decode_span(path: &str, span: Option<prost_types::Duration>) -> Result<Option<Span>, Malformed> {
    span.map(|span| decode_term(path, span).map(Span::new))
        .transpose()
}

fn encode_condition(condition: &Condition) -> wire::Condition {
    let condition = match condition {
        Condition::Literal(literal) => WireCondition::Literal(literal.clone()),
        Condition::Prefix(prefix) => WireCondition::Prefix(prefix.clone()),
        Condition::Set(values) => WireCondition::Set(wire::Values {
            values: values.clone(),
        }),
    };
    wire::Condition {
        condition: Some(condition),
    }
}

fn decode_condition(path: &str, condition: wire::Condition) -> Result<Condition, Malformed> {
    match condition.condition {
        Some(WireCondition::Literal(literal)) => Ok(Condition::Literal(literal)),
        Some(WireCondition::Prefix(prefix)) => Ok(Condition::Prefix(prefix)),
        Some(WireCondition::Set(set)) => Ok(Condition::Set(set.values)),
        None => Err(Malformed::missing(format!("{path}.condition"))),
    }
}

fn encode_limit(limit: &LimitSpec) -> wire::Limit {
    wire::Limit {
        tokens: limit.tokens,
        r#in: limit.period.map(|period| match period {
            Period::Span(span) => In::Period(encode_term(span.term())),
            Period::Month => In::CalendarPeriod(wire::CalendarPeriod::Month.into()),
        }),
        burst: limit.burst,
        emission_interval: limit.emission_interval.map(|span| encode_term(span.term())),
    }
}

fn decode_limit(path: &str, limit: Option<wire::Limit>) -> Result<LimitSpec, Malformed> {
    let limit = limit.ok_or_else(|| Malformed::missing(path))?;
    let period = match limit.r#in {
        None => None,
        Some(In::Period(span)) => {
            let term = decode_term(&format!("{path}.period"), span)?;
            Some(Period::Span(Span::new(term)))
        }
        Some(In::CalendarPeriod(raw)) if raw == i32::from(wire::CalendarPeriod::Month) => {
            Some(Period::Month)
        }
        Some(In::CalendarPeriod(raw)) => {
            let field = format!("{path}.calendar_period");
            return Err(Malformed::new(field, raw, "CALENDAR_PERIOD_MONTH (1)"));
        }
    };
    let interval = format!("{path}.emission_interval");
    Ok(LimitSpec {
        tokens: limit.tokens,
        period,
        burst: limit.burst,
        emission_interval: decode_span(&interval, limit.emission_interval)?,
    })
}

fn encode_override(item: &OverrideSpec) -> wire::Override {
    wire::Override {
        key: item.key.clone(),
        limit: Some(encode_limit(&item.limit)),
    }
}

fn decode_override(path: &str, item: wire::Override) -> Result<OverrideSpec, Malformed> {
    Ok(OverrideSpec {
        key: item.key,
        limit: decode_limit(&format!("{path}.limit"), item.limit)?,
    })
}

fn decode_cost(cost: Option<wire::Cost>) -> CostSpec {
    let cost = cost.unwrap_or_default();
    CostSpec {
        default: cost.default.unwrap_or(CostSpec::default().default),
        max: cost.max,
    }
}

/// The two directions of an enum whose zero means its default.
macro_rules! enumeration {
    ($encode:ident, $decode:ident, $name:ident { $($variant:ident),+ }) => {
        fn $encode(value: $name) -> wire::$name {
            match value {
                $($name::$variant => wire::$name::$variant,)+
            }
        }

        fn $decode(path: &str, raw: i32) -> Result<$name, Malformed> {
            match wire::$name::try_from(raw) {
                Ok(wire::$name::Unspecified) => Ok($name::default()),
                $(Ok(wire::$name::$variant) => Ok($name::$variant),)+
                Err(_) => {
                    let known = [$(wire::$name::$variant.as_str_name()),+].join(", ");
                    Err(Malformed::new(path, raw, known))
                }
            }
        }
    };
}

enumeration!(
    encode_kind,
    decode_kind,
    Kind {
        TokenBucket,
        SlidingWindow,
        CalendarWindow,
        Concurrency
    }
);
enumeration!(
    encode_on_outage,
    decode_on_outage,
    OnOutage {
        Closed,
        Open,
        Local
    }
);
enumeration!(
    encode_first_touch,
    decode_first_touch,
    FirstTouch { Wait, Deny, Admit }
);
enumeration!(
    encode_durability,
    decode_durability,
    Durability {
        Auto,
        Reserved,
        Volatile
    }
);
