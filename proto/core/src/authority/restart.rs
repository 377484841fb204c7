//! Taking a shard over, and handing it over.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::bucket::{Bucket, Buckets, Scarce};
use super::holders::Holders;
use super::lease::{Lease, Leases};
use super::ledger::Ledger;
use super::policies::{self, Beginning, Policies};
use super::reserve::{self, Reserve, Writes};
use super::sweep::Sweep;
use super::top::Busiest;
use super::{Authority, AuthorityConfig, Stats};
use crate::key::BucketAddress;
use crate::level::Level;
use crate::policy::{Limit, PolicyHistory};
use crate::record::{BucketRow, HandOver, LeaseRow, LevelRow, Reservation, Stamp, UnseenRow};
use crate::time::Timestamp;
use crate::tokens::Tokens;

impl Authority {
    /// Takes a shard over at `now`.
    ///
    /// After an exact hand-over the shard goes on where it was left. Otherwise reserved buckets
    /// start from their records and all others empty, with what earlier tenures may have out
    /// counted as outstanding until the longest term has passed. Either way there is nothing to
    /// wait for before granting what is there.
    ///
    /// Cost: linear in the records and rows, all of which become buckets in memory.
    #[must_use]
    pub fn new(
        now: Timestamp,
        config: AuthorityConfig,
        histories: Vec<PolicyHistory>,
        reservations: Vec<(BucketAddress, Reservation)>,
        hand_over: Option<HandOver>,
    ) -> Self {
        let beginning = if config.first_tenure {
            Beginning::New
        } else {
            Beginning::TakenOver {
                tenures: config.tenures_before,
            }
        };
        let mut policies = Policies::default();
        for history in histories {
            if let Some(slot) = policies::begin(now, history, beginning, config.drift) {
                policies.insert(slot);
            }
        }
        let ghosts_end = now + policies.longest_term(config.drift);
        let mut authority = Self {
            config,
            policies,
            holders: Holders::default(),
            buckets: Buckets::new(config.hash_seed),
            timetable: BTreeSet::new(),
            writes: Writes::default(),
            last_lease: 0,
            settle_at: (config.tenures_before > 0).then_some(ghosts_end),
            sweep: Sweep::new(now),
            stats: Stats::default(),
            waiting: 0,
            busiest: Busiest::default(),
        };
        let mut records: BTreeMap<BucketAddress, Reservation> = reservations.into_iter().collect();
        authority.stats.records_read = u64::try_from(records.len()).unwrap_or(u64::MAX);
        if let Some(hand_over) = hand_over {
            authority.resume(now, hand_over, &mut records);
        }
        for (address, record) in records {
            authority.recover(now, address, record, ghosts_end);
        }
        authority
    }

    /// Starts a bucket from its record, unless a version that kept no records may have granted
    /// since: then the record is forgotten and the bucket is as unseen as any.
    fn recover(
        &mut self,
        now: Timestamp,
        address: BucketAddress,
        record: Reservation,
        ghosts_end: Timestamp,
    ) {
        let Some(policy) = self.policies.find(&address.policy) else {
            return;
        };
        let slot = self.policies.get(policy);
        if address.key.values().count() != slot.policy.dimensions().len() {
            return;
        }
        let class = slot.class_of(&address.key);
        let ruled = slot.class(class);
        if !ruled.limit.is_reserved()
            || !slot
                .history
                .durable_throughout(&ruled.class, record.version)
        {
            return;
        }
        let ledger = reserve::recover(
            now,
            &record,
            &ruled.limit,
            slot.version(),
            self.config.boot,
            ghosts_end,
        );
        self.place(
            policy,
            class,
            address,
            ledger,
            Leases::default(),
            Some(record),
        );
    }

    fn place(
        &mut self,
        policy: u32,
        class: u32,
        address: BucketAddress,
        ledger: Ledger,
        leases: Leases,
        record: Option<Reservation>,
    ) {
        let reserved = self.policies.get(policy).class(class).limit.is_reserved();
        let reserve = reserved.then(|| match record {
            Some(record) => Box::new(Reserve::recovered(record)),
            None => Box::default(),
        });
        self.policies.bucket_made(policy);
        let slot = self.buckets.insert(Bucket {
            ledger,
            leases,
            policy,
            class,
            due: Timestamp::MAX,
            scarce: Scarce::default(),
            queue: None,
            reserve,
            key: address.key,
        });
        self.check(slot);
    }

    /// Goes on from an exact hand-over.
    fn resume(
        &mut self,
        now: Timestamp,
        hand_over: HandOver,
        records: &mut BTreeMap<BucketAddress, Reservation>,
    ) {
        let stamp = hand_over.stamp;
        for row in &hand_over.unseen {
            let Some(policy) = self.policies.find(&row.policy) else {
                continue;
            };
            let boot = self.config.boot;
            let slot = self.policies.get_mut(policy);
            let (version, limit) = (slot.version(), *slot.policy.limit_of(&row.class));
            let unseen = restored(now, &row.level, &limit, Tokens::ZERO, stamp, boot, version);
            slot.set_unseen(&row.class, limit, unseen);
        }
        for (incarnation, anchor) in hand_over.anchors {
            let holder = self.holders.enter(incarnation);
            self.holders.get_mut(holder).anchor = anchor;
        }
        for row in hand_over.buckets {
            let record = records.remove(&row.bucket);
            self.resume_bucket(now, row, stamp, record);
        }
        self.holders.drop_idle();
    }

