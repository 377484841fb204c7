//! What the client did, counted.

use crate::decision::{Outcome, Reason};
use crate::seats;
use crate::stripes::Stripes;

const COUNTERS: usize = 22;

/// Totals since the client was made. `checks` counts requests, not policies: one request that
/// three policies match is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests admitted by every policy that matched them.
    pub allowed: u64,
    /// Requests admitted because an operator has switched a policy to admit everything.
    pub allowed_switched: u64,
    /// Requests admitted because the authority was out of reach under `on_outage = "open"`.
    pub allowed_open: u64,
    /// Requests admitted because the authority was out of reach and their key is on the policy's
    /// list of keys to be admitted then.
    pub allowed_listed: u64,
    /// Requests that only policies in shadow mode would have refused.
    pub allowed_shadow: u64,
    /// Requests refused: quota exhausted.
    pub exhausted: u64,
    /// Requests refused: authority out of reach.
    pub unreachable: u64,
    /// Requests refused: authority overloaded.
    pub overloaded: u64,
    /// Requests refused: an operator has switched a policy to refuse everything.
    pub kill_switch: u64,
    /// Requests refused: no lease yet, and the call did not wait.
    pub first_touch: u64,
    /// Requests refused for good: cost above the limit.
    pub cost_too_high: u64,
    /// Requests refused: no room for another key.
    pub table_full: u64,
    /// Requests refused: too many wait already.
    pub too_many_waiters: u64,
    /// Requests refused: key not usable.
    pub invalid_key: u64,
    /// Requests refused: client closed.
    pub closed: u64,
    /// Requests refused: policy not known to the authority.
    pub unknown_policy: u64,
    /// Tokens that buckets under `on_outage = "open"` admitted without a lease. They are not
    /// covered by the limit's promise.
    pub open_tokens: u64,
    /// Tokens that keys on an `outage_allow_list` were admitted without a lease. They are not
    /// covered by the limit's promise.
    pub listed_tokens: u64,
    /// Tokens that were admitted under a kill switch. They are not covered by the limit's promise.
    pub switched_tokens: u64,
    /// Debits taken back because another policy refused the request or a deadline had passed.
    pub rollbacks: u64,
    /// Debits that could not be taken back, because the lease had been reported or renewed
    /// meanwhile: those tokens are lost, never spent twice.
    pub rollbacks_lost: u64,
    /// Keys now in the table.
    pub keys: u64,
    /// Keys that the table has room for.
    pub keys_max: u64,
    /// Times that the stream to an authority was opened.
    pub connects: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    OpenTokens,
    ListedTokens,
    SwitchedTokens,
    Rollbacks,
    RollbacksLost,
    Connects,
}

impl Counter {
    const fn index(self) -> usize {
        match self {
            Self::OpenTokens => 16,
            Self::ListedTokens => 17,
            Self::SwitchedTokens => 18,
            Self::Rollbacks => 19,
            Self::RollbacksLost => 20,
            Self::Connects => 21,
        }
    }
}

