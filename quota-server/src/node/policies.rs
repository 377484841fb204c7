//! The policies of this node: one task that stores every change before any shard hears of it.
//!
//! A change is stored, then shown to shards that begin a tenure, then applied by the shards that
//! serve, and acknowledged when all of them have. Changes come one after another. Former versions
//! are kept until nothing that they granted can be live, and then cleared the same way.

mod change;
mod snapshot;
pub(crate) mod switches;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quota_core::id::PolicyVersion;
use quota_core::key::PolicyId;
use quota_core::policy::{ChangeError, Kind, POLICIES_MAX, PolicyHistory, PolicySpec};
use quota_core::time::{DriftAllowance, Timestamp};
use quota_wire::convert::notice::PolicyNotice;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use self::change::{Change, ChangeRefused, ChangeRequest, Changed};
use self::snapshot::Entry;
pub(crate) use self::snapshot::PolicySnapshot;
use self::switches::{SwitchAsk, SwitchChanged, SwitchRequest};
use super::event::{Applied, Event};
use super::streams::Streams;
use crate::clock;
use crate::metrics::Metrics;
use crate::store::handle::StoreHandle;
use crate::store::{PolicyWrite, PolicyWriteError, StoreError};

/// Changes that may wait; a further caller waits for room.
const QUEUE: usize = 64;
/// How often former versions are looked over.
const CLEAR_EVERY: Duration = Duration::from_secs(1);
/// How long a shard may take to apply a policy before the caller is told that it is not known
/// to be in force. A shard that is not served does not count.
const APPLY_WITHIN: Duration = Duration::from_secs(30);

/// Reaches the policy task. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PolicyDesk {
    requests: mpsc::Sender<Ask>,
    snapshots: watch::Receiver<Arc<PolicySnapshot>>,
}

#[derive(Debug)]
enum Ask {
    Change {
        request: ChangeRequest,
        reply: oneshot::Sender<Result<Changed, ChangeRefused>>,
    },
    Switch(SwitchAsk),
}

impl PolicyDesk {
    /// The policies as they are now.
    pub(crate) fn snapshot(&self) -> Arc<PolicySnapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Follows the policies.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<PolicySnapshot>> {
        self.snapshots.clone()
    }

    /// Makes a change. Dropping this future does not stop it.
    pub(crate) async fn change(&self, request: ChangeRequest) -> Result<Changed, ChangeRefused> {
        let (reply, replied) = oneshot::channel();
        self.ask(Ask::Change { request, reply }, replied).await
    }

    /// Sets a kill switch. Dropping this future does not stop it.
    pub(crate) async fn switch(
        &self,
        request: SwitchRequest,
    ) -> Result<SwitchChanged, ChangeRefused> {
        let (reply, replied) = oneshot::channel();
        let ask = SwitchAsk { request, reply };
        self.ask(Ask::Switch(ask), replied).await
    }

    async fn ask<T>(
        &self,
        ask: Ask,
        replied: oneshot::Receiver<Result<T, ChangeRefused>>,
    ) -> Result<T, ChangeRefused> {
        let stopping = || "the server is stopping".to_owned();
        if self.requests.send(ask).await.is_err() {
            return Err(ChangeRefused::Store(stopping()));
        }
        replied
            .await
            .unwrap_or_else(|_| Err(ChangeRefused::Unsure(stopping())))
    }
}

/// The task that changes policies.
#[derive(Debug)]
pub(crate) struct PolicyTask {
    store: StoreHandle,
    snapshots: watch::Sender<Arc<PolicySnapshot>>,
    shards: Vec<mpsc::Sender<Event>>,
    streams: Arc<Streams>,
    drift: DriftAllowance,
    metrics: Arc<Metrics>,
    requests: mpsc::Receiver<Ask>,
    /// Since when every shard that serves has applied the latest change of a policy.
    applied_since: HashMap<PolicyId, Timestamp>,
    /// The shards that have not yet said that they follow the latest change of a policy, though
    /// its caller was told that this is not known. Until they do, former versions stay.
    unanswered: HashMap<PolicyId, Vec<oneshot::Receiver<Applied>>>,
    apply_within: Duration,
}

