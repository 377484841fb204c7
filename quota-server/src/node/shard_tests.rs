//! A shard's task against a store that fails on demand.

use std::sync::Arc;
use std::time::Duration;

use quota_core::holder::HolderMessage;
use quota_core::id::{Incarnation, KeyNumber, MessageNumber, Sequence, ShardId};
use quota_core::key::{BucketAddress, Key, PolicyId};
use quota_core::message::{Answer, Introduction, LeaseRequest, Refusal, Status as Outcome};
use quota_core::policy::{Durability, LimitSpec, PolicyHistory, PolicySpec};
use quota_core::time::{DriftAllowance, Term};
use quota_core::tokens::Tokens;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tonic::Code;

use super::event::{Applied, Event};
use super::outbox::Outbox;
use super::policies::{PolicySnapshot, store_first};
use super::readiness::Readiness;
use super::route::Routes;
use super::shard::{ShardSetup, ShardTask};
use super::streams::Streams;
use crate::clock;
use crate::metrics::Metrics;
use crate::store::handle::{HandleOptions, StoreHandle};
use crate::store::memory::{Fault, MemoryDisk, MemoryStore};

const PATIENCE: Duration = Duration::from_secs(60);

async fn patiently<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it happens in time")
}

fn spec(tokens: u64) -> PolicySpec {
    let limit = LimitSpec::new(tokens, Term::from_seconds(24 * 60 * 60)).with_burst(tokens);
    PolicySpec {
        durability: Durability::Reserved,
        ..PolicySpec::new("daily", &["tenant"], limit)
    }
}

fn bucket(tenant: &str) -> BucketAddress {
    BucketAddress {
        policy: PolicyId {
            namespace: "default".into(),
            name: "daily".into(),
        },
        key: Key::from_values(&[tenant]).expect("legal"),
    }
}

/// One shard that is running.
struct Rig {
    inbox: mpsc::Sender<Event>,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    policies: watch::Sender<Arc<PolicySnapshot>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Rig {
    async fn start(disk: &MemoryDisk) -> Self {
        let rig = Self::begin(disk).await;
        rig.served().await;
        rig
    }

    /// A shard whose task has not run yet.
    async fn begin(disk: &MemoryDisk) -> Self {
        let store = Box::new(MemoryStore::open(disk, None).expect("it opens"));
        let (store, _thread) =
            StoreHandle::spawn(store, HandleOptions::default()).expect("a thread");
        if store.policies().await.expect("it reads").is_empty() {
            store_first(&store, vec![spec(1000)])
                .await
                .expect("it stores");
        }
        let snapshot = PolicySnapshot::load(&store).await.expect("it reads");
        let policies = watch::Sender::new(Arc::new(snapshot));
        let (stop, stopped) = watch::channel(false);
        let (readiness, metrics) = (Arc::new(Readiness::new(1)), Arc::new(Metrics::new()));
        let setup = Arc::new(ShardSetup {
            store,
            policies: policies.subscribe(),
            readiness: Arc::clone(&readiness),
            metrics: Arc::clone(&metrics),
            stop: stopped,
            drift: DriftAllowance::DEFAULT,
            jump_margin: Term::from_seconds(60),
            buckets_max: 1000,
        });
        let (inbox, events) = mpsc::channel(16);
        let task = tokio::spawn(ShardTask::new(ShardId::new(0), setup, events).run());
        Self {
            inbox,
            readiness,
            metrics,
            policies,
            stop,
            task,
        }
    }

    async fn served(&self) {
        let mut ready = self.readiness.watch();
        patiently(ready.wait_for(|ready| *ready))
            .await
            .expect("it is watched");
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        patiently(self.task).await.expect("it ends in order");
    }

    async fn inspect(&self, tenant: &str) -> quota_core::authority::BucketView {
        let (reply, replied) = oneshot::channel();
        let event = Event::Inspect {
            bucket: bucket(tenant),
            reply,
        };
        self.inbox.send(event).await.expect("it listens");
        replied.await.expect("it serves").expect("it is a bucket")
    }
}

/// A holder that is connected to the one shard.
struct Holder {
    outbox: Arc<Outbox>,
    routes: Routes,
    number: u64,
}

impl Holder {
    fn new(streams: &Arc<Streams>, incarnation: u64) -> Self {
        let outbox = Arc::new(Outbox::new(100));
        let incarnation = Incarnation::new(incarnation);
        let routes = Routes::new(incarnation, streams.next_id(), Arc::clone(&outbox), 1, 100);
        Self {
            outbox,
            routes,
            number: 0,
        }
    }

