//! A policy through its changes: the version in force, and the earlier ones whose grants may still
//! be live.
//!
//! A change of a policy does not undo what was granted before it. Until that is over, a restart or
//! a take-over has to reckon with the largest capacity, share, cost and term of every version that
//! any owner may still have granted under, across deletion and re-creation too. This module keeps
//! those versions and answers for them; *when* they may be forgotten is for the store to say, which
//! knows what owners have applied.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::change::ChangeError;
use super::lease::{LeaseSettings, live_cap};
use super::limit::Limit;
use super::policy::Policy;
use super::spec::PolicySpec;
use super::{LimitClass, PolicyError};
use crate::id::PolicyVersion;
use crate::key::{Key, PolicyId};
use crate::rate::Rate;
use crate::time::{DriftAllowance, Term};
use crate::tokens::Tokens;

/// Most former versions that a change may leave. Versions that another one outdoes in every
/// respect are not kept, so only changes that trade one thing for another add up. A deletion may
/// leave one more, so that it is never refused for their number.
pub const FORMER_MAX: usize = 32;

/// A policy's version in force and the former ones that still matter.
///
/// Serialised as specs with versions; reading parses them again and refuses what does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyHistory {
    pub(super) id: PolicyId,
    /// The revision of the latest change, a deletion included.
    pub(super) changed_at: PolicyVersion,
    pub(super) current: Option<Arc<Policy>>,
    /// Newest first; all older than `current`.
    pub(super) former: Vec<Arc<Policy>>,
    /// The longest refill reckoned with at any change since `former` was last empty: versions
    /// that were dropped because others outdo them may have refilled more slowly.
    pub(super) refill_floor: Term,
}

/// What one version may have granted a class of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure<'a> {
    /// The limit of the class under that version.
    pub limit: &'a Limit,
    /// That version's lease settings.
    pub lease: &'a LeaseSettings,
    /// True if its grants were booked durably, so that records tell what may be out.
    pub reserved: bool,
    /// The version.
    pub version: PolicyVersion,
}

impl PolicyHistory {
    /// The history of a policy that never was before.
    ///
    /// # Errors
    /// [`PolicyError`] if the spec is not a policy.
    pub fn create(spec: PolicySpec, version: PolicyVersion) -> Result<Self, PolicyError> {
        let policy = Policy::parse(spec, version)?;
        Ok(Self {
            id: policy.id().clone(),
            changed_at: version,
            current: Some(Arc::new(policy)),
            former: Vec::new(),
            refill_floor: Term::ZERO,
        })
    }

    /// The history after a change of the policy in force. The version in force so far becomes a
    /// former one, unless another kept version outdoes it in every respect.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing is changed then.
    pub fn change(&self, spec: PolicySpec, version: PolicyVersion) -> Result<Self, ChangeError> {
        if self.current.is_none() {
            return Err(ChangeError::Deleted {
                id: self.id.clone(),
            });
        }
        self.replaced(Some(spec), version)
    }

    /// The history after the policy was deleted: a tombstone, with every version whose grants may
    /// still be live.
    ///
    /// # Errors
    /// [`ChangeError::Deleted`] or [`ChangeError::NotNewer`].
    pub fn delete(&self, version: PolicyVersion) -> Result<Self, ChangeError> {
        if self.current.is_none() {
            return Err(ChangeError::Deleted {
                id: self.id.clone(),
            });
        }
        self.replaced(None, version)
    }

    /// The history after a deleted policy was created again. It inherits the former versions, so
    /// deletion is no way around the limit. While there are any, key and kind must be as before.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing is changed then.
    pub fn recreate(&self, spec: PolicySpec, version: PolicyVersion) -> Result<Self, ChangeError> {
        if self.current.is_some() {
            return Err(ChangeError::Exists {
                id: self.id.clone(),
            });
        }
        self.replaced(Some(spec), version)
    }

    /// The history without its former versions: to be called once every owner has applied the
    /// latest change and [`clearable_after`](Self::clearable_after) has passed since. `None` if
    /// nothing is left, as for a tombstone.
    #[must_use]
    pub fn cleared(&self) -> Option<Self> {
        self.current.as_ref()?;
        Some(Self {
            former: Vec::new(),
            refill_floor: Term::ZERO,
            ..self.clone()
        })
    }

    /// The policy's identity.
    #[must_use]
    pub const fn id(&self) -> &PolicyId {
        &self.id
    }

    /// The revision of the latest change, creation and deletion included.
    #[must_use]
    pub const fn changed_at(&self) -> PolicyVersion {
        self.changed_at
    }

    /// The version in force; `None` after deletion.
    #[must_use]
    pub const fn current(&self) -> Option<&Arc<Policy>> {
        self.current.as_ref()
    }

