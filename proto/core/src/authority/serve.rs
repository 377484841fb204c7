//! Deciding a request for tokens, now or when its turn comes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::lease::Lease;
use super::queue::{Queue, Waiter};
use super::{Authority, Effect, saturate, sizing};
use crate::id::LeaseId;
use crate::message::{HELD_MAX, LeaseRequest, Refusal, Status};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// A request whose turn comes within this is not told that it waits: the grant is the answer, and
/// comes before its holder would ask again.
const QUIET_WAIT: Term = Term::from_millis(300);

impl Authority {
    /// Grants at once if nobody waits and there is enough, queues otherwise.
    pub(super) fn ask(
        &mut self,
        now: Timestamp,
        slot: u32,
        holder: u32,
        request: &LeaseRequest,
        effects: &mut Vec<Effect>,
    ) {
        let policy = self.buckets.get(slot).policy;
        let incarnation = self.holders.get(holder).incarnation;
        let refusal = self.refusal(slot, request.least.min(request.want));
        if let Some(refusal) = refusal {
            self.forget_wish(slot, incarnation);
            let stats = &mut self.policies.get_mut(policy).stats;
            stats.refused = stats.refused.saturating_add(1);
            return self.refuse(holder, request, refusal, effects);
        }
        let waiter = self.waiter_of(now, holder, request);
        let bucket = self.buckets.get(slot);
        let alone = bucket
            .queue
            .as_ref()
            .is_none_or(|q| q.is_empty() || (q.len() == 1 && q.of(incarnation).is_some()));
        if alone && let Some(tokens) = self.amount(now, slot, &waiter) {
            self.forget_wish(slot, incarnation);
            return self.grant(now, slot, &waiter, tokens, effects);
        }
        let stats = &mut self.policies.get_mut(policy).stats;
        stats.queued = stats.queued.saturating_add(1);
        self.enqueue(now, slot, holder, request, effects);
    }

    /// Why a wish can never be granted, if so.
    fn refusal(&self, slot: u32, least: Tokens) -> Option<Refusal> {
        let bucket = self.buckets.get(slot);
        if !self.policies.get(bucket.policy).is_current() {
            return Some(Refusal::UnknownPolicy);
        }
        let capacity = self.limit_of(slot).cost_max();
        (least > capacity).then_some(Refusal::CostAboveCapacity { capacity })
    }

    fn waiter_of(&self, now: Timestamp, holder: u32, request: &LeaseRequest) -> Waiter {
        let want = request.want.min(HELD_MAX);
        let known = self.holders.get(holder);
        Waiter {
            incarnation: known.incarnation,
            holder,
            stream: known.stream.expect("a request comes on a stream"),
            number: request.key,
            sequence: request.sequence,
            lease: request.lease,
            want,
            least: request.least.clamp(Tokens::ONE, want.max(Tokens::ONE)),
            demand: saturate(request.demand),
            since: now,
            served: Timestamp::ZERO,
        }
    }

    /// Puts a request into the queue, or back in its place, and says when its turn may come.
    pub(super) fn enqueue(
        &mut self,
        now: Timestamp,
        slot: u32,
        holder: u32,
        request: &LeaseRequest,
        effects: &mut Vec<Effect>,
    ) {
        let mut waiter = self.waiter_of(now, holder, request);
        // A lease ends a fixed time after its last grant.
        let leases = self.buckets.get(slot).leases.as_slice().iter();
        let own = leases.filter(|l| l.holder == holder);
        waiter.served = own.map(|l| l.reclaim_at).max().unwrap_or_default();
        let policy = self.policies.get(self.buckets.get(slot).policy);
        let horizon = policy.settings().horizon_for(self.limit_of(slot));
        let term_max = policy.settings().term_max();
        let limit = *self.limit_of(slot);
        let bucket = self.buckets.get_mut(slot);
        let idle = bucket.queue.as_ref().is_none_or(|queue| queue.is_empty());
        // Who waits for a record alone waits for no tokens.
        if !idle || bucket.ledger.takeable(&limit) < waiter.want {
            bucket.scarce.note(now, idle, horizon);
        }
        let queue = bucket.queue.get_or_insert_with(Box::<Queue>::default);
        let before = queue.of(waiter.incarnation).map(|known| known.since);
        let again = before.is_some();
        match before {
            Some(since) => waiter.since = since,
            None => self.waiting = self.waiting.saturating_add(1),
        }
        queue.put(waiter);
        let place = queue.place_of(waiter.incarnation);
        let retry_after = self.wait_for(now, slot, place);
        // Nor longer than its anchor stays young enough to date a grant by.
        let quiet = QUIET_WAIT.min(term_max.scale_down(1, 4));
        if retry_after <= quiet && !again && !self.is_blocked(slot) {
            return;
        }
        let grant = request
            .lease
            .and_then(|lease| self.date_own(now, slot, holder, lease));
        let status = Status::Queued { retry_after };
        self.answer(
            holder,
            request.key,
            request.sequence,
            grant,
            status,
            effects,
        );
    }

