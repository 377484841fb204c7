//! The exact level of a bucket, in parts of a token.

use crate::rate::Rate;
use crate::time::Term;
use crate::tokens::Tokens;

/// How many tokens a bucket has available, to the exact fraction; below zero while a bucket owes
/// after its limit was lowered.
///
/// Counted in parts of `1 / rate.denominator()` token, so it means something only together with
/// the [`Rate`] that it was made with. Capacities stay below 2⁴¹ and denominators below 2⁵⁶, so
/// 128 bits never overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(i128);

impl Level {
    /// A level of `tokens` whole tokens, which may be negative.
    #[must_use]
    pub fn from_tokens(tokens: i128, rate: Rate) -> Self {
        Self(
            tokens
                .checked_mul(i128::from(rate.denominator()))
                .expect("legal capacities and rates fit 128 bits"),
        )
    }

    /// The level in raw parts, for a hand-over row.
    #[must_use]
    pub const fn parts(self) -> i128 {
        self.0
    }

    /// A level from raw parts, as read from a hand-over row.
    #[must_use]
    pub const fn from_parts(parts: i128) -> Self {
        Self(parts)
    }

    /// Whole tokens at this level, rounded down; negative while the bucket owes.
    #[must_use]
    pub fn tokens(self, rate: Rate) -> i128 {
        self.0
            .checked_div_euclid(i128::from(rate.denominator()))
            .expect("never zero")
    }

    /// Whole tokens that can be taken now.
    #[must_use]
    pub fn takeable(self, rate: Rate) -> Tokens {
        if self.0 <= 0 {
            return Tokens::ZERO;
        }
        Tokens::new(u64::try_from(self.tokens(rate)).unwrap_or(u64::MAX))
    }

    /// Refills for `term`, up to `ceiling` whole tokens. A level that stands at the ceiling is
    /// owed nothing: no remainder is kept there.
    #[must_use]
    pub fn refilled(self, rate: Rate, term: Term, ceiling: i128) -> Self {
        let ceiling = Self::from_tokens(ceiling, rate).0;
        if self.0 >= ceiling {
            return self;
        }
        let gain = i128::from(term.as_nanos())
            .checked_mul(i128::from(rate.numerator()))
            .expect("2^64 nanoseconds at 2^56 parts fit 128 bits");
        Self(self.0.saturating_add(gain).min(ceiling))
    }

    /// Adds whole tokens.
    #[must_use]
    pub fn plus(self, tokens: Tokens, rate: Rate) -> Self {
        let parts = Self::from_tokens(i128::from(tokens.get()), rate).0;
        Self(
            self.0
                .checked_add(parts)
                .expect("levels stay far inside 128 bits"),
        )
    }

    /// Takes whole tokens; may go below zero only where the caller's rule says so.
    #[must_use]
    pub fn minus(self, tokens: Tokens, rate: Rate) -> Self {
        let parts = Self::from_tokens(i128::from(tokens.get()), rate).0;
        Self(
            self.0
                .checked_sub(parts)
                .expect("levels stay far inside 128 bits"),
        )
    }

    /// The same level counted in the parts of another rate, rounded down.
    #[must_use]
    pub fn converted(self, from: Rate, to: Rate) -> Self {
        if from.denominator() == to.denominator() {
            return self;
        }
        let whole = self.tokens(from);
        let rest = self
            .0
            .checked_rem_euclid(i128::from(from.denominator()))
            .expect("denominators are positive");
        let rest = rest
            .checked_mul(i128::from(to.denominator()))
            .and_then(|scaled| scaled.checked_div(i128::from(from.denominator())))
            .expect("a remainder times a denominator fits 128 bits");
        let base = Self::from_tokens(whole, to).0;
        Self(
            base.checked_add(rest)
                .expect("levels stay far inside 128 bits"),
        )
    }

    /// How long until `tokens` whole tokens can be taken, rounded up; zero if they can be now.
    #[must_use]
    pub fn time_until(self, tokens: Tokens, rate: Rate) -> Term {
        let goal = Self::from_tokens(i128::from(tokens.get()), rate).0;
        let missing = goal.saturating_sub(self.0);
        if missing <= 0 {
            return Term::ZERO;
        }
        let nanos = missing
            .unsigned_abs()
            .div_ceil(u128::from(rate.numerator()));
        Term::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(tokens: u64, period: Term) -> Rate {
        Rate::new(Tokens::new(tokens), period).expect("legal")
    }

    #[test]
    fn split_time_refills_as_much_as_whole_time() {
        let rate = rate(7, Term::from_nanos(1_000));
        let whole = Level::from_tokens(0, rate).refilled(rate, Term::from_nanos(999), 100);
        let mut split = Level::from_tokens(0, rate);
        for _ in 0..999 {
            split = split.refilled(rate, Term::from_nanos(1), 100);
        }
        assert_eq!(whole, split);
    }

    #[test]
    fn a_full_bucket_is_owed_nothing() {
        let rate = rate(1, Term::from_nanos(10));
        let full = Level::from_tokens(5, rate).refilled(rate, Term::from_nanos(9), 5);
        let spent = full
            .minus(Tokens::ONE, rate)
            .refilled(rate, Term::from_nanos(9), 5);
        assert_eq!(spent.takeable(rate), Tokens::new(4));
    }

    #[test]
    fn an_idle_century_does_not_overflow() {
        let rate = rate(1 << 40, Term::from_nanos(NANOS_PER_CENTURY));
        let level = Level::from_tokens(0, rate).refilled(rate, Term::from_nanos(u64::MAX), 1 << 40);
        assert_eq!(level.takeable(rate), Tokens::new(1 << 40));
    }

    const NANOS_PER_CENTURY: u64 = 3_155_760_000_000_000_000;

    #[test]
    fn a_debt_rounds_down_and_pays_back_first() {
        let rate = rate(1, Term::from_nanos(10));
        let owing = Level::from_tokens(-3, rate).refilled(rate, Term::from_nanos(5), 10);
        assert_eq!(owing.tokens(rate), -3);
        assert_eq!(owing.takeable(rate), Tokens::ZERO);
        assert_eq!(owing.time_until(Tokens::ONE, rate), Term::from_nanos(35));
    }

    #[test]
    fn conversion_never_gains() {
        let from = rate(1, Term::from_nanos(3));
        let to = rate(1, Term::from_nanos(7));
        let level = Level::from_parts(-1);
        assert_eq!(level.converted(from, to).tokens(to), -1);
        assert_eq!(Level::from_parts(5).converted(from, to).parts(), 7 + 4);
    }
}