    /// The kept former versions, newest first. A version that another kept one outdoes in every
    /// respect is not among them.
    #[must_use]
    pub fn former(&self) -> &[Arc<Policy>] {
        &self.former
    }

    /// The version in force and the kept former ones, newest first.
    pub fn versions(&self) -> impl Iterator<Item = &Arc<Policy>> + Clone {
        self.current.iter().chain(&self.former)
    }

    /// The class of a key in the finest division that any kept version makes: what kept versions
    /// granted is told apart by it, where the class of one version alone may lump together keys
    /// that another version's overrides or plans tell apart.
    #[must_use]
    pub fn class_of(&self, key: &Key) -> LimitClass {
        if self.versions().any(|policy| policy.has_override(key)) {
            return LimitClass::Override(key.clone());
        }
        // The key dimensions are the same in all versions, so any of them finds the plan.
        let plan = self.versions().next().and_then(|first| first.plan_of(key));
        match plan {
            Some(plan) if self.versions().any(|policy| policy.has_plan(plan)) => {
                LimitClass::Plan(plan.into())
            }
            _ => LimitClass::Default,
        }
    }

    /// All classes of all kept versions, each once, in order.
    pub fn classes(&self) -> impl Iterator<Item = LimitClass> + use<> {
        let classes: BTreeSet<_> = self
            .versions()
            .flat_map(|policy| policy.classes())
            .collect();
        classes.into_iter()
    }

    /// What each kept version may have granted keys of a class, newest first. The class must be
    /// one of this history ([`class_of`](Self::class_of)).
    pub fn exposures_for(&self, class: &LimitClass) -> impl Iterator<Item = Exposure<'_>> {
        self.versions().map(move |policy| {
            let limit = policy.limit_of(class);
            Exposure {
                limit,
                lease: policy.lease(),
                reserved: policy.is_reserved(limit),
                version: policy.version(),
            }
        })
    }

    /// The largest capacity of a class in any kept version.
    #[must_use]
    pub fn capacity_max(&self, class: &LimitClass) -> Tokens {
        let capacities = self.exposures_for(class).map(|one| one.limit.capacity());
        capacities.max().unwrap_or_default()
    }

    /// The longest term of any kept version, as the authority counts it: when it has passed since
    /// a take-over, nothing that a predecessor granted is live.
    #[must_use]
    pub fn term_max(&self, drift: DriftAllowance) -> Term {
        let terms = self.versions().map(|policy| policy.lease().term_max());
        drift.stretch(terms.max().unwrap_or_default())
    }

    /// The most that `tenures` earlier owners together may have left live in a bucket of a class:
    /// what counts as outstanding at a take-over without a record.
    ///
    /// Each owner keeps its live grants within [`live_cap`] of what the ghosts before it left
    /// free. Owners may have served different versions, and one owner several, so the largest
    /// capacity, share and cost floor are taken from all kept versions together. That covers every
    /// mixture: with `g` the ghost before a tenure, the ghost after it is at most
    /// `min(B, g + max(1, floor, ⌊share · (B − g) / 1000⌋))`, which never shrinks when `B`, `share`,
    /// `floor` or `g` grows (a token more in `g` takes at most one from the last term, since a
    /// share is at most the whole). By induction over the tenures the result with the maxima is at
    /// least that of any choice among the versions.
    ///
    /// Costs one step for each tenure, and stops when the whole capacity is reached.
    #[must_use]
    pub fn ghost(&self, class: &LimitClass, tenures: u32) -> Tokens {
        let capacity = self.capacity_max(class);
        let exposures = || self.exposures_for(class);
        let floor = exposures().map(|one| one.limit.cost_floor()).max();
        let share = exposures().map(|one| one.lease.share_per_mille()).max();
        let (floor, share) = (floor.unwrap_or_default(), share.unwrap_or_default());
        let mut free = capacity;
        for _ in 0..tenures {
            if free.is_zero() {
                break;
            }
            free = free.minus(live_cap(free, share, floor));
        }
        capacity.minus(free)
    }

    /// True if every kept version at or after `since` books this class durably. Then a bucket of
    /// which there is no record has not been touched since, or is full again.
    #[must_use]
    pub fn durable_throughout(&self, class: &LimitClass, since: PolicyVersion) -> bool {
        self.exposures_for(class)
            .filter(|one| one.version >= since)
            .all(|one| one.reserved)
    }

    /// For how long former versions must be kept once every owner has applied the latest change:
    /// one longest stretched term, after which nothing that they granted is live, and the longest
    /// time in which the largest capacity of a class refills at the slowest rate of any version,
    /// after which nothing that was used under them is missing. Zero if there are none.
    #[must_use]
    pub fn clearable_after(&self, drift: DriftAllowance) -> Term {
        if self.former.is_empty() {
            return Term::ZERO;
        }
        let refill = refill_max(self.versions()).max(self.refill_floor);
        self.term_max(drift) + refill
    }

    fn replaced(
        &self,
        spec: Option<PolicySpec>,
        version: PolicyVersion,
    ) -> Result<Self, ChangeError> {
        if version <= self.changed_at {
            return Err(ChangeError::NotNewer {
                id: self.id.clone(),
                latest: self.changed_at,
                offered: version,
            });
        }
        let current = spec
            .map(|spec| Policy::parse(spec, version))
            .transpose()?
            .map(Arc::new);
        if let Some(next) = &current {
            self.check_successor(next)?;
        }
        let before: Vec<Arc<Policy>> = self.versions().cloned().collect();
        let refill = refill_max(current.iter().chain(&before));
        let former = without_outdone(before, current.as_deref());
        let room = match current {
            Some(_) if self.current.is_some() => FORMER_MAX,
            _ => FORMER_MAX.saturating_add(1),
        };
        if former.len() > room {
            return Err(ChangeError::TooManyFormer {
                id: self.id.clone(),
            });
        }
        // Without former versions the one in force answers for everything by itself.
        let refill_floor = if former.is_empty() {
            Term::ZERO
        } else {
            refill.max(self.refill_floor)
        };
        Ok(Self {
            id: self.id.clone(),
            changed_at: version,
            current,
            former,
            refill_floor,
        })
    }

    /// Refuses a policy that cannot follow the versions kept here, whatever its version.
    pub(super) fn check_successor(&self, next: &Policy) -> Result<(), ChangeError> {
        if *next.id() != self.id {
            return Err(ChangeError::OtherPolicy {
                id: self.id.clone(),
                named: next.id().clone(),
            });
        }
        let Some(last) = self.versions().next() else {
            return Ok(());
        };
        if next.dimensions() != last.dimensions() {
            return Err(ChangeError::KeyChanged {
                id: self.id.clone(),
                from: last.dimensions().to_vec(),
                to: next.dimensions().to_vec(),
            });
        }
        if next.kind() != last.kind() {
            return Err(ChangeError::KindChanged {
                id: self.id.clone(),
                from: last.kind(),
                to: next.kind(),
            });
        }
        Ok(())
    }
}

