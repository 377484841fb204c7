//! How many tokens to hold, and when to ask for more. Pure arithmetic.

use crate::message::HELD_MAX;
use crate::time::{NANOS_PER_SECOND, Term};
use crate::tokens::Tokens;

const MICRO: u128 = 1_000_000;
/// What a first wish is allowed to be without evidence of demand.
pub(super) const FIRST_WANT: Tokens = Tokens::new(4);
/// Added to the round trip when looking ahead: what drivers take to batch and wake up.
const RENEW_SLACK: Term = Term::from_millis(20);

/// `⌈dH + 2·√(dH)⌉` for a demand `d` in millionths of a token a second over the horizon `H`: what
/// a grant should cover, with two standard deviations of random arrivals to spare.
pub(super) fn target(demand_micro: u64, horizon: Term) -> Tokens {
    let mean = micro_tokens(demand_micro, horizon);
    // √(m/10⁶) tokens are √(m·10⁶) millionths.
    let deviation = square_root_up(mean.saturating_mul(MICRO));
    let micro = mean.saturating_add(deviation.saturating_mul(2));
    tokens_up(micro).min(HELD_MAX)
}

/// The remainder at which to ask for more: half the last grant, or what is asked for while the
/// answer travels, if that is less.
pub(super) fn renew_at(last_grant: Tokens, demand_micro: u64, round_trip: Term) -> Tokens {
    let half = last_grant.scale_down(1, 2);
    half.min(tokens_up(micro_tokens(
        demand_micro,
        round_trip + RENEW_SLACK,
    )))
}

/// Nobody has asked for this long: what is unreported then is worth reporting, however little.
pub(super) const CALM: Term = Term::from_millis(250);
/// The pause after the first early report; each is twice as long as the one before.
pub(super) const EARLY_PAUSE: Term = Term::from_millis(40);
/// After a pause of this length a series of early reports is over.
pub(super) const EARLY_PAUSE_MAX: Term = Term::from_millis(200);

/// How much of what is held must be spent before an early report is worth its message.
pub(super) fn early_part(held: Tokens) -> Tokens {
    held.scale_down(1, 8).max(Tokens::new(2))
}

/// What to ask for: enough for `target` and for those who `wait`, but no more than `growth` beyond
/// what waits, and no more than a cell can hold.
pub(super) fn want(target: Tokens, waiting: Tokens, held: Tokens, growth: Tokens) -> Tokens {
    let missing = target.max(waiting).less(held);
    missing.min(growth.max(waiting)).min(HELD_MAX.less(held))
}

/// Half a term or somewhat less, differently for each lease and the same in every run, so that
/// leases granted together are not renewed together.
pub(super) fn renew_after(term: Term, salt: u64) -> Term {
    let spread = mix(salt) & 127;
    term.scale_down(512_u64.saturating_sub(spread), 1024)
}

/// A 64-bit finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn micro_tokens(demand_micro: u64, span: Term) -> u128 {
    u128::from(demand_micro)
        .saturating_mul(u128::from(span.as_nanos()))
        .div_ceil(u128::from(NANOS_PER_SECOND))
}

fn tokens_up(micro: u128) -> Tokens {
    Tokens::new(u64::try_from(micro.div_ceil(MICRO)).unwrap_or(u64::MAX))
}

fn square_root_up(square: u128) -> u128 {
    let root = square.isqrt();
    if root.saturating_mul(root) < square {
        root.saturating_add(1)
    } else {
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Term = Term::from_seconds(1);

    #[test]
    fn a_target_covers_the_horizon_and_two_deviations() {
        let target = |per_second: u64, horizon| target(per_second * 1_000_000, horizon).get();
        assert_eq!(target(0, SECOND), 0);
        assert_eq!(target(100, SECOND), 120);
        assert_eq!(target(1, SECOND), 3);
        assert_eq!(target(1_000, Term::from_millis(500)), 545);
        assert_eq!(target(1 << 40, Term::from_nanos(u64::MAX)), HELD_MAX.get());
    }

    #[test]
    fn a_wish_grows_step_by_step_but_serves_all_who_wait() {
        let t = Tokens::new;
        assert_eq!(want(t(100), t(0), t(0), FIRST_WANT), t(4));
        assert_eq!(want(t(100), t(0), t(97), t(8)), t(3));
        assert_eq!(want(t(2), t(30), t(10), FIRST_WANT), t(20));
        assert_eq!(want(t(2), t(0), t(10), FIRST_WANT), t(0));
        let most = want(t(u64::MAX), t(u64::MAX), t(5), FIRST_WANT);
        assert_eq!(most, HELD_MAX.less(t(5)));
    }

    #[test]
    fn renewal_looks_a_round_trip_ahead() {
        let at = |grant, trip| renew_at(Tokens::new(grant), 1_000_000_000, Term::from_millis(trip));
        assert_eq!(at(1_000, 5), Tokens::new(25));
        assert_eq!(at(30, 5), Tokens::new(15));
        assert_eq!(at(1, 5), Tokens::ZERO);
    }

    #[test]
    fn renewals_are_spread_over_an_eighth_of_the_term() {
        let times: std::vec::Vec<_> = (0..1000).map(|salt| renew_after(SECOND, salt)).collect();
        let (min, max) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*min >= Term::from_millis(375) && *max <= Term::from_millis(500));
        assert!(max.saturating_sub(*min) > Term::from_millis(110));
    }
}
