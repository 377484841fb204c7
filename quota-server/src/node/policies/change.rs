//! What a caller wants of a policy, and what becomes of it.

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{ChangeError, Kind, POLICIES_MAX, PolicyError, PolicySpec, SWITCHES_MAX};

use crate::node::event::Applied;

/// What a caller wants of a policy.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Create or change it.
    Put {
        /// As it should be.
        spec: Box<PolicySpec>,
    },
    /// Delete it.
    Delete {
        /// Which.
        id: PolicyId,
    },
}

impl Change {
    pub(super) fn id(&self) -> PolicyId {
        match self {
            Self::Put { spec } => spec.id(),
            Self::Delete { id } => id.clone(),
        }
    }
}

/// A change with its condition.
#[derive(Clone, Debug)]
pub(crate) struct ChangeRequest {
    pub(crate) change: Change,
    /// The version that the caller wants to replace, zero for none; `None` for any.
    pub(crate) expected: Option<u64>,
    /// Check everything, change nothing.
    pub(crate) dry_run: bool,
}

/// A change that was made, or would be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    /// The version in force now, or the revision of a deletion.
    pub(crate) version: u64,
    /// What the shards said, summed up.
    pub(crate) applied: Applied,
    /// False if the stored policy said exactly this already.
    pub(crate) changed: bool,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeRefused {
    /// The spec breaks a rule.
    #[error(transparent)]
    Invalid(Box<PolicyError>),
    /// The kind is laid out, but not served yet.
    #[error("kind {kind:?} is not served by this version; token buckets are")]
    KindNotServed { kind: Kind },
    /// There is no such policy.
    #[error("policy {0} does not exist")]
    Unknown(PolicyId),
    /// Another version is in force.
    #[error("policy {id} has another version than {expected}")]
    Version {
        id: PolicyId,
        expected: PolicyVersion,
        current: Option<PolicyVersion>,
    },
    /// A living policy cannot be changed so.
    #[error("{error}")]
    NotAllowed {
        id: PolicyId,
        error: Box<ChangeError>,
    },
    /// There are too many, deleted ones that are still remembered included.
    #[error(
        "there are {POLICIES_MAX} policies already, deleted ones whose tokens may be out included: \
         delete some, or wait until the leases of deleted ones are over"
    )]
    TooMany,
    /// There are as many kill switches as there may be.
    #[error("there are {SWITCHES_MAX} kill switches already: set some back, or name a wider scope")]
    TooManySwitches,
    /// The store did not take it. Nothing has changed.
    #[error("the policy was not stored: {0}")]
    Store(String),
    /// It is stored, or may be, but not known to be in force everywhere.
    #[error("it is not known whether the change is in force: {0}; read the policy again")]
    Unsure(String),
}