const fn outcome_index(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Allowed => 0,
        Outcome::AllowedOpen => 1,
        Outcome::AllowedShadow => 2,
        Outcome::Refused(Reason::Exhausted) => 3,
        Outcome::Refused(Reason::Unreachable) => 4,
        Outcome::Refused(Reason::FirstTouch) => 5,
        Outcome::Refused(Reason::CostTooHigh) => 6,
        Outcome::Refused(Reason::TableFull) => 7,
        Outcome::Refused(Reason::TooManyWaiters) => 8,
        Outcome::Refused(Reason::InvalidKey) => 9,
        Outcome::Refused(Reason::Closed) => 10,
        Outcome::Refused(Reason::UnknownPolicy) => 11,
        Outcome::Refused(Reason::Overloaded) => 12,
        Outcome::Refused(Reason::KillSwitch) => 13,
        Outcome::AllowedSwitched => 14,
        Outcome::AllowedListed => 15,
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters(Stripes<COUNTERS>);

impl Counters {
    /// Counts one decision about a request.
    #[inline]
    pub(crate) fn count(&self, outcome: Outcome) {
        self.add_at(outcome_index(outcome), 1);
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.add_at(counter.index(), amount);
    }

    #[inline]
    fn add_at(&self, index: usize, amount: u64) {
        self.0.add(seats::mine(), index, amount);
    }

    pub(crate) fn read(&self, keys: u64, keys_max: u64) -> Stats {
        let outcome = |outcome| self.0.total(outcome_index(outcome));
        let refused = |reason| outcome(Outcome::Refused(reason));
        Stats {
            allowed: outcome(Outcome::Allowed),
            allowed_switched: outcome(Outcome::AllowedSwitched),
            allowed_open: outcome(Outcome::AllowedOpen),
            allowed_listed: outcome(Outcome::AllowedListed),
            allowed_shadow: outcome(Outcome::AllowedShadow),
            exhausted: refused(Reason::Exhausted),
            unreachable: refused(Reason::Unreachable),
            overloaded: refused(Reason::Overloaded),
            kill_switch: refused(Reason::KillSwitch),
            first_touch: refused(Reason::FirstTouch),
            cost_too_high: refused(Reason::CostTooHigh),
            table_full: refused(Reason::TableFull),
            too_many_waiters: refused(Reason::TooManyWaiters),
            invalid_key: refused(Reason::InvalidKey),
            closed: refused(Reason::Closed),
            unknown_policy: refused(Reason::UnknownPolicy),
            open_tokens: self.0.total(Counter::OpenTokens.index()),
            listed_tokens: self.0.total(Counter::ListedTokens.index()),
            switched_tokens: self.0.total(Counter::SwitchedTokens.index()),
            rollbacks: self.0.total(Counter::Rollbacks.index()),
            rollbacks_lost: self.0.total(Counter::RollbacksLost.index()),
            connects: self.0.total(Counter::Connects.index()),
            keys,
            keys_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seats::SEATS;

    #[test]
    fn counts_of_all_threads_add_up() {
        let counters = Counters::default();
        // More threads at once than there are seats, and then threads that inherit one.
        let (threads, all_seated) = (SEATS + 36, std::sync::Barrier::new(SEATS + 36));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    counters.count(Outcome::AllowedOpen);
                    all_seated.wait();
                    for _ in 0..100 {
                        counters.count(Outcome::Allowed);
                        counters.count(Outcome::Refused(Reason::Exhausted));
                    }
                    counters.add(Counter::OpenTokens, 3);
                });
            }
        });
        for _ in 0..SEATS {
            let late = || counters.count(Outcome::AllowedOpen);
            std::thread::scope(|scope| scope.spawn(late).join().expect("no panic"));
        }
        let stats = counters.read(1, 2);
        assert_eq!((stats.allowed, stats.exhausted), (10_000, 10_000));
        assert_eq!(stats.allowed_open, 164);
        assert_eq!((stats.open_tokens, stats.closed), (300, 0));
        assert_eq!((stats.keys, stats.keys_max), (1, 2));
    }

    #[test]
    fn every_counter_has_a_place_of_its_own() {
        let mut places = vec![
            outcome_index(Outcome::Allowed),
            outcome_index(Outcome::AllowedOpen),
            outcome_index(Outcome::AllowedShadow),
        ];
        for reason in [
            Reason::Exhausted,
            Reason::Unreachable,
            Reason::FirstTouch,
            Reason::CostTooHigh,
            Reason::TableFull,
            Reason::TooManyWaiters,
            Reason::InvalidKey,
            Reason::Closed,
            Reason::UnknownPolicy,
            Reason::Overloaded,
            Reason::KillSwitch,
        ] {
            places.push(outcome_index(Outcome::Refused(reason)));
        }
        for outcome in [Outcome::AllowedSwitched, Outcome::AllowedListed] {
            places.push(outcome_index(outcome));
        }
        for counter in [
            Counter::OpenTokens,
            Counter::ListedTokens,
            Counter::SwitchedTokens,
            Counter::Rollbacks,
            Counter::RollbacksLost,
            Counter::Connects,
        ] {
            places.push(counter.index());
        }
        assert_eq!(places, (0..COUNTERS).collect::<Vec<_>>());
    }
}
