//! Callers that wait for tokens, in the order in which they came.
//!
//! A caller registers, tries once more (what came in between would not wake it), and sleeps. The
//! driver wakes as many as the tokens in a cell suffice for, the longest waiting first, at every
//! turn of its loop; a woken caller decides anew and may find that someone else was faster. It
//! also hears here who began and who ceased to wait, to tell the holder machine.
//!
//! Bounded: at most `max` callers wait at a time, and at most four times as many beginnings are
//! kept for the driver; beyond either, registering is refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quota_core::holder::Slot;
use quota_core::tokens::Tokens;
use tokio::sync::Notify;

/// Somebody began or ceased to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Began {
        slot: Slot,
        cost: Tokens,
    },
    /// Undecided if the caller went away, or went on to wait for something else: then nothing
    /// that it did on this slot counts as the demand that its beginning announced.
    Ceased {
        slot: Slot,
        cost: Tokens,
        decided: bool,
    },
}

impl News {
    const fn slot(&self) -> Slot {
        match self {
            Self::Began { slot, .. } | Self::Ceased { slot, .. } => *slot,
        }
    }
}

#[derive(Debug)]
struct Waiter {
    cost: Tokens,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Queues {
    next: u64,
    count: usize,
    slots: HashMap<Slot, BTreeMap<u64, Waiter>>,
    news: Vec<News>,
}

#[derive(Debug)]
pub(crate) struct Waiters {
    max: usize,
    queues: Mutex<Queues>,
}

/// A place in the queue of one slot; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'w> {
    waiters: &'w Waiters,
    slot: Slot,
    number: u64,
    cost: Tokens,
    decided: bool,
    wake: Arc<Notify>,
}

impl Ticket<'_> {
    pub(crate) const fn slot(&self) -> Slot {
        self.slot
    }

    /// False once the slot was taken from its key: the place ended with it.
    pub(crate) fn stands(&self) -> bool {
        let queues = self.waiters.lock();
        let queue = queues.slots.get(&self.slot);
        queue.is_some_and(|queue| queue.contains_key(&self.number))
    }

    /// Gives the place up with an outcome, which counts as the demand that was announced.
    pub(crate) fn decide(mut self) {
        self.decided = true;
    }

    /// Returns when the driver has woken this place since the last call.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiters.lock();
        queues.count -= 1;
        let Some(queue) = queues.slots.get_mut(&self.slot) else {
            return;
        };
        if queue.remove(&self.number).is_none() {
            // The slot is another key's by now, which this wait is not about.
            return;
        }
        if queue.is_empty() {
            queues.slots.remove(&self.slot);
        }
        queues.news.push(News::Ceased {
            slot: self.slot,
            cost: self.cost,
            decided: self.decided,
        });
    }
}

