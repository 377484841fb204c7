//! The lease cell: the one word that a gateway's requests spend from.
//!
//! It owns the tokens of one lease, the deadline until which they may be spent, and the rules by
//! which concurrent spenders and the one holder machine change both. It does not know lease ids,
//! running totals or clocks: the holder machine keeps the totals, and a clock is passed in.
//!
//! Everything that decides sits in one 64-bit word, so that no reader ever pairs the tokens of one
//! lease with the deadline of another:
//!
//! ```text
//! [ tokens: 28 | deadline tick: 29 | era: 3 | report mark: 3 | renewal flag: 1 ]
//! ```
//!
//! What keeps it exact:
//!
//! - **Debit first, clock after.** A spender takes the tokens and only then reads the clock; if
//!   the deadline has passed, the debit is given up. The other order spends an ended lease after a
//!   preemption between the two.
//! - **Identity.** `(deadline, era, mark)` never repeats within one cell while that deadline is
//!   ahead. Within an era the deadline rises; a new lease that must end before an earlier deadline
//!   of the cell opens a new era. What an old debit wants to put back finds its identity or is
//!   dropped.
//! - **Reported is final.** A report bumps the mark, so a roll-back of anything that it counted as
//!   spent is dropped.
//! - **Spent is derived**: granted − returned − tokens in the word. Lost tokens count as spent.
//!
//! Many threads may call [`LeaseCell::spend`], [`LeaseCell::debit`], [`LeaseCell::confirm`],
//! [`LeaseCell::roll_back`] and [`LeaseCell::refuse`]; the rest belongs to the one holder machine.
//! A cell never moves while anyone can reach it.

mod tick;
mod word;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::message::{COST_MAX, HELD_MAX};
use crate::tokens::Tokens;

pub use tick::{CELL_TERM_MAX, Tick, floor_to_tick, next_tick};
use word::{ERA_MAX, MARK_MAX, Word};

/// What a cell holds at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
    /// Tokens left, spendable or not.
    pub tokens: Tokens,
    /// The deadline's tick.
    pub deadline: Tick,
    /// True once a renewal has been asked for since the last grant.
    pub renewing: bool,
}

impl CellView {
    /// True while the lease's deadline is ahead of `now`.
    #[inline]
    #[must_use]
    pub const fn live(self, now: Tick) -> bool {
        self.deadline.ahead_of(now) > 0
    }
}

/// The outcome of [`LeaseCell::spend`].
///
/// `renew` is true for exactly one spender after each grant: that one tells the holder machine
/// (`Touched`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// The tokens are spent.
    Admitted {
        /// Tokens left in the cell after this one.
        remaining: Tokens,
        /// Tell the holder machine.
        renew: bool,
        /// Takes the spending back, if need be.
        receipt: Receipt,
    },
    /// There are too few tokens. The clock was not read: the lease may have ended too, or never
    /// been.
    Exhausted {
        /// Tell the holder machine.
        renew: bool,
    },
    /// There were enough tokens, but the lease's deadline has passed. They are gone.
    Ended {
        /// Tell the holder machine.
        renew: bool,
    },
}

/// Too few tokens: see [`Spend::Exhausted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Tell the holder machine.
    pub renew: bool,
}

/// The lease's deadline has passed: see [`Spend::Ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Tell the holder machine.
    pub renew: bool,
}

/// Tokens taken from a cell, not yet known to have been taken in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "read the clock, then confirm it"]
pub struct Debit {
    receipt: Receipt,
    remaining: Tokens,
    renew: bool,
}

impl Debit {
    /// Tokens left in the cell after this debit.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> Tokens {
        self.remaining
    }

    /// True if this debit is the one to tell the holder machine.
    #[inline]
    #[must_use]
    pub const fn renew(&self) -> bool {
        self.renew
    }
}

/// Proof of one spending, good for one roll-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    cost: u64,
    identity: u64,
}

impl Receipt {
    /// The tokens spent.
    #[must_use]
    pub const fn cost(&self) -> Tokens {
        Tokens::new(self.cost)
    }
}

/// What became of a roll-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollBack {
    /// The tokens are in the cell again.
    Restored,
    /// The lease has moved on or has been reported: the tokens stay spent. Count them.
    Lost,
}

/// How a deadline relates to those that the cell has had before. The holder machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rise {
    /// All earlier deadlines of the cell have passed.
    Fresh,
    /// It is later than every earlier deadline, of which some are still ahead.
    Above,
    /// An earlier deadline of the cell is ahead, and as late or later.
    Within,
}

/// The cell has opened seven eras since its deadlines were last all behind; nothing was changed.
/// Wait until they are, and count the tokens as returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasExhausted;

