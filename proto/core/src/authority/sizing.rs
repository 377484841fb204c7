//! How much one grant may be: caps, fair shares and the chunk below which a scarce bucket does
//! not bother to answer.
//!
//! Pure functions of the ledger, the leases and the policy. They decide amounts only; who is
//! served when is [`super::queue`]'s.

use super::lease::Leases;
use super::ledger::Ledger;
use crate::policy::{self, LeaseSettings, Limit};
use crate::time::{NANOS_PER_SECOND, Term};
use crate::tokens::Tokens;

/// However few gateways share a scarce bucket, each is served at most this often per horizon: a
/// chunk is never more than this fraction of what a horizon refills.
const SERVINGS_PER_HORIZON_MIN: u64 = 4;

/// Most tokens that may be out of a bucket at once; it bounds what a successor must assume.
pub(super) fn live_cap(ledger: &Ledger, limit: &Limit, settings: &LeaseSettings) -> Tokens {
    let free = limit.capacity().less(ledger.ghost);
    policy::live_cap(free, settings.share_per_mille(), limit.cost_floor())
}

/// The smallest answer worth a message while tokens are scarce: what one of `claimants` gets of a
/// horizon's refill, at least one token.
pub(super) fn scarce_chunk(limit: &Limit, settings: &LeaseSettings, claimants: u64) -> Tokens {
    let refill = limit.rate().tokens_in(settings.horizon_for(limit));
    refill
        .scale_down(1, claimants.max(SERVINGS_PER_HORIZON_MIN))
        .max(Tokens::ONE)
}

/// What a holder with this demand may need for one horizon: `d·H + 2·√(d·H)`, rounded up.
fn target(demand: u64, horizon: Term) -> Tokens {
    let product = u128::from(demand).saturating_mul(u128::from(horizon.as_nanos()));
    let mean = u64::try_from(product.div_ceil(u128::from(NANOS_PER_SECOND))).unwrap_or(u64::MAX);
    Tokens::new(mean.saturating_add(mean.isqrt().saturating_mul(2)))
}

/// How many tokens `holder` may hold while others claim: the max–min fair water level over what
/// all holders with demand are after, and never more than half the cap for a holder that is alone,
/// so that the next one finds something.
///
/// Progressive filling (Bertsekas and Gallager, *Data Networks*, 6.5.2), at most four rounds: each
/// round only raises the level, so stopping early gives less, never too much.
pub(super) fn fair_hold(
    holder: u32,
    leases: &Leases,
    waiting: u64,
    cap: Tokens,
    limit: &Limit,
    settings: &LeaseSettings,
) -> Tokens {
    let horizon = settings.horizon_for(limit);
    let others = || {
        leases
            .as_slice()
            .iter()
            .filter(|l| l.holder != holder && l.demand > 0)
    };
    let claimants = u64::try_from(others().count())
        .unwrap_or(u64::MAX)
        .max(waiting)
        .saturating_add(1);
    if claimants == 1 {
        return cap.scale_down(1, 2).max(Tokens::ONE);
    }
    let mut level = cap.scale_down(1, claimants);
    for _ in 0..4 {
        let mut sated = 0_u64;
        let mut taken = Tokens::ZERO;
        for lease in others() {
            let target = target(u64::from(lease.demand), horizon).max(lease.held());
            if target <= level {
                sated = sated.saturating_add(1);
                taken += target;
            }
        }
        let hungry = claimants.saturating_sub(sated).max(1);
        let raised = cap.less(taken).scale_down(1, hungry);
        if raised <= level {
            break;
        }
        level = raised;
    }
    level.max(Tokens::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_covers_the_mean_and_two_deviations() {
        assert_eq!(target(200, Term::from_millis(500)), Tokens::new(100 + 20));
        assert_eq!(target(0, Term::from_millis(500)), Tokens::ZERO);
        assert_eq!(target(1, Term::from_millis(1)), Tokens::new(1 + 2));
        assert!(target(u64::MAX, Term::from_seconds(600)) > Tokens::new(1 << 40));
    }
}