    fn date_own(
        &mut self,
        now: Timestamp,
        slot: u32,
        holder: u32,
        lease: LeaseId,
    ) -> Option<crate::message::Grant> {
        let leases = self.buckets.get(slot).leases.as_slice();
        leases
            .iter()
            .find(|l| l.id == lease && l.holder == holder)?;
        self.date(now, slot, lease)
    }

    /// True if the first in the queue cannot be served before somebody reports: the tokens that it
    /// needs are out. Those behind it must then know that they wait, and report what they spend.
    fn is_blocked(&self, slot: u32) -> bool {
        let bucket = self.buckets.get(slot);
        let front = bucket.queue.as_ref().and_then(|queue| queue.at(0));
        front.is_some_and(|front| {
            let refilled = bucket.ledger.time_until(front.least, self.limit_of(slot));
            front.least > self.reach(slot) || refilled.is_none()
        })
    }

    /// How long until the waiting request at `place` is served, counting its own serving and those
    /// before it as the chunks that they will be.
    fn wait_for(&self, now: Timestamp, slot: u32, place: usize) -> Term {
        let bucket = self.buckets.get(slot);
        let policy = self.policies.get(bucket.policy);
        let limit = &policy.class(bucket.class).limit;
        let chunk = sizing::equal_serving(limit, policy.settings(), self.claimants(slot));
        let waiters = bucket.queue.iter().flat_map(|queue| queue.iter());
        let goal = waiters
            .take(place.saturating_add(1))
            .map(|w| chunk.min(w.want).max(w.least))
            .sum();
        match bucket.ledger.time_until(goal, limit) {
            Some(term) => term,
            None => limit.rate().time_for(goal).max(
                self.next_event(slot)
                    .since(now)
                    .min(self.config.drift.stretch(policy.settings().term_max())),
            ),
        }
    }

    /// Holders that want tokens of this bucket: those with demand and those that wait.
    fn claimants(&self, slot: u32) -> u64 {
        let bucket = self.buckets.get(slot);
        let claiming = bucket
            .leases
            .as_slice()
            .iter()
            .filter(|l| l.demand() > 0)
            .count();
        u64::try_from(claiming.max(bucket.waiting())).unwrap_or(u64::MAX)
    }

    /// When the ledger changes by itself other than by refill.
    fn next_event(&self, slot: u32) -> Timestamp {
        let bucket = self.buckets.get(slot);
        let ledger = &bucket.ledger;
        let ghost = if ledger.ghost.is_zero() {
            Timestamp::MAX
        } else {
            ledger.ghost_end
        };
        bucket.leases.next_reclaim().min(ghost)
    }

    /// How many tokens a request gets now; `None` if it must wait.
    fn amount(&mut self, now: Timestamp, slot: u32, waiter: &Waiter) -> Option<Tokens> {
        let quantum = self.quantum(now, slot, waiter);
        let bucket = self.buckets.get_mut(slot);
        let policy = self.policies.get(bucket.policy);
        let settings = policy.settings();
        let limit = &policy.class(bucket.class).limit;
        let ledger = &bucket.ledger;
        let cap = sizing::live_cap(ledger, limit, settings);
        let waiting = u64::try_from(bucket.waiting())
            .unwrap_or(u64::MAX)
            .saturating_sub(1);
        let fair = sizing::fair_hold(waiter.holder, &bucket.leases, waiting, cap, limit, settings);
        let held = bucket.held_by(waiter.holder);
        // What is scarce is not kept in stock beyond what is expected to be spent.
        let plenty = limit.rate().tokens_in(settings.horizon_for(limit));
        let fair = if bucket.scarce.holds(now) && ledger.takeable(limit) < plenty {
            fair.min(sizing::mean(
                u64::from(waiter.demand),
                settings.horizon_for(limit),
            ))
            .max(quantum)
        } else {
            fair
        };
        let wish = waiter
            .want
            .min(fair.less(held).max(waiter.least))
            .min(HELD_MAX.less(held));
        if wish < waiter.least {
            return None;
        }
        let free = ledger.takeable(limit).min(cap.less(ledger.outstanding));
        let reach = cap.less(ledger.outstanding);
        // No chunk is more than what can be there while others keep what they hold.
        let chunk = quantum.min(wish).min(reach).max(waiter.least);
        let amount = if free >= wish {
            wish
        } else if free >= chunk {
            free
        } else {
            return None;
        };
        let Some(reserve) = bucket.reserve.as_mut() else {
            return Some(amount);
        };
        // What is not booked durably is not granted; the next block is booked in time.
        let booked = reserve.booked;
        if reserve.want_block(&bucket.ledger, limit, amount) {
            self.writes.dirty.push(slot);
        }
        let amount = amount.min(booked);
        (amount >= waiter.least).then_some(amount)
    }

