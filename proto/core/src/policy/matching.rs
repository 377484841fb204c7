//! Finding the policies that match a request, without allocating.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::condition::Condition;
use super::policy::Policy;
use crate::key::{DIMENSIONS_MAX, Key, PolicyId, VALUE_BYTES_MAX};

/// Most dimensions of one request: as many as one policy can name in its key and its conditions.
pub const REQUEST_DIMENSIONS_MAX: usize = 16;
/// Most policies in one set.
pub const POLICIES_MAX: usize = 1 << 16;
/// Most index lists that one request can touch: two for each dimension, and one.
const LISTS_MAX: usize = 2 * REQUEST_DIMENSIONS_MAX + 1;

/// Many policies, indexed by what they ask of a request.
///
/// Every policy stands in the index under one thing that a matching request must have: a literal
/// value of a dimension if the policy names one (or each value of a set), else the presence of a
/// dimension. A request looks only at the lists that it has the key to, so its cost follows the
/// number of policies that nearly match and not the number of policies.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    /// By `order`, then by identity.
    policies: Vec<Arc<Policy>>,
    by_id: BTreeMap<PolicyId, usize>,
    by_dimension: BTreeMap<String, DimensionIndex>,
    /// Policies that ask for nothing.
    unconditional: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct DimensionIndex {
    /// Policies that ask for the dimension's presence.
    present: Vec<usize>,
    /// Policies that ask for a value.
    by_value: BTreeMap<String, Vec<usize>>,
}

/// Why policies do not make a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySetError {
    /// Two policies have one identity; their values do not matter for that.
    Duplicate {
        /// The identity.
        id: PolicyId,
    },
    /// More than [`POLICIES_MAX`] policies.
    TooMany {
        /// How many there were.
        count: usize,
    },
}

impl fmt::Display for PolicySetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { id } => write!(
                f,
                "policy `{id}` is there twice: a policy is known by its namespace and name alone, \
                 so keep one or rename the other"
            ),
            Self::TooMany { count } => {
                write!(f, "{count} policies; at most {POLICIES_MAX} are allowed")
            }
        }
    }
}

impl core::error::Error for PolicySetError {}

/// Why the dimensions of a request cannot be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionsError {
    /// More than [`REQUEST_DIMENSIONS_MAX`] dimensions.
    TooMany {
        /// How many there were.
        count: usize,
    },
    /// A value longer than [`VALUE_BYTES_MAX`] bytes.
    ValueTooLong {
        /// Where in the list, from zero.
        index: usize,
        /// The value's length in bytes.
        bytes: usize,
    },
    /// A dimension is named twice, so that it has no one value.
    Repeated {
        /// Where in the list its second mention is, from zero.
        index: usize,
    },
}

impl fmt::Display for DimensionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { count } => write!(
                f,
                "a request has {count} dimensions; at most {REQUEST_DIMENSIONS_MAX} are allowed"
            ),
            Self::ValueTooLong { index, bytes } => write!(
                f,
                "dimension {index} of a request has a value of {bytes} bytes; at most \
                 {VALUE_BYTES_MAX} are allowed: hash or shorten it"
            ),
            Self::Repeated { index } => write!(
                f,
                "dimension {index} of a request was named before: give each dimension once"
            ),
        }
    }
}

impl core::error::Error for DimensionsError {}

impl PolicySet {
    /// The set of these policies.
    ///
    /// # Errors
    /// [`PolicySetError`] if two policies have one identity, or there are too many.
    pub fn new(policies: impl IntoIterator<Item = Arc<Policy>>) -> Result<Self, PolicySetError> {
        let mut policies: Vec<_> = policies.into_iter().collect();
        if policies.len() > POLICIES_MAX {
            return Err(PolicySetError::TooMany {
                count: policies.len(),
            });
        }
        policies.sort_by(|a, b| (a.spec().order, a.id()).cmp(&(b.spec().order, b.id())));
        let mut set = Self::default();
        for (index, policy) in policies.iter().enumerate() {
            if set.by_id.insert(policy.id().clone(), index).is_some() {
                return Err(PolicySetError::Duplicate {
                    id: policy.id().clone(),
                });
            }
            if !policy.spec().disabled {
                set.index(index, policy);
            }
        }
        set.policies = policies;
        Ok(set)
    }

    fn index(&mut self, index: usize, policy: &Policy) {
        let conditions = &policy.spec().conditions;
        let by_value = conditions
            .iter()
            .filter(|(_, condition)| !matches!(condition, Condition::Prefix(_)))
            .min_by_key(|(_, condition)| condition.texts().len());
        if let Some((dimension, condition)) = by_value {
            let lists = self.by_dimension.entry(dimension.clone()).or_default();
            for value in condition.texts() {
                let list = lists.by_value.entry(value.clone()).or_default();
                // A set may name a value twice.
                if list.last() != Some(&index) {
                    list.push(index);
                }
            }
            return;
        }
        let present = conditions.keys().chain(policy.dimensions()).next();
        match present {
            Some(dimension) => {
                let lists = self.by_dimension.entry(dimension.clone()).or_default();
                lists.present.push(index);
            }
            None => self.unconditional.push(index),
        }
    }

