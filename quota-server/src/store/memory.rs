//! A store without a disk, for tests: what every store does, and failures on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::record::{HandOver, Reservation};

use super::format::{ClaimRecord, HandOverMarker, PolicyRecord, SwitchesRecord};
use super::rules::{self, WriteNumbers};
use super::{
    Claim, Identity, PolicyWrite, PolicyWriteError, SHARDS_MAX, ShardWrite, Store, StoreError,
    StoredPolicy, WriteError,
};

/// What outlives a [`MemoryStore`], as a disk would. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryDisk(Arc<Mutex<Contents>>);

#[derive(Debug)]
struct Contents {
    identity: Identity,
    claims: BTreeMap<ShardId, ClaimRecord>,
    hand_overs: BTreeMap<ShardId, HandOver>,
    reservations: BTreeMap<ShardId, BTreeMap<BucketAddress, Reservation>>,
    policies: BTreeMap<PolicyId, PolicyRecord>,
    switches: SwitchesRecord,
    revision: PolicyVersion,
    faults: VecDeque<Fault>,
    writes: u64,
}

/// How one coming [`Store::write`] goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written, and the writer is told so.
    Failed,
    /// Nothing is written; the writer does not know.
    UnknownLost,
    /// Everything is written; the writer does not know.
    UnknownWritten,
    /// The store panics.
    Panic,
}

impl MemoryDisk {
    /// An empty disk for a cluster of `shards` shards.
    #[must_use]
    pub fn new(shards: u32) -> Self {
        assert!(
            (1..=SHARDS_MAX).contains(&shards),
            "a legal number of shards"
        );
        Self(Arc::new(Mutex::new(Contents {
            identity: Identity {
                cluster: crate::random::number(),
                shards,
            },
            claims: BTreeMap::new(),
            hand_overs: BTreeMap::new(),
            reservations: BTreeMap::new(),
            policies: BTreeMap::new(),
            switches: SwitchesRecord::default(),
            revision: PolicyVersion::default(),
            faults: VecDeque::new(),
            writes: 0,
        })))
    }

    /// Lets the next writes that are not due to another fault go wrong, in order.
    pub fn inject(&self, fault: Fault) {
        self.contents().faults.push_back(fault);
    }

    /// How many calls of [`Store::write`] applied something.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.contents().writes
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A test that panics on purpose must still be able to look at the disk.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store on a [`MemoryDisk`].
#[derive(Debug)]
pub struct MemoryStore {
    disk: MemoryDisk,
    numbers: WriteNumbers,
}

impl MemoryStore {
    /// Opens the disk; `shards` is checked if given, as a store on a real disk does.
    ///
    /// # Errors
    /// [`StoreError::ShardCount`].
    pub fn open(disk: &MemoryDisk, shards: Option<u32>) -> Result<Self, StoreError> {
        let stored = disk.contents().identity.shards;
        match shards {
            Some(asked) if asked != stored => Err(StoreError::ShardCount { stored, asked }),
            _ => Ok(Self {
                disk: disk.clone(),
                numbers: WriteNumbers::default(),
            }),
        }
    }
}

impl Contents {
    fn fence(&self, shard: ShardId, epoch: Epoch) -> Result<ClaimRecord, WriteError> {
        rules::check_shard(shard, self.identity.shards)
            .map_err(|source| WriteError::Failed { shard, source })?;
        let claim = self.claims.get(&shard);
        rules::fence(claim, shard, epoch)?;
        Ok(*claim.expect("a shard that was never claimed does not pass the fence"))
    }

    fn apply(&mut self, write: &ShardWrite) {
        let shard = self.reservations.entry(write.shard).or_default();
        for record in &write.records {
            match record.reservation {
                Some(reservation) => {
                    shard.insert(record.bucket.clone(), reservation);
                }
                None => {
                    shard.remove(&record.bucket);
                }
            }
        }
    }
}

fn injected() -> StoreError {
    StoreError::Backend {
        doing: "writing",
        source: "a fault was injected".into(),
    }
}

impl Store for MemoryStore {
    fn identity(&self) -> Identity {
        self.disk.contents().identity
    }

    fn claim(&mut self, shard: ShardId) -> Result<Claim, StoreError> {
        let mut contents = self.disk.contents();
        rules::check_shard(shard, contents.identity.shards)?;
        let before = contents.claims.get(&shard).copied();
        let claim = rules::begin_tenure(before.as_ref());
        contents.claims.insert(shard, claim);
        self.numbers.begin(shard);
        Ok(Claim {
            shard,
            epoch: claim.epoch,
            tenures_before: rules::tenures_before(before.as_ref()),
            first: before.is_none(),
            hand_over: contents.hand_overs.remove(&shard),
        })
    }

