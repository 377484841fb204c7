//! The embedded store, on `sled` 0.34.
//!
//! A data directory holds the database in `sled/` and, beside it, the mark of the
//! last acknowledged commit. One tree per kind of record, laid out by shard.
//!
//! What `sled` does not do by itself, and is done here:
//! - Its `flush` ends in `sync_file_range`, which does not reach through a disk's cache and does
//!   not write file metadata. Each commit is followed by `sync_data` on the `db` file. Pages above
//!   128 KiB lie in files of their own under `blobs/`, which it never syncs: new ones are synced
//!   first. Directories are synced at creation.
//! - A panic in one of its threads leaves callers waiting for ever. A panic on the calling thread
//!   is caught here; the wait is bounded by the [handle](super::handle).
//! - Damage in its log looks to it like the end of the log. The mark tells.
//!
//! After the first failure of a write or sync every later call is refused: a sync that failed once
//! may report success the next time without having written anything. Only opening the store anew
//! helps, because that reads what is really there.
//!
//! What remains: `sled` may reuse a segment of its file once the pages that replace it were handed
//! to `sync_file_range`. If power is lost between that and the next commit's sync, on a disk that
//! reorders across its cache, the pages can be lost. Then the mark or a checksum tells, and the
//! store is refused.

mod directory;
mod disk;
mod guard;

use std::fs::File;
use std::path::{Path, PathBuf};

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::record::{HandOver, Reservation};

use super::format::{
    self, ClaimRecord, HandOverMarker, IdentityRecord, PolicyRecord, SwitchesRecord, Tree,
};
use super::rules::{self, WriteNumbers};
use super::{
    Claim, Identity, PolicyWrite, PolicyWriteError, SHARDS_MAX, ShardWrite, Store, StoreError,
    StoredPolicy, WriteError,
};
use directory::{AwaitRelease, DATABASE, attach, open_database, open_mark};
use disk::{Disk, io_error, sync_directory};
use guard::{caught, each, read};

/// The number of shards if none is asked for at creation.
pub const SHARDS_DEFAULT: u32 = 64;

/// The page cache, in bytes. A server reads a shard's records once, at its claim, so the cache
/// only has to hold the pages under write. `sled`'s own default of 1 GiB buys nothing here.
pub const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct SledOptions {
    /// The data directory, created if it is not there.
    pub path: PathBuf,
    /// The number of shards: asked for at creation ([`SHARDS_DEFAULT`] if `None`), checked
    /// afterwards (not if `None`).
    pub shards: Option<u32>,
    /// The page cache, in bytes.
    pub cache_bytes: u64,
}

impl SledOptions {
    /// The defaults, for a data directory.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            shards: None,
            cache_bytes: CACHE_BYTES_DEFAULT,
        }
    }
}

/// An open store.
#[derive(Debug)]
pub struct SledStore {
    identity: Identity,
    trees: Trees,
    disk: Disk,
    commits: u64,
    numbers: WriteNumbers,
    /// What failed first, if anything did.
    stopped: Option<String>,
    /// Dropped last.
    _release: AwaitRelease,
}

#[derive(Debug)]
struct Trees {
    meta: sled::Tree,
    claims: sled::Tree,
    reservations: sled::Tree,
    hand_overs: sled::Tree,
    policies: sled::Tree,
}

impl SledStore {
    /// Opens the store in a directory, or creates it in an empty one.
    ///
    /// # Errors
    /// [`StoreError`]: in use, created with other settings, foreign, corrupt, or a failing disk.
    pub fn open(options: &SledOptions) -> Result<Self, StoreError> {
        if let Some(asked) = options.shards
            && !(1..=SHARDS_MAX).contains(&asked)
        {
            return Err(StoreError::ShardCountRange { asked });
        }
        let mark = open_mark(&options.path)?;
        let database = open_database(options)?;
        let (trees, disk) = caught("opening", || Ok(attach(options, database, mark)))??;
        // A descriptor of its own, and not a duplicate: the lock is the descriptor's.
        let release = File::open(&disk.file_path)
            .map_err(|source| io_error("open", &disk.file_path, source))?;
        let mut store = Self {
            identity: Identity {
                cluster: 0,
                shards: 0,
            },
            trees,
            disk,
            commits: 0,
            numbers: WriteNumbers::default(),
            stopped: None,
            _release: AwaitRelease(release),
        };
        store.identify(options)?;
        store
            .disk
            .mark
            .sync()
            .map_err(|source| io_error("sync", &store.disk.mark_path, source))?;
        Ok(store)
    }

