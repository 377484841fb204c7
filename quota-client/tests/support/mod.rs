//! An authority for tests of the client's mechanics: it grants from a fixed budget and keeps the
//! running totals, with none of the rules that make the real one exact. It runs on a runtime of
//! its own, so that killing it cuts every connection as a crash does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quota_client::{Config, QuotaClient};
use quota_core::id::{Epoch, LeaseId, PolicyVersion};
use quota_core::key::BucketAddress;
use quota_core::message::{Answer, Grant, LeaseRequest, Status as AnswerStatus};
use quota_core::policy::{LimitSpec, PolicySpec};
use quota_core::time::Term;
use quota_core::tokens::Tokens;
use quota_wire::convert::answers::AuthorityMessage;
use quota_wire::convert::handshake::{SPOKEN, StreamLimits, Welcome, decode_hello};
use quota_wire::convert::policy::{PolicyUpdate, VersionedSpec, encode_update};
use quota_wire::convert::stream::{
    FromAuthority, decode_from_holder, encode_from_authority, encode_welcome, open_hello,
};
use quota_wire::proto as wire;
use quota_wire::proto::allocator_server::{Allocator, AllocatorServer};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// How the authority behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Grants what is asked for, while the budget lasts.
    Serving,
    /// Reads and never answers.
    Hanging,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) released: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    /// Tokens left to grant, by policy name; absent means plenty.
    pub(crate) budgets: HashMap<String, u64>,
    /// What a queued request is told about its turn.
    pub(crate) turn: Term,
    pub(crate) leases: HashMap<BucketAddress, Vec<Lease>>,
    pub(crate) streams: u32,
    /// What each welcome says of the keys on a stream.
    pub(crate) keys_max: u32,
    counter: u64,
}

impl State {
    /// Totals over all leases of a policy: granted, spent, returned.
    pub(crate) fn totals(&self, policy: &str) -> (u64, u64, u64) {
        let of_policy = self
            .leases
            .iter()
            .filter(|(bucket, _)| bucket.policy.name == policy);
        of_policy
            .flat_map(|(_, leases)| leases)
            .fold((0, 0, 0), |sum, lease| {
                (
                    sum.0 + lease.granted,
                    sum.1 + lease.spent,
                    sum.2 + lease.returned,
                )
            })
    }

    fn answer(&mut self, bucket: &BucketAddress, request: &LeaseRequest) -> Answer {
        let leases = self.leases.entry(bucket.clone()).or_default();
        let known = request
            .lease
            .and_then(|id| leases.iter().position(|lease| lease.id == id));
        let reported = known.map(|place| &mut leases[place]);
        if let Some(lease) = reported {
            lease.spent = lease.spent.max(request.spent.get());
            lease.returned = lease.returned.max(request.returned.get());
            lease.released |= request.release;
        }
        let budget = self.budgets.get_mut(&bucket.policy.name);
        let want = request.want.get();
        let give = budget.as_ref().map_or(want, |left| want.min(**left));
        if let Some(left) = budget {
            *left -= give;
        }
        let open = known.filter(|place| !leases[*place].released);
        let grant = (give > 0).then(|| {
            let place = open.unwrap_or_else(|| {
                self.counter += 1;
                leases.push(Lease {
                    id: LeaseId {
                        epoch: Epoch::new(1),
                        counter: self.counter,
                    },
                    granted: 0,
                    spent: 0,
                    returned: 0,
                    released: false,
                });
                leases.len() - 1
            });
            leases[place].granted += give;
            Grant {
                lease: leases[place].id,
                granted: Tokens::new(leases[place].granted),
                term: Term::from_seconds(10),
                headroom: Term::ZERO,
                version: PolicyVersion::new(1),
            }
        });
        let status = if want > 0 && give == 0 {
            AnswerStatus::Queued {
                retry_after: self.turn,
            }
        } else {
            AnswerStatus::Done
        };
        Answer {
            key: request.key,
            sequence: request.sequence,
            grant,
            status,
        }
    }
}

