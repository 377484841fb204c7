//! What a slot has to say, and its words.

use super::sizing;
use super::slot::{Open, Purpose, SlotState, Stage};
use crate::cell::LeaseCell;
use crate::id::{KeyNumber, LeaseId, Sequence};
use crate::message::LeaseRequest;
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

impl SlotState {
    /// True if a message should be made now.
    pub(super) fn due(&self, now: Timestamp, round_trip: Term, cell: &LeaseCell) -> bool {
        match self.open {
            Open::Flying { due, .. } => now >= due,
            Open::Queued { due, .. } => {
                let news = self.supersedes_queued(now);
                now >= due || (news && self.purpose(now, round_trip, cell).is_some())
            }
            Open::Nothing => self.purpose(now, round_trip, cell).is_some(),
        }
    }

    /// A queued wish is left alone, unless there is something that must not wait for its turn.
    ///
    /// One such thing is the last of the held tokens spent: as long as they count as outstanding,
    /// they may be just what keeps whoever is first in the queue from being served.
    pub(super) fn supersedes_queued(&self, now: Timestamp) -> bool {
        let ran_dry = match self.open {
            Open::Queued { patient, .. } => now >= patient && self.touched,
            Open::Nothing | Open::Flying { .. } => false,
        };
        let news = ran_dry && self.lease.is_some_and(|lease| lease.noticed > lease.told);
        self.closing.is_some() || self.owes_report || news
    }

    /// The one place that decides what to say when no request is open.
    pub(super) fn purpose(
        &self,
        now: Timestamp,
        round_trip: Term,
        cell: &LeaseCell,
    ) -> Option<Purpose> {
        if self.closing.is_some() {
            return match self.stage() {
                Some(Stage::Live | Stage::Ended) => Some(Purpose::Release),
                Some(Stage::Released) => self.owes_report.then_some(Purpose::Release),
                None => matches!(self.open, Open::Queued { .. }).then_some(Purpose::Withdraw),
            };
        }
        let short = self.touched || self.awaited() > self.held(cell);
        if short && now >= self.backoff && !self.wish(round_trip, cell).is_zero() {
            return Some(Purpose::Ask);
        }
        match self.stage() {
            None => None,
            Some(Stage::Released) => self.owes_report.then_some(Purpose::Release),
            Some(Stage::Ended) => Some(Purpose::Release),
            Some(Stage::Live) if self.owes_report => Some(Purpose::Report),
            Some(Stage::Live) if self.idle(now) => self.when_idle(cell),
            Some(Stage::Live) => (now >= self.renewal_at()).then_some(Purpose::Ask),
        }
    }

    fn when_idle(&self, cell: &LeaseCell) -> Option<Purpose> {
        let floor = self.settings.warm_floor;
        if floor.is_zero() {
            return Some(Purpose::Release);
        }
        let lease = self.lease?;
        let news = self.held(cell) > floor || lease.noticed > lease.reported;
        (news && !self.trimmed).then_some(Purpose::Report)
    }

    /// True if nobody has asked for a while.
    pub(super) fn idle(&self, now: Timestamp) -> bool {
        self.awaited().is_zero() && now >= self.active + self.settings.idle_return
    }

    /// When a live lease is renewed for its term alone.
    pub(super) fn renewal_at(&self) -> Timestamp {
        let Some(lease) = self.lease else {
            return Timestamp::MAX;
        };
        let salt = lease.id.counter ^ lease.id.epoch.get().rotate_left(32);
        let ahead = lease
            .term
            .saturating_sub(sizing::renew_after(lease.term, salt));
        let at = lease.deadline.as_nanos().saturating_sub(ahead.as_nanos());
        Timestamp::from_nanos(at).max(self.renew_from)
    }

    /// Tokens to ask for now.
    pub(super) fn wish(&self, round_trip: Term, cell: &LeaseCell) -> Tokens {
        let horizon = self.settings.horizon.max(round_trip + round_trip);
        let target = sizing::target(self.demand.micro(), horizon);
        let pressing = self.awaited().max(self.refused.min(self.settings.cost_max));
        sizing::want(target, pressing, self.held(cell), self.growth)
    }

    /// The request for `purpose`, with counters as of now.
    pub(super) fn compose(
        &mut self,
        purpose: Purpose,
        now: Timestamp,
        sequence: Sequence,
        round_trip: Term,
        cell: &LeaseCell,
    ) -> LeaseRequest {
        let mut want = Tokens::ZERO;
        match purpose {
            Purpose::Ask => {
                if now >= self.backoff {
                    want = self.wish(round_trip, cell);
                }
            }
            Purpose::Report if self.idle(now) => {
                self.take_back(self.settings.warm_floor, cell);
                self.trimmed = true;
            }
            Purpose::Report | Purpose::Withdraw => {}
            Purpose::Release => self.end(cell),
        }
        if !want.is_zero() {
            self.last_want = want;
        }
        let useful = self.dearest().less(self.held(cell));
        let (lease, spent, returned) = self.counters(purpose, cell);
        self.owes_report = false;
        self.first_sequence.get_or_insert(sequence);
        LeaseRequest {
            // The stream's number is filled in at each sending.
            key: KeyNumber::default(),
            sequence,
            lease,
            spent,
            returned,
            want,
            least: useful.min(self.least_max).max(Tokens::ONE).min(want),
            demand: self.demand_per_second(),
            release: matches!(purpose, Purpose::Release | Purpose::Withdraw),
        }
    }

    /// The lease's running totals; from here on what they count as spent can never come back.
    fn counters(
        &mut self,
        purpose: Purpose,
        cell: &LeaseCell,
    ) -> (Option<LeaseId>, Tokens, Tokens) {
        let Some(lease) = self.lease.as_mut() else {
            return (None, Tokens::ZERO, Tokens::ZERO);
        };
        lease.told = lease.noticed;
        let given = lease.granted.minus(lease.returned);
        match lease.stage {
            Stage::Live if given.less(cell.view().tokens) > lease.reported => {
                // Without a mark left the earlier total stands until the deadline has risen.
                if let Some(left) = cell.report() {
                    lease.reported = given.minus(left);
                }
            }
            Stage::Live => {}
            Stage::Ended | Stage::Released => lease.reported = given,
        }
        if purpose == Purpose::Release {
            lease.stage = Stage::Released;
        } else if lease.stage == Stage::Released {
            return (None, Tokens::ZERO, Tokens::ZERO);
        }
        (Some(lease.id), lease.reported, lease.returned)
    }
}
