//! A policy set, prepared for decisions.
//!
//! [`PolicySet`] finds which policies match; a [`Rule`] beside each policy answers everything else
//! that a decision asks, by fingerprint, so that no decision builds a key. Rules are made when
//! policies change and never altered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use quota_core::holder::SlotSettings;
use quota_core::id::PolicyVersion;
use quota_core::key::{Key, PolicyId};
use quota_core::policy::{
    FirstTouch, Limit, LimitClass, LimitSpec, Match, OnOutage, PLAN_DIMENSION, Period, Policy,
    PolicySet, PolicySetError, SwitchMode, SwitchScope, switch_of,
};
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

use crate::clock;
use crate::decision::LimitView;
use crate::fingerprint::{Fingerprint, FingerprintKey};
use crate::names::{Names, PolicyNumber};
use crate::plan::Plan;

/// One limit of a rule, with the way its leases are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleLimit {
    pub(crate) view: LimitView,
    pub(crate) cost_max: Tokens,
    pub(crate) settings: SlotSettings,
}

/// One policy, prepared.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) number: PolicyNumber,
    pub(crate) version: PolicyVersion,
    pub(crate) cost_default: Tokens,
    pub(crate) on_outage: OnOutage,
    pub(crate) first_touch: FirstTouch,
    limit: RuleLimit,
    plan_position: Option<usize>,
    plans: HashMap<String, RuleLimit>,
    overrides: HashMap<Fingerprint, RuleLimit>,
    allowed_in_outage: HashSet<Fingerprint>,
    shadow_percent: u32,
    switch: Option<Switched>,
}

/// A kill switch as this client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switched {
    pub(crate) mode: SwitchMode,
    /// When it is over, on this client's clock; `None` if only an operator ends it.
    pub(crate) until: Option<Timestamp>,
}

/// Kill switches by scope.
pub(crate) type Switches = BTreeMap<SwitchScope, Switched>;

impl Rule {
    fn new(policy: &Policy, number: PolicyNumber, key: &FingerprintKey) -> Self {
        let spec = policy.spec();
        let mut rule = Self {
            number,
            version: policy.version(),
            cost_default: policy.cost_default(),
            on_outage: spec.on_outage,
            first_touch: spec.first_touch,
            limit: rule_limit(policy, policy.limit_of(&LimitClass::Default), &spec.limit),
            plan_position: policy
                .dimensions()
                .iter()
                .position(|dimension| dimension == PLAN_DIMENSION),
            plans: HashMap::new(),
            overrides: HashMap::new(),
            allowed_in_outage: HashSet::new(),
            shadow_percent: policy.shadow_percent(),
            switch: None,
        };
        for (plan, limit) in &spec.plans {
            let class = LimitClass::Plan(plan.clone());
            let limit = rule_limit(policy, policy.limit_of(&class), limit);
            rule.plans.insert(plan.clone(), limit);
        }
        for written in &spec.overrides {
            // A parsed policy has no override that is not a key; were there one, it would match
            // nothing.
            let Ok(class) = Key::from_values(&written.key).map(LimitClass::Override) else {
                continue;
            };
            let limit = rule_limit(policy, policy.limit_of(&class), &written.limit);
            let values = written.key.iter().map(String::as_bytes);
            rule.overrides.insert(key.of(number, values), limit);
        }
        for values in &spec.outage_allow_list {
            let values = values.iter().map(String::as_bytes);
            rule.allowed_in_outage.insert(key.of(number, values));
        }
        rule
    }

    /// The limit of a key: its override, else its plan's, else the policy's own.
    #[inline]
    pub(crate) fn limit<V: AsRef<[u8]>>(
        &self,
        fingerprint: Fingerprint,
        values: &[V],
    ) -> &RuleLimit {
        if self.overrides.is_empty() && self.plans.is_empty() {
            return &self.limit;
        }
        if let Some(limit) = self.overrides.get(&fingerprint) {
            return limit;
        }
        let plan = self.plan_position.and_then(|place| values.get(place));
        plan.and_then(|plan| std::str::from_utf8(plan.as_ref()).ok())
            .and_then(|plan| self.plans.get(plan))
            .unwrap_or(&self.limit)
    }

    /// The limit of a key that is at hand as such.
    #[inline]
    pub(crate) fn limit_of(&self, fingerprint: Fingerprint, key: &Key) -> &RuleLimit {
        if self.overrides.is_empty() && self.plans.is_empty() {
            return &self.limit;
        }
        let values: Vec<&[u8]> = key.values().collect();
        self.limit(fingerprint, &values)
    }