    fn load(&mut self, shard: ShardId) -> Result<Vec<(BucketAddress, Reservation)>, StoreError> {
        let contents = self.disk.contents();
        rules::check_shard(shard, contents.identity.shards)?;
        let rows = contents.reservations.get(&shard).into_iter().flatten();
        Ok(rows
            .map(|(bucket, reservation)| (bucket.clone(), *reservation))
            .collect())
    }

    fn write(&mut self, batches: &[ShardWrite]) -> Vec<Result<(), WriteError>> {
        let mut contents = self.disk.contents();
        let fault = contents.faults.pop_front();
        assert!(fault != Some(Fault::Panic), "a panic was injected");
        let shards = contents.identity.shards;
        let mut outcomes = Vec::with_capacity(batches.len());
        let mut applied = false;
        for write in batches {
            let shard = write.shard;
            let admitted = rules::check_records(write, shards)
                .and_then(|()| contents.fence(shard, write.epoch))
                .and_then(|_| self.numbers.take(write));
            let outcome = admitted.and_then(|()| {
                if matches!(fault, None | Some(Fault::UnknownWritten)) {
                    contents.apply(write);
                    applied = true;
                }
                let source = injected();
                match fault {
                    None | Some(Fault::Panic) => return Ok(()),
                    Some(Fault::Failed) => Err(WriteError::Failed { shard, source }),
                    Some(_) => Err(WriteError::Unknown { shard, source }),
                }
                .inspect_err(|_| self.numbers.end(shard))
            });
            outcomes.push(outcome);
        }
        contents.writes += u64::from(applied);
        outcomes
    }

    fn settle(&mut self, shard: ShardId, epoch: Epoch) -> Result<(), WriteError> {
        let mut contents = self.disk.contents();
        let claim = contents.fence(shard, epoch)?;
        let settled = ClaimRecord {
            tenures: 1,
            ..claim
        };
        contents.claims.insert(shard, settled);
        Ok(())
    }

    fn hand_over(
        &mut self,
        shard: ShardId,
        epoch: Epoch,
        rows: &HandOver,
    ) -> Result<(), WriteError> {
        let mut contents = self.disk.contents();
        let claim = contents.fence(shard, epoch)?;
        self.numbers.end(shard);
        contents.hand_overs.insert(shard, rows.clone());
        let released = ClaimRecord {
            hand_over: Some(HandOverMarker { epoch, parts: 1 }),
            ..claim
        };
        contents.claims.insert(shard, released);
        Ok(())
    }

    fn policies(&mut self) -> Result<Vec<StoredPolicy>, StoreError> {
        let contents = self.disk.contents();
        let stored = |record: &PolicyRecord| StoredPolicy {
            revision: record.revision,
            history: record.history.clone(),
        };
        Ok(contents.policies.values().map(stored).collect())
    }

    fn next_revision(&mut self) -> Result<PolicyVersion, StoreError> {
        Ok(rules::revision_after(self.disk.contents().revision))
    }

    fn put_policy(&mut self, write: &PolicyWrite) -> Result<(), PolicyWriteError> {
        let mut contents = self.disk.contents();
        let found = contents
            .policies
            .get(write.history.id())
            .map(|record| record.revision);
        rules::check_policy(write, found, contents.revision)?;
        contents.revision = write.revision;
        let record = PolicyRecord {
            revision: write.revision,
            history: write.history.clone(),
        };
        contents.policies.insert(write.history.id().clone(), record);
        Ok(())
    }

    fn forget_policy(
        &mut self,
        id: &PolicyId,
        expected: PolicyVersion,
    ) -> Result<(), PolicyWriteError> {
        let mut contents = self.disk.contents();
        let found = contents.policies.get(id).map(|record| record.revision);
        rules::check_revision(id, Some(expected), found)?;
        contents.policies.remove(id);
        Ok(())
    }

    fn switches(&mut self) -> Result<SwitchesRecord, StoreError> {
        Ok(self.disk.contents().switches.clone())
    }

    fn put_switches(&mut self, switches: &SwitchesRecord) -> Result<PolicyVersion, StoreError> {
        let mut contents = self.disk.contents();
        contents.revision = rules::revision_after(contents.revision);
        contents.switches = switches.clone();
        Ok(contents.revision)
    }
}