    async fn ask(&mut self, rig: &Rig, tenant: Option<&str>, sequence: u64, tokens: u64) {
        self.number += 1;
        let key = KeyNumber::new(1);
        let introduction = |tenant| Introduction {
            number: key,
            bucket: bucket(tenant),
        };
        let request = LeaseRequest {
            key,
            sequence: Sequence::new(sequence),
            lease: None,
            spent: Tokens::ZERO,
            returned: Tokens::ZERO,
            want: Tokens::new(tokens),
            least: Tokens::new(tokens),
            demand: 0,
            release: false,
        };
        let message = HolderMessage {
            number: MessageNumber::new(self.number),
            introductions: tenant.map(introduction).into_iter().collect(),
            requests: vec![request],
        };
        for (_, part) in self.routes.split(clock::now(), message).expect("legal") {
            rig.inbox
                .send(Event::Part(Box::new(part)))
                .await
                .expect("it listens");
        }
    }

    async fn answers(&self) -> Vec<Answer> {
        let parcel = patiently(self.outbox.parcel()).await.expect("it is open");
        parcel
            .expect("it goes on")
            .answers
            .expect("answers")
            .answers
    }

    /// The answer that ends the waiting.
    async fn done(&self) -> Answer {
        loop {
            let answers = self.answers().await;
            if let Some(done) = answers.iter().find(|answer| answer.status == Outcome::Done) {
                return *done;
            }
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_or_is_in_doubt_ends_the_tenure_and_what_it_booked_is_not_granted() {
    for fault in [Fault::Failed, Fault::UnknownLost, Fault::UnknownWritten] {
        let disk = MemoryDisk::new(1);
        let rig = Rig::start(&disk).await;
        let streams = Arc::new(Streams::new(10));
        let mut holder = Holder::new(&streams, 7);
        disk.inject(fault);
        holder.ask(&rig, Some("t1"), 1, 10).await;
        let mut granted = false;
        let ended = loop {
            match patiently(holder.outbox.parcel()).await.expect("an end") {
                Err(status) => break status,
                Ok(parcel) => {
                    let answers = parcel.answers.expect("answers").answers;
                    granted |= answers.iter().any(|answer| answer.grant.is_some());
                }
            }
        };
        assert_eq!(ended.code(), Code::Unavailable, "{fault:?}");
        assert!(
            !granted,
            "{fault:?}: a grant went out before its record was durable"
        );
        rig.served().await;
        assert_eq!(rig.metrics.claims_lost.get(), 1);
        assert_eq!(rig.metrics.claims.get(), 2);

        // In the next tenure the same request is served.
        let mut holder = Holder::new(&streams, 7);
        holder.ask(&rig, Some("t1"), 1, 10).await;
        let grant = holder.done().await.grant.expect("tokens");
        assert_eq!(
            (grant.granted, grant.lease.epoch.get()),
            (Tokens::new(10), 2),
            "{fault:?}"
        );
        rig.stop().await;
    }
}

#[tokio::test]
async fn streams_that_came_before_a_tenure_end_when_it_begins() {
    let disk = MemoryDisk::new(1);
    let rig = Rig::begin(&disk).await;
    let streams = Arc::new(Streams::new(10));
    let mut early = Holder::new(&streams, 7);
    early.ask(&rig, Some("t1"), 1, 10).await;
    let answers = early.answers().await;
    assert!(
        matches!(answers[0].status, Outcome::Refused(Refusal::Busy { .. })),
        "{answers:?}"
    );
    // The tenure knows nothing of its introductions.
    patiently(early.outbox.ended()).await;
    let mut again = Holder::new(&streams, 7);
    again.ask(&rig, Some("t1"), 1, 10).await;
    assert!(again.done().await.grant.is_some());
    rig.stop().await;
}

#[tokio::test]
async fn while_a_shard_is_not_served_requests_are_busy_and_readiness_says_why() {
    let disk = MemoryDisk::new(1);
    let rig = Rig::start(&disk).await;
    let streams = Arc::new(Streams::new(10));
    // The store's thread ends: nothing can be claimed any more.
    disk.inject(Fault::Panic);
    let mut holder = Holder::new(&streams, 7);
    holder.ask(&rig, Some("t1"), 1, 10).await;
    patiently(holder.outbox.ended()).await;
    let mut late = Holder::new(&streams, 8);
    late.ask(&rig, Some("t2"), 1, 10).await;
    let answers = late.answers().await;
    assert!(
        matches!(answers[0].status, Outcome::Refused(Refusal::Busy { .. })),
        "{answers:?}"
    );
    assert!(!*rig.readiness.watch().borrow());
    let reasons = patiently(async {
        loop {
            let reasons = rig.readiness.reasons();
            if reasons
                .iter()
                .any(|why| why.contains("the store has stopped"))
            {
                return reasons;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(reasons.await.len(), 1);
    // A policy that is stored now is not in anybody's way: no grant follows an older one.
    let history = PolicyHistory::create(spec(5), quota_core::id::PolicyVersion::new(9));
    let (applied, reply) = oneshot::channel();
    let history = Box::new(history.expect("legal"));
    let event = Event::Apply {
        revision: 9,
        history,
        applied,
    };
    rig.inbox.send(event).await.expect("it listens");
    assert_eq!(patiently(reply).await, Ok(Applied::default()));
    rig.stop().await;
}

#[tokio::test]
async fn a_policy_that_the_tenure_began_with_is_not_applied_again() {
    let disk = MemoryDisk::new(1);
    let rig = Rig::start(&disk).await;
    let apply = async |revision: u64, tokens: u64| {
        let version = quota_core::id::PolicyVersion::new(revision);
        let history = PolicyHistory::create(spec(tokens), version).expect("legal");
        let (applied, reply) = oneshot::channel();
        let event = Event::Apply {
            revision,
            history: Box::new(history),
            applied,
        };
        rig.inbox.send(event).await.expect("it listens");
        patiently(reply).await.expect("it serves");
    };
    assert_eq!(rig.inspect("t1").await.capacity, Tokens::new(1000));
    apply(2, 50).await;
    assert_eq!(rig.inspect("t1").await.capacity, Tokens::new(50));
    // A late copy of an older change.
    apply(1, 1000).await;
    assert_eq!(rig.inspect("t1").await.capacity, Tokens::new(50));
    rig.stop().await;
}

#[test]
fn what_changes_while_a_tenure_is_built_is_in_force_when_it_serves() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        // The only thread that could build is busy until it is told to go on.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || held.recv());
        let rig = Rig::begin(&MemoryDisk::new(1)).await;
        let before = Arc::clone(&rig.policies.borrow());
        let idle = Arc::strong_count(&before);
        patiently(async {
            while Arc::strong_count(&before) == idle {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // The build has the old version in hand. Lower the limit, and then once more.
        let mut replies = Vec::new();
        for (revision, tokens) in [(2, 500), (3, 50)] {
            let version = quota_core::id::PolicyVersion::new(revision);
            let history = PolicyHistory::create(spec(tokens), version).expect("legal");
            let (applied, reply) = oneshot::channel();
            let event = Event::Apply {
                revision,
                history: Box::new(history),
                applied,
            };
            rig.inbox.send(event).await.expect("it listens");
            replies.push(reply);
        }
        // Asked after the changes and turned away: they have been read by now.
        let (reply, turned_away) = oneshot::channel();
        let event = Event::Inspect {
            bucket: bucket("t1"),
            reply,
        };
        rig.inbox.send(event).await.expect("it listens");
        assert!(patiently(turned_away).await.is_err(), "nothing is served");
        for reply in &mut replies {
            assert!(reply.try_recv().is_err(), "acknowledged before it holds");
        }
        release.send(()).expect("it waits");
        for reply in replies {
            patiently(reply).await.expect("it is in force");
        }
        rig.served().await;
        let seen = rig.inspect("t1").await;
        assert_eq!(seen.capacity, Tokens::new(50));
        busy.await.expect("no panic").expect("it was told");
        rig.stop().await;
    });
}

#[tokio::test]
async fn a_stop_waits_for_the_write_in_flight_and_hands_over() {
    let disk = MemoryDisk::new(1);
    let rig = Rig::start(&disk).await;
    let streams = Arc::new(Streams::new(10));
    let mut holder = Holder::new(&streams, 7);
    holder.ask(&rig, Some("t1"), 1, 10).await;
    // It waits for its record; whether that is durable by now or not, the hand-over is exact.
    rig.stop().await;
    let granted_by = |answers: &[Answer]| answers.iter().rev().find_map(|answer| answer.grant);
    let mut granted = Tokens::ZERO;
    while let Some(Ok(parcel)) = patiently(holder.outbox.parcel()).await {
        let answers = parcel
            .answers
            .map(|message| message.answers)
            .unwrap_or_default();
        granted = granted_by(&answers).map_or(granted, |grant| grant.granted);
    }
    let rig = Rig::start(&disk).await;
    let seen = rig.inspect("t1").await;
    assert_eq!(seen.outstanding, granted);
    assert_eq!(
        seen.ghost,
        Tokens::ZERO,
        "an exact hand-over leaves no ghost"
    );
    let back = Tokens::new(u64::try_from(seen.available).expect("not negative"));
    assert_eq!(back + granted, Tokens::new(1000), "and loses nothing");
    rig.stop().await;
}