impl PolicyTask {
    /// The task and the way to reach it. Nothing runs yet. `snapshots` is what shards begin with.
    pub(crate) fn new(
        store: StoreHandle,
        snapshots: watch::Sender<Arc<PolicySnapshot>>,
        shards: Vec<mpsc::Sender<Event>>,
        streams: Arc<Streams>,
        drift: DriftAllowance,
        metrics: Arc<Metrics>,
    ) -> (Self, PolicyDesk) {
        let (asks, requests) = mpsc::channel(QUEUE);
        let desk = PolicyDesk {
            requests: asks,
            snapshots: snapshots.subscribe(),
        };
        let task = Self {
            store,
            snapshots,
            shards,
            streams,
            drift,
            metrics,
            requests,
            applied_since: HashMap::new(),
            unanswered: HashMap::new(),
            apply_within: APPLY_WITHIN,
        };
        task.count();
        (task, desk)
    }

    /// Brings the metrics of the policies up to date. Nobody else sets them.
    fn count(&self) {
        let snapshot = self.snapshots.borrow();
        let versions = snapshot.current().map(|policy| policy.version().get());
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics
            .policy_version
            .set(signed(versions.clone().max().unwrap_or_default()));
        let switches = u64::try_from(snapshot.switches().switches.len());
        self.metrics
            .kill_switches
            .set(signed(switches.unwrap_or(u64::MAX)));
        self.metrics
            .policies
            .set(signed(u64::try_from(versions.count()).unwrap_or(u64::MAX)));
    }

