//! A valid policy: parse, don't validate.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::LimitClass;
use super::condition::Condition;
use super::error::{PolicyError, quoted};
use super::lease::{LeaseSettings, in_range};
use super::limit::{Limit, LimitContext};
use super::spec::{Action, Kind, LimitSpec, OnOutage, PolicySpec};
use crate::id::PolicyVersion;
use crate::key::{DIMENSIONS_MAX, Key, KeyError, NAME_BYTES_MAX, PolicyId, VALUE_BYTES_MAX};
use crate::message::COST_MAX;
use crate::time::Term;
use crate::tokens::Tokens;

/// The dimension whose value picks a plan.
pub const PLAN_DIMENSION: &str = "plan";
/// Most plans and overrides of one policy together.
pub const LIMITS_MAX: usize = 1_000;
/// Largest policy: the bytes of all its texts, and [`ENTRY_BYTES`] for each text and limit.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// What a text or limit counts beside its bytes towards [`SPEC_BYTES_MAX`].
pub const ENTRY_BYTES: usize = 8;
const DEFER_MIN: Term = Term::from_millis(1);
const DEFER_MAX: Term = Term::from_seconds(60);

/// One version of a policy. It cannot be invalid: [`Policy::parse`] is the only way to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    id: PolicyId,
    version: PolicyVersion,
    spec: PolicySpec,
    limit: Limit,
    plans: BTreeMap<String, Limit>,
    overrides: BTreeMap<Key, Limit>,
    /// Where the dimension `plan` stands in the key.
    plan_position: Option<usize>,
    outage_allow_list: BTreeSet<Key>,
    lease: LeaseSettings,
}

impl Policy {
    /// The policy that `spec` describes. `version` is the revision at which it was stored.
    ///
    /// Costs time in proportion to the size of the spec, which is checked first.
    ///
    /// # Errors
    /// [`PolicyError`] for the first field that is out of range or contradicts another.
    pub fn parse(spec: PolicySpec, version: PolicyVersion) -> Result<Self, PolicyError> {
        let id = spec.id();
        parse(spec, version).map_err(|error| error.in_policy(&id.namespace, &id.name))
    }

    /// Who the policy is, whatever its values.
    #[must_use]
    pub const fn id(&self) -> &PolicyId {
        &self.id
    }

    /// The version, which grows with each change of the policy.
    #[must_use]
    pub const fn version(&self) -> PolicyVersion {
        self.version
    }

