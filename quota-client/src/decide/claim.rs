//! The words of a decision: what a caller is ready for, one policy's part of a request, and what
//! an attempt comes to.

use quota_core::cell::{Debit, Receipt};
use quota_core::holder::Slot;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;
use smallvec::SmallVec;

use super::INLINE;
use crate::decision::{Decision, Reason};
use crate::fingerprint::Fingerprint;
use crate::rules::{Rule, RuleLimit};
use crate::table::Found;

/// What the caller is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It takes what there is now.
    Hasty,
    /// It can still wait, so nothing is admitted on account of an outage yet.
    Patient,
    /// It has waited. `silent` if nothing was heard from the authority meanwhile.
    Spent { silent: bool },
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attempt<'c> {
    Admitted(Decision<'c>),
    Refused(Refused<'c>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused<'c> {
    pub(crate) decision: Decision<'c>,
    pub(crate) wait: Wait,
    /// What to count as demand if the refusal is final.
    pub(crate) demand: Option<(Slot, Tokens)>,
}

impl Refused<'_> {
    /// The same refusal for another reason.
    pub(crate) const fn because(self, reason: Reason) -> Self {
        Self {
            decision: self.decision.because(reason),
            ..self
        }
    }
}

/// What a refused caller may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing helps.
    Never,
    /// Tokens in this slot, expected at `expected` (the past if unknown).
    Tokens {
        slot: Slot,
        cost: Tokens,
        expected: Timestamp,
    },
    /// Policies, room in the table, or the link.
    Change,
}

/// One policy's part of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) index: usize,
    pub(crate) rule: &'a Rule,
    pub(crate) limit: &'a RuleLimit,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) cost: Tokens,
    /// Decided and counted, but never refused.
    pub(crate) watched: bool,
    pub(crate) found: Option<Found<'a>>,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Open,
    /// Passes without tokens: watched only, or admitted on account of an outage.
    Passed,
    Debited(Debit),
    Spent(Receipt, Tokens),
}

impl<'a> Claim<'a> {
    pub(crate) fn new(
        index: usize,
        rule: &'a Rule,
        limit: &'a RuleLimit,
        fingerprint: Fingerprint,
        cost: Option<Tokens>,
        watched: bool,
    ) -> Self {
        Self {
            index,
            rule,
            limit,
            fingerprint,
            cost: cost.unwrap_or(rule.cost_default),
            watched,
            found: None,
            state: State::Open,
        }
    }

    pub(super) fn has_enough(&self) -> bool {
        self.cost <= self.limit.cost_max
            && self
                .found
                .is_some_and(|found| found.entry.cell().view().tokens >= self.cost)
    }
}

/// What became of a plain spending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spend {
    /// This many are left.
    Admitted(Tokens),
    /// There are too few tokens, and the authority has been asked.
    Short,
    /// Not a plain case: nothing was spent, decide at length.
    Otherwise,
}

/// Why one policy cannot admit the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    pub(super) reason: Reason,
    pub(super) wait: Wait,
    pub(super) expected: Timestamp,
    /// An outage: the policy may say that it admits nevertheless.
    pub(super) outage: bool,
}

impl Short {
    pub(super) const fn permanent(reason: Reason) -> Self {
        Self {
            reason,
            wait: Wait::Never,
            expected: Timestamp::ZERO,
            outage: false,
        }
    }
}

pub(super) type Claims<'a> = SmallVec<[Claim<'a>; INLINE]>;