/// Removes every version that another remaining one, or `next`, outdoes. Removal goes one by one,
/// oldest first, so that of two equals one stays; outdoing is transitive, so what a removed version
/// stood for stays covered.
///
/// Without a next version, as after a deletion, the newest stays whatever outdoes it: it is the one
/// under which its buckets go on refilling, and only capacities and terms are compared here.
fn without_outdone(before: Vec<Arc<Policy>>, next: Option<&Policy>) -> Vec<Arc<Policy>> {
    let mut kept = before;
    let first = usize::from(next.is_none());
    for index in (first..kept.len()).rev() {
        let candidate = Arc::clone(&kept[index]);
        let others = kept.iter().enumerate().filter(|(i, _)| *i != index);
        let outdone = others
            .map(|(_, other)| &**other)
            .chain(next)
            .any(|other| outdoes(other, &candidate));
        if outdone {
            kept.remove(index);
        }
    }
    kept
}

/// True if whatever may be live of `former`, `other` accounts for as well: for every class its
/// capacity, share, cost floor and term are at least as large. And where `former` left no records,
/// `other` left none either and is newer, so that the question whether all versions since some
/// revision were durable keeps its answer.
fn outdoes(other: &Policy, former: &Policy) -> bool {
    let classes: BTreeSet<LimitClass> = other.classes().chain(former.classes()).collect();
    other.lease().share_per_mille() >= former.lease().share_per_mille()
        && other.lease().term_max() >= former.lease().term_max()
        && classes.iter().all(|class| {
            let (new, old) = (other.limit_of(class), former.limit_of(class));
            let as_volatile = !new.is_reserved() && other.version() > former.version();
            new.capacity() >= old.capacity()
                && new.cost_floor() >= old.cost_floor()
                && (old.is_reserved() || as_volatile)
        })
}

/// The longest time in which the largest capacity of a class refills at its slowest rate.
fn refill_max<'a>(versions: impl Iterator<Item = &'a Arc<Policy>> + Clone) -> Term {
    let classes: BTreeSet<LimitClass> = versions
        .clone()
        .flat_map(|policy| policy.classes())
        .collect();
    let of_class = |class: &LimitClass| {
        let limits = versions.clone().map(|policy| policy.limit_of(class));
        let capacity = limits.clone().map(Limit::capacity).max()?;
        let slowest = limits.map(Limit::rate).reduce(slower)?;
        Some(slowest.time_for(capacity))
    };
    classes
        .iter()
        .filter_map(of_class)
        .max()
        .unwrap_or_default()
}

fn slower(a: Rate, b: Rate) -> Rate {
    if a.at_least(b) { b } else { a }
}
