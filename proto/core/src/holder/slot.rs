//! One slot: its lease, its open request, and what its callers ask for.

use alloc::collections::BTreeMap;
use core::ops::Bound;

use super::demand::Demand;
use super::sizing;
use super::types::SlotSettings;
use crate::cell::{LeaseCell, Rise, Tick, floor_to_tick, next_tick};
use crate::id::{KeyNumber, LeaseId, PolicyVersion, Sequence};
use crate::key::BucketAddress;
use crate::message::{HELD_MAX, LeaseRequest};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// A lease's running totals. Spent is derived: what was granted, not returned, and is not in the
/// cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) version: PolicyVersion,
    pub(super) granted: Tokens,
    pub(super) returned: Tokens,
    /// The highest total reported spent, or about to be.
    pub(super) reported: Tokens,
    /// Spent as of the last look at demand.
    pub(super) noticed: Tokens,
    pub(super) term: Term,
    /// Rounded down to a tick, as the cell has it.
    pub(super) deadline: Timestamp,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The cell spends it.
    Live,
    /// Its tokens were taken out of the cell and count as returned; a late extension may add some.
    Ended,
    /// Ended, and the authority was or is being told so.
    Released,
}

/// The one request that may be open for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Open {
    Nothing,
    /// Sent, or to be sent as soon as there is a stream; unanswered.
    Flying {
        request: LeaseRequest,
        sent: Timestamp,
        attempts: u32,
        /// When to send it (again).
        due: Timestamp,
    },
    /// The authority has put the wish in its queue and will answer by a push.
    Queued {
        request: LeaseRequest,
        /// When to ask after it, in case the queue was lost with its owner.
        due: Timestamp,
        /// Until then it is left alone even if the cell runs dry: its turn may come soon.
        patient: Timestamp,
        /// Until then it is left alone while there are tokens to spend.
        calm: Timestamp,
        /// Anchors must flow each quarter of this.
        term: Term,
    },
}

/// How near the bucket is to being full, after which its refill is lost until somebody reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brim {
    /// It does not matter.
    Far,
    /// It will be by then.
    At(Timestamp),
    /// It is; the next spenders make a report worth while.
    Reached,
}

/// A series of early reports, begun after callers left the slot alone for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// None is under way.
    Off,
    /// The next spenders begin one.
    Watching,
    /// The last one was followed by a pause of this length.
    Paused(Term),
}

/// What a slot would tell the authority now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Report, and ask for tokens if any are wanted.
    Ask,
    /// Report what was returned.
    Report,
    /// End the lease with final counters.
    Release,
    /// Withdraw a queued wish that has no lease.
    Withdraw,
}

/// Callers that wait for tokens, by cost.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    costs: BTreeMap<Tokens, u64>,
    sum: Tokens,
}

impl Waiting {
    pub(super) fn add(&mut self, cost: Tokens) {
        let count = self.costs.entry(cost).or_insert(0);
        *count = count.saturating_add(1);
        self.sum += cost;
    }

    /// Does nothing if nobody with this cost waits.
    pub(super) fn remove(&mut self, cost: Tokens) {
        let Some(count) = self.costs.get_mut(&cost) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.costs.remove(&cost);
        }
        self.sum = self.sum.less(cost);
    }

    /// The sum of the costs that are at most `most`, which is nearly always all of them.
    fn sum_up_to(&self, most: Tokens) -> Tokens {
        let beyond = self.costs.range((Bound::Excluded(most), Bound::Unbounded));
        let beyond = beyond
            .map(|(cost, count)| Tokens::new(cost.get().saturating_mul(*count)))
            .sum();
        self.sum.less(beyond)
    }

    fn dearest_up_to(&self, most: Tokens) -> Tokens {
        let within = self.costs.range(..=most).next_back();
        within.map_or(Tokens::ZERO, |(cost, _)| *cost)
    }
}

