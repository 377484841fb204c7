//! The words of a decision: what a caller is ready for, one policy's part of a request, and what
//! an attempt comes to.

use quota_core::cell::{Debit, Receipt};
use quota_core::holder::Slot;
use quota_core::policy::SwitchMode;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;
use smallvec::SmallVec;

use super::INLINE;
use crate::decision::{Decision, Outcome, Reason};
use crate::fingerprint::Fingerprint;
use crate::names::PolicyNumber;
use crate::rules::{Rule, RuleLimit};
use crate::stats::Counter;
use crate::table::Found;
use crate::tally::Tallied;

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
    /// The policy that refused, for its tally.
    pub(crate) policy: Option<PolicyNumber>,
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
    /// What a kill switch says.
    pub(super) switched: Option<SwitchMode>,
    pub(crate) found: Option<Found<'a>>,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Open,
    /// Passes without tokens of a lease.
    Passed(Pass),
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
            switched: rule.switched(),
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

/// Why a request passes a policy without tokens of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The policy only watches; enforced, it would have refused for this reason.
    Watched(Reason),
    /// A kill switch admits all.
    Switched,
    /// The authority is out of reach, and the policy is open then.
    Open,
    /// The authority is out of reach, and the key is on the policy's list for that.
    Listed,
}

impl Pass {
    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::Watched(_) => Outcome::AllowedShadow,
            Self::Switched => Outcome::AllowedSwitched,
            Self::Open => Outcome::AllowedOpen,
            Self::Listed => Outcome::AllowedListed,
        }
    }

    /// What its tokens are counted as.
    pub(super) const fn counter(self) -> Option<Counter> {
        match self {
            Self::Watched(_) => None,
            Self::Switched => Some(Counter::SwitchedTokens),
            Self::Open => Some(Counter::OpenTokens),
            Self::Listed => Some(Counter::ListedTokens),
        }
    }

    pub(super) const fn tallied(self) -> Tallied {
        match self {
            // What enforcement would have refused whether or not the caller could wait.
            Self::Watched(Reason::Exhausted | Reason::CostTooHigh | Reason::InvalidKey) => {
                Tallied::ShadowRefused
            }
            Self::Watched(_) => Tallied::ShadowUndecided,
            Self::Switched => Tallied::SwitchAdmitted,
            Self::Open => Tallied::OutageOpen,
            Self::Listed => Tallied::OutageListed,
        }
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
    /// A refusal that no wait of the caller helps against.
    pub(super) const fn at_once(reason: Reason) -> Self {
        Self {
            reason,
            wait: Wait::Never,
            expected: Timestamp::ZERO,
            outage: false,
        }
    }
}

pub(super) type Claims<'a> = SmallVec<[Claim<'a>; INLINE]>;
