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

const NANOS_PER_MILLI: u64 = 1_000_000;

/// However few gateways share a scarce bucket, each is served at most this often per horizon: a
/// chunk is never more than this fraction of what a horizon refills.
const SERVINGS_PER_HORIZON_MIN: u64 = 4;

/// Most tokens that may be out of a bucket at once; it bounds what a successor must assume.
pub(super) fn live_cap(ledger: &Ledger, limit: &Limit, settings: &LeaseSettings) -> Tokens {
    let free = limit.capacity().less(ledger.ghost);
    policy::live_cap(free, settings.share_per_mille(), limit.cost_floor())
}

/// The smallest answer worth a message while tokens are scarce: what one of `claimants` gets of
/// three quarters of a horizon's refill, at least one token. The last quarter is the time that
/// servings spend in the queue and under way.
pub(super) fn equal_serving(limit: &Limit, settings: &LeaseSettings, claimants: u64) -> Tokens {
    let refill = limit.rate().tokens_in(settings.horizon_for(limit));
    refill
        .scale_down(3, 4)
        .scale_down(1, claimants.max(SERVINGS_PER_HORIZON_MIN))
        .max(Tokens::ONE)
}

/// What one serving of a scarce bucket is to this holder: its max–min fair part of a horizon's
/// refill as far as it asks for that much, and never less than an equal part.
///
/// `lasted` is how long tokens have been scarce. Scarcity that has just begun is likely to end
/// soon, and what is in hand then is of no use to anyone, so servings are half as large at first
/// and grow over four horizons; once it lasts, messages count for more.
pub(super) fn quantum(
    holder: u32,
    demand: u32,
    lasted: Term,
    leases: &Leases,
    claimants: u64,
    limit: &Limit,
    settings: &LeaseSettings,
) -> Tokens {
    let horizon = settings.horizon_for(limit);
    let refill = limit.rate().tokens_in(horizon);
    let equal = equal_serving(limit, settings, claimants);
    let own = mean(u64::from(demand), horizon);
    let grown = horizon.scale_up(4, 1);
    let ripe = |tokens: Tokens| {
        let parts = (grown + lasted.min(grown)).as_nanos();
        tokens
            .scale_down(parts, (grown + grown).as_nanos())
            .max(Tokens::ONE)
    };
    if own <= equal {
        return ripe(equal);
    }
    let others = leases.as_slice().iter();
    let others = others.filter(|l| l.holder != holder && l.demand() > 0);
    let asked: Tokens = others
        .map(|l| mean(u64::from(l.demand()), horizon).min(own))
        .sum();
    // What is left by those who ask for less; those who ask for as much or more share it.
    ripe(equal.max(own.min(refill.less(asked))))
}

/// What callers with this demand spend in a horizon, rounded up.
pub(super) fn mean(demand: u64, horizon: Term) -> Tokens {
    let product = u128::from(demand).saturating_mul(u128::from(horizon.as_nanos()));
    Tokens::new(u64::try_from(product.div_ceil(u128::from(NANOS_PER_SECOND))).unwrap_or(u64::MAX))
}

/// How long until the bucket is full if nothing more is reported, as advice to its holders; zero
/// if that is further off than `most`.
pub(super) fn headroom(ledger: &Ledger, limit: &Limit, most: Term) -> Term {
    let Ok(ceiling) = u64::try_from(ledger.ceiling(limit)) else {
        return Term::ZERO;
    };
    match ledger.time_until(Tokens::new(ceiling), limit) {
        // Whole milliseconds, as they are told.
        Some(term) if term < most => {
            Term::from_millis(term.as_nanos().div_ceil(NANOS_PER_MILLI).max(1))
        }
        _ => Term::ZERO,
    }
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
            .filter(|l| l.holder != holder && l.demand() > 0)
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
            let target = mean(u64::from(lease.demand()), horizon).max(lease.held());
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
