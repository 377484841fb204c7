//! What a server keeps durably: who it is, who owns which shard, reservations and policies.
//!
//! - [`Store`]: what every store must do; one conformance suite runs against all of them
//! - [`sled`]: the embedded store, the default
//! - [`memory`]: the same semantics without a disk, for tests
//! - [`handle`]: the asynchronous front, with group commit on one thread of its own
//! - [`mod@format`]: the bytes of every record
//!
//! A store knows nothing of grants, leases or time. It compares epochs, applies batches whole or
//! not at all, and counts tenures; what follows from that is the core's business.

pub mod error;
pub mod format;
pub mod handle;
mod mark;
pub mod memory;
mod rules;
pub mod sled;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::policy::PolicyHistory;
use quota_core::record::{HandOver, Reservation, ReservationWrite};

pub use error::{PolicyWriteError, StoreError, WriteError};
pub use format::{SwitchRecord, SwitchesRecord};

/// Most shards of a cluster. More would cost a claim each at every start and gain nothing.
pub const SHARDS_MAX: u32 = 4096;

/// What a store was created as. None of it ever changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random, drawn at creation: tells two clusters apart in logs and backups.
    pub cluster: u128,
    /// The number of shards. A bucket's shard is a hash of its address modulo this number, so
    /// that another number would look for every bucket in the wrong place.
    pub shards: u32,
}

/// A tenure of one shard, begun by [`Store::claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The shard.
    pub shard: ShardId,
    /// The tenure's epoch, higher than every earlier one of this shard.
    pub epoch: Epoch,
    /// How many earlier tenures may still have live exposure (`k` before this claim counted
    /// itself). The new owner's ghost follows from it.
    pub tenures_before: u32,
    /// True for the first tenure ever of this shard, which alone may treat unseen as full.
    pub first: bool,
    /// The exact state that the tenure before this one left, if it ended by a hand-over. It is
    /// consumed by this claim: no later one sees it.
    pub hand_over: Option<HandOver>,
}

/// One shard's batch of records: applied whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWrite {
    /// The shard. Every record must belong to it.
    pub shard: ShardId,
    /// The writer's epoch. The write is refused if another claim was made since.
    pub epoch: Epoch,
    /// Counts the writes of the tenure, from one. A write is refused unless it follows the one
    /// before it, so that none is applied late, twice, or after one whose outcome is unknown.
    pub number: u64,
    /// The records, in order; a later one for the same bucket wins.
    pub records: Vec<ReservationWrite>,
}

/// A policy as the store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPolicy {
    /// The store-wide revision of the last write of this record. It is what a change must name
    /// as the one it expects; it is higher than the current policy's version if only the history
    /// was changed since.
    pub revision: PolicyVersion,
    /// The policy: its current version, if it is not deleted, and the former ones that still
    /// matter.
    pub history: PolicyHistory,
}

/// A compare-and-set of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyWrite {
    /// The revision of the record that this one replaces; `None` if there must be none.
    pub expected: Option<PolicyVersion>,
    /// The revision of this write, as [`Store::next_revision`] told it. A new version of the
    /// policy carries this number.
    pub revision: PolicyVersion,
    /// What to store. It names the policy.
    pub history: PolicyHistory,
}

/// A durable store, used by one thread at a time.
///
/// Every method blocks, and one that changes something returns only once the change is durable
/// against loss of power. Asynchronous callers go through [`handle::StoreHandle`].
///
/// A store that has failed in a way that leaves its contents in doubt says so in every later
/// call ([`StoreError::Stopped`]) until it is opened anew.
pub trait Store: Send {
    /// What the store was created as.
    fn identity(&self) -> Identity;

    /// Begins a tenure: raises the epoch and the count of tenures whose exposure may be live, and
    /// consumes a hand-over if there is one, in one durable write. Costs one commit.
    ///
    /// # Errors
    /// [`StoreError`]. If the outcome is unknown, claiming again is always safe.
    fn claim(&mut self, shard: ShardId) -> Result<Claim, StoreError>;

    /// Every reservation of a shard, each bucket once, in a fixed order. Costs a read of all of them.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if one record cannot be trusted: then none is returned.
    fn load(&mut self, shard: ShardId) -> Result<Vec<(BucketAddress, Reservation)>, StoreError>;

    /// Applies the batches, each whole or not at all and each fenced by itself, and makes all of
    /// them durable with one commit. The outcomes are in the order of the batches. Two batches of
    /// one shard are applied in order.
    fn write(&mut self, batches: &[ShardWrite]) -> Vec<Result<(), WriteError>>;

    /// Marks the shard settled: no earlier tenure has live exposure any more, only this one.
    ///
    /// # Errors
    /// [`WriteError`]; [`WriteError::Fenced`] if another claim was made since `epoch`.
    fn settle(&mut self, shard: ShardId, epoch: Epoch) -> Result<(), WriteError>;

    /// Ends a tenure with its exact state: writes the rows, then one marker that names the epoch
    /// and releases the claim. Later calls with `epoch` are refused; the next claim, and only
    /// that one, gets the rows. Costs two commits.
    ///
    /// # Errors
    /// [`WriteError`]. The tenure must be treated as over whatever the outcome.
    fn hand_over(
        &mut self,
        shard: ShardId,
        epoch: Epoch,
        rows: &HandOver,
    ) -> Result<(), WriteError>;

    /// All policies, ordered by identity, deleted ones with live history included.
    ///
    /// # Errors
    /// [`StoreError`].
    fn policies(&mut self) -> Result<Vec<StoredPolicy>, StoreError>;

    /// The revision that the next [`Store::put_policy`] must carry. Higher than that of every
    /// write ever made, forgotten policies included.
    ///
    /// # Errors
    /// [`StoreError`].
    fn next_revision(&mut self) -> Result<PolicyVersion, StoreError>;

    /// Stores a policy if both its record and the store's revision are what the write expects.
    ///
    /// # Errors
    /// [`PolicyWriteError::Conflict`] if another write came first: read again and decide again.
    fn put_policy(&mut self, write: &PolicyWrite) -> Result<(), PolicyWriteError>;

    /// Removes a policy's record for good. Only right once no exposure of any of its versions can
    /// be live; deleting a policy before that is a [`Store::put_policy`] of a history without a
    /// current version.
    ///
    /// # Errors
    /// [`PolicyWriteError::Conflict`] if the record is not the expected one.
    fn forget_policy(
        &mut self,
        id: &PolicyId,
        expected: PolicyVersion,
    ) -> Result<(), PolicyWriteError>;

    /// The kill switches that are set; none in a store that never had one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn switches(&mut self) -> Result<SwitchesRecord, StoreError>;

    /// Puts these kill switches in the place of those there were, at the next revision, which is
    /// returned. Costs one commit.
    ///
    /// # Errors
    /// [`StoreError`]. Whether the switches are stored is then not known: read them again.
    fn put_switches(&mut self, switches: &SwitchesRecord) -> Result<PolicyVersion, StoreError>;
}

/// What a panic said.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