#[derive(Debug)]
pub(super) struct SlotState {
    pub(super) bucket: BucketAddress,
    pub(super) settings: SlotSettings,
    /// Its number in the present stream.
    pub(super) key: Option<KeyNumber>,
    pub(super) lease: Option<Lease>,
    /// The newest lease ever seen here. Ids of one bucket's leases grow, so an older one is a
    /// late echo, and its totals are forgotten: it must not be taken for new.
    pub(super) newest: LeaseId,
    /// Answers to older requests belong to an earlier use of the slot.
    pub(super) first_sequence: Option<Sequence>,
    pub(super) open: Open,
    pub(super) demand: Demand,
    waiting: Waiting,
    /// Costs of callers that waited, counted as demand when the wait began: what is next seen as
    /// spent or refused is not counted again, up to this much.
    precounted: Tokens,
    /// Tokens refused since the last grant or refusal.
    pub(super) refused: Tokens,
    /// No deadline of the cell, in this use of the slot or an earlier one, is later.
    pub(super) deadline_max: Timestamp,
    /// The largest wish allowed without anyone waiting for it.
    pub(super) growth: Tokens,
    pub(super) last_want: Tokens,
    pub(super) last_grant: Tokens,
    /// When demand was last seen.
    pub(super) active: Timestamp,
    /// Nothing is asked for before this, after a refusal.
    pub(super) backoff: Timestamp,
    /// Renewals by term wait until this.
    pub(super) renew_from: Timestamp,
    /// When tokens may be expected, after the authority had none.
    pub(super) retry_at: Option<Timestamp>,
    /// The most that the bucket can grant at once, as far as is known.
    pub(super) least_max: Tokens,
    /// A spender asked for a renewal.
    pub(super) touched: bool,
    /// When the back-off is over, let spenders ask again.
    pub(super) rearms: bool,
    /// Tokens were taken back and the authority has not been told.
    pub(super) owes_report: bool,
    /// An idle lease was cut down to the warm floor.
    pub(super) trimmed: bool,
    /// When the bucket is full unless somebody reports.
    pub(super) brim: Brim,
    /// How far a series of early reports is.
    pub(super) early: Early,
    /// No early report before this.
    pub(super) early_from: Timestamp,
    /// Since closing began: forget the slot at this time, whatever the authority says.
    pub(super) closing: Option<Timestamp>,
    pub(super) timer: Option<Timestamp>,
    /// Its place in the list of slots with something to send.
    pub(super) listed: Option<u64>,
    /// Must be introduced even with nothing to say, so that pushes can reach it.
    pub(super) introduce: bool,
}

impl SlotState {
    pub(super) fn new(
        now: Timestamp,
        bucket: BucketAddress,
        settings: SlotSettings,
        cell: &LeaseCell,
    ) -> Self {
        Self {
            bucket,
            settings,
            key: None,
            lease: None,
            newest: LeaseId::default(),
            first_sequence: None,
            open: Open::Nothing,
            demand: Demand::new(now),
            waiting: Waiting::default(),
            precounted: Tokens::ZERO,
            refused: Tokens::ZERO,
            deadline_max: cell
                .view()
                .deadline
                .timestamp_ahead_of(now)
                .unwrap_or(Timestamp::ZERO),
            growth: sizing::FIRST_WANT,
            last_want: Tokens::ZERO,
            last_grant: Tokens::ZERO,
            active: now,
            backoff: Timestamp::ZERO,
            renew_from: Timestamp::ZERO,
            retry_at: None,
            least_max: HELD_MAX,
            touched: false,
            rearms: false,
            owes_report: false,
            trimmed: false,
            brim: Brim::Far,
            early: Early::Off,
            early_from: Timestamp::ZERO,
            closing: None,
            timer: None,
            listed: None,
            introduce: false,
        }
    }

    pub(super) fn stage(&self) -> Option<Stage> {
        self.lease.map(|lease| lease.stage)
    }

    /// Tokens that can be spent.
    pub(super) fn held(&self, cell: &LeaseCell) -> Tokens {
        match self.stage() {
            Some(Stage::Live) => cell.view().tokens,
            _ => Tokens::ZERO,
        }
    }

    /// How a deadline relates to those that the cell has had.
    pub(super) fn rise(&self, now: Timestamp, deadline: Timestamp) -> Rise {
        if floor_to_tick(now) >= self.deadline_max {
            Rise::Fresh
        } else if deadline > self.deadline_max {
            Rise::Above
        } else {
            Rise::Within
        }
    }

