//! The word of a cell, unpacked, and the pure decisions on it.

use super::tick::TICK_MASK;
use super::{Debit, Exhausted, Receipt};
use crate::message::{COST_MAX, HELD_MAX};
use crate::tokens::Tokens;

pub(super) const MARK_MAX: u64 = 7;
pub(super) const ERA_MAX: u64 = 7;
const FLAG: u64 = 1;
const MARK_SHIFT: u32 = 1;
const ERA_SHIFT: u32 = 4;
const DEADLINE_SHIFT: u32 = 7;
const TOKENS_SHIFT: u32 = 36;

/// The word, unpacked; the cell makes its decisions atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) tokens: u64,
    pub(super) deadline: u64,
    pub(super) era: u64,
    pub(super) mark: u64,
    pub(super) renewing: bool,
}

impl Word {
    #[inline]
    pub(super) const fn unpack(raw: u64) -> Self {
        Self {
            tokens: raw >> TOKENS_SHIFT,
            deadline: (raw >> DEADLINE_SHIFT) & TICK_MASK,
            era: (raw >> ERA_SHIFT) & ERA_MAX,
            mark: (raw >> MARK_SHIFT) & MARK_MAX,
            renewing: raw & FLAG != 0,
        }
    }

    #[inline]
    pub(super) const fn pack(self) -> u64 {
        let flag = if self.renewing { FLAG } else { 0 };
        (self.tokens << TOKENS_SHIFT) | self.identity() | flag
    }

    /// Everything but tokens and flag: what a roll-back must find unchanged.
    #[inline]
    const fn identity(self) -> u64 {
        self.lease_identity() | (self.mark << MARK_SHIFT)
    }

    /// Which lease at which deadline, whatever was reported of it.
    #[inline]
    pub(super) const fn lease_identity(self) -> u64 {
        (self.deadline << DEADLINE_SHIFT) | (self.era << ERA_SHIFT)
    }

    /// Takes `cost` tokens, asking for a renewal if the remainder is at most `renew_at` or does
    /// not suffice.
    #[inline]
    pub(super) fn debit(self, cost: u64, renew_at: u64) -> (Self, Result<Debit, Exhausted>) {
        if cost > self.tokens || cost > COST_MAX.get() {
            // No renewal can ever help a cost above the maximum.
            let renew = !self.renewing && cost <= COST_MAX.get();
            let renewing = self.renewing || renew;
            return (Self { renewing, ..self }, Err(Exhausted { renew }));
        }
        let tokens = self.tokens.saturating_sub(cost);
        let renew = cost > 0 && !self.renewing && tokens <= renew_at;
        let next = Self {
            tokens,
            renewing: self.renewing || renew,
            ..self
        };
        let debit = Debit {
            receipt: Receipt {
                cost,
                identity: self.identity(),
            },
            remaining: Tokens::new(tokens),
            renew,
        };
        (next, Ok(debit))
    }

    /// Gives the tokens of `receipt` back, if nothing has happened since that forbids it.
    pub(super) fn restored(self, receipt: Receipt) -> Option<Self> {
        let tokens = self.tokens.saturating_add(receipt.cost);
        (self.identity() == receipt.identity && tokens <= HELD_MAX.get())
            .then_some(Self { tokens, ..self })
    }
}
