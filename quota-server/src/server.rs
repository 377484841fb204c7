//! A whole server: it opens the store, starts the node and its ports, and stops them in order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quota_core::authority::Stats;
use quota_core::id::ShardId;
use quota_core::time::{DriftAllowance, Term};
use quota_wire::convert::notice::{GoAway, GoAwayReason};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::{Config, StoreKind};
use crate::metrics::Metrics;
use crate::node::outcomes::GatewayOutcomes;
use crate::node::policies::{self, PolicySnapshot, PolicyTask};
use crate::node::readiness::Readiness;
use crate::node::repeats::Repeats;
use crate::node::shard::{ShardSetup, ShardTask};
use crate::node::streams::Streams;
use crate::node::{INBOX, ITEMS_WAITING_MAX, Node, totals};
use crate::store::StoreError;
use crate::store::handle::{HandleOptions, StoreHandle, StoreThread, StoreWatch};
use crate::store::sled::{SledOptions, SledStore};
use crate::{clock, demo, grpc, http};

/// Answers that may wait to be read by one stream: sixteen full messages, a few megabytes.
const ANSWERS_MAX: usize = 1 << 16;
/// Single calls under way at a time.
const CALLS_MAX: usize = 10_000;
/// A jump of the wall clock beyond this ends tenures. It is more than a clock daemon steps by
/// unless something is wrong, and less than anything that a lease could feel.
const JUMP_MARGIN: Term = Term::from_millis(500);
/// How long holders are given to report when the server stops.
const GRACE: Duration = Duration::from_millis(250);
/// How long the hand-over of all shards may take. A million buckets take a few seconds.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(20);
/// How long connections may take to end once their streams have.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// How long the store may take to close.
const STORE_WITHIN: Duration = Duration::from_secs(5);

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The store cannot be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}. Is another server running? Choose another address with {flag}"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The setting that names it.
        flag: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The system gives no thread for the store.
    #[error("cannot start the store's thread: {0}")]
    Thread(std::io::Error),
    /// The demonstration policies cannot be stored.
    #[error("cannot store the demonstration policies: {0}")]
    Demo(String),
    /// The store's opening was cut short.
    #[error("opening the store in {path} failed: {why}")]
    Opening {
        /// The data directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// A server to be started.
#[derive(Debug)]
pub struct Server;

/// A server that runs. Dropping it ends its tasks at once, as a crash would; open connections may
/// last a moment longer.
#[derive(Debug)]
pub struct RunningServer {
    /// Where gRPC is served.
    pub grpc_addr: SocketAddr,
    /// Where health and metrics are served.
    pub http_addr: SocketAddr,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    stop_shards: watch::Sender<bool>,
    stop_ports: watch::Sender<bool>,
    shards: JoinSet<()>,
    policies: Task,
    ports: [Task; 2],
    store: StoreThread,
}

/// A task that ends with its handle.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Server {
    /// Opens the store, starts everything, and returns once both ports are listened on. Shards are
    /// claimed and loaded meanwhile; see [`RunningServer::ready`]. Needs a tokio runtime with timers
    /// and I/O.
    ///
    /// # Errors
    /// [`StartError`], which says what to do.
    pub async fn start(config: Config) -> Result<RunningServer, StartError> {
        let started = clock::now();
        // The ports first: a second server on one machine fails before it touches anything.
        let (grpc_port, grpc_addr) = listen(config.grpc_listen, "--grpc-listen").await?;
        let (http_port, http_addr) = listen(config.http_listen, "--http-listen").await?;
        let (store, thread) = open_store(&config).await?;
        if !config.no_demo && PolicySnapshot::load(&store).await?.revision() == 0 {
            policies::store_first(&store, demo::policies())
                .await
                .map_err(|error| StartError::Demo(error.to_string()))?;
        }
        let snapshot = PolicySnapshot::load(&store).await?;
        let metrics = Arc::new(Metrics::new());
        let store_watch = store.watch();
        metrics.watch_store(store_watch.clone());

        let count = store.identity().shards;
        let readiness = Arc::new(Readiness::new(count));
        let streams_max = usize::try_from(config.limits.streams_max).unwrap_or(usize::MAX);
        let streams = Arc::new(Streams::new(streams_max));
        let snapshots = watch::Sender::new(Arc::new(snapshot));
        let (stop_shards, stop) = watch::channel(false);
        let per_shard = config.limits.buckets_max.div_ceil(u64::from(count));
        let setup = Arc::new(ShardSetup {
            store: store.clone(),
            policies: snapshots.subscribe(),
            readiness: Arc::clone(&readiness),
            metrics: Arc::clone(&metrics),
            stop: stop.clone(),
            drift: DriftAllowance::DEFAULT,
            jump_margin: JUMP_MARGIN,
            buckets_max: u32::try_from(per_shard).unwrap_or(u32::MAX),
        });
        let (inboxes, tasks): (Vec<_>, Vec<_>) = (0..count)
            .map(|shard| {
                let (inbox, events) = mpsc::channel(INBOX);
                (
                    inbox,
                    ShardTask::new(ShardId::new(shard), Arc::clone(&setup), events),
                )
            })
            .unzip();
        let (policy_task, desk) = PolicyTask::new(
            store,
            snapshots,
            inboxes.clone(),
            Arc::clone(&streams),
            DriftAllowance::DEFAULT,
            Arc::clone(&metrics),
        );
        let node = Arc::new(Node {
            name: grpc_addr.to_string(),
            shards: inboxes,
            streams,
            readiness,
            policies: desk,
            outcomes: GatewayOutcomes::default(),
            metrics: Arc::clone(&metrics),
            items: Arc::new(Semaphore::new(ITEMS_WAITING_MAX)),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            repeats: Repeats::default(),
            surveys: Semaphore::new(1),
            keys_max: config.limits.keys_per_stream_max,
            answers_max: ANSWERS_MAX,
            started,
            last_call: AtomicU64::new(0),
        });

        let mut shards = JoinSet::new();
        for task in tasks {
            shards.spawn(task.run());
        }
        let policies = Task(tokio::spawn(policy_task.run(stop)));
        let (stop_ports, stopped) = watch::channel(false);
        let grpc = grpc::serve(
            Arc::clone(&node),
            Arc::clone(&metrics),
            config.limits,
            grpc_port,
            stopped.clone(),
        );
        let watched = Arc::new(WatchedNode {
            node: Arc::clone(&node),
            metrics: Arc::clone(&metrics),
            store: store_watch,
        });
        let http = http::serve(http_port, watched, signalled(stopped));
        let grpc = Task(tokio::spawn(async move { report("gRPC", grpc.await) }));
        let http = Task(tokio::spawn(async move { report("HTTP", http.await) }));
        Ok(RunningServer {
            grpc_addr,
            http_addr,
            node,
            metrics,
            stop_shards,
            stop_ports,
            shards,
            policies,
            ports: [grpc, http],
            store: thread,
        })
    }
}

