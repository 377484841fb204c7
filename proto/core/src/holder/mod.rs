//! The holder machine: keeps the leases of one client incarnation supplied through one stream.
//!
//! It owns when to ask, for how much, what to report, when to give back, and the running totals of
//! every lease; the tokens themselves sit in [`LeaseCell`]s that the driver's table owns and the
//! requests spend from. It knows no sockets, clocks or randomness, and nothing about which request
//! matches which policy.
//!
//! A driver calls [`Holder::handle`] for everything that happens, then drains
//! [`Holder::poll_transmit`] while its stream has room and [`Holder::poll_event`] always, and
//! calls `handle` with [`Input::Tick`] at [`Holder::next_deadline`].
//!
//! Where one renewal is decided: `purpose` says whether a slot has something to say and makes
//! the request, `transmit` batches and dates it, `answer` takes what comes back, `merge`
//! turns a grant into spendable tokens.

mod anchors;
mod answer;
mod demand;
mod merge;
mod purpose;
mod sizing;
mod slot;
mod transmit;
mod types;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::cell::LeaseCell;
use crate::id::{Incarnation, KeyNumber, Sequence};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

use anchors::{Anchors, RoundTrip};
use slot::{Open, SlotState, Stage};
pub use transmit::{INTRODUCTIONS_MAX, REQUESTS_MAX};
pub use types::{
    Cause, Cells, Event, HolderConfig, HolderMessage, HolderStats, Input, LeaseView, Slot,
    SlotSettings,
};

/// How long a closing slot without a lease waits for the authority.
const CLOSE_WAIT: Term = Term::from_seconds(10);

/// The holder machine. See the module's documentation for how to drive it.
///
/// Memory: about half a kilobyte for each open slot, eight bytes for each index below the highest
/// one ever opened, and 64 KiB of send times.
#[derive(Debug)]
pub struct Holder {
    config: HolderConfig,
    connected: bool,
    draining: bool,
    anchors: Anchors,
    trip: RoundTrip,
    /// `None` since the stream came up.
    last_sent: Option<Timestamp>,
    /// The last sequence used. One count for all slots, so that a bucket that returns in another
    /// slot never repeats one.
    sequence: Sequence,
    /// The next key number. It goes on across streams, so that an answer of an earlier stream
    /// never names a key of this one.
    next_key: u32,
    keys: BTreeMap<KeyNumber, Slot>,
    slots: Vec<Option<Box<SlotState>>>,
    open_slots: u32,
    /// Slots with something to say, first come first served.
    ready: BTreeMap<u64, Slot>,
    next_place: u64,
    timers: BTreeSet<(Timestamp, Slot)>,
    /// Slots whose wish is queued at the authority, by term.
    queued: BTreeSet<(Term, Slot)>,
    events: VecDeque<Event>,
    stats: HolderStats,
}

impl Holder {
    /// A machine without slots or stream.
    #[must_use]
    pub fn new(config: HolderConfig) -> Self {
        Self {
            config,
            connected: false,
            draining: false,
            anchors: Anchors::new(),
            trip: RoundTrip::default(),
            last_sent: None,
            sequence: Sequence::default(),
            next_key: 0,
            keys: BTreeMap::new(),
            slots: Vec::new(),
            open_slots: 0,
            ready: BTreeMap::new(),
            next_place: 0,
            timers: BTreeSet::new(),
            queued: BTreeSet::new(),
            events: VecDeque::new(),
            stats: HolderStats::default(),
        }
    }

