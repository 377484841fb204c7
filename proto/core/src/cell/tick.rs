//! The coarse clock of cells.

use crate::time::{Term, Timestamp};

/// Bits of a nanosecond clock below one tick: a tick is 2²² ns, about 4.19 ms.
const TICK_SHIFT: u32 = 22;
/// Bits of a tick number.
const TICK_BITS: u32 = 29;
pub(super) const TICK_MASK: u64 = (1 << TICK_BITS) - 1;
/// How far ahead a deadline may lie to be believed: 2²⁰ ticks, about 73 minutes, well above the
/// longest term of any policy (300 s).
const AHEAD_MAX: u64 = 1 << 20;

/// The longest term that a cell can hold; longer ones are to be cut to it.
pub const CELL_TERM_MAX: Term = Term::from_seconds(3600);

/// A coarse point in time as cells keep it: a 29-bit number of 2²²-nanosecond ticks.
///
/// The number wraps after 26 days. A lease counts as live only while its deadline is at most 73
/// minutes ahead, and the holder machine takes the tokens out of every cell whose lease has ended
/// ([`LeaseCell::clear`](super::LeaseCell::clear) at the deadline), so nothing is left to spend when the number comes round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tick(pub(super) u64);

impl Tick {
    /// The tick that holds `at`, rounded down, which is right for a deadline (it ends early) and
    /// for now (spending needs now to be in an earlier tick than the deadline).
    #[inline]
    #[must_use]
    pub const fn at(at: Timestamp) -> Self {
        Self((at.as_nanos() >> TICK_SHIFT) & TICK_MASK)
    }

    /// Ticks from `now` to `self`; zero if `self` is not ahead by a believable amount.
    #[inline]
    #[must_use]
    pub const fn ahead_of(self, now: Self) -> u64 {
        let ahead = self.0.wrapping_sub(now.0) & TICK_MASK;
        if ahead <= AHEAD_MAX { ahead } else { 0 }
    }

    /// The beginning of this tick as a timestamp if it lies ahead of `now`.
    #[must_use]
    pub fn timestamp_ahead_of(self, now: Timestamp) -> Option<Timestamp> {
        let ahead = self.ahead_of(Self::at(now));
        (ahead > 0).then(|| {
            let tick = (now.as_nanos() >> TICK_SHIFT).saturating_add(ahead);
            Timestamp::from_nanos(tick.saturating_mul(1 << TICK_SHIFT))
        })
    }
}

/// `at` rounded down to the beginning of its tick: the deadline as a cell keeps it.
#[must_use]
pub const fn floor_to_tick(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos((at.as_nanos() >> TICK_SHIFT) << TICK_SHIFT)
}

/// `at` floored to its tick, one tick later.
#[must_use]
pub fn next_tick(at: Timestamp) -> Timestamp {
    floor_to_tick(at) + Term::from_nanos(1 << TICK_SHIFT)
}
