//! Which buckets stand out, and what holders have: looked at without stalling the shard.
//!
//! Demand and stranded tokens are read off the buckets, a slice of them in each call, so that a
//! shard with millions goes on granting in between. How often a bucket is asked about, and in
//! vain, is kept nowhere in the bucket: a counter in each would cost memory that millions of
//! buckets never need. Two sketches of bounded size count them instead.

mod sketch;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use self::sketch::{Counter, Sketch};
use super::bucket::Bucket;
use super::holders::Numbered;
use super::lease::Lease;
use super::{Authority, Effect};
use crate::id::Incarnation;
use crate::key::{BucketAddress, PolicyId};
use crate::message::{LeaseRequest, Status};
use crate::time::{NANOS_PER_SECOND, Term, Timestamp};
use crate::tokens::Tokens;

/// Slots that one call looks at: about 50 µs, as measured over 200,000 buckets with two leases each
/// on a busy machine, which is a small part of what a batch of requests takes.
const SLICE: u32 = 1024;
/// Counts are halved this often, so that they speak of the last minutes.
const HALVE_EVERY: Term = Term::from_seconds(60);

/// By what buckets are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopOrder {
    /// Tokens a second that holders report being asked for, or wait with.
    Demand,
    /// Tokens in hand beyond what the holders' demand spends within the policy's horizon.
    Stranded,
    /// Recent requests for tokens that were not granted at once: they had to wait, be
    /// it for a record, or were refused.
    Refusals,
    /// Recent requests of any kind, reports and retries included.
    Messages,
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopQuery {
    /// By what.
    pub order: TopOrder,
    /// Only buckets of this policy.
    pub policy: Option<PolicyId>,
    /// Most buckets to name.
    pub most: usize,
}

/// A bucket that stands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopBucket {
    /// The bucket.
    pub bucket: BucketAddress,
    /// What it is ordered by; at least 1.
    pub amount: u64,
    /// By how much `amount` may be too high. It is never too low. Zero for demand and stranded
    /// tokens.
    pub error: u64,
    /// Tokens a second that holders report being asked for, or wait with.
    pub demand: u64,
    /// Tokens in holders' hands.
    pub outstanding: Tokens,
    /// Requests that wait.
    pub waiting: u64,
}

/// What a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Who.
    pub incarnation: Incarnation,
    /// Live leases.
    pub leases: u64,
    /// Tokens in its hands.
    pub outstanding: Tokens,
    /// Tokens a second that it reports being asked for.
    pub demand: u64,
}

/// What was found in a slice of the buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<T> {
    /// What was found, in no particular order unless said otherwise.
    pub found: Vec<T>,
    /// Where the next slice begins; `None` after the last.
    pub next: Option<u32>,
}

/// How often buckets are asked about, those most that are asked about most.
#[derive(Clone, Debug, Default)]
pub(super) struct Busiest {
    messages: Sketch,
    refusals: Sketch,
    halve_at: Timestamp,
}

impl Busiest {
    /// Halves the counts as often as is due. A minute without any request costs nothing.
    fn age(&mut self, now: Timestamp) {
        if now < self.halve_at {
            return;
        }
        let late = now.since(self.halve_at).as_nanos();
        let more = late
            .checked_div(HALVE_EVERY.as_nanos())
            .expect("a minute is not zero");
        // After 64 halvings nothing is left of any count.
        for _ in 0..more.saturating_add(1).min(64) {
            self.messages.halve();
            self.refusals.halve();
        }
        self.halve_at = now + HALVE_EVERY;
    }
}

impl Authority {
    /// A request about a bucket came in.
    pub(super) fn note_message(&mut self, now: Timestamp, slot: u32) {
        self.busiest.age(now);
        let generation = self.buckets.generation(slot);
        self.busiest.messages.add(Numbered { slot, generation });
    }

    /// A request for tokens was decided, with these effects.
    pub(super) fn note_decision(
        &mut self,
        slot: u32,
        request: &LeaseRequest,
        effects: Option<&[Effect]>,
    ) {
        let refused = |effect: &Effect| {
            let Effect::Answer { answer, .. } = effect else {
                return false;
            };
            let own = (answer.key, answer.sequence) == (request.key, request.sequence);
            own && matches!(answer.status, Status::Queued { .. } | Status::Refused(_))
        };
        if effects.is_some_and(|effects| effects.iter().any(refused)) {
            let generation = self.buckets.generation(slot);
            self.busiest.refusals.add(Numbered { slot, generation });
        }
    }

