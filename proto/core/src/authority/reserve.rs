//! Booking tokens ahead of granting them, for reserved buckets.
//!
//! A record books a *block*: an allowance for gross grants, already counted as used and as
//! possibly out. The live level is not reduced by it, so a block may be booked ahead of the
//! refill that will fill it; what matters is only that the gross grants since a durable record
//! never exceed what it booked. A reply never waits for a write except on the very first grant,
//! since the next block is booked when a quarter of this one is left.

use alloc::vec::Vec;

use super::ledger::Ledger;
use crate::id::PolicyVersion;
use crate::policy::Limit;
use crate::record::{Reservation, Stamp};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// A block is this share of the capacity (one part in). A crash may lose one block; a busy bucket
/// writes one record per block.
const BLOCK_SHARE: u64 = 16;
/// A block reaches this far into refill that is still to come.
const BOOKED_AHEAD: Term = Term::from_seconds(4);
/// A record is refreshed when recovering from it would lose more than this share of the capacity
/// (one part in), the open block apart.
const LOSS_SHARE: u64 = 64;

/// The durable side of one reserved bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserve {
    /// What may still be granted under durable records.
    pub(super) booked: Tokens,
    /// What the write in flight adds to that.
    adding: Tokens,
    /// The last record that was handed to the store, durable or in flight.
    recorded: Option<Reservation>,
    in_flight: bool,
    /// A block is needed; otherwise a write only refreshes or deletes.
    wants: Tokens,
}

impl Reserve {
    /// The reserve of a bucket that was recovered from a durable record.
    pub(super) fn recovered(record: Reservation) -> Self {
        Self {
            recorded: Some(record),
            ..Self::default()
        }
    }

    /// True if the store holds nothing of this bucket and nothing is on its way there.
    pub(super) fn is_blank(&self) -> bool {
        self.recorded.is_none() && !self.in_flight
    }

    /// The size of a block that can serve a grant of `least`: a share of the capacity, but not
    /// more than what is there or will be soon, so that a crash of an exhausted bucket does not
    /// cost it hours of refill.
    fn block(ledger: &Ledger, limit: &Limit, least: Tokens) -> Tokens {
        let share = limit.capacity().scale_down(1, BLOCK_SHARE);
        let soon = ledger.takeable(limit) + limit.rate().tokens_in(BOOKED_AHEAD);
        share.min(soon).max(Tokens::ONE).max(least)
    }

    /// Asks for a block if what is booked will not last; true if the bucket is to be entered for
    /// the next write, false if it is entered already.
    pub(super) fn want_block(&mut self, ledger: &Ledger, limit: &Limit, least: Tokens) -> bool {
        let low = Self::block(ledger, limit, Tokens::ONE)
            .scale_down(1, 4)
            .max(least);
        if self.booked.plus(self.adding) >= low {
            return false;
        }
        let entered = !self.wants.is_zero();
        self.wants = self.wants.max(least);
        !entered
    }

    /// True if a block stands open that nobody draws on.
    pub(super) fn is_open(&self) -> bool {
        !self.in_flight && !self.booked.is_zero()
    }

    /// True if recovering from the record would lose too much of what has been refilled since.
    pub(super) fn is_stale(&self, ledger: &Ledger, limit: &Limit) -> bool {
        let Some(record) = self.recorded else {
            return false;
        };
        if self.in_flight {
            return false;
        }
        let capacity = limit.capacity();
        let recoverable = capacity.less(record.used.max(record.exposure));
        let kept = ledger.takeable(limit).less(self.booked);
        kept.less(recoverable) > capacity.scale_down(1, LOSS_SHARE)
            || (ledger.is_idle_full(limit) && self.wants.is_zero())
    }

    /// The record to write now: `Some(None)` deletes it, `None` means that nothing needs to be
    /// written. The open block's rest is counted in the new record as used and as exposed.
    pub(super) fn next_record(
        &mut self,
        ledger: &Ledger,
        limit: &Limit,
        version: PolicyVersion,
        stamp: Stamp,
        active: bool,
    ) -> Option<Option<Reservation>> {
        assert!(
            !self.in_flight,
            "one record of a bucket is in flight at a time"
        );
        if self.wants.is_zero() && !active {
            // Nobody draws on the block: give it back, so that the record says what is true.
            self.booked = Tokens::ZERO;
        }
        if self.wants.is_zero() && self.booked.is_zero() && ledger.is_idle_full(limit) {
            self.recorded.take()?;
            self.in_flight = true;
            return Some(None);
        }
        let goal = if self.wants.is_zero() && !active {
            Tokens::ZERO
        } else {
            Self::block(ledger, limit, self.wants)
        };
        self.adding = goal.less(self.booked);
        self.wants = Tokens::ZERO;
        let block = self.booked.plus(self.adding);
        let record = Reservation {
            version,
            used: ledger.used(limit).plus(block),
            exposure: ledger.outstanding.plus(ledger.ghost).plus(block),
            stamp,
        };
        self.recorded = Some(record);
        self.in_flight = true;
        Some(Some(record))
    }

    /// The write in flight is durable: its block may be granted.
    pub(super) fn written(&mut self) {
        assert!(self.in_flight, "a write is acknowledged once");
        self.booked = self.booked.plus(self.adding);
        self.adding = Tokens::ZERO;
        self.in_flight = false;
    }
}

/// The shard's writes: one in flight, the rest gathered for the next.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Buckets that need a record, in the order in which they asked; may name one twice.
    pub(super) dirty: Vec<u32>,
    /// Buckets in the write in flight.
    pub(super) in_flight: Option<(super::input::WriteId, Vec<u32>)>,
    pub(super) last: u64,
}

/// Starts a recovered bucket at `min(capacity − used + certain refill, capacity − exposure)` with
/// its exposure as a ghost. Refill is certain only on the same boot of the same machine, and under
/// the version that made the record.
pub(super) fn recover(
    now: Timestamp,
    record: &Reservation,
    limit: &Limit,
    version: PolicyVersion,
    boot: u128,
    ghost_end: Timestamp,
) -> Ledger {
    let certain = if record.stamp.boot == boot && record.version == version {
        limit.rate().tokens_in(now.since(record.stamp.at))
    } else {
        Tokens::ZERO
    };
    let level = i128::from(limit.capacity().get())
        .saturating_sub(i128::from(record.used.get()))
        .saturating_add(i128::from(certain.get()));
    Ledger::restarted(now, limit, level, record.exposure, ghost_end)
}