    /// Moves tokens into the holder's lease, opening one if it has none that can take them, and
    /// answers.
    fn grant(
        &mut self,
        now: Timestamp,
        slot: u32,
        waiter: &Waiter,
        tokens: Tokens,
        effects: &mut Vec<Effect>,
    ) {
        let id = self.lease_for(now, slot, waiter);
        let bucket = self.buckets.get_mut(slot);
        let policy = self.policies.get_mut(bucket.policy);
        let class = usize::try_from(bucket.class).expect("32 bits fit a usize");
        let limit = &policy.classes[class].limit;
        bucket.ledger.grant(tokens, limit);
        if let Some(reserve) = bucket.reserve.as_mut() {
            reserve.booked = reserve.booked.minus(tokens);
        }
        let lease = bucket.leases.as_mut_slice().iter_mut().find(|l| l.id == id);
        let lease = lease.expect("the lease was found or opened above");
        lease.add_granted(tokens);
        lease.sequence = waiter.sequence;
        lease.set_demand(waiter.demand);
        lease.number = waiter.number;
        policy.stats.grants = policy.stats.grants.saturating_add(1);
        policy.stats.granted = policy.stats.granted.saturating_add(tokens.get());
        let grant = self.date(now, slot, id);
        self.answer(
            waiter.holder,
            waiter.number,
            waiter.sequence,
            grant,
            Status::Done,
            effects,
        );
    }

    /// The lease that a grant goes to: the one that the holder named, if it can still grow.
    fn lease_for(&mut self, now: Timestamp, slot: u32, waiter: &Waiter) -> LeaseId {
        let bucket = self.buckets.get_mut(slot);
        let named =
            bucket.leases.as_mut_slice().iter_mut().find(|l| {
                Some(l.id) == waiter.lease && l.holder == waiter.holder && l.is_current()
            });
        if let Some(lease) = named {
            if lease.room() >= HELD_MAX {
                return lease.id;
            }
            lease.close();
        }
        self.last_lease = self
            .last_lease
            .checked_add(1)
            .expect("fewer than 2^64 leases");
        let policy = self.policies.get_mut(bucket.policy);
        let mut others = bucket.leases.as_slice().iter();
        if others.all(|lease| lease.holder != waiter.holder) {
            policy.stats.first_touches = policy.stats.first_touches.saturating_add(1);
        }
        let id = LeaseId {
            epoch: self.config.epoch,
            counter: self.last_lease,
        };
        let end = now + self.config.drift.stretch(policy.settings().term_max());
        bucket
            .leases
            .push(Lease::new(id, policy.version(), waiter.holder, end));
        self.holders.lease_opened(waiter.holder);
        self.stats.leases_opened = self.stats.leases_opened.saturating_add(1);
        id
    }

    /// Serves waiting requests in order while there is enough for the first of them, then enters
    /// the bucket in the timetable for when there will be. The bucket is settled.
    pub(super) fn serve(&mut self, now: Timestamp, slot: u32, effects: &mut Vec<Effect>) {
        let mut place = 0_usize;
        while let Some(waiter) = self.waiter_at(slot, place) {
            if !self.holders.is_waiting_on(waiter.holder, waiter.stream) {
                self.take_waiter(slot, place);
            } else if !self.is_fresh(now, slot, &waiter) {
                self.holders.get_mut(waiter.holder).passed_over.insert(slot);
                place = place.saturating_add(1);
            } else {
                let Some(tokens) = self.amount(now, slot, &waiter) else {
                    break;
                };
                self.stats.pushes = self.stats.pushes.saturating_add(1);
                self.take_waiter(slot, place);
                let policy = self.buckets.get(slot).policy;
                let waits = &mut self.policies.get_mut(policy).stats.waits;
                waits.add(now.since(waiter.since));
                self.grant(now, slot, &waiter, tokens, effects);
            }
        }
        self.recall_for_queue(now, slot, effects);
        self.schedule(now, slot);
    }

    /// The first waiting request whose holder was heard lately.
    pub(super) fn first_fresh(&self, now: Timestamp, slot: u32) -> Option<Waiter> {
        // Those who are silent are looked at when they are heard.
        let waiters = self.buckets.get(slot).queue.iter();
        let mut waiters = waiters.flat_map(|queue| queue.iter());
        waiters.find(|w| self.is_fresh(now, slot, w)).copied()
    }