    /// The buckets that stand out in the slice that begins at `from`, the largest first; begin at
    /// zero. A bucket that is made or forgotten meanwhile may be missed.
    ///
    /// Demand and stranded tokens are exact at the moment of the call. Refusals and messages are
    /// estimates: see [`TopBucket::error`].
    ///
    /// Cost: a look at 1,024 slots, or at two sketches of 1,024 counters.
    pub fn top_buckets(&mut self, now: Timestamp, query: &TopQuery, from: u32) -> Slice<TopBucket> {
        let policy = match &query.policy {
            None => None,
            Some(id) => match self.policies.find(id) {
                None => return Slice::over(),
                found => found,
            },
        };
        self.busiest.age(now);
        let (mut amounts, next) = match query.order {
            TopOrder::Demand => self.scan(from, |bucket| demand(now, bucket)),
            TopOrder::Stranded => self.scan(from, |bucket| self.stranded(now, bucket)),
            TopOrder::Refusals => (self.counted(&self.busiest.refusals), None),
            TopOrder::Messages => (self.counted(&self.busiest.messages), None),
        };
        let wanted =
            |slot: u32| policy.is_none_or(|policy| self.buckets.get(slot).policy == policy);
        amounts.retain(|found| found.count > 0 && wanted(found.item.slot));
        amounts.sort_unstable_by_key(|found| (core::cmp::Reverse(found.count), found.item.slot));
        amounts.truncate(query.most);
        let found = amounts.into_iter().map(|found| {
            let bucket = self.buckets.get(found.item.slot);
            let policy = self.policies.get(bucket.policy);
            TopBucket {
                bucket: BucketAddress {
                    policy: policy.id.clone(),
                    key: bucket.key.clone(),
                },
                amount: found.count,
                error: found.error,
                demand: demand(now, bucket),
                outstanding: live(now, bucket).map(Lease::held).sum(),
                waiting: u64::try_from(bucket.waiting()).unwrap_or(u64::MAX),
            }
        });
        Slice {
            found: found.collect(),
            next,
        }
    }

    /// What the holders in `of` have in the slice of the buckets that begins at `from`; begin at
    /// zero and add the slices up.
    ///
    /// Cost: a look at 1,024 slots.
    #[must_use]
    pub fn holdings(
        &self,
        now: Timestamp,
        of: &BTreeSet<Incarnation>,
        from: u32,
    ) -> Slice<Holding> {
        let nothing = |incarnation: Incarnation| Holding {
            incarnation,
            leases: 0,
            outstanding: Tokens::ZERO,
            demand: 0,
        };
        let known = of.iter().filter_map(|incarnation| {
            let holder = self.holders.find(*incarnation)?;
            Some((holder, nothing(*incarnation)))
        });
        let mut holdings: BTreeMap<u32, Holding> = known.collect();
        let (slots, next) = self.slice(from);
        if holdings.is_empty() {
            return Slice::over();
        }
        for bucket in slots.filter_map(|slot| self.buckets.try_get(slot)) {
            for lease in live(now, bucket) {
                let Some(holding) = holdings.get_mut(&lease.holder) else {
                    continue;
                };
                holding.leases = holding.leases.saturating_add(1);
                holding.outstanding += lease.held();
                if lease.is_current() {
                    holding.demand = holding.demand.saturating_add(u64::from(lease.demand()));
                }
            }
        }
        Slice {
            found: holdings.into_values().filter(|h| h.leases > 0).collect(),
            next,
        }
    }

    fn slice(&self, from: u32) -> (core::ops::Range<u32>, Option<u32>) {
        let end = self.buckets.slot_count();
        let until = from.saturating_add(SLICE).min(end);
        (from..until, (until < end).then_some(until))
    }

    fn scan(&self, from: u32, amount: impl Fn(&Bucket) -> u64) -> (Vec<Counter>, Option<u32>) {
        let (slots, next) = self.slice(from);
        let found = slots.filter_map(|slot| {
            let bucket = self.buckets.try_get(slot)?;
            Some(Counter {
                item: Numbered {
                    slot,
                    generation: self.buckets.generation(slot),
                },
                count: amount(bucket),
                error: 0,
            })
        });
        (found.collect(), next)
    }

    /// The counters of buckets that are still there.
    fn counted(&self, sketch: &Sketch) -> Vec<Counter> {
        let live = |c: &&Counter| self.buckets.is_live(c.item.slot, c.item.generation);
        sketch.counters().filter(live).copied().collect()
    }

    fn stranded(&self, now: Timestamp, bucket: &Bucket) -> u64 {
        let horizon = self.policies.get(bucket.policy).settings().horizon();
        let beyond = live(now, bucket).map(|lease| {
            let used = u128::from(lease.demand())
                .saturating_mul(u128::from(horizon.as_nanos()))
                .checked_div(u128::from(NANOS_PER_SECOND))
                .expect("a second is not zero");
            lease
                .held()
                .less(Tokens::new(u64::try_from(used).unwrap_or(u64::MAX)))
        });
        beyond.sum::<Tokens>().get()
    }
}

impl<T> Slice<T> {
    fn over() -> Self {
        Self {
            found: Vec::new(),
            next: None,
        }
    }
}

/// The leases of a bucket that have not ended. It may not be settled.
fn live(now: Timestamp, bucket: &Bucket) -> impl Iterator<Item = &Lease> {
    let leases = bucket.leases.as_slice().iter();
    leases.filter(move |lease| lease.reclaim_at > now)
}

/// What holders report being asked for. A holder has one lease under the version in force; one that
/// has none speaks through its waiting request.
fn demand(now: Timestamp, bucket: &Bucket) -> u64 {
    let leases = live(now, bucket).filter(|lease| lease.is_current());
    let waiters = bucket.queue.iter().flat_map(|queue| queue.iter());
    let new = waiters.filter(|waiter| waiter.lease.is_none());
    leases
        .map(|lease| lease.demand())
        .chain(new.map(|waiter| waiter.demand))
        .fold(0_u64, |sum, demand| sum.saturating_add(u64::from(demand)))
}
