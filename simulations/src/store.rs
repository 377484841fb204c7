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
    hand_over: Option<HandOver>,
    reservations: BTreeMap<BucketAddress, Reservation>,
    policies: BTreeMap<PolicyId, PolicyHistory>,
    revision: u64,
}

impl ModelStore {
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
        claim
    }

    /// Applies a batch unless another tenure has begun; true if it was applied.
    pub fn write(&mut self, epoch: Epoch, records: &[ReservationWrite]) -> bool {
        if self.epoch != epoch || self.released {
            return false;
        }
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
        true
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
