//! Handles: one bucket, looked up once.
//!
//! A handle remembers its key's fingerprint, limit and place in the table. The place is only a
//! hint: the key may have been closed to make room, and then comes back somewhere else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use quota_core::holder::Slot;
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::tokens::Tokens;

use crate::decide::{Attempt, Claim, Mood, Wait};
use crate::decision::{Decision, Outcome, Reason};
use crate::fingerprint::Fingerprint;
use crate::rules::{RuleLimit, Rules};
use crate::shared::Shared;

/// A handle to one bucket. Made by [`crate::QuotaClient::bucket`]; share it by reference or in an
/// `Arc`. It keeps no lease alive by itself and outlives its client, refusing everything then.
pub struct Handle {
    shared: Arc<Shared>,
    policy: PolicyId,
    dimensions: Box<[(String, String)]>,
    view: ArcSwap<View>,
}

/// What the handle worked out from one generation of rules.
#[derive(Debug)]
struct View {
    generation: u64,
    rules: Arc<Rules>,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// No policies are known yet.
    Unknown,
    /// There is no such policy.
    NoPolicy,
    /// The policy applies to nothing: everything passes.
    Disabled,
    /// The key lacks a dimension, or a value is too long.
    NoKey,
    Bucket(Bucket),
}

#[derive(Debug)]
struct Bucket {
    /// Of the policy in the rules.
    index: usize,
    key: Key,
    fingerprint: Fingerprint,
    limit: RuleLimit,
    watched: bool,
    /// Where the key was found last.
    hint: AtomicU32,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, policy: PolicyId, dimensions: &[(&str, &str)]) -> Self {
        let dimensions: Box<[_]> = dimensions
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let view = View::work_out(&shared, &policy, &dimensions);
        Self {
            shared,
            policy,
            dimensions,
            view: ArcSwap::from_pointee(view),
        }
    }

    /// Takes `cost` tokens if they are at hand. Never waits; takes no lock, allocates nothing and
    /// makes no system call but the clock, except for the first touch of the key and after a
    /// change of the policies.
    #[must_use = "a refused request must not pass"]
    pub fn try_acquire(&self, cost: u64) -> Decision<'_> {
        self.shared
            .finish(self.attempt(Tokens::new(cost), Mood::Hasty))
    }

    /// Takes `cost` tokens, waiting for them up to `within`, under the same rules as
    /// [`crate::QuotaClient::check_within`]. Callers that wait are woken in the order in which
    /// they came; one that does not have to wait may be faster. Dropping the future takes
    /// nothing.
    pub async fn acquire(&self, cost: u64, within: Duration) -> Decision<'_> {
        let attempt = |mood| self.attempt(Tokens::new(cost), mood);
        self.shared.wait(within, attempt).await
    }

    /// The policy that the bucket belongs to.
    #[must_use]
    pub const fn policy(&self) -> &PolicyId {
        &self.policy
    }

    fn attempt(&self, cost: Tokens, mood: Mood) -> Attempt<'_> {
        let shared = &*self.shared;
        if shared.is_closed() {
            return shared.refusal_without_policy(Reason::Closed, Wait::Never);
        }
        let mut view = self.view.load();
        if view.generation != shared.rules_generation() {
            let fresh = View::work_out(shared, &self.policy, &self.dimensions);
            self.view.store(Arc::new(fresh));
            view = self.view.load();
        }
        match &view.target {
            Target::Unknown => shared.refusal_without_policy(Reason::Unreachable, Wait::Change),
            Target::NoPolicy => shared.refusal_without_policy(Reason::UnknownPolicy, Wait::Change),
            Target::NoKey => shared.refusal_without_policy(Reason::InvalidKey, Wait::Never),
            Target::Disabled => Attempt::Admitted(Decision::allowed(Outcome::Allowed, None)),
            Target::Bucket(bucket) => self.spend(&view.rules, bucket, cost, mood),
        }
    }

    fn spend(&self, rules: &Rules, bucket: &Bucket, cost: Tokens, mood: Mood) -> Attempt<'_> {
        let shared = &*self.shared;
        let rule = rules.at(bucket.index).1;
        let mut claim = Claim::new(
            bucket.index,
            rule,
            &bucket.limit,
            bucket.fingerprint,
            Some(cost),
            bucket.watched,
        );
        let hint = bucket.hint.load(Relaxed);
        claim.found = shared.table.find_at(Slot::new(hint), bucket.fingerprint);
        if let Some(decision) = shared.spend(&claim) {
            return Attempt::Admitted(decision);
        }
        let address = |_| {
            Some(BucketAddress {
                policy: self.policy.clone(),
                key: bucket.key.clone(),
            })
        };
        let mut claims = [claim];
        let attempt = shared.admit(&mut claims, &address, mood);
        let found = claims[0].found;
        if let Some(slot) = found.map(|found| found.slot.index())
            && slot != hint
        {
            bucket.hint.store(slot, Relaxed);
        }
        attempt
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("policy", &self.policy)
            .field("dimensions", &self.dimensions)
            .finish_non_exhaustive()
    }
}

impl View {
    fn work_out(shared: &Shared, policy: &PolicyId, dimensions: &[(String, String)]) -> Self {
        // Read before the rules: rules that come in between are then worked out again.
        let generation = shared.rules_generation();
        let rules = arc_swap::Guard::into_inner(shared.rules());
        let target = Target::work_out(shared, &rules, policy, dimensions);
        Self {
            generation,
            rules,
            target,
        }
    }
}

impl Target {
    fn work_out(
        shared: &Shared,
        rules: &Rules,
        id: &PolicyId,
        dimensions: &[(String, String)],
    ) -> Self {
        if !rules.known {
            return Self::Unknown;
        }
        let Some((index, policy, rule)) = rules.find(id) else {
            return Self::NoPolicy;
        };
        if policy.spec().disabled {
            return Self::Disabled;
        }
        let value = |wanted: &String| {
            let mut all = dimensions.iter();
            all.find_map(|(name, value)| (name == wanted).then_some(value.as_str()))
        };
        let Some(values) = policy
            .dimensions()
            .iter()
            .map(value)
            .collect::<Option<Vec<_>>>()
        else {
            return Self::NoKey;
        };
        let Ok(key) = Key::from_values(&values) else {
            return Self::NoKey;
        };
        let bytes = values.iter().map(|value| value.as_bytes());
        let fingerprint = shared.key.of(rule.number, bytes);
        Self::Bucket(Bucket {
            index,
            key,
            fingerprint,
            limit: *rule.limit(fingerprint, &values),
            watched: rule.only_watches(&values),
            hint: AtomicU32::new(u32::MAX),
        })
    }
}
