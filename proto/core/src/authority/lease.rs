//! Leases as the authority keeps them, in line with their bucket.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::id::{KeyNumber, LeaseId, PolicyVersion, Sequence};
use crate::time::Timestamp;
use crate::tokens::Tokens;

/// How many leases a bucket holds without a separate allocation.
const INLINE: usize = 3;

/// Most tokens that one lease can be granted over its whole life; a lease that reaches it is not
/// extended and its holder opens another. It keeps a lease within one cache line.
pub(super) const GRANTED_MAX: Tokens = Tokens::new(0xffff_ffff);

/// One lease. The totals are running totals; 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) version: PolicyVersion,
    /// The highest sequence number that was decided for this lease.
    pub(super) sequence: Sequence,
    /// From here on the authority may take back what was not reported.
    pub(super) reclaim_at: Timestamp,
    granted: u32,
    spent: u32,
    returned: u32,
    /// Index of the holder in the authority's table.
    pub(super) holder: u32,
    /// Tokens per second, saturated, and two flags in the highest bits.
    demand: u32,
    /// What the bucket is called in the holder's stream, as of its last request.
    pub(super) number: KeyNumber,
}

/// Another policy version is in force or the lease is full.
const CLOSED: u32 = 1 << 31;
/// The holder was asked for what it does not need, and has been granted nothing since.
const RECALLED: u32 = 1 << 30;
const DEMAND: u32 = RECALLED - 1;

impl Lease {
    /// A lease without tokens.
    pub(super) fn new(id: LeaseId, version: PolicyVersion, holder: u32, end: Timestamp) -> Self {
        Self {
            id,
            version,
            holder,
            reclaim_at: end,
            ..Self::default()
        }
    }

    /// Tokens per second that the holder's callers ask for.
    pub(super) fn demand(&self) -> u32 {
        self.demand & DEMAND
    }

    pub(super) fn set_demand(&mut self, demand: u32) {
        self.demand = (self.demand & !DEMAND) | demand.min(DEMAND);
    }

    /// False once another policy version is in force or the lease is full: it may still be spent
    /// and reported, but gets no further tokens and no longer term.
    pub(super) fn is_current(&self) -> bool {
        self.demand & CLOSED == 0
    }

    /// It gets nothing further, for good.
    pub(super) fn close(&mut self) {
        self.demand |= CLOSED;
    }

    /// True if its holder was asked for what it does not need, and has been granted nothing since.
    pub(super) fn is_recalled(&self) -> bool {
        self.demand & RECALLED != 0
    }

    pub(super) fn set_recalled(&mut self) {
        self.demand |= RECALLED;
    }

    pub(super) fn granted(&self) -> Tokens {
        Tokens::new(u64::from(self.granted))
    }

    pub(super) fn spent(&self) -> Tokens {
        Tokens::new(u64::from(self.spent))
    }

    pub(super) fn returned(&self) -> Tokens {
        Tokens::new(u64::from(self.returned))
    }

    /// What the holder may still spend, as far as the authority knows.
    pub(super) fn held(&self) -> Tokens {
        self.granted().minus(self.spent()).minus(self.returned())
    }

    /// How much more this lease can ever be granted.
    pub(super) fn room(&self) -> Tokens {
        GRANTED_MAX.less(self.granted())
    }

    pub(super) fn add_granted(&mut self, tokens: Tokens) {
        let granted = self.granted().plus(tokens);
        self.granted = u32::try_from(granted.get()).expect("the caller stays within room()");
        self.demand &= !RECALLED;
    }

    /// Restores running totals from a hand-over; clamps them to each other.
    pub(super) fn set_totals(&mut self, granted: Tokens, spent: Tokens, returned: Tokens) {
        let clamp = |tokens: Tokens| u32::try_from(tokens.get()).unwrap_or(u32::MAX);
        self.granted = clamp(granted);
        self.spent = clamp(spent).min(self.granted);
        self.returned = clamp(returned).min(self.granted.saturating_sub(self.spent));
    }

    /// Merges reported running totals by maximum, clamped to what was granted. Returns how much
    /// each total rose.
    pub(super) fn merge(&mut self, spent: Tokens, returned: Tokens) -> (Tokens, Tokens) {
        let (old_spent, old_returned) = (self.spent(), self.returned());
        let new_spent = old_spent.max(spent).min(self.granted().minus(old_returned));
        let new_returned = old_returned
            .max(returned)
            .min(self.granted().minus(new_spent));
        self.spent = u32::try_from(new_spent.get()).expect("at most what was granted");
        self.returned = u32::try_from(new_returned.get()).expect("at most what was granted");
        (new_spent.minus(old_spent), new_returned.minus(old_returned))
    }
}

