//! The policies of a shard, and what an unseen bucket of each is.
//!
//! A bucket that this tenure has not seen is not simply full: an earlier tenure may have emptied
//! it. For each limit class a ledger without leases is kept from the take-over on and goes through
//! refill, ghost end and policy changes like any bucket; an unseen bucket is a copy of it. So
//! forgetting a bucket that equals it changes no decision.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::lease::Leases;
use super::ledger::Ledger;
use crate::id::PolicyVersion;
use crate::key::{Key, PolicyId};
use crate::policy::{LeaseSettings, Limit, LimitClass, Policy, PolicyHistory};
use crate::time::{DriftAllowance, Term, Timestamp};
use alloc::sync::Arc;

/// One class of keys that every kept version of a policy limits alike.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) class: LimitClass,
    pub(super) limit: Limit,
    pub(super) unseen: Ledger,
}

/// One policy of the shard. Its slot is given to another only once no bucket names it.
#[derive(Debug)]
pub(super) struct PolicySlot {
    pub(super) id: PolicyId,
    pub(super) history: PolicyHistory,
    /// The last policy in force, kept after deletion: its buckets go on under it until they are
    /// forgotten.
    pub(super) policy: Arc<Policy>,
    pub(super) classes: Vec<Class>,
    /// Buckets in memory.
    pub(super) buckets: u64,
    /// Forgotten by the store: goes as soon as its last bucket is gone. Created again before, it
    /// goes on, so that no bucket is ever there twice.
    pub(super) over: bool,
    pub(super) stats: super::view::PolicyStats,
}

impl PolicySlot {
    pub(super) fn settings(&self) -> &LeaseSettings {
        self.policy.lease()
    }

    pub(super) fn version(&self) -> PolicyVersion {
        self.policy.version()
    }

    /// False after deletion: nothing more is granted.
    pub(super) fn is_current(&self) -> bool {
        self.history.current().is_some()
    }

    pub(super) fn class(&self, class: u32) -> &Class {
        &self.classes[usize::try_from(class).expect("32 bits fit a usize")]
    }

    /// The class that a key falls under, in the finest division that this slot keeps.
    pub(super) fn class_of(&self, key: &Key) -> u32 {
        let plan = self.policy.plan_of(key);
        let of_plan = |class: &LimitClass| match class {
            LimitClass::Plan(name) => Some(name.as_str()) == plan,
            LimitClass::Default | LimitClass::Override(_) => false,
        };
        let of_key = |class: &LimitClass| match class {
            LimitClass::Override(other) => other == key,
            LimitClass::Default | LimitClass::Plan(_) => false,
        };
        self.position(of_key)
            .or_else(|| self.position(of_plan))
            .or_else(|| self.position(|class| *class == LimitClass::Default))
            .expect("every policy has a default class")
    }

    fn position(&self, wanted: impl Fn(&LimitClass) -> bool) -> Option<u32> {
        let place = self.classes.iter().position(|c| wanted(&c.class))?;
        Some(u32::try_from(place).expect("a policy has fewer than 2^32 classes"))
    }

    /// The class that keys of `class` fall under here.
    fn place(&self, class: &LimitClass) -> u32 {
        match class {
            LimitClass::Override(key) => self.class_of(key),
            other => self
                .position(|known| known == other)
                .or_else(|| self.position(|known| *known == LimitClass::Default))
                .expect("every policy has a default class"),
        }
    }

    /// What an unseen bucket of this class is now.
    pub(super) fn unseen(&mut self, class: u32, now: Timestamp) -> Ledger {
        let class = &mut self.classes[usize::try_from(class).expect("32 bits fit a usize")];
        class
            .unseen
            .settle(now, &class.limit, &mut Leases::default(), &mut |_| {});
        class.unseen
    }

    /// Takes over what a predecessor knew of a class, one of earlier versions too.
    pub(super) fn set_unseen(&mut self, class: &LimitClass, limit: Limit, unseen: Ledger) {
        match self.classes.iter_mut().find(|c| c.class == *class) {
            Some(known) => known.unseen = unseen,
            None => self.classes.push(Class {
                class: class.clone(),
                limit,
                unseen,
            }),
        }
    }

    /// Puts another version in force. Each class carries over what keys of that class were used
    /// to until now: a new plan starts from the default's unseen bucket, a new override from that
    /// of the key's old class.
    pub(super) fn change(&mut self, now: Timestamp, history: PolicyHistory) {
        let policy = history.current().unwrap_or(&self.policy).clone();
        let mut wanted: BTreeSet<LimitClass> = history.classes().collect();
        // A class of earlier versions stays until its unseen buckets are like those that its keys
        // would otherwise be taken for: its own past may have left them less.
        wanted.extend(self.classes.iter().map(|c| c.class.clone()));
        let kept: BTreeSet<LimitClass> = history.classes().collect();
        let mut classes = Vec::new();
        for class in wanted {
            let place = self.place(&class);
            let mut unseen = self.unseen(place, now);
            let limit = *policy.limit_of(&class);
            unseen.restate(&self.class(place).limit, &limit);
            classes.push(Class {
                class,
                limit,
                unseen,
            });
        }
        classes.retain(|c| kept.contains(&c.class) || !c.unseen.is_idle_full(&c.limit));
        self.classes = classes;
        self.policy = policy;
        self.history = history;
        self.over = false;
    }
}

