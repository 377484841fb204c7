//! Recalls: asking idle holders for what others wait for.
//!
//! A recall is advice. The holder takes out of its own reach what it does not need itself and then
//! reports it as returned; until that report the tokens stay outstanding. Each lease is recalled at
//! most once for each grant to it, so that a recall can never cost more messages than grants do.

use alloc::vec::Vec;

use super::{Authority, Effect, sizing};
use crate::message::Status;
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// Refill that comes within this is not worth a recall: the message and the report that answers it
/// take about as long.
const RECALL_AFTER: Term = Term::from_millis(20);
/// Most holders that are asked at a time, those with the most tokens first.
const RECALLS_MAX: usize = 8;

impl Authority {
    /// Asks others for tokens if the first who waits would wait for long. The bucket is settled
    /// and its queue was served as far as it goes.
    pub(super) fn recall_for_queue(
        &mut self,
        now: Timestamp,
        slot: u32,
        effects: &mut Vec<Effect>,
    ) {
        let Some(front) = self.first_fresh(now, slot) else {
            return;
        };
        let goal = self.goal(now, slot, &front);
        let bucket = self.buckets.get(slot);
        let policy = self.policies.get(bucket.policy);
        let (limit, settings) = (&policy.class(bucket.class).limit, policy.settings());
        let cap = sizing::live_cap(&bucket.ledger, limit, settings);
        let waiting = u64::try_from(bucket.waiting()).unwrap_or(u64::MAX);
        let fair = sizing::fair_hold(
            front.holder,
            &bucket.leases,
            waiting.saturating_sub(1),
            cap,
            limit,
            settings,
        );
        // Everybody in the queue is after one token at least, and the first after its fair share.
        let wish = front.want.min(fair.less(bucket.held_by(front.holder)));
        let wish = wish.max(front.least).max(Tokens::new(waiting));
        let horizon = settings.horizon_for(limit);
        let refilled = bucket.ledger.time_until(wish, limit);
        let starving = refilled.is_none_or(|term| term > horizon.max(RECALL_AFTER));
        if starving {
            self.recall(now, slot, fair, goal + goal, false, effects);
        } else if self.reach(slot) < goal {
            self.recall(now, slot, fair, goal + goal, true, effects);
        }
    }

    /// Asks for everything that is out under an earlier version of a bucket's policy, so that what
    /// the bucket owes after a lowering is paid sooner.
    pub(super) fn recall_former(&mut self, now: Timestamp, slot: u32, effects: &mut Vec<Effect>) {
        let held = self.buckets.get(slot).leases.held_total();
        let owes = self.buckets.get(slot).ledger.level.parts() < 0;
        if owes && !held.is_zero() {
            self.recall(now, slot, Tokens::ZERO, held, false, effects);
        }
    }

    /// Recalls what others hold, most first, until about `enough` is asked for; with `spare`, only
    /// from those who hold more than they are expected to spend in a horizon.
    fn recall(
        &mut self,
        now: Timestamp,
        slot: u32,
        keep: Tokens,
        enough: Tokens,
        spare: bool,
        effects: &mut Vec<Effect>,
    ) {
        let bucket = self.buckets.get(slot);
        let policy = self.policies.get(bucket.policy);
        let limit = &policy.class(bucket.class).limit;
        let horizon = policy.settings().horizon_for(limit);
        let full_term = self.config.drift.stretch(policy.settings().term_max());
        let recently = now + full_term.saturating_sub(RECALL_AFTER);
        let generation = self.buckets.generation(slot);
        let mut candidates: Vec<(Tokens, usize)> = Vec::new();
        for (place, lease) in bucket.leases.as_slice().iter().enumerate() {
            let holder = self.holders.get(lease.holder);
            let reachable = holder.stream.is_some()
                && holder.anchor.get() > 0
                && holder
                    .number(lease.number)
                    .is_ok_and(|known| (known.slot, known.generation) == (slot, generation));
            let expected = if spare {
                sizing::mean(u64::from(lease.demand()), horizon)
            } else {
                Tokens::ZERO
            };
            // What was granted a moment ago is on its way to somebody who asked for it.
            let recent = lease.is_current() && lease.reclaim_at > recently;
            let idle = lease.held() > expected && !lease.is_recalled() && !recent;
            if idle && reachable && bucket.waiter(holder.incarnation).is_none() {
                candidates.push((lease.held(), place));
            }
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        let mut asked = Tokens::ZERO;
        for (held, place) in candidates.into_iter().take(RECALLS_MAX) {
            if asked >= enough {
                break;
            }
            asked += held;
            let bucket = self.buckets.get_mut(slot);
            let lease = &mut bucket.leases.as_mut_slice()[place];
            lease.set_recalled();
            let stats = &mut self.policies.get_mut(bucket.policy).stats;
            stats.recalls = stats.recalls.saturating_add(1);
            let (holder, number, sequence) = (lease.holder, lease.number, lease.sequence);
            let status = Status::Recall { keep };
            self.answer(holder, number, sequence, None, status, effects);
        }
    }
}
