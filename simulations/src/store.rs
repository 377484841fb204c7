//! The store as the core may rely on it: claims, fenced batches, settling, hand-overs, policies.
//!
//! Everything here is durable at once; what is in flight, lost or unknown is decided by the world
//! before it calls. It counts tenures as the rules say: a claim tells how many earlier tenures may
//! still have live exposure and counts itself in the same step; settling leaves one.

use std::collections::BTreeMap;

use quota_core::id::{Epoch, PolicyVersion};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::policy::PolicyHistory;
use quota_core::record::{HandOver, Reservation, ReservationWrite};

/// A tenure that was begun.
#[derive(Debug)]
pub struct Claim {
    /// Its epoch.
    pub epoch: Epoch,
    /// Earlier tenures whose exposure may be live.
    pub tenures_before: u32,
    /// True if nobody owned the shard before.
    pub first: bool,
    /// The exact state that the tenure before left.
    pub hand_over: Option<HandOver>,
}

/// The durable state of one shard and of all policies.
#[derive(Debug, Default)]
pub struct ModelStore {
    epoch: Epoch,
    tenures: u32,
    released: bool,
    /// In true time: until when the owner may believe in its tenure.
    held_until: u64,
    hand_over: Option<HandOver>,
    reservations: BTreeMap<BucketAddress, Reservation>,
    policies: BTreeMap<PolicyId, PolicyHistory>,
    revision: u64,
}

impl ModelStore {
    /// The epoch of the last claim.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if nobody else may claim the shard at `now`: its owner may still decide.
    #[must_use]
    pub const fn is_held(&self, now: u64) -> bool {
        !self.released && now < self.held_until
    }

    /// The owner was heard: nobody else may claim before `until`. False if it is not the owner.
    pub fn keep_alive(&mut self, epoch: Epoch, until: u64) -> bool {
        let owned = self.epoch == epoch && !self.released;
        if owned {
            self.held_until = self.held_until.max(until);
        }
        owned
    }

    /// How many tenures may have live exposure, the present one included.
    #[must_use]
    pub const fn tenures(&self) -> u32 {
        self.tenures
    }

    /// The hand-over that waits for its claim.
    #[must_use]
    pub fn handed_over(&self) -> Option<HandOver> {
        self.hand_over.clone()
    }

    /// Begins a tenure; consumes a hand-over.
    pub fn claim(&mut self) -> Claim {
        let first = self.epoch == Epoch::default();
        let claim = Claim {
            epoch: self.epoch.next(),
            tenures_before: self.tenures,
            first,
            hand_over: self.hand_over.take(),
        };
        self.epoch = claim.epoch;
        self.tenures += 1;
        self.released = false;
        self.held_until = 0;
        claim
    }

    /// Applies a batch unless another tenure has begun; true if it was applied.
    pub fn write(&mut self, epoch: Epoch, records: &[ReservationWrite]) -> bool {
        let owned = self.epoch == epoch && !self.released;
        if owned {
            self.put(records);
        }
        owned
    }

    /// Applies records without asking whose they are.
    pub fn put(&mut self, records: &[ReservationWrite]) {
        for record in records {
            match record.reservation {
                Some(reservation) => {
                    self.reservations.insert(record.bucket.clone(), reservation);
                }
                None => {
                    self.reservations.remove(&record.bucket);
                }
            }
        }
    }

    /// Marks the shard settled unless another tenure has begun.
    pub fn settle(&mut self, epoch: Epoch) -> bool {
        let owned = self.epoch == epoch && !self.released;
        if owned {
            self.tenures = 1;
        }
        owned
    }

    /// Ends a tenure with its exact state.
    pub fn hand_over(&mut self, epoch: Epoch, rows: HandOver) -> bool {
        let owned = self.epoch == epoch && !self.released;
        if owned {
            self.hand_over = Some(rows);
            self.released = true;
        }
        owned
    }

    /// All reservations.
    #[must_use]
    pub fn reservations(&self) -> Vec<(BucketAddress, Reservation)> {
        let all = self.reservations.iter();
        all.map(|(bucket, record)| (bucket.clone(), *record))
            .collect()
    }

    /// One bucket's reservation.
    #[must_use]
    pub fn reservation(&self, bucket: &BucketAddress) -> Option<&Reservation> {
        self.reservations.get(bucket)
    }

    /// The version that the next policy write carries.
    pub fn next_version(&mut self) -> PolicyVersion {
        self.revision += 1;
        PolicyVersion::new(self.revision)
    }

    /// Stores a policy.
    pub fn put_policy(&mut self, history: PolicyHistory) {
        self.policies.insert(history.id().clone(), history);
    }

    /// Removes a policy for good.
    pub fn forget_policy(&mut self, id: &PolicyId) {
        self.policies.remove(id);
    }

    /// One policy.
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> Option<&PolicyHistory> {
        self.policies.get(id)
    }

    /// All policies, tombstones included.
    #[must_use]
    pub fn policies(&self) -> Vec<PolicyHistory> {
        self.policies.values().cloned().collect()
    }
}
