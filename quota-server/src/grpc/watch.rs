//! Following the policies: first all of them, then what changed since the last look.
//!
//! A watcher that reads slowly gets the changes in between as one: what waits for it is bounded by
//! the policies that there are.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_wire::convert::policy::{PolicyUpdate, VersionedSpec, encode_update};
use quota_wire::convert::switch::Switches;
use quota_wire::convert::unary::WatchPolicies;
use quota_wire::proto as wire;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::node::Node;
use crate::node::policies::PolicySnapshot;
use crate::node::policies::switches::in_force;
use crate::store::SwitchesRecord;

/// What one watcher is sent.
pub(super) struct Updates {
    changes: Pin<Box<dyn Stream<Item = News> + Send>>,
    known: Known,
    ready: VecDeque<wire::PolicyUpdate>,
}

enum News {
    Policies(Arc<PolicySnapshot>),
    Draining,
}

/// What a watcher has been told.
struct Known {
    namespaces: Vec<String>,
    /// The revision that it says it has, until it has been told the first time.
    claimed: Option<u64>,
    versions: BTreeMap<PolicyId, PolicyVersion>,
    /// The kill switches, once they have been told.
    switches: Option<Arc<SwitchesRecord>>,
}

/// The updates for one watcher.
pub(super) fn updates(node: &Node, wish: WatchPolicies) -> Updates {
    let policies = WatchStream::new(node.policies.watch()).map(News::Policies);
    let draining = draining(node.readiness.watch_draining());
    Updates {
        changes: Box::pin(policies.merge(draining)),
        known: Known {
            namespaces: wish.namespaces,
            claimed: Some(wish.known_revision),
            versions: BTreeMap::new(),
            switches: None,
        },
        ready: VecDeque::new(),
    }
}

fn draining(draining: watch::Receiver<bool>) -> impl Stream<Item = News> {
    WatchStream::new(draining).filter_map(|draining| draining.then_some(News::Draining))
}

impl Known {
    /// What this watcher has to be told of these policies; `None` if nothing.
    fn update(&mut self, snapshot: &PolicySnapshot) -> Option<PolicyUpdate> {
        let wanted =
            |id: &PolicyId| self.namespaces.is_empty() || self.namespaces.contains(&id.namespace);
        let now: BTreeMap<PolicyId, PolicyVersion> = snapshot
            .current()
            .filter(|policy| wanted(policy.id()))
            .map(|policy| (policy.id().clone(), policy.version()))
            .collect();
        let before = std::mem::replace(&mut self.versions, now);
        let revision = snapshot.revision();
        let switches = self.switches(snapshot);
        let claimed = self.claimed.take();
        if claimed == Some(revision) && revision > 0 {
            return Some(PolicyUpdate {
                revision,
                complete: false,
                policies: Vec::new(),
                deleted: Vec::new(),
                switches,
            });
        }
        let complete = claimed.is_some();
        let news = snapshot.current().filter(|policy| {
            let version = self.versions.get(policy.id());
            version.is_some() && (complete || before.get(policy.id()) != version)
        });
        let policies: Vec<VersionedSpec> = news
            .map(|policy| VersionedSpec {
                version: policy.version(),
                spec: policy.spec().clone(),
            })
            .collect();
        let deleted: Vec<PolicyId> = before
            .into_keys()
            .filter(|id| !self.versions.contains_key(id))
            .collect();
        let silent = !complete && policies.is_empty() && deleted.is_empty() && switches.is_none();
        (!silent).then_some(PolicyUpdate {
            revision,
            complete,
            policies,
            deleted,
            switches,
        })
    }

    /// The kill switches, unless this watcher has been told of just these.
    fn switches(&mut self, snapshot: &PolicySnapshot) -> Option<Switches> {
        let now = snapshot.switches();
        if self.switches.as_ref() == Some(now) {
            return None;
        }
        self.switches = Some(Arc::clone(now));
        let wanted = |namespace: &str| {
            self.namespaces.is_empty() || self.namespaces.iter().any(|wanted| wanted == namespace)
        };
        let mut told = in_force(now);
        told.retain(|scope, _| scope.namespace().is_none_or(wanted));
        Some(told)
    }
}

impl Stream for Updates {
    type Item = Result<wire::PolicyUpdate, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            match ready!(self.changes.as_mut().poll_next(context)) {
                None => return Poll::Ready(None),
                Some(News::Draining) => {
                    return Poll::Ready(Some(Err(quota_wire::status::draining())));
                }
                Some(News::Policies(snapshot)) => {
                    if let Some(update) = self.known.update(&snapshot) {
                        self.ready.extend(encode_update(&update));
                    }
                }
            }
        }
    }
}
