//! Counters that each thread keeps in a stripe of its own, with plain loads and stores: a locked
//! operation per decision would cost about as much as the debit itself. Threads without a seat
//! share one more stripe. Reading adds the stripes up.

use crate::seats::SEATS;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[repr(align(128))]
#[derive(Debug)]
struct Stripe<const COUNTERS: usize>([AtomicU64; COUNTERS]);

impl<const COUNTERS: usize> Default for Stripe<COUNTERS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

#[derive(Debug)]
pub(crate) struct Stripes<const COUNTERS: usize> {
    /// By seat; only the thread in the seat writes.
    own: [Stripe<COUNTERS>; SEATS],
    common: Stripe<COUNTERS>,
}

impl<const COUNTERS: usize> Default for Stripes<COUNTERS> {
    fn default() -> Self {
        Self {
            own: std::array::from_fn(|_| Stripe::default()),
            common: Stripe::default(),
        }
    }
}

impl<const COUNTERS: usize> Stripes<COUNTERS> {
    /// Adds to one counter. `seat` is the calling thread's, if it has one.
    #[inline]
    pub(crate) fn add(&self, seat: Option<usize>, index: usize, amount: u64) {
        if let Some(seat) = seat {
            let counter = &self.own[seat].0[index];
            counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
        } else {
            self.common.0[index].fetch_add(amount, Relaxed);
        }
    }

    /// What all threads together have added to one counter.
    pub(crate) fn total(&self, index: usize) -> u64 {
        let stripes = self.own.iter().chain([&self.common]);
        let counts = stripes.map(|stripe| stripe.0[index].load(Relaxed));
        counts.fold(0, u64::wrapping_add)
    }
}
