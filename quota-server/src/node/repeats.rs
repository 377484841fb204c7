//! The last lease of each caller whose calls can be repeated.
//!
//! Such a call keeps its lease, empty, so that a repeat finds what was decided. Only the last call
//! can be repeated, so the next one ends the lease of the one before; otherwise each would stay for
//! a whole term, and a busy caller would fill its bucket with them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use quota_core::id::{Incarnation, LeaseId};
use quota_core::tokens::Tokens;

/// Callers that are remembered: about 4 MiB. Beyond them all are forgotten, and the leases end by
/// themselves.
const CALLERS_MAX: usize = 1 << 16;

/// The last leases, by the holder that stands for a caller at one bucket.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    last: Mutex<HashMap<Incarnation, (LeaseId, Tokens)>>,
}

impl Repeats {
    /// Remembers a lease that is spent, and returns the one before, with what it was granted. A
    /// repeat, which names the same lease, returns none.
    pub(crate) fn next(
        &self,
        caller: Incarnation,
        lease: LeaseId,
        granted: Tokens,
    ) -> Option<(LeaseId, Tokens)> {
        // Nothing in here panics half-way.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= CALLERS_MAX && !last.contains_key(&caller) {
            last.clear();
        }
        let before = last.insert(caller, (lease, granted));
        before.filter(|(before, _)| *before != lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quota_core::id::Epoch;

    #[test]
    fn a_repeat_ends_nothing_and_callers_are_bounded() {
        let repeats = Repeats::default();
        let lease = |counter| LeaseId {
            epoch: Epoch::new(1),
            counter,
        };
        let two = Tokens::new(2);
        let next = |caller, counter| repeats.next(Incarnation::new(caller), lease(counter), two);
        assert_eq!(next(7, 1), None);
        assert_eq!(next(7, 1), None);
        assert_eq!(next(7, 2), Some((lease(1), two)));
        for caller in 1000..1000 + u64::try_from(CALLERS_MAX).expect("small") {
            next(caller, caller);
        }
        assert!(repeats.last.lock().expect("whole").len() <= CALLERS_MAX);
    }
}
