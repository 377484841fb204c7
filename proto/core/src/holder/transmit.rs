//! Messages: which slots speak, in what order, and how much fits.

use alloc::vec::Vec;

use super::Holder;
use super::anchors::{self, HEARTBEAT};
use super::slot::{Open, SlotState};
use super::types::{Cells, Event, HolderMessage, Slot};
use crate::cell::LeaseCell;
use crate::id::KeyNumber;
use crate::message::{Introduction, LeaseRequest};
use crate::time::Timestamp;

/// Most requests in one message.
pub const REQUESTS_MAX: usize = 1000;
/// Most introductions in one message.
pub const INTRODUCTIONS_MAX: usize = 1000;
/// Bytes of introductions after which a message is closed; an address is a few kilobytes at most.
const INTRODUCTION_BYTES: usize = 256 * 1024;

impl Holder {
    /// The next message to send at `now`, or `None` if there is nothing to say or no stream. Call
    /// it until `None` while the stream has room, and send what it gives at once, in order: `now`
    /// dates the grants that will echo it. Cost: proportional to the items of the message.
    pub fn poll_transmit(&mut self, now: Timestamp, cells: &impl Cells) -> Option<HolderMessage> {
        if !self.connected {
            return None;
        }
        let mut introductions = Vec::new();
        let mut requests = Vec::new();
        let mut bytes = 0_usize;
        while requests.len() < REQUESTS_MAX
            && introductions.len() < INTRODUCTIONS_MAX
            && bytes < INTRODUCTION_BYTES
            && self.connected
        {
            let Some((_, slot)) = self.ready.pop_first() else {
                break;
            };
            self.visit(now, slot, cells, |holder, state, cell| {
                state.listed = None;
                let request = holder.speak(now, slot, state, cell);
                if request.is_none() && !state.introduce {
                    return;
                }
                let Some(key) = holder.key(slot, state, &mut introductions) else {
                    return;
                };
                if let Some(last) = introductions.last() {
                    bytes = bytes.saturating_add(last.bucket.key.as_bytes().len());
                }
                requests.extend(request.map(|request| LeaseRequest { key, ..request }));
            });
        }
        if introductions.is_empty() && requests.is_empty() && now < self.heartbeat_at() {
            return None;
        }
        self.last_sent = Some(now);
        Some(HolderMessage {
            number: self.anchors.send(now),
            introductions,
            requests,
        })
    }

    /// When the next message must leave at the latest: each second, and each quarter of the
    /// shortest term for which a wish is queued, so that its grant finds a fresh anchor.
    pub(super) fn heartbeat_at(&self) -> Timestamp {
        let pause = self
            .queued
            .first()
            .map_or(HEARTBEAT, |(term, _)| anchors::pause(*term));
        self.last_sent.map_or(Timestamp::ZERO, |sent| sent + pause)
    }

    /// The request that a slot makes or repeats now.
    fn speak(
        &mut self,
        now: Timestamp,
        slot: Slot,
        state: &mut SlotState,
        cell: &LeaseCell,
    ) -> Option<LeaseRequest> {
        let round_trip = self.trip.smoothed();
        if !state.due(now, round_trip, cell) {
            return None;
        }
        let purpose = match state.open {
            Open::Flying { .. } => None,
            Open::Queued { .. } if !state.supersedes_queued(now) => None,
            Open::Queued { .. } | Open::Nothing => state.purpose(now, round_trip, cell),
        };
        let (request, attempts) = match (purpose, state.open) {
            (Some(purpose), _) => {
                self.sequence = self.sequence.next();
                self.stats.requests = self.stats.requests.saturating_add(1);
                let request = state.compose(purpose, now, self.sequence, round_trip, cell);
                (request, 1)
            }
            (
                None,
                Open::Flying {
                    request, attempts, ..
                },
            ) => (state.repeat(request, cell), attempts.saturating_add(1)),
            (None, Open::Queued { request, .. }) => (state.repeat(request, cell), 2),
            (None, Open::Nothing) => return None,
        };
        if attempts > 1 {
            self.stats.retries = self.stats.retries.saturating_add(1);
        }
        let flying = Open::Flying {
            request,
            sent: now,
            attempts,
            due: now + self.trip.retry_after(attempts.saturating_sub(1)),
        };
        self.set_open(slot, state, flying);
        Some(request)
    }

    /// The slot's number in this stream, introduced if need be; `None` if the stream has no
    /// numbers left.
    fn key(
        &mut self,
        slot: Slot,
        state: &mut SlotState,
        introductions: &mut Vec<Introduction>,
    ) -> Option<KeyNumber> {
        state.introduce = false;
        if let Some(key) = state.key {
            return Some(key);
        }
        let Some(next) = self.next_key.checked_add(1) else {
            self.connected = false;
            self.next_key = 0;
            self.events.push_back(Event::Reconnect);
            return None;
        };
        let key = KeyNumber::new(self.next_key);
        self.next_key = next;
        self.keys.insert(key, slot);
        state.key = Some(key);
        introductions.push(Introduction {
            number: key,
            bucket: state.bucket.clone(),
        });
        Some(key)
    }
}
