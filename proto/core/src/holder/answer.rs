//! What the machine makes of the authority's answers.

use super::Holder;
use super::anchors;
use super::slot::{Open, SlotState, Stage};
use super::types::{Cause, Cells, Event, Slot};
use crate::cell::LeaseCell;
use crate::id::MessageNumber;
use crate::message::{Answer, LeaseRequest, Refusal, Status};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// The least pause after an answer that brought nothing, so that no pair of machines spins.
const PAUSE_MIN: Term = Term::from_millis(100);
/// The least time between two renewals that only keep a lease alive.
const RENEWAL_PAUSE_MIN: Term = Term::from_millis(10);
/// The longest pause that a busy authority can ask for.
const PAUSE_MAX: Term = Term::from_seconds(30);
/// How long a policy that the authority does not know is left alone.
const UNKNOWN_PAUSE: Term = Term::from_seconds(1);
/// A queued wish whose holder ran dry is left alone for this long: on a scarce hot key the next
/// chunk comes sooner, and a message for each would double the traffic.
const QUEUE_PATIENCE: Term = Term::from_millis(250);
/// A queued wish is asked after this much later than its promised turn, or than a term if that is
/// sooner: a push that got lost, or was too old to be believed, is not waited for in vain.
const QUEUE_SLACK: Term = Term::from_seconds(2);
/// However short the term.
const QUEUE_WAIT_MIN: Term = Term::from_seconds(1);

impl Holder {
    pub(super) fn answer(
        &mut self,
        now: Timestamp,
        anchor: MessageNumber,
        answer: Answer,
        cells: &impl Cells,
    ) {
        let Some(sent) = self.anchors.sent_at(anchor) else {
            self.stats.answers_dropped = self.stats.answers_dropped.saturating_add(1);
            return;
        };
        let Some(slot) = self.keys.get(&answer.key).copied() else {
            self.stats.answers_dropped = self.stats.answers_dropped.saturating_add(1);
            return;
        };
        self.visit(now, slot, cells, |holder, state, cell| {
            let known = state.first_sequence.is_some_and(|first| {
                first <= answer.sequence && answer.sequence <= holder.sequence
            });
            if !known {
                holder.stats.answers_dropped = holder.stats.answers_dropped.saturating_add(1);
                return;
            }
            holder.take(now, slot, state, cell, sent, answer);
        });
    }

    fn take(
        &mut self,
        now: Timestamp,
        slot: Slot,
        state: &mut SlotState,
        cell: &LeaseCell,
        sent: Timestamp,
        answer: Answer,
    ) {
        let round_trip = self.trip.smoothed();
        let mut gained = Tokens::ZERO;
        if let Some(grant) = answer.grant {
            gained = state.merge(now, sent, grant, round_trip, cell);
        }
        if !gained.is_zero() {
            state.retry_at = None;
            self.stats.granted += gained;
            let version = state.lease.map(|lease| lease.version).unwrap_or_default();
            self.events.push_back(Event::Wake { slot, version });
        }
        if let Status::Recall { keep } = answer.status {
            // Told again even if there was nothing to take: the authority waits for it.
            let keep = keep.min(state.need(now)).max(state.awaited());
            state.take_back(keep, cell);
            state.owes_report = true;
            return;
        }
        let request = match state.open {
            Open::Flying {
                request,
                sent,
                attempts,
                ..
            } if request.sequence == answer.sequence => {
                if attempts == 1 {
                    self.trip.sample(now.since(sent));
                }
                request
            }
            Open::Queued { request, .. } if request.sequence == answer.sequence => request,
            _ => return,
        };
        match answer.status {
            Status::Queued { retry_after } => {
                let until = now + retry_after;
                state.retry_at = Some(until);
                let term = state.lease.map_or(state.settings.term, |lease| lease.term);
                let due = now + retry_after.min(term.max(QUEUE_WAIT_MIN)) + QUEUE_SLACK;
                let patient = now + QUEUE_PATIENCE;
                let calm = now + anchors::pause(term).max(QUEUE_PATIENCE);
                self.set_open(
                    slot,
                    state,
                    Open::Queued {
                        request,
                        due,
                        patient,
                        calm,
                        term,
                    },
                );
                // The next spender who finds the cell dry says so.
                state.touched = false;
                cell.set_renew_at(Tokens::ZERO);
                cell.rearm();
                let cause = Cause::Exhausted { until };
                self.events.push_back(Event::Refused { slot, cause });
            }
            Status::Refused(Refusal::UnknownKey) => self.reintroduce(now, slot, state, request),
            Status::Done | Status::Refused(_) | Status::Recall { .. } => {
                self.set_open(slot, state, Open::Nothing);
                state.touched = false;
                let heard = !matches!(answer.status, Status::Refused(Refusal::Busy { .. }));
                // What a busy authority did not take in has to be said again.
                state.owes_report |= request.release && !heard;
                if request.release && !state.owes_report {
                    forget_released(state, request);
                }
                if let Status::Refused(refusal) = answer.status {
                    self.refused(now, slot, state, refusal);
                } else if gained.is_zero() && !request.want.is_zero() {
                    pause(now, state, PAUSE_MIN.max(self.trip.retry_after(0)));
                }
                if let Some(lease) = state.lease {
                    let pause = lease.term.scale_down(1, 8).max(RENEWAL_PAUSE_MIN);
                    state.renew_from = now + pause;
                }
            }
        }
    }

    fn refused(&mut self, now: Timestamp, slot: Slot, state: &mut SlotState, refusal: Refusal) {
        let (cause, wait) = match refusal {
            // Both are over with the next policy set.
            Refusal::UnknownPolicy | Refusal::KeyMismatch { .. } => {
                (Cause::UnknownPolicy, UNKNOWN_PAUSE)
            }
            Refusal::CostAboveCapacity { capacity } => {
                state.least_max = capacity;
                (Cause::CostAboveCapacity { capacity }, PAUSE_MIN)
            }
            Refusal::Busy { retry_after } => {
                let wait = retry_after.clamp(PAUSE_MIN, PAUSE_MAX);
                (Cause::Busy { until: now + wait }, wait)
            }
            Refusal::UnknownKey => return,
        };
        pause(now, state, wait);
        self.events.push_back(Event::Refused { slot, cause });
    }

    /// The authority forgot the key's number: the same request goes out under a new one.
    fn reintroduce(
        &mut self,
        now: Timestamp,
        slot: Slot,
        state: &mut SlotState,
        request: LeaseRequest,
    ) {
        if let Some(key) = state.key.take() {
            self.keys.remove(&key);
        }
        let attempts = match state.open {
            Open::Flying { attempts, .. } => attempts,
            _ => 0,
        };
        // At once, unless that was tried already.
        let due = if attempts <= 1 {
            now
        } else {
            now + self.trip.retry_after(attempts)
        };
        let again = Open::Flying {
            request,
            sent: now,
            attempts: attempts.max(1),
            due,
        };
        self.set_open(slot, state, again);
    }
}

fn pause(now: Timestamp, state: &mut SlotState, wait: Term) {
    state.backoff = state.backoff.max(now + wait);
    state.refused = Tokens::ZERO;
    state.rearms = true;
}

/// A released lease's totals are no longer needed: its id is the newest seen, and late grants of
/// it are dropped by that.
fn forget_released(state: &mut SlotState, request: LeaseRequest) {
    let over = state
        .lease
        .is_some_and(|lease| lease.stage == Stage::Released && request.lease == Some(lease.id));
    if over {
        state.lease = None;
    }
}