/// The leases of one bucket, unordered.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    inline: [Lease; INLINE],
    inline_len: u8,
    /// Holds all leases once they do not fit in line; boxed, since most buckets have none.
    #[allow(clippy::box_collection)]
    spilled: Option<Box<Vec<Lease>>>,
    /// No lease ends before this; `MAX` if there is none.
    next_reclaim: Timestamp,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            inline: [Lease::default(); INLINE],
            inline_len: 0,
            spilled: None,
            next_reclaim: Timestamp::MAX,
        }
    }
}

impl Leases {
    pub(super) fn as_slice(&self) -> &[Lease] {
        match &self.spilled {
            None => &self.inline[..usize::from(self.inline_len)],
            Some(spilled) => spilled,
        }
    }

    /// The leases to change in place; follow with [`Leases::dated`] if a `reclaim_at` changed.
    pub(super) fn as_mut_slice(&mut self) -> &mut [Lease] {
        match &mut self.spilled {
            None => &mut self.inline[..usize::from(self.inline_len)],
            Some(spilled) => spilled,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub(super) fn next_reclaim(&self) -> Timestamp {
        self.next_reclaim
    }

    pub(super) fn held_total(&self) -> Tokens {
        self.as_slice().iter().map(Lease::held).sum()
    }

    pub(super) fn push(&mut self, lease: Lease) {
        self.next_reclaim = self.next_reclaim.min(lease.reclaim_at);
        if let Some(spilled) = &mut self.spilled {
            spilled.push(lease);
            return;
        }
        let place = usize::from(self.inline_len);
        if place < INLINE {
            self.inline[place] = lease;
            self.inline_len = self.inline_len.saturating_add(1);
            return;
        }
        let mut spilled = Box::new(self.inline.to_vec());
        spilled.push(lease);
        self.spilled = Some(spilled);
        self.inline_len = 0;
    }

    /// Takes a lease out by its place in [`Leases::as_slice`]; another takes its place.
    pub(super) fn remove(&mut self, index: usize) -> Lease {
        let removed = match &mut self.spilled {
            None => {
                let last = usize::from(self.inline_len).saturating_sub(1);
                let removed = self.inline[index];
                self.inline[index] = self.inline[last];
                self.inline_len = self.inline_len.saturating_sub(1);
                removed
            }
            Some(spilled) => {
                let removed = spilled.swap_remove(index);
                if spilled.is_empty() {
                    self.spilled = None;
                }
                removed
            }
        };
        self.dated();
        removed
    }

    /// Recomputes the earliest end after a `reclaim_at` was changed.
    pub(super) fn dated(&mut self) {
        self.next_reclaim = self
            .as_slice()
            .iter()
            .map(|l| l.reclaim_at)
            .min()
            .unwrap_or(Timestamp::MAX);
    }

    /// Removes every lease that ends at or before `until`.
    pub(super) fn reclaim_until(&mut self, until: Timestamp, reclaim: &mut dyn FnMut(&Lease)) {
        let mut index = 0;
        while let Some(lease) = self.as_slice().get(index) {
            if lease.reclaim_at <= until {
                reclaim(&self.remove(index));
            } else {
                index = index.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    fn lease(counter: u64, reclaim_at: u64) -> Lease {
        Lease {
            id: LeaseId {
                epoch: Epoch::new(1),
                counter,
            },
            reclaim_at: Timestamp::from_nanos(reclaim_at),
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_is_one_cache_line() {
        assert_eq!(core::mem::size_of::<Lease>(), 64);
    }

    #[test]
    fn lying_counters_are_clamped_and_never_go_back() {
        let mut lease = lease(1, 0);
        lease.add_granted(Tokens::new(10));
        assert_eq!(
            lease.merge(Tokens::new(4), Tokens::new(2)),
            (Tokens::new(4), Tokens::new(2))
        );
        assert_eq!(
            lease.merge(Tokens::new(3), Tokens::new(1)),
            (Tokens::ZERO, Tokens::ZERO)
        );
        let lies = Tokens::new(u64::MAX);
        assert_eq!(lease.merge(lies, lies), (Tokens::new(4), Tokens::ZERO));
        assert_eq!(lease.held(), Tokens::ZERO);
    }

    #[test]
    fn leases_spill_and_are_reclaimed_by_time() {
        let mut leases = Leases::default();
        for counter in 1..=5 {
            leases.push(lease(counter, counter * 10));
        }
        assert_eq!(
            (leases.len(), leases.next_reclaim()),
            (5, Timestamp::from_nanos(10))
        );
        let mut gone = Vec::new();
        leases.reclaim_until(Timestamp::from_nanos(30), &mut |l| gone.push(l.id.counter));
        gone.sort_unstable();
        assert_eq!(gone, [1, 2, 3]);
        assert_eq!(
            (leases.len(), leases.next_reclaim()),
            (2, Timestamp::from_nanos(40))
        );
        leases.remove(0);
        leases.remove(0);
        assert!(leases.is_empty());
        assert_eq!(leases.next_reclaim(), Timestamp::MAX);
        leases.push(lease(6, 60));
        assert_eq!(leases.as_slice()[0].id.counter, 6);
    }
}
