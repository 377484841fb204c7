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
                let urgent = self.is_urgent(now);
                let purpose = || self.purpose(now, round_trip, cell).is_some();
                now >= due || self.has_news(now) || (urgent && purpose())
            }
            Open::Nothing => self.purpose(now, round_trip, cell).is_some(),
        }
    }

    /// A queued wish is left alone, unless there is something that must not wait for its turn.
    pub(super) fn supersedes_queued(&self, now: Timestamp) -> bool {
        self.is_urgent(now) || self.has_news(now)
    }

    fn is_urgent(&self, now: Timestamp) -> bool {
        let patient = matches!(self.open, Open::Queued { patient, .. } if now < patient);
        self.closing.is_some() || self.owes_report || (self.is_too_dear() && !patient)
    }

    /// True if the queued wish insists on more than anyone who still waits: a dear caller has left,
    /// and cheaper ones must not wait for its price.
    pub(super) fn is_too_dear(&self) -> bool {
        let Open::Queued { request, .. } = self.open else {
            return false;
        };
        !self.awaited().is_zero() && request.least > self.dearest().max(Tokens::ONE)
    }

    /// True if more was spent or taken back than the last message said, and it is time to say so.
    ///
    /// As long as the authority counts it as outstanding, it may be just what keeps whoever is
    /// first in the queue from being served.
    fn has_news(&self, now: Timestamp) -> bool {
        let Open::Queued {
            request,
            patient,
            calm,
            ..
        } = self.open
        else {
            return false;
        };
        let Some(lease) = self.lease.filter(|l| l.stage != Stage::Released) else {
            return false;
        };
        let (spent, returned) = if request.lease == Some(lease.id) {
            (request.spent, request.returned)
        } else {
            (Tokens::ZERO, Tokens::ZERO)
        };
        let time = if self.is_dry() { patient } else { calm };
        lease.returned > returned || (lease.noticed > spent && now >= time)
    }

    /// True if nothing of a lease is left to spend, as of the last look.
    pub(super) fn is_dry(&self) -> bool {
        self.lease
            .is_some_and(|lease| lease.noticed + lease.returned >= lease.granted)
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
                Some(Stage::Released) => self.owes_again(now).then_some(Purpose::Release),
                None => matches!(self.open, Open::Queued { .. }).then_some(Purpose::Withdraw),
            };
        }
        let short = self.touched || self.awaited() > self.held(cell);
        if short && now >= self.backoff && !self.wish(round_trip, cell).is_zero() {
            return Some(Purpose::Ask);
        }
        match self.stage() {
            None => None,
            Some(Stage::Released) => self.owes_again(now).then_some(Purpose::Release),
            Some(Stage::Ended) => Some(Purpose::Release),
            Some(Stage::Live) if self.owes_report => Some(Purpose::Report),
            Some(Stage::Live) if self.idle(now) => self.when_idle(cell),
            Some(Stage::Live) => (now >= self.renewal_at()).then_some(Purpose::Ask),
        }
    }

    /// True if a release has to be said again, and a busy authority has had its pause.
    fn owes_again(&self, now: Timestamp) -> bool {
        self.owes_report && now >= self.backoff
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

    /// A request that goes out again: the same sequence and wish, with counters as of now.
    ///
    /// Counters are running totals, so a fresh one is never wrong; a stale one would have the
    /// authority extend a lease for tokens that are long spent.
    pub(super) fn repeat(&mut self, request: LeaseRequest, cell: &LeaseCell) -> LeaseRequest {
        let purpose = if request.release {
            Purpose::Release
        } else {
            Purpose::Ask
        };
        let named = self.lease.is_some_and(|l| request.lease == Some(l.id));
        if request.release && !named {
            return request;
        }
        match self.counters(purpose, cell) {
            (None, ..) => request,
            (lease, spent, returned) => LeaseRequest {
                lease,
                spent,
                returned,
                ..request
            },
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