    /// How many tokens must be there for this waiting request to be served. No serving is more than
    /// what can be there while others keep what they hold.
    pub(super) fn goal(&self, now: Timestamp, slot: u32, waiter: &Waiter) -> Tokens {
        let quantum = self.quantum(now, slot, waiter);
        quantum
            .min(waiter.want)
            .min(self.reach(slot))
            .max(waiter.least)
    }

    /// One serving of this bucket to this holder.
    fn quantum(&self, now: Timestamp, slot: u32, waiter: &Waiter) -> Tokens {
        let bucket = self.buckets.get(slot);
        let policy = self.policies.get(bucket.policy);
        sizing::quantum(
            waiter.holder,
            waiter.demand,
            bucket.scarce.lasted(now),
            &bucket.leases,
            self.claimants(slot),
            &policy.class(bucket.class).limit,
            policy.settings(),
        )
    }

    /// How many more tokens may be out.
    pub(super) fn reach(&self, slot: u32) -> Tokens {
        let bucket = self.buckets.get(slot);
        let settings = self.policies.get(bucket.policy).settings();
        let cap = sizing::live_cap(&bucket.ledger, self.limit_of(slot), settings);
        cap.less(bucket.ledger.outstanding)
    }

    fn waiter_at(&self, slot: u32, place: usize) -> Option<Waiter> {
        self.buckets.get(slot).queue.as_ref()?.at(place).copied()
    }

    fn take_waiter(&mut self, slot: u32, place: usize) {
        let bucket = self.buckets.get_mut(slot);
        let queue = bucket.queue.as_mut().expect("a waiter has a queue");
        queue.take(place);
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// False if the asker's last message is so old that a term counted from it would be half over.
    /// Then others are served before it, but it keeps its place for when it is heard again: it was
    /// told that it waits, and would not know that it must ask anew.
    fn is_fresh(&self, now: Timestamp, slot: u32, waiter: &Waiter) -> bool {
        let policy = self.policies.get(self.buckets.get(slot).policy);
        let fresh = policy.settings().term_max().scale_down(1, 2);
        now.since(self.holders.get(waiter.holder).heard_at) <= fresh
    }

    /// A holder was heard: the buckets that passed it over while it was silent look again.
    pub(super) fn serve_passed_over(
        &mut self,
        now: Timestamp,
        holder: u32,
        effects: &mut Vec<Effect>,
    ) {
        let slots = core::mem::take(&mut self.holders.get_mut(holder).passed_over);
        for slot in slots {
            // Another bucket may have the slot by now; a look at it does no harm.
            if self.buckets.try_get(slot).is_some() {
                self.settle(slot, now);
                self.serve(now, slot, effects);
                self.check(slot);
            }
        }
    }

    /// Refuses waiting requests that a changed policy can never serve.
    pub(super) fn drop_unservable(
        &mut self,
        _now: Timestamp,
        slot: u32,
        effects: &mut Vec<Effect>,
    ) {
        let bucket = self.buckets.get(slot);
        let capacity = self.limit_of(slot).cost_max();
        let deleted = !self.policies.get(bucket.policy).is_current();
        let Some(queue) = self.buckets.get_mut(slot).queue.as_mut() else {
            return;
        };
        let dropped = queue.extract(|w| deleted || w.least > capacity);
        for waiter in dropped {
            self.waiting = self.waiting.saturating_sub(1);
            if !self.holders.is_waiting_on(waiter.holder, waiter.stream) {
                continue;
            }
            let refusal = if deleted {
                Refusal::UnknownPolicy
            } else {
                Refusal::CostAboveCapacity { capacity }
            };
            let status = Status::Refused(refusal);
            self.answer(
                waiter.holder,
                waiter.number,
                waiter.sequence,
                None,
                status,
                effects,
            );
        }
    }

    /// Enters the bucket in the timetable for when its first waiting request can be served.
    fn schedule(&mut self, now: Timestamp, slot: u32) {
        let due = self.due(now, slot);
        let bucket = self.buckets.get_mut(slot);
        if bucket.queue.as_ref().is_some_and(|q| q.is_empty()) {
            bucket.queue = None;
        }
        if bucket.due == due {
            return;
        }
        self.timetable.remove(&(bucket.due, slot));
        bucket.due = due;
        if due != Timestamp::MAX {
            self.timetable.insert((due, slot));
        }
    }

    fn due(&self, now: Timestamp, slot: u32) -> Timestamp {
        let Some(front) = self.first_fresh(now, slot) else {
            return Timestamp::MAX;
        };
        let goal = self.goal(now, slot, &front);
        let bucket = self.buckets.get(slot);
        let refilled = match bucket.ledger.time_until(goal, self.limit_of(slot)) {
            // Enough is there, so it is a cap, a record or a fair share that it waits for; their
            // end comes as an event of its own.
            Some(Term::ZERO) | None => Timestamp::MAX,
            Some(term) => now + term,
        };
        refilled.min(self.next_event(slot))
    }
}