    pub(super) fn demand_per_second(&self) -> u64 {
        self.demand.per_second()
    }

    pub(super) fn waits(&mut self, now: Timestamp, cost: Tokens) {
        self.waiting.add(cost);
        self.precounted += cost;
        self.demand.sample(now, cost);
        self.active = now;
    }

    /// What callers wait for, those left out whose cost can never be granted.
    pub(super) fn awaited(&self) -> Tokens {
        self.waiting.sum_up_to(self.least_max)
    }

    /// The dearest single cost among them.
    pub(super) fn dearest(&self) -> Tokens {
        self.waiting.dearest_up_to(self.least_max)
    }

    pub(super) fn wait_over(&mut self, cost: Tokens) {
        self.waiting.remove(cost);
    }

    /// Counts what was spent and refused since the last look as demand.
    pub(super) fn observe(&mut self, now: Timestamp, cell: &LeaseCell) {
        let mut asked = cell.take_refused();
        self.refused += asked;
        if let Some(lease) = self.lease.as_mut()
            && lease.stage == Stage::Live
        {
            let spent = lease.granted.minus(lease.returned).less(cell.view().tokens);
            // At the deadline spenders may empty the cell without spending.
            if now < lease.deadline {
                asked += spent.less(lease.noticed);
            }
            lease.noticed = spent;
        }
        let known = asked.min(self.precounted);
        self.precounted = self.precounted.minus(known);
        if !asked.is_zero() || !self.awaited().is_zero() {
            self.active = now;
            self.trimmed = false;
        }
        self.demand.sample(now, asked.minus(known));
    }

    /// Ends a live lease whose deadline has passed.
    pub(super) fn expire(&mut self, now: Timestamp, cell: &LeaseCell) {
        if let Some(lease) = self.lease
            && lease.stage == Stage::Live
            && now >= lease.deadline
        {
            self.end(cell);
        }
    }

    /// Takes a live lease's tokens out of the spenders' reach and counts them as returned.
    pub(super) fn end(&mut self, cell: &LeaseCell) {
        let Some(lease) = self.lease.as_mut() else {
            return;
        };
        if lease.stage != Stage::Live {
            return;
        }
        // Above every deadline of the cell, so that nothing is ever put back.
        self.deadline_max = next_tick(self.deadline_max);
        lease.returned = lease.returned.plus(cell.clear(Tick::at(self.deadline_max)));
        lease.noticed = lease.granted.minus(lease.returned);
        lease.stage = Stage::Ended;
    }

    /// What callers are expected to spend of what is held: nothing while nobody comes.
    pub(super) fn need(&self, now: Timestamp) -> Tokens {
        if now >= self.active + sizing::CALM {
            return Tokens::ZERO;
        }
        sizing::target(self.demand.micro(), self.settings.horizon)
    }

    /// Cuts a live lease down to `keep`.
    pub(super) fn take_back(&mut self, keep: Tokens, cell: &LeaseCell) {
        if let Some(lease) = self.lease.as_mut()
            && lease.stage == Stage::Live
        {
            lease.returned = lease.returned.plus(cell.take_back(keep));
        }
    }

    /// Reports early when the bucket is full, since its refill is lost until somebody does.
    ///
    /// Only a holder that was left alone for a moment does so: what little is unreported then, and
    /// the first of what is spent when callers come back, each time after a longer pause. Under
    /// lasting load the usual renewals report soon enough.
    pub(super) fn watch_brim(&mut self, now: Timestamp, cell: &LeaseCell) {
        match self.brim {
            Brim::At(at) if now >= at => self.brim = Brim::Reached,
            Brim::Reached => {}
            Brim::Far | Brim::At(_) => return,
        }
        let quiet = matches!(self.open, Open::Nothing) && self.closing.is_none();
        let Some(lease) = self.lease.filter(|l| quiet && l.stage == Stage::Live) else {
            return;
        };
        let calm = now >= self.active + sizing::CALM;
        if calm && self.early != Early::Watching {
            self.early = Early::Watching;
            let held = self.held(cell);
            cell.set_renew_at(held.less(sizing::early_part(held)));
            cell.rearm();
        }
        let pause = match self.early {
            Early::Off => return,
            Early::Watching => sizing::EARLY_PAUSE,
            Early::Paused(pause) => pause + pause,
        };
        let unreported = lease.noticed.less(lease.reported);
        let worth = if calm {
            Tokens::ONE
        } else {
            sizing::early_part(self.held(cell))
        };
        if unreported < worth || self.owes_report {
            return;
        }
        self.owes_report = true;
        self.brim = Brim::Far;
        if calm {
            return;
        }
        self.early_from = now + pause;
        self.early = if pause > sizing::EARLY_PAUSE_MAX {
            Early::Off
        } else {
            Early::Paused(pause)
        };
    }

