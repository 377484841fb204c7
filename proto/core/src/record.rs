//! What a shard keeps durably: reservations, and exact rows for a planned hand-over.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, LeaseId, MessageNumber, PolicyVersion, Sequence};
use crate::key::BucketAddress;
use crate::rate::Rate;
use crate::time::{Term, Timestamp};
use crate::tokens::Tokens;

/// When a record was made, on a clock that is comparable only within one boot of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Identifies the boot of the machine whose clock `at` was read from.
    pub boot: u128,
    /// That machine's monotonic clock.
    pub at: Timestamp,
}

/// The durable record of a reserved bucket: it books tokens before they are granted.
///
/// The gross grants made since the record became durable never exceed what it booked, so a
/// successor that starts at `min(capacity − used + certain refill, capacity − exposure)` can
/// never grant a token twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The policy version in force when the record was made.
    pub version: PolicyVersion,
    /// Capacity less what was available, with the booked block already taken off; rounded up.
    /// Kept as an amount used, so that it carries over to another capacity.
    pub used: Tokens,
    /// Everything that may be live: outstanding, ghosts, and the booked block.
    pub exposure: Tokens,
    /// When the record was made.
    pub stamp: Stamp,
}

/// One change to a shard's reservations: a new record, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationWrite {
    /// The bucket.
    pub bucket: BucketAddress,
    /// `None` deletes: the bucket is full with nothing outstanding, as if it had never been.
    pub reservation: Option<Reservation>,
}

/// The exact state of a shard, written once at a planned hand-over and read by the next owner
/// only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// When the rows were made.
    pub stamp: Option<Stamp>,
    /// The buckets that differ from an unseen one.
    pub buckets: Vec<BucketRow>,
    /// For each policy and limit class, what an unseen bucket is.
    pub unseen: Vec<UnseenRow>,
    /// The highest message number received from each incarnation that holds a lease.
    pub anchors: Vec<(Incarnation, MessageNumber)>,
}

/// The exact level of a bucket and its ghost, for a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelRow {
    /// The policy version in force.
    pub version: PolicyVersion,
    /// Capacity less what was available, in parts of the rate's denominator.
    pub used_parts: i128,
    /// The rate whose parts those are.
    pub rate: Rate,
    /// Exposure of earlier tenures that still counts as outstanding.
    pub ghost: Tokens,
    /// For how much longer it counts.
    pub ghost_term: Term,
}

/// One bucket of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRow {
    /// The bucket.
    pub bucket: BucketAddress,
    /// Its level and ghost.
    pub level: LevelRow,
    /// Its live leases.
    pub leases: Vec<LeaseRow>,
}

/// What an unseen bucket of one limit class is, at a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnseenRow {
    /// The policy.
    pub policy: crate::key::PolicyId,
    /// The limit class within the policy.
    pub class: crate::policy::LimitClass,
    /// Its level and ghost.
    pub level: LevelRow,
}

/// One live lease of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRow {
    /// Who holds it.
    pub incarnation: Incarnation,
    /// The lease.
    pub lease: LeaseId,
    /// The policy version that it belongs to.
    pub version: PolicyVersion,
    /// The highest sequence number answered.
    pub sequence: Sequence,
    /// Running total granted.
    pub granted: Tokens,
    /// Running total reported spent.
    pub spent: Tokens,
    /// Running total returned.
    pub returned: Tokens,
    /// The time after which the authority may reclaim it, counted by the receiver from when it
    /// reads the row.
    pub remaining: Term,
}
