//! One gateway: the shipped holder machine and cells, and what the client's driver does with them.

use std::collections::{HashMap, VecDeque};

use quota_core::authority::StreamId;
use quota_core::cell::{LeaseCell, Spend, Tick};
use quota_core::holder::{
    Cause, Cells, Event as Told, Holder, HolderConfig, HolderMessage, Input, Slot, SlotSettings,
};
use quota_core::id::{Incarnation, MessageNumber};
use quota_core::key::BucketAddress;
use quota_core::message::Answer;
use quota_core::policy::Policy;
use quota_core::time::Timestamp;
use quota_core::tokens::Tokens;

use crate::capacity::limiter::Decided;
use crate::capacity::workload::Request;

/// How often the client's driver looks at what callers have signalled, in nanoseconds.
const POLL: u64 = 4_000_000;
/// Most keys that a gateway keeps: beyond that, idle ones make room.
const KEYS_MAX: u32 = 16_384;

#[derive(Debug)]
pub(super) struct Gateway {
    holder: Holder,
    table: Table,
    slot_of: HashMap<u32, Slot>,
    free: Vec<Slot>,
    /// Open slots, the one that was looked at longest ago first.
    order: VecDeque<Slot>,
    /// Slots whose spenders have signalled since the last turn.
    touched: Vec<Slot>,
    /// The stream to the authority, if there is one.
    pub(super) stream: Option<StreamId>,
    /// When the driver's next turn is scheduled.
    pub(super) turn_at: Option<u64>,
    pub(super) phase: u64,
    /// The process is gone.
    pub(super) dead: bool,
    leaving: bool,
    drained: bool,
}

/// What callers find: one entry a slot.
#[derive(Debug, Default)]
struct Table(Vec<Entry>);

#[derive(Debug, Default)]
struct Entry {
    cell: LeaseCell,
    key: u32,
    touched: bool,
    closing: bool,
    /// When the authority expects tokens, after it had none.
    exhausted_until: Option<Timestamp>,
    waiting: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    request: Request,
    until: u64,
}

impl Cells for Table {
    fn cell(&self, slot: Slot) -> &LeaseCell {
        &self.0[index(slot)].cell
    }
}

fn index(slot: Slot) -> usize {
    usize::try_from(slot.index()).expect("32 bits fit")
}

impl Gateway {
    pub(super) fn new(place: u32) -> Self {
        let incarnation = Incarnation::new(u64::from(place) + 1);
        Self {
            holder: Holder::new(HolderConfig {
                incarnation,
                slots_max: KEYS_MAX,
            }),
            table: Table::default(),
            slot_of: HashMap::new(),
            free: Vec::new(),
            order: VecDeque::new(),
            touched: Vec::new(),
            stream: None,
            turn_at: None,
            // Drivers do not take their turns in step.
            phase: u64::from(place) * 1_000_003 % POLL,
            dead: false,
            leaving: false,
            drained: false,
        }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.holder.incarnation()
    }

    pub(super) fn connected(&mut self, now: u64) {
        self.handle(now, Input::Connected);
    }

    pub(super) fn disconnected(&mut self, now: u64) {
        self.handle(now, Input::Disconnected);
    }

    pub(super) fn shut_down(&mut self, now: u64) {
        self.leaving = true;
        self.handle(now, Input::Shutdown);
    }

    /// True once everything has been given back.
    pub(super) const fn has_left(&self) -> bool {
        self.leaving && self.drained
    }

    /// Tokens of all keys.
    pub(super) fn held(&self) -> Tokens {
        let cells = self.table.0.iter();
        cells.map(|entry| entry.cell.view().tokens).sum()
    }

    /// Tokens of one key.
    pub(super) fn held_of(&self, key: u32) -> u64 {
        let slot = self.slot_of.get(&key);
        slot.map_or(0, |slot| self.table.cell(*slot).view().tokens.get())
    }

