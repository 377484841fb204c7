//! Waiting for tokens, bounded by the caller's deadline.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use quota_core::time::Timestamp;

use crate::clock;
use crate::decide::{Attempt, Mood, Refused, Wait};
use crate::decision::{Decision, Reason};
use crate::shared::Shared;
use crate::tally::Tallied;
use crate::waiters::Ticket;

impl Shared {
    /// Repeats `attempt` as tokens arrive, until it is admitted, nothing more can be hoped for, or
    /// `within` has passed. Never takes longer, whatever the authority does.
    pub(crate) async fn wait<'c>(
        &'c self,
        within: Duration,
        attempt: impl Fn(Mood) -> Attempt<'c>,
    ) -> Decision<'c> {
        let begun = clock::now();
        let deadline = begun + clock::term(within);
        match attempt(Mood::Patient) {
            Attempt::Admitted(decision) => return self.count(decision),
            Attempt::Refused(refused) => {
                let mut ticket = None;
                let waiting = self.wait_until(&mut ticket, deadline, refused, &attempt);
                let waited = waiting.await;
                if let Some(ticket) = ticket {
                    ticket.decide();
                }
                match waited {
                    Waited::Admitted(decision) => return self.count(decision),
                    Waited::Refused(refused) => return self.count_refusal(refused),
                    Waited::Over => {}
                }
            }
        }
        let silent = self.heard_at() < begun;
        self.finish(attempt(Mood::Spent { silent }))
    }

    async fn wait_until<'c>(
        &'c self,
        ticket: &mut Option<Ticket<'c>>,
        deadline: Timestamp,
        mut refused: Refused<'c>,
        attempt: &impl Fn(Mood) -> Attempt<'c>,
    ) -> Waited<'c> {
        loop {
            match refused.wait {
                Wait::Never => return Waited::Refused(refused),
                // The authority has said when it expects tokens, and that is too late.
                Wait::Tokens { expected, .. } if expected > deadline => {
                    return Waited::Refused(refused);
                }
                Wait::Tokens { slot, cost, .. } => {
                    // Another slot's place, or one that ended with its slot's key.
                    drop(ticket.take_if(|place| place.slot() != slot || !place.stands()));
                    if let Some(place) = ticket {
                        if !before(deadline, place.woken()).await {
                            return Waited::Over;
                        }
                    } else {
                        let Some(place) = self.waiters.register(slot, cost) else {
                            return Waited::Refused(refused.because(Reason::TooManyWaiters));
                        };
                        *ticket = Some(place);
                        self.wake.notify_one();
                    }
                }
                Wait::Change => {
                    *ticket = None;
                    let mut changed = pin!(self.changed.notified());
                    changed.as_mut().enable();
                    // What changed before would not wake this caller.
                    match attempt(Mood::Patient) {
                        Attempt::Refused(again) if again.wait == Wait::Change => {
                            if !before(deadline, changed).await {
                                return Waited::Over;
                            }
                        }
                        Attempt::Refused(again) => {
                            refused = again;
                            continue;
                        }
                        Attempt::Admitted(decision) => return Waited::Admitted(decision),
                    }
                }
            }
            match attempt(Mood::Patient) {
                Attempt::Admitted(decision) => return Waited::Admitted(decision),
                Attempt::Refused(again) => refused = again,
            }
        }
    }

    /// Counts the final outcome of an attempt; a refusal counts as demand, once.
    pub(crate) fn finish<'c>(&'c self, attempt: Attempt<'c>) -> Decision<'c> {
        match attempt {
            Attempt::Admitted(decision) => self.count(decision),
            Attempt::Refused(refused) => self.count_refusal(refused),
        }
    }

    fn count_refusal<'c>(&self, refused: Refused<'c>) -> Decision<'c> {
        if let Some((slot, cost)) = refused.demand {
            self.table.entry(slot).cell().refuse(cost);
        }
        let what = match refused.decision.reason() {
            Some(Reason::Unreachable) => Some(Tallied::OutageRefused),
            Some(Reason::KillSwitch) => Some(Tallied::SwitchRefused),
            _ => None,
        };
        if let (Some(policy), Some(what)) = (refused.policy, what) {
            self.names.tally(policy).add(what);
        }
        self.count(refused.decision)
    }

    #[inline]
    pub(crate) fn count<'c>(&self, decision: Decision<'c>) -> Decision<'c> {
        self.counters.count(decision.outcome());
        decision
    }
}

enum Waited<'c> {
    Admitted(Decision<'c>),
    /// Waiting does not help.
    Refused(Refused<'c>),
    /// The deadline has come.
    Over,
}

/// True if `done` came before the deadline.
async fn before(deadline: Timestamp, done: impl Future<Output = ()>) -> bool {
    let left = clock::duration(deadline.since(clock::now()));
    tokio::time::timeout(left, done).await.is_ok()
}