    /// The policy as it was written.
    #[must_use]
    pub const fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// How the limits count.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.spec.kind
    }

    /// The dimensions whose values pick the bucket, in the order of the key.
    #[must_use]
    pub fn dimensions(&self) -> &[String] {
        &self.spec.key
    }

    /// How leases are sized and timed.
    #[must_use]
    pub const fn lease(&self) -> &LeaseSettings {
        &self.lease
    }

    /// What a request costs that does not say, at least 1 and at most every limit's `cost_max`.
    #[must_use]
    pub const fn cost_default(&self) -> Tokens {
        Tokens::new(self.spec.cost.default)
    }

    /// The percentage of keys that are only watched: 0 unless the policy is in shadow mode.
    #[must_use]
    pub fn shadow_percent(&self) -> u32 {
        match (self.spec.shadow, self.spec.shadow_percent) {
            (false, _) => 0,
            (true, percent) => percent.unwrap_or(100),
        }
    }

    /// True if `key` is admitted while no authority is in reach, by the allow list.
    #[must_use]
    pub fn is_allowed_in_outage(&self, key: &Key) -> bool {
        self.outage_allow_list.contains(key)
    }

    /// True if `key` has one value for each dimension of the policy. A key that does not fit names
    /// no bucket of this policy and is to be refused at the edge.
    #[must_use]
    pub fn fits(&self, key: &Key) -> bool {
        key.values().count() == self.spec.key.len()
    }

    /// Which limit `key` falls under: its override, else its plan's, else the policy's own.
    #[must_use]
    pub fn class_of(&self, key: &Key) -> LimitClass {
        if self.overrides.contains_key(key) {
            return LimitClass::Override(key.clone());
        }
        match self.plan_of(key) {
            Some(plan) if self.plans.contains_key(plan) => LimitClass::Plan(plan.into()),
            _ => LimitClass::Default,
        }
    }

    /// The limit of a class. A class that this version does not know falls back as its keys do:
    /// an override to its key's plan, a plan to the policy's own limit.
    #[must_use]
    pub fn limit_of(&self, class: &LimitClass) -> &Limit {
        match class {
            LimitClass::Default => &self.limit,
            LimitClass::Plan(plan) => self.plans.get(plan).unwrap_or(&self.limit),
            LimitClass::Override(key) => self.limit_for(key),
        }
    }

    /// The limit of a key.
    #[must_use]
    pub fn limit_for(&self, key: &Key) -> &Limit {
        self.overrides
            .get(key)
            .or_else(|| self.plans.get(self.plan_of(key)?))
            .unwrap_or(&self.limit)
    }

    /// All classes: the policy's own, the plans and the overrides.
    pub fn classes(&self) -> impl Iterator<Item = LimitClass> {
        let plans = self.plans.keys().cloned().map(LimitClass::Plan);
        let overrides = self.overrides.keys().cloned().map(LimitClass::Override);
        core::iter::once(LimitClass::Default)
            .chain(plans)
            .chain(overrides)
    }

    /// True if tokens of this limit are booked durably before they are granted.
    #[must_use]
    pub const fn is_reserved(&self, limit: &Limit) -> bool {
        limit.is_reserved()
    }

    /// True if the policy applies to a request with these dimensions: it is not disabled, all its
    /// conditions hold and all dimensions of its key are there. The order of `dimensions` does not
    /// matter.
    #[must_use]
    pub fn matches(&self, dimensions: &[(&str, &str)]) -> bool {
        !self.spec.disabled
            && self.spec.conditions.iter().all(|(dimension, condition)| {
                value_of(dimensions, dimension).is_some_and(|value| condition.holds(value))
            })
            && self
                .spec
                .key
                .iter()
                .all(|dimension| value_of(dimensions, dimension).is_some())
    }

    /// The key of a request with these dimensions; `None` if the policy does not match it.
    ///
    /// # Errors
    /// [`KeyError`] if a value is too long.
    pub fn key_of(&self, dimensions: &[(&str, &str)]) -> Result<Option<Key>, KeyError> {
        if !self.matches(dimensions) {
            return Ok(None);
        }
        let values: Vec<&str> = self
            .spec
            .key
            .iter()
            .filter_map(|dimension| value_of(dimensions, dimension))
            .collect();
        Key::from_values(&values).map(Some)
    }

    /// The value of the dimension `plan` in `key`.
    pub(super) fn plan_of<'a>(&self, key: &'a Key) -> Option<&'a str> {
        let value = key.values().nth(self.plan_position?)?;
        core::str::from_utf8(value).ok()
    }

    pub(super) fn has_override(&self, key: &Key) -> bool {
        self.overrides.contains_key(key)
    }

    pub(super) fn has_plan(&self, plan: &str) -> bool {
        self.plans.contains_key(plan)
    }

    /// All limits of the policy.
    fn limits(&self) -> impl Iterator<Item = &Limit> {
        core::iter::once(&self.limit)
            .chain(self.plans.values())
            .chain(self.overrides.values())
    }
}

fn value_of<'a>(dimensions: &[(&str, &'a str)], wanted: &str) -> Option<&'a str> {
    dimensions
        .iter()
        .find(|(dimension, _)| *dimension == wanted)
        .map(|(_, value)| *value)
}

fn parse(spec: PolicySpec, version: PolicyVersion) -> Result<Policy, PolicyError> {
    check_size(&spec)?;
    check_name("name", &spec.name)?;
    check_name("namespace", &spec.namespace)?;
    check_key_dimensions(&spec.key)?;
    check_conditions(&spec.conditions)?;
    check_behaviour(&spec)?;
    let lease = LeaseSettings::parse(&spec.lease)?;
    let context = LimitContext {
        kind: spec.kind,
        durability: spec.durability,
        cost: &spec.cost,
        lease: &lease,
    };
    let plan_position = spec.key.iter().position(|name| name == PLAN_DIMENSION);
    let policy = Policy {
        id: spec.id(),
        version,
        limit: Limit::parse(&spec.limit, "limit", &context)?,
        plans: parse_plans(&spec.plans, plan_position, &context)?,
        overrides: parse_overrides(&spec, &context)?,
        plan_position,
        outage_allow_list: parse_allow_list(&spec)?,
        lease,
        spec,
    };
    check_cost(&policy)?;
    check_warm_floor(&policy)?;
    Ok(policy)
}

