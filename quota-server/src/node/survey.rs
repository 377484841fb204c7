//! Looking over all buckets of this node without stalling it.
//!
//! Each shard is asked for one slice after another, as ordinary events, so that it serves whatever
//! came in between. One survey at a time: whoever asks meanwhile waits.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use quota_core::authority::{Holding, Slice, TopBucket, TopQuery};
use quota_core::id::Incarnation;
use tokio::sync::{mpsc, oneshot};

use super::Node;
use super::event::Event;

/// What a survey found.
#[derive(Debug)]
pub(crate) struct Survey<T> {
    pub(crate) found: T,
    /// Shards that were not served at the moment.
    pub(crate) missing: u32,
}

impl Node {
    /// The buckets that stand out, the largest first.
    pub(crate) async fn top_buckets(&self, query: &TopQuery) -> Survey<Vec<TopBucket>> {
        let mut top: Vec<TopBucket> = Vec::new();
        let take = |found| {
            top.extend(found);
            top.sort_by(|a: &TopBucket, b| {
                (b.amount.cmp(&a.amount)).then_with(|| a.bucket.cmp(&b.bucket))
            });
            // A shard that began a new tenure meanwhile may have named a bucket twice.
            let mut seen = HashSet::new();
            top.retain(|one| seen.insert(one.bucket.clone()));
            top.truncate(query.most);
        };
        let ask = |from, reply| Event::Top {
            query: query.clone(),
            from,
            reply,
        };
        let missing = self.survey(ask, take).await;
        Survey {
            found: top,
            missing,
        }
    }

    /// What these holders have, over all shards.
    pub(crate) async fn holdings(
        &self,
        of: BTreeSet<Incarnation>,
    ) -> Survey<BTreeMap<Incarnation, Holding>> {
        let of = Arc::new(of);
        let mut sums: BTreeMap<Incarnation, Holding> = BTreeMap::new();
        let take = |found| {
            for one in found {
                let Holding {
                    incarnation,
                    leases,
                    outstanding,
                    demand,
                } = one;
                sums.entry(incarnation)
                    .and_modify(|sum| {
                        sum.leases += leases;
                        sum.outstanding += outstanding;
                        sum.demand = sum.demand.saturating_add(demand);
                    })
                    .or_insert(one);
            }
        };
        let ask = |from, reply| Event::Holdings {
            of: Arc::clone(&of),
            from,
            reply,
        };
        let missing = self.survey(ask, take).await;
        Survey {
            found: sums,
            missing,
        }
    }

    /// Takes every slice of every shard. Returns how many shards were not served to the end.
    async fn survey<T>(
        &self,
        ask: impl Fn(u32, oneshot::Sender<Slice<T>>) -> Event,
        mut take: impl FnMut(Vec<T>),
    ) -> u32 {
        // Never closed; without it, surveys would merely not wait for each other.
        let _turn = self.surveys.acquire().await;
        let mut missing = 0;
        for shard in &self.shards {
            let mut from = Some(0);
            while let Some(slot) = from {
                let Some(slice) = one_slice(shard, |reply| ask(slot, reply)).await else {
                    missing += 1;
                    break;
                };
                take(slice.found);
                from = slice.next;
            }
        }
        missing
    }
}

async fn one_slice<T>(
    shard: &mpsc::Sender<Event>,
    ask: impl FnOnce(oneshot::Sender<Slice<T>>) -> Event,
) -> Option<Slice<T>> {
    let (reply, replied) = oneshot::channel();
    shard.send(ask(reply)).await.ok()?;
    replied.await.ok()
}