    /// How many keys are kept.
    pub(super) fn keys(&self) -> u64 {
        u64::from(self.holder.open_slots())
    }

    fn handle(&mut self, now: u64, input: Input) {
        let now = Timestamp::from_nanos(now);
        self.holder.handle(now, input, &self.table);
    }

    /// Signals of callers, and timers.
    pub(super) fn begin_turn(&mut self, now: u64) {
        for slot in std::mem::take(&mut self.touched) {
            self.table.0[index(slot)].touched = false;
            self.handle(now, Input::Touched { slot });
        }
        let time = Timestamp::from_nanos(now);
        if self.holder.next_deadline().is_some_and(|due| due <= time) {
            self.handle(now, Input::Tick);
        }
    }

    pub(super) fn transmit(&mut self, now: u64) -> Option<HolderMessage> {
        let now = Timestamp::from_nanos(now);
        self.holder.poll_transmit(now, &self.table)
    }

    pub(super) fn answered(&mut self, now: u64, anchor: MessageNumber, answers: Vec<Answer>) {
        for answer in answers {
            self.handle(now, Input::Answer { anchor, answer });
        }
    }

    /// Tells callers what the machine has found out.
    pub(super) fn take_news(&mut self, now: u64, decided: &mut Vec<Decided>) {
        let time = Timestamp::from_nanos(now);
        let mut served = Vec::new();
        while let Some(told) = self.holder.poll_event() {
            match told {
                Told::Wake { slot, .. } => {
                    self.table.0[index(slot)].exhausted_until = None;
                    served.push(slot);
                }
                Told::Refused {
                    slot,
                    cause: Cause::Exhausted { until },
                } => {
                    if until > time {
                        self.table.0[index(slot)].exhausted_until = Some(until);
                        self.refuse_hopeless(now, slot, decided);
                    }
                }
                Told::Refused { slot, .. } => self.refuse_hopeless(now, slot, decided),
                Told::Closed { slot } => self.closed(slot),
                Told::Drained => self.drained = true,
                Told::Reconnect => {}
            }
        }
        for slot in served {
            self.serve_waiting(now, slot, decided);
        }
    }

    /// When the driver acts next by itself.
    pub(super) fn next_turn(&self, now: u64) -> Option<u64> {
        // A timer wakes the driver a little late, and the machine is never asked twice at once.
        let due = self.holder.next_deadline();
        let due = due.map(|due| due.as_nanos().max(now + 1));
        [due, self.next_poll(now)].into_iter().flatten().min()
    }

    /// The driver's next look at its signals, if there are any.
    pub(super) fn next_poll(&self, now: u64) -> Option<u64> {
        let at = (now.saturating_sub(self.phase) / POLL + 1) * POLL + self.phase;
        (!self.touched.is_empty()).then_some(at)
    }

    /// Decides a request now, or has it wait at the slot that is returned.
    pub(super) fn offer(
        &mut self,
        request: Request,
        until: u64,
        policy: &Policy,
        decided: &mut Vec<Decided>,
    ) -> Option<Slot> {
        let now = request.at;
        let Some(slot) = self.slot(now, request.key, policy) else {
            decided.push(Decided::new(request, now, false));
            return None;
        };
        if self.spend(now, slot, request.cost) {
            decided.push(Decided::new(request, now, true));
            return None;
        }
        let entry = &mut self.table.0[index(slot)];
        let expected = entry.exhausted_until;
        let hopeless = expected.is_some_and(|at| at.as_nanos() > until);
        let cost = Tokens::new(request.cost);
        if hopeless || until == now || entry.closing {
            entry.cell.refuse(cost);
            decided.push(Decided::new(request, now, false));
            return None;
        }
        entry.waiting.push_back(Waiter { request, until });
        self.handle(now, Input::Waiting { slot, cost });
        Some(slot)
    }

