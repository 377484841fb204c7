//! When each message was sent, and how long answers take.

use alloc::collections::VecDeque;

use crate::id::MessageNumber;
use crate::time::{Term, Timestamp};

/// How many of the latest messages are remembered. An answer that echoes an older one is dropped,
/// which costs tokens and never correctness; at a thousand messages a second this is eight
/// seconds.
const REMEMBERED: usize = 8192;
/// Bounds of the time after which an unanswered request is sent again.
const RETRY_MIN: Term = Term::from_millis(500);
const RETRY_MAX: Term = Term::from_seconds(2);

/// A stream without other messages carries one this often.
pub(super) const HEARTBEAT: Term = Term::from_seconds(1);

/// How often anchors flow while a wish is queued that will be granted for `term`.
pub(super) fn pause(term: Term) -> Term {
    HEARTBEAT
        .min(term.scale_down(1, 4))
        .max(Term::from_millis(10))
}

/// The send times of the latest messages, which date every grant.
#[derive(Debug)]
pub(super) struct Anchors {
    /// The number of the next message; the remembered ones end just before it.
    next: MessageNumber,
    sent: VecDeque<Timestamp>,
}

impl Anchors {
    pub(super) const fn new() -> Self {
        Self {
            next: MessageNumber::new(1),
            sent: VecDeque::new(),
        }
    }

    /// Numbers a message that is sent at `now`.
    pub(super) fn send(&mut self, now: Timestamp) -> MessageNumber {
        let number = self.next;
        self.next = number.next();
        if self.sent.len() >= REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(now);
        number
    }

    /// When the message of this number was sent; `None` if it never was, or too long ago.
    pub(super) fn sent_at(&self, number: MessageNumber) -> Option<Timestamp> {
        let back = self.next.get().checked_sub(number.get())?;
        let index = self.sent.len().checked_sub(usize::try_from(back).ok()?)?;
        self.sent.get(index).copied()
    }
}

/// A smoothed round trip, by the usual eighth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<Term>,
}

impl RoundTrip {
    pub(super) fn sample(&mut self, took: Term) {
        self.smoothed = Some(match self.smoothed {
            None => took,
            Some(old) => old.scale_down(7, 8) + took.scale_down(1, 8),
        });
    }

    /// The smoothed round trip; zero before the first answer.
    pub(super) fn smoothed(self) -> Term {
        self.smoothed.unwrap_or(Term::ZERO)
    }

    /// How long to wait for the answer to the given attempt, counted from zero.
    pub(super) fn retry_after(self, attempt: u32) -> Term {
        let first = self.smoothed().scale_up(4, 1).max(RETRY_MIN);
        let doubled = first.scale_up(1_u64.checked_shl(attempt.min(8)).unwrap_or(256), 1);
        doubled.min(RETRY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_remembered_numbers_have_a_time() {
        let mut anchors = Anchors::new();
        assert_eq!(anchors.sent_at(MessageNumber::new(1)), None);
        for at in 1..=10_000 {
            anchors.send(Timestamp::from_nanos(at));
        }
        let at = |number| anchors.sent_at(MessageNumber::new(number));
        assert_eq!(at(10_000), Some(Timestamp::from_nanos(10_000)));
        assert_eq!(
            at(10_000 - 8191),
            Some(Timestamp::from_nanos(10_000 - 8191))
        );
        for unknown in [0, 1, 10_000 - 8192, 10_001, u64::MAX] {
            assert_eq!(at(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn retries_double_up_to_two_seconds() {
        let mut trip = RoundTrip::default();
        let waits = |trip: RoundTrip| [0, 1, 2, 3, 9, u32::MAX].map(|a| trip.retry_after(a));
        let millis = |list: [u64; 6]| list.map(Term::from_millis);
        assert_eq!(waits(trip), millis([500, 1000, 2000, 2000, 2000, 2000]));
        trip.sample(Term::from_millis(200));
        assert_eq!(waits(trip), millis([800, 1600, 2000, 2000, 2000, 2000]));
    }
}
