//! Callers: they spend through the shipped cell, wait, give up, and drain what is left.

use quota_core::cell::{RollBack, Spend, Tick};
use quota_core::holder::{Cells, Input, Slot};
use quota_core::tokens::Tokens;

use super::invariants::PAST_DEADLINE;
use super::{Event, World};
use crate::client::{Use, Waiter};
use crate::coverage::Sometimes;

/// A coarse tick of the cell, in nanoseconds.
const TICK: u64 = 1 << 22;

impl World {
    pub(super) fn call(&mut self, client: usize, bucket: usize, slot: Slot) {
        let cost = Tokens::new(self.random.between(1, self.shape.cost_max));
        if self.random.chance(self.shape.pairs_per_mille) {
            return self.call_pair(client, bucket, slot, cost);
        }
        if self.spend(client, bucket, slot, cost) {
            return;
        }
        if self.clients[client].slot_of(bucket) != Some(slot) {
            return;
        }
        let patient = self.random.chance(500) && self.clients[client].waiters.len() < 100;
        if !patient {
            self.clients[client].table.cell(slot).refuse(cost);
            return;
        }
        let patience = 1 + self.random.below(self.shape.term * 2);
        self.wait(client, bucket, slot, cost, patience);
    }

    pub(super) fn wait(
        &mut self,
        client: usize,
        bucket: usize,
        slot: Slot,
        cost: Tokens,
        patience: u64,
    ) {
        let (since, until) = (self.time, self.time + patience);
        self.clients[client].waiters.push(Waiter {
            bucket,
            slot,
            cost,
            since,
            until,
        });
        let life = self.clients[client].life;
        self.at(until, Event::GiveUp { client, life });
        self.client_input(client, Input::Waiting { slot, cost });
    }

    pub(super) fn give_up(&mut self, client: usize, life: u64) {
        if life != self.clients[client].life {
            return;
        }
        let now = self.time;
        self.drop_waiters(client, |w| w.until <= now);
    }

