//! The ideal bucket: the promise itself, outside of every system that makes it.
//!
//! One un-split token bucket per bucket, fed with the actual admissions in the order in which they
//! happened. It is full at the start and must never go below zero: then, over *every* window, at
//! most `capacity + rate · window` was admitted (`tests/oracle.rs` proves the equivalence against
//! brute force over all windows). All arithmetic is exact.
//!
//! It knows no leases, no authority and no network, and shares no code with the ledger that it
//! judges beyond the newtypes.

use std::fmt;

use quota_core::policy::Limit;
use quota_core::rate::Rate;
use quota_core::time::{Term, Timestamp};
use quota_core::tokens::Tokens;

/// The limit that an ideal bucket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdealLimit {
    /// The most that may be admitted at one moment.
    pub capacity: Tokens,
    /// The refill.
    pub rate: Rate,
}

impl From<&Limit> for IdealLimit {
    fn from(limit: &Limit) -> Self {
        Self {
            capacity: limit.capacity(),
            rate: limit.rate(),
        }
    }
}

/// The promise was broken, or the log that was to be judged is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// More was admitted than the limit allows.
    Exceeded {
        /// When the limit was passed: the admission, or for an interval its latest moment.
        at: Timestamp,
        /// The cost of the admission that passed it.
        cost: Tokens,
        /// How far below the floor the ideal bucket went, in whole tokens, rounded up.
        excess: Tokens,
        /// Tokens admitted before this one.
        admitted: Tokens,
    },
    /// An admission came before one that was fed earlier; the log must be in order.
    OutOfOrder {
        /// Its time.
        at: Timestamp,
        /// The time already reached.
        reached: Timestamp,
    },
    /// An admission that ends before it begins.
    EmptyInterval {
        /// Its beginning.
        earliest: Timestamp,
        /// Its end.
        latest: Timestamp,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exceeded {
                at,
                cost,
                excess,
                admitted,
            } => write!(
                f,
                "the limit was passed by {excess} tokens at {} ns, by an admission of {cost} after \
                 {admitted} were admitted",
                at.as_nanos()
            ),
            Self::OutOfOrder { at, reached } => write!(
                f,
                "an admission at {} ns was fed after {} ns was reached: sort the log first",
                at.as_nanos(),
                reached.as_nanos()
            ),
            Self::EmptyInterval { earliest, latest } => write!(
                f,
                "an admission between {} ns and {} ns: the interval ends before it begins",
                earliest.as_nanos(),
                latest.as_nanos()
            ),
        }
    }
}

impl std::error::Error for Violation {}

/// One bucket's ideal level.
///
/// # Policy changes
///
/// A change keeps what was used: the level moves by the difference of the capacities, both ways,
/// below zero too. After a lowering, tokens that were out under the old limit may still be spent,
/// so the level may go below zero by at most the difference until one longest stretched term has
/// passed (then nothing that was granted before is live), and from there on by what the new rate
/// has not paid back yet. A raise takes that allowance back. This is stricter than "the largest
/// capacity and rate in force since one longest term before the window": toggling a limit gains
/// nothing here.
#[derive(Clone, Debug)]
pub struct IdealBucket {
    limit: IdealLimit,
    /// In parts of the rate's denominator.
    level: i128,
    at: Timestamp,
    /// How far below zero the level may be, in parts.
    allowance: i128,
    /// From here on the allowance shrinks at the rate.
    shrinks_from: Timestamp,
    admitted: Tokens,
    lowest: i128,
}

impl IdealBucket {
    /// A full bucket at the beginning of time.
    #[must_use]
    pub fn new(limit: impl Into<IdealLimit>) -> Self {
        let limit = limit.into();
        let full = parts(limit.capacity, limit.rate);
        Self {
            limit,
            level: full,
            at: Timestamp::ZERO,
            allowance: 0,
            shrinks_from: Timestamp::ZERO,
            admitted: Tokens::ZERO,
            lowest: full,
        }
    }

