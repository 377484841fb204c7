//! How a policy's history is stored: specs with their versions, parsed anew when read.
//!
//! What a store holds is refused where it does not hold together, never trusted or asserted.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Span;
use super::history::{FORMER_MAX, PolicyHistory};
use super::policy::Policy;
use super::spec::PolicySpec;
use crate::id::PolicyVersion;
use crate::key::PolicyId;

/// The stored form, for reading.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    id: PolicyId,
    changed_at: PolicyVersion,
    current: Option<StoredVersion>,
    former: Vec<StoredVersion>,
    refill_floor: Span,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredVersion {
    version: PolicyVersion,
    spec: PolicySpec,
}

/// [`Stored`] for writing: nothing is cloned.
#[derive(Serialize)]
struct StoredRef<'a> {
    id: &'a PolicyId,
    changed_at: PolicyVersion,
    current: Option<StoredVersionRef<'a>>,
    former: Vec<StoredVersionRef<'a>>,
    refill_floor: Span,
}

#[derive(Serialize)]
struct StoredVersionRef<'a> {
    version: PolicyVersion,
    spec: &'a PolicySpec,
}

impl<'a> From<&'a Arc<Policy>> for StoredVersionRef<'a> {
    fn from(policy: &'a Arc<Policy>) -> Self {
        Self {
            version: policy.version(),
            spec: policy.spec(),
        }
    }
}

impl Serialize for PolicyHistory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        StoredRef {
            id: &self.id,
            changed_at: self.changed_at,
            current: self.current.as_ref().map(Into::into),
            former: self.former.iter().map(Into::into).collect(),
            refill_floor: self.refill_floor.into(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PolicyHistory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Stored::deserialize(deserializer)?;
        from_stored(stored).map_err(serde::de::Error::custom)
    }
}

/// Parses a stored history. What the functions above never produce is refused, with the reason as
/// text: it can only come from a damaged store or from one written by a newer program.
fn from_stored(stored: Stored) -> Result<PolicyHistory, String> {
    let id = stored.id;
    if stored.former.len() > FORMER_MAX.saturating_add(1) {
        return Err(format!(
            "stored policy `{id}` has {} former versions; at most {} are ever kept",
            stored.former.len(),
            FORMER_MAX.saturating_add(1)
        ));
    }
    let parse = |stored: StoredVersion| {
        let version = stored.version;
        Policy::parse(stored.spec, version)
            .map(Arc::new)
            .map_err(|error| format!("stored version {version} no longer parses: {error}"))
    };
    let current = stored.current.map(parse).transpose()?;
    let former: Vec<Arc<Policy>> = stored
        .former
        .into_iter()
        .map(parse)
        .collect::<Result<_, _>>()?;
    let history = PolicyHistory {
        id,
        changed_at: stored.changed_at,
        current,
        former,
        refill_floor: stored.refill_floor.term(),
    };
    for policy in history.versions() {
        history
            .check_successor(policy)
            .map_err(|error| format!("a stored policy contradicts itself: {error}"))?;
    }
    let versions: Vec<PolicyVersion> = history.versions().map(|policy| policy.version()).collect();
    if versions.is_empty() {
        return Err(format!("stored policy `{}` has no version", history.id));
    }
    let newest = versions.first().copied();
    if newest.is_some_and(|newest| newest > history.changed_at)
        || !versions.is_sorted_by(|a, b| a > b)
    {
        return Err(format!(
            "stored policy `{}`, last changed at revision {}, has its versions out of order",
            history.id, history.changed_at
        ));
    }
    if history
        .current()
        .is_some_and(|policy| policy.version() != history.changed_at)
    {
        return Err(format!(
            "stored policy `{}` was last changed at revision {}, but another version is in force",
            history.id, history.changed_at
        ));
    }
    Ok(history)
}
