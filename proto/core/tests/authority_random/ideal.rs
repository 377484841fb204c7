//! The exact ideal bucket, which is fed with what holders really spend.
//!
//! It knows of no leases, ghosts or crashes: only limits, and when tokens were spent.

use quota_core::level::Level;
use quota_core::policy::Limit;
use quota_core::rate::Rate;
use quota_core::time::Term;
use quota_core::tokens::Tokens;

/// A limit that was in force for a bucket, from a moment on.
#[derive(Clone, Copy)]
pub(crate) struct InForce {
    pub(crate) from: u64,
    pub(crate) capacity: u64,
    pub(crate) rate: Rate,
}

/// The ideal bucket of one key.
pub(crate) struct Ideal {
    pub(crate) level: Level,
    pub(crate) at: u64,
    pub(crate) limits: Vec<InForce>,
    pub(crate) admitted: Vec<(u64, u64)>,
}

impl Ideal {
    pub(crate) fn new(limit: &Limit, now: u64) -> Self {
        let capacity = limit.capacity().get();
        Self {
            level: Level::from_tokens(i128::from(capacity), limit.rate()),
            at: now,
            limits: vec![InForce {
                from: now,
                capacity,
                rate: limit.rate(),
            }],
            admitted: Vec::new(),
        }
    }

    pub(crate) fn last(&self) -> InForce {
        *self.limits.last().unwrap()
    }

    pub(crate) fn settle(&mut self, now: u64) {
        let last = self.last();
        let term = Term::from_nanos(now - self.at);
        self.level = self
            .level
            .refilled(last.rate, term, i128::from(last.capacity));
        self.at = now;
    }

    pub(crate) fn change(&mut self, now: u64, limit: &Limit) {
        self.settle(now);
        let last = self.last();
        let (capacity, rate) = (limit.capacity().get(), limit.rate());
        if (last.capacity, last.rate) == (capacity, rate) {
            return;
        }
        // Rounded up, so that the two never differ by the rounding of a conversion.
        let level = self.level.converted(last.rate, rate).parts() + 1;
        let change = i128::from(capacity) - i128::from(last.capacity);
        let change = Level::from_tokens(change, rate).parts();
        let full = Level::from_tokens(i128::from(capacity), rate).parts();
        self.level = Level::from_parts((level + change).min(full));
        self.limits.push(InForce {
            from: now,
            capacity,
            rate,
        });
    }

    /// Every window that ends now holds at most `B + R·w`, for the largest of both in force since
    /// one longest term before it.
    pub(crate) fn admit(&mut self, now: u64, tokens: u64, longest: u64) {
        self.settle(now);
        self.level = self.level.minus(Tokens::new(tokens), self.last().rate);
        self.admitted.push((now, tokens));
        let mut sum = 0;
        for (begin, count) in self.admitted.iter().rev() {
            sum += count;
            let since = begin.saturating_sub(longest);
            let first = self.limits.partition_point(|l| l.from <= since).max(1) - 1;
            let live = &self.limits[first..];
            let capacity = live.iter().map(|l| l.capacity).max().unwrap();
            let window = Term::from_nanos(now - begin);
            let refill = live.iter().map(|l| l.rate.tokens_in(window).get()).max();
            let bound = capacity + refill.unwrap();
            assert!(
                sum <= bound,
                "{sum} tokens were spent within {} ms where {bound} are allowed",
                window.as_millis_ceil()
            );
        }
    }
}
