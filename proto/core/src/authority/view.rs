//! What an operator can see of a shard.

use alloc::vec::Vec;

use super::Authority;
use crate::id::{Incarnation, LeaseId, PolicyVersion};
use crate::key::{BucketAddress, PolicyId};
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// Running totals of one policy in one shard, in tokens unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Decisions that granted at least one token (a count).
    pub grants: u64,
    /// Tokens granted.
    pub granted: u64,
    /// Tokens reported spent.
    pub spent: u64,
    /// Tokens returned unspent.
    pub returned: u64,
    /// Tokens that an ended or released lease left unreported: they count as spent.
    pub reclaimed: u64,
    /// Requests that had to wait (a count).
    pub queued: u64,
    /// Recalls sent to holders with tokens that others waited for.
    pub recalls: u64,
    /// Requests refused (a count).
    pub refused: u64,
    /// Leases opened for holders that had none for the bucket (a count).
    pub first_touches: u64,
    /// In holders' hands when the tenure began, as a hand-over said.
    pub taken_over: u64,
    /// In holders' hands when a tenure ended without a hand-over. Only a driver that outlives its
    /// tenures knows.
    pub lost: u64,
    /// How long requests waited that were served in the end.
    pub waits: Waits,
}

/// How long requests waited: how many of them up to each of a few bounds, and the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Requests that waited no longer than the bound of the same place in [`Waits::BOUNDS`], and
    /// longer than the one before; the last are those beyond all bounds.
    pub counts: [u64; 13],
    /// Nanoseconds, all together.
    pub nanos: u64,
}

impl Waits {
    /// From a round trip in one rack to the longest wait of a single call.
    pub const BOUNDS: [Term; 12] = [
        Term::from_millis(1),
        Term::from_millis(5),
        Term::from_millis(20),
        Term::from_millis(50),
        Term::from_millis(100),
        Term::from_millis(200),
        Term::from_millis(500),
        Term::from_seconds(1),
        Term::from_seconds(2),
        Term::from_seconds(5),
        Term::from_seconds(15),
        Term::from_seconds(60),
    ];

    /// Counts one wait.
    pub fn add(&mut self, waited: Term) {
        let place = Self::BOUNDS.iter().position(|bound| waited <= *bound);
        let count = &mut self.counts[place.unwrap_or(Self::BOUNDS.len())];
        *count = count.saturating_add(1);
        self.nanos = self.nanos.saturating_add(waited.as_nanos());
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        for (into, from) in self.counts.iter_mut().zip(other.counts) {
            *into = into.saturating_add(from);
        }
        self.nanos = self.nanos.saturating_add(other.nanos);
    }
}

impl PolicyStats {
    /// Adds another shard's totals.
    pub fn merge(&mut self, other: &Self) {
        let add = |into: &mut u64, from: u64| *into = into.saturating_add(from);
        add(&mut self.grants, other.grants);
        add(&mut self.granted, other.granted);
        add(&mut self.spent, other.spent);
        add(&mut self.returned, other.returned);
        add(&mut self.reclaimed, other.reclaimed);
        add(&mut self.queued, other.queued);
        add(&mut self.recalls, other.recalls);
        add(&mut self.refused, other.refused);
        add(&mut self.first_touches, other.first_touches);
        add(&mut self.taken_over, other.taken_over);
        add(&mut self.lost, other.lost);
        self.waits.merge(&other.waits);
    }

    /// Tokens in holders' hands now, as these totals have it.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        let gone = [self.spent, self.returned, self.reclaimed, self.lost];
        let out = self.taken_over.saturating_add(self.granted);
        gone.iter().fold(out, |out, gone| out.saturating_sub(*gone))
    }
}

/// Running totals and present counts of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests decided, retries included.
    pub requests: u64,
    /// Retries that were answered from what had been decided before.
    pub retries: u64,
    /// Answers that were pushed after waiting.
    pub pushes: u64,
    /// Leases opened.
    pub leases_opened: u64,
    /// Buckets made.
    pub buckets_made: u64,
    /// Buckets forgotten because an unseen one would be the same.
    pub buckets_forgotten: u64,
    /// Reservation records handed to the store, deletions included.
    pub records_written: u64,
    /// Writes handed to the store; each carries many records.
    pub writes: u64,
    /// Reservation records read at take-over.
    pub records_read: u64,
    /// Present buckets.
    pub buckets: u64,
    /// Present leases.
    pub leases: u64,
    /// Present holders.
    pub holders: u64,
    /// Requests waiting now.
    pub waiting: u64,
}

