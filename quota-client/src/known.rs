//! What a handle's usual case needs to know, in half a cache line that is read without a lock.
//!
//! A sequence lock whose sequence is the generation of rules that the rest was worked out under:
//! it never returns to a former value, so a reader that finds the generation in force before and
//! after its reads has read one writer's values. See Boehm, "Can seqlocks get along with
//! programming language memory models?" (MSPC 2012).

use std::sync::PoisonError;

use quota_core::holder::Slot;
use quota_core::tokens::Tokens;

use crate::fingerprint::Fingerprint;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// No generation of rules: nothing is known.
const NOTHING: u64 = u64::MAX;

/// A bucket that is decided about in the usual way: its policy is enforced for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usual {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) cost_max: Tokens,
}

#[derive(Debug)]
pub(crate) struct Known {
    generation: AtomicU64,
    high: AtomicU64,
    low: AtomicU64,
    cost_max: AtomicU64,
    /// Where the key was found last. A hint, and no part of what the lock keeps together.
    slot: AtomicU32,
    writing: Mutex<()>,
}

impl Known {
    pub(crate) fn new() -> Self {
        Self {
            generation: AtomicU64::new(NOTHING),
            high: AtomicU64::new(0),
            low: AtomicU64::new(0),
            cost_max: AtomicU64::new(0),
            slot: AtomicU32::new(u32::MAX),
            writing: Mutex::new(()),
        }
    }

    /// What is known under the rules of `generation`.
    #[inline]
    pub(crate) fn under(&self, generation: u64) -> Option<Usual> {
        if self.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let usual = Usual {
            fingerprint: Fingerprint {
                high: self.high.load(Ordering::Relaxed),
                low: self.low.load(Ordering::Relaxed),
            },
            cost_max: Tokens::new(self.cost_max.load(Ordering::Relaxed)),
        };
        fence(Ordering::Acquire);
        (self.generation.load(Ordering::Relaxed) == generation).then_some(usual)
    }

    /// Notes what holds from `generation` on, unless as much or more is known. Waits for other
    /// writers, which are rare and brief.
    pub(crate) fn note(&self, generation: u64, usual: Usual) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.generation.load(Ordering::Relaxed);
        if known != NOTHING && known >= generation {
            return;
        }
        self.generation.store(NOTHING, Ordering::Relaxed);
        fence(Ordering::Release);
        self.high.store(usual.fingerprint.high, Ordering::Relaxed);
        self.low.store(usual.fingerprint.low, Ordering::Relaxed);
        self.cost_max.store(usual.cost_max.get(), Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
    }

    #[inline]
    pub(crate) fn slot(&self) -> Slot {
        Slot::new(self.slot.load(Ordering::Relaxed))
    }

    pub(crate) fn set_slot(&self, slot: Slot) {
        self.slot.store(slot.index(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn usual(generation: u64) -> Usual {
        Usual {
            fingerprint: Fingerprint {
                high: generation,
                low: !generation,
            },
            cost_max: Tokens::new(generation),
        }
    }

    #[test]
    fn what_was_worked_out_under_other_rules_is_not_known() {
        let known = Known::new();
        assert_eq!((known.under(0), known.under(5)), (None, None));
        known.note(5, usual(5));
        known.note(4, usual(4));
        known.note(5, usual(9));
        assert_eq!(known.under(5), Some(usual(5)));
        assert_eq!((known.under(4), known.under(6)), (None, None));
    }

    #[test]
    fn readers_never_mix_what_two_writers_noted() {
        let known = Known::new();
        let last = 50_000;
        std::thread::scope(|scope| {
            for odd in [0, 1] {
                let known = &known;
                scope.spawn(move || {
                    (odd..=last)
                        .step_by(2)
                        .for_each(|g| known.note(g, usual(g)))
                });
            }
            let mut seen = 0;
            while seen < last {
                let now = known.generation.load(Ordering::Relaxed);
                // While a writer writes, nobody asks for that generation.
                if now == NOTHING {
                    continue;
                }
                if let Some(read) = known.under(now) {
                    assert_eq!(read, usual(now));
                    seen = now;
                }
            }
        });
    }
}
