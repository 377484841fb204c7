//! What every store decides alike: who may write, what a claim changes, which policy write wins.
//!
//! Pure, so that a store adds nothing but where the records are kept.

use std::collections::HashMap;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::PolicyId;

use super::format::ClaimRecord;
use super::{PolicyWrite, PolicyWriteError, ShardWrite, StoreError, WriteError};

/// The claim record after a new claim; `before` is the one found, if the shard was ever claimed.
#[must_use]
pub(super) fn begin_tenure(before: Option<&ClaimRecord>) -> ClaimRecord {
    match before {
        None => ClaimRecord {
            epoch: Epoch::new(1),
            tenures: 1,
            hand_over: None,
        },
        // A hand-over raises the count as well, although its rows are exact: should this tenure
        // crash at once, that counts one tenure too many, never one too few.
        Some(before) => ClaimRecord {
            epoch: before.epoch.next(),
            tenures: before.tenures.saturating_add(1),
            hand_over: None,
        },
    }
}

/// How many tenures before the coming one may have live exposure.
#[must_use]
pub(super) fn tenures_before(before: Option<&ClaimRecord>) -> u32 {
    before.map_or(0, |before| before.tenures)
}

/// Refuses an epoch that does not own the shard.
pub(super) fn fence(
    current: Option<&ClaimRecord>,
    shard: ShardId,
    epoch: Epoch,
) -> Result<(), WriteError> {
    match current {
        Some(claim) if claim.epoch == epoch && claim.hand_over.is_none() => Ok(()),
        other => Err(WriteError::Fenced {
            shard,
            got: epoch,
            current: other.map(|claim| claim.epoch),
            released: other.is_some_and(|claim| claim.hand_over.is_some()),
        }),
    }
}

/// Refuses a shard that the store does not have.
pub(super) fn check_shard(shard: ShardId, shards: u32) -> Result<(), StoreError> {
    if shard.get() < shards {
        Ok(())
    } else {
        Err(StoreError::UnknownShard { shard, shards })
    }
}

/// Refuses a batch with a record that belongs to another shard.
pub(super) fn check_records(write: &ShardWrite, shards: u32) -> Result<(), WriteError> {
    let failed = |source| WriteError::Failed {
        shard: write.shard,
        source,
    };
    check_shard(write.shard, shards).map_err(failed)?;
    for record in &write.records {
        let home = record.bucket.shard(shards);
        if home != write.shard {
            return Err(failed(StoreError::Misplaced {
                bucket: record.bucket.to_string(),
                home,
            }));
        }
    }
    Ok(())
}

/// The number of the write that is due in each tenure that was begun since the store was opened.
/// A tenure that is not here was begun by an earlier process and can write no more.
#[derive(Debug, Default)]
pub(super) struct WriteNumbers(HashMap<ShardId, u64>);

impl WriteNumbers {
    /// A tenure begins: its first write is number one.
    pub(super) fn begin(&mut self, shard: ShardId) {
        self.0.insert(shard, 1);
    }

    /// No write can follow in this tenure.
    pub(super) fn end(&mut self, shard: ShardId) {
        self.0.remove(&shard);
    }

    /// Takes the number of a write, or says why it is not due. Once taken, the write must be
    /// applied, or the tenure ended.
    pub(super) fn take(&mut self, write: &ShardWrite) -> Result<(), WriteError> {
        match self.0.get_mut(&write.shard) {
            Some(due) if *due == write.number => {
                *due += 1;
                Ok(())
            }
            due => Err(WriteError::OutOfOrder {
                shard: write.shard,
                epoch: write.epoch,
                got: write.number,
                expected: due.copied(),
            }),
        }
    }
}

/// The revision after `highest`.
#[must_use]
pub(super) fn revision_after(highest: PolicyVersion) -> PolicyVersion {
    PolicyVersion::new(
        highest
            .get()
            .checked_add(1)
            .expect("a store sees fewer than 2^64 policy changes"),
    )
}

/// Decides whether a policy write applies.
pub(super) fn check_policy(
    write: &PolicyWrite,
    found: Option<PolicyVersion>,
    highest: PolicyVersion,
) -> Result<(), PolicyWriteError> {
    check_revision(write.history.id(), write.expected, found)?;
    let next = revision_after(highest);
    if write.revision != next {
        return Err(PolicyWriteError::RevisionTaken {
            got: write.revision,
            next,
        });
    }
    Ok(())
}

/// Refuses a policy change that expects another record than the one found.
pub(super) fn check_revision(
    id: &PolicyId,
    expected: Option<PolicyVersion>,
    found: Option<PolicyVersion>,
) -> Result<(), PolicyWriteError> {
    if expected == found {
        Ok(())
    } else {
        Err(PolicyWriteError::Conflict {
            id: id.clone(),
            expected,
            found,
        })
    }
}
