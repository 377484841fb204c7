//! Handles: one bucket, looked up once.
//!
//! A handle remembers its key's fingerprint, limit and place in the table. The place is only a
//! hint: the key may have been closed to make room, and then comes back somewhere else.
//!
//! The usual case, a policy that is enforced and a lease that carries the request, touches the
//! handle's [`Known`] and the key's entry and nothing else that is written to. Everything else
//! goes the same long way as [`crate::QuotaClient::check`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use quota_core::id::PolicyVersion;
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::tokens::Tokens;

use crate::decide::{Attempt, Claim, Mood, Spend, Wait};
use crate::decision::{Decision, LimitView, Outcome, Reason, Subject, Terms};
use crate::fingerprint::Fingerprint;
use crate::known::{Known, Usual};
use crate::rules::{RuleLimit, Rules};
use crate::shared::Shared;
use crate::table::Found;

/// A handle to one bucket. Made by [`crate::QuotaClient::bucket`]; share it by reference or in an
/// `Arc`. It keeps no lease alive by itself and outlives its client, refusing everything then.
#[repr(C, align(64))]
pub struct Handle {
    // First and together: all that the usual case reads.
    shared: Arc<Shared>,
    known: Known,
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
    /// Decided about in the usual way.
    plain: bool,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, policy: PolicyId, dimensions: &[(&str, &str)]) -> Self {
        let dimensions: Box<[_]> = dimensions
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let view = View::work_out(&shared, &policy, &dimensions);
        let handle = Self {
            shared,
            known: Known::new(),
            policy,
            dimensions,
            view: ArcSwap::from_pointee(view),
        };
        handle.note(&handle.view.load());
        handle
    }

    /// Takes `cost` tokens if they are at hand. Never waits; takes no lock, allocates nothing and
    /// makes no system call but the clock, except for the first touch of the key and after a
    /// change of the policies.
    #[inline]
    #[must_use = "a refused request must not pass"]
    pub fn try_acquire(&self, cost: u64) -> Decision<'_> {
        let cost = Tokens::new(cost);
        self.decide_usual(cost)
            .unwrap_or_else(|| self.decide_at_length(cost))
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

    /// The usual case: an admission, or a refusal by an authority that has nothing to give.
    /// Counts it. `None` if it is another, and nothing was spent.
    #[inline]
    fn decide_usual(&self, cost: Tokens) -> Option<Decision<'_>> {
        let shared = &*self.shared;
        let usual = self.known.under(shared.rules_generation())?;
        if cost > usual.cost_max {
            return None;
        }
        let found = shared.table.find_at(self.known.slot(), usual.fingerprint)?;
        match shared.spend(found, cost) {
            Spend::Admitted(remaining) => {
                let subject = self.subject(found, remaining);
                let decision = Decision::allowed(Outcome::Allowed, Some(subject));
                Some(shared.count(decision))
            }
            Spend::Short => {
                let expected = shared.used_up(found)?;
                found.entry.cell().refuse(cost);
                let subject = self.subject(found, Tokens::ZERO);
                let decision = Decision::refused(Reason::Exhausted, Some(subject), expected);
                Some(shared.count(decision))
            }
            Spend::Otherwise => None,
        }
    }

    #[inline]
    fn subject(&self, found: Found<'_>, remaining: Tokens) -> Subject<'_> {
        Subject {
            policy: &self.policy,
            terms: Terms::Ask(found.entry.version(), self),
            remaining,
        }
    }

    #[cold]
    #[inline(never)]
    fn decide_at_length(&self, cost: Tokens) -> Decision<'_> {
        self.shared.finish(self.attempt(cost, Mood::Hasty))
    }

    /// The version and the limit of the policy in force, for display.
    pub(crate) fn terms(&self) -> Option<(PolicyVersion, LimitView)> {
        let view = self.view();
        let Target::Bucket(bucket) = &view.target else {
            return None;
        };
        let version = view.rules.at(bucket.index).1.version;
        Some((version, bucket.limit.view))
    }

    /// What holds under the rules in force.
    fn view(&self) -> arc_swap::Guard<Arc<View>> {
        let view = self.view.load();
        if view.generation == self.shared.rules_generation() {
            return view;
        }
        let fresh = View::work_out(&self.shared, &self.policy, &self.dimensions);
        self.note(&fresh);
        self.view.store(Arc::new(fresh));
        self.view.load()
    }

    /// Keeps what the usual case needs, if the bucket is one for it.
    fn note(&self, view: &View) {
        if let Target::Bucket(bucket) = &view.target
            && bucket.plain
            // Read after the view's generation: a client that closed before is seen to be closed,
            // and one that closes from here on changes the generation.
            && !self.shared.is_closed()
        {
            let usual = Usual {
                fingerprint: bucket.fingerprint,
                cost_max: bucket.limit.cost_max,
            };
            self.known.note(view.generation, usual);
        }
    }

    fn attempt(&self, cost: Tokens, mood: Mood) -> Attempt<'_> {
        let shared = &*self.shared;
        if shared.is_closed() {
            return shared.refusal_without_policy(Reason::Closed, Wait::Never);
        }
        let view = self.view();
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
        let hint = self.known.slot();
        claim.found = shared.table.find_at(hint, bucket.fingerprint);
        let address = |_| {
            Some(BucketAddress {
                policy: self.policy.clone(),
                key: bucket.key.clone(),
            })
        };
        let mut claims = [claim];
        let attempt = shared.admit(&mut claims, &address, mood);
        let found = claims[0].found;
        if let Some(found) = found
            && found.slot != hint
        {
            self.known.set_slot(found.slot);
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
        let watched = rule.only_watches(&values);
        Self::Bucket(Bucket {
            index,
            key,
            fingerprint,
            limit: *rule.limit(fingerprint, &values),
            watched,
            plain: !watched && !rule.is_switched(),
        })
    }
}
