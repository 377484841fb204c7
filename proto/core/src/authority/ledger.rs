//! The ledger of one bucket: what is available, what is outstanding, what an earlier tenure may
//! still have out.
//!
//! It owns the arithmetic of conservation and the order of settling. It does not know who holds
//! what (see [`super::lease`]), who waits, or what is durable.

use super::lease::Leases;
use crate::level::Level;
use crate::policy::Limit;
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// The state of one bucket's tokens.
///
/// Invariant, to the exact fraction: `level + outstanding + ghost ≤ capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Available tokens; below zero while the bucket owes after a lowering or a restart.
    pub(super) level: Level,
    /// The moment up to which refill has been accrued.
    pub(super) settled_at: Timestamp,
    /// Granted by this tenure (or handed over to it) and not yet reported spent, returned or
    /// reclaimed.
    pub(super) outstanding: Tokens,
    /// Exposure of earlier tenures that counts as outstanding until `ghost_end`.
    pub(super) ghost: Tokens,
    /// When the ghost can no longer be live.
    pub(super) ghost_end: Timestamp,
}

impl Ledger {
    /// A full bucket with nothing outstanding.
    pub(super) fn full(now: Timestamp, limit: &Limit) -> Self {
        Self {
            level: Level::from_tokens(i128::from(limit.capacity().get()), limit.rate()),
            settled_at: now,
            outstanding: Tokens::ZERO,
            ghost: Tokens::ZERO,
            ghost_end: Timestamp::ZERO,
        }
    }

    /// A bucket that an earlier tenure may have emptied and of which `ghost` may be out.
    ///
    /// It starts at `min(level, capacity − ghost)` and refills only from this tenure's own time.
    pub(super) fn restarted(
        now: Timestamp,
        limit: &Limit,
        level: i128,
        ghost: Tokens,
        ghost_end: Timestamp,
    ) -> Self {
        let room = i128::from(limit.capacity().get()).saturating_sub(i128::from(ghost.get()));
        Self {
            level: Level::from_tokens(level.min(room), limit.rate()),
            settled_at: now,
            outstanding: Tokens::ZERO,
            ghost,
            ghost_end,
        }
    }

    /// The highest level that refill may reach now: `capacity − outstanding − ghost`.
    pub(super) fn ceiling(&self, limit: &Limit) -> i128 {
        i128::from(limit.capacity().get())
            .saturating_sub(i128::from(self.outstanding.get()))
            .saturating_sub(i128::from(self.ghost.get()))
    }

    /// Whole tokens that could be granted now as far as the level goes.
    pub(super) fn takeable(&self, limit: &Limit) -> Tokens {
        self.level.takeable(limit.rate())
    }

    /// True if nothing distinguishes this bucket from a full one that nobody uses.
    pub(super) fn is_idle_full(&self, limit: &Limit) -> bool {
        self.outstanding.is_zero()
            && self.ghost.is_zero()
            && self.level == Level::from_tokens(i128::from(limit.capacity().get()), limit.rate())
    }

    /// Brings the bucket to `now`: refill up to each reclaim and ghost end under the ceiling that
    /// held before it, then that event, in time order. Settling late gives exactly what settling
    /// promptly would have given. Returns the tokens that were reclaimed.
    pub(super) fn settle(
        &mut self,
        now: Timestamp,
        limit: &Limit,
        leases: &mut Leases,
        on_reclaim: &mut dyn FnMut(u32),
    ) -> Tokens {
        let mut reclaimed = Tokens::ZERO;
        loop {
            let ghost_end = if self.ghost.is_zero() {
                Timestamp::MAX
            } else {
                self.ghost_end
            };
            let next = leases.next_reclaim().min(ghost_end);
            if next > now || next == Timestamp::MAX {
                break;
            }
            self.accrue(next, limit);
            if ghost_end == next {
                self.ghost = Tokens::ZERO;
            }
            leases.reclaim_until(next, &mut |lease| {
                let rest = lease.held();
                self.outstanding = self.outstanding.minus(rest);
                reclaimed = reclaimed.plus(rest);
                on_reclaim(lease.holder);
            });
        }
        self.accrue(now, limit);
        reclaimed
    }

    fn accrue(&mut self, until: Timestamp, limit: &Limit) {
        if until <= self.settled_at {
            return;
        }
        let term = until.since(self.settled_at);
        self.level = self.level.refilled(limit.rate(), term, self.ceiling(limit));
        self.settled_at = until;
    }

    /// Moves tokens from available to outstanding. The caller has settled and checked.
    pub(super) fn grant(&mut self, tokens: Tokens, limit: &Limit) {
        self.level = self.level.minus(tokens, limit.rate());
        assert!(
            self.level.parts() >= 0,
            "a grant never takes more than is available"
        );
        self.outstanding = self.outstanding.plus(tokens);
    }

    /// Books a report: what was spent is gone, what was returned is available again. The caller
    /// has settled up to now, so the refill before the report saw the old ceiling.
    pub(super) fn report(&mut self, spent: Tokens, returned: Tokens, limit: &Limit) {
        self.outstanding = self.outstanding.minus(spent).minus(returned);
        self.level = self.level.plus(returned, limit.rate());
    }

    /// Carries the amount used over to another limit: `available += capacity′ − capacity`, both
    /// ways, below zero too. Clamping one way and adding the other would mint tokens. The caller
    /// has settled up to now under the old limit.
    pub(super) fn restate(&mut self, old: &Limit, new: &Limit) {
        let change =
            i128::from(new.capacity().get()).saturating_sub(i128::from(old.capacity().get()));
        let level = self.level.converted(old.rate(), new.rate());
        let shifted = level
            .parts()
            .checked_add(Level::from_tokens(change, new.rate()).parts())
            .expect("levels stay far inside 128 bits");
        self.level = Level::from_parts(shifted);
    }

    /// How long until `tokens` are available if nothing is granted, reported or reclaimed before;
    /// `None` if the ceiling is too low for that.
    pub(super) fn time_until(&self, tokens: Tokens, limit: &Limit) -> Option<Term> {
        if i128::from(tokens.get()) > self.ceiling(limit) {
            return None;
        }
        Some(self.level.time_until(tokens, limit.rate()))
    }

    /// Capacity less what is available, rounded up: what a record and a view call *used*.
    pub(super) fn used(&self, limit: &Limit) -> Tokens {
        let used =
            i128::from(limit.capacity().get()).saturating_sub(self.level.tokens(limit.rate()));
        Tokens::new(u64::try_from(used).expect("the level never exceeds the capacity"))
    }

    /// Panics unless conservation holds.
    pub(super) fn check(&self, limit: &Limit, leases: &Leases) {
        assert_eq!(
            self.outstanding,
            leases.held_total(),
            "outstanding is the sum of what the leases hold"
        );
        let ceiling = Level::from_tokens(self.ceiling(limit), limit.rate());
        assert!(
            self.level <= ceiling,
            "available + outstanding + ghost exceed the capacity: {self:?} under {limit:?}"
        );
    }
}