    /// Takes note of an admission of `cost` at `at`.
    ///
    /// # Errors
    /// [`Violation`] if the level falls below its floor, or if `at` is before an earlier call's.
    pub fn admit(&mut self, at: Timestamp, cost: Tokens) -> Result<(), Violation> {
        self.advance(at)?;
        self.level -= parts(cost, self.limit.rate);
        self.lowest = self.lowest.min(self.level);
        let below = -(self.level + self.allowance);
        let before = self.admitted;
        self.admitted += cost;
        if below <= 0 {
            return Ok(());
        }
        Err(Violation::Exceeded {
            at,
            cost,
            excess: whole_up(below, self.limit.rate),
            admitted: before,
        })
    }

    /// Puts another limit in force at `at`. `term` is the longest time for which anything that was
    /// granted before can be spent: the longest stretched term of all versions until now.
    ///
    /// # Errors
    /// [`Violation::OutOfOrder`].
    pub fn change(
        &mut self,
        at: Timestamp,
        limit: impl Into<IdealLimit>,
        term: Term,
    ) -> Result<(), Violation> {
        self.advance(at)?;
        let (old, new) = (self.limit, limit.into());
        let shift = parts(new.capacity, new.rate) - parts(old.capacity, new.rate);
        self.level = converted_up(self.level, old.rate, new.rate) + shift;
        let allowance = converted_up(self.allowance, old.rate, new.rate) - shift;
        self.allowance = allowance.max(0);
        if shift < 0 {
            self.shrinks_from = self.shrinks_from.max(at + term);
        }
        self.limit = new;
        Ok(())
    }

    /// Whole tokens at `at`, rounded down; below zero only within the allowance of a lowering.
    ///
    /// # Errors
    /// [`Violation::OutOfOrder`].
    pub fn level(&mut self, at: Timestamp) -> Result<i128, Violation> {
        self.advance(at)?;
        Ok(self
            .level
            .div_euclid(i128::from(self.limit.rate.denominator())))
    }

    /// All tokens admitted so far.
    #[must_use]
    pub const fn admitted(&self) -> Tokens {
        self.admitted
    }

    /// The lowest level ever, in whole tokens of the present limit, rounded down: how close it
    /// came.
    #[must_use]
    pub fn lowest(&self) -> i128 {
        self.lowest
            .div_euclid(i128::from(self.limit.rate.denominator()))
    }

    /// The limit in force.
    #[must_use]
    pub const fn limit(&self) -> IdealLimit {
        self.limit
    }

    fn advance(&mut self, at: Timestamp) -> Result<(), Violation> {
        if at < self.at {
            return Err(Violation::OutOfOrder {
                at,
                reached: self.at,
            });
        }
        let rate = i128::from(self.limit.rate.numerator());
        let gain = i128::from(at.since(self.at).as_nanos()) * rate;
        let full = parts(self.limit.capacity, self.limit.rate);
        self.level = self.level.saturating_add(gain).min(full);
        let shrinking = at.since(self.shrinks_from.max(self.at));
        let shrunk = i128::from(shrinking.as_nanos()) * rate;
        self.allowance = (self.allowance - shrunk).max(0);
        self.at = at;
        Ok(())
    }
}

pub(crate) fn parts(tokens: Tokens, rate: Rate) -> i128 {
    i128::from(tokens.get()) * i128::from(rate.denominator())
}

pub(crate) fn whole_up(parts: i128, rate: Rate) -> Tokens {
    let whole = parts
        .max(0)
        .unsigned_abs()
        .div_ceil(u128::from(rate.denominator()));
    Tokens::new(u64::try_from(whole).unwrap_or(u64::MAX))
}

/// The same amount in the parts of another rate, rounded up: in favour of the system by less than
/// one part.
fn converted_up(amount: i128, from: Rate, to: Rate) -> i128 {
    let (from, to) = (i128::from(from.denominator()), i128::from(to.denominator()));
    let (whole, rest) = (amount.div_euclid(from), amount.rem_euclid(from));
    whole * to + (rest * to + from - 1).div_euclid(from)
}