    /// True if all of the policy's keys are enforced, and no kill switch is set.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.shadow_percent == 0 && self.switch.is_none()
    }

    /// True if a kill switch is set, be it over or not.
    #[inline]
    pub(crate) const fn is_switched(&self) -> bool {
        self.switch.is_some()
    }

    /// What a kill switch says now. Reads the clock if it is one that ends by itself, so that it
    /// does so even at a client that is cut off.
    #[inline]
    pub(crate) fn switched(&self) -> Option<SwitchMode> {
        let switch = self.switch?;
        match switch.until {
            Some(until) if until <= clock::now() => None,
            _ => Some(switch.mode),
        }
    }

    /// True if a key is only watched. The same for every client, so that a key is not refused at
    /// one gateway and watched at another.
    #[inline]
    pub(crate) fn only_watches(&self, values: &[&str]) -> bool {
        match self.shadow_percent {
            0 => false,
            100.. => true,
            percent => {
                let mut hasher = SipHasher13::new();
                for value in values {
                    hasher.write(value.as_bytes());
                    hasher.write_usize(value.len());
                }
                hasher.finish() % 100 < u64::from(percent)
            }
        }
    }

    /// True if a key is on the list of those that are admitted while the authority is out of
    /// reach.
    pub(crate) fn is_allowed_in_outage(&self, fingerprint: Fingerprint) -> bool {
        self.allowed_in_outage.contains(&fingerprint)
    }
}

fn rule_limit(policy: &Policy, limit: &Limit, written: &LimitSpec) -> RuleLimit {
    RuleLimit {
        view: LimitView {
            capacity: limit.capacity(),
            rate: limit.rate(),
            period: written_period(written, limit),
        },
        cost_max: limit.cost_max(),
        settings: SlotSettings::for_limit(limit, policy.lease()),
    }
}

/// The period to show: as written, else the time in which the limit refills.
fn written_period(written: &LimitSpec, limit: &Limit) -> Term {
    match (written.period, written.emission_interval) {
        (Some(Period::Span(span)), _) | (None, Some(span)) => span.term(),
        _ => limit.refill_time(),
    }
}

/// The policies in force and their rules.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// The store's revision that these policies are of; zero before any was heard of.
    pub(crate) revision: u64,
    /// False until policies were heard of: then not even "no policy matches" is known.
    pub(crate) known: bool,
    /// Heard from an authority, not read from the file.
    pub(crate) current: bool,
    set: PolicySet,
    /// Of `set`, unless that is too large for one.
    plan: Option<Plan>,
    /// In the order of `set.policies()`.
    rules: Vec<Rule>,
    switches: Switches,
}

impl Rules {
    pub(crate) fn new(
        revision: u64,
        current: bool,
        policies: impl IntoIterator<Item = Arc<Policy>>,
        names: &Names,
        key: &FingerprintKey,
    ) -> Result<Self, PolicySetError> {
        let set = PolicySet::new(policies)?;
        let rules = set
            .policies()
            .iter()
            .map(|policy| Rule::new(policy, names.number(policy.id()), key))
            .collect();
        Ok(Self {
            revision,
            known: true,
            current,
            plan: Plan::new(&set),
            set,
            rules,
            switches: Switches::new(),
        })
    }

    /// The same under these kill switches.
    pub(crate) fn under(mut self, switches: Switches) -> Self {
        for (policy, rule) in self.set.policies().iter().zip(&mut self.rules) {
            rule.switch = switch_of(&switches, policy.id()).copied();
        }
        self.switches = switches;
        self
    }

    pub(crate) const fn switches(&self) -> &Switches {
        &self.switches
    }

    pub(crate) const fn is_current(&self) -> bool {
        self.current
    }

    #[inline]
    pub(crate) const fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    #[inline]
    pub(crate) fn set(&self) -> &PolicySet {
        &self.set
    }

    /// The rule of a policy of this set, found by where the set keeps the policy.
    #[inline]
    pub(crate) fn rule(&self, found: &Match<'_>) -> (usize, &Rule) {
        let index = self.place(found.policy());
        (index, &self.rules[index])
    }

    #[inline]
    pub(crate) fn at(&self, index: usize) -> (&Arc<Policy>, &Rule) {
        (&self.set.policies()[index], &self.rules[index])
    }

    /// The policy of this name, its place and its rule.
    pub(crate) fn find(&self, id: &PolicyId) -> Option<(usize, &Arc<Policy>, &Rule)> {
        let policy = self.set.get(id)?;
        let index = self.place(policy);
        Some((index, policy, &self.rules[index]))
    }

    /// Where in the set one of its own policies stands.
    #[inline]
    fn place(&self, policy: &Arc<Policy>) -> usize {
        let base = self.set.policies().as_ptr().addr();
        (std::ptr::from_ref(policy).addr() - base) / size_of::<Arc<Policy>>()
    }

    /// Policies with their rules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<Policy>, &Rule)> {
        self.set.policies().iter().zip(&self.rules)
    }
}