    pub(super) fn policy_changed(&mut self, settings: SlotSettings) {
        self.settings = settings;
        self.backoff = Timestamp::ZERO;
        self.least_max = HELD_MAX;
        self.retry_at = None;
    }

    /// Lets spenders ask again, once a refusal's pause is over or if there is enough after all.
    pub(super) fn rearm_if_satisfied(
        &mut self,
        now: Timestamp,
        round_trip: Term,
        cell: &LeaseCell,
    ) {
        let quiet = matches!(self.open, Open::Nothing) && self.closing.is_none();
        if !quiet || now < self.backoff {
            return;
        }
        if self.rearms {
            self.rearms = false;
            cell.rearm();
        }
        if self.touched && self.wish(round_trip, cell).is_zero() {
            self.touched = false;
            let held = self.held(cell);
            cell.set_renew_at(match self.brim {
                Brim::Reached if self.early != Early::Off => held.less(sizing::early_part(held)),
                _ => held.scale_down(1, 2),
            });
            cell.rearm();
        }
    }

    /// When to look at the slot next without an input.
    pub(super) fn next_timer(&self, now: Timestamp, connected: bool) -> Option<Timestamp> {
        let live = self.lease.filter(|lease| lease.stage == Stage::Live);
        let wishes = self.touched || self.rearms || self.owes_report || !self.awaited().is_zero();
        let request = match self.open {
            Open::Flying { due, .. } | Open::Queued { due, .. } => connected.then_some(due),
            Open::Nothing => wishes.then_some(self.backoff),
        };
        let report = match self.open {
            Open::Queued { patient, .. } if self.is_dry() || self.is_too_dear() => Some(patient),
            // Spending gives no sign before the cell is dry: look at it now and then.
            Open::Queued { calm, term, .. } if live.is_some() => Some(if now < calm {
                calm
            } else {
                now + super::anchors::pause(term)
            }),
            _ => None,
        };
        let keeping = connected && matches!(self.open, Open::Nothing) && self.closing.is_none();
        let kept = live.filter(|_| keeping);
        let brim = match self.brim {
            _ if !matches!(self.open, Open::Nothing) => None,
            Brim::At(at) => Some(at),
            Brim::Reached => Some(self.active + sizing::CALM),
            _ => None,
        };
        let times = [
            brim.filter(|_| live.is_some() && connected),
            live.map(|lease| lease.deadline),
            self.closing,
            request,
            report.filter(|_| connected),
            kept.filter(|_| !self.idle(now)).map(|_| self.renewal_at()),
            kept.map(|_| self.active + self.settings.idle_return),
            // Spending gives no sign: to know whether callers have left, look.
            kept.map(|_| self.active + sizing::CALM),
        ];
        // What is due already was listed, or waits for something else.
        times.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// What must hold after every input, whatever the authority says.
    pub(super) fn check(&self, cell: &LeaseCell) {
        let Some(lease) = self.lease else { return };
        assert!(
            lease.reported + lease.returned <= lease.granted,
            "a lease accounts for no more than it was granted: {lease:?}"
        );
        if lease.stage == Stage::Live {
            assert!(
                cell.view().tokens + lease.returned <= lease.granted,
                "a cell holds no more than its lease was granted: {lease:?}"
            );
            assert!(lease.deadline <= self.deadline_max);
        }
    }
}