impl Waiters {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            queues: Mutex::default(),
        }
    }

    /// A place at the end of the queue, or `None` if as many wait as may.
    pub(crate) fn register(&self, slot: Slot, cost: Tokens) -> Option<Ticket<'_>> {
        let mut queues = self.lock();
        if queues.count >= self.max || queues.news.len() >= self.max.saturating_mul(4) {
            return None;
        }
        let number = queues.next;
        let wake = Arc::new(Notify::new());
        queues.next += 1;
        queues.count += 1;
        queues.news.push(News::Began { slot, cost });
        let waiter = Waiter {
            cost,
            wake: Arc::clone(&wake),
        };
        queues.slots.entry(slot).or_default().insert(number, waiter);
        Some(Ticket {
            waiters: self,
            slot,
            number,
            cost,
            decided: false,
            wake,
        })
    }

    /// Takes what happened since the last call, in order. Driver only.
    pub(crate) fn take_news(&self, into: &mut Vec<News>) {
        into.clear();
        std::mem::swap(&mut self.lock().news, into);
    }

    /// Wakes, for every slot that someone waits on, those whom `tokens` suffices for.
    pub(crate) fn wake_served(&self, tokens: impl Fn(Slot) -> Tokens) {
        let queues = self.lock();
        for (slot, queue) in &queues.slots {
            let mut left = tokens(*slot);
            for waiter in queue.values() {
                if waiter.cost > left {
                    break;
                }
                left = left.minus(waiter.cost);
                waiter.wake.notify_one();
            }
        }
    }

    /// Wakes all who wait on a slot, so that they look at what the authority said.
    pub(crate) fn wake_slot(&self, slot: Slot) {
        if let Some(queue) = self.lock().slots.get(&slot) {
            queue.values().for_each(|waiter| waiter.wake.notify_one());
        }
    }

    /// Ends every wait on a slot that was taken from its key, and wakes those who waited. Driver
    /// only.
    pub(crate) fn forget(&self, slot: Slot) {
        let mut queues = self.lock();
        queues.news.retain(|news| news.slot() != slot);
        if let Some(queue) = queues.slots.remove(&slot) {
            queue.values().for_each(|waiter| waiter.wake.notify_one());
        }
    }

    /// Wakes everyone: the client closes, or the authority has gone.
    pub(crate) fn wake_all(&self) {
        let queues = self.lock();
        let all = queues.slots.values().flat_map(BTreeMap::values);
        all.for_each(|waiter| waiter.wake.notify_one());
    }

    /// True if somebody waits on the slot.
    pub(crate) fn waits_on(&self, slot: Slot) -> bool {
        self.lock().slots.contains_key(&slot)
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_woken(ticket: &Ticket<'_>) -> bool {
        let woken = pin!(ticket.woken());
        woken.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn the_longest_waiting_are_woken_first_and_only_as_many_as_are_served() {
        let waiters = Waiters::new(10);
        let slot = Slot::new(3);
        let costs = [2, 1, 5, 1].map(Tokens::new);
        let tickets: Vec<_> = costs
            .iter()
            .map(|cost| waiters.register(slot, *cost).expect("there is room"))
            .collect();
        waiters.wake_served(|_| Tokens::new(4));
        let woken: Vec<_> = tickets.iter().map(is_woken).collect();
        assert_eq!(woken, [true, true, false, false]);
    }

    #[test]
    fn a_wake_before_the_sleep_is_not_lost() {
        let waiters = Waiters::new(1);
        let ticket = waiters.register(Slot::new(0), Tokens::ONE).expect("room");
        waiters.wake_slot(Slot::new(0));
        assert!(is_woken(&ticket));
        assert!(!is_woken(&ticket));
    }

    #[test]
    fn waiting_is_bounded_and_every_beginning_has_an_end() {
        let waiters = Waiters::new(2);
        let slot = Slot::new(1);
        let first = waiters.register(slot, Tokens::ONE).expect("room");
        let second = waiters.register(slot, Tokens::new(2)).expect("room");
        assert!(waiters.register(slot, Tokens::ONE).is_none());
        first.decide();
        let third = waiters.register(slot, Tokens::new(3)).expect("room again");
        drop((second, third));
        let mut news = Vec::new();
        waiters.take_news(&mut news);
        let began = |cost| News::Began {
            slot,
            cost: Tokens::new(cost),
        };
        let ceased = |cost, decided| News::Ceased {
            slot,
            cost: Tokens::new(cost),
            decided,
        };
        assert_eq!(
            news,
            [
                began(1),
                began(2),
                ceased(1, true),
                began(3),
                ceased(2, false),
                ceased(3, false)
            ]
        );
        assert!(!waiters.waits_on(slot));
    }

    #[test]
    fn a_place_on_a_slot_that_changed_its_key_ends_nobody_elses_wait() {
        let waiters = Waiters::new(3);
        let (slot, other) = (Slot::new(1), Slot::new(2));
        let before = waiters.register(slot, Tokens::ONE).expect("room");
        let elsewhere = waiters.register(other, Tokens::ONE).expect("room");
        waiters.forget(slot);
        assert!(is_woken(&before) && !before.stands());
        assert!(!is_woken(&elsewhere) && elsewhere.stands());
        let after = waiters.register(slot, Tokens::ONE).expect("room");
        drop(before);
        assert!(after.stands() && waiters.waits_on(slot));
        let mut news = Vec::new();
        waiters.take_news(&mut news);
        let began = |slot| News::Began {
            slot,
            cost: Tokens::ONE,
        };
        assert_eq!(news, [began(other), began(slot)]);
        assert!(
            waiters.register(slot, Tokens::ONE).is_some(),
            "its room is free"
        );
    }

    #[test]
    fn a_driver_that_does_not_listen_bounds_the_news() {
        let waiters = Waiters::new(2);
        let mut registered = 0;
        while let Some(ticket) = waiters.register(Slot::new(0), Tokens::ONE) {
            drop(ticket);
            registered += 1;
            assert!(registered < 100);
        }
        let mut news = Vec::new();
        waiters.take_news(&mut news);
        assert!(waiters.register(Slot::new(0), Tokens::ONE).is_some());
    }
}