    /// Reads or writes the identity, and compares the commits found with the mark.
    fn identify(&mut self, options: &SledOptions) -> Result<(), StoreError> {
        let name = |what: &'static str| move || what.to_owned();
        let identity: Option<IdentityRecord> = read(
            &self.trees.meta,
            Tree::Meta,
            format::IDENTITY_KEY,
            name("identity"),
        )?;
        let commits: Option<u64> = read(
            &self.trees.meta,
            Tree::Meta,
            format::COMMITS_KEY,
            name("commits"),
        )?;
        self.commits = commits.unwrap_or(0);
        if self.commits < self.disk.mark.last() {
            return Err(StoreError::LostCommits {
                path: options.path.clone(),
                acknowledged: self.disk.mark.last(),
                found: self.commits,
            });
        }
        self.check_damaged_mark()?;
        let identity = match identity {
            Some(found) => found,
            None => self.create(options.shards.unwrap_or(SHARDS_DEFAULT), &options.path)?,
        };
        if let Some(asked) = options.shards
            && asked != identity.shards
        {
            return Err(StoreError::ShardCount {
                stored: identity.shards,
                asked,
            });
        }
        self.identity = Identity {
            cluster: identity.cluster,
            shards: identity.shards,
        };
        Ok(())
    }

    /// A mark with one damaged slot is repaired if the database proves that nothing is missing,
    /// and refused otherwise.
    fn check_damaged_mark(&mut self) -> Result<(), StoreError> {
        let (mark, path) = (&mut self.disk.mark, &self.disk.mark_path);
        if !mark.is_damaged() {
            return Ok(());
        }
        if !mark.vouches_for(self.commits) {
            return Err(StoreError::Corrupt {
                tree: "file",
                key: path.display().to_string(),
                what: format!(
                    "one of its two slots is damaged, and the other does not tell whether a commit \
                     after number {} was acknowledged",
                    self.commits
                ),
            });
        }
        tracing::warn!(
            path = %path.display(),
            commit = self.commits,
            "one slot of the mark was damaged, as by a crash while it was written; the database \
             has every commit, so the mark is written anew"
        );
        mark.repair(self.commits)
            .map_err(|source| io_error("write", path, source))
    }

    fn create(&mut self, shards: u32, path: &Path) -> Result<IdentityRecord, StoreError> {
        let record = IdentityRecord {
            cluster: crate::random::number(),
            shards,
        };
        let bytes = format::encode(Tree::Meta, format::IDENTITY_KEY, &record);
        self.change("creating the store", |trees| {
            trees.meta.insert(format::IDENTITY_KEY, bytes)?;
            Ok(())
        })?;
        for directory in [&path.join(DATABASE), path] {
            sync_directory(directory)?;
        }
        Ok(record)
    }