    pub(super) fn drop_waiters(&mut self, client: usize, gone: impl Fn(&Waiter) -> bool) {
        let waiters = std::mem::take(&mut self.clients[client].waiters);
        let (out, kept): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|w| gone(w));
        self.clients[client].waiters = kept;
        for waiter in out {
            self.hit(Sometimes::WaiterTimedOut);
            self.clients[client]
                .table
                .cell(waiter.slot)
                .refuse(waiter.cost);
            let (slot, cost) = (waiter.slot, waiter.cost);
            self.client_input(client, Input::WaitOver { slot, cost });
        }
    }

    /// How long a spender is preempted between its debit and its clock reading.
    fn preemption(&mut self) -> u64 {
        if self.healed || !self.random.chance(self.shape.preempted_per_mille) {
            return 0;
        }
        self.random.below(self.shape.term * 2)
    }

    /// One request through the shipped spend path; true if it was admitted.
    pub(super) fn spend(&mut self, client: usize, bucket: usize, slot: Slot, cost: Tokens) -> bool {
        let preempted = self.preemption();
        self.spend_reading(client, bucket, slot, cost, self.time + preempted)
    }

    /// As [`World::spend`], with the clock read at the given true time: after the debit in the
    /// shipped order, before it in a sabotaged world.
    fn spend_reading(
        &mut self,
        client: usize,
        bucket: usize,
        slot: Slot,
        cost: Tokens,
        read: u64,
    ) -> bool {
        let node = &self.clients[client];
        let (before, clock, time) = (node.table.cell(slot).view(), node.clock, self.time);
        let (preempted, early) = (read > time, read < time);
        let now = Tick::at(clock.read(time));
        let outcome = node
            .table
            .cell(slot)
            .spend(cost, || Tick::at(clock.read(read)));
        let (admitted, renew) = match outcome {
            Spend::Admitted { renew, .. } => (true, renew),
            Spend::Exhausted { renew } => (false, renew),
            Spend::Ended { renew } => {
                self.hit(Sometimes::SpendEnded);
                let late = before.live(now) && preempted;
                self.coverage.hit_if(late, Sometimes::PreemptedPastDeadline);
                self.coverage
                    .hit_if(before.renewing, Sometimes::ExpiryDuringRenewal);
                (false, renew)
            }
        };
        if admitted {
            let last = before.deadline.ahead_of(now) == 1;
            self.coverage.hit_if(last, Sometimes::DrainedAtLastTick);
            if !early && !before.live(now) {
                self.fail(PAST_DEADLINE, format!("{before:?} at {now:?}"));
            }
            self.trace.say(time, || {
                format!("holder {client}: admits {cost} of bucket {bucket}")
            });
            self.admit(bucket, cost);
        }
        if renew {
            self.client_input(client, Input::Touched { slot });
        }
        admitted
    }

    /// Spenders of a sabotaged world that read the clock when their process was paused, and debit
    /// when it goes on.
    pub(super) fn spend_late(&mut self, client: usize, life: u64, read: u64) {
        if life != self.clients[client].life || !self.clients[client].alive {
            return;
        }
        for place in 0..self.clients[client].uses.len() {
            let Use::Bucket(bucket) = self.clients[client].uses[place] else {
                continue;
            };
            let slot = Slot::new(u32::try_from(place).expect("small"));
            while self.failure.is_none()
                && self.spend_reading(client, bucket, slot, Tokens::ONE, read)
            {}
        }
    }

    /// A request that two buckets must admit: debit both, one clock reading, all or nothing. Every
    /// outcome that says `renew` is passed on to the machine.
    fn call_pair(&mut self, client: usize, bucket: usize, slot: Slot, cost: Tokens) {
        let other = (bucket + 1) % self.buckets.len();
        let Some(second) = self.clients[client].slot_of(other) else {
            return;
        };
        let places = [slot, second];
        let node = &self.clients[client];
        let debits = places.map(|place| node.table.cell(place).debit(cost));
        let now = Tick::at(self.client_now(client));
        let mut receipts = Vec::new();
        let mut touched = Vec::new();
        for (place, debit) in places.into_iter().zip(debits) {
            let renew = match debit {
                Ok(debit) => match node.table.cell(place).confirm(debit, now) {
                    Ok(receipt) => {
                        receipts.push((place, receipt));
                        debit.renew()
                    }
                    Err(ended) => ended.renew,
                },
                Err(exhausted) => exhausted.renew,
            };
            if renew {
                touched.push(place);
            }
        }
        if receipts.len() == 2 {
            self.admit(bucket, cost);
            self.admit(other, cost);
        } else if !receipts.is_empty() {
            self.clients[client].receipts.extend(receipts);
            let life = self.clients[client].life;
            let late = !self.random.chance(700);
            let delay = if late {
                self.random.below(self.shape.term)
            } else {
                0
            };
            self.after(delay, Event::RollBack { client, life });
        }
        for slot in touched {
            self.client_input(client, Input::Touched { slot });
        }
    }

    pub(super) fn roll_back_late(&mut self, client: usize, life: u64) {
        if life != self.clients[client].life {
            return;
        }
        for (slot, receipt) in std::mem::take(&mut self.clients[client].receipts) {
            match self.clients[client].table.cell(slot).roll_back(receipt) {
                RollBack::Restored => self.hit(Sometimes::RolledBack),
                RollBack::Lost => self.hit(Sometimes::RollBackLost),
            }
        }
        self.check_after_event();
    }

    pub(super) fn plan_drain(&mut self, client: usize, slot: Slot) {
        let before = self.random.below(2 * TICK);
        let node = &self.clients[client];
        let Some(lease) = node.holder.lease(slot) else {
            return;
        };
        let (life, end) = (node.life, node.clock.moment(lease.deadline));
        self.at(
            end.saturating_sub(before),
            Event::Drain { client, life, slot },
        );
    }

    /// A hoarder drains its lease in the last ticks, unless it was extended.
    pub(super) fn drain(&mut self, client: usize, life: u64, slot: Slot) {
        let node = &self.clients[client];
        let place = usize::try_from(slot.index()).expect("small");
        let Use::Bucket(bucket) = node.uses[place] else {
            return;
        };
        let Some(lease) = node.holder.lease(slot) else {
            return;
        };
        if life != node.life || lease.deadline.since(self.client_now(client)).as_nanos() > 2 * TICK
        {
            return;
        }
        for _ in 0..2_000 {
            if self.failure.is_some() || !self.spend(client, bucket, slot, Tokens::ONE) {
                return;
            }
        }
    }
}
