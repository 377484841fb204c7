//! Points and spans on one node's monotonic clock.
//!
//! The core never reads a clock: a driver passes [`Timestamp`]s in. They count nanoseconds on a
//! clock that keeps counting through suspend and has no relation to any other node's clock, so a
//! timestamp never crosses the wire; only a [`Term`] does.

use core::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Nanoseconds in one millisecond.
pub const NANOS_PER_MILLI: u64 = 1_000_000;
/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point on one node's monotonic clock, in nanoseconds since an arbitrary origin.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin of the clock; earlier than or equal to every other timestamp.
    pub const ZERO: Self = Self(0);
    /// Later than every moment that is ever reached (584 years after the origin).
    pub const MAX: Self = Self(u64::MAX);

    /// A timestamp of `nanos` nanoseconds since the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to `self`; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Term {
        Term(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Term> for Timestamp {
    type Output = Self;

    /// Saturates at [`Timestamp::MAX`], which means "never".
    fn add(self, term: Term) -> Self {
        Self(self.0.saturating_add(term.0))
    }
}

impl AddAssign<Term> for Timestamp {
    fn add_assign(&mut self, term: Term) {
        *self = *self + term;
    }
}

/// A span of time, in nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Term(u64);

impl Term {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `millis` milliseconds; saturates after 584 years.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// A span of `seconds` seconds; saturates after 584 years.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// The span in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span in whole milliseconds, rounded up, so that waiting it is never too short.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MILLI)
    }

    /// The span in whole seconds, rounded up, so that waiting it is never too short.
    #[must_use]
    pub const fn as_seconds_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SECOND)
    }

    /// `numerator / denominator` of this span, rounded up. `denominator` must not be zero.
    #[must_use]
    pub fn scale_up(self, numerator: u64, denominator: u64) -> Self {
        assert!(denominator > 0, "a ratio needs a denominator");
        let product = u128::from(self.0).saturating_mul(u128::from(numerator));
        Self(u64::try_from(product.div_ceil(u128::from(denominator))).unwrap_or(u64::MAX))
    }

    /// `numerator / denominator` of this span, rounded down. `denominator` must not be zero.
    #[must_use]
    pub fn scale_down(self, numerator: u64, denominator: u64) -> Self {
        assert!(denominator > 0, "a ratio needs a denominator");
        let product = u128::from(self.0).saturating_mul(u128::from(numerator));
        let scaled = product
            .checked_div(u128::from(denominator))
            .expect("asserted above");
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// This span less `other`, zero at the least.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Term {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// How much longer the authority counts a term than its holder does: the allowance for two clocks
/// that do not run at the same speed.
///
/// Clock daemons may slew a clock by up to a tenth, so two clocks may differ by two tenths; a
/// quarter covers that. The margin covers tick rounding and is added once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftAllowance {
    /// Added to a term as a share of it, in thousandths.
    pub per_mille: u32,
    /// Added to a term once.
    pub margin: Term,
}

impl DriftAllowance {
    /// A quarter of the term plus 50 ms.
    pub const DEFAULT: Self = Self {
        per_mille: 250,
        margin: Term::from_millis(50),
    };

    /// `term` as the authority counts it, rounded up.
    #[must_use]
    pub fn stretch(self, term: Term) -> Term {
        term.scale_up(u64::from(self.per_mille).saturating_add(1000), 1000) + self.margin
    }
}

impl Default for DriftAllowance {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretched_term_rounds_up_and_adds_the_margin() {
        let drift = DriftAllowance {
            per_mille: 250,
            margin: Term::from_nanos(3),
        };
        assert_eq!(drift.stretch(Term::from_nanos(4)), Term::from_nanos(8));
        assert_eq!(drift.stretch(Term::from_nanos(5)), Term::from_nanos(10));
    }

    #[test]
    fn time_saturates_instead_of_wrapping() {
        assert_eq!(Timestamp::MAX + Term::from_seconds(1), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), Term::ZERO);
        assert_eq!(Term::from_seconds(u64::MAX).as_nanos(), u64::MAX);
    }
}
