//! What reaches a shard's task.

use std::collections::BTreeSet;
use std::sync::Arc;

use quota_core::authority::{
    BucketView, Holding, PolicyStats, Slice, Stats, StreamId, TopBucket, TopQuery,
};
use quota_core::id::{Incarnation, MessageNumber};
use quota_core::key::{BucketAddress, PolicyId};
use quota_core::message::{Introduction, LeaseRequest};
use quota_core::policy::PolicyHistory;
use quota_core::tokens::Tokens;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::outbox::Outbox;

/// One event for a shard. A dropped reply means that the shard is not serving.
#[derive(Debug)]
pub(crate) enum Event {
    /// The shard's part of a holder's message.
    Part(Box<Part>),
    /// A stream that touched this shard has ended.
    Leave {
        /// Whose.
        incarnation: Incarnation,
        /// Which.
        stream: StreamId,
    },
    /// A policy was stored; apply it unless the shard began with this revision or a later one.
    Apply {
        /// The revision of the set of policies.
        revision: u64,
        /// The policy.
        history: Box<PolicyHistory>,
        /// Told when every later grant follows it.
        applied: oneshot::Sender<Applied>,
    },
    /// A deleted policy is forgotten: nothing granted under it can be live.
    Forget {
        /// Which.
        id: PolicyId,
    },
    /// Say what would be out and owed if this history were in force.
    Preview {
        /// The policy.
        history: Box<PolicyHistory>,
        /// The answer.
        reply: oneshot::Sender<Applied>,
    },
    /// Look over a slice of the buckets for those that stand out.
    Top {
        /// For what.
        query: TopQuery,
        /// From which slot on.
        from: u32,
        /// The answer.
        reply: oneshot::Sender<Slice<TopBucket>>,
    },
    /// Look over a slice of the buckets for what these holders have.
    Holdings {
        /// Whose.
        of: Arc<BTreeSet<Incarnation>>,
        /// From which slot on.
        from: u32,
        /// The answer.
        reply: oneshot::Sender<Slice<Holding>>,
    },
    /// Look at a bucket. `None`: no such policy, or not a key of it.
    Inspect {
        /// The bucket.
        bucket: BucketAddress,
        /// The answer.
        reply: oneshot::Sender<Option<BucketView>>,
    },
    /// Count.
    Report {
        /// The answer.
        reply: oneshot::Sender<ShardReport>,
    },
}

/// A shard's part of a holder's message; one without items moves the anchor.
#[derive(Debug)]
pub(crate) struct Part {
    /// Who.
    pub(crate) incarnation: Incarnation,
    /// On which stream.
    pub(crate) stream: StreamId,
    /// Where answers go, the first time that the stream touches this shard.
    pub(crate) connect: Option<Arc<Outbox>>,
    /// The message's number.
    pub(crate) number: MessageNumber,
    /// First mentions of buckets of this shard.
    pub(crate) introductions: Vec<Introduction>,
    /// Requests for buckets of this shard.
    pub(crate) requests: Vec<LeaseRequest>,
    /// The place that these items take in the node's budget, given back when they are done.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// Told when the part is done.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// A policy is in force in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Tokens out under earlier versions at that moment.
    pub(crate) outstanding: Tokens,
    /// Tokens that buckets owe.
    pub(crate) owed: Tokens,
}

/// Totals of one shard since the process started, over all its tenures in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardReport {
    /// The shard's totals and present counts.
    pub(crate) stats: Stats,
    /// Totals by policy.
    pub(crate) policies: Vec<(PolicyId, PolicyStats)>,
    /// True once the exposure of earlier tenures is over.
    pub(crate) settled: bool,
}