    /// The policies that match a request, by `order` and then by identity, each with its key.
    /// Policies that are disabled match nothing. The order of `dimensions` does not matter.
    ///
    /// Allocates nothing.
    ///
    /// # Errors
    /// [`DimensionsError`] if the dimensions are too many, too long or repeated.
    pub fn matches<'a>(
        &'a self,
        dimensions: &'a [(&'a str, &'a str)],
    ) -> Result<Matches<'a>, DimensionsError> {
        check_dimensions(dimensions)?;
        let mut matches = Matches {
            policies: &self.policies,
            dimensions,
            lists: [&[]; LISTS_MAX],
            used: 0,
        };
        let touched = dimensions
            .iter()
            .filter_map(|(dimension, value)| Some((self.by_dimension.get(*dimension)?, *value)))
            .flat_map(|(lists, value)| {
                let by_value = lists.by_value.get(value).map_or(&[][..], Vec::as_slice);
                [&lists.present[..], by_value]
            })
            .chain([&self.unconditional[..]])
            .filter(|list| !list.is_empty());
        for ((slot, list), used) in matches.lists.iter_mut().zip(touched).zip(1..) {
            *slot = list;
            matches.used = used;
        }
        Ok(matches)
    }

    /// The policy with this identity, disabled or not.
    #[must_use]
    pub fn get(&self, id: &PolicyId) -> Option<&Arc<Policy>> {
        self.by_id
            .get(id)
            .and_then(|index| self.policies.get(*index))
    }

    /// All policies, by `order` and then by identity.
    #[must_use]
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }
}

fn check_dimensions(dimensions: &[(&str, &str)]) -> Result<(), DimensionsError> {
    if dimensions.len() > REQUEST_DIMENSIONS_MAX {
        return Err(DimensionsError::TooMany {
            count: dimensions.len(),
        });
    }
    for (index, (dimension, value)) in dimensions.iter().enumerate() {
        if value.len() > VALUE_BYTES_MAX {
            return Err(DimensionsError::ValueTooLong {
                index,
                bytes: value.len(),
            });
        }
        let mut earlier = dimensions.iter().take(index);
        if earlier.any(|(other, _)| other == dimension) {
            return Err(DimensionsError::Repeated { index });
        }
    }
    Ok(())
}

/// The policies that match one request, in order. Made by [`PolicySet::matches`].
///
/// A merge of the index lists that the request has the key to: each is in order, and no policy is
/// in two of them.
#[derive(Clone, Debug)]
pub struct Matches<'a> {
    policies: &'a [Arc<Policy>],
    dimensions: &'a [(&'a str, &'a str)],
    /// What is left of each list.
    lists: [&'a [usize]; LISTS_MAX],
    /// How many of the lists are used; the rest are empty.
    used: usize,
}

impl<'a> Iterator for Matches<'a> {
    type Item = Match<'a>;

    fn next(&mut self) -> Option<Match<'a>> {
        loop {
            let list = self
                .lists
                .iter_mut()
                .take(self.used)
                .filter(|list| !list.is_empty())
                .min_by_key(|list| list.first().copied())?;
            let (first, rest) = list.split_first()?;
            *list = rest;
            let policy = self.policies.get(*first).expect("indexes are of this set");
            if let Some(found) = Match::of(policy, self.dimensions) {
                return Some(found);
            }
        }
    }
}

/// One policy that matches a request, and the key that it picks.
#[derive(Clone, Copy, Debug)]
pub struct Match<'a> {
    policy: &'a Arc<Policy>,
    values: [&'a str; DIMENSIONS_MAX],
}

impl<'a> Match<'a> {
    fn of(policy: &'a Arc<Policy>, dimensions: &[(&'a str, &'a str)]) -> Option<Self> {
        if !policy.matches(dimensions) {
            return None;
        }
        let mut values = [""; DIMENSIONS_MAX];
        for (slot, wanted) in values.iter_mut().zip(policy.dimensions()) {
            let found = dimensions
                .iter()
                .find(|(dimension, _)| dimension == wanted)?;
            *slot = found.1;
        }
        Some(Self { policy, values })
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &'a Arc<Policy> {
        self.policy
    }

    /// The values of the policy's key dimensions, in their order.
    #[must_use]
    pub fn values(&self) -> &[&'a str] {
        let count = self.policy.dimensions().len();
        self.values.get(..count).unwrap_or(&self.values)
    }

    /// Feeds the canonical encoding of the key ([`Key::as_bytes`]) to `sink`, piece by piece:
    /// for a hasher or a buffer, without an allocation.
    pub fn write_key(&self, mut sink: impl FnMut(&[u8])) {
        for value in self.values() {
            let length = u16::try_from(value.len()).expect("lengths are checked before matching");
            sink(&length.to_be_bytes());
            sink(value.as_bytes());
        }
    }

    /// The key, allocated.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::from_values(self.values()).expect("lengths are checked before matching")
    }
}
