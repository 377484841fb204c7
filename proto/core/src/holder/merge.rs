//! How a grant becomes spendable tokens: running totals, deadlines, and what is not believed.

use super::sizing;
use super::slot::{Brim, Lease, SlotState, Stage};
use crate::cell::{CELL_TERM_MAX, LeaseCell, Rise, Tick, floor_to_tick};
use crate::message::{Grant, HELD_MAX};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

impl SlotState {
    /// Merges a grant whose anchor was sent at `sent`; returns the tokens that became spendable.
    ///
    /// Totals only grow, so repeated and late grants change nothing but the deadline. What cannot
    /// be made spendable counts as returned at once: it never was in anyone's reach.
    pub(super) fn merge(
        &mut self,
        now: Timestamp,
        sent: Timestamp,
        grant: Grant,
        round_trip: Term,
        cell: &LeaseCell,
    ) -> Tokens {
        let Some(mut lease) = self.lease_of(grant, cell) else {
            return Tokens::ZERO;
        };
        let added = grant.granted.less(lease.granted);
        lease.granted = lease.granted.plus(added);
        let term = grant.term.min(CELL_TERM_MAX);
        // A lease of an earlier policy version is given no further term; how often to renew and
        // to send anchors still follows the term that it had.
        if term > Term::ZERO {
            lease.term = term;
        }
        let deadline = floor_to_tick(sent + term).max(lease.deadline);
        // A deadline of exactly now is past: spending needs an earlier tick.
        let usable = self.closing.is_none() && lease.stage != Stage::Released && deadline > now;
        let refused = if usable {
            self.put(now, &mut lease, added, deadline, cell)
        } else {
            added
        };
        lease.returned = lease.returned.plus(refused);
        self.owes_report |= !refused.is_zero();
        self.lease = Some(lease);
        self.brim = if grant.headroom == Term::ZERO {
            Brim::Far
        } else {
            Brim::At((now + grant.headroom).max(self.early_from))
        };

        let gained = added.minus(refused);
        if !gained.is_zero() {
            self.last_grant = gained;
            self.growth = (self.last_want + self.last_want).max(sizing::FIRST_WANT);
            self.refused = Tokens::ZERO;
            self.trimmed = false;
            cell.set_renew_at(sizing::renew_at(gained, self.demand.micro(), round_trip));
        }
        gained
    }

    /// The lease that a grant speaks of: the known one, or a new one that takes its place. `None`
    /// for a late echo of a lease whose totals are forgotten.
    fn lease_of(&mut self, grant: Grant, cell: &LeaseCell) -> Option<Lease> {
        if let Some(lease) = self.lease
            && lease.id == grant.lease
        {
            return Some(lease);
        }
        if grant.lease <= self.newest {
            return None;
        }
        // The old lease's rest is given up; its counters would be ignored from now on.
        self.end(cell);
        self.newest = grant.lease;
        Some(Lease {
            id: grant.lease,
            version: grant.version,
            granted: Tokens::ZERO,
            returned: Tokens::ZERO,
            reported: Tokens::ZERO,
            noticed: Tokens::ZERO,
            term: Term::ZERO,
            deadline: Timestamp::ZERO,
            stage: Stage::Ended,
        })
    }

    /// Puts `added` tokens and the deadline into the cell; returns the tokens that it refused.
    fn put(
        &mut self,
        now: Timestamp,
        lease: &mut Lease,
        added: Tokens,
        deadline: Timestamp,
        cell: &LeaseCell,
    ) -> Tokens {
        let rise = if deadline == lease.deadline {
            Rise::Within
        } else {
            self.rise(now, deadline)
        };
        let refused = if lease.stage == Stage::Live {
            cell.extend(added, Tick::at(deadline), rise)
        } else {
            let fits = added.min(HELD_MAX);
            let rise = self.rise(now, deadline);
            if cell.install(fits, Tick::at(deadline), rise).is_err() {
                // Ask again when the deadline can be later than all others.
                let until = self.deadline_max.as_nanos();
                let until = until.saturating_sub(lease.term.as_nanos());
                self.backoff = self.backoff.max(Timestamp::from_nanos(until));
                return added;
            }
            lease.stage = Stage::Live;
            added.minus(fits)
        };
        lease.deadline = deadline;
        self.deadline_max = self.deadline_max.max(deadline);
        refused
    }
}