#[derive(Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    policies: watch::Receiver<PolicyUpdate>,
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Allocator for Service {
    async fn lease(
        &self,
        request: Request<Streaming<wire::ClientMessage>>,
    ) -> Result<Response<BoxStream<wire::ServerMessage>>, Status> {
        let mut inbox = request.into_inner();
        let (outbox, messages) = mpsc::channel(16);
        let state = Arc::clone(&self.state);
        tokio::spawn(async move {
            let _ended = converse(&state, &mut inbox, &outbox).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }

    async fn watch_policies(
        &self,
        _: Request<wire::WatchPoliciesRequest>,
    ) -> Result<Response<BoxStream<wire::PolicyUpdate>>, Status> {
        let updates = tokio_stream::wrappers::WatchStream::new(self.policies.clone());
        let parts = updates.map(|update| tokio_stream::iter(encode_update(&update)));
        let (outbox, messages) = mpsc::channel(16);
        tokio::spawn(async move {
            let mut parts = Box::pin(parts);
            while let Some(mut update) = parts.next().await {
                while let Some(part) = update.next().await {
                    if outbox.send(Ok(part)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

async fn converse(
    state: &Mutex<State>,
    inbox: &mut Streaming<wire::ClientMessage>,
    outbox: &mpsc::Sender<Result<wire::ServerMessage, Status>>,
) -> anyhow::Result<()> {
    let hello = open_hello(inbox.message().await?.expect("a hello"))?;
    decode_hello(hello, SPOKEN)?;
    lock(state).streams += 1;
    let welcome = Welcome {
        protocol: 1,
        server_version: "test".to_owned(),
        node: "test".to_owned(),
        shards: 1,
        limits: StreamLimits {
            keys_max: lock(state).keys_max,
            ..StreamLimits::default()
        },
        policy_revision: 1,
    };
    outbox.send(Ok(encode_welcome(&welcome))).await?;
    let mut buckets = HashMap::new();
    while let Some(message) = inbox.message().await? {
        let message = decode_from_holder(message)?;
        let answers = {
            let mut state = lock(state);
            for introduction in message.introductions {
                buckets.insert(introduction.number, introduction.bucket);
            }
            if state.mode == Mode::Hanging {
                continue;
            }
            let requests = message.requests.iter();
            let answers = requests.map(|request| state.answer(&buckets[&request.key], request));
            answers.collect::<Vec<_>>()
        };
        if answers.is_empty() {
            continue;
        }
        let answers = FromAuthority::Answers(AuthorityMessage {
            anchor: message.number,
            answers,
        });
        for message in encode_from_authority(&answers) {
            outbox.send(Ok(message)).await?;
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics with the lock")
}

/// A running authority. Dropping it kills it.
pub(crate) struct Authority {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    policies: watch::Sender<PolicyUpdate>,
    runtime: Option<Runtime>,
}

impl Authority {
    /// Starts on any free port.
    pub(crate) fn start(specs: &[PolicySpec]) -> Self {
        let (policies, _) = watch::channel(complete(1, specs));
        let mut authority = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: Arc::new(Mutex::new(State {
                mode: Mode::Serving,
                budgets: HashMap::new(),
                turn: Term::from_seconds(3),
                leases: HashMap::new(),
                streams: 0,
                keys_max: StreamLimits::default().keys_max,
                counter: 0,
            })),
            policies,
            runtime: None,
        };
        authority.restart();
        authority
    }

    /// Starts again where it was before.
    pub(crate) fn restart(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = std::net::TcpListener::bind(self.address).expect("a free port");
        listener.set_nonblocking(true).expect("possible");
        self.address = listener.local_addr().expect("bound");
        let service = Service {
            state: Arc::clone(&self.state),
            policies: self.policies.subscribe(),
        };
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            tonic::transport::Server::builder()
                .add_service(AllocatorServer::new(service))
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
                .await
        });
        self.runtime = Some(runtime);
    }

    /// Cuts all connections at once.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Puts these policies in force, all with this version.
    pub(crate) fn put_policies(&self, version: u64, specs: &[PolicySpec]) {
        self.policies.send_replace(complete(version, specs));
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new([format!("http://{}", self.address)]);
        config.keys_max = 1_000;
        config.connect_wait = Duration::from_secs(10);
        config.silence_max = Duration::from_millis(600);
        config.backoff_max = Duration::from_millis(100);
        config
    }

    pub(crate) async fn client(&self) -> QuotaClient {
        QuotaClient::connect(self.config())
            .await
            .expect("a good configuration")
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.kill();
    }
}

fn complete(version: u64, specs: &[PolicySpec]) -> PolicyUpdate {
    let policies = specs.iter().map(|spec| VersionedSpec {
        version: PolicyVersion::new(version),
        spec: spec.clone(),
    });
    PolicyUpdate {
        revision: version,
        complete: true,
        policies: policies.collect(),
        deleted: Vec::new(),
        switches: None,
    }
}

/// A policy with plenty of tokens, by tenant.
pub(crate) fn policy(name: &str) -> PolicySpec {
    PolicySpec::new(
        name,
        &["tenant"],
        LimitSpec::new(100_000, Term::from_seconds(1)),
    )
}

/// Waits until `holds`, and says what was waited for if that takes too long.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..2_000 {
        looks.tick().await;
        if holds() {
            return;
        }
    }
    panic!("never came: {what}");
}

/// Longer than anything here takes, so that a test that runs into it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);
