//! The node: shards as tasks, the streams of holders, and the policies that all of them follow.
//!
//! - [`shard`]: the task that claims a shard and drives its authority, tenure after tenure
//! - [`tenure`]: one tenure: inputs in, effects out
//! - [`event`]: what reaches a shard
//! - [`outbox`]: what waits to be sent to a holder
//! - [`streams`]: who is connected
//! - [`route`]: which shard each key number of a stream belongs to
//! - [`visit`]: a single call as a holder of its own; [`repeats`]: the last lease of each caller
//! - [`policies`]: storing policies and kill switches, and putting them in force
//! - [`outcomes`]: what gateways report to have decided beside the ledger
//! - [`readiness`]: whether everything serves
//! - [`survey`]: looking over all buckets without stalling their shards
//! - [`totals`]: what a shard counted over all its tenures
//!
//! Nothing here decides about leases, and nothing here knows gRPC but its status codes.

pub(crate) mod event;
pub(crate) mod outbox;
pub(crate) mod outcomes;
pub(crate) mod policies;
pub(crate) mod readiness;
pub(crate) mod repeats;
pub(crate) mod route;
pub(crate) mod shard;
#[cfg(test)]
mod shard_tests;
pub(crate) mod streams;
mod survey;
mod tenure;
pub(crate) mod totals;
pub(crate) mod visit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quota_core::authority::BucketView;
use quota_core::id::{MessageNumber, ShardId};
use quota_core::key::BucketAddress;
use quota_core::time::Timestamp;
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::event::{Event, ShardReport};
use self::outcomes::GatewayOutcomes;
use self::policies::PolicyDesk;
use self::readiness::Readiness;
use self::repeats::Repeats;
use self::streams::Streams;
use crate::clock;
use crate::metrics::Metrics;

/// Events that may wait for one shard. Streams wait for room, which is their back-pressure; single
/// calls are answered busy.
pub(crate) const INBOX: usize = 1024;
/// Items of stream messages that may wait for shards, all together: about 100 bytes each. A
/// stream waits for its turn before its message is taken, so a flood waits at its own door.
pub(crate) const ITEMS_WAITING_MAX: usize = 1 << 20;

/// What the services of this node share.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: String,
    /// Where each shard is reached.
    pub(crate) shards: Vec<mpsc::Sender<Event>>,
    /// Who is connected.
    pub(crate) streams: Arc<Streams>,
    /// Whether everything serves.
    pub(crate) readiness: Arc<Readiness>,
    /// The policies.
    pub(crate) policies: PolicyDesk,
    /// What gateways decided beside the ledger.
    pub(crate) outcomes: GatewayOutcomes,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Room for items that wait for shards.
    pub(crate) items: Arc<Semaphore>,
    /// Room for single calls under way.
    pub(crate) calls: Arc<Semaphore>,
    /// The last leases of callers whose calls can be repeated.
    pub(crate) repeats: Repeats,
    /// The turn of surveys, one at a time.
    pub(crate) surveys: Semaphore,
    /// Keys that one stream may introduce.
    pub(crate) keys_max: u32,
    /// Answers that may wait to be read by one stream.
    pub(crate) answers_max: usize,
    /// When the process started.
    pub(crate) started: Timestamp,
    /// The last message number given to a single call.
    pub(crate) last_call: AtomicU64,
}

impl Node {
    /// The number of shards.
    pub(crate) fn shard_count(&self) -> u32 {
        u32::try_from(self.shards.len()).expect("far fewer than 2^32 shards")
    }

    /// The shard of a bucket.
    pub(crate) fn shard_of(&self, bucket: &BucketAddress) -> ShardId {
        bucket.shard(self.shard_count())
    }

    /// Where a shard is reached.
    pub(crate) fn inbox(&self, shard: ShardId) -> &mpsc::Sender<Event> {
        &self.shards[usize::try_from(shard.get()).expect("32 bits fit a usize")]
    }

    /// A bucket as its authority sees it; an error if the shard is not served.
    pub(crate) async fn inspect(
        &self,
        bucket: BucketAddress,
    ) -> Result<Option<BucketView>, NotServed> {
        let (reply, replied) = oneshot::channel();
        let shard = self.shard_of(&bucket);
        self.inbox(shard)
            .send(Event::Inspect { bucket, reply })
            .await
            .map_err(|_| NotServed)?;
        replied.await.map_err(|_| NotServed)
    }

    /// What each shard counted; `None` for one that is not served.
    pub(crate) async fn reports(&self) -> Vec<Option<ShardReport>> {
        reports(&self.shards).await
    }

    /// A message number for a single call: higher than any before, across restarts too as long as
    /// the wall clock does not go back by more than the time that the node was down.
    pub(crate) fn call_number(&self) -> MessageNumber {
        let wall = u64::try_from(clock::wall_nanos().max(1)).unwrap_or(u64::MAX >> 2);
        let next = |last: u64| Some(wall.max(last + 1));
        let last = self
            .last_call
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let last = last.expect("there is always a next number");
        MessageNumber::new(wall.max(last + 1))
    }
}

/// The shard is not served at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotServed;

/// Asks all shards at once.
pub(crate) async fn reports(shards: &[mpsc::Sender<Event>]) -> Vec<Option<ShardReport>> {
    let mut replies = Vec::with_capacity(shards.len());
    for shard in shards {
        let (reply, replied) = oneshot::channel();
        // A shard whose task is gone drops the event, and with it the reply.
        let _ = shard.send(Event::Report { reply }).await;
        replies.push(replied);
    }
    let mut reports = Vec::with_capacity(replies.len());
    for replied in replies {
        reports.push(replied.await.ok());
    }
    reports
}
