//! Refill rates as exact fractions.

use serde::{Deserialize, Serialize};

use crate::time::Term;
use crate::tokens::Tokens;

/// Tokens per nanosecond as a reduced fraction, so that refill is one multiplication and nothing
/// is ever rounded.
///
/// A level counted in *parts* of `1 / denominator` token grows by `numerator` parts a nanosecond.
/// Both stay below 2⁵⁶ for every legal policy, so levels and refills fit 128 bits with room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Rate {
    numerator: u64,
    denominator: u64,
}

/// A [`Rate`] as stored: what a store holds is refused where it is no rate, never divided by.
#[derive(Deserialize)]
struct Stored {
    numerator: u64,
    denominator: u64,
}

impl TryFrom<Stored> for Rate {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let legal = 1..1 << 56;
        if legal.contains(&stored.numerator) && legal.contains(&stored.denominator) {
            return Ok(Self {
                numerator: stored.numerator,
                denominator: stored.denominator,
            });
        }
        Err("a stored rate is out of range")
    }
}

impl Rate {
    /// `tokens` per `period`; `None` if either is zero.
    #[must_use]
    pub fn new(tokens: Tokens, period: Term) -> Option<Self> {
        if tokens.is_zero() || period == Term::ZERO {
            return None;
        }
        let divisor = greatest_common_divisor(tokens.get(), period.as_nanos());
        Some(Self {
            numerator: tokens
                .get()
                .checked_div(divisor)
                .expect("a divisor is not zero"),
            denominator: period
                .as_nanos()
                .checked_div(divisor)
                .expect("a divisor is not zero"),
        })
    }

    /// Parts gained in one nanosecond.
    #[must_use]
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// Parts in one token.
    #[must_use]
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// Whole tokens refilled in `term`, rounded down.
    #[must_use]
    pub fn tokens_in(self, term: Term) -> Tokens {
        let parts = u128::from(term.as_nanos()).saturating_mul(u128::from(self.numerator));
        let whole = parts
            .checked_div(u128::from(self.denominator))
            .expect("never zero");
        Tokens::new(u64::try_from(whole).unwrap_or(u64::MAX))
    }

    /// The shortest span in which `tokens` are refilled, rounded up.
    #[must_use]
    pub fn time_for(self, tokens: Tokens) -> Term {
        let parts = u128::from(tokens.get()).saturating_mul(u128::from(self.denominator));
        Term::from_nanos(
            u64::try_from(parts.div_ceil(u128::from(self.numerator))).unwrap_or(u64::MAX),
        )
    }

    /// True if `self` refills no slower than `other`.
    #[must_use]
    pub fn at_least(self, other: Self) -> bool {
        u128::from(self.numerator).saturating_mul(u128::from(other.denominator))
            >= u128::from(other.numerator).saturating_mul(u128::from(self.denominator))
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a.checked_rem(b).expect("the loop ends at zero"));
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_reduced_and_exact() {
        let rate = Rate::new(Tokens::new(100), Term::from_seconds(60)).expect("legal");
        assert_eq!((rate.numerator(), rate.denominator()), (1, 600_000_000));
        assert_eq!(rate.tokens_in(Term::from_seconds(3)), Tokens::new(5));
        assert_eq!(rate.time_for(Tokens::new(5)), Term::from_seconds(3));
    }

    #[test]
    fn waiting_for_one_token_is_never_too_short() {
        let rate = Rate::new(Tokens::new(7), Term::from_nanos(1_000)).expect("legal");
        let wait = rate.time_for(Tokens::ONE);
        assert_eq!(wait, Term::from_nanos(143));
        assert!(rate.tokens_in(wait) >= Tokens::ONE);
        assert!(rate.tokens_in(Term::from_nanos(142)).is_zero());
    }
}