/// One lease's word and its side fields, 16 bytes. Starts empty.
#[derive(Debug, Default)]
pub struct LeaseCell {
    word: AtomicU64,
    /// The remainder at which a spender asks for a renewal. A hint: a stale value is harmless.
    renew_at: AtomicU32,
    /// Tokens refused since the holder machine last looked.
    refused: AtomicU32,
}

impl LeaseCell {
    /// A cell without a lease.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            renew_at: AtomicU32::new(0),
            refused: AtomicU32::new(0),
        }
    }

    /// A cell without a lease.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spends `cost` tokens: one load and one compare-exchange, then one call of `clock`, which
    /// must read the holder's clock when called. A refusal is a plain load, except for the one
    /// that asks for the renewal. A cost of zero is admitted in every state; a cost above
    /// [`COST_MAX`] never is.
    pub fn spend(&self, cost: Tokens, clock: impl FnOnce() -> Tick) -> Spend {
        let debit = match self.debit(cost) {
            Ok(debit) => debit,
            Err(Exhausted { renew }) => return Spend::Exhausted { renew },
        };
        match self.confirm(debit, clock()) {
            Ok(receipt) => Spend::Admitted {
                remaining: debit.remaining,
                renew: debit.renew,
                receipt,
            },
            Err(Ended { renew }) => Spend::Ended { renew },
        }
    }

    /// The first half of [`LeaseCell::spend`], for a request that several cells must admit: debit
    /// each, read the clock once, then [`LeaseCell::confirm`] each.
    ///
    /// # Errors
    /// [`Exhausted`] if there are too few tokens; nothing was taken.
    #[inline]
    pub fn debit(&self, cost: Tokens) -> Result<Debit, Exhausted> {
        let renew_at = u64::from(self.renew_at.load(Ordering::Relaxed));
        let mut raw = self.word.load(Ordering::Acquire);
        loop {
            let word = Word::unpack(raw);
            let (next, result) = word.debit(cost.get(), renew_at);
            if next == word {
                return result;
            }
            match self.swap(raw, next) {
                Ok(()) => {
                    fence_before_clock();
                    return result;
                }
                Err(actual) => raw = actual,
            }
        }
    }

    /// The second half of [`LeaseCell::spend`]. `now` must have been read after the debit.
    ///
    /// # Errors
    /// [`Ended`] if the lease's deadline had passed; the debit is given up, and so is what was
    /// left of that lease.
    #[inline]
    pub fn confirm(&self, debit: Debit, now: Tick) -> Result<Receipt, Ended> {
        let receipt = debit.receipt;
        let deadline = Word::unpack(receipt.identity).deadline;
        if receipt.cost == 0 || Tick(deadline).ahead_of(now) > 0 {
            return Ok(receipt);
        }
        let mut fired = debit.renew;
        self.update(|word| {
            // Another lease, or a later deadline of the same one, is not ours to end.
            if word.lease_identity() != Word::unpack(receipt.identity).lease_identity() {
                return None;
            }
            fired = debit.renew || !word.renewing;
            Some(Word {
                tokens: 0,
                renewing: true,
                ..word
            })
        });
        Err(Ended { renew: fired })
    }

    /// Puts the tokens of a spending back, for a request that another limit refused. Each receipt
    /// may be used once.
    pub fn roll_back(&self, receipt: Receipt) -> RollBack {
        if receipt.cost == 0 {
            return RollBack::Restored;
        }
        let mut restored = false;
        self.update(|word| {
            let next = word.restored(receipt);
            restored = next.is_some();
            next
        });
        if restored {
            RollBack::Restored
        } else {
            RollBack::Lost
        }
    }

    /// Counts a request that was finally refused, once per request, as demand. Cost: a load and a
    /// relaxed add.
    #[inline]
    pub fn refuse(&self, cost: Tokens) {
        let cost = u32::try_from(cost.get().min(COST_MAX.get())).unwrap_or(u32::MAX);
        // Half the range is left for threads between this load and their add.
        if self.refused.load(Ordering::Relaxed) < u32::MAX >> 1 {
            self.refused.fetch_add(cost, Ordering::Relaxed);
        }
    }

    /// What the cell holds now.
    #[inline]
    #[must_use]
    pub fn view(&self) -> CellView {
        let word = Word::unpack(self.word.load(Ordering::Acquire));
        CellView {
            tokens: Tokens::new(word.tokens),
            deadline: Tick(word.deadline),
            renewing: word.renewing,
        }
    }

    /// Takes the count of refused tokens since the last call. Holder machine only.
    pub fn take_refused(&self) -> Tokens {
        Tokens::new(u64::from(self.refused.swap(0, Ordering::Relaxed)))
    }

    /// Sets the remainder at which a spender asks for a renewal. Holder machine only.
    pub fn set_renew_at(&self, tokens: Tokens) {
        let tokens = u32::try_from(tokens.get()).unwrap_or(u32::MAX);
        self.renew_at.store(tokens, Ordering::Relaxed);
    }

    /// Lets the next spender that finds the remainder low ask for a renewal again. Holder machine
    /// only.
    pub fn rearm(&self) {
        self.update(|word| {
            word.renewing.then_some(Word {
                renewing: false,
                ..word
            })
        });
    }

    /// Puts a new lease into the cell; returns the rest of the old one, which is given up.
    /// `tokens` must be at most [`HELD_MAX`]. Holder machine only.
    ///
    /// # Errors
    /// [`ErasExhausted`] if the cell cannot tell the new lease from an old one.
    pub fn install(
        &self,
        tokens: Tokens,
        deadline: Tick,
        rise: Rise,
    ) -> Result<Tokens, ErasExhausted> {
        assert!(tokens <= HELD_MAX, "{tokens} tokens do not fit a cell");
        let mut outcome = Err(ErasExhausted);
        self.update(|word| {
            let era = match rise {
                Rise::Fresh => 0,
                Rise::Above => word.era,
                Rise::Within => word.era.checked_add(1).filter(|era| *era <= ERA_MAX)?,
            };
            outcome = Ok(Tokens::new(word.tokens));
            Some(Word {
                tokens: tokens.get(),
                deadline: deadline.0,
                era,
                mark: 0,
                renewing: false,
            })
        });
        outcome
    }

    /// Adds tokens to the lease, and moves its deadline to `deadline` if that is later; returns
    /// what did not fit under [`HELD_MAX`], to be counted as returned. Lets a renewal be asked for
    /// again. Holder machine only.
    pub fn extend(&self, tokens: Tokens, deadline: Tick, rise: Rise) -> Tokens {
        let mut overflow = 0;
        self.update(|word| {
            let total = word.tokens.saturating_add(tokens.get());
            overflow = total.saturating_sub(HELD_MAX.get());
            let next = Word {
                tokens: total.min(HELD_MAX.get()),
                renewing: false,
                ..word
            };
            Some(match (Tick(word.deadline) == deadline, rise) {
                (true, _) => next,
                (false, Rise::Within) if deadline.ahead_of(Tick(word.deadline)) == 0 => next,
                (false, _) => Word {
                    deadline: deadline.0,
                    mark: 0,
                    ..next
                },
            })
        });
        Tokens::new(overflow)
    }

    /// Takes all tokens beyond `keep` out of the spenders' reach and returns how many they were,
    /// to be returned. Holder machine only.
    pub fn take_back(&self, keep: Tokens) -> Tokens {
        let mut taken = 0;
        self.update(|word| {
            taken = word.tokens.saturating_sub(keep.get());
            (taken > 0).then(|| Word {
                tokens: word.tokens.min(keep.get()),
                ..word
            })
        });
        Tokens::new(taken)
    }

    /// Makes everything that is spent by now final and returns the tokens left. `None` if seven
    /// reports were made since the deadline last rose: report the earlier total. Holder machine
    /// only.
    pub fn report(&self) -> Option<Tokens> {
        let mut left = None;
        self.update(|word| {
            let mark = word.mark.checked_add(1).filter(|mark| *mark <= MARK_MAX)?;
            left = Some(Tokens::new(word.tokens));
            Some(Word { mark, ..word })
        });
        left
    }

    /// Ends the lease: takes all tokens out and drops every later roll-back. `after` must be later
    /// than every deadline that the cell has had; from now on it is one of them. Returns the
    /// tokens taken out. Holder machine only.
    pub fn clear(&self, after: Tick) -> Tokens {
        let mut taken = 0;
        self.update(|word| {
            taken = word.tokens;
            Some(Word {
                tokens: 0,
                deadline: after.0,
                mark: 0,
                renewing: false,
                ..word
            })
        });
        Tokens::new(taken)
    }

    #[inline]
    fn swap(&self, from: u64, to: Word) -> Result<(), u64> {
        self.word
            .compare_exchange_weak(from, to.pack(), Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    /// Applies `change` until it takes hold or declines.
    #[inline]
    fn update(&self, mut change: impl FnMut(Word) -> Option<Word>) {
        let mut raw = self.word.load(Ordering::Acquire);
        while let Some(next) = change(Word::unpack(raw)) {
            match self.swap(raw, next) {
                Ok(()) => return,
                Err(actual) => raw = actual,
            }
        }
    }
}

/// Keeps the clock from being read before the debit is visible. On x86-64 the locked
/// compare-exchange already is a full fence, and only the compiler must be told.
#[inline]
fn fence_before_clock() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(all(not(loom), not(target_arch = "x86_64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
}
