//! What must be true once nothing goes wrong any more: everybody who waits is served, and the
//! limit is used.
//!
//! After the faults are healed the world goes on until ghosts and debts of reasonable size are
//! over; then every holder keeps a few callers waiting at every bucket for a while.

use quota_core::time::{NANOS_PER_SECOND, Term};
use quota_core::tokens::Tokens;

use super::invariants::{SERVED, UTILISATION};
use super::policies::Step;
use super::{Event, World};
use crate::client::Waiter;
use crate::coverage::Sometimes;
use crate::shape::MILLI;

/// Callers that each holder keeps waiting at each bucket.
const STANDING: u64 = 4;
/// A bucket whose callers could not all be served within this is not measured.
const PATIENCE: u64 = 20 * NANOS_PER_SECOND;

/// The measured phase.
#[derive(Debug)]
pub(super) struct Measurement {
    from: u64,
    /// By bucket: what was admitted before; `None` if it is not measured.
    before: Vec<Option<Tokens>>,
}

impl World {
    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.network.heal();
        self.silence_liar();
        for node in 0..self.servers.len() {
            let server = &mut self.servers[node];
            server.crash_after_grant = false;
            server.paused_until = self.time;
            server.stalled_until = self.time;
            server.cut_until = self.time;
            self.store_mended(node);
        }
        for client in &mut self.clients {
            client.paused_until = self.time;
        }
        for policy in 0..self.policies.len() {
            let history = self.store.policy(&self.policies[policy].id);
            if history.is_none_or(|h| h.current().is_none()) {
                let spec = Box::new(self.draw_change(policy));
                self.apply_step(policy, Step::Put(spec));
            }
        }
        let now = self.time;
        self.trace.say(now, || "all faults end".into());
        self.check_everything();
        let terms = self.policies.iter().map(|p| p.term.as_nanos());
        let longest = terms.max().unwrap_or_default();
        let tenure = 2 * self.shape.tenure.unwrap_or_default();
        self.after(3 * longest + tenure + 2_000 * MILLI, Event::Measure);
    }

    /// Callers come and wait at every bucket that can serve them in reasonable time.
    pub(super) fn measure(&mut self) {
        self.check_everything();
        let mut before = Vec::new();
        for bucket in 0..self.buckets.len() {
            let measured = self.is_measurable(bucket);
            self.coverage.hit_if(measured, Sometimes::Measured);
            before.push(measured.then(|| self.buckets[bucket].ideal.admitted()));
        }
        for client in 0..self.clients.len() {
            self.drop_waiters(client, |_| true);
            let life = self.clients[client].life;
            for (bucket, measured) in before.iter().enumerate() {
                for _ in 0..if measured.is_some() { STANDING } else { 0 } {
                    self.after(
                        1,
                        Event::Stand {
                            client,
                            life,
                            bucket,
                        },
                    );
                }
            }
        }
        let from = self.time;
        self.measuring = Some(Measurement { from, before });
        self.after(self.longest_wait() + PATIENCE / 4, Event::End);
    }

    fn is_measurable(&mut self, bucket: usize) -> bool {
        let Some((_, view)) = self.look(bucket) else {
            return false;
        };
        // A flood may have left no room for a bucket that is not there yet.
        let node = self.owner().expect("it was looked at");
        let tenure = self.servers[node].tenure.as_ref();
        let present = tenure.map_or(0, |t| t.authority.stats().buckets);
        if view.unseen && present + 6 >= u64::from(self.shape.buckets_max) {
            return false;
        }
        view.available >= 0
            && view.ghost.is_zero()
            && self.grants_arrive(bucket)
            && self.wait_bound(bucket) <= PATIENCE
    }

    /// False if most grants are over when they arrive: the anchor that a push names was sent a
    /// quarter of a term and a way ago, and the push itself takes another way; usual ways take up
    /// to twice the mean.
    fn grants_arrive(&self, bucket: usize) -> bool {
        let history = self.store.policy(&self.buckets[bucket].address.policy);
        let Some(policy) = history.and_then(|h| h.current()) else {
            return false;
        };
        let term = policy.lease().term_max().as_nanos();
        term / 4 + 4 * self.shape.network.delay + 20 * MILLI < term
    }

    /// How long a caller may have to wait: all that can wait before it, twice over, what idle
    /// holders keep until their terms end, and a few round trips.
    fn wait_bound(&self, bucket: usize) -> u64 {
        let wishes = self.shape.clients * STANDING;
        let limit = self.buckets[bucket].ideal.limit();
        let refill = limit.rate.time_for(Tokens::new(2 * wishes)).as_nanos();
        let term = self.policies[self.buckets[bucket].policy].term.as_nanos();
        refill + 2 * term + 20 * self.shape.network.delay + 2_000 * MILLI
    }

    fn longest_wait(&self) -> u64 {
        let waits = (0..self.buckets.len()).map(|bucket| self.wait_bound(bucket));
        waits
            .filter(|wait| *wait <= PATIENCE)
            .max()
            .unwrap_or_default()
    }

    /// One standing caller: spends if it can, waits otherwise.
    pub(super) fn stand(&mut self, client: usize, life: u64, bucket: usize) {
        if self.clients[client].life != life {
            return;
        }
        let Some(slot) = self.slot_for(client, bucket) else {
            return self.after(
                MILLI,
                Event::Stand {
                    client,
                    life,
                    bucket,
                },
            );
        };
        if self.spend(client, bucket, slot, Tokens::ONE) {
            self.after(
                2 * MILLI,
                Event::Stand {
                    client,
                    life,
                    bucket,
                },
            );
        } else if self.clients[client].slot_of(bucket) == Some(slot) {
            self.wait(client, bucket, slot, Tokens::ONE, 1 << 50);
        }
    }

    /// A standing caller that was served comes again.
    pub(super) fn served_in_liveness(&mut self, client: usize, waiter: Waiter) {
        let Some(measuring) = &self.measuring else {
            return;
        };
        if measuring.before[waiter.bucket].is_some() {
            let life = self.clients[client].life;
            let bucket = waiter.bucket;
            self.after(
                2 * MILLI,
                Event::Stand {
                    client,
                    life,
                    bucket,
                },
            );
        }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
        self.check_everything();
        self.check_flood_forgotten();
        let Some(measuring) = self.measuring.take() else {
            return;
        };
        for bucket in 0..self.buckets.len() {
            if let Some(before) = measuring.before[bucket] {
                self.check_served(bucket);
                self.check_used(bucket, before, measuring.from);
            }
        }
    }

    fn check_served(&mut self, bucket: usize) {
        let bound = self.wait_bound(bucket);
        for client in 0..self.clients.len() {
            let waiters = self.clients[client].waiters.iter();
            let late = waiters
                .filter(|w| w.bucket == bucket)
                .map(|w| self.time - w.since)
                .max();
            if late.is_some_and(|late| late > bound) {
                let address = self.buckets[bucket].address.clone();
                let view = self.look(bucket).map(|(_, view)| view);
                let incarnation = self.clients[client].holder.incarnation();
                let text = format!(
                    "{address}: holder {client} ({incarnation}) waits for {late:?} ns, more than \
                     {bound} ns; {view:?}"
                );
                return self.fail(SERVED, text);
            }
        }
    }

    /// At least half of what the limit allows is used, as far as the standing callers ask for it:
    /// each comes again after 2 ms.
    fn check_used(&mut self, bucket: usize, before: Tokens, from: u64) {
        let limit = self.buckets[bucket].ideal.limit();
        let span = Term::from_nanos(self.time - from);
        let asked = self.shape.clients * STANDING * span.as_nanos() / (4 * MILLI);
        let allowed = limit.rate.tokens_in(span).get().min(asked);
        let used = self.buckets[bucket].ideal.admitted().less(before).get();
        let narrow = self.is_narrow(bucket);
        if allowed >= 20 && !narrow && used < allowed / 2 {
            let address = &self.buckets[bucket].address;
            let history = self.store.policy(&address.policy);
            let policy = history.and_then(|h| h.current()).map(|p| p.spec().clone());
            let text = format!(
                "{address}: {used} of {allowed} tokens were admitted in {span:?}; {} holders, \
                 {policy:?}",
                self.shape.clients
            );
            self.fail(UTILISATION, text);
        }
    }

    /// True if what may be out at a time is used up within a round trip, so that no
    /// authority could serve the rate; or, for reserved buckets, what one write books while that
    /// write and a round trip take: a sixteenth of the capacity, so that a crash costs no more.
    fn is_narrow(&self, bucket: usize) -> bool {
        let history = self.store.policy(&self.buckets[bucket].address.policy);
        let Some(policy) = history.and_then(|h| h.current()) else {
            return true;
        };
        let limit = policy.limit_for(&self.buckets[bucket].address.key);
        let share = policy.lease().share_per_mille();
        let cap = quota_core::policy::live_cap(limit.capacity(), share, limit.cost_max());
        let trip = Term::from_nanos(12 * self.shape.network.delay + 20 * MILLI);
        let write = Term::from_nanos(2 * self.shape.write_time);
        let block = limit.capacity().scale_down(1, 16).max(Tokens::ONE);
        limit.rate().tokens_in(trip) >= cap
            || (limit.is_reserved() && limit.rate().tokens_in(write + trip) > block)
    }
}