fn check_size(spec: &PolicySpec) -> Result<(), PolicyError> {
    let limits = spec.plans.len().saturating_add(spec.overrides.len());
    if limits > LIMITS_MAX {
        return Err(PolicyError::new(
            "overrides",
            format!("{limits} entries together with `plans`"),
            format!("at most {LIMITS_MAX} are allowed: use plans for groups of keys"),
        ));
    }
    let texts = [&spec.name, &spec.namespace]
        .into_iter()
        .chain(&spec.key)
        .chain(spec.conditions.keys())
        .chain(spec.conditions.values().flat_map(Condition::texts))
        .chain(spec.plans.keys())
        .chain(spec.overrides.iter().flat_map(|one| &one.key))
        .chain(spec.outage_allow_list.iter().flatten());
    let entries = limits.saturating_add(spec.outage_allow_list.len());
    let bytes = texts.fold(entries.saturating_mul(ENTRY_BYTES), |bytes, text| {
        bytes.saturating_add(text.len()).saturating_add(ENTRY_BYTES)
    });
    if bytes > SPEC_BYTES_MAX {
        return Err(PolicyError::new(
            "policy",
            format!("{bytes} bytes of text"),
            format!("at most {SPEC_BYTES_MAX} are allowed: shorten its lists"),
        ));
    }
    Ok(())
}

fn check_name(field: &str, name: &str) -> Result<(), PolicyError> {
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let holds_well = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if begins_well && holds_well && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(PolicyError::of_text(
        field,
        name,
        format!(
            "it must be 1 to {NAME_BYTES_MAX} ASCII letters, digits, `-`, `_` or `.`, beginning \
             with a letter or digit"
        ),
    ))
}

fn check_key_dimensions(key: &[String]) -> Result<(), PolicyError> {
    if key.len() > DIMENSIONS_MAX {
        return Err(PolicyError::new(
            "key",
            format!("{} dimensions", key.len()),
            format!("at most {DIMENSIONS_MAX} are allowed"),
        ));
    }
    let mut seen = BTreeSet::new();
    for (index, dimension) in key.iter().enumerate() {
        let field = format!("key[{index}]");
        check_name(&field, dimension)?;
        if !seen.insert(dimension) {
            return Err(PolicyError::of_text(
                field,
                dimension,
                "it is already in the key: each dimension may be there once",
            ));
        }
    }
    Ok(())
}

fn check_conditions(conditions: &BTreeMap<String, Condition>) -> Result<(), PolicyError> {
    if conditions.len() > DIMENSIONS_MAX {
        return Err(PolicyError::new(
            "match",
            format!("{} dimensions", conditions.len()),
            format!("at most {DIMENSIONS_MAX} are allowed"),
        ));
    }
    for (dimension, condition) in conditions {
        check_name("match", dimension)?;
        let field = format!("match.{dimension}");
        if condition.texts().is_empty() {
            return Err(PolicyError::new(
                field,
                "an empty set",
                "it would match nothing: name at least one value, or set `disabled = true`",
            ));
        }
        for text in condition.texts() {
            check_value(&field, text)?;
        }
    }
    Ok(())
}

fn check_value(field: &str, value: &str) -> Result<(), PolicyError> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(PolicyError::new(
        field,
        format!("{} of {} bytes", quoted(value), value.len()),
        format!("no value of a dimension is longer than {VALUE_BYTES_MAX} bytes"),
    ))
}

fn check_behaviour(spec: &PolicySpec) -> Result<(), PolicyError> {
    if let Action::Defer(bound) = spec.action {
        in_range("action.defer", bound, DEFER_MIN, DEFER_MAX)?;
    }
    if !spec.outage_allow_list.is_empty() && spec.on_outage != OnOutage::Closed {
        return Err(PolicyError::new(
            "outage_allow_list",
            format!("{} keys", spec.outage_allow_list.len()),
            "it has a meaning only with `on_outage = \"closed\"`",
        ));
    }
    match spec.shadow_percent {
        Some(percent) if !(1..=100).contains(&percent) => {
            return Err(PolicyError::new(
                "shadow_percent",
                percent,
                "it must be 1 to 100; to turn shadow mode off, set `shadow = false`",
            ));
        }
        Some(percent) if !spec.shadow => {
            return Err(PolicyError::new(
                "shadow_percent",
                percent,
                "it has a meaning only with `shadow = true`",
            ));
        }
        _ => {}
    }
    let offset = spec.utc_offset_minutes;
    if !(-720..=840).contains(&offset) {
        return Err(PolicyError::new(
            "utc_offset_minutes",
            offset,
            "it must be -720 to 840, the offsets that are in use on Earth",
        ));
    }
    if offset != 0 && spec.kind != Kind::CalendarWindow {
        return Err(PolicyError::new(
            "utc_offset_minutes",
            offset,
            "it has a meaning only with `kind = \"calendar-window\"`",
        ));
    }
    Ok(())
}

