//! How leases are sized and timed: the operator's settings, in range.

use alloc::format;

use super::duration::Span;
use super::error::PolicyError;
use super::limit::Limit;
use super::spec::LeaseSpec;
use crate::message::HELD_MAX;
use crate::time::Term;
use crate::tokens::Tokens;

/// Longest term that any lease may have, so that every exposure is over in bounded time.
pub const TERM_MAX: Term = Term::from_seconds(300);
const TERM_MIN: Term = Term::from_millis(100);
const SPAN_MIN: Term = Term::from_millis(10);
const HORIZON_MAX: Term = Term::from_seconds(60);

/// The lease settings of a policy, each in its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    share_per_mille: u32,
    horizon: Term,
    term_max: Term,
    idle_return: Term,
    warm_floor: Tokens,
}

impl LeaseSettings {
    /// # Errors
    /// [`PolicyError`] for a setting outside its range.
    pub(super) fn parse(spec: &LeaseSpec) -> Result<Self, PolicyError> {
        if !(1..=1000).contains(&spec.share_per_mille) {
            return Err(PolicyError::new(
                "lease.share_per_mille",
                spec.share_per_mille,
                "it must be 1 to 1000: thousandths of the capacity that may be out at a time",
            ));
        }
        if spec.warm_floor > HELD_MAX.get() {
            return Err(PolicyError::new(
                "lease.warm_floor",
                spec.warm_floor,
                format!("it must be 0 to {HELD_MAX}, the most that one lease can hold"),
            ));
        }
        Ok(Self {
            share_per_mille: spec.share_per_mille,
            horizon: in_range("lease.horizon", spec.horizon, SPAN_MIN, HORIZON_MAX)?,
            term_max: in_range("lease.term_max", spec.term_max, TERM_MIN, TERM_MAX)?,
            idle_return: in_range("lease.idle_return", spec.idle_return, SPAN_MIN, TERM_MAX)?,
            warm_floor: Tokens::new(spec.warm_floor),
        })
    }

    /// The share of the capacity that may be out at a time, in thousandths: 1 to 1000, default
    /// 800.
    #[must_use]
    pub fn share_per_mille(&self) -> u64 {
        u64::from(self.share_per_mille)
    }

    /// The span of demand that a grant should cover: 10 ms to 60 s and at most
    /// [`term_max`](Self::term_max), default 375 ms.
    #[must_use]
    pub fn horizon(&self) -> Term {
        self.horizon.min(self.term_max)
    }

    /// The horizon as it applies to a limit: [`horizon`](Self::horizon), or the time in which what
    /// may be out (the share of the capacity) refills, if that is shorter, so that everybody's
    /// grants fit under the cap.
    #[must_use]
    pub fn horizon_for(&self, limit: &Limit) -> Term {
        let share = limit.capacity().scale_down(self.share_per_mille(), 1000);
        self.horizon()
            .min(limit.rate().time_for(share.max(Tokens::ONE)))
    }

    /// The longest term of a lease: 100 ms to 300 s, default 10 s. It bounds every ghost.
    #[must_use]
    pub const fn term_max(&self) -> Term {
        self.term_max
    }

    /// For how long a holder keeps tokens without demand: 10 ms to 300 s, default 2 s.
    #[must_use]
    pub const fn idle_return(&self) -> Term {
        self.idle_return
    }

    /// Tokens that an idle holder keeps: default 0.
    #[must_use]
    pub const fn warm_floor(&self) -> Tokens {
        self.warm_floor
    }
}

/// The most that the owner of a shard may have out of one bucket at a time, where `free` is the
/// capacity less its ghost: a share of it, but at least `cost_floor`
/// ([`Limit::cost_floor`](super::Limit::cost_floor)) and at least one token, and never more than
/// there is.
///
/// Successive owners compute with this same function what their predecessors may have left
/// behind, so it never shrinks as `free`, the share or `cost_floor` grows.
#[must_use]
pub fn live_cap(free: Tokens, share_per_mille: u64, cost_floor: Tokens) -> Tokens {
    free.scale_down(share_per_mille, 1000)
        .max(cost_floor)
        .max(Tokens::ONE)
        .min(free)
}

/// `span` as a term if it lies in the range.
pub(super) fn in_range(field: &str, span: Span, min: Term, max: Term) -> Result<Term, PolicyError> {
    if (min..=max).contains(&span.term()) {
        return Ok(span.term());
    }
    Err(PolicyError::new(
        field,
        span,
        format!("it must be {} to {}", Span::new(min), Span::new(max)),
    ))
}
