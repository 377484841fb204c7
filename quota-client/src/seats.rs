//! Seats: small numbers that running threads hold exclusively, so that a thread can count in
//! memory that nobody else writes, without a locked operation.
//!
//! A thread takes a seat when it first asks and gives it back when it ends; what its successor
//! finds there is what it left. Threads beyond [`SEATS`] get none.

#[cfg(not(loom))]
use std::cell::Cell;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Seats of the process. More threads than this that decide at once share counters.
#[cfg(not(loom))]
pub(crate) const SEATS: usize = 64;
/// Models have two threads.
#[cfg(loom)]
pub(crate) const SEATS: usize = 2;

/// A thread that has not asked yet.
#[cfg(not(loom))]
const UNKNOWN: usize = usize::MAX;
/// A thread that has none.
const NONE: usize = SEATS;

#[cfg(not(loom))]
static OF_THE_PROCESS: Seats = Seats {
    taken: AtomicU64::new(0),
};

#[cfg(not(loom))]
thread_local! {
    static MINE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static LEAVE: Leave = const { Leave(Cell::new(NONE)) };
}

/// Gives the seat back at the end of the thread. Apart from [`MINE`], which needs no destructor
/// and so costs one plain load.
#[cfg(not(loom))]
struct Leave(Cell<usize>);

#[cfg(not(loom))]
impl Drop for Leave {
    fn drop(&mut self) {
        // Other destructors of this thread may still count.
        MINE.set(NONE);
        OF_THE_PROCESS.free(self.0.get());
    }
}

/// The seat of the calling thread, below [`SEATS`].
#[cfg(not(loom))]
#[inline]
pub(crate) fn mine() -> Option<usize> {
    let mine = MINE.get();
    if mine == UNKNOWN {
        return sit();
    }
    (mine < SEATS).then_some(mine)
}

#[cfg(not(loom))]
#[cold]
fn sit() -> Option<usize> {
    let seat = OF_THE_PROCESS.take();
    let leaves = LEAVE.try_with(|leave| leave.0.set(seat)).is_ok();
    if !leaves {
        OF_THE_PROCESS.free(seat);
    }
    let seat = if leaves { seat } else { NONE };
    MINE.set(seat);
    (seat < SEATS).then_some(seat)
}

/// Which seats are taken.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// A bit for each.
    taken: AtomicU64,
}

impl Seats {
    /// The lowest free seat, or [`SEATS`]. Acquires what the seat's last holder released, so that
    /// its plain writes are seen.
    pub(crate) fn take(&self) -> usize {
        let next = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let (load, store) = (Ordering::Relaxed, Ordering::Acquire);
        let taken = self.taken.fetch_update(store, load, next);
        taken.map_or(NONE, |taken| {
            usize::try_from(taken.trailing_ones()).expect("a bit's number is small")
        })
    }

    pub(crate) fn free(&self, seat: usize) {
        if seat < SEATS {
            self.taken.fetch_and(!(1 << seat), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn no_two_running_threads_share_a_seat_and_seats_come_back() {
        // Twice as many rounds as there are seats for.
        for _ in 0..4 {
            let (seen, all_seated) = (Mutex::new(HashSet::new()), Barrier::new(SEATS / 2));
            std::thread::scope(|scope| {
                for _ in 0..SEATS / 2 {
                    scope.spawn(|| {
                        let seat = mine();
                        assert_eq!(seat, mine(), "a seat is kept");
                        all_seated.wait();
                        let mut seen = seen.lock().expect("nobody panics");
                        assert!(seat.is_none_or(|seat| seen.insert(seat)));
                    });
                }
            });
        }
    }
}
