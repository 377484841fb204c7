//! Changes that are stored, applied, and cleared in time.

use super::*;
use crate::store::handle::HandleOptions;
use crate::store::memory::{MemoryDisk, MemoryStore};
use quota_core::policy::LimitSpec;
use quota_core::time::Term;

fn spec(name: &str, tokens: u64) -> Box<PolicySpec> {
    let limit = LimitSpec::new(tokens, Term::from_seconds(1));
    Box::new(PolicySpec::new(name, &["tenant"], limit))
}

fn put(name: &str, tokens: u64) -> ChangeRequest {
    let spec = spec(name, tokens);
    ChangeRequest {
        change: Change::Put { spec },
        expected: None,
        dry_run: false,
    }
}

#[test]
fn deleted_policies_count_until_they_are_forgotten() {
    let mut snapshot = PolicySnapshot::default();
    let version = PolicyVersion::new;
    let living = PolicyHistory::create(*spec("living", 1), version(1)).expect("legal");
    let deleted = PolicyHistory::create(*spec("deleted", 1), version(2)).expect("legal");
    let deleted = deleted.delete(version(3)).expect("it lives");
    for history in [living, deleted] {
        let entry = Entry {
            stored: version(3),
            history,
        };
        snapshot.entries.insert(entry.history.id().clone(), entry);
    }
    let change = |name, max| {
        let change = put(name, 2).change;
        changed_history(&snapshot, &change, version(4), max).map(|_| ())
    };
    assert!(matches!(change("new", 2), Err(ChangeRefused::TooMany)));
    change("new", 3).expect("room");
    change("living", 2).expect("it is there already");
    change("deleted", 2).expect("it is there already");
}

/// A task that is not run, and the shard that it talks to.
async fn task() -> (PolicyTask, mpsc::Receiver<Event>) {
    let store = MemoryStore::open(&MemoryDisk::new(1), None).expect("it opens");
    let (store, _thread) =
        StoreHandle::spawn(Box::new(store), HandleOptions::default()).expect("a thread");
    let (shard, events) = mpsc::channel(16);
    let (task, _desk) = PolicyTask::new(
        store,
        watch::Sender::new(Arc::default()),
        vec![shard],
        Arc::new(Streams::new(1)),
        DriftAllowance::DEFAULT,
        Arc::new(Metrics::new()),
    );
    (task, events)
}

async fn next_apply(events: &mut mpsc::Receiver<Event>) -> oneshot::Sender<Applied> {
    match events.recv().await {
        Some(Event::Apply { applied, .. }) => applied,
        other => panic!("a change, not {other:?}"),
    }
}

#[tokio::test]
async fn former_versions_stay_until_a_slow_shard_follows() {
    let (mut task, mut events) = task().await;
    let quick = async |task: &mut PolicyTask, events: &mut _, tokens| {
        task.apply_within = APPLY_WITHIN;
        let (changed, applied) = tokio::join!(task.change(put("p", tokens)), async {
            next_apply(events).await.send(Applied::default())
        });
        applied.expect("it waits");
        changed.expect("it is in force");
    };
    quick(&mut task, &mut events, 10).await;
    task.apply_within = Duration::ZERO;
    let slow = task.change(put("p", 5)).await;
    assert!(matches!(slow, Err(ChangeRefused::Unsure(_))), "{slow:?}");
    let id = put("p", 5).change.id();
    for _ in 0..3 {
        task.clear_former().await;
        assert!(
            !task.applied_since.contains_key(&id),
            "the clock of a version that the shard still grants under is running"
        );
    }
    let late = next_apply(&mut events).await;
    late.send(Applied::default()).expect("it is waited for");
    task.clear_former().await;
    assert!(task.applied_since.contains_key(&id));

    // A later change that is answered says so of the earlier ones.
    task.apply_within = Duration::ZERO;
    let slow = task.change(put("p", 4)).await;
    assert!(matches!(slow, Err(ChangeRefused::Unsure(_))), "{slow:?}");
    let _held = next_apply(&mut events).await;
    quick(&mut task, &mut events, 3).await;
    assert!(task.unanswered.is_empty() && task.applied_since.contains_key(&id));
}

#[tokio::test]
async fn nothing_is_kept_of_a_policy_that_is_forgotten() {
    let (mut task, mut events) = task().await;
    let id = put("p", 1).change.id();
    task.applied_since.insert(id.clone(), clock::now());
    let revision = PolicyVersion::new(1);
    task.publish(id, revision, None).await.expect("it is told");
    assert!(matches!(events.recv().await, Some(Event::Forget { .. })));
    assert!(task.applied_since.is_empty());
}