fn parse_plans(
    plans: &BTreeMap<String, LimitSpec>,
    plan_position: Option<usize>,
    context: &LimitContext<'_>,
) -> Result<BTreeMap<String, Limit>, PolicyError> {
    if !plans.is_empty() && plan_position.is_none() {
        return Err(PolicyError::new(
            "plans",
            format!("{} plans", plans.len()),
            "a key's plan is the value of its dimension `plan`: add \"plan\" to `key`",
        ));
    }
    let mut parsed = BTreeMap::new();
    for (plan, spec) in plans {
        if plan.is_empty() {
            return Err(PolicyError::of_text("plans", plan, "a plan needs a name"));
        }
        check_value("plans", plan)?;
        let path = format!("plans.{}", plan.escape_debug());
        parsed.insert(plan.clone(), Limit::parse(spec, &path, context)?);
    }
    Ok(parsed)
}

fn parse_overrides(
    spec: &PolicySpec,
    context: &LimitContext<'_>,
) -> Result<BTreeMap<Key, Limit>, PolicyError> {
    let mut parsed = BTreeMap::new();
    for (index, one) in spec.overrides.iter().enumerate() {
        let field = format!("overrides[{index}].key");
        let key = parse_key(&field, &one.key, &spec.key)?;
        let path = format!("overrides[{index}].limit");
        let limit = Limit::parse(&one.limit, &path, context)?;
        if parsed.insert(key.clone(), limit).is_some() {
            return Err(PolicyError::of_text(
                field,
                &format!("{key}"),
                "an earlier override has the same key: keep one of them",
            ));
        }
    }
    Ok(parsed)
}

fn parse_allow_list(spec: &PolicySpec) -> Result<BTreeSet<Key>, PolicyError> {
    spec.outage_allow_list
        .iter()
        .enumerate()
        .map(|(index, values)| parse_key(&format!("outage_allow_list[{index}]"), values, &spec.key))
        .collect()
}

fn parse_key(field: &str, values: &[String], dimensions: &[String]) -> Result<Key, PolicyError> {
    if values.len() != dimensions.len() {
        return Err(PolicyError::new(
            field,
            format!("{} values", values.len()),
            format!(
                "it needs one value for each of the {} dimensions of `key`: {}",
                dimensions.len(),
                dimensions.join(", ")
            ),
        ));
    }
    for value in values {
        check_value(field, value)?;
    }
    Key::from_values(values).map_err(|error| {
        PolicyError::new(
            field,
            format!("{} values", values.len()),
            format!("{error}"),
        )
    })
}

fn check_cost(policy: &Policy) -> Result<(), PolicyError> {
    let largest = policy.limits().map(Limit::capacity).max();
    let highest = largest.expect("there is a limit").min(COST_MAX);
    if let Some(max) = policy.spec.cost.max
        && !(1..=highest.get()).contains(&max)
    {
        return Err(PolicyError::new(
            "cost.max",
            max,
            format!(
                "it must be 1 to {highest}: a request can cost no more than the largest capacity, \
                 nor more than {COST_MAX}"
            ),
        ));
    }
    let lowest = policy.limits().map(Limit::cost_max).min();
    let lowest = lowest.expect("there is a limit");
    let default = policy.spec.cost.default;
    if !(1..=lowest.get()).contains(&default) {
        return Err(PolicyError::new(
            "cost.default",
            default,
            format!(
                "it must be 1 to {lowest}: one of the limits admits no dearer request, so plain \
                 requests would never pass"
            ),
        ));
    }
    Ok(())
}

fn check_warm_floor(policy: &Policy) -> Result<(), PolicyError> {
    let smallest = policy.limits().map(Limit::capacity).min();
    let smallest = smallest.expect("there is a limit");
    if policy.lease.warm_floor() <= smallest {
        return Ok(());
    }
    Err(PolicyError::new(
        "lease.warm_floor",
        policy.lease.warm_floor(),
        format!("it must be 0 to {smallest}, the smallest capacity in the policy"),
    ))
}
