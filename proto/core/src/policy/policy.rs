//! A valid policy: parse, don't validate.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::LimitClass;
use super::check;
use super::error::PolicyError;
use super::lease::LeaseSettings;
use super::limit::{Limit, LimitContext};
use super::spec::{Kind, LimitSpec, PolicySpec};
use crate::id::PolicyVersion;
use crate::key::{Key, KeyError, PolicyId};
use crate::tokens::Tokens;

/// The dimension whose value picks a plan.
pub const PLAN_DIMENSION: &str = "plan";

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
    pub(crate) fn plan_of<'a>(&self, key: &'a Key) -> Option<&'a str> {
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
    pub(super) fn limits(&self) -> impl Iterator<Item = &Limit> {
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
    check::size(&spec)?;
    check::name("name", &spec.name)?;
    check::name("namespace", &spec.namespace)?;
    check::key_dimensions(&spec.key)?;
    check::conditions(&spec.conditions)?;
    check::behaviour(&spec)?;
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
    check::cost(&policy)?;
    check::warm_floor(&policy)?;
    Ok(policy)
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
        check::value("plans", plan)?;
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
        check::value(field, value)?;
    }
    Key::from_values(values).map_err(|error| {
        PolicyError::new(
            field,
            format!("{} values", values.len()),
            format!("{error}"),
        )
    })
}