    /// Runs until the server stops; a change that has begun is seen through.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut clear = tokio::time::interval(CLEAR_EVERY);
        clear.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return,
                ask = self.requests.recv() => {
                    // The caller may have given up; what was done stands.
                    match ask {
                        None => return,
                        Some(Ask::Change { request, reply }) => {
                            let _ = reply.send(self.change(request).await);
                        }
                        Some(Ask::Switch(SwitchAsk { request, reply })) => {
                            let _ = reply.send(self.switch(request).await);
                        }
                    }
                }
                _ = clear.tick() => {
                    self.clear_former().await;
                    self.clear_switches().await;
                }
            }
        }
    }

    async fn change(&mut self, request: ChangeRequest) -> Result<Changed, ChangeRefused> {
        let id = request.change.id();
        let snapshot = Arc::clone(&self.snapshots.borrow());
        if let Change::Put { spec } = &request.change
            && spec.kind != Kind::TokenBucket
        {
            return Err(ChangeRefused::KindNotServed { kind: spec.kind });
        }
        let current = snapshot.version(&id);
        let expected = request.expected.map(PolicyVersion::new);
        if let Some(expected) = expected.filter(|expected| *expected != current.unwrap_or_default())
        {
            return Err(ChangeRefused::Version {
                id,
                expected,
                current,
            });
        }
        let next = self.store.next_revision().await.map_err(not_stored)?;
        let history = changed_history(&snapshot, &request.change, next, POLICIES_MAX)?;
        let Some(history) = history else {
            let version = current.map_or(0, PolicyVersion::get);
            return Ok(Changed {
                version,
                applied: Applied::default(),
                changed: false,
            });
        };
        if request.dry_run {
            let applied = self.preview(&history).await;
            let version = current.map_or(0, PolicyVersion::get);
            return Ok(Changed {
                version,
                applied,
                changed: true,
            });
        }
        self.store_history(&snapshot, next, history.clone()).await?;
        tracing::info!(
            policy = %id, revision = next.get(), deleted = history.current().is_none(), "policy stored"
        );
        self.metrics.policy_changes.inc();
        let applied = self.publish(id, next, Some(history)).await?;
        Ok(Changed {
            version: next.get(),
            applied,
            changed: true,
        })
    }

    /// Stores a history in the place of the one that the snapshot has.
    async fn store_history(
        &self,
        snapshot: &PolicySnapshot,
        revision: PolicyVersion,
        history: PolicyHistory,
    ) -> Result<(), ChangeRefused> {
        let id = history.id().clone();
        let expected = snapshot.entries.get(&id).map(|entry| entry.stored);
        let write = PolicyWrite {
            expected,
            revision,
            history,
        };
        match self.store.put_policy(write).await {
            Ok(()) => Ok(()),
            Err(error @ PolicyWriteError::Unknown { .. }) => self.look(&id, revision, error).await,
            // Nobody but this task writes policies here.
            Err(
                error @ (PolicyWriteError::Conflict { .. }
                | PolicyWriteError::RevisionTaken { .. }
                | PolicyWriteError::Failed { .. }),
            ) => Err(ChangeRefused::Store(error.to_string())),
        }
    }

    /// Finds out what became of a write whose outcome is unknown.
    async fn look(
        &self,
        id: &PolicyId,
        revision: PolicyVersion,
        error: PolicyWriteError,
    ) -> Result<(), ChangeRefused> {
        match PolicySnapshot::load(&self.store).await {
            Ok(found)
                if found
                    .entries
                    .get(id)
                    .is_some_and(|entry| entry.stored == revision) =>
            {
                Ok(())
            }
            Ok(_) => Err(ChangeRefused::Store(error.to_string())),
            Err(_) => Err(ChangeRefused::Unsure(error.to_string())),
        }
    }

    /// Shows a stored history to everyone, and waits until every shard that serves follows it.
    /// `None`: nothing is left of the policy.
    async fn publish(
        &mut self,
        id: PolicyId,
        revision: PolicyVersion,
        history: Option<PolicyHistory>,
    ) -> Result<Applied, ChangeRefused> {
        let mut snapshot = PolicySnapshot::clone(&self.snapshots.borrow());
        snapshot.revision = revision.get();
        match &history {
            Some(history) => {
                let entry = Entry {
                    stored: revision,
                    history: history.clone(),
                };
                snapshot.entries.insert(id.clone(), entry);
            }
            None => drop(snapshot.entries.remove(&id)),
        }
        // A shard that begins a tenure from here on begins with this.
        self.snapshots.send_replace(Arc::new(snapshot));
        self.count();
        let remembered = history.is_some();
        let applied = match history {
            Some(history) => self.apply(revision, &history).await,
            None => {
                self.unanswered.remove(&id);
                for shard in &self.shards {
                    // A shard whose task is gone knows no policy.
                    let _ = shard.send(Event::Forget { id: id.clone() }).await;
                }
                Ok(Applied::default())
            }
        };
        let notice = PolicyNotice {
            revision: revision.get(),
            policies: vec![id.clone()],
        };
        self.streams.notice(&notice);
        match &applied {
            Ok(_) if remembered => drop(self.applied_since.insert(id, clock::now())),
            _ => drop(self.applied_since.remove(&id)),
        }
        applied
    }

    async fn apply(
        &mut self,
        revision: PolicyVersion,
        history: &PolicyHistory,
    ) -> Result<Applied, ChangeRefused> {
        let mut replies = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let (applied, reply) = oneshot::channel();
            let (revision, history) = (revision.get(), Box::new(history.clone()));
            // A shard whose task is gone grants nothing under any version.
            if shard
                .send(Event::Apply {
                    revision,
                    history,
                    applied,
                })
                .await
                .is_ok()
            {
                replies.push(reply);
            }
        }
        let mut sum = Applied::default();
        let all = async {
            while let Some(reply) = replies.last_mut() {
                let one = reply.await.unwrap_or_default();
                replies.pop();
                sum.outstanding += one.outstanding;
                sum.owed += one.owed;
            }
        };
        if tokio::time::timeout(self.apply_within, all).await.is_ok() {
            // A shard takes changes in order: it follows those before this one as well.
            self.unanswered.remove(history.id());
            return Ok(sum);
        }
        self.unanswered.insert(history.id().clone(), replies);
        Err(ChangeRefused::Unsure(format!(
            "it is stored, but a shard did not apply it within {:?}",
            self.apply_within
        )))
    }

    /// What would be out and owed if a history were in force, in the shards that serve.
    async fn preview(&self, history: &PolicyHistory) -> Applied {
        let mut replies = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let (reply, replied) = oneshot::channel();
            let history = Box::new(history.clone());
            // A shard whose task is gone drops the event, and with it the reply.
            let _ = shard.send(Event::Preview { history, reply }).await;
            replies.push(replied);
        }
        let mut sum = Applied::default();
        for replied in replies {
            let one = replied.await.unwrap_or_default();
            sum.outstanding += one.outstanding;
            sum.owed += one.owed;
        }
        sum
    }

    /// Clears former versions whose grants are over.
    async fn clear_former(&mut self) {
        let now = clock::now();
        let snapshot = Arc::clone(&self.snapshots.borrow());
        for (id, entry) in &snapshot.entries {
            // A tombstone without former versions is due at once.
            if entry.history.former().is_empty() && entry.history.current().is_some() {
                continue;
            }
            if !self.is_applied(id) {
                continue;
            }
            // At start every shard begins with the latest change, so this counts from then.
            let since = *self.applied_since.entry(id.clone()).or_insert(now);
            if now < since + entry.history.clearable_after(self.drift) {
                continue;
            }
            if let Err(error) = self.clear(id.clone(), entry).await {
                tracing::warn!(policy = %id, %error, "former versions were not cleared");
                return;
            }
        }
    }

    /// Whether every shard follows the latest change of a policy, as far as it serves.
    fn is_applied(&mut self, id: &PolicyId) -> bool {
        use oneshot::error::TryRecvError::Empty;
        let Some(waiting) = self.unanswered.get_mut(id) else {
            return true;
        };
        // A shard that dropped its reply no longer serves, and begins anew with the change.
        waiting.retain_mut(|reply| matches!(reply.try_recv(), Err(Empty)));
        let applied = waiting.is_empty();
        if applied {
            self.unanswered.remove(id);
        }
        applied
    }

    async fn clear(&mut self, id: PolicyId, entry: &Entry) -> Result<(), ChangeRefused> {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let Some(cleared) = entry.history.cleared() else {
            let outcome = self.store.forget_policy(id.clone(), entry.stored).await;
            outcome.map_err(|error| ChangeRefused::Store(error.to_string()))?;
            tracing::info!(policy = %id, "nothing granted under the deleted policy is live");
            let revision = PolicyVersion::new(snapshot.revision());
            self.publish(id, revision, None).await?;
            return Ok(());
        };
        let next = self.store.next_revision().await.map_err(not_stored)?;
        self.store_history(&snapshot, next, cleared.clone()).await?;
        tracing::debug!(policy = %id, revision = next.get(), "former versions cleared");
        self.publish(id, next, Some(cleared)).await.map(drop)
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error is a sender that is gone: the server stops.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn not_stored(error: StoreError) -> ChangeRefused {
    ChangeRefused::Store(error.to_string())
}

/// The history after a change; `None` if it says what is in force already. Of policies, deleted
/// ones that are still remembered included, there are at most `entries_max`.
fn changed_history(
    snapshot: &PolicySnapshot,
    change: &Change,
    revision: PolicyVersion,
    entries_max: usize,
) -> Result<Option<PolicyHistory>, ChangeRefused> {
    let id = change.id();
    let history = snapshot.entries.get(&id).map(|entry| &entry.history);
    let current = history.and_then(PolicyHistory::current);
    let refused = |error| match error {
        ChangeError::Invalid(error) => ChangeRefused::Invalid(Box::new(error)),
        error => ChangeRefused::NotAllowed {
            id: id.clone(),
            error: Box::new(error),
        },
    };
    match change {
        Change::Delete { .. } => match (history, current) {
            (Some(history), Some(_)) => history.delete(revision).map(Some).map_err(refused),
            _ => Err(ChangeRefused::Unknown(id)),
        },
        Change::Put { spec } => {
            let spec = PolicySpec::clone(spec);
            if current.is_some_and(|policy| *policy.spec() == spec) {
                return Ok(None);
            }
            if history.is_none() && snapshot.entries.len() >= entries_max {
                return Err(ChangeRefused::TooMany);
            }
            match (history, current) {
                (None, _) => PolicyHistory::create(spec, revision)
                    .map(Some)
                    .map_err(|error| ChangeRefused::Invalid(Box::new(error))),
                (Some(history), None) => {
                    history.recreate(spec, revision).map(Some).map_err(refused)
                }
                (Some(history), Some(_)) => {
                    history.change(spec, revision).map(Some).map_err(refused)
                }
            }
        }
    }
}

/// Stores the first policies of a new store, before any shard begins.
pub(crate) async fn store_first(
    store: &StoreHandle,
    specs: Vec<PolicySpec>,
) -> Result<(), ChangeRefused> {
    for spec in specs {
        let revision = store.next_revision().await.map_err(not_stored)?;
        let history = PolicyHistory::create(spec, revision)
            .map_err(|error| ChangeRefused::Invalid(Box::new(error)))?;
        let write = PolicyWrite {
            expected: None,
            revision,
            history,
        };
        store
            .put_policy(write)
            .await
            .map_err(|error| ChangeRefused::Store(error.to_string()))?;
    }
    Ok(())
}

/// Policies for other modules' tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// These policies, in force and stored under their versions.
    pub(crate) fn snapshot(histories: impl IntoIterator<Item = PolicyHistory>) -> PolicySnapshot {
        let mut snapshot = PolicySnapshot::default();
        for history in histories {
            let stored = history.current().map(|policy| policy.version());
            let entry = Entry {
                stored: stored.unwrap_or_default(),
                history: history.clone(),
            };
            snapshot.entries.insert(history.id().clone(), entry);
        }
        snapshot
    }
}

#[cfg(test)]
mod tests;
