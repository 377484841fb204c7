//! What an attempt comes to: who passes without tokens and why, and what is put back.

use quota_core::cell::{RollBack, Tick};
use quota_core::policy::OnOutage;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use super::claim::{Attempt, Claim, Pass, Refused, Short, State, Wait};
use crate::clock;
use crate::decision::{Decision, Outcome, Reason, Subject, Terms};
use crate::shared::{Shared, Signal};
use crate::stats::Counter;
use crate::tally::Tallied;

impl Shared {
    /// Why the request may pass although this policy has no tokens for it; `None` if it may not.
    pub(super) fn passes(&self, claim: &Claim<'_>, short: Short) -> Option<Pass> {
        if claim.watched {
            return Some(Pass::Watched(short.reason));
        }
        if !short.outage {
            return None;
        }
        if claim.rule.is_allowed_in_outage(claim.fingerprint) {
            return Some(Pass::Listed);
        }
        match claim.rule.on_outage {
            OnOutage::Open => Some(Pass::Open),
            // Shares for `local` are not handed out yet; admitting nothing keeps the limit.
            OnOutage::Closed | OnOutage::Local => None,
        }
    }

    /// The request passes. Counts what each policy had to say that is counted by policy; what it
    /// comes to for the request as a whole is counted by the caller.
    pub(super) fn admitted<'c>(&'c self, claims: &[Claim<'_>]) -> Attempt<'c> {
        let mut outcome = Outcome::Allowed;
        let mut would_refuse = None;
        for claim in claims {
            let State::Passed(pass) = claim.state else {
                if claim.watched {
                    self.tally(claim, Tallied::ShadowAdmitted);
                }
                continue;
            };
            self.tally(claim, pass.tallied());
            if let Some(counter) = pass.counter() {
                self.counters.add(counter, claim.cost.get());
            }
            if let Pass::Watched(reason) = pass {
                // Asked for as much as if it had been refused, so that leases of a policy in
                // shadow are sized as they will be when it is enforced.
                if let Some(found) = claim.found {
                    found.entry.cell().refuse(claim.cost);
                }
                if pass.tallied() == Tallied::ShadowRefused {
                    would_refuse.get_or_insert((self.names.name(claim.rule.number), reason));
                }
            }
            outcome = graver(outcome, pass.outcome());
        }
        // Nothing of a policy in shadow shows in what callers are told of their limits.
        let enforced = claims.iter().filter(|claim| !claim.watched);
        let remaining = |claim: &Claim<'_>| match claim.state {
            State::Spent(_, remaining) => remaining,
            _ => Tokens::ZERO,
        };
        let tightest = enforced.min_by_key(|claim| match claim.state {
            State::Spent(_, remaining) => remaining,
            _ => Tokens::new(u64::MAX),
        });
        let subject = tightest.map(|claim| self.subject(claim, remaining(claim)));
        Attempt::Admitted(Decision::allowed(outcome, subject).watched_by(would_refuse))
    }

    fn tally(&self, claim: &Claim<'_>, what: Tallied) {
        self.names.tally(claim.rule.number).add(what);
    }

    /// Puts back what was debited, and names the policy that refused.
    #[cold]
    pub(super) fn refuse<'c>(
        &'c self,
        claims: &mut [Claim<'_>],
        refusing: usize,
        short: Short,
    ) -> Attempt<'c> {
        let now = Tick::at(clock::now());
        for claim in claims.iter_mut() {
            let Some(found) = claim.found else { continue };
            let restored = match claim.state {
                State::Open | State::Passed(_) => continue,
                State::Debited(debit) => {
                    let given_up = found.give_up(debit, now);
                    if given_up.renew {
                        self.signal(Signal::Touched(found.slot));
                    }
                    given_up.restored
                }
                State::Spent(receipt, _) => {
                    found.entry.cell().roll_back(receipt) == RollBack::Restored
                }
            };
            claim.state = State::Open;
            self.counters.add(
                if restored {
                    Counter::Rollbacks
                } else {
                    Counter::RollbacksLost
                },
                1,
            );
        }
        let claim = &claims[refusing];
        let held = claim.found.map_or(Tokens::ZERO, |found| {
            let view = found.entry.cell().view();
            if view.live(now) {
                view.tokens
            } else {
                Tokens::ZERO
            }
        });
        let subject = self.subject(claim, held);
        Attempt::Refused(Refused {
            decision: Decision::refused(short.reason, Some(subject), short.expected),
            wait: short.wait,
            demand: claim.found.map(|found| (found.slot, claim.cost)),
            policy: Some(claim.rule.number),
        })
    }

    fn subject(&self, claim: &Claim<'_>, remaining: Tokens) -> Subject<'_> {
        let leased = claim.found.map(|found| found.entry.version());
        let leased = leased.filter(|version| version.get() != 0);
        Subject {
            policy: self.names.name(claim.rule.number),
            terms: Terms::Known(leased.unwrap_or(claim.rule.version), claim.limit.view),
            remaining,
        }
    }

    pub(crate) fn refusal_without_policy(&self, reason: Reason, wait: Wait) -> Attempt<'_> {
        Attempt::Refused(Refused {
            decision: Decision::refused(reason, None, Timestamp::ZERO),
            wait,
            demand: None,
            policy: None,
        })
    }
}

/// Of two outcomes of an admitted request the one that says more of the limit not being kept.
fn graver(one: Outcome, other: Outcome) -> Outcome {
    let rank = |outcome| match outcome {
        Outcome::Allowed | Outcome::Refused(_) => 0,
        Outcome::AllowedShadow => 1,
        Outcome::AllowedListed => 2,
        Outcome::AllowedOpen => 3,
        Outcome::AllowedSwitched => 4,
    };
    if rank(other) > rank(one) { other } else { one }
}
