//! Whole tokens: the integer unit of every limit.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// A whole number of tokens.
///
/// Plain `+` saturates, which is right for totals and displays; a ledger uses
/// [`Tokens::minus`] and [`Tokens::plus`], which panic on a bug rather than hide it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Tokens(u64);

impl Tokens {
    /// No tokens.
    pub const ZERO: Self = Self(0);
    /// One token.
    pub const ONE: Self = Self(1);

    /// `count` tokens.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number of tokens.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// True for no tokens.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `self + other`; panics on overflow, which no legal policy can reach.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(
            self.0
                .checked_add(other.0)
                .expect("token totals stay far below 2^64"),
        )
    }

    /// `self - other`; panics if more is taken than there is.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(
            self.0
                .checked_sub(other.0)
                .expect("no more tokens are taken than there are"),
        )
    }

    /// `self - other`, zero at the least, where zero is the meaning ("nothing left over").
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `numerator / denominator` of these tokens, rounded down. `denominator` must not be zero.
    #[must_use]
    pub fn scale_down(self, numerator: u64, denominator: u64) -> Self {
        assert!(denominator > 0, "a ratio needs a denominator");
        let product = u128::from(self.0).saturating_mul(u128::from(numerator));
        let scaled = product
            .checked_div(u128::from(denominator))
            .expect("asserted above");
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Add for Tokens {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
