//! The checks of a spec's fields: each refuses by field, value and what is allowed there.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;

use super::condition::Condition;
use super::error::{PolicyError, quoted};
use super::lease::in_range;
use super::limit::Limit;
use super::policy::Policy;
use super::spec::{Action, Kind, OnOutage, PolicySpec};
use crate::key::{DIMENSIONS_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::message::COST_MAX;
use crate::time::Term;

/// Most plans and overrides of one policy together.
pub const LIMITS_MAX: usize = 1_000;
/// Largest policy: the bytes of all its texts, and [`ENTRY_BYTES`] for each text and limit.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// What a text or limit counts beside its bytes towards [`SPEC_BYTES_MAX`].
pub const ENTRY_BYTES: usize = 8;
const DEFER_MIN: Term = Term::from_millis(1);
const DEFER_MAX: Term = Term::from_seconds(60);

pub(super) fn size(spec: &PolicySpec) -> Result<(), PolicyError> {
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

pub(super) fn name(field: &str, name: &str) -> Result<(), PolicyError> {
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

pub(super) fn key_dimensions(key: &[String]) -> Result<(), PolicyError> {
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
        name(&field, dimension)?;
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

pub(super) fn conditions(conditions: &BTreeMap<String, Condition>) -> Result<(), PolicyError> {
    if conditions.len() > DIMENSIONS_MAX {
        return Err(PolicyError::new(
            "match",
            format!("{} dimensions", conditions.len()),
            format!("at most {DIMENSIONS_MAX} are allowed"),
        ));
    }
    for (dimension, condition) in conditions {
        name("match", dimension)?;
        let field = format!("match.{dimension}");
        if condition.texts().is_empty() {
            return Err(PolicyError::new(
                field,
                "an empty set",
                "it would match nothing: name at least one value, or set `disabled = true`",
            ));
        }
        for text in condition.texts() {
            value(&field, text)?;
        }
    }
    Ok(())
}

pub(super) fn value(field: &str, value: &str) -> Result<(), PolicyError> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(PolicyError::new(
        field,
        format!("{} of {} bytes", quoted(value), value.len()),
        format!("no value of a dimension is longer than {VALUE_BYTES_MAX} bytes"),
    ))
}

pub(super) fn behaviour(spec: &PolicySpec) -> Result<(), PolicyError> {
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

pub(super) fn cost(policy: &Policy) -> Result<(), PolicyError> {
    let largest = policy.limits().map(Limit::capacity).max();
    let highest = largest.expect("there is a limit").min(COST_MAX);
    if let Some(max) = policy.spec().cost.max
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
    let default = policy.spec().cost.default;
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

pub(super) fn warm_floor(policy: &Policy) -> Result<(), PolicyError> {
    let smallest = policy.limits().map(Limit::capacity).min();
    let smallest = smallest.expect("there is a limit");
    if policy.lease().warm_floor() <= smallest {
        return Ok(());
    }
    Err(PolicyError::new(
        "lease.warm_floor",
        policy.lease().warm_floor(),
        format!("it must be 0 to {smallest}, the smallest capacity in the policy"),
    ))
}