/// One bucket as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketView {
    /// The bucket.
    pub bucket: BucketAddress,
    /// The policy version in force.
    pub version: PolicyVersion,
    /// The most that the bucket holds.
    pub capacity: Tokens,
    /// Whole tokens available; negative while the bucket owes.
    pub available: i128,
    /// Tokens in holders' hands.
    pub outstanding: Tokens,
    /// Exposure of an earlier tenure.
    pub ghost: Tokens,
    /// For how much longer the ghost counts.
    pub ghost_term: Term,
    /// True if the bucket is kept on durable reservations.
    pub reserved: bool,
    /// What may still be granted under durable reservations.
    pub booked: Tokens,
    /// Requests waiting.
    pub waiting: u64,
    /// True if this tenure has not seen the bucket: the view is what a first request would find.
    pub unseen: bool,
    /// The leases, by holder.
    pub leases: Vec<LeaseView>,
}

/// One lease as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Who holds it.
    pub incarnation: Incarnation,
    /// The lease.
    pub lease: LeaseId,
    /// The policy version that it belongs to.
    pub version: PolicyVersion,
    /// Running total granted.
    pub granted: Tokens,
    /// Running total reported spent.
    pub spent: Tokens,
    /// Running total returned.
    pub returned: Tokens,
    /// Reported demand, in tokens per second.
    pub demand: u64,
    /// Until it may be reclaimed.
    pub reclaim_in: Term,
    /// Since the holder's newest message; `None` if this tenure has not heard it.
    pub anchor_age: Option<Term>,
}

impl Authority {
    /// Running totals and present counts. Costs a pass over nothing: all are kept up to date.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        stats.buckets = count(self.buckets.len());
        stats.holders = count(self.holders.len());
        stats.leases = self.holders.iter().map(|h| u64::from(h.leases)).sum();
        stats.waiting = self.waiting;
        stats
    }

    /// Running totals by policy.
    pub fn policy_stats(&self) -> impl Iterator<Item = (&PolicyId, &PolicyStats)> {
        self.policies.iter().map(|p| (&p.id, &p.stats))
    }

    /// The bucket as it stands at `now`, settled; `None` if there is no such policy or the key
    /// has not its dimensions. Looking changes nothing but what settling brings about anyway.
    pub fn inspect(&mut self, now: Timestamp, bucket: &BucketAddress) -> Option<BucketView> {
        let policy = self.policies.find(&bucket.policy)?;
        let slot = self.policies.get(policy);
        if !slot.is_current() || bucket.key.values().count() != slot.policy.dimensions().len() {
            return None;
        }
        let found = self.buckets.find(policy, &bucket.key);
        let (class, ledger) = match found {
            Some(found) => {
                self.settle(found, now);
                let b = self.buckets.get(found);
                (b.class, b.ledger)
            }
            None => {
                let class = slot.class_of(&bucket.key);
                (class, self.policies.get_mut(policy).unseen(class, now))
            }
        };
        let slot = self.policies.get(policy);
        let limit = &slot.class(class).limit;
        let seen = found.map(|found| self.buckets.get(found));
        Some(BucketView {
            bucket: bucket.clone(),
            version: slot.version(),
            capacity: limit.capacity(),
            available: ledger.level.tokens(limit.rate()),
            outstanding: ledger.outstanding,
            ghost: ledger.ghost,
            ghost_term: ledger.ghost_end.since(now),
            reserved: limit.is_reserved(),
            booked: seen
                .and_then(|b| b.reserve.as_ref())
                .map_or(Tokens::ZERO, |r| r.booked),
            waiting: seen.map_or(0, |b| u64::try_from(b.waiting()).unwrap_or(u64::MAX)),
            unseen: seen.is_none(),
            leases: seen.map_or_else(Vec::new, |b| self.lease_views(b, now)),
        })
    }

    fn lease_views(&self, bucket: &super::bucket::Bucket, now: Timestamp) -> Vec<LeaseView> {
        let views = bucket.leases.as_slice().iter().map(|lease| {
            let holder = self.holders.get(lease.holder);
            LeaseView {
                incarnation: holder.incarnation,
                lease: lease.id,
                version: lease.version,
                granted: lease.granted(),
                spent: lease.spent(),
                returned: lease.returned(),
                demand: u64::from(lease.demand()),
                reclaim_in: lease.reclaim_at.since(now),
                anchor_age: (holder.heard_at > Timestamp::ZERO).then(|| now.since(holder.heard_at)),
            }
        });
        let mut views: Vec<LeaseView> = views.collect();
        views.sort_unstable_by_key(|view| (view.incarnation, view.lease));
        views
    }
}
