//! What can go wrong with a store, and what to do about it.

use std::error::Error;
use std::path::PathBuf;

use quota_core::id::{Epoch, PolicyVersion, ShardId};
use quota_core::key::PolicyId;
use thiserror::Error;

/// The cause below an error, if there is one.
pub type Source = Box<dyn Error + Send + Sync>;

/// What every corrupt record has in common to be said.
const CORRUPT_ADVICE: &str = "Nothing was changed. Stop the server, keep a copy of the data \
     directory, check the disk, and restore the directory from a copy made while the server was \
     stopped. A restored copy has forgotten what was spent since it was made.";

/// Why a store could not be opened, read or claimed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has the store open.
    #[error(
        "{path} is in use by another process. Stop the other server, or give this one a data \
         directory of its own with --data-dir"
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory holds something else.
    #[error(
        "{path} holds files that are not a Quota store: {found}. Give an empty or new directory \
         with --data-dir"
    )]
    Foreign {
        /// The data directory.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The database is there, and the mark that tells whether it is complete is not.
    #[error(
        "{path} holds a database without {mark}, which tells whether commits are missing: the \
         database alone may be an old state, from which tokens would be granted twice. {advice}",
        advice = CORRUPT_ADVICE
    )]
    MissingMark {
        /// The data directory.
        path: PathBuf,
        /// The name of the file.
        mark: &'static str,
    },
    /// The store was created with another number of shards.
    #[error(
        "the store was created with {stored} shards and cannot be opened with {asked}: the number \
         is fixed at creation. Leave --shards out, or set it to {stored}"
    )]
    ShardCount {
        /// The number at creation.
        stored: u32,
        /// The number asked for.
        asked: u32,
    },
    /// A number of shards that no store can have.
    #[error("{asked} shards are not possible: use 1 to {max}", max = super::SHARDS_MAX)]
    ShardCountRange {
        /// The number asked for.
        asked: u32,
    },
    /// A shard that the cluster does not have.
    #[error("there is no shard {shard}: the store has {shards}, counted from 0")]
    UnknownShard {
        /// The shard asked for.
        shard: ShardId,
        /// The number of shards.
        shards: u32,
    },
    /// A record was given to the wrong shard: a bug of the writer.
    #[error("bucket {bucket} belongs to shard {home}; nothing was written")]
    Misplaced {
        /// The bucket.
        bucket: String,
        /// Its shard.
        home: ShardId,
    },
    /// A record of a format that this version does not read.
    #[error(
        "record {key} in {tree} has format version {found}; this server reads version {known}. \
         Nothing was changed. Run the server version that wrote it, or a newer one"
    )]
    UnknownFormat {
        /// The kind of record.
        tree: &'static str,
        /// Its key, readable.
        key: String,
        /// The version found.
        found: u8,
        /// The newest version known.
        known: u8,
    },
    /// A record that cannot be trusted.
    #[error("record {key} in {tree} is corrupt: {what}. {advice}", advice = CORRUPT_ADVICE)]
    Corrupt {
        /// The kind of record.
        tree: &'static str,
        /// Its key, readable.
        key: String,
        /// What does not hold.
        what: String,
    },
    /// Commits that were acknowledged are gone.
    #[error(
        "{path} lost acknowledged commits: the last one was number {acknowledged}, the database \
         ends at {found}. {advice}", advice = CORRUPT_ADVICE
    )]
    LostCommits {
        /// The data directory.
        path: PathBuf,
        /// The last commit known to have been durable.
        acknowledged: u64,
        /// The last commit found.
        found: u64,
    },
    /// A file or directory operation failed.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The database below failed.
    #[error("the store failed while {doing}: {source}. Check the disk and its free space")]
    Backend {
        /// What was being done.
        doing: &'static str,
        /// What it said.
        source: Source,
    },
    /// The store failed earlier, or its thread is gone, and its contents are in doubt.
    #[error("the store has stopped: {why}. Check the disk and restart the server")]
    Stopped {
        /// What happened first.
        why: String,
    },
}

/// Why a shard's write was refused, failed, or is in doubt.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Not written: the writer no longer owns the shard.
    #[error("shard {shard} is not owned under epoch {got} any more: {}", fence(*current, *released))]
    Fenced {
        /// The shard.
        shard: ShardId,
        /// The writer's epoch.
        got: Epoch,
        /// The epoch of the last claim; `None` if the shard was never claimed.
        current: Option<Epoch>,
        /// True if the last claim ended by a hand-over.
        released: bool,
    },
    /// Not written: it does not follow the write before it. After a write whose outcome is
    /// unknown nothing does, and the shard must be claimed anew.
    #[error(
        "write {got} of shard {shard} under epoch {epoch} does not follow the one before it \
         ({}): claim the shard anew",
        expected.map_or_else(|| "whose outcome is unknown".to_owned(), |n| format!("{n} was due"))
    )]
    OutOfOrder {
        /// The shard.
        shard: ShardId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The number of the write.
        got: u64,
        /// The number that was due; `None` if none can follow.
        expected: Option<u64>,
    },
    /// It may have been written or not. Claim the shard anew before anything else is written.
    #[error("it is unknown whether shard {shard} was written: {source}")]
    Unknown {
        /// The shard.
        shard: ShardId,
        /// Why.
        source: StoreError,
    },
    /// Not written.
    #[error("shard {shard} was not written: {source}")]
    Failed {
        /// The shard.
        shard: ShardId,
        /// Why.
        source: StoreError,
    },
}

fn fence(current: Option<Epoch>, released: bool) -> String {
    match (current, released) {
        (None, _) => "it was never claimed".to_owned(),
        (Some(current), true) => format!("epoch {current} handed it over"),
        (Some(current), false) => format!("epoch {current} owns it"),
    }
}

/// Why a policy was not stored, or is in doubt.
#[derive(Debug, Error)]
pub enum PolicyWriteError {
    /// Not written: another write came first.
    #[error(
        "policy {id} changed meanwhile: the write expected {}, the store has {}. Read it again \
         and repeat the change",
        revision(*expected), revision(*found)
    )]
    Conflict {
        /// The policy.
        id: PolicyId,
        /// The revision that the write expected.
        expected: Option<PolicyVersion>,
        /// The revision found.
        found: Option<PolicyVersion>,
    },
    /// Not written: the revision was used by a write to another policy meanwhile.
    #[error("revision {got} is not the next one, which is {next}: ask for it again and repeat")]
    RevisionTaken {
        /// The revision of the write.
        got: PolicyVersion,
        /// The next one.
        next: PolicyVersion,
    },
    /// It may have been written or not: read it again.
    #[error("it is unknown whether policy {id} was written: {source}")]
    Unknown {
        /// The policy.
        id: PolicyId,
        /// Why.
        source: StoreError,
    },
    /// Not written.
    #[error("policy {id} was not written: {source}")]
    Failed {
        /// The policy.
        id: PolicyId,
        /// Why.
        source: StoreError,
    },
}

fn revision(of: Option<PolicyVersion>) -> String {
    of.map_or_else(
        || "no record".to_owned(),
        |revision| format!("revision {revision}"),
    )
}