impl RunningServer {
    /// Waits until every shard is served.
    pub async fn ready(&self) {
        let mut ready = self.node.readiness.watch();
        // The sender lives as long as the node.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// What it serves and what to try next, for a terminal.
    #[must_use]
    pub fn greeting(&self) -> String {
        demo::greeting(
            self.grpc_addr,
            self.http_addr,
            self.node.policies.snapshot().current(),
        )
    }

    /// Stops in order: tells holders, hands every shard over with its exact state, closes the
    /// store. Bounded by half a minute, whatever hangs.
    pub async fn shutdown(mut self) {
        let node = &self.node;
        node.readiness.drain();
        node.streams.go_away(&GoAway {
            reason: GoAwayReason::Draining,
            grace: Term::from_nanos(u64::try_from(GRACE.as_nanos()).expect("short")),
            instead: Vec::new(),
            message: "the server is stopping".to_owned(),
        });
        // Holders that heed it report at once and close.
        let _ = tokio::time::timeout(GRACE, node.streams.all_closed()).await;
        node.streams.end(&quota_wire::status::draining());
        self.stop_ports.send_replace(true);
        self.stop_shards.send_replace(true);
        let handed_over = async { while self.shards.join_next().await.is_some() {} };
        if tokio::time::timeout(HAND_OVER_WITHIN, handed_over)
            .await
            .is_err()
        {
            tracing::error!(
                "not every shard was handed over in time; those start as after a crash"
            );
        }
        for port in &mut self.ports {
            // What does not end is dropped with its task.
            let _ = tokio::time::timeout(CLOSE_WITHIN, &mut port.0).await;
        }
        self.close().await;
    }

    /// Stops at once, without telling anyone and without handing anything over, as a crash would,
    /// and waits until the store is closed. For tests.
    pub async fn kill(self) {
        self.close().await;
    }

    async fn close(mut self) {
        self.shards.shutdown().await;
        self.policies.0.abort();
        let _ = (&mut self.policies.0).await;
        let store = self.store;
        if let Err(error) = store.closed(STORE_WITHIN).await {
            tracing::error!(%error, "the store was not closed in time");
        }
    }
}

/// What the HTTP port shows.
struct WatchedNode {
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    store: StoreWatch,
}

impl http::Watched for WatchedNode {
    fn reasons(&self) -> Vec<String> {
        self.node.readiness.reasons()
    }

    fn broken(&self) -> Option<String> {
        let why = self.store.stopped()?;
        Some(format!("the store has stopped: {why}"))
    }

    async fn metrics(&self) -> String {
        let reports: Vec<_> = self.node.reports().await.into_iter().flatten().collect();
        let mut stats = Stats::default();
        for report in &reports {
            totals::merge(&mut stats, &report.stats);
        }
        let policies = reports.iter().flat_map(|report| &report.policies);
        self.metrics
            .show(&stats, policies.map(|(id, stats)| (id, stats)));
        let count = |count: usize| i64::try_from(count).expect("far fewer than 2^63 shards");
        let unsettled = reports.iter().filter(|report| !report.settled).count();
        self.metrics.shards.set(count(reports.len()));
        self.metrics.shards_unsettled.set(count(unsettled));
        self.metrics.text()
    }
}

async fn listen(
    address: SocketAddr,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen {
        address,
        flag,
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

async fn open_store(config: &Config) -> Result<(StoreHandle, StoreThread), StartError> {
    let path = config.data_dir.clone();
    let options = match config.store {
        StoreKind::Sled => SledOptions {
            shards: config.shards,
            ..SledOptions::new(&path)
        },
    };
    let opened = tokio::task::spawn_blocking(move || SledStore::open(&options)).await;
    let store = opened.map_err(|error| StartError::Opening {
        path,
        why: error.to_string(),
    })??;
    StoreHandle::spawn(Box::new(store), HandleOptions::default()).map_err(StartError::Thread)
}

async fn signalled(mut signal: watch::Receiver<bool>) {
    // An error is a sender that is gone: the server stops.
    let _ = signal.wait_for(|signalled| *signalled).await;
}

fn report(port: &str, ended: Result<(), impl std::fmt::Display>) {
    if let Err(error) = ended {
        tracing::error!(port, %error, "a port has failed");
    }
}