    /// Takes in what happened at `now`, which must not be earlier than any `now` before. Cost: a
    /// few map operations, except for [`Input::Connected`], [`Input::Disconnected`] and
    /// [`Input::Shutdown`], which visit every slot, and [`Input::Tick`], which visits those due.
    ///
    /// # Panics
    /// If [`Input::Open`] names a slot that is open or beyond `slots_max`.
    pub fn handle(&mut self, now: Timestamp, input: Input, cells: &impl Cells) {
        match input {
            Input::Connected => self.connected(now, cells),
            Input::Disconnected => self.disconnected(now, cells),
            Input::Open {
                slot,
                bucket,
                settings,
            } => self.open(
                slot,
                SlotState::new(now, bucket, settings, cells.cell(slot)),
            ),
            Input::Close { slot } => self.close(now, slot, cells),
            Input::Touched { slot } => self.visit(now, slot, cells, |_, state, _| {
                state.touched = true;
            }),
            Input::Waiting { slot, cost } => self.visit(now, slot, cells, |_, state, _| {
                state.waits(now, cost);
            }),
            Input::WaitOver { slot, cost } => self.visit(now, slot, cells, |_, state, _| {
                state.wait_over(cost);
            }),
            Input::Answer { anchor, answer } => self.answer(now, anchor, answer, cells),
            Input::PolicyChanged { slot, settings } => {
                self.visit(now, slot, cells, |_, state, cell| {
                    state.policy_changed(settings);
                    cell.rearm();
                });
            }
            Input::Shutdown => {
                self.draining = true;
                for slot in self.every_slot() {
                    self.close(now, slot, cells);
                }
                self.check_drained();
            }
            Input::Tick => {
                while let Some((at, slot)) = self.timers.first().copied()
                    && at <= now
                {
                    self.visit(now, slot, cells, |_, _, _| {});
                }
            }
        }
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Input::Tick`] is due, or [`Holder::poll_transmit`] has a heartbeat. `None` if only
    /// an input can bring news.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let heartbeat = self.connected.then(|| self.heartbeat_at());
        match (timer, heartbeat) {
            (Some(timer), Some(heartbeat)) => Some(timer.min(heartbeat)),
            (timer, heartbeat) => timer.or(heartbeat),
        }
    }

    /// This machine's incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.config.incarnation
    }

    /// True while a stream is up.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.connected
    }

    /// How many slots are open, closing ones included.
    #[must_use]
    pub const fn open_slots(&self) -> u32 {
        self.open_slots
    }

    /// When tokens may be expected for a slot whose quota is exhausted.
    #[must_use]
    pub fn retry_at(&self, slot: Slot) -> Option<Timestamp> {
        self.state(slot)?.retry_at
    }

    /// Tokens per second that callers ask of a slot, rounded up.
    #[must_use]
    pub fn demand(&self, slot: Slot) -> u64 {
        self.state(slot).map_or(0, SlotState::demand_per_second)
    }

    /// The running totals of a slot's lease, for inspection.
    #[must_use]
    pub fn lease(&self, slot: Slot) -> Option<LeaseView> {
        let lease = self.state(slot)?.lease?;
        Some(LeaseView {
            id: lease.id,
            version: lease.version,
            granted: lease.granted,
            returned: lease.returned,
            reported: lease.reported,
            deadline: lease.deadline,
            live: lease.stage == Stage::Live,
        })
    }

    /// What was done so far.
    #[must_use]
    pub const fn stats(&self) -> &HolderStats {
        &self.stats
    }

    fn state(&self, slot: Slot) -> Option<&SlotState> {
        self.slots.get(index(slot))?.as_deref()
    }

    fn open(&mut self, slot: Slot, state: SlotState) {
        assert!(
            slot.index() < self.config.slots_max,
            "slot {} is beyond the table's {} slots",
            slot.index(),
            self.config.slots_max
        );
        if self.draining {
            self.events.push_back(Event::Closed { slot });
            return;
        }
        let place = index(slot);
        if place >= self.slots.len() {
            self.slots.resize_with(place.saturating_add(1), || None);
        }
        let empty = self.slots.get_mut(place).expect("resized above");
        assert!(empty.is_none(), "slot {} is open already", slot.index());
        *empty = Some(Box::new(state));
        self.open_slots = self.open_slots.saturating_add(1);
    }

    fn close(&mut self, now: Timestamp, slot: Slot, cells: &impl Cells) {
        self.visit(now, slot, cells, |_, state, cell| {
            if state.closing.is_some() {
                return;
            }
            state.end(cell);
            let until = state.lease.map_or(now + CLOSE_WAIT, |lease| lease.deadline);
            state.closing = Some(until.min(now + state.settings.term.max(CLOSE_WAIT)));
        });
    }

    fn connected(&mut self, now: Timestamp, cells: &impl Cells) {
        self.disconnected(now, cells);
        self.connected = true;
        // The first message leaves at once: it is the anchor of everything pushed to this stream.
        self.last_sent = None;
        for slot in self.every_slot() {
            self.visit(now, slot, cells, |_, _, _| {});
        }
    }

    fn disconnected(&mut self, now: Timestamp, cells: &impl Cells) {
        self.connected = false;
        self.keys.clear();
        for slot in self.every_slot() {
            self.visit(now, slot, cells, |holder, state, _| {
                state.key = None;
                state.introduce = state.lease.is_some();
                let (Open::Flying { request, .. } | Open::Queued { request, .. }) = state.open
                else {
                    return;
                };
                // As a retry: its round trip would be measured from before the outage.
                let again = Open::Flying {
                    request,
                    sent: now,
                    attempts: 1,
                    due: now,
                };
                holder.set_open(slot, state, again);
            });
        }
    }

    /// Works on one slot and leaves it in order: demand counted, ended leases emptied, listed if
    /// it has something to say, its timer set. Slots that are not open are skipped.
    fn visit(
        &mut self,
        now: Timestamp,
        slot: Slot,
        cells: &impl Cells,
        work: impl FnOnce(&mut Self, &mut SlotState, &LeaseCell),
    ) {
        let Some(mut state) = self.slots.get_mut(index(slot)).and_then(Option::take) else {
            return;
        };
        let cell = cells.cell(slot);
        state.observe(now, cell);
        state.expire(now, cell);
        work(self, &mut state, cell);
        if self.over(now, &state) {
            self.forget(slot, *state, cell);
            return;
        }
        state.watch_brim(now, cell);
        state.rearm_if_satisfied(now, self.trip.smoothed(), cell);
        let due = state.due(now, self.trip.smoothed(), cell);
        if state.listed.is_none() && (due || (state.introduce && self.connected)) {
            state.listed = Some(self.next_place);
            self.ready.insert(self.next_place, slot);
            self.next_place = self.next_place.wrapping_add(1);
        }
        self.set_timer(slot, &mut state, now);
        state.check(cell);
        if let Some(place) = self.slots.get_mut(index(slot)) {
            *place = Some(state);
        }
    }

    /// True if a closing slot has nothing left to say, or nobody to say it to.
    fn over(&self, now: Timestamp, state: &SlotState) -> bool {
        let Some(until) = state.closing else {
            return false;
        };
        let silent = matches!(state.open, Open::Nothing) || !self.connected;
        now >= until || (silent && state.lease.is_none())
    }

    fn forget(&mut self, slot: Slot, mut state: SlotState, cell: &LeaseCell) {
        state.end(cell);
        cell.rearm();
        cell.set_renew_at(Tokens::ZERO);
        cell.take_refused();
        if let Some(key) = state.key {
            self.keys.remove(&key);
        }
        if let Some(at) = state.timer {
            self.timers.remove(&(at, slot));
        }
        if let Some(place) = state.listed {
            self.ready.remove(&place);
        }
        self.set_open(slot, &mut state, Open::Nothing);
        self.open_slots = self.open_slots.saturating_sub(1);
        self.events.push_back(Event::Closed { slot });
        self.check_drained();
    }

    fn check_drained(&mut self) {
        if self.draining && self.open_slots == 0 {
            self.events.push_back(Event::Drained);
        }
    }

    fn set_open(&mut self, slot: Slot, state: &mut SlotState, open: Open) {
        if let Open::Queued { term, .. } = state.open {
            self.queued.remove(&(term, slot));
        }
        if let Open::Queued { term, .. } = open {
            self.queued.insert((term, slot));
        }
        state.open = open;
    }

    fn set_timer(&mut self, slot: Slot, state: &mut SlotState, now: Timestamp) {
        let next = state.next_timer(now, self.connected);
        if next == state.timer {
            return;
        }
        if let Some(at) = state.timer {
            self.timers.remove(&(at, slot));
        }
        if let Some(at) = next {
            self.timers.insert((at, slot));
        }
        state.timer = next;
    }

    fn every_slot(&self) -> Vec<Slot> {
        let open = self.slots.iter().enumerate();
        open.filter(|(_, state)| state.is_some())
            .filter_map(|(place, _)| u32::try_from(place).ok())
            .map(Slot::new)
            .collect()
    }
}

fn index(slot: Slot) -> usize {
    usize::try_from(slot.index()).expect("a 32-bit index fits")
}