    /// Runs a change and commits it. The first failure stops the store.
    fn change(
        &mut self,
        doing: &'static str,
        apply: impl FnOnce(&Trees) -> Result<(), sled::Error>,
    ) -> Result<(), StoreError> {
        self.check_running()?;
        let commit = self.commits + 1;
        let number = format::encode(Tree::Meta, format::COMMITS_KEY, &commit);
        let (trees, disk) = (&self.trees, &mut self.disk);
        let outcome = caught(doing, || {
            apply(trees)?;
            // Last, so that a log that holds the number holds all that was committed under it.
            trees.meta.insert(format::COMMITS_KEY, number)?;
            disk.database.flush()?;
            Ok(disk.sync(commit))
        })
        .and_then(|synced| synced);
        match outcome {
            Ok(()) => self.commits = commit,
            Err(error) => {
                self.stopped = Some(error.to_string());
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_running(&self) -> Result<(), StoreError> {
        match &self.stopped {
            None => Ok(()),
            Some(why) => Err(StoreError::Stopped { why: why.clone() }),
        }
    }

    fn claim_record(&self, shard: ShardId) -> Result<Option<ClaimRecord>, StoreError> {
        self.check_running()?;
        rules::check_shard(shard, self.identity.shards)?;
        read(
            &self.trees.claims,
            Tree::Claims,
            &format::shard_key(shard),
            || format!("of shard {shard}"),
        )
    }

    /// Refuses a writer that does not own the shard.
    fn fence(&self, shard: ShardId, epoch: Epoch) -> Result<ClaimRecord, WriteError> {
        let claim = self
            .claim_record(shard)
            .map_err(|source| WriteError::Failed { shard, source })?;
        rules::fence(claim.as_ref(), shard, epoch)?;
        Ok(claim.expect("a shard that was never claimed does not pass the fence"))
    }

    fn put_claim(&mut self, shard: ShardId, claim: &ClaimRecord) -> Result<(), StoreError> {
        let key = format::shard_key(shard);
        let bytes = format::encode(Tree::Claims, &key, claim);
        self.change("writing a claim", |trees| {
            trees.claims.insert(key, bytes)?;
            Ok(())
        })
    }

    fn hand_over_rows(
        &self,
        shard: ShardId,
        marker: HandOverMarker,
    ) -> Result<HandOver, StoreError> {
        let mut joined = Vec::new();
        for index in 0..marker.parts {
            let key = format::part_key(shard, marker.epoch, index);
            let part = caught("reading a hand-over", || self.trees.hand_overs.get(key))?;
            let part = part.ok_or_else(|| StoreError::Corrupt {
                tree: Tree::HandOvers.name(),
                key: format!("of shard {shard}, epoch {}", marker.epoch),
                what: format!("slice {index} of {} is missing", marker.parts),
            })?;
            joined.extend_from_slice(&part);
        }
        format::hand_over_rows(shard, marker.epoch, &joined)
    }

    /// Removes the rows of hand-overs that are over. What a crash leaves goes with the next claim.
    fn sweep_hand_overs(&mut self, shard: ShardId) -> Result<(), StoreError> {
        let hand_overs = &self.trees.hand_overs;
        let outcome = caught("removing a hand-over", || {
            let mut batch = sled::Batch::default();
            let mut any = false;
            for key in hand_overs.scan_prefix(format::shard_key(shard)).keys() {
                batch.remove(key?);
                any = true;
            }
            if any {
                hand_overs.apply_batch(batch)
            } else {
                Ok(())
            }
        });
        if let Err(error) = &outcome {
            self.stopped = Some(error.to_string());
        }
        outcome
    }

    fn policy(&self, id: &PolicyId) -> Result<Option<PolicyRecord>, StoreError> {
        self.check_running()?;
        let key = format::policy_key(id);
        read(&self.trees.policies, Tree::Policies, &key, || {
            id.to_string()
        })
    }

    fn highest_revision(&self) -> Result<PolicyVersion, StoreError> {
        self.check_running()?;
        let highest = read(&self.trees.meta, Tree::Meta, format::REVISION_KEY, || {
            "revision".to_owned()
        })?;
        Ok(highest.unwrap_or_default())
    }

    /// The accepted batches as one atomic batch.
    fn batch_of(&self, writes: &[&ShardWrite]) -> sled::Batch {
        let mut batch = sled::Batch::default();
        for record in writes.iter().flat_map(|write| &write.records) {
            let shard = record.bucket.shard(self.identity.shards);
            let key = format::reservation_key(shard, &record.bucket);
            match &record.reservation {
                Some(reservation) => {
                    let bytes = format::encode(Tree::Reservations, &key, reservation);
                    batch.insert(key, bytes);
                }
                None => batch.remove(key),
            }
        }
        batch
    }

    fn admit(&mut self, write: &ShardWrite) -> Result<(), WriteError> {
        rules::check_records(write, self.identity.shards)?;
        self.fence(write.shard, write.epoch)?;
        self.numbers.take(write)
    }
}

impl Store for SledStore {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn claim(&mut self, shard: ShardId) -> Result<Claim, StoreError> {
        let before = self.claim_record(shard)?;
        // Read before they are consumed: rows that cannot be read must not be lost by that.
        let hand_over = before
            .and_then(|before| before.hand_over)
            .map(|marker| self.hand_over_rows(shard, marker))
            .transpose()?;
        let claim = rules::begin_tenure(before.as_ref());
        self.numbers.end(shard);
        self.put_claim(shard, &claim)?;
        self.sweep_hand_overs(shard)?;
        self.numbers.begin(shard);
        Ok(Claim {
            shard,
            epoch: claim.epoch,
            tenures_before: rules::tenures_before(before.as_ref()),
            first: before.is_none(),
            hand_over,
        })
    }

    fn load(&mut self, shard: ShardId) -> Result<Vec<(BucketAddress, Reservation)>, StoreError> {
        self.check_running()?;
        rules::check_shard(shard, self.identity.shards)?;
        let rows = self
            .trees
            .reservations
            .scan_prefix(format::shard_key(shard));
        let mut reservations = Vec::new();
        each(rows, |key, value| {
            let bucket = format::bucket_of(key)?;
            let reservation =
                format::decode(Tree::Reservations, key, value, || bucket.to_string())?;
            if bucket.shard(self.identity.shards) != shard {
                return Err(StoreError::Corrupt {
                    tree: Tree::Reservations.name(),
                    key: bucket.to_string(),
                    what: format!("it lies in shard {shard}, to which it does not belong"),
                });
            }
            reservations.push((bucket, reservation));
            Ok(())
        })?;
        Ok(reservations)
    }

    fn write(&mut self, batches: &[ShardWrite]) -> Vec<Result<(), WriteError>> {
        let mut outcomes: Vec<_> = batches.iter().map(|write| self.admit(write)).collect();
        let accepted: Vec<&ShardWrite> = batches
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|(write, _)| write)
            .collect();
        if accepted.is_empty() {
            return outcomes;
        }
        let batch = self.batch_of(&accepted);
        let committed = self.change("writing reservations", |trees| {
            trees.reservations.apply_batch(batch)
        });
        if let Err(error) = committed {
            let why = error.to_string();
            for (write, outcome) in batches.iter().zip(&mut outcomes) {
                if outcome.is_ok() {
                    self.numbers.end(write.shard);
                    let source = StoreError::Stopped { why: why.clone() };
                    *outcome = Err(WriteError::Unknown {
                        shard: write.shard,
                        source,
                    });
                }
            }
        }
        outcomes
    }

    fn settle(&mut self, shard: ShardId, epoch: Epoch) -> Result<(), WriteError> {
        let claim = self.fence(shard, epoch)?;
        let settled = ClaimRecord {
            tenures: 1,
            ..claim
        };
        self.put_claim(shard, &settled)
            .map_err(|source| WriteError::Unknown { shard, source })
    }

    fn hand_over(
        &mut self,
        shard: ShardId,
        epoch: Epoch,
        rows: &HandOver,
    ) -> Result<(), WriteError> {
        let claim = self.fence(shard, epoch)?;
        self.numbers.end(shard);
        let parts = format::hand_over_parts(shard, epoch, rows);
        let marker = HandOverMarker {
            epoch,
            parts: u32::try_from(parts.len()).expect("a hand-over is far below 16 TiB"),
        };
        // The rows first and durable, then the marker that makes them count.
        self.change("writing a hand-over", |trees| {
            for (key, slice) in parts {
                trees.hand_overs.insert(key, slice)?;
            }
            Ok(())
        })
        .map_err(|source| WriteError::Failed { shard, source })?;
        let released = ClaimRecord {
            hand_over: Some(marker),
            ..claim
        };
        self.put_claim(shard, &released)
            .map_err(|source| WriteError::Unknown { shard, source })
    }

    fn policies(&mut self) -> Result<Vec<StoredPolicy>, StoreError> {
        self.check_running()?;
        let mut policies = Vec::new();
        each(self.trees.policies.iter(), |key, value| {
            let id = format::policy_of(key)?;
            let record: PolicyRecord =
                format::decode(Tree::Policies, key, value, || id.to_string())?;
            if *record.history.id() != id {
                return Err(StoreError::Corrupt {
                    tree: Tree::Policies.name(),
                    key: id.to_string(),
                    what: format!("it holds policy {}", record.history.id()),
                });
            }
            policies.push(StoredPolicy {
                revision: record.revision,
                history: record.history,
            });
            Ok(())
        })?;
        policies.sort_by(|one, other| one.history.id().cmp(other.history.id()));
        Ok(policies)
    }

    fn next_revision(&mut self) -> Result<PolicyVersion, StoreError> {
        self.highest_revision().map(rules::revision_after)
    }

    fn put_policy(&mut self, write: &PolicyWrite) -> Result<(), PolicyWriteError> {
        let failed = |source| PolicyWriteError::Failed {
            id: write.history.id().clone(),
            source,
        };
        let found = self.policy(write.history.id()).map_err(failed)?;
        let highest = self.highest_revision().map_err(failed)?;
        rules::check_policy(write, found.map(|record| record.revision), highest)?;
        let record = PolicyRecord {
            revision: write.revision,
            history: write.history.clone(),
        };
        let key = format::policy_key(write.history.id());
        let bytes = format::encode(Tree::Policies, &key, &record);
        let revision = format::encode(Tree::Meta, format::REVISION_KEY, &write.revision);
        self.change("writing a policy", |trees| {
            // The revision first: a crash in between wastes a number, the other order would use
            // one twice.
            trees.meta.insert(format::REVISION_KEY, revision)?;
            trees.policies.insert(key, bytes)?;
            Ok(())
        })
        .map_err(|source| PolicyWriteError::Unknown {
            id: write.history.id().clone(),
            source,
        })
    }

    fn forget_policy(
        &mut self,
        id: &PolicyId,
        expected: PolicyVersion,
    ) -> Result<(), PolicyWriteError> {
        let found = self.policy(id).map_err(|source| PolicyWriteError::Failed {
            id: id.clone(),
            source,
        })?;
        rules::check_revision(id, Some(expected), found.map(|record| record.revision))?;
        let key = format::policy_key(id);
        self.change("removing a policy", |trees| {
            trees.policies.remove(key)?;
            Ok(())
        })
        .map_err(|source| PolicyWriteError::Unknown {
            id: id.clone(),
            source,
        })
    }

    fn switches(&mut self) -> Result<SwitchesRecord, StoreError> {
        self.check_running()?;
        let found = read(&self.trees.meta, Tree::Meta, format::SWITCHES_KEY, || {
            "switches".to_owned()
        })?;
        Ok(found.unwrap_or_default())
    }

    fn put_switches(&mut self, switches: &SwitchesRecord) -> Result<PolicyVersion, StoreError> {
        let revision = rules::revision_after(self.highest_revision()?);
        let number = format::encode(Tree::Meta, format::REVISION_KEY, &revision);
        let bytes = format::encode(Tree::Meta, format::SWITCHES_KEY, switches);
        self.change("writing the kill switches", |trees| {
            trees.meta.insert(format::REVISION_KEY, number)?;
            trees.meta.insert(format::SWITCHES_KEY, bytes)?;
            Ok(())
        })?;
        Ok(revision)
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        // Best effort: an older mark proves less and never raises a false alarm.
        if let Err(error) = self.disk.mark.sync() {
            tracing::warn!(%error, path = %self.disk.mark_path.display(), "cannot sync the mark");
        }
    }
}