    fn resume_bucket(
        &mut self,
        now: Timestamp,
        row: BucketRow,
        stamp: Option<Stamp>,
        record: Option<Reservation>,
    ) {
        let Some(policy) = self.policies.find(&row.bucket.policy) else {
            return;
        };
        let slot = self.policies.get(policy);
        let class = slot.class_of(&row.bucket.key);
        let (version, is_current) = (slot.version(), slot.is_current());
        let mut leases = Leases::default();
        for lease in row.leases {
            let holder = self.holders.enter(lease.incarnation);
            let end = now + lease.remaining;
            let mut kept = Lease::new(lease.lease, lease.version, holder, end);
            kept.sequence = lease.sequence;
            if lease.version != version || !is_current {
                kept.close();
            }
            kept.set_totals(lease.granted, lease.spent, lease.returned);
            leases.push(kept);
            self.holders.lease_opened(holder);
        }
        let held = leases.held_total();
        let stats = &mut self.policies.get_mut(policy).stats;
        stats.taken_over = stats.taken_over.saturating_add(held.get());
        let limit = &self.policies.get(policy).class(class).limit;
        let ledger = restored(
            now,
            &row.level,
            limit,
            held,
            stamp,
            self.config.boot,
            version,
        );
        self.place(policy, class, row.bucket, ledger, leases, record);
    }

    /// The exact state of the shard for its next owner. The caller has stopped feeding events and
    /// drops this authority afterwards; a write in flight must have ended.
    ///
    /// Cost: a pass over all buckets.
    #[must_use]
    pub fn hand_over(&mut self, now: Timestamp) -> HandOver {
        let slots: Vec<u32> = self.buckets.occupied().collect();
        let mut rows = Vec::with_capacity(slots.len());
        for slot in slots {
            self.settle(slot, now);
            rows.push(self.bucket_row(now, slot));
        }
        let mut unseen = Vec::new();
        let addresses: Vec<_> = self.policies.iter().map(|p| p.id.clone()).collect();
        for id in addresses {
            let policy = self.policies.find(&id).expect("listed above");
            for place in 0..self.policies.get(policy).classes.len() {
                let place = u32::try_from(place).expect("fewer than 2^32 classes");
                let ledger = self.policies.get_mut(policy).unseen(place, now);
                let slot = self.policies.get(policy);
                let class = slot.class(place);
                let level = level_row(now, &ledger, &class.limit, slot.version());
                unseen.push(UnseenRow {
                    policy: id.clone(),
                    class: class.class.clone(),
                    level,
                });
            }
        }
        let anchors = self.holders.iter().filter(|h| h.leases > 0);
        HandOver {
            stamp: Some(Stamp {
                boot: self.config.boot,
                at: now,
            }),
            buckets: rows,
            unseen,
            anchors: anchors.map(|h| (h.incarnation, h.anchor)).collect(),
        }
    }

    fn bucket_row(&self, now: Timestamp, slot: u32) -> BucketRow {
        let bucket = self.buckets.get(slot);
        let policy = self.policies.get(bucket.policy);
        let limit = &policy.class(bucket.class).limit;
        let leases = bucket.leases.as_slice().iter().map(|lease| LeaseRow {
            incarnation: self.holders.get(lease.holder).incarnation,
            lease: lease.id,
            version: lease.version,
            sequence: lease.sequence,
            granted: lease.granted(),
            spent: lease.spent(),
            returned: lease.returned(),
            remaining: lease.reclaim_at.since(now),
        });
        BucketRow {
            bucket: BucketAddress {
                policy: policy.id.clone(),
                key: bucket.key.clone(),
            },
            level: level_row(now, &bucket.ledger, limit, policy.version()),
            leases: leases.collect(),
        }
    }
}

fn level_row(
    now: Timestamp,
    ledger: &Ledger,
    limit: &Limit,
    version: crate::id::PolicyVersion,
) -> LevelRow {
    let capacity = Level::from_tokens(i128::from(limit.capacity().get()), limit.rate());
    LevelRow {
        version,
        used_parts: capacity.parts().saturating_sub(ledger.level.parts()),
        rate: limit.rate(),
        ghost: ledger.ghost,
        ghost_term: if ledger.ghost.is_zero() {
            crate::time::Term::ZERO
        } else {
            ledger.ghost_end.since(now)
        },
    }
}

/// The ledger that a row describes. The time since the row was made refills it only if that time
/// is certain: on the same boot, under the same version. Whatever the row says, the ledger keeps
/// conservation: a row that claims more is cut.
fn restored(
    now: Timestamp,
    row: &LevelRow,
    limit: &Limit,
    outstanding: Tokens,
    stamp: Option<Stamp>,
    boot: u128,
    version: crate::id::PolicyVersion,
) -> Ledger {
    let capacity = Level::from_tokens(i128::from(limit.capacity().get()), limit.rate());
    // More than 2^64 tokens were never used: a row that says so must not overflow what follows.
    let used_most = Level::from_tokens(i128::from(u64::MAX), row.rate).parts();
    let used = row.used_parts.clamp(0, used_most).saturating_neg();
    let used = Level::from_parts(used).converted(row.rate, limit.rate());
    let mut ledger = Ledger {
        level: Level::from_parts(capacity.parts().saturating_add(used.parts())),
        settled_at: now,
        outstanding,
        ghost: row.ghost,
        ghost_end: now + row.ghost_term,
    };
    let ceiling = Level::from_tokens(ledger.ceiling(limit), limit.rate());
    ledger.level = ledger.level.min(ceiling);
    if row.version == version
        && let Some(stamp) = stamp.filter(|s| s.boot == boot)
    {
        ledger.settled_at = stamp.at.min(now);
    }
    ledger
}
