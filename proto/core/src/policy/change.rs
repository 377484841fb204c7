//! Why a policy cannot be changed as asked.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::PolicyError;
use super::history::FORMER_MAX;
use super::spec::Kind;
use crate::id::PolicyVersion;
use crate::key::PolicyId;

/// Why a policy cannot be changed so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// The new spec is not a policy.
    Invalid(PolicyError),
    /// The new spec names another policy.
    OtherPolicy {
        /// The policy to be changed.
        id: PolicyId,
        /// The one that the spec names.
        named: PolicyId,
    },
    /// The revision is not newer than the latest change.
    NotNewer {
        /// The policy.
        id: PolicyId,
        /// The revision of its latest change.
        latest: PolicyVersion,
        /// The revision offered.
        offered: PolicyVersion,
    },
    /// The key dimensions differ: the old buckets would name nothing any more.
    KeyChanged {
        /// The policy.
        id: PolicyId,
        /// The dimensions so far.
        from: Vec<String>,
        /// The dimensions wanted.
        to: Vec<String>,
    },
    /// The kind differs: what was used under one kind means nothing under another.
    KindChanged {
        /// The policy.
        id: PolicyId,
        /// The kind so far.
        from: Kind,
        /// The kind wanted.
        to: Kind,
    },
    /// Too many former versions are not over yet.
    TooManyFormer {
        /// The policy.
        id: PolicyId,
    },
    /// The policy is deleted.
    Deleted {
        /// The policy.
        id: PolicyId,
    },
    /// The policy exists already.
    Exists {
        /// The policy.
        id: PolicyId,
    },
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::OtherPolicy { id, named } => write!(
                f,
                "policy `{id}` cannot be changed into `{named}`: a name is for good; create \
                 another policy"
            ),
            Self::NotNewer {
                id,
                latest,
                offered,
            } => write!(
                f,
                "policy `{id}` was last changed at revision {latest}; revision {offered} is not \
                 newer"
            ),
            Self::KeyChanged { id, from, to } => write!(
                f,
                "the key of policy `{id}` cannot be changed from [{}] to [{}] while its buckets \
                 may be in use: create a policy of another name, or delete this one and create it \
                 again when its old grants are over",
                from.join(", "),
                to.join(", ")
            ),
            Self::KindChanged { id, from, to } => write!(
                f,
                "the kind of policy `{id}` cannot be changed from {from:?} to {to:?} while its \
                 buckets may be in use: create a policy of another name, or delete this one and \
                 create it again when its old grants are over"
            ),
            Self::TooManyFormer { id } => write!(
                f,
                "policy `{id}` has {FORMER_MAX} former versions whose grants may still be live: \
                 wait until they are over (one longest term and one complete refill), or return to \
                 limits and lease settings that it had before"
            ),
            Self::Deleted { id } => write!(f, "policy `{id}` is deleted: create it again instead"),
            Self::Exists { id } => write!(f, "policy `{id}` exists already: change it instead"),
        }
    }
}

impl core::error::Error for ChangeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PolicyError> for ChangeError {
    fn from(error: PolicyError) -> Self {
        Self::Invalid(error)
    }
}