    /// The slot of a key, opened if need be; `None` if the table is full of keys in use.
    fn slot(&mut self, now: u64, key: u32, policy: &Policy) -> Option<Slot> {
        if let Some(slot) = self.slot_of.get(&key) {
            return Some(*slot);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let next = u32::try_from(self.table.0.len()).expect("fewer than KEYS_MAX");
                if next == KEYS_MAX {
                    self.make_room(now);
                    return None;
                }
                self.table.0.push(Entry::default());
                Slot::new(next)
            }
        };
        self.slot_of.insert(key, slot);
        let entry = &mut self.table.0[index(slot)];
        entry.key = key;
        entry.closing = false;
        self.order.push_back(slot);
        let name = super::key(key);
        let settings = SlotSettings::for_limit(policy.limit_for(&name), policy.lease());
        let bucket = BucketAddress {
            policy: policy.id().clone(),
            key: name,
        };
        self.handle(
            now,
            Input::Open {
                slot,
                bucket,
                settings,
            },
        );
        if self.table.0.len() + 64 >= usize::try_from(KEYS_MAX).expect("32 bits fit")
            && self.free.is_empty()
        {
            self.make_room(now);
        }
        Some(slot)
    }

    /// Closes a few keys of which nothing is held, as the client's table does when it is full.
    fn make_room(&mut self, now: u64) {
        for _ in 0..64 {
            let Some(slot) = self.order.pop_front() else {
                return;
            };
            let entry = &mut self.table.0[index(slot)];
            let view = entry.cell.view();
            if entry.closing {
                continue;
            }
            if view.tokens.is_zero() && !view.renewing && entry.waiting.is_empty() {
                entry.closing = true;
                self.handle(now, Input::Close { slot });
            } else {
                self.order.push_back(slot);
            }
        }
    }

    fn closed(&mut self, slot: Slot) {
        let entry = &mut self.table.0[index(slot)];
        entry.exhausted_until = None;
        self.slot_of.remove(&entry.key);
        self.free.push(slot);
    }

    /// Spends through the shipped cell; true if the request is admitted.
    fn spend(&mut self, now: u64, slot: Slot, cost: u64) -> bool {
        let entry = &mut self.table.0[index(slot)];
        let tick = Tick::at(Timestamp::from_nanos(now));
        let (admitted, renew) = match entry.cell.spend(Tokens::new(cost), || tick) {
            Spend::Admitted { renew, .. } => (true, renew),
            Spend::Exhausted { renew } | Spend::Ended { renew } => (false, renew),
        };
        if renew && !entry.touched {
            entry.touched = true;
            self.touched.push(slot);
        }
        admitted
    }

    fn serve_waiting(&mut self, now: u64, slot: Slot, decided: &mut Vec<Decided>) {
        while let Some(waiter) = self.table.0[index(slot)].waiting.front().copied() {
            if !self.spend(now, slot, waiter.request.cost) {
                break;
            }
            self.table.0[index(slot)].waiting.pop_front();
            let cost = Tokens::new(waiter.request.cost);
            self.handle(now, Input::WaitOver { slot, cost });
            decided.push(Decided::new(waiter.request, now, true));
        }
    }

    /// Refuses those who would wait longer than they want, or longer than it makes sense.
    pub(super) fn refuse_hopeless(&mut self, now: u64, slot: Slot, decided: &mut Vec<Decided>) {
        let entry = &mut self.table.0[index(slot)];
        let expected = entry.exhausted_until;
        let waiting = std::mem::take(&mut entry.waiting);
        let hopeless =
            |w: &Waiter| w.until <= now || expected.is_some_and(|at| at.as_nanos() > w.until);
        let (over, kept): (Vec<_>, Vec<_>) = waiting.into_iter().partition(hopeless);
        entry.waiting = kept.into();
        for waiter in over {
            let cost = Tokens::new(waiter.request.cost);
            self.table.0[index(slot)].cell.refuse(cost);
            self.handle(now, Input::WaitOver { slot, cost });
            decided.push(Decided::new(waiter.request, now, false));
        }
    }
}