/// How a shard's unseen buckets begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Beginning {
    /// Nobody ever owned the shard, or the policy is new: full.
    New,
    /// An earlier tenure ended without an exact hand-over.
    TakenOver {
        /// Tenures whose exposure may still be live.
        tenures: u32,
    },
}

/// Builds a policy's slot at `now`; `None` if the history holds no version at all.
pub(super) fn begin(
    now: Timestamp,
    history: PolicyHistory,
    beginning: Beginning,
    drift: DriftAllowance,
) -> Option<PolicySlot> {
    let policy = history.versions().next()?.clone();
    let classes = history.classes().map(|class| {
        let limit = *policy.limit_of(&class);
        let unseen = unseen_at_beginning(now, &history, &class, &limit, beginning, drift);
        Class {
            class,
            limit,
            unseen,
        }
    });
    let classes = classes.collect();
    Some(PolicySlot {
        id: history.id().clone(),
        policy,
        classes,
        history,
        buckets: 0,
        over: false,
        stats: Default::default(),
    })
}

fn unseen_at_beginning(
    now: Timestamp,
    history: &PolicyHistory,
    class: &LimitClass,
    limit: &Limit,
    beginning: Beginning,
    drift: DriftAllowance,
) -> Ledger {
    let tenures = match beginning {
        Beginning::New => return Ledger::full(now, limit),
        // A missing record means new only if every version that may have granted kept records.
        Beginning::TakenOver { .. } if history.durable_throughout(class, PolicyVersion::new(0)) => {
            return Ledger::full(now, limit);
        }
        Beginning::TakenOver { tenures } => tenures,
    };
    let ghost = history.ghost(class, tenures);
    let most = history.capacity_max(class).max(ghost);
    let level = i128::from(limit.capacity().get())
        .saturating_sub(i128::from(most.get()))
        .min(0);
    Ledger::restarted(now, limit, level, ghost, now + history.term_max(drift))
}

/// The policies of a shard by identity.
#[derive(Debug, Default)]
pub(super) struct Policies {
    slots: Vec<PolicySlot>,
    by_id: BTreeMap<PolicyId, u32>,
    free: Vec<u32>,
}

impl Policies {
    pub(super) fn find(&self, id: &PolicyId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub(super) fn get(&self, slot: u32) -> &PolicySlot {
        &self.slots[usize::try_from(slot).expect("32 bits fit a usize")]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut PolicySlot {
        &mut self.slots[usize::try_from(slot).expect("32 bits fit a usize")]
    }

    pub(super) fn insert(&mut self, policy: PolicySlot) -> u32 {
        let id = policy.id.clone();
        let slot = match self.free.pop() {
            Some(slot) => {
                *self.get_mut(slot) = policy;
                slot
            }
            None => {
                self.slots.push(policy);
                let slots = u32::try_from(self.slots.len()).expect("fewer than 2^32 policies");
                slots.saturating_sub(1)
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// The store has forgotten a deleted policy: its slot is free once its last bucket is gone.
    pub(super) fn retire(&mut self, id: &PolicyId) {
        let Some(slot) = self.find(id) else { return };
        if !self.get(slot).is_current() {
            self.get_mut(slot).over = true;
            self.free_if_over(slot);
        }
    }

    pub(super) fn bucket_made(&mut self, slot: u32) {
        let policy = self.get_mut(slot);
        policy.buckets = policy.buckets.saturating_add(1);
    }

    pub(super) fn bucket_gone(&mut self, slot: u32) {
        let policy = self.get_mut(slot);
        policy.buckets = policy.buckets.checked_sub(1).expect("a bucket goes once");
        self.free_if_over(slot);
    }

    fn free_if_over(&mut self, slot: u32) {
        let policy = self.get(slot);
        if policy.over && policy.buckets == 0 {
            self.by_id.remove(&policy.id.clone());
            self.free.push(slot);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PolicySlot> {
        self.by_id.values().map(|slot| self.get(*slot))
    }

    pub(super) fn longest_term(&self, drift: DriftAllowance) -> Term {
        self.iter()
            .map(|p| p.history.term_max(drift))
            .max()
            .unwrap_or(Term::ZERO)
    }
}
